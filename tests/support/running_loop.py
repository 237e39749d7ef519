"""asyncio's running loop, looked up without a system call.

Before Python 3.14, asyncio asks for the process's id at each look-up, to notice a fork. That takes
0.4 us where system calls are slow, and tests in virtual time look millions of times: at each sleep,
task and reading of their clock.
"""

import asyncio
import os
import threading
from asyncio import events

_set_running_loop = events._set_running_loop


class _Running(threading.local):
    """Each thread's own; a forked process has none, as in asyncio."""

    loop: asyncio.AbstractEventLoop | None = None


_running = _Running()


def _set(loop: asyncio.AbstractEventLoop | None, /) -> None:
    _set_running_loop(loop)
    _running.loop = loop


def _find() -> asyncio.AbstractEventLoop | None:
    return _running.loop


def _get() -> asyncio.AbstractEventLoop:
    loop = _running.loop
    if loop is None:
        raise RuntimeError("no running event loop")
    return loop


def _forget() -> None:
    _running.loop = None


def look_up_loops_without_system_calls() -> None:
    """From now on. asyncio's code in C goes on with its own, which is always set to the same."""
    for module in (asyncio, events):
        module._set_running_loop = _set  # type: ignore[attr-defined]
        module._get_running_loop = _find  # type: ignore[attr-defined]
        module.get_running_loop = _get  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=_forget)
