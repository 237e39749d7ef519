"""The agent's cost on a node: all its processes, at default cadence, over TLS.

Eight GPUs by the real pynvml on the test library, the real kernel log, the machine's own disks and
NICs; the aggregator runs from another copy of the environment, behind a relay that counts the bytes
on the wire. In the same minutes a bare stream with the same heartbeat runs from a third copy
(bare_stream.py), which is what an agent of gRPC and Python costs whose threads of gRPC have their
usual timers. Both run without docstrings and assertions, as in the agent's image. Then a burst of
Xids (burst.py). Run by `make bench-agent`; BENCH_SECONDS sets the time at rest (600).
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from aggregator.demo.ports import free_port
from nodeagent.sources.mountinfo import parse
from nodeagent.uplink.dialer import OPTIONS
from tests.bench import burst, small
from tests.bench.environments import install, optimized
from tests.bench.figures import table, write
from tests.bench.processes import Cost, cost
from tests.bench.relay import Relay
from tests.bench.small import SMALL, small_or
from tests.controlplane.waiting import wait_until
from tests.nvml import FakeGpus, gpu, link_the_rest
from tests.support.pki import Authority

#: A start is over when the stream has named its measurements, within 70 s, and the rows that each
#: GPU has in an agent's first run have been withdrawn, after two more runs of the checks of every
#: minute. These messages come once in a start: `start_bytes` has them.
SETTLE_S = small_or(1.0, 150.0)
EVERY_S = small_or(0.5, 10.0)
#: The kernel counts CPU in ticks, and a short look at a bare stream may see none.
_TICK_S = 0.01


def _aggregator(folder: Path, programs: Path) -> tuple["subprocess.Popen[bytes]", int, Authority]:
    authority = Authority.create(folder / "pki")
    pair = authority.server("aggregator", ["localhost", "127.0.0.1"])
    port = free_port()
    config = {
        "cluster": {"kind": "local", "local": {"database": str(folder / "cluster.db")}},
        "listen": {
            "grpc": f"127.0.0.1:{port}",
            "web": f"127.0.0.1:{free_port()}",
            "tls": {"cert_file": str(pair.certificate), "key_file": str(pair.key)},
        },
        "identity": {"kind": "insecure-trust-hello"},
        "history": {"database": f"sqlite:///{folder / 'history.db'}"},
        "alerts": {"outbox": str(folder / "outbox.db")},
    }
    path = folder / "aggregator.yaml"
    path.write_text(yaml.safe_dump(config))
    with (folder / "aggregator.log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "sickbay-aggregator", "run", "--config", path], stdout=log, stderr=log
        )
    return process, port, authority


def _agent(
    folder: Path, programs: Path, port: int, authority: Authority
) -> "subprocess.Popen[bytes]":
    gpus = FakeGpus(folder / "gpus", [gpu(index) for index in range(8)])
    link_the_rest(gpus.sys)  # the PCI bus alone is made up: the driver of a GPU is bound there
    (folder / "agent.toml").write_text(
        f"""
node = "bench"
sys = "{gpus.sys}"
run_dir = "{folder / "run"}"
state_dir = "{folder / "state"}"
[expect]
gpus = 8
[aggregator]
address = "localhost:{port}"
ca_file = "{authority.certificate}"
[checks.disk-write]
paths = ["{folder}"]
"""
    )
    with (folder / "agent.log").open("wb") as log:
        return subprocess.Popen(
            [programs / "sickbay-agent", "run", "--config", folder / "agent.toml"],
            stdout=log,
            stderr=log,
            env=optimized(programs) | dict(gpus.env),
        )


def _bare(
    folder: Path, programs: Path, port: int, authority: Authority
) -> "subprocess.Popen[bytes]":
    script = Path(__file__).parent / "bare_stream.py"
    arguments = [f"localhost:{port}", str(authority.certificate), json.dumps(dict(OPTIONS))]
    with (folder / "bare.log").open("wb") as log:
        return subprocess.Popen(
            [programs / "python", "-s", "-P", script, *arguments],
            stdout=log,
            stderr=log,
            env=optimized(programs),
        )


@dataclass
class _Watched:
    """One process tree over a time: its samples, and the CPU seconds that it has spent."""

    samples: list[Cost]
    cpu_s: float


def _watch(pids: Sequence[int], seconds: float) -> list[_Watched]:
    begun = [cost(pid) for pid in pids]
    watched = [_Watched([], 0.0) for _ in pids]
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(EVERY_S, left))
        for one, pid in zip(watched, pids, strict=True):
            one.samples.append(cost(pid))
    for one, pid, before in zip(watched, pids, begun, strict=True):
        one.cpu_s = cost(pid).cpu_s - before.cpu_s
    return watched


def _at_rest(
    folder: Path, programs: Path, others: Path, bare_programs: Path, seconds: float
) -> dict[str, float]:
    aggregator, port, authority = _aggregator(folder, others)
    relay = Relay(port)
    agent = _agent(folder, programs, relay.port, authority)
    running = [aggregator, agent]
    try:
        log = folder / "agent.log"
        wait_until(
            lambda: '"stream to the aggregator opened"' in log.read_text(),
            what="the stream",
            timeout_s=30,
        )
        bare = _bare(folder, bare_programs, port, authority)
        running.append(bare)
        wait_until(
            lambda: "welcome" in (folder / "bare.log").read_text(),
            what=lambda: f"the bare stream: {(folder / 'bare.log').read_text()}",
            timeout_s=30,
        )
        time.sleep(SETTLE_S)
        before = relay.bytes
        own, alone = _watch([agent.pid, bare.pid], seconds)
        if bare.poll() is not None:
            raise RuntimeError(f"the bare stream ended: {(folder / 'bare.log').read_text()}")
        said = relay.bytes - before
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(20)
        relay.close()
    return {
        "pss_mib": round(median([sample.pss_mib for sample in own.samples]), 1),
        "pss_max_mib": round(max(sample.pss_mib for sample in own.samples), 1),
        "rss_mib": round(median([sample.rss_mib for sample in own.samples]), 1),
        "cpu_percent": round(100 * own.cpu_s / seconds, 3),
        "cpu_s_per_hour": round(3600 * own.cpu_s / seconds, 1),
        "idle_bytes_per_minute": round(60 * said / seconds),
        "start_bytes": before,
        "processes": max(sample.processes for sample in own.samples),
        "bare_pss_mib": round(median([sample.pss_mib for sample in alone.samples]), 1),
        "bare_cpu_percent": round(100 * alone.cpu_s / seconds, 3),
        "cpu_beyond": round(own.cpu_s / max(alone.cpu_s, _TICK_S), 2),
        "seconds": seconds,
    }


def _refuse_leftovers() -> None:
    """A mount that a killed test left makes the agent start children that no node has."""
    mounts = parse(Path("/proc/self/mountinfo").read_bytes())
    left = [m.point for m in mounts if m.remote and m.point.startswith(tempfile.gettempdir())]
    if left and not SMALL:  # the small form runs among tests that have mounts
        raise SystemExit(f"{left[0]} is mounted, and the agent would probe it: umount --lazy it")


def _programs() -> list[Path]:
    """Of the agent, the aggregator and the bare stream; in a small form this environment's."""
    if SMALL:
        return [Path(sys.executable).parent] * 3
    return [install("agent"), install("aggregator"), install("agent", "bare")]


def main() -> None:
    seconds = small.seconds("BENCH_SECONDS", 600.0, 1.0)
    _refuse_leftovers()
    programs, others, bare_programs = _programs()
    figures: dict[str, float | int | str] = {}
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        figures |= _at_rest(folder, programs, others, bare_programs, seconds)
        figures |= asyncio.run(burst.measure(folder / "burst", programs))
    rows = [
        ("proportional set size, all processes", f"{figures['pss_mib']} MiB", "41 MiB"),
        ("its maximum", f"{figures['pss_max_mib']} MiB", "-"),
        ("resident set size", f"{figures['rss_mib']} MiB", "-"),
        ("that of a bare stream", f"{figures['bare_pss_mib']} MiB", "-"),
        ("CPU of one core", f"{figures['cpu_percent']} %", "0.2 %"),
        ("that of a bare stream", f"{figures['bare_cpu_percent']} %", "-"),
        ("as a multiple of it", f"{figures['cpu_beyond']}", "2"),
        ("bytes a minute, both ways", f"{figures['idle_bytes_per_minute']}", "5,000"),
        ("bytes of the start, once", f"{figures['start_bytes']}", "-"),
        ("over", f"{seconds:g} s", "600 s"),
        (f"CPU for {burst.LINES} Xid lines", f"{figures['burst_cpu_s']} s", "2 s"),
        ("messages for them", f"{figures['burst_messages']}", "100"),
        ("the fault after them, seen in", f"{figures['burst_next_fault_ms']} ms", "1,000 ms"),
        ("lines came within", f"{figures['burst_seconds']} s", "60 s"),
    ]
    print(table(f"bench-agent: {write('agent', figures)}", rows))


if __name__ == "__main__":
    main()
