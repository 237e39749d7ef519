"""`sickbay watch`: events as they happen, until the command is ended."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from aggregator.cli.errors import CommandFailed
from aggregator.runtime.backoff import Backoff

_BACKOFF = Backoff(first=1.0, most=15.0, spread=0.5)


class EventSource(Protocol):
    """The stream of events; each call opens it anew. Raises CommandFailed when it breaks."""

    def events(self, node: str = "") -> Iterator[tuple[str, Any]]: ...


def watch(
    client: EventSource,
    node: str,
    on_event: Callable[[str, Any], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random,
) -> None:
    """Print each event, for ever. Raises CommandFailed when the first connection fails.

    The loss of the connection is reported once, and so is its return, with a note where the events
    of the meantime may be missing.
    """
    reached, lost, failures = False, False, 0
    while True:
        try:
            for name, data in client.events(node):
                if lost:
                    sys.stderr.write("sickbay: the connection is back\n")
                    if name == "hello" and not data["resumed"]:
                        sys.stderr.write("sickbay: events may be missing: sickbay history\n")
                reached, lost, failures = True, False, 0
                on_event(name, data)
            trouble = "the stream ended"
        except CommandFailed as error:
            if not reached:
                raise
            trouble = str(error).partition("\n")[0]
        if not lost:
            sys.stderr.write(f"sickbay: connection lost ({trouble}); trying again\n")
        lost = True
        failures += 1
        sleep(_BACKOFF.pause(failures, rng))
