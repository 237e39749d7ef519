"""Xid 48 by what came with it: NVIDIA's workflow, in any order of the lines."""

from dataclasses import replace
from itertools import permutations

import pytest

from aggregator.health.model import Cleared, ClearedBy, Delta, Fault, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evaluation, Incident, evaluate
from tests.support.replica import POLICY, component, fault, hello, snapshot

NOW = 5_000.0


def xid(number: int, at: float, *earlier: float, gpu: str = "GPU-1") -> Fault:
    return fault(
        f"xid:{number}",
        gpu,
        first_at=(*earlier, at)[0],
        last_at=at,
        count=1 + len(earlier),
        occurrences=(*earlier, at),
        cleared_by=ClearedBy.GPU_RESET,
    )


class Node:
    def __init__(self) -> None:
        self.health = NodeHealth(hello("n1"))
        self.health.snapshot(snapshot())
        self.incidents: dict[str, Incident] = {}

    def evaluate(self, now: float, *faults: Fault) -> Evaluation:
        self.health.delta(Delta(faults=faults))
        found = evaluate(POLICY, self.health, self.incidents, now)
        self.incidents = dict(found.incidents)
        return found

    @property
    def actions(self) -> dict[str, str]:
        return {item.code: item.action for one in self.incidents.values() for item in one.evidence}


def test_alone_it_drains_after_the_others_had_time_to_come() -> None:
    node = Node()
    assert node.evaluate(NOW, xid(48, NOW)).evaluate_again == NOW + 2.0
    assert node.actions == {}
    node.evaluate(NOW + 2.0)
    assert node.actions == {"xid:48": "drain"}


@pytest.mark.parametrize(
    ("others", "actions"),
    [
        ((63,), {"xid:48": "cordon", "xid:63": "observe"}),
        ((64,), {"xid:48": "cordon", "xid:64": "cordon"}),
        ((63, 64), {"xid:48": "cordon", "xid:63": "observe", "xid:64": "cordon"}),
        ((94,), {"xid:48": "observe", "xid:94": "observe"}),
        ((63, 94), {"xid:48": "cordon", "xid:63": "observe", "xid:94": "observe"}),
        ((31,), {"xid:48": "drain", "xid:31": "observe"}),
        ((95,), {"xid:48": "drain", "xid:95": "drain"}),
    ],
)
def test_what_came_with_it_decides_in_any_order(
    others: tuple[int, ...], actions: dict[str, str]
) -> None:
    for order in permutations((48, *others)):
        node = Node()
        for number, code in enumerate(order):
            node.evaluate(NOW + number / 1000, xid(code, NOW + number / 1000))
        node.evaluate(NOW + 10.0)
        assert node.actions == actions, order


def test_what_came_long_before_or_on_another_gpu_does_not_count() -> None:
    node = Node()
    node.evaluate(NOW, xid(63, NOW - 3600.0), xid(94, NOW, gpu="GPU-2"), xid(48, NOW))
    node.evaluate(NOW + 3.0)
    assert node.actions["xid:48"] == "drain"


def test_each_time_is_evaluated_by_what_came_then() -> None:
    node = Node()
    node.evaluate(NOW, xid(48, NOW), xid(94, NOW))
    node.evaluate(NOW + 3.0)
    assert node.actions["xid:48"] == "observe"
    later = NOW + 7200.0
    node.evaluate(later, xid(48, later, NOW))
    assert node.actions["xid:48"] == "observe", "the line that contains it may come in a moment"
    node.evaluate(later + 2.0)
    assert node.actions["xid:48"] == "drain"


def test_a_failed_repair_without_it_drains() -> None:
    node = Node()
    node.evaluate(NOW, xid(64, NOW))
    node.evaluate(NOW + 2.0)
    assert node.actions == {"xid:64": "drain"}


def test_occurrences_that_the_ring_has_lost_make_no_action_stronger() -> None:
    node = Node()
    node.evaluate(NOW, xid(48, NOW), xid(94, NOW))
    node.evaluate(NOW + 3.0)
    later = NOW + 90_000.0
    full = replace(xid(94, later), first_at=NOW, count=40)
    node.evaluate(later + 3.0, full)
    assert node.actions["xid:48"] == "observe"


def test_occurrences_that_the_ring_has_lost_suit_no_rule_that_needs_them() -> None:
    node = Node()
    later = NOW + 90_000.0
    node.evaluate(later, xid(48, NOW + 5000.0), replace(xid(94, later), first_at=NOW, count=40))
    node.evaluate(later + 3.0)
    assert "xid:48" not in node.actions, "neither alone nor contained is certain"


def test_an_error_that_returns_milder_after_a_reset_is_in_force_at_once() -> None:
    node = Node()
    node.evaluate(NOW, xid(48, NOW))
    node.evaluate(NOW + 2.0)
    node.health.delta(Delta(cleared=(Cleared("", "GPU-1", "gpu-reset"),)))
    node.evaluate(NOW + 100.0)
    later = NOW + 200.0
    node.evaluate(later, xid(48, later), xid(63, later))
    (item,) = (
        item for one in node.incidents.values() for item in one.evidence if item.code == "xid:48"
    )
    assert (item.action, item.over) == ("cordon", "")
    closed = [one for at in (300.0, 900.0, 2_000.0) for one in node.evaluate(NOW + at).closed]
    assert [one for one in closed if one.action != "observe"] == []


@pytest.mark.parametrize(
    ("verdict", "reason", "action"),
    [
        ("drain-and-reset", "drain-and-reset", "cordon"),
        ("gpu-reset", "reset", "drain"),
        ("node-reboot", "reboot", "drain"),
    ],
)
def test_work_that_a_contained_error_did_not_hit_may_end(
    verdict: str, reason: str, action: str
) -> None:
    """NVIDIA has "Drain and Reset" for it: no new work, and the present work is safe."""
    node = Node()
    recovery = component("gpu-recovery", "GPU-1", Status.FAILED, reason, since=NOW)
    node.health.delta(Delta(components=(recovery,)))
    found = node.evaluate(NOW, xid(94, NOW), replace(xid(154, NOW), details={"verdict": verdict}))
    assert {one.action for one in found.incidents.values()} == {"observe", action}
    assert node.actions == {
        "xid:94": "observe",
        "xid:154": action,
        f"gpu-recovery:{reason}": action,
    }
