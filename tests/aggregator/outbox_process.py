"""A process that takes alerts and is killed: ``OUTBOX URL SECRET_FILE COUNT [TIMEOUT]``.

Prints "kept" when they are in the outbox, and then waits to be killed. Attempts that fail are
tried again soon. ``TIMEOUT`` of an attempt is in seconds (60).
"""

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

from aggregator.alerts.notifier import Notifier
from aggregator.alerts.outbox import BatchWait
from aggregator.alerts.routes import targets_of
from aggregator.alerts.store import FileStore
from aggregator.alerts.webhook import Retry
from aggregator.events import EventKind, Transition
from aggregator.runtime.backoff import Backoff
from tests.support.receiver import Hook, webhook_settings
from tests.support.waiting import CLOCKS, until


async def main(outbox: Path, url: str, secret_file: Path, count: int, patience: float) -> None:
    settings = webhook_settings(Hook(url, secret_file, timeout=patience))
    alerts = Notifier(
        FileStore(outbox),
        settings,
        clocks=CLOCKS,
        rng=random.Random(1),
        retry=Retry(Backoff(0.02, 0.1)),
        targets=[replace(target, wait=BatchWait(0.02, 0.1)) for target in targets_of(settings)],
    )
    alerts.start()
    for number in range(count):
        alerts.record_event(
            Transition(1e9 + number, EventKind.CORDONED, f"n{number}", "ill", f"i{number}")
        )
    await until(lambda: not alerts._queue)
    print("kept", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    outbox, url, secret_file, count, *timeout = sys.argv[1:]
    seconds = float(timeout[0]) if timeout else 60.0
    asyncio.run(main(Path(outbox), url, Path(secret_file), int(count), seconds))
