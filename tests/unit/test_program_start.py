"""The start of each program: Ctrl-C during its imports, closed streams, a full disk."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

#: Each program, with a module that its start imports.
PROGRAMS = [
    ("from aggregator.cli.main import main", "aggregator.cli.command_line"),
    ("from aggregator.daemon_cli.entry import main", "aggregator.daemon_cli.main"),
]
#: A person presses Ctrl-C while the module is searched.
INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
{program}
main()
"""


def run(code: str, *words: str, stdout: IO[bytes] | int = subprocess.PIPE) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(("program", "module"), PROGRAMS)
def test_ctrl_c_during_the_imports_ends_a_program_without_a_traceback(
    program: str, module: str
) -> None:
    code = INTERRUPTED.format(program=program, module=module)
    assert run(code, "--version") == (-signal.SIGINT, "")


@pytest.mark.parametrize(("program", "_module"), PROGRAMS)
def test_a_help_that_can_not_be_written_is_one_line(program: str, _module: str) -> None:
    with Path("/dev/full").open("wb") as full:
        code, err = run(f"{program}; main()", "--help", stdout=full)
    assert code == 1
    assert err.count("\n") == 1, err
    assert "the answer can't be written: " in err


@pytest.mark.parametrize(
    ("program", "closed"),
    [
        *((PROGRAMS[0][0], closed) for closed in ("", ">&-", "<&- >&-", ">&- 2>&-")),
        # Both programs begin with `open_streams`, and this one takes 0.7 s of a processor.
        (PROGRAMS[1][0], ">&- 2>&-"),
    ],
)
def test_a_closed_stream_changes_no_exit_code(program: str, closed: str) -> None:
    command = f'exec "$0" -c "{program}; main()" --help {closed}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_letter_that_stdout_lacks_ends_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code = "from sickbay.process import *; open_streams(); print('rules \\xfc \\udcff')"
    assert run(code) == (0, "")


def test_a_file_that_a_program_opens_does_not_take_the_place_of_a_closed_stream() -> None:
    code = "from sickbay.process import *; open_streams(); print(open('/dev/zero').fileno() > 2)"
    command = f'exec "$0" -c "{code}" 0<&- 2>&-'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n"
