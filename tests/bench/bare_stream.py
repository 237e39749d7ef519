"""A node that only streams: gRPC, the contract, one heartbeat after the other, and no other code.

A program of its own (`bare_stream.py ADDRESS CA_FILE OPTIONS`), so that it imports no module of
the agent: what it costs is what any agent in Python costs that speaks gRPC from asyncio.
``OPTIONS`` are the channel's, as JSON; they are the agent's own. Prints "welcome" and runs on.
"""

import asyncio
import json
import sys
from hashlib import blake2b
from pathlib import Path

import grpc
import grpc.aio

from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc as rpc

_NODE = "bare"
_EMPTY = int.from_bytes(blake2b(digest_size=8).digest(), "big")


async def stream(address: str, authority: bytes, options: dict[str, int | str]) -> None:
    """Send an empty snapshot, and a heartbeat as often as the aggregator asks for, for ever."""
    credentials = grpc.ssl_channel_credentials(authority)
    given = list(options.items())
    async with grpc.aio.secure_channel(address, credentials, options=given) as channel:
        call = rpc.AgentGatewayStub(channel).Connect()
        hello = pb.Hello(
            node=_NODE,
            boot_id="b",
            spool_epoch="e",
            agent_version="0",
            contract_version=1,
            instance="i",
        )
        await call.write(pb.AgentMessage(hello=hello))
        first = await call.read()
        if not isinstance(first, pb.AggregatorMessage):
            raise SystemExit("the stream ended before it was welcomed")
        print("welcome", flush=True)
        await call.write(pb.AgentMessage(snapshot=pb.Snapshot(seq=1)))
        reader = asyncio.create_task(_read(call))
        while not reader.done():
            await asyncio.sleep(first.welcome.heartbeat_interval_ms / 1000)
            heartbeat = pb.Heartbeat(digest=_EMPTY, last_seq=1)
            await call.write(pb.AgentMessage(heartbeat=heartbeat))
        raise SystemExit(f"the stream ended: {reader.result()}")


async def _read(call: "grpc.aio.StreamStreamCall[pb.AgentMessage, pb.AggregatorMessage]") -> str:
    while isinstance(message := await call.read(), pb.AggregatorMessage):
        if message.HasField("resync"):
            return f"resync: {message.resync.reason}"
    return f"{await call.code()}: {await call.details()}"


if __name__ == "__main__":
    asyncio.run(stream(sys.argv[1], Path(sys.argv[2]).read_bytes(), json.loads(sys.argv[3])))
