"""How long a launcher and a prolog wait for the agent's answer, in milliseconds.

A real agent with one failed GPU. Launchers call its gRPC socket, each with a connection of its own
as ft_launcher has; prologs post to its local socket as `sickbay-agent ready` does, and the whole
command, with the start of its Python, is a figure of its own.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import grpc

from nodeagent.local.client import post_json
from nodeagent.local.launcher_socket import METHOD, SERVICE
from tests.agent.agent_process import AgentProcess
from tests.bench.figures import percentile
from tests.support.waiting import until


def _timed(calls: int, call: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - begun))
    return found


def _launch(path: Path) -> None:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{SERVICE}/{METHOD}"
        )
        call(b"", timeout=60)


async def ready_times(folder: Path, calls: int) -> dict[str, float]:
    agent = AgentProcess(folder / "node")
    path = agent.folder / "nvhcd.sock"
    agent.more += f'\n[ready]\nlauncher_socket = "{path}"\n'
    with closing(agent):
        await agent.start().up()
        await until(path.is_socket, what=agent.log)
        agent.xid(79)
        await until(lambda: not post_json(agent.socket, "/v1/ready", {"gpus": []}, 60)["ready"])
        launched = _timed(calls, lambda: _launch(path))
        posted = _timed(calls, lambda: post_json(agent.socket, "/v1/ready", {"gpus": ["0"]}, 60))
        command = [sys.executable, "-m", "nodeagent.cli", "ready", "--config", str(agent.config)]
        whole = _timed(
            max(3, calls // 50),
            lambda: subprocess.run(command, env=os.environ, capture_output=True, check=False),
        )
    return {
        "ready_p99_ms": round(max(percentile(launched, 99), percentile(posted, 99)), 2),
        "ready_launcher_p50_ms": round(percentile(launched, 50), 2),
        "ready_prolog_p50_ms": round(percentile(posted, 50), 2),
        "ready_command_p50_ms": round(percentile(whole, 50), 1),
    }


def measure(folder: Path, calls: int) -> dict[str, float]:
    return asyncio.run(ready_times(folder, calls))
