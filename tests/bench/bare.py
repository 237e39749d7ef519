"""The contract's streams without an aggregator behind them: the cost of gRPC itself per agent.

Over mutual TLS as the aggregator has it, with its options and environment of gRPC and its setting
of Python's collector: one coroutine for each stream reads and answers: it welcomes a Hello,
acknowledges evidence, takes a heartbeat. It folds and keeps no evidence, has no timers, and holds
no message. The aggregator's cost beyond this is its own.
"""

import argparse
import asyncio
import signal
from pathlib import Path

import grpc
import grpc.aio

from aggregator.ingest.listener import OPTIONS
from aggregator.runtime import gc_tuning
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc as rpc

#: As the aggregator's default.
HEARTBEAT_MS = 10_000


class Bare(rpc.AgentGatewayServicer):
    """Answers, and keeps no state."""

    async def Connect(  # type: ignore[override]  # the read and write calls of grpc.aio
        self, _: object, context: "grpc.aio.ServicerContext[pb.AgentMessage, pb.AggregatorMessage]"
    ) -> None:
        while True:
            message: object = await context.read()
            if not isinstance(message, pb.AgentMessage):
                return
            kind = message.WhichOneof("body")
            if kind == "hello":
                welcome = pb.Welcome(aggregator="bare", heartbeat_interval_ms=HEARTBEAT_MS)
                await context.write(pb.AggregatorMessage(welcome=welcome))
                del welcome
            elif kind in {"snapshot", "delta"}:
                seq = message.snapshot.seq or message.delta.seq
                await context.write(pb.AggregatorMessage(ack=pb.Ack(seq=seq)))
            del message  # while it waits for the next, as the aggregator


async def _serve(options: argparse.Namespace) -> None:
    server = grpc.aio.server(options=OPTIONS)
    rpc.add_AgentGatewayServicer_to_server(Bare(), server)
    credentials = grpc.ssl_server_credentials(
        [(options.key.read_bytes(), options.cert.read_bytes())],
        options.ca.read_bytes(),
        require_client_auth=True,
    )
    server.add_secure_port(options.listen, credentials)
    await server.start()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    await server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    for name in ("cert", "key", "ca"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    gc_tuning.raise_thresholds()
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
