"""Which nodes are read now and then, in which order, and what a read makes of each: no replica."""

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Unreachable,
)
from aggregator.events import EventKind
from aggregator.health.model import Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import PIN
from aggregator.quarantine.decide.uncordon import Uncordoned
from aggregator.quarantine.reconcile.poller import (
    A_SECOND,
    DRAINED_EVERY,
    DRAINING_EVERY,
    SILENT_EVERY,
    WAITING_EVERY,
    NodePoller,
    failing_in_silence,
)
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.support.draws import HighestDraw
from tests.support.node_states import set_fields
from tests.support.replica import component, hello, snapshot
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time, play

pytestmark = pytest.mark.decorated(by=in_virtual_time)

UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}
FOREVER = float("-inf")
HELD = Held("maintenance", "others", "x", since=1.0)


def bare(**changes: Any) -> Node:
    found = Node("n1", "u1", "1", unschedulable=True, taints=(), labels={}, annotations={})
    return replace(found, **changes)


def quarantine(phase: Phase, *, foreign: str = "") -> Quarantine:
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS)
    return Quarantine(
        "n1", "q", "1", spec, QuarantineStatus(phase=phase, node_uid="u1"), foreign=foreign
    )


@dataclass
class Bench:
    """A poller, and what it reads, sees to, evaluates and tells."""

    time: float = 1000.0
    nodes: dict[str, Node | None] = field(default_factory=lambda: {"n1": bare()})
    loop: VirtualTimeLoop | None = None
    ours: bool = True
    fails: bool = False
    reads: list[tuple[str, bool]] = field(default_factory=list)
    seen_to: list[str] = field(default_factory=list)
    evaluated: list[str] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clocks = Clocks(self.now, self.now)
        self.node_registry = NodeRegistry(FleetState(), "", clocks=self.clocks)
        self.poller = NodePoller(
            cluster=cast(Any, self),
            node_registry=self.node_registry,
            reports=cast(Any, self),
            queue=cast(
                Any,
                SimpleNamespace(
                    holds_lease=lambda: self.ours,
                    add=lambda node_state: self.seen_to.append(node_state.node),
                    add_for_read=self.add_for_read,
                    evaluate=lambda node_state: self.evaluated.append(node_state.node),
                ),
            ),
            rng=HighestDraw(),
        )

    def add_for_read(self, node_state: NodeState) -> None:
        node_state.work.needs_read = True
        self.seen_to.append(node_state.node)

    def now(self) -> float:
        return self.loop.time() if self.loop else self.time

    async def read_node(self, name: str, *, cached: bool, background: bool) -> Node | None:
        assert background
        self.reads.append((name, cached))
        if self.fails:
            raise Unreachable("no answer")
        return self.nodes[name]

    def emit_event(self, node_state: NodeState, kind: EventKind, text: str) -> None:
        assert kind is EventKind.SILENT_FAILING
        self.told.append((node_state.node, text))

    def node_state(self, name: str = "n1") -> Any:
        return self.node_registry.node_state(name)

    def due(self) -> list[str]:
        due = asyncio.run(self.poller._due())
        return [node_state.node for node_state in due]

    def is_due(self, node_state: NodeState, *, after: float, every: float) -> None:
        """It is due so long after it was looked at, and not before."""
        for waited, due in ((every - 0.1, False), (every, True)):
            node_state.work.polled_at, self.time = 5000.0, 5000.0 + after + waited
            assert self.poller._is_due(node_state) == due, waited

    async def poll(self, node_state: NodeState) -> None:
        self.seen_to.clear()
        self.evaluated.clear()
        node_state.work.needs_read = False
        await self.poller.poll_node(node_state)


def silent_node(bench: Bench) -> Any:
    node_state = bench.node_state()
    node_state.agent.health = NodeHealth(hello("n1"))
    node_state.agent.health.snapshot(snapshot(component("disk", "/data", Status.FAILED, "dead")))
    node_state.agent.silent = True
    return node_state


# -- what is due ----------------------------------------------------------------------------------


def test_how_often_a_node_is_looked_at_goes_by_what_it_is_in() -> None:
    bench = Bench()
    node_state = bench.node_state()
    assert not bench.poller._is_due(node_state), "nothing is known of it"
    node_state.quarantine_view.quarantine = quarantine(Phase.DRAINING)
    bench.is_due(node_state, after=0, every=DRAINING_EVERY)
    node_state.quarantine_view.quarantine = quarantine(Phase.DRAINED)
    bench.is_due(node_state, after=0, every=DRAINED_EVERY)
    node_state.quarantine_view.uncordoned = Uncordoned.UNKNOWN
    bench.is_due(node_state, after=0, every=DRAINING_EVERY)
    node_state.quarantine_view.uncordoned = Uncordoned.NO
    for phase in (Phase.CORDONED, Phase.ADMITTED, Phase.RELEASING):
        node_state.quarantine_view.quarantine = quarantine(phase)
        node_state.work.polled_at = FOREVER
        assert not bench.poller._is_due(node_state)
    node_state.quarantine_view.quarantine = quarantine(Phase.DRAINING, foreign="elsewhere")
    assert not bench.poller._is_due(node_state)
    bench.ours = False
    node_state.quarantine_view.quarantine = quarantine(Phase.DRAINING)
    assert not bench.poller._is_due(node_state)


def test_the_kubelet_of_a_silent_agent_is_looked_at_once_a_minute() -> None:
    bench = Bench()
    bench.is_due(silent_node(bench), after=0, every=SILENT_EVERY)


def test_nodes_that_wait_for_others_are_read_twice_a_minute_and_one_a_second_at_most() -> None:
    bench = Bench()
    node_state = bench.node_state()
    set_fields(node_state, quarantine=quarantine(Phase.CORDONED), maintained="kured")
    bench.is_due(node_state, after=0, every=WAITING_EVERY)
    for number in range(100):
        other = bench.node_state(f"m{number}")
        set_fields(other, quarantine=quarantine(Phase.CORDONED), maintained="x", polled_at=5000.0)
    assert bench.due() == []
    bench.is_due(node_state, after=0, every=101.0)
    node_state.cluster.maintained = ""
    assert not bench.poller._is_due(node_state)


def test_what_is_drained_comes_first_then_what_waits_then_the_longest_unseen() -> None:
    bench = Bench()
    for number, name in enumerate(("old", "older", "waits", "drains", "drains-2")):
        bench.node_state(name).work.polled_at = 100.0 - number
    for name in ("old", "older"):
        bench.node_state(name).quarantine_view.quarantine = quarantine(Phase.DRAINED)
    waits = bench.node_state("waits")
    set_fields(waits, quarantine=quarantine(Phase.CORDONED), maintained="kured")
    for name in ("drains", "drains-2"):
        bench.node_state(name).quarantine_view.quarantine = quarantine(Phase.DRAINING)
    bench.time += 1000
    assert bench.due() == ["drains-2", "drains", "waits", "older", "old"]


def test_a_round_has_so_many_nodes_at_most() -> None:
    bench = Bench()
    for number in range(40):
        node_state = bench.node_state(f"n{number}")
        set_fields(node_state, quarantine=quarantine(Phase.DRAINING), polled_at=0.0)
    assert len(bench.due()) == 25


def test_the_pods_of_a_drained_node_are_not_read_at_once_after_a_restart() -> None:
    bench = Bench()
    node_state = bench.node_state()
    node_state.quarantine_view.quarantine = quarantine(Phase.DRAINED)
    assert bench.due() == []
    assert node_state.work.polled_at == 1000.0 - DRAINED_EVERY * 0.3
    node_state.work.polled_at = 1.0
    assert bench.due() == ["n1"]
    assert node_state.work.polled_at == 1.0
    other = bench.node_state("n2")
    other.quarantine_view.quarantine = quarantine(Phase.DRAINING)
    assert bench.due() == ["n2", "n1"]
    assert other.work.polled_at == FOREVER


def test_nodes_are_read_a_few_a_second_and_only_while_each_is_still_due() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        bench = Bench(loop=loop)
        for name in ("n1", "n2", "n3"):
            bench.nodes[name] = bare()
            bench.node_state(name).quarantine_view.quarantine = quarantine(Phase.DRAINING)
        begun = loop.time()
        rounds = asyncio.ensure_future(bench.poller.run())
        await asyncio.sleep(0.01)
        assert len(bench.reads) == 1
        bench.node_state("n2").quarantine_view.quarantine = None
        await asyncio.sleep(1 / A_SECOND)
        assert [name for name, _ in bench.reads] == ["n1", "n3"]
        await asyncio.sleep(DRAINING_EVERY - 1)
        assert len(bench.reads) == 2
        await asyncio.sleep(8)
        assert len(bench.reads) == 4
        assert loop.time() - begun < 30
        rounds.cancel()

    play(test)


# -- what a read makes of a node ------------------------------------------------------------------


async def test_a_node_that_waits_is_read_from_the_cache_and_left_while_others_are_at_work() -> None:
    bench = Bench()
    node_state = bench.node_state()
    bench.nodes["n1"] = bare(labels=UPGRADE)
    node_state.take_node(bench.nodes["n1"])
    node_state.quarantine_view.quarantine = quarantine(Phase.CORDONED)
    await bench.poll(node_state)
    assert (bench.seen_to, bench.reads) == ([], [("n1", True)])


@pytest.mark.parametrize(
    ("gone", "labels", "suspect"),
    [(False, UPGRADE, False), (True, UPGRADE, True), (False, {}, True)],
)
async def test_a_node_is_read_in_full_when_those_it_waits_for_have_ended_or_it_is_back(
    *, gone: bool, labels: dict[str, str], suspect: bool
) -> None:
    bench = Bench()
    node_state = bench.node_state()
    node_state.take_node(bare(labels=UPGRADE))
    node_state.decision.hold, node_state.cluster.node_gone = HELD, gone
    await bench.poller._due()
    bench.nodes["n1"] = bare(labels=labels, annotations={PIN: "x"})
    await bench.poll(node_state)
    assert node_state.work.needs_read == suspect
    assert bench.seen_to == (["n1"] if suspect else [])
    assert bench.evaluated == [], "what people ask is read with the node"


async def test_a_drained_nodes_pods_are_read_and_the_node_only_where_it_is_schedulable() -> None:
    bench = Bench()
    node_state = bench.node_state()
    set_fields(node_state, quarantine=quarantine(Phase.DRAINED), polled_at=1.0)
    await bench.poll(node_state)
    assert node_state.work.recheck_pods
    assert bench.seen_to == ["n1"]
    assert bench.reads == []
    assert node_state.work.polled_at == 1000.0 - DRAINED_EVERY * 0.3
    node_state.quarantine_view.uncordoned = Uncordoned.UNKNOWN
    await bench.poll(node_state)
    assert bench.reads == [("n1", False)]


async def test_what_cant_be_read_or_is_gone_changes_nothing() -> None:
    bench = Bench()
    node_state = bench.node_state()
    node_state.quarantine_view.quarantine = quarantine(Phase.DRAINING)
    node_state.quarantine_view.uncordoned = Uncordoned.UNKNOWN
    bench.fails = True
    await bench.poll(node_state)
    assert not node_state.work.needs_read
    bench.fails, bench.nodes["n1"] = False, None
    await bench.poll(node_state)
    assert not node_state.work.needs_read
    assert node_state.work.polled_at == bench.time
    bench.nodes["n1"] = bare()
    await bench.poll(node_state)
    assert node_state.work.needs_read, "the positive control"


async def test_a_node_that_was_left_schedulable_is_read_when_it_is_cordoned_or_has_lost_more() -> (
    None
):
    bench = Bench()
    node_state = bench.node_state()
    left = bare(unschedulable=False)
    node_state.quarantine_view.quarantine = quarantine(Phase.CORDONED)
    for uncordoned, node, lacks, suspect in (
        (Uncordoned.UNKNOWN, left, True, False),
        (Uncordoned.UNKNOWN, bare(), True, True),
        (Uncordoned.UNKNOWN, left, False, True),
        (Uncordoned.NO, bare(), False, False),
    ):
        node_state.quarantine_view.uncordoned, bench.nodes["n1"] = uncordoned, node
        node_state.quarantine_view.missing = (
            node_state.quarantine_view.lacks(node, node_state.quarantine) if lacks else ()
        )
        await bench.poll(node_state)
        assert node_state.work.needs_read == suspect
        assert bench.seen_to == (["n1"] if suspect else [])


async def test_what_people_and_others_do_to_a_node_that_is_drained_is_heard() -> None:
    bench = Bench()
    node_state = bench.node_state()
    node_state.quarantine_view.quarantine = quarantine(Phase.DRAINING)
    await bench.poll(node_state)
    assert (node_state.work.needs_read, bench.evaluated, bench.seen_to) == (False, [], [])
    bench.nodes["n1"] = bare(annotations={PIN: "x"})
    await bench.poll(node_state)
    assert (node_state.work.needs_read, bench.evaluated, bench.seen_to) == (False, ["n1"], [])
    assert node_state.cluster.operator_requests.pinned
    await bench.poll(node_state)
    assert bench.evaluated == []
    for node in (bare(labels=UPGRADE), bare(unschedulable=False)):
        bench.nodes["n1"] = replace(node, annotations={PIN: "x"})
        await bench.poll(node_state)
        assert (node_state.work.needs_read, bench.evaluated, bench.seen_to) == (True, [], ["n1"])


# -- silence --------------------------------------------------------------------------------------


async def test_a_silent_agents_last_word_is_told_once_and_only_where_its_kubelet_is_ready() -> None:
    bench = Bench()
    node_state = silent_node(bench)
    for ready in (None, False):
        bench.nodes["n1"] = bare(ready=ready)
        await bench.poll(node_state)
        assert (node_state.agent.silent_failing, bench.told) == ("", [])
    bench.nodes["n1"] = bare(ready=True)
    await bench.poll(node_state)
    assert node_state.agent.silent_failing == "disk /data: dead"
    assert node_state.agent.silent_failing_since == bench.time
    assert bench.evaluated == ["n1"]
    await bench.poll(node_state)
    assert len(bench.told) == 1
    assert bench.evaluated == []
    node_state.agent.silent, node_state.agent.silent_failing = False, ""
    await bench.poll(node_state)
    assert node_state.agent.silent_failing == ""


def test_only_a_silent_node_that_is_not_in_quarantine_was_failing_in_silence() -> None:
    node_state = silent_node(Bench())
    assert failing_in_silence(node_state) == "disk /data: dead"
    node_state.agent.attached = True
    assert failing_in_silence(node_state) == ""
    node_state.agent.attached, node_state.agent.silent = False, False
    assert failing_in_silence(node_state) == ""
    node_state.agent.silent, node_state.agent.conflict = True, "two agents"
    assert failing_in_silence(node_state) == ""
    set_fields(node_state, conflict="", quarantine=quarantine(Phase.CORDONED))
    assert failing_in_silence(node_state) == ""
    node_state.quarantine_view.quarantine = None
    item = Evidence("xid:79", "GPU-1", "boot-1", "gpu", "drain", "", None, 1.0)
    drained = Incident("i", "n1", "boot-1", "gpu", "drain", "a bad GPU", 1.0, (item,), 60.0)
    node_state.decision.incidents = {"i": drained}
    assert failing_in_silence(node_state) == "a bad GPU"
    node_state.decision.incidents = {"i": replace(drained, action="observe")}
    assert failing_in_silence(node_state) == "disk /data: dead"
    over = replace(drained, evidence=(replace(item, over="cleared"),))
    node_state.decision.incidents = {"i": over}
    assert failing_in_silence(node_state) == "disk /data: dead"
    node_state.agent.health = None
    assert failing_in_silence(node_state) == ""
