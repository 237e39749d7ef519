"""The leader's side: hears each replica's words, feeds them to what counts, and answers.

What other replicas say goes into the same counts as what our own agents say, so that common causes,
triangulation and admission come out as if there were but one replica.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import ClusterError
from aggregator.quarantine.decide.admission import Held
from aggregator.quarantine.decide.doubt import Doubt
from aggregator.quarantine.decide.sayings import (
    Answer,
    Ask,
    Beat,
    Decision,
    Findings,
    Outlook,
    Said,
    Saying,
    Words,
    turn_findings,
    turn_outlook,
    turn_saying,
)
from aggregator.quarantine.elsewhere import Elsewhere
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.registrar import Registrar
from aggregator.quarantine.reporting import BEAT
from aggregator.quarantine.suspecting import Suspecting
from aggregator.quarantine.triangulating import Triangulating
from aggregator.shards.council import Shards

#: A replica whose last word is older (seconds) may know of more than it has told.
STALE = 4.0
#: What one replica may speak of and ask at once; more is no replica of ours.
MOST_NODES = 50_000
MOST_ASKED = 10_000
FINDINGS_A_MESSAGE = 400
#: Causes that are told of; admission here goes by all of them.
MOST_CAUSES = 200


class NotHere(Exception):
    """We are not the one to speak to, or they are not one to speak to us: try again later."""


class Unruly(Exception):
    """A replica says what none may say. Its stream ends; others go on."""


class SeatLost(Exception):
    """The stream is of no use any more; the text says why."""


class Presiding:
    """``settled`` is called when a replica has told of all its nodes, or is not heard any more."""

    def __init__(
        self,
        *,
        shards: Shards,
        census: Census,
        elsewhere: Elsewhere,
        suspecting: Suspecting,
        triangulating: Triangulating,
        registrar: Registrar,
        fleet: Fleet,
        clocks: Clocks,
        settled: Callable[[], None],
    ) -> None:
        self._shards = shards
        self._census = census
        self._elsewhere = elsewhere
        self._suspecting = suspecting
        self._triangulating = triangulating
        self._registrar = registrar
        self._fleet = fleet
        self._clocks = clocks
        self._settled = settled
        self._seats: dict[str, Seat] = {}
        self.outlook = Outlook()
        triangulating.tell_owner = self._tell_owner

    def seat(self, name: str, epoch: str) -> "Seat":
        """A replica has opened a stream. Raises `NotHere`."""
        council = self._shards.council
        leader, member = council.leader, council.members.get(name)
        if leader is None or leader.name != council.me:
            led = f"{leader.name} does" if leader is not None else "nobody is known to"
            raise NotHere(f"{council.me} does not lead; {led}")
        if name == council.me or member is None or member.epoch != epoch:
            raise NotHere(f"{name} is not among the replicas that {council.me} knows")
        earlier = self._seats.pop(name, None)
        if earlier is not None:
            earlier.close("the replica has opened another stream")
        self._elsewhere.leave_all(name, self._clocks.now())
        made = self._seats[name] = Seat(name, epoch, self, self._clocks)
        return made

    def left(self, seat: "Seat") -> None:
        if self._seats.get(seat.name) is seat:
            del self._seats[seat.name]
            self._settled()

    def missing(self) -> str:
        """Which replicas have not told of all their nodes, in words. Empty: all have."""
        council, now = self._shards.council, self._clocks.now()
        if len(council.members) < 2:
            return ""
        names = [
            name
            for name, member in sorted(council.members.items())
            if name != council.me and not self._has_told(name, member.epoch, now)
        ]
        if not names:
            return ""
        have = "has" if len(names) == 1 else "have"
        return f"{', '.join(names)} {have} not told of all nodes"

    def _has_told(self, name: str, epoch: str, now: float) -> bool:
        seat = self._seats.get(name)
        if seat is None or seat.epoch != epoch or not seat.complete:
            return False
        return now - seat.heard_at <= STALE

    def members_changed(self) -> None:
        """Whoever has left speaks no more; what it said stands until its nodes' new owners do."""
        members = self._shards.council.members
        for name, seat in list(self._seats.items()):
            member = members.get(name)
            if member is None or member.epoch != seat.epoch:
                seat.close("it is not among the replicas any more")
        for name in self._elsewhere.tellers() - members.keys():
            self._elsewhere.leave_all(name, self._clocks.now())

    def close(self, reason: str) -> None:
        """We do not lead any more."""
        for seat in list(self._seats.values()):
            seat.close(reason)
        self.outlook = Outlook()

    def look(self, doubt: Doubt, reported: int) -> None:
        """Tell all replicas what is made of the fleet, where that has changed."""
        causes = tuple(self._fleet.causes.values())[:MOST_CAUSES]
        network = tuple(self._fleet.network.values())[:MOST_CAUSES]
        self.outlook = Outlook(causes, network, reported, doubt)
        for seat in self._seats.values():
            seat.stir()

    # -- what the seats call -----------------------------------------------------------------

    def hear(self, name: str, saying: Saying) -> bool:
        """A replica speaks of a node; whether it counts."""
        case = self._census.known(saying.node)
        if self._shards.owns(saying.node) and case is not None and case.fresh:
            return False  # its agent speaks to us
        told = turn_saying(saying, self._clocks.now())
        self._elsewhere.take(name, told)
        self._suspecting.told(told)
        self._triangulating.told(told)
        return True

    def stop_hearing(self, name: str, node: str) -> None:
        if self._elsewhere.teller(node) == name:
            self._elsewhere.leave(node, self._clocks.now())

    def completed(self) -> None:
        self._settled()

    async def decide(self, ask: Ask) -> Decision:
        """Ask the record. The replica that asks sees for itself whether the entry stands."""
        if not self._shards.leads():
            text = f"{self._shards.council.me}, which leads, may not act now: asked again"
            return Decision(ask.number, Held("shards", "no leader", text))
        try:
            return Decision(ask.number, await self._registrar.propose(ask.proposal))
        except ClusterError as error:
            return Decision(ask.number, failed=str(error) or "the record can't be used")

    def findings(self, nodes: list[str]) -> Findings:
        found = {node: self._triangulating.finding(node) for node in nodes}
        return turn_findings(
            Findings({node: one for node, one in found.items() if one is not None}),
            self._clocks.now(),
        )

    def _tell_owner(self, node: str) -> None:
        seat = self._seats.get(self._elsewhere.teller(node))
        if seat is not None:
            seat.found(node)


class Seat:
    """One replica's stream. A transport calls `hear` and `next` until either raises, and `close`
    in the end.
    """

    def __init__(self, name: str, epoch: str, presiding: Presiding, clocks: Clocks) -> None:
        self.name = name
        self.epoch = epoch
        self.complete = False
        self.heard_at = clocks.now()
        self._presiding = presiding
        self._now = clocks.now
        self._nodes: set[str] = set()
        self._decided: deque[Decision] = deque()
        self._asked: set[asyncio.Task[None]] = set()
        self._found: dict[str, None] = {}
        self._outlook: Outlook | None = None
        self._beat_at = clocks.now()
        self._stirred = asyncio.Event()
        self._lost = ""

    def stir(self) -> None:
        self._stirred.set()

    def found(self, node: str) -> None:
        """There is a new finding of this node of theirs."""
        self._found[node] = None
        self._stirred.set()

    def hear(self, said: Said) -> None:
        """What the replica says. Raises `Unruly`, and `SeatLost` once closed."""
        if self._lost:
            raise SeatLost(self._lost)
        self.heard_at = self._now()
        if isinstance(said, Words):
            self._hear_words(said)
        elif isinstance(said, Ask):
            if len(self._asked) >= MOST_ASKED:
                raise Unruly(f"{self.name} asks more than {MOST_ASKED} things at once")
            task = asyncio.create_task(self._decide(said), name=f"admission for {self.name}")
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)

    def _hear_words(self, words: Words) -> None:
        for node in words.gone:
            self._nodes.discard(node)
            self._presiding.stop_hearing(self.name, node)
        for saying in words.sayings:
            if self._presiding.hear(self.name, saying) and saying.node not in self._nodes:
                self._nodes.add(saying.node)
                self.found(saying.node)  # what was found before it spoke to us
        if len(self._nodes) > MOST_NODES:
            raise Unruly(f"{self.name} speaks of more than {MOST_NODES} nodes")
        if words.complete and not self.complete:
            self.complete = True
            self._presiding.completed()

    async def _decide(self, ask: Ask) -> None:
        self._decided.append(await self._presiding.decide(ask))
        self._stirred.set()

    async def next(self) -> Answer:
        """What is to be sent next; waits for it. Raises `SeatLost`."""
        while True:
            now = self._now()
            if self._lost:
                raise SeatLost(self._lost)
            answer = self._due(now)
            if answer is not None:
                self._beat_at = now + BEAT
                return answer
            self._stirred.clear()
            try:
                async with asyncio.timeout(max(0.0, self._beat_at - now)):
                    await self._stirred.wait()
            except TimeoutError:
                pass

    def _due(self, now: float) -> Answer | None:
        if self._decided:
            return self._decided.popleft()
        if self._outlook != self._presiding.outlook:
            self._outlook = self._presiding.outlook
            return turn_outlook(self._outlook, now)
        if self._found:
            nodes = list(self._found)[:FINDINGS_A_MESSAGE]
            for node in nodes:
                del self._found[node]
            answer = self._presiding.findings(nodes)
            if answer.findings:
                return answer
            return self._due(now)
        return Beat() if now >= self._beat_at else None

    def close(self, reason: str) -> None:
        """The stream has ended."""
        if self._lost:
            return
        self._lost = reason
        self._stirred.set()
        for task in self._asked:
            task.cancel()
        self._presiding.left(self)
