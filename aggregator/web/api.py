"""The JSON API: each endpoint declared once, for its route and for the OpenAPI document alike."""

import difflib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec
from aiohttp import web

from aggregator.runtime.text import common_start
from aggregator.web import map_view, models, node_table, node_view
from aggregator.web.job_models import JobReport
from aggregator.web.job_view import PARAMS as JOB_PARAMS
from aggregator.web.job_view import job_report
from aggregator.web.queries import TIMELINE, FleetQueries
from aggregator.web.query_params import BadQuery, Form, Param, RequestProblem, read_query
from aggregator.web.timefmt import wall_time

#: Rows of one answer unless the query sets another number, and at most.
PAGE, MOST = 100, 1000
#: From this size on (bytes) an answer is compressed for clients that accept it.
_WORTH_COMPRESSING = 2048
#: Letters by which a misspelt name is longer or shorter, and names that it is compared with.
_MOST_WRONG, _MOST_COMPARED = 2, 500


class NotThere(RequestProblem):
    """The requested name is not known."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(404, error, hint)


#: Of the query and of the path's braces, by name.
Values = Mapping[str, Any]
Answer = Callable[[FleetQueries, Values], Awaitable[models.Shape]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One GET. ``answer`` is given the query's values, and those of the path's braces."""

    path: str
    summary: str
    shape: type[models.Shape]
    answer: Answer
    params: tuple[Param, ...]

    async def handle(self, queries: FleetQueries, request: web.Request) -> web.Response:
        """Read the query, answer. Raises BadQuery and NotThere."""
        values = read_query(self.params, request.query)
        return respond(await self.answer(queries, {**values, **request.match_info}), request)


#: In the order of the documentation.
ENDPOINTS: list[Endpoint] = []


def _get(path: str, summary: str, *params: Param) -> Callable[[Answer], Answer]:
    """Declare an endpoint. Its shape is what the function returns."""

    def declare(answer: Answer) -> Answer:
        shape = get_type_hints(answer)["return"]
        ENDPOINTS.append(Endpoint(path, summary, shape, answer, params))
        return answer

    return declare


def respond(
    shape: models.Shape, request: web.Request | None = None, status: int = 200
) -> web.Response:
    """A model as JSON."""
    body = msgspec.json.encode(shape)
    response = web.Response(body=body, status=status, content_type="application/json")
    if request is not None and len(body) >= _WORTH_COMPRESSING:
        response.enable_compression()
    return response


def nearest(name: str, names: Sequence[str]) -> str:
    """The known name that the misspelt one is nearest to, or empty text.

    Only names of its beginning or its end, and of about its length, are compared: of 10,000 names
    that takes milliseconds.
    """
    part = max(1, len(name) // 2)
    begin, end = name[:part], name[-part:]
    least, most = len(name) - _MOST_WRONG, len(name) + _MOST_WRONG
    near = [
        one
        for one in names
        if least <= len(one) <= most and (one.startswith(begin) or one.endswith(end))
    ]
    near.sort(key=lambda one: -common_start(one, name))
    found = difflib.get_close_matches(name[:253], near[:_MOST_COMPARED], 1, 0.8)
    return found[0] if found else ""


async def story_or_none_such(queries: FleetQueries, name: str) -> models.Node:
    """The node's details, or NotThere."""
    found = await queries.story(name)
    if found is None:
        near = nearest(name, (await queries.snapshots.current_snapshot()).found.names)
        did_you_mean = f"Did you mean {near}? " if near else ""
        raise NotThere(
            f'there is no node "{name[:253]}"',
            f"{did_you_mean}Names are those of `{queries.fleet.words.nodes}`, and of agents that "
            "have reported; `sickbay nodes` lists them.",
        )
    return found


def _limit(default: int, most: int = MOST) -> Param:
    return Param("limit", Form.WHOLE, "Rows at most.", default, most)


NODES = (
    *node_table.FILTERS,
    node_table.SORT,
    Param("after", Form.TEXT, "Begin after this name: the `next` of the page before.", ""),
    _limit(PAGE),
)
MAP_BLOCKS = Param(
    "blocks",
    Form.TEXT,
    "The label that divides the map; `none` for one block. Default: a rack's, else a pool's.",
    "",
)


@_get("/api/v1/fleet", "The fleet in numbers: states, limits, switches.")
async def _fleet(queries: FleetQueries, _: Values) -> models.Fleet:
    return queries.fleet_summary(await queries.current_snapshot())


@_get("/api/v1/nodes", "Nodes, filtered and sorted, page by page.", *NODES)
async def _nodes(queries: FleetQueries, values: Values) -> models.NodePage:
    snapshot = await queries.current_snapshot()
    return await node_table.page_of_nodes(queries, snapshot, values)


@_get(
    "/api/v1/groups",
    "Nodes by the value of a label, and how many of each have which state.",
    Param("key", Form.TEXT, "The label's key, such as topology.kubernetes.io/rack.", ""),
    *node_table.FILTERS,
    node_table.GROUP_SORT,
)
async def _groups(queries: FleetQueries, values: Values) -> models.NodeGroupList:
    snapshot = await queries.current_snapshot()
    return await node_table.groups_of(queries, snapshot, values)


@_get("/api/v1/nodes/{name}", "One node's story: evidence, incidents, quarantine, timeline.")
async def _node(queries: FleetQueries, values: Values) -> models.Node:
    return await story_or_none_such(queries, values["name"])


@_get(
    "/api/v1/trend",
    "How many nodes were well, held, in quarantine and drained over the last day.",
)
async def _trend(queries: FleetQueries, _: Values) -> models.Trend:
    trend = queries.trend
    points = trend.points(queries.snapshots.moment().wall)
    return models.Trend(
        points=[models.shape_of(models.TrendPoint, one) for one in points],
        own_since=wall_time(trend.own_since or 0.0),
        trouble=trend.trouble,
    )


@_get("/api/v1/quarantines", "Every quarantine, those that need a person first.")
async def _quarantines(queries: FleetQueries, _: Values) -> models.QuarantineList:
    found = (await queries.current_snapshot()).found
    return models.QuarantineList(
        items=list(found.quarantines),
        total=len(found.quarantines),
        view_lost=found.view_lost,
        marked_only=found.marked_only(),
    )


@_get("/api/v1/incidents", "Open incidents, the strongest first.", _limit(PAGE, 10_000))
async def _incidents(queries: FleetQueries, values: Values) -> models.IncidentPage:
    found = (await queries.current_snapshot()).found.incidents
    return models.IncidentPage(items=list(found[: values["limit"]]), total=len(found))


@_get(
    "/api/v1/transitions",
    "Transitions, newest first.",
    Param("node", Form.TEXT, "Only entries about this node.", ""),
    Param("since", Form.TIME, "Only from then on: seconds since the epoch, or RFC 3339.", 0.0),
    Param(
        "until",
        Form.TIME,
        "Only up to then: the `at` of the last item requests what was before it.",
        math.inf,
    ),
    _limit(TIMELINE),
)
async def _transitions(queries: FleetQueries, values: Values) -> models.EventPage:
    until = values["until"] + 0.001  # an `at` is rounded to the millisecond, up or down
    if until < values["since"]:
        raise BadQuery(
            "until is before since: no transition can be in between", "expected it later"
        )
    past = await queries.past(values["node"], values["since"], values["limit"], until)
    return models.EventPage(
        items=[node_view.event(one) for one in past.transitions], trouble=past.trouble
    )


@_get(
    "/api/v1/report",
    "What faults cost jobs: GPU hours lost, by job, team, code, node or pool.",
    *JOB_PARAMS,
)
async def _report(queries: FleetQueries, values: Values) -> JobReport:
    return await job_report(queries, values)


@_get("/api/v1/lemons", "Nodes that come back again and again, the worst first.")
async def _lemons(queries: FleetQueries, _: Values) -> models.LemonList:
    found = queries.lemons()
    return models.LemonList(items=found, total=len(found), trouble=queries.fleet.lemons_trouble)


@_get(
    "/api/v1/alerts",
    "Where alerts go, what waits, and deliveries that were given up, of this replica.",
)
async def _alerts(queries: FleetQueries, _: Values) -> models.AlertList:
    found = queries.alerts()
    return models.AlertList(
        items=[models.shape_of(models.AlertRoute, route) for route in found.routes],
        total=len(found.routes),
        dead_letters=[models.shape_of(models.DeadLetter, one) for one in found.dead],
    )


@_get(
    "/api/v1/replicas",
    "The aggregator's replicas, the controller first; empty where one is alone.",
)
async def _replicas(queries: FleetQueries, _: Values) -> models.ReplicaList:
    found = (await queries.current_snapshot()).found
    return models.ReplicaList(
        items=list(found.replicas), total=len(found.replicas), lease_lost=found.lease_lost
    )


@_get("/api/v1/map", "Every node in one letter, for drawing.", MAP_BLOCKS)
async def _map(queries: FleetQueries, values: Values) -> models.Map:
    snapshot = await queries.current_snapshot()
    layout = queries.map_layout(snapshot, values["blocks"])
    return map_view.map_model(layout, snapshot.found, snapshot.revision)
