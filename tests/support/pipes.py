"""A named pipe where a file is meant."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def pipe_with(path: Path, text: str) -> Iterator[Path]:
    """A pipe at ``path`` with ``text`` in it. A reader waits for an end that comes late."""
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, text.encode())
    late = threading.Timer(10, os.close, [writer])
    late.start()
    try:
        yield path
    finally:
        late.cancel()
        late.join()
        with contextlib.suppress(OSError):
            os.close(writer)
