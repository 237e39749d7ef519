"""A demo from a command line: what it needs, how it ends, and its exit code."""

import contextlib
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import FrameType

from aggregator.demo.event_poller import NotSeen
from aggregator.demo.processes import ChildEnded
from aggregator.demo.terminal import OutputClosed, print_line

OK, FAILED, USAGE = 0, 1, 2
INTERRUPTED = 130

#: One module of each kind that the demo's programs import, and the extra that it belongs to.
_NEEDED = (
    ("nodeagent", "agent"),
    ("grpc", "agent"),
    ("psutil", "agent"),
    ("aiohttp", "aggregator"),
    ("pydantic", "aggregator"),
    ("sqlalchemy", "aggregator"),
)


def missing() -> str:
    """Why the demo can't run in this installation; empty when it can."""
    for module, extra in _NEEDED:
        if find_spec(module) is None:
            return (
                f"the demo needs both programs, and {module} of the extra {extra!r} is not "
                "installed: pip install 'sickbay[agent,aggregator]'"
            )
    return ""


def present(run: Callable[[], None], *, once: bool) -> int:
    """Run a demo until its end or a signal; the exit code.

    0 after the story, or after Ctrl-C while it runs; 1 when it failed.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        run()
    except KeyboardInterrupt:
        with contextlib.suppress(OutputClosed):
            print_line("\nended; nothing is left of it")
        return OK if not once else INTERRUPTED
    except OutputClosed:
        return OK
    except (NotSeen, ChildEnded, TimeoutError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return FAILED
    return OK


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
