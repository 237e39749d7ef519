"""How many examples of each property a run tests.

`make test` tests the same examples each time, so the thousandth run of many examples finds no more
than the first. It draws as many as `make mutants`, whose score is of these; `make fuzz` draws as
many as a test declares, and new ones.
"""

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

EXAMPLES = 25
#: The results of `_few`, by identity: a test of several parameters has its settings once.
_fewer: dict[int, hypothesis.settings] = {}


def draw_few(item: pytest.Item) -> None:
    """Test `EXAMPLES` of those that it declares."""
    change_settings(item, _few)


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


def _few(known: hypothesis.settings) -> hypothesis.settings:
    if id(known) in _fewer:
        return known
    few = hypothesis.settings(known, max_examples=min(known.max_examples, EXAMPLES))
    _fewer[id(few)] = few
    return few
