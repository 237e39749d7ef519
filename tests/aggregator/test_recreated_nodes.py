"""A Node in quarantine that is deleted and created again in the same boot is the same node to us.

It is marked again at once, drained again if it was to be, and until then no status says that it is
cordoned or drained.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import Action, ClusterError, Phase, Refused, Unreachable
from aggregator.health.model import Delta
from aggregator.quarantine.decide.operator_requests import EXEMPT, exemption
from aggregator.quarantine.reconcile.missing_nodes import FOLLOWED
from aggregator.quarantine.reconcile.rounds import REFRESH
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ILL = snapshot(fault())


def is_tainted(world: World, name: str) -> bool:
    return any(taint.key == TAINT for taint in world.nodes[name].taints)


async def drained(world: World, *names: str, **how: object) -> Replica:
    """Nodes in quarantine without a pod left to evict."""
    for name in names:
        world.add_node(name)
    replica = Replica(world, clock=Running(), **how)  # type: ignore[arg-type]  # a test's words
    replica.agents(names, ILL)
    await until(lambda: all(phase_of(world, name) is Phase.DRAINED for name in names))
    return replica


@pytest.mark.parametrize("away", [0.0, 0.5, 30.0, 400.0])
async def test_a_node_that_is_deleted_and_recreated_in_the_same_boot_is_marked_within_a_second(
    away: float,
) -> None:
    world = World()
    await drained(world, "n1")
    first = world.quarantines["n1"]
    world.delete_node("n1")
    await asyncio.sleep(away)
    world.add_node("n1", uid="uid-2")
    pod = world.add_pod("n1", "came-at-once")
    returned = loop_time()
    await until(lambda: is_tainted(world, "n1"))
    assert loop_time() - returned < 1.0
    assert world.nodes["n1"].unschedulable

    def drained_again() -> bool:
        world.kubelets_finish()
        return phase_of(world, "n1") is Phase.DRAINED

    await until(drained_again)
    assert pod.uid in world.evicted
    now = world.quarantines["n1"]
    assert now.uid == first.uid
    assert now.status.node_uid == "uid-2"
    assert now.status.cordoned_at >= returned
    assert now.status.drained_at >= returned
    assert now.status.deadline_at > first.status.deadline_at + away


async def test_a_recreated_node_that_may_not_be_marked_is_never_said_to_be_drained() -> None:
    world = World()
    replica = await drained(world, "n1")
    world.person_stops("drill")
    await until(lambda: replica.fleet.stop)
    world.delete_node("n1")
    world.add_node("n1", uid="uid-2")
    await until(lambda: phase_of(world, "n1") is Phase.ADMITTED)
    status = world.quarantines["n1"].status
    assert "created again" in status.message
    assert (status.drained_at, status.drain_started_at, status.deadline_at) == (0, 0, 0)
    assert status.applied is None
    assert not is_tainted(world, "n1")
    world.person_stops("")
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    assert is_tainted(world, "n1")


@pytest.mark.parametrize("error", [Unreachable("503"), Refused("an admission webhook denies it")])
async def test_a_recreated_node_whose_patch_fails_is_not_said_to_be_drained(
    error: ClusterError,
) -> None:
    world, down = World(), False
    replica = await drained(
        world, "n1", fails=lambda call: error if down and call == "patch_node" else None
    )
    down = True
    world.delete_node("n1")
    world.add_node("n1", uid="uid-2")
    await until(lambda: phase_of(world, "n1") is Phase.ADMITTED)
    await until(lambda: replica.fleet.node_summaries["n1"].work.last_error)
    assert phase_of(world, "n1") is Phase.ADMITTED
    down = False
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)


async def test_another_boot_ends_the_quarantine_of_a_node_that_comes_back() -> None:
    world = World()
    await drained(world, "n1")
    world.delete_node("n1")
    await asyncio.sleep(5)
    world.add_node("n1", uid="uid-2", boot_id="boot-2")
    await until(lambda: not world.quarantines)
    assert not is_tainted(world, "n1")
    assert not world.nodes["n1"].unschedulable


async def test_a_node_that_comes_back_exempt_is_left_alone() -> None:
    world = World()
    await drained(world, "n1")
    world.delete_node("n1")
    await asyncio.sleep(5)
    wish = exemption(loop_time() + 10_000, "a test")
    world.add_node("n1", uid="uid-2", annotations={EXEMPT: wish})
    await until(lambda: "n1" not in world.quarantines)
    assert not is_tainted(world, "n1")


async def test_the_next_replica_marks_a_node_that_came_back_while_there_was_none() -> None:
    world = World()
    replica = await drained(world, "n1", "n2")
    await replica.stop()
    world.delete_node("n1")
    world.delete_node("n2")
    world.add_node("n1", uid="uid-2")
    another = Replica(world, clock=Running())
    began = loop_time()
    await until(lambda: is_tainted(world, "n1"))
    assert loop_time() - began < 1.0
    await until(lambda: another.controller.parts.registry.node_state("n2").cluster.node_gone)
    world.add_node("n2", uid="uid-3")
    began = loop_time()
    await until(lambda: is_tainted(world, "n2"))
    assert loop_time() - began < 1.0


def _hello(replica: Replica) -> None:
    replica.agent("n1", ILL, node_uid="uid-2")


def _new_fault(replica: Replica) -> None:
    replica.agent("n1", Delta(faults=(fault("xid:48", "GPU-2"),)))


def _listed(replica: Replica) -> None:
    replica.tasks = [asyncio.create_task(replica.controller.parts.cluster_events.refresh_nodes())]  # type: ignore[attr-defined]


@pytest.mark.parametrize("tells", [_hello, _new_fault, _listed])
async def test_what_its_agent_or_a_list_says_has_the_node_read_where_no_watch_tells(
    tells: Callable[[Replica], None],
) -> None:
    """The watch of its name is cut off here: each other sign of its return must do alone."""
    world = World()
    replica = await drained(world, "n1")
    world.delete_node("n1")
    await until(lambda: replica.controller.parts.registry.node_state("n1").cluster.node_gone)
    replica.cluster.deaf = True
    await asyncio.sleep(REFRESH / 4)
    world.add_node("n1", uid="uid-2")
    tells(replica)
    began = loop_time()
    await until(lambda: is_tainted(world, "n1"))
    assert loop_time() - began < 1.0


async def test_more_nodes_than_are_followed_at_once_are_polled_and_marked_within_seconds() -> None:
    world = World()
    names = [f"n{number}" for number in range(FOLLOWED + 10)]
    settings = replace(SETTINGS, mode=Action.CORDON)
    for name in names:
        world.add_node(name)
    replica = Replica(world, clock=Running(), settings=settings)
    replica.agents(names, ILL)
    await until(lambda: all(phase_of(world, name) is Phase.CORDONED for name in names))
    for name in names:
        world.delete_node(name)
    await asyncio.sleep(20)
    assert replica.cluster.waits == FOLLOWED
    calls = replica.cluster.calls
    await asyncio.sleep(20)
    assert replica.cluster.calls - calls < 150  # a bounded rate
    for name in names:
        world.add_node(name, uid=f"uid-again-{name}")
    began = loop_time()
    await until(lambda: all(is_tainted(world, name) for name in names))
    assert loop_time() - began < 10.0
    await until(lambda: replica.cluster.waits == 0)


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
async def test_a_node_that_is_replaced_before_it_was_marked_is_not_marked_for_the_old_one(
    boot: str,
) -> None:
    """The process dies right after it has made the Quarantine, and the Node is made anew."""
    world = World.of("n1")
    first = Replica(world, clock=Running())
    made = first.cluster.create_quarantine

    async def dies(*args: object, **how: object) -> object:
        await made(*args, **how)  # type: ignore[arg-type]
        first.cluster.crashed.set()
        return await asyncio.Event().wait()

    first.cluster.create_quarantine = dies  # type: ignore[method-assign, assignment]
    first.agent("n1", ILL)
    await until(first.cluster.crashed.is_set)
    await first.stop()
    world.listeners.clear()
    assert not is_tainted(world, "n1")
    world.renew_node("n1", boot)
    second = Replica(world, clock=Running())
    if boot == "boot-1":  # the same machine, and its fault
        await until(lambda: is_tainted(world, "n1"))
    else:
        await until(lambda: not world.quarantines)
        assert not any("patch_node" in one and "mark" in one for one in world.writes)
        assert not is_tainted(world, "n1")
        assert "quarantine.cordoned" not in second.notes.kinds("n1")
