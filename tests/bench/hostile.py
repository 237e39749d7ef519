"""The effect of hostile clients on honest nodes and people: on the real API server, TLS, tokens.

Phases of one run, on one aggregator: quiet, beside the hostile clients, quiet again. In each,
faults come to honest nodes one after the other and are timed from their injection to the taint that
a watch shows, while /healthz is asked as a kubelet asks it, with a connection each time. The
hostile clients: one agent with the token of its own node that sends the most expensive messages
within the contract, 5,000 calls without a message (a third without a token, a third with a forged
one, a third with the hostile node's), and 2,000 silent connections, half of them to the page. Each
is opened again after the aggregator has ended it. More honest agents arrive in the middle of it.

Run by `make bench-hostile`; BENCH_NODES, BENCH_TRIALS, BENCH_STREAMS and BENCH_CONNECTIONS make it
smaller.
"""

import contextlib
import http.client
import json
import resource
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import planes
from tests.bench.figures import percentile, table, write
from tests.bench.planes import in_memory
from tests.bench.processes import cost
from tests.bench.small import number, small_or, start_quickly
from tests.bench.watcher import NODES, Watcher, marked
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.present import present
from tests.support.simulator import Simulator
from tests.support.stack import NAMESPACE, Stack

ROOT = Path(__file__).parents[2]
FAULT = "xid:79"
#: Seconds between two questions of /healthz, and the longest that one may take: a kubelet's own.
_PROBE_EVERY, _PROBE_WITHIN = 0.1, 10.0
#: Seconds between two faults: a trial is not to wait for the one before it.
_BETWEEN = 0.25
#: Honest agents that arrive beside the hostile clients.
_LATE = small_or(2, 20)


class Prober(threading.Thread):
    """Asks /healthz without end; ``times`` are milliseconds, the longest allowed for no answer."""

    def __init__(self, port: int, ca_file: Path) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self._port = port
        self._trust = ssl.create_default_context(cafile=str(ca_file))
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_PROBE_EVERY):
            begun = time.monotonic()
            answered = self._ask()
            took = time.monotonic() - begun if answered else _PROBE_WITHIN
            self.times.append(took * 1000)

    def close(self) -> None:
        self._over.set()
        self.join()

    def _ask(self) -> bool:
        page = http.client.HTTPSConnection(
            "localhost", self._port, timeout=_PROBE_WITHIN, context=self._trust
        )
        with contextlib.closing(page), contextlib.suppress(OSError, http.client.HTTPException):
            page.request("GET", "/healthz")
            return page.getresponse().status == 200
        return False


class Bench:
    """One aggregator, honest nodes, and the phases."""

    def __init__(self, plane: ControlPlane, stack: Stack, folder: Path, nodes: list[str]) -> None:
        self.plane = plane
        self.stack = stack
        self.folder = folder
        self.tokens = folder / "tokens"
        self.tokens.mkdir()
        self._fresh = iter(nodes)
        self._taints = Watcher(plane, NODES, marked)
        self.healthz: dict[str, list[float]] = {}
        self.rss: list[float] = []

    def tokens_for(self, nodes: list[str]) -> None:
        """Each node's own, as its kubelet would project it."""
        for node in nodes:
            pod = f"agent-{node}"
            self.plane.create_pod(NAMESPACE, pod, node=node, service_account="sickbay-agent")
            token = self.plane.token_for(NAMESPACE, "sickbay-agent", "sickbay", pod=pod)
            (self.tokens / node).write_text(token)

    def simulator(self, name: str, nodes: list[str]) -> Simulator:
        names = self.folder / f"{name}.names"
        names.write_text("\n".join(nodes))
        aggregator = self.stack.aggregator
        line: list[str | Path] = ["--names", names, "--aggregator", aggregator.address]
        line += ["--ca-file", aggregator.authority.certificate, "--token-dir", self.tokens]
        return Simulator(line, log=self.folder / f"{name}.log")

    def phase(self, name: str, simulator: Simulator, trials: int) -> list[float]:
        """Milliseconds from each fault to its taint."""
        process = present(self.stack.aggregator.process)
        authority = self.stack.aggregator.authority
        prober = Prober(self.stack.aggregator.web_port, authority.certificate)
        prober.start()
        times = []
        with closing(prober):
            for _ in range(trials):
                node = next(self._fresh)
                begun = time.monotonic()
                simulator.inject(nodes=[node], fault=FAULT)
                times.append((self._tainted_at(node) - begun) * 1000)
                self.rss.append(cost(process.pid).rss_mib)
                time.sleep(_BETWEEN)
        self.healthz[name] = prober.times
        return times

    def _tainted_at(self, node: str) -> float:
        """Monotonic seconds; of a taint that does not come within a minute, that minute's end."""
        try:
            return self._taints.when(node, within=60)
        except TimeoutError:
            return time.monotonic()

    @contextlib.contextmanager
    def hostile(self, node: str, streams: int, connections: int) -> Iterator[list[dict[str, Any]]]:
        """The hostile clients, once all are there; in the end, their own output."""
        aggregator = self.stack.aggregator
        plan = {
            "agents": aggregator.address,
            "page": f"localhost:{aggregator.web_port}",
            "ca_file": str(aggregator.authority.certificate),
            "token": (self.tokens / node).read_text(),
            "streams": streams,
            "connections": connections,
            "again_after": 10.0,
        }
        file, said = self.folder / "hostile.json", self.folder / "hostile.log"
        file.write_text(json.dumps(plan))
        line = [sys.executable, "-m"]
        agent = [*line, "tests.bench.hostile_agent", str(file), node]
        lines: list[dict[str, Any]] = []
        with (
            said.open("wb") as log,
            _running([*line, "tests.bench.hostile_clients", str(file)], log.fileno()),
            _running(agent, subprocess.DEVNULL),
        ):

            def all_came() -> bool:
                lines[:] = [json.loads(one) for one in said.read_text().splitlines()]
                last = lines[-1] if lines else {"open": {}, "ended": {}}
                seen = {
                    kind: last["open"].get(kind, 0) + last["ended"].get(kind, 0)
                    for kind in ("streams", "connections")
                }
                return bool(seen["streams"] >= streams and seen["connections"] >= connections)

            wait_until(all_came, what="the hostile clients to come", timeout_s=180)
            yield lines
            all_came()


@contextlib.contextmanager
def _running(line: list[str], out: int) -> Iterator[None]:
    process = subprocess.Popen(
        line, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL
    )
    try:
        yield
        assert process.poll() is None, f"{line} ended by itself: {process.returncode}"
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Run it and write `build/bench/hostile.json`."""
    trials = number("BENCH_TRIALS", 60, 1)
    count = number("BENCH_NODES", 200, 3)
    streams = number("BENCH_STREAMS", 5000, 9)
    connections = number("BENCH_CONNECTIONS", 2000, 6)
    start_quickly()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft != hard else (soft, hard))
    with (
        tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as folder,
        in_memory() as memory,
        planes.plane(folder=memory / "plane") as plane,
    ):
        # Before the aggregator lists them: limits are shares of the nodes that it knows.
        honest = plane.create_nodes(max(count, 3 * trials), "honest")
        late = plane.create_nodes(_LATE, "late")
        [mad] = plane.create_nodes(1, "mad")
        with Stack(plane, Path(folder)) as stack:
            stack.aggregator.start().ready()
            bench = Bench(plane, stack, Path(folder), honest)
            bench.tokens_for([*honest, *late, mad])
            with bench.simulator("honest", honest) as simulator:
                simulator.until_streaming(len(honest), timeout_s=120)
                before = bench.phase("quiet", simulator, trials)
                rss = max(bench.rss)
                with bench.hostile(mad, streams, connections) as lines:
                    with bench.simulator("late", late) as others:
                        beside = bench.phase("hostile", simulator, trials)
                        arrived = _arrived(others)
                    refused = len(honest) - simulator.streaming + _LATE - arrived
                grown = max(bench.rss) - rss
                after = bench.phase("quiet again", simulator, trials)
    calm = [*before, *after]
    figures: dict[str, float | int | str] = {
        "healthz_p99_ms": round(percentile(bench.healthz["hostile"], 99), 1),
        "healthz_quiet_p99_ms": round(percentile(bench.healthz["quiet"], 99), 1),
        "honest_taint_p50_ms": round(median(beside), 1),
        "honest_taint_p99_ms": round(percentile(beside, 99), 1),
        "quiet_taint_p50_ms": round(median(calm), 1),
        "quiet_taint_p99_ms": round(percentile(calm, 99), 1),
        "honest_taint_beyond": round(median(beside) / median(calm), 2),
        "rss_growth_mib": round(max(0.0, grown), 1),
        "honest_agents_refused": refused,
        "streams_ended": lines[-1]["ended"].get("streams", 0),
        "connections_ended": lines[-1]["ended"].get("connections", 0),
        "trials": trials,
    }
    path = write("hostile", figures)
    rows = [
        ("/healthz beside hostile clients, p99", f"{figures['healthz_p99_ms']} ms", "500 ms"),
        ("the same without them", f"{figures['healthz_quiet_p99_ms']} ms", "-"),
        ("fault to taint beside them, p50", f"{figures['honest_taint_p50_ms']} ms", "-"),
        ("p99", f"{figures['honest_taint_p99_ms']} ms", "-"),
        ("without them, p50", f"{figures['quiet_taint_p50_ms']} ms", "-"),
        ("ratio of the p50s", f"{figures['honest_taint_beyond']}", "2"),
        ("memory grown by", f"{figures['rss_growth_mib']} MiB", "200 MiB"),
        ("honest agents refused or lost", f"{figures['honest_agents_refused']}", "0"),
        ("hostile streams ended", f"{figures['streams_ended']}", "-"),
        ("hostile connections ended", f"{figures['connections_ended']}", "-"),
    ]
    print(table(f"bench-hostile: {path}", rows))


def _arrived(others: Simulator) -> int:
    """How many of the late agents have a stream within a minute."""
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: others.streaming == _LATE, what="late agents", timeout_s=60)
    return others.streaming


if __name__ == "__main__":
    main()
