"""Reads the configuration again when its file has changed.

A thread compares the file's identity now and then: a ConfigMap's file is a link that is swapped,
which a watch on the file would not see. The file may lie on a disk that hangs: then the thread
hangs, and the agent keeps its configuration. Only a changed file wakes the event loop.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from nodeagent.config.settings import Config, ConfigError
from nodeagent.configfile.toml_table import Problem
from nodeagent.dataclass import dataclass

log = logging.getLogger(__name__)

#: Seconds between two readings of the file.
EVERY = 15.0

#: The fields that can change under a running agent. It was built from all others.
_LIVE = frozenset({"checks", "own", "expected_gpus", "log_level"})
#: Where a field of Config has another name in the file.
_KEYS = {"uplink": "aggregator"}

_Identity = tuple[int, int, int, int]


@dataclass(slots=True)
class ConfigState:
    """The reload's state for people. ``restart_for`` are keys that wait for the agent's restart."""

    problem: str = ""
    restart_for: tuple[str, ...] = ()
    reloads: int = 0
    failures: int = 0


class Reloader:
    """Follows the file at ``path``. ``load`` reads it and raises ConfigError.

    ``apply`` gets a configuration that differs from the one in use, with the fields that cannot
    change left as they were.
    """

    def __init__(
        self,
        path: Path,
        current: Config,
        *,
        load: Callable[[], Config],
        apply: Callable[[Config], None],
        every: float = EVERY,
    ) -> None:
        self.state = ConfigState()
        self._path = path
        self._current = current
        self._load = load
        self._apply = apply
        self._every = every
        self._now = threading.Event()
        # Not the file's present identity: it may have changed since it was read for the start.
        self._identity: _Identity | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        found: asyncio.Queue[Config | ConfigError] = asyncio.Queue()
        ended = threading.Event()
        arguments = (asyncio.get_running_loop(), found, ended)
        # Not waited for, because it may hang; a daemon does not hold up the process's end.
        threading.Thread(target=self._watch, args=arguments, name="config", daemon=True).start()
        try:
            while True:
                self._take(await found.get())
        finally:
            ended.set()
            self._now.set()

    def _watch(
        self,
        loop: asyncio.AbstractEventLoop,
        found: "asyncio.Queue[Config | ConfigError]",
        ended: threading.Event,
    ) -> None:
        """The thread: reads the file, and passes on the content of one that has changed."""
        while True:
            self._now.wait(self._every)
            self._now.clear()
            if ended.is_set():
                return
            content = self._read()
            if content is not None:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(found.put_nowait, content)

    def run_now(self) -> None:
        """Read now, before the next interval: the caller knows that the file has changed."""
        self._now.set()

    def _read(self) -> Config | ConfigError | None:
        """The file's configuration or its errors, or None when it is the same file."""
        identity = self._identify()
        if identity == self._identity:
            return None
        self._identity = identity
        try:
            found = self._load()
        except ConfigError as error:
            return error
        if self._identify() != identity:
            self._identity = None  # it is being written: we may have read a part
            return None
        if identity[2] == 0 and found != self._current:
            what = "is empty: a full disk leaves it so, or a writer has not finished"
            return ConfigError([Problem(str(self._path), 0, "", what, "settings, or a comment")])
        return found

    def _identify(self) -> _Identity:
        try:
            found = os.stat(self._path)  # noqa: PTH116  # follows the links, as open does
        except OSError:
            return (0, 0, 0, 0)  # gone: the read gives the reason
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def _take(self, found: Config | ConfigError) -> None:
        if isinstance(found, ConfigError):
            self._refuse(found)
            return
        if self.state.problem:
            log.info(
                "the configuration can be read again",
                extra={"event": "config.readable", "file": str(self._path)},
            )
        self.state.problem = ""
        self.state.restart_for = _fixed_differences(self._current, found)
        if self.state.restart_for:
            log.warning(
                "changed settings that are read only at a start: %s",
                ", ".join(self.state.restart_for),
                extra={"event": "config.restart_needed", "file": str(self._path)},
            )
        wanted = replace(self._current, **{name: getattr(found, name) for name in _LIVE})
        if wanted == self._current:
            return
        self._current = wanted
        self.state.reloads += 1
        log.info(
            "the configuration has changed",
            extra={"event": "config.changed", "file": str(self._path)},
        )
        self._apply(wanted)

    def _refuse(self, error: ConfigError) -> None:
        self.state.failures += 1
        self.state.problem = "; ".join(str(problem) for problem in error.problems)
        log.error(
            "the changed configuration is refused; the agent goes on with the one before it: %s",
            self.state.problem,
            extra={"event": "config.refused"},
        )


def _fixed_differences(current: Config, found: Config) -> tuple[str, ...]:
    names = sorted(field.name for field in fields(Config) if field.name not in _LIVE)
    return tuple(_KEYS.get(n, n) for n in names if getattr(current, n) != getattr(found, n))
