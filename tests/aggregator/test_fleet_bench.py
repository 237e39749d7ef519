"""The month of a large fleet (make bench-fleet) in short: fewer nodes, days, one mass event."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.quarantine.repair.protocol import RepairOrder
from tests.bench import faultplay, massplay
from tests.bench.faultplay import DAY, Machine
from tests.bench.fleet import (
    FLEET_SETTINGS,
    VERIFY,
    gates,
    live,
    live_repaired,
    repair_figures,
    worst,
)
from tests.bench.fleetplay import LEAF, play
from tests.bench.massplay import EVENTS, mass_events, tray_fails
from tests.bench.repairplay import Fault, Workshop
from tests.support.replica import OPEN, UNSUSPECTING


def test_some_days_of_a_small_fleet_pass_the_gates() -> None:
    figures = live(1, 250, 2.5, first=1.5 * DAY)
    assert gates(worst([figures], 2.5)) == []
    assert figures.explicit >= 2
    assert figures.lost < figures.lost_no_system


@pytest.mark.parametrize("event", [*EVENTS, tray_fails], ids=lambda event: event.__name__)
def test_no_mass_event_quarantines_anybody(event: massplay.Event) -> None:
    stories = list(event(Machine(random.Random(1)), 3600.0, 96, LEAF))
    outcome = play(stories, nodes=96, days=0.15, settings=FLEET_SETTINGS, rng=random.Random(1))
    assert outcome.mass == []
    assert outcome.quarantines == 0


def test_a_node_that_boots_while_a_driver_is_rolled_out_shows_what_the_new_driver_does() -> None:
    """Were its driver the old one, its wrong readings would be its own fault."""
    machine = Machine(random.Random(1))
    rolled_out = [s for s in massplay.driver_roll(machine, 600.0, 64, LEAF) if s.node % 3 == 0]
    stories = [machine.reboot(600.0, 6), *rolled_out]
    outcome = play(stories, nodes=64, days=0.02, settings=FLEET_SETTINGS, rng=random.Random(1))
    assert outcome.mass == []
    assert outcome.quarantines == 0


def test_a_controller_that_suspects_nothing_fails_the_gate() -> None:
    """This shows that the controller's evaluation keeps the nodes, and not the play."""
    settings = replace(FLEET_SETTINGS, limits=OPEN, common=UNSUSPECTING)
    stories = list(massplay.switch_down(Machine(random.Random(1)), 3600.0, 96, LEAF))
    outcome = play(stories, nodes=96, days=0.15, settings=settings, rng=random.Random(1))
    assert len(outcome.mass) == LEAF


@pytest.mark.parametrize("restart", [(), (3605.0,), (3700.0,), (9000.0,)])
def test_a_rack_event_is_one_alert_though_the_aggregator_restarts_in_it(
    restart: tuple[float, ...],
) -> None:
    stories = list(massplay.tray_fails(Machine(random.Random(2)), 3600.0, 96, LEAF))
    outcome = play(
        stories,
        nodes=96,
        days=0.15,
        settings=FLEET_SETTINGS,
        rng=random.Random(1),
        restarts=restart,
    )
    assert outcome.quarantines == 0
    assert len(outcome.rack_alerts) == 1, outcome.rack_alerts


def test_a_boot_that_repairs_another_fault_is_no_alert_of_the_rack_event() -> None:
    stories = list(massplay.tray_fails(Machine(random.Random(2)), 600.0, 96, LEAF))
    sign = faultplay.Line("xid:48", faultplay.gpu(6), "gpu_reset")
    sick = faultplay.Story(9000.0, stories[0].node, "hbm", sick=True, signs=((0.0, sign),))
    outcome = play(
        [*stories, sick], nodes=96, days=0.45, settings=FLEET_SETTINGS, rng=random.Random(6)
    )
    assert (outcome.quarantines, outcome.mass) == (1, [])
    assert len(outcome.rack_alerts) == 1, outcome.rack_alerts


def test_a_rack_event_under_an_application_of_many_nodes_is_one_alert() -> None:
    stories = list(massplay.tray_fails(Machine(random.Random(2)), 600.0, 96, LEAF))
    line = faultplay.Line("xid:31", faultplay.gpu(0), "expiry")
    jobs = [
        faultplay.Story(300.0, node, "application", sick=False, signs=((0.0, line),))
        for node in range(96)
    ]
    outcome = play(
        [*jobs, *stories], nodes=96, days=0.15, settings=FLEET_SETTINGS, rng=random.Random(1)
    )
    assert len(outcome.rack_alerts) == 1, outcome.rack_alerts


def test_own_faults_of_two_nodes_of_a_fabric_are_no_rack_event() -> None:
    sign = faultplay.Line("xid:74", faultplay.gpu(1), "gpu_reset")
    stories = [
        faultplay.Story(600.0 + 10.0 * node, node, "gpu", sick=True, signs=((0.0, sign),))
        for node in (3, 5)
    ]
    outcome = play(stories, nodes=40, days=0.01, settings=FLEET_SETTINGS, rng=random.Random(1))
    assert "fabric" in outcome.held
    assert outcome.rack_alerts == []


def test_a_rack_event_without_an_alert_fails_the_gate_as_one_with_two_does() -> None:
    figures = replace(live(1, 40, 0.01), rack_events=1, rack_alerts=1)
    for alerts in (0, 2):
        found = worst([figures, replace(figures, rack_alerts=alerts)], 0.01)
        assert any("rack event" in gate for gate in gates(found))


def test_a_controller_that_waits_for_no_other_node_of_a_fabric_fails_the_gate() -> None:
    settings = replace(FLEET_SETTINGS, common=replace(FLEET_SETTINGS.common, fabric_hold=0.0))
    stories = list(massplay.tray_fails(Machine(random.Random(2)), 3600.0, 96, LEAF))
    outcome = play(stories, nodes=96, days=0.15, settings=settings, rng=random.Random(1))
    assert outcome.mass == [massplay.RACK_EVENT]


def test_a_seed_gives_the_same_faults_each_time_and_another_gives_others() -> None:
    def drawn(seed: int) -> list[faultplay.Story]:
        rng = random.Random(seed)
        return faultplay.background(500, 10, rng) + mass_events(500, 10, rng, leaf=LEAF)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_faults_come_at_the_published_rate() -> None:
    stories = faultplay.background(2000, 30, random.Random(3))
    hardware = [story for story in stories if story.cause in (*faultplay.COUNTS, "hbm-contained")]
    expected = faultplay.NODE_FAULTS * 2000 * 30
    assert 0.85 * expected < len(hardware) < 1.15 * expected
    assert all(0 <= story.at < 30 * DAY for story in hardware)


@pytest.mark.parametrize("module", [faultplay, massplay], ids=lambda module: module.__name__)
def test_what_makes_faults_knows_nothing_of_the_rules(module: object) -> None:
    text = Path(str(getattr(module, "__file__", ""))).read_text()
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert imports
    assert not any("aggregator" in line or "support" in line for line in imports)


# -- repairs ---------------------------------------------------------------------------


def test_some_days_of_a_small_fleet_are_repaired_within_the_limits_and_nothing_twice() -> None:
    repaired = live_repaired(1, 250, 2.5, first=1.5 * DAY)
    assert repaired.orders >= 2
    assert (repaired.over_limit, repaired.twice) == ((), ())
    assert len(repaired.returned) >= 2


def test_people_release_no_node_that_has_broken_again_since_their_repair() -> None:
    """A fault every half hour, on nodes that wait hours for a person."""
    machine = Machine(random.Random(1))
    stories = [machine.hardware(at * 1800.0, at % 4) for at in range(1, 90)]
    outcome = play(
        stories,
        nodes=64,
        days=2,
        settings=FLEET_SETTINGS,
        rng=random.Random(1),
        repairs=VERIFY,
    )
    assert outcome.returned
    assert outcome.returned_sick == []


class Yard:
    """Machines in one rack, none of which is broken."""

    def now(self) -> float:
        return 0.0

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Nothing ends here."""

    def domains(self, node: str) -> tuple[str, ...]:
        return ("rack=1",)

    def broken(self, node: str) -> Sequence[Fault]:
        return ()

    def reset_gpus(self, node: str, mended: Sequence[Fault]) -> None: ...
    def reboot(self, node: str, down: float, mended: Callable[[], Sequence[Fault]]) -> None: ...
    def show_again(self, node: str, fault: Fault) -> None: ...
    def call_person(self, node: str) -> None: ...


def order(operation: str, node: str, quarantine: str) -> RepairOrder:
    return RepairOrder(operation, "gpu-reset", node, "uid", "boot", quarantine, "a fault", 60.0)


def test_an_aggregator_that_repairs_two_nodes_of_a_rack_or_a_rung_twice_fails_the_gates() -> None:
    workshop = Workshop(Yard(), random.Random(1))
    for one in (order("a", "n1", "q1"), order("a", "n1", "q1"), order("b", "n2", "q2")):
        workshop.take(one)
    assert workshop.tally.over_limit == ["n2: two in a domain"]
    assert workshop.tally.twice == [], "the same operation is one order"
    workshop.take(order("c", "n1", "q1"))
    assert workshop.tally.twice == ["n1: gpu-reset of one quarantine", "n1: two repairs at once"]
    months = live(1, 40, 0.01), live_repaired(1, 40, 0.01)
    wrong = replace(months[1], over_limit=("two",), twice=("one",), returned_sick=("gpu",))
    found = gates(worst([months[0]], 0.01) | repair_figures([months[0]], [wrong]))
    for name in ("returned_sick", "repairs_over_limit", "repaired_twice"):
        assert f"{name} is 1; expected 0" in found
