"""The streams between replicas of one process: each message over the wire's own format, no socket.
What a test cuts is cut; messages may be late.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.confer.answers import put_answer, read_answer
from aggregator.confer.said import put_said, read_said
from aggregator.quarantine.conferring import Conferring
from aggregator.quarantine.presiding import NotHere, Seat, SeatLost
from aggregator.quarantine.reporting import Voice, VoiceLost
from sickbay.v1 import shards_pb2 as pb

#: A replica looks so often (seconds) whether there is a leader to speak to.
DIAL = 0.05
#: Of one message.
MOST_BYTES = 1024 * 1024


@dataclass
class _End:
    epoch: str
    conferring: Conferring
    task: asyncio.Task[None]


class Links:
    """The streams. ``late`` is drawn for each message (seconds): they keep their order."""

    def __init__(self, *, late: Callable[[], float] = lambda: 0.0) -> None:
        self._late = late
        self._ends: dict[str, _End] = {}
        self._cut: set[frozenset[str]] = set()
        self._streams: dict[str, asyncio.Task[None]] = {}

    def join(self, name: str, epoch: str, conferring: Conferring) -> None:
        """This life of the replica speaks to whoever leads, and is spoken to."""
        self.leave(name)
        task = asyncio.create_task(self._dial(name), name=f"links of {name}")
        self._ends[name] = _End(epoch, conferring, task)

    def leave(self, name: str) -> None:
        """The process is gone: its streams break."""
        end = self._ends.pop(name, None)
        if end is not None:
            end.task.cancel()
            self._break(name)

    def cut(self, one: str, other: str) -> None:
        self._cut.add(frozenset((one, other)))
        for name in (one, other):
            self._break(name)

    def mend(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        for name in list(self._ends):
            self.leave(name)

    def _break(self, name: str) -> None:
        for key, stream in list(self._streams.items()):
            if name in key.split(">"):
                stream.cancel()

    async def _dial(self, name: str) -> None:
        while True:
            await asyncio.sleep(DIAL)
            here = self._ends[name]
            leader = here.conferring.leader
            there = self._ends.get(leader.name) if leader is not None else None
            if leader is None or there is None or frozenset((name, leader.name)) in self._cut:
                continue
            try:
                seat = there.conferring.seat(name, here.epoch)
                voice = here.conferring.speak(leader)
            except NotHere:
                continue
            key = f"{name}>{leader.name}"
            stream = self._streams[key] = asyncio.create_task(self._carry(voice, seat))
            await asyncio.wait([stream])
            del self._streams[key]

    async def _carry(self, voice: Voice, seat: Seat) -> None:
        async def there() -> None:
            while True:
                said = await voice.next()
                await asyncio.sleep(self._late())
                raw = put_said(said).SerializeToString()
                assert len(raw) < MOST_BYTES
                seat.hear(read_said(pb.ShardMessage.FromString(raw)))

        async def back() -> None:
            while True:
                answer = await seat.next()
                await asyncio.sleep(self._late())
                raw = put_answer(answer).SerializeToString()
                assert len(raw) < MOST_BYTES
                voice.hear(read_answer(pb.LeaderMessage.FromString(raw)))

        ways = [asyncio.create_task(there()), asyncio.create_task(back())]
        try:
            ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            voice.close("the stream broke")
            seat.close("the stream broke")
        for way in ended:
            if not isinstance(way.exception(), SeatLost | VoiceLost):
                way.result()


def lateness(rng: random.Random, most: float) -> Callable[[], float]:
    return lambda: rng.uniform(0, most)
