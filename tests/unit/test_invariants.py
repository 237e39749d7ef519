"""docs/invariants.md and tests/support/invariants.py agree, and every machine calls the latter."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from tests.support import invariants
from tests.support.invariants import INVARIANTS, Watch

TESTS = Path(__file__).parents[1]
#: The names that run a controller in a world, and those that watch it.
#: The sites of node tests watch their own world, and report what is wrong in `check`.
SITES = {"IdleNodes", "NewNodes"}
RUNS, WATCHES = {"Replica", "Simulation", *SITES}, {"Watch", "Simulation", *SITES}


def test_the_page_names_each_invariant_and_no_other() -> None:
    page = (TESTS.parent / "docs" / "invariants.md").read_text()
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert names == [one.__name__ for one in INVARIANTS]
    assert f"`{invariants.at_most_one_may_act.__name__}`" in page


def _machines() -> list[type[Any]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        if re.search("StateMachine|state_machine", path.read_text()):
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
    found: list[type[Any]] = []
    left: list[type[Any]] = [RuleBasedStateMachine]
    while left:
        below = left.pop().__subclasses__()
        found += below
        left += below
    return [one for one in found if one.__module__.startswith("tests.")]


def _has_a_world(machine: type[Any]) -> bool:
    return any("World" in vars(sys.modules[one.__module__]) for one in machine.__mro__)


def test_every_state_machine_with_a_cluster_calls_the_invariants() -> None:
    machines = [one for one in _machines() if _has_a_world(one)]
    assert len(machines) >= 6
    for made in machines:
        machine = made()
        try:
            assert isinstance(machine.watch, Watch), made
            assert machine.world.watch is machine.watch, made
            machine.watch.wrong.append("an act broke an invariant")
            with pytest.raises(AssertionError, match="an act broke"):
                machine.nothing_is_wrong()
        finally:
            machine.teardown()


def test_every_random_run_of_a_controller_is_watched() -> None:
    """A test with drawn events whose world has no watch would look at its own checks alone."""
    runs: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if "@given(" in text or '"seed"' in text:
            runs |= {f"{path.name}: {test}": names for test, names in _random_tests(text)}
    unwatched = [test for test, names in runs.items() if not names & WATCHES]
    assert len(runs) >= 4
    assert unwatched == []


def _random_tests(text: str) -> Iterator[tuple[str, set[str]]]:
    """Tests with drawn events that run a controller, with all names that they reach in here."""
    tree = ast.parse(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    parts = {one.name: one for one in tree.body if isinstance(one, kinds)}
    for name, part in parts.items():
        drawn = " ".join(ast.unparse(one) for one in part.decorator_list)
        if not name.startswith("test_") or not re.search(r"\bgiven\(|'seed'", drawn):
            continue
        reached, left = set[str](), {name}
        while left:
            at = left.pop()
            found = {one.id for one in ast.walk(parts[at]) if isinstance(one, ast.Name)}
            left |= (found - reached) & parts.keys()
            reached |= found | {at}
        if reached & RUNS - parts.keys():
            yield name, reached
