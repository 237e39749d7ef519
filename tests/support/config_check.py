"""`sickbay-aggregator config check` in the process of a test: the imports of another take 0.5 s."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from aggregator.daemon_cli.main import main


def config_check(file: Path | str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Its exit code and its output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(["config", "check", str(file), *options])
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess([], ended.value.code, out.getvalue(), err.getvalue())
