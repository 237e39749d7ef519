"""The agent's cost on a node: all its processes, at default cadence, over TLS.

Eight GPUs by the real pynvml on the test library, the real kernel log, the machine's own disks and
NICs; the aggregator runs from another copy of the environment, behind a relay that counts the bytes
on the wire. Then a burst of Xids (burst.py). Run by `make bench-agent`; BENCH_SECONDS sets the time
at rest (600).
"""

import asyncio
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import yaml

from tests.bench import burst
from tests.bench.environments import install
from tests.bench.figures import table, write
from tests.bench.processes import Cost, cost
from tests.bench.relay import Relay
from tests.controlplane.waiting import wait_until
from tests.nvml import FakeGpus, gpu, link_the_rest
from tests.support.pki import Authority
from tests.support.stack import free_port

SETTLE_S = 20.0
EVERY_S = 10.0


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
            env=os.environ | dict(gpus.env),
        )


def _watch(pid: int, seconds: float) -> tuple[list[Cost], float]:
    """Samples over the time, and the CPU seconds spent in it."""
    begun, samples = cost(pid), []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(EVERY_S, left))
        samples.append(cost(pid))
    return samples, cost(pid).cpu_s - begun.cpu_s


def _at_rest(folder: Path, programs: Path, others: Path, seconds: float) -> dict[str, float]:
    aggregator, port, authority = _aggregator(folder, others)
    relay = Relay(port)
    agent = _agent(folder, programs, relay.port, authority)
    try:
        log = folder / "agent.log"
        wait_until(
            lambda: '"stream to the aggregator opened"' in log.read_text(),
            what="the stream",
            timeout_s=30,
        )
        time.sleep(SETTLE_S)
        before = relay.bytes
        samples, cpu_s = _watch(agent.pid, seconds)
        said = relay.bytes - before
    finally:
        for process in (agent, aggregator):
            process.terminate()
            process.wait(20)
        relay.close()
    return {
        "pss_mib": round(median([sample.pss_mib for sample in samples]), 1),
        "pss_max_mib": round(max(sample.pss_mib for sample in samples), 1),
        "rss_mib": round(median([sample.rss_mib for sample in samples]), 1),
        "cpu_percent": round(100 * cpu_s / seconds, 3),
        "idle_bytes_per_minute": round(60 * said / seconds),
        "processes": max(sample.processes for sample in samples),
        "seconds": seconds,
    }


def main() -> None:
    seconds = float(os.environ.get("BENCH_SECONDS", "600"))
    programs, others = install("agent"), install("aggregator")
    figures: dict[str, float | int | str] = {}
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        figures |= _at_rest(folder, programs, others, seconds)
        figures |= asyncio.run(burst.measure(folder / "burst", programs))
    rows = [
        ("proportional set size, all processes", f"{figures['pss_mib']} MiB", "48 MiB"),
        ("its maximum", f"{figures['pss_max_mib']} MiB", "-"),
        ("resident set size", f"{figures['rss_mib']} MiB", "-"),
        ("CPU of one core", f"{figures['cpu_percent']} %", "0.2 %"),
        ("bytes a minute, both ways", f"{figures['idle_bytes_per_minute']}", "5,000"),
        ("over", f"{seconds:g} s", "600 s"),
        (f"CPU for {burst.LINES} Xid lines", f"{figures['burst_cpu_s']} s", "2 s"),
        ("messages for them", f"{figures['burst_messages']}", "100"),
        ("the fault after them, seen in", f"{figures['burst_next_fault_ms']} ms", "1,000 ms"),
        ("lines came within", f"{figures['burst_seconds']} s", "60 s"),
    ]
    print(table(f"bench-agent: {write('agent', figures)}", rows))


if __name__ == "__main__":
    main()
