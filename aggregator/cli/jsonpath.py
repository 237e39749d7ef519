r"""The part of kubectl's jsonpath that works on answers: a template with paths in braces.

    {.items[*].node}                         a value; several have blanks between them
    {.items[?(@.phase=="Draining")].node}    items by a comparison (== != < <= > >=)
    {.items[0]} {.items[-1]} {.items[0:2]}   by place
    {.labels['topology.kubernetes.io/zone']} a name with dots; {.labels.a\.b} too
    {range .items[*]}{.node}{"\n"}{end}      text for each item

Not there: `..`, unions, scripts. A path that leads nowhere is empty, as with kubectl. Source:
https://kubernetes.io/docs/reference/kubectl/jsonpath/
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Clean = Callable[[object], str]
#: From a value to those that a step of a path leads to.
Step = Callable[[Any], Iterable[Any]]


class PathError(Exception):
    """A template or a path that can't be read: the text states what is expected."""


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Path:
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class _Range:
    steps: Sequence[Step]
    parts: "Sequence[_Part]"


_Part = _Text | _Path | _Range

_NAME = re.compile(r"\.((?:\\.|[^.\[\]{}\s\\])+)")
_QUOTED = re.compile(r"\[\s*'([^']*)'\s*\]|\[\s*\"([^\"]*)\"\s*\]")
_PLACE = re.compile(r"\[\s*(-?\d+)\s*\]")
_SLICE = re.compile(r"\[\s*(-?\d+)?\s*:\s*(-?\d+)?\s*\]")
_FILTER = re.compile(r"\[\?\(\s*@([^=!<>\s]*)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?))?\s*\)\]")
_PIECE = re.compile(r"\{((?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[^{}\"'])*)\}")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


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


def select(value: Any, steps: Iterable[Step]) -> list[Any]:
    """The values that a path leads to."""
    found = [value]
    for step in steps:
        found = [one for each in found for one in step(each)]
    return found


def read_path(text: str) -> Sequence[Step]:
    """The steps of a path: `.a.b[0]`, with or without braces and leading dot. Raises PathError."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip().removeprefix("$")
    if inner and inner[0] not in ".[":
        inner = f".{inner}"
    return list(_steps(inner))


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


def _steps(text: str) -> Iterator[Step]:
    place = 0
    while place < len(text):
        for pattern, make in _FORMS:
            found = pattern.match(text, place)
            if found is not None:
                yield make(found)
                place = found.end()
                break
        else:
            if text[place:] == ".":  # {.} is the value itself
                return
            raise PathError(
                f'"{text[place : place + 60]}" is no step of a path; expected .name, [0], [1:3], '
                '[*] or [?(@.name=="text")]'
            )


def _by_name(name: str) -> Step:
    def step(value: Any) -> Iterable[Any]:
        return [value[name]] if isinstance(value, dict) and name in value else []

    return step


def _each(_: "re.Match[str]") -> Step:
    def step(value: Any) -> Iterable[Any]:
        if isinstance(value, dict):
            return value.values()
        return value if isinstance(value, list) else []

    return step


def _at_place(found: "re.Match[str]") -> Step:
    place = int(found[1])

    def step(value: Any) -> Iterable[Any]:
        inside = isinstance(value, list) and -len(value) <= place < len(value)
        return [value[place]] if inside else []

    return step


def _slice(found: "re.Match[str]") -> Step:
    part = slice(*(int(word) if word else None for word in found.groups()))

    def step(value: Any) -> Iterable[Any]:
        return value[part] if isinstance(value, list) else []

    return step


def _filter(found: "re.Match[str]") -> Step:
    path, compare = read_path(found[1]) if found[1] else [], found[2]
    wanted = _value(found[3]) if compare else None

    def fits(item: Any) -> bool:
        for one in select(item, path):
            if compare is None:
                return True
            try:
                if _COMPARE[compare](one, wanted):
                    return True
            except TypeError:
                continue  # values of two kinds: no order
        return False

    def step(value: Any) -> Iterable[Any]:
        return [item for item in value if fits(item)] if isinstance(value, list) else []

    return step


def _value(text: str) -> Any:
    if text[:1] in {'"', "'"}:
        return _literal(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise PathError(f'{text[:60]} is no value; expected "text", a number, true or null') from (
            error
        )


_FORMS: Sequence[tuple["re.Pattern[str]", Callable[["re.Match[str]"], Step]]] = (
    (re.compile(r"\[\s*\*\s*\]|\.\*"), _each),
    (_FILTER, _filter),
    (_PLACE, _at_place),
    (_SLICE, _slice),
    (_QUOTED, lambda found: _by_name(found[1] if found[1] is not None else found[2])),
    (_NAME, lambda found: _by_name(re.sub(r"\\(.)", r"\1", found[1]))),
)


def _expanded(parts: Iterable[_Part], value: Any, clean: Clean) -> Iterator[str]:
    for part in parts:
        if isinstance(part, _Text):
            yield part.text
        elif isinstance(part, _Path):
            yield " ".join(_text(one, clean) for one in select(value, part.steps))
        else:
            for item in select(value, part.steps):
                yield from _expanded(part.parts, item, clean)


def _text(value: Any, clean: Clean) -> str:
    if isinstance(value, str):
        return clean(value)
    return "" if value is None else json.dumps(value, separators=(",", ":"))
