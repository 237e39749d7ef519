"""Each check that holds the release of a recovered node, by itself."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    Node,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.health.model import CheckOff, Component, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.rules import LONGEST_REPEAT, Policy
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import OperatorRequests
from aggregator.quarantine.decide.release_checks import (
    RELEASE_HISTORY,
    memory_change,
    release_hold,
    remember,
)
from tests.support.replica import hello, shipped_policy

HOUR, DAY = 3600.0, 86_400.0
BEGAN = 1e9
ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1")
SPEC = QuarantineSpec(Action.DRAIN, "disk", "why", OURS, evidence=(ITEM,))
NODE = Node("n1", "uid", "1", True, (), {}, {}, "boot-2")
POLICY = shipped_policy()
INVENTORY = CheckOff("gpu-inventory", 60.0, "")


def quarantine(spec: QuarantineSpec = SPEC, *, admitted: float = BEGAN) -> Quarantine:
    status = QuarantineStatus(admitted_at=admitted)
    return replace(Quarantine("n1", "q", "1", spec, status), created_at=BEGAN)


def health(*components: Component, checks: tuple[CheckOff, ...] = ()) -> NodeHealth:
    found = NodeHealth(replace(hello("n1"), boot_id="boot-2", checks=checks))
    found.snapshot(Snapshot(components, ()))
    return found


def part(check: str, status: Status, name: str = "GPU-1", message: str = "bad") -> Component:
    return Component(check, name, status, "why", message, 0.0)


def ruled(name: str = "gpu-gone", **changes: Any) -> Policy:
    rules = tuple(replace(rule, **changes) if rule.name == name else rule for rule in POLICY.rules)
    return replace(POLICY, rules=rules)


def hold(
    of: Quarantine | None = None,
    *,
    node: Node = NODE,
    found: NodeHealth | None = None,
    policy: Policy | None = None,
    requests: OperatorRequests | None = None,
    whole: bool = True,
) -> str:
    """The hold on a disk's quarantine of a node whose GPUs are whole, except as said."""
    default = health(part("gpu-inventory", Status.OK))
    return release_hold(
        of or quarantine(),
        node=node,
        health=(found or default) if whole else None,
        policy=policy or ruled(repeat_within=0.0),
        requests=requests or OperatorRequests(),
    )


# -- people and replicas -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        (OperatorRequests(), ""),
        (OperatorRequests(pin_reason="x", force_reason="y"), ""),
        (
            OperatorRequests(pinned=True),
            "pinned by a person (no reason given), by sickbay.dev/pin",
        ),
        (
            OperatorRequests(pinned=True, pin_reason="RMA", force=Action.CORDON),
            "pinned by a person (RMA), by sickbay.dev/pin",
        ),
        (
            OperatorRequests(force=Action.CORDON, force_reason="noisy"),
            "a person wants it in quarantine: noisy",
        ),
    ],
)
def test_a_persons_wish_holds_also_a_node_that_was_made_anew(
    requests: OperatorRequests, reason: str
) -> None:
    assert hold(requests=requests) == hold(requests=requests, whole=False) == reason


def test_a_rule_that_wants_a_person_holds_by_any_of_its_evidence() -> None:
    other = replace(ITEM, rule="no-such-rule")
    both = quarantine(replace(SPEC, evidence=(other, ITEM)))
    for whole in (True, False):
        assert hold(both, policy=ruled(release="manual", repeat_within=0.0), whole=whole) == (
            "by rule gpu-gone a person alone releases it, when they have looked"
        )
    alone = quarantine(replace(SPEC, evidence=(other,)))
    assert hold(alone, policy=ruled(release="manual")) == ""


# -- repeats -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "held"),
    [
        (-301.0, ""),
        (-300.0, "0 hours"),
        (0.0, "0 hours"),
        (5 * HOUR, "5 hours"),
        (47 * HOUR, "47 hours"),
        (48 * HOUR, "2 days"),
        (72 * HOUR, "3 days"),
        (72 * HOUR + 1, ""),
    ],
)
def test_a_fault_that_comes_again_within_the_rules_time_waits_for_a_person(
    after: float, held: str
) -> None:
    memory = {RELEASE_HISTORY: json.dumps([["xid:79", "GPU-1", BEGAN - after]])}
    node, policy = replace(NODE, annotations=memory), ruled(repeat_within=72 * HOUR)
    expected = held and f"xid:79 on GPU-1 came again {held} after a release: a person decides"
    assert hold(node=node, policy=policy) == expected
    # Without a time of admission the object's creation counts.
    assert hold(quarantine(admitted=0.0), node=node, policy=policy) == expected
    assert hold(node=node, policy=policy, whole=False) == ""
    assert hold(node=node, policy=ruled(repeat_within=0.0)) == ""


def test_the_admission_and_not_the_creation_is_when_the_fault_came() -> None:
    memory = {RELEASE_HISTORY: json.dumps([["xid:79", "GPU-1", BEGAN]])}
    later = quarantine(admitted=BEGAN + 10 * DAY)
    node, policy = replace(NODE, annotations=memory), ruled(repeat_within=DAY)
    assert hold(later, node=node, policy=policy) == ""
    assert hold(node=node, policy=policy) != ""


@pytest.mark.parametrize(
    ("item", "held"),
    [
        (ITEM, True),
        (replace(ITEM, rule="no-such-rule"), False),
        (replace(ITEM, component="GPU-2"), False),
        (replace(ITEM, code="xid:48"), False),
        (replace(ITEM, cleared_by=""), False),
    ],
)
def test_a_repeat_is_of_the_same_fault_and_component_and_all_evidence_is_compared(
    item: EvidenceItem, *, held: bool
) -> None:
    memory = {RELEASE_HISTORY: json.dumps([["xid:79", "GPU-1", BEGAN]])}
    spec = replace(SPEC, evidence=(replace(ITEM, code="first"), item))
    found = hold(
        quarantine(spec), node=replace(NODE, annotations=memory), policy=ruled(repeat_within=DAY)
    )
    assert bool(found) == held


def test_a_fault_of_the_whole_node_is_named_without_a_component() -> None:
    memory = {RELEASE_HISTORY: json.dumps([["xid:79", "", BEGAN]])}
    found = hold(
        quarantine(replace(SPEC, evidence=(replace(ITEM, component=""),))),
        node=replace(NODE, annotations=memory),
        policy=ruled(repeat_within=DAY),
    )
    assert found == "xid:79 came again 0 hours after a release: a person decides"


# -- boots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kubelet", "item", "held"),
    [
        ("boot-1", ITEM, True),
        ("boot-1", replace(ITEM, cleared_by=""), False),
        ("boot-1", replace(ITEM, boot_id="boot-0"), False),
        ("boot-2", replace(ITEM, boot_id="boot-2"), False),
        ("", replace(ITEM, boot_id=""), False),
    ],
)
def test_a_kubelet_that_is_still_in_the_faults_boot_holds_the_release(
    kubelet: str, item: EvidenceItem, *, held: bool
) -> None:
    spec = replace(SPEC, evidence=(replace(ITEM, boot_id="other"), item))
    found = hold(quarantine(spec), node=replace(NODE, boot_id=kubelet))
    assert found == ("the kubelet reports that it is still in the boot of xid:79" if held else "")


# -- GPUs ----------------------------------------------------------------------------------------

GPU = quarantine(replace(SPEC, kind="gpu", evidence=()))


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("check", ["gpu-inventory", "gpu-recovery", "gpu-nvlink"])
def test_each_check_of_the_gpus_has_results_that_hold(check: str, status: Status) -> None:
    settled = {
        "gpu-inventory": (Status.OK, Status.DEGRADED),
        "gpu-recovery": (Status.OK,),
        "gpu-nvlink": tuple(Status),
    }[check]
    found = hold(GPU, found=health(part(check, Status.OK, "GPU-0"), part(check, status)))
    assert found == ("" if status in settled else f"{check} GPU-1 is {status.name.lower()}: bad")


def test_what_a_check_says_is_its_message_or_else_its_reason() -> None:
    whole = part("gpu-inventory", Status.FAILED, "", "")
    assert hold(GPU, found=health(whole)) == "gpu-inventory is failed: why"


@pytest.mark.parametrize(
    ("checks", "held"),
    [
        ((INVENTORY,), True),
        ((replace(INVENTORY, off_because="no GPU"),), False),
        ((replace(INVENTORY, name="gpu-recovery"),), False),
        ((), False),
    ],
)
def test_only_an_inventory_that_runs_has_to_look_first(
    checks: tuple[CheckOff, ...], *, held: bool
) -> None:
    found = hold(GPU, found=health(checks=checks))
    assert found == ("gpu-inventory has not run yet" if held else "")


def test_devices_are_compared_in_order_of_their_names() -> None:
    devices = {"c": ("8", "6"), "b": ("8", "7"), "a": ("8", "8")}
    assert hold(GPU, node=replace(NODE, devices=devices)) == (
        "allocatable b is 7 of 8: its device plugin is not done"
    )
    assert hold(GPU, node=replace(NODE, devices={"a": ("8", "8")})) == ""
    assert hold(GPU, node=replace(NODE, devices=devices), whole=False) == ""


@pytest.mark.parametrize(
    ("kind", "rules", "about"),
    [
        ("gpu", (), True),
        ("disk", (), False),
        ("disk", ("gpu-gone",), True),
        ("disk", ("no-such-rule",), False),
        ("disk", ("disk-readonly", "gpu-gone"), True),
        ("disk", ("disk-readonly",), False),
    ],
)
def test_the_gpus_are_looked_at_where_the_kind_or_a_rule_is_about_them(
    kind: str, rules: tuple[str, ...], *, about: bool
) -> None:
    evidence = tuple(replace(ITEM, rule=rule) for rule in rules)
    spec = replace(SPEC, kind=kind, evidence=evidence)
    found = hold(quarantine(spec), node=replace(NODE, devices={"gpu": ("8", "7")}))
    assert bool(found) == about


# -- the memory ----------------------------------------------------------------------------------


def rows(text: str) -> list[tuple[str, str, int]]:
    return [(code, component, at) for code, component, at in json.loads(text)]


def remembering(*found: list[Any]) -> Node:
    return replace(NODE, annotations={RELEASE_HISTORY: json.dumps(list(found))})


@pytest.mark.parametrize(
    ("at", "kept"),
    [
        (1e9 - LONGEST_REPEAT, True),
        (1e9 - LONGEST_REPEAT - 1, False),
        (1e9 + 400, True),
        (1e9 + 401, False),
    ],
)
def test_a_release_is_remembered_while_it_may_count_by_any_clock(at: float, *, kept: bool) -> None:
    text = remember(remembering(["a", "b", at]), (), earliest=1e9, latest=1e9 + 100)
    assert rows(text) == ([("a", "b", round(at))] if kept else [])


def test_a_release_is_remembered_at_its_latest_time_and_replaces_the_one_before() -> None:
    text = remember(
        remembering(["xid:79", "GPU-1", 5], ["xid:48", "GPU-1", 90]),
        [ITEM],
        earliest=50.0,
        latest=100.0,
    )
    assert rows(text) == [("xid:48", "GPU-1", 90), ("xid:79", "GPU-1", 100)]


def test_the_latest_are_remembered_as_many_as_an_annotation_takes() -> None:
    many = remembering(*([f"c{n}", "", 100 - n] for n in range(70)))
    kept = rows(remember(many, (), earliest=100.0, latest=100.0))
    assert [code for code, _, _ in kept] == [f"c{n}" for n in reversed(range(64))]
    large = remembering(*([f"c{n}", "x" * 10_000, n] for n in range(5)))
    text = remember(large, (), earliest=100.0, latest=100.0)
    assert [code for code, _, _ in rows(text)] == ["c2", "c3", "c4"]


@pytest.mark.parametrize("at", ["Infinity", "NaN", "-Infinity"])
def test_a_time_that_is_no_moment_is_not_remembered(at: str) -> None:
    node = replace(NODE, annotations={RELEASE_HISTORY: f'[["a", "b", {at}], ["c", "d", 7]]'})
    assert rows(remember(node, (), earliest=7.0, latest=7.0)) == [("c", "d", 7)]


@pytest.mark.parametrize("memory", ["[]", '[["a", "", 5]]'])
def test_a_release_without_a_memory_removes_the_annotation(memory: str) -> None:
    written = memory if memory != "[]" else None
    assert memory_change(memory) == {RELEASE_HISTORY: written}
