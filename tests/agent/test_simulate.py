"""Simulated nodes: through the real uplink to a real server, and what they refuse."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aggregator.ingest.identity import CertificateAuthenticator
from nodeagent.simulate import machine
from nodeagent.simulate.events import Fault
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.cli import agent
from tests.support.fake_aggregator import Attended, FakeAggregator
from tests.support.ingest import site
from tests.support.pki import Authority
from tests.support.simulator import Simulator
from tests.support.text_files import text_file
from tests.support.waiting import until

DOCS = (Path(__file__).parents[2] / "docs/simulate.md").read_text()

Start = Callable[..., Simulator]


@pytest.fixture
def start(aggregator: FakeAggregator, tmp_path: Path) -> Iterator[Start]:
    """Starts simulations against the played aggregator; all end with the test."""
    started: list[Simulator] = []

    def start(*arguments: str | Path) -> Simulator:
        log = tmp_path / f"simulator-{len(started)}.log"
        line = ["--aggregator", aggregator.address, *arguments]
        started.append(Simulator(line, log=log))
        return started[-1]

    yield start
    for each in started:
        each.close()


async def all_here(aggregator: FakeAggregator, count: int) -> dict[str, Attended]:
    """The live stream of each node, once all have sent all their evidence."""

    def all_reported() -> bool:
        here = [stream for stream in aggregator.streams if not stream.ended and stream.components]
        return len({stream.hello.node for stream in here}) == count

    await until(all_reported, within=30, what=f"{count} nodes with a snapshot")
    return {stream.hello.node: stream for stream in aggregator.streams if not stream.ended}


async def test_every_node_is_an_agent_of_its_own(aggregator: FakeAggregator, start: Start) -> None:
    start("--nodes", "50")
    streams = await all_here(aggregator, 50)
    assert min(streams) == "sim-0001"
    for told in (
        {stream.hello.boot_id for stream in streams.values()},
        {stream.hello.instance for stream in streams.values()},
    ):
        assert len(told) == 50
    parts = streams["sim-0001"].components
    gpus = [key for key in parts if key[0] == "gpu-inventory" and key[1].startswith("GPU-")]
    assert len(gpus) == 8
    assert {part.status for part in parts.values()} == {pb.STATUS_OK}


async def test_a_fault_from_standard_input_is_what_the_real_parser_reads(
    aggregator: FakeAggregator, start: Start
) -> None:
    simulator = start("--nodes", "3")
    streams = await all_here(aggregator, 3)
    simulator.inject(node="sim-0002", fault="xid:79", gpu=3)
    await until(lambda: streams["sim-0002"].faults, what="the fault")
    [fault] = streams["sim-0002"].faults.values()
    assert fault.code == "xid:79"
    assert fault.cleared_by == pb.CLEARED_BY_REBOOT
    assert fault.details["pci"] == machine.address(3)
    assert fault.component.startswith("GPU-")
    assert not streams["sim-0001"].faults


async def test_the_heartbeats_digest_is_that_of_what_was_sent(
    aggregator: FakeAggregator, start: Start
) -> None:
    simulator = start("--nodes", "1")
    [stream] = (await all_here(aggregator, 1)).values()
    simulator.inject(nodes="all", fault="xid:48")
    await until(lambda: stream.faults and len(stream.digests) >= 2, what="heartbeats")
    said, folded = stream.digests[-1]
    assert said == folded


async def test_a_scenario_happens_in_time_and_is_undone(
    aggregator: FakeAggregator, start: Start, tmp_path: Path
) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        """
[[event]]
at = "500ms"
node = "sim-0001"
check = "disk-space"
component = "/"
status = "failed"
reason = "full"
for = "1s"
"""
    )
    start("--nodes", "2", "--scenario", scenario)
    stream = (await all_here(aggregator, 2))["sim-0001"]
    disk = ("disk-space", "/")
    await until(lambda: stream.components[disk].status == pb.STATUS_FAILED, what="the full disk")
    assert stream.components[disk].reason == "full"
    await until(lambda: stream.components[disk].status == pb.STATUS_OK, what="the empty disk")


async def test_a_reset_clears_what_a_reset_clears_and_a_reboot_the_rest(
    aggregator: FakeAggregator, start: Start
) -> None:
    simulator = start("--nodes", "1")
    [stream] = (await all_here(aggregator, 1)).values()
    boot = stream.hello.boot_id
    simulator.inject(nodes="all", fault="xid:79", gpu=0)
    simulator.inject(nodes="all", fault="xid:95", gpu=1)
    await until(lambda: len(stream.faults) == 2, what="both faults")
    simulator.inject(nodes="all", clear="all", how="gpu-reset")
    await until(lambda: stream.cleared, what="the sign")
    assert [code for code, _ in stream.faults] == ["xid:79"]
    simulator.inject(nodes="all", reboot=True)
    await until(
        lambda: len(aggregator.streams) == 2 and aggregator.latest.components, what="the next boot"
    )
    assert aggregator.latest.hello.boot_id != boot
    assert not aggregator.latest.faults


async def test_a_node_that_is_away_comes_back_with_what_it_knew(
    aggregator: FakeAggregator, start: Start
) -> None:
    simulator = start("--nodes", "1")
    [stream] = (await all_here(aggregator, 1)).values()
    simulator.inject(nodes="all", fault="xid:79")
    await until(lambda: stream.faults, what="the fault")
    simulator.inject(**{"nodes": "all", "away": True, "for": "500ms"})
    await until(lambda: stream.ended, what="its end")
    await until(
        lambda: aggregator.latest is not stream and aggregator.latest.faults, what="its return"
    )
    assert aggregator.latest.hello.boot_id == stream.hello.boot_id


async def test_after_the_aggregators_death_all_come_back_with_their_faults(
    aggregator: FakeAggregator, start: Start
) -> None:
    simulator = start("--nodes", "30")
    await all_here(aggregator, 30)
    await until(lambda: simulator.streaming == 30, what="all attached")
    address = aggregator.address
    await aggregator.stop()
    simulator.inject(nodes="all", fault="xid:79")
    await until(lambda: simulator.streaming == 0 and simulator.said("event applied"), within=20)
    await until(lambda: "UNAVAILABLE" in simulator.said("nodes attached")[-1]["trouble"])
    again = FakeAggregator()
    await again.start(address)
    try:
        streams = await all_here(again, 30)
        assert all(len(stream.faults) == 1 for stream in streams.values())
    finally:
        await again.stop()


async def test_the_same_seed_draws_the_same(aggregator: FakeAggregator, start: Start) -> None:
    async def drawn() -> tuple[object, ...]:
        simulator = start("--nodes", "20", "--seed", "7")
        streams = await all_here(aggregator, 20)
        simulator.inject(nodes=3, fault="xid:79")
        await until(lambda: sum(bool(s.faults) for s in streams.values()) == 3, what="the faults")
        seen = sorted((s.hello.node, *s.faults, s.hello.boot_id) for s in streams.values())
        assert simulator.stop() == 0
        await until(lambda: all(stream.ended for stream in streams.values()), what="their end")
        return tuple(seen)

    assert await drawn() == await drawn()


async def test_nodes_may_share_connections(aggregator: FakeAggregator, start: Start) -> None:
    simulator = start("--nodes", "40", "--connections", "2")
    await all_here(aggregator, 40)
    sockets = [fd for fd in _files(simulator.process.pid) if fd.startswith("socket:")]
    own = start("--nodes", "40", "--prefix", "own-")
    await all_here(aggregator, 80)
    more = [fd for fd in _files(own.process.pid) if fd.startswith("socket:")]
    assert len(more) - len(sockets) == 38


def _files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [str(each.readlink()) for each in folder.iterdir() if each.is_symlink()]


async def test_each_node_carries_its_own_token(
    aggregator: FakeAggregator, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "names").write_text("gpu-a\ngpu-b\n")
    for name in ("gpu-a", "gpu-b"):
        (tmp_path / name).write_text(f"token-of-{name}\n")
    start("--names", tmp_path / "names", "--token-dir", tmp_path)
    streams = await all_here(aggregator, 2)
    for name, stream in streams.items():
        assert stream.metadata["authorization"] == f"Bearer token-of-{name}"


async def test_each_node_shows_its_own_certificate(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("gpu-a\ngpu-b\n")
    authenticator = CertificateAuthenticator()
    async with site(folder=tmp_path, authenticator=authenticator, client_certificates=True) as at:
        assert at.authority is not None
        for name in ("gpu-a", "gpu-b"):
            at.authority.client(name, dns=[name])
        line: list[str | Path] = ["--names", tmp_path / "names", "--cert-dir", tmp_path]
        line += ["--aggregator", f"localhost:{at.server.port}"]
        line += ["--ca-file", at.authority.certificate]
        with Simulator(line, log=tmp_path / "simulator.log"):
            await until(lambda: len(at.intake.evidence) == 2, within=30, what="both nodes")
        told = {node for node, _, _ in at.intake.evidence}
        assert told == {"gpu-a", "gpu-b"}


async def test_lines_that_cannot_be_carried_out_are_refused_and_harm_nothing(
    aggregator: FakeAggregator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")  # as in a locale such as en_US.UTF-8
    simulator = start("--nodes", "2")
    streams = await all_here(aggregator, 2)
    for line in (
        b"nonsense \xff\n",
        b"[]\n",
        b'{"node": "sim-0003", "fault": "xid:79"}\n',
        b'{"fault": "xid:seventy"}\n',
        b'{"fault": "xid:79", "gpu": 8}\n',
        b'{"fault": "xid:79", "reboot": true}\n',
        b'{"clear": "all", "for": "3s"}\n',
        b'{"node": "sim-0001", "nodes": 1, "reboot": true}\n',
        b'{"fault": "sxid:10003:fatal", "text": "IN=eth0 OUT=eth1 "}\n',
    ):
        assert simulator.process.stdin is not None
        simulator.process.stdin.write(line)
    simulator.inject(node="sim-0001", fault="xid:79")
    await until(lambda: streams["sim-0001"].faults, what="the fault after them")
    said = [line["message"] for line in simulator.said("event refused")]
    assert len(said) == 9, said
    assert 'there is no node "sim-0003"' in said[2]
    assert "given next to fault" in said[5]
    assert "reads nothing and not sxid:10003:fatal" in said[8]
    assert not streams["sim-0002"].faults


async def test_it_ends_with_its_standard_input(aggregator: FakeAggregator, start: Start) -> None:
    simulator = start("--nodes", "2")
    await all_here(aggregator, 2)
    assert simulator.process.stdin is not None
    simulator.process.stdin.close()
    assert simulator.process.wait(300) == 0


def test_every_fault_of_the_driver_that_can_be_written_is_read_back() -> None:
    class Clock:
        def boottime(self) -> float:
            return 1000.0

    uuids = [machine.gpu_uuid("n", gpu, 0) for gpu in range(8)]
    codes = [f"xid:{number}" for number in range(1, 173)]
    codes += ["sxid:20034:fatal", "sxid:11012:non-fatal", "gpu-off-bus"]
    for code in codes:
        [seen] = machine.sightings(Fault(code), uuids, 5, seq=1, at=1000.0, clock=Clock())
        assert seen.code == code
        assert seen.component == ("" if code.startswith("sxid") else uuids[5])


@pytest.mark.parametrize(
    ("scenario", "where", "what"),
    [
        ('[[event]]\nat = "5"\nfault = "xid:79"', ":2: event[0].at", "expected a duration such as"),
        ('[[event]]\nnodes = 9\nfault = "xid:79"', ":2: event[0].nodes", "9 is more than 4"),
        ('[[event]]\nfault = "xid:x"', ":2: event[0].fault", '"xid:79"'),
        ('[[event]]\nfault = "xid:079"', ":2: event[0].fault", "is no fault code"),
        ('[[event]]\nfault = "xid:٧٩"', ":2: event[0].fault", "is no fault code"),
        ('[[event]]\nfault = "sxid:020034:fatal"', ":2: event[0].fault", "is no fault code"),
        ("[[event]]\nnodes = []\naway = true", ":2: event[0].nodes", "names no node"),
        (
            '[[event]]\nnodes = ["sim-0001", "sim-0001"]\naway = true',
            ":2: event[0].nodes",
            "names a node twice",
        ),
        ('[[event]]\nat = "1s"', ":1: event[0]", "one of fault, check, clear, reboot, away"),
        ('[[event]]\nfault = "xid:79"\ngpus = 1', ":3: event[0].gpus", "did you mean event[0].gpu"),
        ('[[event]]\ncheck = "disk-space"', ":2: event[0].check", "without a status"),
        ('[[event]]\ncheck = "disc"\nstatus = "ok"', ":2: event[0].check", "one of disk-readonly"),
        ("event = 3", ":1: event", "tables [[event]]"),
        ('[[events]]\nfault = "xid:79"', ":1: events", "did you mean event?"),
        ("[[event]\n", ":1: ", "not valid TOML"),
    ],
)
def test_a_bad_scenario_is_refused_with_file_line_and_key(
    tmp_path: Path, scenario: str, where: str, what: str
) -> None:
    file = text_file(tmp_path / "s.toml", scenario)
    said = refusal("--nodes", "4", "--aggregator", "localhost:1", "--scenario", file)
    assert f"{file}{where}" in said
    assert what in said


def refusal(*arguments: str | Path) -> str:
    """The error text. A command that is not refused ends at once, with its standard input."""
    done = agent("simulate", "--stdin", *arguments)
    assert done.code == 2, done.out
    assert "Traceback" not in done.err
    return done.err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--nodes", "0", "--aggregator", "localhost:1"], "expected a whole number from 1"),
        (["--aggregator", "localhost:1"], "one of the arguments --nodes --names is required"),
        (["--nodes", "1", "--aggregator", "nowhere"], "expected host:port"),
        (["--nodes", "1", "--aggregator", "example.test:1"], "set --ca-file for TLS"),
        (["--names", "/nonexistent", "--aggregator", "localhost:1"], "/nonexistent: can't be read"),
        (["--names", "/dev/full", "--aggregator", "localhost:1"], "it is a device and no regular"),
        (
            ["--nodes", "1", "--aggregator", "localhost:1", "--token-dir", "/"],
            "no token for 1 of 1",
        ),
        (
            ["--nodes", "1", "--aggregator", "localhost:1", "--cert-dir", "/"],
            "no certificate for 1 of 1",
        ),
        (["--nodes", "1", "--aggregator", "localhost:1", "--cert-dir", "/"], "--ca-file too"),
        (["--nodes", "1", "--aggregator", "localhost:1", "--ca-file", "/none"], "is no file"),
        (
            ["--nodes", "1", "--aggregator", "localhost:1", "--ca-file", __file__],
            "can't be read as certificates",
        ),
        (["--nodes", "1", "--aggregator", "localhost:1", "--prefix", "a b/"], "'a b/0001' is no"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], what: str) -> None:
    assert what in refusal(*arguments)


def test_names_that_no_aggregator_would_take_are_refused_with_their_lines(tmp_path: Path) -> None:
    file = text_file(tmp_path / "names", "fine\nb c\n\n../x\n" + 254 * "x" + "\n")
    said = refusal("--names", file, "--aggregator", "localhost:1")
    told = [line.partition(": ")[0] for line in said.splitlines()]
    assert told == [f"{file}:{number}" for number in (2, 4, 5)]
    assert "'b c' is no node's name; expected a node's name: letters" in said


async def test_an_editors_mark_at_the_beginning_is_no_part_of_the_first_name(
    aggregator: FakeAggregator, start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "names"
    file.write_text("node-a\nnode-b\n", encoding="utf-8-sig")
    start("--names", file)
    assert set(await all_here(aggregator, 2)) == {"node-a", "node-b"}


async def test_grpc_writes_nothing_between_its_lines(
    aggregator: FakeAggregator, start: Start, tmp_path: Path
) -> None:
    """Otherwise it would, for each attempt of each node: here TLS to a server without TLS."""
    ca_file = Authority.create(tmp_path).certificate
    simulator = start("--nodes", "2", "--ca-file", ca_file)
    await until(
        lambda: any(line["trouble"] for line in simulator.said("nodes attached")), what="trouble"
    )
    assert not [line for line in simulator.log().splitlines() if not line.startswith("{")]


def test_the_docs_name_every_option() -> None:
    options = set(re.findall(r"(?<=  )--[a-z-]+", agent("simulate", "--help").out))
    assert "reference/commands.md#sickbay-agent-simulate" in DOCS
    commands = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
    section = commands.partition("### sickbay-agent simulate\n")[2].partition("\n### ")[0]
    assert {option for option in options if f"`{option}" not in section} <= {"--log-level"}
