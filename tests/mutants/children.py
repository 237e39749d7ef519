"""A process for each trial, forked from one that has imported all modules; some at a time.

A child ends with one JSON value on its pipe. One that hangs is killed with all its descendants.
"""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")

#: A mutant that fills the memory ends itself, not this machine.
MEMORY = 6 << 30


#: The pipe on which this process, if it is a child, says how it ended.
_pipe = -1


@dataclass(slots=True)
class _Child(Generic[Job]):
    job: Job
    pid: int
    pipe: int
    folder: str
    ends: float
    said: bytes = b""


def run_each(
    jobs: Iterable[Job],
    work: Callable[[Job, Path], Any],
    *,
    at_once: int,
    limit: Callable[[Job], float],
) -> Iterator[tuple[Job, Any]]:
    """The results of ``work`` for each job, in a child of its own, in the order in which they end.

    ``work`` is given a folder that is removed afterwards. The result of a child that gave none
    within ``limit`` seconds, or that died, is None.
    """
    waiting = iter(jobs)
    running: dict[int, _Child[Job]] = {}
    try:
        while True:
            while len(running) < at_once and (job := next(waiting, None)) is not None:
                child = _fork(job, work, limit(job))
                running[child.pipe] = child
            if not running:
                return
            soonest = min(child.ends for child in running.values())
            wait = max(0.0, soonest - time.monotonic())
            readable, _, _ = select.select(list(running), [], [], wait)
            for child in [running[pipe] for pipe in readable]:
                piece = os.read(child.pipe, 1 << 16)
                child.said += piece
                if not piece:
                    yield child.job, _end(running.pop(child.pipe))
            now = time.monotonic()
            for child in [one for one in running.values() if one.ends <= now]:
                yield child.job, _end(running.pop(child.pipe))
    finally:
        for child in running.values():
            _end(child)


def _fork(job: Job, work: Callable[[Job, Path], Any], limit: float) -> _Child[Job]:
    folder = tempfile.mkdtemp(prefix="mutant-")
    reads, writes = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _be_child(job, work, Path(folder), writes)
    os.close(writes)
    return _Child(job, pid, reads, folder, time.monotonic() + limit)


def _be_child(job: Job, work: Callable[[Job, Path], Any], folder: Path, pipe: int) -> None:
    global _pipe  # noqa: PLW0603  # one for each process
    _pipe = pipe
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    said: Any = None
    try:
        said = work(job, folder)
    except BaseException as error:
        said = {"error": repr(error)}
    finally:
        _write(pipe, said)
        os._exit(0)


def finish(said: Any) -> None:
    """End this child at once, from any point, with ``said`` as its result."""
    _write(_pipe, said)
    os._exit(0)


def _write(pipe: int, said: Any) -> None:
    rest = memoryview(json.dumps(said).encode())
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _end(child: _Child[Any]) -> Any:
    os.close(child.pipe)
    # Its session is a group of its own, so its descendants end with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    shutil.rmtree(child.folder, ignore_errors=True)
    return json.loads(child.said) if child.said else None
