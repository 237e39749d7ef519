"""What a shard says to the leader in one stream, and what it asks there.

Nothing is queued but questions: what is said of a node is made at the moment when the stream can
take it, from what is known then. So what is kept is bounded by the nodes, however slow the stream.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.decide.admission import Proposal
from aggregator.quarantine.decide.sayings import (
    Answer,
    Ask,
    Beat,
    Decision,
    Said,
    Saying,
    Seen,
    Words,
    turn_words,
)
from aggregator.quarantine.decide.signs import Sign
from aggregator.quarantine.elsewhere import Unsaid
from aggregator.quarantine.suspecting import Suspecting
from aggregator.quarantine.triangulating import Triangulating
from aggregator.shards.council import Member

#: Changes are gathered for so long (seconds); a question takes them along at once.
GATHER = 0.1
#: Either side says something so often (seconds), and is given up after `LOST` without it.
BEAT = 1.0
LOST = 5.0
#: A question is answered within so many seconds, or asked again later.
ANSWER_WITHIN = 5.0
#: One message: so many nodes at most, and about so many bytes.
NODES_A_MESSAGE, BYTES_A_MESSAGE = 100, 256 * 1024
#: Of one node's components that the network or others are concerned with, so many are told. An
#: agent is asked to look at 8 peers.
MOST_SEEN, LONGEST = 256, 300
#: And of what is wrong with one node.
MOST_SIGNS = 128


class VoiceLost(Exception):
    """The stream is of no use any more; the text says why."""


@dataclass(slots=True)
class _Question:
    """``after``: so many nodes must have been spoken of before it is asked."""

    ask: Ask
    after: int


class Reporter:
    """Says of a node of ours all that the leader is to know of it."""

    def __init__(
        self,
        *,
        census: Census,
        suspecting: Suspecting,
        triangulating: Triangulating,
        owns: Callable[[str], bool],
        unsaid: Unsaid,
        clocks: Clocks,
    ) -> None:
        self.census = census
        self.owns = owns
        self.unsaid = unsaid
        self.clocks = clocks
        self._suspecting = suspecting
        self._triangulating = triangulating

    def nodes(self) -> Iterator[str]:
        """Those of which there is something to say."""
        for case in self.census.cases():
            if self._speaks_of(case):
                yield case.node

    def say(self, node: str) -> Saying | None:
        """Times are of our monotonic clock. None: the node is not ours, or was never heard."""
        case = self.census.known(node)
        if case is None or not self._speaks_of(case):
            return None
        signs, traits, checks = self._suspecting.word(node)
        address, speaking, edges = self._triangulating.word(node)
        return Saying(
            node,
            reported=self._reported(case),
            silent=is_silent(case),
            speaking=speaking,
            address=address,
            traits=traits,
            checks=checks,
            signs=_fewer(signs),
            sees=_short((*edges, *_mounts(case))),
        )

    def _speaks_of(self, case: Case) -> bool:
        return case.patient.health is not None and self.owns(case.node)

    @staticmethod
    def _reported(case: Case) -> bool:
        return case.patient.health is not None and case.patient.health.has_snapshot


class Voice:
    """One stream to the leader. A transport calls `next` and `hear` until either raises, and
    `close` in the end. ``heard`` is given all answers but decisions.
    """

    def __init__(
        self, leader: Member, reporter: Reporter, heard: Callable[["Voice", Answer], None]
    ) -> None:
        self.leader = leader
        self._reporter = reporter
        self._heard = heard
        self._now = reporter.clocks.now
        self._said: dict[str, Saying] = {}
        self._questions: deque[_Question] = deque()
        self._pending: dict[int, asyncio.Future[Decision]] = {}
        self._number = 0
        self._spoken = 0  # nodes taken up in this stream
        self._stirred = asyncio.Event()
        self._flush_at = self._now()
        self._beat_at = self._now()
        self._heard_at = self._now()
        self._complete = False
        self._lost = ""
        reporter.unsaid.listen(self._stir)
        for node in reporter.nodes():
            reporter.unsaid.mark(node)
        self._all = len(reporter.unsaid)

    @property
    def lost(self) -> str:
        """Why the stream is of no use any more; empty: it is."""
        return self._lost

    def _stir(self) -> None:
        self._flush_at = self._now() + GATHER
        self._stirred.set()

    # -- what the transport calls ----------------------------------------------------------

    async def next(self) -> Said:
        """What is to be sent next; waits for it. Raises `VoiceLost`."""
        while True:
            now = self._now()
            if not self._lost and now - self._heard_at > LOST:
                self.close(f"{self.leader.name} has said nothing for {LOST:g} s")
            if self._lost:
                raise VoiceLost(self._lost)
            said = self._due(now)
            if said is not None:
                self._beat_at = now + BEAT
                return said
            until = min(self._beat_at, self._flush_at if self._reporter.unsaid else self._beat_at)
            self._stirred.clear()
            try:
                async with asyncio.timeout(max(0.0, until - now)):
                    await self._stirred.wait()
            except TimeoutError:
                pass

    def hear(self, answer: Answer) -> None:
        """What the leader says."""
        self._heard_at = self._now()
        if isinstance(answer, Decision):
            waiting = self._pending.pop(answer.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        else:
            self._heard(self, answer)

    def close(self, reason: str) -> None:
        """The stream has ended. Whoever waits for an answer is told so."""
        if self._lost:
            return
        self._lost = reason
        self._reporter.unsaid.listen(None)
        self._stirred.set()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(VoiceLost(reason))
        self._pending.clear()

    # -- asking ------------------------------------------------------------------------------

    async def ask(self, proposal: Proposal) -> Decision:
        """The leader's decision. Raises `VoiceLost`, also when none comes in time."""
        if self._lost:
            raise VoiceLost(self._lost)
        self._number += 1
        number = self._number
        waiting: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._pending[number] = waiting
        after = self._spoken + len(self._reporter.unsaid)
        self._questions.append(_Question(Ask(number, proposal), after))
        self._stirred.set()
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await waiting
        except TimeoutError:
            text = f"{self.leader.name} has not answered within {ANSWER_WITHIN:g} s"
            raise VoiceLost(text) from None
        finally:
            self._pending.pop(number, None)

    # -- speaking ----------------------------------------------------------------------------

    def _due(self, now: float) -> Said | None:
        questions, unsaid = self._questions, self._reporter.unsaid
        while questions and questions[0].ask.number not in self._pending:
            questions.popleft()  # nobody waits for it any more
        if not self._complete:
            return self._words(now)
        if questions and self._spoken >= questions[0].after:
            return questions.popleft().ask
        if unsaid and (questions or now >= self._flush_at):
            words = self._words(now)
            if words.sayings or words.gone:
                return words
            if questions:
                return self._due(now)
        return Beat() if now >= self._beat_at else None

    def _words(self, now: float) -> Words:
        """What has changed, as much of it as one message takes."""
        unsaid, size = self._reporter.unsaid, 0
        sayings: list[Saying] = []
        gone: list[str] = []
        while unsaid and size < BYTES_A_MESSAGE and len(sayings) + len(gone) < NODES_A_MESSAGE:
            node = unsaid.take()
            self._spoken += 1
            saying, before = self._reporter.say(node), self._said.get(node)
            if saying is None:
                if self._said.pop(node, None) is not None:
                    gone.append(node)
            elif saying != before:
                self._said[node] = saying
                sayings.append(saying)
                size += _size(saying)
        self._complete = self._complete or self._spoken >= self._all
        return turn_words(Words(tuple(sayings), tuple(gone), self._complete), now)

    def note_silence(self) -> None:
        """Say of agents that have been gone for too long, or are back: time alone brings it."""
        for node, said in self._said.items():
            case = self._reporter.census.known(node)
            if case is not None and is_silent(case) != said.silent:
                self._reporter.unsaid.mark(node)


def is_silent(case: Case) -> bool:
    return case.silent and not case.patient.attached


def _mounts(case: Case) -> Iterator[Seen]:
    """The one check of shared targets that is not the network's."""
    health = case.patient.health
    if health is not None:
        for one in health.components.of("disk-mounts"):
            yield one.check, one.component, one.status


def _short(sees: tuple[Seen, ...]) -> tuple[Seen, ...]:
    if len(sees) <= MOST_SEEN and all(len(one[1]) <= LONGEST for one in sees):
        return sees
    return tuple(one for one in sees if len(one[1]) <= LONGEST)[:MOST_SEEN]


def _fewer(signs: frozenset[Sign]) -> frozenset[Sign]:
    """Those that a rule acts on go first, then the oldest."""
    if len(signs) <= MOST_SIGNS:
        return signs
    ordered = sorted(signs, key=lambda one: (not one.acting, one.since, one))
    return frozenset(ordered[:MOST_SIGNS])


def _size(saying: Saying) -> int:
    """About how many bytes it takes."""
    seen = sum(len(one[0]) + len(one[1]) + 8 for one in saying.sees)
    signs = sum(len(one.what) + len(one.component) + 24 for one in saying.signs)
    checks = sum(len(one) + 2 for one in saying.checks)
    return 100 + seen + signs + checks + sum(len(a) + len(b) + 6 for a, b in saying.traits)
