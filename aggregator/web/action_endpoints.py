"""The routes by which people act, and the answer who the reader is and what they may do."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from aggregator.access.gate import AccessGate
from aggregator.access.identity import AccessRefused, UserIdentity
from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cluster.port import ClusterError, Refused, Unreachable
from aggregator.events import EventKind, Transition
from aggregator.runtime.node_name import EXPECTED, is_node_name
from aggregator.web.access_guard import AccessGuard, PageAccess
from aggregator.web.api import respond
from aggregator.web.forwarded_client import address_of
from aggregator.web.person_actions import (
    ACTIONS,
    ActionAnswer,
    ActionContext,
    ActionRequest,
    BadAction,
    OpenActions,
    OrderOpen,
    PageReader,
    PersonAction,
    read_request,
)
from aggregator.web.query_params import Form, Param, RequestProblem, read_query

log = logging.getLogger("sickbay.access")

ACCESS = "/api/v1/access"
ACCESS_PARAMS = (Param("node", Form.TEXT, "The actions on this node.", ""),)
#: Bytes of a body.
_MOST = 16 * 1024


@dataclass(frozen=True, slots=True)
class ActionSetup:
    """How people's actions are carried out. ``record`` takes what happened; ``wall``: seconds since
    the epoch; ``namespace``: of the stop switch; ``how``: as for `ActionContext`.
    """

    open: OpenActions
    record: Callable[[Transition], None]
    wall: Callable[[], float]
    namespace: str = ""
    how: str = ""


class ActionEndpoints:
    """``setup`` is None where no action is carried out."""

    def __init__(self, access: PageAccess, guard: AccessGuard, setup: ActionSetup | None) -> None:
        self._access = access
        self._guard = guard
        self._setup = setup

    async def reader(self, request: web.Request) -> web.Response:
        """GET /api/v1/access?node=NAME."""
        node = read_query(ACCESS_PARAMS, request.query)["node"]
        identity = await self._guard.identity(request)
        on = self._setup is not None and self._access.actions
        may, trouble = list[str](), ""
        try:
            may = await self._may(identity, node) if on and identity else []
        except AccessRefused as refused:  # the reader is known all the same
            trouble = f"{refused.error}. {refused.hint}"
        answer = PageReader(
            user=identity.name if identity is not None else "",
            how=identity.how if identity is not None else "",
            actions=on,
            may=may,
            trouble=trouble,
        )
        return respond(answer)

    async def _may(self, identity: UserIdentity, node: str) -> list[str]:
        gate, setup = self._access.gate, self._setup
        if gate is None or setup is None or (node and not is_node_name(node)):
            return []
        return [
            action.name
            for action in ACTIONS.values()
            if action.of_node is bool(node)
            and await _allows(gate, identity, action, node, setup.namespace)
        ]

    async def act(self, action: PersonAction, request: web.Request) -> web.Response:
        """POST of the action's path. Raises AccessRefused and RequestProblem."""
        identity = await self._guard.actor(request)
        gate, setup = self._access.gate, self._setup
        assert gate is not None
        if setup is None:
            raise AccessRefused(403, "actions_off", "this page is read only", "Use sickbay.")
        node = request.match_info.get("name", "")
        if action.of_node and not is_node_name(node):
            raise RequestProblem(400, f"{node[:300]!r} is no node's name", EXPECTED)
        body = await self._read(request, action)
        try:
            if not await _allows(gate, identity, action, node, setup.namespace):
                await gate.expect(identity, *action.rights(node, setup.namespace))
        except AccessRefused as refused:
            self._audit(request, identity, action, body, f"refused: {refused.error}")
            raise
        context = ActionContext(node, identity.name, body, setup.how)
        try:
            status, text = await self._run(setup, action, context)
        except asyncio.CancelledError:  # this replica stops; the thread goes on
            self._audit(request, identity, action, body, "not known: the aggregator stops")
            raise
        self._audit(request, identity, action, body, "done" if status == 200 else text)
        if status != 200:
            error, _, hint = text.partition("\n")
            raise RequestProblem(status, error, hint.strip())
        if not body.dry_run:
            setup.record(self._event(setup, action, context))
        return respond(
            ActionAnswer(
                done=not body.dry_run, dry_run=body.dry_run, user=identity.name, message=text
            )
        )

    async def _read(self, request: web.Request, action: PersonAction) -> ActionRequest:
        """The body. Raises RequestProblem."""
        if request.content_type != "application/json":
            expected = "Content-Type: application/json"
            raise RequestProblem(415, "an action is requested in JSON", expected)
        raw = await request.content.read(_MOST + 1)
        while len(raw) <= _MOST and (more := await request.content.read(_MOST + 1 - len(raw))):
            raw += more
        if len(raw) > _MOST:
            raise RequestProblem(413, "the body is too long", f"Expected {_MOST} bytes at most.")
        try:
            return read_request(raw, action)
        except BadAction as error:
            raise RequestProblem(400, str(error), "See docs/api.md") from error

    async def _run(
        self, setup: ActionSetup, action: PersonAction, context: ActionContext
    ) -> tuple[int, str]:
        """The HTTP status, and the text for the person."""

        def work() -> str:
            with setup.open(context.body.dry_run) as cluster:
                return action.run(cluster, context)

        try:
            return 200, await asyncio.to_thread(work)
        except BadAction as error:
            return 400, str(error)
        except OrderOpen as error:
            return 428, (
                f"{' '.join(str(error).split())}\nTo release it all the same send "
                '"cancel_order": true.'
            )
        except (CommandFailed, UsageError) as error:
            return 409, str(error)
        except Unreachable as error:
            return (503, f"{error}\nIts result is not known: check the node, then try again.")
        except Refused as error:
            return 409, (
                f"the cluster refuses it: {error}\nThe aggregator needs the rights of "
                "deploy/kubernetes/aggregator-rbac.yaml and deploy/examples/page-actions-rbac.yaml."
            )
        except ClusterError as error:
            return 409, f"{error}\nCheck the node, then try again."

    def _event(
        self, setup: ActionSetup, action: PersonAction, context: ActionContext
    ) -> Transition:
        about = f"{context.node}: " if context.node else ""
        why = f": {context.body.reason}" if context.body.reason else ""
        return Transition(
            setup.wall(),
            EventKind.REQUESTED,
            context.node,
            f"{about}{action.name} requested by {context.user}{why}",
            details={"action": action.name, "user": context.user},
        )

    def _audit(
        self,
        request: web.Request,
        identity: UserIdentity,
        action: PersonAction,
        body: ActionRequest,
        outcome: str,
    ) -> None:
        log.info(
            "a person acted",
            extra={
                "event": "access.action",
                "user": identity.name,
                "how": identity.how,
                "action": action.name,
                "node": request.match_info.get("name", ""),
                "reason": body.reason,
                "dry_run": body.dry_run,
                "outcome": outcome,
                "address": address_of(request),
            },
        )


async def _allows(
    gate: AccessGate, identity: UserIdentity, action: PersonAction, node: str, namespace: str
) -> bool:
    """First the right to all nodes: its review serves each node, and a review is a request of the
    API server that goes before evictions.
    """
    return bool(node and await gate.allows(identity, *action.rights("", namespace))) or (
        await gate.allows(identity, *action.rights(node, namespace))
    )
