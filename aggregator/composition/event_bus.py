"""One event sink made of several: the log, history, alerts, the page."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from attrs import define, field

from aggregator.event_limit import BY_AGENTS, EventLimit, size_of
from aggregator.events import EventSink, Transition

log = logging.getLogger("sickbay.app")

#: Sinks receive events after a quiet pause of this length (seconds), at the latest after
#: _DELIVERED_WITHIN.
_QUIET_FOR = 0.05
_DELIVERED_WITHIN = 2.0
#: In a storm this many at a time, a few milliseconds' work, and then a pause (seconds).
_AT_ONCE = 16
_PAUSE = 0.005
#: Bytes of waiting events; beyond them events caused by agents are dropped, and sickbay's own kept.
_MOST_UNDELIVERED = 64 * 1024 * 1024


@define(eq=False, repr=False, slots=False)
class EventBus:
    """One event sink made of several: the log, history, alerts, the page.

    They receive events a moment later, in order: the code that acts on a fault goes first, because
    each millisecond counts there. Under load they receive them after `_DELIVERED_WITHIN`. `flush`
    delivers the rest. ``for_people``: the text about a node as people read it, with GPUs by their
    slots.
    """

    _ledgers: Sequence[EventSink]
    _for_people: Callable[[str, str], str] = field(default=lambda _node, text: text, kw_only=True)
    _most_bytes: int = field(default=_MOST_UNDELIVERED, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._limit = EventLimit()
        #: Each with the moment at which it came, by the loop's clock.
        self._undelivered: deque[tuple[float, Transition]] = deque()
        self._bytes = 0
        #: Transitions that were not delivered: there was no room, and agents had caused them.
        self.lost = 0

    def record_event(self, transition: Transition) -> None:
        loop = asyncio.get_running_loop()
        for one in self._limit.admit(transition, loop.time()):
            size = size_of(one)
            if self._bytes + size > self._most_bytes and one.kind in BY_AGENTS:
                self._lose()
                continue
            if not self._undelivered:
                loop.call_later(_QUIET_FOR, self._deliver_some)
            self._bytes += size
            self._undelivered.append((loop.time(), one))

    def flush(self) -> None:
        while self._undelivered:
            self._deliver_next()

    def _lose(self) -> None:
        if not self.lost:
            log.error(
                "too many transitions wait; transitions that agents cause are left out",
                extra={"event": "transitions.dropped"},
            )
        self.lost += 1

    def _deliver_next(self) -> None:
        _, transition = self._undelivered.popleft()
        self._bytes -= size_of(transition)
        self.notify_sinks(transition)

    def _deliver_some(self) -> None:
        """Deliver the events that are due, and again while any are left."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        quiet = bool(self._undelivered) and now - self._undelivered[-1][0] >= _QUIET_FOR
        try:
            for _ in range(_AT_ONCE):
                if not self._undelivered or not (
                    quiet or now - self._undelivered[0][0] >= _DELIVERED_WITHIN
                ):
                    break
                self._deliver_next()
        finally:
            if self._undelivered:
                due = self._undelivered[0][0] + _DELIVERED_WITHIN
                calm = self._undelivered[-1][0] + _QUIET_FOR
                loop.call_later(max(_PAUSE, min(due, calm) - now), self._deliver_some)

    def notify_sinks(self, transition: Transition) -> None:
        summary = self._for_people(transition.node, transition.summary)
        if summary != transition.summary:
            transition = replace(transition, summary=summary)
        log.info(
            transition.summary,
            extra={
                "event": transition.kind.value,
                "node": transition.node,
                "kind": transition.kind.value,
                "incident": transition.incident,
            },
        )
        for sink in self._ledgers:
            sink.record_event(transition)
