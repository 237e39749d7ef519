"""Two real aggregators without Kubernetes on one PostgreSQL: killed, stopped, without database."""

import signal
import time
from pathlib import Path

import pytest

from tests.controlplane.waiting import wait_until
from tests.support.local_replicas import LocalReplicas
from tests.support.postgres import StartPostgres
from tests.support.simulator import Simulator


@pytest.mark.timeout(900)
def test_a_killed_a_stopped_and_a_cut_off_controller_lose_nothing_and_act_once(
    tmp_path: Path, start_postgres: StartPostgres
) -> None:
    """One scene after another; each node's command runs once, whoever runs it."""
    server = start_postgres()
    with LocalReplicas(tmp_path, server) as two:
        first = two.until_controller()
        (second,) = set(two.replicas) - {first}
        agents = ["--nodes", "6", "--aggregator", two.replicas[second].address]
        with Simulator(agents, log=tmp_path / "simulator.log") as fleet:
            fleet.until_streaming(6)
            nodes = sorted(_known(two, first))

            def fault(node: str) -> None:
                fleet.inject(nodes=[node], fault="xid:79")

            def until_acted(*expected: str) -> None:
                wait_until(
                    lambda: sorted(two.runs()) == sorted(expected),
                    what=lambda: f"the runs {expected}: {two.runs()}",
                )

            fault(nodes[0])
            until_acted(f"{nodes[0]} {first}")
            two.until_cordoned(first, nodes[0])

            # Its Lease goes on in its name while it is stopped, for as long as a Lease lasts.
            two.signal(first, signal.SIGSTOP)
            fault(nodes[1])
            two.until_controller(second)
            until_acted(f"{nodes[0]} {first}", f"{nodes[1]} {second}")
            two.signal(first, signal.SIGCONT)
            wait_until(lambda: "leader.lost" in two.replicas[first].log(), what="it to see that")
            two.until_cordoned(first, *nodes[:2])  # its page passes the request on

            # Nobody acts while the database is away; then each fault is acted on, once.
            server.pause()
            fault(nodes[2])
            wait_until(lambda: not two.is_controller(second), what="its Lease to run out")
            assert len(two.runs()) == 2
            server.resume()
            holder = two.until_controller()
            wait_until(lambda: len(two.runs()) == 3, what="the fault to be acted on")
            assert two.runs()[2].split()[0] == nodes[2]
            two.until_cordoned(holder, *nodes[:3])  # a crash before that runs the command again

            # The agents are at the second: the first is killed where it holds, else it takes over.
            two.replicas[holder].process.kill()
            killed = time.monotonic()
            (heir,) = set(two.replicas) - {holder}
            two.until_controller(heir)
            print(f"taken over after {time.monotonic() - killed:.1f} s")
            two.replicas[holder].kill_and_restart()
            fleet.until_streaming(6)
            fault(nodes[3])
            wait_until(lambda: len(two.runs()) == 4, what="the heir to act")
            assert two.runs()[3] == f"{nodes[3]} {heir}"
            two.until_cordoned(heir, *nodes[:4])


def _known(two: LocalReplicas, name: str) -> set[str]:
    """The nodes on its page, when all six are there."""

    def names() -> set[str]:
        return {one["node"] for one in (two.replicas[name].ask("nodes") or {"items": []})["items"]}

    wait_until(lambda: len(names()) == 6, what="the fleet")
    return names()
