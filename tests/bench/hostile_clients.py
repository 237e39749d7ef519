"""Clients that only hold streams and connections: run beside an aggregator, as a process.

    python -m tests.bench.hostile_clients FILE

FILE is JSON: `agents` and `page` (addresses, "host:port"), `ca_file`, `token` (of one node, whose
agent is hostile), `streams` and `connections` (how many of each are kept), `again_after` (seconds
until one that the aggregator has ended is opened again). Every line on standard output is JSON:
how many are open now and how many were ended so far. It runs until its standard input ends.
"""

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc.aio

from sickbay.v1 import sickbay_pb2_grpc

#: As many calls as the listener takes on one connection.
_CALLS = 8
#: A token of the right form, which no key of the cluster has signed.
_FORGED = (
    "eyJhbGciOiJSUzI1NiIsImtpZCI6ImZvcmdlZCJ9."
    "eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6c2lja2JheTpzaWNrYmF5LWFnZW50In0.c2lnbmF0dXJl"
)


class Crowd:
    """So many of a kind, each opened again some time after it was ended."""

    def __init__(self, again_after: float, rng: random.Random) -> None:
        self.open: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._again_after = again_after
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, kind: str, hold: Callable[[], Awaitable[None]]) -> None:
        """``hold`` opens one and returns when it has ended."""
        task = asyncio.create_task(self._keep(kind, hold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, kind: str, hold: Callable[[], Awaitable[None]]) -> None:
        # Spread over the first seconds, or the figures measure the clients' own process.
        await asyncio.sleep(self._rng.uniform(0, self._again_after))
        while True:
            self.open[kind] += 1
            with contextlib.suppress(OSError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await hold()
            self.open[kind] -= 1
            self.ended[kind] += 1
            await asyncio.sleep(self._again_after * self._rng.uniform(0.5, 1.5))

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _idle(address: str) -> None:
    """A silent connection, until the other side closes it."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with closing(writer):
        while await reader.read(4096):
            pass


async def _silent(channel: grpc.aio.Channel, token: str) -> None:
    """A call that sends no message, until it is ended."""
    metadata = grpc.aio.Metadata()
    if token:
        metadata.add("authorization", f"Bearer {token}")
    call = sickbay_pb2_grpc.AgentGatewayStub(channel).Connect(metadata=metadata)
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
        await call.code()
    finally:
        call.cancel()


async def main(plan: dict[str, Any], root: bytes) -> None:
    """See the module's docstring. ``root``: the authority's certificate."""
    rng = random.Random(7)
    crowd = Crowd(plan["again_after"], rng)
    tokens = ["", _FORGED, plan["token"]]
    channels = [
        grpc.aio.secure_channel(
            plan["agents"],
            grpc.ssl_channel_credentials(root),
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)],
        )
        for _ in range(-(-plan["streams"] // _CALLS))
    ]
    for number in range(plan["streams"]):
        channel, token = channels[number // _CALLS], tokens[number % len(tokens)]
        crowd.keep("streams", lambda channel=channel, token=token: _silent(channel, token))  # type: ignore[misc]
    for number in range(plan["connections"]):
        address = plan["page"] if number % 2 else plan["agents"]
        crowd.keep("connections", lambda address=address: _idle(address))  # type: ignore[misc]
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    while not ended.done():
        print(json.dumps({"open": crowd.open, "ended": crowd.ended}), flush=True)
        await asyncio.wait([ended], timeout=1.0)
    await crowd.close()


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    asyncio.run(main(told, Path(told["ca_file"]).read_bytes()))
