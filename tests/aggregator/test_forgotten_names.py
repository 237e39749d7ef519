"""Names that agents once came by are forgotten, wherever they were kept.

With ``identity.kind: certificate`` an agent may come by a name that the cluster never had, and a
fleet that grows and shrinks uses up names for years.
"""

import asyncio
import logging
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest

from aggregator.health.model import Component, Hello, Snapshot, Status
from aggregator.ingest.duplicate_agents import CALM, RETURNS
from aggregator.ingest.stream import Stream
from aggregator.ingest.stream_table import LINGER
from aggregator.quarantine.reconcile.cluster_events import FORGOTTEN_AFTER
from aggregator.quarantine.reconcile.rounds import REFRESH
from aggregator.runtime.rate_limited_log import MOST_LOGGED, RateLimitedLog
from tests.support import evidence as said
from tests.support import virtual_time
from tests.support.agent_calls import BelievedStreams, Call
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.present import of_type
from tests.support.replica import Replica
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import played_by
from tests.support.waiting import until

_LEAVES = (str, bytes, int, float, bool, type(None), type, types.ModuleType, types.CodeType)
_SKIPPED = (asyncio.AbstractEventLoop, asyncio.Future, asyncio.Handle)


def places_of(text: str, *roots: object) -> list[str]:
    """The paths ("parts.registry._metas") at which ``text`` is a key, an item or a value."""
    found: list[str] = []
    seen: set[int] = set()
    todo = [(type(root).__name__, root) for root in roots]
    while todo:
        path, one = todo.pop()
        if isinstance(one, str) and one == text:
            found.append(path)
        if isinstance(one, (*_LEAVES, *_SKIPPED)) or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [(f"{path}{name}", each) for name, each in _parts(one)]
    return found


def _parts(one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, Mapping):
        for key, value in one.items():
            yield ".key", key
            yield f"[{key!r}]", value
    elif isinstance(one, (list, tuple, set, frozenset)) or type(one).__name__ == "deque":
        for each in one:  # type: ignore[attr-defined]  # a deque
            yield "[]", each
    elif isinstance(one, types.MethodType):
        yield ".__self__", one.__self__
    elif isinstance(one, types.FunctionType):
        for cell in one.__closure__ or ():
            try:
                yield ".closure", cell.cell_contents
            except ValueError:
                continue  # it is empty
    else:
        names = [*getattr(one, "__dict__", {})]
        for kind in type(one).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            try:
                yield f".{name}", getattr(one, name)
            except AttributeError:
                continue


STRANGER = "a-name-that-the-cluster-never-had"
LISTED = "n1"


class NotAll(MemoryCluster):
    """A cluster whose list lacks nodes, as a local one's does."""

    lists_all = False


class Site(BelievedStreams):
    """One aggregator, the streams of its agents, and a clock that jumps."""

    def __init__(self, loop: virtual_time.VirtualTimeLoop, *, lists_all: bool) -> None:
        world = World.of(LISTED)
        cluster = MemoryCluster(world) if lists_all else NotAll(world)
        self.replica = Replica(world, clock=LoopClock(loop), cluster=cluster)
        super().__init__(self.replica.controller, loop.time)
        self.loop = loop

    async def attach(self, node: str, *, instance: str = "i", address: str = "10.0.0.1") -> Stream:
        """The node's agent comes, and reports a failure and the nodes that it reaches."""
        call = Call(address)
        stream = self.serve(call)
        told = Hello(node, "boot-1", "epoch-1", "0.1.0", 1, instance=instance)
        call.incoming.put_nowait(said.hello(told))
        now = self.loop.time()
        components = (
            Component("nic-link", "eth0", Status.FAILED, "no-carrier", "", now),
            Component("reach", "gateway", Status.FAILED, "", "", now),
            Component("peers", "10.0.0.9", Status.FAILED, "", "", now),
        )
        acks = self.stats.acks
        call.incoming.put_nowait(said.snapshot(Snapshot(components, ()), at=now))
        await until(lambda: self.stats.acks > acks)
        return stream

    async def pass_time(self, seconds: float) -> None:
        until_then = self.loop.time() + seconds
        while self.loop.time() < until_then:
            self.table.tick()
            await asyncio.sleep(1)


def on_a_site(test: Callable[[Site], Awaitable[None]], *, lists_all: bool = True) -> None:
    async def main() -> None:
        loop = of_type(asyncio.get_running_loop(), virtual_time.VirtualTimeLoop)
        site = Site(loop, lists_all=lists_all)
        await until(lambda: not site.replica.fleet.view_lost)
        await test(site)
        await site.close()
        await site.replica.stop()

    virtual_time.run(main())


@pytest.mark.parametrize("lists_all", [True, False])
def test_a_name_that_the_cluster_never_had_is_forgotten_an_hour_after_its_agent_left(
    lists_all: bool,  # noqa: FBT001 - pytest gives it
) -> None:
    """The exception is a list that is known to lack nodes: then only the agent's word is there."""

    async def test(site: Site) -> None:
        stream = await site.attach(STRANGER)
        await site.attach(LISTED, address="10.0.0.2")
        await site.pass_time(FORGOTTEN_AFTER + 2 * REFRESH)
        node_summaries = site.replica.fleet.node_summaries
        assert {STRANGER, LISTED} <= node_summaries.keys(), "its agent is there"
        stream.close("the test ends it")
        await site.pass_time(FORGOTTEN_AFTER - 60)
        assert STRANGER in node_summaries
        await site.pass_time(60 + 2 * REFRESH)
        assert (STRANGER in node_summaries) == (not lists_all)
        assert LISTED in node_summaries

    on_a_site(test, lists_all=lists_all)


@played_by(on_a_site)
async def test_nothing_remembers_a_name_that_was_forgotten(site: Site) -> None:
    """Looked for in every container that the controller and the streams reach."""
    for instance in ["a", "b"] * (RETURNS + 1):  # two agents push each other out
        stream = await site.attach(STRANGER, instance=instance)
    assert site.replica.fleet.node_summaries[STRANGER].agent.conflict
    roots = (site.table, site.replica.controller, site.replica.fleet)
    assert places_of(STRANGER, *roots), "positive control"
    stream.close("the test ends it")
    await site.attach(LISTED)  # it takes the address of the one that left
    await site.pass_time(FORGOTTEN_AFTER + 2 * REFRESH)
    assert STRANGER not in site.replica.fleet.node_summaries
    site.replica.notes.transitions.clear()  # the events that the test remembers
    assert places_of(STRANGER, *roots) == []


@played_by(on_a_site)
async def test_a_conflict_whose_agents_are_gone_is_over_and_said_to_be(site: Site) -> None:
    for instance in ["a", "b"] * (RETURNS + 1):
        stream = await site.attach(LISTED, instance=instance)
    node_summary = site.replica.fleet.node_summaries[LISTED]
    assert node_summary.agent.conflict
    stream.close("the test ends it")
    await site.pass_time(max(LINGER, CALM) + 5)
    assert node_summary.agent.conflict == ""
    assert len(site.table._conflicts) == 0
    await site.attach(LISTED, instance="c")
    assert node_summary.agent.conflict == ""
    assert places_of(LISTED, site.replica.controller.parts.agent_events._unrecorded) == []


def test_what_is_said_sparingly_is_remembered_of_the_latest_only() -> None:
    sparingly = RateLimitedLog(interval=10.0)
    for number in range(3 * MOST_LOGGED):
        assert sparingly(f"held back: n{number}", float(number) / 1e6) == {}
    assert len(sparingly._logged) == MOST_LOGGED
    last = f"held back: n{3 * MOST_LOGGED - 1}"
    assert sparingly(last, 1.0) is None
    assert sparingly(last, 20.0) == {"left_out": 1}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
