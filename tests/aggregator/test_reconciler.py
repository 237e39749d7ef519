"""The next step of a node's one task, and how it waits after a failure: no replica."""

import asyncio
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
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.intent import OURS, DesiredState
from aggregator.quarantine.decide.operator_requests import NONE
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.planner import NextStep, Situation, Step
from aggregator.quarantine.reconcile import worker
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.reconcile.worker import Reconciler
from aggregator.quarantine.state.decision import NodeHold
from aggregator.quarantine.state.fleet import FleetState, NodeSummary
from aggregator.quarantine.state.node import NodeState
from tests.support.memory_cluster import World
from tests.support.node_states import part_with, set_fields
from tests.support.replica import SETTINGS, Replica, Turned, all_in_mode
from tests.support.virtual_time import VirtualTimeLoop, play

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
        def act(*_: Any, **__: Any) -> Any:
            bench = self._bench
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


class Bench:
    """A reconciler whose steps only note that they were called."""

    def __init__(self, patch: pytest.MonkeyPatch, loop: VirtualTimeLoop) -> None:
        self.did: list[str] = []
        self.answers: dict[str, Any] = {}
        self.step = NextStep(Step.NOTHING)
        self.decided_on: list[Situation] = []
        self.may = True
        self.entries: dict[str, Entry] = {}
        self.fleet = FleetState()
        self.loop = loop
        acts = Recorder(self, "wanted_now", "unhold_resumed", "hold_standing")
        self.queue: Any = WorkQueue(
            record_writer=SimpleNamespace(record=SimpleNamespace(entries=self.entries)),  # type: ignore[arg-type]
            may_act=lambda: self.may,
        )
        self.queue.view = True
        self.made: Any = Reconciler(
            cluster=Recorder(self),
            acts=acts,  # type: ignore[arg-type]
            release_actions=Recorder(self),  # type: ignore[arg-type]
            adopter=Recorder(self),  # type: ignore[arg-type]
            drain=Recorder(self),  # type: ignore[arg-type]
            restorer=Recorder(self),  # type: ignore[arg-type]
            repairs=SimpleNamespace(  # type: ignore[arg-type]
                is_busy=lambda _: False,
                is_due=lambda _: False,
                replaces=lambda _: False,
                holds_release=lambda _: False,
                run=Recorder(self).run,
                withdraw=Recorder(self).withdraw,
            ),
            settings=SETTINGS,
            pools=all_in_mode(SETTINGS.mode),
            fleet=self.fleet,
            clocks=Clocks(loop.time, loop.time),
            rng=Most(),
            queue=self.queue,
            evaluator=Recorder(self, "evaluate_node"),  # type: ignore[arg-type]
            agent_events=Recorder(self, "reject"),  # type: ignore[arg-type]
            missing_nodes=Recorder(self, "follow"),  # type: ignore[arg-type]
        )
        self.node_state: Any = NodeState(NodeSummary("n1"), loop.time)

        def decide(situation: Situation) -> NextStep:
            self.decided_on.append(situation)
            return self.step

        patch.setattr(worker, "next_step", decide)

    async def next(self, **fields: Any) -> tuple[bool, list[str]]:
        """The answer of one step, and its acts."""
        for name, value in fields.items():
            set_fields(self.node_state, **{name: value})
        self.did.clear()
        done = await self.made._one_step(self.node_state)
        return done, [name for name in self.did if name not in ("wanted_now", "unhold_resumed")]


@pytest.fixture
def play_bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Bench], Any]], None]:
    def run(test: Callable[[Bench], Any]) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            await test(Bench(monkeypatch, loop))

        play(main)

    return run


Play = Callable[[Callable[[Bench], Any]], None]


# -- what there is to do --------------------------------------------------------------------------


def test_there_is_work_for_each_single_reason(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        assert not bench.queue.has_work(bench.node_state)
        for name, value in (
            ("wanted", WANTED),
            ("quarantine", quarantine()),
            ("hold", NodeHold("stop", "set", "x", 1.0)),
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
        bench.entries["n1"] = Entry("n1", "", "", "drain", 1.0)
        assert bench.queue.has_work(bench.node_state)
        assert bench.node_state.work.in_record

    play_bench(test)


def test_a_node_has_one_task_and_none_while_nothing_may_be_done(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        node_state, queue = bench.node_state, bench.queue
        queue.view = False
        queue.add(node_state)
        await asyncio.sleep(0)
        assert [node_state.work.task] == [None]
        assert node_state.work.again.is_set()
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
        bench.answers["look_at_node"] = lambda: set_fields(node_state, needs_read=False)
        await first
        assert bench.did.count("look_at_node") == 1
        assert not node_state.work.again.is_set()
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

    play_bench(test)


def test_nothing_more_is_begun_once_it_may_not_be(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        def act() -> None:
            bench.may, bench.node_state.work.needs_read = False, bench.did.count("look_at_node") < 2

        bench.answers["look_at_node"] = act
        bench.queue.add_for_read(bench.node_state)
        await asyncio.sleep(0)
        await bench.node_state.work.task
        assert bench.did.count("look_at_node") == 1
        assert bench.node_state.work.again.is_set(), "it waits for leave"

    play_bench(test)


# -- the order of steps ---------------------------------------------------------------------------


def test_another_installations_quarantine_is_left_alone_before_anything_else(
    play_bench: Play,
) -> None:
    async def test(bench: Bench) -> None:
        bench.node_state.work.needs_read, bench.node_state.cluster.ended_overrides = (
            True,
            frozenset({WORD}),
        )
        assert await bench.next(quarantine=quarantine(foreign="elsewhere")) == (
            True,
            ["leave_foreign"],
        )

    play_bench(test)


def test_a_hint_is_looked_into_first(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        set_fields(bench.node_state, needs_read=True, orphan="uid")
        assert await bench.next() == (False, ["look_at_node", "explain"])

    play_bench(test)


def test_pods_are_read_again_once_and_the_step_goes_on(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        bench.node_state.work.recheck_pods = True
        assert await bench.next() == (True, ["recheck"])
        assert await bench.next() == (True, [])

    play_bench(test)


def test_whether_the_definition_goes_is_asked_of_an_object_that_is_deleted(
    play_bench: Play,
) -> None:
    async def test(bench: Bench) -> None:
        bench.answers["definition_is_going"] = True
        await bench.next(quarantine=quarantine())
        assert not bench.node_state.quarantine_view.definition_going
        assert await bench.next(quarantine=quarantine(deleting=True)) == (
            True,
            ["definition_is_going", "explain"],
        )
        assert bench.node_state.quarantine_view.definition_going
        assert bench.decided_on[-1].definition_going

    play_bench(test)


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
def test_marks_without_an_object_come_before_words_that_are_over(
    play_bench: Play, node_state: dict[str, Any], expected: tuple[bool, list[str]], *, stands: bool
) -> None:
    async def test(bench: Bench) -> None:
        set_fields(bench.node_state, **node_state)
        assert await bench.next(quarantine=quarantine() if stands else None) == expected

    play_bench(test)


def test_words_that_are_over_wait_for_a_release_that_is_under_way(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        bench.node_state.cluster.ended_overrides = frozenset({WORD})
        assert await bench.next(quarantine=quarantine(Phase.RELEASING)) == (True, [])

    play_bench(test)


@pytest.mark.parametrize(
    ("step", "stands", "expected"),
    [
        (Step.NOTHING, True, (True, ["explain"])),
        (Step.HOLD, True, (True, ["hold_standing"])),
        (Step.UNREAD, True, (True, ["hold_standing"])),
        (Step.CREATE, False, (False, ["create"])),
        (Step.FORCE, False, (False, ["force"])),
        (Step.FORGET, False, (False, ["forget_node"])),
        (Step.UNDO, True, (False, ["withdraw", "undo", "evaluate_node"])),
        (Step.CORDON, True, (False, ["cordon"])),
        (Step.ENTER, True, (False, ["enter"])),
        (Step.VOID, True, (False, ["void"])),
        (Step.REFUSE, True, (False, ["refuse"])),
        (Step.UPDATE, True, (False, ["update"])),
        (Step.RECORDON, True, (False, ["recordon"])),
        (Step.ABSENCE, True, (False, ["show_absence"])),
        (Step.OVERRIDE, True, (False, ["show_override"])),
        (Step.TELL_CORDON, True, (False, ["show_cordon"])),
        (Step.RESTART, True, (False, ["restart"])),
        (Step.TELL_MARKS, True, (False, ["report"])),
        (Step.RESTORE, True, (False, ["restore"])),
        (Step.DRAIN, True, (False, ["run"])),
        (Step.RELEASE, True, (False, ["release"])),
        (Step.UNHOLD, True, (False, ["unhold"])),
        (Step.CONDITIONS, True, (False, ["write_conditions"])),
        (Step.LET_GO, True, (False, ["drop_finalizer"])),
        (Step.REFUSE, False, (False, [])),
    ],
)
def test_each_step_is_carried_out_by_its_own_act(
    play_bench: Play, step: Step, expected: tuple[bool, list[str]], *, stands: bool
) -> None:
    async def test(bench: Bench) -> None:
        bench.step, bench.answers["wanted_now"] = NextStep(step), WANTED
        assert await bench.next(quarantine=quarantine() if stands else None) == expected

    play_bench(test)


@pytest.mark.parametrize("step", [Step.PROPOSE, Step.CREATE, Step.UPDATE])
def test_what_is_not_wanted_any_more_is_not_begun(play_bench: Play, step: Step) -> None:
    async def test(bench: Bench) -> None:
        bench.step = NextStep(step)
        assert await bench.next(quarantine=None) == (False, [])
        assert await bench.next(quarantine=quarantine()) == (False, [])

    play_bench(test)


def test_a_proposal_that_is_held_is_all_for_now_and_one_that_is_admitted_goes_on(
    play_bench: Play,
) -> None:
    async def test(bench: Bench) -> None:
        bench.step, bench.answers["wanted_now"] = NextStep(Step.PROPOSE), WANTED
        bench.answers["propose"] = False
        assert await bench.next() == (True, ["propose"])
        bench.answers["propose"] = True
        assert await bench.next() == (False, ["propose", "evaluate_node"])

    play_bench(test)


def test_a_cordon_ends_where_its_node_proved_gone(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        bench.step = NextStep(Step.CORDON)
        bench.answers["cordon"] = lambda: set_fields(bench.node_state, node_gone=True)
        assert await bench.next(quarantine=quarantine()) == (True, ["cordon", "follow"])

    play_bench(test)


def test_a_drain_that_waits_is_explained(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.next(quarantine=quarantine(Phase.DRAINING)) == (True, ["explain"])
        assert await bench.next(quarantine=quarantine(Phase.DRAINED)) == (True, [])

    play_bench(test)


def test_what_a_step_has_learned_counts_also_where_it_failed(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        node_state = bench.node_state

        def learn(name: str, value: object) -> list[str]:
            def act() -> Exception:
                set_fields(node_state, **{name: value})
                return Unreachable("no answer")

            bench.answers["look_at_node"], node_state.work.needs_read = act, True
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
            assert bench.did == ["look_at_node", told]
            node_state.cluster.node_gone = node_state.agent.misnamed = False

    play_bench(test)


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
        return None

    bench.node_state.work.needs_read = True
    bench.answers["look_at_node"] = act
    bench.queue.add(bench.node_state)
    await asyncio.sleep(0)
    await bench.node_state.work.task
    return [round(b - a, 3) for a, b in itertools.pairwise(times)]


def test_waits_grow_after_each_failure_up_to_the_most(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        waits = await fail(bench, *(Unreachable("no answer") for _ in range(8)))
        assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0]
        assert bench.node_state.work.last_error == ""
        waits = await fail(bench, Unreachable("x"))
        assert waits == [0.2], "each success begins anew"

    play_bench(test)


def test_a_pause_that_the_cluster_asks_for_is_kept(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        assert await fail(bench, Unreachable("x", retry_after=40.0)) == [40.0]
        bench.step = NextStep(Step.UNDO)
        bench.answers["wanted_now"] = None
        way_out = bench.made._back_off(bench.node_state, 0.5, 40.0)
        before = bench.loop.time()
        await way_out
        assert bench.loop.time() - before == 5.0, "what ends a quarantine waits less"
        before = bench.loop.time()
        await bench.made._back_off(bench.node_state, 0.5, 0.1)
        assert bench.loop.time() - before == 0.5

    play_bench(test)


def test_a_conflict_is_read_again_at_once_and_told_only_when_it_goes_on(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        errors: list[str] = []

        def reread() -> None:
            errors.append(bench.node_state.work.last_error)

        bench.answers["reread"] = reread
        waits = await fail(bench, *(Conflict("x") for _ in range(5)))
        assert waits == [0.0, 0.4, 0.8, 1.6, 3.2]
        assert errors == ["", "", "", "changed in between", "changed in between"]

    play_bench(test)


def test_what_was_not_found_is_read_and_what_a_guard_refused_is_not(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        assert await fail(bench, NotFound("gone")) == [0.0]
        assert bench.did.count("reread") == 1
        bench.did.clear()
        assert await fail(bench, GuardRefused("stopped")) == [0.2]
        assert bench.did.count("reread") == 0

    play_bench(test)


@pytest.mark.parametrize("error", [Refused("forbidden"), ValueError("a bug")])
def test_what_will_not_pass_by_itself_is_tried_seldom(play_bench: Play, error: Exception) -> None:
    async def test(bench: Bench) -> None:
        assert await fail(bench, error) == [6.4]
        assert await fail(bench, error, error) == [6.4, 15.0]

    play_bench(test)


def test_an_error_is_shown_while_it_lasts(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        seen: list[str] = []
        for error in (Unreachable("no answer"), Refused("forbidden"), ValueError("a bug")):
            going = asyncio.ensure_future(fail(bench, error))
            await asyncio.sleep(0.1)
            seen.append(bench.node_state.work.last_error)
            await going
            assert bench.node_state.work.last_error == ""
        assert seen[:2] == ["no answer", "forbidden"]
        assert "a bug" in seen[2]

    play_bench(test)


def test_a_second_read_that_fails_is_shown_too(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        bench.answers["reread"] = ClusterError("no answer either")
        await bench.made._after_failure(bench.node_state, 0, "x", reread=True)
        assert bench.node_state.work.last_error == "no answer either"
        assert bench.node_state.work.again.is_set()

    play_bench(test)


def test_news_of_a_way_out_or_a_hint_end_a_wait(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        changes: list[tuple[Callable[[], None], float]] = [
            (lambda: None, 100.0),
            (lambda: setattr(bench, "step", NextStep(Step.RELEASE)), 10.0),
            (lambda: set_fields(bench.node_state, needs_read=True), 10.0),
        ]
        for change, waited in changes:
            bench.step, bench.node_state.work.needs_read = NextStep(Step.NOTHING), False
            bench.node_state.work.again.clear()
            before = bench.loop.time()
            wait = asyncio.ensure_future(bench.made._back_off(bench.node_state, 100.0, 0.0))
            await asyncio.sleep(10)
            change()
            bench.node_state.work.again.set()
            await wait
            assert bench.loop.time() - before == waited

    play_bench(test)


# -- a drain that goes on -------------------------------------------------------------------------


def test_a_drain_goes_on_only_while_it_is_the_nodes_next_step(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        bench.step = NextStep(Step.DRAIN)
        going = bench.made._still_draining
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
        bench.node_state.cluster.ended_overrides, bench.step = frozenset(), NextStep(Step.UPDATE)
        waiter = bench.loop.create_future()
        bench.node_state.work.waiters = (waiter,)
        assert not going(bench.node_state)
        assert not waiter.done()
        bench.step = NextStep(Step.DRAIN)
        assert going(bench.node_state)
        assert waiter.done(), "nothing of what was heard is left to do"

    play_bench(test)


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
def test_what_was_heard_is_acknowledged_when_it_is_durable(
    play_bench: Play,
    monkeypatch: pytest.MonkeyPatch,
    found: Quarantine | None,
    wanted: DesiredState | None,
    *,
    settled: bool,
) -> None:
    async def test(bench: Bench) -> None:
        monkeypatch.setattr(worker, "unsaved", lambda _, wanted: wanted is not None)
        bench.answers["wanted_now"] = wanted
        bench.node_state.own_quarantine_view().quarantine = found
        gone, waits = bench.loop.create_future(), bench.loop.create_future()
        gone.cancel()
        bench.node_state.work.waiters = (gone, waits)
        bench.made._settle_waiters(bench.node_state)
        assert waits.done() == settled
        assert bench.node_state.work.waiters == (() if settled else (gone, waits))

    play_bench(test)


# -- what a step is decided on --------------------------------------------------------------------


def test_a_process_waits_for_an_agent_since_its_start(
    play_bench: Play,
) -> None:
    async def test(bench: Bench) -> None:
        after = SETTINGS.limits.silent_drain_after
        assert not bench.made._situation(bench.node_state).knows
        await asyncio.sleep(after - 1)
        assert not bench.made._situation(bench.node_state).knows
        await asyncio.sleep(1)
        assert bench.made._situation(bench.node_state).knows

    play_bench(test)


def test_a_node_is_absent_too_long_by_what_its_object_says(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        await asyncio.sleep(2 * SETTINGS.limits.absent_node_after)
        now, most = bench.loop.time(), SETTINGS.limits.absent_node_after
        assert not bench.made._situation(bench.node_state).absent_too_long
        for since, too_long in ((0.0, False), (now - most, True), (now - most + 1, False)):
            bench.node_state.own_quarantine_view().quarantine = quarantine(
                status={"node_absent_since": since}
            )
            assert bench.made._situation(bench.node_state).absent_too_long == too_long

    play_bench(test)


def test_a_stop_and_an_entry_are_part_of_what_is_decided_on(play_bench: Play) -> None:
    async def test(bench: Bench) -> None:
        found = bench.made._situation(bench.node_state)
        assert (found.stopped, found.in_record) == (False, False)
        bench.fleet.stop = "a drill"
        bench.entries["n1"] = Entry("n1", "", "", "drain", 1.0)
        found = bench.made._situation(bench.node_state)
        assert (found.stopped, found.in_record) == (True, True)

    play_bench(test)


class QueueBench:
    """A queue; ``did`` is what its worker was given."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.did: list[str] = []
        self.may = True
        self.queue = WorkQueue(
            record_writer=SimpleNamespace(record=SimpleNamespace(entries={})),  # type: ignore[arg-type]
            may_act=lambda: self.may,
        )
        self.queue.view = True
        self.node_state = NodeState(NodeSummary("n1"), loop.time)

    def deliver(self) -> None:
        self.queue.deliver_to(SimpleNamespace(start=self._start, evaluate=self._evaluate))

    def _start(self, node_state: NodeState) -> None:
        self.did.append(f"start {node_state.node}")

    def _evaluate(self, node_state: NodeState) -> None:
        self.did.append(f"evaluate {node_state.work.begin_evaluation()}")


def test_a_node_that_was_added_before_there_is_a_worker_waits_for_resume() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        bench = QueueBench(loop)
        bench.queue.add_for_read(bench.node_state)
        bench.deliver()
        await asyncio.sleep(1)
        assert bench.did == []
        bench.queue.resume(bench.node_state)
        await asyncio.sleep(1)
        assert bench.did == ["start n1"]

    play(test)


def test_ten_changes_in_a_turn_are_one_evaluation_that_counts_from_the_first() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        bench = QueueBench(loop)
        bench.deliver()
        for number in range(10):
            bench.queue.evaluate(bench.node_state, 100.0 + number)
        assert bench.did == [], "a handler never evaluates"
        await asyncio.sleep(0)
        assert bench.did == ["evaluate 100.0"]
        bench.queue.evaluate_due(bench.node_state)
        assert len(bench.did) == 1, "nothing has changed since"
        bench.node_state.work.request_read()
        bench.queue.evaluate(bench.node_state)
        await asyncio.sleep(0)
        assert bench.did[1:] == ["evaluate None", "start n1"]

    play(test)


@pytest.mark.parametrize("left", ["nothing", "may not act", "a step", "queued", "at work"])
def test_a_sign_is_acknowledged_once_evaluated_only_where_nothing_is_left_to_do(left: str) -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        bench, sign = QueueBench(loop), loop.create_future()
        bench.deliver()
        work, bench.may = bench.node_state.work, left != "may not act"
        work.add_waiter(sign)
        if left == "a step":
            work.request_read()
        elif left == "queued":
            work.again.set()
        elif left == "at work":
            work.start(asyncio.create_task(asyncio.sleep(5)))
        bench.queue.evaluate(bench.node_state)
        await asyncio.sleep(1)
        assert sign.done() == (left == "nothing")
        assert work.is_queued == (left not in ("nothing", "at work"))
        bench.may = True
        bench.queue.resume(bench.node_state)
        await asyncio.sleep(1)
        assert ("start n1" in bench.did) == (left not in ("nothing", "at work"))

    play(test)


def test_a_node_that_is_forgotten_is_not_evaluated_and_all_others_of_a_turn_are() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        bench = QueueBench(loop)
        bench.deliver()
        bench.queue.evaluate(bench.node_state)
        bench.queue.forget_node(bench.node_state)
        await asyncio.sleep(1)
        assert bench.did == []
        for number in range(100):
            bench.queue.evaluate(NodeState(NodeSummary(f"n{number}"), loop.time))
        await asyncio.sleep(0)
        assert len(bench.did) == 100, "a common cause counts the nodes that were evaluated"

    play(test)


async def test_the_parts_of_a_controller_that_serve_each_other_are_connected() -> None:
    replica = Replica(World(), clock=Turned())
    controller = replica.controller
    assert controller._switch._listeners == [controller._cluster_events.stop_changed]
    assert controller._queue._worker is controller._reconciler
    await replica.stop()
