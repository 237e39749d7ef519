"""Asks the other replicas for their parts: all at once, under a deadline, often while people look.

A bad, late or missing answer of one changes no other's report: its last report is kept, and after a
moment counts as only last known.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from aggregator.clock import Clocks
from aggregator.events import Transition
from aggregator.replicas.membership.view import Member, Ownership, is_responding
from aggregator.web import models, replica_messages
from aggregator.web.event_broker import EventBroker
from aggregator.web.node_view import ViewMoment
from aggregator.web.replica_client import NoAnswer, ReplicaClient
from aggregator.web.replica_messages import PageAnswer, ReplicaReport

log = logging.getLogger("sickbay.web")

#: The deadline of a request (seconds).
DEADLINE = 1.5
#: Pauses between requests while a person looks, and while none does (seconds).
EAGER, IDLE = 1.0, 30.0
#: A page view counts as somebody looking for so long (seconds).
_ATTENTION = 5.0
#: A page view waits for answers that are older than this (seconds).
_STALE = 3.0
#: A replica that has left is listed for so long (seconds), and its last report kept, and that on a
#: node that it no longer owns.
_LISTED = 600.0


@dataclass(frozen=True, slots=True)
class _LastAnswer:
    """The last answer of one replica, and the results of the requests since."""

    answer: PageAnswer | None = None
    telling: ReplicaReport | None = None
    failed: str = ""
    asked_at: float = float("-inf")  # when the last request ended


class Peer:
    """One other replica."""

    def __init__(
        self, member: Member, client: ReplicaClient, clocks: Clocks, feed: EventBroker
    ) -> None:
        self.member = member
        self.left_at: float | None = None
        self._client = client
        self._clocks = clocks
        self._feed = feed
        self._last = _LastAnswer()
        self._aged: tuple[str, ReplicaReport] | None = None
        self._asked = asyncio.Event()

    @property
    def asked_at(self) -> float:
        """When the last request ended (monotonic)."""
        return self._last.asked_at

    @property
    def up(self) -> bool:
        """Whether it answers."""
        return not self.trouble()

    def trouble(self) -> str:
        """Why its report is only last known; empty: it answers."""
        if self.left_at is not None:
            return "has left"
        word, now = self._last, self._clocks.now()
        if word.telling is None:
            return word.failed or "has not been asked yet"
        # It is asked every 30 s while no person looks: an old answer alone is no failure.
        late = not is_responding(word.telling.seen_at, now)
        return word.failed if word.failed and late else ""

    def telling(self) -> ReplicaReport:
        """Its report, as it counts now."""
        told, trouble = self._last.telling, self.trouble()
        if told is None:
            return ReplicaReport(self.member.name, trouble=trouble)
        before = told.before
        if before is not None and self._clocks.now() - before.seen_at > _LISTED:
            told = replace(told, before=None)
            self._last = replace(self._last, telling=told)
        if not trouble:
            return told
        # Made once for each kind of problem, because it goes through all its nodes.
        if self._aged is None or self._aged[0] != trouble or self._aged[1].at != told.at:
            old = replace(told, trouble=trouble)
            self._aged = (trouble, replace(old, nodes=replica_messages.aged(old)))
        return self._aged[1]

    async def ask(self, moment: Callable[[], ViewMoment]) -> None:
        """Ask for its part, and keep the answer. Never raises for the other replica's failures."""
        known, before = self._last.answer, self.trouble()
        have = {"have": known.revision, "seen": known.seen} if known is not None else {}
        try:
            answer = await self._client.ask(self.member, "part", PageAnswer, **have)
            telling = _telling(answer, self._last, moment())
            happened = replica_messages.transitions(answer.events)
            self._feed.relay(happened, fresh=answer.fresh, missed=answer.missed)
        except NoAnswer as error:
            self._last = replace(self._last, failed=str(error), asked_at=self._clocks.now())
        except Exception:  # a defect of ours: ask it again, and report the problem meanwhile
            log.exception("a replica's answer", extra={"replica": self.member.name})
            failed = "does not answer properly: a mistake here, which the log has"
            self._last = replace(self._last, failed=failed, asked_at=self._clocks.now())
        else:
            self._last = _LastAnswer(answer, telling, "", self._clocks.now())
            if answer.part is not None or before:
                self._feed.wake_streams()
        asked, self._asked = self._asked, asyncio.Event()
        asked.set()
        if self.trouble() != before:
            self._feed.wake_streams()
            self.log_failure()

    def log_failure(self) -> None:
        reason = self.trouble()
        told = {"replica": self.member.name, "reason": reason}
        if reason:
            log.warning("a replica's nodes are only last known to the page", extra=told)
        else:
            log.info("a replica tells the page of its nodes", extra=told)

    async def asked(self) -> None:
        """Return when the present or next request has ended."""
        await self._asked.wait()


def _telling(answer: PageAnswer, before: _LastAnswer, moment: ViewMoment) -> ReplicaReport:
    """The answer merged with the earlier report. Raises NoAnswer where they don't fit together."""
    told, at = before.telling, moment.when(moment.now)
    if answer.part is not None:
        try:
            replica_messages.check(answer.part)
        except replica_messages.Unreadable as error:
            raise NoAnswer(f"does not answer properly: {error}") from error
        nodes = {one.node: one for one in answer.part.nodes}
        places = {one.node: place for place, one in enumerate(answer.part.nodes)}
        fresh = ReplicaReport(answer.name, nodes, places, lemons=tuple(answer.part.lemons))
        told = (
            fresh if told is None else replace(fresh, before=replica_messages.dropped(told, fresh))
        )
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


class ReplicaPoller:
    """All the others, as the membership view names them."""

    def __init__(
        self,
        shards: Ownership,
        client: ReplicaClient,
        clocks: Clocks,
        feed: EventBroker,
        moment: Callable[[], ViewMoment],
    ) -> None:
        self._shards = shards
        self._client = client
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

    def tellings(self) -> Mapping[str, ReplicaReport]:
        """The last report of each, by name; that of a replica that has left is kept for some
        time.
        """
        self._follow()
        return {name: peer.telling() for name, peer in self._peers.items()}

    def up(self) -> dict[str, bool]:
        """The members of the view, and whether each answers."""
        self._follow()
        return {name: peer.up for name, peer in self._peers.items() if peer.left_at is None}

    async def answering_replicas(self) -> None:
        """A person looks: return when each has answered lately, or had its time to.

        At once while there is no other, and when a person has looked just before.
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

    async def story(self, name: str, node: str) -> models.Node | None:
        """The node's details from that replica, without timeline, or None if it does not know the
        node.

        Raises NoAnswer.
        """
        peer = self._peers.get(name)
        if peer is None or peer.left_at is not None:
            raise NoAnswer(f"{name or 'its replica'} is not known")
        if not peer.up:
            raise NoAnswer(peer.trouble())
        told = (
            await self._client.ask(
                peer.member, "node", replica_messages.NodeDetailAnswer, name=node
            )
        ).node
        if told is not None and told.node != node:
            raise NoAnswer("does not answer properly: it tells of another node")
        return told

    async def pasts(
        self, node: str, since: float, limit: int, until: float
    ) -> tuple[list[Transition], list[str]]:
        """The transitions of the others' histories, and why some may be missing."""
        living = [peer for peer in self._peers.values() if peer.left_at is None]
        asked = {"node": node, "since": str(since) if since else "", "limit": str(limit)}
        if until != math.inf:
            asked["until"] = str(until)

        async def ask(peer: Peer) -> replica_messages.HistoryAnswer:
            trouble = peer.trouble()
            try:
                if not trouble:
                    return await self._client.ask(
                        peer.member, "past", replica_messages.HistoryAnswer, **asked
                    )
            except NoAnswer as error:
                trouble = str(error)
            return replica_messages.HistoryAnswer(trouble=f"{peer.member.name} {trouble}")

        pasts = await asyncio.gather(*(ask(peer) for peer in living))
        found = [one for past in pasts for one in replica_messages.transitions(past.events)]
        return found, [past.trouble for past in pasts if past.trouble]

    async def run(self) -> None:
        """Ask them until cancelled. While there is no other, it only waits."""
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
        """Update the list of replicas from the membership view."""
        membership_view, now = self._shards.membership_view, self._clocks.now()
        for name, member in membership_view.members.items():
            peer = self._peers.get(name)
            if name == membership_view.me:
                continue
            if peer is None:
                peer = self._peers[name] = Peer(member, self._client, self._clocks, self._feed)
                self._changed.set()
            elif peer.left_at is not None:
                peer.left_at = None
                self._changed.set()
            elif (peer.member.page, peer.member.epoch) != (member.page, member.epoch):
                self._wanted.set()  # restarted, or at another address: it may answer now
            peer.member = member
        for name, peer in list(self._peers.items()):
            if name in membership_view.members and name != membership_view.me:
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
