"""How many examples of each property a run tests.

`make test` tests the same examples each time, so the thousandth run of many examples finds no more
than the first. It tests a third of what a test declares; `make fuzz` tests all, with new ones.
"""

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

#: `make mutants` finds its mutants with this number of examples.
FEWEST = 25
#: The results of `_third`, by identity: a test of several parameters has its settings once.
_thirds: dict[int, hypothesis.settings] = {}


def draw_a_third(item: pytest.Item) -> None:
    """Test a third of the examples that it declares."""
    change_settings(item, _third)


def change_settings(
    item: pytest.Item, change: Callable[[hypothesis.settings], hypothesis.settings]
) -> None:
    """Change the settings of a property or a state machine. Other tests have none."""
    test = getattr(item, "obj", None)
    known = getattr(test, "_hypothesis_internal_use_settings", None)
    if known is not None:
        function: Any = getattr(test, "__func__", test)
        function._hypothesis_internal_use_settings = change(known)
    owner = getattr(item, "cls", None)
    machine = getattr(owner, "settings", None)
    if isinstance(machine, hypothesis.settings):
        owner.settings = change(machine)  # type: ignore[union-attr]


def _third(known: hypothesis.settings) -> hypothesis.settings:
    if id(known) in _thirds:
        return known
    few = min(known.max_examples, max(FEWEST, known.max_examples // 3))
    third = hypothesis.settings(known, max_examples=few)
    _thirds[id(third)] = third
    return third
