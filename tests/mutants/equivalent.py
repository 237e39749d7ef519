"""The mutants that behave as the code does: no test can tell them apart. A list with reasons.

equivalent.toml has one table for each::

    [[equivalent]]
    file = "aggregator/policy/windows.py"
    line = "if now - begun > window:"
    change = "compare: now - begun > window -> now - begun >= window"
    reason = "..."

``line`` is the text of the line where the mutated part begins, without its indentation. An entry
that fits no mutation of the code any more is an error: it would excuse no mutation, or a wrong one.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.sites import Mutation

PATH = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """One entry of the list."""

    file: str
    line: str
    change: str
    reason: str


class BadList(Exception):
    """The list is invalid; the text says where."""


def read(path: Path = PATH) -> list[Equivalent]:
    """All entries. Raises BadList."""
    try:
        tables = tomllib.loads(path.read_text()).get("equivalent", [])
    except tomllib.TOMLDecodeError as error:
        raise BadList(f"{path.name}: {error}") from error
    entries = []
    for number, table in enumerate(tables, 1):
        try:
            entry = Equivalent(**table)
        except TypeError as error:
            raise BadList(f"{path.name}: entry {number}: {error}") from error
        if not entry.reason.strip():
            raise BadList(f"{path.name}: entry {number} ({entry.file}) has no reason")
        entries.append(entry)
    return entries


def text_of(mutation: Mutation, source: str) -> str:
    return source.splitlines()[mutation.line - 1].strip()


def excused(
    entries: Sequence[Equivalent],
    mutations: Mapping[str, Sequence[Mutation]],
    sources: Mapping[str, str],
) -> dict[Mutation, Equivalent]:
    """The mutations that the list names. Raises BadList for an entry that names none."""
    wanted = {(one.file, one.line, one.change): one for one in entries}
    found: dict[Mutation, Equivalent] = {}
    for file in {one.file for one in entries} & mutations.keys():
        for mutation in mutations[file]:
            key = (file, text_of(mutation, sources[file]), mutation.change)
            if key in wanted:
                found[mutation] = wanted[key]
    used = set(found.values())
    if stale := [one for one in entries if one not in used]:
        raise BadList(
            f"{PATH.name} names no mutation of the code with: "
            + "; ".join(f"{one.file}: {one.change}" for one in stale)
        )
    return found
