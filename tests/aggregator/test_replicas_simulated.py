"""Schedules that try to break the replicas: pauses, kills, cuts and losses in any order.

docs/replicas.md argues that one replica may act at each moment; that no effect of a superseded
controller outlives it, except for a few evictions in flight; that limits hold; that no fault is
lost; that there is a controller within 30 s of the last change. These tests try that. SCHEDULES
sets how many random schedules are played.
"""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aggregator.cluster.port import Quarantine, Unreachable
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.settings import Settings
from tests.aggregator.replica_schedules import (
    ACTS,
    HOSTS,
    NODES,
    PAUSES,
    QUICK,
    REPAIRING,
    TESTING,
    TIGHT,
    Event,
    play,
)
from tests.aggregator.replica_simulator import OF_CLIQUE, ClusterAt, Simulation
from tests.support.invariants import RELEASED_WITHIN

SCHEDULES = int(os.environ.get("SCHEDULES", "25"))
EVENTS = st.tuples(
    st.sampled_from(PAUSES),
    st.sampled_from(("fault", "fault", "fault", "mended", "person releases", *sorted(ACTS))),
    st.sampled_from(HOSTS),
    st.sampled_from(NODES),
)


@pytest.mark.timeout(600)
@given(
    st.integers(0, 2**32),
    st.lists(EVENTS, min_size=4, max_size=25),
    st.sampled_from((REPAIRING, QUICK, TIGHT, TESTING)),
)
@settings(
    max_examples=SCHEDULES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
def test_no_schedule_breaks_what_must_hold(seed: int, events: list[Event], rules: Settings) -> None:
    sim = play(seed, events, rules)
    assert sim.wrong == []


def test_a_controller_that_wakes_remakes_no_record_of_before_its_pause() -> None:
    """Else a repair that has ended meanwhile counts next to one in the same failure domain.

    Found by `make bench-repair`, and made shorter.
    """
    events: list[Event] = [
        (0.3, "fault", "r1", "n5"),
        (0.01, "fault", "r2", "n4"),
        (11.0, "stop at 1", "r0", "n5"),
        (20.0, "pause", "r2", "n0"),
        (0.3, "person releases", "r0", "n5"),
        (20.0, "fault", "r2", "n5"),
        (0.0, "API server", "r0", "n4"),
        (11.0, "record lost", "r1", "n4"),
        (45.0, "leave", "r1", "n1"),
        (11.0, "fault", "r0", "n5"),
    ]
    assert play(4276839737, events, REPAIRING).wrong == []


def test_a_fault_in_the_instant_of_an_uncordon_may_count_as_seen_by_the_person() -> None:
    """The watch and the agent's stream are not ordered. Found by `make bench-repair`."""
    events: list[Event] = [
        (0.05, "fault", "r2", "n1"),
        (45.0, "wake", "r0", "n2"),
        (45.0, "mended", "r2", "n1"),
        (45.0, "pod bound", "r0", "n0"),
        (0.0, "person uncordons", "r2", "n1"),
        (0.0, "fault", "r2", "n1"),
    ]
    sim = play(3800951884, events, REPAIRING)
    assert (_phase(sim, "n1"), sim.wrong) == (None, [])


def test_an_order_that_a_released_node_may_still_get_counts_until_its_deadline() -> None:
    """Else the next repair in its failure domain begins beside it. Found as the one above."""
    events: list[Event] = [
        (1.0, "fault", "r1", "n4"),
        (11.0, "kill", "r0", "n2"),
        (0.3, "clock jumps", "r1", "n1"),
        (0.0, "pause", "r1", "n0"),
        (11.0, "clock jumps", "r2", "n2"),
        (20.0, "wake", "r0", "n1"),
        (4.0, "person uncordons", "r2", "n4"),
        (0.05, "fault", "r1", "n5"),
    ]
    assert play(2291656230, events, REPAIRING).wrong == []


def _phase(sim: Simulation, node: str) -> str | None:
    quarantine = sim.world.quarantines.get(node)
    return quarantine.status.phase.value if quarantine is not None else None


def _until(sim: Simulation, node: str, phase: str | None) -> None:
    for _ in range(60):
        if _phase(sim, node) == phase:
            return
        sim.time.run(5)
    raise AssertionError(f"{node} is {_phase(sim, node)}, and not {phase}: {sim.wrong}")


def test_a_release_may_wait_for_as_long_as_no_replica_reaches_the_api_server() -> None:
    """No promise is broken by an outage that is longer than a release may take."""
    outage = RELEASED_WITHIN + 10
    sim = play(
        1,
        [
            (30.0, "fault", "r0", "n1"),
            (10.0, "API server", "r0", "n1"),
            (outage, "person releases", "r0", "n1"),
        ],
        REPAIRING,
    )
    assert (sim.agents["n1"].released_at > 0, _phase(sim, "n1"), sim.wrong) == (True, None, [])


def test_a_release_that_a_controller_in_reach_leaves_undone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lose(self: ClusterAt, quarantine: Quarantine) -> None:
        raise Unreachable("lost")

    monkeypatch.setattr(ClusterAt, "drop_quarantine", lose)
    sim = play(1, [(30.0, "fault", "r0", "n1"), (0.0, "person releases", "r0", "n1")], REPAIRING)
    [found] = [one for one in sim.wrong if one.startswith("in the end n1 was released")]
    assert found.endswith("and is still held")


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
