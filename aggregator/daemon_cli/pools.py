"""Pools on the command line: warnings, the labels of nodes, the effect of rules on each pool."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sickbay.json_text import read_json

if TYPE_CHECKING:  # half a second that other commands need not spend
    from aggregator.config.settings import Config
    from aggregator.configfile.yaml_source import Key
    from aggregator.policy.replay import Episode, Totals
    from aggregator.policy.rules import Rule
    from aggregator.quarantine.decide.pools import Pools

#: Bytes: 20,000 nodes with their status take less.
_MOST_NODES_FILE = 1 << 30

Labels = Mapping[str, str]


def label_argument(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` of a label."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        what = f"{text!r}; expected KEY=VALUE, such as example.com/pool=canary"
        raise argparse.ArgumentTypeError(what)
    return key, value


def pools_of(config: "Config") -> "Pools":
    """The pools of a configuration."""
    from aggregator.quarantine.decide.pools import Pools

    return Pools(config.pools, config.mode)


def odd_pools(config: "Config") -> Iterator[tuple["Key", str]]:
    """Pools that select no node, whatever its labels are, or none that is left, or every node for
    more than the file's mode; by their keys.
    """
    from aggregator.policy.label_selector import contradiction, covers

    for number, one in enumerate(config.pools):
        key = ("pools", number, "selector")
        raised = one.mode is not None and one.mode.strength > config.mode.strength
        if raised and not any(one.selector.requirements()):
            text = f"selects every node that no earlier pool does, for mode {one.mode}"
            yield key, f"{text}; expected requirements, or this mode as that of the file"
        why = contradiction(one.selector)
        if why:
            yield key, f"{why}; expected requirements that a node can meet"
            continue
        for earlier in config.pools[:number]:
            if covers(earlier.selector, one.selector):
                text = f"selects no node: the earlier pool {earlier.name} selects all of them"
                yield key, f"{text}; expected the narrower pool first"
                break


def caps(
    config: "Config", rules: Iterable["Rule"], shipped: Mapping[str, "Rule"]
) -> Iterator[tuple["Key", str]]:
    """Settings that keep a site's rules from an action or a repair of theirs, on every node."""
    from aggregator.policy.rules import ACTIONS

    most = pools_of(config).strongest.value
    weaker, ladders = list[str](), list[str]()
    for rule in rules:
        strongest = max(rule.action, rule.elsewhere or rule.action, key=ACTIONS.index)
        weaker += [rule.name] * (ACTIONS.index(strongest) > ACTIONS.index(most))
        before = shipped.get(rule.name)
        ladders += [rule.name] * (rule.repair != (before.repair if before else ()))
    if weaker:
        yield ("mode",), f"no node has a mode above {most}, to which it caps {', '.join(weaker)}"
    if ladders and config.repair.mode.value != "repair":
        text = f'with "{config.repair.mode.value}" no repair begins by {", ".join(ladders)}'
        yield ("repair", "mode"), text


class NodesFileError(Exception):
    """The file of nodes can't be used; the text names it and what is expected instead."""


def read_labels(file: Path) -> dict[str, Labels]:
    """The labels by node of the output of `kubectl get nodes -o json`. Raises `NodesFileError`."""
    from sickbay.regular_file import read_file_or_pipe

    expected = "expected the output of: kubectl get nodes -o json"
    try:
        items = read_json(read_file_or_pipe(file, most=_MOST_NODES_FILE))["items"]
        return {
            str(one["metadata"]["name"]): {
                str(key): str(value) for key, value in (one["metadata"].get("labels") or {}).items()
            }
            for one in items
        }
    except OSError as error:
        raise NodesFileError(f"{file} can't be read: {error.strerror}; {expected}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NodesFileError(f"{file} is no list of nodes; {expected}") from error


@dataclass(frozen=True, slots=True)
class PoolEffect:
    """The effect of rules in one pool, before and after a change; the pool's ``mode`` caps their
    actions.
    """

    name: str
    mode: str
    before: "Totals"
    after: "Totals"

    def line(self) -> str:
        """One line of text."""
        before, after = (
            f"{actions_of(total) or 'no action'} ({total.node_hours:g} node-hours)"
            for total in (self.before, self.after)
        )
        return f"  {self.name:<16} {self.mode:<8} {before} becomes {after}"

    def as_json(self) -> Mapping[str, Any]:
        sums = {"before": totals_json(self.before), "after": totals_json(self.after)}
        return {"name": self.name, "mode": self.mode, **sums}


def effects(
    pools: "Pools",
    labels: Mapping[str, Labels],
    before: Sequence["Episode"],
    after: Sequence["Episode"],
    now: float,
) -> list[PoolEffect]:
    """The effect on each pool, in the order of the configuration; empty without pools.

    Nodes whose labels are not known (for example because they are gone) are in the pool "unknown".
    """
    names = [*pools.names, *([_UNKNOWN] if pools else [])]
    found = []
    for name in names:
        mode = pools.mode_of("" if name == _UNKNOWN else name).value
        both = [_capped(_within(pools, labels, name, some), mode) for some in (before, after)]
        sums = [_totals(some, now) for some in both]
        if name != _UNKNOWN or any(both):
            found.append(PoolEffect(name, mode, *sums))
    return found


_UNKNOWN = "unknown"


def _within(
    pools: "Pools", labels: Mapping[str, Labels], name: str, episodes: Iterable["Episode"]
) -> list["Episode"]:
    return [one for one in episodes if (pools.name_of(labels.get(one.node)) or _UNKNOWN) == name]


def _capped(episodes: Iterable["Episode"], mode: str) -> list["Episode"]:
    from aggregator.policy.rules import ACTIONS

    return [replace(one, action=min(one.action, mode, key=ACTIONS.index)) for one in episodes]


def _totals(episodes: Iterable["Episode"], now: float) -> "Totals":
    from aggregator.policy.replay import totals

    return totals(episodes, now)


def actions_of(total: "Totals") -> str:
    """How many of each; empty without one."""
    return ", ".join(f"{count} {action}" for action, count in sorted(total.by_action.items()))


def totals_json(total: "Totals") -> Mapping[str, Any]:
    """The sums as plain values."""
    return {
        "by_action": dict(total.by_action),
        "nodes_at_once": total.nodes_at_once,
        "node_hours": total.node_hours,
    }
