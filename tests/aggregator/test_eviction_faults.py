"""NVLink faults of peers that follow an eviction on the same fabric."""

import asyncio

import pytest

from aggregator.cluster.pod_ends import PodEnd
from aggregator.events import EventKind, Transition
from aggregator.health.model import Cleared, Delta
from tests.aggregator.test_rack_events import RACK, Racks, play
from tests.support.present import present
from tests.support.rack_faults import link_error, verdict, xid
from tests.support.virtual_time import played_by

pytestmark = pytest.mark.decorated(by=played_by(play, nodes=2 * RACK))

GRACE = 40.0


async def _drain(racks: Racks) -> None:
    """The GPU of n3 is gone, and so the node is drained."""
    racks.world.add_pod("n3", "rank-3", grace=GRACE)
    racks.show(3, xid(79, "GPU-3", racks.loop.time()))
    await asyncio.sleep(5)
    assert [one.node for one in _of_kind(racks, EventKind.MOVED)] == ["n3"]


def _of_kind(racks: Racks, kind: EventKind) -> list[Transition]:
    return [one for one in racks.replica.notes.transitions if one.kind is kind]


def _peer_faults(racks: Racks, number: int) -> None:
    now = racks.loop.time()
    racks.show(number, link_error("GPU-1", now), verdict("GPU-1", now + 0.001))


async def test_a_peers_fault_within_the_grace_and_a_minute_is_shown_with_the_eviction_and_held(
    racks: Racks,
) -> None:
    await _drain(racks)
    await asyncio.sleep(GRACE + 20)
    _peer_faults(racks, 5)
    await asyncio.sleep(3600)
    assert racks.quarantined == {"n3"}
    hold = present(racks.replica.fleet.node_summaries["n5"].decision.hold)
    assert hold.limit == "eviction"
    assert "was moved from n3 of its fabric" in hold.reason
    [opened] = [o for o in _of_kind(racks, EventKind.INCIDENT_OPENED) if o.node == "n5"]
    assert opened.details["eviction"] in opened.summary
    assert "rank-3" in opened.summary
    over = tuple(Cleared(code, "GPU-1", "gpu-reset") for code in ("xid:149", "xid:154"))
    racks.replica.controller.on_evidence("n5", Delta(cleared=over), racks.loop.time())
    await asyncio.sleep(10)
    assert racks.replica.fleet.node_summaries["n5"].decision.hold is None


async def test_a_peers_fault_after_an_eviction_by_others_is_held_and_an_earlier_one_is_not(
    racks: Racks,
) -> None:
    _peer_faults(racks, 7)  # before the preemption
    await asyncio.sleep(10)
    preempted = PodEnd("n3", "train/rank-3", racks.loop.time(), GRACE, "preempted on")
    await asyncio.sleep(GRACE)
    _peer_faults(racks, 5)  # a moment before its pod is reported as failed
    await asyncio.sleep(1)
    racks.replica.controller.evictions.note_pod_end(preempted)
    await asyncio.sleep(3600)
    assert racks.quarantined == {"n7"}
    hold = present(racks.replica.fleet.node_summaries["n5"].decision.hold)
    assert hold.limit == "eviction"
    assert hold.reason.startswith(
        f"its NVLink evidence began {GRACE:.0f} s after train/rank-3 was preempted on n3"
    )


async def test_a_pod_that_obeys_its_grace_explains_no_fault_of_a_minute_later(racks: Racks) -> None:
    obeys = PodEnd("n3", "train/rank-3", racks.loop.time(), 3600.0, "evicted from")
    await asyncio.sleep(2)
    racks.replica.controller.evictions.note_pod_end(obeys)
    await asyncio.sleep(61)
    _peer_faults(racks, 5)
    await asyncio.sleep(60)
    assert racks.quarantined == {"n5"}


async def test_a_later_fault_one_of_another_fabric_and_one_of_the_gpu_are_the_nodes_own(
    racks: Racks,
) -> None:
    await _drain(racks)
    _peer_faults(racks, RACK + 1)  # another fabric
    racks.show(6, xid(79, "GPU-2", racks.loop.time()))  # no NVLink evidence
    await asyncio.sleep(GRACE + 70)
    assert racks.quarantined == {"n3", "n6", f"n{RACK + 1}"}


async def test_after_the_grace_and_a_minute_a_fault_is_the_peers_own(racks: Racks) -> None:
    await _drain(racks)
    await asyncio.sleep(GRACE + 65)
    _peer_faults(racks, 5)
    await asyncio.sleep(60)
    assert racks.quarantined == {"n3", "n5"}


async def test_two_peers_that_fault_after_an_eviction_are_held_too(racks: Racks) -> None:
    await _drain(racks)
    for number in (5, 6):
        _peer_faults(racks, number)
    await asyncio.sleep(3600)
    assert racks.quarantined == {"n3"}


async def test_the_node_of_the_eviction_is_evaluated_by_its_own_rules(racks: Racks) -> None:
    racks.world.add_pod("n3", "rank-3", grace=GRACE)
    _peer_faults(racks, 3)
    await asyncio.sleep(30)
    assert racks.quarantined == {"n3"}
    evicted = len(_of_kind(racks, EventKind.MOVED))
    assert evicted == 1
    _peer_faults(racks, 3)
    await asyncio.sleep(30)
    assert racks.quarantined == {"n3"}
