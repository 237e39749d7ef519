"""Logs: JSON lines on stdout, for any collector.

A collector that hangs must not delay the event loop: lines that a full pipe doesn't take are
dropped, and the next line that gets through has their number. Secrets are never given to a logger.
"""

import json
import logging
import os
import stat
import time
from collections.abc import Callable
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Bytes; longer fields are cut.
MAX_FIELD = 16_384
_ENCODE = json.JSONEncoder(default=str).encode  # json.dumps would make an encoder for each line


class JsonLines(logging.Handler):
    """Each record as one JSON object on ``fd``: time (UTC), level, logger, message, extras."""

    def __init__(self, fd: int, wall: Callable[[], float]) -> None:
        super().__init__()
        self._fd = fd
        self._wall = wall
        self._rest = b""  # of a line that the pipe took in part
        self._dropped = 0
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(fd, False)

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, or count it as dropped."""
        try:
            self._write(self._rest)
            if not self._rest:
                self._write(self._line(record))
                self._dropped = 0
                return
        except OSError:
            pass  # the pipe is full, or has no reader: the next line reports it, if it can
        self._dropped += 1

    def _write(self, data: bytes) -> None:
        if data:
            self._rest = data[os.write(self._fd, data) :]

    def _line(self, record: logging.LogRecord) -> bytes:
        now = self._wall()
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        fields: dict[str, Any] = {
            "time": f"{second}.{int(now % 1 * 1000):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in _OWN}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        if self._dropped:
            fields["lines_dropped_before"] = self._dropped
        cut = {k: v[:MAX_FIELD] if isinstance(v, str) else v for k, v in fields.items()}
        return _ENCODE(cut).encode() + b"\n"


def start(level: str, *, fd: int = 1) -> None:
    """Send this process's logs to ``fd`` from ``level`` ("debug", "info", ...) up."""
    # Fields that no line of ours has need not be computed for each: half of a line's cost.
    logging._srcfile = None  # noqa: SLF001 - as logging's documentation has it, "Optimization"
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[JsonLines(fd, time.time)], force=True)
    # An operator does not look for the libraries' lines on each request.
    for chatty in ("asyncio", "grpc", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
