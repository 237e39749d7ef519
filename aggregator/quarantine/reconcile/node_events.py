"""Writes Kubernetes Events about holds and drains: in the background, after all other requests.

An Event is a report for people. It may be lost: where too many wait, where the process ends, or
where the API server refuses it. The transition itself is in the history and the alerts.
"""

import asyncio
import logging
from collections import deque
from dataclasses import replace

from attrs import define, field

from aggregator.cluster.port import Action, ClusterError, NodeEvent, SharedObjects, Unreachable
from aggregator.documentation import address, of_hold
from aggregator.events import EventSink, Transition
from aggregator.quarantine.decide.node_events import (
    DRAIN,
    DRAINED,
    HELD,
    REASONS,
    EventRules,
    event_of,
)
from aggregator.quarantine.state.registry import NodePools, NodeRegistry
from aggregator.runtime.recent import Recent
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


@define(eq=False, repr=False, slots=False)
class NodeEventPublisher:
    """An event sink in front of ``sink``, and one task that writes.

    About a node in mode observe an Event is written only where the ``rules`` want it.
    """

    _sink: EventSink
    _cluster: SharedObjects = field(kw_only=True)
    _registry: NodeRegistry = field(kw_only=True)
    _pools: NodePools = field(kw_only=True)
    _rules: EventRules = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        #: The oldest first.
        self._waiting: deque[NodeEvent] = deque()
        self._known: Recent[str, None] = Recent(_MOST_KNOWN)
        #: Quarantines whose drains have had an Event before their end.
        self._drains: Recent[str, None] = Recent(_MOST_KNOWN)
        self._more = asyncio.Event()
        self.dropped = 0

    def record_event(self, transition: Transition) -> None:
        self._sink.record_event(transition)
        if transition.kind not in REASONS or not self._is_wanted(transition.node):
            return
        summary = self._registry.known(transition.node)
        quarantine = summary.quarantine if summary is not None else None
        event = event_of(transition, self._registry.uid_of(transition.node), quarantine)
        if event is None or event.name in self._known:
            return
        if event.reason == HELD:
            event = self._with_section(event, transition.details.get("limit", ""))
        if event.action == DRAIN and event.reason != DRAINED:
            self._drains[event.quarantine_uid] = None
        elif event.reason == DRAINED and event.quarantine_uid not in self._drains:
            # The Quarantine's own conditions show all that its Event would.
            event = replace(event, quarantine_uid="")
        if len(self._waiting) >= MOST_WAITING:
            if not self.dropped:
                log.warning("Kubernetes Events dropped: too many wait", extra={"node": event.node})
            self.dropped += 1
            return
        self._known[event.name] = None
        self._waiting.append(event)
        self._more.set()

    def _is_wanted(self, node: str) -> bool:
        return self._rules.observe or self._pools.mode_of(node) is not Action.OBSERVE

    def _with_section(self, event: NodeEvent, limit: str) -> NodeEvent:
        section = address(self._registry.fleet.documentation_url, of_hold(limit))
        return replace(event, note=f"{truncate(event.note, _MOST_OF_HOLD)} ({section})")

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                await self._write(self._waiting.popleft())
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
