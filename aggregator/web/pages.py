"""The HTML pages, rendered from the same models as the API answers.

All text is escaped: names, messages and reasons come from nodes and from pods' owners. Characters
that are not printable are "?", since a mark that reverses text would change the words after it.

A page requested with ``fragment=1`` comes without its frame, for the script that keeps it up to
date. With ``base``, the tag of the text that the script has, only the lines come that differ, as
JSON.
"""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from markupsafe import Markup

from aggregator.jobs.report import GROUPS
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.runtime.recent import Recent
from aggregator.web import (
    cases,
    cost_chart,
    doc_links,
    equal_rows,
    job_view,
    models,
    node_table,
    node_view,
    outlier_view,
    past_incident,
    sentence,
    timefmt,
    timeline_chart,
    trend_chart,
)
from aggregator.web.api import MAP_BLOCKS, MOST, NODES, NotThere, story_or_none_such
from aggregator.web.assets import Assets
from aggregator.web.drift_view import drift_rows
from aggregator.web.fleet_trend import point_of
from aggregator.web.node_detail import node_detail
from aggregator.web.page_delta import PageDeltas
from aggregator.web.queries import FleetQueries
from aggregator.web.query_params import Form, Param, read_query
from aggregator.web.snapshot_cache import FleetSnapshot
from aggregator.web.summary import STATE_LABELS

if TYPE_CHECKING:
    import jinja2

#: Rows of a table unless the query sets another number.
ROWS = 10
#: Events of *Lately*, equal ones as one; and how many are read for them.
_LATELY, _LATELY_READ = 15, 100
#: Nodes that a row of equal incidents names, unless the query requests more rows.
_MEMBERS = 50
#: Rows of groups at most: to render 1,000 blocks the event loop, which admits nodes too, for 0.6 s.
_GROUPS = 200
#: Up to this number nodes are named each; more are drawn as a map.
FEW = 60

#: Fragments that are kept for the next reader.
_MOST_TEXTS = 16

#: The order of the page of nodes, unless a person chooses another.
_WORST_FIRST = "state"

_FRAGMENT = Param("fragment", Form.TEXT, "", "")
_BASE = Param("base", Form.TEXT, "", "")
_GROUP = Param("group", Form.TEXT, "Groups by the values of this label.", "")
#: The filters of the table of cases.
_CASES = tuple(one for one in node_table.FILTERS if one.name != "agent")
_ROWS = Param("rows", Form.WHOLE, "Rows of each table at most.", ROWS, MOST)

_JOB_ROWS = 100
_JOBS = (
    Param("by", Form.CHOICE, "", "job", choices=GROUPS),
    Param("job", Form.TEXT, "", ""),
    Param("days", Form.WHOLE, "", 28, 3650),
)


def _printable(value: object) -> object:
    """A value as a template shows it. Markup has gone through here in its parts."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(
        char if char.isprintable() else " " if char in "\n\r\t" else "?" for char in value
    )


class Pages:
    """Renders. Created once; holds no state of any request."""

    def __init__(
        self,
        queries: FleetQueries,
        assets: Assets,
        *,
        access: bool = False,
        actions: bool = False,
        oidc: str = "",
        tokens: bool = True,
    ) -> None:
        """``oidc``: the issuer by which people can log in; empty: there is none. ``tokens``:
        whether a token can be one's log-in.
        """
        self._queries = queries
        self._deltas = PageDeltas()
        self._texts: Recent[tuple[object, ...], _Text] = Recent(_MOST_TEXTS)
        self._assets, self._access, self._actions = assets, access, actions
        self._oidc, self._tokens = oidc, tokens

    @cached_property
    def _jinja(self) -> "jinja2.Environment":
        """Made for the first page: a start need not import the library."""
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("aggregator.web", "templates"),
            autoescape=True,
            finalize=_printable,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.globals.update(
            access=self._access,
            actions=self._actions,
            state_labels=STATE_LABELS,
            asset=self._assets.url,
            State=QuarantineSummary,
            how=self._queries.fleet.how,
            rule_why=self._rule_why,
            words=self._queries.fleet.words,
        )
        environment.globals["documentation_url"] = self._queries.fleet.documentation_url
        environment.filters.update(
            chart=outlier_view.chart,
            timeline_chart=timeline_chart.timeline_chart,
            trend_chart=trend_chart.trend_chart,
            date=cost_chart.date,
            ago=timefmt.ago,
            clock=timefmt.clock,
            full=timefmt.full,
            iso=timefmt.iso,
            span=timefmt.span,
            pieces=doc_links.pieces,
            sentence=sentence.sentence,
            titles=equal_rows.titles,
            deciding_rule=cases.deciding_rule,
        )
        return environment

    def _rule_why(self, name: str) -> str:
        """The reason of a rule of the policy in force; empty for a rule that it lacks."""
        policy = self._queries.fleet.repairs.policy
        rule = policy.by_name.get(name) if policy is not None else None
        return " ".join(rule.why.split()) if rule is not None else ""

    async def fleet(self, request: web.Request) -> web.Response:
        """The fleet at a glance."""
        values = read_query((_ROWS, *_CASES, MAP_BLOCKS, _FRAGMENT, _BASE), request.query)
        snapshot = await self._queries.current_snapshot()
        layout = self._queries.map_layout(snapshot, values["blocks"])
        known = self._known_text("fleet.html", values, snapshot)
        if known is not None:
            return self._respond(known.text, values, known.tag)
        found, rows = snapshot.found, values["rows"]
        chosen = cases.selected(
            cases.open_cases(found),
            state=values["state"],
            part=values["q"],
            why=values["why"],
            has_labels=self._label_filter(values["label"]),
        )
        few = len(found.names) <= FEW
        lemons = self._queries.lemons()
        lately = [node_view.event(one) for one in self._queries.feed.recent(limit=_LATELY_READ)]
        return self._page(
            "fleet.html",
            values,
            snapshot,
            is_shared=True,
            cases=cases.by_state(equal_rows.equal_cases(chosen)),
            params=values,
            rows=rows,
            with_query=_with_query("/", values, (*(one.name for one in _CASES), "blocks", "rows")),
            marked_only=found.marked_only(),
            members=max(rows, _MEMBERS),
            rows_in=equal_rows.rows_in,
            silent=found.silent[:rows],
            requested=found.requested,
            lemons=lemons[:rows],
            lemons_in_all=len(lemons),
            lately=equal_rows.equal_events(lately)[:_LATELY],
            drifted=drift_rows(found.incidents),
            few=layout.blocks if few else (),
            states=found.states,
            cells=[] if few else layout.cells(found),
            map_key=layout.key,
            map_keys=layout.keys,
            unlabelled=bool(layout.names and layout.key)
            and not any(value for value, _ in layout.blocks),
            more=MOST,
            trend=self._queries.trend.points(self._queries.snapshots.moment().wall),
            present=point_of(found, 0.0),
            trend_trouble=self._queries.trend.trouble,
        )

    def _label_filter(self, text: str) -> Callable[[str], bool] | None:
        """Whether a node has the labels, or None without a selector. Raises BadQuery."""
        matches = node_table.selector(text)
        if matches is None:
            return None
        return lambda name: matches(self._queries.labels(name))

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """Nodes, or groups of them; redirects to the node when its whole name was given."""
        values = read_query((*NODES, _GROUP, _FRAGMENT, _BASE), request.query)
        if "sort" not in request.query and not values["group"]:
            values["sort"] = _WORST_FIRST
        snapshot = await self._queries.current_snapshot()
        if values["q"] in snapshot.found.states:
            url = request.app.router["node"].url_for(name=values["q"])
            raise web.HTTPFound(url)
        known = self._known_text("nodes.html", values, snapshot)
        if known is not None:
            return self._respond(known.text, values, known.tag)
        groups = page = None
        values["sort"] = node_table.suited_sort(values["sort"], grouped=bool(values["group"]))
        if values["group"]:
            params = {**values, "key": values["group"]}
            groups = await node_table.groups_of(self._queries, snapshot, params)
        else:
            page = await node_table.page_of_nodes(self._queries, snapshot, values)
        return self._page(
            "nodes.html",
            values,
            snapshot,
            is_shared=True,
            page=page,
            groups=groups,
            params=values,
            columns=_label_columns(self._queries, page, values),
            keys=self._queries.fleet.group_labels,
            agents=node_table.AGENTS,
            with_query=_with_query("/nodes", values, _KEPT),
            most_groups=_GROUPS,
            groups_url=_groups_url(values),
        )

    async def about_node(self, template: str, request: web.Request) -> web.Response:
        """One node's details, or its quarantine, which states it where the node has none now."""
        values = read_query((_FRAGMENT, _BASE), request.query)
        [name] = request.match_info.values()
        story = await story_or_none_such(self._queries, name)
        return self._page(template, values, await self._queries.current_snapshot(), node=story)

    async def incident(self, request: web.Request) -> web.Response:
        """One incident, open or closed, with its events."""
        values = read_query((_FRAGMENT, _BASE), request.query)
        id_, snapshot = request.match_info["id"], await self._queries.current_snapshot()
        past = await self._queries.past_of_incident(id_)
        names = [one.node for one in snapshot.found.incidents if one.id == id_]
        names += [one.node for one in past.transitions if one.node]
        if not names and not past.trouble:
            raise NotThere(
                f'no open incident and no event is known by the id "{id_[:100]}"',
                "`sickbay incidents` lists those that are open, `sickbay history` the events. "
                "An event that is older than history.keep is deleted.",
            )
        name = names[0] if names else ""
        events = [node_view.event(one) for one in past.transitions]
        node = node_detail(self._queries.fleet, self._queries.snapshots, name)
        incidents = node.incidents if node is not None else []
        return self._page(
            "incident.html",
            values,
            snapshot,
            id=id_,
            of=name,
            node=node,
            one=next((one for one in incidents if one.id == id_), None),
            events=events,
            past=past_incident.past_incident(events),
            trouble=past.trouble,
        )

    async def jobs(self, request: web.Request) -> web.Response:
        """The jobs that faults hit, or one of them."""
        values = read_query((*_JOBS, _FRAGMENT, _BASE), request.query)
        query = {name: values[name] for name in ("by", "job", "days")}
        query |= {"since": -1.0, "until": -1.0, "limit": _JOB_ROWS}
        report = await job_view.job_report(self._queries, query)
        snapshot = await self._queries.current_snapshot()
        return self._page(
            "jobs.html",
            values,
            snapshot,
            report=report,
            params=values,
            groups=GROUPS,
            longest=max((row.lost_hours for row in report.items), default=0.0),
        )

    def trouble(self, status: int, error: str, hint: str) -> web.Response:
        """The error of a request, as a page."""
        values = {"fragment": "", "base": ""}
        return self._page("trouble.html", values, status=status, error=error, hint=hint)

    def log_in(self, status: int, **context: Any) -> web.Response:
        """The form to log in, with what `LogIn` has for its template."""
        template = self._jinja.get_template("login.html")
        text = template.render(oidc=self._oidc, tokens=self._tokens, **context)
        return web.Response(text=text, status=status, content_type="text/html")

    def logged_in(self, path: str) -> web.Response:
        """The page after a log-in by OpenID Connect, which leads on to ``path``."""
        text = self._jinja.get_template("logged_in.html").render(path=path)
        return web.Response(text=text, content_type="text/html")

    def _page(
        self,
        name: str,
        values: Mapping[str, Any],
        snapshot: FleetSnapshot | None = None,
        *,
        is_shared: bool = False,
        status: int = 200,
        **context: Any,
    ) -> web.Response:
        """Render it. ``is_shared``: the text follows from ``values``, ``snapshot`` and the
        transitions alone, so that it serves all requests for the same.
        """
        if snapshot is not None:
            context["fleet"] = self._queries.fleet_summary(snapshot)
        moment = self._queries.snapshots.moment()
        now: dt.datetime = moment.when(moment.now)
        text = self._jinja.get_template(name).render(
            now=now, bare=bool(values["fragment"]), version=self._queries.version, **context
        )
        tag = self._deltas.remember(text) if values["fragment"] else ""
        if is_shared and snapshot is not None and tag:
            self._texts[_key(name, values)] = _Text(snapshot, self._queries.feed.latest, text, tag)
        return self._respond(text, values, tag, status)

    def _known_text(
        self, name: str, values: Mapping[str, Any], snapshot: FleetSnapshot
    ) -> "_Text | None":
        """The text as another reader has just got it, unless the fleet has changed since."""
        found = self._texts.get(_key(name, values)) if values["fragment"] else None
        if (
            found is None
            or found.snapshot is not snapshot
            or found.latest != self._queries.feed.latest
        ):
            return None
        return found

    def _respond(
        self, text: str, values: Mapping[str, Any], tag: str, status: int = 200
    ) -> web.Response:
        """``tag``: the text's, where it is a fragment."""
        response = web.Response(text=text, status=status, content_type="text/html")
        if tag:
            response = self._fragment(response, tag, values["base"])
        if response.body is not None:
            response.enable_compression()
        return response

    def _fragment(self, whole: web.Response, tag: str, base: str) -> web.Response:
        """The answer for a reader with the text ``base``: no content, the difference, or all."""
        if base == tag:
            return web.Response(status=204)
        parts = self._deltas.between(base, tag)
        if parts is None:
            whole.etag = tag
            return whole
        body = msgspec.json.encode({"tag": tag, "parts": parts})
        return web.Response(body=body, content_type="application/json")


@dataclass(frozen=True, slots=True)
class _Text:
    """A fragment as it was rendered: from which snapshot, and after which transition."""

    snapshot: FleetSnapshot
    latest: int
    text: str
    tag: str


#: Parameters of the page of nodes that a link to another view of it keeps.
_KEPT = ("state", "q", "why", "agent", "label", "group", "sort")
#: Their values that need no place in an address.
_DEFAULTS = {("sort", _WORST_FIRST), ("sort", node_table.GROUP_SORT.default), ("rows", ROWS)}


def _with_query(path: str, values: Mapping[str, Any], kept: Sequence[str]) -> Callable[..., str]:
    """Makes the address of a page with other values of some of its parameters."""

    def address(**changes: str | int) -> str:
        merged = {name: values[name] for name in kept} | changes
        query = {
            name: value
            for name, value in merged.items()
            if value and (name, value) not in _DEFAULTS
        }
        return f"{path}?{urlencode(query)}" if query else path

    return address


def _groups_url(values: Mapping[str, Any]) -> str:
    """The address at which the API has all groups, in the same order."""
    query = {name: values[name] for name in _KEPT if name != "group" and values[name]}
    return f"/api/v1/groups?{urlencode({'key': values['group'], **query})}"


def _label_columns(
    queries: FleetQueries, page: models.NodePage | None, values: Mapping[str, Any]
) -> list[str]:
    """The labels that have a column: those of a shown node, and the one that is sorted by."""
    shown = {key for row in page.items for key in row.labels} if page is not None else set()
    sorted_by = values["sort"].removeprefix("-")
    return [
        key for key in queries.fleet.group_labels if key in shown or sorted_by == f"label:{key}"
    ]


def _key(name: str, values: Mapping[str, Any]) -> tuple[object, ...]:
    """Which text of a template is requested."""
    return name, *((key, value) for key, value in values.items() if key != "base")
