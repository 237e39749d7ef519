"""The intent of incidents, the part of it that is written, and incidents restored from it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.health.model import ClearedBy
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.quarantine.decide.intent import (
    MOST_EVIDENCE,
    OURS,
    DesiredState,
    changed_intent,
    describe_override,
    incidents_of,
    wanted_of,
)
from tests.support.present import present
from tests.support.replica import POLICY

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1")
SPEC = QuarantineSpec(
    Action.DRAIN, "gpu", "xid:79", OURS, "inc-1", "boot-1", "h", (ITEM,), Action.DRAIN
)


def evidence(code: str = "xid:79", action: str = "drain", **changes: object) -> Evidence:
    base = Evidence(code, "GPU-1", "boot-1", "gpu-gone", action, code, ClearedBy.REBOOT, since=1.0)
    return replace(base, **changes)  # type: ignore[arg-type]  # a test's words


def incident(*items: Evidence, ident: str = "inc-1", kind: str = "gpu") -> Incident:
    action = max((i.action for i in items), key=("observe", "cordon", "drain").index)
    return Incident(ident, "n1", "boot-1", kind, action, f"{ident} {action}", 1.0, items, 600.0)


def ask(
    *incidents: Incident, overruled: tuple[str, ...] = (), mode: Action = Action.DRAIN
) -> DesiredState | None:
    spoken = frozenset((code, "GPU-1") for code in overruled)
    return wanted_of({one.id: one for one in incidents}, spoken, mode, "h")


def test_what_is_only_watched_asks_for_nothing() -> None:
    assert ask() is None
    assert ask(incident(evidence("xid:31", "observe"))) is None


def test_the_strongest_incident_leads_and_all_evidence_that_acts_is_kept() -> None:
    found = ask(
        incident(evidence("disk-space:bytes", "cordon", cleared_by=None), ident="d", kind="disk"),
        incident(evidence(), evidence("xid:31", "observe"), ident="g"),
    )
    assert found is not None
    assert (found.spec.action, found.spec.kind, found.spec.incident) == (Action.DRAIN, "gpu", "g")
    assert [item.code for item in found.spec.evidence] == ["disk-space:bytes", "xid:79"]


@pytest.mark.parametrize("mode", list(Action))
def test_the_mode_caps_every_action_and_says_what_it_capped(mode: Action) -> None:
    found = present(ask(incident(evidence()), mode=mode))
    assert (found.spec.action, found.uncapped) == (mode, Action.DRAIN)


def asking(spec: QuarantineSpec) -> DesiredState:
    return DesiredState(spec, spec.action, spec.action)


def test_intent_is_written_for_more_evidence_a_sign_or_another_action_alone() -> None:
    assert changed_intent(SPEC, asking(SPEC)) is None
    other = replace(SPEC, reason="other words", policy_hash="x")
    assert changed_intent(SPEC, asking(other)) is None
    weaker = replace(SPEC, action=Action.CORDON, intent_action=Action.CORDON)
    stronger = present(changed_intent(weaker, asking(SPEC)))
    assert stronger.action is Action.DRAIN
    more = changed_intent(SPEC, asking(replace(SPEC, evidence=(replace(ITEM, code="xid:48"),))))
    assert more is not None
    assert [item.code for item in more.evidence] == ["xid:79", "xid:48"]  # no item is dropped
    sign = changed_intent(SPEC, asking(replace(SPEC, evidence=(replace(ITEM, cleared="reboot"),))))
    assert sign is not None
    assert sign.evidence[0].cleared == "reboot"
    level = replace(ITEM, code="disk-space:bytes", cleared_by="")
    spec = replace(SPEC, evidence=(level,))
    assert changed_intent(spec, asking(replace(spec, evidence=()))) is None


def test_evidence_beyond_what_an_object_takes_is_left_out_from_the_end() -> None:
    size = MOST_EVIDENCE // 10
    many = [evidence(component=f"GPU-{n}{'x' * size}") for n in range(30)]
    found = present(ask(incident(*many, evidence("xid:48"))))
    # A little of each is not its component: nine fit, and then one that is small.
    kept = [(item.code, item.component) for item in found.spec.evidence]
    assert kept == [*(one.key for one in many[:9]), ("xid:48", "GPU-1")]
    # Existing evidence is kept, and takes the place of new evidence.
    standing = replace(SPEC, evidence=found.spec.evidence[:9])
    new = present(ask(incident(*many[9:], evidence("xid:48"))))
    more = present(changed_intent(standing, new))
    assert [(item.code, item.component) for item in more.evidence] == kept


@pytest.mark.parametrize(
    ("stands", "capped", "uncapped", "becomes"),
    [
        # A stricter mode after a restart: a decided action stands, and is not carried on.
        (Action.DRAIN, Action.OBSERVE, Action.DRAIN, None),
        (Action.DRAIN, Action.CORDON, Action.DRAIN, None),
        (Action.CORDON, Action.OBSERVE, Action.CORDON, None),
        # ... and is not raised past the mode.
        (Action.CORDON, Action.OBSERVE, Action.DRAIN, None),
        (Action.CORDON, Action.CORDON, Action.DRAIN, None),
        (Action.CORDON, Action.DRAIN, Action.DRAIN, Action.DRAIN),
        # Evidence that asks for less lowers it in any mode.
        (Action.DRAIN, Action.CORDON, Action.CORDON, Action.CORDON),
        (Action.DRAIN, Action.OBSERVE, Action.CORDON, Action.CORDON),
    ],
)
def test_the_mode_raises_no_standing_quarantine_and_lowers_none(
    stands: Action, capped: Action, uncapped: Action, becomes: Action | None
) -> None:
    wish = DesiredState(replace(SPEC, action=capped), uncapped, uncapped)
    changed = changed_intent(replace(SPEC, action=stands, intent_action=stands), wish)
    assert (changed.action if changed is not None else None) is becomes
    assert changed is None or changed.intent_action is becomes


@pytest.mark.parametrize(("decided", "set_to"), [("drain", "cordon"), ("cordon", "drain")])
@pytest.mark.parametrize("uncapped", ["cordon", "drain"])
def test_an_action_that_a_person_set_is_changed_by_no_evidence(
    decided: str, set_to: str, uncapped: str
) -> None:
    spec = replace(SPEC, action=Action(set_to), intent_action=Action(decided))
    more = replace(SPEC, evidence=(replace(ITEM, code="xid:48"),))
    changed = present(changed_intent(spec, DesiredState(more, Action(uncapped), Action(uncapped))))
    assert (changed.action, changed.intent_action) == (spec.action, spec.intent_action)
    assert [item.code for item in changed.evidence] == ["xid:79", "xid:48"]
    assert set_to in describe_override(changed)
    assert describe_override(replace(spec, action=Action(decided))) == ""


codes = st.sampled_from(["xid:79", "xid:48", "disk-space:bytes"])
items = st.builds(
    lambda code, of, over: evidence(
        code,
        component=of,
        cleared_by=None if ":bytes" in code else ClearedBy.REBOOT,
        over=over,
    ),
    codes,
    st.sampled_from(["GPU-1", "GPU-2"]),
    st.sampled_from(["", "reboot"]),
)


@given(st.lists(items, min_size=1, max_size=5, unique_by=lambda item: item.key))
def test_what_is_durable_brings_an_incident_back(some: list[Evidence]) -> None:
    before = incident(*some)
    asked = present(ask(before))
    quarantine = Quarantine("n1", "q", "1", asked.spec, QuarantineStatus())
    (after,) = incidents_of(quarantine, POLICY, 77.0).values()
    assert (after.id, after.kind, after.action) == (before.id, before.kind, before.action)
    assert {(i.key, i.cleared_by) for i in after.evidence} == {
        (i.key, i.cleared_by) for i in before.evidence
    }
    for item in after.evidence:
        known = next(i for i in before.evidence if i.key == item.key)
        assert item.over == (known.over if known.cleared_by is not None else "")
    assert after.since == 77.0
    assert after.recovering_since is None  # healthyFor begins again
