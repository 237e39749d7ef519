"""The commands that act, with the person's own rights. Each writes one request."""

import argparse
import datetime as dt
import getpass
import json
from collections.abc import Iterator
from contextlib import contextmanager

from aggregator.cli.actions import (
    AnnotationChange,
    ClusterActions,
    drain_warning,
    exempted,
    manual_quarantine,
    pinned,
    seconds_of,
    unexempted,
    unpinned,
)
from aggregator.cli.confirm import confirm_effect
from aggregator.cli.errors import UsageError
from aggregator.cli.options import flags_of
from aggregator.cli.source import mode_of, open_session
from aggregator.cli.text_table import printable
from aggregator.cluster.port import Action
from aggregator.runtime.node_name import expect_one_node

_DRY_RUN = "DRY RUN, nothing is written. Without --dry-run the answer would be:"


@contextmanager
def open_actions(options: argparse.Namespace) -> Iterator[ClusterActions]:
    """The target of the request. Imported here: it costs a second of imports."""
    how = flags_of(options)
    if options.local is not None:
        from aggregator.cli.local_actions import local_actions, place_of

        if "name" in options:
            _expect_one_node(options.name)
        with local_actions(place_of(options.local), how=how, dry_run=options.dry_run) as actions:
            yield actions
        return
    from aggregator.cli.kube_actions import KubeActions

    with open_session(options) as session:
        yield KubeActions(session, options.namespace, how=how, dry_run=options.dry_run)


def _expect_one_node(name: str) -> None:
    """Without Kubernetes the name becomes an argument of the site's programs. Raises UsageError."""
    try:
        expect_one_node(name)
    except ValueError as error:
        raise UsageError(f"NODE: {error}") from error


def report(options: argparse.Namespace, text: str) -> None:
    """Print what was done."""
    dry = getattr(options, "dry_run", False)
    if options.output.name == "json":
        print(json.dumps({"done": not dry, "dry_run": dry, "message": text}))
        return
    print(printable(f"{_DRY_RUN}\n{text}" if dry else text))


def stop(options: argparse.Namespace) -> None:
    with open_actions(options) as actions:
        report(options, actions.stop(_stop_reason(options)))


def resume(options: argparse.Namespace) -> None:
    with open_actions(options) as actions:
        report(options, actions.resume())


def release(options: argparse.Namespace) -> None:
    """An order that is open may meet the work that comes back, so this requires confirmation."""
    with open_actions(options) as actions:
        order = actions.open_order(options.name)
        confirm_effect(options, "a release while an order is open", order)
        report(options, actions.release(options.name))


def exempt(options: argparse.Namespace) -> None:
    reason = _reason(options)
    until = dt.datetime.now(dt.UTC).timestamp() + seconds_of(options.how_long)
    _annotate(options, exempted(options.name, until, reason, how=flags_of(options)))


def unexempt(options: argparse.Namespace) -> None:
    _annotate(options, unexempted(options.name))


def pin(options: argparse.Namespace) -> None:
    _annotate(options, pinned(options.name, _reason(options), how=flags_of(options)))


def unpin(options: argparse.Namespace) -> None:
    _annotate(options, unpinned(options.name))


def _annotate(options: argparse.Namespace, change: AnnotationChange) -> None:
    with open_actions(options) as actions:
        report(options, actions.annotate(options.name, change))


def forget(options: argparse.Namespace) -> None:
    if options.local is None:
        what = "Kubernetes itself knows which nodes there are: kubectl delete node"
        raise UsageError(f"forget: {what}; expected --local DATABASE")
    from aggregator.cli.local_actions import LocalActions

    with open_actions(options) as actions:
        assert isinstance(actions, LocalActions)
        report(options, actions.forget_node(options.name))


def this_user() -> str:
    """The name of the person, for a quarantine that he or she makes. Raises UsageError."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid that /etc/passwd lacks; OSError from 3.13 on
        raise UsageError(
            "--requester: this user has no name here; expected --requester WHO"
        ) from None


def quarantine(options: argparse.Namespace) -> None:
    """A drain kills work that runs, so the command requires a confirmation first."""
    who = _readable(options.requester) or this_user()
    action = Action(options.action)
    spec = manual_quarantine(action, _reason(options), who)
    with open_actions(options) as actions:
        if action is Action.DRAIN:
            shown = [drain_warning(mode_of(options, options.name))]
            if not options.yes:
                shown = [actions.drain_preview(options.name), *shown, f"Its reason: {spec.reason}"]
            confirm_effect(options, "a drain", "\n".join(filter(None, shown)))
        report(options, actions.quarantine(options.name, spec))


def alert_test(options: argparse.Namespace) -> None:
    from aggregator.cli.alerts import send_test

    report(options, send_test(options.route, options.config))


def _reason(options: argparse.Namespace) -> str:
    reason = _readable(options.reason.strip())
    if not reason:
        raise UsageError("the reason is empty; name it for the next person on call")
    return reason


def _stop_reason(options: argparse.Namespace) -> str:
    """The reason of a stop, as an option or as a bare text."""
    if options.reason is None:
        options.reason = options.text
    return _reason(options)


def _readable(text: str) -> str:
    """Text that can be written: bytes of an argument that are no UTF-8 must not keep a stop from
    working.
    """
    return text.encode("utf-8", "replace").decode("utf-8")
