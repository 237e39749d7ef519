"""The cost of one agent that keeps to the protocol: a bounded share, for any messages.

An experiment is repeated with an ordinary agent beside it, and the bound is a ratio to that, so
that it holds on a slow machine too.
"""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aggregator.cluster.port import Phase
from aggregator.health.model import CheckOff, Delta, Status
from aggregator.health.node import NodeHealth
from aggregator.quarantine.decide.common_cause import CommonCauses, CommonLimits
from aggregator.quarantine.decide.symptoms import MOST_SIGNS, Symptom
from sickbay.v1 import limits
from tests.support import hostile, virtual_time
from tests.support.allocated import allocated_bytes
from tests.support.memory_cluster import World, phase_of
from tests.support.present import present
from tests.support.replica import FakeLine, Replica, component, fault, hello, snapshot
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

NODES = 50
ORDINARY = [component("disk-space", f"/mnt/{n}", Status.OK) for n in range(40)]


async def _fleet() -> tuple[World, Replica]:
    world = World.of(*(f"n{number}" for number in range(NODES)), boot_id="boot-1")
    replica = await Replica(world, clock=Running()).ready()
    for number in range(NODES):
        replica.agent(f"n{number}", snapshot(*ORDINARY))
    return world, replica


def _cost(replica: Replica, node: str, delta: Delta) -> float:
    """Seconds of this process."""
    started = time.process_time()
    replica.agent(node, delta)
    return time.process_time() - started


@pytest.mark.parametrize("kind", hostile.KINDS)
async def test_the_last_of_many_hostile_deltas_costs_no_more_than_the_first_ones(kind: str) -> None:
    """Work is linear in the message, and in a node's state, which is bounded."""
    _, replica = await _fleet()
    costs = []
    for number in range(24):
        costs.append(_cost(replica, "n0", hostile.KINDS[kind](number)))
        await later(1)
    early, late = sorted(costs[2:8])[3], sorted(costs[-6:])[3]
    # Until its state is full it grows: by so much at most. Before it was bounded one took 60
    # times as long as the first, and the 20th half a minute.
    assert late < 6 * early + 0.02


@pytest.mark.parametrize("kind", hostile.KINDS)
async def test_a_hostile_delta_costs_some_ordinary_ones_for_each_of_its_entries(kind: str) -> None:
    _, replica = await _fleet()
    for number in range(8):  # until its state is as full as it gets
        replica.agent("n0", hostile.KINDS[kind](number))
        await later(1)
    message = hostile.KINDS[kind](8)
    entries = sum(
        map(len, (message.components, message.faults, message.cleared, message.lost))
    ) + len(message.gone)
    ordinary = Delta(components=(component("disk-space", "/mnt/1", Status.FAILED, "full"),))
    twenty = sum(_cost(replica, f"n{n}", ordinary) for n in range(1, 21))
    # The median: a collection of a large process's garbage may fall into one of them.
    hostiles = sorted(_cost(replica, "n0", hostile.KINDS[kind](n)) for n in range(9, 12))[1]
    # An ordinary delta has one entry: so many of them cost far more than a full message.
    assert hostiles < max(entries, 200) * twenty / 20


async def test_one_agent_that_says_all_it_can_does_not_fill_the_memory() -> None:
    _, replica = await _fleet()
    deltas = hostile.all_kinds()
    for _ in range(3 * len(hostile.KINDS)):
        replica.agent("n0", next(deltas))
        await later(1)
    replica.notes.transitions.clear()
    before = allocated_bytes()
    for _ in range(5 * len(hostile.KINDS)):
        replica.agent("n0", next(deltas))
        await later(1)
    replica.notes.transitions.clear()
    assert allocated_bytes() - before < 8 * 2**20
    health = present(replica.fleet.node_summaries["n0"].agent.health)
    assert len(health.components) <= limits.MAX_COMPONENTS
    assert len(health.faults) <= limits.MAX_FAULTS
    assert len(health.cleared) <= limits.MAX_GONE


async def test_beside_a_hostile_agent_an_honest_node_is_drained_and_the_hostile_one_too() -> None:
    world, replica = await _fleet()
    deltas = hostile.all_kinds()
    for _ in range(2 * len(hostile.KINDS)):
        replica.agent("n0", next(deltas))
        await later(1)
    replica.agent("n1", Delta(faults=(fault("xid:79"),)))
    replica.agent("n0", Delta(faults=(fault("xid:79", "GPU-7"),)))

    def drained() -> bool:
        world.kubelets_finish()
        return all(phase_of(world, node) is Phase.DRAINED for node in ("n0", "n1"))

    await soon(drained)


# -- its parts ----------------------------------------------------------------------------------


def test_signs_that_nobody_shows_any_more_are_forgotten() -> None:
    causes = CommonCauses(CommonLimits(), SimpleNamespace(observers=lambda check, components: {}))
    for turn in range(50):
        signs = {Symptom(f"check:c{turn}-{n}", "x", 0.0, acting=False) for n in range(100)}
        causes.set_symptoms("n0", frozenset(signs), (), frozenset())
        if turn % 7 == 0:
            causes.find_causes(float(turn))
    causes.set_symptoms("n0", frozenset(), (), frozenset())
    causes.find_causes(100.0)
    assert causes._signs == {}


async def test_what_a_hello_does_not_name_is_no_sign_and_signs_of_one_node_are_bounded() -> None:
    _, replica = await _fleet()
    named = CheckOff("disk-space", 10.0, "")
    replica.controller.on_connect(replace(hello("n0"), checks=(named,)), FakeLine())
    told = [component(f"c{n}", "x", Status.FAILED, "bad") for n in range(500)]
    told += [component("disk-space", "/", Status.FAILED, "full")]
    replica.controller.on_evidence("n0", snapshot(*told), replica.clock())
    replica.evaluate_due()
    signs, _, _ = replica.controller.parts.causes._common.known("n0")
    assert {one.what for one in signs} == {"check:disk-space"}
    many = [component(f"c{n}", "x", Status.FAILED, "bad") for n in range(500)]
    replica.controller.on_connect(hello("n1"), FakeLine())  # it names none: an older agent
    replica.controller.on_evidence("n1", snapshot(*many), replica.clock())
    replica.evaluate_due()
    signs, _, _ = replica.controller.parts.causes._common.known("n1")
    assert len(signs) == MOST_SIGNS


def test_the_faults_that_an_agent_has_lost_are_bounded_and_those_that_it_has_go_first() -> None:
    health = NodeHealth(hello("n0"))
    for number in range(5):
        faults = [fault("xid:79", f"G{number}-{n}") for n in range(400)]
        health.snapshot(snapshot(*faults))
    assert len(health.faults) == limits.MAX_FAULTS
    assert sum(not one.missing for one in health.faults.values()) == 400


async def test_what_an_incident_is_on_stays_in_force_though_its_fault_had_no_room() -> None:
    world, replica = await _fleet()
    replica.agent("n1", snapshot(fault("xid:79")))
    await soon(lambda: phase_of(world, "n1") is not None)
    for number in range(4):
        faults = [fault("xid:31", f"G{number}-{n}") for n in range(990)]
        replica.agent("n1", snapshot(*faults))
        await later(700)
    health = present(replica.fleet.node_summaries["n1"].agent.health)
    assert ("xid:79", "GPU-1") not in health.faults or health.faults["xid:79", "GPU-1"].missing
    assert phase_of(world, "n1") is not None
