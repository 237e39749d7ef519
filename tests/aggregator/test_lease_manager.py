"""Several replicas on one Lease store, in virtual time: crashes, pauses and lost messages.

Hypothesis shrinks a schedule that breaks a rule. The rules: no two replicas may act for one
node at one moment; a process that wakes from a pause may not act until it has looked;
once the last thing has happened, every node has one replica that acts for it within 30 s.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.replicas.membership.lease_manager import LeaseManager
from aggregator.replicas.membership.lease_store import LeaseStoreError
from aggregator.replicas.membership.lease_timing import TIMES
from aggregator.replicas.membership.membership import SUPERSEDED
from aggregator.replicas.membership.view import Member, Ownership
from tests.support.memory_lease_store import Link, MemoryBoard
from tests.support.virtual_time import run

NODES = [f"gpu-{number:02}" for number in range(24)]
STEP = 0.25
OWNED_WITHIN = 30.0


@dataclass
class ApiFaults:
    """The faults of the network to the lease store, for all."""

    lost: float = 0.0  # of requests, before or after they are carried out
    slow: float = 0.0  # most seconds that a request takes
    away: bool = False


class Replica:
    """A process: its own clocks and way to the Lease store. It is paused, killed and started."""

    def __init__(
        self, name: str, board: MemoryBoard, faults: ApiFaults, rng: random.Random
    ) -> None:
        self.name = name
        self.board = board
        self.faults = faults
        self.rng = rng
        self.lives = 0
        self.awake = asyncio.Event()
        self.awake.set()
        self.offset = rng.uniform(-1e6, 1e6)  # of its monotonic clock: where they begin is chance
        self.skew = rng.choice([-86_400.0, -60.0, 0.0, 60.0, 86_400.0])  # of its wall clock
        self.cut: set[str] = set()  # its requests that fail, "list" or "write"
        self.lease_manager: LeaseManager | None = None
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.task is not None:
            return
        self.lives += 1
        loop = asyncio.get_running_loop()
        self.lease_manager = LeaseManager(
            Member(self.name, epoch=f"{self.name}-{self.lives}", address=f"{self.name}:1"),
            Link(
                self.board, deadline=TIMES.deadline, before=self._on_the_way, after=self._on_the_way
            ),
            clock=lambda: loop.time() + self.offset,
            wall=lambda: loop.time() + 1e9 + self.skew,
        )
        self.task = asyncio.create_task(self.lease_manager.run())

    async def kill(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.task = self.lease_manager = None
        self.awake.set()

    async def stop(self) -> None:
        if self.lease_manager is not None and self.awake.is_set():
            await self.lease_manager.leave()
            await self.kill()

    def acts(self) -> set[str]:
        """The nodes that it may act for now; a paused process acts for none, whatever its state."""
        if self.lease_manager is None or not self.awake.is_set():
            return set()
        return {node for node in NODES if self.lease_manager.may_act(node)}

    async def _on_the_way(self, what: str) -> None:
        """There, and back again: a process that is paused neither sends nor hears."""
        await asyncio.sleep(self.rng.uniform(0, self.faults.slow))
        await self._paused()
        if self.faults.away or what in self.cut:
            await asyncio.sleep(self.rng.choice([0.0, 60.0]))  # refused, or no answer
            raise LeaseStoreError("away")
        if self.rng.random() < self.faults.lost:
            raise LeaseStoreError("lost")

    async def _paused(self) -> None:
        while not self.awake.is_set():
            await self.awake.wait()


class Fleet:
    """The replicas and their Lease store, and the check that no two may act for one node."""

    def __init__(self, names: list[str], seed: int) -> None:
        rng = random.Random(seed)
        self.board = MemoryBoard()
        self.faults = ApiFaults()
        self.replicas = {name: Replica(name, self.board, self.faults, rng) for name in names}
        self.told: list[str] = []

    def __getitem__(self, name: str) -> Replica:
        return self.replicas[name]

    def lease_manager(self, name: str) -> LeaseManager:
        lease_manager = self.replicas[name].lease_manager
        assert lease_manager is not None
        return lease_manager

    def check(self) -> None:
        acting: dict[str, str] = {}
        for name, replica in self.replicas.items():
            for node in replica.acts():
                assert node not in acting, f"{name} and {acting[node]} act for {node}: {self.told}"
                acting[node] = name

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            await asyncio.sleep(STEP)
            self.check()

    def unowned(self) -> set[str]:
        return set(NODES) - {node for one in self.replicas.values() for node in one.acts()}

    async def all_owned(self, within: float = OWNED_WITHIN) -> float:
        """Seconds until every node has one that acts for it; asserts that it is in time."""
        waited = 0.0
        while self.unowned():
            assert waited < within, f"{sorted(self.unowned())} have nobody: {self.told}"
            await self.pass_time(STEP)
            waited += STEP
        return waited

    def held_by(self) -> dict[str, str]:
        return {node: name for name, one in self.replicas.items() for node in one.acts()}


@asynccontextmanager
async def fleet(*names: str, seed: int = 1) -> AsyncIterator[Fleet]:
    made = Fleet(list(names), seed)
    try:
        yield made
    finally:
        for replica in made.replicas.values():
            await replica.kill()


def virtual(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    run(main())


# -- random schedules ---------------------------------------------------------------

NAMES = ["a", "b", "c", "d"]
EVENTS = {
    "start": 4,
    "kill": 2,
    "stop": 2,
    "pause": 3,
    "wake": 3,
    "delete": 1,
    "blind": 2,
    "mute": 2,
    "whole": 3,
    "away": 1,
    "full": 1,
    "rough": 2,
    "back": 4,
}


Plan = list[tuple[float, str, str]]

PLANS = st.lists(
    st.tuples(st.floats(0.0, 20.0), st.sampled_from(list(EVENTS)), st.sampled_from(NAMES)),
    max_size=15,
)


def long_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    events = rng.choices(list(EVENTS), list(EVENTS.values()), k=80)
    return [(rng.expovariate(1 / 6), event, rng.choice(NAMES)) for event in events]


async def play(plan: Plan, seed: int) -> None:
    async with fleet(*NAMES, seed=seed) as all_of_them:
        for name in NAMES[:2]:
            all_of_them[name].start()
        deleted_at = -100.0
        for pause, event, name in plan:
            await all_of_them.pass_time(pause)
            all_of_them.told.append(f"{event} {name} after {pause:.1f}")
            now = asyncio.get_running_loop().time()
            if event == "start" and now - deleted_at < TIMES.takeover:
                continue  # the one gap that docs/shards.md names; it has its own test
            if event == "delete":
                deleted_at = now
            await happen(all_of_them, event, name)
            all_of_them.check()
        # The last change: all replicas awake, the lease store back, at least one replica there.
        faults = all_of_them.faults
        faults.away = all_of_them.board.read_only = False
        faults.lost = faults.slow = 0.0
        for replica in all_of_them.replicas.values():
            replica.cut.clear()
            replica.awake.set()
        all_of_them["d"].start()
        all_of_them.check()
        await all_of_them.all_owned()
        await all_of_them.pass_time(20)
        assert not all_of_them.unowned(), "and it stays so"


async def happen(all_of_them: Fleet, event: str, name: str) -> None:
    replica, faults = all_of_them[name], all_of_them.faults
    match event:
        case "start":
            replica.start()
        case "kill":
            await replica.kill()
        case "stop":
            if (
                not faults.away and not replica.cut
            ):  # else its farewell would take its time: a schedule of its own
                await replica.stop()
        case "pause":
            if replica.task is not None:
                replica.awake.clear()
        case "wake":
            replica.awake.set()
            all_of_them.check()
        case "blind":
            replica.cut.add("list")
        case "mute":
            replica.cut.add("write")
        case "whole":
            replica.cut.clear()
        case "delete":
            all_of_them.board.leases.pop(name, None)
        case "away":
            faults.away = True
        case "full":
            all_of_them.board.read_only = True
        case "back":
            faults.away = all_of_them.board.read_only = False
            faults.lost = faults.slow = 0.0
        case "rough":
            faults.lost, faults.slow = 0.3, 2.0


@settings(max_examples=80, deadline=None)
@given(plan=PLANS, seed=st.integers(0, 2**32))
def test_no_schedule_makes_two_act_for_one_node_and_all_are_owned_in_time(
    plan: Plan, seed: int
) -> None:
    run(play(plan, seed))


@pytest.mark.parametrize("seed", range(12))
def test_nor_does_a_long_one(seed: int) -> None:
    run(play(long_plan(seed), seed))


# -- one thing at a time ------------------------------------------------------------


def test_alone_it_acts_at_once_and_so_does_its_successor_after_a_crash() -> None:
    async def story() -> None:
        async with fleet("a") as one:
            one["a"].start()
            assert await one.all_owned() <= 1.0
            await one.pass_time(20)
            await one["a"].kill()
            one["a"].start()
            assert await one.all_owned() <= 1.0

    virtual(story)


def test_before_there_is_a_council_every_node_is_ours_and_nothing_is_done() -> None:
    async def story() -> None:
        async with fleet("a", "b") as two:
            two.faults.away = True
            two["a"].start()
            await two.pass_time(10)
            lease_manager = two.lease_manager("a")
            assert lease_manager.owns("gpu-00")
            assert lease_manager.owner_address("gpu-00") == ""
            assert not lease_manager.may_act("gpu-00")
            assert not lease_manager.leads()
            assert lease_manager.membership_view.frozen
            assert lease_manager.problem == "away" or "in time" in lease_manager.problem

    virtual(story)


def test_a_dead_replica_is_inherited_from_in_time_and_nobody_elses_nodes_move() -> None:
    async def story() -> None:
        async with fleet("a", "b", "c") as three:
            for name in "abc":
                three[name].start()
            await three.all_owned()
            before = three.held_by()
            leader = three.lease_manager("a").membership_view.leader
            assert leader is not None
            await three[leader.name].kill()
            took = await three.all_owned(TIMES.takeover)
            assert took >= TIMES.lease_duration - TIMES.retry_period
            after = three.held_by()
            moved = {node for node in NODES if before[node] != after[node]}
            assert moved == {node for node in NODES if before[node] == leader.name}
            assert [
                name for name in "abc" if name != leader.name and three.lease_manager(name).leads()
            ]

    virtual(story)


def test_who_leaves_in_order_is_inherited_from_at_the_next_look() -> None:
    async def story() -> None:
        async with fleet("a", "b", "c") as three:
            for name in "abc":
                three[name].start()
            await three.all_owned()
            before = three.held_by()
            lease_manager = three.lease_manager("b")
            assert await lease_manager.leave()
            gone = [node for node in NODES if before[node] == "b"]
            assert not any(lease_manager.owns(node) or lease_manager.may_act(node) for node in gone)
            assert {lease_manager.owner_address(node) for node in gone} <= {"a:1", "c:1"}, (
                "its agents' way"
            )
            assert await three.all_owned() <= TIMES.retry_period + 2 * STEP
            await three.pass_time(20)
            assert "b" not in three.lease_manager("a").membership_view.members, (
                "it does not come back by itself"
            )

    virtual(story)


def test_a_farewell_that_can_not_be_said_takes_its_bounded_time() -> None:
    async def story() -> None:
        async with fleet("a", "b") as two:
            two["a"].start()
            two["b"].start()
            await two.all_owned()
            two.faults.away = True
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert not await two.lease_manager("a").leave()
            assert loop.time() - began <= 3 * TIMES.deadline
            assert not two["a"].acts()

    virtual(story)


def test_a_process_that_was_paused_acts_on_nothing_when_it_wakes() -> None:
    async def story() -> None:
        async with fleet("a", "b") as two:
            for name in "ab":
                two[name].start()
                await two.all_owned()
            await two.pass_time(30)
            before = two.held_by()
            assert set(before.values()) == {"a", "b"}
            assert two.lease_manager("a").leads()
            two["a"].awake.clear()
            await two.pass_time(40)
            assert set(two.held_by().values()) == {"b"}
            two["a"].awake.set()
            assert not two["a"].acts(), "not even before it has noticed anything"
            assert not two.lease_manager("a").leads()
            assert two.lease_manager("b").leads()
            await two.pass_time(TIMES.retry_period + TIMES.takeover_wait + TIMES.retry_period)
            assert two.held_by() == before
            assert two.lease_manager("b").leads(), "it does not take the lead away"

    virtual(story)


def test_the_leases_server_away_stops_all_and_moves_nothing() -> None:
    async def story() -> None:
        async with fleet("a", "b", "c") as three:
            for name in "abc":
                three[name].start()
            await three.all_owned()
            before = three.held_by()
            homes = [three.lease_manager("a").owner_address(node) for node in NODES]
            three.faults.away = True
            await three.pass_time(60)
            assert not three.held_by()
            assert all(three.lease_manager(name).membership_view.frozen for name in "abc")
            assert [three.lease_manager("a").owner_address(node) for node in NODES] == homes, (
                "streams stay"
            )
            three.faults.away = False
            await three.all_owned()
            assert three.held_by() == before

    virtual(story)


def test_a_live_replicas_lease_deleted_by_hand_stops_nobody() -> None:
    async def story() -> None:
        async with fleet("a", "b") as two:
            for name in "ab":
                two[name].start()
            await two.all_owned()
            before = two.held_by()
            del two.board.leases["a"]
            for _ in range(80):
                await two.pass_time(STEP)
                assert two.held_by() == before
            assert "a" in two.board.leases

    virtual(story)


def test_the_one_gap_is_short_where_a_newcomer_comes_just_when_all_leases_are_deleted() -> None:
    """The newcomer takes itself for the only one (docs/shards.md names this); the fences hold."""

    async def story() -> None:
        async with fleet("a", "b") as two:
            two["a"].start()
            await two.all_owned()
            await two.pass_time(TIMES.retry_period * 4 + 1)
            two.board.leases.clear()
            two["b"].start()
            both = 0.0
            for _ in range(round(60 / STEP)):
                await asyncio.sleep(STEP)
                both += STEP if two["a"].acts() & two["b"].acts() else 0.0
            assert both <= TIMES.retry_period + 2 * STEP
            assert not two.unowned()

    virtual(story)


def test_of_two_processes_with_one_name_the_older_stops_and_says_so() -> None:
    async def story() -> None:
        async with fleet("a", "b") as two:
            two["a"].start()
            two["b"].start()
            await two.all_owned()
            two.board.renew_as_another("a", "stranger")
            await two.pass_time(2 * TIMES.retry_period)
            assert not two["a"].acts()
            assert two.lease_manager("a").membership_view.frozen == SUPERSEDED
            stands = two.board.leases["a"]
            await two.pass_time(TIMES.retry_period)
            assert two.board.leases["a"] == stands, "they do not wrestle for it"
            await two.all_owned()  # the stranger is gone, so it joins again

    virtual(story)


def test_changes_are_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sickbay.shards")

    async def story() -> None:
        async with fleet("a", "b") as two:
            two["a"].start()
            told: list[tuple[str, ...]] = []
            lease_manager = two.lease_manager("a")
            lease_manager.on_change(
                lambda: told.append(tuple(lease_manager.membership_view.members))
            )
            await two.all_owned()
            two["b"].start()
            await two.pass_time(20)
            await two["b"].kill()
            await two.pass_time(30)
            assert ("a", "b") in told
            assert told[-1] == ("a",)
            two.faults.away = True
            await two.pass_time(20)

    virtual(story)
    said = [record.getMessage() for record in caplog.records]
    for line in (
        "a replica joined",
        "a replica left",
        "the leader changed",
        "this replica may act for its nodes",
        "membership is frozen, no action is taken",
        "the replicas' Leases can't be used",
    ):
        assert line in said
    assert all(said.count(line) < 8 for line in said), "what stays as it is, is said once"


async def requests_of(
    lease_manager: LeaseManager, asked: list[float], seconds: float
) -> list[float]:
    task = asyncio.create_task(lease_manager.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return asked


@pytest.mark.parametrize(("patience", "most"), [(None, 2 * 31), (20.0, 2 * 2), (3600.0, 2)])
def test_a_board_that_asks_for_patience_gets_it(patience: float | None, most: int) -> None:
    asked: list[float] = []

    async def refuse(_: str) -> None:
        asked.append(asyncio.get_running_loop().time())
        raise LeaseStoreError("busy", retry_after=patience)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        link = Link(MemoryBoard(), deadline=TIMES.deadline, before=refuse)
        lease_manager = LeaseManager(Member("a", epoch="1"), link, clock=loop.time, wall=loop.time)
        await requests_of(lease_manager, asked, 30.0)
        assert 2 <= len(asked) <= most

    virtual(story)


def test_the_patience_that_the_first_refused_request_asks_for_counts() -> None:
    asked: list[float] = []

    async def refuse(what: str) -> None:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) > 2:  # the first write comes after a list
            raise LeaseStoreError("busy", retry_after=None if what == "list" else 20.0)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        link = Link(MemoryBoard(), deadline=TIMES.deadline, before=refuse)
        lease_manager = LeaseManager(Member("a", epoch="1"), link, clock=loop.time, wall=loop.time)
        await requests_of(lease_manager, asked, 30.0)
        assert len(asked) <= 8, asked

    virtual(story)


def test_the_owner_of_a_node_is_computed_once_while_the_membership_stays() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        link = Link(MemoryBoard(), deadline=TIMES.deadline)
        lease_manager = LeaseManager(Member("a", epoch="1"), link, clock=loop.time, wall=loop.time)
        await requests_of(lease_manager, [], 10.0)
        computed: list[str] = []
        real = lease_manager._membership_view

        def owner(node: str) -> Member | None:
            computed.append(node)
            return real.owner(node)

        lease_manager._membership_view = SimpleNamespace(owner=owner, me="a")  # type: ignore[assignment]
        for node in ("n1", "n2", "n1", "n2", "n3"):
            assert lease_manager.owns(node)
        assert computed == ["n1", "n2", "n3"]

    virtual(story)


def test_at_rest_it_asks_twice_in_a_tick() -> None:
    asked: list[float] = []

    async def count(_: str) -> None:
        asked.append(0.0)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        link = Link(MemoryBoard(), deadline=TIMES.deadline, before=count)
        lease_manager = LeaseManager(Member("a", epoch="1"), link, clock=loop.time, wall=loop.time)
        await requests_of(lease_manager, asked, 60.0)
        assert len(asked) <= 2 * (60 / TIMES.retry_period + 1) + 1

    virtual(story)


def test_what_goes_wrong_in_a_listener_ends_the_run() -> None:
    """A bug must not leave a replica that looks alive and gets no events."""

    def wrong() -> None:
        raise ZeroDivisionError

    async def story() -> None:
        loop = asyncio.get_running_loop()
        link = Link(MemoryBoard(), deadline=TIMES.deadline)
        lease_manager: Ownership
        lease_manager = kept = LeaseManager(
            Member("a", epoch="1"), link, clock=loop.time, wall=loop.time
        )
        lease_manager.on_change(wrong)
        with pytest.raises(ZeroDivisionError):
            await kept.run()

    virtual(story)
