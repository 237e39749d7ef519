"""An agent whose messages cost an aggregator most, within the contract: run as a process.

    python -m tests.bench.hostile_agent FILE NODE

FILE is that of `tests.bench.hostile_clients`. It comes back after every end of its stream, and
runs until it is killed.
"""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio

from aggregator.health.model import Component, Delta, Hello, Lost, Snapshot, Status
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc
from tests.support import evidence as said

#: Seconds until it comes back: an honest agent waits longer.
_AGAIN = 0.5


def deltas() -> Iterator[Delta]:
    """Each piece of evidence is new: components, reasons, and losses."""
    for number in itertools.count():
        failed = tuple(
            Component(
                "disk-space",
                f"/data/{number}/{part}",
                Status.FAILED,
                f"reason-{number}-{part}",
                "x" * 100,
                since=0.0,
            )
            for part in range(700)
        )
        lost = tuple(
            Lost(f"source-{number}-{part}", 1, f"text {number} {part} " + "y" * 100)
            for part in range(300)
        )
        yield Delta(components=failed, lost=lost)


async def attend(channel: grpc.aio.Channel, token: str, node: str) -> None:
    """One stream, until the aggregator ends it."""
    metadata = grpc.aio.Metadata(("authorization", f"Bearer {token}"))
    call = sickbay_pb2_grpc.AgentGatewayStub(channel).Connect(metadata=metadata)
    reading = asyncio.create_task(_read_all(call))
    try:
        await call.write(said.hello(Hello(node, "boot-1", "e", "0.1.0", 1, "hostile")))
        await call.write(said.snapshot(Snapshot((), ()), seq=1))
        for seq, delta in enumerate(deltas(), 2):
            await call.write(said.delta(delta, seq=seq))
    finally:
        reading.cancel()
        call.cancel()


async def _read_all(
    call: "grpc.aio.StreamStreamCall[pb.AgentMessage, pb.AggregatorMessage]",
) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def main(plan: dict[str, Any], root: bytes, node: str) -> None:
    """See the module's docstring. ``root``: the authority's certificate."""
    credentials = grpc.ssl_channel_credentials(root)
    while True:
        async with grpc.aio.secure_channel(plan["agents"], credentials) as channel:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await attend(channel, plan["token"], node)
        await asyncio.sleep(_AGAIN)


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    asyncio.run(main(told, Path(told["ca_file"]).read_bytes(), sys.argv[2]))
