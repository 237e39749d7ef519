"""The controller with pools: a canary drains, the rest is observed, and labels change meanwhile."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, NodeMeta, Phase, QuarantineSpec, Unreachable
from aggregator.health.model import Cleared, Delta
from aggregator.jobs.gangs import Gangs
from aggregator.policy.label_selector import LabelSelector
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.pools import Pool, PoolLimits
from aggregator.quarantine.settings import Settings
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.present import present
from tests.support.replica import SETTINGS, Replica, fault, shipped_policy, snapshot
from tests.support.virtual_replica import Running, later, soon
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

CANARY = Pool("canary", LabelSelector({"pool": "canary"}), Action.DRAIN)
POOLED = replace(SETTINGS, mode=Action.OBSERVE, pools=(CANARY,))
#: A list of the nodes shows a change of labels at the latest (seconds).
LISTED = 200.0


def fleet_of(**pools: str) -> World:
    """Nodes with the label ``pool``; none for an empty text."""
    world = World()
    for name, pool in pools.items():
        world.add_node(name, labels={"pool": pool} if pool else {})
        world.add_pod(name, f"job-{name}")
    return world


def move(world: World, name: str, pool: str) -> None:
    labels = {key: value for key, value in world.nodes[name].labels.items() if key != "pool"}
    world.set_node(replace(world.nodes[name], labels=labels | ({"pool": pool} if pool else {})))


def start(
    world: World, settings: Settings = POOLED, cluster: MemoryCluster | None = None
) -> Replica:
    return Replica(world, clock=Running(), settings=settings, cluster=cluster)


def entries(world: World) -> set[str]:
    return set(parse_record(world.record.text).entries)


async def test_the_canary_drains_and_the_rest_is_observed() -> None:
    world = fleet_of(n1="canary", n2="other", n3="")
    replica = start(world)
    await later(1)
    replica.agents(("n1", "n2", "n3"), snapshot(fault()))
    await soon(lambda: world.evicted)
    await later(60)
    assert set(world.quarantines) == {"n1"}
    assert {name for name, node in world.nodes.items() if is_marked(node)} == {"n1"}
    assert world.evicted == ["uid-job-n1"]
    assert parse_record(world.record.text).entries["n1"].policy_pool == "canary"
    for name in ("n2", "n3"):
        assert replica.fleet.node_summaries[name].decision.would.startswith("drain: ")
        assert "quarantine.suppressed" in replica.notes.kinds(name)
    told = [one.summary for one in replica.notes.transitions if one.node == "n2"]
    assert any("mode observe of pool default keeps us from this" in text for text in told)


async def test_a_gang_stays_whole_while_a_pod_of_it_is_on_a_node_that_is_only_observed() -> None:
    world, gang = fleet_of(n1="canary", n2="other"), {"jobset.sigs.k8s.io/jobset-name": "train"}
    for name in ("n1", "n2"):
        world.add_pod(name, f"rank-{name}", labels=gang)
    drain = replace(POOLED.drain, gangs=Gangs.WHOLE)
    start(world, replace(POOLED, drain=drain)).agent("n1", snapshot(fault()))
    await soon(lambda: world.quarantines and world.quarantines["n1"].status.blockers)
    await later(60)
    [blocker] = world.quarantines["n1"].status.blockers
    assert blocker.reason.endswith("n2, which is left alone: mode observe of pool default")
    assert world.evicted == ["uid-job-n1"]


async def test_a_quarantine_by_hand_counts_in_its_pool_and_for_the_rate_of_that() -> None:
    world = fleet_of(n1="canary", n2="canary")
    rate = replace(CANARY, limits=PoolLimits(new_per_window=1))
    replica = start(world, replace(POOLED, pools=(rate,)))
    await later(1)
    world.person_creates("n1", QuarantineSpec(Action.CORDON, "manual", "smoke", "alice"))
    await soon(lambda: is_marked(world.nodes["n1"]))
    entry = parse_record(world.record.text).entries["n1"]
    assert (entry.policy_pool, entry.incident) == ("canary", "")
    replica.agent("n2", snapshot(fault()))
    await soon(lambda: "quarantine.held" in replica.notes.kinds("n2"))
    held = present(replica.fleet.node_summaries["n2"].decision.hold)
    assert held.limit == "pools.limits.new_per_window"
    assert set(world.quarantines) == {"n1"}


async def test_a_pool_is_observed_where_the_file_drains() -> None:
    world = fleet_of(n1="quiet", n2="")
    quiet = Pool("quiet", LabelSelector({"pool": "quiet"}), Action.OBSERVE)
    replica = start(world, replace(SETTINGS, mode=Action.DRAIN, pools=(quiet,)))
    await later(1)
    replica.agents(("n1", "n2"), snapshot(fault()))
    await soon(lambda: world.evicted)
    await later(60)
    assert set(world.quarantines) == {"n2"}
    assert not is_marked(world.nodes["n1"])


async def test_a_pool_of_observed_nodes_alone_writes_nothing() -> None:
    world = fleet_of(n1="quiet", n2="")
    quiet = Pool("quiet", LabelSelector({"pool": "quiet"}))
    replica = start(world, replace(SETTINGS, mode=Action.OBSERVE, pools=(quiet,)))
    await later(1)
    replica.agents(("n1", "n2"), snapshot(fault()))
    await later(LISTED)
    assert not world.writes


async def test_a_node_that_comes_to_the_canary_is_acted_on_once_it_is_listed() -> None:
    world = fleet_of(n1="")
    replica = start(world)
    await later(1)
    replica.agent("n1", snapshot(fault()))
    await later(30)
    assert not world.quarantines
    move(world, "n1", "canary")
    await soon(lambda: world.evicted, within=LISTED)


async def test_a_node_that_leaves_the_canary_keeps_its_quarantine_and_its_pods() -> None:
    world = fleet_of(n1="canary")
    world.add_pod("n1", "job-2")
    world.budget_blocks.add("uid-job-2")
    replica = start(world)
    await later(1)
    replica.agent("n1", snapshot(fault()))
    await soon(lambda: world.evicted)
    assert world.quarantines["n1"].status.drain_started_at
    move(world, "n1", "")
    await later(1)
    world.budget_blocks.clear()
    await later(LISTED)
    assert world.evicted == ["uid-job-n1"], "no pod is evicted in a pool that is observed"
    assert world.quarantines["n1"].spec.action is Action.DRAIN
    assert world.quarantines["n1"].status.phase is not Phase.RELEASING
    assert is_marked(world.nodes["n1"])
    assert entries(world) == {"n1"}
    move(world, "n1", "canary")
    await soon(lambda: len(world.evicted) == 2, within=LISTED)
    replica.agent("n1", Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    await soon(lambda: not world.quarantines)
    assert not is_marked(world.nodes["n1"])


async def test_an_observed_node_is_released_when_it_has_recovered() -> None:
    world = fleet_of(n1="canary")
    replica = start(world)
    await later(1)
    replica.agent("n1", snapshot(fault()))
    await soon(lambda: world.evicted)
    move(world, "n1", "")
    await later(LISTED)
    replica.agent("n1", Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    await soon(lambda: not world.quarantines)
    assert not is_marked(world.nodes["n1"])
    assert not entries(world)


async def test_a_restart_after_a_move_neither_releases_nor_evicts() -> None:
    world = fleet_of(n1="canary")
    world.add_pod("n1", "job-2")
    world.budget_blocks.add("uid-job-2")
    first = start(world)
    await later(1)
    first.agent("n1", snapshot(fault()))
    await soon(lambda: world.evicted)
    await first.stop()
    move(world, "n1", "")
    world.budget_blocks.clear()
    second = start(world)
    await later(1)
    second.agent("n1", snapshot(fault()))
    await later(LISTED)
    assert world.evicted == ["uid-job-n1"]
    assert world.quarantines["n1"].spec.action is Action.DRAIN
    assert is_marked(world.nodes["n1"])


async def test_a_start_reports_no_pool_before_the_labels_are_known() -> None:
    """Agents may connect before the nodes are listed: the canary is not reported as observed."""
    world = fleet_of(n1="canary", n2="")
    replica = start(world)
    replica.agents(("n1", "n2"), snapshot(fault()))
    assert not replica.fleet.node_summaries["n1"].decision.would
    await soon(lambda: world.evicted)
    await later(LISTED)
    assert "quarantine.suppressed" not in replica.notes.kinds("n1")
    assert replica.notes.kinds("n2").count("quarantine.suppressed") == 1


class Moved(MemoryCluster):
    """A person moves the node just before, or just after, one kind of call."""

    def __init__(self, world: World, call: str, how: Callable[[], None], *, after: bool) -> None:
        super().__init__(world)
        self._when, self._how, self._after = call, how, after

    async def _call(self, name: str, effect: Callable[[], object], guard: object = None) -> object:  # type: ignore[override]
        here, self._when = name == self._when, "" if name == self._when else self._when
        if here and not self._after:
            self._how()
        try:
            return await super()._call(name, effect, guard)  # type: ignore[arg-type]
        finally:
            if here and self._after:
                self._how()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["read_node", "write_record", "create_quarantine", "patch_node"])
async def test_no_node_is_marked_in_a_pool_that_is_observed_whenever_it_was_moved(
    call: str, *, after: bool
) -> None:
    world = fleet_of(n1="canary", n2="canary")
    at_move: list[bool] = []

    def leave() -> None:
        at_move.append(is_marked(world.nodes["n1"]))
        move(world, "n1", "")

    replica = start(world, cluster=Moved(world, call, leave, after=after))
    await later(1)
    replica.agent("n1", snapshot(fault()))
    await later(2 * LISTED)
    assert at_move
    assert is_marked(world.nodes["n1"]) == at_move[0]
    if not at_move[0]:
        assert not world.evicted


async def test_a_node_that_moves_between_its_admission_and_a_restart_is_admitted_anew() -> None:
    """Both pools drain, and the new one is full: the node waits there, and is not begun."""
    one = PoolLimits(concurrent=1)
    other = Pool("other", LabelSelector({"pool": "other"}), Action.DRAIN, one)
    settings = replace(POOLED, pools=(replace(CANARY, limits=one), other))
    world = fleet_of(n1="canary", n2="other")
    crashing = MemoryCluster(
        world,
        fails=lambda call: (
            Unreachable("503") if call == "create_quarantine" and world.quarantines else None
        ),
    )
    first = start(world, settings, crashing)
    await later(1)
    first.agent("n2", snapshot(fault()))
    await soon(lambda: "n2" in world.quarantines)
    first.agent("n1", snapshot(fault()))
    await soon(lambda: "n1" in entries(world))
    await first.stop()
    assert set(world.quarantines) == {"n2"}
    move(world, "n1", "other")
    second = start(world, settings)
    await later(1)
    second.agents(("n1", "n2"), snapshot(fault()))
    await later(2 * LISTED)
    assert set(world.quarantines) == entries(world) == {"n2"}
    hold = present(second.fleet.node_summaries["n1"].decision.hold)
    assert hold.limit == "pools.limits.concurrent"


class LateList(MemoryCluster):
    """A list of the nodes arrives when ``arrives`` is set, with the content of the request."""

    arrives: asyncio.Event | None = None

    async def list_nodes(self) -> list[NodeMeta]:
        found = await super().list_nodes()
        if self.arrives is not None:
            await self.arrives.wait()
        return found


async def test_a_list_that_is_older_than_a_read_brings_no_node_back_to_its_pool() -> None:
    world = fleet_of(n1="canary")
    world.add_pod("n1", "job-2")
    world.budget_blocks.add("uid-job-2")
    cluster = LateList(world)
    replica = start(world, cluster=cluster)
    await later(1)
    replica.agent("n1", snapshot(fault()))
    await soon(lambda: world.evicted)
    cluster.arrives, listed = asyncio.Event(), cluster.asked["list_nodes"]
    await soon(lambda: cluster.asked["list_nodes"] > listed, within=LISTED)
    move(world, "n1", "")
    await later(5)
    view = replica.fleet.node_summaries["n1"].cluster
    assert "pool" not in (view.labels or {})
    cluster.arrives.set()
    world.budget_blocks.clear()
    await soon(lambda: cluster.asked["list_nodes"] > listed)
    for _ in range(100):
        await asyncio.sleep(0)
        assert "pool" not in (view.labels or {})


@pytest.mark.parametrize("call", ["read_node", "write_record", "create_quarantine"])
async def test_a_node_that_moves_while_it_is_admitted_is_counted_where_it_is_acted_on(
    call: str,
) -> None:
    """Both pools drain; each may have one."""
    one = PoolLimits(concurrent=1)
    other = Pool("other", LabelSelector({"pool": "other"}), Action.DRAIN, one)
    pools = (replace(CANARY, limits=one), other)
    world = fleet_of(n1="canary", n2="other")
    cluster = Moved(world, call, lambda: move(world, "n1", "other"), after=False)
    replica = start(world, replace(POOLED, pools=pools), cluster)
    await later(1)
    replica.agent("n1", snapshot(fault()))
    await soon(lambda: world.evicted)
    replica.agent("n2", snapshot(fault()))
    await later(2 * LISTED)
    assert set(world.quarantines) == {"n1"}
    hold = present(replica.fleet.node_summaries["n2"].decision.hold)
    assert hold.limit == "pools.limits.concurrent"


async def test_without_pools_labels_of_nodes_change_nothing() -> None:
    """The same calls in the same order, whatever the labels do."""

    async def played(*, moves: bool) -> list[str]:
        world, calls = fleet_of(n1="canary", n2=""), list[str]()

        class Noted(MemoryCluster):
            async def _call(self, name: str, effect: object, guard: object = None) -> object:  # type: ignore[override]
                calls.append(name)
                return await super()._call(name, effect, guard)  # type: ignore[arg-type]

        replica = start(world, SETTINGS, Noted(world))
        await later(1)
        replica.agents(("n1", "n2"), snapshot(fault()))
        await soon(lambda: len(world.evicted) == 2)
        if moves:
            move(world, "n1", "")
            move(world, "n2", "canary")
        await later(2 * LISTED)
        await replica.stop()
        return calls

    assert await played(moves=True) == await played(moves=False)


# -- rules about some nodes ----------------------------------------------------------------------

DRAINS_CANARY = shipped_policy(
    "rules: [{name: gpu-gone, nodes: {matchLabels: {pool: canary}}, elsewhere: observe}]"
)
DRAINING = replace(SETTINGS, mode=Action.DRAIN)


async def test_a_rule_about_some_nodes_acts_there_alone() -> None:
    world = fleet_of(n1="canary", n2="")
    replica = Replica(world, clock=Running(), settings=DRAINING, policy=DRAINS_CANARY)
    await later(1)
    replica.agents(("n1", "n2"), snapshot(fault()))
    await soon(lambda: world.evicted)
    await later(LISTED)
    assert set(world.quarantines) == {"n1"}
    seen = replica.fleet.node_summaries["n2"].decision.incidents
    assert [one.action for one in seen.values()] == ["observe"]
    move(world, "n2", "canary")
    await soon(lambda: set(world.quarantines) == {"n1", "n2"}, within=LISTED)


async def test_a_move_away_from_a_rule_neither_releases_nor_lowers_also_over_a_restart() -> None:
    world = fleet_of(n1="canary")
    first = Replica(world, clock=Running(), settings=DRAINING, policy=DRAINS_CANARY)
    await later(1)
    first.agent("n1", snapshot(fault()))
    await soon(lambda: world.evicted)
    move(world, "n1", "")
    await later(2 * LISTED)
    quarantine = world.quarantines["n1"]
    assert quarantine.spec.action is Action.DRAIN
    await first.stop()
    second = Replica(world, clock=Running(), settings=DRAINING, policy=DRAINS_CANARY)
    await later(1)
    second.agent("n1", snapshot(fault()))
    await later(2000)
    assert world.quarantines["n1"].uid == quarantine.uid
    assert world.quarantines["n1"].spec.action is Action.DRAIN
    assert is_marked(world.nodes["n1"])
    second.agent("n1", Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    await soon(lambda: not world.quarantines)


async def test_a_held_node_that_moves_away_from_a_rule_is_not_proposed_any_more() -> None:
    world = fleet_of(n1="canary", n2="canary")
    limits = replace(DRAINING.limits, concurrent=1)
    replica = Replica(
        world, clock=Running(), settings=replace(DRAINING, limits=limits), policy=DRAINS_CANARY
    )
    await later(1)
    replica.agents(("n1", "n2"), snapshot(fault()))
    await soon(lambda: world.evicted)
    [held] = {"n1", "n2"} - set(world.quarantines)
    [first] = set(world.quarantines)
    move(world, held, "")
    await later(LISTED)
    assert replica.fleet.node_summaries[held].decision.hold is None
    replica.agent(first, Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    await soon(lambda: not world.quarantines)
    await later(LISTED)
    assert not world.quarantines


async def test_a_rule_about_some_nodes_acts_on_a_node_that_joined_after_the_start() -> None:
    """Its agent may report before any list has its labels."""
    world = fleet_of(n1="canary")
    replica = Replica(world, clock=Running(), settings=DRAINING, policy=DRAINS_CANARY)
    await later(1)
    replica.agent("n1", snapshot())
    world.add_node("n2", labels={"pool": "canary"})
    world.add_pod("n2", "job-n2")
    replica.agent("n2", snapshot(fault()))
    await later(1)
    assert not world.quarantines
    await soon(lambda: world.evicted, within=LISTED)
