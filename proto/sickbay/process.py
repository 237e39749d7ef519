"""A program's process at its start, before it can report a mistake in its own words."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def open_streams() -> None:
    """Connect standard streams that are closed (``>&-``) to /dev/null.

    Else each print would fail, and the next file that the program opens would take their place.
    A letter that stdout can't have is printed as "?": a locale may lack it, and no locale has the
    bytes of a file's name that are no text.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once, without a traceback: for the imports of its start."""
    is_own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_own:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_own:
            signal.signal(signal.SIGINT, signal.default_int_handler)
