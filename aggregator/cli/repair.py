"""`sickbay repair`: a node's repairs, and a person's Operation that requests one, or its end."""

import argparse
import datetime as dt
import re
import secrets
from collections.abc import Iterator

from aggregator.cli.actions import none_follows
from aggregator.cli.attempts import BUSY
from aggregator.cli.confirm import confirm_effect
from aggregator.cli.errors import UsageError
from aggregator.cli.options import flags_of
from aggregator.cli.output import Answer, print_answer
from aggregator.cli.read_commands import node_answer
from aggregator.cli.render_nodes import repairs
from aggregator.cli.screen import Screen
from aggregator.cli.source import open_source
from aggregator.cli.text_table import clean
from aggregator.cli.words import phase_of
from aggregator.cli.write_commands import open_actions, report, this_user
from aggregator.cluster.port import OperationSpec
from aggregator.policy.repairs import TEST
from aggregator.runtime.cli_flags import reading_flags

_KIND = "quarantine.sickbay.dev"


def repair(options: argparse.Namespace) -> None:
    """Without a kind and without --cancel it reads; else it makes or deletes an Operation."""
    if options.kind and options.cancel:
        raise UsageError(f"repair: {options.kind} and --cancel; expected one of them, or none")
    if not options.kind and not options.cancel:
        _show(options)
        return
    if options.output.name not in {"table", "json"}:
        name = options.output.name
        raise UsageError(f"-o {name}: a request has no such form; expected table or json")
    _confirm(options, options.kind or "")


def _show(options: argparse.Namespace) -> None:
    for name, given in (("--yes", options.yes), ("--dry-run", options.dry_run)):
        if given:
            raise UsageError(f"{name} is about a request; expected a kind of repair, or --cancel")
    with open_source(options) as source:
        answer = node_answer(source, options.name)
    quarantine = answer["quarantine"]
    shown = {
        "node": answer["node"],
        "phase": quarantine["phase"] if quarantine is not None else None,
        "cluster": quarantine.get("cluster", "") if quarantine is not None else "",
        "reason": quarantine["reason"] if quarantine else "",
        "repair": repair_of(quarantine),
    }
    print_answer(options, shown, lines, kind=_KIND)


def repair_of(quarantine: Answer | None) -> Answer | None:
    """The repairs of a quarantine, or None where repairs are off, or the aggregator is older."""
    return quarantine.get("repair") if quarantine is not None else None


def lines(answer: Answer, screen: Screen) -> Iterator[str]:
    """The ladder, the attempts and what holds the next one, as text."""
    node, found = answer["node"], answer["repair"]
    if answer["phase"] is None:
        yield f"{clean(node)} is not in quarantine: only a node in quarantine is repaired."
        return
    yield f"{clean(node)}: {clean(phase_of(answer))}: {clean(answer['reason'])}"
    if found is None:
        yield "No repair was ever attempted, and repair.mode is off (docs/repair.md)."
        return
    yield from repairs(found, screen)


# -- a request -------------------------------------------------------------------------


def _confirm(options: argparse.Namespace, what: str) -> None:
    """``what``: the kind of repair; empty: the end of those that are open."""
    with open_source(options) as source:
        known = node_answer(source, options.name)
    if what:
        require_accepted(options, known, what)
    text = effect(known, what)
    uid = (known["quarantine"] or {}).get("uid", "")
    with open_actions(options) as actions:
        confirm_effect(options, "a repair" if what else "the end of a repair", text)
        done = (
            actions.request_operation(*operation_of(options, what, uid))
            if what
            else actions.cancel_operations(options.name)
        )
        report(options, done)


def operation_of(
    options: argparse.Namespace, kind: str, uid: str, profile: str = ""
) -> tuple[str, OperationSpec]:
    """The name and spec of the person's Operation. ``uid``: of the quarantine that it is for."""
    name = f"{kind}-{dt.datetime.now(dt.UTC):%Y%m%dt%H%M%Sz}-{secrets.token_hex(4)}"
    return name, OperationSpec(
        node=options.name, kind=kind, quarantine=uid, profile=profile, requester=this_user()
    )


def require_accepted(options: argparse.Namespace, known: Answer, kind: str) -> None:
    """Raise UsageError where such a request can't begin, with the aggregator's own reason."""
    operations, why, node = known.get("operations"), "", known["node"]
    if operations is not None:
        why = operations["refused"].get(kind, "")
    elif known["quarantine"] is None:
        why = "it is not in quarantine, and the aggregator does not answer"
    how = reading_flags(flags_of(options))
    if why and how not in why:  # its commands name no kubeconfig of this person
        why = re.sub(rf"sickbay \w+ {re.escape(node)}", lambda found: found[0] + how, why)
    if why:
        raise UsageError(f"{node}: {why}")


def effect(known: Answer, what: str) -> str:
    """The effect of the request, for its confirmation."""
    node, quarantine = known["node"], known["quarantine"]
    if quarantine is None:
        return f"{node} is not in quarantine: its open requests and tests are cancelled."
    found = repair_of(quarantine)
    last = found["attempts"][-1] if found is not None and found["attempts"] else None
    busy = last["repair"] if last is not None and last["state"] in BUSY else ""
    if not what:
        return _effect_of_cancel(node, busy)
    after = f"; {busy} is under way, and it follows the end of that" if busy else ""
    return (
        f"{node}: {what} is ordered once the node is drained and the limits of repairs have "
        f"room{after}. Phase now: {phase_of(quarantine)}."
    )


def _effect_of_cancel(node: str, busy: str) -> str:
    if busy:
        after = f" {none_follows(busy)}" if busy != TEST else ""
        return (
            f"{node}: {busy} is cancelled if its repairer still can; otherwise it runs to its "
            f"end.{after}"
        )
    return f"{node}: the requests that have not begun are withdrawn."
