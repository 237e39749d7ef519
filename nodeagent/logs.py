"""Logs: JSON lines on stdout, for the node's log collector.

A log line must never hold the agent up: behind stdout there is a pipe, behind the pipe a collector,
and behind that perhaps the disk that is sick. So a pipe that is full loses lines, and the next line
that gets through has their number.
"""

import json
import logging
import os
import stat
import time
from collections.abc import Callable
from typing import Any

#: The longest write that a pipe takes whole or not at all (PIPE_BUF), newline included.
_LONGEST = 4096
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Handler):
    """Writes each record to ``fd`` as one JSON object: time (UTC), level, logger, message, node,
    extras.

    Extras are what the caller gave as ``extra=``; docs/logs.md lists the values of ``event``.
    Secrets are never given to a logger. ``node``: the agent's own; empty for no such field.
    """

    def __init__(self, fd: int, wall_clock: Callable[[], float], *, node: str = "") -> None:
        super().__init__()
        self._node = {"node": node} if node else {}
        self._fd = fd
        self._wall_clock = wall_clock
        self._dropped = 0
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            os.set_blocking(fd, False)

    def emit(self, record: logging.LogRecord) -> None:
        line = self._line(record)
        try:
            os.write(self._fd, line)
        except OSError:  # full, or no reader: only the next line can report it
            self._dropped += 1
        else:
            self._dropped = 0

    def _line(self, record: logging.LogRecord) -> bytes:
        now = self._wall_clock()
        day = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        fields: dict[str, Any] = {
            "time": f"{day}.{int(now % 1 * 1000):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._node,
            **({"event": record.event} if hasattr(record, "event") else {}),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in _OWN}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        if self._dropped:
            fields["lines_dropped_before"] = self._dropped
        line = json.dumps(fields, default=str).encode()
        if len(line) >= _LONGEST:
            kept = {key: str(value)[: _LONGEST // 8] for key, value in list(fields.items())[:6]}
            line = json.dumps({**kept, "cut": True}).encode()[: _LONGEST - 1]
        return line + b"\n"


def start(level: str, *, fd: int = 1, node: str = "") -> None:
    """Send this process's logs to ``fd`` from ``level`` ("debug", "info", ...) up."""
    handler = JsonLines(fd, time.time, node=node)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def set_level(level: str) -> None:
    """From now on from ``level`` up."""
    logging.getLogger().setLevel(level.upper())
