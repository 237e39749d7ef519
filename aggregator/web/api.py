"""The JSON API: each endpoint declared once, for its route and for the OpenAPI document alike."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from aggregator.web import shapes, survey, view
from aggregator.web.desk import TIMELINE, Desk
from aggregator.web.lookout import Look
from aggregator.web.query import BadQuery, Form, Param, read_query

#: Rows of one answer unless asked otherwise, and at most.
PAGE, MOST = 100, 1000
#: From this size on (bytes) an answer is compressed for those who take it so.
_WORTH_COMPRESSING = 2048


class NotThere(Exception):
    """What was asked for by name is not known: what, and what to do."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(error)
        self.error = error
        self.hint = hint


Answer = Callable[[Desk, Mapping[str, str], Mapping[str, Any]], Awaitable[shapes.Shape]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One GET. ``answer`` is given the path's parts and the query's values.

    ``parts`` describes the parts of the path that stand in braces.
    """

    path: str
    summary: str
    shape: type[shapes.Shape]
    answer: Answer
    params: tuple[Param, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)

    async def handle(self, desk: Desk, request: web.Request) -> web.Response:
        """Read the query, answer. Raises BadQuery and NotThere."""
        values = read_query(self.params, request.query)
        return respond(await self.answer(desk, request.match_info, values), request)


def respond(
    shape: shapes.Shape, request: web.Request | None = None, status: int = 200
) -> web.Response:
    """A shape as JSON."""
    body = msgspec.json.encode(shape)
    response = web.Response(body=body, status=status, content_type="application/json")
    if request is not None and len(body) >= _WORTH_COMPRESSING:
        response.enable_compression()
    return response


async def story_or_none_such(desk: Desk, name: str) -> shapes.Node:
    """The node's story, or NotThere."""
    found = await desk.story(name)
    if found is None:
        raise NotThere(
            f'there is no node "{name[:253]}"',
            "Neither the cluster nor an agent has told of it. Names are those of "
            "`kubectl get nodes`; see /nodes for all that are known.",
        )
    return found


def page_of_nodes(desk: Desk, look: Look, values: Mapping[str, Any]) -> shapes.NodePage:
    """Nodes by name, filtered, one page of them."""
    standing, part, after = values["standing"], values["q"].lower(), values["after"]
    standings = look.found.standings
    names = [
        name
        for name in look.found.names
        if (not standing or standings[name] == standing) and part in name.lower()
    ]
    begin = 0
    if after:
        key = survey.natural(after)
        begin = next((i for i, name in enumerate(names) if survey.natural(name) > key), len(names))
    chosen = names[begin : begin + values["limit"]]
    return shapes.NodePage(
        items=desk.rows(chosen, look),
        total=len(names),
        next=chosen[-1] if begin + len(chosen) < len(names) else "",
    )


async def _fleet(desk: Desk, _: Mapping[str, str], __: Mapping[str, Any]) -> shapes.Fleet:
    return desk.glance(await desk.look())


async def _nodes(desk: Desk, _: Mapping[str, str], values: Mapping[str, Any]) -> shapes.NodePage:
    return page_of_nodes(desk, await desk.look(), values)


async def _node(desk: Desk, parts: Mapping[str, str], _: Mapping[str, Any]) -> shapes.Node:
    return await story_or_none_such(desk, parts["name"])


async def _quarantines(
    desk: Desk, _: Mapping[str, str], __: Mapping[str, Any]
) -> shapes.QuarantineList:
    found = (await desk.look()).found
    return shapes.QuarantineList(
        items=list(found.quarantines),
        total=len(found.quarantines),
        view_lost=found.view_lost,
        in_company=found.in_company,
    )


async def _incidents(
    desk: Desk, _: Mapping[str, str], values: Mapping[str, Any]
) -> shapes.IncidentPage:
    found = (await desk.look()).found.incidents
    return shapes.IncidentPage(items=list(found[: values["limit"]]), total=len(found))


async def _replicas(desk: Desk, _: Mapping[str, str], __: Mapping[str, Any]) -> shapes.ReplicaList:
    found = (await desk.look()).found
    return shapes.ReplicaList(
        items=list(found.replicas),
        total=len(found.replicas),
        frozen=found.frozen,
        differing=found.differing,
    )


async def _lemons(desk: Desk, _: Mapping[str, str], __: Mapping[str, Any]) -> shapes.LemonList:
    await desk.peers.fresh()
    found = desk.lemons()
    return shapes.LemonList(
        items=found,
        total=len(found),
        trouble=desk.fleet.lemons_trouble,
    )


async def _transitions(
    desk: Desk, _: Mapping[str, str], values: Mapping[str, Any]
) -> shapes.EventPage:
    until = values["until"] + 0.001  # an `at` is told to the millisecond, up or down
    if until < values["since"]:
        raise BadQuery("until is before since: nothing can be in between", "expected it later")
    past = await desk.past(values["node"], values["since"], values["limit"], until)
    return shapes.EventPage(
        items=[view.event(one) for one in past.transitions], trouble=past.trouble
    )


async def _map(desk: Desk, _: Mapping[str, str], __: Mapping[str, Any]) -> shapes.Map:
    look = await desk.look()
    return shapes.Map(
        revision=look.revision, names=list(look.found.names), standings=look.found.letters
    )


def _limit(default: int, most: int = MOST) -> Param:
    return Param("limit", Form.WHOLE, "Rows at most.", default, most)


STANDING = Param("standing", Form.STANDING, "Only nodes that stand so.", "")
NODES = (
    STANDING,
    Param("q", Form.TEXT, "Only nodes whose name holds this.", ""),
    Param("after", Form.TEXT, "Begin after this name: the `next` of the page before.", ""),
    _limit(PAGE),
)

ENDPOINTS = (
    Endpoint(
        "/api/v1/fleet", "The fleet in numbers: standings, limits, switches.", shapes.Fleet, _fleet
    ),
    Endpoint("/api/v1/nodes", "Nodes by name, page by page.", shapes.NodePage, _nodes, NODES),
    Endpoint(
        "/api/v1/nodes/{name}",
        "One node's story: evidence, incidents, quarantine, timeline.",
        shapes.Node,
        _node,
        parts={"name": "The node's name."},
    ),
    Endpoint(
        "/api/v1/quarantines",
        "Every quarantine, those that need a person first.",
        shapes.QuarantineList,
        _quarantines,
    ),
    Endpoint(
        "/api/v1/incidents",
        "Open incidents, the strongest first.",
        shapes.IncidentPage,
        _incidents,
        (_limit(PAGE, 10_000),),
    ),
    Endpoint(
        "/api/v1/transitions",
        "What happened, newest first.",
        shapes.EventPage,
        _transitions,
        (
            Param("node", Form.TEXT, "Only what is about this node.", ""),
            Param(
                "since",
                Form.TIME,
                "Only from then on: seconds since the epoch, or RFC 3339.",
                0.0,
            ),
            Param(
                "until",
                Form.TIME,
                "Only up to then: the `at` of the last item asks for what was before it.",
                math.inf,
            ),
            _limit(TIMELINE),
        ),
    ),
    Endpoint(
        "/api/v1/lemons",
        "Nodes that come back again and again, the worst first.",
        shapes.LemonList,
        _lemons,
    ),
    Endpoint(
        "/api/v1/replicas",
        "The aggregator's replicas, and which of them don't answer; none where one is alone.",
        shapes.ReplicaList,
        _replicas,
    ),
    Endpoint("/api/v1/map", "Every node in one letter, for drawing.", shapes.Map, _map),
)
