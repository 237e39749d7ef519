"""Questions about the rules before they meet a fleet: the real command, the shipped rules."""

import json
from pathlib import Path

import pytest

from aggregator.config.settings import load
from aggregator.daemon_cli.main import main
from aggregator.policy.defaults import read_policy
from aggregator.policy.explain import Question, explain

DOCS = Path(__file__).parents[2] / "docs"
#: A site's file without any change.
SHIPPED = str(Path(__file__).parents[2] / "aggregator/policy/rules.yaml")


def example(page: str) -> str:
    """The page's block of YAML."""
    return (DOCS / page).read_text().partition("```yaml\n")[2].partition("```")[0]


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["policy", *words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.parametrize(
    ("asked", "action", "rule"),
    [
        (Question("xid:79"), "drain", "gpu-gone"),
        (Question("xid:31"), "observe", "application-xid"),
        (Question("xid:31", count=1000), "observe", "application-xid"),
        (Question("xid:109"), "observe", "contained"),
        (Question("xid:109", count=2), "drain", "gpu-disputed-repeated"),
        (Question("xid:154", details={"verdict": "drain-p2p"}), "cordon", "gpu-verdict-drain-p2p"),
        (Question("xid:4711"), "observe", "unknown-code"),
        (Question(check="disk-space", reason="inodes"), "cordon", "disk-full"),
        (Question(check="disk-readonly", component="/data"), "drain", "disk-read-only"),
    ],
)
def test_the_rules_themselves_say_what_would_be_done(
    asked: Question, action: str, rule: str
) -> None:
    answer = explain(read_policy(), asked)
    assert answer.rule is not None
    assert (answer.rule.action, answer.rule.name) == (action, rule)


def test_what_another_rule_wants_besides_is_said() -> None:
    answer = explain(read_policy(), Question("gpu-off-bus"))
    assert [(rule.name, wants) for rule, wants in answer.others] == [
        ("gpu-off-bus-confirmed", "check gpu-inventory has failed too")
    ]
    verdict = explain(read_policy(), Question("xid:154"))
    assert verdict.rule is None
    assert {rule.action for rule, _ in verdict.others} == {"drain", "cordon", "observe"}


def test_a_fault_whose_details_decide_begins_with_the_rules_that_act(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = ask(capsys, "explain", "--fault", "xid:154")
    assert code == 0
    assert "no rule is about it" not in out
    lines = out.splitlines()
    action, first = lines[lines.index(next(line for line in lines if "  action " in line)) :][:2]
    assert action == "  action     by what the line has besides; none for any other"
    assert first.startswith("  either     drain by rule gpu-verdict-reset, if verdict is gpu-reset")


def test_a_code_without_its_check_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, "explain", "--fault", "soft-lockup")
    assert "does not have (did you mean hung-task:soft-lockup?)" in out


def test_a_lockup_that_goes_on_has_a_rule_of_its_own() -> None:
    asked = explain(read_policy(), Question("hung-task:soft-lockup", count=400))
    assert asked.rule is not None
    assert asked.rule.action == "observe"
    assert [(rule.name, rule.action, wants) for rule, wants in asked.others] == [
        ("soft-lockup-lasting", "observe", "it goes on for 8m without a pause of a minute")
    ]


def test_a_detail_that_was_given_is_not_wished_otherwise() -> None:
    answer = explain(read_policy(), Question("xid:154", details={"verdict": "gpu-reset"}))
    assert answer.rule is not None
    assert answer.rule.action == "drain"
    [(peer, wants)] = answer.others
    assert (peer.action, wants) == ("cordon", "nvlink5-peer came with it")


def test_evidence_that_no_rule_names_is_never_acted_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "explain", "--check", "my-own")
    assert code == 0
    assert "none: no rule is about it, so it is shown and never acted on" in out


@pytest.mark.parametrize(
    ("check", "reason", "said"),
    [
        ("disk-spaec", "", "no check of ours is 'disk-spaec' (did you mean 'disk-space'?)"),
        ("my-own", "", "no check of ours is 'my-own'; right if it is a check of the site's own"),
        ("disk-space", "inode", "never fails with reason 'inode' (did you mean 'inodes'?)"),
        ("disk-space", "inodes", ""),
        ("reach", "whatever", ""),
    ],
)
def test_a_slip_in_what_was_asked_is_pointed_out_and_answered_all_the_same(
    capsys: pytest.CaptureFixture[str], check: str, reason: str, said: str
) -> None:
    code, out, err = ask(capsys, "explain", "--check", check, "--reason", reason)
    assert code == 0
    assert out.startswith(check)
    assert (said in err) if said else (err == "")


def test_a_check_that_the_sites_own_rule_names_is_no_slip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{name: mine, kind: node, check: my-own, action: cordon}]\n")
    _, _, err = ask(capsys, "explain", "--policy", str(file), "--check", "my-own")
    assert err == ""
    _, _, err = ask(capsys, "explain", "--policy", str(file), "--check", "my-owm")
    assert "did you mean 'my-own'?" in err


def test_a_node_condition_is_explained_by_the_rule_that_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "rules: [{name: npd, kind: node, condition: KernelDeadlock, reasons: [DockerHung],"
        " for: 5m, action: cordon}]"
    )
    asked = ("explain", "--policy", str(file), "--condition", "KernelDeadlock")
    code, out, err = ask(capsys, *asked, "--reason", "DockerHung")
    assert (code, err) == (0, "")
    assert "node-condition:DockerHung on KernelDeadlock" in out
    assert "cordon once it has been so for 5m, by rule npd" in out
    _, out, _ = ask(capsys, *asked)
    assert "cordon by rule npd, if its reason is DockerHung" in out
    _, out, _ = ask(capsys, "explain", "--condition", "ReadonlyFilesystem")
    assert "read only where a rule names it" in out


def test_a_sites_file_is_explained_with_the_shipped_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "rules:\n"
        "  - {name: gpu-gone, action: cordon}\n"
        "  - {name: mine, kind: node, check: my-own, action: cordon, for: 90s}\n"
    )
    code, out, _ = ask(capsys, "check", str(file))
    assert code == 0
    assert "sound (1 rule added, 1 shipped one changed)" in out
    assert "gpu-gone: drain becomes cordon" in out
    code, out, _ = ask(capsys, "explain", "--policy", str(file), "--fault", "xid:79", "-o", "json")
    assert json.loads(out)["action"] == "cordon"
    changed = tmp_path / "changed.yaml"
    changed.write_text(
        "rules:\n"
        "  - {name: disk-full, action: drain, for: 10m, components: ['/var*'], why: ours}\n"
        "  - {name: gpu-gone, nodes: {matchLabels: {a/b: c}}, elsewhere: observe}\n"
    )
    _, out, _ = ask(capsys, "check", str(changed))
    said = "cordon becomes drain; why; components: any becomes [/var*]; for: 90s becomes 10m"
    assert f"disk-full: {said}\n" in out, "all that is other, in the words of the file"
    assert "gpu-gone: nodes: any becomes a/b=c; elsewhere: none becomes observe\n" in out
    by_hand = tmp_path / "by-hand.yaml"
    by_hand.write_text("rules: [{name: gpu-gone, release: manual}]\n")
    code, out, _ = ask(capsys, "explain", "--policy", str(by_hand), "--fault", "xid:79")
    assert "released   by a person alone, however well it is" in out
    _, out, _ = ask(capsys, "explain", "--fault", "xid:48")
    assert "scope      gpu: only the pods that use the faulty GPU are evicted" in out
    code, out, _ = ask(capsys, "explain", "--fault", "xid:79")
    assert "scope" not in out
    assert "by a person alone where the same came again within 7" in out
    code, out, _ = ask(capsys, "explain", "--policy", str(file), "--check", "my-own")
    assert "cordon once it has been so for 90s, by rule mine" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "--fault", "79"], "'79' is no code; expected one such as xid:79"),
        (["explain", "--fault", "X id"], "'X id' is no code"),
        (["explain"], "one of the arguments --fault --check --condition is required"),
        (["explain", "--fault", "xid:79", "--count", "0"], "expected a whole number of 1 or more"),
        (["explain", "--fault", "xid:31", "--jobs", "99999999999"], "1 or more, 32 at most"),
        (["explain", "--check", "nic-link", "--flaps", "33"], "1 or more, 32 at most"),
        (["explain", "--fault", "xid:79", "--detail", "verdict"], "expected NAME=VALUE"),
        (["explain", "--fault", "xid:149", "--detail", "intr_info=6h"], "is no register; expected"),
        (["explain", "--fault", "xid:149", "--driver", "new"], "'new' is no driver's version"),
        (["explain", "--fault", "xid:149", "--driver", "9" * 5000], "is no driver's version"),
        (["explain", "--fault", "xid:79", "--policy", "/no/such"], "/no/such: can't be read"),
        (["check", "/no/such"], "/no/such: can't be read"),
        (["check", "/dev/null"], "/dev/null: can't be read: it is a device and no regular file"),
        (["explain", "--fault", "xid:79", "--policy", "/dev/null"], "it is a device and no reg"),
        (["replay", "/dev/null"], "it is a device and no regular file"),
        (["replay", SHIPPED, "--config", "/dev/null"], "it is a device and no regular file"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_text_of_a_rule_moves_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    rules = '[{name: gpu-rows, check: "a\\e[2J"}, {name: disk-full, why: "b\\e[31m"}]'
    file.write_text(f"rules: {rules}\n")
    _, checked, warned = ask(capsys, "check", str(file))
    _, explained, _ = ask(capsys, "explain", "--policy", str(file), "--check", "disk-space")
    assert "check: gpu-rows becomes a?[2J" in checked
    assert "b?[31m" in explained
    assert "\x1b" not in checked + warned + explained


def test_rules_that_no_site_may_have_are_refused_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "rules:\n"
        "  - name: eager\n"
        "    kind: gpu\n"
        '    faults: ["xid:4711"]\n'
        "    action: drain\n"
        "  - name: rash\n"
        "    kind: gpu\n"
        "    classes: [application]\n"
        "    action: cordon\n"
    )
    code, _, err = ask(capsys, "check", str(file))
    assert code == 2
    first, second = err.splitlines()
    assert first.startswith(f"{file}:4: ")
    assert "would act on a code that the catalogue doesn't know" in first
    assert second.startswith(f"{file}:6: ")
    assert "which an application can cause" in second


@pytest.mark.parametrize("code", ["xid:109", "xid:79"])
def test_the_documents_example_of_explain_is_what_it_prints(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = ask(capsys, "explain", "--fault", code)
    assert f"```\n{out}```\n" in (DOCS / "policy.md").read_text()


def test_the_documents_examples_are_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(example("policy.md"))
    code, out, _ = ask(capsys, "check", str(policy))
    assert code == 0
    assert "sound (3 rules added, 7 shipped ones changed)" in out
    for name in ("tls.crt", "tls.key", "nodes-ca.crt"):
        (tmp_path / name).touch()
    local = tmp_path / "aggregator.yaml"
    local.write_text(example("local.md"))
    assert load(local).cluster.local.commands.release[0] == "/etc/sickbay/open"
