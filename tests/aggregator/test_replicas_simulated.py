"""Schedules that try to break the replicas: pauses, kills, cuts and losses in any order.

docs/replicas.md argues that one replica may act at each moment; that no effect of a superseded
controller outlives it, except for a few evictions in flight; that limits hold; that no fault is
lost; that there is a controller within 30 s of the last change. These tests try that. SCHEDULES
sets how many random schedules are played.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aggregator.cluster.port import Action
from aggregator.quarantine.decide.cause_search import CommonLimits
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, exemption
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.settings import Settings
from tests.aggregator.replica_simulator import DAY, OF_CLIQUE, Simulation
from tests.support.replica import OPEN, SETTINGS

SCHEDULES = int(os.environ.get("SCHEDULES", "25"))
QUICK = replace(SETTINGS, limits=replace(OPEN, silent_drain_after=60.0))
HOSTS, NODES = ("r0", "r1", "r2"), tuple(f"n{number}" for number in range(6))


#: Of six nodes two may be in quarantine: a held node gets in when there is room.
TIGHT = replace(QUICK, limits=replace(OPEN, concurrent=2))


#: The nodes are repaired: two at once, and one of a rack.
REPAIRING = replace(
    QUICK,
    repair=RepairSettings(
        RepairRules(mode=RepairMode.REPAIR, concurrent=2, concurrent_percent=100.0, attempts=20)
    ),
)
#: A restart finds one of these files in place of its own.
OTHERS = (
    replace(QUICK, mode=Action.OBSERVE),
    replace(QUICK, limits=replace(OPEN, concurrent=1)),
    REPAIRING,
)


def play(
    seed: int, events: list[tuple[float, str, str, str]], rules: Settings = QUICK
) -> Simulation:
    sim = Simulation(seed, replicas=len(HOSTS), nodes=len(NODES), settings=rules)
    sim.time.run(30)
    for pause, what, host, node in events:
        ACTS[what](sim, host, node)
        sim.time.run(pause)
    sim.heal()
    sim.time.run(30)
    sim.check_one_acts()
    sim.time.run(300)
    sim.check_one_acts()
    sim.check_settled()
    for agent in sim.agents.values():  # all held nodes get in, two at a time
        if rules is TIGHT and agent.node in sim.world.quarantines and agent.ill is not None:
            agent.is_mended()
    if rules is TIGHT:
        sim.time.run(300)
        sim.check_settled()
    sim.time.end()
    return sim


def _kill(sim: Simulation, host: str, _: str) -> None:
    sim.hosts[host].kill()


def _start(sim: Simulation, host: str, _: str) -> None:
    if not sim.hosts[host].up:
        sim.hosts[host].start()


def _lossy(sim: Simulation, _: str, __: str) -> None:
    sim.wire.lost = 0.0 if sim.wire.lost else 0.2


def _delete_lease(sim: Simulation, _: str, __: str) -> None:
    sim.board.lease, sim.board.deleted_at = None, sim.time.now


def _release(sim: Simulation, _: str, node: str) -> None:
    """A person deletes the quarantine of an unhealthy node."""
    quarantine = sim.world.quarantines.get(node)
    if quarantine is not None and not quarantine.deleting:
        sim.agents[node].overruled = sim.agents[node].ill is not None
        sim.agents[node].released_at = sim.time.now
        sim.world.person_deletes(node)


def _all_cut(sim: Simulation, _: str, __: str) -> None:
    """The API server is away for all, or back."""
    if sim.wire.cut >= set(HOSTS):
        sim.wire.cut.clear()
    else:
        sim.wire.cut |= set(HOSTS)


def _exempt(sim: Simulation, _: str, node: str) -> None:
    known = EXEMPT in sim.world.nodes[node].annotations
    sim.world.person_annotates(node, EXEMPT, None if known else exemption(2e9, "a test"))


def _force(sim: Simulation, _: str, node: str) -> None:
    known = FORCE in sim.world.nodes[node].annotations
    sim.world.person_annotates(node, FORCE, None if known else "drain a test")


def _jump(sim: Simulation, host: str, _: str) -> None:
    """The machine's wall clock is set, by at most a day."""
    sim.hosts[host].skew = sim.rng.uniform(-DAY, DAY)


def _other_rules(sim: Simulation, host: str, _: str) -> None:
    """The replica is started anew with another file, which the others get at their next start."""
    at = OTHERS.index(sim.settings) if sim.settings in OTHERS else -1
    sim.settings = OTHERS[(at + 1) % len(OTHERS)]
    sim.hosts[host].kill()
    sim.hosts[host].start()


def _bind(sim: Simulation, _: str, node: str) -> None:
    """A pod comes to the node past the scheduler."""
    sim.world.add_pod(node, f"bound-{sim.world.tick()}")


ACTS: dict[str, Callable[[Simulation, str, str], None]] = {
    "fault": lambda sim, _, node: sim.agents[node].falls_ill(),
    "mended": lambda sim, _, node: sim.agents[node].is_mended(),
    "kill": _kill,
    "start": _start,
    "pause": lambda sim, host, _: sim.hosts[host].pause(paused=True),
    "wake": lambda sim, host, _: sim.hosts[host].pause(paused=False),
    "cut": lambda sim, host, _: sim.wire.cut.add(host),
    "mend": lambda sim, host, _: sim.wire.cut.discard(host),
    "agent cut": lambda sim, host, node: sim.agents[node].cut.add(host),
    "agent back": lambda sim, host, node: sim.agents[node].cut.discard(host),
    "loss": _lossy,
    "lease deleted": _delete_lease,
    "person releases": _release,
    "stop at 1": lambda sim, host, _: sim.hosts[host].stop_at(1),
    "stop at 2": lambda sim, host, _: sim.hosts[host].stop_at(2),
    "stop at 3": lambda sim, host, _: sim.hosts[host].stop_at(3),
    "stop at 5": lambda sim, host, _: sim.hosts[host].stop_at(5),
    "leave": lambda sim, host, _: sim.hosts[host].leave(),
    "API server": _all_cut,
    "exempt": _exempt,
    "force": _force,
    "node anew": lambda sim, _, node: sim.world.renew_node(node, sim.agents[node].boot_id),
    "stop": lambda sim, _, __: sim.world.person_stops("" if sim.world.stop.reason else "drill"),
    "record lost": lambda sim, _, __: sim.world.person_deletes_record(),
    "clock jumps": _jump,
    "other rules": _other_rules,
    "pod bound": _bind,
}

EVENTS = st.tuples(
    st.sampled_from((0.0, 0.01, 0.05, 0.3, 1.0, 4.0, 11.0, 20.0, 45.0)),
    st.sampled_from(("fault", "fault", "fault", "mended", "person releases", *sorted(ACTS))),
    st.sampled_from(HOSTS),
    st.sampled_from(NODES),
)


@pytest.mark.timeout(600)
@given(
    st.integers(0, 2**32),
    st.lists(EVENTS, min_size=4, max_size=25),
    st.sampled_from((REPAIRING, QUICK, TIGHT)),
)
@settings(
    max_examples=SCHEDULES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
def test_no_schedule_breaks_what_must_hold(
    seed: int, events: list[tuple[float, str, str, str]], rules: Settings
) -> None:
    sim = play(seed, events, rules)
    assert sim.wrong == []


def _phase(sim: Simulation, node: str) -> str | None:
    quarantine = sim.world.quarantines.get(node)
    return quarantine.status.phase.value if quarantine is not None else None


def _until(sim: Simulation, node: str, phase: str | None) -> None:
    for _ in range(60):
        if _phase(sim, node) == phase:
            return
        sim.time.run(5)
    raise AssertionError(f"{node} is {_phase(sim, node)}, and not {phase}: {sim.wrong}")


@pytest.mark.parametrize("answers", [1, 2, 3, 4, 5, 6, 8, 11, 15, 20])
@pytest.mark.parametrize("ends", ["a person's word", "its agent's word"])
def test_a_controller_stopped_at_any_look_does_nothing_to_the_node_when_it_wakes(
    answers: int, ends: str
) -> None:
    """Between the look and the write; meanwhile another did all of it, and took it back."""
    sim = Simulation(answers, replicas=len(HOSTS), nodes=len(NODES), settings=QUICK)
    sim.time.run(30)
    [owner] = sim.acting()
    sim.hosts[owner].stop_at(answers)
    sim.agents["n1"].falls_ill()
    _until(sim, "n1", "Drained")
    sim.time.run(30)
    assert sim.acting() != [owner]
    if ends == "a person's word":
        sim.world.person_deletes("n1")
    else:
        sim.agents["n1"].is_mended()
    _until(sim, "n1", None)
    before = len(sim.world.writes)
    sim.hosts[owner].pause(paused=False)
    sim.time.run(120)
    late = [one for one in sim.world.writes[before:] if not one.startswith("record")]
    assert (late, sim.wrong, _phase(sim, "n1")) == ([], [], None)
    sim.time.end()


#: With the shipped limits on common causes.
SHIPPED = replace(QUICK, common=CommonLimits())
LOSSES = [("wake", "r0"), ("pause", "r0"), ("kill", "r1"), ("cut", "r2"), ("leave", "r2")]


@pytest.mark.parametrize(("what", "host"), LOSSES)
def test_no_replica_quarantines_a_node_for_a_switch_tray_of_its_clique(
    what: str, host: str
) -> None:
    """One of the replicas goes just before the tray fails."""
    sim = Simulation(7, replicas=len(HOSTS), nodes=len(NODES), settings=SHIPPED)
    sim.time.run(30)
    ACTS[what](sim, host, "")
    for node in OF_CLIQUE:
        sim.agents[node].loses_its_links()
        sim.time.run(0.3)
    sim.time.run(150)
    assert (sim.world.quarantines, sim.world.evicted) == ({}, [])
    sim.heal()
    sim.time.run(150)
    sim.check_one_acts()
    sim.check_settled()
    assert (sim.wrong, sim.world.evicted) == ([], [])
    sim.time.end()


def test_a_node_alone_of_its_clique_is_drained_for_its_links_by_its_replica() -> None:
    sim = Simulation(7, replicas=len(HOSTS), nodes=len(NODES), settings=SHIPPED)
    sim.time.run(30)
    sim.agents["n1"].loses_its_links()
    _until(sim, "n1", "Drained")
    assert list(sim.world.quarantines) == ["n1"]
    sim.time.end()
