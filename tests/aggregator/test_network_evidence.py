"""The input of triangulation, its origin, and the effect of its findings: called directly."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.health.model import Status
from aggregator.policy.network.triangulate import PEERS
from aggregator.policy.network.verdict import (
    CHECK,
    UNREACHABLE_SILENT,
    Edge,
    Finding,
    NetworkVerdict,
)
from aggregator.quarantine.correlation.network import (
    ASSIGNED_ANEW_WITHIN,
    GATHER,
    SILENT_FOR,
    NetworkTracker,
)
from aggregator.quarantine.decide.admission import FleetSize, Limits
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.support.replica import Notes, component, snapshot
from tests.support.virtual_time import VirtualTimeLoop, play, played_by

FINDING = Finding(Status.FAILED, "r", "m", 990.0)


class Graph:
    """Notes what it is given; its findings and verdicts are the test's."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.earlier: list[str] = []
        self.found: dict[str, Finding] = {}
        self.settled: tuple[dict[str, Finding], bool] = ({}, False)
        self.settles = 0
        self.blamed: list[NetworkVerdict] = []

    def __getattr__(self, name: str) -> Any:
        def note(*given: Any, **named: Any) -> None:
            self.given.append((name, *given, *named.values()))

        return note

    def assign(self, node: str, addresses: tuple[str, ...]) -> list[str]:
        self.given.append(("assign", node, addresses))
        return self.earlier

    def finding(self, node: str) -> Finding | None:
        return self.found.get(node)

    def settle(self, _: float) -> tuple[dict[str, Finding], bool]:
        self.settles += 1
        return self.settled

    def verdicts(self) -> list[NetworkVerdict]:
        return self.blamed

    def taken(self) -> list[tuple[Any, ...]]:
        given, self.given = self.given, []
        return given


class Desk:
    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.fleet, self.notes = FleetState(), Notes()
        self.registry = NodeRegistry(self.fleet, "", clocks=Clocks(loop.time, loop.time))
        self.registry.size = lambda: FleetSize(10, 10 if self.quorum else 0)  # type: ignore[method-assign]
        self.quorum = True
        self.evaluated: list[str] = []
        self.made: Any = NetworkTracker(
            node_registry=self.registry,
            event_sink=self.notes,
            clocks=Clocks(loop.time, lambda: 5000.0),
            labels=("rack",),
            queue=SimpleNamespace(evaluate=self._evaluate),
            limits=Limits(),
        )
        self.graph = Graph()
        self._feed()

    def _evaluate(self, node_state: Any) -> None:
        self.evaluated.append(node_state.node)

    def _feed(self) -> None:
        self.made._network = self.graph

    def has_health(self, node: str) -> Any:
        node_state: Any = self.registry.node_state(node)
        node_state.agent.health = SimpleNamespace(inferred=None)
        return node_state


def at_desk(test: Callable[[Desk], Any]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        desk = Desk(loop)
        await test(desk)
        desk.made.close()

    play(main)


pytestmark = pytest.mark.decorated(by=played_by(at_desk))


async def test_addresses_and_assignments_are_taken(desk: Desk) -> None:
    made = desk.made
    made.placed("n1", "")
    made.assigned("n1", ())
    assert (desk.graph.given, made._timer) == ([], None)
    made.placed("n1", "10.0.0.1")
    assert desk.graph.taken() == [("enlist", "n1", False), ("place", "n1", "10.0.0.1")]
    assert made._timer is not None
    made.placed("n1", "")
    assert desk.graph.taken() == [("place", "n1", "")]
    made.assigned("n1", ("10.0.0.2",))
    assert desk.graph.taken() == [("assign", "n1", ("10.0.0.2",))]
    made.assigned("n1", ())
    assert desk.graph.taken() == [("assign", "n1", ())]


async def test_a_snapshot_replaces_all_results_of_network_checks(desk: Desk) -> None:
    made = desk.made
    down = component(PEERS, "10.0.0.2", Status.FAILED, "x")
    reach = component("reach", "storage", Status.OK, "")
    made.on_evidence("n1", snapshot(down, reach, component("disk", "a", Status.FAILED, "x")))
    edges = [one for one in desk.graph.taken() if one[0] == "set_edge"]
    assert sorted(edges) == [
        ("set_edge", "n1", PEERS, "10.0.0.2", Status.FAILED),
        ("set_edge", "n1", "reach", "storage", Status.OK),
    ]
    made.on_evidence("n1", snapshot(reach))
    given = desk.graph.taken()
    assert ("set_report", "n1", True) in given
    assert ("set_edge", "n1", PEERS, "10.0.0.2", None) in given
    assert made._seen["n1"] == {("reach", "storage"): Status.OK}
    made.silent("n1")
    assert desk.graph.taken() == [("set_report", "n1", False)]


async def test_results_from_before_an_assignment_count_from_then_on(desk: Desk) -> None:
    made = desk.made
    made.on_evidence("n1", snapshot(component(PEERS, "10.0.0.2", Status.OK, "")))
    desk.graph.taken()
    desk.graph.earlier = ["10.0.0.2", "10.0.0.3"]
    made.assigned("n1", ("10.0.0.2", "10.0.0.3"))
    assert desk.graph.taken()[1:] == [("set_edge", "n1", PEERS, "10.0.0.2", Status.OK)]


async def test_nothing_is_evaluated_before_its_time_and_the_quorum(desk: Desk) -> None:
    made = desk.made
    assert (GATHER, ASSIGNED_ANEW_WITHIN, SILENT_FOR) == (1.0, 120.0, 300.0)
    now = desk.loop.time()
    assert made._may_evaluate(now)
    made._from = now + 10
    assert not made._may_evaluate(now + 9)
    assert made._may_evaluate(now + 10)
    made._from, made._had_quorum = now, False
    desk.quorum = False
    assert not made._may_evaluate(now)
    desk.quorum = True
    assert not made._may_evaluate(now)
    assert not made._may_evaluate(now + ASSIGNED_ANEW_WITHIN - 1)
    assert made._may_evaluate(now + ASSIGNED_ANEW_WITHIN)


async def test_changes_are_evaluated_together_after_a_moment(desk: Desk) -> None:
    made, node_state = desk.made, desk.has_health("n1")
    desk.graph.settled = ({"n1": FINDING}, False)
    desk.graph.blamed = [NetworkVerdict("target", "t", "m", 1.0, 1, 2, ())]
    made.placed("n1", "a")
    made.placed("n2", "b")
    await asyncio.sleep(GATHER / 2)
    assert desk.graph.settles == 0
    await asyncio.sleep(GATHER)
    assert desk.graph.settles == 1
    assert made._timer is None
    assert desk.evaluated == ["n1"]
    assert node_state.agent.health.inferred.status is Status.FAILED
    assert desk.fleet.network == {}, "no subject has changed"
    made._from = desk.loop.time() + 2
    made.placed("n1", "c")
    await asyncio.sleep(1.5)
    assert desk.graph.settles == 1
    desk.graph.settled = ({}, True)
    await asyncio.sleep(2)
    assert desk.graph.settles == 2
    assert desk.fleet.network.keys() == {"target t"}


async def test_a_finding_is_evidence(desk: Desk) -> None:
    made = desk.made
    made._take("n1", FINDING)
    assert desk.evaluated == []
    node_state = desk.has_health("n1")
    made._take("n1", replace(FINDING, edges=(Edge("n2", "10.0.0.1"),)))
    found = node_state.agent.health.inferred
    assert (found.check, found.message, found.since) == (CHECK, "m (n2 to 10.0.0.1)", 990.0)
    made._take("n1", replace(FINDING, since=995.0))
    assert node_state.agent.health.inferred.since == 995.0
    desk.evaluated.clear()
    well = Finding(Status.OK, "", "", 996.0)
    made._take("n1", well)
    assert desk.evaluated == []
    node_state.decision.incidents = {"i": 1}
    made._take("n1", well)
    assert desk.evaluated == ["n1"]
    desk.graph.found["n1"] = FINDING
    made.renew(node_state)
    assert node_state.agent.health.inferred.status is Status.OK
    node_state.agent.health.inferred = None
    made.renew(node_state)
    assert node_state.agent.health.inferred.status is Status.FAILED


async def test_a_node_that_is_unreachable_and_silent_is_told_after_its_time_and_found_again(
    desk: Desk,
) -> None:
    made = desk.made
    lost = Finding(Status.FAILED, UNREACHABLE_SILENT, "nobody reaches it", desk.loop.time())
    desk.graph.found["n1"] = lost
    made._take("n1", lost)
    await asyncio.sleep(SILENT_FOR - 1)
    made.go_round()
    assert desk.notes.transitions == []
    made._take("n1", replace(lost, since=desk.loop.time()))
    await asyncio.sleep(1)
    made.go_round()
    made.go_round()
    (told,) = desk.notes.transitions
    assert (told.kind.name, told.summary) == ("NODE_LOST", "n1: nobody reaches it")
    made._take("n1", Finding(Status.UNKNOWN, "little", "", 1.0))
    assert len(desk.notes.transitions) == 1
    made._take("n1", Finding(Status.OK, "", "", 1.0))
    assert desk.notes.transitions[1].kind.name == "NODE_FOUND"
    assert (made._lost, made._reported) == ({}, set())
    made._take("n1", Finding(Status.OK, "", "", 1.0))
    assert len(desk.notes.transitions) == 2


@pytest.mark.parametrize(
    ("kind", "count", "cause"),
    [("target", 999, True), ("target", 1, False), ("domain", 999, False)],
)
async def test_a_subject_is_told_when_it_is_blamed_and_when_no_more(
    desk: Desk, kind: str, count: int, *, cause: bool
) -> None:
    made = desk.made
    verdict = NetworkVerdict(kind, "t", "all miss it", 5.0, count, 9, ("n1", "n2"))
    desk.graph.blamed = [verdict]
    made.assign_targets()
    desk.graph.blamed = [replace(verdict, since=8.0)]
    made.assign_targets()
    assert desk.fleet.network[verdict.subject].since == 5.0
    (told,) = desk.notes.transitions
    assert (told.summary, told.incident) == ("network: all miss it", f"{kind} t")
    assert told.details["nodes"] == "n1, n2"
    assert (told.details["blamed"], told.details["name"]) == (kind, "t")
    assert ("cause" in told.details) == cause
    desk.graph.blamed = []
    made.assign_targets()
    assert desk.fleet.network == {}
    assert desk.notes.transitions[1].kind.name == "NETWORK_CLEARED"
    assert desk.notes.transitions[1].summary == f"network: {kind} t is blamed no more"
