"""Faults of many nodes at once that none of them causes: one a week.

Like `faultplay`, it knows machines and no rule of the aggregator. ``leaf`` nodes hang on one leaf
switch.
"""

import random
from collections.abc import Callable, Iterator

from tests.bench.faultplay import DAY, GPUS, PORTS, Agent, Line, Machine, Reset, Sign, Story, gpu

WEEK = 7 * DAY
#: The first comes when the fleet has been up for half a week.
FIRST = 3.5 * DAY
#: Nodes that share one NVLink fabric, as the 18 of a GB200 NVL72 do.
FABRIC = 18
RACK_EVENT = "rack-event"
#: NETIR_LINK_DOWN, by the layout of drivers before R575, of a link with a bad signal.
_LINK_DOWN = f"0x{int('00000010101000000000000111000110', 2):08x}"


def dns_down(machine: Machine, at: float, nodes: int, leaf: int) -> Iterator[Story]:
    """The one name server that all ask does not answer for 45 minutes."""
    del leaf
    for node in range(nodes):
        down = machine.state("dns", "dns://10.0.0.53", "failed", "timeout")
        back = machine.state("dns", "dns://10.0.0.53", "ok", after=2700.0)
        yield Story(at, node, "dns-down", sick=False, signs=(down, back), mass="dns-down")


def file_server_hangs(machine: Machine, at: float, nodes: int, leaf: int) -> Iterator[Story]:
    """A file server that all mount hangs for 20 minutes."""
    del leaf
    for node in range(nodes):
        hangs = machine.state("disk-mounts", "/shared", "failed", "hung")
        back = machine.state("disk-mounts", "/shared", "ok", after=1200.0)
        yield Story(at, node, "file-server", sick=False, signs=(hangs, back), mass="file-server")


def driver_roll(machine: Machine, at: float, nodes: int, leaf: int) -> Iterator[Story]:
    """A new driver, 300 nodes a minute, whose recovery field reads wrong on every GPU.

    It goes on over all nodes, and is rolled back an hour after it began, as fast.
    """
    del leaf
    for node in range(nodes):
        wave = 60.0 * (node // 300)
        wrong = [
            machine.state("gpu-recovery", gpu(number), "failed", "reset", after=wave + 40.0)
            for number in range(GPUS)
        ]
        over = 3600.0 + wave
        right = [
            machine.state("gpu-recovery", gpu(number), "ok", after=over + 40.0)
            for number in range(GPUS)
        ]
        signs = (
            (wave, Agent(30.0, driver="580.10")),
            *wrong,
            (over, Agent(30.0, driver="570.86")),
            *right,
        )
        yield Story(at, node, "driver-roll", sick=False, signs=signs, mass="driver-roll")


def switch_down(machine: Machine, at: float, nodes: int, leaf: int) -> Iterator[Story]:
    """One leaf switch is off for 90 minutes: every port of its nodes."""
    first = machine.rng.randrange(max(1, nodes // leaf)) * leaf
    for node in range(first, min(nodes, first + leaf)):
        ports = [f"mlx5_{number}/1" for number in range(PORTS)]
        looked = machine.rng.uniform(0.0, 30.0)
        down = [machine.state("infiniband", port, "failed", "link-down") for port in ports]
        back = [machine.state("infiniband", port, "ok", after=5400.0) for port in ports]
        # One look sees all ports of a node.
        signs = [(looked, sign) for _, sign in down] + [(5400.0 + looked, sign) for _, sign in back]
        yield Story(at, node, "switch-down", sick=False, signs=tuple(signs), mass="switch-down")


def bad_agent(machine: Machine, at: float, nodes: int, leaf: int) -> Iterator[Story]:
    """A new agent, 50 nodes a minute, that miscounts GPUs; after 40 minutes it is rolled back."""
    del leaf
    rolled_out = min(nodes, 50 * 40)
    for node in range(rolled_out):
        wave = 60.0 * (node // 50) + machine.rng.uniform(0.0, 60.0)
        over = 2400.0 + wave
        signs = (
            (wave, Agent(10.0, version="0.2.1")),
            machine.state("gpu-inventory", gpu(7), "failed", "missing", after=wave + 12.0),
            (over, Agent(10.0, version="0.2.0")),
            machine.state("gpu-inventory", gpu(7), "ok", after=over + 12.0),
        )
        yield Story(at, node, "bad-agent", sick=False, signs=signs, mass="bad-agent")


def tray_fails(machine: Machine, at: float, nodes: int, leaf: int) -> Iterator[Story]:
    """An NVLink switch tray fails, which serves most nodes of one rack.

    On each of their GPUs that it serves the driver logs an NVLink error and, a millisecond later,
    its verdict. One node's agent is being restarted. People reset the GPUs, after two hours.
    """
    del leaf
    rng = machine.rng
    first = rng.randrange(max(1, nodes // FABRIC)) * FABRIC
    served = [node for node in range(first, min(nodes, first + FABRIC)) if rng.random() < 0.7]
    late = rng.choice(served)
    for node in served:
        seen = rng.uniform(0.0, 2.0)
        back = 7200.0 + rng.uniform(0.0, 120.0)
        signs: list[tuple[float, Sign]] = [(0.0, Agent(45.0))] if node == late else []
        for number in range(4):
            one = gpu(number)
            signs += [
                (seen, Line("xid:149", one, "gpu_reset", registers=_LINK_DOWN)),
                (seen + 0.001, Line("xid:154", one, "gpu_reset", "drain-and-reset")),
                machine.state("gpu-recovery", one, "failed", "drain-and-reset", after=seen),
                (back, Reset(one)),
                machine.state("gpu-recovery", one, "ok", after=back),
            ]
        yield Story(at, node, RACK_EVENT, sick=False, signs=tuple(signs), mass=RACK_EVENT)


def rack_events(
    nodes: int, days: float, rng: random.Random, *, first: float = FIRST / 2
) -> list[Story]:
    """An NVLink switch tray that fails, once a week."""
    machine = Machine(rng)
    stories: list[Story] = []
    at = first
    while at < days * DAY:
        stories += tray_fails(machine, at, nodes, 0)
        at += WEEK
    return stories


Event = Callable[[Machine, float, int, int], Iterator[Story]]
EVENTS: tuple[Event, ...] = (
    dns_down,
    driver_roll,
    switch_down,
    bad_agent,
    file_server_hangs,
)


def mass_events(
    nodes: int, days: float, rng: random.Random, *, leaf: int, first: float = FIRST
) -> list[Story]:
    """One a week from ``first`` on, each time another, in an order of chance."""
    machine = Machine(rng)
    order = list(EVENTS)
    rng.shuffle(order)
    stories: list[Story] = []
    at, number = first, 0
    while at < days * DAY:
        stories += order[number % len(order)](machine, at, nodes, leaf)
        at, number = at + WEEK, number + 1
    return stories
