"""Agents that do not behave, against the real listener, controller and page.

Other tests of this kind: streams that begin badly or lie, and one that does not read
(test_stream.py); tokens, and clocks of their signers (test_tokens.py); a Node of the same name
(test_node_identity.py); the API server away (tests/e2e).
"""

import asyncio
import datetime as dt
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aggregator.health.model import Delta
from aggregator.ingest.duplicate_agents import CALM
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.tokens import TokenAuthenticator
from tests.agent.agent_process import AgentProcess
from tests.support.in_process_aggregator import InProcessAggregator, running_aggregator
from tests.support.ingest import Agent, Clock
from tests.support.pki import TokenIssuer
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
DAY = 86_400

Make = Callable[..., AgentProcess]


@pytest.fixture(scope="module")
def half_open(tmp_path_factory: pytest.TempPathFactory) -> Iterator["subprocess.Popen[str]"]:
    """The program of that name in a network of its own: it waits for the kernel's timeouts."""
    folder = str(tmp_path_factory.mktemp("half-open"))
    process = subprocess.Popen(
        ["unshare", "--mount", "--net", sys.executable, "-m", "tests.aggregator.half_open", folder],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module", autouse=True)
def _begun_early(request: pytest.FixtureRequest) -> None:
    """Begin with the first test of this file what its last one looks at."""
    if any("half_open" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("half_open")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes agents of node-a, each in a folder of its own; all end with the test."""
    made: list[AgentProcess] = []

    def make(name: str, bench: InProcessAggregator) -> AgentProcess:
        made.append(AgentProcess(tmp_path / name, aggregator=bench.address))
        return made[-1]

    yield make
    for agent in made:
        agent.close()


async def shown(bench: InProcessAggregator, node: str, is_so: Callable[[Any], object]) -> Any:
    """The API's answer about the node, once this holds."""
    said: Any = None
    async with asyncio.timeout(PATIENCE):
        while True:
            said = await bench.node(node)
            if said is not None and is_so(said):
                return said
            await asyncio.sleep(0.02)


async def uplink(agent: AgentProcess) -> Any:
    return json.loads((await agent.ask("/v1/results"))[1])["agent"]["uplink"]


async def trouble(agent: AgentProcess, text: str) -> str:
    """The agent's report on its uplink, once that contains ``text``."""
    async with asyncio.timeout(PATIENCE):
        while True:
            error: str = (await uplink(agent))["error"]
            if text in error:
                return error
            await asyncio.sleep(0.02)


# -- two agents with one node's name --------------------------------------------------------------


async def test_two_agents_of_one_node_are_shown_nothing_new_is_done_and_it_ends(make: Make) -> None:
    async with running_aggregator("node-a") as bench:
        ours, other = make("ours", bench), make("other", bench)
        ours.start()
        await shown(bench, "node-a", lambda node: node["agent"] == "attached")
        other.start()
        said = await shown(bench, "node-a", lambda node: node["conflict"])
        assert said["conflict"].startswith("two live agents claim this node: ")
        glance = await bench.page.json("/api/v1/fleet")
        assert (glance["counts"]["ok"], glance["counts"]["warning"]) == (0, 1)
        assert "are well" not in glance["headline"].replace("0 of 1 nodes are well", "")
        ours.xid(79)
        said = await shown(bench, "node-a", lambda node: node["incidents"])
        assert said["incidents"][0]["doing"] == "no action: two agents claim the node"
        assert said["why"] == said["conflict"]
        assert "two live agents claim" in await bench.page.text("/nodes/node-a")
        await other.up()
        await trouble(other, "a newer stream of node 'node-a' has taken over")

        assert await other.terminate() == 0
        bench.clock.ahead += CALM / 2
        await shown(bench, "node-a", lambda node: node["agent"] == "attached" and node["faults"])
        assert bench.world.quarantines == {}
        bench.clock.ahead += CALM / 2 + 1
        said = await shown(bench, "node-a", lambda node: node["quarantine"])
        assert said["conflict"] == ""
        assert bench.world.nodes["node-a"].unschedulable


# -- a clock that is a day off --------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that sets the wall clock of one process wrong."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc: tests/setup-debian.sh")
    library = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    source = ROOT / "tests/agent/wall_clock.c"
    subprocess.run(
        ["gcc", "-Wall", "-Werror", "-O", "-shared", "-fPIC", "-o", library, source], check=True
    )
    return library


def off_by(library: Path, seconds: int) -> tuple[str, ...]:
    return ("env", f"LD_PRELOAD={library}", f"WALL_CLOCK_AHEAD={seconds}")


@asynccontextmanager
async def token_aggregator(
    issuer: TokenIssuer, folder: Path, *nodes: str
) -> AsyncIterator[InProcessAggregator]:
    """An aggregator that evaluates tokens of ``issuer`` by its own clock."""

    async def fetch() -> tuple[str, str]:
        return issuer.issuer, issuer.jwks()

    def tokens(clock: Clock) -> TokenAuthenticator:
        keys = JwksCache(fetch, folder / "jwks.json", now=clock.now)
        return TokenAuthenticator(
            keys,
            audience="sickbay",
            service_account="sickbay:sickbay-agent",
            issuer="",
            now=clock.wall,
        )

    async with running_aggregator(*nodes, make_authenticator=tokens) as bench:
        yield bench


async def test_an_agent_whose_clock_is_a_day_off_tells_the_same_as_any_other(
    make: Make, wrong_clock: Path, tmp_path: Path
) -> None:
    """Evidence has ages and no times. Whether a token is valid is the aggregator's to say."""
    issuer = TokenIssuer()
    offsets = {"right": 0, "ahead": DAY, "behind": -DAY}
    async with token_aggregator(issuer, tmp_path, *offsets) as bench:
        agents = {}
        for name, offset in offsets.items():
            agent = agents[name] = make(name, bench)
            agent.node = name
            token = text_file(tmp_path / f"token-{name}", issuer.token(name, expires_in=3600))
            agent.uplink = f'token_file = "{token}"\n'
            agent.prefix = off_by(wrong_clock, offset)
            agent.start()
        for name in agents:
            await shown(bench, name, lambda node: node["agent"] == "attached")
        for agent in agents.values():
            agent.xid(79)
        began = time.monotonic()
        said = [await shown(bench, name, lambda node: node["quarantine"]) for name in agents]
        took = time.monotonic() - began
        for node in said:
            [fault] = node["faults"]
            assert fault["code"] == "xid:79"
            assert not fault["historical"]
            assert node["state"] == said[0]["state"]
        first = [_when(node["faults"][0]["first_at"]) for node in said]
        assert max(first) - min(first) < took + 1
        # Their own clocks are as wrong as they are meant to be.
        days = {name: agents[name].log()[10:20] for name in agents}
        assert sorted(days, key=days.__getitem__) == ["behind", "right", "ahead"]

        # A token that has expired: an agent that takes it for valid is told so, and reports it.
        (tmp_path / "token-behind").write_text(issuer.token("behind", expires_in=-3600))
        bench.site.server.table.close_all("so that it comes back")
        assert "UNAUTHENTICATED: the token expired 36" in await trouble(agents["behind"], "expired")
        said_of = await shown(bench, "behind", lambda node: node["agent"] != "attached")
        assert said_of["quarantine"] is not None, "what was known stays in force"


def _when(time: str) -> float:
    return dt.datetime.fromisoformat(time).timestamp()


async def test_a_clock_that_takes_a_certificate_for_one_of_tomorrow_is_named(
    make: Make, wrong_clock: Path, tmp_path: Path
) -> None:
    """TLS is the one place where a node's own wall clock counts."""
    (tmp_path / "pki").mkdir()
    async with running_aggregator("node-a", folder=tmp_path / "pki") as bench:
        agent = make("behind", bench)
        assert bench.site.authority is not None
        agent.uplink = f'ca_file = "{bench.site.authority.certificate}"\n'
        agent.prefix = off_by(wrong_clock, -DAY)
        await agent.start().up()
        error = await trouble(agent, "UNAVAILABLE")
        assert "certificate is not yet valid" in error
        assert "clock" in error
        said = await bench.node("node-a")
        assert (said["state"], said["agent"]) == ("unknown", "never")


# -- an agent that floods -------------------------------------------------------------------------


async def acknowledged(agent: Agent, first: int, count: int) -> float:
    """The median time from a delta to its Ack, in seconds."""
    took = []
    for seq in range(first, first + count):
        began = time.perf_counter()
        await agent.delta(Delta(), seq=seq)
        assert (await agent.expect("ack")).seq == seq
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)
    return statistics.median(took)


async def test_an_agent_that_floods_is_held_back_and_no_other_is_the_slower_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_aggregator("node-a", "node-b") as bench, bench.site.agent("node-b") as other:
        await other.attend()
        quiet = await acknowledged(other, 2, 60)
        line = [sys.executable, "-m", "tests.aggregator.flooding_agent", bench.address, "node-a"]
        process = await asyncio.create_subprocess_exec(*line, cwd=ROOT)
        try:
            await until(lambda: bench.site.stats.throttled > 2, what="the flood")
            before, began = bench.site.stats.messages["delta"], time.monotonic()
            flooded = await acknowledged(other, 62, 60)
            taken = bench.site.stats.messages["delta"] - before - 60
            seconds = time.monotonic() - began
            # The page answers as before: both are read, and the flooding agent's evidence is
            # folded.
            stands = {name: await bench.node(name) for name in ("node-a", "node-b")}
            said = await bench.page.text("/metrics")
        finally:
            process.kill()
            await process.wait()
        print(f"median Ack of another: {quiet * 1000:.2f} ms, in a flood {flooded * 1000:.2f} ms")
        # 20 a second, however many it sends; each of them is work for us.
        assert taken <= 20 * seconds + 2
        assert flooded < 3 * quiet + 0.02, (quiet, flooded)
        [held] = [line for line in said.splitlines() if line.startswith("sickbay_ingest_throttles")]
        assert float(held.split()[-1]) > 0
        assert [one["agent"] for one in stands.values()] == ["attached", "attached"]
        checks = [one["check"] for one in stands["node-a"]["components"]]
        assert checks.count("disk-space") == 50
        assert bench.world.quarantines == {}
        held_back = [one for one in caplog.records if "sends more than it may" in one.message]
        assert {vars(one)["node"] for one in held_back} == {"node-a"}
        assert len(held_back) <= seconds / 10 + 2, "the log is not flooded too"


# -- half-open connections ------------------------------------------------------------------------


@pytest.mark.root
def test_a_connection_that_swallows_everything_is_noticed_on_both_sides_and_loses_nothing(
    half_open: "subprocess.Popen[str]",
) -> None:
    out, err = half_open.communicate(timeout=300)
    assert half_open.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    # The agent is silent after 5 s here. No node is quarantined for silence.
    assert told["silent_at"] >= 4
    assert told["why"].startswith("its agent is silent")
    assert told["quarantined_meanwhile"] == []
    # A second to the next heartbeat and 15 until TCP gives up; not the 75 of a ping.
    assert told["noticed_at"] < 60, told
    assert "timed out" in told["error"]
    assert told["faults"] == ["xid:79"]
