"""The checks before a node condition for other tools becomes unhealthy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.condition_record import WrittenCondition
from aggregator.cluster.port import (
    GuardRefused,
    NodeCondition,
    NodeGuard,
    NodeMeta,
    WrittenConditions,
)
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.quarantine.decide.node_conditions import NodeConditionRule
from aggregator.quarantine.decide.operator_requests import EXEMPT, exemption
from aggregator.quarantine.reconcile.node_conditions import NodeConditionPublisher
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.replica import hello, snapshot

RULE = NodeConditionRule("example.com/Bad", ("disk-*",), "True", "evidence")
EVIDENCE = Evidence("disk-space:full", "/", "b", "disk-full", "cordon", "", None, 0.0, "")
INCIDENT = Incident("i", "n", "b", "disk", "cordon", "s", 0.0, (EVIDENCE,), 0.0)


class Recorder(MemoryCluster):
    """Keeps what would be written; ``annotations`` are the Node's at that moment."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        super().__init__(World())
        self.annotations = annotations
        self.written: list[str] = []

    async def write_conditions(
        self,
        node: str,
        *,
        node_uid: str,
        wanted: Mapping[str, NodeCondition | None],
        guard: NodeGuard,
    ) -> WrittenConditions:
        assert guard is not None
        worsens = any(one is not None and one.unhealthy for one in wanted.values())
        await guard(self.annotations if worsens else None)
        self.written.append(node)
        there = {kind: one for kind, one in wanted.items() if one is not None}
        return WrittenConditions(
            {
                kind: WrittenCondition(one.status, one.reason, "sickbay")
                for kind, one in there.items()
            }
        )


@dataclass
class Doubts:
    """The state at the time when the request is sent."""

    stopped: bool = False
    lost: bool = False
    annotations: dict[str, str] = field(default_factory=dict)


def made(doubts: Doubts) -> tuple[NodeConditionPublisher, Recorder, NodeRegistry]:
    """The publisher over one node with an incident."""
    cluster, fleet = Recorder(doubts.annotations), FleetState()
    registry = NodeRegistry(fleet, "")
    registry.listed([NodeMeta("n", "u")])
    registry.node_state("n").decision.incidents = {"i": INCIDENT}

    async def check_place() -> None:
        if doubts.lost:
            raise GuardRefused("this replica may not be the controller any more")

    async def check() -> None:
        await check_place()
        if doubts.stopped:
            raise GuardRefused("the stop switch is set")

    queue: Any = SimpleNamespace(view=True, holds_lease=lambda: True)
    switch: Any = SimpleNamespace(check=check, check_place=check_place)
    publisher = NodeConditionPublisher(
        cluster=cluster,
        rules=[RULE],
        node_registry=registry,
        queue=queue,
        clocks=Clocks(lambda: 50.0, lambda: 1000.0),
        switch=switch,
    )
    return publisher, cluster, registry


@pytest.mark.parametrize(
    ("doubts", "written"),
    [
        (Doubts(), ["n"]),
        (Doubts(annotations={EXEMPT: exemption(2000.0, "benchmark")}), []),
        (Doubts(annotations={EXEMPT: exemption(900.0, "benchmark")}), ["n"]),
        (Doubts(stopped=True), []),
        (Doubts(lost=True), []),
    ],
)
async def test_no_condition_becomes_unhealthy_on_a_picture_that_is_too_old(
    doubts: Doubts, written: list[str]
) -> None:
    publisher, cluster, _ = made(doubts)
    await publisher.sweep()
    assert cluster.written == written


@pytest.mark.parametrize("place_is_lost", [False, True])
async def test_no_replica_that_has_lost_its_place_reports_that_a_node_is_well(
    *, place_is_lost: bool
) -> None:
    """The next controller may have found it unhealthy since; the stop switch holds no recovery."""
    doubts = Doubts()
    publisher, cluster, registry = made(doubts)
    await publisher.sweep()
    agent = registry.node_state("n").agent
    agent.connect(hello("n"), 1.0)
    assert agent.health is not None
    agent.health.snapshot(snapshot())
    registry.node_state("n").decision.incidents = {}
    doubts.stopped, doubts.lost = not place_is_lost, place_is_lost
    await publisher.sweep()
    assert cluster.written == (["n"] if place_is_lost else ["n", "n"])


@pytest.mark.parametrize("doubts", [Doubts(), Doubts(stopped=True)])
async def test_a_node_that_has_left_the_cluster_is_forgotten(doubts: Doubts) -> None:
    publisher, _, registry = made(doubts)
    await publisher.sweep()
    assert [*publisher._written, *publisher._waits] == ["n"]
    registry.listed([])
    registry.forget_node(registry.node_state("n"))
    await publisher.sweep()
    assert not publisher._written
    assert not publisher._waits
