"""Marks of other tools: the acts that each forbids, and the time for which it is believed."""

from collections.abc import Mapping
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import Node, NodeMeta, Taint
from aggregator.quarantine.decide.agentless import AgentlessNodes
from aggregator.quarantine.decide.maintenance import (
    Forbids,
    MaintenanceRules,
    MarkKind,
    OthersMark,
    is_stale,
)
from aggregator.quarantine.state.cluster_view import OthersMarks
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry

HOUR, DAY = 3600.0, 86400.0
WALL = 1_800_000_000.0
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"


def node(
    *, taints: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None, **more: Any
) -> Node:
    found = tuple(Taint(key, value, "NoSchedule") for key, value in (taints or {}).items())
    fields = {"annotations": {}, **more}
    return Node("n1", "u", "1", False, found, dict(labels or {}), **fields)


class Clock:
    """``seconds`` since the start, for both clocks."""

    seconds = 0.0

    def marks(self, *marks: OthersMark, **rules: Any) -> OthersMarks:
        return OthersMarks(
            MaintenanceRules(marks, **rules),
            clocks=Clocks(lambda: self.seconds, lambda: WALL + self.seconds),
        )


@pytest.mark.parametrize(
    "value", ["upgrade-failed", "upgrade-done", "upgrade-required", "unknown", ""]
)
def test_a_state_that_waits_is_no_work_in_progress(value: str) -> None:
    assert Clock().marks().forbids_all(node(labels={UPGRADE: value})) == ""
    assert Clock().marks().forbids_all(node(labels={UPGRADE: "pod-restart-required"}))


def test_a_mark_with_a_time_of_its_own_is_stale_an_hour_after_it() -> None:
    clock = Clock()
    marks = clock.marks()
    fresh = node(taints={"ToBeDeletedByClusterAutoscaler": str(int(WALL - HOUR / 2))})
    assert "the autoscaler is removing it" in marks.forbids_all(fresh)
    assert not is_stale(marks.forbids_all(fresh))
    clock.seconds = HOUR / 2 + 1
    assert is_stale(marks.forbids_all(fresh))
    assert "older than 1h" in marks.forbids_all(fresh)


@pytest.mark.parametrize("value", ["", "soon", str(int(WALL + 30 * DAY)), "9" * 40])
def test_a_mark_whose_time_is_none_is_stale_an_hour_after_it_was_first_seen(value: str) -> None:
    """Bad input: no value makes a mark believed without end."""
    clock = Clock()
    marks = clock.marks()
    found = node(taints={"ToBeDeletedByClusterAutoscaler": value})
    assert not is_stale(marks.forbids_all(found))
    clock.seconds = HOUR + 1
    assert is_stale(marks.forbids_all(found))


def test_another_state_of_the_same_tool_is_believed_anew_and_a_mark_that_was_gone_too() -> None:
    clock = Clock()
    marks = clock.marks()
    first, second = (node(labels={UPGRADE: one}) for one in ("drain-required", "pod-restart"))
    marks.forbids_all(first)
    clock.seconds = DAY + 1
    assert is_stale(marks.forbids_all(first))
    assert not is_stale(marks.forbids_all(second))
    clock.seconds += DAY + 1
    assert is_stale(marks.forbids_all(second))
    assert marks.forbids_all(node()) == ""
    assert not is_stale(marks.forbids_all(second))


def test_a_mark_that_is_believed_comes_before_a_stale_one() -> None:
    clock = Clock()
    found = node(taints={"ToBeDeletedByClusterAutoscaler": "1"}, labels={UPGRADE: "drain-required"})
    assert "GPU driver" in clock.marks().forbids_all(found)


def test_a_setting_acts_in_spite_of_stale_marks() -> None:
    found = node(taints={"ToBeDeletedByClusterAutoscaler": "1"})
    assert is_stale(Clock().marks().forbids_all(found))
    assert Clock().marks(on_stale="act").forbids_all(found) == ""


def test_a_sites_marks_are_added_and_replace_the_shipped_one_of_their_key() -> None:
    mine = OthersMark(MarkKind.LABEL, "example.test/rack-move", values=("yes",), reason="it moves")
    off = OthersMark(MarkKind.TAINT, "karpenter.sh/disrupted", forbids=Forbids.NOTHING)
    weaker = OthersMark(MarkKind.LABEL, UPGRADE, forbids=Forbids.EVICTION)
    marks = Clock().marks(mine, off, weaker)
    moved = node(labels={"example.test/rack-move": "yes"})
    assert marks.forbids_all(moved) == "it moves (label example.test/rack-move=yes)"
    assert marks.forbids_all(node(labels={"example.test/rack-move": "no"})) == ""
    assert marks.forbids_all(node(taints={"karpenter.sh/disrupted": ""})) == ""
    upgraded = node(labels={UPGRADE: "drain-required"})
    assert [bool(one) for one in marks.forbidden(upgraded)] == [False, True]
    assert "autoscaler" in marks.forbids_all(node(taints={"ToBeDeletedByClusterAutoscaler": "x"}))


def test_nodes_on_which_no_agent_runs_count_for_no_limit_and_no_quorum() -> None:
    agentless = AgentlessNodes(["example.test/bare", "pool=edge"])
    registry = NodeRegistry(FleetState(), "pool", agentless=agentless)
    kinds: list[dict[str, str]] = [
        {"pool": "a"},
        {"pool": "edge"},
        {"example.test/bare": ""},
        {"type": "virtual-kubelet"},
        {"eks.amazonaws.com/compute-type": "fargate"},
        {"eks.amazonaws.com/compute-type": "ec2", "pool": "a"},
    ]
    registry.listed([NodeMeta(f"n{at}", f"u{at}", labels, {}) for at, labels in enumerate(kinds)])
    assert registry.size().nodes == 2
    assert registry.size().pools == {"a": 2}
