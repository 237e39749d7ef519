"""A command of ``sickbay-aggregator``, with its purpose in its own help too, and what it prints."""

import argparse
import re
from collections.abc import Callable
from typing import Any, TextIO

from aggregator.runtime.text import visible_lines

#: Characters of a line, and of an explanation.
_MOST = 10_000


def add_command(group: Any, name: str, purpose: str, more: str = "") -> argparse.ArgumentParser:
    """Add the command to ``group``. ``more``: further sentences of its own help."""
    made: argparse.ArgumentParser = group.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.{f' {more}' if more else ''}",
    )
    return made


def shaped_as(pattern: str, what: str) -> Callable[[str], str]:
    """The type of an option: text that fits, or empty. ``what``: what other text is not, and an
    example of what is expected.
    """

    def check(text: str) -> str:
        if text and re.fullmatch(pattern, text) is None:
            raise argparse.ArgumentTypeError(f"{text!r} is {what}")
        return text

    return check


def print_visibly(text: str, stream: TextIO | None = None) -> None:
    """Print to ``stream``, or to stdout. No character of a file's text moves the cursor."""
    print(visible_lines(text, _MOST), file=stream)
