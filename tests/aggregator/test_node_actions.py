"""The steps of a quarantine, called one by one: what each writes, holds and tells, and when not."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    STILL_SCHEDULABLE,
    Action,
    Blocker,
    Cluster,
    ClusterError,
    Conflict,
    EvictedWorkload,
    GuardRefused,
    MarksStatus,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Refused,
    Unreachable,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.announcer import Announcer
from aggregator.quarantine.actions.cordon import CordonActions, ExpectedNodes
from aggregator.quarantine.actions.holds import NO_NODE, NodeHolds, Proposals
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.actions.object_writes import ObjectWrites
from aggregator.quarantine.admission.stop_switch import NOT_CONTROLLER
from aggregator.quarantine.decide.admission import UNREAD_NODE
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS, DesiredState
from aggregator.quarantine.decide.node_marks import PLAIN, read_applied
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, FORCED
from aggregator.quarantine.decide.uncordon import OnUncordon, Uncordoned, UncordonRules
from aggregator.quarantine.reconcile.admission import AdmissionReconciler
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.stage_times import StageTimes
from tests.support.draws import HighestDraw
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.node_states import set_fields
from tests.support.replica import POLICY, Notes, all_in_mode
from tests.support.virtual_time import VirtualTimeLoop, on

LIMIT = Held("limits.concurrent", "1", "one is enough")
EXEMPTED = {EXEMPT: "until 2100-01-01T00:00:00Z x"}
UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}


def wanted(action: Action = Action.DRAIN, in_force: Action = Action.DRAIN) -> DesiredState:
    spec = QuarantineSpec(action, "gpu", "a bad GPU", OURS, incident="i")
    return DesiredState(spec, Action.DRAIN, in_force)


def made(phase: Phase = Phase.ADMITTED, requester: str = OURS, **changes: Any) -> Quarantine:
    names = set(Quarantine.__dataclass_fields__)
    own = {name: changes.pop(name) for name in list(changes) if name in names}
    action, intent = changes.pop("action", Action.DRAIN), changes.pop("intent_action", None)
    spec = QuarantineSpec(action, "gpu", "x", requester, intent_action=intent)
    status = QuarantineStatus(phase=phase, **changes)
    return replace(Quarantine("n1", "q", "1", spec, status), **own)


class Bench:
    """The acts of one replica, with whom to ask played by the test."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.world = World()
        self.world.add_node("n1")
        self.cluster = MemoryCluster(self.world)
        self.notes = Notes()
        self.entries: dict[str, Entry] = {}
        self.withdrawn: list[Entry | None] = []
        self.entered: list[tuple[str, QuarantineSpec]] = []
        self.grants = self.may = True
        self.unread_hold: Held | None = None
        self.held: Held | None = None
        self.escalation_hold: Held | None = None
        self.proposed: list[Any] = []
        self.switch = SimpleNamespace(reason="", check=self._check, may_act=lambda: self.may)
        self.switch.check_place = self._check_place
        self.switch.lost = lambda: self.switch.reason or ("" if self.may else NOT_CONTROLLER)
        self.stopped = False
        self.meanwhile: Callable[[], None] = lambda: None
        self.node_state: Any = NodeState("n1", now=loop.time)
        self.node_state.cluster.labels = self.world.nodes["n1"].labels
        record_writer: Any = SimpleNamespace(
            record=SimpleNamespace(entries=self.entries, generation=4),
            grants=lambda _: self.grants,
            withdraw=self._withdraw,
            enter_quarantine=self._enter,
            escalation_hold=self._escalation_hold,
            propose=self._propose,
            preview=lambda _: {"n1": self.held} if self.held else {},
            switch=self.switch,
        )
        cluster: Cluster = self.cluster
        clocks, rules = Clocks(loop.time, lambda: 5000.0 + loop.time()), PLAIN
        in_pool_a: Any = SimpleNamespace(pool_of=lambda _: "pool-a")
        pools, no_hold = all_in_mode(Action.DRAIN), SimpleNamespace(hold=lambda _: None)
        causes: Any = SimpleNamespace(
            suspects=lambda _: (frozenset({"begun"}),),
            drain_suspects=lambda _: (frozenset({"drained"}),),
            unsettled=lambda _: "too soon",
            fabric_hold=lambda _: None,
        )
        self.announcer: Any = Announcer(cluster, HighestDraw())
        acts = NodeActions(
            cluster=cluster,
            record_writer=record_writer,
            pools=pools,
            announcer=self.announcer,
            event_sink=self.notes,
            clocks=clocks,
            policy=POLICY,
            stages=StageTimes(),
        )
        self.acts: Any = acts
        self.holds = NodeHolds(acts=acts)
        self.proposals: Any = Proposals(
            holds=self.holds,
            record_writer=record_writer,
            causes=causes,
            evictions=no_hold,  # type: ignore[arg-type]
            pools=pools,
            registry=in_pool_a,
        )
        self.objects = ObjectWrites(acts=acts)
        self.cordons = CordonActions(
            acts=acts,
            objects=self.objects,
            expected=ExpectedNodes(cluster, in_pool_a),
            marks=rules,
            uncordon=UncordonRules(OnUncordon.RECORDON),
            off_load_balancers=False,
        )
        self.admission = AdmissionReconciler(
            inputs=SimpleNamespace(proposals=self.proposals),  # type: ignore[arg-type]
            acts=acts,
            holds=self.holds,
            cordon=self.cordons,
            objects=self.objects,
            adopter=SimpleNamespace(),  # type: ignore[arg-type]
        )

    def new_marks(self) -> QuarantineStatus:
        """The status that the reconciler writes for the marks that were just set."""
        marks = self.node_state.quarantine_view.new_marks
        assert marks.node.taints
        status: QuarantineStatus = marks.status
        return status

    async def _check_place(self) -> None:
        if not self.may:
            raise GuardRefused(NOT_CONTROLLER)

    async def _check(self) -> None:
        if self.stopped:
            raise GuardRefused("stopped")

    async def _withdraw(self, entry: Entry | None) -> None:
        self.withdrawn.append(entry)

    async def _enter(self, node: str, spec: QuarantineSpec) -> None:
        self.entered.append((node, spec))

    def _escalation_hold(self, proposal: Any) -> Held | None:
        self.proposed.append(proposal)
        return self.escalation_hold

    async def _propose(self, proposal: Any) -> Held | None:
        self.proposed.append(proposal)
        await asyncio.sleep(0)
        self.meanwhile()
        return self.unread_hold if not proposal.read and self.unread_hold else self.held

    def stands(self, quarantine: Quarantine) -> Quarantine:
        """The cluster has it, and the case knows it."""
        found = self.world.put_quarantine(quarantine)
        self.node_state.quarantine_view.quarantine = found
        return found

    def now(self) -> Quarantine:
        return self.world.quarantines["n1"]

    def annotated(self, notes: dict[str, str]) -> None:
        self.world.set_node(replace(self.world.nodes["n1"], annotations=notes))

    def labelled(self, labels: dict[str, str]) -> None:
        self.world.set_node(replace(self.world.nodes["n1"], labels=labels))

    def kinds(self) -> list[str]:
        return self.notes.kinds("n1")


with_bench = on(Bench)
pytestmark = pytest.mark.decorated(by=with_bench)


# -- the guard ------------------------------------------------------------------------------------


async def test_no_act_begins_on_a_node_that_is_being_released(bench: Bench) -> None:
    bench.stands(made())
    guard = bench.acts.guard(bench.node_state)
    await guard()
    assert not guard.lost()
    for ends in (made(deleting=True), made(Phase.RELEASING)):
        bench.stands(ends)
        assert guard.lost() == "n1 is being released", "a program that runs ends, too"
        with pytest.raises(GuardRefused, match="being released"):
            await guard()
    bench.stands(made())
    late = bench.acts.guard(bench.node_state)
    bench.node_state.quarantine_view.drop()
    assert guard.lost() == "the quarantine of n1 is gone", "a release may end between two looks"
    with pytest.raises(GuardRefused, match="is gone"):
        await late()


async def test_an_act_is_refused_when_stopped_not_admitted_or_not_ours_any_more(
    bench: Bench,
) -> None:
    await bench.acts.guard(bench.node_state)()
    for name, value in (("stopped", True), ("grants", False), ("may", False)):
        setattr(bench, name, value)
        with pytest.raises(GuardRefused):
            await bench.acts.guard(bench.node_state)()
        setattr(bench, name, not value)
    bench.grants = False
    await bench.acts.guard(bench.node_state, granted=False)()


async def test_a_controller_that_loses_its_place_drops_no_quarantine_that_it_has_not_begun(
    bench: Bench,
) -> None:
    def lose(name: str) -> None:
        bench.may = bench.may and name != "write_quarantine_status"

    bench.cluster._fails = lose
    known = bench.stands(made())
    del bench.world.nodes["n1"]
    with pytest.raises(GuardRefused):
        await bench.admission._begin_again(bench.node_state, wanted(), known)
    assert bench.now().status.phase is Phase.RELEASING
    assert bench.withdrawn == []


# -- what is wanted -------------------------------------------------------------------------------


async def test_a_cordon_that_stands_becomes_a_drain_only_where_nothing_keeps_it_from_that(
    bench: Bench,
) -> None:
    node_state, acts = bench.node_state, bench.proposals
    assert acts.wanted_now(node_state) is None
    node_state.decision.wanted, node_state.decision.hold = (
        wanted(),
        Held("x", "1", "y", since=1.0),
    )
    assert acts.wanted_now(node_state) is node_state.decision.wanted
    assert node_state.decision.hold is not None, "nothing stands: its proposal was held"
    bench.stands(made(action=Action.CORDON))
    assert acts.wanted_now(node_state) is node_state.decision.wanted
    assert [node_state.decision.hold] == [None]
    (proposal,) = bench.proposed
    assert proposal.suspects == (frozenset({"drained"}),)
    assert (proposal.pool, proposal.unsettled) == ("pool-a", "too soon")
    assert proposal.incident == "i"
    bench.escalation_hold = LIMIT
    found = acts.wanted_now(node_state)
    assert found.spec.action is Action.CORDON
    assert found.uncapped is Action.DRAIN
    assert node_state.decision.hold is not None
    assert len(bench.kinds()) == 1
    for stands in (
        made(action=Action.DRAIN),
        made(action=Action.CORDON, intent_action=Action.DRAIN),
    ):
        bench.stands(stands)
        node_state.decision.hold = Held("x", "1", "y", since=1.0)
        assert acts.wanted_now(node_state) is node_state.decision.wanted
        assert node_state.decision.hold is None
    bench.stands(made(action=Action.CORDON, requester="alice"))
    assert acts.wanted_now(node_state) is node_state.decision.wanted


async def test_a_stop_holds_on_and_any_other_hold_ends_where_nothing_keeps_an_action(
    bench: Bench,
) -> None:
    for limit, reason, ends in (("stop", "x", False), ("stop", "", True), ("y", "x", True)):
        bench.node_state.decision.hold, bench.switch.reason = (
            Held(limit, "1", "y", since=1.0),
            reason,
        )
        bench.holds.unhold(bench.node_state)
        assert (bench.node_state.decision.hold is None) == ends


async def test_a_stop_that_is_over_holds_a_quarantine_no_more(bench: Bench) -> None:
    for stands, limit, reason, ends in (
        (True, "stop", "", True),
        (True, "stop", "x", False),
        (True, "maintenance", "", False),
        (False, "stop", "", False),
    ):
        bench.node_state.quarantine_view.quarantine = made() if stands else None
        bench.node_state.decision.hold, bench.switch.reason = (
            Held(limit, "1", "y", since=1.0),
            reason,
        )
        bench.holds.unhold_resumed(bench.node_state)
        assert (bench.node_state.decision.hold is None) == ends


async def test_a_stop_is_told_of_each_node_that_is_not_marked_yet_once(bench: Bench) -> None:
    bench.switch.reason = "a drill"
    bench.holds.hold_stopped(bench.node_state)
    assert [bench.node_state.decision.hold] == [None], "nothing stands"
    bench.stands(made(Phase.CORDONED))
    bench.holds.hold_stopped(bench.node_state)
    assert bench.node_state.decision.hold.limit == "stop"
    assert len(bench.kinds()) == 0
    first = bench.node_state.decision.hold
    bench.holds.hold_stopped(bench.node_state)
    assert bench.node_state.decision.hold == first
    bench.node_state.decision.hold = Held("maintenance", "1", "y", since=1.0)
    bench.stands(made(Phase.ADMITTED))
    bench.holds.hold_stopped(bench.node_state)
    assert bench.node_state.decision.hold.limit == "stop"
    assert len(bench.kinds()) == 1


async def test_another_installations_quarantine_holds_only_what_we_want_too(bench: Bench) -> None:
    node_state = bench.node_state
    for foreign, state, holds in (
        (True, wanted(), True),
        (True, wanted(in_force=Action.OBSERVE), False),
        (True, None, False),
        (False, wanted(), False),
    ):
        node_state.decision.hold, node_state.decision.wanted = (
            Held("x", "1", "y", since=1.0),
            state,
        )
        node_state.quarantine_view.quarantine = made(foreign="elsewhere") if foreign else None
        await bench.holds.leave_foreign(node_state)
        assert (node_state.decision.hold is not None) == holds
    assert len(bench.kinds()) == 1


async def test_a_hold_keeps_its_time_and_is_told_when_its_limit_changes(bench: Bench) -> None:
    bench.holds.hold(bench.node_state, LIMIT, Action.DRAIN)
    since = bench.node_state.decision.hold.since
    await asyncio.sleep(10)
    bench.holds.hold(bench.node_state, replace(LIMIT, value="2"), Action.DRAIN)
    assert (bench.node_state.decision.hold.since, bench.node_state.decision.hold.value) == (
        since,
        "2",
    )
    assert len(bench.kinds()) == 1
    assert bench.notes.transitions[0].details == {"limit": "limits.concurrent", "value": "1"}
    bench.holds.hold(bench.node_state, Held("common", "x", "y", "c1"), Action.DRAIN)
    assert (bench.node_state.decision.hold.since, bench.node_state.decision.hold.cause) == (
        since,
        "c1",
    )
    assert bench.notes.transitions[1].details["cause"] == "c1"


# -- a proposal -----------------------------------------------------------------------------------


async def test_a_node_whose_labels_are_not_known_is_read_and_decided_on_again(bench: Bench) -> None:
    """Its labels tell the fabric that it shares with others, so whether its cause is theirs."""
    bench.node_state.cluster.labels = None
    assert await bench.admission.propose(bench.node_state, wanted()) is True
    assert bench.proposed == []
    assert bench.node_state.cluster.labels == {}
    assert await bench.admission.propose(bench.node_state, wanted()) is True
    assert len(bench.proposed) == 1


async def test_what_is_admitted_is_made_and_marked_and_what_is_held_is_not(bench: Bench) -> None:
    node_state = bench.node_state
    bench.held = LIMIT
    assert await bench.admission.propose(node_state, wanted()) is False
    assert node_state.decision.hold.limit == "limits.concurrent"
    assert bench.proposed[0].suspects == (frozenset({"begun"}),)
    assert "n1" not in bench.world.quarantines
    bench.held = None
    assert await bench.admission.propose(node_state, wanted()) is True
    assert node_state.decision.hold is None
    assert bench.new_marks().phase is Phase.CORDONED
    assert bench.now().spec.record_generation == 4
    assert bench.now().spec.intent_action is Action.DRAIN
    assert node_state.quarantine_view.restored == bench.now().uid
    assert bench.withdrawn == []
    assert node_state.cluster.marked


async def test_a_node_that_the_cluster_lacks_is_held_and_not_proposed(bench: Bench) -> None:
    del bench.world.nodes["n1"]
    bench.node_state.cluster.node_gone = True
    assert await bench.admission.propose(bench.node_state, wanted()) is False
    assert bench.node_state.decision.hold.limit == "no-node"
    assert bench.proposed == []
    bench.world.add_node("n1")
    assert await bench.admission.propose(bench.node_state, wanted()) is True


async def test_a_node_is_read_before_it_counts_and_not_proposed_where_another_tool_holds_it(
    bench: Bench,
) -> None:
    bench.unread_hold = UNREAD_NODE
    bench.labelled(UPGRADE)
    assert await bench.admission.propose(bench.node_state, wanted()) is False
    assert bench.proposed == []
    assert bench.node_state.decision.hold.limit == "maintenance"
    assert bench.kinds() == ["quarantine.held"]
    bench.labelled({})
    set_fields(bench.node_state, maintained="")
    assert await bench.admission.propose(bench.node_state, wanted()) is True
    assert [one.read for one in bench.proposed] == [True]
    assert bench.kinds()[1:] == ["quarantine.admitted", "quarantine.cordoned"]
    assert bench.withdrawn == []


@pytest.mark.parametrize(
    ("change", "withdraws"),
    [
        (lambda bench: bench.world.nodes.pop("n1"), True),
        (lambda bench: bench.annotated(EXEMPTED), True),
        (lambda bench: bench.labelled(UPGRADE), True),
        (lambda bench: bench.annotated({"sickbay.dev/applied": "{}"}), False),
        (lambda bench: set_fields(bench.node_state, claimed="another"), True),
    ],
)
async def test_what_a_read_finds_after_the_admission_decides(
    bench: Bench, change: Callable[[Bench], None], *, withdraws: bool
) -> None:
    entry = bench.entries["n1"] = Entry("n1", "i", "", 1.0)
    change(bench)
    await bench.admission.create(bench.node_state, wanted())
    assert "n1" not in bench.world.quarantines
    assert bench.withdrawn == ([entry] if withdraws else [])
    assert bench.node_state.quarantine_view.to_adopt != withdraws


async def test_nothing_is_made_by_a_replica_whose_place_is_not_certain(bench: Bench) -> None:
    bench.may = False
    with pytest.raises(GuardRefused):
        await bench.admission.create(bench.node_state, wanted())
    bench.annotated({FORCE: "drain x"})
    with pytest.raises(GuardRefused):
        await bench.objects.force(bench.node_state)
    assert bench.world.quarantines == {}


# -- a cordon -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stands", "change", "marks"),
    [
        (made(), None, True),
        (made(deleting=True), None, False),
        (made(Phase.RELEASING), None, False),
        (made(), EXEMPTED, False),
        (made(requester="alice"), EXEMPTED, True),
        (made(), UPGRADE, False),
        (made(requester="alice"), UPGRADE, True),
    ],
)
async def test_a_node_is_marked_only_while_that_is_still_to_be_done(
    bench: Bench, stands: Quarantine, change: dict[str, str] | None, *, marks: bool
) -> None:
    if change is UPGRADE:
        bench.labelled(UPGRADE)
    elif change:
        bench.annotated(change)
    bench.stands(replace(stands, has_finalizer=False))
    set_fields(bench.node_state, node_replaced=True, missing=("taint",))
    await bench.cordons.cordon(bench.node_state)
    assert bench.world.nodes["n1"].unschedulable == marks
    assert bench.now().has_finalizer == marks
    if marks:
        assert (
            bench.node_state.quarantine_view.node_replaced,
            bench.node_state.quarantine_view.missing,
        ) == (False, ())
        status = bench.new_marks()
        assert status.admitted_at == status.cordoned_at > 0
        assert status.node_uid == "uid-n1"
        assert status.applied is not None
        assert status.marks == MarksStatus()


async def test_a_mark_keeps_the_time_of_an_admission_that_is_known(bench: Bench) -> None:
    bench.stands(made(admitted_at=4000.0))
    await bench.cordons.cordon(bench.node_state)
    status = bench.new_marks()
    assert (status.phase, status.admitted_at) == (Phase.CORDONED, 4000.0)
    assert status.cordoned_at > 4000.0


@pytest.mark.parametrize(
    ("stands", "phase"),
    [
        (made(), Phase.ADMITTED),
        (made(requester="alice"), Phase.INVALID),
        (made(Phase.CORDONED, requester="alice"), Phase.CORDONED),
    ],
)
async def test_without_a_node_a_quarantine_says_so_once(
    bench: Bench, stands: Quarantine, phase: Phase
) -> None:
    del bench.world.nodes["n1"]
    bench.stands(stands)
    await bench.cordons.cordon(bench.node_state)
    assert bench.now().status.phase is phase
    assert bench.now().status.message == bench.node_state.work.last_error
    before = bench.now().version
    await bench.cordons.cordon(bench.node_state)
    assert bench.now().version == before


async def test_on_another_node_only_what_counts_beyond_the_one_before_is_kept(bench: Bench) -> None:
    kept: dict[str, Any] = {
        "node_uid": "old",
        "admitted_at": 1.0,
        "release_held": "h",
        "override": "o",
        "uncordoned": "u",
        "uncordoned_at": 2.0,
        "recordons": 3,
        "evictions_held_until": 4.0,
        "evicted_workloads": (EvictedWorkload("train", 5.0),),
    }
    known = bench.stands(
        made(Phase.DRAINED, cordoned_at=5.0, drained_at=6.0, pods_remaining=7, **kept)
    )
    bench.node_state.quarantine_view.node_replaced = True
    await bench.cordons.restart(bench.node_state, known)
    status = bench.now().status
    assert status.phase is Phase.ADMITTED
    assert {name: getattr(status, name) for name in kept} == kept
    assert (status.cordoned_at, status.drained_at, status.pods_remaining) == (0.0, 0.0, None)
    assert isinstance(status.marks, MarksStatus)
    assert status.marks.since > 5000.0
    assert not bench.node_state.quarantine_view.node_replaced
    assert len(bench.kinds()) == 1


# -- an uncordon ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stands", "cordoned"),
    [
        (made(Phase.CORDONED, node_uid="uid-n1"), True),
        (made(Phase.DRAINED, node_uid="uid-n1"), True),
        (made(Phase.CORDONED, node_uid="uid-n1", deleting=True), False),
        (made(Phase.ADMITTED, node_uid="uid-n1"), False),
        (made(Phase.CORDONED, node_uid="uid-n1", recordons=6, uncordoned_at=4999.0), False),
        (made(Phase.CORDONED, node_uid="another"), False),
    ],
)
async def test_a_node_is_cordoned_again_only_while_it_is_uncordoned_and_due(
    bench: Bench, stands: Quarantine, *, cordoned: bool
) -> None:
    bench.stands(stands)
    await bench.cordons.recordon(bench.node_state)
    assert bench.world.nodes["n1"].unschedulable == cordoned
    assert bench.now().status.recordons == (1 if cordoned else stands.status.recordons)
    assert len(bench.kinds()) == (1 if cordoned else 0)
    if cordoned:
        assert bench.now().status.applied == read_applied(bench.world.nodes["n1"])
        assert bench.now().status.applied is not None


# -- what is entered, written and shown -----------------------------------------------------------


@pytest.mark.parametrize(
    ("requester", "node", "entered"),
    [(OURS, True, True), (OURS, False, True), ("alice", True, True), ("alice", False, False)],
)
async def test_one_made_by_hand_is_entered_only_with_its_node(
    bench: Bench, requester: str, *, node: bool, entered: bool
) -> None:
    known = bench.stands(made(requester=requester))
    if not node:
        del bench.world.nodes["n1"]
    await bench.objects.enter(bench.node_state, known)
    assert bool(bench.entered) == entered
    assert (bench.now().status.phase is Phase.INVALID) == (not entered)
    if entered:
        assert bench.entered == [("n1", known.spec)]
        who = "by sickbay" if requester == OURS else "by hand"
        assert f"made {who}" in bench.notes.transitions[0].summary


async def test_an_intent_is_written_where_it_has_changed_and_told_where_its_action_has(
    bench: Bench,
) -> None:
    known = bench.stands(made(action=Action.CORDON, intent_action=Action.CORDON))
    same = DesiredState(known.spec, Action.CORDON, Action.CORDON)
    await bench.objects.update(bench.node_state, known, same)
    assert bench.now() == known
    await bench.objects.update(bench.node_state, known, wanted())
    assert bench.now().spec.action is Action.DRAIN
    assert len(bench.kinds()) == 1
    assert bench.node_state.quarantine == bench.now()


async def test_a_force_makes_or_changes_a_quarantine_as_the_node_says_by_now(bench: Bench) -> None:
    await bench.objects.force(bench.node_state)
    assert bench.world.quarantines == {}, "taken back in between"
    bench.annotated({FORCE: "cordon for a test"})
    bench.node_state.agent.claimed = "another"
    await bench.objects.force(bench.node_state)
    assert bench.world.quarantines == {}
    bench.node_state.agent.claimed, bench.grants = "", False
    await bench.objects.force(bench.node_state)
    spec = bench.now().spec
    assert (spec.action, spec.requester, spec.kind) == (Action.CORDON, FORCED, "manual")
    assert spec.reason == "for a test"
    bench.annotated({FORCE: "drain now"})
    await bench.objects.force(bench.node_state)
    spec = bench.now().spec
    assert (spec.action, spec.intent_action, spec.reason) == (
        Action.DRAIN,
        Action.DRAIN,
        "now",
    )


async def test_a_persons_action_is_shown_and_ends_a_drain(bench: Bench) -> None:
    blockers = (Blocker("jobs/a", "x", 1.0),)
    known = bench.stands(
        made(Phase.DRAINING, action=Action.CORDON, intent_action=Action.DRAIN, blockers=blockers)
    )
    await bench.objects.show_override(bench.node_state, known)
    status = bench.now().status
    assert (status.phase, status.blockers) == (Phase.CORDONED, ())
    assert "a person set cordon" in status.override
    assert "a person set cordon" in bench.notes.transitions[-1].summary


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        (f"{STILL_SCHEDULABLE}x", {}, True),
        ("cordoned again", {}, False),
        (f"{STILL_SCHEDULABLE}x", {"recordons": 1, "uncordoned_at": 5000.0}, True),
        (f"{STILL_SCHEDULABLE}x", {"recordons": 6, "uncordoned_at": 5000.0}, False),
    ],
)
async def test_a_node_that_is_left_schedulable_is_told_of_unless_that_was_told(
    bench: Bench, text: str, status: dict[str, Any], *, told: bool
) -> None:
    await asyncio.sleep(20)
    known = bench.stands(made(Phase.CORDONED, **status))
    bench.node_state.quarantine_view.uncordoned = Uncordoned.UNKNOWN
    await bench.objects.show_cordon(bench.node_state, known, text)
    assert bench.now().status.uncordoned == text
    assert len(bench.kinds()) == int(told)


@pytest.mark.parametrize("requester", [OURS, "alice"])
@pytest.mark.parametrize("phase", [Phase.CORDONED, Phase.INVALID])
@pytest.mark.parametrize("gone", [True, False])
async def test_an_absence_is_shown_with_its_time_and_told(
    bench: Bench, phase: Phase, requester: str, *, gone: bool
) -> None:
    known = bench.stands(made(phase, requester=requester))
    bench.node_state.cluster.node_gone = gone
    await bench.objects.show_absence(bench.node_state, known)
    status, told = bench.now().status, bench.notes.transitions[-1].summary
    assert (status.node_absent_since > 5000.0) == gone
    assert (status.message == NO_NODE) == (phase is Phase.INVALID)
    assert ("its Node is back" in told) == (not gone)
    if gone:
        assert ("ends by itself" in told) == (requester == OURS)
    assert ("back" in bench.kinds()[0]) == (not gone)


@pytest.mark.parametrize("error", [Unreachable("no answer"), Refused("denied")])
async def test_the_event_of_a_write_comes_once_also_where_it_fails(
    bench: Bench, error: ClusterError
) -> None:
    known, failures = bench.stands(made()), [error, error, Conflict("changed")]
    bench.cluster._fails = lambda _: failures.pop(0) if failures else None
    for events in (1, 1, 1, 1, 2):
        with (
            contextlib.suppress(ClusterError),
            bench.acts.reporting(bench.node_state, EventKind.NODE_BACK, "x"),
        ):
            known = await bench.acts.write_status(bench.node_state, known, known.status)
        assert len(bench.kinds()) == events


@pytest.mark.parametrize("later", [{"uid": "q2"}, {"version": "2"}])
async def test_a_failed_write_hides_no_event_of_a_later_change(
    bench: Bench, later: dict[str, Any]
) -> None:
    for number, changes in enumerate((dict[str, Any](), later), 1):
        bench.stands(made(**changes))
        with (
            contextlib.suppress(Unreachable),
            bench.acts.reporting(bench.node_state, EventKind.REPAIR_EXHAUSTED, "x"),
        ):
            raise Unreachable("no answer")
        assert len(bench.kinds()) == number


# -- reads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Unreachable("no answer"), ValueError("a bug")])
async def test_a_hint_stays_where_the_node_cant_be_read(bench: Bench, error: Any) -> None:
    bench.node_state.work.needs_read = True
    await bench.acts.read_node(bench.node_state)
    assert not bench.node_state.work.needs_read
    assert bench.node_state.cluster.node_found
    bench.acts.cluster = MemoryCluster(bench.world, fails=lambda _: error)
    bench.node_state.work.needs_read = True
    with pytest.raises(type(error)):
        await bench.acts.read_node(bench.node_state)
    assert bench.node_state.work.needs_read


async def test_an_object_that_a_read_does_not_find_has_vanished_unless_its_end_is_known(
    bench: Bench,
) -> None:
    assert await bench.acts.reread(bench.node_state) is None
    assert bench.node_state.quarantine_view.vanished == ""
    for ended, vanished in (("", "q"), ("q", "")):
        set_fields(bench.node_state, quarantine=made(), ended=ended)
        bench.node_state.quarantine_view.vanished = ""
        assert await bench.acts.reread(bench.node_state) is None
        assert bench.node_state.quarantine is None
        assert bench.node_state.quarantine_view.vanished == vanished


async def test_an_event_names_the_incident_of_the_object_or_else_of_what_is_wanted(
    bench: Bench,
) -> None:
    kind = EventKind.HELD
    bench.acts.emit_event(bench.node_state, kind, "x")
    bench.node_state.decision.wanted = wanted()
    bench.acts.emit_event(bench.node_state, kind, "x", {"a": "b"})
    theirs = made()
    bench.node_state.quarantine_view.quarantine = replace(
        theirs, spec=replace(theirs.spec, incident="j")
    )
    bench.acts.emit_event(bench.node_state, kind, "x")
    assert [one.incident for one in bench.notes.transitions] == ["", "i", "j"]
    assert [one.details for one in bench.notes.transitions] == [{}, {"a": "b"}, {}]
