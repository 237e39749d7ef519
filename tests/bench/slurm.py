"""A kernel line to a DRAIN of a real slurmctld, drills, and interleavings with administrators.

One aggregator, one real agent at a time, each a node of its own. After each trial the same programs
run alone on another node: a read, the drain, a read. The drills inject a burst of faults of
simulated agents, while the aggregator is killed, slurmctld is away, or the controller of two
replicas on a PostgreSQL is killed. Run by `make bench-slurm`;
BENCH_TRIALS and BENCH_SEEDS set the numbers.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import median

from aggregator.cluster.port import UNGUARDED
from aggregator.cluster.slurm.client import SlurmPrograms
from tests.agent.agent_process import QUIET, AgentProcess
from tests.aggregator.test_slurm_interleavings import play
from tests.bench.figures import percentile, table, write
from tests.bench.small import exit_code, number, small_or, start_quickly
from tests.controlplane.waiting import wait_until
from tests.support.local_aggregator import LocalAggregator
from tests.support.local_replicas import LocalReplicas
from tests.support.postgres import NoPostgres, PostgresServer, programs
from tests.support.simulator import Simulator
from tests.support.slurm import LACKING, Slurm

TRIALS = number("BENCH_TRIALS", 30, 2)
SEEDS = number("BENCH_SEEDS", 1000, 3)
BURST = number("BENCH_NODES", 50, 3)
#: Of the drill with two replicas: the controller is killed when some are drained, and some not.
REPLICAS_BURST = small_or(12, BURST)
#: Between two runs of sinfo that wait for a drain: each takes 20 ms of a processor.
EVERY = small_or(0.1, 0.001)
FAULT = "xid:79"


def drained(slurm: Slurm, names: list[str]) -> set[str]:
    """The nodes with a drain of ours."""
    lines = slurm.run("sinfo", "--noheader", "--Node", "--format=%N|%E").splitlines()
    found = (line.split("|", 1) for line in lines)
    return {name for name, reason in found if reason.startswith("sickbay: ")} & set(names)


def latency(
    slurm: Slurm, aggregator: LocalAggregator, folder: Path, node: str, other: str
) -> tuple[float, float]:
    """Seconds from the kernel line of ``node`` to its DRAIN, and of the programs alone."""
    agent = AgentProcess(folder, aggregator=aggregator.address, more=QUIET)
    agent.node = node
    with closing(agent):
        agent.start()
        wait_until(
            lambda: (aggregator.ask(f"nodes/{node}") or {}).get("agent") == "attached",
            what=agent.log,
        )
        began = time.monotonic()
        agent.xid(79)
        wait_until(lambda: drained(slurm, [node]), what=aggregator.log, every_s=EVERY)
        took = time.monotonic() - began
    began = time.monotonic()
    asyncio.run(alone(slurm, other))
    wait_until(lambda: drained(slurm, [other]), what=slurm.log, every_s=EVERY)
    return took, time.monotonic() - began


async def alone(slurm: Slurm, node: str) -> None:
    client = SlurmPrograms(conf=str(slurm.conf))
    await client.read_nodes([node])
    await client.drain(node, "sickbay: alone", guard=UNGUARDED)
    await client.read_nodes([node])


def cluster(slurm: Slurm, folder: Path) -> dict[str, object]:
    options = {"database": str(folder / "cluster.db"), "conf": str(slurm.conf), "poll": "1s"}
    options["command_timeout"] = "3s"
    return {"cluster": {"kind": "slurm", "slurm": options}}


def writes(log: str) -> Counter[str]:
    """How often each node's drain was written."""
    lines = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
    return Counter(
        line["node"]
        for line in lines
        if line.get("event") == "slurm.update"
        and (line["change"], line["rc"]) == ("state=drain", 0)
    )


def takeover(
    slurm: Slurm, server: PostgresServer, folder: Path, nodes: list[str]
) -> tuple[int, int, float]:
    """Two replicas on a PostgreSQL; the controller is killed as the first drains are written.

    Faults without a drain, drains that were written twice, and the seconds until the last drain.
    """
    names = folder / "names"
    names.write_text("\n".join(nodes))
    options = {"conf": str(slurm.conf), "poll": "1s"}
    with LocalReplicas(folder, server, slurm=options) as two:
        first = two.until_controller()
        (second,) = set(two.replicas) - {first}
        agents = ["--names", names, "--aggregator", two.replicas[second].address]
        with Simulator(agents, log=folder / "simulator.log") as fleet:
            fleet.until_streaming(len(nodes))
            fleet.inject(nodes="all", fault=FAULT)
            wait_until(lambda: drained(slurm, nodes), what=slurm.log, every_s=EVERY)
            two.replicas[first].process.kill()
            killed = time.monotonic()
            wait_until(
                lambda: len(drained(slurm, nodes)) == len(nodes),
                what=two.replicas[second].log,
            )
            took = time.monotonic() - killed
            two.until_controller(second)
        logs = [one.log() for one in two.replicas.values()]
    written = sum((writes(one) for one in logs), Counter())
    twice = sum(count - 1 for count in written.values())
    return len(nodes) - len(drained(slurm, nodes)), twice, took


def drill(slurm: Slurm, folder: Path, nodes: list[str], *, kill: bool) -> tuple[int, int]:
    """Faults without a drain, and drains that were written twice."""
    aggregator = LocalAggregator(folder, cluster(slurm, folder))
    names = folder / "names"
    names.write_text("\n".join(nodes))
    arguments: list[str | Path] = ["--names", names, "--aggregator", aggregator.address]
    with Simulator(arguments, log=folder / "simulator.log") as fleet, closing(aggregator):
        fleet.until_streaming(len(nodes))
        if not kill:
            slurm.stop_controller()
        fleet.inject(nodes="all", fault=FAULT)
        if kill:
            wait_until(lambda: drained(slurm, nodes), what=aggregator.log, every_s=EVERY)
            aggregator.kill_and_restart()
        else:
            wait_until(lambda: "did not end within" in aggregator.log(), what=aggregator.log)
            slurm.start_controller()
        wait_until(lambda: len(drained(slurm, nodes)) == len(nodes), what=aggregator.log)
    twice = sum(count - 1 for count in writes(aggregator.log()).values())
    return len(nodes) - len(drained(slurm, nodes)), twice


async def foreign_undone(folder: Path) -> int:
    file = folder / "cluster.db"
    return sum([len((await play(seed, file)).foreign_undone) for seed in range(SEEDS)])


def main() -> int:
    if LACKING:
        print(f"bench-slurm: {', '.join(LACKING)} not installed; run tests/setup-debian.sh")
        return 2
    try:
        programs()
    except NoPostgres as missing:
        print(f"bench-slurm: {missing}")
        return 2
    start_quickly()
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for part in ("slurm", "latency", "killed", "away", "replicas", "seeds"):
            (folder / part).mkdir()
        with Slurm(folder / "slurm", silent=2 * TRIALS + 2 * BURST + REPLICAS_BURST) as slurm:
            nodes = slurm.nodes[1:]
            aggregator = LocalAggregator(folder / "latency", cluster(slurm, folder / "latency"))
            pairs = []
            with closing(aggregator):
                for trial in range(TRIALS):
                    (folder / f"node-{trial}").mkdir()
                    node, other = nodes[2 * trial : 2 * trial + 2]
                    pairs.append(latency(slurm, aggregator, folder / f"node-{trial}", node, other))
            rest = nodes[2 * TRIALS :]
            server = PostgresServer().start()
            with closing(server):
                last = takeover(slurm, server, folder / "replicas", rest[2 * BURST :])
            lost, twice = zip(
                drill(slurm, folder / "killed", rest[:BURST], kill=True),
                drill(slurm, folder / "away", rest[BURST : 2 * BURST], kill=False),
                last[:2],
                strict=True,
            )
        undone = asyncio.run(foreign_undone(folder / "seeds"))
    took, floor = ([1000 * each for each in one] for one in zip(*pairs, strict=True))
    figures = {
        "drain_p50_ms": round(median(took), 1),
        "drain_p99_ms": round(percentile(took, 99), 1),
        "alone_p50_ms": round(median(floor), 1),
        "alone_p99_ms": round(percentile(floor, 99), 1),
        "beyond_p50": round(median(took) / median(floor), 2),
        "lost": sum(lost),
        "double_writes": sum(twice),
        "takeover_s": round(last[2], 1),
        "foreign_undone": undone,
        "interleavings": SEEDS,
        "trials": TRIALS,
    }
    rows = [
        ("kernel line to DRAIN, p50", f"{figures['drain_p50_ms']} ms", "-"),
        ("p99", f"{figures['drain_p99_ms']} ms", "-"),
        ("the same programs alone, p50", f"{figures['alone_p50_ms']} ms", "-"),
        ("p50 as a multiple of that", f"{figures['beyond_p50']}", "1.5"),
        ("faults without a drain in the drills", f"{figures['lost']}", "0"),
        ("drains that were written twice", f"{figures['double_writes']}", "0"),
        ("last drain after the kill -9 of one of two controllers", f"{last[2]:.1f} s", "-"),
        (f"drains of others undone in {SEEDS} interleavings", f"{undone}", "0"),
    ]
    print(table(f"bench-slurm: {write('slurm', figures)}", rows))
    if figures["lost"] or figures["double_writes"] or undone:
        return 1  # of a small form too: these hold however few the nodes are
    return exit_code(failed=median(took) > 1.5 * median(floor))


if __name__ == "__main__":
    sys.exit(main())
