"""The part of pytest's run: examples that are the same each time, and a loop of our own.

Tests are collected once. Then each trial is a fork that runs some of them.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase

from tests.support.examples import EXAMPLES, change_settings

#: Examples of each property, and steps of each example of a state machine.
STEPS = 30


#: Its plug-ins are imported before it runs, which it warns of.
FLAGS = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


class Collected:
    """Collects the tests, and hands them to ``then`` instead of running them."""

    def __init__(self, then: Callable[[Sequence[pytest.Item]], None]) -> None:
        self._then = then

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            make_repeatable(item)
        self._then(session.items)
        return True


class Repeatable:
    """Makes the properties repeatable, and leaves the run to pytest."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._tests = {test: number for number, test in enumerate(tests)}
        self.failed: str | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._tests),
            key=lambda item: self._tests[item.nodeid],
        )
        for item in items:
            make_repeatable(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def make_repeatable(item: pytest.Item) -> None:
    """Few examples, the same each time, none kept, and no search for a smaller one."""
    change_settings(item, _repeatable)


def _repeatable(known: hypothesis.settings) -> hypothesis.settings:
    return hypothesis.settings(
        known,
        max_examples=min(known.max_examples, EXAMPLES),
        stateful_step_count=min(known.stateful_step_count, STEPS),
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


class Hung(KeyboardInterrupt):
    """A test goes on for longer than it may. asyncio lets no other exception out of a callback."""


def run_test(
    item: pytest.Item,
    next_item: pytest.Item | None,
    limit: float,
    on_hang: Callable[[], None] | None = None,
) -> bool:
    """Whether it passed, skipped tests included.

    After ``limit`` seconds ``on_hang`` is called in the middle of the test; without it, and where
    it returns, Hung is raised there, and again for as long as the test takes no notice.
    """

    def hung(_number: int, _frame: FrameType | None) -> None:
        if on_hang is not None:
            on_hang()
        raise Hung

    signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, limit, limit)
    try:
        reports = runtestprotocol(item, log=False, nextitem=next_item)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return not any(report.failed for report in reports)


def own_folder(item: pytest.Item, folder: Path) -> None:
    """Temporary paths of the tests are below this folder."""
    factory: Any = item.config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = folder
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
