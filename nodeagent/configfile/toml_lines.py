"""The lines of a TOML text on which its keys are: ``tomllib`` doesn't report them, and messages
need them.

The scanner understands just as much TOML as finding keys needs (tables, arrays of tables, dotted
and quoted keys, every kind of string). It expects a text that ``tomllib`` has already accepted.
"""

import re
import tomllib

#: A key as a path from the top; a whole number is a position in an array.
Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
# Up to two quotes may come right before the three that close a multi-line string.
_MULTI_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"(?!""")){0,2}', re.DOTALL)
_MULTI_LITERAL = re.compile(r"'''.*?'''(?:'(?!''')){0,2}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_SPACE = re.compile(r"[ \t]*")


def key_lines(text: str) -> dict[Path, int]:
    """Every key's path and the line (from 1) on which it first occurs.

    Elements of arrays are there too, by position: ``("checks", "reach", "targets", 1)``.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of ``path``, or of the nearest table around it that the text has; else 1."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, int] = {}
        self._line_at = (0, 1)  # a position that was counted up to, and its line
        self._last: dict[Path, int] = {}  # arrays of tables: the index of their newest table

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._take(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._key_value(table)
            self._take(_BLANK)
        return self._found

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"not TOML at character {self._at}")
        self._at = match.end()
        return match.group()

    def _expect(self, mark: str) -> None:
        if not self._text.startswith(mark, self._at):
            raise ValueError(f"not TOML at character {self._at}: {mark!r} is missing")
        self._at += len(mark)

    def _note(self, path: Path, start: int) -> None:
        position, line = self._line_at
        line += self._text.count("\n", position, start) if start >= position else 0
        if start < position:
            line -= self._text.count("\n", start, position)
        self._line_at = (start, line)
        self._found.setdefault(path, line)

    def _header(self) -> Path:
        start = self._at
        double = self._text.startswith("[[", self._at)
        self._at += 2 if double else 1
        path: Path = ()
        *parents, name = self._key()
        for part in parents:
            path = self._inside((*path, part), start)
        path = (*path, name)
        self._note(path, start)
        if double:
            self._last[path] = self._last.get(path, -1) + 1
            path = (*path, self._last[path])
            self._note(path, start)
        self._expect("]]" if double else "]")
        return path

    def _inside(self, path: Path, start: int) -> Path:
        """A header's parent: where it is an array of tables, its newest table is meant."""
        self._note(path, start)
        return (*path, self._last[path]) if path in self._last else path

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._take(_SPACE)
            parts.append(self._key_part())
            self._take(_SPACE)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _key_part(self) -> str:
        if self._text.startswith('"', self._at):
            return str(tomllib.loads(f"k = {self._take(_BASIC)}")["k"])
        if self._text.startswith("'", self._at):
            return self._take(_LITERAL)[1:-1]
        return self._take(_BARE)

    def _key_value(self, table: Path) -> None:
        start = self._at
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path, start)
        self._expect("=")
        self._take(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._text.startswith("[", self._at):
            self._array(path)
        elif self._text.startswith("{", self._at):
            self._inline_table(path)
        elif self._text.startswith('"""', self._at):
            self._take(_MULTI_BASIC)
        elif self._text.startswith("'''", self._at):
            self._take(_MULTI_LITERAL)
        elif self._text.startswith('"', self._at):
            self._take(_BASIC)
        elif self._text.startswith("'", self._at):
            self._take(_LITERAL)
        else:
            self._take(_SCALAR)

    def _array(self, path: Path) -> None:
        self._expect("[")
        index = 0
        while True:
            self._take(_BLANK)
            if self._text.startswith("]", self._at):
                break
            self._note((*path, index), self._at)
            self._value((*path, index))
            index += 1
            self._take(_BLANK)
            if not self._text.startswith(",", self._at):
                break
            self._at += 1
        self._expect("]")

    def _inline_table(self, path: Path) -> None:
        self._expect("{")
        while True:
            self._take(_BLANK)
            if self._text.startswith("}", self._at):
                break
            self._key_value(path)
            self._take(_BLANK)
            if not self._text.startswith(",", self._at):
                break
            self._at += 1
        self._expect("}")
