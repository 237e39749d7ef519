"""Random interleavings with administrators: their drains are never undone, and ours never stay.

Administrators act before each of our reads. Between a read and the write that follows it Slurm lets
nobody lock a node; docs/slurm.md states what that leaves.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.place import StorePlace
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.node_names import RELEASED, TAINT
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Conflict,
    Guard,
    GuardRefused,
    NodeChange,
    NodeUncordoned,
    NotFound,
    Quarantine,
    QuarantineSpec,
    Refused,
    Taint,
    Unreachable,
)
from aggregator.cluster.reboots import RebootState
from aggregator.cluster.slurm.client import ControllerFacts
from aggregator.cluster.slurm.cluster import SlurmCluster
from aggregator.cluster.slurm.drain import FOREIGN, OurDrain
from aggregator.cluster.slurm.state import SlurmJob, SlurmNode
from tests.support.present import present

NODES = ("n1", "n2", "n3")
SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79 on GPU 3")
MARK = NodeChange(taints=(Taint(TAINT, "gpu", "NoSchedule"),), unschedulable=True)
UNMARK = NodeChange(taints=(), unschedulable=False)
UNDO = NodeChange(annotations={RELEASED: "uid@1"})


@dataclass
class FakeSlurm:
    """Slurm's rules: the last writer's words, user and time replace those of the one before."""

    rng: random.Random
    nodes: dict[str, SlurmNode] = field(
        default_factory=lambda: {
            name: SlurmNode(name, name, "IDLE", frozenset(), boot_time=1) for name in NODES
        }
    )
    #: The user who wrote the present drain.
    author: dict[str, str] = field(default_factory=dict)
    user: str = "sickbay"
    now: int = 1
    start: int = 1
    quiet: bool = False
    #: As in Slurm 24.11: the reason of a drain that has ended stays.
    keeps_reasons: bool = True
    foreign_undone: list[str] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)
    #: Nodes in quarantine that got work again, of which the controller learned nothing.
    left_open: list[str] = field(default_factory=list)
    #: Nodes whose drain in force a person has ended, and those that got another one all the same.
    resumed: set[str] = field(default_factory=set)
    overruled: list[str] = field(default_factory=list)
    #: Nodes of which the controller knows that its drain is in force.
    in_force: set[str] = field(default_factory=set)

    async def read_nodes(self, names: Collection[str] | None = None) -> list[SlurmNode]:
        await asyncio.sleep(0)
        self._administer()
        return [one for name, one in self.nodes.items() if names is None or name in names]

    async def read_jobs(self, node: str) -> list[SlurmJob]:
        del node
        return []

    async def read_controller(self) -> ControllerFacts:
        return ControllerFacts(str(self.start), "slurm")

    async def drain(self, node: str, reason: str, *, guard: Guard) -> None:
        await guard()
        self._fail_sometimes()
        if self.author.get(node) == "admin":
            self.overwritten.append(node)
        if node in self.resumed:
            self.overruled.append(node)
        self._write(node, reason, "sickbay", drain=True)
        self._fail_sometimes()

    async def undrain(self, node: str, *, guard: Guard) -> None:
        await guard()
        self._fail_sometimes()
        if self.author.get(node) != "sickbay":
            self.foreign_undone.append(node)
        self._clear(node)
        self._fail_sometimes()

    async def write_reason(self, node: str, words: str, *, guard: Guard) -> None:
        await guard()
        if not self.nodes[node].has_drain:
            self._write(node, words, "sickbay", drain=False)

    async def reboot(self, node: str, *, guard: Guard) -> None:
        """The machine is back at once; Slurm appends its words to those of the drain."""
        await guard()
        self._fail_sometimes()
        one = self.nodes[node]
        if self.author.get(node) != "sickbay":
            self.foreign_undone.append(node)
        words = f"{one.reason} : reboot issued"
        self.nodes[node] = replace(
            one,
            reason=words,
            reason_user="slurm",
            reason_at=self.now,
            boot_time=one.boot_time + 1,
        )
        self._fail_sometimes()

    async def cancel_reboot(self, node: str) -> None:
        raise Unreachable(f"the reboot of {node} has begun")

    def _fail_sometimes(self) -> None:
        if not self.quiet and self.rng.random() < 0.1:
            raise Unreachable("slurmctld did not answer")

    def _administer(self) -> None:
        self.now += self.rng.randrange(3)
        if self.quiet or self.rng.random() < 0.6:
            return
        node = self.rng.choice(NODES)
        act = self.rng.choice(
            ["drain", "fail", "same words", "reason", "resume", "undrain", "down", "lost"]
        )
        words = self.nodes[node].reason
        if act in ("drain", "same words"):
            self._write(
                node, words if act == "same words" and words else "fan", "admin", drain=True
            )
        elif act == "fail":
            self._write(node, "PSU", "admin", drain=True)
            self.nodes[node] = replace(self.nodes[node], flags=frozenset({"FAIL"}))
        elif act == "reason" and self.nodes[node].has_drain:
            self._write(node, "mine now", "admin", drain=True)
        elif act in ("resume", "undrain"):
            if self.author.get(node) == "sickbay" and node in self.in_force:
                self.resumed.add(node)
            self._clear(node)
        elif act == "down":
            self.nodes[node] = replace(self.nodes[node], base="DOWN")
        elif act == "lost" and self.rng.random() < 0.1:
            self.start = self.now
            self.resumed.clear()
            for each in NODES:
                self._clear(each)

    def _write(self, node: str, reason: str, user: str, *, drain: bool) -> None:
        # An administrator's write in the same second, with the same words, by the same user, is
        # not told apart; here the users differ.
        flags = frozenset({"DRAIN"}) if drain else frozenset()
        self.nodes[node] = replace(
            self.nodes[node], flags=flags, reason=reason, reason_user=user, reason_at=self.now
        )
        if drain:
            self.author[node] = user

    def _clear(self, node: str) -> None:
        self.author.pop(node, None)
        down = self.nodes[node].base == "DOWN"
        self.nodes[node] = replace(self.nodes[node], flags=frozenset())
        if not down and not self.keeps_reasons:
            self.nodes[node] = replace(self.nodes[node], reason="", reason_user="", reason_at=0)


class Controller:
    """A controller's writes in their order, and its crashes."""

    def __init__(self, place: Path | StorePlace, slurm: FakeSlurm) -> None:
        self.place, self.slurm = place, slurm
        #: Nodes whose drain was lost, and not yet written anew.
        self.lost: set[str] = set()
        #: Nodes whose last write failed: a controller would try again.
        self.unwritten: set[str] = set()

    async def start(self) -> None:
        self.cluster = SlurmCluster(self.place, client=self.slurm, poll=0.0, wall=lambda: 1.0)
        await self.cluster.start()
        await self.cluster.list_nodes()

    async def crash(self) -> None:
        await self.cluster.close()
        self.lost.clear()
        await self.start()

    async def quarantine(self, name: str) -> None:
        if await self.cluster.read_quarantine(name) is None:
            await self.cluster.create_quarantine(name, SPEC, guard=UNGUARDED)
            self.slurm.resumed.discard(name)
        await self.patch(name, MARK)

    async def reboot(self, name: str) -> None:
        reboots = present(self.cluster.capabilities.reboots)
        await reboots.order(name, f"{name}-{self.slurm.now}", guard=UNGUARDED)

    async def release(self, name: str) -> None:
        found = await self.cluster.read_quarantine(name)
        if found is not None:
            await self.undo(found)

    async def undo(self, quarantine: Quarantine) -> None:
        node = present(await self.cluster.read_node(quarantine.node))
        # A crash right after the drain leaves no mark, and a release undoes the drain alone.
        await self.patch(quarantine.node, UNMARK if node.taints else UNDO)
        await self.cluster.drop_quarantine(quarantine, guard=UNGUARDED)

    async def patch(self, name: str, change: NodeChange) -> None:
        node = present(await self.cluster.read_node(name))
        self.unwritten.add(name)
        self.slurm.in_force.discard(name)
        await self.cluster.patch_node(node, change, guard=UNGUARDED)
        if change not in (UNMARK, UNDO):
            self.slurm.in_force.add(name)
        self.unwritten.discard(name)

    async def observe(self) -> None:
        changes = await self.cluster.read_changes()
        self.lost |= {one.node for one in changes if isinstance(one, NodeUncordoned)}
        for name in NODES:
            found = await self.cluster.read_quarantine(name)
            if found is not None and found.deleting:
                await self.undo(found)
        for name in sorted(self.lost):
            if await self.cluster.read_quarantine(name) is not None:
                await self.patch(name, NodeChange(unschedulable=True))
            self.lost.discard(name)

    async def left_open(self) -> list[str]:
        """Nodes with the marks of a quarantine that are not drained."""
        written = sorted(set(NODES) - self.unwritten)
        nodes = [await self.cluster.read_node(name) for name in written]
        return [
            one.name
            for one in nodes
            if one is not None
            and one.taints
            and not one.unschedulable
            and await self.cluster.read_quarantine(one.name) is not None
        ]


async def play(seed: int, place: Path | StorePlace) -> FakeSlurm:
    rng = random.Random(seed)
    slurm = FakeSlurm(rng, keeps_reasons=seed % 2 == 0)
    controller = Controller(place, slurm)
    await controller.start()
    for _ in range(12):
        name = rng.choice(NODES)
        act = rng.choice(["quarantine", "quarantine", "reboot", "release", "observe", "crash"])
        try:
            if act in ("quarantine", "reboot", "release"):
                await getattr(controller, act)(name)
            else:
                await getattr(controller, act)()
        except (Conflict, NotFound, Refused, Unreachable):
            continue
    slurm.quiet = True
    await controller.observe()
    slurm.left_open = await controller.left_open()
    for name in NODES:
        await controller.release(name)
        await controller.release(name)
    cluster = controller.cluster
    assert await cluster._in_thread(cluster._open.drains) == {}, seed
    await controller.cluster.close()
    return slurm


Quarantined = Callable[[FakeSlurm], Awaitable[Controller]]


@pytest.fixture
async def quarantined(tmp_path: Path) -> AsyncIterator[Quarantined]:
    """Makes the controller of n1, which is in quarantine."""
    made: list[Controller] = []

    async def make(slurm: FakeSlurm) -> Controller:
        made.append(Controller(tmp_path / "cluster.db", slurm))
        await made[0].start()
        await made[0].quarantine("n1")
        return made[0]

    yield make
    await made[0].cluster.close()


async def test_nothing_of_an_administrator_is_undone_and_nothing_of_ours_is_left(
    tmp_path: Path,
) -> None:
    await expect_nothing_undone(tmp_path / "cluster.db", range(100))


async def test_a_reboot_that_slurm_gave_up_ends_no_quarantine_and_leaves_slurms_words(
    quarantined: Quarantined,
) -> None:
    controller = await quarantined(slurm := FakeSlurm(random.Random(1), quiet=True))
    operation = f"n1-{slurm.now}"
    await controller.reboot("n1")
    # As Slurm 22.05 does it: without the drain.
    booted = slurm.nodes["n1"].boot_time - 1
    words = f"{slurm.nodes['n1'].reason} : reboot timed out"
    slurm.nodes["n1"] = replace(
        slurm.nodes["n1"], base="DOWN", flags=frozenset(), boot_time=booted, reason=words
    )
    await controller.observe()
    quarantine = present(await controller.cluster.read_quarantine("n1"))
    assert (quarantine.deleting, slurm.nodes["n1"].has_drain) == (False, True)
    reboots = present(controller.cluster.capabilities.reboots)
    failed = await reboots.progress("n1", operation)
    assert (failed.state, "timed out" in failed.text) == (RebootState.FAILED, True)
    await controller.release("n1")
    one = slurm.nodes["n1"]
    assert (one.has_drain, one.is_down, one.reason) == (False, True, "reboot timed out")


async def test_a_power_down_between_two_looks_is_no_persons_resume_and_a_resume_after_it_is(
    quarantined: Quarantined,
) -> None:
    """Slurm clears the drain with POWERING_DOWN alone, which SuspendTimeout ends."""
    controller = await quarantined(slurm := FakeSlurm(random.Random(1), quiet=True))
    off = frozenset({"POWERED_DOWN"})
    slurm.nodes["n1"] = replace(slurm.nodes["n1"], flags=off)
    await controller.observe()
    assert not present(await controller.cluster.read_quarantine("n1")).deleting
    assert slurm.nodes["n1"].has_drain
    slurm.nodes["n1"] = replace(slurm.nodes["n1"], flags=off | {"DRAIN"})
    await controller.observe()
    slurm.nodes["n1"] = replace(slurm.nodes["n1"], flags=off)
    await controller.observe()
    assert await controller.cluster.read_quarantine("n1") is None


async def test_a_node_that_is_powered_up_for_a_job_is_drained_once_it_is_up(tmp_path: Path) -> None:
    slurm = FakeSlurm(random.Random(1), quiet=True)
    controller = Controller(tmp_path / "cluster.db", slurm)
    await controller.start()
    powered_up = frozenset({"POWERING_UP"})
    slurm.nodes["n1"] = replace(slurm.nodes["n1"], base="ALLOCATED", flags=powered_up)
    with pytest.raises(Unreachable, match="which a drain now would requeue"):
        await controller.quarantine("n1")
    one = slurm.nodes["n1"]
    assert not one.has_drain
    slurm.nodes["n1"] = replace(one, flags=frozenset())
    await controller.quarantine("n1")
    assert slurm.nodes["n1"].has_drain
    await controller.cluster.close()


async def test_our_drain_is_taken_back_when_the_cloud_has_replaced_the_machine(
    quarantined: Quarantined,
) -> None:
    slurm = FakeSlurm(random.Random(1), quiet=True)
    slurm.nodes["n1"] = replace(slurm.nodes["n1"], instance_id="i-1")
    controller = await quarantined(slurm)
    # Slurm forgets the instance of a node that it suspends, and keeps the drain.
    slurm.nodes["n1"] = replace(slurm.nodes["n1"], instance_id="")
    await controller.observe()
    await controller.release("n1")
    assert not slurm.nodes["n1"].has_drain


async def test_a_reason_that_slurm_kept_is_not_given_to_a_node_that_died_in_quarantine(
    quarantined: Quarantined,
) -> None:
    slurm = FakeSlurm(random.Random(1), quiet=True)
    one = slurm.nodes["n1"]
    slurm.nodes["n1"] = replace(one, reason="fan", reason_user="admin", reason_at=1)
    controller = await quarantined(slurm)
    slurm.nodes["n1"] = replace(slurm.nodes["n1"], base="DOWN")
    await controller.release("n1")
    assert slurm.nodes["n1"].reason == "Not responding", "ReturnToService needs these words"


async def test_a_look_at_the_drains_forgets_no_reboot_that_is_ordered_meanwhile(
    quarantined: Quarantined,
) -> None:
    """The look writes the start of another slurmctld into the record that has the reboot too."""
    controller = await quarantined(slurm := FakeSlurm(random.Random(1), quiet=True))
    reboots = present(controller.cluster.capabilities.reboots)
    for late in range(40):
        slurm.start += 1
        operation = f"reboot-{late}"
        look = asyncio.create_task(controller.cluster.read_changes())
        for _ in range(late):
            await asyncio.sleep(0)
        slurm.nodes["n1"] = replace(slurm.nodes["n1"], flags=frozenset({"DRAIN"}))
        await reboots.order("n1", operation, guard=UNGUARDED)
        await look
        recorded = present(await controller.cluster.recorded("n1"))
        assert recorded.reboot == operation, late


class RebootRequested(FakeSlurm):
    """A reboot that is ordered has not begun, and can be cancelled."""

    async def reboot(self, node: str, *, guard: Guard) -> None:
        await guard()
        one = self.nodes[node]
        self.nodes[node] = replace(one, flags=one.flags | {"REBOOT_REQUESTED"})


async def test_anothers_drain_in_the_moment_of_a_reboots_cancellation_stays_theirs(
    quarantined: Quarantined,
) -> None:
    """Slurm 22.05 takes our drain back with the reboot; an administrator drains the node then."""

    class Cancelled(RebootRequested):
        async def cancel_reboot(self, node: str) -> None:
            self._clear(node)
            self._write(node, "fan 3 dead RMA 123", "admin", drain=True)

    controller = await quarantined(slurm := Cancelled(random.Random(1), quiet=True))
    reboots = present(controller.cluster.capabilities.reboots)
    await reboots.order("n1", "reboot-1", guard=UNGUARDED)
    assert await reboots.cancel("n1", "reboot-1")
    assert await controller.cluster.read_changes() == []
    await controller.release("n1")
    assert (slurm.author, slurm.nodes["n1"].reason) == ({"n1": "admin"}, "fan 3 dead RMA 123")
    assert (slurm.foreign_undone, slurm.overwritten) == ([], [])


async def test_no_read_shows_the_moment_without_a_drain_of_a_reboots_cancellation(
    quarantined: Quarantined,
) -> None:
    """It would be a person's RESUME, which releases the node. Slurm 22.05 takes the drain back."""
    reads: list[object] = []

    class Cancelled(RebootRequested):
        async def cancel_reboot(self, node: str) -> None:
            self._clear(node)
            with pytest.raises(Unreachable):
                reads.append(await controller.cluster.read_node(node))

    controller = await quarantined(Cancelled(random.Random(1), quiet=True))
    reboots = present(controller.cluster.capabilities.reboots)
    await reboots.order("n1", "reboot-1", guard=UNGUARDED)
    assert await reboots.cancel("n1", "reboot-1")
    assert reads == []
    assert present(await controller.cluster.read_node("n1")).unschedulable


async def expect_nothing_undone(place: Path | StorePlace, seeds: range) -> None:
    for seed in seeds:
        slurm = await play(seed, place)
        assert slurm.foreign_undone == [], seed
        assert slurm.overwritten == [], seed
        assert slurm.left_open == [], seed
        assert slurm.overruled == [], seed
        left = [name for name, author in slurm.author.items() if author == "sickbay"]
        assert left == [], (seed, left, slurm.nodes)


async def refuse() -> None:
    raise GuardRefused("this replica may not be the controller any more")


@pytest.mark.parametrize("author", ["sickbay", "admin"])
async def test_a_controller_that_loses_its_place_before_an_undrain_leaves_the_drain(
    quarantined: Quarantined, author: str
) -> None:
    """The next one may have drained the node again, in the same words."""
    controller = await quarantined(slurm := FakeSlurm(random.Random(1), quiet=True))
    node = present(await controller.cluster.read_node("n1"))
    if author == "admin":
        slurm._write("n1", "fan 3", author, drain=True)
    with pytest.raises(GuardRefused):
        await controller.cluster.patch_node(node, UNMARK, guard=Guard(refuse))
    assert slurm.nodes["n1"].has_drain
    assert await controller.cluster.recorded("n1") is not None


async def test_a_controller_that_loses_its_place_during_an_undrain_leaves_the_record(
    quarantined: Quarantined,
) -> None:
    """The record may be the one of the next controller's drain."""
    holds = True

    class Losing(FakeSlurm):
        async def undrain(self, node: str, *, guard: Guard) -> None:
            nonlocal holds
            await super().undrain(node, guard=guard)
            holds = False

    async def check() -> None:
        if not holds:
            await refuse()

    controller = await quarantined(slurm := Losing(random.Random(1), quiet=True))
    node = present(await controller.cluster.read_node("n1"))
    with pytest.raises(GuardRefused):
        await controller.cluster.patch_node(node, UNMARK, guard=Guard(check))
    assert await controller.cluster.recorded("n1") is not None
    await controller.patch("n1", UNMARK)
    assert await controller.cluster.recorded("n1") is None
    assert not slurm.nodes["n1"].has_drain


async def test_a_late_reading_of_the_drains_forgets_no_record_of_the_next_controller(
    quarantined: Quarantined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused after it had read a person's RESUME."""
    controller = await quarantined(slurm := FakeSlurm(random.Random(1), quiet=True))
    cluster = controller.cluster
    slurm._clear("n1")
    write, ours = cluster.record, present(await cluster.recorded("n1"))
    anew = replace(ours, at=ours.at + 1)

    async def late(name: str, change: OurDrain | None, **more: Any) -> None:
        await write(name, anew, guard=UNGUARDED)
        await write(name, change, **more)

    monkeypatch.setattr(cluster, "record", late)
    assert await cluster.read_changes() == []
    assert await cluster.recorded("n1") == anew
    assert not present(await cluster.read_quarantine("n1")).deleting


async def test_a_controller_that_loses_its_place_before_a_drain_leaves_the_record(
    tmp_path: Path,
) -> None:
    controller = Controller(tmp_path / "cluster.db", FakeSlurm(random.Random(1), quiet=True))
    await controller.start()
    node = present(await controller.cluster.read_node("n1"))
    with pytest.raises(GuardRefused):
        await controller.cluster.patch_node(node, MARK, guard=Guard(refuse))
    assert await controller.cluster.recorded("n1") is None
    await controller.cluster.close()


async def test_a_drain_is_known_to_be_in_force_where_the_place_is_lost_after_it(
    tmp_path: Path,
) -> None:
    """Else its end, by a person's RESUME, would have no author."""
    holds = True

    class Losing(FakeSlurm):
        async def drain(self, node: str, reason: str, *, guard: Guard) -> None:
            nonlocal holds
            await super().drain(node, reason, guard=guard)
            holds = False

    async def check() -> None:
        if not holds:
            await refuse()

    controller = Controller(tmp_path / "cluster.db", slurm := Losing(random.Random(1), quiet=True))
    await controller.start()
    cluster = controller.cluster
    await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
    node = present(await cluster.read_node("n1"))
    await cluster.patch_node(node, MARK, guard=Guard(check))
    assert present(await cluster.recorded("n1")).was_seen
    slurm._clear("n1")
    assert await cluster.read_changes() == []
    assert present(await cluster.read_quarantine("n1")).deleting
    await cluster.close()


async def test_a_persons_resume_ends_no_quarantine_that_was_made_since(
    quarantined: Quarantined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that was paused after it had forgotten the drain of the earlier one."""
    controller = await quarantined(slurm := FakeSlurm(random.Random(1), quiet=True))
    cluster = controller.cluster
    slurm._clear("n1")
    write = cluster.record

    async def replaced(name: str, change: OurDrain | None, **more: Any) -> str:
        written = await write(name, change, **more)
        await cluster.drop_quarantine(present(await cluster.read_quarantine(name)), guard=UNGUARDED)
        await cluster.create_quarantine(name, SPEC, guard=UNGUARDED)
        return written

    monkeypatch.setattr(cluster, "record", replaced)
    assert await cluster.read_changes() == []
    assert not present(await cluster.read_quarantine("n1")).deleting


@pytest.mark.parametrize("undone", [True, False])
async def test_a_reboots_cancellation_drains_no_node_again_that_was_released_meanwhile(
    quarantined: Quarantined, *, undone: bool
) -> None:
    """Slurm 22.05 takes our drain back with the reboot."""

    class Cancelled(RebootRequested):
        async def cancel_reboot(self, node: str) -> None:
            self._clear(node)
            if undone:  # by the next controller
                await controller.cluster.record(node, None, guard=UNGUARDED)

    controller = await quarantined(slurm := Cancelled(random.Random(1), quiet=True))
    reboots = present(controller.cluster.capabilities.reboots)
    await reboots.order("n1", "reboot-1", guard=UNGUARDED)
    if undone:
        with pytest.raises(GuardRefused):
            await reboots.cancel("n1", "reboot-1")
    else:
        assert await reboots.cancel("n1", "reboot-1")
    assert slurm.nodes["n1"].has_drain is not undone


async def test_a_cordon_of_the_local_kind_is_anothers_drain_to_slurm(tmp_path: Path) -> None:
    """A site may go on with its file when it changes the kind of its cluster."""
    path = tmp_path / "cluster.db"
    local = LocalCluster(path, commands=Commands(cordon=("true",)), wall=lambda: 1.0)
    await local.start()
    await local.create_quarantine("n1", SPEC, guard=UNGUARDED)
    await local.patch_node(present(await local.read_node("n1")), MARK, guard=UNGUARDED)
    await local.close()
    controller = Controller(path, FakeSlurm(random.Random(1), quiet=True))
    await controller.start()
    assert await controller.cluster.recorded("n1") == FOREIGN
    await controller.observe()
    await controller.cluster.close()
