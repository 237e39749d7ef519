"""``sickbay-aggregator policy replay``: the recorded past, evaluated again.

Exit codes of a replay are those of diff: 0 for no difference, 1 for a difference, 2 for a record
that can't be replayed.
"""

import argparse
import errno
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggregator.daemon_cli.pools import (
    NodesFileError,
    PoolEffect,
    actions_of,
    effects,
    pools_of,
    read_labels,
    totals_json,
)
from aggregator.daemon_cli.subcommand import add_command
from aggregator.rfc3339 import write_time
from aggregator.runtime.command_options import add_value
from aggregator.runtime.text import counted, visible
from sickbay.regular_file import require_regular_file

if TYPE_CHECKING:  # half a second that other commands need not spend
    from aggregator.config.settings import HistoryConfig
    from aggregator.policy.replay import Difference, Episode, Totals
    from aggregator.policy.rules import Policy

SAME, DIFFERENT, TROUBLE = 0, 1, 2

_CONFIG = Path("/etc/sickbay/aggregator.yaml")
_SINCE = 28 * 86400.0
_NO_LABELS = (
    "sickbay-aggregator: some rules are about some nodes only, and no labels are known: each has "
    "the milder of its actions; expected --nodes FILE, the output of: kubectl get nodes -o json"
)


def add_replay(about: Any) -> None:
    """Add ``replay`` to ``policy``."""
    replay = add_command(
        about,
        "replay",
        "print what a changed file of rules would have done in the recorded past",
        "Exit code: 0 no incident would differ, 1 an incident would, 2 an error.",
    )
    replay.add_argument("file", type=Path, metavar="FILE", help="the changed rules")
    add_value(
        replay,
        "--config",
        "FILE",
        f"the aggregator's configuration, for its history (default: {_CONFIG})",
        Path,
        _CONFIG,
    )
    add_value(replay, "--node", "NAME", "only of this node")
    add_value(
        replay,
        "--since",
        "DURATION",
        "of so long a time until now, such as 7d (default: 28d)",
        _duration,
        _SINCE,
    )
    add_value(
        replay,
        "--against",
        "FILE",
        "compare with these rules (default: the configuration's, or the shipped ones)",
        Path,
    )
    add_value(
        replay,
        "--nodes",
        "FILE",
        "the output of 'kubectl get nodes -o json': rules about some nodes, and the effect "
        "on each pool of the configuration",
        Path,
    )
    replay.add_argument("-o", "--output", choices=("text", "json"), default="text")
    replay.set_defaults(command=_replay, trouble=TROUBLE)


def _duration(text: str) -> float:
    from pydantic_core import PydanticCustomError

    from aggregator.configfile.values import duration

    try:
        return duration(text)
    except PydanticCustomError as error:
        raise argparse.ArgumentTypeError(error.message()) from None


def _replay(options: argparse.Namespace) -> int:
    from aggregator.history.replay_codec import RecordError
    from aggregator.runtime.database import DatabaseError

    try:
        return _replayed(options)
    except (DatabaseError, NodesFileError, RecordError) as error:
        print(f"sickbay-aggregator: {error}", file=sys.stderr)
        return TROUBLE


def _replayed(options: argparse.Namespace) -> int:
    from aggregator.config.settings import load
    from aggregator.history.replay_codec import by_node
    from aggregator.policy.defaults import read_policy
    from aggregator.policy.node_rules import policy_for
    from aggregator.policy.replay import compare, live, totals

    labels = read_labels(options.nodes) if options.nodes is not None else {}
    changed = read_policy(options.file)
    config = load(options.config)
    pools = pools_of(config) if options.nodes is not None else None
    present = read_policy(options.against or config.policy.file)
    now = time.time()
    old: list[Episode] = []
    new: list[Episode] = []
    found: list[Difference] = []
    nodes = 0
    begin = now - options.since
    for node, events in by_node(_rows(config.history, options.node)):
        nodes += 1
        here = labels.get(node)
        before = _lately(live(policy_for(present, here), node, events, now), begin)
        after = _lately(live(policy_for(changed, here), node, events, now), begin)
        found += compare(before, after)
        old += before
        new += after
    if not nodes:
        text = "that database has no recorded evidence to replay"
        print(f"sickbay-aggregator: {text}", file=sys.stderr)
        return TROUBLE
    found.sort(key=lambda one: (not one.shown.acts, one.shown.began))
    sums = totals(old, now), totals(new, now)
    by_pool = effects(pools, labels, old, new, now) if pools is not None else []
    if options.nodes is None and (present.selecting or changed.selecting):
        print(_NO_LABELS, file=sys.stderr)
    if options.output == "json":
        answer = {
            **_as_json(found, sums, nodes, (len(old), len(new)), (present, changed)),
            "pools": [one.as_json() for one in by_pool],
        }
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join(_text(found, sums, nodes, (present, changed), by_pool)))
    return DIFFERENT if found else SAME


def _lately(episodes: Iterable["Episode"], begin: float) -> list["Episode"]:
    return [one for one in episodes if one.ended is None or one.ended >= begin]


def _rows(where: "HistoryConfig", node: str) -> Iterable[Mapping[str, Any]]:
    from sqlalchemy.engine import make_url

    from aggregator.history.database import Database
    from aggregator.runtime.database import DatabaseError

    file = make_url(where.database).database or ""
    if where.is_file:
        try:
            require_regular_file(Path(file))
        except OSError as error:
            why = "there is no history" if error.errno == errno.ENOENT else error.strerror
            raise DatabaseError(f"{file}: {why}; expected the aggregator's") from error
    database = Database(where.database, where, "sickbay history", reads=True)
    try:
        yield from database.evidence(node)
    finally:
        database.close()


def _text(
    found: list["Difference"],
    sums: tuple["Totals", "Totals"],
    nodes: int,
    policies: tuple["Policy", "Policy"],
    by_pool: Sequence[PoolEffect] = (),
) -> Iterable[str]:
    if not found:
        yield f"no incident would have been different on {counted(nodes, 'node')}"
    else:
        many = counted(len(found), "incident")
        yield f"{many} would have been different on {counted(nodes, 'node')}:"
    for one in found:
        shown = one.shown
        ended = f"to {write_time(shown.ended)}" if shown.ended is not None else "and on"
        summary = visible(shown.summary, 500)  # a component's name is any path of the node
        yield f"  {one.what:<9} {shown.node}  {shown.action}  {summary}"
        yield f"            {write_time(shown.began)} {ended}, by {', '.join(sorted(shown.rules))}"
        if one.how:
            yield f"            {one.how}"
        ladder = _ladder(shown, policies[one.after is not None])
        if ladder:
            yield f"            repairs: {', then '.join(ladder)}, where repair.mode allows it"
    for name, total in zip(("before", "after"), sums, strict=True):
        yield (
            f"{name:<7} {actions_of(total) or 'no node acted on'}; at most "
            f"{counted(total.nodes_at_once, 'node')} at once, {total.node_hours:g} node-hours"
        )
    if by_pool:
        yield "by pool, as its mode would have capped it, by the labels of now:"
    yield from (one.line() for one in by_pool)
    yield "Only rules are evaluated: no limits, no mode, no release by a person."


def _as_json(
    found: list["Difference"],
    sums: tuple["Totals", "Totals"],
    nodes: int,
    incidents: tuple[int, int],
    policies: tuple["Policy", "Policy"],
) -> Mapping[str, Any]:
    return {
        "nodes": nodes,
        "differences": [
            {
                "what": one.what,
                "how": one.how,
                "node": one.shown.node,
                "before": _episode(one.before, policies[0]),
                "after": _episode(one.after, policies[1]),
            }
            for one in found
        ],
        "before": {"incidents": incidents[0], **totals_json(sums[0])},
        "after": {"incidents": incidents[1], **totals_json(sums[1])},
    }


def _ladder(one: "Episode", policy: "Policy") -> tuple[str, ...]:
    """The repairs of all its evidence, as if none of that had cleared."""
    from aggregator.policy.repairs import joined

    rules = policy.by_name
    ladders = (rules[name].repair if name in rules else () for name in one.rules)
    return joined(ladders) if one.acts else ()


def _episode(one: "Episode | None", policy: "Policy") -> Mapping[str, Any] | None:
    if one is None:
        return None
    return {
        "kind": one.kind,
        "action": one.action,
        "began": write_time(one.began),
        "ended": write_time(one.ended) if one.ended is not None else None,
        "summary": one.summary,
        "rules": sorted(one.rules),
        "codes": sorted(one.codes),
        "repair": list(_ladder(one, policy)),
    }
