"""The notice to a workload before its pods are evicted, and its answer. Pure.

Both are annotations of pods, so both are the text of whoever may write pods of the namespace. An
answer counts for the workload of the pod that has it, and only with the id of its notice. No
annotation moves a deadline beyond ``drain.notice.within``.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from aggregator.cluster.port import Pod
from aggregator.jobs.gangs import Gang, gang_of
from aggregator.rfc3339 import read_time, write_time
from aggregator.runtime.text import truncate

#: The notice that a workload reads, as JSON, by the downward API for example; and its answer.
REQUESTED = "sickbay.dev/eviction-requested"
READY = "sickbay.dev/eviction-ready"
#: Faults after which no work is left to save, or what a job would save may be corrupt.
NEVER_FOR = ("xid:48", "xid:64", "xid:79", "xid:95", "xid:151", "gpu-off-bus", "gpu-inventory:*")
_LONGEST = 2000
#: As `ident_of` makes it: it goes into the Quarantine, and what is none could fail each write.
_IDENT = re.compile(r"[0-9a-f]{16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods that get one notice: those of a gang on the node, or one pod of no gang."""

    key: str
    gang: Gang | None
    pods: tuple[Pod, ...]

    @property
    def namespace(self) -> str:
        return self.pods[0].namespace


@dataclass(frozen=True, slots=True)
class SeenNotice:
    """The notice that a pod's annotation has."""

    ident: str
    deadline: float


def workloads_of(pods: Iterable[Pod], keys: Sequence[str]) -> dict[str, Workload]:
    """The workloads of these pods by their keys. ``keys``: a site's own markers of gangs."""
    found: dict[str, list[Pod]] = {}
    gangs: dict[str, Gang | None] = {}
    for pod in pods:
        gang = gang_of(pod, keys)
        key = f"{pod.key} {pod.uid}" if gang is None else f"{gang} {gang.key}"
        found.setdefault(key, []).append(pod)
        gangs[key] = gang
    return {key: Workload(key, gangs[key], tuple(one)) for key, one in found.items()}


def ident_of(quarantine: str, workload: str) -> str:
    """The id of a notice: the same in every process that sends it."""
    return hashlib.blake2b(f"{quarantine} {workload}".encode(), digest_size=8).hexdigest()


def text_of(ident: str, deadline: float, *, node: str, workload: str, reason: str) -> str:
    """The annotation of a notice."""
    content = {
        "id": ident,
        "deadline": write_time(deadline),
        "node": node,
        "workload": workload,
        "reason": truncate(reason, _LONGEST // 2),
    }
    return json.dumps(content)


def read_notice(pod: Pod) -> SeenNotice | None:
    """The notice that the pod's annotation has, or None; also for another text."""
    text = pod.annotations.get(REQUESTED, "")
    if not text or len(text) > 2 * _LONGEST:
        return None
    try:
        content = json.loads(text)
        ident, deadline = content["id"], read_time(content["deadline"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    is_one = isinstance(ident, str) and _IDENT.fullmatch(ident)
    return SeenNotice(ident, deadline) if is_one else None


def has_answered(pods: Iterable[Pod], ident: str) -> bool:
    return any(pod.annotations.get(READY) == ident for pod in pods)


def never_because(codes: Iterable[str], more: Sequence[str]) -> str:
    """The code after which nobody gets a notice; empty where all may."""
    patterns = (*NEVER_FOR, *more)
    found = (code for code in codes if any(fnmatchcase(code, one) for one in patterns))
    return next(found, "")
