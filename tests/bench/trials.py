"""The trials on a fleet that is attached: one fault, bursts, faults at a steady rate.

Each trial takes nodes that no other has used, and begins when the one before has been told
everywhere, so that no late request of one burst delays the next.
"""

import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.quarantine.drain.drainer import EMPTY_FOR
from tests.bench import watcher
from tests.bench.simulated_agents import Crowd
from tests.bench.small import small_or
from tests.bench.watcher import Watcher
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until

#: The aggregator's own user, as the audit log names it.
AGGREGATOR = "system:serviceaccount:sickbay:sickbay-aggregator"
#: Seconds until a taint that has not come is a failure of the run.
PATIENCE = 180.0
#: Seconds. A drain makes no request between its two reads: a shorter rest does not show its end.
DRAINED_S = small_or(0.3, EMPTY_FOR + 1.0)
#: The same where no drain is under way.
REST_S = small_or(0.3, 1.0)
_CHANGES = frozenset({"create", "update", "patch", "delete"})


@dataclass(frozen=True, slots=True)
class Sustained:
    """Faults at a steady rate. ``trailing_s``: from a node's taint to the last that tells of it.

    ``trailing_requests``: for each node, on average, by kind (`TRAILING`).
    """

    per_second: float
    offered: float
    latencies_s: list[float]
    trailing_s: list[float]
    trailing_requests: dict[str, float]


class Trials:
    """On the nodes of a crowd whose agents are attached."""

    def __init__(self, plane: ControlPlane, crowd: Crowd, nodes: Sequence[str]) -> None:
        self._plane = plane
        self._crowd = crowd
        self._fresh = list(nodes)
        #: The nodes of trials so far, and those of them whose trial has come to rest.
        self._used: set[str] = set()
        self._settled: frozenset[str] = frozenset()
        random.Random(0).shuffle(self._fresh)
        #: One watch for both, because each costs the server time that the trials would measure.
        self._nodes = Watcher(plane, watcher.NODES, watcher.marked)

    @property
    def left(self) -> int:
        """Nodes that no trial has used."""
        return len(self._fresh)

    def burst(self, size: int, *, quiet: bool = True) -> list[float]:
        """Seconds from ``size`` faults at once to each node's taint, in order."""
        if quiet:
            self.until_quiet()
        nodes = self._take(size)
        begun = time.monotonic()
        self._crowd.fall_ill(nodes)
        return sorted(at - begun for at in self._nodes.all_of(nodes, within=PATIENCE))

    def singles(self, count: int) -> list[float]:
        """Milliseconds from a fault to its taint, one after the other."""
        return [self.burst(1, quiet=False)[0] * 1000 for _ in range(count)]

    def sustained(self, rate: float, seconds: float) -> Sustained:
        """``rate`` faults a second, ten times a second a tenth of it."""
        self.until_quiet()
        trailing = [
            Watcher(self._plane, watcher.EVENTS, watcher.node_of),
            Watcher(self._plane, watcher.QUARANTINES, watcher.drained),
        ]
        nodes, each = self._take(int(rate * seconds)), max(1, int(rate / 10))
        mark = self._plane.audit_mark()
        begun = time.monotonic() + 0.2
        due: dict[str, float] = {}
        for number in range(0, len(nodes), each):
            some, at = nodes[number : number + each], number / rate
            due |= dict.fromkeys(some, begun + at)
            self._crowd.fall_ill(some, at_s=max(0.001, begun + at - time.monotonic()))
        taints = dict(zip(nodes, self._nodes.all_of(nodes, within=PATIENCE), strict=True))
        took = max(taints.values()) - begun
        last = {
            node: max(
                self._nodes.when(watcher.condition_of(node), within=PATIENCE),
                *(one.when(node, within=PATIENCE) for one in trailing),
            )
            - taints[node]
            for node in nodes
        }
        return Sustained(
            per_second=len(nodes) / took,
            offered=rate,
            latencies_s=sorted(taints[node] - due[node] for node in nodes),
            trailing_s=sorted(last.values()),
            trailing_requests=trailing_requests(self._plane, mark, len(nodes)),
        )

    def until_quiet(self, *, timeout_s: float = 180.0) -> None:
        """Wait until the aggregator has drained all nodes and made no change since.

        A drained node is read again each five minutes, and its status has the time of the read: of
        thousands of them that never rests, so nodes of earlier trials are left out.
        """
        others = self._settled
        until_rest(self._plane, AGGREGATOR, seconds=DRAINED_S, timeout_s=timeout_s, without=others)
        self._settled = frozenset(self._used)

    def _take(self, count: int) -> list[str]:
        taken = [self._fresh.pop() for _ in range(count)]
        self._used.update(taken)
        return taken


def until_rest(
    plane: ControlPlane,
    user: str = "",
    *,
    seconds: float = REST_S,
    timeout_s: float = 180.0,
    without: Collection[str] = (),
) -> None:
    """Wait until ``user`` (empty: any) has made no change for ``seconds`` except to Leases, and to
    objects with the names ``without``.
    """

    def at_rest() -> bool:
        mark = plane.audit_mark()
        time.sleep(seconds)
        asked = _asked(plane, mark, user, leases=False)
        changed = (one.get("objectRef", {}) for one in asked if one["verb"] in _CHANGES)
        return all(about.get("name") in without for about in changed)

    wait_until(at_rest, what=f"{user or 'the controllers'} to come to rest", timeout_s=timeout_s)


def requests(plane: ControlPlane, since: int, *, leases: bool = True) -> int:
    """The number of the aggregators' requests to the API server after a mark."""
    return len(list(_asked(plane, since, AGGREGATOR, leases=leases)))


def requests_until_taint(plane: ControlPlane, since: int) -> float:
    """The aggregators' requests for each node that was marked after a mark, until its taint.

    Those about the node and its Quarantine, and the writes of the record, of which a burst shares
    some. Conditions and statuses trail.
    """
    counted, marked, shared = Counter[str](), dict[str, int](), 0
    for entry in _asked(plane, since, AGGREGATOR, leases=False):
        what = entry.get("objectRef", {})
        name, resource = what.get("name", ""), what.get("resource")
        if resource == "configmaps" and entry["verb"] in _CHANGES:
            shared += 1
        elif resource == "quarantines" and entry["verb"] == "create":
            shared += 1  # the audit log does not name an object that is created
        elif resource in {"nodes", "quarantines"} and name and not what.get("subresource"):
            counted[name] += 1
            done = resource == "nodes" and entry["verb"] == "patch"
            if done and entry["responseStatus"]["code"] == 200:
                marked.setdefault(name, counted[name])
    return (sum(marked.values()) + shared) / len(marked)


#: Verb and resource of the requests that follow a taint, and the name of the kind.
TRAILING = {
    ("patch", "quarantines/status"): "statuses",
    ("patch", "nodes/status"): "conditions",
    ("create", "events"): "events",
    ("list", "pods"): "pod_lists",
    ("get", "nodes"): "nodes",
}


def trailing_requests(plane: ControlPlane, since: int, nodes: int) -> dict[str, float]:
    """The aggregators' requests after a mark that follow a taint, by kind: those for each node."""
    found = Counter[str]()
    for entry in _asked(plane, since, AGGREGATOR, leases=False):
        about = entry.get("objectRef", {})
        parts = (about.get("resource", ""), about.get("subresource", ""))
        kind = TRAILING.get((entry["verb"], "/".join(filter(None, parts))))
        found.update([kind] if kind else [])
    return {kind: round(found[kind] / nodes, 2) for kind in TRAILING.values()}


def requests_by_nodes(plane: ControlPlane) -> int:
    """Requests by any agent, ever: by a node, or by the agents' service account."""
    users = [entry["user"]["username"] for entry in plane.audit_entries()]
    return sum(u.startswith("system:node:") or u.endswith(":sickbay-agent") for u in users)


def _asked(plane: ControlPlane, since: int, user: str, *, leases: bool) -> Iterator[dict[str, Any]]:
    for entry in plane.audit_entries(since):
        about = entry.get("objectRef", {}).get("resource")
        if (not user or entry["user"]["username"] == user) and (leases or about != "leases"):
            yield entry
