"""A drain's begin, rounds and rests, and a site's hooks around it, called one by one."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Blocker,
    Conflict,
    Guard,
    GuardRefused,
    HookState,
    HookStatus,
    Phase,
    Unreachable,
)
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainPlan, DrainRules
from aggregator.quarantine.decide.node_marks import OFF_BALANCERS, cordon_change
from aggregator.quarantine.drain import drainer
from aggregator.quarantine.drain.drainer import NODE_EVERY, STATUS_EVERY, Drainer
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules, HookRunner
from aggregator.quarantine.drain.pod_waits import InTurn
from aggregator.quarantine.state.drain_memory import DrainMemory
from tests.aggregator.test_node_actions import Bench, made
from tests.support.draws import HighestDraw
from tests.support.present import present
from tests.support.virtual_time import VirtualTimeLoop, play, played_by
from tests.support.waiting import until

#: Between two empty reads, as in production (conftest.py).
EMPTY_FOR = 5.0
DONE = HookAnswer(HookResult.DONE, "ok")
LATER = HookAnswer(HookResult.LATER, "3 jobs run")
FAILED = HookAnswer(HookResult.FAILED, "")
INFINITE = float("inf")


class Drain(Bench):
    """A drainer whose evictions the test plays."""

    def __init__(self, loop: VirtualTimeLoop, *, off_balancers: bool = False) -> None:
        super().__init__(loop)
        self.loop = loop
        self.standing = True
        self.due = INFINITE
        self.moved: list[bool] = []
        self.requested_at: list[float] = []
        self.made: Any = Drainer(
            acts=self.acts,
            rules=DrainRules(deadline=600.0, off_load_balancers=off_balancers),
            hook_runner=SimpleNamespace(),  # type: ignore[arg-type]
            lanes=SimpleNamespace(drains=0),  # type: ignore[arg-type]
            waits=InTurn(),
            rng=HighestDraw(),
        )
        self.memory = DrainMemory("q")
        self.evictions: Any = SimpleNamespace(
            memory=self.memory,
            still=self.still,
            next_due=lambda _: self.due,
            blockers=lambda _: (),
            evict=self._evict,
        )

    def still(self) -> bool:
        return self.standing

    async def _evict(self, _: Any) -> bool:
        self.requested_at.append(self.loop.time())
        return self.moved.pop(0) if self.moved else False

    async def marked(self, phase: Phase = Phase.CORDONED, **changes: Any) -> Any:
        node = self.world.nodes["n1"]
        known = self.stands(made(phase, node_uid=node.uid, cordoned_at=4000.0, **changes))
        await self.cluster.patch_node(node, cordon_change(node, known), guard=UNGUARDED)
        return known


def on_drain(test: Callable[[Drain], Any], **changes: Any) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await test(Drain(loop, **changes))

    play(main)


pytestmark = pytest.mark.decorated(by=played_by(on_drain))


# -- the begin ------------------------------------------------------------------------------------


async def test_a_drain_begins_with_its_phase_its_time_and_its_deadline(bench: Drain) -> None:
    await bench.marked()
    assert await bench.made._begin(bench.node_state, bench.still) is not None
    status = bench.now().status
    assert (status.phase, status.message) == (Phase.DRAINING, "evicting pods")
    assert status.drain_started_at == pytest.approx(6000.0, abs=10)
    assert status.deadline_at == status.drain_started_at + 600
    assert status.applied is not None
    assert bench.kinds() == ["quarantine.draining"]
    assert bench.node_state.cluster.node_found
    assert OFF_BALANCERS not in bench.world.nodes["n1"].labels
    version = bench.now().version
    assert await bench.made._begin(bench.node_state, bench.still) is not None
    assert bench.now().version == version, "it has begun"
    assert len(bench.kinds()) == 1


async def test_a_drain_that_is_taken_up_again_keeps_its_times(bench: Drain) -> None:
    await bench.marked(drain_started_at=4500.0, deadline_at=4900.0)
    assert await bench.made._begin(bench.node_state, bench.still) is not None
    status = bench.now().status
    assert (status.drain_started_at, status.deadline_at) == (4500.0, 4900.0)


def lose_one_answer(bench: Drain) -> None:
    """The next write of a status happens, and its answer is lost."""
    cluster: Any = bench.cluster
    write = cluster.write_quarantine_status

    async def lost(*arguments: Any) -> Any:
        cluster.write_quarantine_status = write
        await write(*arguments)
        raise Unreachable("no answer in 10 s")

    cluster.write_quarantine_status = lost


async def test_a_begin_whose_answer_was_lost_is_reported_once(bench: Drain) -> None:
    await bench.marked()
    lose_one_answer(bench)
    with pytest.raises(Unreachable):
        await bench.made._begin(bench.node_state, bench.still)
    assert bench.kinds() == []
    bench.made.report_phase(bench.node_state)
    assert bench.kinds() == [], "the Quarantine does not show it yet"
    with pytest.raises(Conflict):
        await bench.made._begin(bench.node_state, bench.still)
    await bench.made._acts.reread(bench.node_state)
    for _ in range(2):
        assert await bench.made._begin(bench.node_state, bench.still) is not None
        assert bench.kinds() == ["quarantine.draining"]


async def test_an_end_whose_answer_was_lost_is_reported_once_and_the_drain_does_not_begin_again(
    bench: Drain,
) -> None:
    await bench.marked(Phase.DRAINING)
    lose_one_answer(bench)
    read = drainer._Read(DrainPlan(), DrainMoment(6000.0, 5000.0, 7000.0), 6000.0, 0.0)
    with pytest.raises(Unreachable):
        await bench.made._finish(bench.node_state, read, bench.evictions)
    for _ in range(2):
        assert await bench.made._begin(bench.node_state, bench.still) is None
        assert bench.now().status.phase is Phase.DRAINED
        assert bench.kinds() == ["quarantine.drained"]
    assert not bench.made._memories


async def test_a_phase_that_never_came_to_be_is_not_reported_of_the_next_quarantine(
    bench: Drain,
) -> None:
    await bench.marked()
    lose_one_answer(bench)
    with pytest.raises(Unreachable):
        await bench.made._begin(bench.node_state, bench.still)
    bench.stands(made(Phase.DRAINING, uid="r"))
    bench.made.report_phase(bench.node_state)
    assert bench.kinds() == []


@pytest.mark.parametrize("happens", ["no node", "no object", "over", "not marked"])
@played_by(on_drain, off_balancers=True)
async def test_nothing_is_drained_that_is_gone_over_or_not_marked(
    bench: Drain, happens: str
) -> None:
    await bench.marked(Phase.ADMITTED if happens == "not marked" else Phase.CORDONED)
    if happens == "no node":
        del bench.world.nodes["n1"]
    if happens == "no object":
        del bench.world.quarantines["n1"]
    bench.standing = happens != "over"
    before = len(bench.world.writes)
    assert await bench.made._begin(bench.node_state, bench.still) is None
    assert bench.world.writes[before:] == []
    assert bench.kinds() == []
    assert bench.node_state.cluster.node_gone == (happens == "no node")


@played_by(on_drain, off_balancers=True)
async def test_a_node_is_taken_off_the_load_balancers_once_and_not_where_we_may_not_act(
    bench: Drain,
) -> None:
    async def ends(name: str) -> None:
        bench.standing = name != "patch_node"

    await bench.marked()
    bench.may = False
    with pytest.raises(GuardRefused):
        await bench.made._begin(bench.node_state, bench.still)
    bench.may, bench.cluster.in_queue = True, ends
    with pytest.raises(GuardRefused, match="no longer in force"):
        await bench.made._begin(bench.node_state, bench.still)
    assert OFF_BALANCERS not in bench.world.nodes["n1"].labels
    bench.standing, bench.cluster.in_queue = True, None
    await bench.made._begin(bench.node_state, bench.still)
    assert OFF_BALANCERS in bench.world.nodes["n1"].labels
    applied = present(bench.now().status.applied)
    assert applied.off_balancers
    patched = bench.cluster.asked["patch_node"]
    await bench.made._begin(bench.node_state, bench.still)
    assert bench.cluster.asked["patch_node"] == patched


# -- the rounds -----------------------------------------------------------------------------------


async def rounds(bench: Drain, node_at: float | None = None) -> Any:
    begun = bench.loop.time() if node_at is None else node_at
    return await bench.made._until_empty(bench.node_state, bench.evictions, begun)


async def test_a_node_is_empty_when_two_reads_apart_say_so(bench: Drain) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    began = bench.loop.time()
    read = await rounds(bench)
    assert read.plan.remaining == 0
    assert bench.loop.time() - began == 5.0
    assert bench.cluster.asked["pods_on"] == 2
    assert bench.cluster.in_background["pods_on"] == 1, "the first read is of a new drain"
    assert bench.memory.first_seen == frozenset()


@pytest.mark.parametrize(
    ("but", "reads"),
    [
        ("nothing", 1),
        ("marked later", 2),
        ("marked by another replica", 2),
        ("marked for another quarantine", 2),
        ("seen without a mark", 2),
        ("drained before", 2),
        ("read before", 2),
        ("a hook", 2),
        ("a stuck pod", 2),
    ],
)
async def test_one_late_read_says_so_too_unless_a_pod_may_be_on_its_way(
    bench: Drain, but: str, reads: int
) -> None:
    asked = HookStatus(HookState.DONE, 5900.0) if but == "a hook" else None
    await bench.marked(Phase.DRAINING, pre_evict=asked)
    view = bench.node_state.quarantine_view
    view.quarantine = bench.now()
    if but != "marked by another replica":
        uid = "other" if but == "marked for another quarantine" else "q"
        view.begun = uid, bench.loop.time() - (4.9 if but == "marked later" else 5.0)
    if but == "seen without a mark":
        bare = replace(bench.world.nodes["n1"], labels={})
        view.take_node(bare)
        view.take_node(bench.world.nodes["n1"])
    bench.memory.is_new = but != "drained before"
    bench.memory.first_seen = frozenset() if but == "read before" else None
    if but == "a stuck pod":
        bench.world.add_pod("n1", "a", deleting=True, deletion_at=1.0)
    read = await rounds(bench)
    assert read.plan.remaining == 0
    assert bench.cluster.asked["pods_on"] == reads


async def test_only_a_drain_that_never_began_before_is_new(bench: Drain) -> None:
    await bench.marked()
    await bench.made._begin(bench.node_state, bench.still)
    assert bench.made._memory(bench.node_state).is_new
    status = replace(bench.now().status, phase=Phase.CORDONED)  # a person ended the drain
    await bench.acts.write_status(bench.node_state, bench.now(), status)
    await bench.made._begin(bench.node_state, bench.still)
    assert not bench.made._memory(bench.node_state).is_new
    assert bench.now().status.phase is Phase.DRAINING


async def test_a_pod_that_comes_between_the_two_reads_is_asked_to_go_first(bench: Drain) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    began = bench.loop.time()
    bench.loop.call_later(2, lambda: bench.world.add_pod("n1", "a"))
    bench.loop.call_later(6, bench.world.pods.clear)
    read = await rounds(bench)
    assert read.plan.remaining == 0
    assert bench.loop.time() - began == 6 + 5


async def test_rounds_end_with_their_drain(bench: Drain) -> None:
    await bench.marked(Phase.DRAINING)
    bench.standing = False
    assert await rounds(bench) is None
    assert bench.cluster.asked["pods_on"] == 0
    bench.standing, bench.node_state.quarantine_view.quarantine = True, None
    assert await rounds(bench) is None
    assert bench.cluster.asked["pods_on"] == 1
    bench.node_state.quarantine_view.quarantine = bench.now()
    bench.world.add_pod("n1", "a")
    bench.loop.call_later(3, lambda: setattr(bench, "standing", False))
    assert await rounds(bench) is None
    assert bench.requested_at != []


async def test_pods_are_read_ever_less_often_while_nothing_moves_and_soon_after_one_has_gone(
    bench: Drain,
) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    bench.world.add_pod("n1", "a")
    bench.made._lanes.drains = 1
    bench.moved = [True, False, False, False, True]
    bench.loop.call_later(20, lambda: setattr(bench, "standing", False))
    await rounds(bench)
    waits = [round(later - sooner, 4) for sooner, later in itertools.pairwise(bench.requested_at)]
    assert waits[:7] == [0.1, 0.15, 0.225, 0.3375, 0.1, 0.15, 0.225]


async def test_a_pod_that_is_deleted_by_now_is_looked_at_sooner_than_one_that_only_came(
    bench: Drain,
) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    pod = bench.world.add_pod("n1", "a")
    bench.made._lanes.drains = 1
    bench.loop.call_later(1.5, lambda: setattr(bench, "standing", False))
    await rounds(bench)
    assert round(bench.requested_at[1] - bench.requested_at[0], 3) == 1.0
    bench.standing, bench.requested_at = True, []
    bench.world.pods["n1/a"] = replace(pod, deleting=True)
    bench.loop.call_later(0.5, lambda: setattr(bench, "standing", False))
    assert await rounds(bench) is None
    assert round(bench.requested_at[1] - bench.requested_at[0], 3) == 0.1


@pytest.mark.parametrize(
    ("age", "due", "reads"),
    [
        (NODE_EVERY, 0.0, 1),
        (NODE_EVERY - 0.1, 0.0, 0),
        (NODE_EVERY + 5, INFINITE, 0),
    ],
)
async def test_no_eviction_follows_an_old_read_of_the_node(
    bench: Drain, age: float, due: float, reads: int
) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    bench.world.add_pod("n1", "a")
    bench.due = due
    bench.loop.call_later(0.05, lambda: setattr(bench, "standing", False))
    assert NODE_EVERY == 10.0
    await rounds(bench, bench.loop.time() - age)
    assert bench.cluster.asked["read_node"] == reads
    assert bench.cluster.in_background["read_node"] == reads
    assert len(bench.requested_at) == 1


# -- the rests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "due", "empty", "rests"),
    [
        (3.0, INFINITE, False, 3.0),
        (3.0, 2.0, False, 2.0),
        (3.0, 4.0, False, 3.0),
        (3.0, 0.0, False, 3.0),
        (3.0, -1.0, False, 3.0),
        (3.0, 2.0, True, 5.0),
    ],
)
async def test_a_rest_lasts_until_the_next_request_or_the_next_read(
    bench: Drain, look: float, due: float, rests: float, *, empty: bool
) -> None:
    began = bench.loop.time()
    bench.due, bench.memory.found_empty = began + due, empty
    await bench.made._rest(
        bench.node_state, SimpleNamespace(plan=DrainPlan()), bench.evictions, look
    )
    assert bench.loop.time() - began == pytest.approx(rests)


@pytest.mark.parametrize(("written", "shown"), [(5.0, True), (9.0, True), (STATUS_EVERY, False)])
async def test_progress_that_was_held_back_is_written_during_the_rest(
    bench: Drain, written: float, *, shown: bool
) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    bench.world.add_pod("n1", "a")
    began = bench.loop.time()
    pods = await bench.cluster.pods_on("n1")
    read = bench.made._read(bench.node_state, pods, bench.memory, 0.0)
    bench.memory.written_at = began - written
    version = bench.now().version
    await bench.made._rest(bench.node_state, read, bench.evictions, 8.0)
    assert bench.loop.time() - began == pytest.approx(8.0)
    assert (bench.now().version != version) == shown
    if shown:
        assert bench.now().status.pods_remaining == 1
        assert bench.memory.written_at == pytest.approx(began + STATUS_EVERY - written)


async def test_a_drain_forgets_only_what_belongs_to_another_quarantine(bench: Drain) -> None:
    bench.stands(made(Phase.DRAINING))
    first = bench.made._memory(bench.node_state)
    first.found_empty = True
    assert bench.made._memory(bench.node_state) is first
    assert not first.found_empty, "a read of before the error proves nothing"
    bench.stands(made(Phase.DRAINING, uid="r"))
    assert bench.made._memory(bench.node_state).uid == "r"


async def test_a_longer_wait_has_a_most_that_grows_with_the_drains(bench: Drain) -> None:
    bench.made._lanes.drains = 1
    assert bench.made._longer(1.0) == 1.5
    assert bench.made._longer(100.0) == 30.0
    bench.made._lanes.drains = 300
    assert bench.made._longer(100.0) == 100.0
    moment = bench.made._moment(made(Phase.DRAINING, drain_started_at=100.0).status)
    assert moment == DrainMoment(pytest.approx(6000.0, abs=10), 100.0, 700.0)  # type: ignore[arg-type]


async def test_a_late_drain_is_reported_once_with_three_of_its_blockers(bench: Drain) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    four = tuple(Blocker(f"jobs/{one}", "its budget allows none", 1.0) for one in "abcd")
    bench.evictions.blockers = lambda _: four
    plan = DrainPlan(kept=dict.fromkeys(("jobs/a", "jobs/b", "jobs/c", "jobs/d"), "x"))
    for now in (600.0, 700.0):
        await asyncio.sleep(100)
        read = drainer._Read(plan, DrainMoment(now, 0.0, 600.0), now, 0.0)
        await bench.made._progress(bench.node_state, read, bench.evictions)
        bench.node_state.quarantine_view.quarantine = bench.now()
    (late,) = bench.notes.transitions
    assert late.summary.count("its budget allows none") == 3
    assert "jobs/c" in late.summary
    assert "jobs/d" not in late.summary
    assert bench.now().status.overdue_at == 600.0


async def test_no_report_of_a_drain_comes_before_a_persons_release(bench: Drain) -> None:
    bench.node_state.cluster.node_gone = True
    for phase in (Phase.DRAINING, Phase.DRAINED):
        await bench.marked(phase)
        bench.node_state.quarantine_view.quarantine = replace(bench.now(), deleting=True)
        before = bench.cluster.calls
        await bench.made.explain(bench.node_state)
        await bench.made.recheck(bench.node_state)
        assert bench.cluster.calls == before


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.DRAINED, Phase.CORDONED, None])
async def test_that_a_node_is_gone_is_written_where_a_drain_is_under_way(
    bench: Drain, phase: Phase | None
) -> None:
    bench.node_state.cluster.node_gone = True
    if phase is not None:
        await bench.marked(phase)
        bench.node_state.quarantine_view.quarantine = bench.now()
    await bench.made.explain(bench.node_state)
    messages = [one.status.message for one in bench.world.quarantines.values()]
    gone = "the node is gone: no pods are left to drain"
    assert (gone in messages) == (phase is Phase.DRAINING)


async def test_an_end_shows_what_stays_behind(bench: Drain) -> None:
    await bench.marked(Phase.DRAINING)
    bench.node_state.quarantine_view.quarantine = bench.now()
    bench.made._memories["n1"] = bench.memory
    moment = DrainMoment(1.0, 1.0, 2.0)
    read = drainer._Read(DrainPlan(stuck={"jobs/a": "x"}), moment, 77.0, 0.0)
    await bench.made._finish(bench.node_state, read, bench.evictions)
    status = bench.now().status
    assert status.phase is Phase.DRAINED
    assert status.message.endswith("not waited for: jobs/a")
    assert (status.pods_remaining, status.pods_read_at) == (0, 77.0)
    assert status.drained_at == pytest.approx(6000.0, abs=10)
    assert "drained: no pods are left" in bench.notes.transitions[-1].summary
    assert bench.made._memories == {}
    bench.node_state.quarantine_view.quarantine = None
    await bench.made._finish(bench.node_state, read, bench.evictions)
    assert len(bench.kinds()) == 1


# -- the hooks ------------------------------------------------------------------------------------


class Hooked(Bench):
    """A runner of hooks whose answers come in turn, the last for ever."""

    def __init__(self, loop: VirtualTimeLoop, **rules: Any) -> None:
        super().__init__(loop)
        self.loop = loop
        self.standing = True
        self.answers = [DONE]
        self.takes = 1.0
        self.asked: list[tuple[float, float, dict[str, str]]] = []
        hook: Any = SimpleNamespace(call=self._answer)
        which = rules.pop("which", ("pre_evict", "post_release"))
        given = dict.fromkeys(which, hook)
        self.made: Any = HookRunner(
            acts=self.acts, rules=HookRules(**given, **rules), rng=HighestDraw()
        )

    async def _answer(self, values: dict[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        self.meanwhile()
        await guard()
        self.asked.append((self.loop.time(), limit, values))
        await asyncio.sleep(self.takes)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def still(self) -> bool:
        return self.standing

    def spaced(self) -> list[float]:
        """The pauses between two requests, without what an answer takes."""
        at = [one[0] for one in self.asked]
        return [round(b - a - self.takes, 3) for a, b in itertools.pairwise(at)]

    @property
    def hook(self) -> HookStatus:
        return present(self.now().status.pre_evict)


def on_hooked(test: Callable[[Hooked], Any], **rules: Any) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await test(Hooked(loop, **rules))

    play(main)


@played_by(on_hooked, which=())
async def test_without_a_hook_a_drain_goes_on_while_its_quarantine_stands(bench: Hooked) -> None:
    assert await bench.made.before_evictions(bench.node_state, bench.still) is False
    bench.stands(made(Phase.DRAINING))
    assert await bench.made.before_evictions(bench.node_state, bench.still) is True
    assert bench.asked == []


@played_by(on_hooked)
async def test_the_memory_of_drains_is_bounded(bench: Hooked) -> None:
    """A node may vanish with its quarantine, which a person takes away by force."""
    made_by_it = Drain(bench.loop).made
    for number in range(10_001):
        bench.node_state.node = f"n{number}"
        made_by_it._memory(bench.node_state)
    assert len(made_by_it._memories) == 10_000


@played_by(on_hooked)
async def test_the_memory_of_ends_that_can_not_be_written_is_bounded(bench: Hooked) -> None:
    """A node may vanish before its end is written."""

    async def refuses(*_: Any) -> None:
        raise Unreachable("503")

    bench.acts.write_status = refuses
    bench.stands(made(Phase.DRAINING))
    for number in range(1001):
        bench.node_state.node = f"n{number}"
        with pytest.raises(Unreachable):
            await bench.made._end(bench.node_state, HookStatus(HookState.DONE, 1.0))
    assert len(bench.made._unwritten) == 1000


@pytest.mark.parametrize("state", [HookState.DONE, HookState.GIVEN_UP])
@played_by(on_hooked)
async def test_a_hook_that_has_ended_is_not_asked_again(bench: Hooked, state: HookState) -> None:
    bench.stands(made(Phase.DRAINING, pre_evict=HookStatus(state, 5900.0)))
    assert await bench.made.before_evictions(bench.node_state, bench.still) is True
    assert bench.asked == []


@played_by(on_hooked)
async def test_a_hook_that_was_asked_before_keeps_its_time(bench: Hooked) -> None:
    bench.stands(made(Phase.DRAINING, pre_evict=HookStatus(HookState.RUNNING, started_at=5900.0)))
    assert await bench.made.before_evictions(bench.node_state, bench.still) is True
    assert bench.hook.started_at == 5900.0
    assert bench.hook.state is HookState.DONE


@played_by(on_hooked)
async def test_a_hook_is_told_of_its_node_and_its_result_is_shown(bench: Hooked) -> None:
    found = made(Phase.DRAINING)
    bench.stands(replace(found, spec=replace(found.spec, incident="inc-1")))
    began = bench.loop.time()
    assert await bench.made.before_evictions(bench.node_state, bench.still) is True
    ((_, limit, values),) = bench.asked
    assert limit == 600.0
    assert values == {
        "hook": "pre_evict",
        "node": "n1",
        "reason": "x",
        "action": "drain",
        "kind": "gpu",
        "incident": "inc-1",
        "quarantine": "q",
    }
    assert bench.hook.started_at == pytest.approx(5000 + began)
    assert bench.hook.ended_at == pytest.approx(5001 + began)
    assert bench.hook.message == "ok"
    assert bench.now().status.message == "evicting pods"
    assert len(bench.kinds()) == 1
    assert "drain.pre_evict is done" in bench.notes.transitions[0].summary
    assert bench.notes.transitions[0].details == {"hook": "pre_evict"}
    assert values["action"] == Action.DRAIN.value


@pytest.mark.parametrize("over", ["the quarantine of n1 is gone", "the drain of n1 is over"])
@played_by(on_hooked)
async def test_a_hook_is_not_called_where_the_drain_is_over_by_then(
    bench: Hooked, over: str
) -> None:
    running = HookStatus(HookState.RUNNING, started_at=5900.0)
    bench.stands(made(Phase.DRAINING, pre_evict=running))

    def end() -> None:
        if "gone" in over:  # no event has reported that
            bench.world.quarantines["n1"] = replace(bench.now(), uid="another")
        else:
            bench.standing = False

    bench.meanwhile = end
    with pytest.raises(GuardRefused, match=over):
        await bench.made.before_evictions(bench.node_state, bench.still)
    assert bench.asked == []


@played_by(on_hooked, pre_evict_timeout=10000.0)
async def test_a_hook_is_asked_again_ever_later_and_as_it_asks(bench: Hooked) -> None:
    bench.stands(made(Phase.DRAINING))
    longer, shorter = replace(LATER, retry_after=45.0), replace(LATER, retry_after=0.5)
    bench.answers = [LATER, shorter, *[LATER] * 5, longer, DONE]
    assert await bench.made.before_evictions(bench.node_state, bench.still) is True
    assert bench.spaced() == [1, 2, 4, 8, 16, 30, 30, 45]
    assert {limit for _, limit, _ in bench.asked} == {10_000.0}


@played_by(on_hooked, pre_evict_timeout=100.0)
async def test_a_delay_that_a_hook_names_delays_no_report_that_it_is_late(bench: Hooked) -> None:
    bench.stands(made(Phase.DRAINING))
    bench.answers = [*[replace(LATER, retry_after=3600.0)] * 2, LATER, DONE]
    assert await bench.made.before_evictions(bench.node_state, bench.still) is True
    assert bench.spaced() == [100, 100, 4], "a late one is called once in its own time"


@pytest.mark.parametrize("limit", [8.0, 13.0, 16.0, 19.0, 33.0])
def test_a_late_hook_is_reported_with_the_first_answer_after_its_time(limit: float) -> None:
    async def test(bench: Hooked) -> None:
        bench.stands(made(Phase.DRAINING))
        bench.answers = [FAILED] * 20 + [DONE]
        began = bench.loop.time()
        task = asyncio.create_task(bench.made.before_evictions(bench.node_state, bench.still))
        await until(lambda: bench.notes.transitions != [])
        assert bench.hook.ended_at == pytest.approx(bench.notes.transitions[0].at, abs=0.01)
        assert await task is True
        answered = [at + bench.takes for at, _, _ in bench.asked]
        first = next(at for at in answered if at >= began + limit)
        assert bench.notes.transitions[0].at == pytest.approx(5000.0 + first, abs=0.01)

    on_hooked(test, pre_evict_timeout=limit)


@played_by(on_hooked)
async def test_a_long_answer_of_a_hook_is_cut_in_the_status(bench: Hooked) -> None:
    bench.stands(made(Phase.DRAINING))
    bench.answers = [HookAnswer(HookResult.LATER, "x" * 2000)] * 20 + [DONE]
    task = asyncio.create_task(bench.made.before_evictions(bench.node_state, bench.still))
    await until(lambda: bench.now().status.message.endswith("x"))
    assert len(bench.now().status.message) == 1000
    assert await task is True


@played_by(on_hooked)
async def test_changed_words_of_a_hook_are_written_at_most_every_ten_seconds(bench: Hooked) -> None:
    bench.stands(made(Phase.DRAINING))
    bench.answers, bench.takes = [LATER], 0.0
    task = asyncio.create_task(bench.made.before_evictions(bench.node_state, bench.still))
    await asyncio.sleep(7.5)
    assert "is called; the drain waits for it" in bench.now().status.message
    assert bench.hook.message == ""
    await asyncio.sleep(8)
    assert bench.now().status.message == ("drain.pre_evict is waited for: not yet: 3 jobs run")
    assert bench.hook.message == "not yet: 3 jobs run"
    assert bench.hook.ended_at == 0.0
    bench.standing = False
    bench.node_state.work.queue()
    assert await task is False


@played_by(on_hooked, pre_evict_timeout=20.0, go_on=True)
async def test_a_drain_goes_on_without_a_hook_that_is_late_where_that_is_configured(
    bench: Hooked,
) -> None:
    bench.stands(made(Phase.DRAINING))
    bench.answers = [LATER]
    began = bench.loop.time()
    assert await bench.made.before_evictions(bench.node_state, bench.still) is True
    assert 20.0 <= bench.loop.time() - began <= 22.0
    assert bench.hook.state is HookState.GIVEN_UP
    assert bench.hook.message == "not yet: 3 jobs run"
    limits = [limit for _, limit, _ in bench.asked]
    assert limits[0] == pytest.approx(20.0)
    assert limits[-1] == 1.0
    assert limits == sorted(limits, reverse=True)
    assert bench.kinds() == ["quarantine.hook_failed"]
    text = bench.notes.transitions[0].summary
    assert "was not done in 20 s, the drain goes on: not yet: 3 jobs run" in text


@pytest.mark.parametrize(
    ("which", "status", "asks"),
    [
        (("pre_evict", "post_release"), {"pre_evict": HookStatus(HookState.DONE, 5900.0)}, 1),
        (("pre_evict", "post_release"), {"drain_started_at": 1.0}, 0),
        (("post_release",), {"drain_started_at": 1.0}, 1),
        (("post_release",), {}, 0),
        (("pre_evict",), {"pre_evict": HookStatus(HookState.DONE, 5900.0)}, 0),
    ],
)
def test_the_hook_after_a_release_runs_only_where_the_drain_had_begun(
    which: tuple[str, ...], status: dict[str, Any], asks: int
) -> None:
    async def test(bench: Hooked) -> None:
        await bench.made.after_release(bench.node_state, made(Phase.RELEASING, **status))
        assert len(bench.asked) == len(bench.kinds()) == asks
        if asks:
            assert bench.asked[0][1] == 60.0
            assert bench.asked[0][2]["hook"] == "post_release"
            assert "drain.post_release is done" in bench.notes.transitions[0].summary

    on_hooked(test, which=which)


@played_by(on_hooked, which=("post_release",))
async def test_the_hook_after_a_release_is_given_up_after_its_time(bench: Hooked) -> None:
    bench.answers = [LATER, replace(LATER, retry_after=5.0), LATER]
    began = bench.loop.time()
    await bench.made.after_release(bench.node_state, made(Phase.RELEASING, drain_started_at=1.0))
    assert bench.loop.time() - began <= 60
    assert bench.spaced() == [1, 5, 4, 8, 16]
    assert all(limit == pytest.approx(began + 60 - at) for at, limit, _ in bench.asked)
    assert len(bench.kinds()) == 1
    text = bench.notes.transitions[0].summary
    assert "drain.post_release was not done in 60 s: 3 jobs run" in text
    assert bench.notes.transitions[0].details == {"hook": "post_release"}


@played_by(on_hooked, which=("post_release",), post_release_timeout=0.5)
async def test_the_hook_after_a_release_has_a_second_at_least(bench: Hooked) -> None:
    released = made(Phase.RELEASING, drain_started_at=1.0)
    await bench.made.after_release(bench.node_state, released)
    assert [limit for _, limit, _ in bench.asked] == [1.0]


@played_by(on_hooked, at_once=1)
async def test_a_hook_that_waits_for_its_turn_is_given_up_too(bench: Hooked) -> None:
    bench.takes = 500.0
    first = asyncio.create_task(bench.made._in_time(*hook_call(bench), 1000.0))
    await asyncio.sleep(1)
    began = bench.loop.time()
    answer = await bench.made._in_time(*hook_call(bench), 7.0)
    assert bench.loop.time() - began == 7.0
    assert (answer.result, len(bench.asked)) == (HookResult.FAILED, 1)
    assert "drain.hooks_at_once" in answer.text
    assert (await first).result is HookResult.DONE


@played_by(on_hooked, at_once=1)
async def test_the_hooks_of_drains_hold_up_none_of_a_release(bench: Hooked) -> None:
    bench.stands(made(Phase.DRAINING))
    bench.takes = 500.0
    drain = asyncio.create_task(bench.made.before_evictions(bench.node_state, bench.still))
    await asyncio.sleep(1)
    bench.takes = 1.0
    done = made(Phase.RELEASING, pre_evict=HookStatus(HookState.DONE, 5900.0))
    began = bench.loop.time()
    await bench.made.after_release(bench.node_state, done)
    assert bench.loop.time() - began == 1.0
    assert await drain is True


def hook_call(bench: Hooked) -> tuple[Any, Any]:
    return bench.made._rules.post_release, made(Phase.RELEASING)
