"""Nodes and jobs as Slurm's programs print them in JSON. Pure.

Two forms are read: openapi/v0.0.38 and earlier (Slurm 22.05: ``state`` is a text next to
``state_flags``), and the data parsers from v0.0.39 on (``state`` is a list, a number may be
``{"set": ..., "infinite": ..., "number": ...}``): https://slurm.schedmd.com/rest_api.html.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.cluster.slurm.hostlist import expand
from aggregator.runtime.text import visible

#: Base states: https://slurm.schedmd.com/sinfo.html#lbAG. Every other word is a flag.
_BASES = frozenset({"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
_AT_WORK = frozenset({"ALLOCATED", "MIXED"})
_BROKEN = frozenset({"DOWN", "ERROR"})
#: States of a job that has a node: https://slurm.schedmd.com/squeue.html#lbAG.
_ON_A_NODE = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING"}
)


class UnreadableOutput(ValueError):
    """The output is not of a form that is known here; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. Times are wall clock seconds of slurmctld (0: unknown).

    ``reason``, ``reason_user`` and ``reason_at``: words, author and time of the last drain.
    ``instance_id`` is that of the cloud's machine, empty where Slurm does not know it.
    """

    name: str
    hostname: str
    base: str
    flags: frozenset[str]
    reason: str = ""
    reason_user: str = ""
    reason_at: int = 0
    boot_time: int = 0
    instance_id: str = ""
    partitions: tuple[str, ...] = ()
    address: str = ""

    @property
    def has_drain(self) -> bool:
        """Whether no new work starts there, since somebody has drained it, or expects it to fail:
        a DRAIN replaces the state FAIL.
        """
        return not self.flags.isdisjoint({"DRAIN", "FAIL"})

    @property
    def is_down(self) -> bool:
        """Whether Slurm holds it for broken: it gets no work, with a drain or without one."""
        return self.base in _BROKEN

    @property
    def is_at_work(self) -> bool:
        """Whether a job runs there or ends there."""
        return self.base in _AT_WORK or "COMPLETING" in self.flags

    @property
    def is_off(self) -> bool:
        """Whether Slurm has powered it down, or is doing so, or has begun to power it up again."""
        return not self.flags.isdisjoint({"POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"})

    @property
    def is_rebooting(self) -> bool:
        """Whether Slurm reboots it, or will when it is idle."""
        return not self.flags.isdisjoint({"REBOOT_REQUESTED", "REBOOT_ISSUED"})

    @property
    def waits_for_reboot(self) -> bool:
        """Whether Slurm will reboot it, and has not begun."""
        return "REBOOT_REQUESTED" in self.flags and "REBOOT_ISSUED" not in self.flags

    @property
    def shown(self) -> str:
        """Its state in Slurm's words, such as IDLE+DRAIN."""
        return "+".join((self.base, *sorted(self.flags)))


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job with nodes. ``ends_at``: when its time limit is over, in wall clock seconds.

    ``gpus``: those on each of its nodes, 0 where the job did not request them so.
    """

    job_id: str
    name: str
    user: str
    account: str
    partition: str
    state: str
    ends_at: int = 0
    gpus: int = 0


def read_nodes(answer: Mapping[str, Any]) -> list[SlurmNode]:
    """The nodes of ``scontrol show nodes --json`` or ``sinfo --json``."""
    return [_node(one) for one in _list_of(answer, "nodes")]


#: The fields of `read_jobs`, for `squeue --format` after a mark. The name is last, as it may have
#: any character.
JOB_FORMAT = "|%i|%T|%u|%a|%P|%e|%b|%j"
#: Characters of a job's name that are kept. Slurm accepts some thousand.
_LONGEST_NAME = 100
#: GPUs on each node, such as gres:gpu:8 or gres/gpu:h100=8.
_GPUS = re.compile(r"\bgpu(?::[A-Za-z][^:=,]*)?[:=](\d{1,4})\b")


def read_jobs(text: str, mark: str) -> list[SlurmJob]:
    """The jobs that have a node now, of `squeue` with ``mark``, `JOB_FORMAT` and
    SLURM_TIME_FORMAT=%s.

    In JSON, squeue of 22.05 prints the jobs of all nodes, whatever its options are. ``mark`` is
    unknown to users: a line that lacks it is the rest of a name with a line break, and no job.
    """
    jobs = []
    for line in text.splitlines():
        words = line.split("|", 8)
        if len(words) < 9 or words[0] != mark or words[2] not in _ON_A_NODE:
            continue  # the rest of a name, or a job that waits
        _, job_id, state, user, account, partition, ends, gres, name = words
        jobs.append(
            SlurmJob(
                job_id,
                visible(name, _LONGEST_NAME),
                user,
                "" if account == "(null)" else account,
                partition,
                state,
                ends_at=int(ends) if ends.isdecimal() else 0,
                gpus=_gpus(gres),
            )
        )
    return jobs


def jobs_on(answer: Mapping[str, Any], node: str) -> list[SlurmJob]:
    """The jobs that have the node now, of slurmrestd's answer with all jobs."""
    jobs = []
    for one in _list_of(answer, "jobs"):
        states = {word.upper() for word in _words(one.get("job_state"))}
        if not states & _ON_A_NODE or node not in _names(one.get("nodes")):
            continue
        jobs.append(
            SlurmJob(
                str(number_of(one.get("job_id"))),
                visible(str(one.get("name") or ""), _LONGEST_NAME),
                str(one.get("user_name") or ""),
                str(one.get("account") or ""),
                str(one.get("partition") or ""),
                "COMPLETING" if "COMPLETING" in states else min(states & _ON_A_NODE),
                ends_at=number_of(one.get("end_time")),
                gpus=_gpus(str(one.get("tres_per_node") or "")),
            )
        )
    return jobs


def _names(value: object) -> list[str]:
    try:
        return expand(value) if isinstance(value, str) else []
    except ValueError as error:
        raise UnreadableOutput(str(error)) from error


def _gpus(text: str) -> int:
    return sum(int(count) for count in _GPUS.findall(text))


def first_error(answer: Mapping[str, Any]) -> str:
    """The first error that Slurm put into an answer with exit code 0; empty: none."""
    for one in answer.get("errors") or ():
        if isinstance(one, Mapping):
            words = [one.get("error"), one.get("description"), one.get("source")]
            return ": ".join(str(word) for word in words if word) or "an error without a text"
        return str(one)
    return ""


def _list_of(answer: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise UnreadableOutput(f"Slurm's answer has no list {key!r}")
    return found


def _node(one: Mapping[str, Any]) -> SlurmNode:
    name = one.get("name")
    if not isinstance(name, str) or not name:
        raise UnreadableOutput("a node of Slurm's answer has no name")
    words = {word.upper() for key in ("state", "state_flags") for word in _words(one.get(key))}
    bases = words & _BASES
    if len(bases) > 1 or not words:
        raise UnreadableOutput(f"the state of node {name} is {sorted(words)}; expected one state")
    return SlurmNode(
        name=name,
        hostname=str(one.get("hostname") or ""),
        base=next(iter(bases), "UNKNOWN"),
        flags=frozenset(words - _BASES),
        reason=str(one.get("reason") or ""),
        reason_user=str(one.get("reason_set_by_user") or ""),
        reason_at=number_of(one.get("reason_changed_at")),
        boot_time=number_of(one.get("boot_time")),
        instance_id=str(one.get("instance_id") or ""),
        partitions=tuple(_words(one.get("partitions"))),
        address=str(one.get("address") or ""),
    )


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list):
        return [word for word in value if isinstance(word, str)]
    return []


def number_of(value: object) -> int:
    """A number in either form; 0 where it is not set or infinite."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else 0
    return int(value) if isinstance(value, int | float) else 0
