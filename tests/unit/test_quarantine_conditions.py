"""The conditions of a Quarantine, as its spec and the rest of its status call for them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa.lua51 import LuaRuntime

from aggregator.cluster.kubernetes.quarantine_codec import decode_quarantine, encode_status
from aggregator.cluster.port import (
    Action,
    AppliedChanges,
    Blocker,
    EvidenceItem,
    MarksStatus,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.cluster.quarantine_conditions import (
    are_conditions_current,
    with_conditions,
)
from aggregator.quarantine.state.quarantine_view import QuarantineView
from tests.support.field_values import without_operations
from tests.support.yaml_documents import read_yaml

_DOCS = Path(__file__).parents[2] / "docs" / "public-names.md"
_KEY = "resource.customizations.health.sickbay.dev_Quarantine"
_BLOCK = re.search(
    rf"^```yml\n({re.escape(_KEY)}: .*?)^```$",
    _DOCS.read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)
assert _BLOCK is not None
#: The health check that docs/public-names.md has for Argo CD.
SCRIPT = read_yaml(_BLOCK[1])[_KEY]

SPEC = QuarantineSpec(Action.DRAIN, "gpu", "why")
OURS = AppliedChanges(cordoned=True, value="gpu")
NEW = Quarantine("n1", "uid", "1", SPEC, QuarantineStatus(), generation=1)
BLOCKER = Blocker("jobs/rank-0", "the budget of jobs needs it", 5.0)


def status(phase: Phase, **changes: Any) -> QuarantineStatus:
    return replace(QuarantineStatus(phase=phase), **changes)


def written(before: Quarantine, now: QuarantineStatus, at: float) -> Quarantine:
    return replace(before, status=with_conditions(before, now, at))


def shown(quarantine: Quarantine) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in quarantine.status.conditions}


@pytest.mark.parametrize(
    ("now", "tainted", "drained"),
    [
        (status(Phase.ADMITTED), ("False", "Pending"), ("False", "Pending")),
        (status(Phase.INVALID), ("False", "Invalid"), ("False", "Invalid")),
        (status(Phase.CORDONED), ("True", "Marked"), ("False", "Pending")),
        (
            status(Phase.CORDONED, marks=MarksStatus(("taint", "label"), 5.0)),
            ("False", "TaintRemoved"),
            ("False", "Pending"),
        ),
        (
            status(Phase.CORDONED, marks=MarksStatus(("label",), 5.0)),
            ("True", "Marked"),
            ("False", "Pending"),
        ),
        (
            status(Phase.CORDONED, node_absent_since=5.0),
            ("False", "NodeAbsent"),
            ("False", "Pending"),
        ),
        (status(Phase.DRAINING), ("True", "Marked"), ("False", "Draining")),
        (status(Phase.DRAINING, overdue_at=9.0), ("True", "Marked"), ("False", "Overdue")),
        (status(Phase.DRAINED), ("True", "Marked"), ("True", "NoPodsLeft")),
        (status(Phase.DRAINED, pods_remaining=2), ("True", "Marked"), ("True", "PodsReturned")),
        (status(Phase.RELEASING), ("False", "Releasing"), ("False", "Releasing")),
    ],
)
def test_each_phase_says_whether_the_node_is_tainted_and_drained(
    now: QuarantineStatus, tainted: tuple[str, str], drained: tuple[str, str]
) -> None:
    found = shown(written(NEW, now, 7.0))
    assert (found["Tainted"], found["Drained"]) == (tainted, drained)


def test_a_cordon_is_not_drained_and_says_that_none_was_asked_for() -> None:
    cordon = replace(NEW, spec=replace(SPEC, action=Action.CORDON))
    found = written(cordon, status(Phase.CORDONED, applied=OURS), 7.0)
    assert shown(found)["Drained"] == ("False", "NotRequested")
    assert found.status.conditions[0].message == "node n1 is tainted for gpu"


def test_a_condition_keeps_the_time_of_its_last_change_and_tells_the_spec_it_is_about() -> None:
    marked = written(NEW, status(Phase.CORDONED), 7.0)
    draining = written(replace(marked, generation=2), status(Phase.DRAINING), 8.0)
    draining = replace(draining, status=replace(draining.status, pods_remaining=3))
    drained = written(draining, status(Phase.DRAINED), 9.0)
    times = {one.type: one.last_transition_time for one in drained.status.conditions}
    assert times == {"Tainted": 7.0, "Drained": 9.0, "Ready": 9.0, "Reconciling": 9.0}
    assert {one.observed_generation for one in drained.status.conditions} == {2}
    assert drained.status.observed_generation == 2


def test_blocked_held_and_releasing_are_shown_from_their_first_time_on() -> None:
    marked = written(NEW, status(Phase.CORDONED), 7.0)
    assert shown(marked).keys() == {"Ready", "Tainted", "Drained", "Reconciling"}
    blocked = written(marked, status(Phase.DRAINING, blockers=(BLOCKER,)), 8.0)
    assert shown(blocked)["Blocked"] == ("True", "PodsBlocked")
    assert shown(blocked)["Drained"] == ("False", "Blocked")
    assert blocked.status.conditions[2].message == "jobs/rank-0: the budget of jobs needs it"
    drained = written(blocked, status(Phase.DRAINED, release_held="its kubelet is down"), 9.0)
    assert shown(drained)["Blocked"] == ("False", "NoPodBlocked")
    assert shown(drained)["ReleaseHeld"] == ("True", "ChecksHold")
    going = written(drained, status(Phase.RELEASING, released_because="recovered"), 10.0)
    assert shown(going)["Releasing"] == ("True", "CauseOver")
    assert shown(going)["ReleaseHeld"] == ("False", "NotHeld")
    overruled = written(drained, status(Phase.RELEASING, overruled=True), 10.0)
    assert shown(overruled)["Releasing"] == ("True", "Overruled")


@pytest.mark.parametrize(
    ("action", "now", "ready", "kstatus"),
    [
        (Action.DRAIN, status(Phase.ADMITTED), "Pending", "InProgress"),
        (Action.DRAIN, status(Phase.CORDONED), "Pending", "InProgress"),
        (Action.DRAIN, status(Phase.DRAINING), "Draining", "InProgress"),
        (Action.DRAIN, status(Phase.DRAINING, blockers=(BLOCKER,)), "Blocked", "InProgress"),
        (Action.DRAIN, status(Phase.DRAINING, overdue_at=9.0), "Overdue", "Failed"),
        (Action.DRAIN, status(Phase.DRAINED), "NoPodsLeft", "Current"),
        (Action.CORDON, status(Phase.CORDONED), "Marked", "Current"),
        (Action.CORDON, status(Phase.CORDONED, node_absent_since=5.0), "NodeAbsent", "InProgress"),
        (Action.CORDON, status(Phase.RELEASING), "Releasing", "InProgress"),
        (Action.CORDON, status(Phase.INVALID), "Invalid", "Failed"),
    ],
)
def test_gitops_tools_read_how_far_it_is(
    action: Action, now: QuarantineStatus, ready: str, kstatus: str
) -> None:
    before = replace(NEW, spec=replace(SPEC, action=action))
    assert status_by_kstatus(before) == "Current", "without a status kstatus has nothing to read"
    found = written(before, now, 7.0)
    assert shown(found)["Ready"][1] == ready
    assert status_by_kstatus(found) == kstatus
    edited = replace(found, generation=2)
    assert status_by_kstatus(edited) == "InProgress"
    # Argo CD: its own health check, as the docs have it.
    health = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}
    assert health_by_argo_cd(before)[0] == "Progressing"
    told = next(one.message for one in found.status.conditions if one.type == "Ready")
    assert health_by_argo_cd(found) == (health[kstatus], told)
    assert health_by_argo_cd(edited)[0] == ("Degraded" if kstatus == "Failed" else "Progressing")


def health_by_argo_cd(quarantine: Quarantine) -> tuple[str, str]:
    """Status and message by the documented script, in the Lua of Argo CD (5.1).

    https://argo-cd.readthedocs.io/en/stable/operator-manual/health/#custom-health-checks
    """
    status = msgspec.to_builtins(encode_status(quarantine.status))
    found = {key: value for key, value in status.items() if value is not None}
    obj = {"metadata": {"generation": quarantine.generation}, "status": found}
    lua = LuaRuntime()
    lua.globals().obj = lua.table_from(obj, recursive=True)
    health = lua.execute(SCRIPT)
    return health.status, health.message


def status_by_kstatus(quarantine: Quarantine) -> str:
    """The rules of kstatus for kinds that it does not know, which Flux and Helm use.

    https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
    """
    if quarantine.status.observed_generation not in (0, quarantine.generation):
        return "InProgress"
    stands = {one.type: one.status for one in quarantine.status.conditions}
    if stands.get("Reconciling") == "True":
        return "InProgress"
    if stands.get("Stalled") == "True":
        return "Failed"
    return {"True": "Current", "False": "InProgress"}.get(stands.get("Ready", ""), "Current")


def test_conditions_are_old_after_an_edit_of_the_spec_or_a_write_of_an_older_version() -> None:
    marked = written(NEW, status(Phase.CORDONED), 7.0)
    assert are_conditions_current(marked)
    assert not are_conditions_current(replace(marked, generation=2))
    by_older = replace(marked, status=replace(marked.status, phase=Phase.DRAINED))
    assert not are_conditions_current(by_older)
    before_there_were_any = replace(marked, status=status(Phase.CORDONED))
    assert not are_conditions_current(before_there_were_any)


def test_old_conditions_are_written_once_where_the_definition_drops_them() -> None:
    view = QuarantineView(quarantine=replace(NEW, status=status(Phase.DRAINED)))
    assert view.are_conditions_old()
    dropped = replace(NEW, status=status(Phase.DRAINED))  # a write without a change: same version
    view.write(dropped)
    view.conditions_of = dropped.version
    assert not view.are_conditions_old()
    view.write(replace(dropped, version="2"))
    assert view.are_conditions_old(), "the definition may have been upgraded since"


def test_conditions_are_compared_anew_for_each_object() -> None:
    marked = written(NEW, status(Phase.CORDONED), 7.0)
    view = QuarantineView(quarantine=marked)
    for _ in range(2):
        assert not view.are_conditions_old()
    view.write(replace(marked, generation=2))  # another client's edit, and the version is not read
    for _ in range(2):
        assert view.are_conditions_old()
    view.write(marked)
    assert not view.are_conditions_old()


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.DRAINING, Phase.RELEASING])
def test_no_write_is_made_for_conditions_where_another_is_to_come(phase: Phase) -> None:
    assert not QuarantineView(quarantine=replace(NEW, status=status(phase))).are_conditions_old()


def test_a_cluster_that_counts_no_generations_needs_no_conditions() -> None:
    local = replace(NEW, status=status(Phase.DRAINED), generation=0)
    assert not QuarantineView(quarantine=local).are_conditions_old()


def repaired(
    *attempts: RepairAttempt, cleared: bool = False, held: str = "", exhausted: str = ""
) -> tuple[str, str, str] | None:
    """Status, reason and message of the condition, of a drained node with one piece of evidence."""
    sign = "reboot" if cleared else ""
    evidence = (EvidenceItem("xid:79", "GPU-1", "boot", "reboot", "gpu-gone", "i", cleared=sign),)
    drained = replace(NEW, spec=replace(SPEC, evidence=evidence))
    now = status(Phase.DRAINED, repair=RepairStatus(attempts, held=held, exhausted=exhausted))
    found = {one.type: one for one in written(drained, now, 7.0).status.conditions}
    one = found.get("Repaired")
    return (one.status, one.reason, one.message) if one is not None else None


def attempt(repair: str, state: RepairState, message: str = "") -> RepairAttempt:
    return RepairAttempt(f"uid-{repair}", repair, state, message=message)


FAILED = attempt("reboot", RepairState.FAILED, "no proof of it came in its time")
DONE = attempt("reboot", RepairState.SUCCEEDED, "another boot")


def test_a_node_without_a_repair_has_no_condition_about_it() -> None:
    assert repaired() is None
    assert "Repaired" not in shown(written(NEW, status(Phase.DRAINED), 7.0))


@pytest.mark.parametrize("state", [state for state in RepairState if state != "Succeeded"])
def test_an_attempt_without_success_shows_its_state_from_the_first_on(state: RepairState) -> None:
    found = ("False", state.value, "reboot: why")
    assert repaired(attempt("reboot", state, "why")) == found
    assert repaired(FAILED, attempt("replace", state)) == ("False", state.value, "replace")


def test_a_success_counts_until_the_next_attempt_or_what_holds_it() -> None:
    assert repaired(DONE) == ("True", "Succeeded", "reboot: another boot")
    assert repaired(FAILED, DONE) == ("True", "Succeeded", "reboot: another boot")
    assert repaired(DONE, FAILED) == ("False", "Failed", f"reboot: {FAILED.message}")
    assert repaired(DONE, held="pool full") == ("False", "Held", "pool full")
    assert repaired(DONE, held="pool full", cleared=True) == (
        ("True", "Succeeded", "reboot: another boot")
    )


def test_the_end_of_the_ladder_and_a_hold_before_the_first_attempt_are_shown() -> None:
    assert repaired(held="pool full") == ("False", "Held", "pool full")
    assert repaired(FAILED, held="pool full") == ("False", "Held", "pool full")
    assert repaired(exhausted="no repairer") == ("False", "Exhausted", "no repairer")
    assert repaired(DONE, exhausted="a ticket needs a person", cleared=True) == (
        ("False", "Exhausted", "a ticket needs a person")
    )


TEXT = st.text(max_size=2000)
ATTEMPT = st.builds(
    RepairAttempt,
    st.text("abc-123", min_size=1, max_size=9),
    st.sampled_from(("reboot", "ticket")),
    st.sampled_from([one for one in RepairState if one is not RepairState.PENDING]),
    message=TEXT,
)
REPAIR = st.builds(
    RepairStatus, st.lists(ATTEMPT, max_size=3).map(tuple), held=TEXT, exhausted=TEXT
)
STATUS = st.builds(
    QuarantineStatus,
    phase=st.sampled_from(Phase),
    message=TEXT,
    overdue_at=st.sampled_from((0.0, 5.0)),
    node_absent_since=st.sampled_from((0.0, 5.0)),
    released_because=TEXT,
    overruled=st.booleans(),
    release_held=TEXT,
    pods_remaining=st.one_of(st.none(), st.integers(0, 9)),
    blockers=st.lists(st.builds(Blocker, TEXT, TEXT, st.just(5.0)), max_size=5).map(tuple),
    marks=st.sampled_from((MarksStatus(), MarksStatus(("taint",), 5.0))),
    repair=st.one_of(st.just(RepairStatus()), REPAIR),
)


@pytest.mark.slow
@given(steps=st.lists(STATUS, min_size=1, max_size=4), action=st.sampled_from(Action))
def test_any_sequence_of_writes_leaves_conditions_that_the_conventions_allow(
    steps: list[QuarantineStatus], action: Action
) -> None:
    found = replace(NEW, spec=replace(SPEC, action=action))
    for at, step in enumerate(steps, 1):
        found = written(found, replace(step, conditions=found.status.conditions), float(at))
        assert are_conditions_current(found)
        again = written(found, found.status, 99.0)
        assert again.status == found.status, "a write without a change changes no condition"
    types = [one.type for one in found.status.conditions]
    assert len(types) == len(set(types))
    for one in found.status.conditions:
        assert one.status in ("True", "False")
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", one.reason)
        assert len(one.message) <= 1024
        assert 1.0 <= one.last_transition_time <= len(steps)
    body = {"metadata": {"name": "n1", "generation": 1}, "spec": {"reason": "why"}}
    sent = json.dumps(body).encode()[:-1] + b',"status":' + encoded(found.status) + b"}"
    assert decode_quarantine(sent).status == without_operations(found.status)


def encoded(found: QuarantineStatus) -> bytes:
    return msgspec.json.encode(encode_status(found))
