"""Two features at once: a drain and a sign, a force and a pin, a release and a new fault, ..."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.quarantine_codec import (
    decode_quarantine,
    encode_spec,
    encode_status,
)
from aggregator.cluster.node_names import OVERRULED, is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    ClusterError,
    Guard,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordSeen,
    Taint,
    Unreachable,
)
from aggregator.events import Transition
from aggregator.health.model import Cleared, Component, Delta, Status
from aggregator.history.evidence_recorder import EvidenceRecorder
from aggregator.history.lemon_detector import LemonDetector
from aggregator.policy.lemons import Lemon, LemonThresholds, evidence
from aggregator.quarantine.decide.admission import FleetSize, Proposal
from aggregator.quarantine.decide.admission_record import (
    Entry,
    Record,
    RecordUnreadable,
    dump_record,
    parse_record,
)
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, PIN
from aggregator.quarantine.decide.release_checks import RELEASE_HISTORY
from aggregator.quarantine.drain.drainer import UNCHANGED_EVERY
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.present import present
from tests.support.record_writers import record_writer_of
from tests.support.replica import (
    OPEN,
    SETTINGS,
    FakeLine,
    Replica,
    component,
    fault,
    hello,
    shipped_policy,
    snapshot,
)
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

ILL = snapshot(fault())


async def test_a_sign_about_something_else_is_acknowledged_while_a_budget_holds_up_the_drain() -> (
    None
):
    world = World.of("n1")
    world.budget_blocks.add(world.add_pod("n1", "a").uid)
    replica = Replica(world, clock=Running())
    await replica.agent_brings("n1", ILL, Phase.DRAINING)
    await later(60)
    durable = present(replica.agent("n1", Delta(cleared=(Cleared("xid:94", "GPU-9", "expiry"),))))
    async with asyncio.timeout(60):
        await durable


async def test_a_force_that_was_taken_back_from_a_pinned_node_that_is_ill_asks_for_little() -> None:
    world = World.of("n1", annotations={FORCE: "cordon look at fan 3", PIN: "RMA"})
    replica = Replica(world, clock=Running())
    await soon(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.person_annotates("n1", FORCE, None)
    replica.agent("n1", ILL)
    await later(400)
    before = replica.cluster.calls
    await later(600)
    assert replica.cluster.calls - before < 200


async def test_a_force_that_comes_again_while_a_pin_held_the_release_is_carried_out() -> None:
    world = World.of("n1", annotations={FORCE: "drain fan 3", PIN: "RMA"})
    world.budget_blocks.add(world.add_pod("n1", "a").uid)
    Replica(world, clock=Running())
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINING)
    world.person_annotates("n1", FORCE, None)
    await soon(lambda: world.quarantines["n1"].status.release_held)
    world.person_annotates("n1", FORCE, "drain fan 3, again")
    world.budget_blocks.clear()
    await soon(lambda: world.evicted)
    assert not world.quarantines["n1"].status.release_held


@pytest.mark.parametrize(
    "text",
    ['[["xid:48","GPU-1",Infinity]]', '[["xid:79","GPU-1",1' + "0" * 400 + "]]"],
)
async def test_nonsense_in_the_memory_of_releases_holds_up_no_release(text: str) -> None:
    world = World.of("n1", annotations={RELEASE_HISTORY: text})
    replica = Replica(world, clock=Running())
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    world.person_deletes("n1")
    await soon(lambda: "n1" not in world.quarantines, within=60)
    assert not is_marked(world.nodes["n1"])


class Interrupted(MemoryCluster):
    """Runs ``meanwhile`` while the next read of the node is under way."""

    meanwhile: Any = None

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return await super().read_node(name, cached=cached, background=background)


async def test_a_fault_that_comes_during_the_last_look_keeps_the_node_in() -> None:
    world = World.of("n1")
    cluster = Interrupted(world)
    replica = Replica(world, clock=Running(), cluster=cluster)
    disk = component("disk-readonly", "/data", Status.FAILED, "read-only")
    await replica.agent_brings("n1", snapshot(disk), Phase.DRAINED)
    replica.agent("n1", Delta((replace(disk, status=Status.OK),)))
    ill = Delta(faults=(fault(),))
    cluster.meanwhile = lambda: replica.controller.on_evidence("n1", ill, replica.clock())
    await later(900)
    assert cluster.meanwhile is None
    assert "status n1 Releasing" not in world.writes
    assert is_marked(world.nodes["n1"])


class Endless:
    """A hook that is never done before its time is over."""

    async def call(self, values: Any, *, limit: float, guard: Guard) -> HookAnswer:
        await asyncio.sleep(limit)
        return HookAnswer(HookResult.FAILED, "too late")


async def test_hooks_before_drains_hold_up_no_nodes_next_quarantine_after_its_release() -> None:
    world = World.of("n1")
    world.add_node("n2")
    done = HookAnswer(HookResult.DONE)

    class First(Endless):
        async def call(self, values: Any, *, limit: float, guard: Guard) -> HookAnswer:
            return (
                done
                if values["node"] == "n1"
                else await super().call(values, limit=limit, guard=UNGUARDED)
            )

    hooks = HookRules(
        pre_evict=First(),
        pre_evict_timeout=7200,
        post_release=First(),
        post_release_timeout=60,
        at_once=1,
    )
    replica = Replica(world, clock=Running(), settings=replace(SETTINGS, hooks=hooks))
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    replica.agent("n2", ILL)
    await soon(lambda: phase_of(world, "n2") is Phase.DRAINING)
    await later(5)
    world.person_deletes("n1")
    await later(150)
    assert "n1" not in world.quarantines


async def test_an_entry_whose_node_is_no_more_takes_no_place_for_ever() -> None:
    world = World.of("n1")
    text = dump_record(Record().enter([Entry("gone", "i", "", 900.0)]))
    world.record = replace(world.record, text=text)
    Replica(world, clock=Running())
    await soon(lambda: not parse_record(world.record.text).entries)


async def test_a_record_that_is_told_late_leaves_no_entry_behind() -> None:
    world = World.of("n1")
    replica = Replica(world, clock=Running())
    old = world.record
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    fresh = world.record
    replica.cluster._fails = (  # the event of the old record comes just now
        lambda call: world.emit(RecordSeen(old)) if call == "announce" else None
    )
    world.listeners.clear()
    replica.controller.on_disconnect("n1", FakeLine(), "")
    replica.controller.parts.record_writer.seen(old)
    world.person_deletes("n1")
    replica.controller.parts.registry.node_state("n1").take_quarantine(
        world.quarantines["n1"], replica.controller.parts.cluster_events._policy, 0.0
    )
    replica.controller.parts.queue.add(replica.controller.parts.registry.node_state("n1"))
    await soon(lambda: "n1" not in world.quarantines)
    assert fresh.version != world.record.version
    assert not parse_record(world.record.text).entries


async def test_what_failed_just_before_an_agent_fell_silent_begins_nothing() -> None:
    world = World.of("n1")
    replica = await Replica(world, clock=Running()).ready()
    line = FakeLine()
    link = component("nic-link", "eth0", Status.FAILED, "down", since=replica.clock())
    replica.agent("n1", snapshot(link), line=line)
    await later(1)
    replica.controller.on_disconnect("n1", line, "rebooting")
    await later(3600)
    assert world.quarantines == {}


async def test_what_nobody_expected_is_said_and_its_node_is_seen_to_again() -> None:
    world = World.of("n1")
    broken = [True]

    def fails(call: str) -> ClusterError | None:
        if call == "write_record" and broken[0]:
            raise RuntimeError("a bug")
        return None

    replica = Replica(world, clock=Running(), fails=fails)
    replica.agent("n1", ILL)
    await later(60)
    assert "a bug" in replica.fleet.node_summaries["n1"].work.last_error
    broken[0] = False
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)


def test_what_no_machine_has_fits_into_its_object_and_annotations_all_the_same() -> None:
    async def main() -> None:
        world = World.of("n1")
        replica = Replica(world, clock=Running())
        mounts = [f"/{number}" + "é" * 4000 for number in range(600)]
        await replica.agent_brings(
            "n1", snapshot(*(fault("xid:79", name) for name in mounts)), Phase.DRAINED
        )
        marked.extend(world.nodes["n1"].annotations.values())
        replica.agent("n1", Delta(faults=tuple(fault("xid:48", name) for name in mounts)))
        await later(60)
        assert len(msgspec.json.encode(encode_spec(world.quarantines["n1"].spec))) < 1_000_000
        world.person_deletes("n1")
        await soon(lambda: OVERRULED in world.nodes["n1"].annotations)
        released = world.nodes["n1"].annotations.values()
        assert sum(map(len, marked)) < 160 * 1024
        assert sum(map(len, released)) < 160 * 1024

    marked: list[str] = []
    virtual_time.run(main())


async def test_the_fleet_is_listed_without_holding_up_anything_else() -> None:
    world = World.of(*(f"n{number}" for number in range(2000)))
    replica = await Replica(world, clock=Running()).ready()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(others())
    await replica.controller.parts.cluster_events.refresh_nodes()
    assert turns >= 15
    turns = 0
    await replica.controller.parts.cluster_events._view_restored(frozenset())
    assert turns >= 35
    beside.cancel()


async def test_who_came_to_the_node_while_the_hook_ran_is_seen_before_the_first_eviction() -> None:
    world = World.of("n1")
    world.add_pod("n1", "a")

    class Slow:
        async def call(self, values: Any, *, limit: float, guard: Guard) -> HookAnswer:
            await asyncio.sleep(600)
            return HookAnswer(HookResult.DONE)

    hooks = HookRules(pre_evict=Slow(), pre_evict_timeout=7200)
    replica = Replica(world, clock=Running(), settings=replace(SETTINGS, hooks=hooks))
    await replica.agent_brings("n1", ILL, Phase.DRAINING)
    await later(300)
    node = world.nodes["n1"]
    theirs = Taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule")
    world.set_node(replace(node, taints=(*node.taints, theirs)))
    await later(600)
    assert world.evicted == []


async def test_a_storm_of_silence_puts_off_no_look_at_a_node_that_is_drained() -> None:
    world = World.of("n1")
    for number in range(400):
        world.add_node(f"s{number}")
    hooks = HookRules(pre_evict=Endless(), pre_evict_timeout=7200)
    replica = await Replica(world, clock=Running(), settings=replace(SETTINGS, hooks=hooks)).ready()
    bad = component("dns", "10.0.0.1", Status.FAILED, "no answer")
    for number in range(400):
        line = FakeLine()
        replica.agent(f"s{number}", snapshot(bad), line=line)
        replica.controller.on_disconnect(f"s{number}", line, "")
    await later(80)
    await replica.agent_brings("n1", ILL, Phase.DRAINING)
    began = replica.clock()
    world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z a test")
    await soon(lambda: replica.fleet.node_summaries["n1"].decision.exempt)
    assert replica.clock() - began < 40


class Rounding(MemoryCluster):
    """Stores times as the API server does: with microseconds."""

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        body = {"metadata": {"name": "n1"}, "status": encode_status(status)}
        stored = decode_quarantine(msgspec.json.encode(body)).status
        return await super().write_quarantine_status(quarantine, stored)


async def test_a_drain_that_waits_for_a_budget_writes_only_when_it_was_last_read() -> None:
    world = World.of("n1")
    world.budget_blocks.add(world.add_pod("n1", "a").uid)
    clock = Running(1.7e9 + 1 / 3)
    replica = Replica(world, clock=clock, cluster=Rounding(world))
    replica.agent("n1", ILL)
    await later(100)
    before = len(world.writes)
    told = world.quarantines["n1"].status
    await later(1000)
    now = world.quarantines["n1"].status
    assert now.blockers
    assert replace(now, pods_read_at=told.pods_read_at) == told
    assert 1000 - 400 <= now.pods_read_at - told.pods_read_at <= 1000
    assert len(world.writes) - before <= 1000 / UNCHANGED_EVERY


@pytest.mark.parametrize("at", ["1" + "0" * 400, "[" * 100_000])
def test_a_record_that_makes_no_sense_is_said_to_make_none(at: str) -> None:
    with pytest.raises(RecordUnreadable):
        parse_record('{"entries":[],"admissions":[' + at + "]}")


async def test_a_force_whose_quarantine_is_taken_away_past_its_finalizer_is_over() -> None:
    world = World.of("n1", annotations={FORCE: "cordon fan 3"})
    Replica(world, clock=Running())
    await soon(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.person_removes_by_force("n1")
    await later(600)
    assert not is_marked(world.nodes["n1"])
    assert FORCE not in world.nodes["n1"].annotations
    assert world.quarantines == {}


async def test_a_hook_that_wants_to_be_asked_much_later_is_given_up_in_its_time() -> None:
    world = World.of("n1")

    class Later:
        async def call(self, values: Any, *, limit: float, guard: Guard) -> HookAnswer:
            return HookAnswer(HookResult.LATER, "tomorrow", 3600.0)

    hooks = HookRules(post_release=Later(), post_release_timeout=60)
    replica = Replica(world, clock=Running(), settings=replace(SETTINGS, hooks=hooks))
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    world.person_deletes("n1")
    await later(90)
    assert world.quarantines == {}
    assert "quarantine.hook_failed" in replica.notes.kinds("n1")


class NoTransitions:
    """A history that was lost."""

    async def node_transitions(self, *_: object) -> dict[str, list[Transition]]:
        return {}

    async def of_kinds(self, *_: object) -> list[Transition]:
        return []


async def test_a_history_that_was_lost_releases_nobody() -> None:
    world = World.of("n1")
    policy = shipped_policy("rules: [{name: lemon, action: cordon}]\n")
    clock = Running()
    replica = Replica(world, clock=clock, policy=policy)
    replica.agent("n1", snapshot())
    lemon = Lemon("n1", 4, ("xid:79",), 4, 0, 900.0, ("4 quarantines",))
    replica.controller.own_evidence.record("n1", evidence(lemon, clock()))
    await soon(lambda: phase_of(world, "n1") is Phase.CORDONED)
    await replica.stop()
    world.listeners.clear()

    replica = Replica(world, clock=clock, policy=policy)
    watch = LemonDetector(
        history=NoTransitions(),
        fleet=replica.fleet,
        event_sink=replica.notes,
        clocks=Clocks(clock, clock),
        bounds=LemonThresholds(),
        record_evidence=replica.controller.own_evidence.record,
    )
    replica.agent("n1", snapshot())
    await later(10)
    await watch.check_events()
    watch.report_lemons()
    await later(3600)
    assert is_marked(world.nodes["n1"])
    clock.time += 28 * 86400  # and not for ever
    watch.report_lemons()
    await soon(lambda: not is_marked(world.nodes["n1"]))


def test_a_recorder_remembers_no_more_than_so_many_names_of_one_node() -> None:
    rows: list[object] = []
    recorder = EvidenceRecorder(lambda *row: rows.append(row))
    recorder.record_hello(hello("n1"))
    for turn in range(60):
        names = [f"/mnt/{turn}-{number}" for number in range(200)]
        recorder.record_message(
            "n1", snapshot(*(component("disk-mounts", n, Status.FAILED) for n in names)), turn
        )
    assert len(recorder._nodes["n1"].ill) <= 4096
    assert rows


async def test_a_storm_of_proposals_does_not_count_the_fleet_for_each() -> None:
    world = World()
    counted = 0

    def size() -> FleetSize:
        nonlocal counted
        counted += 1
        return FleetSize(10_000, 10_000)

    clock = Running()
    record_writer = record_writer_of(
        MemoryCluster(world),
        limits=replace(OPEN, concurrent=1),
        size=size,
        wall=clock,
    )
    record_writer.seen(world.record)
    proposals = [Proposal(f"n{number}", "i", "") for number in range(30)]
    held = await asyncio.gather(*(record_writer.propose(one) for one in proposals))
    assert sum(one is None for one in held) == 1
    assert counted <= 3
    await later(2)


async def recover_while_its_driver_starts(world: World, replica: Replica) -> Component:
    """Quarantine the node and end its cause; the check that is returned holds its release."""
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    starts = component("gpu-inventory", "", Status.UNKNOWN, "the driver starts")
    replica.agent("n1", Delta((starts,), cleared=(Cleared("xid:79", "GPU-1", "reboot"),)))
    return starts


@pytest.mark.parametrize("changes", [1, 500])
async def test_a_held_release_is_checked_soon_after_the_nodes_checks_changed(changes: int) -> None:
    """Not at each of them: a check reads the node, and an agent may tell a change each moment."""
    world = World.of("n1")
    replica = Replica(world, clock=Running())
    starts = await recover_while_its_driver_starts(world, replica)
    await soon(lambda: world.quarantines["n1"].status.release_held)
    before, begun = replica.cluster.calls, asyncio.get_running_loop().time()
    for number in range(changes - 1):
        replica.agent("n1", Delta((replace(starts, message=f"the driver starts: {number}"),)))
        await later(0.05)
    spent = replica.cluster.calls - before
    assert spent <= 10 + 4 * (asyncio.get_running_loop().time() - begun)
    replica.agent("n1", Delta((replace(starts, status=Status.OK),)))
    begun = asyncio.get_running_loop().time()
    await soon(lambda: not world.quarantines)
    assert asyncio.get_running_loop().time() - begun < 10.0


@pytest.mark.parametrize(
    ("check", "statuses", "most"),
    [
        ("gpu-inventory", (Status.UNKNOWN,), 11),
        ("cpu-load", (Status.OK, Status.FAILED), 11),
        ("gpu-inventory", (Status.UNKNOWN, Status.FAILED), 60),
    ],
)
async def test_checks_that_change_for_ever_read_a_node_whose_release_is_held_seldom(
    check: str, statuses: tuple[Status, ...], most: int
) -> None:
    """With its write of the status and its event, each has its cost, and a pin stands for days."""
    world = World.of("n1", annotations={PIN: "RMA"} if check == "cpu-load" else {})
    replica = Replica(world, clock=Running())
    await recover_while_its_driver_starts(world, replica)
    await soon(lambda: world.quarantines["n1"].status.release_held)
    before = replica.cluster.asked.copy()
    for number in range(1200):
        changed = component(check, "", statuses[number % len(statuses)])
        replica.agent("n1", Delta((replace(changed, message=f"look {number}"),)))
        await later(0.25)
    asked = replica.cluster.asked - before
    assert max(asked["read_node"], asked["write_quarantine_status"]) <= most
    assert asked["read_node"] >= 8


@pytest.mark.parametrize("fails", [False, True])
async def test_checks_that_change_while_a_hold_is_written_are_seen_soon(*, fails: bool) -> None:
    """``fails``: the write does, once."""
    world, written = World.of("n1"), asyncio.Event()
    failures = [Unreachable("busy")] * fails

    class Slow(MemoryCluster):
        async def write_quarantine_status(
            self, quarantine: Quarantine, status: QuarantineStatus, **more: Any
        ) -> Quarantine:
            if not status.release_held:
                return await super().write_quarantine_status(quarantine, status, **more)
            if failures:
                raise failures.pop()
            result = await super().write_quarantine_status(quarantine, status, **more)
            written.set()
            await later(1.0)
            return result

    replica = Replica(world, clock=Running(), cluster=Slow(world))
    starts = await recover_while_its_driver_starts(world, replica)
    async with asyncio.timeout(610.0):
        await written.wait()
    replica.agent("n1", Delta((replace(starts, status=Status.OK),)))
    begun = asyncio.get_running_loop().time()
    await soon(lambda: not world.quarantines)
    assert asyncio.get_running_loop().time() - begun < 10.0


async def test_what_held_a_release_is_forgotten_with_its_quarantine() -> None:
    world = World.of("n1", annotations={PIN: "RMA"})
    replica = Replica(world, clock=Running())
    disk = component("disk-readonly", "/data", Status.FAILED, "read-only")
    await replica.agent_brings("n1", snapshot(disk), Phase.DRAINED)
    replica.agent("n1", Delta((replace(disk, status=Status.OK),)))
    await soon(lambda: world.quarantines["n1"].status.release_held)
    world.person_removes_by_force("n1")
    await soon(lambda: not is_marked(world.nodes["n1"]))
    pod = world.add_pod("n1", "a")
    by_hand = QuarantineSpec(Action.DRAIN, "manual", "smells of smoke", requester="alice")
    world.person_creates("n1", by_hand)
    await soon(lambda: world.evicted == [pod.uid])
