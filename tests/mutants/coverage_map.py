"""Which tests run which lines of the core: how the tests that fit a mutation are found.

Kept as one bit set of tests for each line of each function, so that it holds in memory for 4,000
tests. A line counts from its function's first one, and stands as long as the function's text does:
of a function that was changed since, every test that ran any line of its file is a fitting one.
"""

import ast
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.mutants.sites import Mutation


@dataclass(slots=True)
class CoverageMap:
    """``seconds`` of each test by its id; ``lines``: function -> line in it -> bit set of tests.

    A function's key is its path, its name and the hash of its text. ``files`` has the bit set of
    every test that ran any line of a file.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, int]] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)

    def fitting(self, mutation: Mutation, functions: "Functions") -> list[str]:
        """Ids of the tests that run the mutated lines; empty if no test does."""
        of_file = self.files.get(mutation.path, 0)
        key, first = functions.key(mutation.path, mutation.function)
        if not mutation.function or key not in self.lines:
            return self._ids(of_file)
        of_function = self.lines[key]
        for start, end in (mutation.lines, mutation.statement):
            found = 0
            for line in range(start, end + 1):
                found |= of_function.get(line - first, 0)
            if found:
                return self._ids(found)
        return []

    def add(self, other: "CoverageMap") -> None:
        """Take in the map of other tests."""
        shift = len(self.seconds)
        self.seconds.update(other.seconds)
        for name, bits in other.files.items():
            self.files[name] = self.files.get(name, 0) | bits << shift
        for key, lines in other.lines.items():
            mine = self.lines.setdefault(key, {})
            for line, bits in lines.items():
                mine[line] = mine.get(line, 0) | bits << shift

    def _ids(self, bits: int) -> list[str]:
        return [test for number, test in enumerate(self.seconds) if bits >> number & 1]

    def save(self, path: Path, stamp: str) -> None:
        saved = {
            "stamp": stamp,
            "seconds": self.seconds,
            "lines": {
                key: {str(line): f"{bits:x}" for line, bits in lines.items()}
                for key, lines in self.lines.items()
            },
            "files": {name: f"{bits:x}" for name, bits in self.files.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(saved))

    @classmethod
    def load(cls, path: Path, stamp: str) -> "CoverageMap | None":
        """The map in ``path``, or None unless it was made with this stamp."""
        try:
            saved = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return None
        if saved["stamp"] != stamp:
            return None
        return cls(
            saved["seconds"],
            {
                key: {int(line): int(bits, 16) for line, bits in lines.items()}
                for key, lines in saved["lines"].items()
            },
            {name: int(bits, 16) for name, bits in saved["files"].items()},
        )


class Functions:
    """Where each outermost function of a file begins, and the hash of its text."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, dict[str, tuple[int, int, str]]] = {}

    def key(self, path: str, function: str) -> tuple[str, int]:
        """The function's key in a map, and its first line."""
        first, _, text = self._of(path).get(function, (0, 0, ""))
        return f"{path}::{function}::{text}", first

    def around(self, path: str, line: int) -> str:
        """The qualified name of the outermost function around a line, "" outside of any."""
        for name, (first, last, _) in self._of(path).items():
            if first <= line <= last:
                return name
        return ""

    def _of(self, path: str) -> dict[str, tuple[int, int, str]]:
        if path not in self._files:
            source = (self._root / path).read_text()
            lines = source.splitlines()
            self._files[path] = {
                name: (first, last, _hash("\n".join(lines[first - 1 : last])))
                for name, first, last in _outermost(ast.parse(source).body, "")
            }
        return self._files[path]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _outermost(body: list[ast.stmt], around: str) -> Iterator[tuple[str, int, int]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield f"{around}{node.name}", first, node.end_lineno or first
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node.body, f"{around}{node.name}.")
        elif isinstance(node, ast.If):
            yield from _outermost([*node.body, *node.orelse], around)


class Tracer:
    """Notes the lines of the core that run, in every thread, between `start` and `stop`."""

    def __init__(self, root: Path, paths: Iterator[str] | list[str]) -> None:
        self.root = root
        self._paths = {str(root / path): path for path in paths}
        self._codes: dict[int, tuple[CodeType, str, set[int]]] = {}

    def start(self) -> None:
        for _, _, lines in self._codes.values():
            lines.clear()
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def stop(self) -> list[tuple[str, set[int]]]:
        """Path and lines of each piece of code that ran."""
        sys.settrace(None)
        threading.settrace(None)
        return [(path, set(lines)) for _, path, lines in self._codes.values() if lines]

    def _trace(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        path = self._paths.get(code.co_filename)
        if path is None:
            return None
        known = self._codes.get(id(code))
        if known is None:
            # The code is kept, or another could get its id.
            known = self._codes[id(code)] = (code, path, set())
        lines = known[2]
        lines.add(frame.f_lineno)
        add = lines.add

        def local(frame: FrameType, _event: str, _arg: Any) -> Any:
            add(frame.f_lineno)
            return local

        return local


class Mapper:
    """Makes a map, test after test."""

    def __init__(self, root: Path, paths: list[str]) -> None:
        self.map = CoverageMap()
        self._functions = Functions(root)
        self._tracer = Tracer(root, paths)
        self._known: dict[tuple[str, int], tuple[str, int]] = {}

    def start(self) -> None:
        self._tracer.start()

    def ran(self, test: str, seconds: float, *, passed: bool) -> None:
        """Note that this test ran since `start`; a test that failed fits no mutation."""
        touched = self._tracer.stop()
        if not passed:
            return
        bit = 1 << len(self.map.seconds)
        self.map.seconds[test] = round(seconds, 4)
        for path, lines in touched:
            self.map.files[path] = self.map.files.get(path, 0) | bit
            key, first = self._key(path, min(lines))
            of_function = self.map.lines.setdefault(key, {})
            for line in lines:
                of_function[line - first] = of_function.get(line - first, 0) | bit

    def _key(self, path: str, line: int) -> tuple[str, int]:
        if (path, line) not in self._known:
            function = self._functions.around(path, line)
            self._known[path, line] = self._functions.key(path, function)
        return self._known[path, line]


def ran_at_import(tracer: Tracer) -> set[str]:
    """Keys of the functions that ran while the tests were imported: constants may have results."""
    functions = Functions(tracer.root)
    found = set()
    for path, lines in tracer.stop():
        if function := functions.around(path, max(lines)):
            found.add(functions.key(path, function)[0])
    return found
