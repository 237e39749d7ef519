"""Each alert, hold and common cause leads to a section of the documentation that exists."""

import ast
import re
from pathlib import Path

import pytest

from aggregator import advice, documentation
from aggregator.events import EventKind
from tests.unit.test_documentation import anchors

ROOT = Path(__file__).parents[2]


def exists(path: str) -> bool:
    page, _, anchor = path.partition("#")
    return (ROOT / page).is_file() and (not anchor or anchor in anchors(ROOT / page))


@pytest.mark.parametrize("kind", list(EventKind), ids=str)
def test_each_alert_has_a_section(kind: EventKind) -> None:
    assert exists(documentation.of_alert(kind.value))


@pytest.mark.parametrize("limit", sorted(documentation.HOLDS))
def test_each_hold_has_a_section(limit: str) -> None:
    assert "#" in documentation.of_hold(limit)
    assert exists(documentation.of_hold(limit))


def test_the_test_alert_and_each_common_cause_have_a_section() -> None:
    assert exists(documentation.of_alert("sickbay.test"))
    for scope in advice._CAUSES:
        assert exists(documentation.of_cause(scope))


def held_names() -> set[str]:
    """The first argument of each `Held(...)` that is a literal."""
    found = set()
    sources = (file.read_text("utf-8") for file in (ROOT / "aggregator").rglob("*.py"))
    # To parse all takes seconds.
    for source in (one for one in sources if "Held(" in one):
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Held"
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value
            ):
                found.add(str(node.args[0].value))
    return found


@pytest.mark.slow
def test_each_hold_of_the_code_is_known() -> None:
    held = held_names()
    assert len(held) > 10
    assert held - documentation.HOLDS == set()
    assert advice.HOLDS.keys() - documentation.HOLDS == set()


def test_no_section_of_the_pages_is_left_over() -> None:
    kinds = re.findall(r"^## (.+)$", (ROOT / "docs/alert-kinds.md").read_text(), re.MULTILINE)
    assert kinds == [kind for kind in kinds if kind in {one.value for one in EventKind}]
    holds = re.findall(r"^## (.+)$", (ROOT / "docs/holds.md").read_text(), re.MULTILINE)
    assert set(holds) - {"No hold, and no quarantine"} == documentation.HOLDS


def test_an_alert_about_a_hold_leads_to_the_hold() -> None:
    held = EventKind.HELD.value
    assert documentation.of_alert(held, "stop") == "docs/holds.md#stop"
    assert documentation.of_alert(held, "limits.of-tomorrow").endswith("#quarantineheld")
    cause = EventKind.COMMON_CAUSE.value
    assert documentation.of_alert(cause, "limits.domain_percent").endswith("#fleetcommon_cause")


def test_a_hold_of_another_version_leads_to_the_page() -> None:
    assert documentation.of_hold("limits.of-tomorrow") == "docs/holds.md"


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("", "docs/holds.md#stop"),
        ("https://docs.test/0.1.0", "https://docs.test/0.1.0/docs/holds.md#stop"),
        ("https://docs.test/0.1.0/", "https://docs.test/0.1.0/docs/holds.md#stop"),
    ],
)
def test_the_path_follows_the_address(base: str, expected: str) -> None:
    assert documentation.address(base, "docs/holds.md#stop") == expected


_REFERENCE = re.compile(r"docs/[a-z0-9/-]+\.md(?:#[A-Za-z0-9_-]+)?")


def test_each_page_that_a_program_names_exists() -> None:
    named = {
        found
        for folder in ("aggregator", "nodeagent", "deploy", "proto", "release")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".html", ".js", ".yaml", ".toml", ".proto", ".service")
        for found in _REFERENCE.findall(file.read_text("utf-8"))
    }
    assert len(named) > 50
    assert sorted(path for path in named if not exists(path)) == []
