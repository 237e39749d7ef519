"""Acting without Kubernetes: on the local cluster's own file, which the aggregator looks at too."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aggregator.local.store import Store
from aggregator.quarantine.cluster import ClusterError, Conflict, QuarantineSpec
from aggregator.ward import acting
from aggregator.ward.errors import UsageError, WardError


class LocalHands:
    """`Hands` on the database at ``path``. Raises UsageError where there is none."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError(
                f"--local: there is no database at {path}; expected the aggregator's "
                "cluster.local.database"
            )
        self._path = path

    def stop(self, reason: str) -> str:
        with self._store() as store:
            before = store.record().stop
            store.set_stop(reason)
            return acting.stopped(before, reason)

    def resume(self) -> str:
        with self._store() as store:
            before = store.record().stop
            store.set_stop("")
            return acting.resumed(before)

    def release(self, node: str) -> str:
        with self._store() as store:
            found = store.quarantine(node)
            if found is None:
                raise WardError(acting.none_such(node))
            store.delete_quarantine(node)
            return acting.released(node, found.spec.reason)

    def quarantine(self, node: str, spec: QuarantineSpec) -> str:
        with self._store() as store:
            try:
                store.create_quarantine(node, spec, finalizer=False)
            except Conflict as error:
                found = store.quarantine(node)
                if found is None:
                    raise
                raise WardError(acting.already(node, found.spec)) from error
            return acting.quarantined(node, spec)

    @contextmanager
    def _store(self) -> Iterator[Store]:
        try:
            store = Store(self._path, wall=time.time)
            try:
                yield store
            finally:
                store.close()
        except ClusterError as error:
            raise WardError(f"{error}") from error
