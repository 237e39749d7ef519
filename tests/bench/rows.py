"""The results of bench-scale and bench-faults as tables: for a terminal, and for docs/."""

from collections.abc import Mapping
from typing import Any

#: Memory as a multiple of a replica's expected use: for garbage, a burst, a stampede of agents.
ROOM = 1.5


#: Each figure's meaning, its unit, and the most (or, with a ">", the least) that is wanted.
SCALE = (
    ("agents on one replica, mutual TLS", "agents", "", ">10000"),
    ("until all are attached", "attached_s", "s", ""),
    ("resident set size of the aggregator", "rss_mib", "MiB", "1229"),
    ("gRPC's streams alone", "bare_rss_mib", "MiB", ""),
    ("memory per node beyond the stream's own", "bytes_per_node", "bytes", "8192"),
    ("CPU of one core, steady", "cpu_percent", "%", "60"),
    ("gRPC's streams alone", "bare_cpu_percent", "%", ""),
    ("requests a minute, at rest", "idle_requests_per_minute", "", ""),
    ("requests by agents", "node_requests", "", "0"),
    ("fault to taint, p50", "taint_p50_ms", "ms", "50"),
    ("p99", "taint_p99_ms", "ms", "250"),
    ("requests for a quarantine", "requests_per_quarantine", "", ""),
    ("of these until the taint, in the largest burst", "requests_until_taint", "", "2.1"),
    (
        "objects then patches a second, one client alone (the aims suppose 790)",
        "pairs_per_s",
        "",
        "",
    ),
    ("100 faults at once, to the last taint", "burst_100_p99_s", "s", "0.5"),
    ("the same, by turns with their requests alone, median", "turn_100_s", "s", ""),
    ("the requests alone, median", "limit_100_s", "s", ""),
    ("how many times as long a burst takes as its requests, median", "beyond_100", "", "1.2"),
    ("500 faults at once", "burst_500_p99_s", "s", "2"),
    ("the same, by turns with their requests alone, median", "turn_500_s", "s", ""),
    ("the requests alone, median", "limit_500_s", "s", ""),
    ("how many times as long a burst takes as its requests, median", "beyond_500", "", "1.2"),
    ("1,000 faults at once", "burst_1000_p99_s", "s", "4"),
    ("the same, by turns with their requests alone, median", "turn_1000_s", "s", ""),
    ("the requests alone, median", "limit_1000_s", "s", ""),
    ("how many times as long a burst takes as its requests, median", "beyond_1000", "", "1.2"),
    ("the same with messages and watches, without evaluating", "floor_beyond_1000", "", ""),
    ("1,000 with the API limiter that ships", "burst_1000_default_p99_s", "s", "45"),
    ("quarantines a second, sustained", "quarantines_per_s", "", ">250"),
    ("conditions, Events, status trail behind by", "trailing_s", "s", "20"),
    ("the requests that trail, for each node", "trailing_requests", "", ""),
    ("these alone, for as many nodes at once", "trailing_limit_s", "s", ""),
    ("how many times as long they trail", "trailing_beyond", "", ""),
    ("the controller of three killed: another may act", "reowned_s", "s", "20"),
    ("from the kill to the first taint", "first_act_s", "s", "18"),
    ("evidence of every agent complete", "complete_s", "s", "30"),
    ("faults at the kill that were lost", "lost", "", "0"),
    ("a fault's taint by a gateway later by, median", "hop_p50_ms", "ms", "1.5"),
    ("CPU of one core: a gateway at rest", "gateway_cpu_percent", "%", ""),
    ("the controller at rest", "controller_cpu_percent", "%", ""),
    ("memory of the new controller", "controller_rss_mib", "MiB", "1200"),
    ("cost against nodes: up to", "growth_nodes", "", ">20000"),
    ("memory for 1,000 more", "growth_mib_per_1000", "MiB", ""),
    ("farthest off the line", "growth_rss_off_line_percent", "%", ""),
    ("CPU of one core for 1,000 more", "growth_cpu_percent_per_1000", "%", ""),
    ("farthest off the line", "growth_cpu_off_line_percent", "%", ""),
)


def scale_rows(figures: dict[str, float]) -> list[tuple[str, str, str]]:
    """The measured figures, each with its share of the wanted one."""
    told = []
    for what, key, unit, wanted in SCALE:
        if key not in figures:
            told.append((what, "not measured", _aim(unit, wanted)))
            continue
        measured = f"{figures[key]:g} {unit}".rstrip()
        told.append((what, measured, _aim(unit, wanted, figures[key])))
    return told


def _aim(unit: str, wanted: str, measured: float | None = None) -> str:
    if not wanted:
        return "-"
    least, number = wanted.startswith(">"), float(wanted.lstrip(">"))
    text = f"{'at least ' if least else ''}{number:g} {unit}".rstrip()
    if measured is None or not number:
        return text
    return f"{text} ({measured / number:.2f} of it)"


DRILLS = {
    "kill9_burst_200": "`kill -9` of the aggregator in a burst of 200, restarted",
    "sigterm_burst_100": "the same with SIGTERM, 100",
    "database_down_30s": "history and outbox on a disk that hangs for 30 s",
    "agent_kill9": "`kill -9` of the agent between line and ack",
    "paused_alone": "the only aggregator paused for 40 s",
    "failover_3_replicas": "the controller of three killed in a burst of 200, not restarted",
    "paused_replica": "the controller of three paused for 40 s",
    "gateway_killed": "a gateway of three killed in a burst of 200, not restarted",
    "partition_gateway": "a gateway of three cut from the controller for 40 s",
    "partition_controller": "the controller of three cut from both gateways for 40 s",
    "roll_of_three": "all three replicas restarted in turn, faults meanwhile",
    "disk_full_agent": "an agent that can't write its state",
    "apiserver_down_60s": "the API server away for 60 s",
}


def scale_table(figures: Mapping[str, Any]) -> str:
    """Every figure of bench-scale that was measured, in Markdown."""
    told = ["| | measured | aim |", "|---|---|---|"]
    for what, key, unit, wanted in SCALE:
        if key in figures:
            measured = f"{figures[key]:,g} {unit}".rstrip()
            aim = _aim(unit, wanted) if wanted else ""
            told.append(f"| {what} (`{key}`) | {measured} | {aim} |")
    return "\n".join(told)


def faults_table(figures: Mapping[str, Any]) -> str:
    """Every drill that was run, in Markdown."""
    told = ["| drill | lost | from the end of the outage to the taints, p99 |", "|---|---|---|"]
    for key, words in DRILLS.items():
        if f"lost_{key}" in figures:
            late = figures.get(f"recovery_{key}_p99_s")
            measured = "" if late is None else f"{late:g} s"
            told.append(f"| {words} (`lost_{key}`) | {figures[f'lost_{key}']} | {measured} |")
    if "double_evictions" in figures:
        words = "pods that were evicted twice, over all drills (`double_evictions`)"
        told.append(f"| {words} | {figures['double_evictions']} | |")
    if "failover_p99_s" in figures:
        told.append("")
        told.append(
            f"Another was the controller after {figures['failover_known_s']:g} s; from "
            f"the kill to the last taints it was {figures['failover_p99_s']:g} s (p99)."
        )
    return "\n".join(told)


#: The figures of bench-nodes that are shown for each size.
KNOWN_NODES = {
    "rss_mib_per_replica": ("resident memory of a replica, at rest", "MiB"),
    "start_to_act_s": ("three start at once, until the last may act", "s"),
    "admission_ms": ("one admission with its write of the record, p50", "ms"),
    "list_s": ("one list of all nodes", "s"),
    "list_cpu_s": ("its CPU in the replica", "s"),
    "stall_ms": ("slowest answer of `/healthz`, a list among it", "ms"),
}


def known_nodes_table(figures: Mapping[str, Any]) -> str:
    """The cost of nodes that a replica knows, by their number, in Markdown."""
    first = f"{next(iter(KNOWN_NODES))}_"
    sizes = sorted(int(key.removeprefix(first)) for key in figures if key.startswith(first))
    head = " | ".join(f"{size:,}" for size in sizes)
    told = [
        f"| Node objects, three replicas, 60 agents | {head} |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for key, (what, unit) in KNOWN_NODES.items():
        cells = " | ".join(f"{figures[f'{key}_{size}']:,g} {unit}" for size in sizes)
        told.append(f"| {what} | {cells} |")
    return "\n".join(told)


def sizing_tables(figures: Mapping[str, Any], curves: Mapping[str, Any]) -> str:
    """One replica's cost by its agents, the lines through it, and the sizes for a fleet."""
    points = curves["growth"]
    base, each = figures["growth_base_mib"], figures["growth_mib_per_1000"] / 1000
    told = ["| agents on one replica | resident | CPU of one core, at rest |", "|---|---|---|"]
    told += [f"| {n:,.0f} | {rss:,.0f} MiB | {cpu:.1f} % |" for n, rss, cpu, _ in points]
    told += [
        "",
        f"So a replica takes **{base:.0f} MiB and {each * 1024:.0f} KiB for each agent**, and",
        f"**{figures['growth_cpu_percent_per_1000']:g} % of a core for each 1,000 agents**.",
        f"The point farthest from the line is {figures['growth_rss_off_line_percent']:g} % off in",
        f"memory and {figures['growth_cpu_off_line_percent']:g} % in CPU.",
        "",
        "| fleet | replicas | agents on one, with one replica gone | memory request | limit |",
        "|---|---|---|---|---|",
    ]
    for fleet in (1_000, 2_500, 5_000, 10_000, 20_000):
        for replicas in (1, 3):
            most = fleet if replicas == 1 else fleet // (replicas - 1)
            takes = base + each * most
            memory = f"{_memory(takes)} | {_memory(takes * ROOM)}"
            told.append(f"| {fleet:,} | {replicas} | {most:,} | {memory} |")
    return "\n".join(told)


def _memory(mib: float) -> str:
    """Up to the next quarter of a GiB, as a manifest has it."""
    return f"{-int(-mib // 256) * 256}Mi"
