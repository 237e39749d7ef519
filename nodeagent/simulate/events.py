"""The events of a simulated node, read from a scenario (TOML) or a line of JSON.

Both have the same keys and the same errors. docs/simulate.md is the reference for people.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from nodeagent.configfile import values
from nodeagent.configfile.toml_table import ConfigError, Document, Problem, Table, read_document
from nodeagent.dataclass import dataclass
from nodeagent.evidence.entries import ENDS
from nodeagent.model import Status
from sickbay.json_text import read_json

#: A code as the agent writes it after parsing: without zeros in front.
_CODE = re.compile(
    r"xid:(?:0|[1-9][0-9]{0,4})|sxid:(?:0|[1-9][0-9]{0,6}):(?:fatal|non-fatal)|gpu-off-bus"
)
_CODES = '"xid:79", "sxid:20034:fatal" (or non-fatal) or "gpu-off-bus"'
_STATUSES = {status.name.lower(): status for status in Status}
_NODES = 'a number of nodes, a list of their names, or "all"'


@dataclass(frozen=True, slots=True)
class Fault:
    """A line in the kernel log. ``gpu`` None: one is drawn. ``text`` ends the driver's line."""

    code: str
    gpu: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class ScenarioState:
    """A check's status of a component from now on."""

    check: str
    component: str
    status: Status
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Clear:
    """The sign ``how`` that ends latched faults; empty code or gpu None: of every one."""

    code: str
    gpu: int | None
    how: str


@dataclass(frozen=True, slots=True)
class ScenarioReboot:
    """The node restarts: another boot id, and the faults that a boot ends are over."""


@dataclass(frozen=True, slots=True)
class Away:
    """The agent's stream is cut, and it does not come back by itself."""


Act = Fault | ScenarioState | Clear | ScenarioReboot | Away


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """``act`` happens ``at`` seconds after the start, and is undone after ``lasting`` (0: never).

    ``nodes``: a number, drawn by the seed, or the named ones, or all (None).
    """

    at: float
    nodes: int | tuple[str, ...] | None
    act: Act
    lasting: float = 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """The names that events may use: nodes, checks, and GPUs by number from 0."""

    nodes: Collection[str]
    checks: Collection[str]
    gpus: int


class ScenarioError(Exception):
    """A line that cannot be carried out; the text states why and what was expected."""


def read_scenario(path: Path, known: Known) -> list[ScenarioEvent]:
    """The scenario's events by time. Raises ConfigError with all of its errors."""
    document = read_document(path)
    tables = document.top.tables("event")
    events = [event for table in tables if (event := _event(table, known)) is not None]
    document.finish()
    return sorted(events, key=lambda event: event.at)


def read_line(line: str, known: Known) -> ScenarioEvent:
    """One event as a JSON object; its ``at`` counts from now. Raises ScenarioError."""
    try:
        content = read_json(line)
    except ValueError as error:
        raise ScenarioError(f"not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ScenarioError(
            'not a JSON object; expected one such as {"node": "sim-0001", "fault": "xid:79"}'
        )
    document = Document("", content, "")
    event = _event(document.top, known)
    try:
        document.finish()
    except ConfigError as error:
        raise ScenarioError(
            "; ".join(_without_place(problem) for problem in error.problems)
        ) from None
    assert event is not None, "a problem was reported where there is no event"
    return event


def _without_place(problem: Problem) -> str:
    expected = f"; expected {problem.expected}" if problem.expected else ""
    key = f"{problem.key}: " if problem.key else ""
    return f"{key}{problem.what}{expected}"


def _event(table: Table, known: Known) -> ScenarioEvent | None:
    at = table.read("at", 0.0, values.duration(), values.DURATION)
    lasting = table.read("for", 0.0, values.duration(), values.DURATION)
    nodes = _nodes(table, known)
    kinds = {
        "fault": _fault,
        "check": _state,
        "clear": _clear,
        "reboot": _reboot,
        "away": _away,
    }
    named = [name for name in kinds if name in table]
    if len(named) != 1:
        _refuse_number(table, named, list(kinds))
        table.skip()
        return None
    act = kinds[named[0]](table, known)
    if isinstance(act, Clear) and lasting:
        table.problem("for", "a sign does not last", "no for next to clear")
    return None if act is None else ScenarioEvent(at, nodes, act, lasting)


def _refuse_number(table: Table, named: Sequence[str], kinds: Sequence[str]) -> None:
    expected = f"one of {', '.join(kinds)}"
    if named:
        table.problem(named[1], f"given next to {named[0]}", f"{expected} in each event")
    else:
        table.wrong("names no event", expected)


def _nodes(table: Table, known: Known) -> int | tuple[str, ...] | None:
    def name(value: Any) -> str:
        if values.text(value) not in known.nodes:
            raise ValueError(f'there is no node "{value}"')
        return str(value)

    def several(value: Any) -> int | tuple[str, ...] | None:
        if value == "all":
            return None
        if isinstance(value, list):
            names = tuple(name(item) for item in value)
            if not names:
                raise ValueError("names no node")
            if len(set(names)) < len(names):
                raise ValueError("names a node twice")
            return names
        return values.integer(1, len(known.nodes))(value)

    if "node" in table and "nodes" in table:
        table.problem("node", "given next to nodes", "one of the two")
    one = table.read("node", "", name, "the name of a simulated node")
    drawn: int | tuple[str, ...] | None = 1
    many = table.read("nodes", drawn, several, _NODES)
    return (one,) if one else many


def _fault(table: Table, known: Known) -> Act:
    def code(value: Any) -> str:
        if not _CODE.fullmatch(values.text(value)):
            raise ValueError(f'"{value}" is no fault code')
        return str(value)

    return Fault(
        code=table.read("fault", "", code, _CODES),
        gpu=_gpu(table, known),
        text=table.read("text", "", values.text, "the end of the driver's line"),
    )


def _gpu(table: Table, known: Known) -> int | None:
    parse = values.integer(0, known.gpus - 1)
    return table.read("gpu", None, parse, f"a GPU's number from 0 to {known.gpus - 1}")


def _state(table: Table, known: Known) -> Act | None:
    check = table.read(
        "check",
        "",
        values.one_of(sorted(known.checks)),
        f"one of {', '.join(sorted(known.checks))}",
    )
    word = table.read(
        "status", "", values.one_of(list(_STATUSES)), f"one of {', '.join(_STATUSES)}"
    )
    if "status" not in table:
        table.problem("check", "comes without a status", f"status = one of {', '.join(_STATUSES)}")
    state = ScenarioState(
        check=check,
        component=table.read("component", "", values.text, "a mount, an interface, a GPU's UUID"),
        status=_STATUSES.get(word, Status.UNKNOWN),
        reason=table.read("reason", "", values.text, 'one word, such as "full"'),
        message=table.read("message", "simulated", values.text, "a text for people"),
    )
    return state if check and word else None


def _clear(table: Table, known: Known) -> Act:
    def code(value: Any) -> str:
        if value == "all":
            return ""
        if not _CODE.fullmatch(values.text(value)):
            raise ValueError(f'"{value}" is no fault code')
        return str(value)

    return Clear(
        code=table.read("clear", "", code, f'{_CODES}, or "all"'),
        gpu=_gpu(table, known),
        how=table.read(
            "how", "gpu-reset", values.one_of(sorted(ENDS)), f"one of {', '.join(sorted(ENDS))}"
        ),
    )


def _reboot(table: Table, _: Known) -> Act:
    table.read("reboot", True, _true, "true")
    return ScenarioReboot()


def _away(table: Table, _: Known) -> Act:
    table.read("away", True, _true, "true")
    return Away()


def _true(value: Any) -> bool:
    if value is not True:
        raise ValueError("is not true")
    return True
