"""docs/reference/aggregator-configuration.md: every key of the aggregator's file.

The meaning of a key is the docstring under its field in the code.
"""

import ast
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from aggregator.config.settings import Config
from aggregator.configfile.yaml_source import SectionType, fields_of, section_in
from release.reference.config_schema import config_schema, properties
from release.reference.tables import table

_HEAD = """# Configuration of the aggregator
Made from the code by `make docs-reference`: every key of the aggregator's file.
[aggregator.md](../aggregator.md#the-configuration-file) explains the file and how to check it.
`[]` stands for each entry of a list.
"""
#: How a receiver is reached, and its templates, are the same for each kind.
_RECEIVER = re.compile(r"^(alerts\.receivers\[\]\.)[a-z]+\.(http|template)\.")
#: A path in backticks is text: a link there would show its brackets.
_PAGE = re.compile(r"(?<!`)docs/((?:reference/)?[a-z-]+\.md)(#[\w-]+)?")


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key: dotted, its default as the file has it, and its meaning.

    ``optional_section``: the key is in a section without which it has no effect.
    """

    key: str
    default: Any
    meaning: str
    required: bool
    optional_section: bool

    @property
    def shown_default(self) -> str:
        """The cell of the default."""
        if self.required:
            return "required"
        if self.default is None:
            return "not set"
        if self.default == "":
            return "empty"
        text = self.default if isinstance(self.default, str) else yaml.safe_dump(self.default)
        written = text if _is_plain(text, self.default) else _flow(self.default)
        return f"`{written}`" + (", with the section" if self.optional_section else "")


def _is_plain(text: str, value: Any) -> bool:
    return isinstance(value, str) and yaml.safe_load(text) == value


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    written = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return written.removesuffix("...\n").strip()


def page() -> str:
    """The page's Markdown."""
    sections: dict[str, list[KeyRow]] = {}
    for row in _once_for_receivers():
        sections.setdefault(re.split(r"[.\[]", row.key)[0], []).append(row)
    lines = [_HEAD]
    for name, found in sections.items():
        body = ((f"`{one.key}`", one.shown_default, _linked(one.meaning)) for one in found)
        lines += [f"## {name}", *table(("key", "default", "meaning"), body), ""]
    return "\n".join(lines).rstrip() + "\n"


def _once_for_receivers() -> Iterator[KeyRow]:
    seen: set[str] = set()
    for row in keys():
        key = _RECEIVER.sub(r"\1KIND.\2.", row.key)
        if key not in seen:
            seen.add(key)
            yield dataclasses.replace(row, key=key)


def _linked(meaning: str) -> str:
    """The meaning with each page that it names as a link."""
    text = meaning.replace("``", "`")
    return _PAGE.sub(lambda page: f"[{page[1]}](../{page[1]}{page[2] or ''})", text)


def meanings() -> Mapping[str, str]:
    """The meaning of each dotted key, without marks, as an editor shows it."""
    return {row.key: row.meaning.replace("``", "") for row in keys()}


def keys() -> Iterator[KeyRow]:
    """Every key of the file, in the order of the code."""
    schemas = properties(config_schema())
    for key, section, name, optional in _walk(Config):
        yield KeyRow(
            key=key,
            default=schemas[key].get("default"),
            meaning=_meaning(section, name),
            required=_is_required(section, name),
            optional_section=optional,
        )


def _walk(
    section: SectionType, prefix: str = "", *, optional: bool = False
) -> Iterator[tuple[str, SectionType, str, bool]]:
    for name, annotation in fields_of(section).items():
        inner = section_in(annotation)
        if inner is None or not fields_of(inner):
            yield prefix + name, section, name, optional
            continue
        several = "[]" if "tuple" in str(annotation) else ""
        within = optional or _may_be_none(annotation)
        yield from _walk(inner, f"{prefix}{name}{several}.", optional=within)


def _may_be_none(annotation: Any) -> bool:
    union = get_origin(annotation) in {Union, types.UnionType}
    return union and type(None) in get_args(annotation)


def _is_required(section: SectionType, name: str) -> bool:
    if issubclass(section, BaseModel):
        return section.model_fields[name].is_required()
    [field] = (one for one in dataclasses.fields(section) if one.name == name)  # type: ignore[arg-type]
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _meaning(section: SectionType, name: str) -> str:
    """The docstring under a field, of the class that defines it."""
    for owner in section.__mro__:
        if name in inspect.get_annotations(owner):
            return _docstrings(owner).get(name, "")
    return ""


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """By name. Python 3.13 does not find the source of a dataclass with slots by itself."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {one.name: one for one in body if isinstance(one, ast.ClassDef)}


@cache
def _docstrings(owner: type) -> Mapping[str, str]:
    definition = _classes(owner.__module__)[owner.__name__]
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = " ".join(text.value.value.split())
    return found
