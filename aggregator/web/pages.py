"""The HTML pages, rendered from the same shapes as the API answers.

Everything is escaped: names, messages and reasons come from nodes and from pods' owners. A page
asked for with ``fragment=1`` comes without its frame, for the script that keeps it up to date.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import jinja2
from aiohttp import web

from aggregator.quarantine.fleet import Standing
from aggregator.web import view, words
from aggregator.web.api import (
    MOST,
    NODES,
    page_of_nodes,
    story_or_none_such,
)
from aggregator.web.assets import Assets
from aggregator.web.desk import Desk
from aggregator.web.query import Form, Param, read_query

#: Rows of a table unless asked otherwise.
ROWS = 10
_LATELY = 15
#: Up to so many nodes are named each; more are drawn as a map.
FEW = 60

_FRAGMENT = Param("fragment", Form.TEXT, "", "")
_ROWS = Param("rows", Form.WHOLE, "Rows of each table at most.", ROWS, MOST)

#: Standings as people say them, worst first.
SAID = {
    Standing.QUARANTINED: "in quarantine",
    Standing.HELD: "held back",
    Standing.WARNING: "warning",
    Standing.SILENT: "silent",
    Standing.UNKNOWN: "unknown",
    Standing.OK: "well",
}


class Pages:
    """Renders. Made once; holds nothing of any request."""

    def __init__(self, desk: Desk, assets: Assets) -> None:
        self._desk = desk
        self._jinja = jinja2.Environment(
            loader=jinja2.PackageLoader("aggregator.web", "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._jinja.globals.update(
            said=SAID, asset=assets.url, Standing=Standing, how=desk.fleet.how
        )
        self._jinja.filters.update(ago=words.ago, clock=words.clock, full=words.full, iso=words.iso)

    async def fleet(self, request: web.Request) -> web.Response:
        """The fleet at a glance."""
        values = read_query((_ROWS, _FRAGMENT), request.query)
        look = await self._desk.look()
        found, rows = look.found, values["rows"]
        lemons = self._desk.lemons()
        lately = [view.event(one) for one in self._desk.feed.recent(limit=_LATELY)]
        return self._page(
            "fleet.html",
            values,
            fleet=self._desk.glance(look),
            incidents=found.incidents[:rows],
            quarantines=found.quarantines[:rows],
            holds=found.holds[:rows],
            silent=found.silent[:rows],
            wished=found.wished,
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
        """Nodes by name; straight to the node when its whole name was asked for."""
        values = read_query((*NODES, _FRAGMENT), request.query)
        look = await self._desk.look()
        if values["q"] in look.found.standings:
            url = request.app.router["node"].url_for(name=values["q"])
            raise web.HTTPFound(url)
        return self._page(
            "nodes.html",
            values,
            fleet=self._desk.glance(look),
            page=page_of_nodes(self._desk, look, values),
            standing=values["standing"],
            q=values["q"],
            after=values["after"],
        )

    async def node(self, request: web.Request) -> web.Response:
        """One node's story."""
        values = read_query((_FRAGMENT,), request.query)
        story = await story_or_none_such(self._desk, request.match_info["name"])
        look = await self._desk.look()
        return self._page(
            "node.html",
            values,
            fleet=self._desk.glance(look),
            node=story,
        )

    def trouble(self, status: int, error: str, hint: str) -> web.Response:
        """What went wrong with a request, as a page."""
        return self._page("trouble.html", {"fragment": ""}, status, error=error, hint=hint)

    def _page(
        self, name: str, values: Mapping[str, Any], status: int = 200, **context: Any
    ) -> web.Response:
        moment = self._desk.lookout.moment()
        now: dt.datetime = moment.when(moment.now)
        text = self._jinja.get_template(name).render(
            now=now, bare=bool(values["fragment"]), version=self._desk.version, **context
        )
        response = web.Response(text=text, status=status, content_type="text/html")
        response.enable_compression()
        return response
