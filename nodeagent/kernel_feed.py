"""From the kernel log to evidence: one batch each time it is readable, through every log check."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from nodeagent.checks.base import LogCheck
from nodeagent.checks.by_start import ChecksByStart
from nodeagent.configfile.units import counted
from nodeagent.dataclass import dataclass
from nodeagent.model import Clearing, Evidence, FaultSighting, Loss, Observation, Status
from nodeagent.sources.kmsg import (
    SOURCE,
    Cursor,
    KernelLogUnavailable,
    KmsgReader,
    Record,
)

log = logging.getLogger(__name__)

#: The name under which the log itself is reported.
CHECK = "kernel-log"
#: Records at a turn of the event loop: a flood must not hold up the stream or a command.
BATCH = 512
#: Seconds until the next try when the log cannot be opened, or (in tests) a file has no more.
RETRY = 60.0
POLL_FILE = 0.2
#: Seconds for which a log that never pauses is left alone between two batches: each wake-up costs
#: more than the records of a moment, and a first line is read at once.
PAUSE = 0.1
#: Batches closer together than this are such a log.
BUSY = 2 * PAUSE
#: Records kept per check, to show to people.
LINES = 8


def readable(records: int | None = None) -> Observation:
    """The evidence about a log that can be read. ``records``: how many were, if that is known."""
    message = "" if records is None else f"{counted(records, 'record')} of the kernel"
    return Observation(CHECK, "", Status.OK, "", message)


def unavailable(error: KernelLogUnavailable) -> Observation:
    """The evidence about a log that cannot be read."""
    return Observation(CHECK, "", Status.UNKNOWN, "unavailable", str(error))


@dataclass(slots=True)
class Tally:
    """A check's counts of the log: faults seen, and records on which the check itself failed."""

    faults: int = 0
    errors: int = 0


def read(
    checks: ChecksByStart, item: Record | Loss, tallies: dict[str, Tally] | None = None
) -> list[Evidence]:
    """The evidence of ``checks`` from one item of the log, counted in ``tallies`` by name."""
    if isinstance(item, Loss):
        return [item]
    evidence: list[Evidence] = []
    for name, check in checks.of(item.text):
        try:
            found = check.read(item)
        except Exception:  # outermost edge of a check: its bug must not cost the other records
            log.exception(
                "check %s failed on kernel log record %d",
                name,
                item.seq,
                extra={"event": "check.record_failed"},
            )
            what = f"check {name} failed on record {item.seq}; the agent's log has the reason"
            evidence.append(Loss(SOURCE, 1, what))
            if tallies is not None:
                tallies.setdefault(name, Tally()).errors += 1
        else:
            if found:
                evidence += found
                if tallies is not None:
                    tally = tallies.get(name)
                    if tally is None:
                        tally = tallies[name] = Tally()
                    tally.faults += sum(type(each) is not Clearing for each in found)
    return evidence


class KernelFeed:
    """Reads the kernel log as it comes.

    ``reader`` makes one that continues after the given cursor (None: as for a first read).
    ``deliver(evidence, cursor)`` takes a batch's evidence together with its end in the log: the two
    are saved together or not at all.
    """

    def __init__(
        self,
        reader: Callable[[Cursor | None], KmsgReader],
        checks: Mapping[str, LogCheck],
        *,
        cursor: Cursor | None,
        deliver: Callable[[Sequence[Evidence], Cursor | None], None],
    ) -> None:
        self.records = 0
        #: Seconds spent on them by all checks together: a clock for each would cost more than they.
        self.seconds = 0.0
        self.tallies: dict[str, Tally] = {}
        self.cursor = cursor
        self._make_reader = reader
        self.use(checks)
        #: The latest records in which each check saw evidence.
        self.lines: dict[str, deque[Record]] = {}
        self._deliver = deliver
        self._reader: KmsgReader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._complaint = ""
        #: When the latest batch that was not empty was read (the loop's time).
        self._read_at = -BUSY

    def use(self, checks: Mapping[str, LogCheck]) -> None:
        """Give the next records to these checks, by name; the others' tallies stay."""
        self.checks = checks
        self._by_start = ChecksByStart(checks)

    def start(self) -> None:
        """Open the log and read on; if it cannot be opened, report that and try again later."""
        reader = self._make_reader(self.cursor)
        try:
            reader.open()
        except KernelLogUnavailable as error:
            self._unavailable(error)
            return
        self._complaint = ""
        self._reader = reader
        self._deliver([readable()], self.cursor)
        self._listen(reader)
        self._readable(reader)

    def stop(self) -> None:
        """Read no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None:
            if self._reader.pollable:
                asyncio.get_running_loop().remove_reader(self._reader.fileno())
            self._reader.close()
            self._reader = None

    def _readable(self, reader: KmsgReader) -> None:
        """One batch."""
        began = asyncio.get_running_loop().time()
        try:
            batch = reader.read_batch(BATCH)
        except KernelLogUnavailable as error:
            self.stop()
            self._unavailable(error)
            return
        self.records += len(batch)
        evidence = [each for item in batch for each in self._read(item)]
        moved = reader.cursor != self.cursor
        if evidence or moved:
            self.cursor = reader.cursor
            self._deliver(evidence, self.cursor)
        self.seconds += asyncio.get_running_loop().time() - began
        self._go_on(reader, moved=moved)

    def _read(self, item: Record | Loss) -> list[Evidence]:
        evidence = read(self._by_start, item, self.tallies)
        for each in evidence:
            if isinstance(each, FaultSighting) and isinstance(item, Record):
                kept = self.lines.get(each.check)
                if kept is None:
                    kept = self.lines[each.check] = deque(maxlen=LINES)
                if not kept or kept[-1] is not item:
                    kept.append(item)
        return evidence

    def _go_on(self, reader: KmsgReader, *, moved: bool) -> None:
        """Come back for the other records: at once, or (a file cannot be waited for) in a while.

        A reader may hold lines that it has read and not given yet, for which no descriptor wakes.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        busy = moved and loop.time() - self._read_at < BUSY
        if moved:
            self._read_at = loop.time()
        if not reader.caught_up:
            self._timer = loop.call_later(0, self._readable, reader)
        elif not reader.pollable:
            self._timer = loop.call_later(POLL_FILE, self._readable, reader)
        elif busy:
            loop.remove_reader(reader.fileno())
            self._timer = loop.call_later(PAUSE, self._resume, reader)

    def _resume(self, reader: KmsgReader) -> None:
        self._listen(reader)
        self._readable(reader)

    def _listen(self, reader: KmsgReader) -> None:
        if reader.pollable:
            asyncio.get_running_loop().add_reader(reader.fileno(), self._readable, reader)

    def _unavailable(self, error: KernelLogUnavailable) -> None:
        if str(error) != self._complaint:
            log.warning("%s", error)
        self._complaint = str(error)
        self._deliver([unavailable(error)], self.cursor)
        self._timer = asyncio.get_running_loop().call_later(RETRY, self.start)
