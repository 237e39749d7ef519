"""The controller's conclusions from the reports of which nodes reach which."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from aggregator.cluster.port import Phase
from aggregator.health.model import Component, Delta, Snapshot, Status
from aggregator.policy.rules import Policy
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.web.node_view import ViewMoment
from tests.support import virtual_time
from tests.support.fleet_views import view_fleet
from tests.support.memory_cluster import World, phase_of
from tests.support.networks import RACK, TARGET, Network, address, name
from tests.support.present import of_type, present
from tests.support.replica import OPEN, POLICY, SETTINGS, FakeLine, Replica, shipped_policy
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import played_by
from tests.support.waiting import until

SIZE = 160
LABEL = "topology.kubernetes.io/rack"
SITE = replace(
    SETTINGS, limits=OPEN, common=replace(CommonLimits(), domain_labels=(LABEL,), clique_label="")
)


class Site:
    """A network of nodes, their agents and one aggregator."""

    def __init__(
        self, loop: virtual_time.VirtualTimeLoop, world: World, policy: Policy = POLICY
    ) -> None:
        self.loop = loop
        self.world = world
        self.net = Network(SIZE, random.Random(1))
        self.replica = Replica(world, clock=LoopClock(loop), settings=SITE, policy=policy)
        self.lines = [FakeLine() for _ in range(SIZE)]

    async def start(self) -> None:
        await until(lambda: not self.replica.fleet.view_lost)
        for node in range(SIZE):
            self.replica.controller.placed(name(node), address(node))
            self.replica.controller.assigned(name(node), self.net.assigned(node))
            self.speak(node)
        await asyncio.sleep(5)

    def speak(self, node: int) -> None:
        self.replica.agent(name(node), Snapshot(self.seen(node), ()), line=self.lines[node])

    def seen(self, node: int) -> tuple[Component, ...]:
        now = self.loop.time()
        return tuple(
            Component(check, what, Status.OK if fine else Status.FAILED, "", "", now)
            for check, what, fine in self.net._seen_by(node)
        )

    async def observe(self) -> None:
        """All agents look, within half a minute."""
        for node in range(SIZE):
            if node not in self.net.silent:
                self.replica.agent(name(node), Delta(components=self.seen(node)))
        await asyncio.sleep(30)

    def fall_silent(self, node: int) -> None:
        self.net.silent.add(node)
        self.replica.controller.on_disconnect(name(node), self.lines[node], "gone")

    def summaries_of(self, kind: str) -> list[str]:
        return [t.summary for t in self.replica.notes.transitions if t.kind.value == kind]


def on_a_site(test: Callable[[Site], Awaitable[None]], policy: Policy = POLICY) -> None:
    async def main() -> None:
        loop = of_type(asyncio.get_running_loop(), virtual_time.VirtualTimeLoop)
        world = World()
        for node in range(SIZE):
            world.add_node(name(node), labels={LABEL: f"r{node // RACK}"})
        site = Site(loop, world, policy)
        await site.start()
        await test(site)
        await site.replica.stop()

    virtual_time.run(main())


pytestmark = pytest.mark.decorated(by=played_by(on_a_site))


def drop_echoes(site: Site, victim: int, status: Status) -> None:
    """No node's echo to the victim is answered (or each is), while it still reaches all others."""
    for node in range(SIZE):
        if victim in site.net.peers[node]:
            edge = Component("peers", address(victim), status, "", "", site.loop.time())
            site.replica.agent(name(node), Delta(components=(edge,)))


async def test_a_node_that_nobody_reaches_is_cordoned_when_it_has_lasted_and_released_when_well(
    site: Site,
) -> None:
    drop_echoes(site, 7, Status.FAILED)
    await asyncio.sleep(60)
    assert site.world.quarantines == {}
    await asyncio.sleep(60)
    assert list(site.world.quarantines) == ["node-7"]
    spec = site.world.quarantines["node-7"].spec
    assert (spec.action.value, spec.kind) == ("cordon", "network")
    assert spec.evidence[0].code == "triangulation:unreachable"
    assert phase_of(site.world, "node-7") is Phase.CORDONED
    drop_echoes(site, 7, Status.OK)
    await asyncio.sleep(400)
    assert site.world.quarantines == {}


#: A site that cordons what is only observed as shipped.
DOUBTFUL = shipped_policy("rules: [{name: network-doubtful, action: cordon, for: 90s}]")


@played_by(on_a_site, DOUBTFUL)
async def test_a_site_may_cordon_a_node_that_reaches_no_other_one_although_it_is_reached(
    site: Site,
) -> None:
    site.net.mute = {7}
    for _ in range(6):
        await site.observe()
    spec = site.world.quarantines["node-7"].spec
    assert list(site.world.quarantines) == ["node-7"]
    assert (spec.action.value, spec.evidence[0].code) == ("cordon", "triangulation:one-way")
    site.net.mute = set()
    await site.observe()
    await asyncio.sleep(900)
    assert site.world.quarantines == {}


@played_by(on_a_site, DOUBTFUL)
async def test_no_policy_quarantines_a_node_that_is_unreachable_and_whose_agent_is_silent(
    site: Site,
) -> None:
    """Each node that boots is one."""
    site.net.down = {7}
    site.fall_silent(7)
    for _ in range(20):
        await site.observe()
    health = present(site.replica.fleet.node_summaries["node-7"].agent.health)
    assert health.inferred is not None
    assert (health.inferred.status, health.inferred.reason) == (
        Status.FAILED,
        "unreachable-silent",
    )
    assert site.world.quarantines == {}


async def test_a_verdict_is_no_part_of_what_the_agent_knows(site: Site) -> None:
    before = site.replica.controller.digest("node-7")
    drop_echoes(site, 7, Status.FAILED)
    await asyncio.sleep(5)
    health = present(site.replica.fleet.node_summaries["node-7"].agent.health)
    assert any(one.status is Status.FAILED for one in health.levels())
    assert site.replica.controller.digest("node-7") == before
    site.speak(7)  # its next snapshot doesn't wash it away
    assert any(one.status is Status.FAILED for one in health.levels())


async def test_a_rack_that_is_lost_is_told_once_and_quarantines_nobody(site: Site) -> None:
    site.net.gateways_down = {1}
    for _ in range(20):
        await site.observe()
    assert site.world.quarantines == {}
    (verdict,) = site.replica.fleet.network.values()
    assert verdict.subject == f"domain {LABEL}=r1"
    assert len(site.summaries_of("network.blamed")) == 1
    site.net.gateways_down = set()
    for _ in range(4):
        await site.observe()
    assert site.replica.fleet.network == {}
    assert len(site.summaries_of("network.cleared")) == 1
    await asyncio.sleep(600)
    assert site.world.quarantines == {}


async def test_a_target_that_all_miss_is_told_once_and_quarantines_nobody(site: Site) -> None:
    site.net.missed = {TARGET}
    for _ in range(20):
        await site.observe()
    assert site.world.quarantines == {}
    assert len(site.summaries_of("network.blamed")) == 1
    assert len(site.summaries_of("fleet.common_cause")) == 1  # this event is alerted


async def test_a_quarantine_for_the_network_outlives_the_aggregator_and_ends_when_it_is_reached(
    site: Site,
) -> None:
    drop_echoes(site, 7, Status.FAILED)
    await asyncio.sleep(120)
    assert list(site.world.quarantines) == ["node-7"]
    await site.replica.stop()
    after = Site(site.loop, site.world)
    await until(lambda: not after.replica.fleet.view_lost)
    after.replica.controller.placed("node-7", address(7))
    after.speak(7)
    await asyncio.sleep(900)  # no other node has spoken: there is no report that it is reached
    assert list(site.world.quarantines) == ["node-7"]
    await after.start()
    await asyncio.sleep(400)
    assert site.world.quarantines == {}
    site.replica = after.replica


async def test_what_is_blamed_is_on_the_page_and_a_target_that_is_a_common_cause_not_twice(
    site: Site,
) -> None:
    site.net.missed, site.net.gateways_down = {TARGET}, {5}
    for _ in range(4):
        await site.observe()
    fleet = site.replica.fleet
    shown = view_fleet(fleet, ViewMoment(site.loop.time(), site.loop.time())).causes
    assert [(one.value, one.nodes, one.total) for one in shown if one.scope == "network"] == [
        ("domain", RACK, RACK)
    ]
    assert {one.scope for one in shown} >= {"network", "target"}
    assert all(one.advice for one in shown)
