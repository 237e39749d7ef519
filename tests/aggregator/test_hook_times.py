"""When a site's hooks are asked, for how long, and what is written of it: in virtual time."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, cast

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Guard,
    HookState,
    HookStatus,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules, HookRunner
from aggregator.quarantine.state.node import NodeState
from tests.support.node_states import state_of
from tests.support.virtual_time import VirtualTimeLoop, play

LATER, FAILED, DONE = (
    HookAnswer(said, "x") for said in (HookResult.LATER, HookResult.FAILED, HookResult.DONE)
)


class HighestDraw(random.Random):
    """Draws the highest of each range: the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        assert a == pytest.approx(0.7 * b)
        return b


class ScriptedHook:
    """Answers by its list, then always with the last."""

    def __init__(self, loop: VirtualTimeLoop, *answers: HookAnswer) -> None:
        self._loop, self._answers, self._began = loop, list(answers), loop.time()
        self.asked: list[tuple[float, float]] = []
        self.values: Mapping[str, str] = {}

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        self.asked.append((self._loop.time() - self._began, limit))
        self.values = values
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Recorder:
    """Stands for `NodeActions`: keeps what is noted and written."""

    words: ClassVar[ClusterWords] = KUBERNETES

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.clocks = Clocks(loop.time, loop.time)
        self.notes: list[tuple[str, str]] = []
        self.written: list[QuarantineStatus] = []

    def emit_event(
        self, _: NodeState, kind: EventKind, text: str, details: Mapping[str, str]
    ) -> None:
        assert details["hook"] in ("pre_evict", "post_release")
        self.notes.append((kind.value, text))

    def guard(self, _: NodeState, **checks: object) -> Guard:
        assert set(checks) == {"against", "fresh"}
        return UNGUARDED

    def fresh_quarantine(self, quarantine: Quarantine) -> str:
        return quarantine.uid

    async def write_status(
        self, node_state: NodeState, known: Quarantine, status: QuarantineStatus
    ) -> None:
        self.written.append(status)
        node_state.own_quarantine_view().quarantine = replace(known, status=status)


SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79", "us", "inc-1")


class Bench:
    """A `HookRunner` and one node in quarantine."""

    def __init__(self, loop: VirtualTimeLoop, rules: HookRules, **status: object) -> None:
        self.acts, self.loop = Recorder(loop), loop
        known = QuarantineStatus(**status)  # type: ignore[arg-type]  # a test's words
        self.quarantine = Quarantine("n1", "uid-q", "1", SPEC, known)
        self.node_state = state_of("n1", loop.time, quarantine=self.quarantine)
        self.hook_runner = HookRunner(
            acts=cast(NodeActions, self.acts), rules=rules, rng=HighestDraw()
        )

    async def before_evictions(self) -> bool:
        return await self.hook_runner.before_evictions(self.node_state, lambda: True)

    @property
    def hook(self) -> HookStatus:
        assert self.node_state.quarantine is not None
        found = self.node_state.quarantine.status.pre_evict
        assert found is not None
        return found


def test_a_hook_is_asked_with_growing_pauses_until_it_is_done_and_never_again() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        hook = ScriptedHook(loop, *([LATER] * 8), DONE)
        bench = Bench(loop, HookRules(hook))
        assert await bench.before_evictions()
        times = [at for at, _ in hook.asked]
        assert times == pytest.approx([0, 1, 3, 7, 15, 31, 61, 91, 121])
        assert {limit for _, limit in hook.asked} == {600.0}
        assert hook.values == {
            "hook": "pre_evict",
            "node": "n1",
            "reason": "xid:79",
            "action": "drain",
            "kind": "gpu",
            "incident": "inc-1",
            "quarantine": "uid-q",
        }
        assert bench.hook.state is HookState.DONE
        assert bench.hook.started_at == 1000.0
        assert bench.hook.ended_at == pytest.approx(1121.0)
        assert bench.acts.notes == [("quarantine.hook", "drain.pre_evict is done")]
        assert await bench.before_evictions()
        assert len(hook.asked) == 9

    play(test)


def test_what_a_hook_says_is_written_every_ten_seconds_at_most() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        answers = [HookAnswer(HookResult.LATER, f"word {number}") for number in range(6)]
        hook = ScriptedHook(loop, *answers, DONE)
        bench = Bench(loop, HookRules(hook))
        assert await bench.before_evictions()
        words = [one.pre_evict.message for one in bench.acts.written if one.pre_evict is not None]
        assert words == ["", "not yet: word 4", "not yet: word 5", "x"]
        assert [one.message for one in bench.acts.written[:2]] == [
            "drain.pre_evict is called; the drain waits for it",
            "drain.pre_evict is waited for: not yet: word 4",
        ]

    play(test)


def test_a_hook_that_is_late_evicts_nothing_and_is_told_once() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        hook = ScriptedHook(loop, *([FAILED] * 8), DONE)
        bench = Bench(loop, HookRules(hook, pre_evict_timeout=31.0))
        assert await bench.before_evictions()
        told = "drain.pre_evict was not done in 31 s; the drain waits: failed: x"
        assert bench.acts.notes == [
            ("quarantine.hook_failed", told),
            ("quarantine.hook", "drain.pre_evict is done"),
        ]
        late = [one.pre_evict for one in bench.acts.written if one.message == told]
        assert next(one.ended_at for one in late if one is not None) == pytest.approx(1031.0)

    play(test)


def test_a_drain_that_may_go_on_does_when_the_hooks_time_is_over() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        hook = ScriptedHook(loop, FAILED)
        bench = Bench(loop, HookRules(hook, pre_evict_timeout=20.0, go_on=True))
        assert await bench.before_evictions()
        assert [at for at, _ in hook.asked] == pytest.approx([0, 1, 3, 7, 15, 20])
        assert [limit for _, limit in hook.asked] == pytest.approx([20, 19, 17, 13, 5, 1])
        assert bench.hook.state is HookState.GIVEN_UP
        assert bench.acts.notes == [
            (
                "quarantine.hook_failed",
                "drain.pre_evict was not done in 20 s, the drain goes on: failed: x",
            )
        ]

    play(test)


def test_a_pause_that_the_hook_asks_for_is_kept_where_it_is_longer() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        answers = [HookAnswer(HookResult.LATER, "", 5.0), HookAnswer(HookResult.LATER, "", 0.5)]
        hook = ScriptedHook(loop, *answers, DONE)
        assert await Bench(loop, HookRules(hook)).before_evictions()
        assert [at for at, _ in hook.asked] == pytest.approx([0.0, 5.0, 7.0])

    play(test)


def test_without_a_hook_nothing_waits() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        bench = Bench(loop, HookRules())
        assert await bench.before_evictions()
        bench.node_state.own_quarantine_view().quarantine = None
        assert not await bench.before_evictions()
        assert bench.acts.written == []

    play(test)


@pytest.mark.parametrize(
    ("pre_evict", "drain_started_at", "asked_before", "asks"),
    [
        (False, 0.0, False, False),
        (False, 5.0, False, True),
        (True, 5.0, False, False),
        (True, 5.0, True, True),
    ],
)
def test_after_a_release_the_site_is_told_where_the_drain_had_begun(
    drain_started_at: float, *, pre_evict: bool, asked_before: bool, asks: bool
) -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        hook = ScriptedHook(loop, LATER, LATER, DONE)
        rules = HookRules(hook if pre_evict else None, post_release=hook)
        known = HookStatus(HookState.DONE, 1.0) if asked_before else None
        bench = Bench(loop, rules, drain_started_at=drain_started_at, pre_evict=known)
        await bench.hook_runner.after_release(bench.node_state, bench.quarantine)
        if not asks:
            assert hook.asked == []
            return
        assert [at for at, _ in hook.asked] == pytest.approx([0.0, 1.0, 3.0])
        assert [limit for _, limit in hook.asked] == pytest.approx([60.0, 59.0, 57.0])
        assert hook.values["hook"] == "post_release"
        assert bench.acts.notes == [("quarantine.hook", "drain.post_release is done")]

    play(test)


def test_a_hook_after_a_release_is_given_up_in_its_time() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        hook = ScriptedHook(loop, FAILED)
        rules = HookRules(post_release=hook, post_release_timeout=15.0)
        bench = Bench(loop, rules, drain_started_at=5.0)
        await bench.hook_runner.after_release(bench.node_state, bench.quarantine)
        assert [at for at, _ in hook.asked] == pytest.approx([0.0, 1.0, 3.0, 7.0])
        assert bench.acts.notes == [
            ("quarantine.hook_failed", "drain.post_release was not done in 15 s: x")
        ]
        short = ScriptedHook(loop, FAILED)
        rules = HookRules(post_release=short, post_release_timeout=0.5)
        other = Bench(loop, rules, drain_started_at=5.0)
        await other.hook_runner.after_release(other.node_state, other.quarantine)
        assert [limit for _, limit in short.asked] == [1.0], "a second is the least"

    play(test)
