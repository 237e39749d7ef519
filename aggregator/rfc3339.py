"""Times and lengths of time as people write and read them. No clock.

Wall clock times are seconds since the epoch, and RFC 3339 in text; lengths are seconds.
"""

import datetime as dt


def read_time(text: str) -> float:
    """Seconds since the epoch. Raises ValueError for text that is no time, or has no time zone."""
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return found.timestamp()


def write_time(at: float) -> str:
    """To the second, in UTC; a time past the calendar's end becomes its last day."""
    try:
        return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "9999-12-31T23:59:59Z"


def span(seconds: float) -> str:
    """A length of time as the configuration writes it: "90s", "10m", "2h", "7d"."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def time_of_day(at: float) -> str:
    """Seconds since the epoch as the time of day in UTC, to the minute."""
    minutes = int(at // 60)
    return f"{minutes // 60 % 24:02}:{minutes % 60:02} UTC"
