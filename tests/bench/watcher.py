"""The time at which a change became visible: a watch on the real API server, timed line by line."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tests.controlplane.plane import ControlPlane
from tests.support.stack import TAINT

NODES = "/api/v1/nodes?watch=true&resourceVersion=0"
EVENTS = "/apis/events.k8s.io/v1/events?watch=true&resourceVersion=0"
QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines?watch=true&resourceVersion=0"
OPERATIONS = "/apis/sickbay.dev/v1alpha1/operations?watch=true&resourceVersion=0"
CONDITION = "SickbayQuarantined"


class Watcher:
    """Follows one path; ``seen`` maps a key of each event to the moment it first came.

    ``keys`` makes them of the event's line, in few microseconds: it shares the processors with the
    processes under test.
    """

    def __init__(self, plane: ControlPlane, path: str, keys: Callable[[bytes], list[str]]) -> None:
        self.seen: dict[str, float] = {}
        #: How often the server has ended the watch, as it does with a client that reads too slowly.
        self.reopened = 0
        self._keys = keys
        self._come = threading.Condition()
        self._awaited = Counter[str]()
        self._plane = plane
        self._path = path
        first = plane.client.watch(path)
        self._thread = threading.Thread(target=self._follow, args=(first,), daemon=True)
        self._thread.start()

    def _follow(self, lines: Iterator[bytes]) -> None:
        while True:
            for line in lines:
                now = time.monotonic()
                keys = self._keys(line)
                if not keys:
                    continue
                with self._come:
                    for key in keys:
                        self.seen.setdefault(key, now)
                    # To wake those who wait for other keys would take time from the server.
                    if not self._awaited.keys().isdisjoint(keys):
                        self._come.notify_all()
            try:  # from version 0 on: missed changes come as they are now
                lines = self._plane.client.watch(self._path)
            except (OSError, http.client.HTTPException):
                return  # the server has gone, and with it all objects
            self.reopened += 1

    def when(self, key: str, *, within: float = 30.0) -> float:
        """The moment (monotonic seconds) at which ``key`` was first seen. Raises TimeoutError."""
        with self._come:
            self._awaited[key] += 1
            seen = self._come.wait_for(lambda: key in self.seen, within)
            self._awaited -= Counter([key])
            if not seen:
                raise TimeoutError(f"{key} was not seen within {within:g} s")
            return self.seen[key]

    def all_of(self, keys: Sequence[str], *, within: float) -> list[float]:
        """The moments of all of these, which come ``within`` so many seconds together."""
        end = time.monotonic() + within
        return [self.when(key, within=max(0.0, end - time.monotonic())) for key in keys]


class _Taint(msgspec.Struct):
    key: str


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Marks(msgspec.Struct):
    taints: list[_Taint] = []
    node: str = ""


class _State(msgspec.Struct):
    conditions: list[_Condition] = []
    phase: str = ""


class _Name(msgspec.Struct):
    name: str = ""


class _Object(msgspec.Struct, rename="camel"):
    """The fields that are read of any object: only those are decoded."""

    metadata: _Name
    spec: _Marks = msgspec.field(default_factory=_Marks)
    status: _State = msgspec.field(default_factory=_State)
    regarding: _Name = msgspec.field(default_factory=_Name)
    reporting_controller: str = ""
    action: str = ""


class _Event(msgspec.Struct):
    object: _Object


_decode = msgspec.json.Decoder(_Event).decode


def marked(line: bytes) -> list[str]:
    """Keys for `Watcher`: the node's name where our taint is on it, and `condition_of` it."""
    node = _decode(line).object
    name, keys = node.metadata.name, []
    if any(taint.key == TAINT for taint in node.spec.taints):
        keys.append(name)
    if any(one.type == CONDITION and one.status == "True" for one in node.status.conditions):
        keys.append(condition_of(name))
    return keys


def condition_of(node: str) -> str:
    """The key under which `marked` tells that our condition says that it is quarantined."""
    return f"{node} condition"


def node_of(line: bytes) -> list[str]:
    """The node that an Event of ours is about, when it tells of a quarantine."""
    about = _decode(line).object
    ours = about.reporting_controller == "sickbay.dev/aggregator"
    return [about.regarding.name] if ours and about.action == "Quarantine" else []


def attempted(line: bytes) -> list[str]:
    """The node of an Operation that has begun."""
    operation = _decode(line).object
    return [operation.spec.node] if operation.status.phase not in ("", "Pending") else []


def drained(line: bytes) -> list[str]:
    """The node of a Quarantine whose status has come to its end: no pod is left to evict."""
    quarantine = _decode(line).object
    return [quarantine.metadata.name] if quarantine.status.phase == "Drained" else []
