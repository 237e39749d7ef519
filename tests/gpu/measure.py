"""The agent's cost with the real driver: `python -m tests.gpu.measure FOLDER`, one table.

All default checks, the machine's own kernel log and bus, a stream without TLS to a played
aggregator. BENCH_SECONDS is the time of the agent in all (120), of which the first 30 are not
counted. GPU_AGENT_PYTHON runs the agent and GPU_AGENT_SITE is its folder of packages: a copy of
their own, since libraries that several processes share would lower the proportional set size.
Writes ``figures.json`` and ``agent-check.json`` to FOLDER.
"""

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from tests.bench.processes import Cost, cost
from tests.gpu.real_agent import ROOT, RealAgent, wait_for

_SETTLE = 30.0
_EVERY = 5.0
_MIB = 2**20


def _optimized(python: str, site: str) -> dict[str, str]:
    """The agent's environment as in its image: without docstrings and assertions, compiled."""
    cache = tempfile.mkdtemp(prefix="sickbay-gpu-pycache-")
    variables = os.environ | {"PYTHONOPTIMIZE": "2", "PYTHONPYCACHEPREFIX": cache}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    folders = [sysconfig.get_path("stdlib"), str(ROOT / "nodeagent"), str(ROOT / "proto")]
    folders += [site] if site else []
    subprocess.run(
        [python, "-m", "compileall", "-q", "-j", "0", "-o", "2", "-x", "/test/", *folders],
        check=False,  # some of the library's own data is no Python
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return variables


class Watched:
    """One process of the agent over the time: its sizes, and the processor's time that it took."""

    def __init__(self) -> None:
        self.pss: list[float] = []
        self.rss: list[float] = []
        #: Without its children's: before the time, and at the latest look.
        self.cpu = [0.0, 0.0]
        self.name = ""


def watch(pid: int, seconds: float) -> tuple[dict[int, Watched], list[Cost]]:
    """The process and all below it, each by its pid; and the cost of all at each look."""
    found: dict[int, Watched] = defaultdict(Watched)
    costs: list[Cost] = []
    end = time.monotonic() + seconds
    while True:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                _look(process, found, is_first=not costs)
        costs.append(cost(pid))
        if time.monotonic() >= end:
            return dict(found), costs
        time.sleep(_EVERY)


def _look(process: psutil.Process, found: dict[int, Watched], *, is_first: bool) -> None:
    memory, cpu = process.memory_full_info(), process.cpu_times()
    one = found[process.pid]
    one.cpu[1] = cpu.user + cpu.system
    if is_first:
        one.cpu[0] = one.cpu[1]  # a process that starts later has spent it all within this time
    one.pss.append(memory.pss / _MIB)
    one.rss.append(memory.rss / _MIB)
    one.name = _name(process)


def _name(process: psutil.Process) -> str:
    words = [Path(word).name for word in process.cmdline() if word.endswith(".py")]
    return words[0] if words else "sickbay-agent"


def agent_figures(folder: Path, seconds: float) -> dict[str, Any]:
    """The cost of one agent, and the times of its start."""
    python = os.environ.get("GPU_AGENT_PYTHON", sys.executable)
    env = _optimized(python, os.environ.get("GPU_AGENT_SITE", ""))
    played = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.played_aggregator"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert played.stdout is not None
    address = played.stdout.readline().strip()
    if "GPU_AGENT_PYTHON" in os.environ:
        env.pop("PYTHONPATH", None)  # the packages of this process, which are another copy
    agent = RealAgent(
        Path(tempfile.mkdtemp(prefix="sickbay-gpu-")), python=python, aggregator=address, env=env
    )
    try:
        began = time.monotonic()
        agent.start()
        wait_for(agent.answers, "the agent's socket", 60.0)
        answered = time.monotonic() - began
        wait_for(lambda: agent.result("gpu-inventory"), "the first look at the GPUs", 90.0)
        looked = time.monotonic() - began
        assert agent.process is not None
        time.sleep(max(0.0, _SETTLE - looked))
        counted = max(_EVERY, seconds - _SETTLE)
        seen, costs = watch(agent.process.pid, counted)
        told = agent.results()
        metrics = _metrics(agent)
    finally:
        agent.stop()
        played.communicate()
    (folder / "agent-check.json").write_text(json.dumps(told, indent=2))
    (folder / "agent-metrics.txt").write_text(metrics)
    (folder / "agent.log").write_bytes(agent.log.read_bytes())
    rows = {
        f"{one.name} {pid}": {
            "pss_mib": round(median(one.pss), 1),
            "rss_mib": round(median(one.rss), 1),
            "cpu_percent": round(100 * (one.cpu[1] - one.cpu[0]) / counted, 3),
            "looks": len(one.pss),
        }
        for pid, one in seen.items()
    }
    return {
        "start_socket_s": round(answered, 2),
        "start_first_gpu_reading_s": round(looked, 2),
        "uplink": told["agent"]["uplink"].get("state", ""),
        "seconds": counted,
        "pss_mib": round(median(one.pss_mib for one in costs), 1),
        "pss_max_mib": round(max(one.pss_mib for one in costs), 1),
        "rss_mib": round(median(one.rss_mib for one in costs), 1),
        "cpu_percent": round(100 * (costs[-1].cpu_s - costs[0].cpu_s) / counted, 3),
        "processes": rows,
    }


def _metrics(agent: RealAgent) -> str:
    import http.client
    import socket

    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(agent.socket))
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def table(figures: dict[str, Any]) -> str:
    nvml, agent = figures["nvml"], figures["agent"]
    rows = [
        ("driver", nvml["driver"]),
        ("NVML's start", f"{nvml['init_ms']:.1f} ms"),
        ("the first reading", f"{nvml['first_sample_ms']:.1f} ms"),
        ("one reading", f"{nvml['quick_sample_ms']:.2f} ms"),
        ("one with the values that change seldom", f"{nvml['slow_sample_ms']:.2f} ms"),
        (f"growth over {nvml['samples']} readings", f"{nvml['growth_kib']} KiB"),
        ("calls that the driver refused", json.dumps(nvml["errors"])),
        ("agent: start until it answers", f"{agent['start_socket_s']} s"),
        (
            "agent: start until its first reading of the GPUs",
            f"{agent['start_first_gpu_reading_s']} s",
        ),
        ("agent: its stream", agent["uplink"]),
        ("agent: proportional set size", f"{agent['pss_mib']} MiB"),
        ("agent: its maximum", f"{agent['pss_max_mib']} MiB"),
        ("agent: CPU of one core", f"{agent['cpu_percent']} %"),
        ("agent: counted for", f"{agent['seconds']:g} s"),
    ]
    rows += [
        (f"  {name}", f"{row['pss_mib']} MiB, {row['cpu_percent']} %, {row['looks']} looks")
        for name, row in agent["processes"].items()
    ]
    for kind in ("first_calls_ms", "slow_calls_ms", "quick_calls_ms"):
        calls = sorted(nvml[kind].items(), key=lambda item: -item[1])[:12]
        rows.append((kind, ", ".join(f"{name} {ms:g}" for name, ms in calls)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nvml_times"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    figures: dict[str, Any] = {"nvml": json.loads(done.stdout)}
    seconds = float(os.environ.get("BENCH_SECONDS", "120"))
    figures["agent"] = agent_figures(folder, seconds)
    (folder / "figures.json").write_text(json.dumps(figures, indent=2))
    print(table(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
