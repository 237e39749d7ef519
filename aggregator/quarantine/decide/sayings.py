"""What replicas say to each other, as shapes. Pure.

A shard says all that the leader needs to judge the fleet as if each agent spoke to it: a `Saying`
per node, again whenever it changes. The leader answers with what follows for the fleet.

**Times in a message are ages**, in seconds: whose clock shows what is nobody else's business. The
functions here turn ages into times of the reader's monotonic clock, and times into ages; it is the
same subtraction both ways.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aggregator.health.model import Status
from aggregator.policy.network.verdict import Finding, Verdict
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.blame import CommonCause, Group
from aggregator.quarantine.decide.doubt import CERTAIN, Doubt
from aggregator.quarantine.decide.signs import Sign

#: What a check says of a component that other nodes look at too: check, component, status.
Seen = tuple[str, str, Status]


@dataclass(frozen=True, slots=True)
class Saying:
    """What a shard says of one node that it owns; it replaces what it said of the node before.

    ``reported``: its agent has given a snapshot. ``silent``: it has been gone for too long.
    ``speaking``: what it says of the network is evidence now. ``address`` is where other nodes look
    for it. ``traits`` are its versions, ``checks`` those that run on it.
    """

    node: str
    reported: bool = False
    silent: bool = False
    speaking: bool = False
    address: str = ""
    traits: tuple[Group, ...] = ()
    checks: frozenset[str] = frozenset()
    signs: frozenset[Sign] = frozenset()
    sees: tuple[Seen, ...] = ()


# -- a shard to the leader -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Words:
    """Of some nodes all that is known now; ``gone`` are those that the shard speaks of no more.

    ``complete``: with this, all of the shard's nodes have been spoken of in this stream.
    """

    sayings: tuple[Saying, ...] = ()
    gone: tuple[str, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """May this node be quarantined? ``number`` is the stream's own."""

    number: int
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Beat:
    """Nothing new. Either side says so each second."""


Said = Words | Ask | Beat

# -- the leader to a shard -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the leader makes of the whole fleet. ``reported``: how many nodes have, in all."""

    causes: tuple[CommonCause, ...] = ()
    network: tuple[Verdict, ...] = ()
    reported: int = 0
    doubt: Doubt = CERTAIN


@dataclass(frozen=True, slots=True)
class Findings:
    """How nodes of the shard stand in the network, by node."""

    findings: Mapping[str, Finding]


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to an `Ask`. Without ``held`` and ``failed`` it is admitted: see the record.

    ``failed``: the record could not be read or written.
    """

    number: int
    held: Held | None = None
    failed: str = ""


Answer = Outlook | Findings | Decision | Beat

# -- ages and times ------------------------------------------------------------------------------


def turn_saying(said: Saying, now: float) -> Saying:
    if not said.signs:
        return said
    return replace(said, signs=frozenset(one._replace(since=now - one.since) for one in said.signs))


def turn_words(words: Words, now: float) -> Words:
    return replace(words, sayings=tuple(turn_saying(one, now) for one in words.sayings))


def turn_outlook(outlook: Outlook, now: float) -> Outlook:
    return replace(
        outlook,
        causes=tuple(_turn_cause(one, now) for one in outlook.causes),
        network=tuple(replace(one, since=now - one.since) for one in outlook.network),
    )


def turn_findings(findings: Findings, now: float) -> Findings:
    turned = {node: replace(one, since=now - one.since) for node, one in findings.findings.items()}
    return Findings(turned)


def _turn_cause(cause: CommonCause, now: float) -> CommonCause:
    faded = None if cause.faded is None else now - cause.faded
    return replace(cause, since=now - cause.since, faded=faded)
