"""The device that text is made for."""

import datetime as dt
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Screen:
    """The output device, and the time. ``width`` in characters; 0: a pipe, where no line is cut.

    ``wide``: the person requests every column. ``colour``: escape sequences are understood.
    """

    now: dt.datetime
    width: int = 0
    wide: bool = False
    colour: bool = False
