"""Other Pythons: which are looked for, where, and what make says to one that can't be used."""

import os
from pathlib import Path

import pytest

from tests import pythons
from tests.targets.table import make


def interpreter(path: Path, version: str) -> Path:
    """A program that says it is a Python of this version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def test_supported_versions_are_those_of_the_classifiers() -> None:
    text = '"Programming Language :: Python :: 3",\n"Programming Language :: Python :: 3.12",'
    assert pythons.supported(text) == ["3.12"]
    assert "3.11" in pythons.supported((pythons.ROOT / "pyproject.toml").read_text())


def test_a_python_of_the_path_or_of_pyenv_is_found_if_it_runs(tmp_path: Path) -> None:
    interpreter(tmp_path / "shims" / "python3.13", "").write_text("#!/bin/sh\nexit 127\n")
    chosen = interpreter(tmp_path / "pyenv/versions/3.13.2/bin/python3.13", "3.13")
    environ = {"PATH": str(tmp_path / "shims"), "PYENV_ROOT": str(tmp_path / "pyenv")}
    assert pythons.find("3.13", environ) == chosen
    assert pythons.find("3.12", environ) is None
    first = interpreter(tmp_path / "shims" / "python3.13", "3.13")
    assert pythons.find("3.13", environ) == first


def test_each_other_python_runs_the_command_and_one_failure_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for version in ("3.11", "3.12", "3.13"):
        interpreter(tmp_path / f"python{version}", version)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYENV_ROOT": "/none"}
    assert pythons.main(("echo", "runs"), environ) == 0
    assert capfd.readouterr().out.count("runs PYTHON=") == 2
    assert pythons.main(("false",), environ) == 1
    assert "failed on" in capfd.readouterr().err


def test_a_machine_without_another_python_is_an_error() -> None:
    assert pythons.main(("true",), {"PATH": "/none", "PYENV_ROOT": "/none"}) == 2


@pytest.mark.parametrize("python", ["/nonexistent/python3", "false"])
def test_a_python_that_cannot_be_used_is_refused_before_any_work(python: str) -> None:
    done = make("env", {"PYTHON": python})
    assert done.returncode == 2
    assert f"PYTHON={python}: it can't be run, or is older than Python 3.11" in done.stderr
