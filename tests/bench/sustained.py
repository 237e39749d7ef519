"""Faults at a steady rate, faster than a replica need bear, and what trails behind their taints.

The requests that trail are sent once more, alone, by the aggregator's client: as many of each kind
for as many nodes at once, on a control plane of their own. That is the least time which this
machine needs for them, and the delay beyond it is sickbay's doing.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.node_condition import write_condition
from aggregator.cluster.kubernetes.objects import Meta, NodeObject
from aggregator.cluster.node_names import CONDITION
from aggregator.cluster.port import UNGUARDED, NodeEvent, Phase, Quarantine
from tests.bench.limit import expected_nodes, lifted_client, quarantine
from tests.bench.parts import LIFTED, WARM, Findings, Site, plane_in_memory
from tests.bench.simulated_agents import certify
from tests.bench.small import small_or
from tests.bench.trials import Trials
from tests.controlplane.plane import ControlPlane

#: Faults a second, for so many seconds: more than is wanted, so that the rate that comes out is
#: the aggregator's.
SUSTAINED = small_or((20.0, 0.2), (400.0, 8.0))
_MESSAGE = "drain: xid:79 (GPU has fallen off the bus) on GPU-00000000-0000-0000-0000-000000000000"


def sustained(found: Findings) -> None:
    """One replica, and faults faster than it need bear, for seconds on end.

    On a control plane of its own: the record has room for about 5,000 quarantines, and is written
    the slower the more of them it has.
    """
    rate, seconds = SUSTAINED
    with plane_in_memory() as (plane, folder):
        nodes = plane.create_nodes(min(found.nodes, int(rate * seconds) + WARM), "steady")
        site = Site(plane, folder)
        certify(site.place.authority, nodes)
        with site.aggregator("lifted", LIFTED), site.crowd("crowd") as crowd:
            crowd.come(nodes)
            trials = Trials(plane, crowd, nodes)
            trials.singles(WARM)
            done = trials.sustained(rate, trials.left / rate)
    with plane_in_memory() as (apart, _):
        apart.create_nodes(len(done.trailing_s), "alone")
        alone = asyncio.run(_trail_alone(apart, done.trailing_requests))
    found.curves["sustained"] = done.latencies_s
    found.curves["trailing"] = done.trailing_s
    found.figures |= {
        "quarantines_per_s": round(done.per_second, 0),
        "trailing_s": round(done.trailing_s[-1], 1),
        "trailing_requests": round(sum(done.trailing_requests.values()), 1),
        "trailing_limit_s": round(alone, 1),
        "trailing_beyond": round(done.trailing_s[-1] / alone, 2),
    }


async def _trail_alone(plane: ControlPlane, requests: Mapping[str, float]) -> float:
    """Seconds for the requests that trail, all nodes' at once, until the last answer."""
    cluster = lifted_client(plane)
    await cluster.start()
    try:
        expected = await expected_nodes(cluster)
        made = await asyncio.gather(*(quarantine(cluster, node) for node in expected.values()))
        uids = {name: node.uid for name, node in expected.items()}
        shares = {kind: _shares(count, len(made)) for kind, count in requests.items()}
        each = [{kind: next(share) for kind, share in shares.items()} for _ in made]
        begun = time.monotonic()
        await asyncio.gather(
            *(
                _trail(cluster, one, uids[one.node], counts)
                for one, counts in zip(made, each, strict=True)
            )
        )
        return time.monotonic() - begun
    finally:
        await cluster.close()


def _shares(average: float, nodes: int) -> Iterator[int]:
    """Whole numbers with this average: 1.25 is 1, 1, 1, 2."""
    for number in range(nodes):
        yield round(average * (number + 1)) - round(average * number)


async def _trail(
    cluster: KubeCluster, made: Quarantine, uid: str, counts: Mapping[str, int]
) -> None:
    """One node's requests after its taint, one after the other."""
    for number in range(counts["statuses"]):
        phase = Phase.DRAINED if number else Phase.DRAINING
        now = time.time()
        status = replace(made.status, phase=phase, node_uid=uid, message=_MESSAGE, admitted_at=now)
        made = await cluster.write_quarantine_status(
            made, replace(status, cordoned_at=now, drain_started_at=now, drained_at=now * number)
        )
    for number in range(counts["events"]):
        await cluster.write_event(
            NodeEvent(
                name=f"{made.node}-{number}",
                node=made.node,
                node_uid=uid,
                quarantine_uid="",
                reason="Quarantined",
                action="Quarantine",
                note=_MESSAGE,
                warning=True,
                at=time.time(),
            )
        )
    found = NodeObject(metadata=Meta(name=made.node, uid=uid))
    condition: dict[str, object] = {"type": CONDITION, "status": "True", "reason": "Drain"}
    condition["message"] = _MESSAGE
    for _ in range(counts["conditions"]):
        await cluster.carry_out(
            lambda transport: write_condition(
                transport, found, condition, about=made.node, guard=UNGUARDED
            )
        )
    for _ in range(counts["pod_lists"]):
        await cluster.pods_on(made.node)
    for _ in range(counts["nodes"]):
        await cluster.read_node(made.node)
