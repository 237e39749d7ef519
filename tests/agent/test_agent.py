"""The agent on a node that is unhealthy, shared or wrongly set up; and its reports on itself."""

import asyncio
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.demo.ports import free_port
from nodeagent.local.findings import from_agent
from nodeagent.model import Status
from nodeagent.version import VERSION
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.agent_process import QUIET, AgentProcess, Make
from tests.support.fake_aggregator import FakeAggregator
from tests.support.present import present
from tests.support.waiting import until

GPU = "pci:0000:3b:00"
XID_79 = ("xid:79", GPU)


async def results(agent: AgentProcess) -> Any:
    status, body = await agent.ask("/v1/results")
    assert status == 200
    return json.loads(body)


def component(aggregator: FakeAggregator, check: str) -> pb.ComponentState | None:
    return aggregator.latest.components.get((check, "")) if aggregator.streams else None


@pytest.mark.root
async def test_a_frozen_disk_delays_no_evidence(
    aggregator: FakeAggregator, make: Make, frozen_disk: Path
) -> None:
    agent = make(aggregator=aggregator.address)
    agent.state_dir = frozen_disk / "sickbay"
    await agent.start().up()
    await until(lambda: aggregator.streams and "snapshot" in aggregator.latest.kinds())
    took = []
    for count in range(1, 11):
        before = time.monotonic()
        agent.xid(47 + count)
        await until(lambda count=count: len(aggregator.latest.faults) == count)  # type: ignore[misc]
        took.append(time.monotonic() - before)
    # The disk stays frozen: evidence that waited for it would never come. One delay may come from
    # this machine.
    assert sorted(took)[len(took) // 2] < 1
    assert await agent.terminate() == 0


@pytest.fixture
def read_only_folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read-only"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.root
async def test_a_run_dir_that_cannot_be_written_is_reported_and_evidence_flows(
    aggregator: FakeAggregator, make: Make, tmp_path: Path, read_only_folder: Path
) -> None:
    agent = make(aggregator=aggregator.address)
    agent.socket = tmp_path / "agent.sock"
    agent.run_dir = read_only_folder
    agent.start()
    await until(lambda: component(aggregator, "agent-state"))
    state = present(component(aggregator, "agent-state"))
    assert (state.status, state.reason) == (pb.STATUS_DEGRADED, "not-saved")
    agent.xid(79)
    await until(lambda: XID_79 in aggregator.latest.faults)
    assert agent.log().count("would not survive a restart") == 1
    remount = ["mount", "-o", "remount,rw", str(read_only_folder)]
    await asyncio.to_thread(subprocess.check_call, remount)
    agent.xid(48)
    await until(lambda: aggregator.latest.components["agent-state", ""].status == pb.STATUS_OK)
    assert len(agent.state()["faults"]) == 2


async def test_without_a_kernel_log_the_agent_lives_and_says_so(
    aggregator: FakeAggregator, make: Make, tmp_path: Path
) -> None:
    agent = make(aggregator=aggregator.address)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "no-log"))  # is there, and cannot be opened
    agent.kernel_log = str(tmp_path / "no-log")
    agent.start()
    await until(lambda: component(aggregator, "kernel-log"))
    listener.close()
    told = present(component(aggregator, "kernel-log"))
    assert (told.status, told.reason) == (pb.STATUS_UNKNOWN, "unavailable")
    assert "no-log cannot be opened" in told.message
    await agent.up()


async def test_a_kernel_log_that_is_turned_off_is_not_opened_and_nothing_is_amiss(
    make: Make, tmp_path: Path
) -> None:
    agent = make()
    # A log that could not be opened, and an agent that said so before a person turned the check
    # off.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "no-log"))
    listener.close()
    agent.kernel_log = str(tmp_path / "no-log")
    await agent.start().up()
    assert any(each["reason"] == "unavailable" for each in (await results(agent))["results"])
    await agent.terminate()
    said = len(agent.log())

    agent.more_kernel_log = "enabled = false"
    await agent.start().up()
    told = await results(agent)
    assert [each for each in told["results"] if each["check"] == "kernel-log"] == []
    off = {each["name"]: each["off_because"] for each in told["checks"]}
    for name in ("kernel-log", "xid", "sxid"):
        assert off[name] == "off by configuration (kernel_log.enabled)"
    assert "no-log" not in agent.log()[said:]
    await agent.terminate()


async def test_a_state_file_of_an_unreleased_version_is_refused(make: Make) -> None:
    agent = make()
    agent.run_dir.mkdir(parents=True, exist_ok=True)
    (agent.run_dir / "state.json").write_text('{"version": 1, "epoch": "e"}')
    agent.start()
    process = present(agent.process)
    await until(lambda: process.poll() is not None)
    assert process.returncode == 2
    assert (agent.run_dir / "state.json").read_text() == '{"version": 1, "epoch": "e"}'


async def test_a_damaged_state_file_is_a_loss_in_a_new_epoch(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address).start()
    await until(lambda: aggregator.streams and "snapshot" in aggregator.latest.kinds())
    agent.xid(79)
    await until(lambda: XID_79 in aggregator.latest.faults)
    agent.kill()
    (agent.run_dir / "state.json").write_text('{"format": 1')
    agent.start()
    await until(lambda: len(aggregator.streams) == 2 and "snapshot" in aggregator.latest.kinds())
    first, second = aggregator.streams
    assert first.hello.spool_epoch != second.hello.spool_epoch
    assert [lost.source for lost in second.lost] == ["latch"]
    assert (agent.run_dir / "state.json.corrupt").exists()


@pytest.mark.parametrize("shared", ["socket", "run_dir"])
async def test_a_second_agent_refuses_to_start(make: Make, shared: str) -> None:
    agent = await make().start().up()
    second = make("other")
    setattr(second, shared, getattr(agent, shared))
    second.start()
    assert second.process is not None
    await until(lambda: second.process.poll() is not None)  # type: ignore[union-attr]
    assert second.process.returncode == 2
    assert "another agent runs on this node" in second.log()
    assert f"{getattr(agent, shared)}" in second.log()
    assert not (second.folder / "run/state.json").exists(), "it touched nothing"
    assert (await agent.ask("/healthz"))[0] == 200


async def test_a_dns_server_that_is_named_no_longer_is_over(
    make: Make, aggregator: FakeAggregator, tmp_path: Path
) -> None:
    resolv = tmp_path / "host/etc/resolv.conf"
    resolv.parent.mkdir(parents=True)
    resolv.write_text("nameserver 127.0.0.7\n")
    agent = make(aggregator=aggregator.address)
    agent.top = f'host_root = "{tmp_path / "host"}"'
    agent.more = QUIET.replace("[checks.dns]\non = false", '[checks.dns]\ninterval = "1s"')
    agent.start()
    old, new = (("dns", f"dns://127.0.0.{n}") for n in (7, 8))
    await until(lambda: aggregator.streams and old in aggregator.latest.components)
    assert aggregator.latest.components[old].status == pb.STATUS_FAILED
    resolv.write_text("nameserver 127.0.0.8\n")
    await until(lambda: new in aggregator.latest.components, what=agent.log())
    await until(lambda: old not in aggregator.latest.components, what=agent.log())


async def test_a_socket_that_a_killed_agent_left_is_replaced(make: Make) -> None:
    agent = await make().start().up()
    agent.kill()
    assert agent.socket.exists()
    await agent.start().up()


async def test_a_file_where_the_socket_is_to_be_stays_and_the_agent_runs_without(
    make: Make, aggregator: FakeAggregator, tmp_path: Path
) -> None:
    agent = make(aggregator=aggregator.address)
    agent.socket = tmp_path / "precious"
    agent.socket.write_text("somebody's")
    agent.start()
    await until(lambda: aggregator.streams and "snapshot" in aggregator.latest.kinds())
    said = "the local socket cannot be served: [Errno 17] the path exists and is no socket: "
    assert f"{said}'{agent.socket}'" in agent.log()
    await agent.terminate()
    assert agent.socket.read_text() == "somebody's"


async def test_plaintext_to_another_machine_is_refused_at_the_start(make: Make) -> None:
    agent = make(aggregator="aggregator.example:8443").start()
    assert agent.process is not None
    await until(lambda: agent.process.poll() is not None)  # type: ignore[union-attr]
    assert agent.process.returncode == 2
    assert "without ca_file it is plaintext" in agent.log()
    assert "Traceback" not in agent.log()


# -- what it answers ------------------------------------------------------------------------------


async def test_healthz_asks_nobody_else(make: Make) -> None:
    agent = await make(aggregator="127.0.0.1:9").start().up()
    assert await agent.ask("/healthz") == (200, '{"status": "ok"}\n')


async def test_results_are_what_the_command_line_reads(make: Make) -> None:
    agent = await make().start().up()
    agent.xid(79)
    await until(lambda: agent.state()["faults"])
    status, body = await agent.ask("/v1/results")
    assert status == 200
    found = from_agent(json.loads(body))
    assert found.node == "node-a"
    assert [(fault.code, fault.component, fault.count) for fault in found.faults] == [
        ("xid:79", GPU, 1)
    ]
    assert ("kernel-log", "", Status.OK) in {
        (r.check, r.component, r.status) for r in found.results
    }
    assert json.loads(body)["agent"]["uplink"] == {"state": "off"}
    assert found.worst is Status.FAILED


async def test_metrics_are_well_formed_and_count(make: Make) -> None:
    agent = await make().start().up()
    agent.xid(79)
    await until(lambda: agent.state()["faults"])
    status, body = await agent.ask("/metrics")
    assert status == 200
    assert 'sickbay_agent_faults{code="xid:79"} 1\n' in body
    assert f'sickbay_agent_info{{version="{VERSION}"}} 1\n' in body
    assert "sickbay_agent_kernel_records_total 1\n" in body
    parser = pytest.importorskip("prometheus_client.parser")
    assert len(list(parser.text_string_to_metric_families(body))) > 10


async def test_a_port_for_scrapers_gives_metrics_and_takes_no_order(make: Make) -> None:
    port = free_port()
    agent = await make(top=f'metrics_listen = "127.0.0.1:{port}"').start().up()

    def ask(method: str, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    assert await asyncio.to_thread(ask, "GET", "/healthz") == (200, '{"status": "ok"}\n')
    status, body = await asyncio.to_thread(ask, "GET", "/metrics")
    assert (status, "sickbay_agent_info" in body) == (200, True)
    for method, path in [("POST", "/v1/run-checks"), ("GET", "/v1/results")]:
        status, body = await asyncio.to_thread(ask, method, path)
        assert status == 404
        assert json.loads(body)["routes"] == ["GET /healthz", "GET /metrics"]
    assert (await agent.ask("/v1/run-checks", "POST"))[0] == 200


async def test_a_port_with_a_token_gives_metrics_to_its_bearer_alone(
    make: Make, tmp_path: Path
) -> None:
    port, file = free_port(), tmp_path / "metrics-token"
    file.write_text("first\n")
    top = f'metrics_listen = "127.0.0.1:{port}"\nmetrics_token_file = "{file}"'
    await make(top=top).start().up()

    async def ask(path: str, header: str = "") -> int:
        def get() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
            connection.request("GET", path, headers={"Authorization": header} if header else {})
            return connection.getresponse().status

        return await asyncio.to_thread(get)

    assert await ask("/metrics", "Bearer first") == 200
    for header in ("", "Bearer", "Bearer other", "Basic first", "Bearer first more"):
        assert await ask("/metrics", header) == 401, header
    assert await ask("/healthz") == 200
    file.write_text("second")  # as a Secret rotates
    assert await ask("/metrics", "Bearer first") == 401
    assert await ask("/metrics", "bearer second") == 200
    file.write_text("")
    assert await ask("/metrics", "Bearer ") == 401


async def test_checks_can_be_run_out_of_turn(make: Make) -> None:
    agent = await make(more=QUIET + '[checks.gpu-ecc]\ninterval = "1h"\n').start().up()
    status, body = await agent.ask("/v1/run-checks", "POST", '{"checks": ["gpu-ecc"]}')
    assert (status, json.loads(body)) == (200, {"result": "ran 1 check"})
    status, body = await agent.ask("/v1/run-checks", "POST", '{"checks": ["no-such"]}')
    assert status == 400
    assert "no-such" in json.loads(body)["error"]
    for body in ('{"checks": 7}', 9_000 * "["):
        assert (await agent.ask("/v1/run-checks", "POST", body))[0] == 400


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"\x00\xff\r\n\r\n", 400),
        (b"GET /healthz SPDY/3\r\n\r\n", 400),
        (b"POST /v1/run-checks HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"POST /v1/run-checks HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 413),
    ],
)
async def test_a_bad_request_gets_an_answer_and_harms_nothing(
    make: Make, request_bytes: bytes, status: int
) -> None:
    agent = await make().start().up()
    reader, writer = await asyncio.open_unix_connection(str(agent.socket))
    writer.write(request_bytes)
    first = await asyncio.wait_for(reader.readline(), 300)
    assert first.split()[1] == str(status).encode()
    writer.close()
    assert (await agent.ask("/healthz"))[0] == 200


def test_the_version_is_that_of_the_distribution() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{VERSION}"' in project


async def test_a_log_that_was_set_back_still_gives_its_faults(make: Make) -> None:
    """A machine restored from a snapshot counts its records again from a lower number."""
    agent = make(replayable=True).start()
    await agent.up()
    agent.line("something", skip=9000)
    agent.xid(79)

    def codes() -> list[str]:
        return sorted(fault["code"] for fault in agent.state()["faults"])

    await until(lambda: codes() == ["xid:79"])
    agent.kill()
    os.truncate(agent.kmsg, 0)
    agent._seq = 0
    agent.line("something")
    agent.start()
    await until(lambda: "was set back" in str(agent.state()["losses"]))
    agent.xid(48)
    await until(lambda: codes() == ["xid:48", "xid:79"])
