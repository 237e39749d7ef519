"""Ingest's calls to the controller, and the controller's calls to a stream.

Ingest knows streams and identities; it evaluates no evidence and makes no decision. It accepts
evidence only from streams whose identity is proven, and every call comes from the event loop's
thread, in the order of the stream.
"""

from collections.abc import Awaitable
from typing import Protocol

from aggregator.health.model import Delta, Hello, Measurements, Snapshot


class AgentConnection(Protocol):
    """The way back to one agent: one per stream. No method here blocks or raises.

    A request to a stream that has ended is dropped; `EvidenceSink.on_disconnect` was called for it.
    """

    @property
    def node(self) -> str: ...

    @property
    def instance(self) -> str:
        """Distinguishes two live agents of one node."""

    @property
    def peer(self) -> str:
        """The address that the stream came from, for people."""

    def resync(self, reason: str) -> None:
        """Request a snapshot. A request that comes too soon is delayed, never dropped."""

    def close(self, reason: str) -> None:
        """End the stream; the agent comes back with backoff and jitter."""


class EvidenceSink(Protocol):
    """The receiver of evidence: the controller."""

    def placed(self, node: str, address: str) -> None:
        """Other nodes are assigned to probe the node at ``address``; empty: nowhere (any more)."""

    def assigned(self, node: str, addresses: tuple[str, ...]) -> None:
        """The node's agent is assigned to probe these addresses, and no others (any more)."""

    def on_refusal(self, node: str, reason: str) -> None:
        """A stream whose identity is proven was refused before it attached."""

    def on_connect(self, hello: Hello, line: AgentConnection) -> None:
        """A stream whose identity is proven sent its Hello. Its snapshot has not come yet."""

    def on_evidence(
        self, node: str, evidence: Snapshot | Delta, at: float
    ) -> Awaitable[None] | None:
        """Add it to the node's evidence, now. ``at`` is monotonic seconds.

        Returns None if it is safe at once. Otherwise the stream acknowledges when the awaitable
        completes; when it raises, the stream is ended unacknowledged and the agent sends its whole
        state again.
        """

    def evaluation_cost(self, node: str) -> float:
        """Seconds that evaluating the node's evidence took since the last call. Must be cheap."""

    def digest(self, node: str) -> int | None:
        """The digest of the node's evidence, or None before a snapshot. Must be cheap."""

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        """Measurements for comparison with other nodes; no evidence. ``at`` is monotonic seconds.

        Series are numbered within one stream, from `on_connect` on.
        """

    def on_heartbeat(self, node: str, at: float) -> None:
        """A heartbeat came. ``at`` is monotonic seconds."""

    def on_disconnect(self, node: str, line: AgentConnection, reason: str) -> None:
        """The stream of ``line`` ended. A newer one of the node may have attached before that."""

    def on_conflict(self, node: str, detail: str) -> None:
        """Two live agents claim the node. An empty detail means that this is over."""
