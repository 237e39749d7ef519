"""`kill -9` of the aggregator at random moments of repairs, and what became of each attempt.

Before each start new nodes are in quarantine, as an aggregator leaves them that is killed after its
admission: so that the next one has them to mark and to repair at the moment when it is killed. The
ladder has an endpoint that keeps ids, then a command that carries out each call, then a ticket.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import UNGUARDED, Action, QuarantineSpec
from aggregator.quarantine.decide.admission_record import (
    Entry,
    Record,
    dump_record,
    parse_record,
)
from tests.bench import watcher
from tests.bench.drill import TRUSTING
from tests.bench.limit import SPEC, expected_nodes, quarantine
from tests.bench.parts import LIFTED
from tests.bench.repair_receiver import RepairReceiver, by_chance
from tests.bench.watcher import Watcher
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.attempts import attempts_of
from tests.support.present import present
from tests.support.stack import NAMESPACE, AggregatorProcess, Stack

RULES = """
rules:
  - {name: gpu-gone, healthyFor: 1s, repair: [gpu-reset, external, ticket]}
"""
#: New nodes in quarantine before each start.
EACH = 4
#: The longest time from the begin of the work to the kill (seconds).
LATEST = 2.0
#: Every second kill waits for an attempt of the new nodes; then it comes so soon (seconds).
AFTER_ATTEMPT = 0.3
#: An attempt lasts a minute at most, and its node is looked at every 15 seconds.
PATIENCE = 240.0
_QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines"
_BUSY = ("Ordering", "Ordered")


@dataclass(frozen=True, slots=True)
class Kills:
    """The outcome of the attempts of all nodes.

    ``lost`` and ``double`` say which; ``in_flight`` are attempts that a kill met between their
    write and their end.
    """

    kills: int
    nodes: int
    attempts: int
    in_flight: int
    resent: int
    outcomes: Counter[str]
    lost: tuple[str, ...]
    double: tuple[str, ...]
    reservations_left: int


def settings(shop: RepairReceiver) -> dict[str, Any]:
    """The aggregator's configuration: repairs by the receiver, without limits in the way."""
    return {
        **TRUSTING,
        # No agent reports here: the evidence is that of the Quarantines.
        "limits": {**LIFTED["limits"], "silent_drain_after": "1s"},
        "repair": {
            "mode": "repair",
            "attempts": 10,
            "concurrent": 10_000,
            "concurrent_percent": "100%",
            "pool_concurrent": 10_000,
            "repairers": [
                shop.webhook("gpu-reset"),
                shop.by_command("external"),
                shop.webhook("ticket"),
            ],
        },
    }


def kill_at_random(plane: ControlPlane, folder: Path, *, kills: int, rng: random.Random) -> Kills:
    """So many kills; then an aggregator that is left alone until all attempts have ended."""
    folder.mkdir()
    names = plane.create_nodes(kills * EACH, "kill")
    with (
        RepairReceiver(folder, by_chance) as shop,
        Stack(plane, folder / "stack", more=settings(shop), policy=RULES) as stack,
    ):
        in_flight = asyncio.run(_kill(plane, stack, names, kills, rng))
        found = _until_all_ended(stack.aggregator, lambda: _statuses(plane, names), len(names))
        record = plane.call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-record")
        left = parse_record(record["data"]["record"])
        return _evaluate(found, shop, kills, in_flight, left)


async def _kill(
    plane: ControlPlane, stack: Stack, names: Sequence[str], kills: int, rng: random.Random
) -> int:
    """Returns how many attempts a kill met between their begin and their end."""
    kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "sickbay-aggregator")
    most = LIFTED["cluster"]
    cluster = KubeCluster(
        kubeconfig=str(kubeconfig), qps=most["requests_per_second"], burst=most["burst"]
    )
    await cluster.start()
    met = set[str]()
    attempted = Watcher(plane, watcher.OPERATIONS, watcher.attempted)
    try:
        expected = await expected_nodes(cluster)
        boots = {name: plane.node(name)["status"]["nodeInfo"]["bootID"] for name in names}
        for number in range(kills):
            some = names[number * EACH : (number + 1) * EACH]
            specs = {
                name: _spec(boots[name], Action.CORDON if place % 2 else Action.DRAIN)
                for place, name in enumerate(some)
            }
            await _admit(cluster, specs)
            await asyncio.gather(
                *(quarantine(cluster, expected[name], spec) for name, spec in specs.items())
            )
            if number % 2:
                first, after = some[1], rng.uniform(0.0, AFTER_ATTEMPT)
                moment = partial(attempted.when, first, within=PATIENCE)
            else:
                moment, after = None, rng.uniform(0.0, LATEST)
            await asyncio.to_thread(_run_and_kill, stack, moment, after)
            # Those that are new, and those that this process has touched: an attempt that waits for
            # its deadline would be counted again at each kill.
            busy = {
                one["operation"]
                for status in _statuses(plane, names[: (number + 1) * EACH]).values()
                for one in status.get("repair", {}).get("attempts", [])
                if one["state"] in _BUSY
            }
            met |= busy
    finally:
        await cluster.close()
    return len(met)


def _spec(boot: str, action: Action) -> QuarantineSpec:
    """The Quarantine of a fault in this boot of the node."""
    evidence = tuple(replace(one, boot_id=boot) for one in SPEC.evidence)
    return replace(SPEC, action=action, boot_id=boot, evidence=evidence)


async def _admit(cluster: KubeCluster, specs: Mapping[str, QuarantineSpec]) -> None:
    """The admissions in the record; no aggregator runs that could write it meanwhile."""
    now = time.time()
    known = await cluster.read_record()
    entries = [
        Entry(node=node, incident=spec.incident, pool="", at=now) for node, spec in specs.items()
    ]
    record = parse_record(known.text)
    record = record.enter(entries)
    text = dump_record(replace(record, generation=record.generation + 1))
    await cluster.write_record(text, known.version, guard=UNGUARDED)


def _run_and_kill(stack: Stack, moment: Callable[[], float] | None, after: float) -> None:
    """Start the aggregator, and kill it so long after its work has begun, or after the moment."""
    log = stack.aggregator.log_path
    before = log.stat().st_size if log.exists() else 0
    stack.aggregator.start()

    def begun() -> bool:
        process = present(stack.aggregator.process)
        assert process.poll() is None, stack.aggregator.log()[-4000:]
        with log.open("rb") as file:
            file.seek(before)
            return b'"connected to the cluster"' in file.read()

    wait_until(begun, what="the aggregator's view of the cluster", timeout_s=60, every_s=0.02)
    if moment is not None:
        moment()
    time.sleep(after)
    stack.aggregator.kill()


def _statuses(plane: ControlPlane, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By node, with the attempts of its operations."""
    wanted = set(names)
    items = plane.call("GET", _QUARANTINES)["items"]
    attempts = attempts_of(plane)
    return {
        one["metadata"]["name"]: {
            **(status := one.get("status", {})),
            "uid": (uid := one["metadata"]["uid"]),
            "repair": {**status.get("repair", {}), "attempts": attempts.get(uid, [])},
        }
        for one in items
        if one["metadata"]["name"] in wanted
    }


def _until_all_ended(
    aggregator: AggregatorProcess, read: Callable[[], dict[str, dict[str, Any]]], nodes: int
) -> dict[str, dict[str, Any]]:
    """Run the aggregator until all attempts have ended; what they are without it.

    A success whose evidence remains is followed by the next rung, at any moment. So what is counted
    is read when nothing can begin any more, and the aggregator goes on where something had.
    """

    def all_ended(found: dict[str, dict[str, Any]]) -> bool:
        return len(found) == nodes and all(_has_ended(one) for one in found.values())

    while True:
        aggregator.start()
        wait_until(lambda: all_ended(read()), what="the end of all attempts", timeout_s=PATIENCE)
        aggregator.kill()
        if all_ended(found := read()):
            return found


def _has_ended(status: dict[str, Any]) -> bool:
    """Whether no attempt is under way, and none follows before its evidence has had its time."""
    repair = status.get("repair", {})
    attempts = repair.get("attempts", [])
    if not attempts or any(one["state"] in _BUSY for one in attempts):
        return False
    return bool(repair.get("exhausted")) or attempts[-1]["state"] == "Succeeded"


def _evaluate(
    found: dict[str, dict[str, Any]],
    shop: RepairReceiver,
    kills: int,
    in_flight: int,
    record: Record,
) -> Kills:
    attempts = [
        (name, status["uid"], one)
        for name, status in found.items()
        for one in status.get("repair", {}).get("attempts", [])
    ]
    carried = {one.operation for one in shop.carried}
    calls = Counter(operation for operation, _, _ in shop.commands())
    lost = [name for name, status in found.items() if not status.get("repair")]
    for name, _, one in attempts:
        arrived = one["operation"] in carried or one["operation"] in calls
        # An attempt that ended unsent, or whose outcome is not known, says so: it is not lost.
        claims = one["state"] in ("Ordered", "Succeeded")
        if one["state"] in _BUSY or (claims and not arrived):
            lost.append(f"{name} {one['operation']} {one['state']}")
    double = [f"{operation} {count} times" for operation, count in calls.items() if count > 1]
    rungs: dict[tuple[str, str], set[str]] = {}
    for order in shop.carried:
        rungs.setdefault((order.quarantine, order.repair), set()).add(order.operation)
    for operation, uid, _ in shop.commands():
        rungs.setdefault((uid, "external"), set()).add(operation)
    double += [f"{uid} {kind}" for (uid, kind), ids in rungs.items() if len(ids) > 1]
    known = {one["operation"] for _, _, one in attempts}
    double += [f"{one} without an attempt" for one in (carried | set(calls)) - known]
    return Kills(
        kills=kills,
        nodes=len(found),
        attempts=len(attempts),
        in_flight=in_flight,
        resent=shop.resent,
        outcomes=Counter(f"{one['repair']} {one['state']}" for _, _, one in attempts),
        lost=tuple(lost),
        double=tuple(double),
        reservations_left=len(record.repairs),
    )
