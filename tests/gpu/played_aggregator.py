"""An aggregator's end of the stream for one agent, in a process of its own: prints its address.

It greets with the shipped heartbeat and acknowledges everything, and ends with its standard input.
Its argument, if any, is a folder with ``aggregator.crt`` and ``aggregator.key``: it then has TLS.
"""

import asyncio
import sys
from pathlib import Path

from sickbay.v1 import sickbay_pb2 as pb
from tests.support.fake_aggregator import FakeAggregator

_HEARTBEAT_MS = 10_000


async def main() -> None:
    aggregator = FakeAggregator()
    aggregator.welcome = pb.Welcome(
        aggregator="played", aggregator_version="0", heartbeat_interval_ms=_HEARTBEAT_MS
    )
    folder = Path(sys.argv[1]) if sys.argv[1:] else None
    pair = (folder / "aggregator.crt", folder / "aggregator.key") if folder is not None else None
    await aggregator.start(certificate=pair)
    print(aggregator.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await aggregator.stop()


if __name__ == "__main__":
    asyncio.run(main())
