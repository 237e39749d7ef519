"""The next step of a node's one task, and how it waits after a failure: no replica."""

import asyncio
import enum
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Conflict,
    GuardRefused,
    NotFound,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Refused,
    Unreachable,
)
from aggregator.events import EventKind
from aggregator.quarantine.decide.admission import AdmissionStep
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS, DesiredState
from aggregator.quarantine.decide.operator_requests import NONE
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.plans.drain import DrainStep
from aggregator.quarantine.decide.plans.marks import MarkStep
from aggregator.quarantine.decide.plans.object import ObjectStep
from aggregator.quarantine.decide.plans.operations import OperationStep
from aggregator.quarantine.decide.plans.publish import PublishStep
from aggregator.quarantine.decide.plans.release import RECOVERED, ReleaseStep
from aggregator.quarantine.decide.plans.step import NextStep, Pause
from aggregator.quarantine.reconcile import (
    admission,
    drain,
    operations,
    plan_inputs,
    publish,
    release,
)
from aggregator.quarantine.reconcile import (
    quarantine as quarantines,
)
from aggregator.quarantine.reconcile.new_marks import NewMarksWriter
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.reconcile.worker import NodeReads, NodeWorker
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from tests.support.node_states import part_with, set_fields
from tests.support.replica import SETTINGS, all_in_mode
from tests.support.virtual_time import VirtualTimeLoop, play, played_by

WORD = Override("xid:79", "GPU-1", "boot-1", "reboot")
WANTED = DesiredState(QuarantineSpec(Action.DRAIN, "gpu", "x", OURS), Action.DRAIN, Action.DRAIN)


def quarantine(phase: Phase = Phase.CORDONED, **changes: Any) -> Quarantine:
    status = changes.pop("status", {})
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS)
    return replace(
        Quarantine("n1", "q", "1", spec, QuarantineStatus(phase=phase, **status)), **changes
    )


class Most(random.Random):
    """Draws the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        return b


class Recorder:
    """Every method is there: it notes its name, and returns or raises what the test has set."""

    def __init__(self, bench: "Bench", *plain: str) -> None:
        self._bench, self._plain = bench, plain

    def __getattr__(self, name: str) -> Any:
        if name in ("cluster", "record_writer"):
            return self

        def act(*_: Any, **__: Any) -> Any:
            bench = self._bench
            if name != "report_phase":
                bench.did.append(name)
            answer = bench.answers.get(name)
            if callable(answer):
                answer = answer()
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def act_later(*given: Any, **named: Any) -> Any:
            return act(*given, **named)

        return act if name in self._plain else act_later


#: Each plan, by its module, and the steps that it may have.
PLANS = (
    (release, "plan_release", (ReleaseStep, Pause)),
    (operations, "plan_open_operation", ()),
    (admission, "plan_admission", (AdmissionStep,)),
    (quarantines, "plan_object", (ObjectStep,)),
    (quarantines, "plan_marks", (MarkStep,)),
    (drain, "plan_drain_step", (DrainStep,)),
    (operations, "plan_operation", (OperationStep,)),
    (publish, "plan_publish", (PublishStep,)),
)


class Bench:
    """The worker with all reconcilers, whose steps only note that they were called."""

    def __init__(self, patch: pytest.MonkeyPatch, loop: VirtualTimeLoop) -> None:
        self.did: list[str] = []
        self.answers: dict[str, Any] = {}
        self.step: NextStep | None = None
        self.may = True
        self.entries: dict[str, Entry] = {}
        self.fleet = FleetState()
        self.loop = loop
        recorder: Any = Recorder(
            self,
            "follow",
            "hold_stopped",
            "hold_unread",
            "reject",
            "report_phase",
            "unhold_resumed",
            "wanted_now",
        )
        writer: Any = SimpleNamespace(
            record=SimpleNamespace(entries=self.entries),
            switch=SimpleNamespace(may_act=lambda: self.may),
        )
        self.queue: Any = WorkQueue(writer)
        self.queue.view = True
        clocks, pools = Clocks(loop.time, loop.time), all_in_mode(SETTINGS.mode)
        recorder.pools = pools
        self.inputs = inputs = PlanInputs(
            proposals=recorder,
            queue=self.queue,
            pools=pools,
            fleet=self.fleet,
            clocks=clocks,
            limits=SETTINGS.limits,
        )

        async def no_lost_order(*_: object) -> str:
            return ""

        repairs: Any = SimpleNamespace(
            waits=lambda _: True,
            is_due=lambda _: False,
            run=recorder.run,
            holds_release=lambda _: False,
            withdraw=recorder.withdraw,
            lost_order=no_lost_order,
        )
        quarantine_reconciler = quarantines.QuarantineReconciler(
            inputs=inputs,
            objects=recorder,
            cordon=recorder,
            holds=recorder,
            restorer=recorder,
        )
        admitting: Any = admission.AdmissionReconciler(
            inputs=inputs,
            acts=recorder,
            holds=recorder,
            cordon=recorder,
            objects=recorder,
            adopter=recorder,
        )
        admitting.propose, admitting.create = recorder.propose, recorder.create
        no_tests: Any = SimpleNamespace(plan=lambda _state, _quarantine: None)
        self.made: Any = NodeWorker(
            admission=admitting,
            reconcilers=(
                release.ReleaseReconciler(
                    inputs=inputs,
                    release_actions=recorder,
                    repairs=repairs,
                    uncordon=SETTINGS.uncordon,
                ),
                operations.OpenOperationReconciler(inputs=inputs, repairs=repairs),
                quarantine_reconciler,
                drain.DrainReconciler(inputs=inputs, drain=recorder),
                operations.OperationReconciler(inputs=inputs, repairs=repairs),
                publish.PublishReconciler(recorder),
            ),
            reads=NodeReads(
                acts=recorder,
                holds=recorder,
                release_actions=recorder,
                adopter=recorder,
                drain=recorder,
                missing_nodes=recorder,
                agent_events=recorder,
            ),
            node_tests=no_tests,
            new_marks=NewMarksWriter(acts=recorder, drain=recorder, queue=self.queue),
            inputs=inputs,
            queue=self.queue,
            rng=Most(),
        )
        evaluator: Any = self
        self.queue.deliver_to(evaluator, self.made)
        self.node_state: Any = NodeState("n1", now=loop.time)
        for module, name, kinds in PLANS:
            patch.setattr(module, name, self._plan(kinds))

    def evaluate_node(self, node_state: Any) -> None:
        node_state.work.begin_evaluation()
        self.did.append("evaluate_node")

    def _plan(self, kinds: tuple[type, ...]) -> Callable[[Any], NextStep | None]:
        def plan(_view: Any) -> NextStep | None:
            return self.step if self.step is not None and isinstance(self.step.do, kinds) else None

        return plan

    async def next(self, **fields: Any) -> tuple[bool, list[str]]:
        """The answer of one step, and its acts."""
        for name, value in fields.items():
            set_fields(self.node_state, **{name: value})
        self.did.clear()
        done = await self.made._one_step(self.node_state)
        return done, [name for name in self.did if name not in ("wanted_now", "unhold_resumed")]


def play_bench(test: Callable[[Bench], Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        play(lambda loop: test(Bench(patch, loop)))


pytestmark = pytest.mark.decorated(by=played_by(play_bench))


# -- what there is to do --------------------------------------------------------------------------


async def test_there_is_work_for_each_single_reason(bench: Bench) -> None:
    assert not bench.queue.has_work(bench.node_state)
    for name, value in (
        ("wanted", WANTED),
        ("quarantine", quarantine()),
        ("hold", Held("stop", "set", "x", since=1.0)),
        ("operator_requests", replace(NONE, force=Action.CORDON)),
        ("needs_read", True),
        ("orphan", "uid"),
        ("ended_overrides", frozenset({WORD})),
        ("waiters", (bench.loop.create_future(),)),
        ("to_adopt", True),
    ):
        before = getattr(part_with(bench.node_state, name), name)
        set_fields(bench.node_state, **{name: value})
        assert bench.queue.has_work(bench.node_state), name
        set_fields(bench.node_state, **{name: before})
    bench.entries["n1"] = Entry("n1", "", "", 1.0)
    assert bench.queue.has_work(bench.node_state)
    assert bench.node_state.work.in_record


async def test_a_node_has_one_task_and_none_while_nothing_may_be_done(bench: Bench) -> None:
    node_state, queue = bench.node_state, bench.queue
    queue.view = False
    queue.add(node_state)
    await asyncio.sleep(0)
    assert [node_state.work.task] == [None]
    assert node_state.work.is_queued
    queue.view, bench.may = True, False
    queue.add(node_state)
    await asyncio.sleep(0)
    assert [node_state.work.task] == [None]
    bench.may = True
    queue.resume(node_state)
    await asyncio.sleep(0)
    assert [node_state.work.task] == [None], "there is nothing to do for it"
    queue.add_for_read(node_state)
    await asyncio.sleep(0)
    first: Any = node_state.work.task
    assert first is not None
    queue.add(node_state)
    assert node_state.work.task is first
    bench.answers["read_node"] = lambda: set_fields(node_state, needs_read=False)
    await first
    assert bench.did.count("read_node") == 1
    assert not node_state.work.is_queued
    node_state.work.needs_read = True
    queue.resume(node_state)
    await asyncio.sleep(0)
    assert node_state.work.task is first, "nothing has waited"
    queue.add_if_pending(node_state)
    await asyncio.sleep(0)
    assert node_state.work.task is not first
    await node_state.work.task
    node_state.work.needs_read, second = False, node_state.work.task
    queue.add_if_pending(node_state)
    await asyncio.sleep(0)
    assert node_state.work.task is second


async def test_nothing_more_is_begun_once_it_may_not_be(bench: Bench) -> None:
    def act() -> None:
        bench.may, bench.node_state.work.needs_read = False, bench.did.count("read_node") < 2

    bench.answers["read_node"] = act
    bench.queue.add_for_read(bench.node_state)
    await asyncio.sleep(0)
    await bench.node_state.work.task
    assert bench.did.count("read_node") == 1
    assert bench.node_state.work.is_queued, "it waits for leave"


# -- the order of steps ---------------------------------------------------------------------------


async def test_a_hint_is_looked_into_first(bench: Bench) -> None:
    set_fields(bench.node_state, needs_read=True, orphan="uid")
    assert await bench.next() == (False, ["read_node", "explain"])


async def test_pods_are_read_again_once_and_before_other_steps(bench: Bench) -> None:
    bench.node_state.work.recheck_pods = True
    assert await bench.next() == (False, ["recheck"])
    assert await bench.next() == (True, [])


async def test_a_read_of_pods_ends_with_the_quarantine(bench: Bench) -> None:
    async def recheck(_: NodeState) -> None:
        await asyncio.sleep(3600)

    bench.made._reads._drain.recheck = recheck
    bench.node_state.work.recheck_pods = True
    step = asyncio.ensure_future(bench.next(quarantine=quarantine(Phase.DRAINED)))
    await asyncio.sleep(1)
    assert not step.done()
    set_fields(bench.node_state, quarantine=quarantine(Phase.DRAINED, deleting=True))
    bench.node_state.work.queue()
    began = bench.loop.time()
    assert await step == (False, [])
    assert bench.loop.time() == began


@pytest.mark.parametrize(
    ("node_state", "stands", "expected"),
    [
        ({"vanished": "q"}, False, (True, [])),
        ({"vanished": "q", "orphan": "q"}, False, (True, [])),
        ({"orphan": "q", "to_adopt": True}, False, (False, ["sweep"])),
        ({"orphan": "q"}, True, (True, ["explain"])),
        ({"to_adopt": True, "ended_overrides": frozenset({WORD})}, False, (False, ["adopt"])),
        ({"to_adopt": True}, True, (True, ["explain"])),
        ({"to_adopt": True, "definition_going": True}, False, (True, [])),
        ({"ended_overrides": frozenset({WORD})}, False, (False, ["clear_overrides"])),
        ({"ended_overrides": frozenset({WORD})}, True, (False, ["clear_overrides"])),
    ],
)
async def test_marks_without_an_object_come_before_words_that_are_over(
    bench: Bench, node_state: dict[str, Any], expected: tuple[bool, list[str]], *, stands: bool
) -> None:
    set_fields(bench.node_state, **node_state)
    assert await bench.next(quarantine=quarantine() if stands else None) == expected


@pytest.mark.parametrize("deleting", [False, True])
async def test_words_that_are_over_wait_for_a_release(bench: Bench, *, deleting: bool) -> None:
    bench.node_state.cluster.ended_overrides = frozenset({WORD})
    phase = Phase.DRAINED if deleting else Phase.RELEASING
    found = await bench.next(quarantine=quarantine(phase, deleting=deleting))
    assert found == (True, ["definition_is_going"] * deleting)


@pytest.mark.parametrize(
    ("step", "stands", "expected"),
    [
        (Pause.WAIT, True, (True, ["explain"])),
        (Pause.HOLD, True, (True, ["hold_stopped"])),
        (ObjectStep.UNREAD, True, (True, ["hold_unread"])),
        (AdmissionStep.CREATE, False, (False, ["create"])),
        (AdmissionStep.FORCE, False, (False, ["force"])),
        (AdmissionStep.FORGET, False, (False, ["forget_node"])),
        (ReleaseStep.UNDO, True, (False, ["withdraw", "undo", "evaluate_node"])),
        (MarkStep.CORDON, True, (False, ["cordon"])),
        (ObjectStep.ENTER, True, (False, ["enter"])),
        (ObjectStep.VOID, True, (False, ["void"])),
        (ObjectStep.REFUSE, True, (False, ["refuse"])),
        (ObjectStep.UPDATE, True, (False, ["update"])),
        (MarkStep.RECORDON, True, (False, ["recordon"])),
        (ObjectStep.ABSENCE, True, (False, ["show_absence"])),
        (ObjectStep.OVERRIDE, True, (False, ["show_override"])),
        (MarkStep.REPORT_CORDON, True, (False, ["show_cordon"])),
        (ObjectStep.RESTART, True, (False, ["restart"])),
        (ObjectStep.REPORT_MARKS, True, (False, ["report"])),
        (MarkStep.RESTORE, True, (False, ["restore"])),
        (DrainStep.DRAIN, True, (False, ["run"])),
        (ReleaseStep.RELEASE, True, (False, ["release"])),
        (ObjectStep.UNHOLD, True, (False, ["unhold"])),
        (PublishStep.CONDITIONS, True, (False, ["write_conditions"])),
        (ReleaseStep.LET_GO, True, (False, ["drop_finalizer"])),
    ],
)
async def test_each_step_is_carried_out_by_its_own_act(
    bench: Bench, step: enum.StrEnum, expected: tuple[bool, list[str]], *, stands: bool
) -> None:
    bench.step, bench.answers["wanted_now"] = NextStep(step), WANTED
    assert await bench.next(quarantine=quarantine() if stands else None) == expected


@pytest.mark.parametrize(
    ("step", "stands"),
    [(AdmissionStep.PROPOSE, False), (AdmissionStep.CREATE, False), (ObjectStep.UPDATE, True)],
)
async def test_what_is_not_wanted_any_more_is_not_begun(
    bench: Bench, step: enum.StrEnum, *, stands: bool
) -> None:
    bench.step = NextStep(step)
    assert await bench.next(quarantine=quarantine() if stands else None) == (False, [])


async def test_a_cordon_ends_where_its_node_proved_gone(bench: Bench) -> None:
    bench.step = NextStep(MarkStep.CORDON)
    bench.answers["cordon"] = lambda: set_fields(bench.node_state, node_gone=True)
    assert await bench.next(quarantine=quarantine()) == (True, ["cordon", "follow"])


async def test_a_drain_that_waits_is_explained(bench: Bench) -> None:
    assert await bench.next(quarantine=quarantine(Phase.DRAINING)) == (True, ["explain"])
    assert await bench.next(quarantine=quarantine(Phase.DRAINED)) == (True, [])


async def test_what_a_step_has_learned_counts_also_where_it_failed(bench: Bench) -> None:
    node_state = bench.node_state

    def learn(name: str, value: object) -> list[str]:
        def act() -> Exception:
            set_fields(node_state, **{name: value})
            return Unreachable("no answer")

        bench.answers["read_node"], node_state.work.needs_read = act, True
        bench.did.clear()
        return []

    for name, value, told in (
        ("node_gone", True, "follow"),
        ("misnamed", True, "reject"),
        ("overruled", frozenset({WORD}), "evaluate_node"),
        ("operator_requests", replace(NONE, pinned=True), "evaluate_node"),
    ):
        learn(name, value)
        with pytest.raises(Unreachable):
            await bench.made._one_step(node_state)
        assert bench.did == ["read_node", told]
        node_state.cluster.node_gone = node_state.agent.misnamed = False


# -- after a failure ------------------------------------------------------------------------------


async def fail(bench: Bench, *errors: Exception) -> list[float]:
    """The times (seconds) between the steps that fail so, one after the other, and the end."""
    times: list[float] = []
    waiting = list(errors)

    def act() -> Exception | None:
        times.append(bench.loop.time())
        if waiting:
            return waiting.pop(0)
        bench.node_state.work.needs_read = False
        bench.step = None
        return None

    bench.node_state.work.needs_read = True
    bench.answers["read_node"] = act
    bench.queue.add(bench.node_state)
    await asyncio.sleep(0)
    await bench.node_state.work.task
    return [round(b - a, 3) for a, b in itertools.pairwise(times)]


async def test_waits_grow_after_each_failure_up_to_the_most(bench: Bench) -> None:
    waits = await fail(bench, *(Unreachable("no answer") for _ in range(8)))
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0]
    assert bench.node_state.work.last_error == ""
    waits = await fail(bench, Unreachable("x"))
    assert waits == [0.2], "each success begins anew"


async def test_a_pause_that_the_cluster_asks_for_is_kept(bench: Bench) -> None:
    assert await fail(bench, Unreachable("x", retry_after=40.0)) == [40.0]
    bench.step = NextStep(ReleaseStep.UNDO)
    set_fields(bench.node_state, quarantine=quarantine())
    way_out = bench.made._back_off(bench.node_state, 0.5, 40.0)
    before = bench.loop.time()
    await way_out
    assert bench.loop.time() - before == 5.0, "what ends a quarantine waits less"
    before = bench.loop.time()
    await bench.made._back_off(bench.node_state, 0.5, 0.1)
    assert bench.loop.time() - before == 0.5


async def test_a_conflict_is_read_again_at_once_and_told_only_when_it_goes_on(bench: Bench) -> None:
    errors: list[str] = []

    def reread() -> None:
        errors.append(bench.node_state.work.last_error)

    bench.answers["reread"] = reread
    waits = await fail(bench, *(Conflict("x") for _ in range(5)))
    assert waits == [0.0, 0.4, 0.8, 1.6, 3.2]
    assert errors == ["", "", "", "changed in between", "changed in between"]


async def test_what_was_not_found_is_read_and_what_a_guard_refused_is_not(bench: Bench) -> None:
    assert await fail(bench, NotFound("gone")) == [0.0]
    assert bench.did.count("reread") == 1
    bench.did.clear()
    assert await fail(bench, GuardRefused("stopped")) == [0.2]
    assert bench.did.count("reread") == 0


@pytest.mark.parametrize("error", [Refused("forbidden"), ValueError("a bug")])
async def test_what_will_not_pass_by_itself_is_tried_seldom(bench: Bench, error: Exception) -> None:
    assert await fail(bench, error) == [6.4]
    assert await fail(bench, error, error) == [6.4, 15.0]


@pytest.mark.parametrize(
    ("phase", "step", "kind", "error"),
    [
        (None, AdmissionStep.CREATE, EventKind.MARKS_MISSING, Refused("exceeded quota")),
        (None, AdmissionStep.FORCE, EventKind.MARKS_MISSING, NotFound("no definition")),
        (None, AdmissionStep.FORGET, None, Unreachable("no answer")),
        (Phase.ADMITTED, MarkStep.CORDON, EventKind.MARKS_MISSING, Unreachable("exited with 3")),
        (Phase.ADMITTED, MarkStep.CORDON, EventKind.MARKS_MISSING, ValueError("a bug")),
        (Phase.CORDONED, ReleaseStep.UNDO, EventKind.RELEASE_HELD, Unreachable("no answer")),
        (Phase.DRAINING, DrainStep.DRAIN, None, Unreachable("no answer")),
    ],
)
async def test_a_cordon_or_release_that_fails_for_a_minute_is_reported_once(
    bench: Bench,
    phase: Phase | None,
    step: enum.StrEnum,
    kind: EventKind | None,
    error: Exception,
) -> None:
    reported: list[tuple[float, EventKind, str]] = []

    def emit_event(_: NodeState, kind: EventKind, text: str) -> None:
        reported.append((bench.loop.time() - begun, kind, text))

    bench.made._reads.acts.emit_event = emit_event
    set_fields(bench.node_state, quarantine=quarantine(phase) if phase else None)
    for errors in (3, 40, 40):
        begun, bench.step = bench.loop.time(), NextStep(step)
        await fail(bench, *[error] * errors)
    assert [one for _, one, _ in reported] == [kind, kind] * (kind is not None)
    assert all(60.0 <= at <= 75.0 for at, _, _ in reported)
    assert all(text.endswith(f"fails, and is tried again: {error}") for *_, text in reported)


def reports(bench: Bench) -> list[EventKind]:
    """The kinds that the worker reports from now on."""
    found: list[EventKind] = []
    bench.made._reads.acts.emit_event = lambda _state, kind, _text: found.append(kind)
    return found


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        (None, EventKind.MARKS_MISSING),
        (Phase.ADMITTED, EventKind.MARKS_MISSING),
        (Phase.DRAINED, EventKind.RELEASE_HELD),
    ],
)
async def test_a_bug_in_a_plan_ends_no_task_and_is_reported(
    bench: Bench, phase: Phase | None, kind: EventKind
) -> None:
    reported, broken = reports(bench), SimpleNamespace()
    set_fields(bench.node_state, quarantine=quarantine(phase) if phase else None)
    bench.step = broken  # type: ignore[assignment]  # it has no step, which raises
    bench.queue.add(bench.node_state)
    await asyncio.sleep(100)
    assert bench.node_state.work.is_running
    assert reported == [kind]
    bench.step = None
    await bench.node_state.work.task
    assert bench.node_state.work.last_error == ""


async def test_a_bug_in_the_evaluation_or_a_read_again_ends_no_task(bench: Bench) -> None:
    bench.answers["reread"] = ValueError("a bug")
    assert await fail(bench, Conflict("x"), Conflict("x")) == [0.0, 0.4]
    evaluating, evaluate = [ZeroDivisionError] * 9, bench.evaluate_node

    def evaluate_node(node_state: NodeState) -> None:
        evaluate(node_state)
        if evaluating:
            raise evaluating.pop()

    vars(bench)["evaluate_node"] = evaluate_node
    sign = bench.loop.create_future()
    bench.node_state.work.waiters = (sign,)
    bench.queue.evaluate(bench.node_state)
    await asyncio.sleep(0)
    await bench.node_state.work.task
    assert (evaluating, sign.done()) == ([], True), "evidence is acknowledged once evaluated"
    assert not bench.node_state.work.evaluation_due


@pytest.mark.parametrize(
    ("step", "call"),
    [
        (NextStep(ReleaseStep.RELEASE, "deleted by a person", overruled=True), "release"),
        (NextStep(ReleaseStep.UNDO), "undo"),
        (None, "sweep"),
        (NextStep(ReleaseStep.RELEASE, RECOVERED), ""),
    ],
)
async def test_a_bug_in_the_evaluation_holds_up_no_release_except_by_recovery(
    bench: Bench, step: NextStep | None, call: str
) -> None:
    def evaluate_node(_: NodeState) -> None:
        raise ZeroDivisionError

    def act() -> None:
        bench.step = None
        set_fields(bench.node_state, orphan="")

    vars(bench)["evaluate_node"], bench.step = evaluate_node, step
    bench.answers |= dict.fromkeys(("release", "undo", "sweep"), act)
    found = {"quarantine": quarantine()} if step else {"orphan": "q"}
    set_fields(bench.node_state, **found)
    bench.queue.evaluate(bench.node_state)
    await asyncio.sleep(60)
    assert [one for one in bench.did if one in ("release", "undo", "sweep")] == [call] * bool(call)
    bench.node_state.work.task.cancel()


@pytest.mark.parametrize(
    ("field", "call", "kind"),
    [
        ("orphan", "sweep", EventKind.RELEASE_HELD),
        ("to_adopt", "adopt", EventKind.ADOPTED),
    ],
)
async def test_marks_without_an_object_for_a_minute_are_reported(
    bench: Bench, field: str, call: str, kind: EventKind
) -> None:
    reported, errors = reports(bench), [Refused("exceeded quota", retry_after=40.0)] * 9
    set_fields(bench.node_state, **{field: "uid"})

    def act() -> Exception | None:
        if errors:
            return errors.pop()
        set_fields(bench.node_state, **{field: ""})
        return None

    bench.answers[call] = act
    bench.queue.add(bench.node_state)
    await asyncio.sleep(0)
    began = bench.loop.time()
    await bench.node_state.work.task
    assert reported == [kind]
    assert (bench.loop.time() - began < 9 * 40) == (field == "orphan"), "it ends a quarantine"


async def test_an_error_is_shown_while_it_lasts(bench: Bench) -> None:
    seen: list[str] = []
    for error in (Unreachable("no answer"), Refused("forbidden"), ValueError("a bug")):
        going = asyncio.ensure_future(fail(bench, error))
        await asyncio.sleep(0.1)
        seen.append(bench.node_state.work.last_error)
        await going
        assert bench.node_state.work.last_error == ""
    assert seen[:2] == ["no answer", "forbidden"]
    assert "a bug" in seen[2]


async def test_a_second_read_that_fails_is_shown_too(bench: Bench) -> None:
    bench.answers["reread"] = ClusterError("no answer either")
    await bench.made._after_failure(bench.node_state, 0, Conflict("x"))
    assert bench.node_state.work.last_error == "no answer either"
    assert bench.node_state.work.is_queued


@pytest.mark.parametrize("plans", [True, False])
async def test_news_of_a_way_out_or_a_hint_end_a_wait(bench: Bench, *, plans: bool) -> None:
    def plan(*_: object) -> tuple[None, NextStep]:
        if bench.step is None:
            raise ZeroDivisionError
        return None, bench.step

    if not plans:
        vars(bench.made)["_plan"] = plan
    set_fields(bench.node_state, quarantine=quarantine())
    recovered = NextStep(ReleaseStep.RELEASE, RECOVERED)
    by_hand = NextStep(ReleaseStep.RELEASE, "deleted by a person", overruled=True)
    changes: list[tuple[NextStep | None, Callable[[], None], float]] = [
        (None, lambda: None, 100.0),
        (None, lambda: setattr(bench, "step", recovered), 10.0),
        (recovered, lambda: setattr(bench, "step", by_hand), 10.0),
        (None, lambda: set_fields(bench.node_state, needs_read=True), 10.0),
    ]
    for step, change, waited in changes:
        bench.step, bench.node_state.work.needs_read = step, False
        bench.node_state.work.take_queued()
        before = bench.loop.time()
        wait = asyncio.ensure_future(bench.made._back_off(bench.node_state, 100.0, 0.0))
        await asyncio.sleep(10)
        change()
        bench.node_state.work.queue()
        await wait
        assert bench.loop.time() - before == waited


# -- a drain that goes on -------------------------------------------------------------------------


async def test_a_drain_goes_on_only_while_it_is_the_nodes_next_step(bench: Bench) -> None:
    bench.step = NextStep(DrainStep.DRAIN)
    set_fields(bench.node_state, quarantine=quarantine())

    def going(node_state: Any) -> bool:
        is_next: bool = bench.made._is_next(node_state, DrainStep.DRAIN)
        return is_next

    assert going(bench.node_state)
    bench.may = False
    assert not going(bench.node_state)
    bench.may, bench.node_state.work.needs_read = True, True
    assert not going(bench.node_state)
    bench.node_state.work.needs_read, bench.node_state.cluster.ended_overrides = (
        False,
        frozenset({WORD}),
    )
    assert not going(bench.node_state)
    bench.node_state.cluster.ended_overrides, bench.step = (
        frozenset(),
        NextStep(ObjectStep.UPDATE),
    )
    waiter = bench.loop.create_future()
    bench.node_state.work.waiters = (waiter,)
    assert not going(bench.node_state)
    assert not waiter.done()
    bench.step = NextStep(DrainStep.DRAIN)
    assert going(bench.node_state)
    assert waiter.done(), "nothing of what was heard is left to do"


@pytest.mark.parametrize(
    ("found", "wanted", "settled"),
    [
        (None, None, True),
        (None, WANTED, True),
        (quarantine(), None, True),
        (quarantine(), WANTED, False),
        (quarantine(foreign="elsewhere"), WANTED, True),
    ],
)
async def test_what_was_heard_is_acknowledged_when_it_is_durable(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    found: Quarantine | None,
    wanted: DesiredState | None,
    *,
    settled: bool,
) -> None:
    monkeypatch.setattr(plan_inputs, "unsaved", lambda _, wanted: wanted is not None)
    bench.answers["wanted_now"] = wanted
    bench.node_state.quarantine_view.quarantine = found
    gone, waits = bench.loop.create_future(), bench.loop.create_future()
    gone.cancel()
    bench.node_state.work.waiters = (gone, waits)
    bench.made._settle_waiters(bench.node_state)
    assert waits.done() == settled
    assert bench.node_state.work.waiters == (() if settled else (gone, waits))


# -- what a step is decided on --------------------------------------------------------------------


async def test_a_node_is_absent_too_long_by_what_its_object_says(bench: Bench) -> None:
    await asyncio.sleep(2 * SETTINGS.limits.absent_node_after)
    now, most = bench.loop.time(), SETTINGS.limits.absent_node_after
    for since, too_long in ((0.0, False), (now - most, True), (now - most + 1, False)):
        absent = quarantine(status={"node_absent_since": since})
        assert bench.inputs.is_absent_too_long(absent) == too_long
