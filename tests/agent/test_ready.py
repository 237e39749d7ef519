"""``sickbay-agent ready``, and the health check that NVIDIA's launcher calls."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path

import grpc
import pytest

from nodeagent.local.launcher_socket import METHOD, SERVICE, response
from nodeagent.local.ready import Against, Readiness
from tests.agent.agent_process import AgentProcess, Make
from tests.agent.cli import PROGRAM, Done, StandIn
from tests.agent.cli import agent as command
from tests.agent.kernel_log import GPU, pci_device
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
LAUNCHER = Path(__file__).with_name("nvrx_launcher.py")
OTHER = "0000:5e:00"


def ready(agent: AgentProcess, *arguments: str) -> Done:
    return command("ready", *arguments, "--config", agent.config)


async def until_code(agent: AgentProcess, code: int) -> None:
    """Until ``ready`` ends with this code: evidence is on its way."""
    await until(lambda: ready(agent).code == code, within=PATIENCE, what=agent.log)


@pytest.fixture
async def node(make: Make) -> AgentProcess:
    """A node of two GPUs."""
    agent = make()
    pci_device(agent.folder / "sys", f"{OTHER}.0", "0x030200")
    agent.start()
    await agent.up()
    await until_code(agent, 0)
    return agent


# -- the command -------------------------------------------------------------------------------


async def test_a_failed_gpu_speaks_against_the_jobs_that_use_it_alone(node: AgentProcess) -> None:
    assert ready(node).out == "node-a: ready\n"
    node.xid(79)
    await until_code(node, 1)
    done = ready(node)
    assert done.out.startswith(f"node-a: not ready: xid:79 pci:{GPU} ")
    assert (ready(node, "--gpus", "0").code, ready(node, "--gpus", "1").code) == (1, 0)
    assert (ready(node, "--gpus", "0,1").code, ready(node, "--gpus", f"{OTHER}.0").code) == (1, 0)
    assert ready(node, "--gpus", f"pci:{GPU}").code == 1
    answer = ready(node, "--gpus", "0", "-o", "json").json
    assert (answer["ready"], answer["total"]) == (False, 1)
    assert (answer["against"][0]["code"], answer["against"][0]["component"]) == (
        "xid:79",
        f"pci:{GPU}",
    )
    # An application's own fault is no reason to keep the next job away.
    node.xid(31)
    assert ready(node, "--gpus", "0", "-o", "json").json["total"] == 1


async def test_the_documented_prolog_keeps_jobs_from_a_failed_gpu(
    node: AgentProcess, tmp_path: Path
) -> None:
    text = (ROOT / "docs/agent.md").read_text()
    [script] = re.findall(r"```sh\n(.*?prolog\.d.*?)```", text, re.DOTALL)
    script = script.replace("/opt/sickbay/bin/", "")
    tools = {
        "logger": f'echo "$3" >> {tmp_path}/logged',
        "sickbay-agent": f'exec {PROGRAM} "$@" --config {node.config}',
    }
    for name, line in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)

    def prolog(**more: str) -> int:
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **more}
        return subprocess.run(["sh", "-c", script], env=environ, check=False).returncode

    assert prolog() == 0
    node.xid(79)
    await until_code(node, 1)
    assert [prolog(SLURM_JOB_GPUS=one) for one in ("0", "1", "0,1", "7")] == [1, 0, 1, 0]
    assert prolog() == 1
    assert (tmp_path / "logged").read_text().startswith("node-a: not ready: xid:79")


async def test_what_is_no_verdict_about_the_node_has_a_code_of_its_own(
    node: AgentProcess, tmp_path: Path
) -> None:
    done = ready(node, "--gpus", "2")
    assert done.code == 3
    assert f"this node has no GPU 2; it has pci:{GPU}, pci:{OTHER}" in done.err
    wrong = ready(node, "--gpus", "0,")
    assert (wrong.code, wrong.out) == (2, "")
    assert "an empty name" in wrong.err
    await node.terminate()
    gone = ready(node)
    assert (gone.code, gone.out) == (3, "")
    assert "no agent is running" in gone.err
    silent = tmp_path / "silent.toml"
    silent.write_text(f'node = "n"\nsocket = "{tmp_path / "silent.sock"}"\n')

    def hang(connection: socket.socket) -> None:
        connection.recv(4096)

    with StandIn(tmp_path / "silent.sock", hang):
        hung = command("ready", "--timeout", "1s", "--config", silent)
    assert (hung.code, "gave no answer" in hung.err) == (3, True)


async def test_a_released_driver_is_not_ready_and_a_bad_request_is_refused(
    node: AgentProcess,
) -> None:
    assert (await node.ask("/v1/quiesce", "POST", '{"seconds": 600}'))[0] == 200
    done = ready(node)
    assert done.code == 1
    assert "gpu-driver-released the GPU driver is released for" in done.out
    for body in ("{", '{"gpus": 3}', '{"gpus": [3]}', "[]"):
        status, text = await node.ask("/v1/ready", "POST", body)
        assert (status, "expected" in text) == (400, True)


# -- the launcher's socket ---------------------------------------------------------------------


@cache
def _modules(version: str) -> str:
    """Installs the wheel's modules, without what it requires; the error, or no text."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "--no-print-directory", f"build/nvrx/{version}/.synced"]
    done = subprocess.run(make, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


class Launcher:
    """A launcher's check, which looks for the socket once, at its start."""

    def __init__(self, version: str, path: Path) -> None:
        if why := _modules(version):
            if os.environ.get("CI") == "true":
                pytest.fail(why, pytrace=False)
            pytest.skip(why)
        folder = ROOT / "build" / "nvrx" / version
        self._process = subprocess.Popen(
            [sys.executable, LAUNCHER, folder, f"unix://{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def healthy(self) -> bool:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return {"True": True, "False": False}[self._read()]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=["0.6.0", "0.7.0"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def test_a_launcher_of_nvidia_receives_the_agents_answer(version: str, make: Make) -> None:
    agent = make()
    path = agent.folder / "launcher" / "nvhcd.sock"
    agent.more += f'\n[ready]\nlauncher_socket = "{path}"\n'
    await agent.start().up()
    await until(path.is_socket, what=agent.log)
    launcher = Launcher(version, path)
    with closing(launcher):
        assert launcher.healthy()
        agent.xid(79)
        await until_code(agent, 1)
        assert not launcher.healthy()
        # Without an agent there is no objection, and the path stays for launchers that start now.
        await agent.terminate()
        assert path.is_socket()
        assert launcher.healthy()
        late = Launcher(version, path)
        agent.start()
        await agent.up()
        await until_code(agent, 1)
        assert not launcher.healthy()
        assert not late.healthy()
        late.close()


async def test_a_path_that_is_no_socket_is_kept_and_reported(make: Make) -> None:
    agent = make()
    path = text_file(agent.folder / "file", "a person's")
    agent.more += f'\n[ready]\nlauncher_socket = "{path}"\n'
    await agent.start().up()
    await until(lambda: "ready.launcher_socket" in agent.log(), what=agent.log)
    assert path.read_text() == "a person's"


@pytest.mark.parametrize("count", [0, 1, 32, 500])
def test_success_and_fail_count_agree_in_every_answer(count: int) -> None:
    against = tuple(Against("xid", f"GPU-{n}", "xid:79", "é" * 90) for n in range(min(count, 32)))
    raw = response(Readiness("node-a", known=True, against=against, total=count))
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"t{count}.proto", package=f"t{count}")
    message = file.message_type.add(name="HealthCheckResponse")
    for number, (name, kind) in enumerate(
        (("success", 8), ("exit_code", 5), ("output", 9), ("error", 9)), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind_of = message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"t{count}.HealthCheckResponse")
    )
    decoded = kind_of.FromString(raw)
    output = json.loads(decoded.output)  # type: ignore[attr-defined]
    assert decoded.success == (count == 0) == (not decoded.error)  # type: ignore[attr-defined]
    assert output["fail_count"] == count
    assert len(output["failed_checks"]) == len(against)


async def test_a_hostile_caller_changes_nothing(make: Make) -> None:
    agent = make()
    path = agent.folder / "nvhcd.sock"
    agent.more += f'\n[ready]\nlauncher_socket = "{path}"\n'
    await agent.start().up()
    await until(path.is_socket, what=agent.log)
    assert path.stat().st_mode & 0o777 == 0o666  # jobs of any user call it
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{SERVICE}/{METHOD}"
        )
        other: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{SERVICE}/Other"
        )
        assert await call(b"\xff" * 1000)  # its arguments are not decoded
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await call(b"\0" * 1_000_000)
        with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
            await other(b"")
    assert ready(agent).code == 0
