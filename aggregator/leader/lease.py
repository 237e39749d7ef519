"""The Lease that all replicas share, and its store.

The store's guarantees: a write is refused unless the Lease is at the version that it names; a read
shows every write that had been accepted when it was sent (no cache).
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica, as the Lease describes its holder."""

    name: str
    """Stable over restarts: the pod's name in its StatefulSet."""
    epoch: str = ""
    """Random, of this life of the process."""
    address: str = ""
    """host:port of its gRPC listener."""
    page: str = ""
    """Base URL of its page and API, such as https://host:8443."""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """The Lease as it was read. ``holder`` is None after its holder released it.

    ``version`` changes with each write, ``uid`` where it was deleted and made anew.
    """

    holder: Candidate | None
    version: str
    uid: str = ""
    transitions: int = 0


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


@dataclass(frozen=True, slots=True)
class Draft:
    """A write: the Lease must be at ``version``; empty: create it. ``acquires``: it changes
    hands.
    """

    holder: Candidate | None
    version: str
    transitions: int
    acquires: bool


class LeaseStore(Protocol):
    """Each method is one request, answered or failed within `LeaseTiming.deadline`; it never
    retries by itself.
    """

    async def read(self) -> Lease | None:
        """None: there is none. Raises `LeaseStoreError`."""

    async def write(self, draft: Draft) -> Lease:
        """A Lease that is gone may be created again instead. Raises `LeaseConflict`,
        `LeaseNotFound` or, where the write may have succeeded, or may still succeed, another
        `LeaseStoreError`.
        """
