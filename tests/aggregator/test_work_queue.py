"""When the queue hands a node to its worker, evaluates it and acknowledges its evidence."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.port import Guard, Node, NodeChange, RecordText
from aggregator.quarantine.controller import END_WITHIN
from aggregator.quarantine.reconcile.work_queue import MARKS_FIRST, WorkQueue
from aggregator.quarantine.state.node import NodeState
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.replica import Replica, fault, snapshot
from tests.support.tasks import end_tasks
from tests.support.virtual_replica import Running, later
from tests.support.virtual_time import in_virtual_time, loop_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


class QueueBench:
    """A queue; ``did`` is what its worker was given."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.may = True
        writer: Any = SimpleNamespace(
            record=SimpleNamespace(entries={}),
            switch=SimpleNamespace(may_act=lambda: self.may),
        )
        self.queue = WorkQueue(writer)
        self.queue.view = True
        self.node_state = NodeState("n1", now=loop_time)

    def deliver(self) -> None:
        evaluator: Any = SimpleNamespace(evaluate_node=self._evaluate)
        self.queue.deliver_to(evaluator, SimpleNamespace(start=self._start))

    def _start(self, node_state: NodeState) -> None:
        self.did.append(f"start {node_state.node}")

    def _evaluate(self, node_state: NodeState) -> None:
        self.did.append(f"evaluate {node_state.work.begin_evaluation()}")


async def test_a_node_that_was_added_before_there_is_a_worker_waits_for_resume() -> None:
    bench = QueueBench()
    bench.queue.add_for_read(bench.node_state)
    bench.deliver()
    await asyncio.sleep(1)
    assert bench.did == []
    bench.queue.resume(bench.node_state)
    await asyncio.sleep(1)
    assert bench.did == ["start n1"]


async def test_ten_changes_in_a_turn_are_one_evaluation_that_counts_from_the_first() -> None:
    bench = QueueBench()
    bench.deliver()
    for number in range(10):
        bench.queue.evaluate(bench.node_state, 100.0 + number)
    assert bench.did == [], "a handler never evaluates"
    await asyncio.sleep(0)
    assert bench.did == ["evaluate 100.0"]
    bench.queue.evaluate_due(bench.node_state)
    assert len(bench.did) == 1, "nothing has changed since"
    bench.node_state.work.needs_read = True
    bench.queue.evaluate(bench.node_state)
    await asyncio.sleep(0)
    assert bench.did[1:] == ["evaluate None", "start n1"]


@pytest.mark.parametrize("left", ["nothing", "may not act", "a step", "queued", "at work"])
async def test_a_sign_is_acknowledged_once_evaluated_only_where_nothing_is_left_to_do(
    left: str,
) -> None:
    bench, sign = QueueBench(), asyncio.get_running_loop().create_future()
    bench.deliver()
    work, bench.may = bench.node_state.work, left != "may not act"
    work.waiters = (*work.waiters, sign)
    if left == "a step":
        work.needs_read = True
    elif left == "queued":
        work.queue()
    elif left == "at work":
        work.task = asyncio.create_task(asyncio.sleep(5))
    bench.queue.evaluate(bench.node_state)
    await asyncio.sleep(1)
    assert sign.done() == (left == "nothing")
    assert work.is_queued == (left != "nothing"), "the task of a node at work acknowledges it"
    bench.may = True
    bench.queue.resume(bench.node_state)
    await asyncio.sleep(1)
    assert ("start n1" in bench.did) == (left != "nothing")


async def test_a_node_that_is_forgotten_is_not_evaluated_and_all_others_of_a_turn_are() -> None:
    bench = QueueBench()
    bench.deliver()
    bench.queue.evaluate(bench.node_state)
    bench.queue.forget_node(bench.node_state)
    await asyncio.sleep(1)
    assert bench.did == []
    for number in range(100):
        bench.queue.evaluate(NodeState(f"n{number}", now=loop_time))
    await asyncio.sleep(0)
    assert len(bench.did) == 100, "a common cause counts the nodes that were evaluated"


async def test_a_bug_in_the_evaluation_of_a_node_keeps_none_of_the_others_from_theirs() -> None:
    bench, bad = QueueBench(), NodeState("bad", now=loop_time)

    def evaluate(node_state: NodeState) -> None:
        if node_state is bad:
            raise ZeroDivisionError
        bench._evaluate(node_state)

    evaluator: Any = SimpleNamespace(evaluate_node=evaluate)
    bench.queue.deliver_to(evaluator, SimpleNamespace(start=bench._start))
    bench.queue.evaluate(bad)
    bench.queue.evaluate(bench.node_state)
    await asyncio.sleep(0)
    assert bench.did == ["start bad", "evaluate None"]


async def test_what_waits_for_marks_begins_with_the_last_of_them_and_each_after_its_own_time() -> (
    None
):
    queue = QueueBench().queue
    assert queue.until_marked().done(), "no node is on its way"
    with queue.marking():
        first = queue.until_marked()
        await asyncio.sleep(MARKS_FIRST / 2)
        given_up, second = queue.until_marked(), queue.until_marked()
        given_up.cancel()
        await asyncio.sleep(MARKS_FIRST / 2 + 0.01)
        assert (first.done(), second.done()) == (True, False)
        await asyncio.sleep(MARKS_FIRST / 2)
        assert second.done()
        third = queue.until_marked()
        with queue.marking():
            pass
        assert not third.done(), "another is still on its way"
    assert third.done()


class Lasting(MemoryCluster):
    """A change of a Node goes on after its cancellation, as a program does that was killed."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.begun, self.ends = asyncio.Event(), asyncio.Event()

    async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            await self.ends.wait()
        return node


async def stopped_in_a_step() -> tuple[Replica, Lasting]:
    """A controller that receives its stop while it marks n1."""
    world = World.of("n1", "n2")
    cluster = Lasting(world)
    replica = Replica(world, clock=Running(), cluster=cluster)
    replica.agent("n2", snapshot())
    replica.agent("n1", snapshot(fault()))
    await cluster.begun.wait()
    replica.task.cancel()
    await later(END_WITHIN / 2)
    assert not replica.task.done()
    return replica, cluster


async def test_a_controller_that_stops_begins_no_step_while_it_waits_for_the_last_ones() -> None:
    replica, cluster = await stopped_in_a_step()
    replica.agent("n2", snapshot(fault()))
    await later(END_WITHIN / 4)
    cluster.ends.set()
    await asyncio.wait({replica.task})
    assert cluster.world.quarantines.keys() == {"n1"}


async def test_a_step_that_ends_by_no_cancellation_delays_the_controllers_end_for_seconds() -> None:
    replica, cluster = await stopped_in_a_step()
    await later(END_WITHIN)
    assert replica.task.done()
    cluster.ends.set()


class Writing(MemoryCluster):
    """A write of the record goes on until its cancellation, and then for a moment."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.begun, self.ended = asyncio.Event(), False

    async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            await later(END_WITHIN / 2)
            self.ended = True
        raise AssertionError("unreachable")


async def test_a_controller_that_stops_waits_for_the_writer_of_the_record() -> None:
    world = World.of("n1")
    cluster = Writing(world)
    replica = Replica(world, clock=Running(), cluster=cluster)
    replica.agent("n1", snapshot(fault()))
    await cluster.begun.wait()
    await end_tasks(replica.task)
    assert cluster.ended
