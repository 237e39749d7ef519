"""The commands that read. Each requests from its source and prints the answer."""

import argparse
import datetime as dt
import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from aggregator.cli import render, render_nodes
from aggregator.cli.durations import moment_of
from aggregator.cli.errors import CommandFailed, Unreached, UsageError
from aggregator.cli.options import flags_of
from aggregator.cli.output import Answer, print_answer, sort_items
from aggregator.cli.screen import Screen
from aggregator.cli.source import Source, open_session, open_source, require_kubeconfig
from aggregator.runtime.text import counted

#: Longer than two of the stream's beats (seconds).
_WATCH_TIMEOUT = 25.0
#: Rows of one request, and at most of those that a selector picks from.
_PAGE, _MOST = 1000, 10_000
#: The text that -o name prints before a node's name.
_NODE, _QUARANTINE = "node", "quarantine.sickbay.dev"


def status(options: argparse.Namespace) -> None:
    with open_source(options) as source:
        try:
            answer = source.get("fleet")
        except Unreached as error:
            answer = source.cluster(error).status()
    known_to_cluster = answer.get("source") == "cluster"
    print_answer(options, answer, render.cluster_status if known_to_cluster else render.status)


def nodes(options: argparse.Namespace) -> None:
    """All pages, as one."""
    with open_source(options) as source:
        try:
            answer = _all_nodes(source, options.state)
        except Unreached as error:
            answer = source.cluster(error).nodes()
            others = options.state not in {"", "quarantined"}
            if others or options.exempt or options.untested:
                raise UsageError(
                    "without the aggregator the nodes in quarantine alone are known; expected no "
                    "--state, no --exempt and no --untested"
                ) from error
    for name in ("exempt", "untested"):
        if getattr(options, name):
            kept = [one for one in answer["items"] if one[name]]
            answer.update(items=kept, total=len(kept))
    empty = "No node is known yet."
    if options.exempt:
        empty = "No such node is exempt. A new exemption is shown within three minutes."
    elif options.state or options.untested or options.selector:
        empty = "There is no such node."
    show = partial(render_nodes.nodes, empty=empty)
    print_answer(options, _arranged(options, answer), show, kind=_NODE)


def _all_nodes(source: Source, state: str) -> Answer:
    items: list[Answer] = []
    after = ""
    while True:
        page = source.get("nodes", state=state, limit=_PAGE, after=after)
        items += page["items"]
        after = page["next"]
        if not after:
            return {"items": items, "total": page["total"], "next": ""}


def node(options: argparse.Namespace) -> None:
    with open_source(options) as source:
        answer = node_answer(source, options.name)
    print_answer(options, answer, render_nodes.node, kind=_NODE)


def node_answer(source: Source, name: str) -> Answer:
    """One node, of the aggregator or else of the cluster."""
    try:
        found: Answer = source.get("nodes", name)
    except Unreached as error:
        return source.cluster(error).node(name)
    return found


def explain(options: argparse.Namespace) -> None:
    from aggregator.cli.explain import explanation, lines

    with open_source(options) as source:
        answer = node_answer(source, options.name)
    made = explanation(answer, dt.datetime.now(dt.UTC), flags_of(options)).as_json()
    print_answer(options, made, lines, kind=_NODE)


def wait(options: argparse.Namespace) -> None:
    from aggregator.cli.wait import state, wait_for

    try:
        with open_source(options) as source:

            def read_goal() -> Answer | None:
                found: Answer | None = source.quarantine(options.name)
                return found

            source.require_node(options.name)
            found = wait_for(options.goal, read_goal, timeout=options.timeout)
    except Unreached:
        raise
    except CommandFailed as error:
        raise CommandFailed(f"{options.name}: {error}") from error
    answer = {"node": options.name, "reached": options.goal, "quarantine": found}

    def show(_: Answer, __: Screen) -> Iterator[str]:
        yield f"{options.name}: {options.goal}" + (f" ({state(found)})" if found else "")

    print_answer(options, answer, show, kind=_NODE)


def quarantines(options: argparse.Namespace) -> None:
    with open_source(options) as source:
        try:
            answer = source.get("quarantines")
        except Unreached as error:
            answer = source.cluster(error).quarantines()
    print_answer(options, _arranged(options, answer), render_nodes.quarantines, kind=_QUARANTINE)


def incidents(options: argparse.Namespace) -> None:
    with open_source(options) as source:
        chosen = options.selector or options.sort_by or options.rule
        answer = source.get("incidents", limit=_MOST if chosen else options.limit)
    if options.rule:
        kept = [
            one
            for one in answer["items"]
            if any(piece["rule"] == options.rule for piece in one["evidence"])
        ]
        answer.update(items=kept, total=len(kept))
    answer = _arranged(options, answer)
    answer["items"] = answer["items"][: options.limit]
    print_answer(options, answer, render.incidents, kind=_NODE)


def lemons(options: argparse.Namespace) -> None:
    with open_source(options) as source:
        answer = source.get("lemons")
    print_answer(options, _arranged(options, answer), render.lemons, kind=_NODE)


def replicas(options: argparse.Namespace) -> None:
    with open_source(options) as source:
        print_answer(options, source.get("replicas"), render.replicas)


def alert_list(options: argparse.Namespace) -> None:
    with open_source(options) as source:
        print_answer(options, source.get("alerts"), render.alerts)


def history(options: argparse.Namespace) -> None:
    now = dt.datetime.now(dt.UTC)
    with open_source(options) as source:
        answer = source.get(
            "transitions",
            node=options.node,
            since=moment_of(options.since, now, "--since"),
            until=moment_of(options.until, now, "--until"),
            limit=options.limit,
        )
    print_answer(options, answer, render.history)


def watch(options: argparse.Namespace) -> None:
    """Events as they come. JSON has one a line."""
    from aggregator.cli.watch import watch as follow

    shown = ""

    def print_event(name: str, data: Any) -> None:
        nonlocal shown
        if options.output.name == "json":
            print(json.dumps({"event": name, "data": data}), flush=True)
        elif name == "transition":
            print(render.event(data), flush=True)
        elif name == "fleet" and data["headline"] != shown:
            shown = data["headline"]
            print(render.event({"at": data["at"], "kind": "fleet", "summary": shown}), flush=True)
        elif name == "missed":
            left = counted(data["transitions"], "more event was", "more events were")
            print(f"... {left} left out", flush=True)

    rng = random.Random()  # noqa: S311 - jitter, no secret
    with open_source(options, _WATCH_TIMEOUT) as source:
        follow(source, options.node, print_event, rng=rng)


def _arranged(options: argparse.Namespace, answer: Answer) -> Answer:
    """The items of the selected nodes, in the requested order."""
    if options.selector:
        names = _selected(options)
        kept = [one for one in answer["items"] if one["node"] in names]
        answer.update(items=kept, total=len(kept))
    answer["items"] = sort_items(answer["items"], options.sort_by)
    return answer


def _selected(options: argparse.Namespace) -> frozenset[str]:
    """The API server evaluates the selector: it means what it means to kubectl."""
    require_kubeconfig(options, "--selector")
    from aggregator.cli.cluster_reader import ClusterReader

    with open_session(options) as session:
        return frozenset(ClusterReader(session, options.namespace).labels_with(options.selector))
