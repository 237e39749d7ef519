"""Where the replicas tell of themselves: a few Leases that all can read, each written by its own.

What it must give: a write is refused unless the Lease is at the version that it names, and a list
shows every write that had been accepted when it was asked for (no cache).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aggregator.shards.council import Member


class BoardError(Exception):
    """The board did not answer, or said no. ``retry_after``: seconds, where it named them."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Taken(BoardError):
    """The Lease is at another version, or is there already: somebody wrote it in between."""


class Missing(BoardError):
    """The Lease is not there (any more)."""


class Forbidden(BoardError):
    """We have no right to it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One replica's Lease as it was read. ``version`` is another after each write."""

    member: Member
    version: str
    leaving: bool = False
    """Its holder went in order, after its last act: nobody need wait for it."""


class LeaseBoard(Protocol):
    """Each method is one request, answered or failed within `Times.deadline`; never asked again
    by itself.
    """

    async def list(self) -> Sequence[Lease]:
        """All Leases of replicas. Raises `BoardError`."""

    async def write(self, member: Member, version: str, *, leaving: bool = False) -> Lease:
        """Write the Lease of ``member``, which must be at ``version``; empty: make it.

        One that is gone may be made anew instead. Raises `Taken`, `Missing` or, where it may have
        been written all the same, or may be yet, another `BoardError`.
        """
