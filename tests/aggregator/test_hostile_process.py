"""The real aggregator beside an agent that does its worst, and agents with too much state."""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.site_package import install
from tests.controlplane.waiting import wait_until
from tests.support.local_aggregator import LocalAggregator

ROOT = Path(__file__).parents[2]


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[LocalAggregator]:
    found = LocalAggregator(tmp_path / "aggregator")
    yield found
    found.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAggregator]:
    """One for tests whose nodes have names of their own."""
    found = LocalAggregator(tmp_path_factory.mktemp("shared"))
    yield found
    found.close()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AgentProcess]]:
    """Starts the real agent, with a site's own check that does as the test says."""
    made: list[AgentProcess] = []

    def start(
        aggregator: LocalAggregator, look: str = "[]", more: str = "", name: str = "node-a"
    ) -> AgentProcess:
        folder = tmp_path / f"node-{len(made)}"
        folder.mkdir()
        site = install(folder, "site_check", MODULE.format(look=look), "odd = site_check:SPEC")
        monkeypatch.setenv("PYTHONPATH", str(site))
        own = '[own.odd]\nentry_point = "odd"\ninterval = "1s"\n'
        made.append(AgentProcess(folder, aggregator=aggregator.address, more=QUIET + own + more))
        made[-1].node = name
        return made[-1].start()

    yield start
    for one in made:
        one.close()


MODULE = """
from nodeagent.checks.base import CheckSpec
from nodeagent.model import *

class Odd:
    async def run_check(self):
        return {look}

SPEC = CheckSpec(
    name="odd", sees="", source="", cost="", blind_to="", interval=1.0, deadline=5.0,
    build=lambda sources, options: Odd(),
)
"""
ODD_TEXTS = (
    '[Observation("odd", "", Status.FAILED, "r" * 300, "m" * 5000),'
    ' Observation("odd", "/" + "\\udcff" * 3000, Status.FAILED, "a\\nb"),'
    ' Clearing("c", "", "odd:x"), Loss("", 1, "m" * 5000)]'
)
FAULT = 'FaultSighting(f"odd:{n}", "odd", f"part-{n}", "m" * 500, "odd:s", n, 1.0)'


def _node(aggregator: LocalAggregator, name: str = "node-a") -> Any:
    return aggregator.ask(f"nodes/{name}") or {}


def _is_drained(aggregator: LocalAggregator, name: str = "node-a") -> bool:
    return (_node(aggregator, name).get("quarantine") or {}).get("phase") == "Drained"


@pytest.mark.parametrize(
    ("look", "more"),
    [
        ('[Observation("odd", f"/mnt/{n}", Status.FAILED, "x") for n in range(2500)]', ""),
        (f"[{FAULT} for n in range(1200)]", ""),
        (ODD_TEXTS, ""),
        (
            '[Observation("odd", "", Status.OK)]',
            "\n".join(f'[own.c{n}]\nentry_point = "odd"\ninterval = "1h"' for n in range(501)),
        ),
    ],
    ids=[
        "2,500 failed components",
        "1,200 faults",
        "texts too long or no text, and signs without a name",
        "501 own checks",
    ],
)
def test_a_node_that_has_too_much_stays_visible_and_an_xid_79_of_it_drains_it(
    shared: LocalAggregator,
    agent: Callable[..., AgentProcess],
    request: pytest.FixtureRequest,
    look: str,
    more: str,
) -> None:
    """Such a node was refused at each attempt, without an alert, its Xid 79 included."""
    name = "node-" + re.sub("[^a-z0-9]+", "-", request.node.callspec.id)
    one = agent(shared, look, more, name)
    wait_until(
        lambda: _node(shared, name).get("agent") == "attached", what="the node", timeout_s=60
    )

    def seen() -> bool:
        found = _node(shared, name)
        odd = [one for one in found["components"] + found["faults"] if one["check"] == "odd"]
        return len(odd) >= max(1, look.count("Observation"))

    wait_until(seen, what="what its own check says", timeout_s=60)
    one.xid(79)
    wait_until(lambda: _is_drained(shared, name), what="its drain", timeout_s=150)
    assert f'"stream refused", "event": "stream.refused", "node": "{name}"' not in shared.log()
    assert shared.metric("sickbay_ingest_entries_dropped_total") == 0


def test_the_aggregator_answers_while_one_agent_does_its_worst(
    aggregator: LocalAggregator, agent: Callable[..., AgentProcess]
) -> None:
    """The event loop stood still for minutes after twenty small messages of one agent."""
    honest = agent(aggregator)
    wait_until(lambda: _node(aggregator).get("agent") == "attached", what="the node", timeout_s=60)
    quiet = sorted(_polled(aggregator, 0.5))
    before = aggregator.resident()
    line = [sys.executable, "-m", "tests.aggregator.flooding_agent", aggregator.address, "hostile"]
    process = subprocess.Popen([*line, "all", "reconnect"], cwd=ROOT)
    try:
        wait_until(lambda: aggregator.metric("sickbay_ingest_throttles_total") > 2, what="a flood")
        flooded = sorted(_polled(aggregator, 3.0))
        honest.xid(79)
        began = time.monotonic()
        wait_until(lambda: _is_drained(aggregator), what="the honest node's drain", timeout_s=60)
        drained_after = time.monotonic() - began
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    grown = (aggregator.resident() - before) / 2**20
    p99 = flooded[int(len(flooded) * 0.99)]
    print(
        f"healthz median {statistics.median(quiet) * 1e3:.1f} ms, in a flood "
        f"{statistics.median(flooded) * 1e3:.1f}, p99 {p99 * 1e3:.0f}, most "
        f"{flooded[-1] * 1e3:.0f} ms; drained after {drained_after:.1f} s; {grown:.0f} MiB more"
    )
    assert flooded[-1] < 30.0  # one took 70 s before, on a free machine
    assert grown < 200


def _polled(aggregator: LocalAggregator, seconds: float) -> list[float]:
    """How long /healthz took each time, asked all the while."""
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        took.append(aggregator.alive())
        time.sleep(0.01)
    return took
