"""A replica's report to the others on the nodes that it owns: the models and their encoding. Pure.

All nodes are in one body, in msgpack, without default values: a healthy node takes 20 bytes. A
field that is added later, here or in a carried model, needs a default: a replica of the version
before doesn't send it, and an older one skips fields that it doesn't know.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

import msgspec

from aggregator.cluster.port import Action
from aggregator.events import Transition, kind_named
from aggregator.quarantine.state.fleet import NodeSummary, QuarantineSummary
from aggregator.web import models, node_view
from aggregator.web.node_view import ViewMoment
from aggregator.web.timefmt import LAST

#: Names the encoding: a new encoding gets a new name.
KIND = "application/vnd.sickbay.replica+msgpack"
#: An answer that is longer (bytes) is no answer: 10,000 nodes with an incident each take 15 MB.
MOST_BYTES = 32 << 20
#: The value of `PageAnswer.heard` for a node without a message, or with none for so long (seconds).
_LONG_AGO = 255
#: Nodes in one part at most; no real fleet has more.
MOST_NODES = 200_000
#: Events in one answer at most; `PageAnswer.missed` counts the rest.
MOST_EVENTS = 256


class Unreadable(Exception):
    """The body is no answer of a replica; the text gives the reason."""


#: As long as Kubernetes allows.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class NodeReports(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node, as the replica that owns it reports it. The defaults are a healthy node.

    ``last_heard`` is for nodes whose agent is not attached: `PageAnswer.heard` has that of the
    others, so that a heartbeat causes no change here.
    """

    node: Name
    standing: QuarantineSummary = QuarantineSummary.OK
    agent: str = "attached"
    last_heard: models.Time | None = None
    why: str = ""
    exempt: bool = False
    requests: list[str] = []
    conflict: bool = False
    incidents: list[models.Incident] = []
    hold: models.Hold | None = None
    last_error: str = ""
    release_held: str = ""
    untested: bool = False


class NodesPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """All nodes of one replica, and the lemons that its history shows."""

    nodes: list[NodeReports] = []
    lemons: list[models.Lemon] = []


class EventMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A transition. ``kind`` may be one that only a newer version knows."""

    at: float
    kind: str
    node: str = ""
    summary: str = ""
    incident: str = ""
    details: dict[str, str] = {}


class PageAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of GET /replica/part.

    ``revision`` names the part, with the life of the process: a replica that has it is sent no
    part. ``heard`` has a byte for each node of the part, in its order: seconds since its last
    message. ``events`` are those after the asker's ``seen``; the first time, the latest few, and
    ``fresh`` is false. ``not_ready`` lists the complaints of its /readyz.
    """

    name: str
    revision: str
    heard: bytes = b""
    part: NodesPart | None = None
    seen: str = ""
    fresh: bool = False
    events: list[EventMessage] = []
    missed: int = 0
    not_ready: list[str] = []


class HistoryAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of GET /replica/past: its own history, newest first."""

    events: list[EventMessage] = []
    trouble: str = ""


class NodeDetailAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of GET /replica/node: one node, without its timeline; null: the node is
    unknown.
    """

    node: models.Node | None = None


_ACTIONS = frozenset(action.value for action in Action)
_T = TypeVar("_T", PageAnswer, HistoryAnswer, NodeDetailAnswer)
_encode = msgspec.msgpack.Encoder().encode


def encode(told: PageAnswer | HistoryAnswer | NodeDetailAnswer) -> bytes:
    """The body to send."""
    return _encode(told)


def decode(body: bytes, kind: type[_T]) -> _T:
    """The body, decoded and checked. Raises Unreadable."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise Unreadable(f"its message can't be read: {error}") from error


def check(part: NodesPart) -> None:
    """Check the conditions that its types don't express and its readers rely on. Raises
    Unreadable.
    """
    if len(part.nodes) > MOST_NODES:
        raise Unreadable(f"it tells of {len(part.nodes):,} nodes")
    for one in part.nodes:
        about = [incident.node for incident in one.incidents]
        about += [one.hold.node] if one.hold is not None else []
        if any(node != one.node for node in about):
            raise Unreadable(f"it mixes up {one.node} and another node")
        for incident in one.incidents:
            if incident.action not in _ACTIONS:
                raise Unreadable(f'this replica does not know action "{incident.action[:80]}"')


def to_node_reports(
    node_summary: NodeSummary, moment: ViewMoment, mode: str, how: str
) -> NodeReports:
    """One node of ours, for the others. ``how``: as for `advice`."""
    standing = node_summary.standing()
    if standing is QuarantineSummary.OK and not _notable(node_summary):
        return NodeReports(node_summary.node)
    agent = node_view.agent(node_summary)
    return NodeReports(
        node=node_summary.node,
        standing=standing,
        agent=agent,
        last_heard=None
        if node_summary.agent.speaks
        else moment.when_or_never(node_summary.agent.last_heard),
        why=node_view.why(node_summary, standing),
        exempt=node_summary.decision.exempt,
        requests=list(node_summary.decision.requests),
        conflict=bool(node_summary.agent.conflict),
        incidents=node_view.incidents(node_summary, moment, how)
        if node_summary.decision.incidents
        else [],
        hold=node_view.hold(node_summary, mode, how),
        last_error=node_summary.work.last_error,
        release_held=node_summary.quarantine_view.release_held,
        untested=bool(node_summary.cluster.untested),
    )


def _notable(node_summary: NodeSummary) -> bool:
    """Whether a healthy node still has something to report."""
    return bool(
        node_summary.decision.requests
        or node_summary.decision.exempt
        or node_summary.agent.conflict
        or node_summary.work.last_error
        or node_summary.quarantine_view.release_held
        or node_summary.cluster.foreign
        or node_summary.cluster.untested
        or node_summary.quarantine_view.unclaimed
        or node_summary.cluster.marked
        or node_summary.cluster.maintained
        or (node_summary.agent.health is not None and node_summary.agent.health.faults)
    )


def message_ages(node_summaries: Iterable[NodeSummary | None], now: float) -> bytes:
    """A byte for each: seconds since its last message."""
    return bytes(
        _LONG_AGO
        if one is None or one.agent.last_heard is None
        else min(max(int(now - one.agent.last_heard), 0), _LONG_AGO)
        for one in node_summaries
    )


def happened(one: Transition) -> EventMessage:
    """A transition, as it travels."""
    return EventMessage(
        at=one.at,
        kind=one.kind.value,
        node=one.node,
        summary=one.summary,
        incident=one.incident,
        details=dict(one.details),
    )


def transitions(told: Iterable[EventMessage]) -> list[Transition]:
    """Those of a kind that this version knows, and of a valid time."""
    return [
        Transition(one.at, kind, one.node, one.summary, one.incident, one.details)
        for one in told
        if (kind := kind_named(one.kind)) is not None and 0 <= one.at <= LAST
    ]


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica's report, as it counts here and now.

    ``trouble`` is empty while it answers; else why not, and all of this is as of ``at`` (wall
    clock), which is None if it never answered. ``seen_at`` is that on the monotonic clock.
    ``before`` has its last report on nodes that it no longer reports: they have become another's.
    """

    replica: str
    nodes: Mapping[str, NodeReports] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    heard: bytes = b""
    lemons: tuple[models.Lemon, ...] = ()
    not_ready: tuple[str, ...] = ()
    seen_at: float = 0.0
    at: models.Time | None = None
    trouble: str = ""
    before: "ReplicaReport | None" = None

    def last_heard(self, told: NodeReports, moment: ViewMoment) -> models.Time | None:
        """The time of the last message of the node's agent, as far as is known."""
        place = self.places.get(told.node, -1)
        if told.last_heard is not None or not 0 <= place < len(self.heard):
            return told.last_heard
        ago = self.heard[place]
        return None if ago == _LONG_AGO else moment.when(self.seen_at - ago)

    @property
    def note(self) -> str:
        """The note beside all values that are only last known."""
        when = f"last known {self.at:%H:%M} UTC" if self.at else "never known"
        return f"{when}, {self.replica or 'its replica'} {self.trouble.partition(':')[0]}"


def aged(telling: ReplicaReport) -> dict[str, NodeReports]:
    """The nodes of a replica that does not answer, of which none counts as healthy."""
    note = telling.note
    return {name: _aged(one, note) for name, one in telling.nodes.items()}


def dropped(old: ReplicaReport, new: ReplicaReport) -> ReplicaReport | None:
    """The last report on nodes that the new part no longer has, or None without any."""
    gone = {
        name: one
        for name, one in old.nodes.items()
        if name not in new.nodes and one.agent != "never"
    }
    if not gone:
        return old.before
    let_go = replace(old, nodes=gone, trouble="has let it go", before=None)
    return replace(let_go, nodes=aged(let_go))


def faded(standing: QuarantineSummary) -> QuarantineSummary:
    """The standing of a node whose replica does not answer: failing as before, but never healthy.

    A quarantine is seen by every replica, so this one's report does not say whether it still
    stands.
    """
    worse = standing in {
        QuarantineSummary.SILENT,
        QuarantineSummary.WARNING,
        QuarantineSummary.HELD,
    }
    return standing if worse else QuarantineSummary.UNKNOWN


def _aged(told: NodeReports, note: str) -> NodeReports:
    return msgspec.structs.replace(
        told,
        standing=faded(told.standing),
        agent="unknown",
        why=f"{note}: {told.why}" if told.why else note,
        incidents=[msgspec.structs.replace(one, doing=note) for one in told.incidents],
        hold=told.hold and msgspec.structs.replace(told.hold, reason=f"{note}: {told.hold.reason}"),
    )
