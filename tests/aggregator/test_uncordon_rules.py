"""The meaning of an uncordon, and when the node is cordoned again: the rules, pure."""

from dataclasses import replace

import pytest

from aggregator.cluster.port import (
    Action,
    AppliedChanges,
    Node,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Taint,
)
from aggregator.cluster.words import KUBERNETES
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.uncordon import (
    MOST_RECORDONS,
    QUIET,
    UNCORDONED_BY,
    OnUncordon,
    Uncordoned,
    UncordonRules,
    after_uncordon,
    has_given_up,
    is_release,
    recordon_due,
    whose_uncordon,
)

AT = 1_000_000.0
WHEN = "1970-01-12T13:46:40Z"
DAY_LATER = "1970-01-13T13:46:40Z"
HOUR_LATER = "1970-01-12T14:46:40Z"
UNKNOWN_AUTHOR = "(the cluster does not report by whom)"
RELEASE = "To release it: sickbay release n1, or kubectl delete quarantine n1"


def uncordoned_node(*taints: Taint, labels: dict[str, str] | None = None, **user: str) -> Node:
    annotations = {UNCORDONED_BY: user["by"]} if "by" in user else {}
    return Node("n1", "uid-1", "7", False, taints, labels or {}, annotations)


NODE = uncordoned_node()


def quarantine(*, requester: str = OURS, **status: object) -> Quarantine:
    known = QuarantineStatus(node_uid="uid-1", applied=AppliedChanges(cordoned=True, value="gpu"))
    known = replace(known, **status)  # type: ignore[arg-type]  # a test's words
    return Quarantine("n1", "q", "1", QuarantineSpec(Action.DRAIN, "gpu", "x", requester), known)


def decide_on(
    known: Quarantine,
    whose: Uncordoned = Uncordoned.UNKNOWN,
    rules: UncordonRules | None = None,
    node: Node = NODE,
) -> QuarantineStatus:
    return after_uncordon(known, node, whose, rules or UncordonRules(), AT, KUBERNETES)


@pytest.mark.parametrize(
    ("recordons", "since", "due_after"),
    [
        (0, 5.0, 5.0),  # never before: now
        (1, 0.0, 10.0),
        (1, 5.0, 10.0),
        (2, 5.0, 40.0),
        (3, 5.0, 160.0),
        (5, 5.0, 2560.0),
        (6, 5.0, QUIET),
        (6, QUIET - 1, QUIET),
        (6, QUIET, QUIET),
        (3, QUIET, QUIET),  # so long ago that the count begins anew: now
        (3, -1.0, -1.0),  # the clock was set back: now
    ],
)
def test_each_further_uncordon_waits_longer_for_its_cordon(
    recordons: int, since: float, due_after: float
) -> None:
    status = QuarantineStatus(recordons=recordons, uncordoned_at=AT)
    assert recordon_due(status, AT + since) == AT + due_after
    assert has_given_up(status) == (recordons == MOST_RECORDONS + 1)


@pytest.mark.parametrize(
    ("recordons", "ago", "count"),
    [
        (0, AT, 1),
        (1, 0.0, 2),
        (1, 5.0, 2),
        (4, QUIET - 1, 5),
        (5, 5.0, 6),
        (6, 5.0, 6),
        (4, QUIET, 1),
        (4, -1.0, 1),
    ],
)
def test_uncordons_are_counted_while_less_than_a_day_lies_between_them(
    recordons: int, ago: float, count: int
) -> None:
    status = decide_on(quarantine(recordons=recordons, uncordoned_at=AT - ago))
    assert (status.recordons, status.uncordoned_at) == (count, AT)


@pytest.mark.parametrize(
    ("action", "trusts", "whose", "recordons", "held"),
    [
        (OnUncordon.CONFIRM, False, Uncordoned.UNKNOWN, 0, True),
        (OnUncordon.CONFIRM, False, Uncordoned.PERSON, 0, True),
        (
            OnUncordon.CONFIRM,
            False,
            Uncordoned.AUTOMATION,
            0,
            True,
        ),  # any client may have written that
        (OnUncordon.CONFIRM, False, Uncordoned.NODE, 0, True),
        (OnUncordon.CONFIRM, True, Uncordoned.UNKNOWN, 0, True),
        (OnUncordon.CONFIRM, True, Uncordoned.AUTOMATION, 0, False),
        (OnUncordon.CONFIRM, True, Uncordoned.NODE, 0, False),
        (OnUncordon.CONFIRM, False, Uncordoned.FOREIGN, 0, False),
        (OnUncordon.RECORDON, False, Uncordoned.UNKNOWN, 0, False),
        (OnUncordon.RELEASE, False, Uncordoned.UNKNOWN, 0, False),
        (OnUncordon.CONFIRM, False, Uncordoned.UNKNOWN, MOST_RECORDONS - 1, True),
        (OnUncordon.CONFIRM, False, Uncordoned.UNKNOWN, MOST_RECORDONS, False),
    ],
)
def test_evictions_are_held_where_a_person_may_have_meant_the_uncordon(
    action: OnUncordon, whose: Uncordoned, recordons: int, *, trusts: bool, held: bool
) -> None:
    rules = UncordonRules(action, hold_evictions=3600.0, trust_uncordoned_by=trusts)
    node = uncordoned_node(by="somebody")
    known = quarantine(recordons=recordons, uncordoned_at=AT - 9, evictions_held_until=77.0)
    status = decide_on(known, whose, rules, node)
    assert status.evictions_held_until == (AT + 3600 if held else 77.0)
    assert (f"The drain waits until {HOUR_LATER}" in status.uncordoned) == held


def test_the_cordon_that_is_set_again_is_remembered_as_ours_until_it_is_given_up() -> None:
    foreign = AppliedChanges(cordoned=False, value="gpu")
    again = decide_on(quarantine(applied=foreign), Uncordoned.FOREIGN)
    assert again.applied == replace(foreign, cordoned=True)
    fifth = quarantine(applied=foreign, recordons=MOST_RECORDONS - 1, uncordoned_at=AT - 1)
    assert decide_on(fifth).applied == replace(foreign, cordoned=True)
    last = decide_on(quarantine(applied=foreign, recordons=MOST_RECORDONS, uncordoned_at=AT - 1))
    assert last.applied == foreign
    other_node = decide_on(quarantine(applied=foreign, node_uid="uid-0"))
    assert other_node.applied == foreign, (
        "what was done to another Node of that name stays as it was"
    )


@pytest.mark.parametrize(
    ("user", "trusts", "author"),
    [
        ("", True, UNKNOWN_AUTHOR),
        ("oidc:mary", True, "by oidc:mary"),
        ("oidc:mary", False, UNKNOWN_AUTHOR),
        ("system:serviceaccount:a:b", True, "by system:serviceaccount:a:b"),
        ("system:node:n1", True, "by system:node:n1"),
        ("  two \n words ", True, "by two words"),
        ("x" * 300, True, f"by {'x' * 100},"),
    ],
)
def test_the_author_is_named_where_the_admission_policy_vouches_for_it(
    user: str, author: str, *, trusts: bool
) -> None:
    node = uncordoned_node(by=user) if user else NODE
    whose = whose_uncordon(node, quarantine())
    rules = UncordonRules(trust_uncordoned_by=trusts)
    assert decide_on(quarantine(), whose, rules, node).uncordoned.startswith(
        f"uncordoned at {WHEN} {author}"
    )


@pytest.mark.parametrize(
    ("node", "author"),
    [
        (
            replace(NODE, annotations={"kured.dev/kured-reboot-in-progress": ""}),
            "(the cluster does not report by whom; kured has left its marks on the node)",
        ),
        (
            uncordoned_node(labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"}),
            (
                "(the cluster does not report by whom; its GPU driver is being upgraded "
                "(label nvidia.com/gpu-driver-upgrade-state=drain-required))"
            ),
        ),
    ],
)
def test_a_tool_is_named_by_the_marks_that_it_has_left(node: Node, author: str) -> None:
    assert decide_on(quarantine(), node=node).uncordoned.startswith(
        f"uncordoned at {WHEN} {author}, and cordoned again (1 of 5 within a day)"
    )


def test_an_uncordon_is_described_with_what_was_done_and_what_to_do() -> None:
    begin = f"uncordoned at {WHEN} {UNKNOWN_AUTHOR}"
    again = f"{begin}, and cordoned again (1 of 5 within a day)"
    silent = UncordonRules(OnUncordon.RECORDON)
    assert decide_on(quarantine(), rules=silent).uncordoned == f"{again}. {RELEASE}"
    assert decide_on(quarantine()).uncordoned == (
        f"{again}. {RELEASE}. The drain waits until {HOUR_LATER}"
    )
    assert decide_on(quarantine(), Uncordoned.FOREIGN).uncordoned == (
        f"{again}, by sickbay: it was somebody else's before"
    )
    assert decide_on(quarantine(requester=FORCED)).uncordoned == (
        f"{again}: sickbay.dev/force is set on the node. To release it: sickbay release n1"
    )
    held_once = quarantine(evictions_held_until=AT)
    assert decide_on(held_once, rules=silent).uncordoned == f"{again}. {RELEASE}"
    given_up = quarantine(recordons=MOST_RECORDONS, uncordoned_at=AT - 1)
    assert decide_on(given_up).uncordoned == (
        f"{begin}, 6 times within a day. It is not cordoned again before {DAY_LATER}; the taint "
        "still keeps new pods away. Find the tool or person that does it"
    )


@pytest.mark.parametrize(
    ("user", "whose"),
    [
        ("", Uncordoned.UNKNOWN),
        ("oidc:mary", Uncordoned.PERSON),
        ("system:node:n1", Uncordoned.NODE),
        ("system:serviceaccount:kube-system:kured", Uncordoned.AUTOMATION),
        ("eks:node-manager", Uncordoned.AUTOMATION),
        ("aksService", Uncordoned.AUTOMATION),
    ],
)
def test_whose_an_uncordon_is_goes_by_the_user_that_the_node_names(
    user: str, whose: Uncordoned
) -> None:
    node = uncordoned_node(by=user) if user else NODE
    assert whose_uncordon(node, quarantine()) is whose
    assert whose_uncordon(replace(node, unschedulable=True), quarantine()) is Uncordoned.NO
    foreign = quarantine(applied=AppliedChanges(cordoned=False, value="gpu"))
    assert whose_uncordon(node, foreign) is Uncordoned.FOREIGN
    assert whose_uncordon(node, quarantine(applied=None)) is whose


#: The authors of an uncordon of our cordon, and the rules by which it is a release.
RELEASES = {
    (OnUncordon.RELEASE, False): set(Uncordoned) - {Uncordoned.NO, Uncordoned.FOREIGN},
    (OnUncordon.RELEASE, True): {Uncordoned.PERSON, Uncordoned.AUTOMATION, Uncordoned.UNKNOWN},
    (OnUncordon.CONFIRM, False): set(),
    (OnUncordon.CONFIRM, True): {Uncordoned.PERSON},
    (OnUncordon.RECORDON, False): set(),
    (OnUncordon.RECORDON, True): set(),
}


@pytest.mark.parametrize(("action", "trusts"), RELEASES)
def test_an_uncordon_is_a_release_by_author_and_configuration(
    action: OnUncordon, *, trusts: bool
) -> None:
    rules = UncordonRules(action, trust_uncordoned_by=trusts)
    found = {whose for whose in Uncordoned if is_release(whose, quarantine(), rules)}
    assert found == RELEASES[action, trusts]
    for whose in Uncordoned:
        assert is_release(whose, quarantine(requester="alice"), rules) is False
        assert isinstance(is_release(whose, quarantine(), rules), bool)
