"""A check is one file, or rows of the kernel lines' table; with a test and a row in the docs."""

import importlib
import re
from pathlib import Path

import pytest

from nodeagent.checks import kernel_lines, registry
from nodeagent.checks.base import CheckSpec

TESTS = Path(__file__).parents[1] / "agent"
TEXTS = {path.name: path.read_text() for path in TESTS.glob("test_*.py")}
#: The imports of the tests, each file's in one text.
IMPORTS = {
    name: " ".join(
        re.findall(
            r"^from nodeagent\.checks(?:\.\w+)? import (?:\([^)]*\)|.*)$", text, re.MULTILINE
        )
    )
    for name, text in TEXTS.items()
}

each_check = pytest.mark.parametrize("spec", registry.SPECS, ids=lambda spec: str(spec.name))


@each_check
def test_its_file_is_named_after_it(spec: CheckSpec) -> None:
    if kernel_lines.SPECS.get(spec.name) is spec:
        return
    module = importlib.import_module(f"nodeagent.checks.{spec.name.replace('-', '_')}")
    assert module.SPEC is spec


@each_check
def test_a_test_is_about_it(spec: CheckSpec) -> None:
    word = re.compile(rf"\b{spec.name.replace('-', '_')}\b")
    if spec.name in kernel_lines.SPECS:
        assert any(f'"{spec.name}"' in text and "line_check" in text for text in TEXTS.values())
    else:
        assert [name for name, text in IMPORTS.items() if word.search(text)]


@each_check
def test_it_says_what_it_sees_from_where_at_what_cost_and_what_it_cannot_see(
    spec: CheckSpec,
) -> None:
    assert all((spec.sees, spec.source, spec.cost, spec.blind_to))


@each_check
def test_it_has_a_rhythm_and_a_limit_unless_it_reads_the_log(spec: CheckSpec) -> None:
    assert 0 < spec.deadline <= spec.interval or spec.interval == spec.deadline == 0
