"""The work of hot paths does not grow with the fleet: no admission and no release visits all nodes.

Visits are counted, not timed, so that a slow machine changes no result.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import pytest

from aggregator.cluster.condition_record import CONDITIONS
from aggregator.cluster.port import NodeMeta
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.aggregator.test_node_poller import Bench

SMALL, LARGE = 200, 2_000


def fleet(nodes: int) -> NodeRegistry:
    """A registry of so many nodes."""
    registry = NodeRegistry(FleetState(), "")
    registry.listed(metas(nodes))
    for meta in metas(nodes):
        registry.node_state(meta.name)
    return registry


def metas(nodes: int) -> list[NodeMeta]:
    return [NodeMeta(f"n{number}", f"u{number}", {}, {}) for number in range(nodes)]


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python the work runs: a loop over all nodes runs some for each."""
    count = 0

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def size(registry: NodeRegistry) -> None:
    registry.size()


def held(registry: NodeRegistry) -> None:
    registry.held()


def annotated_again(registry: NodeRegistry) -> None:
    registry.annotated(CONDITIONS)


def an_agent_reports(registry: NodeRegistry) -> None:
    registry.count("n0")


@pytest.mark.parametrize("work", [size, held, annotated_again, an_agent_reports])
def test_it_visits_no_more_nodes_of_a_larger_fleet(
    work: Callable[[NodeRegistry], None],
) -> None:
    ran = []
    for nodes in (SMALL, LARGE):
        registry = fleet(nodes)
        registry.annotated(CONDITIONS)
        registry.node_state("n1").set_hold(Held("limits.concurrent", "1", "full", since=0.0))
        ran.append(lines_run(lambda: work(registry)))  # noqa: B023 - called at once
    assert ran[0] == ran[1] > 0


def test_the_counter_sees_a_loop_over_all_nodes() -> None:
    registries = [fleet(nodes) for nodes in (SMALL, LARGE)]
    few, many = (lines_run(lambda: _visit(r)) for r in registries)  # noqa: B023 - called at once
    assert many > 5 * few


def _visit(registry: NodeRegistry) -> None:
    for node_state in registry.node_states():
        node_state.decision.update({}, None)


def longest_turn(work: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """The most lines that run before the event loop may run other tasks."""
    turns: list[int] = []

    async def run() -> None:
        task = asyncio.ensure_future(work())
        while not task.done():
            turns.append(0)
            await asyncio.sleep(0)
        await task

    def trace(frame: FrameType, event: str, __: object) -> Any:
        if event == "line" and turns and "asyncio" not in frame.f_code.co_filename:
            turns[-1] += 1
        return trace

    sys.settrace(trace)
    try:
        asyncio.run(run())
    finally:
        sys.settrace(None)
    return max(turns)


def test_counting_silence_and_polling_let_other_tasks_run_in_between() -> None:
    """Their slices do not grow with the fleet."""
    longest: dict[str, list[int]] = {"silence": [], "poll": []}
    for nodes in (2 * LARGE, 4 * LARGE):
        registry = fleet(nodes)
        longest["silence"].append(longest_turn(registry.silence))
        bench = Bench()
        for meta in metas(nodes):
            bench.node_state(meta.name)
        longest["poll"].append(longest_turn(bench.poller._due))
    for found in longest.values():
        assert found[1] < 1.2 * found[0]
