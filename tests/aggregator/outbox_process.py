"""A process that takes alerts and is killed: ``OUTBOX URL SECRET_FILE COUNT``.

Prints "kept" when they are in the outbox, and then waits to be killed.
"""

import asyncio
import random
import sys
from pathlib import Path

from aggregator.alerts.notifier import Notifier, WebhookConfig
from aggregator.alerts.sender import BatchWait
from aggregator.events import EventKind, Transition
from tests.support.waiting import CLOCKS, until


async def main(outbox: Path, url: str, secret_file: Path, count: int) -> None:
    alerts = Notifier(
        outbox,
        [WebhookConfig(url, secret_file, timeout=60)],
        clocks=CLOCKS,
        rng=random.Random(1),
        patience=BatchWait(linger=0.02, grouped=0.1),
    )
    alerts.start()
    for number in range(count):
        alerts.record_event(
            Transition(1e9 + number, EventKind.CORDONED, f"n{number}", "ill", f"i{number}")
        )
    await until(lambda: alerts.counters.accepted == count)
    print("kept", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
