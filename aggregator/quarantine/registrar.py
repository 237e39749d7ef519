"""The one writer of the admission record: batches whatever waits, by compare-and-set.

Being the only one is an economy, not a safety: two registrars that write at once conflict, read
again and decide again, so no interleaving passes a limit.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aggregator.quarantine.cluster import (
    Cluster,
    ClusterError,
    Conflict,
    RecordText,
    is_older,
)
from aggregator.quarantine.decide.admission import (
    Held,
    Limits,
    OpenCause,
    Outcome,
    Proposal,
    Sitting,
    Size,
    admit,
    restrained,
)
from aggregator.quarantine.decide.doubt import CERTAIN, Doubt
from aggregator.quarantine.decide.record import (
    Entry,
    Record,
    RecordUnreadable,
    Scribe,
    parse_record,
)

log = logging.getLogger("sickbay.quarantine")

#: Of so many that wait, none can be told to be admitted soon.
_MOST_LIKELY = 32
#: What is only likely may be told by what was so long ago (seconds), the fleet's size too.
_OUTLOOK_AGE = 1.0
#: What another replica has written is waited for in the news for so long (seconds).
_NEWS_WITHIN = 0.25


@dataclass(frozen=True, slots=True)
class _Request:
    """One of the five things that may be asked of the record, and who waits for it."""

    done: "asyncio.Future[Held | None]"
    propose: Proposal | None = None
    enter: Entry | None = None
    forget: Entry | None = None
    withdraw: Entry | None = None
    look: str = ""


@dataclass(slots=True)
class _Outlook:
    """What is likely for whoever comes next: by this record, behind so many of this line."""

    record: Record
    line: list[_Request]
    at: float
    sitting: Sitting
    counted: int = 0


class Registrar:
    """Reads and writes the record.

    ``size`` tells the fleet's size now, ``causes`` the common causes that are open, ``doubt`` what
    is not known of other replicas, ``wall`` the wall clock, which must run evenly: a jump would let
    it forget what was admitted lately. All methods raise `ClusterError` when the record can't be
    read or written; nothing is half done then, for whoever asks again finds the entry standing or
    not.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        limits: Limits,
        policy_hash: str,
        size: Callable[[], Size],
        causes: Callable[[], Mapping[str, OpenCause]],
        wall: Callable[[], float],
        doubt: Callable[[], Doubt] = lambda: CERTAIN,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._policy_hash = policy_hash
        self._size = size
        self._causes = causes
        self._wall = wall
        self._doubt = doubt
        self._stored: RecordText | None = None
        self._record = Record()
        #: The text that the record was read from; None: there is none, or it can't be read.
        self._text: str | None = None
        #: What is being written, and what it says: news of it may come before the answer.
        self._writing: tuple[str, Record] | None = None
        self._scribe = Scribe()
        self._waiting: list[_Request] = []
        self._worker: asyncio.Task[None] | None = None
        self._awaited: dict[str, asyncio.Event] = {}
        self._outlook: _Outlook | None = None
        self._counted: tuple[float, Size] | None = None
        #: Why the record can't be used; empty when it can.
        self.problem = ""

    @property
    def record(self) -> Record:
        """The record as last read or written here."""
        return self._record

    @property
    def stop(self) -> str:
        """The stop switch's reason; empty when it is not set."""
        return self._stored.stop if self._stored is not None else ""

    def seen(self, stored: RecordText) -> bool:
        """The record as the cluster's news tell of it: a person's stop, another replica's write.

        False: it is older than what is known. News of our own writes come behind them, and in a
        storm behind the next: who took those for new would write against a version that is gone.
        """
        if self._stored is not None and is_older(stored.version, self._stored.version):
            return False
        self._take(stored)
        return True

    async def read(self) -> None:
        """Read it anew, whatever is known. Raises `ClusterError`."""
        self._take(await self._cluster.read_record())

    def likely(self, proposal: Proposal) -> bool:
        """Whether it would be admitted by the record as last seen, after those that wait."""
        if self._stored is None or self.problem or len(self._waiting) > _MOST_LIKELY:
            return False
        outlook = self._outlook_now(self._stored.stop)
        for request in self._waiting[outlook.counted :]:
            if request.propose is not None:
                outlook.sitting.decide(request.propose)
        outlook.counted = len(self._waiting)
        return outlook.sitting.hold(proposal) is None

    def _outlook_now(self, stop: str) -> _Outlook:
        """One for all that wait together: each is looked at once, not by all who come after."""
        now, known = self._wall(), self._outlook
        if (
            known is None
            or known.record is not self._record
            or known.line is not self._waiting
            or not 0 <= now - known.at < _OUTLOOK_AGE
        ):
            sitting = Sitting(
                self._record,
                self._limits,
                self._lately(now),
                now=now,
                stop=stop,
                causes=self._causes(),
                doubt=self._doubt(),
            )
            known = self._outlook = _Outlook(self._record, self._waiting, now, sitting)
        return known

    def _lately(self, now: float) -> Size:
        """The fleet's size. Among replicas it takes all nodes to count, and lines are short."""
        if self._counted is None or not 0 <= now - self._counted[0] < _OUTLOOK_AGE:
            self._counted = (now, self._size())
        return self._counted[1]

    def restrained(self, proposal: Proposal) -> Held | None:
        """What keeps a cordon that stands from becoming a drain, by the record as last seen."""
        return restrained(
            self._record,
            proposal,
            self._limits,
            now=self._wall(),
            causes=self._causes(),
            doubt=self._doubt(),
        )

    async def propose(self, proposal: Proposal) -> Held | None:
        """None when the node's entry stands now; else what holds it."""
        return await self._ask(propose=proposal)

    async def enter(self, entry: Entry) -> None:
        """Count a quarantine made by hand. Never refused."""
        await self._ask(enter=entry)

    async def entry(self, node: str) -> Entry | None:
        """The node's entry, to be taken out at the end of what begins now; None: it has none.

        Whoever is superseded meanwhile holds an old one, and takes nothing out. "It has none" is
        not taken from memory: the record is read once more.
        """
        if node not in self._record.entries:
            await self._ask(look=node)
        return self._record.entries.get(node)

    async def forget(self, entry: Entry | None) -> None:
        """Take the entry out, after its node is undone."""
        if entry is not None:
            await self._ask(forget=entry)

    async def withdraw(self, entry: Entry | None) -> None:
        """Take out an entry on which nothing was begun, as if it had never been admitted."""
        if entry is not None:
            await self._ask(withdraw=entry)

    async def stands(self, node: str) -> Held | None:
        """None when the record has the node's entry, that another replica says it has made.

        By the cluster's news if they come within a moment; else it is read, once for all who wait.
        """
        if node not in self._record.entries:
            come = self._awaited.setdefault(node, asyncio.Event())
            try:
                async with asyncio.timeout(_NEWS_WITHIN):
                    await come.wait()
            except TimeoutError:
                return await self._ask(look=node)
            finally:
                self._awaited.pop(node, None)
        return None

    async def _ask(
        self,
        *,
        propose: Proposal | None = None,
        enter: Entry | None = None,
        forget: Entry | None = None,
        withdraw: Entry | None = None,
        look: str = "",
    ) -> Held | None:
        done: asyncio.Future[Held | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(done, propose, enter, forget, withdraw, look))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="registrar")
        return await done

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                held = await self._settle(batch)
            except Exception as error:  # noqa: BLE001 - the task's edge: all who wait must hear of it
                self._stored = None
                for request in batch:
                    if not request.done.done():
                        request.done.set_exception(error)
                continue
            for request in batch:
                if not request.done.done():
                    node = request.propose.node if request.propose is not None else request.look
                    request.done.set_result(held.get(node))

    async def _settle(self, batch: list[_Request]) -> dict[str, Held]:
        """Write until it goes through; the batch is decided anew on each record that is read."""
        fresh = False
        while True:
            if self._stored is None:
                await self.read()
                fresh = True
            stored = self._stored
            if stored is None or self.problem:
                raise ClusterError(self.problem or "the admission record was not read")
            before = self._record
            after = (
                before.enter(
                    [request.enter for request in batch if request.enter is not None],
                    self._policy_hash,
                )
                .forget(request.forget for request in batch if request.forget is not None)
                .withdraw(request.withdraw for request in batch if request.withdraw is not None)
            )
            asked = [request.propose for request in batch if request.propose is not None]
            outcome = self._decide(after, asked, stored.stop, self._size())
            if (outcome.record.entries, outcome.record.cooldowns) == (
                before.entries,
                before.cooldowns,
            ):
                sure = any(one.forget or one.withdraw or one.look for one in batch)
                if fresh or not (outcome.admitted or sure):
                    return _missing(batch, outcome)
                # Neither "it stands already" nor "it has left" must be taken from memory.
                self._stored = None
                continue
            try:
                text = self._scribe.dump(outcome.record)
                self._writing = (text, outcome.record)
                self._take(await self._cluster.write_record(text, stored.version))
            except Conflict:
                self._stored = None
                continue
            finally:
                self._writing = None
            return _missing(batch, outcome)

    def _decide(self, record: Record, asked: list[Proposal], stop: str, size: Size) -> Outcome:
        return admit(
            record,
            asked,
            self._limits,
            size,
            now=self._wall(),
            policy_hash=self._policy_hash,
            stop=stop,
            causes=self._causes(),
            doubt=self._doubt(),
        )

    def _take(self, stored: RecordText) -> None:
        """What the text says is known where we write just that. To read it costs a storm dearly."""
        if self._writing is not None and stored.text == self._writing[0]:
            self._text, self._record = self._writing
            self._say("")
        elif stored.text != self._text:
            self._text = None
            try:
                self._record = parse_record(stored.text)
                self._text = stored.text
            except RecordUnreadable as error:
                place = self._cluster.record_place
                self._say(
                    f"the admission record can't be read: {place.where}: {error}. Nothing new is "
                    "admitted. To have it made anew from the Quarantines that stand: "
                    f"{place.empties}"
                )
            else:
                self._say("")
        self._stored = stored
        for node in self._awaited.keys() & self._record.entries.keys():
            self._awaited[node].set()

    def _say(self, problem: str) -> None:
        """Once, in the log too: who reads it alone must not take this for a quiet night."""
        if problem and problem != self.problem:
            log.error("nothing new is admitted", extra={"error": problem})
        elif self.problem and not problem:
            log.info("the admission record can be read again")
        self.problem = problem


def _missing(batch: list[_Request], outcome: Outcome) -> dict[str, Held]:
    """What holds each node: what was decided, or that an entry is not there."""
    held = dict(outcome.held)
    for request in batch:
        if request.look and request.look not in outcome.record.entries:
            text = "it was admitted, but the admission record does not have it: asked again"
            held[request.look] = Held("shards", "no entry", text)
    return held
