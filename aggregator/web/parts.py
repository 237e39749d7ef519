"""What a replica tells the others of the nodes that it owns: the shapes and their encoding. Pure.

In one body for all nodes, msgpack, whatever is as usual left out: a node that is well takes 20
bytes. A field that is added later, here or in what is carried, needs a default: a replica of the
version before doesn't send it, and what an older one doesn't know it passes over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

import msgspec

from aggregator.quarantine.cluster import Action
from aggregator.quarantine.fleet import Patient, Standing
from aggregator.quarantine.ledger import Kind, Transition
from aggregator.web import shapes, view
from aggregator.web.view import Moment

#: Names the encoding: another one would get another name.
KIND = "application/vnd.sickbay.replica+msgpack"
#: An answer that is longer (bytes) is no answer: 10,000 nodes with an incident each take 15 MB.
MOST_BYTES = 32 << 20
#: What `Answer.heard` says of a node that was never heard, or so long ago or longer (seconds).
_LONG_AGO = 255
#: Nodes in one part at most: more can't be meant.
MOST_NODES = 200_000
#: Events in one answer at most; `Answer.missed` counts the rest.
MOST_EVENTS = 256


class Unreadable(Exception):
    """What came is no answer of a replica; says why."""


#: As long as Kubernetes lets one be.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node, as the replica that owns it tells of it. The defaults are a node that is well.

    ``last_heard`` is for those whose agent is not attached: of the others `Answer.heard` tells,
    so that a heartbeat changes nothing here.
    """

    node: Name
    standing: Standing = Standing.OK
    agent: str = "attached"
    last_heard: shapes.Time | None = None
    why: str = ""
    exempt: bool = False
    wishes: list[str] = []
    conflict: bool = False
    incidents: list[shapes.Incident] = []
    hold: shapes.Hold | None = None
    last_error: str = ""
    release_held: str = ""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """All nodes of one replica, and the lemons that its history shows."""

    nodes: list[Told] = []
    lemons: list[shapes.Lemon] = []


class Happened(msgspec.Struct, frozen=True, omit_defaults=True):
    """A transition. ``kind`` may be one that only a newer version knows."""

    at: float
    kind: str
    node: str = ""
    summary: str = ""
    incident: str = ""
    details: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What GET /replica/part answers.

    ``revision`` names the part, with the life of the process: whoever has it is sent none.
    ``heard`` has a byte for each node of the part, in its order: seconds since it was heard.
    ``events`` are those after the asker's ``seen``; the first time, the latest few, and ``fresh``
    is false. ``not_ready`` is what its /readyz complains of.
    """

    name: str
    revision: str
    heard: bytes = b""
    part: Part | None = None
    seen: str = ""
    fresh: bool = False
    events: list[Happened] = []
    missed: int = 0
    not_ready: list[str] = []


class Past(msgspec.Struct, frozen=True, omit_defaults=True):
    """What GET /replica/past answers: what its own history knows, newest first."""

    events: list[Happened] = []
    trouble: str = ""


class Story(msgspec.Struct, frozen=True, omit_defaults=True):
    """What GET /replica/node answers: one node, without its timeline; null: it knows of none."""

    node: shapes.Node | None = None


_ACTIONS = frozenset(action.value for action in Action)
_T = TypeVar("_T", Answer, Past, Story)
_encode = msgspec.msgpack.Encoder().encode


def encode(told: Answer | Past | Story) -> bytes:
    """As it travels."""
    return _encode(told)


def decode(body: bytes, kind: type[_T]) -> _T:
    """What came, checked. Raises Unreadable."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise Unreadable(f"what it sent can't be read: {error}") from error


def check(part: Part) -> None:
    """What its types don't say and whoever shows it relies on. Raises Unreadable."""
    if len(part.nodes) > MOST_NODES:
        raise Unreadable(f"it tells of {len(part.nodes):,} nodes")
    for one in part.nodes:
        about = [incident.node for incident in one.incidents]
        about += [one.hold.node] if one.hold is not None else []
        if any(node != one.node for node in about):
            raise Unreadable(f"it mixes up {one.node} and another node")
        for incident in one.incidents:
            if incident.action not in _ACTIONS:
                raise Unreadable(f'nothing is known of action "{incident.action[:80]}"')


def tell(patient: Patient, moment: Moment, mode: str, how: str) -> Told:
    """One node of ours, for the others. ``how``: as for `advice`."""
    standing = patient.standing()
    if standing is Standing.OK and not _notable(patient):
        return Told(patient.node)
    agent = view.agent(patient)
    return Told(
        node=patient.node,
        standing=standing,
        agent=agent,
        last_heard=None if patient.attached else moment.when_or_never(patient.last_heard),
        why=view.why(patient, standing),
        exempt=patient.exempt,
        wishes=list(patient.wishes),
        conflict=bool(patient.conflict),
        incidents=view.incidents(patient, moment, how) if patient.incidents else [],
        hold=view.hold(patient, mode, how),
        last_error=patient.last_error,
        release_held=patient.release_held,
    )


def _notable(patient: Patient) -> bool:
    """Whether there is something to say of a node that is well."""
    return bool(
        patient.wishes
        or patient.exempt
        or patient.conflict
        or patient.last_error
        or patient.release_held
        or patient.foreign
        or patient.maintained
        or (patient.health is not None and patient.health.faults)
    )


def heard(patients: Iterable[Patient | None], now: float) -> bytes:
    """A byte for each: seconds since it was heard."""
    return bytes(
        _LONG_AGO
        if one is None or one.last_heard is None
        else min(max(int(now - one.last_heard), 0), _LONG_AGO)
        for one in patients
    )


def happened(one: Transition) -> Happened:
    """A transition, as it travels."""
    return Happened(
        at=one.at,
        kind=one.kind.value,
        node=one.node,
        summary=one.summary,
        incident=one.incident,
        details=dict(one.details),
    )


def transitions(told: Iterable[Happened]) -> list[Transition]:
    """Those of a kind that this version knows, and of a time that there is."""
    kinds = {kind.value: kind for kind in Kind}
    return [
        Transition(one.at, kinds[one.kind], one.node, one.summary, one.incident, one.details)
        for one in told
        if one.kind in kinds and 0 <= one.at <= view.LAST
    ]


@dataclass(frozen=True, slots=True)
class Telling:
    """What one replica has told, as it counts here and now.

    ``trouble`` is empty while it answers; else why not, and all of this is what was known at
    ``at`` (wall clock; None: it never answered). ``seen_at`` is that on the monotonic clock.
    ``before`` has its last word on nodes that it tells of no more: they have become another's.
    """

    replica: str
    nodes: Mapping[str, Told] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    heard: bytes = b""
    lemons: tuple[shapes.Lemon, ...] = ()
    not_ready: tuple[str, ...] = ()
    seen_at: float = 0.0
    at: shapes.Time | None = None
    trouble: str = ""
    before: "Telling | None" = None

    def last_heard(self, told: Told, moment: Moment) -> shapes.Time | None:
        """When the node's agent was heard last, as far as is known."""
        place = self.places.get(told.node, -1)
        if told.last_heard is not None or not 0 <= place < len(self.heard):
            return told.last_heard
        ago = self.heard[place]
        return None if ago == _LONG_AGO else moment.when(self.seen_at - ago)

    @property
    def note(self) -> str:
        """What stands with all that is only last known."""
        when = f"last known {self.at:%H:%M} UTC" if self.at else "never known"
        return f"{when}, {self.replica or 'its replica'} {self.trouble.partition(':')[0]}"


def aged(telling: Telling) -> dict[str, Told]:
    """The nodes of a replica that does not answer: none of them counts as well."""
    note = telling.note
    return {name: _aged(one, note) for name, one in telling.nodes.items()}


def dropped(old: Telling, new: Telling) -> Telling | None:
    """The last word on nodes of which the new part says nothing more; None where there is none."""
    gone = {
        name: one
        for name, one in old.nodes.items()
        if name not in new.nodes and one.agent != "never"
    }
    if not gone:
        return old.before
    let_go = replace(old, nodes=gone, trouble="has let it go", before=None)
    return replace(let_go, nodes=aged(let_go))


def faded(standing: Standing) -> Standing:
    """How a node counts whose replica does not answer: as ill as it was, but never as well.

    A quarantine is seen by every replica: whether it still stands is not this one's to say.
    """
    worse = standing in {Standing.SILENT, Standing.WARNING, Standing.HELD}
    return standing if worse else Standing.UNKNOWN


def _aged(told: Told, note: str) -> Told:
    return msgspec.structs.replace(
        told,
        standing=faded(told.standing),
        agent="unknown",
        why=f"{note}: {told.why}" if told.why else note,
        incidents=[msgspec.structs.replace(one, doing=note) for one in told.incidents],
        hold=told.hold and msgspec.structs.replace(told.hold, reason=f"{note}: {told.hold.reason}"),
    )
