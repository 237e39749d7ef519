"""pytest as `make test` starts it (`fork_server.start_program`): the product is imported once."""

import os
import sys
from collections.abc import Sequence

from tests.support.fork_server import Main, Program

PYTEST = Program(f"{__name__}:load", (sys.executable, "-m", "pytest"))
#: Files of tests that import most of what the files of several runs import: 10 s of a processor,
#: where each run imports it.
COLLECTED = (
    "tests/e2e/test_three_replicas.py",
    "tests/agent/test_cli_check.py",
    "tests/agent/test_simulate.py",
    "tests/aggregator/test_controller_state_machine.py",
    "tests/aggregator/test_history.py",
    "tests/aggregator/test_repair_runner.py",
    "tests/kube/test_kube_informer.py",
    "tests/web/test_browser.py",
    "tests/web/test_cli.py",
)


def load() -> Main:
    """Have pytest collect files, as only its own imports rewrite the assertions of its plugins."""
    import pytest

    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]  # the options of one run: a fork has those of its start
    pytest.main(["--collect-only", "-qq", *COLLECTED])  # what it can't import, a run reports
    from hypothesis.internal.charmap import intervals_from_codec

    from tests.support.constants import read_constants

    read_constants()
    # In a new clone each run would try all characters of Unicode, for 1 s of a processor.
    intervals_from_codec("utf-8")

    def run(arguments: Sequence[str]) -> None:
        sys.argv[1:] = arguments
        sys.exit(pytest.main(list(arguments)))

    return run
