"""The search for garbage that holds itself waits for a quiet second."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.runtime import gc_tuning
from aggregator.runtime.gc_tuning import QUIET, TOO_MANY, WORTH_IT


class Told:
    """Says what has come to stay, second by second; remembers after which it was searched."""

    def __init__(self, *counts: int, searches: int = 0, thorough: int = 0) -> None:
        self.counts = list(counts)
        self.searches = searches
        self.thorough = thorough
        self.at = -1
        self.searched: list[tuple[int, int]] = []

    async def second(self, _: float) -> None:
        self.at += 1
        if self.at == len(self.counts):
            raise EOFError

    def get_count(self) -> tuple[int, int, int]:
        return self.counts[self.at], self.searches, self.thorough

    def collect(self, generation: int) -> int:
        self.searched.append((self.at, generation))
        return 0


async def searched(told: Told) -> list[tuple[int, int]]:
    with pytest.raises(EOFError):
        await gc_tuning.collect_when_idle(told, sleep=told.second)
    return told.searched


async def test_a_storm_is_left_in_peace_and_the_second_after_it_is_used() -> None:
    storm = [20_000, 40_000, 60_000]
    assert await searched(Told(*storm, storm[-1] + QUIET, 0, 0)) == [(3, 0)]


async def test_where_little_came_there_is_no_search() -> None:
    assert await searched(Told(0, *[WORTH_IT - 1] * 5)) == []


async def test_the_older_are_searched_now_and_then() -> None:
    assert await searched(Told(*[WORTH_IT] * 2, searches=20)) == [(1, 0)]
    assert await searched(Told(*[WORTH_IT] * 2, searches=21)) == [(1, 1)]
    assert await searched(Told(*[WORTH_IT] * 2, searches=21, thorough=50)) == [(1, 1)]


async def test_the_oldest_are_searched_in_a_quiet_second_and_are_left_to_no_storm() -> None:
    """Objects left unsearched stay due, and are searched when a storm has left very much."""
    due = Told(*[WORTH_IT] * 2, thorough=51)
    assert await searched(due) == [(1, 2)]


def test_no_search_begins_by_itself_before_there_is_very_much() -> None:
    before = gc.get_threshold()
    try:
        gc_tuning.raise_thresholds()
        assert gc.get_threshold()[0] == TOO_MANY
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)


#: A command of the aggregator as it is installed, in a process that notes each collection.
NOTED = """
import gc, sys
begun = []
gc.callbacks.append(lambda phase, info: begun.append(phase))
from aggregator.daemon_cli.entry import main
try:
    main(["--version"])
finally:
    print(len(begun), gc.get_freeze_count(), gc.isenabled(), file=sys.stderr)
"""


def test_a_start_collects_no_garbage_and_what_it_has_imported_is_in_no_later_collection() -> None:
    process = subprocess.run(
        [sys.executable, "-c", NOTED], capture_output=True, text=True, check=True, timeout=300
    )
    collections, frozen, enabled = process.stderr.split()
    # The few modules that are imported before make one or two.
    assert int(collections) <= 10
    assert int(frozen) > 50_000
    assert enabled == "True"


def test_a_gateway_imports_nothing_that_a_controller_alone_needs() -> None:
    """Each agent that comes before the end of the imports waits for a further attempt."""
    code = "import sys, aggregator.daemon_cli.main, aggregator.app; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    imported = set(process.stdout.split())
    assert imported.isdisjoint(
        {
            "sqlalchemy",
            "aggregator.cli",
            "aggregator.composition.core",
            "aggregator.web.api",
        }
    )
    assert "aggregator.relay.gateway" in imported


#: A command of `sickbay`, in a process that notes each collection from then on.
COMMAND_NOTED = """
import atexit, gc, sys
from aggregator.cli.main import main
begun = []
gc.callbacks.append(lambda phase, info: begun.append(phase))
atexit.register(lambda: print(len(begun), gc.get_freeze_count(), gc.isenabled(), file=sys.stderr))
main()
"""


def test_a_command_collects_seldom_and_visits_nothing_at_its_exit(tmp_path: Path) -> None:
    file = tmp_path / "config"
    cluster = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}]}
    context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": ""}}]}
    file.write_text(json.dumps(cluster | context | {"users": [], "current-context": "x"}))
    line = [sys.executable, "-c", COMMAND_NOTED, "quarantines", "--kubeconfig", str(file)]
    process = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    *said, noted = process.stderr.splitlines()
    assert "the API server at 127.0.0.1" in said[0]
    collections, frozen, enabled = noted.split()
    assert int(collections) <= 10
    assert int(frozen) > 30_000
    assert enabled == "True", "a command that follows events goes on for hours"
