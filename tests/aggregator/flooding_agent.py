"""An agent gone mad: sends deltas as fast as it is let, until it is killed. ADDRESS NODE."""

import asyncio
import sys

import grpc.aio

from aggregator.health.model import Component, Delta, Hello, Snapshot, Status
from sickbay.v1 import sickbay_pb2_grpc
from tests.support import evidence as said


async def main(address: str, node: str) -> None:
    parts = tuple(
        Component("disk-space", f"/data/{number}", Status.FAILED, "full", "x" * 200, since=0.0)
        for number in range(50)
    )
    async with grpc.aio.insecure_channel(address) as channel:
        call = sickbay_pb2_grpc.WardStub(channel).Attend()
        await call.write(said.hello(Hello(node, "boot-1", "e", "0", 1, "mad")))
        await call.write(said.snapshot(Snapshot(parts, ()), seq=1))
        seq = 1
        while True:
            seq += 1
            await call.write(said.delta(Delta(components=parts), seq=seq))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
