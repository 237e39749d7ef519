"""An option of a command line, as both programs add it."""

from collections.abc import Callable
from typing import Any


def add_value(
    parser: Any,
    names: str,
    metavar: str,
    text: str,
    kind: Callable[[str], Any] = str,
    default: object = None,
) -> None:
    """Add an option with a value to a parser or a group of one: ``default``, or of a text empty,
    without it. ``names`` have blanks between them, ``text`` is the option's help.
    """
    if kind is str and default is None:
        default = ""
    parser.add_argument(*names.split(), type=kind, default=default, metavar=metavar, help=text)
