"""The aggregator's reports about itself, read through its JSON API, which is open to any client."""

import datetime as dt
import http.client
import json
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aggregator.demo.terminal import note

#: The kinds shown; no event between "admitted" and "drained" matters to a reader.
SHOWN = frozenset(
    {
        "quarantine.held",
        "quarantine.suppressed",
        "quarantine.cordoned",
        "quarantine.drained",
        "quarantine.released",
        "quarantine.overruled",
        "work.moved",
        "work.blocked",
        "agent.silent",
        "agent.back",
        "agent.conflict",
        "evidence.lost",
        "fleet.common_cause",
        "fleet.stopped",
        "fleet.resumed",
    }
)
#: More of one kind at a time than this are counted.
_MANY = 3
_WIDEST = 140
#: Seconds between two polls: each gets all events of the demo.
_PAUSE = 0.2


class NotSeen(Exception):
    """An event that the demo waited for did not come; the text names the event."""


class NotAnswered(Exception):
    """The aggregator did not answer, or not with JSON: it is starting, busy, or has ended."""


@dataclass(frozen=True)
class SeenEvent:
    """A transition."""

    at: dt.datetime
    kind: str
    node: str
    summary: str


@dataclass
class EventPoller:
    """Polls ``host:port``. ``check`` is called at each poll; it may raise."""

    address: str
    check: Callable[[], None]
    seen: list[SeenEvent] = field(default_factory=list)
    _known: set[SeenEvent] = field(default_factory=set)
    _since: float = field(default_factory=time.time)

    def get(self, path: str) -> Any:
        """The JSON at ``path``. Raises NotAnswered."""
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise NotAnswered(f"{path}: {answer.status} {body[:200]!r}")
            return json.loads(body)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NotAnswered(f"{path}: {error}") from error
        finally:
            connection.close()

    def poll(self) -> None:
        """Poll once; show the new events."""
        self.check()
        query = urllib.parse.urlencode({"since": f"{self._since:.3f}", "limit": 1000})
        try:
            items = self.get(f"/api/v1/transitions?{query}")["items"]
        except NotAnswered:
            return  # if it has ended, the next ``check`` reports it
        events = [
            SeenEvent(
                dt.datetime.fromisoformat(one["at"]), one["kind"], one["node"], one["summary"]
            )
            for one in reversed(items)
        ]
        fresh = [event for event in events if event not in self._known]
        self._known.update(fresh)
        self.seen += fresh
        _show(fresh)

    def until(self, what: Callable[[], Any], text: str, *, within: float = 30.0) -> Any:
        """Poll until ``what`` is true, and return that; no answer is not yet. Raises NotSeen."""
        deadline = time.monotonic() + within
        while True:
            reason = ""
            try:
                if found := what():
                    return found
            except NotAnswered as error:
                reason = f" ({error})"
            if time.monotonic() > deadline:
                raise NotSeen(f"not seen within {within:g} s: {text}{reason}")
            self.poll()
            time.sleep(_PAUSE)

    def show_for(self, seconds: float) -> None:
        """Show what comes for this long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()
            time.sleep(_PAUSE)

    def of_kind(self, kind: str, *nodes: str) -> list[SeenEvent]:
        """The events of this kind, of these nodes or of all."""
        return [e for e in self.seen if e.kind == kind and (not nodes or e.node in nodes)]


def _show(fresh: list[SeenEvent]) -> None:
    shown: dict[str, int] = {}
    for event in fresh:
        if event.kind not in SHOWN:
            continue
        shown[event.kind] = shown.get(event.kind, 0) + 1
        if shown[event.kind] <= _MANY:
            text = event.summary if len(event.summary) <= _WIDEST else event.summary[:_WIDEST] + "…"
            note(f"   {text}", at=event.at)
    for kind, count in shown.items():
        if count > _MANY:
            note(f"   and {count - _MANY} more {kind.partition('.')[2]}")
