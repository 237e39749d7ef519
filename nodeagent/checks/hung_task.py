"""Kernel log lines about tasks and CPUs that hang. Context: no action follows from them alone.

``INFO: task jbd2/sda1-8:310 blocked for more than 120 seconds.`` (a task in state D; the kernel
tells of the first ten after a boot and then no more, hung_task_warnings), ``watchdog: BUG: soft
lockup - CPU#3 stuck for 22s! [python3:4711]``, hard lockups, stalls of RCU and of its tasks, stalls
of a workqueue.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import first_bytes, sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "hung-task"

_STARTS = (
    *(b"INFO: ", b"watchdog: ", b"NMI watchdog: ", b"BUG: soft", b"rcu: ", b"Watchdog detected"),
    b"BUG: workqueue lockup",
)

# The task's name is its user's choice, colons and all: the number and the kernel's words after it
# end it. Linux 6.16 added "in I/O wait" and the object that the task is blocked on.
_HUNG = re.compile(
    rb"INFO: task (.{1,64}):(\d{1,10}) (?:blocked|is blocked)(?: in I/O wait)? "
    rb"for more than (\d{1,6}) seconds\."
)
_SOFT = re.compile(
    rb"(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#(\d{1,5}) stuck for (\d{1,6})s! "
    rb"\[(.{0,64}):(\d{1,10})\]"
)
_HARD = re.compile(
    rb"(?:(?:NMI )?watchdog: (?:BUG: |Watchdog detected |CPU\d{1,5}: Watchdog detected )"
    rb"|Watchdog detected )hard LOCKUP on cpu (\d{1,5})",
    re.IGNORECASE,
)
# RCU-tasks (rcu_tasks, rcu_tasks_rude, rcu_tasks_trace) has tasks that stall, and no CPUs.
_RCU = re.compile(
    rb"(?:rcu: )?INFO: (rcu_\w{2,24}) (?:self-)?detected (?:expedited )?"
    rb"stalls?(?: on (?:CPUs?|tasks)\b|\? \(Late IPI\?\)|, but suppressed full report )"
)
_WORKQUEUE = re.compile(rb"BUG: workqueue lockup - pool .{0,160} stuck for (\d{1,6})s!")


class HungTask:
    """Reads records as they come."""

    first = first_bytes(_STARTS)

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The hang that this record tells of, if any. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith(_STARTS) or is_packet_log(line):
            return ()
        found = _parse(line)
        if found is None:
            return ()
        code, details = found
        return (sighting(record, check=NAME, code=code, details=details),)


def _parse(line: bytes) -> tuple[str, dict[str, str]] | None:
    hung = _HUNG.match(line)
    if hung is not None:
        task = {"name": text(hung[1]), "pid": text(hung[2])}
        return "hung-task", {**task, "seconds": text(hung[3])}
    soft = _SOFT.match(line)
    if soft is not None:
        task = {"name": text(soft[3]), "pid": text(soft[4])}
        return "soft-lockup", {"cpu": text(soft[1]), "seconds": text(soft[2]), **task}
    hard = _HARD.match(line)
    if hard is not None:
        return "hard-lockup", {"cpu": text(hard[1])}
    stall = _RCU.match(line)
    if stall is not None:
        return "rcu-stall", {"flavour": text(stall[1])}
    queue = _WORKQUEUE.match(line)
    if queue is not None:
        return "workqueue-lockup", {"seconds": text(queue[1])}
    return None


def _build(_sources: Sources, _options: Mapping[str, Any]) -> HungTask:
    return HungTask()


SPEC = CheckSpec(
    name=NAME,
    sees="tasks that hang in the kernel, CPUs and workqueues that are locked up, RCU stalls",
    source="kernel log, lines of the kernel's own watchdogs",
    cost="a comparison of 14 bytes for each kernel record",
    blind_to="tasks after the first ten of a boot (kernel.hung_task_warnings); kernels built or "
    "set without these watchdogs (the check processes looks for hung tasks itself)",
    interval=0,
    deadline=0,
    build=_build,
)
