"""Device probes in a child process: a call that hangs with a device hangs there, not in the agent.

Probes of about the same time share one exec'd child with a thread for each: starting an interpreter
is the main cost. Where they come more often than once a minute, as those of InfiniBand ports do,
the child is kept: it takes 3 MiB, and a start 12 ms. A child with a probe that has no answer gets
no further one: there is a new child for the next. A path that has not answered at its deadline is
*hung*: its child is killed, which in state D has no effect until the device answers, and as long as
it lives no further probe of that path is begun.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from itertools import count

from nodeagent.child_process import ChildProcess, python_compiled
from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.process_state import where

__all__ = [
    "Differs",
    "DiskProbe",
    "Files",
    "Hung",
    "NotProbed",
    "Page",
    "ProbeRefused",
    "Result",
    "Space",
    "Written",
]

_SCRIPT = "disk_child.py"
#: Seconds in which probes gather: checks of one interval request them in the same beat.
_GATHERING = 0.02
#: Probes that come within so many seconds of those before keep their child; those of one beat, as
#: some gather later, leave it as it was.
_OFTEN, _BEAT = 45.0, 1.0


@dataclass(frozen=True, slots=True)
class Space:
    """A filesystem's fullness as df counts it, in bytes and in inodes.

    ``free`` is without root's reserve; ``inodes`` 0 is "has no fixed number".
    """

    size: int
    used: int
    free: int
    inodes: int
    inodes_free: int


@dataclass(frozen=True, slots=True)
class Written:
    """4 KiB were written, synced, read back and removed, in ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Differs:
    """The bytes read back differ from those that were written and synced."""


@dataclass(frozen=True, slots=True)
class ProbeRefused:
    """A system call failed at ``step`` (statvfs, open, lock, write, get-log-page, ...)."""

    errno: int
    step: str

    def __str__(self) -> str:
        return f"{self.step}: {os.strerror(self.errno)}"


@dataclass(frozen=True, slots=True)
class Hung:
    """No answer for ``seconds``, counted from the first probe that got none.

    ``where`` is the probe's state and kernel function ("D in percpu_rwsem_wait"), or states that
    another process's probe holds the file.
    """

    seconds: float
    where: str


@dataclass(frozen=True, slots=True)
class NotProbed:
    """The probe itself failed (its child did not start, or crashed): ``message`` states how."""

    message: str


@dataclass(frozen=True, slots=True)
class Page:
    """The beginning of a drive's health log, or a transceiver's memory."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Files:
    """Each file's text, stripped, or the errno of why it could not be read; in their order."""

    contents: tuple[str | int, ...]


Result = Space | Written | Differs | Page | Files | ProbeRefused | Hung | NotProbed

_Job = tuple[str, str]  # kind (space, write, nvme, module, files), path


@dataclass(slots=True, eq=False)
class _Flight:
    """A probe under way. It lands with its answer, or when its child ends without one."""

    number: int
    job: _Job
    began: float
    answer: "asyncio.Future[Result]"
    child: ChildProcess | None = None
    thread: int | None = None
    killed: bool = False
    spot: str = ""


class DiskProbe:
    """Runs probes of devices. Safe to call from several tasks at once.

    ``deadline`` is in seconds. A path that another task is probing is not probed twice.
    """

    def __init__(self, *, machine: HostRoots, deadline: float = 10.0) -> None:
        self._clock = machine.clock
        self._deadline = deadline
        self._flights: dict[_Job, _Flight] = {}
        self._waiting: list[_Flight] = []
        self._numbers = count()
        self._children: set[ChildProcess] = set()
        self._kept: ChildProcess | None = None
        self._gathered_at = -_OFTEN
        self._silent_since: dict[_Job, float] = {}

    async def space(self, paths: Sequence[str], *, apart: bool = False) -> dict[str, Result]:
        """Space, ProbeRefused, Hung or NotProbed for each path.

        ``apart``: in a child that these paths share with no others.
        """
        return await self._probe("space", paths, apart=apart)

    async def write(self, paths: Sequence[str]) -> dict[str, Result]:
        """Written, Differs, ProbeRefused, Hung or NotProbed for each directory.

        The probe is a locked file in the directory (disk_child.NAME), gone afterwards.
        """
        return await self._probe("write", paths, apart=False)

    async def nvme_health(self, devices: Sequence[str]) -> dict[str, Result]:
        """Page, ProbeRefused, Hung or NotProbed for each controller's device file."""
        return await self._probe("nvme", devices, apart=False)

    async def modules(self, interfaces: Sequence[str]) -> dict[str, Result]:
        """Page (a transceiver's memory), ProbeRefused, Hung or NotProbed for each interface."""
        return await self._probe("module", interfaces, apart=False)

    async def files(self, groups: Sequence[Sequence[str]]) -> list[Result]:
        """Files, Hung or NotProbed for each group of small files, such as those of one device.

        For files of sysfs whose drivers query their hardware. A group hangs as one. The first 64
        bytes of each file are read.
        """
        joined = ["\t".join(group) for group in groups]
        results = await self._probe("files", joined, apart=False)
        return [results[group] for group in joined]

    def outstanding(self) -> dict[str, int]:
        """The paths without an answer, each with the process that waits for it."""
        flights = self._flights.values()
        return {f.job[1]: f.child.pid for f in flights if f.child is not None}

    async def close(self) -> None:
        """Kill the children. One that hangs in the kernel ends when its call returns."""
        self._waiting.clear()
        self._kept = None
        await asyncio.gather(*(child.close() for child in self._children))
        self._flights.clear()

    async def _probe(self, what: str, paths: Sequence[str], *, apart: bool) -> dict[str, Result]:
        jobs: list[_Job] = [(what, path) for path in dict.fromkeys(paths)]
        new = [self._book(job) for job in jobs if job not in self._flights]
        flights = [self._flights[job] for job in jobs]
        if apart and new:
            child = self._start(new)
            if child is not None:
                child.end_input()
        elif new:
            if not self._waiting:
                asyncio.get_running_loop().call_later(_GATHERING, self._take_off)
            self._waiting += new
        results = await asyncio.gather(*(self._landing(flight) for flight in flights))
        return {path: result for (_, path), result in zip(jobs, results, strict=True)}

    def _book(self, job: _Job) -> _Flight:
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        flight = self._flights[job] = _Flight(
            next(self._numbers), job, self._clock.boottime(), answer
        )
        return flight

    def _take_off(self) -> None:
        """Those that have gathered, in the child that is kept or in a new one."""
        flights, self._waiting = self._waiting, []
        kept, now = self._kept, self._clock.boottime()
        gap, self._gathered_at = now - self._gathered_at, now
        often = kept is not None if gap < _BEAT else gap < _OFTEN
        if kept is not None and any(each.child is kept for each in self._flights.values()):
            kept.end_input()
            kept = None
        if flights and (kept is None or not self._send(kept, flights)):
            kept = self._start(flights)
        if kept is not None and not often:
            kept.end_input()
            kept = None
        self._kept = kept

    def _start(self, flights: Sequence[_Flight]) -> ChildProcess | None:
        """A new child for all of them."""
        try:
            child = ChildProcess(python_compiled(_SCRIPT), self._read_line, listens=True)
        except OSError as error:
            for flight in flights:
                self._land(flight, NotProbed(f"cannot start {sys.executable}: {error.strerror}"))
            return None
        self._children.add(child)

        def ended(code: "asyncio.Future[int]") -> None:
            self._children.discard(child)
            words = f"the probe ended with {code.result()}: {child.last_words}"
            for flight in [each for each in self._flights.values() if each.child is child]:
                self._land(flight, NotProbed(words))

        child.ended.add_done_callback(ended)
        self._send(child, flights)
        return child

    def _send(self, child: ChildProcess, flights: Sequence[_Flight]) -> bool:
        """Whether the child has taken them. One that has not is no longer of use."""
        jobs = [(each.number, each.job[0], os.fsencode(each.job[1]).hex()) for each in flights]
        for flight in flights:
            flight.child = child
        if child.send("".join("{} {} {}\n".format(*job) for job in jobs).encode()):
            return True
        child.kill()
        return False

    def _read_line(self, line: str) -> None:
        number, _, text = line.partition(" ")
        for flight in [each for each in self._flights.values() if str(each.number) == number]:
            self.read_results(flight, text)

    def read_results(self, flight: _Flight, text: str) -> None:
        word, *values = text.split(" ")
        if word == "at":
            flight.thread = int(values[0])
        else:
            self._land(flight, _read(word, values))

    def _land(self, flight: _Flight, result: Result) -> None:
        if not flight.answer.done():
            flight.answer.set_result(result)
            # Now and not when the child ends: another path may hold it up for ever.
            self._flights.pop(flight.job, None)

    async def _landing(self, flight: _Flight) -> Result:
        left = flight.began + self._deadline - self._clock.boottime()
        await asyncio.wait([flight.answer], timeout=max(0.0, left))
        if not flight.answer.done() or flight.killed:
            return self._hung(flight)
        result = flight.answer.result()
        if isinstance(result, Hung):  # another process's probe is the one that hangs
            return Hung(self._silence(flight), result.where)
        if not isinstance(result, NotProbed):
            self._silent_since.pop(flight.job, None)
        return result

    def _hung(self, flight: _Flight) -> Hung:
        if flight.child is not None:
            # Looked up before the kill: a sleep that can be killed is over at once.
            flight.spot = where(flight.child.pid, flight.thread) or flight.spot
            if not flight.killed:
                flight.killed = True
                flight.child.kill()
        return Hung(self._silence(flight), flight.spot)

    def _silence(self, flight: _Flight) -> float:
        return self._clock.boottime() - self._silent_since.setdefault(flight.job, flight.began)


def _read(word: str, values: Sequence[str]) -> Result:
    """The child's answer (disk_child has its format)."""
    match word, values:
        case "space", [size, used, free, inodes, inodes_free]:
            return Space(int(size), int(used), int(free), int(inodes), int(inodes_free))
        case "written", [microseconds]:
            return Written(int(microseconds) / 1e6)
        case "page", [data]:
            return Page(bytes.fromhex(data))
        case "files", _:
            return Files(tuple(_content(value) for value in values))
        case "refused", [errno, step]:
            return ProbeRefused(int(errno), step)
        case "differs", []:
            return Differs()
        case "busy", []:
            return Hung(0.0, "behind an earlier probe that still holds the file")
        case _:
            return NotProbed(f"the probe answered {' '.join([word, *values])!r}")


def _content(value: str) -> str | int:
    if value.startswith("!"):
        return int(value[1:])
    return bytes.fromhex(value[1:]).decode("utf-8", "replace").strip()
