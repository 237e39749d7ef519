"""Errors that nobody can catch: in a finaliser, or of what was not closed or not awaited.

pytest's own plug-in raises each in the test that runs when Python notices it, often while garbage
is collected. This one keeps them until their module of tests has ended and its garbage is
collected. The module then fails, in a report of its own, whatever its tests did.
"""

import gc
import sys
import traceback
import tracemalloc
from asyncio import selector_events
from collections.abc import Generator
from typing import Any

import pytest

_PLACE = "`python -X tracemalloc=20 -m pytest {module}` shows where it was made."


class Unraisable:
    """The plug-in of one session."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._running = "no test"
        self._before = sys.unraisablehook
        sys.unraisablehook = self._take

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self._running = item.nodeid
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self._report(item.nodeid.partition("::")[0], item.config)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._report("session", session.config):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        sys.unraisablehook = self._before

    def _report(self, module: str, config: pytest.Config) -> bool:
        """Whether there was any."""
        gc.collect()
        found, self._found = self._found, []
        if found:
            text = "\n\n".join([*found, _PLACE.format(module=module)])
            place = (module, None, "the module")
            report = pytest.TestReport(module, place, {}, "failed", text, "teardown")
            config.hook.pytest_runtest_logreport(report=report)
        return bool(found)

    def _take(self, unraisable: Any) -> None:
        error = traceback.format_exception(
            unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback
        )
        made = tracemalloc.get_object_traceback(unraisable.object)
        lines = [
            f"{unraisable.err_msg or 'Exception ignored in'}: {unraisable.object!r}",
            f"noticed in {self._running}",
            "".join(error).rstrip(),
            *(["made here:", *made.format()] if made else []),
        ]
        self._found.append("\n".join(lines))


def close_what_is_being_closed() -> None:
    """From now on, a loop that is closed ends the transports that their owners have closed.

    asyncio closes below TLS when the other end has answered. Whether it has by the end of a test
    depends on the machine's speed.
    """
    close = selector_events.BaseSelectorEventLoop.close

    def close_all(loop: Any) -> None:
        close(loop)
        for transport in list(loop._transports.values()):
            above = getattr(transport.get_protocol(), "_app_transport", None)
            if transport._sock is not None and (above or transport).is_closing():
                transport._sock.close()
                transport._sock = None

    loops: Any = selector_events.BaseSelectorEventLoop
    loops.close = close_all
