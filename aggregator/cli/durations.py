"""Durations on the command line: a whole number and its unit. Pure."""

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_duration(text: str, units: str) -> int | None:
    """Seconds of "90s" or "8h"; None for other text, or a unit that is not in ``units``."""
    found = re.fullmatch(rf"(\d{{1,6}})([{units}])", text)
    return int(found[1]) * _UNITS[found[2]] if found is not None else None
