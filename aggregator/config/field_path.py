"""The path of a field in an object: keys with dots, and places in lists. Pure.

    status.phase        status.nodes[0].state        metadata.labels['a.b/c']

As much of JSONPath as the `additionalPrinterColumns` of a CustomResourceDefinition mostly use.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_PART = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_-]*)|\[([0-9]{1,4})\]|\['([^']+)'\]")


def parse_field_path(text: str) -> tuple[str | int, ...]:
    """The keys and places; () for empty text. Raises ValueError that shows where it ends."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        separated = part is not None and (at == 0 or text[at] in ".[")
        if part is None or not separated:
            raise ValueError(f'"{text[:60]}" is no path of a field at character {at + 1}')
        key, place, quoted = part.groups()
        parts.append(int(place) if place is not None else key or quoted)
        at = part.end()
    return tuple(parts)


def read_field(content: Any, path: Sequence[str | int]) -> Any:
    """The value at the path, or None where there is none."""
    for part in path:
        if isinstance(part, int):
            inside = isinstance(content, list) and part < len(content)
            content = content[part] if inside else None
        else:
            content = content.get(part) if isinstance(content, Mapping) else None
    return content


def read_entries(content: Any, path: Sequence[str | int]) -> list[Mapping[str, Any]]:
    """The objects in the list at the path; an empty list without one."""
    found = read_field(content, path)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def read_condition(content: Any, kind: str, status: str = "") -> Mapping[str, Any] | None:
    """The entry of ``status.conditions`` of this type, None without one. ``status``: only with
    that.
    """
    found = read_entries(content, ("status", "conditions"))
    ours = (one for one in found if one.get("type") == kind)
    return next((one for one in ours if status in ("", one.get("status"))), None)
