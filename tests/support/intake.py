"""A controller that accepts and remembers all evidence, and the agents that talk to it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aggregator.health.model import Delta, Hello, Measurements, Snapshot
from aggregator.ingest.interfaces import AgentConnection


@dataclass
class RecordingIntake:
    """The calls from ingest, in order. A test sets its answers in ``digests`` and ``safe``."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    lines: dict[str, AgentConnection] = field(default_factory=dict)
    evidence: list[tuple[str, Snapshot | Delta, float]] = field(default_factory=list)
    measured: list[tuple[str, Measurements]] = field(default_factory=list)
    digests: dict[str, int] = field(default_factory=dict)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    assignments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Makes what `on_evidence` returns; with None the evidence is safe at once.
    safe: Callable[[str, Snapshot | Delta], Awaitable[None] | None] | None = None

    def placed(self, node: str, address: str) -> None:
        self.places[node] = address

    def assigned(self, node: str, addresses: tuple[str, ...]) -> None:
        self.assignments[node] = addresses

    def on_refusal(self, node: str, reason: str) -> None:
        self.refusals.append((node, reason))

    def on_connect(self, hello: Hello, line: AgentConnection) -> None:
        self.events.append(("attached", hello.node, hello.instance))
        self.hellos.append(hello)
        self.lines[hello.node] = line

    def on_evidence(
        self, node: str, evidence: Snapshot | Delta, at: float
    ) -> Awaitable[None] | None:
        self.events.append(("heard", node, type(evidence).__name__))
        self.evidence.append((node, evidence, at))
        return self.safe(node, evidence) if self.safe else None

    def evaluation_cost(self, node: str) -> float:
        return 0.0

    def digest(self, node: str) -> int | None:
        return self.digests.get(node)

    def on_measurements(self, node: str, told: Measurements, at: float) -> None:
        self.measured.append((node, told))

    def on_heartbeat(self, node: str, at: float) -> None:
        self.events.append(("beat", node))

    def on_disconnect(self, node: str, line: AgentConnection, reason: str) -> None:
        self.events.append(("detached", node, line.instance, reason))

    def on_conflict(self, node: str, detail: str) -> None:
        self.conflicts.append((node, detail))
