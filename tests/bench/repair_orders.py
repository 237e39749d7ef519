"""How long a repair that is due takes to reach its repairer, and the same requests alone.

A repair is due when the Quarantine of a fault that stands is drained: the time begins when a watch
shows that, and ends when the order reaches the site's endpoint. The requests alone are those that
the order needs (the node, the Quarantine, the stop switch, the record, the attempt), by the
aggregator's client and rights on a cluster of their own.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import aiohttp

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.operations import begun_status, spec_of
from aggregator.cluster.port import (
    UNGUARDED,
    Phase,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from tests.bench import watcher
from tests.bench.drill import FAULT
from tests.bench.limit import SPEC
from tests.bench.repair_kills import RULES, settings
from tests.bench.repair_receiver import RepairReceiver, at_once
from tests.bench.small import small_or
from tests.bench.watcher import Watcher
from tests.controlplane.plane import ControlPlane
from tests.support.present import present
from tests.support.simulator import Simulator
from tests.support.stack import NAMESPACE, Stack

#: Seconds between two faults: drains last for some seconds, and a fault is to be alone otherwise.
EVERY = 0.5
#: The first orders load libraries.
_WARM = small_or(1, 3)
_PATIENCE = 120.0


def decide_to_order(plane: ControlPlane, folder: Path, trials: int) -> list[float]:
    """Milliseconds from each drained Quarantine to its order."""
    folder.mkdir()
    nodes = plane.create_nodes(trials + _WARM, "order")
    (folder / "names").write_text("\n".join(nodes))
    with (
        RepairReceiver(folder, at_once) as shop,
        Stack(plane, folder / "stack", more=settings(shop), policy=RULES) as stack,
    ):
        stack.aggregator.start().ready()
        where: list[str | Path] = ["--names", folder / "names"]
        where += ["--aggregator", stack.aggregator.address]
        with Simulator(where, log=folder / "simulator.log") as simulator:
            simulator.until_streaming(len(nodes), timeout_s=120)
            drained = Watcher(plane, watcher.QUARANTINES, watcher.drained)
            for node in nodes:
                simulator.inject(node=node, fault=FAULT)
                time.sleep(EVERY)
            return [
                (shop.when(node, within=_PATIENCE) - drained.when(node, within=_PATIENCE)) * 1000
                for node in nodes[_WARM:]
            ]


def requests_alone(plane: ControlPlane, folder: Path, trials: int) -> list[float]:
    """Milliseconds of an order's requests, each from the answer to its write of the phase."""
    folder.mkdir()
    nodes = plane.create_nodes(trials, "alone")
    kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "sickbay-aggregator")
    with RepairReceiver(folder, at_once) as shop:
        return asyncio.run(_requests(KubeCluster(kubeconfig=str(kubeconfig)), shop, nodes))


async def _requests(cluster: KubeCluster, shop: RepairReceiver, nodes: list[str]) -> list[float]:
    await cluster.start()
    took = []
    try:
        record = await cluster.write_record('{"version":1}', "", guard=UNGUARDED)
        for node in nodes:
            made = await cluster.create_quarantine(node, SPEC, guard=UNGUARDED)
            drained = QuarantineStatus(phase=Phase.DRAINED)
            await cluster.write_quarantine_status(made, drained)
            begun = time.monotonic()
            await cluster.read_node(node)
            fresh = present(await cluster.read_quarantine(node))
            await cluster.read_stop()
            record = await cluster.write_record(
                f'{{"version":1,"at":{begun}}}', record.version, guard=UNGUARDED
            )
            attempt = RepairAttempt(f"{made.uid}-1-gpu-reset", "gpu-reset", RepairState.ORDERING)
            operation = await cluster.operations.create(attempt.operation, spec_of(fresh, attempt))
            status = replace(drained, repair=RepairStatus(began_at=time.time()))
            await cluster.write_quarantine_status(fresh, status)
            await cluster.operations.write_status(operation, begun_status(fresh, attempt, 1))
            body = {
                "operation": attempt.operation,
                "quarantine": made.uid,
                "node": node,
                "repair": "gpu-reset",
            }
            async with (
                aiohttp.ClientSession() as session,
                session.post(shop.webhook("gpu-reset")["webhook"]["url"], json=body),
            ):
                took.append((shop.when(node) - begun) * 1000)
            # As far apart as faults are: the API server's caches have come to rest.
            await asyncio.sleep(EVERY / 2)
    finally:
        await cluster.close()
    return took
