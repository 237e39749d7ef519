"""The file of a search: its subject, then each test with its outcome, a JSON object a line.

A line is on the disk before its outcome is used, so that an interrupted search resumes without a
test that has ended.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from aggregator.bisection.model import GroupOutcome, GroupTest
from aggregator.cli.bisect_lines import FORMAT, DamagedLine, ForeignFile, Search, read_lines
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.group_command import GroupRun

#: Bytes of a file that is resumed.
_MOST = 64 * 2**20
_PIECE = 2**20


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
        _write(path, file, {"sickbay_bisect": FORMAT, **asdict(search)})
        yield SearchFile(path, file, search, {})


@contextmanager
def old_file(path: Path) -> Iterator[SearchFile]:
    """The file of a search that was interrupted. Raises UsageError for one that is not whole, which
    stays as it is.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a device may already act on it
            raise UsageError(f"--resume: {path} is no regular file; expected a file of --state")
        file = path.open("r+b", buffering=0)
    except OSError as error:
        raise UsageError(f"--resume: {path} can't be opened: {error.strerror}") from error
    with file:
        _lock(path, file)
        content = _content(path, file)
        # A process that was killed may have left a part of a line: that test has not ended.
        whole, newline, _ = content.rpartition(b"\n")
        try:
            search, ended = read_lines(whole.split(b"\n") if newline else [])
        except DamagedLine as error:
            if not newline and not b'{"sickbay_bisect"'.startswith(content[:17]):
                raise UsageError(f"--resume: {path} is no file of `sickbay bisect`") from error
            raise UsageError(f"--resume: {path} is damaged: {error}") from error
        except ForeignFile as error:
            raise UsageError(f"--resume: {path} {error}") from error
        # Not before all lines are known to be ours: a person's own file must not lose a line.
        file.truncate(len(whole) + len(newline))
        file.seek(0, os.SEEK_END)
        yield SearchFile(path, file, search, ended)


def _content(path: Path, file: IO[bytes]) -> bytes:
    pieces, size = [], 0
    try:
        while piece := file.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > _MOST:
                raise UsageError(
                    f"--resume: {path} has more than {_MOST // 2**20} MiB; expected a file of "
                    "--state"
                )
    except OSError as error:
        raise UsageError(f"--resume: {path} can't be read: {error.strerror}") from error
    return b"".join(pieces)


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
