"""A site's hook around a drain: asked, waited for, given up, across deaths. In virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    Guard,
    GuardRefused,
    HookState,
    Phase,
    Unreachable,
)
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.node_marks import OFF_BALANCERS
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules
from aggregator.quarantine.settings import Settings
from tests.support import virtual_time
from tests.support.deaths import at_each_change
from tests.support.drains import GANG, ILL, begun, drained, status, world_with
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_replica import Running
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

HOUR = 3600.0


@dataclass
class PlayedHook:
    """Answers in turn, the last for ever; each attempt takes a while. ``asked``: its requests."""

    world: World
    answers: list[HookAnswer]
    takes: float = 5.0
    asked: list[tuple[str, str]] = field(default_factory=list)
    ended: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        assert limit > 0
        node = values["node"]
        self.asked.append((values["hook"], node))
        if values["hook"] == "pre_evict":
            assert is_marked(self.world.nodes[node])  # after the taint
            assert self.world.evicted == []  # and before the first eviction
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.at_once -= 1
        self.ended += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


DONE, LATER = HookAnswer(HookResult.DONE, "drained"), HookAnswer(HookResult.LATER, "3 jobs run")
FAILED = HookAnswer(HookResult.FAILED, "slurmctld is away")


def hooked(hook: PlayedHook, **changes: Any) -> Settings:
    return replace(SETTINGS, hooks=HookRules(pre_evict=hook, **changes))


async def test_the_hook_is_asked_after_the_taint_until_it_is_done_and_then_pods_go() -> None:
    world = world_with("a", "b")
    hook = PlayedHook(world, [LATER, FAILED, DONE])
    replica = await begun(world, hooked(hook))
    await until(lambda: "n1" in world.quarantines and status(world).pre_evict is not None)
    assert status(world).phase is Phase.DRAINING
    assert status(world).pre_evict.state is HookState.RUNNING
    await drained(world)
    assert len(hook.asked) == 3
    assert status(world).pre_evict.state is HookState.DONE
    assert status(world).pre_evict.message == "drained"
    assert sorted(world.evicted) == ["uid-a", "uid-b"]
    await replica.stop()
    again = await begun(world, hooked(hook))
    await asyncio.sleep(60)
    assert len(hook.asked) == 3  # a hook that has succeeded is not run again
    await again.stop()


async def test_a_hook_that_does_not_succeed_holds_the_evictions_and_says_so_once() -> None:
    world = world_with("a")
    hook = PlayedHook(world, [FAILED])
    settings = hooked(hook, pre_evict_timeout=600)
    replica = await begun(world, settings)
    await asyncio.sleep(500)
    started_at = status(world).pre_evict.started_at
    await replica.stop()
    again = await begun(world, settings)
    await asyncio.sleep(HOUR)
    assert world.evicted == []
    told = status(world)
    assert told.pre_evict.started_at == started_at
    assert told.pre_evict.ended_at < started_at + 700  # restarts don't prolong its time
    assert "was not done in 600 s; the drain waits" in told.message
    assert "slurmctld is away" in told.pre_evict.message
    await again.stop()
    third = await begun(world, settings)
    await asyncio.sleep(HOUR)
    kinds = [k for r in (replica, again, third) for k in r.notes.kinds("n1")]
    assert kinds.count("quarantine.hook_failed") == 1
    hook.answers = [DONE]
    await drained(world, within=120)


async def test_a_hook_ends_with_its_drain_and_a_release_waits_for_none() -> None:
    world = world_with("a")
    hook = PlayedHook(world, [DONE], takes=100_000.0)
    await begun(world, hooked(hook, pre_evict_timeout=1e6))
    await until(lambda: hook.at_once == 1)
    world.person_deletes("n1")
    await until(lambda: not world.quarantines, within=30)
    assert (hook.at_once, hook.ended, world.evicted) == (0, 0, [])


async def test_hooks_run_beside_each_other_only_up_to_their_limit() -> None:
    world = World()
    names = [f"n{number}" for number in range(6)]
    for name in names:
        world.add_node(name)
    hook = PlayedHook(world, [DONE])
    replica = await Replica(world, clock=Running(), settings=hooked(hook, at_once=2)).ready()
    replica.agents(names, ILL)
    await until(lambda: all(phase_of(world, n) is Phase.DRAINED for n in names), within=120)
    assert hook.most_at_once == 2
    assert sorted(node for _, node in hook.asked) == names


@pytest.mark.parametrize("answer", [DONE, FAILED])
async def test_the_hook_after_a_release_is_asked_once_the_node_is_given_back(
    answer: HookAnswer,
) -> None:
    world = world_with("a")
    before, after = PlayedHook(world, [DONE]), PlayedHook(world, [answer])
    replica = await begun(world, hooked(before, post_release=after))
    await drained(world)
    world.person_deletes("n1")
    await until(lambda: after.asked)
    assert not is_marked(world.nodes["n1"])
    assert parse_record(world.record.text).entries == {}
    await until(lambda: not world.quarantines, within=120)  # done, or given up
    failed = replica.notes.kinds("n1").count("quarantine.hook_failed")
    assert failed == (answer is FAILED)


@pytest.mark.parametrize(
    ("how", "error", "most"),
    [("fails", Conflict("it was changed meanwhile"), 20), ("loses", Unreachable("no answer"), 1)],
)
@pytest.mark.parametrize(("answer", "ends"), [(DONE, HookState.DONE), (FAILED, HookState.GIVEN_UP)])
async def test_a_hook_whose_end_can_not_be_written_is_not_called_again(
    answer: HookAnswer, ends: HookState, how: str, error: ClusterError, most: int
) -> None:
    world = world_with("a")
    hook, refused = PlayedHook(world, [answer]), 0

    def fails(call: str) -> ClusterError | None:
        nonlocal refused
        if call != "write_quarantine_status" or not hook.ended or refused == most:
            return None
        refused += 1
        return error

    settings = hooked(hook, pre_evict_timeout=5, go_on=True)
    more: dict[str, Any] = {how: fails}
    replica = await begun(world, settings, cluster=MemoryCluster(world, **more))
    await drained(world, within=HOUR)
    assert (len(hook.asked), refused) == (1, most)
    assert status(world).pre_evict.state is ends
    kinds = replica.notes.kinds("n1")
    assert kinds.count("quarantine.hook") + kinds.count("quarantine.hook_failed") == 1


async def test_a_hook_before_drains_that_a_restart_brings_leaves_out_no_hook_after_one() -> None:
    world = world_with("a")
    hook, after = PlayedHook(world, [DONE]), PlayedHook(world, [DONE])
    first = await begun(world, replace(SETTINGS, hooks=HookRules(post_release=after)))
    await drained(world)
    await first.stop()
    await begun(world, hooked(hook, post_release=after))
    world.person_deletes("n1")
    await until(lambda: not world.quarantines, within=120)
    assert (hook.asked, after.asked) == ([], [("post_release", "n1")])


@pytest.mark.parametrize("during", ["the record", "its turn", "its last turn"])
async def test_a_controller_that_has_lost_its_place_calls_no_hook_after_a_release(
    during: str,
) -> None:
    """The next one may have marked the node again: a hook that opens it would give it new work."""
    world, holds = world_with("a"), [True]
    hook = Guarded(world, [DONE])
    limit = 1.0 if during == "its last turn" else 60.0
    rules = HookRules(post_release=hook, post_release_timeout=limit)
    settings = replace(SETTINGS, hooks=rules)

    async def in_queue(name: str) -> None:
        if name == "write_record" and phase_of(world, "n1") is Phase.RELEASING:
            holds[0] = during != "the record"

    replica = await begun(world, settings, may_act=lambda: holds[0])
    await drained(world)
    replica.cluster.in_queue = in_queue
    hook.before = lambda: holds.__setitem__(0, False)
    world.person_deletes("n1")
    await until(lambda: not holds[0])
    await asyncio.sleep(300)
    assert hook.ended == 0
    noted = {"quarantine.hook_failed", "quarantine.released"} & set(replica.notes.kinds("n1"))
    assert (noted, phase_of(world, "n1")) == (set(), Phase.RELEASING)


async def test_a_controller_that_has_lost_its_place_gives_no_hook_up_that_was_not_called() -> None:
    """With ``go_on`` the next one would evict without the hook."""
    world, holds = world_with("a"), [True]
    hook = Guarded(world, [DONE], waits=5.0, before=lambda: holds.__setitem__(0, False))
    rules = hooked(hook, pre_evict_timeout=1.0, go_on=True)
    replica = await begun(world, rules, may_act=lambda: holds[0])
    await until(lambda: not holds[0])
    await asyncio.sleep(60)
    hook_status = status(world).pre_evict
    assert hook_status is not None
    assert (hook_status.state, hook.ended) == (HookState.RUNNING, 0)
    assert replica.notes.kinds("n1").count("quarantine.hook_failed") == 0


@dataclass
class Guarded(PlayedHook):
    """Awaits its guard after a wait (seconds)."""

    before: Callable[[], None] = lambda: None
    waits: float = 0.0

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        await asyncio.sleep(self.waits)
        self.before()
        try:
            await guard()
        except GuardRefused as refused:
            return HookAnswer(HookResult.LATER, str(refused))
        return await super().call(values, limit=limit, guard=guard)


async def test_death_at_any_call_of_a_drain_with_hooks_is_finished_by_the_next() -> None:
    async def run(at: int | None, *, after: bool) -> int:
        world = world_with("a", "b", labels=GANG)
        hook = PlayedHook(world, [LATER, DONE], takes=0.5)
        settings = hooked(hook, post_release=hook)
        first = Replica(world, clock=Running(), settings=settings, crash_at=at, after=after)

        async def to_its_end(replica: Replica) -> None:
            await until(lambda: not replica.fleet.view_lost)
            if "n1" not in world.quarantines and not world.evicted:
                replica.agent("n1", ILL)
            if phase_of(world, "n1") is not Phase.RELEASING and not let_go():
                replica.agent("n1", ILL)
                await drained(world)
                world.person_deletes("n1")
            await until(let_go, within=60)

        def let_go() -> bool:
            return bool(world.evicted) and not world.quarantines

        going = asyncio.create_task(to_its_end(first))
        died = asyncio.create_task(first.cluster.crashed.wait())
        await asyncio.wait({going, died}, return_when=asyncio.FIRST_COMPLETED)
        for task in (going, died):
            task.cancel()
        await asyncio.gather(going, died, return_exceptions=True)
        await first.stop()
        if at is not None:
            second = Replica(world, clock=Running(), settings=settings)
            await to_its_end(second)
            await second.stop()
        assert sorted(world.evicted) == ["uid-a", "uid-b"]
        assert ("pre_evict", "n1") in hook.asked
        assert hook.asked[-1] == ("post_release", "n1")
        node = world.nodes["n1"]
        assert not is_marked(node)
        assert OFF_BALANCERS not in node.labels
        assert not node.unschedulable
        return first.cluster.changes

    await at_each_change(run, least=9)
