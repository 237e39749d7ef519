"""Patterns of kernel log lines: ``{word}`` for a shared part, named groups for fields.

A name may occur several times, one in each alternative, unlike in Python's own patterns.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from nodeagent.dataclass import dataclass

#: The first bytes of a record, by which its patterns are found.
START = 4
#: More beginnings than this are not told apart: the shorter ones serve.
_MOST = 64

_NAMED = re.compile(r"\{([a-z]+)\}|\(\?P<([a-z_]+)>")


@dataclass(frozen=True, slots=True)
class LinePattern:
    """``groups``: the number of each named group, and its name."""

    compiled: re.Pattern[bytes]
    groups: tuple[tuple[int, str], ...]

    def fields(self, found: re.Match[bytes]) -> dict[str, bytes]:
        """The fields of a match that have a text."""
        return {name: found[at] for at, name in self.groups if found[at]}


def line_pattern(source: str, words: Mapping[str, str]) -> LinePattern:
    """Raises re.error, KeyError (no such word) or UnicodeEncodeError."""
    numbers = count()

    def named(found: re.Match[str]) -> str:
        if found[1]:
            return f"(?P<{found[1]}_{next(numbers)}>{words[found[1]]})"
        return f"(?P<{found[2]}_{next(numbers)}>"

    compiled = re.compile(_NAMED.sub(named, source).encode("ascii"))
    names = sorted((at, name.rpartition("_")[0]) for name, at in compiled.groupindex.items())
    return LinePattern(compiled, tuple(names))


def parsed(pattern: LinePattern) -> Any:
    """The parsed form of a pattern, a sequence of (operation, argument)."""
    from re import _parser  # type: ignore[attr-defined]  # the library's own, also for a type checker

    return _parser.parse(pattern.compiled.pattern)


def starts(pattern: LinePattern) -> frozenset[bytes]:
    """The first bytes that a line must have, up to ``START`` of them.

    A shorter one is all that is fixed there; an empty one fixes no byte.
    """
    return frozenset(head for head, _ in _extended({(b"", True)}, parsed(pattern)))


#: A beginning, and whether it may go on.
_Heads = set[tuple[bytes, bool]]


def _extended(heads: _Heads, items: Iterable[tuple[Any, Any]]) -> _Heads:
    """``heads`` with what the items add to each."""
    for operation, argument in items:
        if not any(goes_on for _, goes_on in heads):
            break
        heads = _with_item(heads, str(operation), argument)
    return heads


def _with_item(heads: _Heads, operation: str, argument: Any) -> _Heads:
    match operation:
        case "LITERAL":
            return _with_bytes(heads, bytes([argument]))
        case "IN":
            return _with_bytes(heads, _members(argument))
        case "BRANCH":
            branches = [_extended(heads, branch) for branch in argument[1]]
            return set[tuple[bytes, bool]]().union(*branches)
        case "SUBPATTERN":
            return _extended(heads, argument[3])
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, repeated = argument
            found: _Heads = heads if not least else set()
            for times in range(1, min(most, START) + 1):
                heads = _extended(heads, repeated)
                if times >= least:
                    found = found | heads
            return found
        case "AT" | "ASSERT" | "ASSERT_NOT":
            return heads
        case _:
            return {(head, False) for head, _ in heads}


def _with_bytes(heads: _Heads, members: bytes) -> _Heads:
    if not members or len(members) * len(heads) > _MOST:
        return {(head, False) for head, _ in heads}
    longer: _Heads = {(head, False) for head, goes_on in heads if not goes_on}
    for head, goes_on in heads:
        if goes_on:
            added = [head + bytes([member]) for member in members]
            longer |= {(each, len(each) < START) for each in added}
    return longer


def _members(options: Iterable[tuple[Any, Any]]) -> bytes:
    """The members of a character class; empty where they are many, or others than it lists."""
    members = b""
    for operation, argument in options:
        match str(operation):
            case "LITERAL":
                members += bytes([argument])
            case "RANGE":
                members += bytes(range(argument[0], argument[1] + 1))
            case "CATEGORY" if str(argument) == "CATEGORY_DIGIT":
                members += b"0123456789"
            case _:
                return b""
    return members
