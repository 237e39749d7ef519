"""Selects, sorts and groups the rows of the nodes by a query. Pure, except `RowCache`.

A row costs some microseconds to make. Without a sort or a filter that needs rows, only those of the
requested page are made; else all are made once for each snapshot, and serve every order.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aggregator.policy.label_selector import LabelRequirement, LabelSelector
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.runtime.text import natural
from aggregator.web import models
from aggregator.web.cases import WORST_FIRST
from aggregator.web.query_params import BadQuery, Form, Param
from aggregator.web.snapshot_cache import FleetSnapshot

if TYPE_CHECKING:
    from aggregator.web.queries import FleetQueries

#: Columns by which the nodes can be sorted, in addition to the labels.
COLUMNS = ("node", "state", "why", "agent")
AGENTS = ("attached", "silent", "never", "unknown")
_STATES = tuple(state.value for state in QuarantineSummary)
_GROUP_COLUMNS = ("value", "nodes", *_STATES)
_LABEL = "label:"
_CHUNK = 250
#: A label's key and value, as Kubernetes allows them.
_KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,316}"
_TERM = re.compile(
    rf"(?P<no>!?)(?P<key>{_KEY})(?:(?P<op>==?|!=)(?P<value>[A-Za-z0-9._-]{{0,63}}))?"
)
#: Terms of one selector.
_MOST_TERMS = 16

FILTERS = (
    Param("state", Form.CHOICE, "Only nodes of this state.", "", choices=_STATES),
    Param("q", Form.TEXT, "Only nodes whose name contains this.", ""),
    Param("why", Form.TEXT, "Only nodes whose line in words contains this.", ""),
    Param("agent", Form.CHOICE, "Only nodes whose agent is so.", "", choices=AGENTS),
    Param(
        "label",
        Form.TEXT,
        "Only nodes with these labels: `key=value`, `key!=value`, `key`, `!key`, with commas.",
        "",
    ),
)
SORT = Param(
    "sort",
    Form.TEXT,
    "The column: `node`, `state`, `why`, `agent` or `label:KEY`; `-` before it turns it round.",
    "node",
)
GROUP_SORT = Param(
    "sort",
    Form.TEXT,
    "The column: `value`, `nodes` or a state; `-` before it turns it round.",
    "value",
)


class RowCache:
    """All rows of the latest snapshot, made once, in chunks between which other tasks run."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._snapshot: FleetSnapshot | None = None
        self._rows: dict[str, models.NodeRow] = {}

    async def all_rows(
        self, source: "FleetQueries", snapshot: FleetSnapshot
    ) -> Mapping[str, models.NodeRow]:
        """By node."""
        async with self._lock:
            if self._snapshot is not snapshot:
                rows: dict[str, models.NodeRow] = {}
                names = snapshot.found.names
                for begin in range(0, len(names), _CHUNK):
                    made = source.rows(names[begin : begin + _CHUNK])
                    rows.update((row.node, row) for row in made)
                    await asyncio.sleep(0)
                self._snapshot, self._rows = snapshot, rows
            return self._rows


@dataclass(frozen=True, slots=True)
class _Order:
    """A column, and whether it is turned round. ``key``: of the label that it is, or empty."""

    column: str
    descending: bool
    key: str = ""

    @property
    def by_name(self) -> bool:
        return self.column == "node" and not self.descending


async def page_of_nodes(
    source: "FleetQueries", snapshot: FleetSnapshot, values: Mapping[str, Any]
) -> models.NodePage:
    """The requested page. Raises BadQuery for an unknown column or an invalid selector."""
    order = _order(values["sort"], COLUMNS, labels=True)
    names = selected(source, snapshot, values)
    rows: Mapping[str, models.NodeRow] = {}
    if values["why"] or values["agent"] or order.column in ("why", "agent"):
        rows = await source.all_rows(snapshot)
        names = _with_row(names, rows, values)
    if not order.by_name:
        names = _sorted(source, snapshot, names, rows, order)
    begin = _begin(names, values["after"], order)
    chosen = names[begin : begin + values["limit"]]
    return models.NodePage(
        items=source.rows(chosen),
        total=len(names),
        next=chosen[-1] if begin + len(chosen) < len(names) else "",
    )


def selected(
    source: "FleetQueries", snapshot: FleetSnapshot, values: Mapping[str, Any]
) -> list[str]:
    """The nodes that pass the filters by state, name and label, in the order of their names."""
    state, part = values["state"], values["q"].lower()
    states = snapshot.found.states
    matches = selector(values["label"])
    return [
        name
        for name in snapshot.found.names
        if (not state or states[name] == state)
        and part in name.lower()
        and (matches is None or matches(source.labels(name)))
    ]


def _with_row(
    names: Iterable[str], rows: Mapping[str, models.NodeRow], values: Mapping[str, Any]
) -> list[str]:
    """The nodes that pass the filters by the line in words and the agent."""
    part, agent = values["why"].lower(), values["agent"]
    return [
        name
        for name in names
        if (row := rows.get(name)) is not None
        and part in row.why.lower()
        and (not agent or row.agent == agent)
    ]


async def groups_of(
    source: "FleetQueries", snapshot: FleetSnapshot, values: Mapping[str, Any]
) -> models.NodeGroupList:
    """The nodes by the value of the label ``values["key"]``. Raises BadQuery."""
    key, order = values["key"], _order(values["sort"], _GROUP_COLUMNS)
    if not key:
        raise BadQuery("there is no key", "expected key=LABEL, such as topology.kubernetes.io/rack")
    check_key(key)
    counts: dict[str | None, dict[QuarantineSummary, int]] = {}
    chosen = selected(source, snapshot, values)
    if values["why"] or values["agent"]:
        chosen = _with_row(chosen, await source.all_rows(snapshot), values)
    for name in chosen:
        value = source.labels(name).get(key)
        found = counts.setdefault(value, dict.fromkeys(QuarantineSummary, 0))
        found[snapshot.found.states[name]] += 1
    items = [
        models.NodeGroup(
            value=value or "", has_label=value is not None, nodes=sum(of.values()), counts=of
        )
        for value, of in counts.items()
    ]
    items.sort(key=lambda one: (not one.has_label, natural(one.value)))
    if order.column == "nodes":
        items.sort(key=lambda one: one.nodes, reverse=order.descending)
    elif order.column != "value":
        state = QuarantineSummary(order.column)
        items.sort(key=lambda one: one.counts[state], reverse=order.descending)
    elif order.descending:
        items.reverse()
    return models.NodeGroupList(key=key, items=items, total=len(items), nodes=len(chosen))


def suited_sort(sort: str, *, grouped: bool) -> str:
    """``sort``, or the default where it is a column of the other table: the form keeps it."""
    column = sort.removeprefix("-")
    if grouped and (column in COLUMNS or column.startswith(_LABEL)):
        return str(GROUP_SORT.default)
    if not grouped and column in _GROUP_COLUMNS:
        return str(SORT.default)
    return sort


def selector(text: str) -> Callable[[Mapping[str, str]], bool] | None:
    """Whether labels match, as equality-based selectors of Kubernetes do, or None for no selector.

    Raises BadQuery.
    """
    if not text.strip():
        return None
    terms = text.split(",")
    found = [_TERM.fullmatch(term.strip()) for term in terms]
    if len(terms) > _MOST_TERMS or any(one is None or (one["no"] and one["op"]) for one in found):
        raise BadQuery(
            f'label: "{text[:80]}" is not understood',
            "expected key=value, key!=value, key or !key, at most "
            f"{_MOST_TERMS} of them with commas between",
        )
    return LabelSelector(matchExpressions=tuple(map(_requirement, filter(None, found)))).matches


def _requirement(term: "re.Match[str]") -> LabelRequirement:
    if term["op"]:
        return LabelRequirement(
            term["key"], "NotIn" if term["op"] == "!=" else "In", (term["value"],)
        )
    return LabelRequirement(term["key"], "DoesNotExist" if term["no"] else "Exists")


def check_key(key: str) -> None:
    """Raises BadQuery unless it may be a label's key."""
    if re.fullmatch(_KEY, key) is None:
        raise BadQuery(f'"{key[:80]}" is no label\'s key', "expected one as kubectl shows it")


def _order(text: str, columns: Collection[str], *, labels: bool = False) -> _Order:
    column, descending = text.removeprefix("-"), text.startswith("-")
    if labels and column.startswith(_LABEL):
        key = column.removeprefix(_LABEL)
        check_key(key)
        return _Order(_LABEL, descending, key)
    if column not in columns:
        more = f" or {_LABEL}KEY" if labels else ""
        raise BadQuery(
            f'sort: there is no column "{column[:80]}"',
            f"expected one of {', '.join(columns)}{more}, with or without - before it",
        )
    return _Order(column, descending)


def _sorted(
    source: "FleetQueries",
    snapshot: FleetSnapshot,
    names: Sequence[str],
    rows: Mapping[str, models.NodeRow],
    order: _Order,
) -> list[str]:
    """``names``, which are in the order of names, by the column; empty values come last."""
    if order.column == "node":
        return list(reversed(names))
    if order.column == "state":
        states, ranks = snapshot.found.states, {one: at for at, one in enumerate(WORST_FIRST)}
        return sorted(names, key=lambda name: ranks[states[name]], reverse=order.descending)
    if order.column == "agent":
        rank = {agent: number for number, agent in enumerate(AGENTS)}
        last = len(rank)  # an agent's state of another version
        return sorted(
            names, key=lambda name: rank.get(rows[name].agent, last), reverse=order.descending
        )

    def text(name: str) -> str:
        return source.labels(name).get(order.key, "") if order.key else rows[name].why

    full = [name for name in names if text(name)]
    empty = [name for name in names if not text(name)]
    full.sort(key=lambda name: natural(text(name).lower()), reverse=order.descending)
    return full + empty


def _begin(names: Sequence[str], after: str, order: _Order) -> int:
    """Where the page begins that follows ``after``. A node that is gone since has a place in the
    order of names alone; in any other order the first page is given again.
    """
    if not after:
        return 0
    if order.by_name:
        key = natural(after)
        return next((i for i, name in enumerate(names) if natural(name) > key), len(names))
    return names.index(after) + 1 if after in names else 0
