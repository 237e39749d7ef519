"""The process that talks to the driver: what it imports, and the lines that it writes."""

import importlib.util
import json
import string
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.sources import nvml_process
from tests.support.present import present

FOLDER = Path(nvml_process.__file__).parent
#: Each brings a quarter of a megabyte to a megabyte, on every node.
HEAVY = {"re", "json", "collections", "collections.abc", "typing", "threading", "functools"}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def worker() -> ModuleType:
    """The worker's code, not run as a program."""
    spec = present(importlib.util.spec_from_file_location("worker_code", FOLDER / "nvml_worker.py"))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported(*arguments: str) -> tuple[set[str], str]:
    """The modules that a Python like the worker's imports, and its output."""
    line = [sys.executable, "-I", "-S", "-X", "importtime", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    names = {
        text.rpartition("|")[2].strip()
        for text in done.stderr.splitlines()
        if text.startswith("import time:")
    }
    return names, done.stdout


def test_the_worker_imports_no_module_that_costs_memory() -> None:
    library = "/nowhere/libnvidia-ml.so.1"
    pynvml_folder = str(Path(pynvml.__file__).parent)
    names, answer = imported(str(FOLDER / "nvml_worker.py"), pynvml_folder, library)
    assert "pynvml" in names
    assert not names & HEAVY
    told = json.loads(answer)
    assert told["failed"] == 12
    assert library in told["message"]


def test_its_sampler_imports_none_either() -> None:
    names, _ = imported("-c", f"import sys; sys.path.append({str(FOLDER)!r}); import nvml_sampler")
    assert "nvml_sampler" in names
    assert not names & HEAVY


@given(value=VALUES)
def test_its_json_says_the_same_as_the_librarys(value: Any) -> None:
    assert json.loads(worker_json(value)) == json.loads(json.dumps(value))
    assert "\n" not in worker_json(value)


worker_json = worker().to_json


@pytest.mark.parametrize("text", ["", 'a "b"', "back\\slash", "line\nbreak", "é", "\x7f", "\ud800"])
def test_unusual_texts_are_escaped(text: str) -> None:
    assert worker_json({text: [text]}) == json.dumps({text: [text]})


@given(words=st.text(alphabet="ABZaz_09"))
def test_names_of_errors_are_made_as_the_string_module_makes_them(words: str) -> None:
    assert worker()._capwords(words, "_") == string.capwords(words, "_")
