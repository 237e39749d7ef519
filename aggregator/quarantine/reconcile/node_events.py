"""Writes Kubernetes Events about holds and drains: in the background, after all other requests.

An Event is a report for people. It may be lost: where too many wait, where the process ends, or
where the API server refuses it. The transition itself is in the history and the alerts.

The begin of a drain is reported with a delay. So a node without pods to evict costs the API server
one Event, about the node, and not two pairs.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from dataclasses import replace

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, ClusterError, NodeEvent, SharedObjects, Unreachable
from aggregator.documentation import address, of_hold
from aggregator.events import EventKind, EventSink, Transition
from aggregator.quarantine.decide.node_events import (
    DRAINED,
    DRAINING,
    HELD,
    REASONS,
    EventRules,
    event_of,
)
from aggregator.quarantine.state.registry import NodePools, NodeRegistry
from aggregator.runtime.recent import Recent
from aggregator.runtime.text import truncate

log = logging.getLogger("sickbay.quarantine")

#: Events that wait at most, and begins of drains at most; further ones are dropped.
MOST_WAITING = 1000
#: The begin of a drain is reported this much later (seconds): two reads 5 s apart end most drains
#: of nodes without pods.
DRAINING_AFTER = 10.0
#: Transitions of a drain that is more than two reads: its begin is reported at once.
_OF_A_LONGER_DRAIN = frozenset(
    {EventKind.MOVED, EventKind.FORCED, EventKind.BLOCKED, EventKind.OVERDUE}
)
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
    _clocks: Clocks = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._now = self._clocks.now
        #: By quarantine (or name) and reason, the oldest first.
        self._waiting: OrderedDict[tuple[str, str], NodeEvent] = OrderedDict()
        #: Begins of drains by quarantine, and when each is due (monotonic), the oldest first.
        self._begins: OrderedDict[str, tuple[float, NodeEvent]] = OrderedDict()
        self._known: Recent[str, None] = Recent(_MOST_KNOWN)
        self._more = asyncio.Event()
        self.dropped = 0

    def record_event(self, transition: Transition) -> None:
        self._sink.record_event(transition)
        summary = self._registry.known(transition.node)
        quarantine = summary.quarantine if summary is not None else None
        if quarantine is not None and transition.kind in _OF_A_LONGER_DRAIN:
            self._emit_begin(quarantine.uid)
        if transition.kind not in REASONS or not self._is_wanted(transition.node):
            return
        event = event_of(transition, self._registry.uid_of(transition.node), quarantine)
        if event is None or event.name in self._known:
            return
        if event.reason == HELD:
            event = self._with_section(event, transition.details.get("limit", ""))
        if event.reason == DRAINED:  # the drain is over before its begin is written
            found_empty = self._begins.pop(event.quarantine_uid, None) is not None
            self._waiting.pop((event.quarantine_uid, DRAINING), None)
            if found_empty:  # the Quarantine's own conditions show all that its Event would
                event = replace(event, quarantine_uid="")
        if len(self._begins if event.reason == DRAINING else self._waiting) >= MOST_WAITING:
            if not self.dropped:
                log.warning("Kubernetes Events dropped: too many wait", extra={"node": event.node})
            self.dropped += 1
            return
        self._known[event.name] = None
        if event.reason == DRAINING:
            self._begins[event.quarantine_uid] = self._now() + DRAINING_AFTER, event
        else:
            self._waiting[event.name, event.reason] = event
        self._more.set()

    def _is_wanted(self, node: str) -> bool:
        return self._rules.observe or self._pools.mode_of(node) is not Action.OBSERVE

    def _emit_begin(self, quarantine_uid: str) -> None:
        """Its drain has evicted a pod, or can't: its begin goes before the Events of that."""
        _, event = self._begins.pop(quarantine_uid, (0.0, None))
        if event is not None:
            self._waiting[quarantine_uid, DRAINING] = event
            self._more.set()

    def _with_section(self, event: NodeEvent, limit: str) -> NodeEvent:
        section = address(self._registry.fleet.documentation_url, of_hold(limit))
        return replace(event, note=f"{truncate(event.note, _MOST_OF_HOLD)} ({section})")

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._until_due()
            while (event := self._next()) is not None:
                await self._write(event)
            if self.dropped:
                log.warning("Kubernetes Events were dropped", extra={"count": self.dropped})
                self.dropped = 0

    async def _until_due(self) -> None:
        """Until an Event comes, or the begin of a drain is due."""
        due = next((at for at, _ in self._begins.values()), None)
        pause = None if due is None else max(0.0, due - self._now())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._more.wait()
        self._more.clear()

    def _next(self) -> NodeEvent | None:
        """The Event to write now: no other waits for the begin of a drain."""
        if self._waiting:
            return self._waiting.popitem(last=False)[1]
        due, event = next(iter(self._begins.values()), (0.0, None))
        if event is None or self._now() < due:
            return None
        del self._begins[event.quarantine_uid]
        return event

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
