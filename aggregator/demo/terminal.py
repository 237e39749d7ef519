"""The demo's output: short lines with the time, and no write to a terminal that has gone."""

import datetime as dt
import os
import sys


class OutputClosed(Exception):
    """Standard output is closed: there is no reader."""


def print_line(text: str = "") -> None:
    """A line as it is. Raises OutputClosed."""
    try:
        print(text, flush=True)
    except OSError:
        # Or the interpreter would try once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputClosed from None


def note(text: str, *, at: dt.datetime | None = None) -> None:
    """A line of what happens."""
    moment = at.astimezone() if at is not None else dt.datetime.now().astimezone()
    print_line(f"{moment:%H:%M:%S}  {text}")


def headline(text: str) -> None:
    """The demo's next step, set off from its results."""
    print_line()
    note(f">> {text}")
