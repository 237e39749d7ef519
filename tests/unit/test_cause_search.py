"""The bounds and choices of the search for common causes."""

from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.decide.admission import OpenCause
from aggregator.quarantine.decide.common_cause import (
    FLAGS,
    SCOPES,
    CauseSearch,
    CommonCause,
    CommonLimits,
    Group,
    Population,
    Signs,
)
from aggregator.quarantine.decide.symptoms import NVLINK, SILENCE
from aggregator.runtime.interning import EMPTY

RACK, CLIQUE = "rack", "nvidia.com/gpu.clique"
LIMITS = CommonLimits(domain_labels=(RACK,))


def names(count: int, first: int = 0) -> list[str]:
    return [f"n{number:03}" for number in range(first, first + count)]


class Fleet:
    """A population, and what a search in it is told."""

    def __init__(
        self, size: int, limits: CommonLimits = LIMITS, /, **groups: Collection[str]
    ) -> None:
        self.crowd = Population()
        self.open: set[str] = set()
        self.asked: list[tuple[str, list[str]]] = []
        self.seen_by: dict[str, int] = {}
        for name in names(size):
            self.crowd.groups[name] = ()
        for group, members in groups.items():
            label, _, value = group.partition("__")
            label = CLIQUE if label == "clique" else label
            for name in members:
                self.crowd.groups[name] = (*self.crowd.groups[name], (label, value))
                self.crowd.sizes[label, value] += 1
        self.search = CauseSearch(limits, self.crowd, self, self.open)

    def observers(self, check: str, components: Collection[str]) -> Mapping[str, int]:
        self.asked.append((check, list(components)))
        return self.seen_by

    def causes(
        self,
        what: str,
        nodes: Iterable[str],
        targets: Mapping[str, Iterable[str]] | None = None,
        since: Mapping[str, float] = EMPTY,
    ) -> list[CommonCause]:
        shown = {name: since.get(name, 0.0) for name in nodes}
        at = {component: dict.fromkeys(seen, 0.0) for component, seen in (targets or {}).items()}
        return self.search.causes(what, Signs(shown, at, set(shown)))


def cause(scope: str) -> CommonCause:
    return CommonCause("id", scope, "w", "l", "v", "r", 1, 1, ())


def test_checks_and_targets_concern_the_whole_fleet() -> None:
    assert [scope for scope in SCOPES if cause(scope).fleetwide] == ["check", "target"]
    assert cause("place").for_admission() == OpenCause("l", "v", "r", fleetwide=False)
    assert cause("check").for_admission() == OpenCause("l", "v", "r", fleetwide=True)


def test_a_cause_names_its_first_ten_nodes() -> None:
    (found,) = Fleet(100).causes("check:a", reversed(names(30)))
    assert found.sample == tuple(names(10))
    assert (found.id, found.scope, found.what) == ("check:a", "check", "check:a")
    assert (found.nodes, found.total, found.since, found.faded) == (30, 100, 0.0, None)


# -- what may explain what -----------------------------------------------------------------------

AGENT, DRIVER, KERNEL = ("agent", "1"), ("driver", "5"), ("kernel", "6")
IN_RACK, IN_CLIQUE = (RACK, "r"), (CLIQUE, "c")
ALL_GROUPS: tuple[Group, ...] = (AGENT, DRIVER, KERNEL, IN_RACK, IN_CLIQUE)


@pytest.mark.parametrize(
    ("what", "component", "ids"),
    [
        (
            "check:a",
            "",
            {"check:a", "driver=5 check:a", "kernel=6 check:a", "rack=r check:a"},
        ),
        (
            "check:a",
            "t",
            {"check:a", "check:a t", "driver=5 check:a", "kernel=6 check:a", "rack=r check:a"},
        ),
        ("rule:g", "", {"rule:g", "driver=5 rule:g", "kernel=6 rule:g"}),
        (
            NVLINK,
            "",
            {
                NVLINK,
                f"driver=5 {NVLINK}",
                f"kernel=6 {NVLINK}",
                f"rack=r {NVLINK}",
                f"{CLIQUE}=c {NVLINK}",
            },
        ),
    ],
)
def test_the_suspects_of_a_symptom(what: str, component: str, ids: set[str]) -> None:
    found = Fleet(1).search.suspects(ALL_GROUPS, what, component)
    assert found == ids | {f"agent=1 {FLAGS}"}


def test_a_targets_id_is_bounded() -> None:
    found = Fleet(1).search.suspects((), "check:a", "x" * 300)
    assert found == {"check:a", f"check:a {'x' * 200}"}


# -- how many ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "observers", "failing", "total"),
    [
        ("check:a", 0, 11, 100),
        ("check:a", 60, 7, 60),
        ("check:a", 3, 7, 7),
        ("rule:a", 60, 11, 100),
    ],
)
def test_the_total_is_of_those_that_could_show_it(
    what: str, observers: int, failing: int, total: int
) -> None:
    fleet = Fleet(100)
    fleet.crowd.observers["a"] = observers
    (found,) = fleet.causes(what, names(failing))
    assert found.total == total


@pytest.mark.parametrize(
    ("what", "subject"),
    [
        ("check:a", "check a fails"),
        ("rule:a", "faults of rule a"),
        (NVLINK, "NVLink evidence"),
    ],
)
def test_a_cause_of_the_fleet_names_its_symptom(what: str, subject: str) -> None:
    (found,) = Fleet(100).causes(what, names(11))
    assert found.reason == (f"{subject} on 11 of 100 nodes; more than 10% within 10m are one cause")


def test_the_number_of_nodes_decides_only_where_it_is_less_than_their_share() -> None:
    for nodes, limit, value in ((9, "limits.common_cause_nodes", "9"), (10, "", "")):
        (found,) = Fleet(100, CommonLimits(common_cause_nodes=nodes)).causes("check:a", names(20))
        expected = (limit or "limits.common_cause_percent", value or "10%")
        assert (found.limit, found.value) == expected
        assert found.reason.endswith(f"more than {expected[1]} within 10m are one cause")


def test_those_that_began_outside_the_window_do_not_open_a_cause_and_keep_one_open() -> None:
    fleet, early = Fleet(100), dict.fromkeys(names(1), -601.0)
    assert fleet.causes("check:a", names(11), since=early) == []
    early = dict.fromkeys(names(1), -600.0)
    assert len(fleet.causes("check:a", names(11), since=early)) == 1
    spread = {name: 1_000.0 * number for number, name in enumerate(names(6))}
    fleet.open.add("check:a")
    assert len(fleet.causes("check:a", names(6), since=spread)) == 1
    assert fleet.causes("check:a", names(5)) == []


@pytest.mark.slow
@given(st.lists(st.floats(0, 3_000), min_size=1, max_size=40))
def test_a_window_lies_where_it_holds_most(times: list[float]) -> None:
    since = dict(zip(names(len(times)), times, strict=True))
    most = max(sum(first <= at <= first + 600.0 for at in times) for first in times)
    found = Fleet(100).causes("check:a", since, since=since)
    assert bool(found) == (most > 10)


# -- targets -------------------------------------------------------------------------------------


def test_a_target_counts_against_those_that_look_at_it() -> None:
    fleet = Fleet(200)
    fleet.seen_by = {"t": 50, "u": 60}
    found = fleet.causes("check:a", names(12), {"t": names(6), "u": names(6, 6)})
    assert [(one.id, one.nodes, one.total) for one in found] == [("check:a t", 6, 50)]
    assert fleet.asked == [("a", ["t", "u"])]
    assert found[0].reason.startswith("check a fails for t on 6 of 50 nodes")


def test_targets_of_few_nodes_are_not_looked_at() -> None:
    fleet = Fleet(200)
    fleet.seen_by = {"t": 4, "u": 4}
    assert fleet.causes("check:a", names(8), {"t": names(4), "u": names(4, 4)}) == []
    assert fleet.asked == []


def test_the_targets_that_most_nodes_miss_are_looked_at() -> None:
    fleet = Fleet(200)
    targets = {f"t{number:02}": names(5) for number in range(70)} | {"z": names(6)}
    fleet.causes("check:a", names(6), targets)
    [(_, asked)] = fleet.asked
    assert asked == ["z", *(f"t{number:02}" for number in range(63))]


def test_a_node_that_has_a_cause_counts_for_no_other() -> None:
    fleet = Fleet(200)
    fleet.seen_by = {"t": 30, "u": 30}
    both = {"t": names(20), "u": names(14, 10)}
    found = fleet.causes("check:a", names(24), both)
    assert [(one.scope, one.nodes) for one in found] == [("target", 20)]
    both = {"t": names(20), "u": names(15, 10)}
    found = fleet.causes("check:a", names(25), both)
    assert [(one.id, one.nodes) for one in found] == [("check:a t", 20), ("check:a u", 5)]


# -- the choice ----------------------------------------------------------------------------------


def test_the_more_exact_of_causes_that_explain_nearly_the_same_is_blamed() -> None:
    for in_target, scope in ((16, "target"), (15, "check")):
        fleet = Fleet(100)
        fleet.seen_by = {"t": 100}
        found = fleet.causes("check:a", names(20), {"t": names(in_target)})
        assert (found[0].scope, found[0].nodes) == (scope, in_target if scope == "target" else 20)


def test_a_cause_that_is_open_stays_the_one_that_is_blamed() -> None:
    fleet = Fleet(100)
    fleet.seen_by = {"t": 100}
    fleet.open.add("check:a")
    (found,) = fleet.causes("check:a", names(20), {"t": names(20)})
    assert found.scope == "check"


def test_a_place_is_more_exact_than_a_version_and_a_version_than_the_check() -> None:
    both = Fleet(200, rack__r=names(25), driver__5=names(25))
    assert [one.scope for one in both.causes("check:a", names(25))] == ["place"]
    version = Fleet(200, driver__5=names(25))
    (found,) = version.causes("check:a", names(25))
    assert (found.id, found.scope) == ("driver=5 check:a", "version")
    assert (found.limit, found.value) == ("limits.domain_percent", "20%")
    assert found.reason == (
        "driver 5: check a on 25 of 25 nodes, and on 0 of 175 others; more than 20% within 10m "
        "are one cause"
    )


@pytest.mark.parametrize(("group", "least"), [("rack__r", 3), ("driver__5", 5)])
def test_a_small_group_needs_a_least_number(group: str, least: int) -> None:
    for failing in (least - 1, least):
        fleet = Fleet(100, LIMITS, **{group: names(6)})
        assert bool(fleet.causes("check:a", names(failing))) == (failing == least)


def test_two_of_a_clique_are_the_cliques_within_the_window() -> None:
    fleet = Fleet(50, clique__c=names(18))
    (found,) = fleet.causes(NVLINK, names(2), since={"n001": 600.0})
    assert (found.id, found.scope, found.nodes, found.total) == (
        f"{CLIQUE}=c {NVLINK}",
        "place",
        2,
        18,
    )
    assert (found.limit, found.value) == ("limits.clique_label", CLIQUE)
    assert found.reason == (
        f"{CLIQUE}=c: NVLink evidence on 2 of 18 nodes; two of one clique within 10m are the "
        "clique's"
    )
    assert fleet.causes(NVLINK, names(2), since={"n001": 601.0}) == []
    assert fleet.causes(NVLINK, names(1)) == []
    assert fleet.causes("check:a", names(2)) == []


def test_what_rules_act_on_is_blamed_on_an_agents_version_alone() -> None:
    fleet = Fleet(100, agent__2=names(20), driver__5=names(20), rack__r=names(20))
    (found,) = fleet.causes(FLAGS, names(20))
    assert (found.id, found.scope) == (f"agent=2 {FLAGS}", "version")
    assert found.reason.startswith("agent 2: actionable evidence on 20 of 20 nodes")
    assert Fleet(100).causes(FLAGS, names(50)) == []
    assert [one.scope for one in fleet.causes("rule:g", names(20))] == ["version"]


def test_so_many_causes_of_one_symptom_are_named_at_most() -> None:
    racks = {f"rack__r{number}": names(3, 3 * number) for number in range(40)}
    limits = CommonLimits(
        common_cause_percent=100.0, common_cause_nodes=1_000, domain_labels=(RACK,)
    )
    fleet = Fleet(4_000, limits, **racks)
    # Each rack alone must do worse than the others together.
    found = fleet.causes("check:a", names(120))
    assert [one.scope for one in found] == ["place"] * 32


# -- silence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "of", "is_open", "found"),
    [
        (10, 100, False, False),
        (11, 100, False, True),
        (5, 100, True, False),
        (6, 100, True, True),
        (0, 0, False, False),
        (4, 4, False, False),
        (5, 5, False, True),
    ],
)
def test_so_many_silent_agents_are_a_cause(
    silent: int, of: int, *, is_open: bool, found: bool
) -> None:
    fleet = Fleet(0)
    if is_open:
        fleet.open.add(SILENCE)
    made = fleet.search.silence(silent, of)
    assert (made is not None) == found
    if made is not None:
        assert (made.id, made.scope, made.nodes, made.total) == (SILENCE, "agents", silent, of)
        assert made.limit == "limits.common_cause_percent"
        assert made.what == SILENCE
