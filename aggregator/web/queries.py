"""Collects the data of a request: the fleet, history, and other packages' counters."""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from aggregator.alerts.overview import AlertOverview
from aggregator.events import Transition
from aggregator.history.dedup import newest_first
from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.shared_answers import SharedAnswers
from aggregator.web import models, node_view
from aggregator.web.event_broker import REMEMBERED, EventBroker, merged
from aggregator.web.fleet_trend import FleetTrend
from aggregator.web.history_interface import HistoryReader
from aggregator.web.job_models import JobReport
from aggregator.web.map_view import POOL, MapLayout, MapLayouts
from aggregator.web.mode_effect import EffectCache, Preview
from aggregator.web.node_detail import node_detail
from aggregator.web.node_table import RowCache, check_key
from aggregator.web.snapshot_cache import FleetSnapshot, SnapshotCache
from aggregator.web.summary import summarize

log = logging.getLogger("sickbay.web")

T = TypeVar("T")

#: A history that takes longer than this (seconds) is shown as unreachable: the page can't wait.
PATIENCE = 3.0
TIMELINE = 200
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class PastEvents:
    """Transitions, newest first. ``trouble`` states why some may be missing."""

    transitions: list[Transition] = field(default_factory=list)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class FleetQueries:
    """The queries that page and API share. ``ready`` returns the problems, in words; empty: there
    are none.

    ``alert_trouble`` returns why alerts are not delivered; empty: they are. ``alerts`` returns
    their routes and dead letters. ``preview`` returns admission's decisions on nodes that the mode
    holds.
    """

    fleet: FleetState
    snapshots: SnapshotCache
    feed: EventBroker
    history: HistoryReader
    version: str
    ready: Callable[[], list[str]]
    alert_trouble: Callable[[], str]
    reports: SharedAnswers[JobReport]
    alerts: Callable[[], AlertOverview] = AlertOverview
    row_cache: RowCache = field(default_factory=RowCache)
    trend: FleetTrend = field(default_factory=FleetTrend)
    preview: Preview | None = None
    effects: EffectCache = field(default_factory=EffectCache)
    layouts: MapLayouts = field(default_factory=MapLayouts)
    #: Requests that come together share a read: hundreds of people may watch one node, and the
    #: history refuses the 65th read that waits.
    reads: SharedAnswers[list[Transition]] = field(
        default_factory=lambda: SharedAnswers(lambda: 0.0, lasts=lambda *_: 0.0, most=0)
    )

    async def current_snapshot(self) -> FleetSnapshot:
        """The fleet, a moment ago at most."""
        return await self.snapshots.current_snapshot()

    def fleet_summary(self, snapshot: FleetSnapshot) -> models.Fleet:
        """The fleet's numbers."""
        numbers = summarize(
            snapshot.found,
            self.snapshots.moment(),
            version=self.version,
            revision=snapshot.revision,
            not_ready=self.ready(),
            history_trouble=self.history.problem,
            alert_trouble=self.alert_trouble(),
            alerts_given_up=sum(route.dead for route in self.alerts().routes),
        )
        return msgspec.structs.replace(numbers, with_drain=self.effects.of(snapshot, self.preview))

    def troubles(self) -> Sequence[object]:
        """What each page reports of this replica itself, without numbers that count on."""
        texts = (*self.ready(), self.history.problem, self.alert_trouble())
        dead = sum(route.dead for route in self.alerts().routes)
        return (*(_DIGITS.sub("", one) for one in texts), dead)

    def rows(self, names: Iterable[str]) -> list[models.NodeRow]:
        """These nodes in a line each; without those that are gone since."""
        moment = self.snapshots.moment()
        known = (self.fleet.node_summaries.get(name) for name in names)
        rows = [node_view.node_row(self.fleet, one, moment) for one in known if one is not None]
        shown = self.fleet.group_labels
        return [self._with_labels(row, shown) for row in rows] if shown else rows

    async def all_rows(self, snapshot: FleetSnapshot) -> Mapping[str, models.NodeRow]:
        """All nodes in a line each, by node."""
        return await self.row_cache.all_rows(self, snapshot)

    def labels(self, name: str) -> Mapping[str, str]:
        """All labels of the cluster's Node; empty while unknown."""
        node_summary = self.fleet.node_summaries.get(name)
        meta = node_summary.cluster.meta if node_summary is not None else None
        return meta.labels if meta is not None else EMPTY

    def map_keys(self) -> list[str]:
        """The labels that can divide the map: places before pools."""
        pool_label = self.fleet.limits.get("pool_label", "")
        places = [key for key in self.fleet.group_labels if key != pool_label]
        pools = [key for key in (pool_label, POOL if self.fleet.pools else "") if key]
        return [*places, *pools]

    def map_layout(self, snapshot: FleetSnapshot, requested: str) -> MapLayout:
        """The order and the blocks of the map. Raises BadQuery for what is no label's key."""
        if requested:
            check_key(requested)
        return self.layouts.of(
            snapshot.found.names,
            requested,
            value_of=self._map_value,
            keys=self.map_keys(),
            now=self.snapshots.now(),
        )

    def _map_value(self, name: str, key: str) -> str:
        value = self.labels(name).get(key, "")
        if not value and key == POOL:
            return self.fleet.pool_of(self.fleet.node_summaries.get(name))
        return value

    def _with_labels(self, row: models.NodeRow, shown: Iterable[str]) -> models.NodeRow:
        labels = self.labels(row.node)
        found = {key: labels[key] for key in shown if key in labels}
        return msgspec.structs.replace(row, labels=found) if found else row

    def lemons(self) -> list[models.Lemon]:
        """The lemons in the history, the worst first."""
        return [models.shape_of(models.Lemon, one) for one in self.fleet.lemons]

    async def story(self, name: str) -> models.Node | None:
        """One node with its timeline, or None where it is not known."""
        found = node_detail(self.fleet, self.snapshots, name)
        if found is None:
            return None
        past = await self.past(name)
        return msgspec.structs.replace(
            found,
            timeline=[node_view.event(one) for one in past.transitions],
            timeline_trouble=past.trouble,
        )

    async def past(
        self, node: str = "", since: float = 0.0, limit: int = TIMELINE, until: float = math.inf
    ) -> PastEvents:
        """From the history, with the transitions that it may not have written yet."""
        most = limit if until == math.inf else REMEMBERED
        lately = self.feed.recent(node, most)
        fresh = [one for one in lately if since <= one.at <= until][:limit]
        query = node, since, limit, until
        read = self.reads.get(query, lambda: self.history.recent(*query))
        return await _with_kept(fresh, read, limit)

    async def past_of_incident(self, incident: str) -> PastEvents:
        """The transitions of one incident, those that the history may lack included."""
        lately = self.feed.recent(limit=2 * REMEMBERED)
        fresh = [one for one in lately if one.incident == incident][:TIMELINE]
        read = self.reads.get(incident, lambda: self.history.of_incident(incident, TIMELINE))
        return await _with_kept(fresh, read, TIMELINE)

    async def prime(self) -> None:
        """Give the event broker the transitions from before this process."""
        past = await self.past(limit=100)
        if past.trouble:
            log.warning("the page begins without its past", extra={"reason": past.trouble})
        self.feed.prime(past.transitions)


async def read_history(read: Awaitable[list[T]], patience: float) -> tuple[list[T], str]:
    """The rows, or why there are none. ``patience``: seconds for the read."""
    try:
        async with asyncio.timeout(patience):
            return await read, ""
    except TimeoutError:
        return [], f"history gave no answer in {patience:g} s"
    except OSError as error:
        return [], f"history can't be read: {error}"


async def _with_kept(
    fresh: list[Transition], read: Awaitable[list[Transition]], limit: int
) -> PastEvents:
    """``fresh`` and the rows that ``read`` gets from the history."""
    kept, trouble = await read_history(read, PATIENCE)
    if trouble:
        return PastEvents(fresh, trouble)
    found = sorted(merged(kept, fresh), key=lambda one: one.at, reverse=True)
    return PastEvents(newest_first(found)[:limit])
