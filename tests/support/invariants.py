"""The invariants of docs/invariants.md: one function each over (world, act), for every machine.

A `Watch` calls all of them when the server carries a request out, not when its sender sends it.
State machines and simulations watch their world, and assert that ``wrong`` is empty.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from aggregator.cluster.node_names import TAINT, is_marked
from aggregator.cluster.port import (
    BUSY,
    Node,
    Phase,
    Pod,
    Quarantine,
    RecordText,
)
from aggregator.health.model import Delta, Snapshot
from aggregator.policy.repairs import NEEDS_PERSON
from aggregator.quarantine.actions.act_guard import MOST_AGE
from aggregator.quarantine.admission.stop_switch import FRESH
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import Record, RecordUnreadable
from aggregator.quarantine.decide.admission_record import parse_record as parse_anew
from aggregator.quarantine.decide.gpu_operands import DEPLOY
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import OFF_BALANCERS, known_applied, own_annotations
from aggregator.quarantine.decide.node_tests import is_own_evidence
from aggregator.quarantine.decide.plans.release import RECOVERED
from aggregator.quarantine.decide.repair import RepairRules
from aggregator.quarantine.repair.protocol import RepairOrder

if TYPE_CHECKING:
    from tests.support.memory_cluster import World

T = TypeVar("T")

#: A release is known to every process that may act within so long (seconds), and so many evictions
#: may have been under way.
KNOWN_WITHIN, MOST_LATE = 60.0, 4
#: After a loss of objects the record is whole again within so long (seconds).
REBUILT_WITHIN = 40.0
#: A release that nothing but a limit could hold is done within so long (seconds).
RELEASED_WITHIN = 300.0
_MARKED = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
_OURS_PREFIX = "sickbay.dev/"
_BY_THE_CONTROLLER = ("create_quarantine", "patch_node", "evict", "delete_pod")


@functools.lru_cache(maxsize=16)
def parse_record(text: str) -> Record:
    """The record, which is read before and after each act, and seldom changes in between."""
    return parse_anew(text)


@dataclass(frozen=True, slots=True)
class Act:
    """A request that has been carried out. ``before`` is what it met.

    ``sent_at``: when its bytes left, after its guard; ``in_place``: whether its sender might act
    then. Times are the world's own.
    """

    call: str
    node: str
    at: float
    sent_at: float
    in_place: bool
    node_before: Node | None
    quarantine_before: Quarantine | None
    record_before: RecordText
    pod: Pod | None = None
    order: RepairOrder | None = None
    #: Whether the order is harmless a second time.
    repeatable: bool = False


@dataclass
class Facts:
    """The deeds of people, machines and others, which no process can know at once."""

    limits: Limits | None = None
    rules: RepairRules | None = None
    #: The highest limit of any process, and how long a loss of the record stays unknown (seconds).
    most: int = 0
    unknown_for: float = 1.0
    #: When the stop switch was set; None: it is not set. ``unseen``: no event tells of it.
    stopped_at: float | None = None
    stop_unseen: bool = False
    #: Until when the record, or another object, may be an older one, or lost.
    lost_until: float = float("-inf")
    #: When another party last changed the node, its pods or its quarantine.
    changed_at: dict[str, float] = field(default_factory=dict)
    #: When a quarantine, by its uid, was first deleted, releasing or gone.
    ended_at: dict[str, float] = field(default_factory=dict)
    #: Quarantined nodes that were created again: they take no place until they are marked.
    came_back: set[str] = field(default_factory=set)
    #: The evidence that agents have ever reported, and that which they have now, by node.
    reported: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    standing: Callable[[str], set[tuple[str, str]]] = field(default=lambda _: set())
    #: Operations that a repairer has accepted and that can still act, with node and domains.
    under_way: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    #: When a person cancelled an operation.
    cancelled: dict[str, float] = field(default_factory=dict)
    #: Since when no failure has held a release up.
    calm_since: float = 0.0
    #: The wall clock, where all processes have the same one.
    wall: Callable[[], float] | None = None
    #: Orders and evictions that arrived, and late evictions by quarantine.
    ordered: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    #: Nodes on which a process outside of the cluster has a GPU open, as their agents report.
    gpus_open: set[str] = field(default_factory=set)
    #: The nodes, by uid, that had our marks.
    marked: set[str] = field(default_factory=set)

    def set_stop(self, at: float | None, *, unseen: bool = False) -> None:
        self.stopped_at, self.stop_unseen = at, unseen

    def lose_record(self, now: float) -> None:
        """A request that is under way is of what was recorded before."""
        self.lost_until = max(self.lost_until, now + self.unknown_for)

    def lose_objects(self, now: float) -> None:
        """The quarantines or the record are older ones, or gone, and have to be made anew."""
        self.lost_until = max(self.lost_until, now + REBUILT_WITHIN)

    def note_evidence(self, node: str, evidence: Snapshot | Delta) -> None:
        """An agent reports this."""
        keys = self.reported.setdefault(node, set())
        keys |= {(one.code, one.component) for one in evidence.faults}
        keys |= {(f"{one.check}:{one.reason}", one.component) for one in evidence.components}

    def stopped(self, at: float) -> bool:
        """Whether the switch was set so long before that no act may begin any more."""
        return self.stopped_at is not None and at > self.stopped_at + FRESH

    def changed_lately(self, act: Act) -> bool:
        """Whether the node changed after the last read on which the act may rest."""
        changed = max(self.changed_at.get(act.node, float("-inf")), self.lost_until)
        return act.sent_at - MOST_AGE <= changed


#: Yields what is wrong.
Invariant = Callable[["World", Act], Iterator[str]]


def limits_hold(world: "World", act: Act) -> Iterator[str]:
    """Limits hold under any interleaving of crashes, retries, clocks and replicas."""
    facts = world.facts
    if act.call == "write_record":
        yield from _admissions(world, act)
        yield from _repairs(world, act)
    if act.call == "patch_node" and facts.limits is not None and _begins_marks(world, act):
        ours = {
            name
            for name, one in world.quarantines.items()
            if one.spec.requester == OURS
            and one.status.phase is not Phase.RELEASING
            and name in world.nodes
            and is_marked(world.nodes[name])
        } - facts.came_back
        # A file with a lower limit leaves the nodes that were admitted before.
        facts.most = max(facts.most, facts.limits.concurrent)
        if len(ours) > facts.most and act.node in ours:
            yield f"{act.node} is marked over the limit: {sorted(ours)}"
    if act.order is not None and facts.rules is not None and _needs_a_place(act.order):
        others = {k: v for k, v in facts.under_way.items() if k != act.order.operation}
        if len(others) >= facts.rules.concurrent:
            yield f"{act.order.operation} is over the cap: {sorted(others)} can still act"
        domains = {one for _, of in others.values() for one in of}
        mine = parse_record(world.record.text).repairs.get(act.node)
        if mine is not None and domains & set(mine.domains):
            yield f"{act.order.operation} is the second of {sorted(domains & set(mine.domains))}"


def _admissions(world: "World", act: Act) -> Iterator[str]:
    facts, fresh = world.facts, _admitted(world, act)
    if facts.limits is None or not fresh:
        return
    after = parse_record(world.record.text)
    # A node that is gone counts for no limit (docs/limits.md), before its entry goes too.
    counted = (after.entries.keys() & world.nodes.keys()) - facts.came_back
    if len(counted) > facts.limits.concurrent:
        yield f"{sorted(fresh)} entered past the limit: {sorted(counted)}"
    if facts.wall is not None:
        now, window = facts.wall(), facts.limits.window
        lately = [at for at, _ in after.admissions if now - at < window]
        new = after.entries.keys() - parse_record(act.record_before.text).entries
        if new == fresh and len(lately) > facts.limits.new_per_window:
            yield f"{sorted(fresh)} entered past the rate: {lately} at {now}"


def _repairs(world: "World", act: Act) -> Iterator[str]:
    """Reservations: no more than the cap, and one in a failure domain."""
    rules, after = world.facts.rules, parse_record(world.record.text).repairs
    before = parse_record(act.record_before.text).repairs
    if rules is None or not after.keys() - before.keys() or act.at <= world.facts.lost_until:
        return
    if len(after) > rules.concurrent:
        yield f"{len(after)} repairs are reserved: {sorted(after)}"
    domains = Counter(domain for one in after.values() for domain in one.domains)
    twice = [domain for domain, times in domains.items() if times > 1]
    if twice:
        yield f"two repairs are reserved in {twice}"


def intent_comes_first(world: "World", act: Act) -> Iterator[str]:
    """Record, object, marks, eviction: each is durable before the next begins."""
    if act.at <= world.facts.lost_until:
        return
    found = world.quarantines.get(act.node)
    entries = _entries(world)
    ours = found is not None and found.spec.requester == OURS
    if act.call == "create_quarantine" and ours and act.node not in entries:
        yield f"{act.node} quarantined without an entry"
    if act.call == "patch_node" and _begins_marks(world, act) and found is None:
        yield f"{act.node} marked without a quarantine"
    if act.pod is not None and act.node and act.node not in entries:
        yield f"{act.pod.uid} evicted from {act.node}, which has no entry"
    if act.order is not None and act.order.quarantine and not world.facts.changed_lately(act):
        repair = found.status.repair if found is not None else None
        last = repair.attempts[-1] if repair is not None and repair.attempts else None
        if last is None or last.operation != act.order.operation or last.state not in BUSY:
            yield f"{act.order.operation} ordered without a durable attempt: {last}"
        elif act.order.repair not in NEEDS_PERSON:
            running = parse_record(world.record.text).repairs.get(act.node)
            if running is None or running.operation != act.order.operation:
                yield f"{act.order.operation} ordered without a reservation: {running}"


def a_reported_fault_comes_first(world: "World", act: Act) -> Iterator[str]:
    """An agent reported each fault that a quarantine names; neither silence nor an unknown acts."""
    found, reported = world.quarantines.get(act.node), world.facts.reported.get(act.node)
    if act.call != "create_quarantine" or found is None or found.spec.requester != OURS:
        return
    if reported is None and not world.facts.reported:
        return  # this world does not count reports
    named = {(one.code, one.component) for one in found.spec.evidence}
    # The end of a test is the agent's report, too.
    missing = {key for key in named - (reported or set()) if not is_own_evidence(key[0])}
    if not named or missing:
        yield f"{act.node} quarantined for {sorted(missing)}, never reported"


def the_sender_holds_its_place(world: "World", act: Act) -> Iterator[str]:
    """No act leaves a replica that has lost the Lease, and no undo of one."""
    # A late write of the record, or of a Quarantine, fails by its version.
    sent = act.call in _BY_THE_CONTROLLER or act.order is not None
    if sent and not act.in_place:
        yield f"{act.call} of {act.node} was sent by a replica that may not act"


def the_stop_switch_holds(world: "World", act: Act) -> Iterator[str]:
    """No act begins more than one second after the stop switch is set."""
    if not world.facts.stopped(act.sent_at) or not _acts(world, act):
        return
    rebuilt = parse_record(act.record_before.text).rebuilt != _record(world).rebuilt
    if act.call == "write_record" and (world.facts.stop_unseen or rebuilt):
        return  # a rebuilt record has entries of what stood; no step follows from an unread stop
    yield f"{act.call} of {act.node} after the stop"


def a_release_ends_all_acts(world: "World", act: Act) -> Iterator[str]:
    """No pod is evicted, no order sent and no node marked for a released quarantine."""
    facts = world.facts
    now = world.quarantines.get(act.node)
    if act.pod is not None and act.node:
        ended = now is None or now.deleting or now.status.phase is not Phase.DRAINING
        if ended and act.at > facts.lost_until:
            uid = now.uid if now is not None else act.node
            facts.late[uid] += 1
            if facts.late[uid] > MOST_LATE:
                yield f"{facts.late[uid]} late evictions of {act.node}"
            since = facts.ended_at.get(uid)
            if since is not None and act.sent_at > since + KNOWN_WITHIN:
                yield f"{act.pod.uid} evicted {act.sent_at - since:g} s after the release"
    if act.order is not None and act.order.quarantine and not facts.changed_lately(act):
        if now is None or now.deleting or now.status.phase not in _MARKED:
            phase = now.status.phase if now is not None else "no quarantine"
            yield f"{act.order.operation} ordered in {phase}"
        elif act.node not in world.nodes or not is_marked(world.nodes[act.node]):
            yield f"{act.order.operation} ordered on a node without marks"
    releasing = now is not None and now.status.phase is Phase.RELEASING
    if act.call == "patch_node" and _begins_marks(world, act) and releasing:
        yield f"{act.node} is marked while it is released"


def a_cancellation_ends_the_order(world: "World", act: Act) -> Iterator[str]:
    """No order is sent that a person has cancelled."""
    if act.order is None:
        return
    since = world.facts.cancelled.get(act.order.operation)
    if since is not None and act.sent_at - MOST_AGE > max(since, world.facts.lost_until):
        yield f"{act.order.operation} ordered {act.sent_at - since:g} s after its cancellation"


def no_work_is_interrupted(world: "World", act: Act) -> Iterator[str]:
    """No node with work is reset, rebooted, replaced or tested."""
    if act.order is None or act.order.repair in NEEDS_PERSON or world.facts.changed_lately(act):
        return
    if act.order.tolerates:
        return  # a new node's own test: its taint keeps work away
    work = [
        pod.name
        for pod in world.pods.values()
        if pod.node == act.node and not pod.mirror and pod.owner_kind != "DaemonSet"
    ]
    if work:
        yield f"{act.order.operation} ordered while {work} are on {act.node}"
    if act.node in world.facts.gpus_open:
        yield f"{act.order.operation} ordered while a GPU of {act.node} is open"


def nothing_happens_twice(world: "World", act: Act) -> Iterator[str]:
    """One cause is one operation and one eviction: no pod is evicted and no order sent twice."""
    facts = world.facts
    if act.pod is not None and act.pod.uid in world.evicted[-1:]:
        facts.evicted[act.pod.uid] += 1
        if facts.evicted[act.pod.uid] > 1:
            yield f"{act.pod.uid} evicted twice"
    if act.order is not None:
        facts.ordered[act.order.operation] += 1
        if facts.ordered[act.order.operation] > 1 and not act.repeatable:
            yield f"{act.order.operation} was ordered twice"


def what_others_set_stays(world: "World", act: Act) -> Iterator[str]:
    """We undo only what we did: taints, labels, annotations and cordons of others stay."""
    before, after = act.node_before, world.nodes.get(act.node)
    if act.call != "patch_node" or before is None or after is None or before.uid != after.uid:
        return
    own = known_applied(before, act.quarantine_before)
    keys = {TAINT, own.own_taint.partition("=")[0] if own is not None else ""}
    if world.facts.rules is not None:
        keys.add(world.facts.rules.new_nodes.taint)
    theirs = {one for one in before.taints if one.key not in keys}
    if theirs - set(after.taints):
        yield f"{act.node} lost somebody else's taint: {theirs - set(after.taints)}"
    keys_of_ours = set(own_annotations(before.annotations))
    if own is not None and own.off_balancers:
        keys_of_ours.add(OFF_BALANCERS)
    for what, old, new in (
        ("label", before.labels, after.labels),
        ("annotation", before.annotations, after.annotations),
    ):
        lost = [
            key
            for key, value in old.items()
            if not key.startswith((_OURS_PREFIX, DEPLOY))
            and key not in keys_of_ours
            and new.get(key) != value
        ]
        if lost:
            yield f"{act.node} lost somebody else's {what}: {lost}"
    uncordons = before.unschedulable and not after.unschedulable
    if uncordons and (own is None or not own.cordoned):
        yield f"{act.node} lost somebody else's cordon"


def a_persons_release_is_done(world: "World", act: Act) -> Iterator[str]:
    """No limit, hold or stop switch holds up a release."""
    yield from releases_held_up(world, act.at)


def releases_held_up(world: "World", now: float) -> Iterator[str]:
    """Those that are late by now, although no failure holds them up."""
    facts = world.facts
    for uid, since in list(facts.ended_at.items()):
        if now - max(since, facts.calm_since, facts.lost_until) < RELEASED_WITHIN:
            continue
        waiting = [one.node for one in world.quarantines.values() if one.uid == uid]
        if waiting:
            yield f"{waiting[0]} was released {now - since:g} s ago and is still held"
        else:
            del facts.ended_at[uid]


def recovery_was_reported(world: "World", act: Act) -> Iterator[str]:
    """Absence clears nothing: a node that recovered has none of the faults it was held for."""
    now, before = world.quarantines.get(act.node), act.quarantine_before
    if act.call != "write_quarantine_status" or now is None or before is None:
        return
    begins = now.status.phase is Phase.RELEASING and before.status.phase is not Phase.RELEASING
    if not begins or now.status.released_because != RECOVERED:
        return
    held_for = {(one.code, one.component) for one in now.spec.evidence}
    if held_for & world.facts.standing(act.node) and not world.facts.changed_lately(act):
        yield f"{act.node} recovered with {held_for & world.facts.standing(act.node)}"


def shown_states_are_so(world: "World", act: Act) -> Iterator[str]:
    """A quarantine shows as done only what was done to the Node that it names."""
    now = world.quarantines.get(act.node)
    if act.call != "write_quarantine_status" or now is None:
        return
    begins = act.quarantine_before is None or act.quarantine_before.status.phase not in _MARKED
    if begins and now.status.phase in _MARKED and now.status.node_uid not in world.facts.marked:
        yield f"{act.node} is shown as {now.status.phase} and was never marked"


#: In the order of docs/invariants.md.
INVARIANTS: tuple[Invariant, ...] = (
    limits_hold,
    intent_comes_first,
    a_reported_fault_comes_first,
    recovery_was_reported,
    the_sender_holds_its_place,
    the_stop_switch_holds,
    a_release_ends_all_acts,
    a_cancellation_ends_the_order,
    no_work_is_interrupted,
    nothing_happens_twice,
    what_others_set_stays,
    a_persons_release_is_done,
    shown_states_are_so,
)


def at_most_one_may_act(acting: Sequence[str]) -> Iterator[str]:
    """At most one replica may act at each moment."""
    if len(acting) > 1:
        yield f"two may act: {sorted(acting)}"


class Watch:
    """Calls every invariant at each act on a world; ``wrong`` collects what they yield."""

    def __init__(self, world: "World", now: Callable[[], float]) -> None:
        self.world, self.now = world, now
        self.wrong: list[str] = []
        self.acts: Counter[str] = Counter()
        world.watch = self

    def arrive(
        self,
        call: str,
        node: str,
        effect: Callable[[], T],
        *,
        sent_at: float | None = None,
        in_place: bool = True,
        pod: Pod | None = None,
        order: RepairOrder | None = None,
        repeatable: bool = False,
    ) -> T:
        """Carry the act out, and check what must hold then. A refused request is no act."""
        world = self.world
        now = self.now()
        act = Act(
            call=call,
            node=node,
            at=now,
            sent_at=now if sent_at is None else sent_at,
            in_place=in_place,
            node_before=world.nodes.get(node),
            quarantine_before=world.quarantines.get(node),
            record_before=world.record,
            pod=pod,
            order=order,
            repeatable=repeatable,
        )
        ended, changed = len(world.evicted) + len(world.forced), world.facts.changed_at.get(node)
        result = effect()
        if changed is None:  # an act is no change by another party
            world.facts.changed_at.pop(node, None)
        else:
            world.facts.changed_at[node] = changed
        if pod is not None and len(world.evicted) + len(world.forced) == ended:
            return result  # refused, or a dry run
        self.acts[call] += 1
        self._note(act)
        for invariant in INVARIANTS:
            self.wrong += [
                f"{now:.2f} {invariant.__name__}: {one}" for one in invariant(world, act)
            ]
        return result

    def _note(self, act: Act) -> None:
        facts, world = self.world.facts, self.world
        node, found = world.nodes.get(act.node), world.quarantines.get(act.node)
        if node is not None and is_marked(node):
            facts.marked.add(node.uid)
        if found is not None and (found.deleting or found.status.phase is Phase.RELEASING):
            facts.ended_at.setdefault(found.uid, act.at)
        facts.came_back &= set(world.quarantines)


def _acts(world: "World", act: Act) -> bool:
    """Whether it begins something: undoing, reporting and ending are no acts."""
    match act.call:
        case "write_record":
            return bool(_admitted(world, act))
        case "create_quarantine":
            node = world.nodes.get(act.node)
            return node is None or not is_marked(node)  # else it is adopted: nothing begins
        case "evict" | "delete_pod":
            return True
        case "patch_node":
            return _begins_marks(world, act)
    return act.order is not None


def _begins_marks(world: "World", act: Act) -> bool:
    before, after = act.node_before, world.nodes.get(act.node)
    return after is not None and is_marked(after) and (before is None or not is_marked(before))


def _admitted(world: "World", act: Act) -> set[str]:
    """The nodes that this write of the record has admitted. One whose quarantine is there already
    is entered, and not admitted; one that carries our marks is adopted, which no limit holds.
    """
    before, after = _read(act.record_before.text), _record(world)
    if before is None:
        return set()
    fresh = after.entries.keys() - before.entries.keys() - world.quarantines.keys()
    marked = {name for name, node in world.nodes.items() if is_marked(node)}
    return {name for name in fresh - marked if after.entries[name].incident}


def _needs_a_place(order: RepairOrder) -> bool:
    return order.repair not in NEEDS_PERSON and bool(order.quarantine)


def _read(text: str) -> Record | None:
    try:
        return parse_record(text)
    except RecordUnreadable:
        return None


def _record(world: "World") -> Record:
    return _read(world.record.text) or Record()


def _entries(world: "World") -> set[str]:
    """A record that can't be read has no known entries: the quarantines stand for them."""
    found = _read(world.record.text)
    return set(found.entries if found is not None else world.quarantines)
