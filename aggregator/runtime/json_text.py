"""JSON from a party that is not trusted. Pure."""

import json


def as_json_object(text: str) -> str:
    """The same object in plain JSON; empty where it is no object, too deep, or no JSON."""
    try:
        found = json.loads(text, parse_constant=_refuse)
        return json.dumps(found) if isinstance(found, dict) else ""
    except (ValueError, RecursionError):
        return ""


def _refuse(constant: str) -> None:
    """NaN and Infinity, which Python reads and no other reader has to."""
    raise ValueError(constant)
