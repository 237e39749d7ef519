"""The HTML pages, rendered from the same models as the API answers.

All text is escaped: names, messages and reasons come from nodes and from pods' owners. A page
requested with ``fragment=1`` comes without its frame, for the script that keeps it up to date.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import jinja2
from aiohttp import web

from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web import node_view, outlier_view, timefmt
from aggregator.web.api import (
    MOST,
    NODES,
    page_of_nodes,
    story_or_none_such,
)
from aggregator.web.assets import Assets
from aggregator.web.queries import FleetQueries
from aggregator.web.query_params import Form, Param, read_query

#: Rows of a table unless asked otherwise.
ROWS = 10
_LATELY = 15
#: Up to so many nodes are named each; more are drawn as a map.
FEW = 60

_FRAGMENT = Param("fragment", Form.TEXT, "", "")
_ROWS = Param("rows", Form.WHOLE, "Rows of each table at most.", ROWS, MOST)

#: Standings in words for people, worst first.
SAID = {
    QuarantineSummary.QUARANTINED: "in quarantine",
    QuarantineSummary.HELD: "held back",
    QuarantineSummary.WARNING: "warning",
    QuarantineSummary.SILENT: "silent",
    QuarantineSummary.UNKNOWN: "unknown",
    QuarantineSummary.OK: "well",
}


class Pages:
    """Renders. Created once; holds no state of any request."""

    def __init__(self, queries: FleetQueries, assets: Assets) -> None:
        self._queries = queries
        self._jinja = jinja2.Environment(
            loader=jinja2.PackageLoader("aggregator.web", "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._jinja.globals.update(
            said=SAID, asset=assets.url, Standing=QuarantineSummary, how=queries.fleet.how
        )
        self._jinja.filters.update(
            chart=outlier_view.chart,
            ago=timefmt.ago,
            clock=timefmt.clock,
            full=timefmt.full,
            iso=timefmt.iso,
        )

    async def fleet(self, request: web.Request) -> web.Response:
        """The fleet at a glance."""
        values = read_query((_ROWS, _FRAGMENT), request.query)
        look = await self._queries.current_snapshot()
        found, rows = look.found, values["rows"]
        lemons = self._queries.lemons()
        lately = [node_view.event(one) for one in self._queries.feed.recent(limit=_LATELY)]
        return self._page(
            "fleet.html",
            values,
            fleet=self._queries.glance(look),
            incidents=found.incidents[:rows],
            quarantines=found.quarantines[:rows],
            marked_only=found.marked_only(),
            holds=found.holds[:rows],
            silent=found.silent[:rows],
            requested=found.requested,
            lemons=lemons[:rows],
            lemons_in_all=len(lemons),
            lately=lately,
            few=[(name, found.standings[name]) for name in found.names]
            if len(found.names) <= FEW
            else [],
            few_most=FEW,
            more=MOST,
        )

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """Nodes by name; redirects to the node when its whole name was given."""
        values = read_query((*NODES, _FRAGMENT), request.query)
        look = await self._queries.current_snapshot()
        if values["q"] in look.found.standings:
            url = request.app.router["node"].url_for(name=values["q"])
            raise web.HTTPFound(url)
        return self._page(
            "nodes.html",
            values,
            fleet=self._queries.glance(look),
            page=page_of_nodes(self._queries, look, values),
            standing=values["standing"],
            q=values["q"],
            after=values["after"],
        )

    async def node(self, request: web.Request) -> web.Response:
        """One node's details."""
        values = read_query((_FRAGMENT,), request.query)
        story = await story_or_none_such(self._queries, request.match_info["name"])
        look = await self._queries.current_snapshot()
        return self._page(
            "node.html",
            values,
            fleet=self._queries.glance(look),
            node=story,
        )

    def trouble(self, status: int, error: str, hint: str) -> web.Response:
        """The error of a request, as a page."""
        return self._page("trouble.html", {"fragment": ""}, status, error=error, hint=hint)

    def _page(
        self, name: str, values: Mapping[str, Any], status: int = 200, **context: Any
    ) -> web.Response:
        moment = self._queries.snapshots.moment()
        now: dt.datetime = moment.when(moment.now)
        text = self._jinja.get_template(name).render(
            now=now, bare=bool(values["fragment"]), version=self._queries.version, **context
        )
        response = web.Response(text=text, status=status, content_type="text/html")
        response.enable_compression()
        return response
