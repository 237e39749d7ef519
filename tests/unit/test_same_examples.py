"""The examples of a property do not depend on the modules that other tests have loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROPERTY = """
from hypothesis import given, strategies
@given(strategies.lists(strategies.text()))
def test_it(words): print(words)
"""


def test_a_property_has_the_same_examples_whatever_else_is_loaded(tmp_path: Path) -> None:
    alone, beside = tmp_path / "test_alone.py", tmp_path / "test_beside.py"
    alone.write_text(PROPERTY)
    beside.write_text(f"import aggregator.policy.rules, nodeagent.model\n{PROPERTY}")
    assert examples_of(alone) == examples_of(beside)


def examples_of(file: Path) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", f"{file}::test_it"]
    done = subprocess.run(
        [*command, f"--rootdir={file.parent}", "-p", "tests.conftest"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    examples = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(examples) > 20, done.stdout
    return examples
