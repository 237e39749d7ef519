"""pytest as `make test` starts it (`fork_server.start_program`): the product is imported once."""

import os
import sys
from collections.abc import Sequence

from tests.support.fork_server import Main, Program

PYTEST = Program(f"{__name__}:load", (sys.executable, "-m", "pytest"))
#: A file of tests that imports most of what the first files of all runs import: 2 s of a processor.
COLLECTED = "tests/e2e/test_three_replicas.py"


def load() -> Main:
    """Have pytest collect a file, as only its own imports rewrite the assertions of its plugins."""
    import pytest

    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]  # the options of one run: a fork has those of its start
    pytest.main(["--collect-only", "-qq", COLLECTED])  # what it can't import, a run reports

    def run(arguments: Sequence[str]) -> None:
        sys.argv[1:] = arguments
        sys.exit(pytest.main(list(arguments)))

    return run
