"""The bounds of what is read from the rings of the past, and of a repeat offender's signals."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.health.model import Component, Status
from aggregator.policy.lemons import (
    SOON,
    WINDOW,
    Lemon,
    LemonEvent,
    LemonThresholds,
    evaluate_past,
    evidence,
)
from aggregator.policy.windows import (
    Flapping,
    failing,
    failures,
    flapping,
    jobs,
    seen_well,
    timeline,
    well_since,
)
from tests.support.present import present
from tests.support.replica import fault

OK, DEGRADED, FAILED, UNKNOWN = Status.OK, Status.DEGRADED, Status.FAILED, Status.UNKNOWN
DAY = 86_400.0

Ring = tuple[tuple[float, Status], ...]


def part(status: Status, *recent: tuple[float, Status], since: float = 100.0) -> Component:
    return Component("check", "x", status, "", "", since, recent)


# -- the rings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("component", "well"),
    [
        (part(OK), True),
        (part(DEGRADED), True),
        (part(FAILED), False),
        (part(UNKNOWN), False),
        (part(UNKNOWN, (1, OK)), True),
        (part(UNKNOWN, (1, FAILED)), False),
        (part(UNKNOWN, (1, FAILED), (2, DEGRADED), (3, UNKNOWN)), True),
        (part(UNKNOWN, (1, OK), (2, FAILED), (3, UNKNOWN)), False),
    ],
)
def test_the_last_known_status_tells_whether_it_was_well(
    component: Component, *, well: bool
) -> None:
    assert seen_well(component) == well


@pytest.mark.parametrize(
    ("component", "since"),
    [
        (part(OK), 100.0),
        (part(OK, (1, OK)), 1),
        (part(OK, (1, FAILED)), 100.0),
        (part(OK, (1, FAILED), (2, OK)), 2),
        (part(OK, (1, FAILED), (2, OK), (3, DEGRADED), (4, OK)), 2),
        (part(OK, (1, FAILED), (2, UNKNOWN), (3, OK)), 3),
        (part(OK, (1, FAILED), (2, OK), (3, UNKNOWN), (4, OK)), 2),
        (part(UNKNOWN, (1, FAILED), (2, OK), (3, UNKNOWN)), 2),
        (part(UNKNOWN, (1, FAILED), (2, UNKNOWN)), 100.0),
        (part(OK, (1, OK), (2, FAILED), (3, OK)), 3),
    ],
)
def test_it_is_well_since_the_first_good_result_after_its_last_failure(
    component: Component, since: float
) -> None:
    assert well_since(component) == since


@pytest.mark.parametrize(
    ("component", "count"),
    [
        (part(FAILED), 0),
        (part(OK), 0),
        (part(FAILED, (1, OK)), 1),
        (part(FAILED, (1, DEGRADED)), 1),
        (part(FAILED, (1, UNKNOWN)), 0),
        (part(FAILED, (1, OK), (2, UNKNOWN)), 1),
        (part(OK, (1, FAILED), (2, OK)), 0),
        (part(FAILED, (1, OK), (2, FAILED)), 1),
        (part(FAILED, (1, OK), (2, FAILED), (3, UNKNOWN)), 1),
        (part(FAILED, (1, OK), (2, FAILED), (3, OK)), 2),
    ],
)
def test_failures_are_changes_from_healthy(component: Component, count: int) -> None:
    assert failures(component) == count


@pytest.mark.parametrize(
    ("component", "began", "counted"),
    [
        (part(FAILED), 100.0, 100.0),
        (part(FAILED, (10, FAILED)), 100.0, 100.0),
        (part(FAILED, (10, FAILED), (20, UNKNOWN)), 10, 90.0),
        (part(FAILED, (10, OK), (20, UNKNOWN)), 100.0, 100.0),
        (part(FAILED, (10, FAILED), (20, DEGRADED)), 100.0, 100.0),
        (part(FAILED, (10, FAILED), (20, UNKNOWN), (60, FAILED), (70, UNKNOWN)), 10, 80.0),
    ],
)
def test_unknown_time_between_failures_does_not_count(
    component: Component, began: float, counted: float
) -> None:
    assert failing(component) == (began, counted)


def test_the_present_status_is_the_last_transition_where_the_ring_lacks_it() -> None:
    ring = ((1.0, OK), (50.0, FAILED), (60.0, OK))
    assert flapping(part(FAILED, *ring), 2, 51.0) == Flapping(100.0, 101.0)
    assert flapping(part(FAILED, *ring), 2, 50.0) is None
    assert flapping(part(OK, *ring), 2, 1_000.0) is None


def test_without_a_ring_a_fault_came_first_and_last() -> None:
    one = fault(first_at=10.0, last_at=500.0)
    other = fault(component="GPU-2", first_at=7.0, last_at=7.0)
    assert timeline([one, other]) == [(7.0, "GPU-2"), (10.0, "GPU-1"), (500.0, "GPU-1")]

    def found(**changes: Any) -> float | None:
        rule: dict[str, Any] = {"least": 2, "apart": 60.0, "within": 491.0, **changes}
        return jobs(one, timeline([one]), **rule)

    assert found() == 500.0
    assert found(within=490.0) is None
    assert found(least=3) is None
    assert found(apart=490.0) == 500.0
    assert found(apart=491.0) is None


@pytest.mark.parametrize(
    ("at", "counts"), [(40.0, True), (40.5, False), (100.0, False), (159.5, False), (160.0, True)]
)
def test_another_components_occurrence_near_a_job_makes_it_a_common_one(
    at: float, *, counts: bool
) -> None:
    mine, other = fault(occurrences=(100.0,)), fault(component="GPU-2", occurrences=(at,))
    found = jobs(mine, timeline([mine, other]), least=1, apart=60.0, within=1.0)
    assert found == (100.0 if counts else None)


# -- repeat offenders ----------------------------------------------------------------------------

NOW = 1_000 * DAY
EACH = LemonThresholds(quarantines=2, codes=2, days=2, returns=1, signals=1)
NEVER = 1_000


def only(**changes: int) -> LemonThresholds:
    """Only the named signals count."""
    rest = dict.fromkeys(("quarantines", "codes", "days", "returns"), NEVER)
    return replace(EACH, **{**rest, **changes})


def event(ago: float, what: str, incident: str = "", *codes: str) -> LemonEvent:
    return LemonEvent(NOW - ago, what, incident, frozenset(codes))


def evaluated(bounds: LemonThresholds, *past: LemonEvent) -> Lemon | None:
    return evaluate_past("n1", past, bounds, NOW)


@pytest.mark.parametrize(
    ("ago", "counts"), [(-1.0, False), (0.0, True), (28 * DAY, True), (28 * DAY + 1, False)]
)
def test_only_the_past_within_the_window_counts(ago: float, *, counts: bool) -> None:
    past = (event(1.0, "quarantined"), event(ago, "quarantined"))
    assert (evaluated(only(quarantines=2), *past) is not None) == counts


def test_the_published_bounds() -> None:
    assert LemonThresholds() == LemonThresholds(4, 3, 4, 2, 2)
    assert (WINDOW, SOON) == (28 * DAY, 7 * DAY)


@pytest.mark.parametrize(
    ("released", "returns"),
    [(SOON, True), (SOON + 1, False), (0.0, False), (1.0, True), (-1.0, False)],
)
def test_a_return_is_within_a_week_after_a_release(released: float, *, returns: bool) -> None:
    past = (event(DAY + released, "released"), event(DAY, "quarantined"))
    found = evaluated(only(returns=1), *past)
    assert (found is not None) == returns
    if found is not None:
        assert found.strikes == ("1 returns within a week of a release",)


def test_a_quarantine_soon_after_several_releases_is_one_return() -> None:
    past = (event(3 * DAY, "released"), event(2 * DAY, "released"), event(DAY, "quarantined"))
    assert evaluated(only(returns=2), *past) is None


def test_openings_of_one_incident_are_one_with_all_its_codes() -> None:
    past = (
        event(100.0, "opened", "i", "a"),
        event(90.0, "opened", "i", "b"),
        event(80.0, "closed", "other"),
    )
    found = present(evaluated(only(codes=2), *past))
    assert (found.quarantines, found.codes, found.days) == (1, ("a", "b"), 1)
    assert found.last == NOW - 80.0
    assert found.strikes == ("2 different codes",)
    assert found.why == "again and again within four weeks: 2 different codes"
    again = (*past, event(70.0, "closed", "i"), event(0.0, "opened", "i", "c"))
    found = present(evaluated(only(quarantines=2), *again))
    assert (found.quarantines, found.codes, found.days) == (2, ("a", "b", "c"), 2)


def test_days_are_those_on_which_an_incident_opened() -> None:
    past = [event(ago * DAY - 1, "opened", f"i{ago}") for ago in (3, 2)]
    found = present(evaluated(only(days=2), *past))
    assert found.strikes == ("2 days with an incident",)
    same_day = [event(DAY - 1 - ago, "opened", f"i{ago}") for ago in (1, 2)]
    assert evaluated(only(days=2), *same_day) is None


def test_the_greater_of_quarantines_and_openings_counts() -> None:
    opened = [event(float(ago), "opened", f"i{ago}") for ago in range(3)]
    quarantined = [event(float(ago), "quarantined") for ago in range(2)]
    found = present(evaluated(only(quarantines=3), *opened, *quarantined))
    assert found.quarantines == 3
    assert evaluated(only(quarantines=4), *opened, *quarantined) is None


def test_as_many_signals_as_asked_make_a_lemon() -> None:
    past = (event(2 * DAY, "quarantined"), event(1.5 * DAY, "released"), event(DAY, "quarantined"))
    two = replace(only(quarantines=2, returns=1), signals=2)
    assert evaluated(two, *past) is not None
    assert evaluated(replace(two, signals=3), *past) is None
    assert evaluated(replace(two, returns=2), *past) is None


def test_the_evidence_on_a_lemon_fails_and_ends_by_a_good_result() -> None:
    lemon = Lemon("n1", 4, (), 4, 0, NOW, ("4 quarantines", "4 days"))
    assert evidence(lemon, 5.0) == Component(
        "lemon",
        "",
        FAILED,
        "repeat-offender",
        "again and again within four weeks: 4 quarantines, 4 days",
        5.0,
    )
    well = evidence(None, 6.0)
    assert (well.status, well.reason, well.since) == (OK, "", 6.0)
