"""An aggregator's end of the stream for one agent, in a process of its own: prints its address.

It greets with the shipped heartbeat and acknowledges everything, and ends with its standard input.
"""

import asyncio
import sys

from sickbay.v1 import sickbay_pb2 as pb
from tests.support.fake_aggregator import FakeAggregator

_HEARTBEAT_MS = 10_000


async def main() -> None:
    aggregator = FakeAggregator()
    aggregator.welcome = pb.Welcome(
        aggregator="played", aggregator_version="0", heartbeat_interval_ms=_HEARTBEAT_MS
    )
    await aggregator.start()
    print(aggregator.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await aggregator.stop()


if __name__ == "__main__":
    asyncio.run(main())
