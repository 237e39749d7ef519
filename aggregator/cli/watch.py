"""`sickbay watch`: events as they happen, until the command is ended."""

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from aggregator.cli.client import Client
from aggregator.cli.errors import CommandFailed

_FIRST, _MOST = 1.0, 15.0


def watch(
    client: Client,
    node: str,
    tell: Callable[[str, Any], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random,
) -> None:
    """Print each event, for ever. Raises CommandFailed when the first connection fails.

    The loss of the connection is reported once, and so is its return.
    """
    reached, lost, wait = False, False, _FIRST
    while True:
        try:
            for name, data in client.events(node):
                if lost:
                    sys.stderr.write("sickbay: the connection is back\n")
                reached, lost, wait = True, False, _FIRST
                tell(name, data)
            trouble = "the stream ended"
        except CommandFailed as error:
            if not reached:
                raise
            trouble = str(error).partition("\n")[0]
        if not lost:
            sys.stderr.write(f"sickbay: connection lost ({trouble}); trying again\n")
        lost = True
        sleep(wait * rng.uniform(0.5, 1.0))
        wait = min(_MOST, wait * 2)
