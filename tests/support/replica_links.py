"""The streams between replicas of one process: each message over the wire's own format, no socket.
A test may cut a link; messages may be late.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.quarantine.coordination.coordinator import Coordinator
from aggregator.quarantine.coordination.follower import LeaderSession, LeaderSessionClosed
from aggregator.quarantine.coordination.leader import FollowerSession, NotLeader, SessionClosed
from aggregator.replicas.rpc.answer_codec import decode_answer, encode_answer
from aggregator.replicas.rpc.report_codec import decode_report, encode_report
from sickbay.v1 import shards_pb2 as pb

#: A replica looks so often (seconds) whether there is a leader to speak to.
DIAL = 0.05
#: Of one message.
MOST_BYTES = 1024 * 1024


@dataclass
class _End:
    epoch: str
    coordinator: Coordinator
    task: asyncio.Task[None]


class Links:
    """The streams. ``late`` is drawn for each message (seconds): they keep their order."""

    def __init__(self, *, late: Callable[[], float] = lambda: 0.0) -> None:
        self._late = late
        self._ends: dict[str, _End] = {}
        self._cut: set[frozenset[str]] = set()
        self._streams: dict[str, asyncio.Task[None]] = {}

    def join(self, name: str, epoch: str, coordinator: Coordinator) -> None:
        """This life of the replica has a stream to the leader, and takes streams of others."""
        self.leave(name)
        task = asyncio.create_task(self._dial(name), name=f"links of {name}")
        self._ends[name] = _End(epoch, coordinator, task)

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
            leader = here.coordinator.leader
            there = self._ends.get(leader.name) if leader is not None else None
            if leader is None or there is None or frozenset((name, leader.name)) in self._cut:
                continue
            try:
                session = there.coordinator.open_session(name, here.epoch)
                leader_session = here.coordinator.report_to_leader(leader)
            except NotLeader:
                continue
            key = f"{name}>{leader.name}"
            stream = self._streams[key] = asyncio.create_task(self._carry(leader_session, session))
            await asyncio.wait([stream])
            del self._streams[key]

    async def _carry(self, leader_session: LeaderSession, session: FollowerSession) -> None:
        async def there() -> None:
            while True:
                said = await leader_session.next()
                await asyncio.sleep(self._late())
                raw = encode_report(said).SerializeToString()
                assert len(raw) < MOST_BYTES
                session.receive(decode_report(pb.ShardMessage.FromString(raw)))

        async def back() -> None:
            while True:
                answer = await session.next()
                await asyncio.sleep(self._late())
                raw = encode_answer(answer).SerializeToString()
                assert len(raw) < MOST_BYTES
                leader_session.receive(decode_answer(pb.LeaderMessage.FromString(raw)))

        ways = [asyncio.create_task(there()), asyncio.create_task(back())]
        try:
            ended, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            leader_session.close("the stream broke")
            session.close("the stream broke")
        for way in ended:
            if not isinstance(way.exception(), SessionClosed | LeaderSessionClosed):
                way.result()


def lateness(rng: random.Random, most: float) -> Callable[[], float]:
    return lambda: rng.uniform(0, most)
