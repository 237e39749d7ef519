"""The whole fleet out of what this replica knows and what the others told. Pure.

Each node is shown once, by who can say most of it: the replica that owns it; another that still
tells of it while the owner has not heard it yet; the last word of the owner, if that does not
answer, or of who owned it before, until its agent has come to the new owner; else nobody. Every
replica knows which nodes there are, so that none is lost where nobody tells of it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from aggregator.quarantine.fleet import Fleet, Patient, Standing
from aggregator.shards.council import Council, Shards
from aggregator.web import shapes
from aggregator.web.parts import Telling, Told
from aggregator.web.survey import Findings, Survey, natural

#: Owners that are remembered at most.
_MOST_KNOWN = 200_000


class Scope(Protocol):
    """Which nodes a look is of, and by whose word."""

    def names(self) -> Collection[str]:
        """All of them, in any order."""

    def begin(self) -> None:
        """A look begins: until the next one the same words count."""

    def add(self, survey: Survey, name: str) -> None:
        """Add one node."""

    def conclude(self, survey: Survey, names: Iterable[str]) -> Findings:
        """What was found, by names in the order in which people read them."""


class Owners:
    """Whose each node is, remembered: to find out costs some hashes for each."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._known: dict[str, str] = {}
        self._council: Council | None = None

    def of(self, node: str) -> str:
        """The owner's name; empty where nobody is known."""
        council = self._shards.council
        if council is not self._council:
            self._turn(council)
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._owner(council, node)
        return found

    def mine(self, node: str) -> bool:
        """Whether it is this replica's own."""
        return self.of(node) == self._shards.council.me

    def _turn(self, council: Council) -> None:
        before, self._council = self._council, council
        same = before is not None and before.members.keys() == council.members.keys()
        # Who asks for names that nobody knows must not make it grow for ever.
        if not same or len(self._known) > _MOST_KNOWN:
            self._known = {}

    def _owner(self, council: Council, node: str) -> str:
        if self._shards.owns(node):
            return council.me
        owner = council.owner(node)
        return owner.name if owner is not None else ""


class Local:
    """All that one replica knows: the whole, where it is alone."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def names(self) -> Collection[str]:
        return self._fleet.patients.keys()

    def begin(self) -> None:
        """The fleet is read as it is."""

    def add(self, survey: Survey, name: str) -> None:
        patient = self._fleet.patients.get(name)
        if patient is not None:
            survey.add(patient)

    def conclude(self, survey: Survey, names: Iterable[str]) -> Findings:
        return survey.conclude(names)


class Own:
    """What this replica's metrics tell: its own nodes, and of the others how many there are."""

    def __init__(self, fleet: Fleet, owners: Owners) -> None:
        self._fleet = fleet
        self._owners = owners

    def names(self) -> Collection[str]:
        return self._fleet.patients.keys()

    def begin(self) -> None:
        """The fleet is read as it is."""

    def add(self, survey: Survey, name: str) -> None:
        patient = self._fleet.patients.get(name)
        if patient is None:
            return
        if self._owners.mine(name):
            survey.add(patient)
        else:
            survey.count(patient)

    def conclude(self, survey: Survey, names: Iterable[str]) -> Findings:
        return survey.conclude(names)


class Tellings(Protocol):
    """What the others told last; ``aggregator.web.peers`` has it."""

    def tellings(self) -> Mapping[str, Telling]:
        """By replica's name, those that don't answer among them. Empty: there is no other."""


class Whole:
    """All nodes, whoever owns them. ``ready`` returns what this replica's /readyz complains of."""

    def __init__(
        self,
        fleet: Fleet,
        shards: Shards,
        owners: Owners,
        others: Tellings,
        ready: Callable[[], list[str]],
    ) -> None:
        self._fleet = fleet
        self._shards = shards
        self._owners = owners
        self._others = others
        self._ready = ready
        self._tellings: Mapping[str, Telling] = {}

    def names(self) -> Collection[str]:
        tellings = self._others.tellings()
        if not tellings:
            return self._fleet.patients.keys()
        # What a replica that does not answer told of nodes that are gone since is over.
        told = (one.nodes for one in tellings.values() if not one.trouble)
        return set(self._fleet.patients).union(*told)

    def begin(self) -> None:
        self._tellings = self._others.tellings()

    def add(self, survey: Survey, name: str) -> None:
        patient = self._fleet.patients.get(name)
        if not self._tellings:
            if patient is not None:
                survey.add(patient)
            return
        said = word(name, patient, self._owners, self._tellings)
        if said is not None:
            survey.add_told(*said, patient)
        elif patient is not None:
            survey.add(patient)

    def conclude(self, survey: Survey, names: Iterable[str]) -> Findings:
        found, council = survey.conclude(names), self._shards.council
        leader = council.leader
        counts = Counter(map(self._owners.of, found.names)) if self._tellings else Counter()
        here = found.attached - sum(map(_attached, self._tellings.values()))
        return replace(
            found,
            replicas=tuple(
                replicas(
                    council,
                    leader.name if leader is not None else "",
                    counts,
                    here,
                    self._ready() if self._tellings else [],
                    self._tellings,
                )
            ),
            frozen=council.frozen,
            differing=council.differing,
        )


def word(
    name: str, patient: Patient | None, owners: Owners, tellings: Mapping[str, Telling]
) -> tuple[Told, Telling] | None:
    """Who says most of the node, and what; None where that is this replica, from its memory.

    That is so for nodes of ours, and while an agent that is attached here has not moved yet.
    """
    mine = owners.mine(name)
    if patient is not None and patient.health is not None and (mine or patient.attached):
        return None
    owner, unheard = tellings.get(owners.of(name)), None
    past: tuple[Told, Telling] | None = None
    for telling in (owner, *tellings.values()) if owner is not None else tellings.values():
        told = telling.nodes.get(name)
        if told is not None and not telling.trouble:
            if told.agent != "never":
                return told, telling
            unheard = unheard or (told, telling)
        for old in (telling, telling.before):
            word = old.nodes.get(name) if old is not None and old.trouble else None
            if old is not None and word is not None:
                past = (word, old) if past is None or old.seen_at > past[1].seen_at else past
    if past is not None or (mine and patient is not None):
        return past
    return unheard or nobodys(name, owner or Telling(owners.of(name)))


def nobodys(name: str, owner: Telling) -> tuple[Told, Telling]:
    """What is said of a node of which nobody tells."""
    why = owner.note if owner.trouble else "its replica has told nothing of it yet"
    return Told(name, Standing.UNKNOWN, "unknown", why=why), owner


def lemons(mine: Collection[shapes.Lemon], others: Mapping[str, Telling]) -> list[shapes.Lemon]:
    """Those of all histories, each node once, by who saw most of it."""
    worst = {one.node: one for one in mine}
    for telling in others.values():
        for one in telling.lemons:
            known = worst.get(one.node)
            if known is None or _bad(one) > _bad(known):
                worst[one.node] = one
    return sorted(worst.values(), key=_bad, reverse=True) if others else list(mine)


def _bad(one: shapes.Lemon) -> tuple[int, int, int, int]:
    return (len(one.strikes), one.quarantines, one.days, one.returns)


def replicas(
    council: Council,
    leader: str,
    counts: Mapping[str, int],
    attached_here: int,
    not_ready: Collection[str],
    others: Mapping[str, Telling],
) -> list[shapes.Replica]:
    """A line for each, by name; none where there is one alone. ``counts``: nodes by owner."""
    names = {*council.members, *others}
    if not others and len(names) <= 1:
        return []
    lines = []
    for name in sorted(names, key=natural):
        member, here = council.members.get(name), name == council.me
        telling = others.get(name) or Telling(name)
        trouble = "" if here else telling.trouble
        lines.append(
            shapes.Replica(
                name=name,
                here=here,
                leads=name == leader,
                nodes=counts.get(name, 0),
                attached=attached_here if here else _attached(telling),
                version=member.version if member else "",
                policy=member.policy_hash if member else "",
                trouble=trouble,
                last_answer=telling.at if trouble else None,
                not_ready=[] if trouble else list(not_ready if here else telling.not_ready),
            )
        )
    return lines


def _attached(telling: Telling) -> int:
    return sum(one.agent == "attached" for one in telling.nodes.values())
