"""Acknowledgements under load: no ack is lost, and most come once the evidence is acted on."""

import asyncio
import weakref

import pytest

from aggregator.ingest import codec
from aggregator.ingest.ack_pacing import AT_ONCE, LATER, AckPacer
from aggregator.ingest.send_queue import SendQueue
from sickbay.v1 import sickbay_pb2 as pb
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


class Agents:
    """Each is acknowledged once; ``paid`` has the acks and times. Made in a running loop."""

    def __init__(self) -> None:
        self.ack_pacer = AckPacer()
        self.begun = asyncio.get_running_loop().time()
        self.paid: list[tuple[str, float]] = []
        self._attached: list[Owed] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.paid]

    def let(self, name: str) -> None:
        """An agent more, which stays attached."""
        self._attached.append(Owed(self.paid, name))
        self.ack_pacer.schedule_ack(self._attached[-1])


class Owed:
    """A stream that owes an ack; records when it sent it."""

    def __init__(self, paid: list[tuple[str, float]], name: str) -> None:
        self._paid = paid
        self._name = name

    def flush_ack(self) -> None:
        self._paid.append((self._name, asyncio.get_running_loop().time()))


async def test_one_that_says_much_delays_no_other() -> None:
    agents = Agents()
    loud = Owed(agents.paid, "loud")
    for _ in range(500):
        agents.ack_pacer.schedule_ack(loud)
    agents.let("other")
    assert len(agents.paid) == 501
    assert agents.paid[-1][0] == "other"


async def test_a_storm_is_acknowledged_in_order_when_its_nodes_have_been_marked() -> None:
    agents = Agents()
    for number in range(500):
        agents.let(str(number))
    assert len(agents.paid) == AT_ONCE
    await asyncio.sleep(LATER - 0.1)
    assert len(agents.paid) == AT_ONCE
    await asyncio.sleep(1.0)
    assert agents.names == [str(number) for number in range(500)]
    # Not in one go: agents must be read meanwhile.
    assert len({at for _, at in agents.paid}) > 20
    assert agents.paid[-1][1] - agents.begun < LATER + 1.0


async def test_after_a_storm_few_are_acknowledged_at_once_again() -> None:
    agents = Agents()
    for number in range(100):
        agents.let(str(number))
    await asyncio.sleep(1.5)
    agents.let("another")
    assert agents.paid[-1][0] == "another"
    await asyncio.sleep(LATER)
    assert len(agents.paid) == 101


class Talk:
    """A stream: records the messages written, and their times."""

    def __init__(self, ack_pacer: AckPacer) -> None:
        self.written: list[tuple[str, int, float]] = []
        self.outbox = SendQueue(self)
        self._ack_pacer = ack_pacer

    async def write(self, message: pb.AggregatorMessage) -> None:
        kind = message.WhichOneof("body") or ""
        self.written.append((kind, message.ack.seq, asyncio.get_running_loop().time()))

    def overflowed(self) -> None:
        raise AssertionError("nothing was held back")

    def unsafe(self, error: BaseException) -> None:
        raise AssertionError(error)

    def safe(self, seq: int) -> None:
        self.outbox.defer_ack(seq)
        self._ack_pacer.schedule_ack(self.outbox)


async def test_what_is_owed_goes_out_once_and_sooner_where_something_else_does() -> None:
    ack_pacer, begun = AckPacer(), asyncio.get_running_loop().time()
    for talk in [Talk(ack_pacer) for _ in range(AT_ONCE)]:
        talk.safe(1)
    plain, chatty, asked, beaten, left = (Talk(ack_pacer) for _ in range(5))
    for talk in (plain, chatty, asked, beaten, left):
        talk.safe(1)
    await asyncio.sleep(0.5)
    chatty.safe(2)
    asked.outbox.put(codec.resync("say it again"))
    beaten.outbox.answer()
    gone = weakref.ref(left)
    left.outbox.close()
    del left, talk
    assert gone() is None, "a stream that has ended is not kept by what it owed"
    await asyncio.sleep(LATER + 1.0)
    assert plain.written == [("ack", 1, begun + LATER)]
    assert chatty.written == [("ack", 2, begun + LATER)]
    assert asked.written == [("resync", 0, begun + 0.5), ("ack", 1, begun + 0.5)]
    assert beaten.written == [("ack", 1, begun + 0.5)]
