"""Builds the documentation site as `make docs` does, in a network namespace without a route."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.chart.own_network import SKIPPED

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "docs-env" / "bin" / "python"


def _unusable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def _environment() -> str:
    """Installs what the lock names, which takes seconds; the error, or no text."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "--no-print-directory", "build/docs-env/.synced"]
    done = subprocess.run(make, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def build(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """`python -m release.site` with these arguments, offline where this user may."""
    if error := _environment():
        _unusable(f"the environment of the site can't be made: {error}")
    command = [str(PYTHON), "-m", "release.site", *arguments]
    done = _run([sys.executable, "-m", "tests.chart.own_network", *command])
    if done.returncode == SKIPPED:
        _unusable(done.stderr)
    return done


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
