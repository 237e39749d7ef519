r"""kubectl's jsonpath: a template with paths (RFC 9535) in braces.

    {.items[*].node}                         a value; several have blanks between them
    {.items[?(@.phase=="Draining")].node}    items by a comparison (== != < <= > >=)
    {.labels['topology.kubernetes.io/zone']} a name with dots; {.labels.a\.b} too
    {range .items[*]}{.node}{"\n"}{end}      text for each item

Not there: `..`. A path that leads nowhere is empty, as with kubectl. Source:
https://kubernetes.io/docs/reference/kubectl/jsonpath/
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonpath import JSONPath

Clean = Callable[[object], str]


class PathError(Exception):
    """A template or a path that can't be read: the text states what is expected."""


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Path:
    query: "JSONPath"


@dataclass(frozen=True, slots=True)
class _Range:
    query: "JSONPath"
    parts: "Sequence[_Part]"


_Part = _Text | _Path | _Range

#: kubectl's names have more characters than RFC 9535's, and a backslash before a dot.
_NAME = re.compile(r"""'[^']*'|"[^"]*"|\d+\.\d+|\.(?P<name>(?:\\.|[^.\[\]{}()\s\\'"*@=!<>&|,])+)""")
_PIECE = re.compile(r"\{((?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[^{}\"'])*)\}")


class Template:
    """A template that has been read. Raises PathError."""

    def __init__(self, text: str) -> None:
        pieces = list(_pieces(text))
        if not pieces:
            raise PathError("there is no template; expected one such as {.items[*].node}")
        self._parts, rest = _parts(pieces, 0, inside=False)
        assert rest == len(pieces)

    def expand(self, value: Any, clean: Clean) -> str:
        """The text for ``value``. Its texts go through ``clean``."""
        return "".join(_expanded(self._parts, value, clean))


def read_path(text: str) -> "JSONPath":
    """The query of a path: `.a.b[0]`, with or without braces and leading dot. Raises PathError."""
    inner = re.sub(r"^[$@]", "", text.strip().removeprefix("{").removesuffix("}").strip())
    if inner and inner[0] not in ".[":
        inner = f".{inner}"
    from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError  # 0.1 s: only where used

    standard = _NAME.sub(_quoted, "" if inner == "." else inner)
    try:
        query = JSONPathEnvironment(strict=True).compile(f"${standard}")
    except JSONPathError as error:
        raise PathError(
            f'"{text[:60]}" is no path: {error.message}; expected .name, [0], [1:3], [*] or '
            '[?(@.name=="text")]'
        ) from error
    assert isinstance(query, JSONPath)  # as any standard path
    return query


def _quoted(found: "re.Match[str]") -> str:
    if found["name"] is None:
        return found[0]
    name = re.sub(r"\\(.)", r"\1", found["name"])
    return f"[{json.dumps(name)}]"


def select(value: Any, query: "JSONPath") -> Sequence[Any]:
    """The values that a path leads to."""
    if isinstance(value, str):  # the library would read it as JSON
        return [] if query.segments else [value]
    return query.findall(value)


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Text outside of braces (False) and inside (True)."""
    place = 0
    for found in _PIECE.finditer(text):
        if found.start() > place:
            yield False, _outside(text[place : found.start()])
        yield True, found[1].strip()
        place = found.end()
    if place < len(text):
        yield False, _outside(text[place:])


def _outside(text: str) -> str:
    if "{" in text or "}" in text:
        raise PathError(f'a brace without its other one in "{text[:60]}"')
    return text


def _parts(
    pieces: Sequence[tuple[bool, str]], place: int, *, inside: bool
) -> tuple[Sequence[_Part], int]:
    """The parts from ``place`` on, up to the {end} that closes a range or to the end."""
    parts: list[_Part] = []
    while place < len(pieces):
        is_path, text = pieces[place]
        place += 1
        if not is_path:
            parts.append(_Text(text))
        elif text == "end":
            if not inside:
                raise PathError("{end} without {range ...}")
            return parts, place
        elif text.startswith("range "):
            within, place = _parts(pieces, place, inside=True)
            parts.append(_Range(read_path(text.removeprefix("range ")), within))
        elif text[:1] in {'"', "'"}:
            parts.append(_Text(_literal(text)))
        else:
            parts.append(_Path(read_path(text)))
    if inside:
        raise PathError("{range ...} without {end}")
    return parts, place


def _literal(text: str) -> str:
    try:
        inner = text if text[0] == '"' else json.dumps(text[1:-1]).replace("\\\\", "\\")
        return str(json.loads(inner))
    except ValueError as error:
        raise PathError(f'{text[:60]} is no text; expected "..."') from error


def _expanded(parts: Iterable[_Part], value: Any, clean: Clean) -> Iterator[str]:
    for part in parts:
        if isinstance(part, _Text):
            yield part.text
        elif isinstance(part, _Path):
            yield " ".join(_text(one, clean) for one in select(value, part.query))
        else:
            for item in select(value, part.query):
                yield from _expanded(part.parts, item, clean)


def _text(value: Any, clean: Clean) -> str:
    if isinstance(value, str):
        return clean(value)
    return "" if value is None else json.dumps(value, separators=(",", ":"))
