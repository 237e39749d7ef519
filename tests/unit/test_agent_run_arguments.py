"""`sickbay-agent run` is read without argparse, and as argparse reads it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.terminal.arguments import parse
from nodeagent.terminal.run_arguments import BadUsage, parse_run

WORDS = st.sampled_from(
    ["run", "check", "--config", "--config=a", "--config=", "a.toml", "-c", "--", "-", "", "-h=1"]
)


@given(st.lists(WORDS, max_size=4))
def test_what_it_takes_argparse_takes_and_reads_the_same(given: list[str]) -> None:
    options = parse_run(given)
    if options is None:
        return
    try:
        assert vars(parse(given)) == {"version": None, **vars(options)}
    except BadUsage as error:
        raise AssertionError(f"argparse refuses {given}: {error}") from error


def test_the_usual_lines_are_taken() -> None:
    for line in (["run"], ["run", "--config", "a.toml"], ["run", "--config=a.toml"]):
        assert parse_run(line) is not None, line


@pytest.mark.slow
def test_a_running_agent_has_not_imported_argparse() -> None:
    script = (
        "import sys; from nodeagent import python_tls; python_tls.leave_out(); "
        "from nodeagent import agent, cli; assert cli.parse_run(['run']); "
        "print([name for name in ('argparse', 'gettext', 'ssl') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "argparse" not in done.stdout
    assert "gettext" not in done.stdout
