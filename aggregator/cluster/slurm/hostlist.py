"""Slurm's host lists, such as ``n[1-3,07-09],gpu1``. Pure.

Ranges keep their leading zeros: https://slurm.schedmd.com/scontrol.html (show hostnames).
"""

import re
from collections.abc import Iterator
from itertools import islice

#: More names than any cluster has nodes: a longer list is no list of nodes.
MOST_NAMES = 100_000
#: Dimensions of one name; Slurm itself has five at most.
_MOST_BRACKETS = 8
_BRACKETS = re.compile(r"([^\[\],]*)\[([0-9,-]+)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> list[str]:
    """The names. Raises ValueError for text that is no host list, or has too many names."""
    names: list[str] = []
    for part in _parts(text):
        for name in _expand_part(part, text):
            names.append(name)
            if len(names) > MOST_NAMES:
                raise ValueError(f"{text[:100]!r} has more than {MOST_NAMES} names")
    return names


def _parts(text: str) -> Iterator[str]:
    """The text between the commas that are in no brackets."""
    depth, begin = 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            yield text[begin:index]
            begin = index + 1
    if text:
        yield text[begin:]


def _expand_part(part: str, text: str) -> Iterator[str]:
    if part.count("[") > _MOST_BRACKETS:
        raise ValueError(f"{text[:100]!r} has more than {_MOST_BRACKETS} ranges in one name")
    found = _BRACKETS.match(part)
    if found is None:
        if not part or "[" in part or "]" in part:
            raise ValueError(f"{text[:100]!r} is no host list")
        yield part
        return
    rest = part[found.end() :]
    tails = list(islice(_expand_part(rest, text), MOST_NAMES + 1)) if rest else [""]
    for number in _numbers(found[2], text):
        yield from (f"{found[1]}{number}{tail}" for tail in tails)


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        if found is None:
            raise ValueError(f"{text[:100]!r} is no host list")
        first, last = found[1], found[2] or found[1]
        if int(last) - int(first) >= MOST_NAMES:
            raise ValueError(f"{text[:100]!r} has more than {MOST_NAMES} names")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
