"""The file of a search: what it is about, then each test with its outcome, a JSON object a line.

A line is on the disk before its outcome is used, so that an interrupted search goes on without a
test that has ended.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from aggregator.bisection.model import GroupOutcome, GroupTest
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.group_command import GroupRun

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Search:
    """What a search is about. ``limit``: seconds of one test."""

    nodes: list[str]
    command: list[str]
    limit: float
    parallel: int
    known_good: list[str] = field(default_factory=list)
    domains: dict[str, str] = field(default_factory=dict)


class SearchFile:
    """An open file, locked. ``ended``: the outcomes that it has, by the number of the test."""

    def __init__(self, path: Path, file: IO[bytes], search: Search, ended: dict[int, Any]) -> None:
        self.path = path
        self.search = search
        self._file = file
        self._ended = ended

    @property
    def known(self) -> int:
        """How many tests it has."""
        return len(self._ended)

    def outcome(self, test: GroupTest) -> GroupOutcome | None:
        """The outcome that it has of this test. Raises CommandFailed where it has another test."""
        found = self._ended.get(test.number)
        if found is None:
            return None
        if found["nodes"] != list(test.nodes):
            raise CommandFailed(
                f"{self.path}: test {test.number} is of other nodes: the file was changed, or is "
                "of another version of sickbay\n  Begin a new search, without --resume"
            )
        return GroupOutcome(found["outcome"])

    def add(self, test: GroupTest, run: GroupRun) -> None:
        """Write a test that has ended. Raises CommandFailed."""
        _write(self.path, self._file, {"test": test.number, "nodes": test.nodes, **asdict(run)})


@contextmanager
def new_file(path: Path, search: Search) -> Iterator[SearchFile]:
    """A file of a search that begins. Raises UsageError where there is one."""
    try:
        file = path.open("xb", buffering=0)
    except FileExistsError as error:
        raise UsageError(
            f"{path} is there already; expected another --state FILE, or --resume {path}"
        ) from error
    except OSError as error:
        raise UsageError(f"--state: {path} can't be written: {error.strerror}") from error
    with file:
        _lock(path, file)
        _write(path, file, {"sickbay_bisect": _FORMAT, **asdict(search)})
        yield SearchFile(path, file, search, {})


@contextmanager
def old_file(path: Path) -> Iterator[SearchFile]:
    """The file of a search that was interrupted. Raises UsageError."""
    try:
        file = path.open("r+b", buffering=0)
    except OSError as error:
        raise UsageError(f"--resume: {path} can't be opened: {error.strerror}") from error
    with file:
        _lock(path, file)
        # A process that was killed may have left a part of a line: that test has not ended.
        whole, newline, _ = file.read().rpartition(b"\n")
        file.truncate(len(whole) + len(newline))
        file.seek(0, os.SEEK_END)
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()]
            known = head.pop("sickbay_bisect") == _FORMAT
            search = Search(**head)
            ended = {int(line["test"]): line for line in lines}
            for line in lines:
                GroupOutcome(line["outcome"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"--resume: {path} is no file of `sickbay bisect`: {error}") from error
        if not known:
            raise UsageError(f"--resume: {path} is of another version of sickbay")
        yield SearchFile(path, file, search, ended)


def _lock(path: Path, file: IO[bytes]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UsageError(f"{path}: another sickbay bisect is using it") from error


def _write(path: Path, file: IO[bytes], line: dict[str, Any]) -> None:
    try:
        file.write(json.dumps(line).encode() + b"\n")
        os.fsync(file.fileno())
    except OSError as error:
        raise CommandFailed(
            f"{path} can't be written: {error.strerror}\n  Then: --resume {path}"
        ) from error
