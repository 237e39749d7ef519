"""A person's actions by page and API: what each requests, and the right that it needs.

Each is the same write that the command `sickbay` would do for the person, and needs the same right.
The aggregator writes it with its own account, so that its admission policies bound it too.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec

from aggregator.cli.actions import (
    ClusterActions,
    exempted,
    manual_quarantine,
    pinned,
    seconds_of,
    unexempted,
    unpinned,
)
from aggregator.cli.errors import UsageError
from aggregator.cli.text_table import clean
from aggregator.cluster.port import Action
from aggregator.cluster.users import Access
from aggregator.web import models

#: Opens the cluster for one action; the argument is whether nothing is to be stored.
OpenActions = Callable[[bool], AbstractContextManager[ClusterActions]]

_QUARANTINES = ("sickbay.dev", "quarantines")
#: Characters of a person's reason.
_REASON = 1000


class BadAction(Exception):
    """The request makes no sense; the text states what is expected."""


class OrderOpen(Exception):
    """A repair's order is open, and the request does not state that the person knows it."""


class ActionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of an action. ``action`` is a quarantine's (cordon or drain), ``duration`` an
    exemption's (30m, 8h, 7d). ``cancel_order``: a release continues although an order is open.
    """

    reason: str = ""
    action: Action = Action.CORDON
    duration: str = ""
    cancel_order: bool = False
    dry_run: bool = False


class ActionAnswer(models.Shape, frozen=True, kw_only=True):
    """``message`` states what follows. ``done`` is false for a dry run, which stores nothing."""

    done: bool
    dry_run: bool
    user: str
    message: str


class PageReader(models.Shape, frozen=True, kw_only=True):
    """The reader of the page. ``may`` are the actions that they have the right to; for the node
    that the request names, or else for the fleet. ``user`` is empty where reading needs no
    identity. ``trouble``: why ``may`` is not known now.
    """

    user: str
    how: str
    actions: bool
    may: list[str]
    trouble: str


@dataclass(frozen=True, slots=True)
class ActionContext:
    """One request of a person. ``how``: the options that a command needs for this cluster."""

    node: str
    user: str
    body: ActionRequest
    how: str

    @property
    def reason(self) -> str:
        """For people, with the person's name."""
        return f"{self.body.reason} ({clean(self.user, 200)})"


@dataclass(frozen=True, slots=True)
class PersonAction:
    """``rights`` of a node's name and of sickbay's namespace; a fleet's action has no node."""

    name: str
    summary: str
    run: Callable[[ClusterActions, ActionContext], str]
    rights: Callable[[str, str], tuple[Access, ...]]
    needs_reason: bool = True
    of_node: bool = True

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{{name}}/{self.name}" if self.of_node else f"/api/v1/{self.name}"


def read_request(body: bytes, action: PersonAction) -> ActionRequest:
    """Raises BadAction."""
    try:
        found = msgspec.json.decode(body or b"{}", type=ActionRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        keys = 'reason, action ("cordon" or "drain"), duration, cancel_order and dry_run'
        raise BadAction(
            f"the body is no request of this action: {error}; expected a JSON object of {keys}"
        ) from error
    found = msgspec.structs.replace(found, reason=clean(found.reason, _REASON).strip())
    if action.needs_reason and not found.reason:
        raise BadAction("reason: it is empty; name it for the next person on call")
    return found


def _quarantine(cluster: ClusterActions, context: ActionContext) -> str:
    if context.body.action is Action.OBSERVE:
        raise BadAction('action: "observe" is no quarantine; expected "cordon" or "drain"')
    spec = manual_quarantine(context.body.action, context.body.reason, clean(context.user, 200))
    return cluster.quarantine(context.node, spec)


def _release(cluster: ClusterActions, context: ActionContext) -> str:
    order = cluster.open_order(context.node)
    if order and not (context.body.cancel_order or context.body.dry_run):
        raise OrderOpen(order)
    return "\n".join(filter(None, (order, cluster.release(context.node))))


def _exempt(cluster: ClusterActions, context: ActionContext) -> str:
    try:
        seconds = seconds_of(context.body.duration)
    except UsageError as error:
        raise BadAction(str(error).replace("--for", "duration", 1)) from error
    change = exempted(context.node, time.time() + seconds, context.reason, how=context.how)
    return cluster.annotate(context.node, change)


def _annotations(node: str, _: str) -> tuple[Access, ...]:
    return (Access("get", "", "nodes", name=node), Access("patch", "", "nodes", name=node))


def _creates(_: str, __: str) -> tuple[Access, ...]:
    return (Access("create", *_QUARANTINES),)


def _deletes(node: str, _: str) -> tuple[Access, ...]:
    return tuple(Access(verb, *_QUARANTINES, name=node) for verb in ("get", "delete"))


def _switches(_: str, namespace: str) -> tuple[Access, ...]:
    return tuple(
        Access(verb, "", "configmaps", namespace=namespace, name="sickbay-stop")
        for verb in ("get", "patch")
    )


def _plain(
    name: str, summary: str, run: Callable[[ClusterActions, ActionContext], str]
) -> PersonAction:
    return PersonAction(name, summary, run, _annotations, needs_reason=False)


_ALL = (
    PersonAction("quarantine", "The action: cordon or drain.", _quarantine, _creates),
    PersonAction(
        "release", "Release the node from quarantine.", _release, _deletes, needs_reason=False
    ),
    PersonAction("exempt", "Leave the node alone for a time.", _exempt, _annotations),
    _plain(
        "unexempt",
        "End an exemption.",
        lambda cluster, context: cluster.annotate(context.node, unexempted(context.node)),
    ),
    PersonAction(
        "pin",
        "Keep the node in quarantine until it is unpinned.",
        lambda cluster, context: cluster.annotate(
            context.node, pinned(context.node, context.reason, how=context.how)
        ),
        _annotations,
    ),
    _plain(
        "unpin",
        "Let the node be released when it is healthy.",
        lambda cluster, context: cluster.annotate(context.node, unpinned(context.node)),
    ),
    PersonAction(
        "stop",
        "No new quarantine and no step of a drain, on any node.",
        lambda cluster, request: cluster.stop(request.reason),
        _switches,
        of_node=False,
    ),
    PersonAction(
        "resume",
        "Lift the stop.",
        lambda cluster, _: cluster.resume(),
        _switches,
        needs_reason=False,
        of_node=False,
    ),
)
#: By name.
ACTIONS: Mapping[str, PersonAction] = {one.name: one for one in _ALL}
