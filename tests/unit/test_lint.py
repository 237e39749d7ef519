"""`make lint`: mypy in a new clone begins with its results of another one; scripts are parsed."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import javascript
from tests.support.text_files import text_file

SCRIPT = Path(__file__).parents[1] / "lint.sh"
PROGRAMS = ("ruff", "mypy", "lint-imports", "python")
#: It keeps one result a run, as mypy does, and prints those that it has found.
MYPY = """#!/bin/bash
cat .mypy_cache/results 2>/dev/null || echo nothing
mkdir -p .mypy_cache && echo "of ${PWD##*/}" >> .mypy_cache/results
[ ! -e broken ]
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(MYPY if name == "mypy" else "#!/bin/bash\n")
        (folder / name).chmod(0o755)
    return folder


def lint(programs: Path, tree: str) -> "subprocess.CompletedProcess[str]":
    """The checks in this tree; the output is what the stand-in of mypy has found there."""
    folder = programs.parent / tree
    folder.mkdir(exist_ok=True)
    home = os.environ | {"XDG_CACHE_HOME": str(programs.parent / "cache")}
    command = [str(SCRIPT), str(programs)]
    return subprocess.run(
        command, cwd=folder, env=home, capture_output=True, text=True, check=False
    )


def test_a_new_tree_begins_with_the_results_of_the_last_new_one(programs: Path) -> None:
    assert lint(programs, "one").stdout == "nothing\n"
    assert lint(programs, "two").stdout == "of one\n"
    assert lint(programs, "three").stdout == "of one\nof two\n"
    assert lint(programs, "one").stdout == "of one\n"
    assert lint(programs, "four").stdout == "of one\nof two\nof three\n"


def test_results_of_checks_that_failed_are_not_kept(programs: Path) -> None:
    (programs.parent / "one").mkdir()
    (programs.parent / "one" / "broken").touch()
    assert lint(programs, "one").returncode != 0
    assert lint(programs, "two").stdout == "nothing\n"


def test_kept_results_that_cannot_be_read_are_left_out(programs: Path) -> None:
    kept = programs.parent / "cache" / "sickbay" / "mypy.tar"
    kept.parent.mkdir(parents=True)
    kept.write_text("no archive")
    done = lint(programs, "one")
    assert (done.returncode, done.stdout) == (0, "nothing\n")
    assert lint(programs, "two").stdout == "of one\n"


def test_a_cache_that_cannot_be_written_fails_no_check(programs: Path) -> None:
    (programs.parent / "cache").write_text("a file in place of the folder")
    assert lint(programs, "one").returncode == 0


def test_a_mistake_in_a_script_of_a_page_is_found_before_a_browser_finds_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = [Path(name).name for name in javascript.scripts()]
    assert whole == ["access.js", "live.js", "versions.js"]
    page = text_file(tmp_path / "page.js", "let a = 1;\nlet b = (a;\n")
    assert javascript.main([str(page)]) == 1
    assert f"{page}:2\n" in capfd.readouterr().err
    page.write_text("return 1;\n")
    assert javascript.main([str(page)]) == 1
    page.write_text("let a = 1;\n")
    assert javascript.main([str(page)]) == 0
