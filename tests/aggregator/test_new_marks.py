"""Between the patch that marks a node and the status that tells of it: failures, and other people.

The write of the status trails, for seconds in a burst. Until then the Quarantine is Admitted.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    ClusterError,
    ClusterEvent,
    Conflict,
    Evicted,
    EvictionResult,
    Guard,
    Node,
    NodeChange,
    NodeSeen,
    Phase,
    Pod,
    Quarantine,
    QuarantineSeen,
    QuarantineStatus,
    Refused,
    Unreachable,
    WatchLost,
)
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules
from aggregator.quarantine.reconcile import poller
from aggregator.quarantine.settings import Settings
from tests.support.drains import Busy, begun, drained, status, transitions, world_with
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

#: Between two empty reads, as in production (conftest.py).
EMPTY_FOR = 5.0
EXEMPTED = "until 2100-01-01T00:00:00Z the job must end"
OFF_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"


class Logged(Busy):
    """Its log has reads of the node, evictions and deletions, each with its time."""

    def __init__(self, world: World, trails: float = 0.0, **more: Any) -> None:
        super().__init__(world, trails, **more)
        self.log: list[tuple[float, str]] = []

    def _note(self, what: str) -> None:
        self.log.append((asyncio.get_running_loop().time(), what))

    async def read_node(self, name: str, **how: bool) -> Node | None:
        self._note("read")
        return await super().read_node(name, **how)

    async def evict(self, pod: Pod, **how: Any) -> EvictionResult:
        self._note("evict")
        return await super().evict(pod, **how)

    async def delete_pod(self, pod: Pod, **how: Any) -> EvictionResult:
        self._note("delete")
        return await super().delete_pod(pod, **how)


async def marked(world: World, settings: Settings, cluster: Logged) -> Replica:
    """The node has its taint, and the Quarantine does not tell of it yet."""
    replica = await begun(world, settings, cluster=cluster)
    await until(lambda: world.nodes["n1"].taints)
    await asyncio.sleep(1)
    return replica


# -- the write fails ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Unreachable("503"), Refused("422 no"), Conflict("changed")])
async def test_a_status_that_can_not_be_written_is_tried_ever_less_often(
    error: ClusterError,
) -> None:
    world = world_with()

    def fails(name: str) -> ClusterError | None:
        return error if name == "write_quarantine_status" else None

    replica = await begun(world, SETTINGS, cluster=Logged(world, fails=fails))
    await asyncio.sleep(60)
    assert 5 < replica.cluster.asked["patch_node"] < 30
    assert transitions(replica).count("quarantine.cordoned") < 30
    assert str(error) in replica.fleet.node_summaries["n1"].work.last_error or (
        isinstance(error, Conflict)
    )


@pytest.mark.parametrize("late", [0.0, 5.0])
def test_a_begin_whose_answer_is_lost_is_told_once_and_keeps_its_times(late: float) -> None:
    """``late``: the watch shows the Quarantine so much later (seconds)."""

    class LateWatch(Logged):
        def __init__(self, world: World) -> None:
            super().__init__(world, loses=self.loses_one)
            self.lost = False

        async def events(self) -> AsyncIterator[ClusterEvent]:
            async for event in super().events():
                if self.lost and isinstance(event, QuarantineSeen):
                    await asyncio.sleep(late)
                yield event

        def loses_one(self, name: str) -> ClusterError | None:
            if name != "write_quarantine_status" or self.lost:
                return None
            self.lost = True
            return Unreachable("the answer is lost")

    @in_virtual_time
    async def test() -> None:
        world = world_with()
        replica = await begun(world, SETTINGS, cluster=LateWatch(world))
        await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
        before = status(world)
        await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
        await asyncio.sleep(60)
        kinds = transitions(replica)
        assert kinds.count("quarantine.draining") == kinds.count("quarantine.drained") == 1
        assert kinds.count("quarantine.cordoned") == 1
        after = status(world)
        assert (after.cordoned_at, after.drain_started_at) == (
            before.cordoned_at,
            before.drain_started_at,
        )
        await replica.stop()

    test()


# -- people and tools, meanwhile ------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Action.CORDON, Action.DRAIN])
@pytest.mark.parametrize("trails", [6.0, 30.0])
async def test_a_node_that_is_uncordoned_before_its_status_is_written_is_released(
    mode: Action, trails: float
) -> None:
    world = world_with()
    replica = await marked(world, replace(SETTINGS, mode=mode), Logged(world, trails))
    world.person_uncordons("n1")
    await until(lambda: "n1" not in world.quarantines, within=trails + 30)
    assert not world.nodes["n1"].taints
    assert "quarantine.drained" not in transitions(replica)


class Interrupted(Logged):
    """The view is lost while the node is being marked, and is whole again so much later."""

    def __init__(self, world: World, away: float) -> None:
        super().__init__(world)
        self.away = away
        self._is_first = True

    async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        patched = await super().patch_node(node, change, guard=guard)
        if self._is_first:
            self._is_first = False
            self.world.interrupt_view("the API server restarts")
            await asyncio.sleep(0.05)
        return patched

    async def events(self) -> AsyncIterator[ClusterEvent]:
        async for event in super().events():
            yield event
            if isinstance(event, WatchLost):
                await asyncio.sleep(self.away)


class NotYet:
    """A hook whose jobs never end."""

    def __init__(self) -> None:
        self.asked = 0

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        self.asked += 1
        return HookAnswer(HookResult.LATER, "jobs run")


@pytest.mark.parametrize("away", [2.0, 30.0])
@pytest.mark.parametrize("hooked", [False, True])
async def test_an_uncordon_that_no_watch_told_of_releases_the_node(
    away: float, *, hooked: bool
) -> None:
    world, hook = world_with(*["a"] * hooked), NotYet()
    settings = replace(SETTINGS, hooks=HookRules(pre_evict=hook)) if hooked else SETTINGS
    await marked(world, settings, Interrupted(world, away))
    world.person_uncordons("n1")
    await until(lambda: "n1" not in world.quarantines, within=away + 60)
    assert hook.asked == 0
    assert world.evicted == []


@pytest.mark.parametrize("trails", [0.0, 20.0])
async def test_the_hook_is_asked_after_a_read_of_the_node(trails: float) -> None:
    """Another tool takes the node before the status is written; no other read would tell."""
    theirs = "remediation.medik8s.io/exclude-from-remediation"
    world, hook = world_with("a"), NotYet()
    settings = replace(SETTINGS, hooks=HookRules(pre_evict=hook))
    cluster = Logged(world, trails)
    await begun(world, settings, cluster=cluster)
    if trails:
        await until(lambda: world.nodes["n1"].taints)
        await asyncio.sleep(1)
        node = world.nodes["n1"]
        world.set_node(replace(node, labels={**node.labels, theirs: "true"}))
        await asyncio.sleep(120)
        assert hook.asked == 0
    else:
        await until(lambda: hook.asked)
        assert [what for _, what in cluster.log] == ["read"]


def test_a_drain_that_was_stopped_at_its_begin_reads_its_node_when_it_goes_on() -> None:
    class Stopping(Logged):
        async def write_quarantine_status(
            self, quarantine: Quarantine, status: QuarantineStatus
        ) -> Quarantine:
            written = await super().write_quarantine_status(quarantine, status)
            if quarantine.status.phase is Phase.ADMITTED:
                self.world.person_stops("wait")
                await asyncio.sleep(0.5)
            return written

    @in_virtual_time
    async def test() -> None:
        world = world_with("a")
        cluster = Stopping(world)
        replica = await begun(world, SETTINGS, cluster=cluster)
        await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
        await asyncio.sleep(3600)
        node = world.nodes["n1"]
        labels = {key: value for key, value in node.labels.items() if key != OFF_BALANCERS}
        world.set_node(replace(node, labels=labels))
        world.person_stops("")
        await until(lambda: world.evicted)
        assert OFF_BALANCERS in world.nodes["n1"].labels
        await replica.stop()

    test()


async def test_marks_taken_away_before_the_status_count_from_when_they_are_set_again() -> None:
    """So a pod that a scheduler placed before it saw the second taint is not left behind."""
    world, loop = world_with(), asyncio.get_running_loop()
    away = Unreachable("503", retry_after=20.0)

    def fails(name: str) -> ClusterError | None:
        return away if name == "write_quarantine_status" and loop.time() < 1010 else None

    await marked(world, SETTINGS, Logged(world, fails=fails))
    await asyncio.sleep(4)
    node = world.nodes["n1"]
    world.set_node(replace(node, taints=(), unschedulable=False, labels={}, annotations={}))
    await until(lambda: world.nodes["n1"].taints, within=60)
    loop.call_later(2.0, world.add_pod, "n1", "late")

    await drained(world)
    assert world.evicted == ["uid-late"]


def test_no_pod_is_forced_off_a_node_that_was_exempted_since_its_last_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its eviction is blocked for longer; polls are seldom, as among a thousand drains."""
    monkeypatch.setattr(poller, "DRAINING_EVERY", 200.0)

    class Unwatched(Logged):
        async def events(self) -> AsyncIterator[ClusterEvent]:
            async for event in super().events():
                if not isinstance(event, NodeSeen):
                    yield event

    @in_virtual_time
    async def test() -> None:
        world = world_with("a")
        world.rejections["uid-a"] = EvictionResult(Evicted.MISCONFIGURED, "two budgets")
        cluster = Unwatched(world)
        rule = NamespaceRule("jobs", Leave.FORCE, force_after=30.0)
        settings = replace(SETTINGS, drain=DrainRules(namespaces=(rule,)))
        replica = await begun(world, settings, cluster=cluster)
        await until(lambda: status_blockers(world))
        await asyncio.sleep(5)
        world.person_annotates("n1", EXEMPT, EXEMPTED)
        await asyncio.sleep(120)
        assert [what for _, what in cluster.log if what == "delete"] == []
        await replica.stop()

    test()


async def test_an_exemption_of_a_draining_node_is_seen_by_its_watch() -> None:
    world = world_with("a")
    waits = NamespaceRule("jobs", Leave.WAIT, wait=3600.0)
    await begun(world, replace(SETTINGS, drain=DrainRules(namespaces=(waits,))))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
    await asyncio.sleep(5)
    world.person_annotates("n1", EXEMPT, EXEMPTED)
    await until(lambda: "the job must end" in status(world).message, within=3)


def status_blockers(world: World) -> tuple[Any, ...]:
    return status(world).blockers if "n1" in world.quarantines else ()
