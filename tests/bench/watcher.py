"""When something became visible: a watch on the real API server, its lines timed as they arrive."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.controlplane.plane import ControlPlane
from tests.support.stack import TAINT

NODES = "/api/v1/nodes?watch=true&resourceVersion=0"
EVENTS = "/apis/events.k8s.io/v1/events?watch=true&resourceVersion=0"
QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines?watch=true&resourceVersion=0"
CONDITION = "SickbayQuarantined"


class Watcher:
    """Follows one path; ``seen`` maps a key of each event to the moment it first came."""

    def __init__(
        self, plane: ControlPlane, path: str, key: Callable[[dict[str, Any]], list[str]]
    ) -> None:
        self.seen: dict[str, float] = {}
        #: How often the server has ended the watch: it does with who reads too slowly.
        self.reopened = 0
        self._key = key
        self._come = threading.Condition()
        self._plane = plane
        self._path = path
        first = plane.client.watch(path)
        self._thread = threading.Thread(target=self._follow, args=(first,), daemon=True)
        self._thread.start()

    def _follow(self, lines: Iterator[bytes]) -> None:
        while True:
            for line in lines:
                now = time.monotonic()
                event = json.loads(line)
                with self._come:
                    for key in self._key(event):
                        self.seen.setdefault(key, now)
                    self._come.notify_all()
            try:  # from version 0 on: what was missed is told as it is now
                lines = self._plane.client.watch(self._path)
            except (OSError, http.client.HTTPException):
                return  # the server has gone, and with it all that there was to see
            self.reopened += 1

    def when(self, key: str, *, within: float = 30.0) -> float:
        """The moment (monotonic seconds) at which ``key`` was first seen. Raises TimeoutError."""
        with self._come:
            if not self._come.wait_for(lambda: key in self.seen, within):
                raise TimeoutError(f"{key} was not seen within {within:g} s")
            return self.seen[key]

    def all_of(self, keys: Sequence[str], *, within: float) -> list[float]:
        """The moments of all of these, which come ``within`` so many seconds together."""
        end = time.monotonic() + within
        return [self.when(key, within=max(0.0, end - time.monotonic())) for key in keys]


def marked(event: dict[str, Any]) -> list[str]:
    """Keys for `Watcher`: the node's name where our taint is on it, and `condition_of` it."""
    node = event["object"]
    name, keys = node["metadata"]["name"], []
    if any(taint["key"] == TAINT for taint in node.get("spec", {}).get("taints", [])):
        keys.append(name)
    if any(
        condition["type"] == CONDITION and condition["status"] == "True"
        for condition in node.get("status", {}).get("conditions", [])
    ):
        keys.append(condition_of(name))
    return keys


def condition_of(node: str) -> str:
    """The key under which `marked` tells that our condition says that it is quarantined."""
    return f"{node} condition"


def told(event: dict[str, Any]) -> list[str]:
    """The node that an Event of ours is about, when it tells of a quarantine."""
    about = event["object"]
    ours = about.get("reportingController") == "sickbay.dev/aggregator"
    return [about["regarding"]["name"]] if ours and about.get("action") == "Quarantine" else []


def drained(event: dict[str, Any]) -> list[str]:
    """The node of a Quarantine whose status has come to its end: nobody is left to evict."""
    quarantine = event["object"]
    done = quarantine.get("status", {}).get("phase") == "Drained"
    return [quarantine["metadata"]["name"]] if done else []
