"""What the API server gives: the same objects and taints by a client that does nothing else.

No agents, no judging, no admission: the aggregator's own client reads each node, makes its
Quarantine and patches it, with the aggregator's rights. What a burst takes beyond this is sickbay's
doing; where this alone takes longer than an aim, nothing in sickbay could meet it on that machine
at that hour.
"""

import asyncio
import contextlib
import time
from statistics import median

from aggregator.kube.cluster import KubeCluster
from aggregator.quarantine.cluster import Action, Conflict, EvidenceItem, QuarantineSpec
from aggregator.quarantine.decide.marks import cordon_change
from tests.bench import watcher
from tests.bench.crowd import FAULT
from tests.bench.parts import BURSTS, LIFTED, Findings, plane_in_memory
from tests.bench.trials import PATIENCE
from tests.bench.watcher import Watcher
from tests.controlplane.plane import ControlPlane
from tests.support.stack import NAMESPACE

_BOOT = "00000000-0000-4000-8000-000000000000"
_GPU = "GPU-00000000-0000-0000-0000-000000000000"
_INCIDENT = "0123456789abcdef"
#: What the shipped policy makes of the fault that the bursts inject, as long as that.
SPEC = QuarantineSpec(
    action=Action.DRAIN,
    kind="gpu",
    reason=f"{FAULT} (GPU has fallen off the bus) on {_GPU}",
    requester="sickbay",
    incident=_INCIDENT,
    boot_id=_BOOT,
    policy_hash="0123456789ab",
    evidence=(
        EvidenceItem(
            code=FAULT,
            component=_GPU,
            boot_id=_BOOT,
            cleared_by="reboot",
            rule="gpu-gone",
            incident=_INCIDENT,
            message="Xid 79 on 0000:10:00: pid=4242, name=python3, GPU has fallen off the bus.",
        ),
    ),
)


def limit(found: Findings) -> None:
    """Bursts as `steady` has them, of requests alone; the median of each size."""
    with plane_in_memory() as (plane, _):
        nodes = plane.create_nodes(found.nodes, "limit")
        for size, took in asyncio.run(_bursts(plane, nodes)).items():
            found.figures[f"limit_{size}_s"] = round(median(took), 2)


async def _bursts(plane: ControlPlane, nodes: list[str]) -> dict[int, list[float]]:
    kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "sickbay-aggregator")
    most = LIFTED["cluster"]
    cluster = KubeCluster(
        kubeconfig=str(kubeconfig), qps=most["requests_per_second"], burst=most["burst"]
    )
    seen = Watcher(plane, watcher.NODES, watcher.marked)
    fresh, took = list(nodes), dict[int, list[float]]()
    await cluster.start()
    try:
        await asyncio.gather(*(_quarantine(cluster, fresh.pop()) for _ in range(5)))  # warm
        for size, times in BURSTS.items():
            for _ in range(min(times, len(fresh) // size)):
                some = [fresh.pop() for _ in range(size)]
                begun = time.monotonic()
                await asyncio.gather(*(_quarantine(cluster, node) for node in some))
                last = max(await asyncio.to_thread(seen.all_of, some, within=PATIENCE))
                took.setdefault(size, []).append(last - begun)
    finally:
        await cluster.close()
    return took


async def _quarantine(cluster: KubeCluster, name: str) -> None:
    """The requests for one node, as `aggregator.quarantine.acts` makes them."""
    node = await cluster.read_node(name, cached=True)
    quarantine = await cluster.create_quarantine(name, SPEC)
    while node is not None:
        with contextlib.suppress(Conflict):  # the controllers have touched it
            await cluster.patch_node(node, cordon_change(node, quarantine, off_balancers=True))
            return
        node = await cluster.read_node(name)
    raise LookupError(f"node {name} is gone")
