"""What ingest asks of the controller, and what the controller may ask of a stream.

Ingest knows streams and identities; it folds and decides nothing. It hears of evidence only from
streams whose identity is proven, and every call comes from the event loop's thread, in the order
of the stream.
"""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from aggregator.health.model import Delta, Hello, Snapshot


class Line(Protocol):
    """The way back to one agent: one per stream. Nothing here blocks or raises.

    What is asked of a stream that has ended goes nowhere; the controller hears `Intake.detached`.
    The commands return their command id, which comes back in `Intake.answered`.
    """

    @property
    def node(self) -> str: ...

    @property
    def instance(self) -> str:
        """Tells two live agents of one node apart."""
        ...

    @property
    def peer(self) -> str:
        """The address that the stream came from, for people."""
        ...

    def resync(self, reason: str) -> None:
        """Ask for a snapshot. Asked too often it is asked later, never dropped."""
        ...

    def redirect(self, address: str, reason: str) -> None:
        """Send the agent to the shard at ``host:port``; the stream is closed if it stays."""
        ...

    def clear_faults(self, component: str, code: str, reason: str) -> str: ...

    def quiesce(self, seconds: float, reason: str) -> str:
        """Ask the agent to let go of NVML for so long; 0 ends it early."""
        ...

    def run_checks(self, names: Sequence[str]) -> str:
        """Run these checks now; none named is all of them."""
        ...

    def close(self, reason: str) -> None:
        """End the stream; the agent comes back with backoff and jitter."""
        ...


class Intake(Protocol):
    """Who takes the evidence in: the controller."""

    def home(self, node: str) -> str:
        """The address (host:port) of the replica that the node's agent belongs to; empty: here."""
        ...

    def placed(self, node: str, address: str) -> None:
        """Other nodes are told to look for the node at ``address``; empty: nowhere (any more)."""
        ...

    def attached(self, hello: Hello, line: Line) -> None:
        """A stream whose identity is proven said Hello. Its snapshot has not come yet."""
        ...

    def heard(self, node: str, evidence: Snapshot | Delta, at: float) -> Awaitable[None] | None:
        """Fold it, now. ``at`` is monotonic seconds.

        None: safe at once. Else the stream acknowledges when the awaitable completes; when it
        raises, the stream is ended unacknowledged and the agent sends all it knows again.
        """
        ...

    def digest(self, node: str) -> int | None:
        """Over what has been folded of the node; None: no snapshot yet. Must be cheap."""
        ...

    def beat(self, node: str, at: float) -> None:
        """A heartbeat came. ``at`` is monotonic seconds."""
        ...

    def answered(self, node: str, command_id: str, *, ok: bool, message: str) -> None:
        """The agent's answer to a command that `Line` sent."""
        ...

    def detached(self, node: str, line: Line, reason: str) -> None:
        """The stream of ``line`` ended. A newer one of the node may have attached before."""
        ...

    def conflict(self, node: str, detail: str) -> None:
        """Two live agents claim the node. An empty detail: that is over."""
        ...
