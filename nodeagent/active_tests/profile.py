"""Test profiles: data in TOML files, shipped in ``profiles/`` or a site's own.

TOML and not YAML: the agent reads it with Python's own library, and YAML's costs memory on each
node (docs/decisions/0003-configuration-formats.md).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from nodeagent.active_tests import outputs
from nodeagent.configfile import values
from nodeagent.configfile.toml_table import ConfigError, Document, Problem, Table, read_document
from nodeagent.dataclass import dataclass

__all__ = ["Profile", "StepSpec", "Threshold", "profile_names", "read_profile", "shipped"]

_SHIPPED = Path(__file__).with_name("profiles")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SUFFIX = ".toml"
#: ``gpu``: the node has one. ``gpus``: it has two or more. ``idle``: no process has a GPU open.
#: ``peer``: the other end is named.
REQUIREMENTS = ("gpu", "gpus", "idle", "peer")
EXIT_MEANINGS = ("passed", "failed", "inconclusive", "skipped")
NAME = "a name of small letters, digits and hyphens, at most 64"
#: A day: a longer test is a burn-in, which the agent's window of orders does not fit.
_LONGEST = 86400.0


@dataclass(frozen=True, slots=True)
class Threshold:
    """Bounds of a measure, for GPUs whose name has a match of ``model`` (a regular expression)."""

    measure: str
    source: str
    model: str = ""
    minimum: float | None = None
    maximum: float | None = None

    def applies(self, models: Sequence[str]) -> bool:
        """Whether it is for this node; a threshold without a model is for every node."""
        return not self.model or any(re.search(self.model, name) for name in models)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One program. ``exits`` are meanings of exit codes that ``output`` does not know.

    In ``command`` the words ``{peer}``, ``{gpus}`` and ``{scratch}`` are replaced by the address
    of the other end, the number of GPUs, and a folder on the node's disk; the word ``@FILE`` by
    the text of a file of this package.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    output: str
    needs: tuple[str, ...] = ()
    required: bool = False
    exits: Mapping[int, str] = field(default_factory=dict)
    thresholds: tuple[Threshold, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """``requires``: without them the whole test is not begun."""

    name: str
    purpose: str
    requires: tuple[str, ...]
    steps: tuple[StepSpec, ...]

    @property
    def limit(self) -> float:
        """Seconds that it may take at most: each step, and the kernel's time to end it."""
        return sum(step.limit + 5.0 for step in self.steps)

    @property
    def uses_gpus(self) -> bool:
        """Whether a program of it needs a GPU: the agent lets go of the driver for such a test."""
        return not self._needs.isdisjoint(("gpu", "gpus", "idle"))

    @property
    def needs_idle(self) -> bool:
        """Whether it, or a single step, must not begin while a process has a GPU open."""
        return "idle" in self._needs

    @property
    def _needs(self) -> frozenset[str]:
        return frozenset((*self.requires, *(need for step in self.steps for need in step.needs)))


def shipped() -> list[str]:
    return sorted(path.stem for path in _SHIPPED.glob(f"*{_SUFFIX}"))


def profile_names(own: Path | None) -> list[str]:
    """The names of all profiles, shipped ones and the site's ``own``."""
    names = set(shipped())
    if own is not None:
        names |= {path.stem for path in own.glob(f"*{_SUFFIX}") if _NAME.fullmatch(path.stem)}
    return sorted(names)


def read_profile(name: str, own: Path | None) -> Profile:
    """The profile ``name``; a site's own goes before a shipped one. Raises ConfigError."""
    for folder in (own, _SHIPPED):
        if folder is not None and _NAME.fullmatch(name):
            path = folder / f"{name}{_SUFFIX}"
            if path.exists():
                return _read(read_document(path), name)
    known = ", ".join(profile_names(own))
    what = f"there is no test profile {name[:80]!r}"
    raise ConfigError([Problem("test profile", 0, "", what, f"one of {known}")])


def _read(document: Document, name: str) -> Profile:
    top = document.top
    profile = Profile(
        name=name,
        purpose=top.read("purpose", "", values.text, "a text"),
        requires=top.read("requires", (), _requirements, _REQUIREMENTS_TEXT),
        steps=tuple(_step(table) for table in top.tables("step")),
    )
    if not profile.steps:
        top.problem("step", "is missing", "at least one [[step]]")
    names = [step.name for step in profile.steps]
    for twice in sorted({each for each in names if names.count(each) > 1}):
        top.problem("step", f"has the name {twice!r} twice", "another name for each step")
    document.finish()
    return profile


_REQUIREMENTS_TEXT = f"a list of {', '.join(REQUIREMENTS)}"


def _step(table: Table) -> StepSpec:
    for key in ("name", "command", "limit"):
        if key not in table:
            table.problem(key, "is missing", "each step has a name, a command and a limit")
    output = table.read(
        "output", "exit", values.one_of(outputs.KINDS), f"one of {', '.join(outputs.KINDS)}"
    )
    return StepSpec(
        name=table.read("name", "", _name, NAME),
        command=table.read("command", (), _command, "a program and its arguments"),
        limit=table.read("limit", 60.0, _limit, 'a duration from "1s" to "24h"'),
        output=output,
        needs=table.read("needs", (), _requirements, _REQUIREMENTS_TEXT),
        required=table.read("required", False, values.flag, "true or false"),
        exits=table.read("exits", {}, _exits, 'a table such as { "77" = "inconclusive" }'),
        thresholds=tuple(_threshold(each, output) for each in table.tables("threshold")),
    )


def _threshold(table: Table, output: str) -> Threshold:
    measures = outputs.MEASURES[output]
    found = Threshold(
        measure=table.read(
            "measure", "", values.one_of(measures), f"one of {', '.join(measures) or 'none'}"
        ),
        source=table.read("source", "", values.text, "where the figure is from"),
        model=table.read("model", "", _pattern, "a regular expression for the GPU's name"),
        minimum=table.read("minimum", None, _number, "a number"),
        maximum=table.read("maximum", None, _number, "a number"),
    )
    for key in ("measure", "source"):
        if key not in table:
            table.problem(key, "is missing", "each threshold has a measure and a source")
    if (
        found.minimum is None
        and found.maximum is None
        and not {"minimum", "maximum"} & {*table.names()}
    ):
        table.problem("minimum", "is missing, and maximum too", "one of the two")
    return found


def _name(value: Any) -> str:
    if not _NAME.fullmatch(values.text(value)):
        raise ValueError(f"{value!r} is no such name")
    return str(value)


def _command(value: Any) -> tuple[str, ...]:
    command = values.texts(value)
    if not command or not command[0]:
        raise ValueError("is empty")
    return command


def _limit(value: Any) -> float:
    seconds = values.duration(1.0)(value)
    if seconds > _LONGEST:
        raise ValueError(f'"{value}" is more than a day')
    return seconds


def _requirements(value: Any) -> tuple[str, ...]:
    choice = values.one_of(REQUIREMENTS)
    if not isinstance(value, list):
        return values.texts(value)
    return tuple(choice(each) for each in value)


def _exits(value: Any) -> Mapping[int, str]:
    if not isinstance(value, dict):
        raise ValueError("is no table")  # noqa: TRY004  # the reader of the file reports it
    found = {}
    for code, meaning in value.items():
        if not (code.isascii() and code.isdigit() and int(code) < 256):
            raise ValueError(f"has the key {code!r}, which is no exit code from 0 to 255")
        found[int(code)] = values.one_of(EXIT_MEANINGS)(meaning)
    return found


def _pattern(value: Any) -> str:
    try:
        re.compile(values.text(value))
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return str(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124  # NaN
        raise ValueError(f"{value!r} is no number")
    return float(value)
