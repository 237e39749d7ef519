"""Folders for the examples of a property test."""

import itertools
from pathlib import Path

import pytest

_NUMBERS = itertools.count()


def fresh_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A new folder. pytest's numbered ones cost a look through all that are there, each time."""
    return factory.mktemp(f"{name}-{next(_NUMBERS)}", numbered=False)
