"""A TOML file whose keys a loader reads; all problems are gathered, not only the first.

The loader reads each key that it knows, with a parser; a key that it never read is unknown, and
the file's ``Document.finish`` reports it with the nearest known name.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nodeagent.dataclass import dataclass
from sickbay import regular_file

T = TypeVar("T")

#: A key as a path from the top; a whole number is a position in an array.
Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a file. ``line`` 0 is the file as a whole, ``key`` "" is no key."""

    file: str
    line: int
    key: str
    what: str
    expected: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        key = f"{self.key}: " if self.key else ""
        expected = f"; expected {self.expected}" if self.expected else ""
        return f"{where}: {key}{self.what}{expected}"


class ConfigError(Exception):
    """The file can't be used. ``problems`` is never empty and is in the file's order."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Document:
    """A file's content, and the problems found in it so far."""

    def __init__(self, file: str, content: dict[str, Any], text: str) -> None:
        self.file = file
        self._text = text
        self._problems: list[Problem] = []
        self._tables: list[Table] = []
        self.top = self._table((), content)

    def problem(self, path: Key, what: str, expected: str = "") -> None:
        from nodeagent.configfile import toml_lines

        line = toml_lines.line_of(self._text, path)
        self.add(Problem(self.file, line, dotted(path), what, expected))

    def add(self, problem: Problem) -> None:
        self._problems.append(problem)

    def _table(self, path: Key, content: dict[str, Any]) -> "Table":
        table = Table(self, path, content)
        self._tables.append(table)
        return table

    def known(self) -> list[str]:
        """Every key that the loader has read, dotted."""
        return [dotted(path) for table in self._tables for path in table.known()]

    def finish(self) -> None:
        """Raises ConfigError for any problem, unknown keys included."""
        for table in self._tables:
            for name in table.unknown():
                self._refuse_unknown(table, name)
        if self._problems:
            raise ConfigError(self._problems)

    def _refuse_unknown(self, table: "Table", name: str) -> None:
        here = [str(path[-1]) for path in table.known()]
        in_other_tables = [
            path for other in self._tables for path in other.known() if path[-1] == name
        ]
        import difflib  # only a mistake needs it

        near = [table.path_of(near) for near in difflib.get_close_matches(name, here, n=1)]
        meant = (near or in_other_tables)[:1]
        hint = f" (did you mean {dotted(meant[0])}?)" if meant else ""
        self.problem(table.path_of(name), f"unknown key{hint}", f"one of {', '.join(here)}")


class Table:
    """One table of the document. Every question about a key marks it as known."""

    def __init__(self, document: Document, path: Key, content: dict[str, Any]) -> None:
        self._document = document
        self._path = path
        self._content = content
        self._known: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def names(self) -> list[str]:
        return list(self._content)

    def path_of(self, name: str) -> Key:
        return (*self._path, name)

    def problem(self, name: str, what: str, expected: str = "") -> None:
        self._document.problem(self.path_of(name), what, expected)

    def wrong(self, what: str, expected: str = "") -> None:
        """Report that the table as a whole is wrong."""
        self._document.problem(self._path, what, expected)

    def table(self, name: str) -> "Table":
        """The table ``name``; an empty one where there is none."""
        self._known.add(name)
        content = self._content.get(name, {})
        if not isinstance(content, dict):
            self.problem(
                name, f"is {described(content)}", f"a table [{dotted((*self._path, name))}]"
            )
            content = {}
        return self._document._table((*self._path, name), content)  # noqa: SLF001  # its own part

    def tables(self, name: str) -> "list[Table]":
        """The tables of the array ``[[name]]``, which may be missing."""
        self._known.add(name)
        content = self._content.get(name, [])
        if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
            self.problem(name, f"is {described(content)}", f"tables [[{name}]]")
            content = []
        path = (*self._path, name)
        return [
            self._document._table((*path, at), each)  # noqa: SLF001  # its own part
            for at, each in enumerate(content)
        ]

    def read(self, name: str, default: T, parse: Callable[[Any], T], expected: str) -> T:
        """``parse`` of the key's value, or ``default``. A ValueError of ``parse`` is a problem, and
        an OSError, of a path that can't be read, is one too.
        """
        self._known.add(name)
        if name not in self._content:
            return default
        try:
            return parse(self._content[name])
        except ValueError as error:
            self.problem(name, str(error), expected)
        except OSError as error:
            self.problem(name, f"can't be read: {error.strerror or error}", expected)
        return default

    def skip(self) -> None:
        """Mark all keys here as known, because another reader takes them."""
        self._known |= set(self._content)

    def unknown(self) -> list[str]:
        return [name for name in self._content if name not in self._known]

    def known(self) -> list[Key]:
        return [(*self._path, name) for name in sorted(self._known)]


def read_document(path: Path) -> Document:
    """The file at ``path``. Raises ConfigError when there is none or it isn't TOML in UTF-8."""
    file = str(path)
    try:
        raw = regular_file.read(path, most=regular_file.MOST_CONFIG)
    except FileNotFoundError:
        raise ConfigError([Problem(file, 0, "", "there is no such file", "a TOML file")]) from None
    except OSError as error:
        what = f"can't be read: {error.strerror}"
        raise ConfigError([Problem(file, 0, "", what, "a readable TOML file")]) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise ConfigError([Problem(file, line, "", what, "a text in UTF-8")]) from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax_problem(file, text, str(error))]) from None
    except RecursionError:  # tomllib goes as deep as the text does
        what = "is nested too deeply to be read"
        raise ConfigError([Problem(file, 0, "", what, "tables of settings")]) from None
    return Document(file, content, text)


def _syntax_problem(file: str, text: str, message: str) -> Problem:
    """The line is in tomllib's words alone: "(at line 3, column 5)" or "(at end of document)"."""
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if place is None:
        return Problem(file, 0, "", f"not valid TOML: {message}", "TOML 1.0")
    line = int(place[1]) if place[1] else text.count("\n") + 1
    return Problem(file, line, "", f"not valid TOML: {message[: place.start()]}", "TOML 1.0")


def dotted(path: Key) -> str:
    """The path as it would be written in TOML: ``checks."a b".paths[1]``."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            name = part if plain else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
            out += f".{name}" if out else name
    return out


def described(value: Any) -> str:
    """The kind of a TOML value, for a message that refuses it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the text "{value}"'
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else f"the date or time {value}"
