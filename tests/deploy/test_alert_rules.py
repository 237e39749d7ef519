"""The shipped rules for Prometheus: promtool's own check and unit tests of them, that they ask for
metrics that exist with labels that they have, and that each alert has a section with a next step.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aggregator.cli.command_line import parser_for
from tests.controlplane.servers import FRUGAL
from tests.support.yaml_documents import read_yaml
from tests.unit.test_documentation import anchors

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))
UNIT_TESTS = Path(__file__).with_name("alert_rules.test.yaml")
#: Suffixes of the series of one histogram.
_SERIES = re.compile(r"_(bucket|sum|count)$")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="no promtool: tests/setup-debian.sh installs Debian's prometheus",
)


def rules(kind: str) -> list[dict[str, Any]]:
    """The rules of all files: "alert" or "record"."""
    groups = [group for file in FILES for group in read_yaml(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


ALERTS = rules("alert")
each_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])


def documented() -> dict[str, set[str]]:
    """Each metric of docs/reference/metrics.md with its labels."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(sickbay_\w+)` \| \w+ \|([^|]*)\|", page, re.MULTILINE)
    return {
        name: {label.strip(" `") for label in labels.split(",")} - {""} for name, labels in rows
    }


def metrics_in(expression: str) -> set[str]:
    """The metrics of an expression: those of a recorded series' own expression, and no suffix."""
    recorded = {rule["record"]: rule["expr"] for rule in rules("record")}
    for name in re.findall(r"sickbay:[a-z_:0-9]+", expression):
        expression = expression.replace(name, recorded[name])
    return {
        _SERIES.sub("", name) if name.endswith(("_bucket", "_sum")) else name
        for name in re.findall(r"sickbay_\w+", expression)
    }


@needs_promtool
def test_promtool_accepts_every_file() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", *FILES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_unit_tests_of_the_rules_pass() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", UNIT_TESTS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **FRUGAL},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_unit_test() -> None:
    tested = {test["name"] for test in read_yaml(UNIT_TESTS.read_text())["tests"]}
    assert {rule["alert"] for rule in ALERTS} <= tested


@each_alert
def test_an_alert_names_metrics_that_exist_and_a_section_with_the_next_step(
    rule: dict[str, Any],
) -> None:
    known = documented()
    used = metrics_in(rule["expr"])
    assert used
    assert used <= known.keys()
    labels = set().union(*(known[name] for name in used)) | {"instance", "job"}
    assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels
    assert set(re.findall(r"\{(\w+)[=!]", rule["expr"])) <= labels
    assert rule["labels"]["severity"] in {"warning", "critical", "none"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert re.fullmatch(r"Sickbay[A-Z]\w+", rule["alert"])
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(ROOT / page)


@each_alert
def test_an_alert_names_no_command_that_there_is_not(rule: dict[str, Any]) -> None:
    verbs = {"can", "is", "lacks", "sees", "takes", "tries"}  # of sentences about sickbay itself
    text = " ".join(rule["annotations"].values())
    assert (
        set(re.findall(r"\bsickbay (\w+)", text))
        <= verbs | parser_for("sickbay", {}).commands.keys()
    )


def test_the_page_has_no_section_of_an_alert_that_is_gone() -> None:
    page = anchors(ROOT / "docs" / "alert-rules.md") - {"alert-rules-for-prometheus"}
    assert page == {rule["alert"].lower() for rule in ALERTS}


def test_each_recorded_series_is_documented_and_asks_for_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert rules("record")
    for rule in rules("record"):
        assert f"`{rule['record']}`" in page
        assert metrics_in(rule["expr"]) <= documented().keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_documentation_names_the_file(file: Path) -> None:
    assert f"deploy/prometheus/{file.name}" in (ROOT / "docs" / "metrics.md").read_text("utf-8")
