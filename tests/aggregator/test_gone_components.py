"""A component that disappears while no aggregator listens must not keep its node in quarantine.

The agent's latch repeats each unacknowledged loss until it is acknowledged, as it does with a
clearing, also after a restart of the agent.
"""

import asyncio
from collections.abc import Awaitable

import pytest

from aggregator.cluster.port import Phase
from aggregator.health.model import Delta, Snapshot
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, dump, restore
from nodeagent.model import Clearing, Gone, Observation, Status
from nodeagent.uplink import codec as telling
from tests.support import decoded, virtual_time
from tests.support.memory_cluster import World, phase_of
from tests.support.present import present
from tests.support.replica import Replica
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

MOUNT = "/data"


class PlayedAgent:
    """A node's latch and its stream to the replica that listens. Times are those of the loop."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.boot_id = "boot-1"
        self.latch = Latch(boot_id=self.boot_id, epoch="epoch")

    def observe(self, status: Status) -> None:
        reason = "full" if status is Status.FAILED else ""
        self.latch.apply([Observation("disk-space", MOUNT, status, reason)], _now())

    def unmount(self) -> None:
        self.latch.apply([Gone("disk-space", MOUNT)], _now())

    def restart(self) -> None:
        """The agent ends and begins again with its state file."""
        document = dump(State(self.latch), _now())
        self.latch = restore(document, boot_id="boot-1", new_epoch=None).latch

    def attend(self, replica: Replica) -> Awaitable[None] | None:
        """A new stream: all that it knows."""
        out = self.latch.snapshot(_now())
        message = telling.snapshot(out, _now(), 0.0).snapshot
        return self._send_evidence(replica, out.seq, decoded.snapshot(message, at=_now()))

    def report(self, replica: Replica) -> Awaitable[None] | None:
        """Sends the changes."""
        out = present(self.latch.delta(_now()))
        message = telling.delta(out, _now()).delta
        return self._send_evidence(replica, out.seq, decoded.delta(message, at=_now()))

    def _send_evidence(
        self, replica: Replica, seq: int, said: Snapshot | Delta
    ) -> Awaitable[None] | None:
        safe = replica.agent(self.node, said, boot_id=self.boot_id)
        if safe is None:
            self.latch.acknowledge(seq)
            return None
        future = asyncio.ensure_future(safe)
        future.add_done_callback(lambda _: future.cancelled() or self.latch.acknowledge(seq))
        return future


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _quarantined(agent: PlayedAgent, replica: Replica, world: World) -> None:
    agent.observe(Status.OK)
    agent.attend(replica)
    agent.observe(Status.FAILED)
    agent.report(replica)
    await soon(lambda: phase_of(world, agent.node) is Phase.CORDONED)


async def _reported_well() -> tuple[World, Replica, PlayedAgent]:
    """A node in quarantine, whose agent reports that it is well."""
    world = World.of("n1", boot_id="boot-1")
    first = Replica(world, clock=Running())
    agent = PlayedAgent("n1")
    await _quarantined(agent, first, world)
    agent.observe(Status.OK)
    agent.report(first)
    return world, first, agent


@pytest.mark.parametrize("restarts", [False, True], ids=["agent stays", "agent restarts"])
async def test_a_mount_that_goes_while_no_aggregator_listens_releases_its_node_in_the_end(
    *, restarts: bool
) -> None:
    world, first, agent = await _reported_well()
    await later(30)
    assert phase_of(world, "n1") is Phase.CORDONED  # it has not been well for long enough
    await first.stop()
    agent.unmount()
    if restarts:
        agent.restart()
    second = await Replica(world, clock=Running()).ready()
    agent.attend(second)
    await soon(lambda: phase_of(world, "n1") is None)
    assert agent.latch.unacked.gone == []


async def test_a_delta_that_nobody_acknowledged_is_told_again_to_the_next_controller() -> None:
    """The one before had received it, and died before it was durable."""
    world, first, agent = await _reported_well()
    agent.unmount()
    agent.latch.delta(_now())  # sent, and the controller stops before it reads it
    await first.stop()
    heir = Replica(world, clock=Running())
    agent.attend(heir)
    await soon(lambda: phase_of(world, "n1") is None)


async def test_a_mount_that_is_back_and_fails_again_keeps_its_node_in_quarantine() -> None:
    world, first, agent = await _reported_well()
    await first.stop()
    agent.unmount()
    agent.observe(Status.FAILED)
    assert agent.latch.unacked.gone == []
    second = await Replica(world, clock=Running()).ready()
    agent.attend(second)
    await later(7200)
    assert phase_of(world, "n1") is Phase.CORDONED
    agent.unmount()  # it failed when it went: that is no sign that it is well
    await later(7200)
    assert phase_of(world, "n1") is Phase.CORDONED


@pytest.mark.parametrize("how", ["replaced", "named"])
async def test_a_gpu_that_was_replaced_or_got_a_name_in_a_boot_releases_its_node(how: str) -> None:
    world = World.of("n1", boot_id="boot-1")
    replica = Replica(world, clock=Running())
    agent = PlayedAgent("n1")
    missing = Observation("gpu-inventory", "GPU-old", Status.FAILED, "missing")
    agent.latch.apply([missing], _now())
    agent.attend(replica)
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)
    agent.boot_id = "boot-2"
    agent.latch = Latch(boot_id=agent.boot_id, epoch="another")
    well = Observation("gpu-inventory", "GPU-new", Status.OK)
    agent.latch.apply([Clearing("GPU-old", how), well], _now())
    agent.attend(replica)
    await later(500)
    assert phase_of(world, "n1") is Phase.DRAINED, "not well for long enough"
    await soon(lambda: phase_of(world, "n1") is None)


def test_what_is_gone_is_owed_until_its_ack_in_deltas_once_and_in_each_snapshot() -> None:
    held = Latch(boot_id="b", epoch="e")
    held.apply([Observation("disk-space", MOUNT, Status.OK)], 1.0)
    held.snapshot(1.0)
    held.apply([Gone("disk-space", MOUNT)], 2.0)
    out = present(held.delta(2.0))
    assert out.gone == [Gone("disk-space", MOUNT)]
    assert held.delta(2.0) is None
    again = held.snapshot(3.0)
    assert again.gone == out.gone
    held.acknowledge(again.seq)
    assert held.snapshot(4.0).gone == []


def test_of_too_many_that_are_gone_those_stay_that_once_failed() -> None:
    held = Latch(boot_id="b", epoch="e")
    looks = [Observation("disk-space", f"/{n}", Status.OK) for n in range(1_500)]
    held.apply([Observation("disk-space", MOUNT, Status.FAILED)], 1.0)
    held.apply([*looks, Observation("disk-space", MOUNT, Status.OK)], 2.0)
    held.keep_checks(())
    out = held.snapshot(3.0)
    assert len(out.gone) == 1_000
    assert Gone("disk-space", MOUNT) in out.gone
    assert out.losses == []  # no quarantine can rest on a component that was always well
