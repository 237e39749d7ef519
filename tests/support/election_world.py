"""Replicas that contend for one Lease: each a process with a clock of its own, in one virtual time.

Requests to the store are lost, late, carried out after their sender has given up, or answered while
it is paused.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from aggregator.leader.election import TIMES, LeaseTiming
from aggregator.leader.holder import LeaseHolder
from aggregator.leader.lease import (
    Candidate,
    Draft,
    Lease,
    LeaseConflict,
    LeaseNotFound,
    LeaseStoreError,
)
from tests.support.virtual_processes import Clockwork, Process

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
                assert len(acting) <= 1, f"two may act: {acting}: {self.told}"

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
