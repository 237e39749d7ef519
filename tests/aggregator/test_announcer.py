"""A quarantine and its end are announced on the node: no act waits for that."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.port import ClusterError, Unreachable
from tests.aggregator.test_node_actions import Bench, with_bench


@pytest.mark.parametrize(
    ("error", "tries", "seconds"),
    [
        (None, 1, 0.0),
        (Unreachable("x"), 6, 31.5),
        (Unreachable("x", retry_after=2.0), 6, 12.0),
        (ClusterError("x"), 1, 0.0),
    ],
)
@with_bench
async def test_an_announcement_is_tried_a_few_times_while_nobody_answers(
    bench: Bench, error: ClusterError | None, tries: int, seconds: float
) -> None:
    said: list[tuple[str, str]] = []

    async def announce(*_: Any, reason: str, message: str, **__: Any) -> None:
        said.append((reason, message))
        if error is not None:
            raise error

    bench.announcer._cluster = SimpleNamespace(announce=announce)
    loop = asyncio.get_running_loop()
    before = loop.time()
    await bench.announcer.announce_release(bench.node_state, "u", "")
    assert loop.time() - before == min(seconds, 5.0)  # no release waits for longer
    await bench.announcer.settle(bench.node_state)
    assert said == [("Released", "Released")] * tries
    assert loop.time() - before == seconds


@with_bench
async def test_a_newer_announcement_waits_for_the_older(bench: Bench) -> None:
    said: list[str] = []

    async def announce(*_: Any, message: str, **__: Any) -> None:
        await asyncio.sleep(10 if message == "first" else 1)
        said.append(message)

    bench.announcer._cluster = SimpleNamespace(announce=announce)
    await bench.announcer.settle(bench.node_state)
    bench.node_state.quarantine_view.condition_seen = True
    bench.announcer.announce(bench.node_state, "u", "first")
    assert not bench.node_state.quarantine_view.condition_seen
    bench.announcer.announce(bench.node_state, "u", "second")
    await bench.announcer.settle(bench.node_state)
    assert said == ["first", "second"]
    assert bench.node_state.quarantine_view.trail.done()
    await bench.announcer.settle(bench.node_state)
