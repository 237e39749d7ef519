"""Common causes: many failures share one, few have their own, and the right one is blamed."""

import random
from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.decide.common_cause import (
    AGAIN,
    LEAST,
    SETTLE,
    CommonCause,
    CommonCauses,
    CommonLimits,
    Group,
)
from aggregator.quarantine.decide.symptoms import FABRIC, FABRIC_BY_LABEL, NVLINK, Symptom

RACK = "example.com/rack"
CLIQUE = "nvidia.com/gpu.clique"
LIMITS = CommonLimits(domain_labels=(RACK,))
CHECKS = frozenset({"nic-link", "reach", "disk-space"})


def check(
    name: str, component: str = "eth0", since: float = 0.0, *, acting: bool = True
) -> Symptom:
    return Symptom(f"check:{name}", component, since, acting)


def fault(rule: str = "gpu-fatal", since: float = 0.0) -> Symptom:
    return Symptom(f"rule:{rule}", "", since, True)


class Play:
    """A fleet of nodes that report; 18 nodes to a rack."""

    def __init__(self, nodes: int, limits: CommonLimits = LIMITS, *, racks: bool = True) -> None:
        self.names = [f"n{number}" for number in range(nodes)]
        self.groups: dict[str, tuple[Group, ...]] = {
            name: (
                *([(RACK, f"r{number // 18}")] if racks else []),
                ("agent", "1.0"),
                ("driver", "550"),
            )
            for number, name in enumerate(self.names)
        }
        self.signs: dict[str, tuple[Symptom, ...]] = {}
        self.common = CommonCauses(limits, self)
        self.now = 1_000.0
        self.counts = 0
        for name in self.names:
            self.report_symptoms(name)

    def observers(self, check: str, components: Collection[str]) -> Mapping[str, int]:
        self.counts += 1
        return dict.fromkeys(components, len(self.names))

    def report_symptoms(self, name: str, *signs: Symptom) -> None:
        self.signs[name] = signs
        self.common.set_symptoms(name, frozenset(signs), self.groups[name], CHECKS)

    def relabel(self, name: str, **groups: str) -> None:
        found = {**dict(self.groups[name]), **groups}
        self.groups[name] = tuple(found.items())
        self.report_symptoms(name, *self.signs[name])

    def search(self, after: float = AGAIN) -> dict[str, CommonCause]:
        self.now += after
        self.common.find_causes(self.now)
        return dict(self.common.open)

    def fail(self, names: Iterable[str], *signs: Symptom) -> None:
        for name in names:
            self.report_symptoms(name, *signs)


# -- too many -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "most"),
    [(1, 1), (3, 3), (4, 4), (5, 4), (10, 4), (50, 5), (100, 10), (500, 50), (10_000, 50)],
)
def test_a_check_that_fails_on_too_many_is_one_cause_at_any_size(nodes: int, most: int) -> None:
    play = Play(nodes, racks=False)
    play.fail(play.names[:most], check("nic-link"))
    assert play.search() == {}
    if most < nodes:
        play.report_symptoms(play.names[most], check("nic-link", "eth1"))
        [cause] = play.search().values()
        assert (cause.scope, cause.nodes, cause.total) == ("check", most + 1, nodes)
        assert cause.fleetwide


def test_faults_of_one_rule_count_together_and_apart_from_others() -> None:
    play = Play(1_000, racks=False)
    play.fail(play.names[:50], fault("gpu-fatal"))
    play.fail(play.names[50:100], fault("gpu-gone"))
    assert play.search() == {}
    play.fail(play.names[100:101], fault("gpu-gone"))
    assert play.search().keys() == {"rule:gpu-gone"}


# -- who is blamed --------------------------------------------------------------------------------


def test_one_failing_target_is_the_target_and_other_targets_are_not() -> None:
    play = Play(200, racks=False)
    target = check("reach", "tcp://10.0.0.1:2049", acting=False)
    play.fail(play.names[:100], target)
    play.report_symptoms(play.names[150], check("reach", "tcp://10.0.0.2:80"))
    [cause] = play.search().values()
    assert (cause.scope, cause.nodes) == ("target", 100)
    assert cause.reason == (
        "check reach fails for tcp://10.0.0.1:2049 on 100 of 200 nodes; "
        "more than 10% within 10m are one cause"
    )
    hit = play.common.suspects("n0", "check:reach", "tcp://10.0.0.1:2049")
    missed = play.common.suspects("n150", "check:reach", "tcp://10.0.0.2:80")
    assert cause.id in hit
    assert cause.id not in missed


def test_a_rack_that_fails_is_one_cause_of_the_rack() -> None:
    play = Play(5_000)
    play.fail(play.names[18:36], check("nic-link"))
    [cause] = play.search().values()
    assert (cause.scope, cause.nodes, cause.total) == ("place", 18, 18)
    assert cause.limit == "limits.domain_percent"
    assert "example.com/rack=r1: check nic-link on 18 of 18 nodes" in cause.reason
    assert not cause.fleetwide
    assert cause.id in play.common.suspects("n20", "check:nic-link", "eth0")
    assert cause.id not in play.common.suspects("n40", "check:nic-link", "eth0")


def test_a_failure_that_is_everywhere_is_not_told_rack_by_rack() -> None:
    play = Play(5_000)
    play.fail(random.Random(1).sample(play.names, 2_000), check("nic-link"))
    [cause] = play.search().values()
    assert cause.scope == "target"


def test_two_racks_that_fail_for_themselves_are_two_causes() -> None:
    play = Play(5_000)
    play.fail([*play.names[18:36], *play.names[90:108]], check("nic-link"))
    assert {cause.total for cause in play.search().values()} == {18}
    assert len(play.common.open) == 2


def test_a_rack_makes_no_driver_say_that_a_gpu_is_gone() -> None:
    """Such a node's work is lost already: keeping it in service would protect no work."""
    play = Play(5_000)
    play.fail(play.names[18:36], fault("gpu-gone"))
    assert play.search() == {}


@pytest.mark.parametrize("label", [CLIQUE, FABRIC, FABRIC_BY_LABEL])
def test_evidence_on_which_no_rule_acts_makes_no_fabric_of_another_nodes(label: str) -> None:
    """One node that lies about itself could hold the other's quarantine for ever."""
    play = Play(100)
    for name in play.names[:18]:
        play.relabel(name, **{label: "c0"})
    play.report_symptoms("n0", Symptom(NVLINK, "", 0.0, acting=True))
    play.report_symptoms("n1", Symptom(NVLINK, "", -1.0, acting=False))
    play.report_symptoms("n2", Symptom(NVLINK, "", -90_000.0, acting=True))
    assert play.search() == {}, "one node's evidence, and one word"
    play.report_symptoms("n2", Symptom(NVLINK, "", -2.0, acting=False))
    assert len(play.search()) == 1, "three nodes are the fabric, although a rule acts on one alone"
    play.report_symptoms("n2")
    play.now += 2 * SETTLE
    play.search()
    play.now += 2 * SETTLE
    assert play.search() == {}, "it is over when one of two is left on which a rule acts"
    play.report_symptoms("n1", Symptom(NVLINK, "", -1.0, acting=True))
    assert len(play.search()) == 1


@pytest.mark.parametrize("label", [CLIQUE, FABRIC, FABRIC_BY_LABEL])
def test_nvlink_evidence_is_the_fabrics_and_not_the_leaf_switchs_around_it(label: str) -> None:
    leaf = "topology.kubernetes.io/leaf"
    play = Play(100, CommonLimits(domain_labels=(leaf,)), racks=False)
    for number, name in enumerate(play.names):
        play.relabel(name, **{leaf: f"l{number // 32}", label: f"c{number // 18}"})
    play.fail(play.names[:12], Symptom(NVLINK, "", 0.0, acting=True))
    [found] = play.search()
    assert found == f"{label}=c0 nvlink"
    for name in play.names[:10]:
        play.report_symptoms(name)
        assert list(play.search(2 * SETTLE)) == [found], "the last ones are no second cause"


def test_nvlink_evidence_of_several_fabrics_of_one_place_is_the_places() -> None:
    leaf = "topology.kubernetes.io/leaf"
    play = Play(100, CommonLimits(domain_labels=(leaf,)), racks=False)
    for number, name in enumerate(play.names):
        play.relabel(name, **{leaf: f"l{number // 32}", FABRIC: f"c{number // 8}"})
    play.fail(play.names[:24], Symptom(NVLINK, "", 0.0, acting=True))
    assert list(play.search()) == [f"{leaf}=l0 nvlink"]


@pytest.mark.parametrize("version", ["driver", "kernel", "agent"])
def test_a_new_version_that_does_worse_than_the_old_is_the_suspect(version: str) -> None:
    play = Play(1_000)
    for name in play.names[::50]:
        play.relabel(name, **{version: "9.9"})
        play.report_symptoms(name, fault())
    [cause] = play.search().values()
    assert cause.scope == "version"
    assert cause.reason.startswith(f"{version} 9.9: ")
    assert "on 20 of 20 nodes, and on 0 of 980 others" in cause.reason


def test_a_new_agent_that_flags_many_nodes_for_many_reasons_is_itself_the_suspect() -> None:
    play = Play(1_000)
    reasons = [check("nic-link"), fault("gpu-gone"), check("disk-space", "/"), fault("gpu-rows")]
    for number, name in enumerate(play.names[::50]):
        play.relabel(name, agent="1.1")
        play.report_symptoms(name, reasons[number % 4])
    [cause] = play.search().values()
    assert cause.reason.startswith("agent 1.1: actionable evidence on 20 of 20")
    assert all(
        cause.id in play.common.suspects(name, sign.what, sign.component)
        for name, signs in play.signs.items()
        for sign in signs
    )
    assert cause.id not in play.common.suspects("n1", "rule:gpu-gone", "")


def test_a_new_version_through_its_whole_rollout_stays_the_suspect() -> None:
    play = Play(1_000)
    for number, name in enumerate(play.names):
        play.relabel(name, agent="1.1")
        if number % 4 == 0:
            play.report_symptoms(name, fault(f"rule-{number % 40}", since=number * 0.1))
        if number in (100, 400, 600, 900):
            assert any("agent 1.1" in cause.reason for cause in play.search().values()), number


def test_a_version_that_everybody_has_is_no_suspect_of_its_own() -> None:
    play = Play(10)
    play.fail(play.names[:3], fault())
    assert play.search() == {}


def test_three_nodes_of_a_rack_need_a_fourth_where_they_are_a_fifth_of_it() -> None:
    """The most that is no cause: of the place by its share, and never less than two nodes."""
    for size, most in ((4, 2), (10, 2), (15, 3), (18, 3), (20, 4)):
        play = Play(1_000, racks=False)
        for name in play.names[:size]:
            play.relabel(name, **{RACK: "r"})
        play.fail(play.names[:most], check("nic-link"))
        assert play.search() == {}, size
        play.report_symptoms(play.names[most], check("nic-link"))
        [cause] = play.search().values()
        assert (cause.scope, cause.nodes, cause.total) == ("place", most + 1, size)


def test_a_place_is_blamed_where_it_does_four_times_worse_than_all_others() -> None:
    """10 of 20 in the rack fail; of 80 others a bit more than an eighth must not."""
    limits = CommonLimits(domain_labels=(RACK,), common_cause_percent=100.0)
    for others, blamed in ((0, True), (10, True), (11, False)):
        play = Play(100, limits, racks=False)
        for name in play.names[:20]:
            play.relabel(name, **{RACK: "r"})
        play.fail([*play.names[:10], *play.names[20 : 20 + others]], check("nic-link"))
        causes = play.search()
        assert bool(causes) == blamed, others
        for cause in causes.values():
            assert cause.reason == (
                "example.com/rack=r: check nic-link on 10 of 20 nodes, and on "
                f"{others} of 80 others; more than 20% within 10m are one cause"
            )


def test_a_place_is_compared_with_five_others_at_least() -> None:
    for others, blamed in ((4, False), (5, True)):
        play = Play(10 + others, racks=False)
        for name in play.names[:10]:
            play.relabel(name, **{RACK: "r"})
        play.fail(play.names[:3], check("nic-link"))
        assert bool(play.search()) == blamed, others


def test_a_place_has_the_size_that_its_nodes_give_it_now() -> None:
    play = Play(1_000, racks=False)
    for name in play.names[:40]:
        play.relabel(name, **{RACK: "r"})
    play.fail(play.names[:5], check("nic-link"))
    assert play.search() == {}, "5 of 40 are no more than a fifth"
    for name in play.names[20:40]:
        play.relabel(name, **{RACK: "other"})
    play.report_symptoms(play.names[6], check("nic-link"))  # 6 of 20
    [cause] = play.search().values()
    assert (cause.nodes, cause.total) == (6, 20)
    for name in play.names[8:20]:
        play.common.gone(name)
    [cause] = play.search(AGAIN).values()
    play.report_symptoms(play.names[5], check("nic-link"))
    [cause] = play.search().values()
    assert (cause.nodes, cause.total) == (7, 8)


def test_a_check_has_the_observers_that_run_it_now() -> None:
    play = Play(100, racks=False)
    everything = [(name, play.groups[name]) for name in play.names]
    play.fail(play.names[:6], check("nic-link"))
    assert play.search() == {}
    for name, groups in everything[50:]:
        play.common.set_symptoms(name, frozenset(), groups, frozenset({"reach"}))
    play.report_symptoms(play.names[6], check("disk-space"))
    play.report_symptoms(play.names[5])
    play.report_symptoms(play.names[5], check("nic-link"))
    [cause] = play.search().values()
    assert (cause.nodes, cause.total) == (6, 50)
    for name in play.names[20:]:
        play.common.gone(name)
        assert not any(play.common.known(name)), "it is forgotten"
    play.report_symptoms(play.names[5])
    play.report_symptoms(play.names[5], check("nic-link"))
    [cause] = play.search().values()
    assert (cause.nodes, cause.total) == (6, 20)


# -- how long -------------------------------------------------------------------------------------


def test_an_episode_opens_once_and_ends_once_however_it_flickers() -> None:
    play, opened, ended = Play(1_000, racks=False), 0, 0
    rng = random.Random(3)
    for turn in range(400):
        for name in play.names[:80]:
            failing = turn < 300 and rng.random() < 0.6
            play.report_symptoms(name, *([check("nic-link")] if failing else []))
        play.now += AGAIN
        new, over = play.common.find_causes(play.now)
        opened, ended = opened + len(new), ended + len(over)
    assert (opened, ended) == (1, 1)
    assert not play.common.open


def test_a_cause_is_open_until_half_of_what_opened_it_is_well_and_a_little_longer() -> None:
    play = Play(1_000, racks=False)
    play.fail(play.names[:60], check("nic-link"))
    assert play.search()
    play.fail(play.names[:34])
    assert play.search(SETTLE + AGAIN), "26 still fail"
    play.fail(play.names[:36])
    assert play.search()
    assert play.search(SETTLE / 2)
    assert not play.search(SETTLE)


def test_a_node_that_is_not_known_may_have_the_cause_of_its_check() -> None:
    assert "check:reach x" in Play(10).common.suspects("unknown", "check:reach", "x")


def test_a_node_that_is_gone_counts_no_more() -> None:
    play = Play(100)
    play.fail(play.names[:20], check("nic-link"))
    for name in play.names[:20]:
        play.common.gone(name)
    assert play.search() == {}


# -- at any size ----------------------------------------------------------------------------------


def test_a_target_that_all_miss_is_one_cause_and_is_not_counted_at_each_report() -> None:
    play = Play(2_000)
    for name in play.names:
        play.report_symptoms(name, check("reach", "tcp://10.0.0.1:2049", since=990.0))
        play.now += 0.04
        play.common.find_causes(play.now)  # as often as anything is proposed
    assert 250 < play.counts < 600
    [cause] = play.search().values()
    assert (cause.scope, cause.nodes, cause.total) == ("target", 2_000, 2_000)


SIGNS = st.one_of(
    st.builds(
        check,
        st.sampled_from(["nic-link", "reach"]),
        st.sampled_from(["a", "b"]),
        st.floats(0, 2_000),
    ),
    st.builds(fault, st.sampled_from(["gpu-gone", "gpu-fatal"]), st.floats(0, 2_000)),
    st.builds(Symptom, st.just(NVLINK), st.just(""), st.floats(0, 2_000), st.booleans()),
)


@given(
    st.lists(st.tuples(st.integers(0, 29), st.lists(SIGNS, max_size=3)), max_size=80),
    st.randoms(use_true_random=False),
)
def test_what_is_open_depends_on_the_evidence_alone_and_not_on_its_history(
    story: list[tuple[int, list[Symptom]]], rng: random.Random
) -> None:
    one, other = Play(30), Play(30)
    for number, signs in story:
        one.report_symptoms(f"n{number}", *signs)
    last = list({number: (number, signs) for number, signs in story}.values())
    rng.shuffle(last)
    for number, signs in last:
        other.report_symptoms(f"n{number}", *signs)
    assert one.search() == other.search()
    for cause in one.common.open.values():
        assert cause.nodes >= (2 if cause.limit == "limits.clique_label" else 3)
        if cause.fleetwide:
            assert cause.nodes >= LEAST
    for name in one.names:
        one.report_symptoms(name)
    one.search()
    assert one.search(SETTLE) == {}
