"""The lines of a search's file, checked as the command line checks its options. Pure."""

import argparse
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregator.bisection.model import GroupOutcome
from aggregator.cli.arguments import one_node_name

FORMAT = 1
#: Seconds: the longest time that `duration` takes.
_LONGEST = 999_999 * 3600.0


class DamagedLine(Exception):
    """A line that sickbay did not write. ``number`` counts from 1."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"line {number}: {text}")


class ForeignFile(Exception):
    """The file is none of this command, or of another version of it."""


@dataclass(frozen=True, slots=True)
class Search:
    """The subject of a search. ``limit``: seconds of one test."""

    nodes: list[str]
    command: list[str]
    limit: float
    parallel: int
    known_good: list[str] = field(default_factory=list)
    domains: dict[str, str] = field(default_factory=dict)


def names_nodes(command: list[str]) -> bool:
    """Whether the nodes of a group get into the command."""
    return any("{nodes}" in word or "{nodes_file}" in word for word in command)


def read_lines(lines: list[bytes]) -> tuple[Search, dict[int, dict[str, Any]]]:
    """The search, and its tests by number. Raises DamagedLine, ForeignFile."""
    if not lines:
        raise DamagedLine(1, "it is not whole; expected what the search is about")
    search = _search(lines[0])
    known = frozenset((*search.nodes, *search.known_good))
    ended: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines[1:], 2):
        test = _checked(number, _object(number, line), _test_fields(known))
        if test["test"] in ended:
            raise DamagedLine(
                number, f"test {test['test']} is there twice; expected one line of it"
            )
        ended[test["test"]] = test
    return search, ended


def _search(line: bytes) -> Search:
    try:
        head = _object(1, line)
    except DamagedLine as error:
        if b'"sickbay_bisect"' in line:
            raise
        raise ForeignFile("is no file of `sickbay bisect`") from error
    if "sickbay_bisect" not in head:
        raise ForeignFile("is no file of `sickbay bisect`")
    version = head.pop("sickbay_bisect")
    if not _is_whole(version):
        raise _wrong(1, "sickbay_bisect", version, f"{FORMAT}")
    if version != FORMAT:
        raise ForeignFile("is of another version of sickbay")
    nodes = head.get("nodes")
    group = frozenset(nodes if isinstance(nodes, list) and _are_nodes(nodes) else ())
    return Search(**_checked(1, head, _head_fields(group)))


# -- the fields: what is expected, and whether a value is that -------------------------

_Fields = Mapping[str, tuple[str, Callable[[Any], bool]]]


def _head_fields(group: frozenset[str]) -> _Fields:
    return {
        "nodes": ("names of two nodes or more, each once", _are_a_group),
        "command": ("a list of words with {nodes} or {nodes_file} in it", _is_command),
        "limit": ("seconds above 0", lambda it: _is_number(it) and 0 < it <= _LONGEST),
        "parallel": ("a whole number from 1 on", lambda it: _is_whole(it) and it >= 1),
        "known_good": ("names of nodes", _are_nodes),
        "domains": (
            "an object with domains of nodes of the group",
            lambda it: (
                isinstance(it, dict) and set(it) <= group and all(map(_is_word, it.values()))
            ),
        ),
    }


def _test_fields(known: frozenset[str]) -> _Fields:
    return {
        "test": ("a whole number from 1 on", lambda it: _is_whole(it) and it >= 1),
        "nodes": (
            "nodes of line 1, two or more, each once",
            lambda it: _are_a_group(it) and set(it) <= known,
        ),
        "outcome": (
            f"one of {', '.join(GroupOutcome)}",
            lambda it: isinstance(it, str) and it in set(GroupOutcome),
        ),
        "code": ("an exit code or null", lambda it: it is None or _is_whole(it)),
        "seconds": ("seconds from 0 on", lambda it: _is_number(it) and it >= 0),
        "message": ("a text", lambda it: isinstance(it, str)),
        "output": ("a text", lambda it: isinstance(it, str)),
    }


def _checked(number: int, found: dict[str, Any], fields: _Fields) -> dict[str, Any]:
    for name in found:
        if name not in fields:
            raise DamagedLine(number, f"{name[:100]!r} is unknown; expected {', '.join(fields)}")
    for name, (expected, fits) in fields.items():
        if name not in found:
            raise DamagedLine(number, f"{name} is missing; expected {expected}")
        if not fits(found[name]):
            raise _wrong(number, name, found[name], expected)
    return found


def _wrong(number: int, name: str, value: object, expected: str) -> DamagedLine:
    return DamagedLine(number, f"{name} is {json.dumps(value)[:100]}; expected {expected}")


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedLine(number, "it is no JSON; expected a JSON object") from error
    if not isinstance(found, dict):
        raise DamagedLine(number, "it is no object; expected a JSON object")
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _are_nodes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_node, value))


def _are_a_group(value: Any) -> bool:
    return _are_nodes(value) and 2 <= len(value) == len(set(value))


def _is_node(value: Any) -> bool:
    try:
        return isinstance(value, str) and one_node_name(value) == value
    except argparse.ArgumentTypeError:
        return False


def _is_command(value: Any) -> bool:
    words = isinstance(value, list) and bool(value) and all(map(_is_argument, value))
    return words and names_nodes(value)


def _is_argument(value: Any) -> bool:
    """Whether a process can get it as an argument."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False
