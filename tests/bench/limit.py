"""The machine's speed at this hour, on which a burst's aims rest, by clients that do little else.

The pace is that of one client that makes a small object and patches a node, without other load: the
aims of the bursts were set where that was 790 a second. The limit is a burst's Quarantines and
taints by the aggregator's own client and rights, as `quarantine.reconcile.admission` sends them: no
evaluating, no admission. Minutes differ by more than the effect to measure: bursts of faults and of
requests take turns: the faults by an aggregator with all agents, the requests meanwhile on a
cluster of their own. The time of a fault's burst beyond its neighbour's requests is sickbay's
doing; where these alone take longer than an aim, no change in sickbay could meet it here, at that
hour.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Sequence
from statistics import median

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.credentials import CredentialSources
from aggregator.cluster.kubernetes.limiter import Limiter, Priority
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Conflict,
    EvidenceItem,
    Node,
    Quarantine,
    QuarantineSpec,
    Unread,
)
from aggregator.quarantine.actions.cordon import DECIDING
from aggregator.quarantine.decide.node_marks import cordon_change
from tests.bench import watcher
from tests.bench.parts import (
    LIFTED,
    SETTLE,
    WARM,
    Findings,
    Site,
    burst_size,
    plane_in_memory,
)
from tests.bench.simulated_agents import FAULT, certify
from tests.bench.small import small_or
from tests.bench.trials import PATIENCE, Trials, until_rest
from tests.bench.watcher import Watcher
from tests.controlplane.plane import ControlPlane
from tests.support.stack import NAMESPACE

#: Pairs of a round, and rounds.
PAIRS, ROUNDS = small_or((2, 1), (500, 3))
_AT_ONCE = 32
#: Bursts of a size, of each kind, for whose nodes an admission record has room (5,000). Uneven
#: where the ratio is near its bar: of two, one slow minute decides half.
TURNS = small_or({100: 1, 500: 1, 1000: 1}, {100: 9, 500: 2, 1000: 3})
#: No limiter of ours is in the way.
_MOST = LIFTED["cluster"]

_BOOT = "00000000-0000-4000-8000-000000000000"
_GPU = "GPU-00000000-0000-0000-0000-000000000000"
_INCIDENT = "0123456789abcdef"
#: The Quarantine that the shipped policy makes of the bursts' fault, of the same length.
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
    """The pace; bursts of faults and of requests alone by turns, and the ratio of neighbours."""
    with plane_in_memory() as (plane, folder), plane_in_memory() as (apart, _):
        free = apart.create_nodes(found.nodes, "alone")
        until_rest(apart)
        found.figures["pairs_per_s"] = round(asyncio.run(_pace(apart, free[:PAIRS])))
        nodes = plane.create_nodes(found.nodes, "scale")
        site = Site(plane, folder)
        certify(site.place.authority, nodes)
        with site.crowd("crowd") as crowd, site.aggregator("lifted", LIFTED):
            crowd.come(nodes)
            time.sleep(SETTLE)
            until_rest(apart)
            trials = Trials(plane, crowd, nodes)
            trials.singles(WARM)
            for size, turns in asyncio.run(_turns(trials, apart, free)).items():
                found.figures |= {
                    f"turn_{size}_s": round(median(ours for ours, _ in turns), 2),
                    f"limit_{size}_s": round(median(alone for _, alone in turns), 2),
                    f"beyond_{size}": round(median(ours / alone for ours, alone in turns), 2),
                }


async def _pace(plane: ControlPlane, nodes: Sequence[str]) -> float:
    """Pairs a second, the median of the rounds."""
    transport = Transport(
        CredentialSources(str(plane.kubeconfig), "", os.environ),
        Limiter(
            qps=_MOST["requests_per_second"],
            burst=_MOST["burst"],
            at_once=_AT_ONCE,
            clock=time.monotonic,
        ),
        clock=time.monotonic,
        rng=random.Random(0),
        deadline=10.0,
    )

    async def pair(name: str, number: int) -> None:
        thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-{number}"}}
        label = {"metadata": {"labels": {"round": str(number)}}}
        await transport.request(
            "POST",
            "/api/v1/namespaces/default/configmaps",
            Priority.TAINT,
            body=json.dumps(thing | {"data": {"fault": FAULT}}).encode(),
            guard=UNGUARDED,
        )
        await transport.request(
            "PATCH",
            paths.node(name),
            Priority.TAINT,
            body=json.dumps(label).encode(),
            guard=UNGUARDED,
        )

    rates = []
    await transport.open()
    try:
        for number in range(ROUNDS):
            begun = time.monotonic()
            await asyncio.gather(*(pair(name, number) for name in nodes))
            rates.append(len(nodes) / (time.monotonic() - begun))
    finally:
        await transport.close()
    return median(rates)


async def _turns(
    trials: Trials, apart: ControlPlane, free: list[str]
) -> dict[int, list[tuple[float, float]]]:
    """Seconds of a burst of faults and of its requests alone, by size; they take turns to begin."""
    cluster = lifted_client(apart)
    seen = Watcher(apart, watcher.NODES, watcher.marked)

    async def faults(size: int) -> float:
        return (await asyncio.to_thread(trials.burst, size))[-1]

    async def requests(size: int) -> float:
        await asyncio.to_thread(trials.until_quiet)
        some = [free.pop() for _ in range(size)]
        begun = time.monotonic()
        return await quarantine_all(cluster, [expected[node] for node in some], seen) - begun

    took = dict[int, list[tuple[float, float]]]()
    await cluster.start()
    try:
        expected = await expected_nodes(cluster)
        await asyncio.gather(*(quarantine(cluster, expected[free.pop()]) for _ in range(WARM)))
        for name, times in TURNS.items():
            size = burst_size(name)
            for turn in range(min(times, trials.left // size)):
                if turn % 2:
                    alone = await requests(size)
                    took.setdefault(name, []).append((await faults(size), alone))
                else:
                    ours = await faults(size)
                    took.setdefault(name, []).append((ours, await requests(size)))
    finally:
        await cluster.close()
    return took


def lifted_client(plane: ControlPlane) -> KubeCluster:
    """The aggregator's client with its rights, and without its limit of requests."""
    kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "sickbay-aggregator")
    most = LIFTED["cluster"]
    return KubeCluster(
        kubeconfig=str(kubeconfig), qps=most["requests_per_second"], burst=most["burst"]
    )


async def expected_nodes(cluster: KubeCluster) -> dict[str, Node]:
    """The nodes as the list has them, which is all that a quarantine that begins needs."""
    return {
        meta.name: Node(
            name=meta.name,
            uid=meta.uid,
            version="",
            unschedulable=False,
            taints=(),
            labels=meta.labels,
            annotations=meta.annotations,
            unread=Unread(DECIDING, annotated=meta.annotated),
        )
        for meta in await cluster.list_nodes()
    }


async def quarantine_all(cluster: KubeCluster, nodes: Sequence[Node], seen: Watcher) -> float:
    """The requests for these nodes at once; when the last taint was seen (monotonic)."""
    await asyncio.gather(*(quarantine(cluster, node) for node in nodes))
    names = [node.name for node in nodes]
    return max(await asyncio.to_thread(seen.all_of, names, within=PATIENCE))


async def quarantine(
    cluster: KubeCluster, expected: Node, spec: QuarantineSpec = SPEC
) -> Quarantine:
    """The requests for one node, as `aggregator.quarantine.reconcile.admission` makes them."""
    node: Node | None = expected
    quarantine = await cluster.create_quarantine(expected.name, spec, guard=UNGUARDED)
    while node is not None:
        with contextlib.suppress(Conflict):  # the controllers have touched it
            await cluster.patch_node(
                node, cordon_change(node, quarantine, off_balancers=True), guard=UNGUARDED
            )
            return quarantine
        node = await cluster.read_node(expected.name)
    raise LookupError(f"node {expected.name} is gone")
