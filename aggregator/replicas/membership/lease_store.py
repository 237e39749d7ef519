"""The store of the replicas' Leases: a few objects that all can read, each written by its owner.

Its guarantees: a write is refused unless the Lease is at the version that it names, and a list
shows every write that had been accepted when it was asked for (no cache).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aggregator.replicas.membership.view import Member


class LeaseStoreError(Exception):
    """The store did not answer, or refused. ``retry_after``: seconds, where the store named
    them.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LeaseConflict(LeaseStoreError):
    """The Lease is at another version, or exists already: another writer changed it in between."""


class LeaseNotFound(LeaseStoreError):
    """The Lease does not exist (any more)."""


class LeaseForbidden(LeaseStoreError):
    """We have no permission for it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One replica's Lease as it was read. ``version`` changes with each write."""

    member: Member
    version: str
    leaving: bool = False
    """Its holder left in order, after its last action, so no replica needs to wait for it."""


class LeaseStore(Protocol):
    """Each method is one request, answered or failed within `LeaseTiming.deadline`; it never
    retries by itself.
    """

    async def list(self) -> Sequence[Lease]:
        """All Leases of replicas. Raises `LeaseStoreError`."""

    async def write(self, member: Member, version: str, *, leaving: bool = False) -> Lease:
        """Write the Lease of ``member``, which must be at ``version``; empty: create it.

        A Lease that is gone may be created again instead. Raises `LeaseConflict`, `LeaseNotFound`
        or, where the write may have succeeded, or may still succeed, another `LeaseStoreError`.
        """
