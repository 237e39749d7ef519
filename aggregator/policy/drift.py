"""Nodes whose versions or settings differ from those of their pool. Pure.

A node's fact is compared with the same fact of the other nodes of its pool. Where at least
`MAJORITY` of at least `LEAST_NODES` nodes have one value, a node that has differed from it for
`LASTS` has drifted. A new value on more nodes is a roll-out: there is no such majority then. Nor is
a value drift to which some node has first changed within `LASTS`: a slow roll-out begins so.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from aggregator.health.model import Component, Status

#: The check that agents report facts in, and in whose name a drift is reported.
CHECK = "drift"
GROUPS = ("kernel", "gpu", "nic", "nvme", "sysctl")
LEAST_NODES = 10
MAJORITY = 0.9
#: Seconds.
LASTS = 86_400.0
#: Seconds for which a node's value is remembered after the node had it: a node that changes to it
#: again and again begins one roll-out, which hides the others' drift for `LASTS` alone.
_REMEMBERED = 7 * LASTS
#: Values of one node that are remembered so, the newest. A node that has had more begins no
#: roll-out: it would begin those again that are forgotten.
_MOST_REMEMBERED = 128
#: Facts of one node, findings of one node, and findings of the fleet: the rest is counted only.
MOST_FACTS = 128
MOST_OF_A_NODE = 16
MOST_FINDINGS = 1_000
_MOST_TEXT = 300
_LIST = "command line"

#: Group and name of a fact, such as ("nvme", "SAMSUNG MZ").
Fact: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """``values`` has a value of each fact; ``pool`` is empty for nodes without one."""

    pool: str
    values: Mapping[Fact, str]


@dataclass(frozen=True, slots=True)
class Drift:
    """One node's fact that differs. ``since``: when it was first seen so, in monotonic seconds."""

    node: str
    pool: str
    fact: Fact
    value: str
    usual: str
    having: int
    of: int
    since: float

    @property
    def component(self) -> str:
        """Apart from the agent's own rows, which have the group alone."""
        return ": ".join(self.fact)


def read_facts(rows: Iterable[Component]) -> dict[Fact, str]:
    """The facts in an agent's rows of the check, by group and name; others are left out."""
    found: dict[Fact, str] = {}
    for row in rows:
        if row.component not in GROUPS:
            continue  # a finding of ours
        for pair in row.message.split("; "):
            name, colon, value = pair.partition(": ")
            if colon and len(found) < MOST_FACTS:
                found[row.component, name] = value
    return found


@dataclass(slots=True)
class _Difference:
    """A value that a node has, or had, and that is not the usual one. Times are monotonic seconds.

    ``since``: when it was first seen so, with no other value in between; None while it has another.
    ``taken``: when the node first changed to it; minus infinity where it came with it.
    """

    pool: str
    since: float | None
    taken: float
    last: float


class DriftSearch:
    """Compares all nodes; remembers since when each differs. A restart of ours begins anew."""

    def __init__(self) -> None:
        self._differences: dict[tuple[str, Fact, str], _Difference] = {}
        self._known: frozenset[str] = frozenset()
        #: The nodes of which no further value can be remembered.
        self._full: set[str] = set()

    def search(self, nodes: Mapping[str, ComparedNode], now: float) -> list[Drift]:
        """The drifts that have lasted, by node. At most `MOST_FINDINGS`."""
        counts: dict[tuple[str, Fact], Counter[str]] = {}
        for facts in nodes.values():
            for fact, value in facts.values.items():
                counts.setdefault((facts.pool, fact), Counter())[value] += 1
        usual = {key: found for key, count in counts.items() if (found := _majority(count))}
        self._end(nodes, now)
        lasting: list[Drift] = []
        for node in sorted(nodes):
            lasting += self._of_node(node, nodes[node], usual, now)
        self._known = frozenset(nodes)
        rolled_out = {
            (one.pool, fact, value)
            for (_, fact, value), one in self._differences.items()
            if now - one.taken < LASTS
        }
        return [
            drift for drift in lasting if (drift.pool, drift.fact, drift.value) not in rolled_out
        ][:MOST_FINDINGS]

    def _end(self, nodes: Mapping[str, ComparedNode], now: float) -> None:
        """End what a node reports another value for: a fact that it leaves out has not changed."""
        past: dict[str, list[tuple[float, tuple[str, Fact, str]]]] = {}
        for key, one in list(self._differences.items()):
            node, fact, value = key
            facts = nodes.get(node)
            if facts is not None and facts.values.get(fact, value) != value:
                one.since = None
            if now - one.last >= _REMEMBERED:
                del self._differences[key]
            elif one.since is None:
                past.setdefault(node, []).append((one.last, key))
        for those in past.values():
            for _, key in sorted(those)[:-_MOST_REMEMBERED]:
                del self._differences[key]
        self._full = {node for node, those in past.items() if len(those) >= _MOST_REMEMBERED}

    def _of_node(
        self,
        node: str,
        facts: ComparedNode,
        usual: Mapping[tuple[str, Fact], tuple[str, int, int]],
        now: float,
    ) -> list[Drift]:
        found: list[Drift] = []
        for fact, value in facts.values.items():
            most = usual.get((facts.pool, fact))
            if most is None or most[0] == value:
                continue
            key = (node, fact, value)
            one = self._differences.get(key)
            if one is None or one.pool != facts.pool:
                changed = node in self._known and node not in self._full
                taken = now if changed else -math.inf
                one = self._differences[key] = _Difference(facts.pool, now, taken, now)
            one.since = now if one.since is None else one.since
            one.last = now
            if now - one.since >= LASTS and len(found) < MOST_OF_A_NODE:
                found.append(Drift(node, facts.pool, fact, value, *most, one.since))
        return found


def _majority(count: Counter[str]) -> tuple[str, int, int] | None:
    """The value of nearly all nodes, how many have it, and of how many, or None without one."""
    ((value, having),) = count.most_common(1)
    of = count.total()
    return (value, having, of) if of >= LEAST_NODES and having >= MAJORITY * of else None


def evidence(drift: Drift) -> Component:
    """The evidence of a drift, in the aggregator's own name."""
    value, usual = drift.value, drift.usual
    if drift.fact[1] == _LIST:  # most of it is the same
        ours, theirs = set(value.split()), set(usual.split())
        value = " ".join(sorted(ours - theirs)) or "(nothing more)"
        usual = " ".join(sorted(theirs - ours)) or "(nothing more)"
    text = (
        f"{drift.fact[1]}: {value[:_MOST_TEXT]}; {drift.having} of {drift.of} nodes of the pool "
        f"have {usual[:_MOST_TEXT]}"
    )
    return Component(CHECK, drift.component, Status.DEGRADED, drift.fact[0], text, drift.since)
