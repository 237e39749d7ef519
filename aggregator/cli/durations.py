"""Durations on the command line: a whole number and its unit. Pure."""

import datetime as dt
import re

from aggregator.cli.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Seconds since the epoch. A smaller number lacks its unit, or the hyphens of a date.
_YEAR_2001 = 1e9


def read_duration(text: str, units: str) -> int | None:
    """Seconds of "90s" or "8h", or None for other text, or a unit that is not in ``units``."""
    found = re.fullmatch(rf"(\d{{1,6}})([{units}])", text)
    return int(found[1]) * _UNITS[found[2]] if found is not None else None


def require_time(text: str, name: str) -> None:
    """Raise UsageError for text that is no time to the API; empty text is none, and allowed.

    ``name``: of the option, for the error.
    """
    is_number = text.replace(".", "", 1).isdecimal()
    try:
        is_time = not is_number or float(text) >= _YEAR_2001
        if text and not is_number:
            dt.datetime.fromisoformat(text)
    except ValueError:
        is_time = False
    if not is_time:
        raise UsageError(
            f'{name}: "{text[:80]}" is no time; expected one such as 1h, 7d, 2026-01-31 or '
            "2026-01-31T03:14:00Z"
        )


def moment_of(text: str, now: dt.datetime, name: str) -> str:
    """The time of the option ``name`` as the API reads it; "1h" and the like are that long before
    now.
    """
    seconds = read_duration(text, "smhd")
    if seconds is None:
        require_time(text, name)
        return text
    try:
        moment = now - dt.timedelta(seconds=seconds)
    except OverflowError:
        raise UsageError(
            f'{name}: "{text}" is before all times; expected one such as 1h or 7d'
        ) from None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
