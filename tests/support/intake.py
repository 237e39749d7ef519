"""A controller that takes everything in and remembers it, and the agents that talk to it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aggregator.health.model import Delta, Hello, Snapshot
from aggregator.ingest.intake import Line


@dataclass
class RecordingIntake:
    """What ingest said, in order. ``digests`` and ``safe`` are what the test wants answered."""

    events: list[tuple[object, ...]] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    lines: dict[str, Line] = field(default_factory=dict)
    evidence: list[tuple[str, Snapshot | Delta, float]] = field(default_factory=list)
    digests: dict[str, int] = field(default_factory=dict)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    answers: list[tuple[str, str, bool, str]] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    #: Nodes that belong to another replica, and where that is.
    homes: dict[str, str] = field(default_factory=dict)
    #: Makes what `heard` returns; None is "safe at once".
    safe: Callable[[str, Snapshot | Delta], Awaitable[None] | None] | None = None

    def home(self, node: str) -> str:
        return self.homes.get(node, "")

    def placed(self, node: str, address: str) -> None:
        self.places[node] = address

    def attached(self, hello: Hello, line: Line) -> None:
        self.events.append(("attached", hello.node, hello.instance))
        self.hellos.append(hello)
        self.lines[hello.node] = line

    def heard(self, node: str, evidence: Snapshot | Delta, at: float) -> Awaitable[None] | None:
        self.events.append(("heard", node, type(evidence).__name__))
        self.evidence.append((node, evidence, at))
        return self.safe(node, evidence) if self.safe else None

    def digest(self, node: str) -> int | None:
        return self.digests.get(node)

    def beat(self, node: str, at: float) -> None:
        self.events.append(("beat", node))

    def answered(self, node: str, command_id: str, *, ok: bool, message: str) -> None:
        self.answers.append((node, command_id, ok, message))

    def detached(self, node: str, line: Line, reason: str) -> None:
        self.events.append(("detached", node, line.instance, reason))

    def conflict(self, node: str, detail: str) -> None:
        self.conflicts.append((node, detail))
