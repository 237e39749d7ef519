"""The secret of a repairer, read anew for each order."""

from pathlib import Path

from aggregator.alerts.http_channel import read_secret
from aggregator.runtime.worker_thread import WorkerThread


async def secret_of(path: Path) -> bytes:
    """Raises SecretError. A file system that hangs stops no event loop."""
    thread = WorkerThread("repair-secret")
    try:
        return await thread.run(read_secret, path)
    finally:
        thread.stop()
