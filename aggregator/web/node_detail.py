"""One node's details: our own from memory, another replica's requested from its owner, live.

Where the owner does not answer, they are the last known: all details if a person has looked at the
node lately, otherwise those in the owner's last report.
"""

from collections import OrderedDict

import msgspec

from aggregator.quarantine.state.fleet import FleetState, NodeSummary
from aggregator.web import fleet_view, models, node_view, outlier_view
from aggregator.web.gpu_names import gpu_name
from aggregator.web.merge import Owners, best_report, nobodys
from aggregator.web.node_view import ViewMoment
from aggregator.web.replica_client import NoAnswer
from aggregator.web.replica_messages import NodeReports, ReplicaReport, faded
from aggregator.web.replica_poller import ReplicaPoller
from aggregator.web.snapshot_cache import SnapshotCache

#: Details of others' nodes that are kept for the time when their owner does not answer.
_KEPT = 64


class NodeDetails:
    """`replica_name` is this replica's name where there are others, else empty."""

    def __init__(
        self,
        *,
        me: str,
        fleet: FleetState,
        snapshots: SnapshotCache,
        owners: Owners,
        peers: ReplicaPoller,
    ) -> None:
        self._me = me
        self._fleet = fleet
        self._snapshots = snapshots
        self._owners = owners
        self._peers = peers
        self._kept: OrderedDict[str, tuple[models.Node, ViewMoment]] = OrderedDict()

    @property
    def replica_name(self) -> str:
        """The name of this replica; empty where it is alone."""
        return self._me if self._peers.others else ""

    def read_node(self, name: str, telling: ReplicaReport) -> NodeReports:
        """The node's entry in the replica's report of the last snapshot."""
        return telling.nodes.get(name) or nobodys(name, telling)[0]

    async def of(self, name: str) -> models.Node | None:
        """The details without the timeline, or None where no replica knows the node."""
        node_summary, tellings = self._fleet.node_summaries.get(name), self._peers.tellings()
        said = best_report(name, node_summary, self._owners, tellings) if tellings else None
        if said is None:
            return self._own(node_summary) if node_summary is not None else None
        told, telling = said
        if node_summary is None and name not in telling.nodes:
            return None
        if telling.trouble:
            return self._last_known(told, telling, node_summary, telling.trouble)
        try:
            found = await self._peers.story(telling.replica, name)
        except NoAnswer as error:
            return self._last_known(told, telling, node_summary, str(error))
        if found is None:
            return self._last_known(told, telling, node_summary, "knows of no such node yet")
        found = msgspec.structs.replace(found, replica=telling.replica)
        self._keep(found)
        return found

    def _own(self, node_summary: NodeSummary) -> models.Node:
        fleet, moment = self._fleet, self._snapshots.moment()
        found = [
            msgspec.structs.replace(one, device=gpu_name(node_summary.agent.health, one.component))
            for one in outlier_view.outliers(fleet.measurements, node_summary.node, moment)
        ]
        told = node_view.node(
            node_summary,
            moment,
            fleet.mode_of(node_summary),
            how=fleet.how,
            outliers=found,
            pool=fleet.pool_of(node_summary),
            repairs=fleet.repairs,
            test=fleet.node_tests.get(node_summary.node),
        )
        return msgspec.structs.replace(told, replica=self.replica_name)

    def _keep(self, story: models.Node) -> None:
        self._kept[story.node] = (story, self._snapshots.moment())
        self._kept.move_to_end(story.node)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _last_known(
        self,
        told: NodeReports,
        telling: ReplicaReport,
        node_summary: NodeSummary | None,
        trouble: str,
    ) -> models.Node:
        moment = self._snapshots.moment()
        row = fleet_view.row_told(told, telling, node_summary, moment)
        kept = self._kept.get(told.node)
        if kept is None:
            story, at = (
                node_view.node(
                    node_summary or NodeSummary(told.node),
                    moment,
                    self._fleet.mode_of(node_summary or NodeSummary(told.node)),
                    how=self._fleet.how,
                    pool=self._fleet.pool_of(node_summary),
                    repairs=self._fleet.repairs,
                ),
                telling.at,
            )
        else:
            story, at = kept[0], kept[1].when(kept[1].now)
        when = f"last known {at:%H:%M} UTC, " if at else ""
        note = f"{when}{telling.replica or 'its replica'} {trouble}"
        quarantine = node_summary.quarantine if node_summary is not None else None
        stopped = told.hold is not None and told.hold.limit == "stop"
        return msgspec.structs.replace(
            story,
            standing=row.standing if quarantine is not None else faded(row.standing),
            why=row.why if telling.trouble else f"{row.why} ({note})" if row.why else note,
            agent="unknown",
            last_heard=row.last_heard,
            incidents=[msgspec.structs.replace(one, doing=note) for one in told.incidents],
            quarantine=node_view.quarantine(
                node_summary, quarantine, self._fleet.how, moment, self._fleet.repairs
            )
            if node_summary is not None and quarantine is not None
            else None,
            hold=told.hold if quarantine is None or stopped else None,
            exempt=told.exempt,
            requests=told.requests,
            last_error=told.last_error,
            replica=telling.replica,
            last_known=at,
        )
