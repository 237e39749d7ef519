"""Quarantined Nodes that are deleted and created again in the same boot: how long without a taint.

Three real replicas on the real API server. A watch of the drill's own tells when each Node was
back, and when our taint was on it.
"""

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tests.bench.drill import FAULT, PODS, Drill
from tests.bench.watcher import NODES, Watcher
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.stack import TAINT

#: Seconds between the deletion and the return, in turn.
AWAY = (0.0, 0.2, 1.0, 3.0, 8.0)
_QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines"
#: A Node without a taint for so long (seconds) counts as that.
PATIENCE = 60.0


class _Taint(msgspec.Struct):
    key: str


class _Spec(msgspec.Struct):
    taints: list[_Taint] = []


class _Meta(msgspec.Struct):
    uid: str


class _Node(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Event(msgspec.Struct):
    type: str
    object: _Node


_decode = msgspec.json.Decoder(_Event).decode


def by_uid(line: bytes) -> list[str]:
    """Keys for `Watcher`: that the Node with this UID is there, and that it bears our taint."""
    event = _decode(line)
    if event.type == "DELETED":
        return []
    uid = event.object.metadata.uid
    tainted = any(taint.key == TAINT for taint in event.object.spec.taints)
    return [back(uid), marked(uid)] if tainted else [back(uid)]


def back(uid: str) -> str:
    return f"{uid} is back"


def marked(uid: str) -> str:
    return f"{uid} is marked"


def as_registered(node: dict[str, Any]) -> dict[str, Any]:
    """The Node as its kubelet registers it again: the same boot, without our marks."""
    new = copy.deepcopy(node)
    meta = new["metadata"]
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "annotations"):
        meta.pop(key, None)
    meta["labels"] = {k: v for k, v in meta["labels"].items() if not k.startswith("sickbay.dev")}
    new["spec"] = {}
    return new


def recreate(plane: ControlPlane, node: str, away: float) -> str:
    """Delete the Node and create it again after ``away`` seconds, with a pod; returns its UID."""
    body = as_registered(plane.node(node))
    # Simulated agents have boots of their own: the Node is in that of its evidence.
    spec = plane.call("GET", f"{_QUARANTINES}/{node}")["spec"]
    body["status"]["nodeInfo"]["bootID"] = spec["bootID"]
    plane.delete_nodes([node])
    time.sleep(away)
    made: dict[str, Any] = plane.call("POST", "/api/v1/nodes", body)
    uid = str(made["metadata"]["uid"])
    plane.create_pod(PODS, f"at-once-{uid[:8]}", node=node)
    return uid


def unmarked_after_return_s(drill: Drill, nodes: int = 20) -> float:
    """The longest time from a Node's return, by its watch event, to its taint (seconds).

    Each Node in turn, away for a while; then all of them at once.
    """
    _, simulator = drill.replicas(nodes)
    plane = drill.plane
    simulator.inject(nodes="all", fault=FAULT)
    drill.settle(drill.nodes, since=time.monotonic())
    drill.until_drained(drill.nodes)
    standing = _uids(drill)
    watcher = Watcher(plane, NODES, by_uid)
    times = []
    for number, node in enumerate(drill.nodes):
        uid = recreate(plane, node, AWAY[number % len(AWAY)])
        times.append(_unmarked(watcher, uid))
    with ThreadPoolExecutor(len(drill.nodes)) as several:
        uids = list(several.map(lambda node: recreate(plane, node, 1.0), drill.nodes))
    times += [_unmarked(watcher, uid) for uid in uids]
    drill.figures["returns"] = len(times)
    drill.figures["unmarked_after_return_p50_s"] = round(sorted(times)[len(times) // 2], 3)
    _all_drained_again(drill, uids)
    assert _uids(drill) == standing, "a quarantine ended, and another was admitted"
    return round(max(times), 3)


def _uids(drill: Drill) -> set[str]:
    """The UIDs of the drill's Quarantines."""
    items = drill.plane.call("GET", _QUARANTINES)["items"]
    return {one["metadata"]["uid"] for one in items if one["metadata"]["name"] in drill.nodes}


def _unmarked(watcher: Watcher, uid: str) -> float:
    returned = watcher.when(back(uid))
    try:
        return watcher.when(marked(uid), within=PATIENCE) - returned
    except TimeoutError:
        return PATIENCE


def _all_drained_again(drill: Drill, uids: list[str]) -> None:
    """Each Quarantine is of the Node that is there now, and no pod of before its taint is left."""

    def settled() -> bool:
        items = drill.plane.call("GET", _QUARANTINES)["items"]
        ours = [one for one in items if one["metadata"]["name"] in drill.nodes]
        statuses = [one.get("status", {}) for one in ours]
        drained = {one.get("nodeUID") for one in statuses if one.get("phase") == "Drained"}
        return drained == set(uids)

    wait_until(settled, what="all nodes to be drained again", timeout_s=120)
    drill.until_drained(drill.nodes)
