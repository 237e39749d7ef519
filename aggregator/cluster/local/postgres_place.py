"""PostgreSQL as the place of a cluster without Kubernetes."""

from collections.abc import Callable
from dataclasses import dataclass

from aggregator.cluster.local.postgres_lease import PostgresLease
from aggregator.cluster.local.postgres_rows import SCHEMA, PostgresRows
from aggregator.cluster.local.store import ClusterStore
from aggregator.cluster.port import RecordPlace
from aggregator.runtime.database import Engine


@dataclass(frozen=True, slots=True)
class PostgresPlace:
    """Implements `StorePlace`. ``engine`` makes a connection for what it is named for."""

    name: str
    engine: Callable[[str], Engine]

    @property
    def record_place(self) -> RecordPlace:
        empty = f"UPDATE {SCHEMA}.record SET text = '', version = version + 1"  # noqa: S608
        return RecordPlace(f"table {SCHEMA}.record of {self.name}", f'psql -c "{empty}"')

    @property
    def lease(self) -> Callable[[float], PostgresLease]:
        return lambda deadline: PostgresLease(lambda: self.engine("lease"), deadline=deadline)

    def open(self, wall: Callable[[], float]) -> ClusterStore:
        rows = PostgresRows(self.engine("cluster"))
        rows.changed_elsewhere()  # connects, and makes the tables
        return ClusterStore(rows, wall=wall)
