"""Asks the other replicas for their parts: all at once, under a deadline, often while people look.

What one answers badly, late or not at all changes nothing about the others: its last word is kept,
and after a moment counts as no more than that.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.ledger import Transition
from aggregator.shards.council import Member, Shards
from aggregator.web import parts, shapes
from aggregator.web.courier import Courier, NoAnswer
from aggregator.web.feed import Feed
from aggregator.web.parts import Answer, Telling
from aggregator.web.view import Moment

log = logging.getLogger("sickbay.web")

#: A question is asked so long (seconds).
DEADLINE = 1.5
#: Between questions while somebody looks, and while nobody does (seconds).
EAGER, IDLE = 1.0, 30.0
#: Somebody looks if somebody has within so long (seconds).
_ATTENTION = 5.0
#: An answer this old (seconds), of one that was asked since in vain, is only its last word: two
#: questions that a busy replica answers late are no news.
GRACE = 4.0
#: Who looks waits for answers that are older than this (seconds).
_STALE = 3.0
#: A replica that has left is listed for so long (seconds), and its last word kept, and that on a
#: node that it has let go of.
_LISTED = 600.0


@dataclass(frozen=True, slots=True)
class _Word:
    """The last answer of one replica, and what came of asking since."""

    answer: Answer | None = None
    telling: Telling | None = None
    failed: str = ""
    asked_at: float = float("-inf")  # when the last question ended


class Peer:
    """One other replica."""

    def __init__(self, member: Member, courier: Courier, clocks: Clocks, feed: Feed) -> None:
        self.member = member
        self.left_at: float | None = None
        self._courier = courier
        self._clocks = clocks
        self._feed = feed
        self._word = _Word()
        self._aged: tuple[str, Telling] | None = None
        self._asked = asyncio.Event()

    @property
    def asked_at(self) -> float:
        """When the last question ended (monotonic)."""
        return self._word.asked_at

    @property
    def up(self) -> bool:
        """Whether it answers."""
        return not self.trouble()

    def trouble(self) -> str:
        """Why what it has told is only its last word; empty: it answers."""
        if self.left_at is not None:
            return "has left"
        word, now = self._word, self._clocks.now()
        if word.telling is None:
            return word.failed or "has not been asked yet"
        late = now - word.telling.seen_at > GRACE
        return word.failed if word.failed and late else ""

    def telling(self) -> Telling:
        """What it has told, as it counts now."""
        told, trouble = self._word.telling, self.trouble()
        if told is None:
            return Telling(self.member.name, trouble=trouble)
        before = told.before
        if before is not None and self._clocks.now() - before.seen_at > _LISTED:
            told = replace(told, before=None)
            self._word = replace(self._word, telling=told)
        if not trouble:
            return told
        # Made once for each kind of trouble: it goes through all its nodes.
        if self._aged is None or self._aged[0] != trouble or self._aged[1].at != told.at:
            old = replace(told, trouble=trouble)
            self._aged = (trouble, replace(old, nodes=parts.aged(old)))
        return self._aged[1]

    async def ask(self, moment: Callable[[], Moment]) -> None:
        """Ask for its part, and keep what comes. Never raises for what the other did."""
        known, before = self._word.answer, self.trouble()
        have = {"have": known.revision, "seen": known.seen} if known is not None else {}
        try:
            answer = await self._courier.ask(self.member, "part", Answer, **have)
            telling = _telling(answer, self._word, moment())
            happened = parts.transitions(answer.events)
            self._feed.relay(happened, fresh=answer.fresh, missed=answer.missed)
        except NoAnswer as error:
            self._word = replace(self._word, failed=str(error), asked_at=self._clocks.now())
        except Exception:  # a mistake of ours: it has to be asked again, and meanwhile told apart
            log.exception("a replica's answer", extra={"replica": self.member.name})
            failed = "does not answer properly: a mistake here, which the log has"
            self._word = replace(self._word, failed=failed, asked_at=self._clocks.now())
        else:
            self._word = _Word(answer, telling, "", self._clocks.now())
            if answer.part is not None or before:
                self._feed.poke()
        asked, self._asked = self._asked, asyncio.Event()
        asked.set()
        if self.trouble() != before:
            self._feed.poke()
            self._say()

    def _say(self) -> None:
        reason = self.trouble()
        told = {"replica": self.member.name, "reason": reason}
        if reason:
            log.warning("a replica's nodes are only last known to the page", extra=told)
        else:
            log.info("a replica tells the page of its nodes", extra=told)

    async def asked(self) -> None:
        """Return when a question has ended that is asked now or next."""
        await self._asked.wait()


def _telling(answer: Answer, before: _Word, moment: Moment) -> Telling:
    """The answer with what was known before. Raises NoAnswer where they don't fit together."""
    told, at = before.telling, moment.when(moment.now)
    if answer.part is not None:
        try:
            parts.check(answer.part)
        except parts.Unreadable as error:
            raise NoAnswer(f"does not answer properly: {error}") from error
        nodes = {one.node: one for one in answer.part.nodes}
        places = {one.node: place for place, one in enumerate(answer.part.nodes)}
        fresh = Telling(answer.name, nodes, places, lemons=tuple(answer.part.lemons))
        told = fresh if told is None else replace(fresh, before=parts.dropped(told, fresh))
    elif told is None or before.answer is None or before.answer.revision != answer.revision:
        raise NoAnswer("does not answer properly: it sent nothing where something is new")
    if len(answer.heard) != len(told.nodes):
        raise NoAnswer("does not answer properly: it names other nodes than it has heard")
    return replace(
        told,
        heard=answer.heard,
        not_ready=tuple(answer.not_ready),
        seen_at=moment.now,
        at=at.replace(microsecond=0),
    )


class Peers:
    """All the others, as the council names them."""

    def __init__(
        self,
        shards: Shards,
        courier: Courier,
        clocks: Clocks,
        feed: Feed,
        moment: Callable[[], Moment],
    ) -> None:
        self._shards = shards
        self._courier = courier
        self._clocks = clocks
        self._feed = feed
        self._moment = moment
        self._peers: dict[str, Peer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted_at = float("-inf")
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        shards.on_change(self._changed.set)
        self._follow()

    @property
    def others(self) -> bool:
        """Whether there is any other replica, or was a while ago."""
        self._follow()
        return bool(self._peers)

    def tellings(self) -> Mapping[str, Telling]:
        """What each has told, by name; of one that has left, for some time that it has."""
        self._follow()
        return {name: peer.telling() for name, peer in self._peers.items()}

    def up(self) -> dict[str, bool]:
        """Those of the council, and whether each answers."""
        self._follow()
        return {name: peer.up for name, peer in self._peers.items() if peer.left_at is None}

    async def fresh(self) -> None:
        """Somebody looks: return when each has answered lately, or had its time to.

        At once while there is no other, and while somebody has looked just before.
        """
        self._follow()
        if not self._peers:
            return
        now = self._clocks.now()
        self._wanted_at = now
        late = [peer for peer in self._peers.values() if now - peer.asked_at > _STALE]
        late = [peer for peer in late if peer.left_at is None]
        if not late:
            return
        self._wanted.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE + 0.5):
                await asyncio.gather(*(peer.asked() for peer in late))

    async def story(self, name: str, node: str) -> shapes.Node | None:
        """The node's story from that replica, without timeline; None: it knows of no such node.

        Raises NoAnswer.
        """
        peer = self._peers.get(name)
        if peer is None or peer.left_at is not None:
            raise NoAnswer(f"{name or 'its replica'} is not known")
        if not peer.up:
            raise NoAnswer(peer.trouble())
        told = (await self._courier.ask(peer.member, "node", parts.Story, name=node)).node
        if told is not None and told.node != node:
            raise NoAnswer("does not answer properly: it tells of another node")
        return told

    async def pasts(
        self, node: str, since: float, limit: int, until: float
    ) -> tuple[list[Transition], list[str]]:
        """What the others' histories know, and why some of it may be missing."""
        living = [peer for peer in self._peers.values() if peer.left_at is None]
        asked = {"node": node, "since": str(since) if since else "", "limit": str(limit)}
        if until != math.inf:
            asked["until"] = str(until)

        async def ask(peer: Peer) -> parts.Past:
            trouble = peer.trouble()
            try:
                if not trouble:
                    return await self._courier.ask(peer.member, "past", parts.Past, **asked)
            except NoAnswer as error:
                trouble = str(error)
            return parts.Past(trouble=f"{peer.member.name} {trouble}")

        pasts = await asyncio.gather(*(ask(peer) for peer in living))
        found = [one for past in pasts for one in parts.transitions(past.events)]
        return found, [past.trouble for past in pasts if past.trouble]

    async def run(self) -> None:
        """Ask them until cancelled. While there is no other, this does nothing."""
        try:
            while True:
                self._changed.clear()
                self._follow()
                for name, peer in self._peers.items():
                    if name not in self._tasks and peer.left_at is None:
                        self._tasks[name] = asyncio.create_task(self._keep(peer), name=name)
                await self._changed.wait()
        finally:
            await self._end(list(self._tasks.values()))

    async def _keep(self, peer: Peer) -> None:
        while peer.left_at is None:
            await peer.ask(self._moment)
            if self._clocks.now() - self._wanted_at < _ATTENTION:
                await asyncio.sleep(EAGER)
                continue
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE):
                    await self._wanted.wait()
        self._tasks.pop(peer.member.name, None)
        self._changed.set()  # it may have come back meanwhile

    def _follow(self) -> None:
        """Who is there, as the council has it now."""
        council, now = self._shards.council, self._clocks.now()
        for name, member in council.members.items():
            peer = self._peers.get(name)
            if name == council.me:
                continue
            if peer is None:
                peer = self._peers[name] = Peer(member, self._courier, self._clocks, self._feed)
                self._changed.set()
            elif peer.left_at is not None:
                peer.left_at = None
                self._changed.set()
            elif (peer.member.page, peer.member.epoch) != (member.page, member.epoch):
                self._wanted.set()  # another life of it, or elsewhere: it may answer now
            peer.member = member
        for name, peer in list(self._peers.items()):
            if name in council.members and name != council.me:
                continue
            if peer.left_at is None:
                peer.left_at = now
                self._wanted.set()
            elif now - peer.left_at > _LISTED:
                del self._peers[name]

    async def _end(self, tasks: list["asyncio.Task[None]"]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
