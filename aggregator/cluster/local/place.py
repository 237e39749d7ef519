"""Where a cluster without Kubernetes keeps its state: one replica's file, or a shared database."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aggregator.cluster.local.store import ClusterStore, LocalStore
from aggregator.cluster.port import RecordPlace
from aggregator.leader.lease import LeaseStore


class ClosableLease(LeaseStore, Protocol):
    """A Lease with a connection of its own."""

    async def close(self) -> None: ...


class StorePlace(Protocol):
    """``lease``: the store of the replicas' Lease, by the seconds for one request; None where there
    is one replica.
    """

    @property
    def record_place(self) -> RecordPlace: ...

    @property
    def lease(self) -> Callable[[float], ClosableLease] | None: ...

    def open(self, wall: Callable[[], float]) -> ClusterStore:
        """Blocking. Raises `Refused` or `Unreachable`."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Implements `StorePlace` on a SQLite file."""

    path: Path

    @property
    def record_place(self) -> RecordPlace:
        empty = "UPDATE record SET text = '', version = version + 1"
        return RecordPlace(
            f"table record of {self.path}", f'sqlite3 {shlex.quote(str(self.path))} "{empty}"'
        )

    @property
    def lease(self) -> None:
        return None

    def open(self, wall: Callable[[], float]) -> ClusterStore:
        return LocalStore(self.path, wall=wall)
