"""Wall clock times as people write them, RFC 3339, and as seconds since the epoch. No clock."""

import datetime as dt


def read_time(text: str) -> float:
    """Seconds since the epoch. Raises ValueError for what is no time, or has no time zone."""
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return found.timestamp()


def write_time(at: float) -> str:
    """To the second, in UTC; what no calendar has is its last day."""
    try:
        return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "9999-12-31T23:59:59Z"
