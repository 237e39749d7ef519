"""TLS, client certificates and tokens, each read anew when its file changes."""

import ctypes
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from nodeagent.config.settings import UplinkConfig
from nodeagent.uplink import dialer
from nodeagent.uplink.dialer import Dialer, DialError, TokenFile
from tests.agent.agent_process import AgentProcess
from tests.support.fake_aggregator import FakeAggregator
from tests.support.pki import Authority
from tests.support.text_files import text_file
from tests.support.waiting import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "ca").mkdir()
    return Authority.create(tmp_path / "ca")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "node")
    yield agent
    agent.close()


@pytest.fixture
async def aggregator() -> AsyncIterator[FakeAggregator]:
    aggregator = FakeAggregator()
    yield aggregator
    await aggregator.stop()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/x.sock", "127.8.8.8:65535"]
)
def test_plaintext_stays_on_this_machine(address: str) -> None:
    Dialer(UplinkConfig(address=address)).check(address)


@pytest.mark.parametrize("address", ["10.0.0.1:1", "[fe80::1]:1", "localhost.example:1", "a:1"])
def test_plaintext_to_elsewhere_takes_an_insecure_setting(address: str) -> None:
    with pytest.raises(DialError, match="plaintext"):
        Dialer(UplinkConfig()).check(address)
    Dialer(UplinkConfig(insecure_plaintext=True)).check(address)
    Dialer(UplinkConfig(ca_file=Path("ca.crt"))).check(address)


@pytest.mark.parametrize("address", ["", "host", "host:", "http://host:1", "host:1/x", "a b:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(DialError, match="is no address"):
        Dialer(UplinkConfig(insecure_plaintext=True)).check(address)


@pytest.mark.parametrize("address", ["unix:/run/x.sock", "nonsense", "127.0.0.1:65536", "x" * 9999])
def test_an_aggregator_can_name_no_socket_and_no_nonsense(address: str) -> None:
    with pytest.raises(DialError, match=r"expected host:port$") as refused:
        Dialer(UplinkConfig()).check(address, named_by_aggregator=True)
    assert len(str(refused.value)) < 400


def _timer_slack() -> int:
    """This thread's own, in nanoseconds (prctl(2), PR_GET_TIMERSLACK)."""
    return int(ctypes.CDLL(None).prctl(30, 0, 0, 0, 0))


def _slacks(pid: int) -> dict[tuple[str, str], int]:
    """Those of a process's threads, by number and name."""
    return {
        (thread.name, (thread / "comm").read_text().strip()): int(
            Path(f"/proc/{thread.name}/timerslack_ns").read_text()
        )
        for thread in Path(f"/proc/{pid}/task").iterdir()
    }


def test_only_threads_that_start_with_a_channel_have_late_timers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slacks: list[int] = []

    def channel(_: str, options: object) -> object:
        thread = threading.Thread(target=lambda: slacks.append(_timer_slack()))
        thread.start()
        thread.join()
        return options

    monkeypatch.setattr(grpc.aio, "insecure_channel", channel)
    before = _timer_slack()
    Dialer(UplinkConfig()).open("127.0.0.1:1")
    assert slacks == [500_000_000]
    assert _timer_slack() == before < 1_000_000


async def test_a_kernel_without_timer_slack_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "_SLACK", tmp_path / "none" / "timerslack_ns")
    await Dialer(UplinkConfig()).open("127.0.0.1:1").close()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    config = UplinkConfig(ca_file=tmp_path / "ca.crt", token_file=tmp_path / "token")
    with pytest.raises(DialError, match=r"ca\.crt cannot be read"):
        Dialer(config).open("host:1")
    with pytest.raises(DialError, match="token cannot be read"):
        Dialer(config).metadata()
    (tmp_path / "token").write_text("\n")
    with pytest.raises(DialError, match="is empty"):
        Dialer(config).metadata()


def test_a_renewed_token_that_could_not_be_read_is_read_later(tmp_path: Path) -> None:
    file = tmp_path / "token"

    def written(text: str, at: int) -> None:
        file.write_text(text)
        os.utime(file, ns=(at, at))

    written("first", 1)
    token = TokenFile(file)
    assert token.read() == "first"
    written("", 2)
    with pytest.raises(DialError, match="is empty"):
        token.renewed()
    written("second", 2)
    assert (token.renewed(), token.renewed()) == ("second", "")


async def test_a_token_goes_over_tls_and_is_renewed_within_the_stream(
    aggregator: FakeAggregator, agent: AgentProcess, authority: Authority, tmp_path: Path
) -> None:
    server = authority.server("aggregator", ["localhost"])
    await aggregator.start("localhost:0", certificate=(server.certificate, server.key))
    token = text_file(tmp_path / "token", "first-secret\n")
    agent.aggregator = aggregator.address
    agent.uplink = f'ca_file = "{authority.certificate}"\ntoken_file = "{token}"\n'
    agent.start()
    await until(
        lambda: aggregator.streams and aggregator.latest.kinds()[1:2] == ["snapshot"], within=20
    )
    assert aggregator.latest.metadata["authorization"] == "Bearer first-secret"
    # As a kubelet does it: the new one is put in the old one's place.
    (tmp_path / "next").write_text("second-secret\n")
    (tmp_path / "next").rename(token)
    await until(lambda: aggregator.latest.tokens == ["second-secret"])
    aggregator.latest.end()
    await until(lambda: len(aggregator.streams) == 2)
    assert aggregator.latest.metadata["authorization"] == "Bearer second-secret"
    assert "secret" not in agent.log()
    assert "secret" not in (agent.run_dir / "state.json").read_text()


async def test_a_server_of_another_authority_is_told_nothing(
    aggregator: FakeAggregator, agent: AgentProcess, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    server = Authority.create(tmp_path / "other").server("aggregator", ["localhost"])
    await aggregator.start("localhost:0", certificate=(server.certificate, server.key))
    agent.aggregator = aggregator.address
    agent.uplink = f'ca_file = "{authority.certificate}"\n'
    agent.start()
    await until(lambda: "CERTIFICATE_VERIFY_FAILED" in agent.log(), within=20)
    assert aggregator.streams == []


async def test_a_rotated_client_certificate_is_used_at_the_next_connection(
    aggregator: FakeAggregator, agent: AgentProcess, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    stale = Authority.create(tmp_path / "old").client("agent", common_name="node-a")
    cert, key = tmp_path / "client.crt", tmp_path / "client.key"
    shutil.copy(stale.certificate, cert)
    shutil.copy(stale.key, key)
    server = authority.server("aggregator", ["localhost"])
    await aggregator.start(
        "localhost:0", certificate=(server.certificate, server.key), client_ca=authority.certificate
    )
    agent.aggregator = aggregator.address
    agent.uplink = (
        f'ca_file = "{authority.certificate}"\ncert_file = "{cert}"\nkey_file = "{key}"\n'
    )
    agent.start()
    await until(lambda: "no stream" in agent.log(), within=20)
    assert aggregator.streams == []
    fresh = authority.client("agent", common_name="node-a")
    shutil.copy(fresh.certificate, cert)
    shutil.copy(fresh.key, key)
    await until(lambda: aggregator.streams, within=40)


async def test_the_threads_of_grpc_have_late_timers_and_the_event_loop_has_not(
    aggregator: FakeAggregator, agent: AgentProcess
) -> None:
    agent.aggregator = (await aggregator.start()).address
    process = agent.start().process
    assert process is not None
    await until(lambda: aggregator.streams, within=40)
    slacks = _slacks(process.pid)
    late = {name for (_, name), slack in slacks.items() if slack == 500_000_000}
    assert late >= {"event_engine", "lifeguard"}
    [own] = [slack for (thread, _), slack in slacks.items() if thread == str(process.pid)]
    assert own < 1_000_000
