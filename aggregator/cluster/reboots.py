"""Reboots that the cluster itself carries out: a feature of some kinds of cluster alone."""

import enum
from typing import NamedTuple, Protocol

from aggregator.cluster.port import Guard


class RebootState(enum.Enum):
    """How far a reboot has come."""

    NONE = "none"  # none with this operation is known
    UNDER_WAY = "under way"
    DONE = "done"  # the node has booted since, and is not being rebooted
    FAILED = "failed"


class RebootProgress(NamedTuple):
    """``text`` is for people."""

    state: RebootState
    text: str = ""


class NodeReboots(Protocol):
    """Each method raises `ClusterError`. ``operation`` is the reboot's own id."""

    async def order(self, node: str, operation: str, *, guard: Guard) -> None:
        """Reboot a node once, however often this is called with one operation.

        Raises `Conflict` where nothing was ordered and a later order may be taken, and `Refused`
        where none will be.
        """

    async def progress(self, node: str, operation: str) -> RebootProgress: ...

    async def cancel(self, node: str, operation: str) -> bool:
        """Take the order back, if it has not begun. False: the node may be rebooted."""
