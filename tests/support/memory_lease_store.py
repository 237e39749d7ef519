"""A store of Leases in memory, with the faults of a network and the edits of a person."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from aggregator.replicas.membership.lease_store import (
    Lease,
    LeaseConflict,
    LeaseNotFound,
    LeaseStoreError,
)
from aggregator.replicas.membership.view import Member

T = TypeVar("T")


@dataclass
class MemoryBoard:
    """The store of all replicas. Versions count up at every write; a write needs the right one."""

    leases: dict[str, Lease] = field(default_factory=dict)
    clock: int = 0
    read_only: bool = False

    def list(self) -> Sequence[Lease]:
        return list(self.leases.values())

    def write(self, member: Member, version: str, *, leaving: bool) -> Lease:
        if self.read_only:
            raise LeaseStoreError("no space left")
        stands = self.leases.get(member.name)
        if version and stands is None:
            raise LeaseNotFound(f"there is no Lease of {member.name}")
        if (stands.version if stands else "") != version:
            raise LeaseConflict(f"the Lease of {member.name} is at {stands and stands.version}")
        self.clock += 1
        lease = Lease(member, str(self.clock), leaving)
        self.leases[member.name] = lease
        return lease

    def renew_as_another(self, name: str, epoch: str) -> None:
        """Another process writes this replica's Lease."""
        self.clock += 1
        stands = self.leases[name]
        self.leases[name] = replace(
            stands, member=replace(stands.member, epoch=epoch), version=str(self.clock)
        )


async def at_once(_: str) -> None:
    """A network that takes no time."""
    await asyncio.sleep(0)


class Link:
    """One replica's way to the store: ``before`` and ``after`` are awaited around each request,
    with "list" or "write", and may take their time or raise. It fails after ``deadline`` seconds,
    as a client does.
    """

    def __init__(
        self,
        board: MemoryBoard,
        *,
        deadline: float,
        before: Callable[[str], Awaitable[None]] = at_once,
        after: Callable[[str], Awaitable[None]] = at_once,
    ) -> None:
        self._board = board
        self._deadline = deadline
        self.before = before
        self.after = after

    async def list(self) -> Sequence[Lease]:
        return await self._ask("list", self._board.list)

    async def write(self, member: Member, version: str, *, leaving: bool = False) -> Lease:
        return await self._ask("write", lambda: self._board.write(member, version, leaving=leaving))

    async def _ask(self, what: str, act: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._deadline):
                await self.before(what)
                answer = act()
                await self.after(what)
                return answer
        except TimeoutError as error:
            raise LeaseStoreError("no answer in time") from error
