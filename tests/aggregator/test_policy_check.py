"""Errors and oddities in a site's rules are reported, with file, line and reason."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.configfile.yaml_source import ConfigError
from aggregator.policy import lint
from aggregator.policy.defaults import read_policy, read_with_warnings
from aggregator.policy.lint import Reasons, parse_checks, warnings
from aggregator.policy.load import load_policy
from aggregator.policy.rules import Policy, Rule
from nodeagent.checks import registry, xid_codes
from tests.support.replica import shipped_policy
from tests.support.rewritten_file import Rewritten

SOURCE = Path(__file__).parents[2]
CHECKS = parse_checks((SOURCE / "aggregator/policy/checks.yaml").read_text())
#: The agent's about itself, and the aggregator's; no checks of the registry.
OWN_WORDS = {
    *("kernel-log", "agent-state", "lemon", "fleet-outlier", "node-condition", "triangulation"),
    "active-test",
    "fleet-precursor",
}


def rule(text: str) -> str:
    return f"rules:\n  - {{{text}}}\n"


def test_the_warnings_are_of_the_text_that_was_read_whatever_the_file_has_since(
    tmp_path: Path,
) -> None:
    file = Rewritten(tmp_path / "rules.yaml")
    file.write_text(rule("name: a, kind: disk, check: our-own, action: cordon"))
    file.later = "- no rules\n"
    policy, [problem] = read_with_warnings(file)
    assert (policy.by_name["a"].action, "our-own" in problem.text) == ("cordon", True)


def odd(site: str) -> list[str]:
    policy = shipped_policy(site)
    return [f"{one.line} {one.key}: {one.text}" for one in warnings(policy, site, "s.yaml", CHECKS)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a, kind: gpu, faults: ['xid:4711'], action: drain", "doesn't know"),
        ("name: on, kind: gpu, check: gpu-ecc, action: observe", "name: True; expected a text"),
        (
            'name: "a\\nb", kind: gpu, check: gpu-ecc, action: observe',
            "expected a text of one line",
        ),
        ("name: a, kind: gpu, classes: [unknown], action: cordon", "unknown codes"),
        ("name: a, kind: gpu, classes: [fatal-gpus], action: drain", "did you mean 'fatal-gpu'?"),
        ("name: a, kind: gpu, faults: [XID:79], action: observe", "no code is of the kind 'XID'"),
        ("name: a, kind: gpu, faults: ['xid:79x'], action: observe", "expected one such as xid:79"),
        ("name: a, kind: gpu, faults: ['xid:079'], action: observe", "'xid:079' is no code"),
        ("name: a, kind: gpu, faults: ['sxid:12028'], action: observe", "sxid:12028:fatal"),
        ("name: a, kind: disk, faults: ['disk-io:errors'], action: observe", "disk-io:error"),
        ("name: a, kind: gpu, classes: [application], action: cordon", "expected minJobs of 2"),
        ("name: a, kind: gpu, faults: ['xid:31'], minCount: 15, action: cordon", "minJobs of 2"),
        ("name: a, kind: gpu, faults: ['xid:45'], action: drain", "class follow-on"),
        ("name: a, kind: gpu, faults: ['xid:31'], flaps: 3, action: observe", "is about a check"),
        (
            "name: a, kind: gpu, faults: ['xid:31'], status: degraded, action: observe",
            "is about a check",
        ),
        (
            "name: a, kind: disk, check: disk-space, flaps: 3, status: degraded, action: observe",
            "flaps counts failures",
        ),
        (
            "name: a, kind: disk, check: disk-space, status: unknown, action: cordon",
            '"unknown"; expected failed or degraded',
        ),
        ("name: a, kind: disk, check: disk-space, minJobs: 3, action: observe", "about faults"),
        ("name: a, kind: disk, check: disk-space, minCount: 3, action: observe", "about faults"),
        ("name: a, kind: disk, check: disk-space, lasts: 3m, action: observe", "about faults"),
        (
            "name: a, kind: node, faults: ['hung-task:soft-lockup'], lasts: 9m, action: observe",
            '"9m"; expected at most "8m"',
        ),
        ("name: a, kind: disk, check: disk-space, flaps: 3, for: 1m, action: observe", "can't mat"),
        ("name: a, kind: gpu, action: observe", "either faults or classes, or a check"),
        (
            "name: a, kind: gpu, action: observe, check: disk-space, classes: [nvlink]",
            "either faults or classes, or a check",
        ),
        ("name: a, kind: node, condition: SickbayQuarantined, action: cordon", "sickbay's own"),
        ("name: a, kind: node, condition: 'Kernel Deadlock', action: cordon", "the type of a cond"),
        ("name: a, kind: node, condition: [X], action: cordon", "expected text"),
        (
            "name: a, kind: node, condition: X, check: kubelet, action: cordon",
            "only one of the two",
        ),
        (
            "name: a, kind: node, condition: X, components: [Y], action: cordon",
            "only one of the tw",
        ),
        ("name: a, kind: node, condition: X, flaps: 3, action: cordon", "does not go with a cond"),
        ("name: a, kind: node, condition: X, unhealthy: Unknown, action: cordon", "True or False"),
        ("name: a, kind: node, condition: X, minCount: 3, action: cordon", "is about faults"),
        ("name: a, kind: node, check: node-condition, action: cordon", "condition: TYPE instead"),
        ("name: kubelet-down, unhealthy: 'True'", "expected condition: TYPE"),
        ("name: disk-full, for: 10", "10 is no duration; expected a number with its unit"),
        ("name: disk-full, for: -1s", "is no duration"),
        ("name: disk-full, healthyFor: 4000d", "is too long; expected at most ten years"),
        ("name: application-xid-repeated, apart: 30s", '"30s"; expected at least "1m"'),
        ("name: gpu-gone, release: never", "expected recovered or manual"),
        ("name: gpu-gone, release: manuel", 'did you mean "manual"?'),
        ("name: gpu-gone, repeatWithin: 7", "no duration"),
        (
            "name: gpu-verdict-reset, details: {verdict: []}",
            "rules[0].details.verdict: is empty; expected at least one entry",
        ),
        ("name: memory-errors, details: {unit: [yes]}", "true; expected text in quotes"),
        (f"name: memory-errors, faults: ['xid:{'9' * 5000}']", "is no code; expected one such as"),
    ],
)
def test_what_no_policy_may_ask_for_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shipped_policy(rule(text))
    (line,) = refused.value.lines()
    assert line.startswith("site.yaml:2: ")
    assert said in line


def test_a_condition_has_one_meaning_in_all_rules() -> None:
    text = rule("name: a, kind: node, condition: X, action: cordon")
    text += "  - {name: b, kind: node, condition: X, unhealthy: False, action: observe}"
    with pytest.raises(ConfigError) as refused:
        shipped_policy(text)
    (line,) = refused.value.lines()
    assert line.startswith("site.yaml:3: rules[1].unhealthy: ")
    assert "rule 'a' has \"True\" of the condition X" in line
    with pytest.raises(ConfigError) as refused:
        shipped_policy(text.replace("rules:", "rules:\n  - 7"))
    first, second = refused.value.lines()
    assert first.startswith("site.yaml:2: rules[0]: not a rule; expected")
    assert second.startswith("site.yaml:4: rules[2].unhealthy: ")
    own = "name: slurm-kill-task-failed, condition: SlurmGresCountLow, unhealthy: False"
    with pytest.raises(ConfigError, match="rule 'slurm-gres-count-low' has \"True\" of the cond"):
        shipped_policy(rule(own))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: a, kind: disk, check: disk-spce, action: cordon",
            "2 rules[0].check: no check of ours is 'disk-spce' (did you mean 'disk-space'?)",
        ),
        (
            "name: a, kind: node, check: memory, action: cordon",
            "never reports failed, at most degraded; expected status: degraded",
        ),
        (
            "name: a, kind: gpu, check: gpu-rows, status: degraded, reasons: [hot], action: drain",
            "never fails or is degraded with reason 'hot'",
        ),
        ("name: peer-unreachable, action: drain", "means a drain of all that probe it"),
        (
            "name: a, kind: gpu, faults: [gpu-off-bus], confirmedBy: gpu-inventry, action: cordon",
            "did you mean 'gpu-inventory'?",
        ),
        (
            "name: gpu-verdict-reset, details: {Verdict: [gpu-reset]}",
            "no fault of ours has a detail 'Verdict' (did you mean 'verdict'?)",
        ),
        (
            "name: memory-errors, details: {intr_info: [0x4]}",
            "2 rules[0].details.intr_info: no register is '4'; expected one in quotes, such as",
        ),
        (
            "name: gpu-verdict-reset, details: {verdict: [node-reboot, gpu_reset]}",
            "no verdict is 'gpu_reset' (did you mean 'gpu-reset'?); expected some of none, ",
        ),
        ("name: a, kind: gpu, faults: ['xid:900'], action: observe", "is in no catalogue"),
        (
            (
                "name: a, kind: network, check: triangulation, action: drain, "
                "reasons: [unreachable-silent]"
            ),
            "'unreachable-silent' comes while the agent is silent, and no rule acts on silence",
        ),
        ("name: network-doubtful, action: cordon", "no rule acts on silence"),
        (
            (
                "name: a, kind: gpu, faults: ['xid:74'], with: ['xid:74', 'xid:48'], "
                "without: ['xid:48'], action: drain"
            ),
            "can't match: the other faults are this one, or those of without",
        ),
        (
            "name: a, kind: gpu, faults: ['xid:46'], action: cordon",
            "'gpu-fatal' meets all that it meets, and is stronger; to lower its action, change",
        ),
        (
            "name: a, kind: disk, check: disk-space, components: ['/scratch*'], action: observe",
            "decides for 90 s alone: 'disk-full' meets all that it meets, and is stronger",
        ),
        (
            (
                "name: a, kind: gpu, classes: [contained, nominal, nvlink-ignore, nvlink5, "
                "nvlink5-ignore, nvlink5-follow, off-bus, disputed-gpu, "
                "switch-non-fatal], action: cordon"
            ),
            "2 rules[0]: shadows the shipped rule 'contained'",
        ),
    ],
)
def test_what_can_have_no_effect_is_said_with_its_line(text: str, said: str) -> None:
    (line,) = odd(rule(text))
    assert line.startswith("2 rules[0]")
    assert said in line


@pytest.mark.parametrize(
    "text",
    [
        "name: a, kind: disk, check: disk-space, reasons: [full], for: 10s, action: cordon",
        "name: a, kind: disk, check: disk-space, components: ['/data*'], action: drain",
        "name: gpu-fatal, action: cordon",
        "name: a, kind: network, check: reach, for: 10m, action: cordon",
        "name: a, kind: network, check: nic-link, flaps: 4, within: 30m, action: observe",
        "name: a, kind: network, check: reach, reasons: [whatever], action: cordon",
        "name: a, kind: gpu, faults: ['xid:31'], minJobs: 3, apart: 5m, action: cordon",
        "name: a, kind: gpu, faults: ['xid:47??*'], action: observe",
        "name: disk-full, healthyFor: 0s, release: manual",
        "name: link-flapping, healthyFor: 0s",
        "name: lemon, action: cordon",
        "name: a, kind: network, check: triangulation, reasons: [one-way], action: drain",
        "name: network-doubtful, for: 2m",
        "name: a, kind: gpu, faults: ['xid:74'], with: ['xid:74', 'xid:48'], action: drain",
    ],
)
def test_what_makes_a_difference_is_not_complained_of(text: str) -> None:
    assert odd(rule(text)) == []


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("minCount", ("1", "15"), ("0", "-1", "16", "true", "1.0", "'3'")),
        ("minJobs", ("2", "15"), ("1", "16", "true")),
        ("flaps", ("2", "20"), ("1", "21", "false")),
        ("within", ("1m", "24h"), ("59s", "86401s", "0s")),
        ("repeatWithin", ("0s", "28d"), ("2419201s",)),
    ],
)
def test_numbers_and_times_of_a_rule_are_taken_up_to_their_bounds(
    key: str, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    about = {
        "flaps": "check: nic-link, within: 10m",
        "within": "check: nic-link, flaps: 3",
        "minJobs": "faults: ['xid:31'], apart: 1m, within: 24h",
    }.get(key, "faults: ['xid:79']")

    def policy(value: str) -> Policy:
        return shipped_policy(rule(f"name: a, kind: gpu, {about}, {key}: {value}, action: observe"))

    for value in good:
        policy(value)
    for value in bad:
        with pytest.raises(ConfigError) as refused:
            policy(value)
        assert any(f".{key}: " in line for line in refused.value.lines()), value


def test_a_pattern_is_shadowed_by_a_wider_pattern_and_by_no_list() -> None:
    wide = "{name: wide, kind: gpu, faults: ['xid:9*'], action: observe}"
    narrow = "{name: narrow, kind: gpu, faults: ['xid:95*', 'xid:92'], action: observe}"
    (line,) = odd(f"rules:\n  - {wide}\n  - {narrow}\n")
    assert line.startswith("3 rules[1]: never decides: 'wide' meets all that it meets, and comes")
    listed = wide.replace("'xid:9*'", "'xid:92', 'xid:94', 'xid:95'")
    assert not any("never decides" in one for one in odd(f"rules:\n  - {listed}\n  - {narrow}\n"))


def test_thousands_of_rules_are_compared_with_few_each(monkeypatch: pytest.MonkeyPatch) -> None:
    count, compared = 3_000, 0

    def covers(wide: Rule, narrow: Rule) -> bool:
        nonlocal compared
        compared += 1
        return really(wide, narrow)

    really = lint._covers
    monkeypatch.setattr(lint, "_covers", covers)
    shipped = shipped_policy()
    own = [
        Rule(
            f"r{number}",
            "disk",
            "cordon",
            "ours",
            check="disk-space",
            reasons=(f"reason-{number % 60}",),
            components=(f"/data{number // 60}",),
        )
        for number in range(count)
    ]
    own.append(replace(own[7], name="again"))
    policy = replace(shipped, rules=(*shipped.rules, *own))
    rows = "".join(f"  - {{name: {one.name}}}\n" for one in own)
    found = warnings(policy, f"rules:\n{rows}", "s.yaml", {"disk-space": Reasons(None)})
    (line,) = [one.text for one in found]
    assert line.startswith("never decides: 'r7' meets all that it meets")
    assert compared < 5 * count


def test_no_shipped_rule_is_odd() -> None:
    text = (SOURCE / "aggregator/policy/rules.yaml").read_text()
    catalogue = (SOURCE / "aggregator/policy/catalogue.yaml").read_text()
    policy = load_policy(catalogue, text)
    assert [one.text for one in warnings(policy, text, "rules.yaml", CHECKS)] == []


def test_an_empty_file_of_rules_is_refused_and_is_no_word_for_the_shipped_ones(
    tmp_path: Path,
) -> None:
    """A full disk, or a template, made it so: a site's milder rules must not be forgotten."""
    for text in ("", "\n", "# all of them are gone\n"):
        (tmp_path / "rules.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"rules\.yaml:1: no list of rules"):
            read_policy(tmp_path / "rules.yaml")
    (tmp_path / "rules.yaml").write_text("rules: []\n")
    assert read_policy(tmp_path / "rules.yaml") == read_policy()


def test_the_verdicts_that_rules_can_be_about_are_the_agents_own() -> None:
    own = set(xid_codes._VERDICTS.values())
    assert own == set(xid_codes._VERDICT_NUMBERS.values())
    assert set(lint.VERDICTS) == own | {xid_codes.verdict(99, "")}


def test_the_checks_that_rules_can_be_about_are_the_agents_own() -> None:
    of_components = {
        spec.name for spec in registry.SPECS if not spec.source.startswith("kernel log")
    }
    assert set(CHECKS) == of_components | OWN_WORDS


def test_the_reasons_that_a_check_fails_with_are_known() -> None:
    """Every reason beside Status.FAILED in the check's own source, and none that it never gives."""
    shared = (SOURCE / "nodeagent/checks/disk_common.py").read_text()
    sources = "".join(path.read_text() for path in (SOURCE / "nodeagent/sources").glob("*.py"))
    for name, of_check in CHECKS.items():
        for status in ("failed", "degraded"):
            reasons = getattr(of_check, status)
            if name in OWN_WORDS or reasons is None:
                continue
            text = (SOURCE / f"nodeagent/checks/{name.replace('-', '_')}.py").read_text()
            said = set(re.findall(rf'Status\.{status.upper()}, "([a-z0-9-]+)"', text))
            assert said <= set(reasons), (name, status)
            for reason in reasons:
                assert re.search(rf'["`]{reason}["`]', text + shared + sources), (name, reason)
