"""The programs that check what is published, from the environment of requirements/packaging.txt."""

import subprocess
from pathlib import Path

import pytest

from release.tree import ROOT

PYTHON = ROOT / "build" / "packaging-env" / "bin" / "python"

_VALIDATE = """
import sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(Path(sys.argv[1]).read_text())
sys.exit(f"{error}" if error else 0)
"""


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """The environment's Python with these arguments. Skips where `make` has not made it."""
    if not PYTHON.exists():
        pytest.skip("no build/packaging-env: make test-packages and make test-images make it")
    return subprocess.run([PYTHON, *arguments], capture_output=True, text=True, check=False)


def validate_bill(path: Path) -> None:
    """Assert that the file is CycloneDX 1.6, by its own schema."""
    done = run("-c", _VALIDATE, path)
    assert done.returncode == 0, done.stderr
