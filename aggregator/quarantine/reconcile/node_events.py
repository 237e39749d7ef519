"""Writes Kubernetes Events about holds and drains: in the background, after all other requests.

An Event is a report for people. It may be lost: where too many wait, where the process ends, or
where the API server refuses it. The transition itself is in the history and the alerts.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from aggregator.cluster.port import Cluster, ClusterError, NodeEvent, Unreachable
from aggregator.documentation import address, of_hold
from aggregator.events import EventSink, Transition
from aggregator.quarantine.decide.node_events import DRAINED, DRAINING, HELD, REASONS, event_of
from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.text import truncate

log = logging.getLogger("sickbay.quarantine")

#: Events that wait at most; further ones are dropped.
MOST_WAITING = 1000
#: Names of written Events that are remembered: each is written once.
_MOST_KNOWN = 4096
#: Characters of a hold's text: the address of its section must fit into the 1 kB of a note too.
_MOST_OF_HOLD = 400
_TRIES = 3
#: Between two tries (seconds), unless the server names a time.
_PAUSE = 5.0


class NodeEventPublisher:
    """An event sink in front of ``sink``, and one task that writes.

    ``uid_of`` gives a node's uid, or an empty text while the node is not known. No Event is written
    about a node that is not ``enabled`` (mode observe).
    """

    def __init__(
        self,
        sink: EventSink,
        *,
        cluster: Cluster,
        fleet: FleetState,
        uid_of: Callable[[str], str],
        enabled: Callable[[str], bool],
    ) -> None:
        self._sink = sink
        self._cluster = cluster
        self._fleet = fleet
        self._uid_of = uid_of
        self._enabled = enabled
        #: By quarantine (or name) and reason, the oldest first.
        self._waiting: OrderedDict[tuple[str, str], NodeEvent] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._more = asyncio.Event()
        self.dropped = 0

    def record_event(self, transition: Transition) -> None:
        self._sink.record_event(transition)
        if transition.kind not in REASONS or not self._enabled(transition.node):
            return
        summary = self._fleet.node_summaries.get(transition.node)
        quarantine = summary.quarantine if summary is not None else None
        event = event_of(transition, self._uid_of(transition.node), quarantine)
        if event is None or event.name in self._known:
            return
        if event.reason == HELD:
            event = self._with_section(event, transition.details.get("limit", ""))
        if event.reason == DRAINED:  # in a burst a drain is over before its begin is written
            self._waiting.pop((event.quarantine_uid, DRAINING), None)
        if len(self._waiting) >= MOST_WAITING:
            if not self.dropped:
                log.warning("Kubernetes Events dropped: too many wait", extra={"node": event.node})
            self.dropped += 1
            return
        self._known[event.name] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        of = event.quarantine_uid if event.reason == DRAINING else event.name
        self._waiting[of, event.reason] = event
        self._more.set()

    def _with_section(self, event: NodeEvent, limit: str) -> NodeEvent:
        section = address(self._fleet.documentation_url, of_hold(limit))
        return replace(event, note=f"{truncate(event.note, _MOST_OF_HOLD)} ({section})")

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                _, event = self._waiting.popitem(last=False)
                await self._write(event)
            if self.dropped:
                log.warning("Kubernetes Events were dropped", extra={"count": self.dropped})
                self.dropped = 0

    async def _write(self, event: NodeEvent) -> None:
        for _ in range(_TRIES):
            try:
                await self._cluster.write_event(event)
            except Unreachable as error:
                await asyncio.sleep(error.retry_after or _PAUSE)
            except ClusterError as error:
                extra = {"node": event.node, "reason": event.reason, "error": str(error)}
                log.warning("Kubernetes Event not written", extra=extra)
                return
            else:
                return
        extra = {"node": event.node, "reason": event.reason}
        log.warning("Kubernetes Event not written: the API server is out of reach", extra=extra)
