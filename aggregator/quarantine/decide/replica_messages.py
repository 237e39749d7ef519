"""The messages between replicas. Pure.

A replica reports all that the leader needs to judge the fleet as if it had every agent: a
`NodeReport` per node, again whenever it changes. The leader answers with the fleet's findings.

**Times in a message are ages**, in seconds, as a replica's clock means nothing to another. The
functions here turn ages into times of the reader's monotonic clock, and times into ages; it is the
same subtraction both ways.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aggregator.health.model import Status
from aggregator.policy.network.verdict import Finding, NetworkVerdict
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.cause_search import CommonCause, Group
from aggregator.quarantine.decide.symptoms import Symptom
from aggregator.quarantine.decide.uncertainty import NO_UNCERTAINTY, Uncertainty

#: A check's result on a component that other nodes look at too: check, component, status.
Seen = tuple[str, str, Status]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A replica's report on one node that it owns; it replaces its earlier report on the node.

    ``reported``: its agent has given a snapshot. ``silent``: it has been gone for too long.
    ``speaking``: its results about the network are evidence now. ``address`` is where other nodes
    probe it. ``traits`` are its versions, ``checks`` those that run on it. ``assigned`` are the
    addresses that the replica assigned to its agent to probe.
    """

    node: str
    reported: bool = False
    silent: bool = False
    speaking: bool = False
    address: str = ""
    traits: tuple[Group, ...] = ()
    checks: frozenset[str] = frozenset()
    signs: frozenset[Symptom] = frozenset()
    sees: tuple[Seen, ...] = ()
    assigned: tuple[str, ...] = ()


# -- a follower to the leader ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportBatch:
    """All that is known now of some nodes; ``gone`` are those that the replica reports no more.

    ``complete``: with this, all of the replica's nodes have been reported in this stream.
    """

    reports: tuple[NodeReport, ...] = ()
    gone: tuple[str, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """May this node be quarantined? ``number`` is the stream's own."""

    number: int
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A message without news. Each side sends one each second."""


Said = ReportBatch | AdmissionRequest | KeepAlive

# -- the leader to a follower ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FleetFindings:
    """The leader's findings on the whole fleet. ``reported``: how many nodes have, in all."""

    causes: tuple[CommonCause, ...] = ()
    network: tuple[NetworkVerdict, ...] = ()
    reported: int = 0
    uncertainty: Uncertainty = NO_UNCERTAINTY


@dataclass(frozen=True, slots=True)
class LeaderFindings:
    """The leader's findings on the replica's nodes in the network, by node."""

    findings: Mapping[str, Finding]


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The answer to an `AdmissionRequest`. Without ``held`` and ``failed`` the node is admitted.

    ``failed``: the record could not be read or written.
    """

    number: int
    held: Held | None = None
    failed: str = ""


Answer = FleetFindings | LeaderFindings | AdmissionDecision | KeepAlive

# -- ages and times ------------------------------------------------------------------------------


def rebase_report_ages(said: NodeReport, now: float) -> NodeReport:
    if not said.signs:
        return said
    return replace(said, signs=frozenset(one._replace(since=now - one.since) for one in said.signs))


def rebase_batch_ages(words: ReportBatch, now: float) -> ReportBatch:
    return replace(words, reports=tuple(rebase_report_ages(one, now) for one in words.reports))


def rebase_outlook_ages(outlook: FleetFindings, now: float) -> FleetFindings:
    return replace(
        outlook,
        causes=tuple(_turn_cause(one, now) for one in outlook.causes),
        network=tuple(replace(one, since=now - one.since) for one in outlook.network),
    )


def rebase_findings_ages(findings: LeaderFindings, now: float) -> LeaderFindings:
    turned = {node: replace(one, since=now - one.since) for node, one in findings.findings.items()}
    return LeaderFindings(turned)


def _turn_cause(cause: CommonCause, now: float) -> CommonCause:
    faded = None if cause.faded is None else now - cause.faded
    return replace(cause, since=now - cause.since, faded=faded)
