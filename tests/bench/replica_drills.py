"""Fault drills with three replicas: one killed, stopped, cut off from the others; all rolled."""

import signal
import time
from collections.abc import Callable
from threading import Thread

from tests.bench.drill import FAULT, Drill, one_by_one, p99
from tests.controlplane.waiting import wait_until
from tests.support.present import present
from tests.support.replica_processes import Replicas

#: Seconds. Longer than the Lease, and than a gateway keeps agents that it can't forward.
OUTAGE = 40.0


def controller_of_three_killed_in_a_burst_of_200(drill: Drill) -> None:
    """The controller is not started again, so that its outage has no end of its own.

    The time counts from the moment when another holds the Lease: until then no replica may act.
    From the kill it is `failover_p99_s`.
    """
    replicas, simulator = drill.replicas(200)
    controller = replicas.controller()
    simulator.inject(nodes="all", fault=FAULT)
    drill.under_way(20)
    replicas.replicas[controller].kill()
    killed = time.monotonic()
    wait_until(
        lambda: replicas.controller() not in ("", controller),
        what=lambda: f"another to take over: {replicas.standings()}",
        timeout_s=60,
        every_s=0.1,
    )
    known = time.monotonic()
    drill.settle(drill.nodes, since=known)
    drill.figures["failover_known_s"] = round(known - killed, 1)
    drill.figures["failover_p99_s"] = round(known - killed + p99(drill.recoveries), 1)


def controller_of_three_paused_for_40_s(drill: Drill) -> None:
    """Faults while it is stopped; another takes over."""
    replicas, simulator = drill.replicas(60)
    process = present(replicas.replicas[replicas.controller()].process)
    process.send_signal(signal.SIGSTOP)
    try:
        one_by_one(simulator, drill.nodes, seconds=OUTAGE)
    finally:
        process.send_signal(signal.SIGCONT)
    drill.settle(drill.nodes, since=time.monotonic())


def gateway_of_three_killed_in_a_burst_of_200(drill: Drill) -> None:
    """It is not started again: its agents go to the others."""
    replicas, simulator = drill.replicas(200)
    simulator.inject(nodes="all", fault=FAULT)
    drill.under_way(20)
    replicas.replicas[_gateways(replicas)[0]].kill()
    drill.settle(drill.nodes, since=time.monotonic())


def gateway_of_three_cut_from_the_controller_for_40_s(drill: Drill) -> None:
    """It reaches the API server, and its agents reach it."""
    _cut(drill, lambda replicas: _gateways(replicas)[:1])


def controller_of_three_cut_from_the_gateways_for_40_s(drill: Drill) -> None:
    """It reaches the API server, and stays the controller; the agents of both gateways go to it."""
    _cut(drill, _gateways)


def three_replicas_rolled(drill: Drill) -> None:
    """Each in turn ends in order and starts again, while faults come."""
    replicas, simulator = drill.replicas(60)
    third = len(drill.nodes) // 3
    for number, replica in enumerate(reversed(replicas.replicas.values())):
        stopping = Thread(target=replica.stop)
        stopping.start()
        one_by_one(simulator, drill.nodes[number * third : (number + 1) * third], seconds=10)
        stopping.join()
        replica.start()
        replicas.until_served()
    drill.settle(drill.nodes, since=time.monotonic())


def _cut(drill: Drill, chosen: Callable[[Replicas], list[str]]) -> None:
    replicas, simulator = drill.replicas(60, cuttable=True)
    assert replicas.cuts is not None
    controller = replicas.controller()
    replicas.cuts.cut(chosen(replicas))
    try:
        one_by_one(simulator, drill.nodes, seconds=OUTAGE)
        drill.settle(drill.nodes, since=time.monotonic())  # other replicas have them by now
    finally:
        replicas.cuts.heal()
    assert replicas.controller() == controller, "the cut must not move the Lease"
    replicas.until_served()


def _gateways(replicas: Replicas) -> list[str]:
    controller = replicas.controller()
    return [name for name in replicas.running if name != controller]
