"""Whether a job may start on this node now, from the latch alone. Pure.

A launcher or a prolog requests it before each start, so the answer costs microseconds: no check
runs for it. Failed evidence counts against the node, as in `sickbay-agent check`, and so does a
port or mount that is not up yet after a boot. Other unknown evidence does not, nor do other GPUs
than the job's.
"""

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from nodeagent.dataclass import dataclass
from nodeagent.local.findings import Latched, Result, from_latch
from nodeagent.model import NOT_UP_YET, Status

if TYPE_CHECKING:
    from nodeagent.evidence.latch import Latch

#: Entries of evidence in one answer.
MOST_NAMED = 32
#: The name of the entry for a driver that the agent has released.
RELEASED = "gpu-driver-released"


@dataclass(frozen=True, slots=True)
class Against:
    """One piece of evidence against the node. ``code``: the fault's, or the result's reason."""

    check: str
    component: str
    code: str
    message: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.code or self.check, self.component, self.message)))


@dataclass(frozen=True, slots=True)
class Readiness:
    """``known``: a check has run since the boot. ``total``: all entries, also those left out."""

    node: str
    known: bool
    against: Sequence[Against] = field(default_factory=tuple)
    total: int = 0

    @property
    def ready(self) -> bool:
        return not self.total

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "ready": self.ready,
            "known": self.known,
            "against": [
                {name: getattr(one, name) for name in ("check", "component", "code", "message")}
                for one in self.against
            ],
            "total": self.total,
        }


def readiness(
    latch: "Latch",
    *,
    node: str,
    now: float,
    without: Collection[str] = (),
    released_for: float = 0.0,
) -> Readiness:
    """``without``: components of GPUs that the job does not use. ``released_for``: seconds for
    which the GPU driver is still released, as for a reset, an upgrade or a test.
    """
    findings = from_latch(latch, now, node=node, source="agent", checks=()).of_this_node()
    failed = [
        Against(
            one.check,
            one.component,
            one.code if isinstance(one, Latched) else one.reason,
            one.message,
        )
        for one in findings.ranked()
        if (one.status is Status.FAILED or _is_awaited(one)) and one.component not in without
    ]
    if released_for > 0:
        text = f"the GPU driver is released for {released_for:.0f} s more"
        failed.insert(0, Against("agent", "", RELEASED, text))
    return Readiness(node, bool(latch.components), tuple(failed[:MOST_NAMED]), len(failed))


def _is_awaited(one: Latched | Result) -> bool:
    return isinstance(one, Result) and one.reason == NOT_UP_YET


class UnknownGpu(ValueError):
    """A GPU was named that this node does not have; the text lists those that it has."""


def components_without(wanted: Sequence[str], gpus: Sequence[Sequence[str]]) -> frozenset[str]:
    """The components of the GPUs that are not wanted. Raises UnknownGpu.

    ``gpus``: the names of each GPU, in the order of their PCI addresses. ``wanted``: a position in
    that order, which is NVML's index on a node with all of its GPUs, a UUID or a PCI address.
    """
    used: set[int] = set()
    for one in wanted:
        if one.isascii() and one.isdigit():
            found = [int(one)] if len(one) < 4 and int(one) < len(gpus) else []
        else:
            found = [place for place, names in enumerate(gpus) if one in names]
        if not found:
            known = ", ".join(names[0] for names in gpus) or "none"
            raise UnknownGpu(f"this node has no GPU {one[:64]}; it has {known}")
        used.update(found)
    return frozenset(
        name for place, names in enumerate(gpus) if place not in used for name in names
    )
