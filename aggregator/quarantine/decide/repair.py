"""The next repair of a node in quarantine, or what holds it. Pure.

Invariants:
- Without a person's request a rung is begun once in a quarantine, and each one is stronger than
  those before it. One that was not begun is repeated within the bound of attempts: a ladder ends.
- An attempt whose outcome is not known is followed by none: a person decides.
- A node that is to prove itself before its release is tested until it passes, a repair has failed
  it, or it is left to a person. Tests that give no verdict are bounded, so this ends too.
- `RepairLimits` let no repair begin past a limit, and never two in one failure domain. The record
  is changed by compare-and-set, so this holds for any interleaving of replicas.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from aggregator.cluster.operations import DELETED_BY_HAND, name_of
from aggregator.cluster.port import (
    BUSY,
    Node,
    OperationRequest,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import Duration, Share
from aggregator.policy.repairs import ATTEMPTS, NEEDS_PERSON, REPAIRS, TEST, TICKET, rank
from aggregator.policy.rules import LONGEST_REPEAT
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.admission_record import (
    MOST_REPAIRED_NODES,
    PastRepair,
    Record,
    RunningOperation,
)
from aggregator.quarantine.decide.gpu_operands import paused_by_another
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.operation_step import Do, NextOperation, under_way
from aggregator.quarantine.decide.pool_budget import allowance
from aggregator.quarantine.decide.profiles import MaybeProfile
from aggregator.quarantine.decide.reservation import running_of
from aggregator.quarantine.decide.verdicts import (
    is_verified,
    last_repair,
    open_failure,
    without_verdict,
)
from aggregator.rfc3339 import span
from aggregator.runtime.text import counted

#: Attempts of one quarantine.
MOST_ATTEMPTS = 20
#: Failure domains of one node: the definition of operations takes no more. One more than places.
MOST_DOMAINS = 32

_KURED = "weave.works/kured-reboot-in-progress"
_KARPENTER = "karpenter.sh/nodeclaim-termination-timestamp"
_MEDIK8S = "remediation.medik8s.io/nhc-timed-out"


class RepairMode(enum.StrEnum):
    """Whether repairs are carried out."""

    OFF = "off"
    OBSERVE = "observe"  # report which one would be
    REPAIR = "repair"


def _mode(value: Any) -> Any:
    return "off" if value is False else value  # YAML reads an unquoted off as false


@dataclass(frozen=True, slots=True)
class RepairRules(SectionDataclass):
    """The limits of repairs: a part of the section ``repair``. Durations are seconds.

    ``attempts`` on one node within ``window``. ``concurrent`` and its percentage bound those of the
    whole fleet at once, ``pool_concurrent`` those of one pool (``limits.pool_label``). In one
    failure domain (``limits.domain_labels``, ``limits.clique_label``) there is never more than one.
    ``clear_within``: this long after a repair its evidence may stay open before the next rung is
    due. A repair that its agent was not permitted to begin is tried again after ``test_pause``.
    ``verify``: the profile of the test before a release by recovery; empty: none. At most
    ``test_attempts`` tests of one quarantine end without a verdict, ``test_pause`` apart; one that
    has waited ``verify_within`` for its beginning is left to a person. ``new_nodes``: the test of
    nodes with a startup taint. ``idle_nodes``: the periodic test of those without work; None: there
    is none.
    """

    mode: Annotated[RepairMode, Field(strict=False), BeforeValidator(_mode)] = RepairMode.OFF
    """Whether drained nodes are repaired: ``off``, ``observe`` (only shown) or ``repair``.
    docs/repair.md.
    """
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Repairs of one node within ``repair.window``, also those by hand, which it does not hold;
    tickets do not count.
    """
    window: Annotated[Duration, Field(ge=3600, le=LONGEST_REPEAT)] = 7 * 86400.0
    """The time in which ``attempts`` counts."""
    concurrent: Positive = 2
    """Nodes that are repaired at once. Never two in one failure domain."""
    concurrent_percent: Share = 5.0
    """The same, as a share of all nodes; the smaller one decides."""
    pool_concurrent: Positive = 1
    """Nodes of one pool (``limits.pool_label``) that are repaired at once."""
    clear_within: Annotated[Duration, Field(ge=60)] = 900.0
    """This long after a repair its evidence may last before the next rung is due."""
    verify: MaybeProfile = ""
    """The profile of the test before a release (docs/repair.md#the-test-before-a-release); empty:
    none.
    """
    verify_within: Annotated[Duration, Field(ge=60)] = 7200.0
    """A test that could not begin for this long is left to a person."""
    test_attempts: Annotated[int, Field(ge=1, le=5)] = 3
    """Tests of one quarantine that end without a verdict; then a person decides."""
    test_pause: Annotated[Duration, Field(ge=1)] = 900.0
    """Between two of them."""
    new_nodes: NewNodeRules = field(default_factory=NewNodeRules)
    idle_nodes: IdleNodeRules | None = None

    @property
    def in_service(self) -> IdleNodeRules:
        """The limits of tests on nodes in service. They hold for those by hand also where there
        are no periodic ones.
        """
        return self.idle_nodes or IdleNodeRules()


@dataclass(frozen=True, slots=True)
class RepairFacts:
    """All that the next repair depends on, in addition to the Quarantine's status.

    ``ladder`` is that of the evidence in force. ``verdict``: the mildest repair that the driver's
    own verdict allows. ``lemon``: its faults come back whatever is done. ``available``: the repairs
    with a repairer, and whether an order of it may be sent twice. ``past``: the attempts on the
    node within the window, by whatever quarantine. ``began``: when this quarantine began.
    ``returns``: all evidence is over, so that a test comes before the release. ``whole`` is the
    ladder of all evidence, also of what is over. ``boot_id`` is that of the node's agent.
    """

    ladder: tuple[str, ...]
    available: Mapping[str, bool]
    past: Sequence[PastRepair] = ()
    verdict: str = ""
    lemon: bool = False
    is_open: bool = True
    began: float = 0.0
    returns: bool = False
    whole: tuple[str, ...] = ()
    boot_id: str = ""


def next_repair(
    status: RepairStatus, facts: RepairFacts, rules: RepairRules, now: float
) -> NextOperation:
    """The next step; ``now`` is wall clock seconds."""
    wrong = malformed(status)
    if wrong:
        return NextOperation(Do.NOTHING, because=wrong)
    last = status.attempts[-1] if status.attempts else None
    if last is not None and last.state in BUSY:
        over = bool(status.exhausted) and status.exhausted_at >= last.began_at
        ends = DELETED_BY_HAND if last.deleted else ""
        again = bool(facts.available.get(last.repair))
        return under_way(last, now, ends, repeatable=again, over=over)
    status = _since_last_repair(status)
    by_request = [_by_hand(status, facts, one, rules) for one in status.requests]
    begins = next((one for one in by_request if one.do is Do.ORDER), None)
    step = begins or _by_itself(status, facts, rules, now)
    silent = step.do is Do.NOTHING and not step.because
    return by_request[0] if silent and by_request else step


def _by_itself(
    status: RepairStatus, facts: RepairFacts, rules: RepairRules, now: float
) -> NextOperation:
    if facts.returns:
        return _before_release(status, facts, rules, now)
    if status.exhausted or not facts.is_open:
        return NextOperation(Do.NOTHING)
    before = last_repair(status)
    ended = _after(before, rules, now) if before is not None else None
    return ended or _next_rung(status, facts, rules)


def _since_last_repair(status: RepairStatus) -> RepairStatus:
    """Without an end of the ladder from before its last repair, a person's. The write that removes
    that follows the repair's own, and may have failed.
    """
    last = last_repair(status)
    if last is None or status.exhausted_at >= last.began_at:
        return status
    return replace(status, exhausted="", exhausted_at=0.0)


def _by_hand(
    status: RepairStatus, facts: RepairFacts, request: OperationRequest, rules: RepairRules
) -> NextOperation:
    why = why_blocked(status, request, facts.available, rules)
    if why:
        return NextOperation(Do.NOTHING, because=why)
    profile = (request.profile or rules.verify) if request.what == TEST else ""
    return NextOperation(Do.ORDER, request.what, "requested by hand", request.name, profile)


def why_blocked(
    status: RepairStatus, request: OperationRequest, kinds: Collection[str], rules: RepairRules
) -> str:
    """Why a person's request can't begin as things are configured, so that it holds up no other;
    empty: it can. ``kinds``: those with a repairer.
    """
    if request.what not in kinds:
        return f"{request.what!r} was requested by hand, and the configuration has no such repairer"
    if len(status.attempts) >= MOST_ATTEMPTS:
        return f"this quarantine has had {MOST_ATTEMPTS} attempts"
    if request.what == TEST and not (request.profile or rules.verify):
        return "a test was requested by hand without a profile, and repair.verify names none"
    return ""


def _before_release(
    status: RepairStatus, facts: RepairFacts, rules: RepairRules, now: float
) -> NextOperation:
    """All evidence is over: the node is tested, and repaired where it does not pass."""
    if is_verified(status, rules.verify, facts.boot_id):
        return NextOperation(Do.NOTHING)
    failed = open_failure(status)
    if failed is not None:
        return _after_failure(status, facts, rules, failed, now)
    last = status.attempts[-1] if status.attempts else None
    if last is not None and last.repair == TEST and last.state is RepairState.CANCELLED:
        return _hand_to_person(status, last.ended_at, "a person cancelled the test")
    open_ended = without_verdict(status)
    if len(open_ended) >= rules.test_attempts:
        text = (
            f"{counted(len(open_ended), 'test')} gave no verdict about the node "
            f"(repair.test_attempts = {rules.test_attempts}): {open_ended[-1].message}"
        )
        return _hand_to_person(status, open_ended[-1].ended_at, text)
    if last is not None and len(status.attempts) >= MOST_ATTEMPTS:
        text = f"this quarantine has had {MOST_ATTEMPTS} attempts, and its node is to be tested"
        return _hand_to_person(status, last.ended_at, text)
    since = status.test_waits_since
    if since and now >= since + rules.verify_within:
        text = (
            f"the test before the release could not begin within {span(rules.verify_within)} "
            f"(repair.verify_within): {status.held}"
        )
        return _hand_to_person(status, since, text)
    if TEST not in facts.available:
        return NextOperation(Do.NOTHING, because="no repairer of kind test is configured")
    if open_ended and now < open_ended[-1].ended_at + rules.test_pause:
        return NextOperation(Do.NOTHING)
    return NextOperation(Do.ORDER, TEST, "before the release", profile=rules.verify)


def _after_failure(
    status: RepairStatus, facts: RepairFacts, rules: RepairRules, failed: RepairAttempt, now: float
) -> NextOperation:
    """The node has failed a test: its evidence counts as in force, and the next rung is due."""
    failure = f"test {failed.profile} failed"
    if status.exhausted:
        text = f"{failure}, and before: {status.exhausted}"
        return _hand_to_person(status, failed.ended_at, text)
    last = status.attempts[-1]
    ended = _after(last, rules, now) if last.repair != TEST else None
    if ended is not None and ended.do is Do.NOTHING:
        return ended
    step = ended or _next_rung(status, replace(facts, ladder=facts.whole), rules)
    if step.do is Do.ORDER:
        return replace(step, because=f"{failure}; {step.because}".removesuffix("; "))
    why = step.because or "a rule of its evidence has no repair"
    return NextOperation(Do.EXHAUST, because=f"{failure}: {failed.message}; {why}")


def _hand_to_person(status: RepairStatus, since: float, why: str) -> NextOperation:
    """Report once that a person has to act, for a reason that has been open since then."""
    if status.exhausted and status.exhausted_at >= since:
        return NextOperation(Do.NOTHING)
    return NextOperation(Do.EXHAUST, because=why)


def _after(last: RepairAttempt, rules: RepairRules, now: float) -> NextOperation | None:
    """The step that follows from the end of the last attempt; None: the next rung."""
    match last.state:
        case RepairState.UNKNOWN:
            text = f"the outcome of {last.repair} is not known, and it is not repeated"
            return NextOperation(Do.EXHAUST, because=text)
        case RepairState.CANCELLED:
            return NextOperation(Do.EXHAUST, because=f"a person cancelled {last.repair}")
        case RepairState.INCONCLUSIVE if now < last.ended_at + rules.test_pause:
            return NextOperation(Do.NOTHING)  # it was not begun, and is tried again
        case RepairState.SUCCEEDED if last.repair in NEEDS_PERSON:
            return NextOperation(Do.EXHAUST, because="a ticket needs a person")
        case RepairState.SUCCEEDED if now < last.ended_at + rules.clear_within:
            return NextOperation(Do.NOTHING)
        case _:
            return None


def _next_rung(status: RepairStatus, facts: RepairFacts, rules: RepairRules) -> NextOperation:
    if not facts.ladder:
        return NextOperation(Do.NOTHING)  # no rule proposes one: it is a person's from the start
    rungs = [one for one in facts.ladder if one in facts.available]
    least, why = first_rank(facts)
    begun = (one for one in status.attempts if one.state is not RepairState.INCONCLUSIVE)
    tried = max((rank(one.repair) for one in begun if one.repair in REPAIRS), default=-1)
    left = [one for one in rungs if rank(one) >= least and rank(one) > tried]
    full = len(facts.past) >= rules.attempts
    if full:
        left = [one for one in left if one in NEEDS_PERSON]
        why = (
            f"the node has had {counted(len(facts.past), 'repair')} within {span(rules.window)} "
            f"(repair.attempts = {rules.attempts})"
        )
    room = len(status.attempts) < MOST_ATTEMPTS
    if left and room:
        return NextOperation(Do.ORDER, left[0], why)
    if not rungs:
        why = f"no repairer is configured for {', '.join(facts.ladder)}"
    return NextOperation(Do.EXHAUST, because=why or "no further repair is on its ladder")


def first_rank(facts: RepairFacts) -> tuple[int, str]:
    """The rank of the mildest rung that makes sense, and why it is no milder."""
    if facts.lemon:
        return rank(TICKET), "its faults come back again and again: a person decides"
    found = (0, "")
    if facts.verdict:
        found = (rank(facts.verdict), f"the driver's verdict requires {facts.verdict}")
    before = [one.repair for one in facts.past if one.at < facts.began and one.repair in REPAIRS]
    if before:
        last = max(before, key=rank)
        found = max(found, (min(rank(last) + 1, rank(TICKET)), f"{last} did not last"))
    return found


def malformed(status: RepairStatus) -> str:
    """Why the attempts can't be as sickbay wrote them; empty: they can. Such a node is left alone.

    To count from zero would repeat repairs without a bound.
    """
    for number, one in enumerate(status.attempts, 1):
        if one.repair not in ATTEMPTS:
            return f"operation {one.operation}: kind {one.repair!r} is no repair"
        if one.state in BUSY and (number < len(status.attempts) or not one.deadline_at):
            return f"operation {one.operation} is under way, and can't be"
    return ""


def lacks_newest(status: RepairStatus) -> bool:
    """Whether the operation that was about to begin last is no attempt: a process died before it
    began, or it is gone.
    """
    return status.began_at > max((one.began_at for one in status.attempts), default=0.0)


def busy_attempt(status: RepairStatus) -> RepairAttempt | None:
    """The attempt that may still act on the node."""
    return next((one for one in status.attempts if one.state in BUSY), None)


def is_busy(status: RepairStatus) -> bool:
    """Whether an attempt may still act on the node: no release happens by itself meanwhile."""
    return busy_attempt(status) is not None


def operation_id(quarantine_uid: str, status: RepairStatus, repair: str) -> str:
    """The id of the next attempt: the same for each process that decides on it."""
    return name_of(quarantine_uid, len(status.attempts) + 1, repair)


def other_party(node: Node) -> str:
    """The other party that repairs or upgrades the node now, in words; empty: no mark shows one.

    In addition to the marks of `maintenance.maintained_by`, which hold quarantines too.
    """
    if node.annotations.get(_KURED):
        return f"kured reboots it (annotation {_KURED})"
    if _KARPENTER in node.annotations:
        return f"Karpenter replaces it (annotation {_KARPENTER})"
    if _MEDIK8S in node.annotations:
        return f"medik8s remediates it (annotation {_MEDIK8S})"
    paused = paused_by_another(node)
    if paused:
        return f"its GPU operands are stopped: label {paused} is {node.labels[paused]}"
    return ""


# -- the limits of the fleet ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Implements `OperationLimits`. ``by_hand``: the bound of attempts does not hold it."""

    rules: RepairRules
    by_hand: bool = False

    def current(self, record: Record, now: float) -> Record:
        return record.without_old_attempts(now, self.rules.window)

    def hold(self, record: Record, proposal: RunningOperation, size: FleetSize) -> Held | None:
        rules, others = self.rules, record.repairs
        if proposal.node not in record.entries:
            return Held("repair", "no entry", "the admission record has no entry of the node")
        if proposal.node in others:
            text = f"its {others[proposal.node].kind} of another attempt has not ended"
            return Held("repair.concurrent", "1", text)
        earlier = record.past_repairs.get(proposal.node, ())
        past = [one for one in earlier if one.operation != proposal.operation]
        repairs = proposal.kind != TEST  # a test counts for no bound of repairs
        if repairs and len(past) >= rules.attempts and not self.by_hand:
            text = f"the node has had {counted(len(past), 'repair')} within {span(rules.window)}"
            return Held("repair.attempts", str(rules.attempts), text)
        if repairs and len(record.past_repairs) >= MOST_REPAIRED_NODES and not past:
            text = f"{len(record.past_repairs)} nodes were repaired within {span(rules.window)}"
            return Held("repair.window", span(rules.window), text)
        for domain in proposal.domains:
            other = next((one for one in others.values() if domain in one.domains), None)
            if other is not None:
                text = f"{other.node} is being repaired, which has {domain} too"
                return Held("repair.domain", "1", text)
        share = allowance(size.nodes, rules.concurrent_percent)
        most, name, value = min(
            (rules.concurrent, "repair.concurrent", str(rules.concurrent)),
            (share, "repair.concurrent_percent", f"{rules.concurrent_percent:g}%"),
        )
        if len(others) >= most:
            return Held(
                name, value, f"{counted(len(others), 'node is', 'nodes are')} being repaired"
            )
        in_pool = sum(1 for one in others.values() if one.pool == proposal.pool)
        if proposal.pool and in_pool >= rules.pool_concurrent:
            nodes = counted(in_pool, "node is", "nodes are")
            text = f"{nodes} being repaired in pool {proposal.pool}"
            return Held("repair.pool_concurrent", str(rules.pool_concurrent), text)
        return None


def domains_of(labels: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    """The node's failure domains, as "LABEL=VALUE"; a label that it lacks gives none."""
    return tuple(f"{key}={labels[key]}" for key in dict.fromkeys(keys) if labels.get(key))


def lost_reservation(node: str, status: RepairStatus, pool: str) -> RunningOperation | None:
    """The reservation that an attempt under way must have, for a record that has lost it."""
    last = status.attempts[-1] if status.attempts else None
    if last is None or last.state not in BUSY or last.repair in NEEDS_PERSON:
        return None
    return running_of(node, last, last.repair, pool)
