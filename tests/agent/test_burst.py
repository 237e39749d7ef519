"""A burst of kernel log lines: all counted, reported in a few messages, no other work delayed.

`make bench-agent` measures 40,000 in a minute; these tests assert the properties of any burst.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.agent_process import AgentProcess
from tests.bench.processes import cost
from tests.support.fake_aggregator import FakeAggregator
from tests.support.waiting import until

GPU = "pci:0000:3b:00"
LINES = 6_000
SECONDS = 6.0
CODES = (13, 31, 94)


@pytest.fixture
async def aggregator() -> AsyncIterator[FakeAggregator]:
    aggregator = FakeAggregator()
    aggregator.welcome = pb.Welcome(aggregator="fake", heartbeat_interval_ms=15_000)
    await aggregator.start()
    yield aggregator
    await aggregator.stop()


@pytest.fixture
def agent(tmp_path: Path, aggregator: FakeAggregator) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "node", aggregator=aggregator.address)
    yield agent
    agent.close()


def pour(agent: AgentProcess) -> None:
    begun, sent = time.monotonic(), 0
    while sent < LINES:
        due = min(LINES, int(LINES * (time.monotonic() - begun) / SECONDS) + 1)
        for number in range(sent, due):
            agent.xid(CODES[number % len(CODES)], pid=number)
        sent = due
        time.sleep(0.005)


async def test_a_burst_is_counted_in_a_few_messages_and_hides_nothing(
    aggregator: FakeAggregator, agent: AgentProcess
) -> None:
    await agent.start().up()
    await until(lambda: aggregator.streams and aggregator.latest.components, what=agent.log())
    assert agent.process is not None
    spent, messages = cost(agent.process.pid).cpu_s, len(aggregator.latest.messages)
    await asyncio.to_thread(pour, agent)
    agent.xid(79)
    written = time.monotonic()
    await until(lambda: ("xid:79", GPU) in aggregator.latest.faults, what=agent.log())
    assert time.monotonic() - written < 60.0
    await until(
        lambda: (
            [aggregator.latest.faults[f"xid:{code}", GPU].count for code in CODES] == [2000] * 3
        ),
        what=agent.log(),
    )
    assert len(aggregator.latest.messages) - messages < 20
    fault = aggregator.latest.faults["xid:31", GPU]
    assert 0 < fault.first_age_ms - fault.last_age_ms < 2000 * SECONDS
    # A tenth of a second for a thousand lines, and four times as much again for a slow machine.
    assert cost(agent.process.pid).cpu_s - spent < 5 * LINES / 10_000


async def test_a_single_line_is_read_at_once(
    aggregator: FakeAggregator, agent: AgentProcess
) -> None:
    """Only a log that goes on without end is read with a pause."""
    await agent.start().up()
    await until(lambda: aggregator.streams and aggregator.latest.components, what=agent.log())
    took = [1.0]
    while min(took) >= 0.05 and len(took) < 100:  # once shows it; a busy machine takes longer
        number = len(took)
        await asyncio.sleep(0.3)
        written = time.monotonic()
        agent.xid(100 + number)
        key = (f"xid:{100 + number}", GPU)
        await until(lambda key=key: key in aggregator.latest.faults)  # type: ignore[misc]  # a loop's lambda keeps its value by default
        took.append(time.monotonic() - written)
    assert min(took) < 0.05, took


async def test_lines_that_say_nothing_are_not_saved_one_by_one(tmp_path: Path) -> None:
    """Urgent evidence stays urgent without an aggregator to take it; it was saved when it came."""
    agent = AgentProcess(tmp_path / "alone")
    with closing(agent):
        await agent.start().up()
        agent.xid(79)
        state = agent.run_dir / "state.json"
        await until(lambda: agent.state()["faults"], what=agent.log())
        files = set()
        for _ in range(60):
            agent.line("usb 1-1: new high-speed USB device")
            await asyncio.sleep(0.02)
            files.add(state.stat().st_ino)  # each save is a new file
        assert len(files) <= 20, "of 60 lines; 3 where they come within a second"
