"""Fault drills: kills, pauses or cuts off a process in mid-burst, and counts the lost faults.

Real processes on the real API server. Each drill has nodes of its own, with a pod each, and counts
the faults that did not become a taint within a minute of the end of its outage; one fault a node.
Run by `make bench-faults`; BENCH_DRILLS names some of them, by their keys without "lost_". Needs
root: one drill freezes a filesystem, one fills one, and several replicas have a name of their own.
"""

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.agent import real_disks
from tests.bench import planes
from tests.bench.drill import FAULT, PODS, Drill, one_by_one, p99
from tests.bench.figures import read, table, write
from tests.bench.hold_drills import begun_after_stop, over_limit_record_lost
from tests.bench.replica_drills import (
    controller_of_three_cut_from_the_gateways_for_40_s,
    controller_of_three_killed_in_a_burst_of_200,
    controller_of_three_paused_for_40_s,
    gateway_of_three_cut_from_the_controller_for_40_s,
    gateway_of_three_killed_in_a_burst_of_200,
    three_replicas_rolled,
)
from tests.bench.return_drill import unmarked_after_return_s
from tests.bench.small import small_or, start_quickly
from tests.controlplane.plane import ControlPlane
from tests.support.evictions import accepted_evictions
from tests.support.present import present

#: One fault each, and each a drain of its own accord.
FATAL = small_or((46,), (46, 48, 62, 64, 79, 95, 110, 119, 120, 136))
#: Each of the others begins with a burst of 100 or 200 that must not be over when it strikes; the
#: suite has `begun_after_stop` and `unmarked_after_return_s` in a small form of their own.
_SMALL = "agent_kill9,paused_alone"


def kill_9_in_a_burst_of_200(drill: Drill) -> None:
    stack, simulator = drill.fleet(200)
    simulator.inject(nodes="all", fault=FAULT)
    drill.under_way(20)
    stack.aggregator.kill()
    stack.aggregator.start()
    drill.settle(drill.nodes, since=time.monotonic())


def sigterm_in_a_burst_of_100(drill: Drill) -> None:
    stack, simulator = drill.fleet(100)
    simulator.inject(nodes="all", fault=FAULT)
    drill.under_way(10)
    stack.aggregator.stop()
    stack.aggregator.start()
    drill.settle(drill.nodes, since=time.monotonic())


def database_hangs_for_30_s(drill: Drill) -> None:
    """History and the alerts' outbox lie on a disk that hangs; 20 faults meanwhile."""
    disk = drill.folder / "database"
    with real_disks.ext4(disk, size=64 << 20):
        more = {
            "history": {"database": f"sqlite:///{disk / 'history.db'}"},
            "alerts": {"outbox": str(disk / "outbox.db")},
        }
        stack, simulator = drill.fleet(20, more)
        with real_disks.frozen(disk):
            one_by_one(simulator, drill.nodes, seconds=30)
        drill.settle(drill.nodes, since=time.monotonic())
        drill.until_drained(drill.nodes)
        stack.aggregator.stop()


def api_server_away_for_60_s(drill: Drill) -> None:
    _, simulator = drill.fleet(20)
    drill.plane.kill_apiserver()
    one_by_one(simulator, drill.nodes, seconds=60)
    drill.plane.restart_apiserver()
    drill.settle(drill.nodes, since=time.monotonic())


def aggregator_paused_for_40_s(drill: Drill) -> None:
    stack, simulator = drill.fleet(small_or(2, 20))
    process = present(stack.aggregator.process)
    process.send_signal(signal.SIGSTOP)
    try:
        one_by_one(simulator, drill.nodes, seconds=small_or(0.5, 40))
    finally:
        process.send_signal(signal.SIGCONT)
    drill.settle(drill.nodes, since=time.monotonic())


def agent_killed_between_line_and_ack(drill: Drill) -> None:
    """Ten nodes, each killed a little later after the line; the kernel log can be read again."""
    stack = drill.stack({})
    for at, (node, code) in enumerate(zip(drill.made(len(FATAL)), FATAL, strict=True)):
        agent = stack.agent(node, replayable=True)
        agent.xid(code)
        time.sleep(at * 0.005)
        agent.kill()
        agent.start()
        drill.settle([node], since=time.monotonic())


def agent_whose_disks_are_full(drill: Drill) -> None:
    """Neither the state in /run nor its copy on disk can be written when the fault comes."""
    stack = drill.stack({})
    for node in drill.made(5):
        with real_disks.tmpfs(drill.folder / f"run-{node}", "size=1m") as full:
            agent = stack.agent(node, start=False)
            agent.run_dir, agent.state_dir = full / "run", full / "state"
            agent.socket = agent.run_dir / "agent.sock"
            agent.start()
            stack.attached(agent)
            with (full / "filler").open("wb") as file:
                _fill(file.fileno())
            agent.xid(79)
            drill.settle([node], since=time.monotonic())
            agent.close()
            stack.agents.remove(agent)


def _fill(descriptor: int) -> None:
    for size in (1 << 16, 1):
        try:
            while True:
                os.write(descriptor, bytes(size))
        except OSError:
            continue


#: By the key of the figure. The API server goes last: its controllers take a while to come back.
DRILLS: dict[str, Callable[[Drill], None]] = {
    "lost_kill9_burst_200": kill_9_in_a_burst_of_200,
    "lost_sigterm_burst_100": sigterm_in_a_burst_of_100,
    "lost_database_down_30s": database_hangs_for_30_s,
    "lost_agent_kill9": agent_killed_between_line_and_ack,
    "lost_paused_alone": aggregator_paused_for_40_s,
    "lost_failover_3_replicas": controller_of_three_killed_in_a_burst_of_200,
    "lost_paused_replica": controller_of_three_paused_for_40_s,
    "lost_gateway_killed": gateway_of_three_killed_in_a_burst_of_200,
    "lost_partition_gateway": gateway_of_three_cut_from_the_controller_for_40_s,
    "lost_partition_controller": controller_of_three_cut_from_the_gateways_for_40_s,
    "lost_roll_of_three": three_replicas_rolled,
    "lost_disk_full_agent": agent_whose_disks_are_full,
    "lost_apiserver_down_60s": api_server_away_for_60_s,
}


#: The drills of acts that must not begin, by the key of the figure: each counts those that did.
HOLDS: dict[str, Callable[[Drill], int]] = {
    "begun_after_stop": begun_after_stop,
    "over_limit_record_lost": over_limit_record_lost,
}


#: Drills that measure a longest duration (seconds), by the key of the figure: drill and aim.
LASTS: dict[str, tuple[Callable[[Drill], float], str]] = {
    "unmarked_after_return_s": (unmarked_after_return_s, "5 s"),
}


@contextmanager
def _drill(plane: ControlPlane, folder: Path, name: str) -> Iterator[Drill]:
    folder.mkdir()
    with ExitStack() as ends:
        drill = Drill(plane, folder, name, ends)
        yield drill
        drill.until_drained(drill.faulty)


def _double(plane: ControlPlane) -> int:
    """Pods whose eviction was accepted more than once; no two pods ever have the same name."""
    return sum(times > 1 for times in Counter(accepted_evictions(plane, 0)).values())


def main() -> int:
    given = os.environ.get("BENCH_DRILLS", small_or(_SMALL, ""))
    named = [one for one in given.split(",") if one]
    start_quickly()
    chosen = [one if one in (*HOLDS, *LASTS) else f"lost_{one}" for one in named]
    unknown = [key for key in chosen if key not in (*DRILLS, *HOLDS, *LASTS)]
    if unknown:
        names = ", ".join(key.removeprefix("lost_") for key in (*DRILLS, *HOLDS, *LASTS))
        sys.stderr.write(f"BENCH_DRILLS: no {unknown[0].removeprefix('lost_')}; it has {names}\n")
        return 2
    drills = {key: run for key, run in DRILLS.items() if not chosen or key in chosen}
    holds: dict[str, Callable[[Drill], float]] = {
        key: run for key, run in HOLDS.items() if not chosen or key in chosen
    }
    lasts = {key: run for key, (run, _) in LASTS.items() if not chosen or key in chosen}
    # Some drills alone: the others' figures of an earlier run stay.
    figures: dict[str, float | int | str] = read("faults") if chosen else {}
    recoveries: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="sickbay-bench-", ignore_cleanup_errors=True) as folder,
        planes.plane() as plane,
    ):
        plane.create_namespace(PODS)
        for key, hold in {**holds, **lasts}.items():
            print(f"{key.replace('_', ' ')} ...", flush=True)
            with _drill(plane, Path(folder) / key[:5], key.replace("_", "-")) as drill:
                figures[key] = hold(drill)
            figures |= drill.figures
            plane.delete_nodes(drill.nodes)
        for number, (key, run) in enumerate(drills.items()):
            name = key.removeprefix("lost_").replace("_", "-")
            print(f"{_words(run)} ...", flush=True)
            # A number instead of the name, because a socket's path has at most 107 bytes.
            with _drill(plane, Path(folder) / str(number), name) as drill:
                run(drill)
            figures[key] = drill.lost
            figures |= drill.figures
            figures[_recovery(key)] = p99(drill.recoveries)
            recoveries[key] = drill.recoveries
            plane.delete_nodes(drill.nodes)
        figures["double_evictions"] = _double(plane) + int(figures.get("double_evictions", 0))
    # The worst of the drills: all together, the 200 of one burst would hide the 20 of another.
    late = [figures.get(_recovery(key), 0.0) for key in DRILLS]
    figures["recovery_p99_s"] = max(float(seconds) for seconds in late)
    path = write("faults", figures)
    rows = [(_words(run), str(figures[key]), "0") for key, run in drills.items()]
    rows += [(key.replace("_", " "), str(figures[key]), "0") for key in holds]
    rows += [(key.replace("_", " "), f"{figures[key]} s", LASTS[key][1]) for key in lasts]
    rows += [("pods that were evicted twice", str(figures["double_evictions"]), "0")]
    rows += [
        (
            f"end of the outage to the taints, p99: {_words(run)}",
            f"{p99(recoveries[key])} s",
            "10 s",
        )
        for key, run in drills.items()
    ]
    if "failover_p99_s" in figures:
        rows.append(
            (
                "the controller killed: until there is another",
                f"{figures['failover_known_s']} s",
                "30 s",
            )
        )
        rows.append(("from the kill to the taints, p99", f"{figures['failover_p99_s']} s", "-"))
    print(table(f"bench-faults, lost: {path}", rows))
    return 0


def _recovery(key: str) -> str:
    return key.replace("lost_", "recovery_") + "_p99_s"


def _words(run: Callable[[Drill], None]) -> str:
    return run.__name__.replace("_", " ")


if __name__ == "__main__":
    sys.exit(main())
