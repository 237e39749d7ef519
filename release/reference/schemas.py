"""JSON Schemas of both configuration files, with the meaning of each key.

The aggregator's are the docstrings of its settings, the agent's are in the tables of its page.
"""

import re
from collections.abc import Mapping
from typing import Any

from nodeagent.checks import registry
from nodeagent.checks.base import Kind
from nodeagent.config.settings import keys
from release.reference import configuration
from release.reference.config_schema import DIALECT, DURATION, PERCENT, config_schema, properties
from release.reference.tables import code, plain, rows
from release.tree import ROOT

_SIZE = r"^\d+(\.\d+)?([kMGT]?B|[KMGT]iB)$"


def aggregator_schema() -> dict[str, Any]:
    """`sickbay-aggregator config schema` prints it."""
    schema = config_schema()
    meanings = configuration.meanings()
    for key, one in properties(schema).items():
        named = meanings[key]
        bounds = one.get("description", "")
        text = " ".join(filter(None, (named, f"({bounds})" if bounds else "")))
        if text:
            one["description"] = text
    return schema


def agent_schema() -> dict[str, Any]:
    """By the keys of the agent's loader and the tables of agent.md and of each check."""
    described = _agents_rows()
    schema = _section()
    schema["properties"]["own"] = {"type": "object", "description": "docs/own-checks.md"}
    schema["properties"]["kernel_lines"] = {
        "type": "object",
        "description": "docs/own-checks.md",
        "additionalProperties": _kernel_line(),
    }
    for key in keys():
        *path, name = key.split(".")
        section = schema
        for part in path:
            section = section["properties"].setdefault(part, _section())
        if key in described:
            section["properties"][name] = _key(*described[key])
    # A key without a row is a table, or a key that only its check knows to refuse.
    title = {"$schema": DIALECT, "title": "Configuration of the sickbay agent"}
    return {**title, **schema}


def _kernel_line() -> dict[str, Any]:
    """A line of the site's own, by the table of own-checks.md."""
    page = _page("own-checks").partition("\n## Lines of the kernel log\n")[2].partition("\n###")[0]
    properties = {
        code(key): _key(value, "", meaning)
        for key, value, _, meaning in (row for row in rows(page) if len(row) == 4)
    }
    return {**_section(), "properties": properties, "required": ["pattern"]}


def _section() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _agents_rows() -> Mapping[str, tuple[str, str, str]]:
    """The value, default and meaning of each dotted key."""
    found = {}
    for row in rows(_page("agent").partition("\n## Configuration\n")[2]):
        if len(row) == 4:
            found[code(row[0])] = (row[1], row[2], row[3])
    check = ""
    for line in registry.markdown().splitlines():
        heading = re.fullmatch(r"## (\S+)", line)
        check = heading[1] if heading is not None else check
        for row in rows(line) if check else ():
            if len(row) == 4:
                found[f"checks.{check}.{code(row[0])}"] = (row[1], row[2], row[3])
    return found


def _key(value: str, default: str, meaning: str) -> dict[str, Any]:
    schema = _form(value)
    written = code(default)
    if written:
        schema["default"] = _literal(written)
    words = [plain(meaning)]
    if "pattern" not in schema and schema["type"] == "string" and "enum" not in schema:
        words.append(f"({plain(value)})")
    text = " ".join(filter(None, words))
    return {**schema, "description": text} if text else schema


def _form(value: str) -> dict[str, Any]:
    choices = re.findall(r"`([a-z-]+)`", value)
    text: dict[str, Any] = {"type": "string"}
    if len(choices) > 1:
        text["enum"] = choices
    if value.startswith(("list", Kind.TEXTS.value)):
        return {"type": "array", "items": text}
    forms: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        ((Kind.FLAG.value,), {"type": "boolean"}),
        (("duration", Kind.DURATION.value), {"type": "string", "pattern": _DURATIONS}),
        ((Kind.PERCENT.value,), {"type": "string", "pattern": PERCENT}),
        ((Kind.SIZE.value,), {"type": "string", "pattern": _SIZE}),
        (("whole number", Kind.INTEGER.value), {"type": "integer", "minimum": 0}),
    )
    return next((form for words, form in forms if value.startswith(words)), text).copy()


#: The agent's durations may have several parts ("1h30m").
_DURATIONS = DURATION.replace("^", "^(").replace("$", ")+$")


def _literal(written: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written


def _page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")
