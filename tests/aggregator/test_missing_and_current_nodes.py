"""Nodes that are gone, and names made anew: each rule by itself, no replica."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, Unreachable
from aggregator.quarantine.reconcile import missing_nodes
from aggregator.quarantine.reconcile.current_nodes import CurrentNodes
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.support.present import of_type
from tests.support.tasks import end_tasks
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time, loop_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

# -- names whose Node is gone ---------------------------------------------------------------------


class Missing:
    """Follows names of a cluster that the test plays."""

    def __init__(self) -> None:
        self.back: list[str] = []
        self.polled: list[str] = []
        self.there: set[str] = set()
        self.may = True
        self.error: ClusterError | None = None
        self.arrivals: dict[str, asyncio.Event] = {}
        cluster: Any = self
        queue: Any = SimpleNamespace(
            add_for_read=lambda node_state: self.back.append(node_state.node),
            holds_lease=lambda: self.may,
        )
        self.made: Any = MissingNodes(cluster=cluster, queue=queue, rng=random.Random(1))

    async def wait_for_node(self, name: str) -> None:
        if self.error is not None:
            raise self.error
        await self.arrivals.setdefault(name, asyncio.Event()).wait()

    async def read_node(self, name: str, *, cached: bool) -> object | None:
        assert cached
        self.polled.append(name)
        if self.error is not None:
            raise self.error
        return object() if name in self.there else None

    def node_state(self, name: str, *, gone: bool = True, is_there: bool = True) -> Any:
        found: Any = NodeState(name, now=lambda: 1.0)
        found.cluster.node_gone = gone
        found.quarantine_view.quarantine = object() if is_there else None
        return found


async def test_a_name_is_followed_while_its_node_is_gone_its_quarantine_stands_and_it_is_ours() -> (
    None
):
    bench = Missing()
    for given in ({"gone": False}, {"is_there": False}):
        bench.made.follow(bench.node_state("n1", **given))
    bench.may = False
    bench.made.follow(bench.node_state("n1"))
    assert bench.made._watches == {}
    bench.may = True
    node_state = bench.node_state("n1")
    bench.made.follow(node_state)
    (_, first) = bench.made._watches["n1"]
    bench.made.follow(node_state)
    assert bench.made._watches["n1"] == (node_state, first), "one watch for a name"
    await asyncio.sleep(0)
    assert bench.back == []
    bench.arrivals["n1"].set()
    await first
    assert bench.back == ["n1"]
    assert bench.made._watches == {}


async def test_a_watch_that_fails_is_reported_as_a_return_after_a_pause() -> None:
    bench = Missing()
    bench.error = Unreachable("x")
    began = loop_time()
    bench.made.follow(bench.node_state("n1"))
    await bench.made._watches["n1"][1]
    assert 1.0 <= loop_time() - began <= 3.0
    assert bench.back == ["n1"], "a read tells, and follows it again"
    assert bench.made._watches == {}


async def test_while_no_name_is_followed_there_are_no_rounds() -> None:
    bench = Missing()
    loop = of_type(asyncio.get_running_loop(), VirtualTimeLoop)
    running = asyncio.create_task(bench.made.run())
    for name in ("n1", "n2"):  # the first name, and one after a time without any
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {running, asyncio.current_task()}
        asleep = [one for one in loop._scheduled if not one.timer._cancelled]
        assert asleep == [], "nothing is due"
        node_state = bench.node_state(name)
        bench.made.follow(node_state)
        await asyncio.sleep(0.5)
        assert bench.made._watches.keys() == {name}
        node_state.cluster.node_gone = False
        await asyncio.sleep(2)
        assert bench.made._watches == {}, "its round has found it there"
    await end_tasks(running)


async def test_names_beyond_those_with_a_watch_are_polled_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(missing_nodes, "FOLLOWED", 1)
    bench = Missing()
    node_states = {name: bench.node_state(name) for name in ("a", "b", "c")}
    for node_state in node_states.values():
        bench.made.follow(node_state)
    assert bench.made._watches.keys() == {"a"}
    assert list(bench.made._polled) == ["b", "c"]
    began = loop_time()
    running = asyncio.create_task(bench.made.run())
    await asyncio.sleep(0.9)
    assert bench.polled == ["b", "c", "b", "c", "b"], "five in a second"
    assert bench.back == []
    bench.there.add("c")
    await asyncio.sleep(0.2)
    assert bench.back == ["c"]
    node_states["c"].cluster.node_gone = False
    await asyncio.sleep(1)
    assert "c" not in bench.made._polled, "it is there"
    bench.arrivals["a"].set()
    await asyncio.sleep(0.5)
    assert bench.back.count("a") == 1
    assert bench.made._watches.keys() == {"b"}, "a watch is free"
    assert bench.made._polled == {}
    polled = len(bench.polled)
    node_states["b"].cluster.node_gone = False
    await asyncio.sleep(2)
    assert bench.made._watches == {}
    assert bench.back.count("b") == 0
    assert len(bench.polled) == polled
    assert loop_time() - began < 10
    bench.arrivals.clear()
    bench.made.follow(node_states["a"])
    (_, watch) = bench.made._watches["a"]
    await asyncio.sleep(0)
    await end_tasks(running)
    await asyncio.gather(watch, return_exceptions=True)
    assert watch.cancelled()


async def test_a_poll_that_fails_keeps_the_name_for_its_next_turn() -> None:
    bench = Missing()
    bench.made._polled = {"a": bench.node_state("a"), "b": bench.node_state("b")}
    bench.error = Unreachable("x")
    await bench.made._poll(bench.made._polled["a"])
    assert list(bench.made._polled) == ["b", "a"]
    assert bench.made._watches == {}
    assert bench.back == []


# -- whether a token's Node is current ------------------------------------------------------------


class Current:
    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        self.reads = 0
        self.queue = SimpleNamespace(view=True)
        self.error: ClusterError | None = None
        self.registry = NodeRegistry(FleetState(), "pool", clocks=Clocks(loop_time, loop_time))
        cluster: Any = self
        queue: Any = self.queue
        self.made: Any = CurrentNodes(
            cluster=cluster,
            node_registry=self.registry,
            clocks=Clocks(loop_time, loop_time),
            queue=queue,
        )

    async def read_node(self, node: str) -> object | None:
        self.reads += 1
        await asyncio.sleep(0.1)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(uid=self.nodes[node]) if node in self.nodes else None


async def test_a_nodes_uid_is_asked_of_the_list_first_and_else_of_one_read_for_all() -> None:
    bench = Current()
    bench.nodes["n1"] = "u2"
    bench.queue.view = False
    assert [await bench.made.is_current("n1", "u2")] == [None]
    bench.queue.view = True
    meta: Any = SimpleNamespace(uid="u1")
    bench.registry.node_state("n1").cluster.meta = meta
    assert await bench.made.is_current("n1", "u1") is True
    assert bench.reads == 0
    found = await asyncio.gather(*(bench.made.is_current("n1", "u2") for _ in range(5)))
    assert found == [True] * 5
    assert bench.reads == 1
    assert await bench.made.is_current("n1", "u3") is False
    assert await bench.made.is_current("n2", "u2") is False
    assert bench.reads == 3


@pytest.mark.parametrize(
    ("uid", "error", "answer", "kept"),
    [
        ("u1", None, True, 10.0),
        ("other", None, False, 60.0),
        ("u1", Unreachable("x"), None, 2.0),
    ],
)
async def test_an_answer_is_kept_for_its_time(
    uid: str, error: ClusterError | None, answer: object, kept: float
) -> None:
    bench = Current()
    bench.nodes["n1"], bench.error = "u1", error
    assert await bench.made.is_current("n1", uid) is answer
    await asyncio.sleep(kept - 0.5)
    assert await bench.made.is_current("n1", uid) is answer
    assert bench.reads == 1
    await asyncio.sleep(0.5)
    await bench.made.is_current("n1", uid)
    assert bench.reads == 2
