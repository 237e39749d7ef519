"""YAML that remembers its lines, so that a refusal can point at one.

`read` gives plain data and, for each key path, its line; `validate` checks it
against a pydantic model and reports every problem as "FILE:LINE: key: problem; expected ...".
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Union

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.shallow_yaml import ShallowLoader
from aggregator.configfile.values import kind_of, show
from aggregator.configfile.yaml_error import where_and_what
from aggregator.rfc3339 import span
from sickbay.regular_file import MOST_CONFIG, require_regular_file

Key = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)
S = TypeVar("S", bound=BaseModel | SectionDataclass)
#: A section's class: a model, or a dataclass.
SectionType = type[BaseModel] | type[SectionDataclass]

#: Deep enough for any settings, and far from the interpreter's own limit.
MAX_DEPTH = 20
#: The most values that aliases may unfold a small file to; for a larger file, its number of
#: characters.
_MOST_UNFOLDED = 100_000
#: Of a whole number. Python writes no number of thousands of digits as text.
_MOST_BITS = 64
_TOO_DEEP = f"nested deeper than {MAX_DEPTH}; expected a flatter file"


@dataclass(frozen=True, slots=True, order=True)
class ConfigProblem:
    """One thing to fix. ``line`` 0: the file as a whole; ``text`` is "problem; expected ..."."""

    line: int
    key: str
    text: str

    @property
    def section(self) -> str:
        """The first part of the key."""
        return self.key.partition(".")[0].partition("[")[0]


class ConfigError(Exception):
    """The file can't be used: every problem in it, by line."""

    def __init__(self, file: str, problems: list[ConfigProblem]) -> None:
        self.file = file
        self.problems = sorted(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line for each problem: "FILE:LINE: key: problem; expected ..."."""
        return [
            f"{self.file}{f':{p.line}' if p.line else ''}: {f'{p.key}: ' if p.key else ''}{p.text}"
            for p in self.problems
        ]


@dataclass(frozen=True, slots=True)
class Document:
    """A file's data, and the line of each key (1 is the first line).

    ``problems`` are what YAML lets pass and we don't, such as a key given twice.
    """

    name: str
    data: dict[str, Any]
    lines: Mapping[Key, int] = field(default_factory=dict)
    problems: tuple[ConfigProblem, ...] = ()

    def line(self, key: Key) -> int:
        """The line of the key, or of the nearest section around it that is there."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.lines:
                return self.lines[key[:length]]
        return 1

    def problem(self, key: Key, text: str) -> ConfigProblem:
        return ConfigProblem(self.line(key), dotted(key), text)


def dotted(key: Key) -> str:
    """``alerts.routes[0].name``"""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read(path: Path) -> Document:
    """The file at ``path``, or `ConfigError` with what is wrong with it as YAML."""
    return parse(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of the file at ``path``, or `ConfigError` where it can't be read."""
    try:
        return require_regular_file(path, most=MOST_CONFIG).read_text("utf-8")
    except OSError as error:
        what = f"can't be read: {error.strerror}; expected a readable YAML file"
        raise ConfigError(str(path), [ConfigProblem(0, "", what)]) from None
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8; expected a text file"
        raise ConfigError(str(path), [ConfigProblem(0, "", what)]) from None


def parse(text: str, name: str, loader: Any = ShallowLoader) -> Document:
    """``text`` as YAML with lines. A key given twice is refused: YAML would take the last.

    ``loader`` is a safe one. The default suits any text, as it bounds the depth.
    """
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        line, what = where_and_what(error)
        raise ConfigError(name, [ConfigProblem(line, "", f"{what}; expected YAML")]) from None
    except RecursionError:
        raise ConfigError(name, [ConfigProblem(0, "", _TOO_DEEP)]) from None
    if root is None:
        return Document(name, {})
    reader = _Reader(max(len(text), _MOST_UNFOLDED))
    data = reader.value(root, ())
    if reader.left < 0:
        what = "its aliases unfold to more than can be read; expected values written out"
        raise ConfigError(name, [ConfigProblem(0, "", what)])
    if not isinstance(data, dict):
        line = root.start_mark.line + 1
        shown = kind_of(data) if isinstance(data, str) else show(data)
        what = f"{shown}; expected keys with values, such as mode: observe"
        raise ConfigError(name, [ConfigProblem(line, "", what)])
    return Document(name, data, reader.lines, tuple(reader.problems))


class _Reader:
    """Turns YAML's nodes into data, noting lines and problems that YAML itself would let pass."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.lines: dict[Key, int] = {}
        self.problems: list[ConfigProblem] = []
        self._scalars = yaml.constructor.SafeConstructor()

    def refuse(self, node: yaml.Node, key: Key, text: str) -> None:
        self.problems.append(ConfigProblem(node.start_mark.line + 1, dotted(key), text))

    def value(self, node: yaml.Node, key: Key) -> Any:
        self.left -= 1
        if self.left < 0:
            return None  # nine lines of aliases can be a billion values
        self.lines.setdefault(key, node.start_mark.line + 1)
        if len(key) > MAX_DEPTH:  # also ends an alias that holds itself
            self.refuse(node, (), _TOO_DEEP)
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*key, i)) for i, child in enumerate(node.value)]
        try:
            found = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError):  # as PyYAML raises them
            return self._unread(node, key)
        is_huge = isinstance(found, int) and found.bit_length() > _MOST_BITS
        return self._unread(node, key) if is_huge else found

    def _unread(self, node: yaml.Node, key: Key) -> None:
        tag = node.tag if node.tag.startswith(_OWN_TAGS) else "a tag that YAML does not have"
        self.refuse(node, key, f"{tag} can't be read; expected plain text or a number")

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name_node, child in node.value:
            name = name_node.value
            if not isinstance(name_node, yaml.ScalarNode) or name_node.tag == _MERGE:
                self.refuse(name_node, key, "not a plain key; expected a word before the colon")
                continue
            if name in data:
                first = self.lines[(*key, name)]
                self.refuse(name_node, (*key, name), f"given twice (line {first}); expected once")
                continue
            self.lines[(*key, name)] = name_node.start_mark.line + 1
            data[name] = self.value(child, (*key, name))
        return data


_OWN_TAGS = "tag:yaml.org,2002:"
_MERGE = f"{_OWN_TAGS}merge"


def validate(document: Document, model: type[M]) -> tuple[M | None, list[ConfigProblem]]:
    """The data as ``model``, or None and every problem. Paths are relative to the file's folder."""
    context = {"folder": Path(document.name).absolute().parent}
    found, problems = read_section(document.data, model, document, (), context)
    return found, [*document.problems, *problems]


def read_section(
    value: object,
    kind: type[S],
    document: Document,
    key: Key,
    context: Mapping[str, Any] | None = None,
) -> tuple[S | None, list[ConfigProblem]]:
    """A part of a document, at ``key``, as this kind of section; or None and every problem."""
    try:
        return TypeAdapter(kind).validate_python(value, context=context), []
    except ValidationError as error:
        return None, [
            document.problem(
                (*key, *(part for part in details["loc"] if part != "[key]")),
                _words(kind, details),  # type: ignore[arg-type]
            )
            for details in _causes(error)
        ]


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """All refusals except that of a list as empty, whose entries have been refused one by one."""
    return [
        one
        for one in error.errors(include_url=False)
        if not (one["type"] == "too_short" and isinstance(one["input"], list) and one["input"])
    ]


def _words(model: SectionType, error: ErrorDetails) -> str:
    """One of pydantic's refusals as "what; expected ..."."""
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    key = tuple(error["loc"])
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        name, known = str(key[-1]), keys_at(model, key[:-1])
        section, dot, below = name.partition(".")
        if dot and section in known:
            return f'unknown key; expected "{section}:" and, indented, below it "{below}:"'
        return f"unknown key; expected {_guess(name, known)}"
    if kind in {"literal_error", "enum"}:
        if isinstance(value, bool) and "'True'" in context["expected"]:  # YAML's own True
            wanted = str(context["expected"]).replace("'", '"')
            return f"{show(value)}; expected {wanted}, in quotes"
        wanted = str(context["expected"]).replace("'", "")
        guess = difflib.get_close_matches(str(value), wanted.replace(" or ", ", ").split(", "), 1)
        hint = f' (did you mean "{guess[0]}"?)' if guess else ""
        return f"{show(value)}; expected {wanted}{hint}"
    if kind == "missing":
        return "missing; expected this key with a value"
    if kind == "value":
        return error["msg"]
    if kind == "too_short":
        empty = isinstance(value, str)
        return f"is empty; expected {'text' if empty else 'at least one entry'}"
    bound = _BOUNDS.get(kind)
    if bound is not None and isinstance(value, str):  # a duration, in seconds by now, or a share
        words, limit = bound[0], context[bound[1]]
        written = f"{limit:g}%" if value.endswith("%") else span(limit)
        return f'{show(value)}; expected {words} "{written}"'
    if kind == "model_type" and section_at(model, key) and not keys_at(model, key):
        return f"{show(value)}; expected {{}}, as it has no keys"
    expected = _EXPECTED.get(kind, "{msg}").format(msg=error["msg"], **context)
    if expected in (_LIST, _SECTION) and isinstance(
        value, str
    ):  # a command with its password, a URL
        return f"{kind_of(value)}; expected {expected}"
    return f"{show(value)}; expected {expected}"


#: The words of a bound, and its name in pydantic's context.
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
}
_LIST = "a list, such as [a, b]"
_SECTION = "a section: keys, indented, below it"
#: The meaning of pydantic's refusals for the author of the file.
_EXPECTED = {
    "string_type": "text in quotes",
    "string_too_short": "text that is not empty",
    "string_too_long": "at most {max_length} characters",
    "too_long": "a list of at most {max_length}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _SECTION,
    "model_type": _SECTION,
    "dataclass_type": _SECTION,
    "model_attributes_type": _SECTION,
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
}


def _guess(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    every = "one of " + ", ".join(known) if known else "no key here"
    return f'"{close[0]}"? (known here: {", ".join(known)})' if close else every


def keys_at(model: SectionType, key: Key) -> list[str]:
    """The keys that the section at ``key`` may hold."""
    found = section_at(model, key)
    return list(fields_of(found)) if found is not None else []


def section_at(model: SectionType, key: Key) -> SectionType | None:
    """The section's class at ``key``, or None where there is none."""
    current: SectionType | None = model
    entries: SectionType | None = None  # of a mapping, whose names are the file's own
    for part in key:
        if isinstance(part, int):
            continue  # an item of a list: the list's field led to its items' model
        if entries is not None:
            current, entries = entries, None
            continue
        known = {} if current is None else fields_of(current)
        if part not in known:
            return None
        entries = _section_in_mapping(known[part])
        current = section_in(known[part])
    return current


def _section_in_mapping(annotation: Any) -> SectionType | None:
    """The section's class in an annotation such as ``Mapping[str, Profile]``."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _section_in_mapping(arguments[0])
    is_mapping = typing.get_origin(annotation) in {dict, Mapping}
    return section_in(arguments[1]) if is_mapping else None


def fields_of(section: SectionType) -> dict[str, Any]:
    """The keys of a section, each with its type's annotation."""
    if issubclass(section, BaseModel):
        return {name: field.annotation for name, field in section.model_fields.items()}
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}  # type: ignore[arg-type]


def section_in(annotation: Any) -> SectionType | None:
    """The section's class in an annotation such as ``Tls | None`` or ``tuple[Webhook, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | SectionDataclass):
        return annotation
    if typing.get_origin(annotation) in {Union, types.UnionType, tuple, list, typing.Annotated}:
        for argument in typing.get_args(annotation):
            found = section_in(argument)
            if found is not None:
                return found
    return None
