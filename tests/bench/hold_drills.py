"""Counts acts that must not begin: after a stop, and past a limit whose record was lost.

Real processes on the real API server; its audit log tells when each request came to it.
"""

import datetime as dt
import os
import time
from typing import Any

from aggregator.quarantine.decide.admission_record import parse_record
from tests.bench.drill import FAULT, TRUSTING, Drill
from tests.controlplane.api import ApiError
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.stack import NAMESPACE

#: After this (seconds) no new act may begin.
STOPPED_WITHIN = 1.0
#: So long (seconds) it is watched for.
WATCHED = 10.0
TRIALS = 20
#: So few requests a second that some of a burst wait in each replica's queue at the stop.
SLOW: dict[str, Any] = {"cluster": {"requests_per_second": 20, "burst": 10}}
LIMIT, STANDING, NEW = 20, 15, 25
_MERGE = "application/merge-patch+json"
_CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines"


def set_stop(plane: ControlPlane, reason: str) -> float:
    """Set the stop switch, or turn it off; when that was answered (wall clock seconds)."""
    data = {"reason": reason, "at": str(time.time())}
    body: dict[str, Any] = {"metadata": {"name": "sickbay-stop"}, "data": data}
    if plane.request("PATCH", f"{_CONFIG_MAPS}/sickbay-stop", body, _MERGE).status == 404:
        plane.call("POST", _CONFIG_MAPS, body)
    return time.time()


def acts(plane: ControlPlane, since: int) -> list[tuple[float, str]]:
    """When each act after the mark was received, and its kind; in order.

    Quarantines that were created, patches of nodes, evictions, with any answer.
    """
    found = []
    for entry in plane.audit_entries(since):
        object_ref = entry.get("objectRef", {})
        kind = "/".join(filter(None, (object_ref.get("resource"), object_ref.get("subresource"))))
        act = f"{entry['verb']} {kind}"
        if act in ("create quarantines", "patch nodes", "create pods/eviction"):
            at = dt.datetime.fromisoformat(entry["requestReceivedTimestamp"])
            found.append((at.timestamp(), act))
    return sorted(found)


def begun_after_stop(drill: Drill, nodes: int = 200) -> int:
    """Acts that began more than a second after the stop, in a burst on three replicas."""
    _, simulator = drill.replicas(nodes, SLOW)
    plane = drill.plane
    mark = plane.audit_mark()
    simulator.inject(nodes="all", fault=FAULT)
    drill.under_way(max(1, nodes // 10))
    stopped_at = set_stop(plane, "drill")
    time.sleep(WATCHED)  # the figure counts acts that begin in this time
    begun = acts(plane, mark)
    late = [act for at, act in begun if at > stopped_at + STOPPED_WITHIN]
    before = sum(at <= stopped_at for at, _ in begun)
    drill.figures["begun_before_stop"] = before
    drill.figures["last_after_stop_s"] = round(max(at for at, _ in begun) - stopped_at, 2)
    assert before, "nothing was under way"
    tainted = len(drill.tainted())
    assert tainted < nodes, f"the burst was over before the stop: {tainted} of {nodes} taints"
    set_stop(plane, "")
    drill.settle(drill.nodes, since=time.monotonic())
    assert not drill.lost, f"{drill.lost} nodes were not marked after the resume"
    return len(late)


def over_limit_record_lost(drill: Drill, trials: int | None = None) -> int:
    """Nodes in quarantine past the limit, over all trials: a record deleted or rolled back."""
    trials = trials or int(os.environ.get("BENCH_TRIALS", TRIALS))
    # The other limits do not hold: the drill is about `concurrent` alone.
    open_limits = {"concurrent_percent": "100%", "pool_percent": "100%", "cooldown": "0s"}
    limits = {"limits": {"concurrent": LIMIT} | open_limits, "mode": "cordon"}
    _, simulator = drill.fleet(STANDING + NEW, TRUSTING | limits)
    plane, over = drill.plane, 0
    for trial in range(trials):
        first = drill.nodes[: STANDING - 5]
        simulator.inject(nodes=first, fault=FAULT)
        _until_tainted(drill, len(first))
        older = _record(plane)
        simulator.inject(nodes=drill.nodes[STANDING - 5 : STANDING], fault=FAULT)
        _until_tainted(drill, STANDING)
        simulator.inject(nodes=drill.nodes[STANDING:], fault=FAULT)
        wait_until(
            lambda: len(drill.tainted()) > STANDING + trial % 4,  # noqa: B023 (asked at once)
            what="the burst",
            every_s=0.005,
            timeout_s=30,
        )
        _lose(plane, "" if trial % 2 else older)
        over += max(0, _most_tainted(drill) - LIMIT)
        _make_well(drill, simulator)
    return over


def _until_tainted(drill: Drill, nodes: int) -> None:
    wait_until(lambda: len(drill.tainted()) >= nodes, what=f"{nodes} taints", timeout_s=60)


def _record(plane: ControlPlane) -> str:
    return str(plane.call("GET", f"{_CONFIG_MAPS}/sickbay-record")["data"]["record"])


def _lose(plane: ControlPlane, older: str) -> None:
    """Roll the record back to the older text; with none, delete it."""
    where = f"{_CONFIG_MAPS}/sickbay-record"
    if older:
        plane.call("PATCH", where, {"data": {"record": older}}, _MERGE)
    else:
        plane.call("DELETE", where)


def _most_tainted(drill: Drill) -> int:
    """The most nodes that had the taint at once, until the limit is reached again and held."""
    most, full_since, deadline = 0, 0.0, time.monotonic() + 60
    while time.monotonic() < deadline:
        tainted = len(drill.tainted())
        most = max(most, tainted)
        try:
            whole = len(parse_record(_record(drill.plane)).entries) >= LIMIT
        except (KeyError, AssertionError, ApiError):
            whole = False
        if not whole or tainted < LIMIT:
            full_since = 0.0
        elif not full_since:
            full_since = time.monotonic()
        elif time.monotonic() - full_since > 3:
            return most
        time.sleep(0.1)
    raise AssertionError(
        f"{most} of {LIMIT} nodes were quarantined again: the limit holds too much"
    )


def _make_well(drill: Drill, simulator: Any) -> None:
    """End all faults by a reboot, and release the nodes by hand, which is quicker.

    A release overrules the same fault until the next boot, so each trial has a boot of its own.
    """
    simulator.inject(nodes="all", reboot=True)

    def released() -> bool:
        items = drill.plane.call("GET", _QUARANTINES)["items"]
        for item in items:
            if "deletionTimestamp" not in item["metadata"]:
                drill.plane.request("DELETE", f"{_QUARANTINES}/{item['metadata']['name']}")
        return not items and not drill.tainted()

    simulator.until_streaming(len(drill.nodes))
    time.sleep(2.0)  # a fault that is cleared while its quarantine is made would be overruled
    wait_until(released, what="all nodes to be well again", every_s=0.5, timeout_s=60)
