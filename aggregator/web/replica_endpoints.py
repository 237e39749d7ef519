"""Answers to the other replicas: this one's own part, and never reports that it has from them.

So a request goes no further than one step, in any view that the replicas have of each other.
"""

import asyncio
import math

from aiohttp import web

from aggregator.quarantine.state.fleet import FleetState
from aggregator.web import node_view, outlier_view, replica_messages
from aggregator.web.merge import Owners
from aggregator.web.queries import TIMELINE, FleetQueries
from aggregator.web.query_params import Form, Param, read_query
from aggregator.web.replica_messages import (
    HistoryAnswer,
    NodeDetailAnswer,
    NodeReports,
    NodesPart,
    PageAnswer,
)
from aggregator.web.snapshot_cache import SnapshotCache, rest, visit_in_chunks

PART, NODE, PAST = "/replica/part", "/replica/node", "/replica/past"


_HAVE = Param("have", Form.TEXT, "The revision that the asker has.", "")
_SEEN = Param("seen", Form.TEXT, "The event that the asker has had last.", "")
_NAME = Param("name", Form.TEXT, "The node.", "")
_PAST = (
    Param("node", Form.TEXT, "Only entries about this node.", ""),
    Param("since", Form.TIME, "Only from then on.", 0.0),
    Param("until", Form.TIME, "Only up to then.", math.inf),
    Param("limit", Form.WHOLE, "Events at most.", TIMELINE, 1000),
)


class ReplicaEndpoints:
    """Answers the other replicas. Read only, and for every client that may see the page."""

    def __init__(
        self,
        *,
        me: str,
        fleet: FleetState,
        owners: Owners,
        snapshots: SnapshotCache,
        queries: FleetQueries,
    ) -> None:
        self._me = me
        self._fleet = fleet
        self._owners = owners
        self._snapshots = snapshots
        self._queries = queries
        self._now = snapshots.now
        self._names: list[str] = []
        self._part = NodesPart()
        self._revision = 0
        self._old_at = float("-inf")
        self._lock = asyncio.Lock()

    async def part(self, request: web.Request) -> web.Response:
        """All nodes of ours, unless the asker has them; the events since; each node's last message.

        Raises BadQuery.
        """
        values = read_query((_HAVE, _SEEN), request.query)
        await self._refresh()
        feed, revision = self._queries.feed, f"{self._queries.feed.epoch}.{self._revision}"
        events, seen, missed = feed.own_since(values["seen"], replica_messages.MOST_EVENTS)
        node_summaries = map(self._fleet.node_summaries.get, self._names)
        return _send(
            PageAnswer(
                name=self._me,
                revision=revision,
                heard=replica_messages.message_ages(node_summaries, self._now()),
                part=None if values["have"] == revision else self._part,
                seen=seen,
                fresh=bool(values["seen"]),
                events=[replica_messages.happened(one) for one in events],
                missed=missed,
                not_ready=self._queries.ready(),
            )
        )

    async def node(self, request: web.Request) -> web.Response:
        """One node's details, without its timeline. Raises BadQuery."""
        name = read_query((_NAME,), request.query)["name"]
        node_summary = self._fleet.node_summaries.get(name)
        moment = self._snapshots.moment()
        fleet, told = self._fleet, None
        if node_summary is not None:
            found = outlier_view.outliers(fleet.measurements, node_summary.node, moment)
            told = node_view.node(
                node_summary,
                moment,
                fleet.mode_of(node_summary),
                how=fleet.how,
                outliers=found,
                pool=fleet.pool_of(node_summary),
                repairs=fleet.repairs,
                test=fleet.node_tests.get(name),
            )
        return _send(NodeDetailAnswer(told))

    async def past(self, request: web.Request) -> web.Response:
        """The transitions of our own history. Raises BadQuery."""
        values = read_query(_PAST, request.query)
        asked = (values["node"], values["since"], values["limit"], values["until"])
        past = await self._queries.own_past(*asked)
        return _send(
            HistoryAnswer(
                [replica_messages.happened(one) for one in past.transitions], past.trouble
            )
        )

    async def _refresh(self) -> None:
        async with self._lock:
            if self._now() < self._old_at:
                return
            moment, fleet = self._snapshots.moment(), self._fleet
            names: list[str] = []
            told: list[NodeReports] = []

            def visit(name: str) -> None:
                node_summary = self._fleet.node_summaries.get(name)
                if node_summary is not None and self._owners.mine(name):
                    names.append(name)
                    told.append(
                        replica_messages.to_node_reports(
                            node_summary, moment, fleet.mode_of(node_summary), fleet.how
                        )
                    )

            spent = await visit_in_chunks(list(self._fleet.node_summaries), visit, self._now)
            fresh = NodesPart(told, [node_view.lemon(one) for one in self._fleet.lemons])
            if fresh != self._part:
                self._part, self._names = fresh, names
                self._revision += 1
            self._old_at = self._now() + rest(spent)


def _send(told: PageAnswer | HistoryAnswer | NodeDetailAnswer) -> web.Response:
    return web.Response(body=replica_messages.encode(told), content_type=replica_messages.KIND)
