"""One mutant against the tests that fit it: in memory alone, no file is touched.

A mutation inside a function replaces the code of that function, in a process that was forked with
all modules imported. One of a class or a module, or of a function that already ran while the tests
were imported, needs them imported anew: in a process that was forked before they were.
"""

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.mutants import children, pytest_plugin, sites
from tests.mutants.packages import ROOT
from tests.mutants.sites import Mutation

#: A test hangs when it takes so many times its usual time, and seconds more.
TIMES, SECONDS = 6.0, 5.0

#: The result of a trial: detected by a test, or not.
Verdict = dict[str, Any]


class Changed(Exception):
    """The new code does not fit into the function that is there."""


def hang_limit(usual: float) -> float:
    return SECONDS + TIMES * usual


def code_of(mutation: Mutation, source: str) -> CodeType:
    """The code of the module with the mutation in it."""
    tree = sites.mutated(source, mutation.number)
    code: CodeType = compile(tree, str(ROOT / mutation.path), "exec", dont_inherit=True)
    return code


class CodeIndex:
    """The functions of the core that are imported, by file, name and line."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        # tests/conftest.py freezes what was collected, and the collector hides what is frozen.
        gc.unfreeze()
        prefix = str(ROOT)
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename.startswith(prefix):
                self._functions.setdefault(_name(one.__code__), []).append(one)

    def install(self, mutation: Mutation, source: str) -> None:
        """Give the function its mutated code. Raises Changed if that can't be."""
        new = code_of(mutation, source)
        found = 0
        for code in _codes(new):
            if code.co_qualname != mutation.function:
                continue
            for function in self._functions.get(_name(code), ()):
                if function.__code__.co_freevars != code.co_freevars:
                    raise Changed
                function.__code__ = code
                found += 1
        if not found:
            raise Changed


def _name(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def warm(
    mutation: Mutation,
    source: str,
    index: CodeIndex,
    tests: Sequence[tuple[pytest.Item, float]],
    folder: Path,
) -> Verdict:
    """Run the tests in their order until one fails. ``tests`` come with their usual seconds."""
    try:
        index.install(mutation, source)
    except Changed:
        return {"cold": True}
    pytest_plugin.own_folder(tests[0][0], folder)
    for at, (item, usual) in enumerate(tests):
        after = tests[at + 1][0] if at + 1 < len(tests) else None
        hung = {"test": item.nodeid, "hung": True}
        say_so = functools.partial(children.finish, hung)
        if not pytest_plugin.run_test(item, after, hang_limit(usual), say_so):
            return {"test": item.nodeid}
    return {"test": None}


def cold(mutation: Mutation, source: str, tests: Sequence[str], folder: Path) -> Verdict:
    """The same in a process that has imported no module of the core or of the tests."""
    sys.meta_path.insert(0, _Finder(mutation, source))
    os.chdir(ROOT)
    plugin = pytest_plugin.Repeatable(tests)
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    options = ["-x", "-q", *pytest_plugin.FLAGS, f"--basetemp={folder}/pytest"]
    try:
        code = pytest.main([*options, *files], plugins=[plugin])
    except BaseException as error:
        return {"test": f"import: {type(error).__name__}"}
    # A mutant that breaks the import, or the set-up of all tests, is detected.
    return {"test": plugin.failed or (None if code in (0, 5) else f"exit code {int(code)}")}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is mutated."""

    def __init__(self, mutation: Mutation, source: str) -> None:
        module = mutation.path.removesuffix(".py").replace("/", ".")
        self._name = module.removesuffix(".__init__")
        self._path = str(ROOT / mutation.path)
        self._code = code_of(mutation, source)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        loader = _Loader(name, self._path, self._code)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code
