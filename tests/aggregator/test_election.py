"""Leader election: each rule of one replica, and random schedules of several.

Hypothesis shrinks a schedule that breaks a rule. The rules: at most one replica may act at a time;
one that wakes may not act before it has read the Lease; 30 s after the last fault one may act.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.leader.election import TIMES, Election, LeaseTiming
from aggregator.leader.holder import LeaseHolder
from aggregator.leader.lease import (
    Candidate,
    Draft,
    Lease,
    LeaseConflict,
    LeaseNotFound,
    LeaseStoreError,
)
from aggregator.leader.standby import Standby
from aggregator.relay.unserved import UnservedGateway
from tests.support import virtual_time
from tests.support.invariants import at_most_one_may_act
from tests.support.present import present
from tests.support.virtual_processes import Clockwork, Process
from tests.support.waiting import until

T = TypeVar("T")

#: The check that at most one may act is made so often (seconds).
STEP = 0.25


class LeaseBoard:
    """The Lease by compare-and-set, with the faults of the network to it."""

    def __init__(self, work: Clockwork, rng: random.Random) -> None:
        self._work, self._rng = work, rng
        self.lease: Lease | None = None
        self.past: list[Lease | None] = [None]
        self._version = 0
        self.away = self.read_only = False
        self.loses = 0.0  # of requests, before or after they are carried out
        self.slow = 0.05  # most seconds of one way
        #: A process that knew of no Lease has made one, though there had been one: its time.
        self.made_anew_at = float("-inf")

    def read(self) -> Lease | None:
        return self.lease

    def write(self, draft: Draft) -> Lease:
        lease = self.lease
        if self.read_only:
            raise LeaseStoreError("no space left")
        if lease is None and draft.version:
            raise LeaseNotFound("gone")
        if lease is not None and lease.version != draft.version:
            raise LeaseConflict("written in between")
        self._version += 1
        uid = lease.uid if lease is not None else f"uid-{self._version}"
        if lease is None and self._version > 1 and draft.acquires:
            self.made_anew_at = self._work.now
        self.lease = Lease(draft.holder, str(self._version), uid, draft.transitions)
        self.past.append(self.lease)
        return self.lease

    def delete(self) -> None:
        self.lease = None

    def restore(self, choice: int) -> None:
        """An earlier state of etcd. Versions go on: a restored member's are raised."""
        self.lease = self.past[choice % len(self.past)]

    def lost(self) -> bool:
        return self._rng.random() < self.loses

    def delay(self) -> float:
        return self._rng.uniform(0.0, self.slow)


class Contender:
    """Implements `LeaseStore` for one process."""

    def __init__(
        self,
        name: str,
        life: int,
        board: LeaseBoard,
        work: Clockwork,
        rng: random.Random,
        times: LeaseTiming,
        *,
        starts: bool = True,
    ) -> None:
        self.name = name
        self._board, self._work = board, work
        self.cut = False
        self.process = Process(
            work, rate=rng.choice([0.98, 1.0, 1.02]), offset=rng.uniform(0.0, 1e6)
        )
        before = self.process.enter()
        self.holder = LeaseHolder(
            Candidate(name, f"{name}-{life}", f"{name}:1"),
            self,
            clock=self.process.time,
            times=times,
            starts=starts,
        )
        self.process.leave(before)
        self.running = self.process.begin(self.holder.run(), f"lease of {name}")

    @property
    def acts(self) -> bool:
        """Whether it may act now; a process that is paused does nothing, whatever its state."""
        process = self.process
        return not process.paused and not process.dead and self.holder.may_act()

    async def read(self) -> Lease | None:
        return await self._ask(self._board.read)

    async def write(self, draft: Draft) -> Lease:
        return await self._ask(lambda: self._board.write(draft))

    async def _ask(self, effect: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T | None, error: LeaseStoreError | None) -> None:
            if answer.done() or self.process.dead:
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # the effect's own

        def carry_out() -> None:
            if self.cut or self._board.away:
                return
            result, error = None, None
            try:
                result = effect()
            except LeaseStoreError as refused:
                error = refused
            if not self._board.lost():
                self._work.after(self._board.delay(), lambda: settle(result, error))

        if not self._board.lost():
            self._work.after(self._board.delay(), carry_out)
        try:
            return await asyncio.wait_for(answer, TIMES.deadline)
        except TimeoutError:
            raise LeaseStoreError("no answer in time") from None


class ElectionWorld:
    """``names`` contend. ``check`` is what must hold at each step."""

    def __init__(self, names: str, seed: int, times: LeaseTiming = TIMES) -> None:
        self.rng = random.Random(seed)
        self.work = Clockwork(self.rng)
        self.board = LeaseBoard(self.work, self.rng)
        self._times = times
        self._lives = 0
        self.contenders: dict[str, Contender] = {}
        self._usual = {"loses": 0.0, "slow": 0.05, "away": False, "read_only": False}
        self._until: dict[str, float] = {}
        #: A person has interfered with the store at this time.
        self.interfered = float("-inf")
        self.told: list[str] = []
        for name in names:
            self.start(name)

    def start(self, name: str, *, starts: bool = True) -> None:
        if name in self.contenders:
            return
        self._lives += 1
        self.contenders[name] = Contender(
            name, self._lives, self.board, self.work, self.rng, self._times, starts=starts
        )

    def kill(self, name: str) -> None:
        one = self.contenders.pop(name, None)
        if one is not None:
            one.process.kill()

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)

    def leave(self, name: str) -> None:
        """In order: the Lease is released, and the process ends."""
        one = self.contenders.pop(name, None)
        if one is None or one.process.paused:
            if one is not None:
                self.contenders[name] = one
            return
        one.process.begin(one.holder.release(), f"release by {name}")
        self.work.after(12.0, one.process.kill)

    def pause(self, name: str, seconds: float) -> None:
        one = self.contenders.get(name)
        if one is None:
            return
        one.process.paused = True

        def wake() -> None:
            one.process.paused = False

        self.work.after(seconds, wake)

    def cut(self, name: str, seconds: float) -> None:
        one = self.contenders.get(name)
        if one is None:
            return
        one.cut = True

        def join() -> None:
            one.cut = False

        self.work.after(seconds, join)

    def set_for(self, what: str, value: float | bool, seconds: float) -> None:  # noqa: FBT001
        usual = self._usual[what]
        setattr(self.board, what, value)
        until = self._until[what] = max(self._until.get(what, 0.0), self.work.now + seconds)

        def end() -> None:
            if self.work.now >= self._until[what]:
                setattr(self.board, what, usual)

        self.work.at(until, end)

    def acting(self) -> list[str]:
        return [name for name, one in self.contenders.items() if one.acts]

    def pass_time(self, seconds: float, *, excused: float = 0.0) -> None:
        """``excused``: so long after an interference two may act."""
        for _ in range(round(seconds / STEP)):
            self.work.run(STEP)
            self._restart_superseded()
            since = max(self.interfered, self.board.made_anew_at)
            acting = self.acting()
            if self.work.now - since >= excused:
                assert not list(at_most_one_may_act(acting)), f"{acting} may act: {self.told}"

    def _restart_superseded(self) -> None:
        """As `app` does: the same process contends again, with a new epoch."""
        for name, one in list(self.contenders.items()):
            if one.running.done() and not one.process.paused:
                one.running.result()
                del self.contenders[name]
                one.process.kill()
                self.start(name, starts=False)

    def end(self) -> None:
        self.work.end()


ME, OTHER = Candidate("r0", "e1", "r0:1"), Candidate("r1", "e9", "r1:1")


def holding(version: str = "1", *, sent: float = 0.0) -> Election:
    election = Election(ME)
    election.read(None, answered=sent)
    assert election.next_write(sent) == Draft(ME, "", 0, acquires=True)
    election.wrote(Lease(ME, version, "uid"), sent=sent)
    return election


def watching(until: float, lease: Lease) -> Election:
    """It has read the Lease each two seconds."""
    election = Election(ME)
    for second in range(0, int(until) + 1, 2):
        election.read(lease, answered=float(second))
    return election


# -- one replica -----------------------------------------------------------------------------------


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    election = holding(sent=100.0)
    election.wrote(Lease(ME, "2", "uid"), sent=102.0)  # answered much later
    assert election.may_act(111.9)
    assert not election.may_act(112.0)
    assert election.holds  # it does not end itself


def test_nothing_is_written_before_the_first_read() -> None:
    assert Election(ME).next_write(0.0) is None


def test_a_lease_is_taken_when_it_has_stood_still() -> None:
    lease = Lease(OTHER, "7", "uid", transitions=3)
    assert watching(14.0, lease).next_write(14.9) is None
    assert watching(14.0, lease).next_write(15.0) == Draft(ME, "7", 4, acquires=True)


def test_a_lease_that_it_took_without_an_answer_is_its_own_at_the_next_read() -> None:
    """No other replica has held it since: the Lease would have a later version."""
    election = watching(14.0, Lease(OTHER, "7", "uid", transitions=3))
    assert election.next_write(15.0) is not None  # accepted, and its answer is lost
    election.read(Lease(ME, "8", "uid", transitions=4), answered=19.0)
    assert not election.may_act(19.0)
    assert election.next_write(19.0) == Draft(ME, "8", 5, acquires=True)
    election.wrote(Lease(ME, "9", "uid"), sent=19.0)
    assert election.may_act(28.9)
    assert not election.may_act(29.0)


def test_a_renewal_begins_the_wait_anew() -> None:
    election = watching(14.0, Lease(OTHER, "7", "uid"))
    election.read(Lease(OTHER, "8", "uid"), answered=14.5)
    election.read(Lease(OTHER, "8", "uid"), answered=20.0)
    assert election.next_write(29.4) is None
    assert election.renewed_by_another(20.0, within=10.0)
    assert not election.renewed_by_another(24.6, within=10.0)


def test_a_standby_reads_ahead_while_anothers_lease_stands_still_and_forgets_it_otherwise() -> None:
    made: list[str] = []

    class Ahead:
        def begin(self) -> None:
            made.append("begin")

        def end(self) -> None:
            made.append("end")

    async def test(_: virtual_time.VirtualTimeLoop) -> None:
        election = Election(ME)
        lease = StandIn(election)

        async def load() -> None:
            made.append("load")

        standby = asyncio.create_task(Standby(lease, Ahead(), load).run())
        for now, version, expected in (
            (0.0, "1", "end"),
            (4.0, "1", "end"),
            (6.0, "1", "begin"),
            (8.0, "2", "end"),
            (14.5, "2", "begin"),
            (23.0, "2", "end"),  # a gap in the view
        ):
            election.read(Lease(OTHER, version, "uid"), answered=now)
            made.clear()
            await until(lambda: bool(made))
            assert set(made) == ({"begin", "load"} if expected == "begin" else {"end"}), (now, made)
        election.read(Lease(None, "3", "uid"), answered=25.0)
        assert election.still_for() == 0.0, "it is taken at once"
        lease.holds = True
        made.clear()
        await asyncio.sleep(5)
        assert made == [], "the controller uses what was read"
        standby.cancel()

    virtual_time.play(test)


class StandIn:
    """The Lease as a standby knows it."""

    def __init__(self, election: Election) -> None:
        self.holds = False
        self.still_for = election.still_for


def test_a_lease_that_nobody_could_see_has_not_stood_still() -> None:
    election = watching(10.0, Lease(OTHER, "7", "uid"))
    election.read(Lease(OTHER, "7", "uid"), answered=60.0)  # the API server was away
    assert election.next_write(60.0) is None
    election.read(Lease(OTHER, "7", "uid"), answered=67.0)
    election.read(Lease(OTHER, "7", "uid"), answered=74.0)
    assert election.next_write(74.9) is None
    assert election.next_write(75.0) is not None


def test_a_released_lease_is_taken_at_once() -> None:
    election = watching(2.0, Lease(None, "7", "uid"))
    assert election.next_write(2.0) == Draft(ME, "7", 1, acquires=True)


def test_a_missing_lease_is_one_that_stands_still() -> None:
    election = watching(4.0, Lease(OTHER, "7", "uid"))
    for second in range(6, 15, 2):
        election.read(None, answered=float(second))
        assert election.next_write(float(second)) != Draft(ME, "", 0, acquires=True)
    election.read(None, answered=16.0)
    assert election.next_write(16.0) == Draft(ME, "", 0, acquires=True)


def test_a_new_process_takes_over_from_the_earlier_one_of_its_name() -> None:
    earlier = Lease(Candidate("r0", "e0"), "7", "uid")
    election = Election(ME)
    election.read(earlier, answered=1.0)
    assert election.next_write(1.0) is not None
    # A superseded process that contends again had another's Lease before it.
    again = Election(ME, starts=False)
    again.read(earlier, answered=1.0)
    assert again.next_write(1.0) is None


def test_an_earlier_process_of_its_name_that_lives_is_waited_for() -> None:
    election = Election(ME)
    election.read(Lease(Candidate("r0", "e0"), "7", "uid"), answered=1.0)
    election.read(Lease(Candidate("r0", "e0"), "8", "uid"), answered=3.0)
    assert election.next_write(3.0) is None


def test_a_holder_goes_on_after_the_api_server_was_away() -> None:
    election = holding(sent=0.0)
    assert election.next_write(60.0) == Draft(ME, "1", 0, acquires=False)
    election.wrote(Lease(ME, "2", "uid"), sent=60.0)  # at its own version: nobody held it meanwhile
    assert election.may_act(60.1)
    assert not election.lost


def test_a_holder_that_another_has_replaced_is_one_no_more() -> None:
    election = holding(sent=0.0)
    election.read(Lease(OTHER, "9", "uid"), answered=3.0)
    assert election.lost
    assert not election.may_act(3.0)
    assert election.next_write(3.0) is None
    assert election.last_write() is None
    assert election.holder == OTHER


def test_its_own_write_that_came_late_is_no_other() -> None:
    election = holding(sent=0.0)
    election.read(Lease(ME, "2", "uid"), answered=5.0)
    assert not election.lost
    assert election.next_write(5.0) == Draft(ME, "2", 0, acquires=False)
    assert not election.may_act(10.0)  # it is not known when that one was sent


@pytest.mark.parametrize(("away", "lost"), [(9.0, False), (10.0, True)])
def test_a_lease_that_it_makes_anew_proves_nothing_after_the_deadline(
    away: float,
    lost: bool,  # noqa: FBT001
) -> None:
    election = holding(sent=0.0)
    election.missing()
    assert election.next_write(away) == Draft(ME, "", 0, acquires=False)
    election.wrote(Lease(ME, "5", "another"), sent=away)
    assert election.lost is lost
    assert election.may_act(away) is not lost


def test_after_it_leaves_it_writes_the_release_alone() -> None:
    election = holding(sent=0.0)
    election.leave()
    assert not election.may_act(0.1)
    assert election.next_write(0.1) is None
    assert election.last_write() == Draft(None, "1", 0, acquires=False)


@pytest.mark.parametrize(
    ("name", "value"), [("renew_deadline", 15.0), ("deadline", 4.0), ("gap", 5.0)]
)
def test_durations_that_break_the_argument_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name if name != "deadline" else "two deadlines"):
        LeaseTiming(**{name: value})


# -- several ---------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[ElectionWorld, str, float], None]] = {
    "kill": lambda world, name, _: world.kill(name),
    "leave": lambda world, name, _: world.leave(name),
    "start": lambda world, name, _: world.start(name),
    "restart": lambda world, name, _: world.restart(name),
    "pause": lambda world, name, seconds: world.pause(name, seconds),
    "cut": lambda world, name, seconds: world.cut(name, seconds),
    "lose": lambda world, _, seconds: world.set_for("loses", 0.3, seconds),
    "slow": lambda world, _, seconds: world.set_for("slow", 6.0, seconds),
    "away": lambda world, _, seconds: world.set_for("away", value=True, seconds=seconds),
    "read only": lambda world, _, seconds: world.set_for("read_only", value=True, seconds=seconds),
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(sorted(OPERATIONS)),
        st.sampled_from("abc"),
        st.floats(0.5, 40.0),  # how long it lasts
        st.floats(0.0, 20.0),  # until the next one
    ),
    max_size=12,
)


@contextmanager
def contending(names: str, seed: int, times: LeaseTiming = TIMES) -> Iterator[ElectionWorld]:
    world = ElectionWorld(names, seed, times)
    try:
        yield world
    finally:
        world.end()


def play(
    world: ElectionWorld, steps: list[tuple[str, str, float, float]], excused: float = 0.0
) -> None:
    for what, name, seconds, pause in steps:
        world.told.append(f"{world.work.now:.1f} {what} {name} {seconds:.1f}")
        OPERATIONS[what](world, name, seconds)
        world.pass_time(pause, excused=excused)
    world.pass_time(45.0, excused=excused)  # the last fault's own time
    for name in "abc":
        world.start(name)
    world.pass_time(30.0, excused=excused)
    assert len(world.acting()) == 1, f"none may act: {world.told}"


@given(STEPS, st.integers(0, 1_000_000))
@settings(max_examples=60, deadline=None)
def test_at_most_one_may_act(steps: list[tuple[str, str, float, float]], seed: int) -> None:
    with contending("abc", seed) as world:
        play(world, steps)


def hostile(world: ElectionWorld, what: str, choice: int) -> None:
    world.told.append(f"{world.work.now:.1f} {what} {choice}")
    world.interfered = world.work.now
    if what == "delete":
        world.board.delete()
    else:
        world.board.restore(choice)


@given(
    st.lists(
        st.tuples(st.sampled_from(["delete", "restore"]), st.integers(0, 200), STEPS), max_size=3
    ),
    st.integers(0, 1_000_000),
)
@settings(max_examples=30, deadline=None)
def test_two_may_act_for_seconds_alone_after_the_store_was_changed_by_hand(
    parts: list[tuple[str, int, list[tuple[str, str, float, float]]]], seed: int
) -> None:
    """A deleted Lease that a starting replica makes anew, or an etcd of before: a former holder
    acts until its renewal is refused, or until the deadline.
    """
    excused = TIMES.renew_deadline * 1.05
    with contending("abc", seed) as world:
        world.pass_time(10.0)
        for what, choice, steps in parts:
            hostile(world, what, choice)
            play(world, steps, excused)


@given(STEPS, st.integers(0, 1_000_000))
@settings(max_examples=20, deadline=None)
def test_a_deleted_lease_makes_no_second_controller_while_none_starts(
    steps: list[tuple[str, str, float, float]], seed: int
) -> None:
    quiet = [step for step in steps if step[0] in {"pause", "cut", "lose", "slow", "away"}]
    with contending("abc", seed) as world:
        world.pass_time(20.0)
        world.board.delete()
        play(world, quiet)


def test_the_schedules_find_a_holder_that_acts_for_too_long() -> None:
    """Else they prove nothing."""
    wrong = object.__new__(LeaseTiming)
    for name, value in (
        ("lease_duration", 15.0),
        ("renew_deadline", 60.0),
        ("retry_period", 2.0),
        ("deadline", 3.0),
        ("gap", 8.0),
    ):
        object.__setattr__(wrong, name, value)
    with contending("abc", 3, wrong) as world:
        world.pass_time(10.0)
        (first,) = world.acting()
        with pytest.raises(AssertionError, match="two may act"):
            play(world, [("cut", first, 40.0, 40.0)])


# -- one story each --------------------------------------------------------------------------------


def test_a_holder_that_leaves_is_followed_within_three_seconds() -> None:
    for seed in range(10):
        with contending("abc", seed) as world:
            world.pass_time(10.0)
            (first,) = world.acting()
            world.leave(first)
            world.pass_time(3.0)
            assert len(world.acting()) == 1


def test_a_lone_replica_that_is_killed_and_starts_again_acts_at_once() -> None:
    with contending("a", 1) as world:
        world.pass_time(5.0)
        world.kill("a")
        world.start("a")
        world.pass_time(1.0)
        assert world.acting() == ["a"]


def test_a_paused_holder_does_not_act_on_waking_and_contends_again() -> None:
    with contending("ab", 1) as world:
        world.pass_time(10.0)
        (first,) = world.acting()
        held = world.contenders[first].holder
        world.pause(first, 25.0)
        world.pass_time(24.75)
        assert world.acting() == [name for name in "ab" if name != first]
        assert not held.may_act()
        world.pass_time(10.0)
        assert world.acting() == [name for name in "ab" if name != first]
        assert world.contenders[first].holder is not held


def test_the_holder_stays_the_holder_while_the_api_server_is_away() -> None:
    for seed in range(10):
        with contending("abc", seed) as world:
            world.pass_time(10.0)
            (first,) = world.acting()
            held = world.contenders[first].holder
            world.set_for("away", value=True, seconds=120.0)
            world.pass_time(60.0)
            assert world.acting() == []
            assert held.holds
            world.pass_time(70.0)
            assert world.acting() == [first]
            assert world.contenders[first].holder is held


def test_a_process_that_finds_no_room_in_etcd_takes_no_other_for_dead() -> None:
    with contending("ab", 1) as world:
        world.pass_time(10.0)
        world.set_for("read_only", value=True, seconds=60.0)
        world.pass_time(59.0)
        assert world.acting() == []
        world.pass_time(5.0)
        assert len(world.acting()) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_dead_controllers_lease_is_taken_when_it_expires_and_not_at_the_next_read(
    seed: int,
) -> None:
    with contending("ab", seed) as world:
        world.board.slow = 0.0
        world.pass_time(10.0)
        (first,) = world.acting()
        (other,) = {"a", "b"} - {first}
        world.kill(first)
        world.pass_time(5.0)
        ago = present(world.contenders[other].holder.renewal_seen_ago())
        seen_at = world.work.now - ago
        while not world.acting():
            world.pass_time(STEP)
        assert 15.0 <= world.work.now - seen_at < 15.4 + STEP


def test_others_learn_who_holds_it_and_whether_it_renews() -> None:
    with contending("ab", 1) as world:
        world.pass_time(10.0)
        (first,) = world.acting()
        (other,) = {"a", "b"} - {first}
        waiting = world.contenders[other].holder
        seen: list[Candidate | None] = []
        waiting.on_change(lambda: seen.append(waiting.other()))
        named = present(waiting.other())
        assert (named.name, named.address) == (first, f"{first}:1")
        assert waiting.renewed_within(10.0)
        ago = present(waiting.renewal_seen_ago())
        assert ago < 3.0
        world.kill(first)
        world.pass_time(20.0)
        assert seen == [None]  # it is its own now
        assert waiting.holds


def leaving_moments(world: ElectionWorld, name: str, seconds: float) -> list[float]:
    """When a gateway whose relay has just ended leaves its agents, in seconds from now."""
    holder, began, moments = world.contenders[name].holder, world.work.now, []
    gateway = UnservedGateway(0.0)
    while world.work.now - began < seconds:
        other = holder.other()
        if gateway.leaves_agents(
            world.work.now - began,
            relayed=world.work.now == began,
            busy=False,
            controller=other,
            renewed_within=holder.renewed_within,
        ):
            moments.append(world.work.now - began)
        world.pass_time(0.5)
    return moments


@pytest.mark.parametrize("seed", range(8))
def test_gateways_keep_their_agents_while_a_dead_controllers_lease_expires(seed: int) -> None:
    with contending("abc", seed) as world:
        world.pass_time(10.0 + seed / 4)
        (first,) = world.acting()
        world.kill(first)
        gateway = sorted({"a", "b", "c"} - {first})[seed % 2]
        assert leaving_moments(world, gateway, 20.0) == [], "another has held it for 3 s at least"


def test_a_gateway_that_is_cut_from_a_controller_at_work_leaves_its_agents() -> None:
    with contending("ab", 1) as world:
        world.pass_time(10.0)
        (first,) = world.acting()
        (other,) = {"a", "b"} - {first}
        moments = leaving_moments(world, other, 15.0)
        assert 10.0 <= moments[0] <= 13.0
        assert world.acting() == [first]


def test_a_gateway_that_does_not_reach_the_next_controller_leaves_after_half_a_minute() -> None:
    with contending("abc", 1) as world:
        world.pass_time(10.0)
        (first,) = world.acting()
        world.kill(first)
        gateway = next(name for name in "abc" if name != first)
        moments = leaving_moments(world, gateway, 70.0)
        assert world.acting() != [gateway], "with this seed it is the next controller itself"
        assert 15.0 + 30.0 <= moments[0] <= 17.0 + 30.0 + 3.0


class Overloaded:
    """A store that has shown another's Lease once, and wants to be left alone since."""

    def __init__(self) -> None:
        self.requests: list[float] = []

    async def read(self) -> Lease | None:
        self.requests.append(asyncio.get_running_loop().time())
        if len(self.requests) == 1:
            return Lease(Candidate("b", "b-1"), "1")
        raise LeaseStoreError("too many requests", retry_after=40.0)

    async def write(self, draft: Draft) -> Lease:
        raise AssertionError(draft)


class OftenBusy:
    """A store that refuses every second renewal, and names a long pause."""

    def __init__(self) -> None:
        self.renewals = 0

    async def read(self) -> Lease | None:
        return None

    async def write(self, draft: Draft) -> Lease:
        self.renewals += 1
        if self.renewals % 2 == 0:
            raise LeaseStoreError("too many requests", retry_after=60.0)
        return Lease(draft.holder, str(self.renewals), "uid", draft.transitions)


@virtual_time.in_virtual_time
async def test_a_holder_goes_on_where_the_server_names_a_pause_beyond_its_deadline() -> None:
    holder = LeaseHolder(Candidate("a", "a-1"), OftenBusy(), clock=asyncio.get_running_loop().time)
    running = asyncio.create_task(holder.run())
    await holder.acquired()
    for _ in range(100):
        assert holder.may_act()
        await asyncio.sleep(1)
    running.cancel()


@virtual_time.in_virtual_time
async def test_the_end_of_anothers_lease_does_not_shorten_the_pause_that_the_server_named() -> None:
    store, loop = Overloaded(), asyncio.get_running_loop()
    holder = LeaseHolder(Candidate("a", "a-1"), store, clock=loop.time)
    running = asyncio.create_task(holder.run())
    await asyncio.sleep(200)
    running.cancel()
    pauses = [after - before for before, after in pairwise(store.requests[1:])]
    assert len(pauses) >= 3
    assert min(pauses) >= 40.0
