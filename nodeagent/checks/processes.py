"""Processes that pile up dead, or that hang in the kernel, where most cannot be killed.

Components: ``zombies`` and ``stuck``. Reasons: ``zombies`` (``zombies`` of them or more: degraded,
each holds a pid) and ``stuck`` (one or more in uninterruptible sleep for ``stuck_for``, without a
moment of rest: degraded; ``many_stuck`` or more: failed, for this many have a common cause in a
driver or a dead filesystem); ``no-procfs``: unknown.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Option, Report
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.processes import Found, Processes

NAME = "processes"
_NAMED = 5  # hung processes, and parents, in a message for people


def evaluate_zombies(found: Found, *, limit: int) -> Observation:
    """Pure."""
    count = sum(found.zombies.values())
    if count < limit:
        message = f"{count} of {found.processes} processes are dead"
        return Observation(NAME, "zombies", Status.OK, "", message)
    parents = sorted(found.zombies.items(), key=lambda item: -item[1])[:_NAMED]
    whose = ", ".join(f"{n} of {name or '?'} (pid {pid})" for (pid, name), n in parents)
    message = f"{count} dead processes that no parent reaps: {whose}"
    return Observation(NAME, "zombies", Status.DEGRADED, "zombies", message)


def evaluate_stuck(found: Found, *, stuck_for: float, many: int) -> Observation:
    """Pure. The place where processes wait is the best clue to what they wait for."""
    stuck = [each for each in found.stuck if each.seconds >= stuck_for]
    if not stuck:
        message = f"0 of {found.processes} processes hang in the kernel"
        return Observation(NAME, "stuck", Status.OK, "", message)
    status = Status.FAILED if len(stuck) >= many else Status.DEGRADED
    places = Counter(each.where or "an unknown place" for each in stuck).most_common(_NAMED)
    who = ", ".join(f"{each.name} (pid {each.pid})" for each in stuck[:_NAMED])
    where = ", ".join(f"{place} ({n})" for place, n in places)
    message = f"{len(stuck)} hang in the kernel, in {where}: {who}"
    return Observation(NAME, "stuck", status, "stuck", message)


class ProcessesCheck:
    def __init__(self, machine: HostRoots, options: Mapping[str, Any]) -> None:
        self._processes = Processes(machine)
        self._zombies: int = options["zombies"]
        self._stuck_for: float = options["stuck_for"]
        self._many: int = options["many_stuck"]

    async def run_check(self) -> Report:
        try:
            found = self._processes.sample()
        except OSError as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-procfs", str(error))]
        return [
            evaluate_zombies(found, limit=self._zombies),
            evaluate_stuck(found, stuck_for=self._stuck_for, many=self._many),
        ]


def _positive(value: int) -> int:
    if value < 1:
        raise ValueError(f"{value} is less than 1")
    return value


SPEC = CheckSpec(
    name=NAME,
    sees="processes that hang in the kernel, with where they wait; dead ones that pile up",
    source="/proc/PID/stat, and status and wchan of those in state D",
    cost="2 ms of CPU every 60 s at 100 processes, 35 ms at 10,000, whatever state they are in",
    blind_to="threads except a process's first (the kernel's hung task lines name them); above "
    "500 processes a round takes several runs, at 10,000 twenty minutes; another PID namespace's "
    "processes, without hostPID",
    build=lambda sources, options: ProcessesCheck(sources.machine, options),
    options=(
        Option("zombies", Kind.INTEGER, 500, "this many are degraded", _positive),
        Option("stuck_for", Kind.DURATION, 120.0, "a process that hangs for so long is stuck"),
        Option("many_stuck", Kind.INTEGER, 10, "this many stuck ones are failed", _positive),
    ),
)
