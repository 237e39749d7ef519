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
#: More beginnings than this are not distinguished: the shorter ones serve.
_MOST = 64

_NAMED = re.compile(r"\{([a-z]+)\}|\(\?P<([a-z_]+)>")


@dataclass(frozen=True, slots=True)
class LinePattern:
    """``groups``: the number of each named group, and its name. ``starts``: what the function
    `starts` returns, for sickbay's own patterns.

    It is compiled when a line may match it first: few nodes ever have a line of most rows.
    """

    source: bytes
    groups: tuple[tuple[int, str], ...]
    starts: frozenset[bytes] = frozenset()

    @property
    def compiled(self) -> re.Pattern[bytes]:
        return re.compile(self.source)

    def fields(self, found: re.Match[bytes]) -> dict[str, bytes]:
        """The fields of a match that have a text."""
        return {name: found[at] for at, name in self.groups if found[at]}


def line_pattern(source: str, words: Mapping[str, str], *, shipped: bool = False) -> LinePattern:
    """Raises re.error, KeyError (no such word) or UnicodeEncodeError.

    ``shipped``: it is one of sickbay's own. To parse all of those once more at the start of the
    agent takes 30 ms.
    """
    numbers = count()

    def named(found: re.Match[str]) -> str:
        if found[1]:
            return f"(?P<{found[1]}_{next(numbers)}>{words[found[1]]})"
        return f"(?P<{found[2]}_{next(numbers)}>"

    expanded = _NAMED.sub(named, source).encode("ascii")
    tree = _parsed(expanded)
    names = sorted((at, name.rpartition("_")[0]) for name, at in tree.state.groupdict.items())
    return LinePattern(expanded, tuple(names), _starts(tree, START) if shipped else frozenset())


def parsed(pattern: LinePattern) -> Any:
    """The parsed form of a pattern, a sequence of (operation, argument)."""
    return _parsed(pattern.source)


def _parsed(source: bytes) -> Any:
    from re import _parser  # type: ignore[attr-defined]  # the library's own, also for a type checker

    return _parser.parse(source)


def starts(pattern: LinePattern, length: int = START) -> frozenset[bytes]:
    """The first bytes that a line must have, up to ``length`` of them.

    A shorter one is all that is fixed there; an empty one fixes no byte.
    """
    return (length == START and pattern.starts) or _starts(parsed(pattern), length)


def _starts(tree: Any, length: int) -> frozenset[bytes]:
    return frozenset(head for head, _ in _Beginnings(length).extended({(b"", True)}, tree))


def members(item: tuple[Any, Any]) -> frozenset[int] | None:
    """The bytes that one item of a pattern may begin with, or None for those that are not known."""
    operation, argument = item
    match str(operation):
        case "LITERAL":
            return frozenset({argument})
        case "IN":
            return _class_members(argument)
        case "SUBPATTERN" if len(argument[3]):
            return members(argument[3][0])
        case "MAX_REPEAT" | "MIN_REPEAT" if argument[0] and len(argument[2]):
            return members(argument[2][0])
    return None


#: A beginning, and whether it may continue.
_Heads = set[tuple[bytes, bool]]


class _Beginnings:
    """The beginnings of the texts that a pattern matches, up to a length."""

    def __init__(self, length: int) -> None:
        self._length = length

    def extended(self, heads: _Heads, items: Iterable[tuple[Any, Any]]) -> _Heads:
        """``heads`` with what the items add to each."""
        for operation, argument in items:
            if not any(goes_on for _, goes_on in heads):
                break
            heads = self._with_item(heads, str(operation), argument)
        return heads

    def _with_item(self, heads: _Heads, operation: str, argument: Any) -> _Heads:
        match operation:
            case "LITERAL":
                return self._with_bytes(heads, frozenset({argument}))
            case "IN":
                return self._with_bytes(heads, _class_members(argument))
            case "BRANCH":
                branches = [self.extended(heads, branch) for branch in argument[1]]
                return set[tuple[bytes, bool]]().union(*branches)
            case "SUBPATTERN":
                return self.extended(heads, argument[3])
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, repeated = argument
                found: _Heads = heads if not least else set()
                for times in range(1, min(most, self._length) + 1):
                    heads = self.extended(heads, repeated)
                    if times >= least:
                        found = found | heads
                return found
            case "AT" | "ASSERT" | "ASSERT_NOT":
                return heads
            case _:
                return {(head, False) for head, _ in heads}

    def _with_bytes(self, heads: _Heads, added: frozenset[int] | None) -> _Heads:
        if added is None or len(added) * len(heads) > _MOST:
            return {(head, False) for head, _ in heads}
        longer: _Heads = {(head, False) for head, goes_on in heads if not goes_on}
        for head, goes_on in heads:
            if goes_on:
                each_longer = [head + bytes([one]) for one in added]
                longer |= {(each, len(each) < self._length) for each in each_longer}
        return longer


_CATEGORIES = {
    "CATEGORY_DIGIT": rb"\d",
    "CATEGORY_SPACE": rb"\s",
    "CATEGORY_WORD": rb"\w",
    "CATEGORY_NOT_DIGIT": rb"\D",
    "CATEGORY_NOT_SPACE": rb"\S",
    "CATEGORY_NOT_WORD": rb"\W",
}


def _class_members(options: Iterable[tuple[Any, Any]]) -> frozenset[int]:
    """The members of a character class."""
    found: set[int] = set()
    negated = False
    for operation, argument in options:
        match str(operation):
            case "NEGATE":
                negated = True
            case "LITERAL":
                found.add(argument)
            case "RANGE":
                found.update(range(argument[0], argument[1] + 1))
            case _:
                kind = re.compile(_CATEGORIES[str(argument)])
                found.update(one for one in range(256) if kind.match(bytes([one])))
    return frozenset(range(256)) - found if negated else frozenset(found)
