"""The table of operations of a local cluster: in its file, and in PostgreSQL."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.cluster.local.operation_table import OperationTable
from aggregator.cluster.local.store import ClusterStore, LocalStore
from aggregator.cluster.port import (
    Action,
    Conflict,
    Operation,
    OperationSpec,
    OperationStatus,
    QuarantineSpec,
    RepairState,
)
from aggregator.config.shared_store import shared_place
from aggregator.history.engine import DatabaseCredentials
from tests.support.postgres import PostgresServer
from tests.support.present import present


def test_a_name_is_taken_once_and_each_write_has_its_fence(tmp_path: Path) -> None:
    written_by_two(LocalStore(tmp_path / "x", wall=lambda: 5.0) for _ in range(2))


def test_it_is_so_in_postgresql_too(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    place = shared_place(url, DatabaseCredentials(postgres.password_file))
    written_by_two(place.open(lambda: 5.0) for _ in range(2))


def written_by_two(stores: Iterable[ClusterStore]) -> None:
    """Two processes on the same tables."""
    store, other = stores
    quarantine = store.create_quarantine(
        "n1", QuarantineSpec(Action.DRAIN, "gpu", "x"), finalizer=True
    )
    spec = OperationSpec("n1", "reboot", quarantine.uid, requester="sickbay", reason="x")
    first, second = store.operations, other.operations
    made = first.create("n1-1", spec)
    assert (made.spec, made.status, made.created_at) == (spec, OperationStatus(), 5.0)
    with pytest.raises(Conflict):
        second.create("n1-1", spec)
    ordering = OperationStatus(
        RepairState.ORDERING,
        quarantine=quarantine.uid,
        number=1,
        boot_id="b1",
        domains=("rack=1",),
        began_at=6.0,
        deadline_at=60.0,
    )
    written = second.write_status(made, ordering)
    assert replace(written.status, conditions=()) == ordering
    assert [one.type for one in written.status.conditions] == ["Admitted", "Complete"]
    with pytest.raises(Conflict):
        first.write_status(made, OperationStatus(RepairState.CANCELLED))
    [found] = first.of("n1")
    assert found == written
    for read in (
        store.quarantine("n1"),
        store.quarantines()[0],
        store.write_quarantine(quarantine),
    ):
        assert read is not None
        assert [one.operation for one in read.status.repair.attempts] == ["n1-1"]
    with pytest.raises(Conflict):
        first.drop(made)
    a_person_cancels(first, second, written)
    store.close()
    other.close()


def a_person_cancels(first: OperationTable, second: OperationTable, begun: Operation) -> None:
    """One that has begun is to be cancelled; a request that has not is gone."""
    spec = replace(begun.spec, quarantine="", requester="ann")
    asked = second.create("ask", spec)
    # The aggregator reports meanwhile why it waits, or begins it.
    first.write_status(asked, replace(asked.status, message="the rack is full"))
    second.cancel(asked)
    assert first.read("ask") is None
    asked = second.create("ask", spec)
    first.write_status(asked, replace(asked.status, phase=RepairState.ORDERING))
    second.cancel(asked)
    late = present(first.read("ask"))
    assert late.deleting
    first.drop(late)
    second.create("ask", spec)
    second.cancel(asked)  # another object has its name by now
    again = present(first.read("ask"))
    assert not again.deleting
    first.drop(again)
    second.cancel(begun)
    cancelled = present(first.read(begun.name))
    assert cancelled.deleting
    with pytest.raises(Conflict):
        first.write_status(begun, begun.status)
    removed_once(first, second, cancelled)


def removed_once(first: OperationTable, second: OperationTable, there: Operation) -> None:
    first.drop(there)
    first.drop(there)
    assert second.all() == []
    again = second.create(there.name, there.spec)
    with pytest.raises(Conflict):  # an older object of that name
        first.drop(replace(there, version="70"))
    assert second.read(there.name) == again


def test_an_operation_of_a_later_version_has_an_unknown_outcome(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "x", wall=lambda: 5.0)
    made = store.operations.create("n1-1", OperationSpec("n1", "reboot"))
    status = OperationStatus("Paused", quarantine="q", number=3)  # type: ignore[arg-type]
    store.operations.write_status(made, status)
    found = present(store.operations.read("n1-1"))
    assert found.status.phase is RepairState.UNKNOWN
    assert "Paused" in found.status.message
    assert (found.status.quarantine, found.status.number) == ("q", 3), "it keeps its place"
    store.close()
