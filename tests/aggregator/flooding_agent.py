"""An agent that floods: sends deltas as fast as it is let, until it is killed.

Its arguments: ADDRESS NODE [KIND ...]

Without a kind it repeats one ordinary delta; with kinds of `tests.support.hostile`, or "all", it
sends those in turn. With "reconnect" among them it begins a new stream after every 100 messages.
"""

import asyncio
import sys
from collections.abc import Iterator
from itertools import count, islice

import grpc.aio

from aggregator.health.model import Component, Delta, Hello, Snapshot, Status
from sickbay.v1 import sickbay_pb2_grpc
from tests.support import evidence as said
from tests.support import hostile

PARTS = tuple(
    Component("disk-space", f"/data/{number}", Status.FAILED, "full", "x" * 200, since=0.0)
    for number in range(50)
)
#: Messages of one stream where it is to reconnect.
PER_STREAM = 100


def deltas(kinds: list[str]) -> Iterator[Delta]:
    """Deltas without end."""
    if not kinds:
        while True:
            yield Delta(components=PARTS)
    chosen = list(hostile.KINDS) if "all" in kinds else kinds
    for number in count():
        for kind in chosen:
            yield hostile.KINDS[kind](number)


async def attend(
    stub: "sickbay_pb2_grpc.AgentGatewayAsyncStub", node: str, told: Iterator[Delta]
) -> None:
    call = stub.Connect()
    await call.write(said.hello(Hello(node, "boot-1", "e", "0", 1, "mad")))
    await call.write(said.snapshot(Snapshot(PARTS, ()), seq=1))
    for seq, delta in enumerate(told, 2):
        await call.write(said.delta(delta, seq=seq))
    await call.done_writing()


async def main(address: str, node: str, *kinds: str) -> None:
    told = deltas([kind for kind in kinds if kind != "reconnect"])
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub = sickbay_pb2_grpc.AgentGatewayStub(channel)
        while True:
            many = islice(told, PER_STREAM) if "reconnect" in kinds else told
            try:
                await attend(stub, node, many)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.sleep(0.1)  # it was ended: an agent comes back


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
