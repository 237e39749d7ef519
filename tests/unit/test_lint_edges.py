"""When one rule always decides in place of another, and the words about likely slips."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.policy.lint import Checks, Reasons, unfamiliar, warnings
from aggregator.policy.rules import Policy, Rule
from tests.support.replica import POLICY

CHECKS: Checks = {
    "disk": Reasons(("full", "slow")),
    "memory": Reasons(()),
    "heat": Reasons((), ("hot",)),
    "any": Reasons(None),
    "peers": Reasons(("lost",)),
    "link": Reasons(("down",), ("flapping",)),
}


def rule(name: str, **changes: Any) -> Rule:
    made: dict[str, Any] = {"kind": "disk", "action": "cordon", "why": "w", "check": "disk"}
    return Rule(name=name, **{**made, **changes})


def faults(name: str, *codes: str, **changes: Any) -> Rule:
    return rule(name, check="", faults=codes, kind="gpu", **changes)


def policy(*rules: Rule) -> Policy:
    return Policy(rules, POLICY.catalogue, "h")


def said(site: tuple[str, ...], *rules: Rule, keys: str = "") -> list[str]:
    """The warnings about the rules of these names, each with ``keys`` in the site's file."""
    entries = ", ".join(f"{{name: {name}{keys}}}" for name in site)
    text = f"rules: [{entries}]\n"
    found = warnings(policy(*rules), text, "s.yaml", CHECKS)
    return [f"{one.key}: {one.text}" for one in found]


def shadowed(narrow: Rule, wide: Rule, *, first: bool = False) -> bool:
    """Whether ``narrow`` never decides beside ``wide``, which stands ``first`` or is stronger."""
    narrow, wide = replace(narrow, name="narrow"), replace(wide, name="wide")
    rules = (wide, narrow) if first else (narrow, wide)
    return any("meets all that it meets" in text for text in said(("narrow",), *rules))


WIDE = rule("wide", action="drain")


@pytest.mark.parametrize(
    ("narrow", "wide", "decides"),
    [
        ({}, {}, False),
        ({"reasons": ("full",)}, {}, False),
        ({}, {"reasons": ("full",)}, True),
        ({"reasons": ("full",)}, {"reasons": ("full", "slow")}, False),
        ({"reasons": ("full", "slow")}, {"reasons": ("full",)}, True),
        ({"components": ("/a",)}, {"components": ("/a", "/b")}, False),
        ({"components": ("/a", "/b")}, {"components": ("/b",)}, True),
        ({"hold": 10.0}, {"hold": 10.0}, False),
        ({"hold": 10.0}, {"hold": 11.0}, True),
        ({"hold": 11.0}, {"hold": 10.0}, False),
        ({"confirmed_by": "link"}, {}, False),
        ({}, {"confirmed_by": "link"}, True),
        ({"confirmed_by": "link"}, {"confirmed_by": "link"}, False),
        ({"flaps": 3, "within": 60.0}, {"flaps": 3, "within": 60.0}, False),
        ({"flaps": 3, "within": 60.0}, {"flaps": 4, "within": 60.0}, True),
        ({"flaps": 3, "within": 60.0}, {"flaps": 2, "within": 90.0}, False),
        ({"flaps": 3, "within": 60.0}, {"flaps": 3, "within": 59.0}, True),
        ({"flaps": 3, "apart": 5.0}, {"flaps": 3, "apart": 6.0}, False),
        ({"flaps": 3}, {}, True),
        ({}, {"flaps": 3}, True),
        ({"check": "link"}, {}, True),
        ({"action": "drain"}, {}, True),
        ({"action": "observe", "hold": 5.0}, {"hold": 60.0}, False),
    ],
)
def test_a_check_rule_decides_unless_a_stronger_one_matches_whenever_it_does(
    narrow: dict[str, Any], wide: dict[str, Any], *, decides: bool
) -> None:
    assert shadowed(rule("n", **narrow), replace(WIDE, **wide)) != decides


@pytest.mark.parametrize(
    ("narrow", "wide", "decides"),
    [
        ({}, {}, False),
        ({"min_count": 2}, {}, False),
        ({}, {"min_count": 2}, True),
        ({"min_count": 3}, {"min_count": 3}, False),
        ({"min_jobs": 3}, {"min_count": 3}, False),
        ({"min_jobs": 3}, {"min_count": 4}, True),
        ({"min_jobs": 3}, {"min_jobs": 3}, False),
        ({"min_jobs": 3}, {"min_jobs": 2}, False),
        ({"min_jobs": 2}, {"min_jobs": 3}, True),
        ({"min_jobs": 3, "apart": 60.0}, {"min_jobs": 3, "apart": 90.0}, True),
        ({"min_jobs": 3, "within": 60.0}, {"min_jobs": 3, "within": 50.0}, True),
        ({"min_jobs": 3, "within": 60.0}, {"min_jobs": 3, "within": 70.0}, False),
        ({"details": {"a": ("x",)}}, {}, False),
        ({}, {"details": {"a": ("x",)}}, True),
        ({"details": {"a": ("x",)}}, {"details": {"a": ("x", "y")}}, False),
        ({"details": {"a": ("x", "y")}}, {"details": {"a": ("x",)}}, True),
        ({"details": {"b": ("x",)}}, {"details": {"a": ("x",)}}, True),
        ({"faults": ("xid:79", "xid:48")}, {}, True),
        ({}, {"faults": ("xid:79", "xid:48")}, False),
        ({}, {"faults": ("xid:7?",)}, False),
        ({"faults": ("xid:*",)}, {"faults": ("xid:7*",)}, True),
    ],
)
def test_a_fault_rule_decides_unless_a_stronger_one_matches_whenever_it_does(
    narrow: dict[str, Any], wide: dict[str, Any], *, decides: bool
) -> None:
    strong = faults("wide", "xid:79", action="drain")
    found = shadowed(replace(faults("n", "xid:79"), **narrow), replace(strong, **wide))
    assert found != decides


def test_of_equally_strong_rules_the_first_decides() -> None:
    assert shadowed(rule("n"), rule("w"), first=True)
    assert not shadowed(rule("n"), rule("w"))
    assert not shadowed(rule("n"), rule("w", action="observe"), first=True)


def test_the_words_tell_which_rule_decides_and_what_to_change() -> None:
    narrow, wide = rule("narrow", hold=5.0), rule("wide", action="drain")
    assert said(("narrow",), narrow, wide) == [
        (
            "rules[0]: never decides: 'wide' meets all that it meets, and is stronger; "
            "to lower its action, change 'wide' itself"
        )
    ]
    assert said(("narrow",), replace(wide, action="cordon"), narrow) == [
        (
            "rules[0]: never decides: 'wide' meets all that it meets, and comes before it; "
            "for it to decide, narrow 'wide' itself"
        )
    ]
    spared = replace(narrow, action="observe")
    later = replace(wide, hold=35.0)
    assert said(("narrow",), spared, later) == [
        (
            "rules[0]: decides for 30 s alone: 'wide' meets all that it meets, and is "
            "stronger; to lower its action, change 'wide' itself"
        )
    ]
    assert said(("wide",), narrow, wide) == [
        "rules[0]: shadows the shipped rule 'narrow': it meets all that the shipped rule meets"
    ]
    assert said((), narrow, wide) == []


# -- slips ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "keys", "text"),
    [
        ({}, "", ""),
        (
            {"check": "dsk"},
            ", check: dsk",
            (
                "check: no check of ours is 'dsk' (did you mean 'disk'?); with that slip it never "
                "matches"
            ),
        ),
        (
            {"check": "zzz"},
            ", check: zzz",
            "check: no check of ours is 'zzz'; right if it is a check of the site's own",
        ),
        (
            {"check": "memory"},
            "",
            "check: check memory never reports failed, at most degraded; no rule can match it",
        ),
        (
            {"check": "memory", "reasons": ("big",)},
            "",
            "reasons: check memory never fails with reason 'big'; it never fails",
        ),
        ({"check": "any", "reasons": ("big",)}, "", ""),
        (
            {"reasons": ("ful", "slow")},
            "",
            (
                "reasons: check disk never fails with reason 'ful' (did you mean "
                "'full'?); expected some of full, slow"
            ),
        ),
        ({"check": "peers", "action": "observe"}, "", ""),
        (
            {"check": "peers", "action": "cordon"},
            "",
            (
                "action: acts on every node that can't reach a peer: one dead node means a cordon "
                "of all that probe it, and no common cause holds them; expected check: "
                "triangulation"
            ),
        ),
        (
            {"healthy_for": 0.0},
            ", healthyFor: 0s",
            (
                "healthyFor: the node is released at the first good report, and a check that comes "
                'and goes is well for a moment, too; expected a time such as "10m"'
            ),
        ),
        ({"healthy_for": 0.0}, "", ""),
        ({"healthy_for": 1.0}, ", healthyFor: 1s", ""),
        ({"healthy_for": 0.0, "action": "observe"}, ", healthyFor: 0s", ""),
        ({"healthy_for": 0.0, "release": "manual"}, ", healthyFor: 0s", ""),
        (
            {},
            ", components: []",
            (
                "components: an empty list leaves nothing out: any component counts; expected the "
                "components meant"
            ),
        ),
        (
            {},
            ", reasons: []",
            (
                "reasons: an empty list leaves nothing out: any reason counts; expected "
                "the reasons meant"
            ),
        ),
        (
            {"confirmed_by": "memory"},
            "",
            "confirmedBy: check memory never reports failed, at most degraded; it confirms nothing",
        ),
    ],
)
def test_a_likely_slip_is_named_with_its_key(changes: dict[str, Any], keys: str, text: str) -> None:
    found = said(("a",), rule("a", **changes), keys=keys)
    assert found == ([f"rules[0].{text}"] if text else [])


def test_only_the_rules_of_the_site_are_complained_of() -> None:
    shipped = rule("shipped", check="dsk")
    assert said(("a",), shipped, rule("a")) == []
    assert len(said(("shipped", "a"), shipped, rule("a"))) == 1


@pytest.mark.parametrize(
    ("check", "reason", "text"),
    [
        ("disk", "full", ""),
        ("disk", "", ""),
        ("any", "thing", ""),
        ("own", "thing", ""),
        (
            "disk",
            "fulll",
            (
                "check disk never fails with reason 'fulll' (did you mean 'full'?); "
                "expected some of full, slow"
            ),
        ),
        ("memory", "x", "check memory never fails with reason 'x'; it never fails"),
        (
            "owm",
            "",
            "no check of ours is 'owm' (did you mean 'own'?); with that slip it never matches",
        ),
        ("zzz", "", "no check of ours is 'zzz'; right if it is a check of the site's own"),
    ],
)
def test_a_question_for_an_unknown_check_or_reason_is_answered_with_a_guess(
    check: str, reason: str, text: str
) -> None:
    assert unfamiliar(policy(rule("a", check="own")), check, reason, CHECKS) == text
