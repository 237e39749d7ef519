"""Times in words. static/live.js formats them the same way."""

import datetime as dt

#: The end of year 9999: the limit of a datetime.
LAST = 253_402_300_799.0


def wall_time(at: float) -> dt.datetime | None:
    """Wall clock seconds; 0 is "not yet"."""
    return bounded_time(at) if at else None


def bounded_time(at: float) -> dt.datetime:
    """Wall clock seconds, within the limits of a datetime."""
    return dt.datetime.fromtimestamp(round(min(max(at, 0.0), LAST), 3), dt.UTC)


def ago(then: dt.datetime, now: dt.datetime) -> str:
    """How long ago, or in how long, in the unit that a tired person reads fastest."""
    seconds = (now - then).total_seconds()
    if abs(seconds) < 2:
        return "just now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time in one unit: "40 s", "3 min", "2 h", "5 d"."""
    if seconds < 60:
        return f"{int(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds / 60)} min"
    if seconds < 2 * 86400:
        return f"{int(seconds / 3600)} h"
    return f"{int(seconds / 86400)} d"


def clock(then: dt.datetime, now: dt.datetime) -> str:
    """The time of day in UTC; with its date when that is not today's."""
    same_day = then.date() == now.date()
    return then.strftime("%H:%M:%S UTC" if same_day else "%Y-%m-%d %H:%M UTC")


def full(then: dt.datetime) -> str:
    """Date and time in UTC."""
    return then.strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(then: dt.datetime) -> str:
    """RFC 3339, for machines."""
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")
