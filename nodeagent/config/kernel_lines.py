"""``[kernel_lines.NAME]``: the site's own kernel lines; and node-problem-detector's rules."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.kernel_lines import PREFIXES, WORDS, LineRow
from nodeagent.checks.line_pattern import LinePattern, line_pattern
from nodeagent.checks.line_places import KINDS, OF_MOUNTS
from nodeagent.checks.own_lines import ANYWHERE, own_lines
from nodeagent.config.custom_checks import wrong_name
from nodeagent.config.line_safety import why_forged, why_loose, why_slow
from nodeagent.config.settings import CheckSettings
from nodeagent.configfile import values
from nodeagent.configfile.toml_table import Table
from nodeagent.model import Status
from sickbay import regular_file
from sickbay.json_text import read_json

_STATUSES = {"failed": Status.FAILED, "degraded": Status.DEGRADED, "ok": Status.OK}
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_PLACES = sorted(KINDS - OF_MOUNTS)
_PATTERN = "a pattern of the kernel's own words, from the first byte of the line"
#: Words of RE2 that Python has under another name, or not at all.
_POSIX = {
    "alpha": "A-Za-z",
    "digit": "0-9",
    "alnum": "0-9A-Za-z",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
}
_POSIX |= {"upper": "A-Z", "lower": "a-z", "word": r"\w"}
#: Flags at the beginning, for the whole pattern.
_FLAGS = re.compile(r"(?:\(\?([ims]+)\))?(.*)", re.DOTALL)
_NOT_PYTHON = re.compile(r"\\[pPCQE]|\(\?[a-z]*U|\[\[:\^?\w+:\]|\\x\{")

_Specs = tuple[tuple[CheckSpec, ...], dict[str, CheckSettings]]


def read_lines(table: Table, taken: Mapping[str, CheckSettings]) -> _Specs:
    """The checks of the site's lines, in the file's order. ``taken`` are its other checks."""
    rows: dict[str, list[LineRow]] = {}
    statuses: dict[str, dict[str, Status]] = {}
    for name in table.names():
        below = table.table(name)
        check = below.read("check", name, values.text, "a name of a check")
        wrong = wrong_name(check)
        if wrong is None and check in taken:
            wrong = ("is the name of a check in [own]", "another name")
        if wrong is not None:
            below.problem("check", *wrong) if "check" in below else table.problem(name, *wrong)
            below.skip()
            continue
        row, status = _line(name, below)
        known = statuses.setdefault(check, {})
        if (
            row.kind in {each.kind for each in rows.get(check, ())}
            and known.get(row.kind) != status
        ):
            below.problem(
                "status", f"differs from another line's of {check}:{row.kind}", "the same"
            )
        if status is not None:
            known[row.kind] = status
        rows.setdefault(check, []).append(row)
    return _checks(rows, statuses, "lines of the site's own")


def _line(name: str, table: Table) -> tuple[LineRow, Status | None]:
    def parse(value: Any) -> LinePattern:
        pattern = _compiled(values.text(value), WORDS)
        reason = why_slow(pattern) or (why_loose(pattern) if of else why_forged(pattern))
        if reason:
            raise ValueError(reason)
        return pattern

    of = table.read("of", "", values.one_of(tuple(PREFIXES)), f"one of {', '.join(PREFIXES)}")
    pattern = table.read("pattern", _NEVER, parse, _PATTERN)
    if "pattern" not in table:
        table.wrong("has no pattern", _PATTERN)
    fields = {field for _, field in pattern.groups} | ({"pci", "iface", "driver"} if of else set())
    component = table.read(
        "component", "", values.text, f"{', '.join(_PLACES)}, or a text with the pattern's fields"
    )
    message = table.read("message", "", values.text, "a text, which may have the pattern's fields")
    for key, text in (("component", component), ("message", message)):
        for unknown in sorted(set(re.findall(r"\{([a-z_]+)\}", text)) - fields):
            table.problem(key, f"has the field {{{unknown}}}, which the pattern does not have", "")
    needed = {"gpu": "gpu", "device": "pci", "adapter": "pci", "interface": "iface", "rdma": "rdma"}
    if component in needed and not fields & {needed[component], "bdf"}:
        table.problem("component", f"is {component}", f"{{{needed[component]}}} in the pattern")
    status = table.read(
        "status", None, values.one_of(tuple(_STATUSES)), f"one of {', '.join(_STATUSES)}"
    )
    kind = table.read("kind", name, _kind, "letters, digits and '-', at most 63")
    row = LineRow(pattern, kind, of=of, component=component, message=message)
    return row, None if status is None else _STATUSES[status]


def _kind(value: Any) -> str:
    kind = values.text(value)
    if not _KIND.fullmatch(kind):
        raise ValueError(f"is {kind[:80]!r}")
    return kind


def _compiled(source: str, words: Mapping[str, str]) -> LinePattern:
    try:
        return line_pattern(source, words)
    except KeyError as error:
        known = ", ".join(f"{{{word}}}" for word in words)
        raise ValueError(f"has {{{error.args[0]}}}, which is none of {known}") from error
    except UnicodeEncodeError as error:
        raise ValueError("has letters outside ASCII, which the kernel writes as \\xNN") from error
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is no pattern: {error}") from error


_NEVER = line_pattern("(?!)", {})


def read_monitor(top: Table, name: str, taken: Mapping[str, CheckSettings]) -> _Specs:
    """The check of node-problem-detector's file (``kernel-monitor.json``), as it is."""
    path: Path | None = top.read(name, None, values.readable_file, values.FILE)
    if path is None:
        return (), {}
    problems: list[str] = []
    try:
        document = read_json(regular_file.read(path, most=regular_file.MOST_CONFIG))
        source, foreign = str(document["source"]), _other_log(document)
        rules = [(at, dict(rule)) for at, rule in enumerate(document["rules"])]
        # One rule is found for a line, and a lasting condition outranks an event.
        rules.sort(key=lambda each: each[1].get("type") != "permanent")
    except (OSError, ValueError, KeyError, TypeError) as error:
        top.problem(
            name, f"{path} is not of node-problem-detector's form: {error!r}", "source, rules"
        )
        return (), {}
    if foreign:
        top.problem(name, f"{path} is of {foreign}, not of the kernel log", "kernel-monitor.json")
        return (), {}
    wrong = wrong_name(source) or (("is a check in [own]", "") if source in taken else None)
    if wrong is not None:
        problems.append(f"source: {source[:80]!r} {wrong[0]}")
    rows, statuses = [], {}
    for at, rule in rules:
        try:
            rows.append(_rule(rule))
        except ValueError as error:
            problems.append(f"rules[{at}].pattern: {error}")
            continue
        if rule.get("type") == "permanent":
            statuses[rows[-1].kind] = Status.FAILED
    for problem in problems:
        top.problem(name, f"{path}: {problem}", "node-problem-detector's kernel-monitor.json")
    if problems:
        return (), {}
    return _checks({source: rows}, {source: statuses}, f"rules of {path}")


def _other_log(document: Mapping[str, Any]) -> str:
    """The log of a file for another one than the kernel's; empty for the kernel's."""
    plugin, config = document.get("plugin", "kmsg"), dict(document.get("pluginConfig") or {})
    if plugin == "journald":
        unit = config.get("source")
        return "" if unit == "kernel" else f"the journal of {unit}"
    if plugin == "filelog":
        named = str(config.get("message"))
        return "" if "kernel" in named else f"the file {document.get('logPath')}"
    return "" if plugin == "kmsg" else f"the plugin {plugin}"


def _rule(rule: Mapping[str, Any]) -> LineRow:
    """A rule's pattern may be anywhere in a line, and ends with it; of several lines the last."""
    if rule.get("type") not in ("temporary", "permanent"):
        raise ValueError(f"type {rule.get('type')!r}; expected temporary or permanent")
    if not isinstance(rule.get("pattern"), str) or not _KIND.fullmatch(str(rule.get("reason"))):
        raise ValueError("pattern and reason are texts, the reason one word")
    if rule["type"] == "permanent" and not isinstance(rule.get("condition"), str):
        raise ValueError("is of a permanent rule without a condition")
    whole = rule["pattern"].replace(r"[^\n]", ".")
    flags, whole = _FLAGS.fullmatch(whole).groups()  # type: ignore[union-attr]  # all is optional
    source = re.split(r"\\n|\n", whole)[-1]
    for word, members in _POSIX.items():
        source = source.replace(f"[:{word}:]", members)
    foreign = _NOT_PYTHON.search(source)
    if foreign is not None:
        raise ValueError(f"has {foreign[0]!r} of RE2, which is not read here")
    source = re.sub(r"\{([a-z]+)\}", r"\\{\1\\}", source.replace(r"\z", ""))
    source = f"(?{flags}:{source})" if flags else source
    own = _compiled(source, {})
    reason = why_slow(own) or ("matches every line" if own.compiled.match(b"") else "")
    if reason:
        raise ValueError(reason)
    pattern = _compiled(f"{ANYWHERE}({source})$", {})
    component = str(rule["condition"]) if rule["type"] == "permanent" else ""
    return LineRow(pattern, str(rule["reason"]), component=component)


def _checks(
    rows: Mapping[str, list[LineRow]], statuses: Mapping[str, Mapping[str, Status]], sees: str
) -> _Specs:
    specs = tuple(
        own_lines(name, each, statuses.get(name, {}), sees) for name, each in rows.items()
    )
    return specs, {spec.name: CheckSettings(on=True, interval=0.0, deadline=0.0) for spec in specs}
