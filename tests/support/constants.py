"""The constants of the product's files, which Hypothesis draws now and then in place of others.

Hypothesis takes them from the modules that are loaded, so that the examples of a test would depend
on the other tests of its process.
"""

from functools import cache
from pathlib import Path
from types import ModuleType

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants, constants_from_module

ROOT = Path(__file__).parents[2]
PRODUCT = ("aggregator", "nodeagent", "proto/sickbay", "release")


def draw_constants_of_the_product() -> None:
    """From now on, the same constants whatever is loaded."""
    providers._get_local_constants = read_constants


@cache
def read_constants() -> Constants:
    """They are read once, in 0.2 s of a processor: before runs are forked, for all of them."""
    found = Constants()
    for file in (file for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py"))):
        module = ModuleType(file.stem)
        module.__file__ = str(file)
        found |= constants_from_module(module)
    # Hypothesis' own empty sets are sorted, so that each process has the same order.
    return providers._local_constants | found
