"""A policy file with mistakes: each is named with its line, its key and what was expected."""

import pytest

from aggregator.configfile.yaml_source import ConfigError
from aggregator.policy.defaults import read_policy
from aggregator.policy.rules import REPEAT_WITHIN, Rule
from tests.support.replica import shipped_policy

pytestmark = pytest.mark.slow


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        shipped_policy(text)
    return refused.value.lines()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("mine", ["rules[0]: not a rule; expected a mapping with a name"]),
        ("{kind: gpu}", ["rules[0]: not a rule; expected a mapping with a name"]),
        ("{name: ' '}", ["rules[0].name: ' '; expected a text of one line"]),
        (
            "{name: gpu-person, scope: gpu}",
            ['rules[0].scope: "gpu"; expected kind: gpu and action: drain with it'],
        ),
        ("{name: ''}", ["rules[0].name: ''; expected a text of one line"]),
        ("{name: 7}", ["rules[0].name: 7; expected a text of one line"]),
        (
            "{name: a, check: x, kind: gpu}",
            ["rules[0]: rule 'a' has no action; expected one of observe, cordon, drain"],
        ),
        (
            "{name: a, check: x, action: drain}",
            ["rules[0]: rule 'a' has no kind; expected one of gpu, disk, network, node"],
        ),
        (
            "{name: gpu-gon, action: cordon}",
            ["rules[0]: rule 'gpu-gon' (did you mean 'gpu-gone'?) has no kind; expected one of"],
        ),
        ("{name: a, check: x}", ["rule 'a' has no action", "rule 'a' has no kind"]),
        (
            "{name: gpu-gone, actoin: cordon}",
            ['rules[0].actoin: unknown key; expected "action"? (known here: name, kind'],
        ),
        ("{name: gpu-gone, zzz: 1}", ["rules[0].zzz: unknown key; expected one of name, kind"]),
        ("{name: gpu-gone, faults: xid:79}", ["rules[0].faults: this text; expected a list"]),
        ("{name: gpu-gone, faults: [79]}", ["rules[0].faults[0]: 79; expected text in quotes"]),
        ("{name: disk-full, reasons: {a: b}}", ["rules[0].reasons: a section; expected a list"]),
        (
            "{name: gpu-verdict-reset, details: [verdict]}",
            ["rules[0].details: a list; expected a section"],
        ),
        (
            "{name: gpu-verdict-reset, details: {verdict: reset}}",
            ["rules[0].details.verdict: this text; expected a list"],
        ),
        (
            "{name: gpu-verdict-reset, details: {verdict: [reset], unit: x}}",
            ["rules[0].details.unit: this text; expected a list"],
        ),
        ("{name: disk-full, check: [x]}", ["rules[0].check: a list; expected text in quotes"]),
        ("{name: disk-full, why: 7}", ["rules[0].why: 7; expected text in quotes"]),
        ("{name: gpu-gone, action: reboot}", ['rules[0].action: "reboot"; expected obs']),
        (
            "{name: gpu-gone, reasons: [missing]}",
            ["rules[0].reasons: is about a check, and this rule is about faults"],
        ),
        (
            "{name: disk-full, details: {a: [b]}}",
            ["rules[0].details: is about faults, and this rule is about a check"],
        ),
        (
            "{name: disk-full, confirmedBy: gpu-rows}",
            ["rules[0].confirmedBy: is about faults, and this rule is about a check"],
        ),
        (
            "{name: link-flapping, reasons: [link-down]}",
            ["rules[0].flaps: can't match: a flapping check fails for short times, with any"],
        ),
        ("{name: gpu-gone, check: gpu-rows}", ["expected either faults or classes, or a check"]),
        (
            "{name: gpu-off-bus-confirmed, faults: ['sxid:1:fatel']}",
            ["would act on a code", "rules[0].faults: can't match: 'sxid:1:fatel' is no code"],
        ),
        (
            "{name: memory-errors, faults: ['sxid:0012028:fatal']}",
            ["rules[0].faults: can't match: 'sxid:0012028:fatal' is no code"],
        ),
        ("{name: memory-errors, faults: ['xid:1:fatal']}", ["'xid:1:fatal' is no code"]),
        ("{name: memory-errors, faults: [xid]}", ["can't match: no code is 'xid'"]),
        (
            "{name: memory-errors, faults: [ecc-uncorectable]}",
            ["can't match: no code is of the kind 'ecc-uncorectable' (did you mean 'ecc-uncorr"],
        ),
        ("{name: gpu-gone, faults: ['*']}", ["'*' would act on a code that the catalogue doesn't"]),
        (
            "{name: contained, action: cordon}",
            [],
        ),
        (
            "{name: a, kind: gpu, classes: [ignore, follow-on], action: cordon}",
            ["rules[0]: would act on one job's faults of class follow-on, ignore, which an appl"],
        ),
        (
            "{name: a, kind: gpu, faults: ['xid:162'], action: cordon}",
            ["would act on one job's faults of class no-action"],
        ),
        (
            "{name: application-xid-repeated, minJobs: 2, apart: 1h, within: 1h}",
            ["rules[0].minJobs: can't match: 2 jobs, 3600s apart, don't fit within 3600s"],
        ),
        (
            "{name: application-xid-repeated, minJobs: 2, apart: 3599s, within: 1h}",
            [],
        ),
        ("{name: memory-errors, faults: ['xid:?', 'sxid:12028:unstated', 'xid:[1-3]']}", []),
        ("{name: memory-errors, faults: ['sxid:12028:non-fatal', 'sxid:*', 'x*:7']}", []),
    ],
)
def test_each_mistake_of_a_rule_is_named_with_its_key(entry: str, said: list[str]) -> None:
    text = f"rules:\n  - {entry}\n"
    if not said:
        shipped_policy(text)
        return
    found = problems(text)
    assert len(found) == len(said), found
    for line, expected in zip(found, said, strict=True):
        assert line.startswith("site.yaml:2: ")
        assert expected in line


def test_all_mistakes_of_a_file_are_named_at_once_in_their_order() -> None:
    found = problems(
        "rule: []\n"
        "rules:\n"
        "  - {name: disk-full, for: x}\n"
        "  - mine\n"
        "  - {name: gpu-gone, action: cordon}\n"
        "  - {name: gpu-gone, action: drain}\n"
        "  - {name: link-down, action: reboot, kind: cable}\n"
    )
    assert [line.partition(": ")[0] for line in found] == [
        "site.yaml:1",
        "site.yaml:3",
        "site.yaml:4",
        "site.yaml:6",
        "site.yaml:7",
        "site.yaml:7",
    ]
    assert "rule: unknown key (did you mean 'rules'?); expected only 'rules'" in found[0]
    assert "rule 'gpu-gone' is here twice; expected each name once" in found[3]
    for text in ("rules: {}", "other: []", "rules: x"):
        (line,) = problems(text)
        assert "no list of rules; expected 'rules:' and a list" in line


def test_a_rule_of_a_site_has_what_its_file_says_and_else_what_every_rule_has() -> None:
    policy = shipped_policy(
        "rules:\n"
        "  - name: mine\n"
        "    kind: gpu\n"
        "    action: cordon\n"
        "    faults: ['xid:48']\n"
        "    details: {unit: [a, 7]}\n"
        "    minCount: 2\n"
        "    minJobs: 3\n"
        "    apart: 2m\n"
        "    within: 1h\n"
        "    confirmedBy: gpu-rows\n"
        "    components: [GPU-1]\n"
        "    for: 1m\n"
        "    healthyFor: 3m\n"
        "    release: manual\n"
        "    repeatWithin: 1d\n"
        "  - {name: plain, kind: disk, action: drain, check: disk-space, reasons: [full]}\n"
    )
    assert policy.by_name["mine"] == Rule(
        name="mine",
        kind="gpu",
        action="cordon",
        why="the site's policy",
        faults=("xid:48",),
        details={"unit": ("a", "7")},
        min_count=2,
        min_jobs=3,
        apart=120.0,
        within=3600.0,
        confirmed_by="gpu-rows",
        components=("GPU-1",),
        hold=60.0,
        healthy_for=180.0,
        release="manual",
        repeat_within=86_400.0,
    )
    assert policy.by_name["plain"] == Rule(
        "plain", "disk", "drain", "the site's policy", check="disk-space", reasons=("full",)
    )
    assert policy.by_name["plain"].repeat_within == REPEAT_WITHIN
    shipped = read_policy()
    assert [rule.name for rule in policy.rules] == [
        *(rule.name for rule in shipped.rules),
        "mine",
        "plain",
    ]
    assert policy.hash != shipped.hash
    assert shipped_policy("rules: []").hash == shipped.hash
    assert shipped_policy("rules: [{name: gpu-gone, for: 1s}]").hash != shipped.hash
    changed = shipped_policy("rules: [{name: gpu-gone, action: cordon}]").by_name["gpu-gone"]
    assert (changed.action, changed.classes) == ("cordon", ("fatal-node",))
