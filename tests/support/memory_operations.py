"""The operations of a `World`, and one process's connection to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aggregator.cluster.operation_conditions import with_conditions
from aggregator.cluster.operations import (
    KnownOperations,
    attempt_of,
    begun_status,
    spec_of,
    with_attempts,
)
from aggregator.cluster.port import (
    Conflict,
    NotFound,
    Operation,
    OperationSpec,
    OperationStatus,
    Quarantine,
    QuarantineSeen,
)

if TYPE_CHECKING:
    from tests.support.memory_cluster import MemoryCluster, World


@dataclass
class OperationShelf:
    """The objects. Each quarantine of the world is kept with the attempts that its own are."""

    world: World
    by_name: dict[str, Operation] = field(default_factory=dict)

    def seed(self, quarantine: Quarantine) -> None:
        """The attempts of a test's own quarantine become its operations, and no others are."""
        attempts = quarantine.status.repair.attempts
        kept = {one.name for one in attempts}
        for found in list(self.by_name.values()):
            if found.status.quarantine == quarantine.uid and found.name not in kept:
                del self.by_name[found.name]
        for number, one in enumerate(attempts, 1):
            spec, there = spec_of(quarantine, one), self.by_name.get(one.name)
            if there is None or attempt_of(there) != one:
                version = self.world.tick()
                uid = there.uid if there is not None else f"o-{version}"
                status = begun_status(quarantine, one, number)
                self.by_name[one.name] = Operation(
                    one.name, uid, version, spec, status, deleting=one.deleted
                )

    def show(self, quarantine: Quarantine) -> Quarantine:
        there = self.by_name.values()
        shown = with_attempts(quarantine, there) if there else quarantine
        self.world.quarantines[quarantine.node] = shown
        self.world.emit(QuarantineSeen(shown))
        return shown

    def store(self, operation: Operation) -> Operation:
        stored = replace(operation, version=self.world.tick())
        self.by_name[stored.name] = stored
        self._changed(stored)
        return stored

    def remove(self, operation: Operation) -> None:
        del self.by_name[operation.name]
        self._changed(operation)

    def person_requests(
        self, node: str, kind: str, name: str, *, profile: str = "", quarantine: str = ""
    ) -> None:
        """`kubectl create -f OPERATION`; the name of another one refuses it."""
        spec, version = OperationSpec(node, kind, quarantine, profile, "ann"), self.world.tick()
        made = Operation(name, f"o-{version}", "0", spec, created_at=self.world.now, held=False)
        if name not in self.by_name:
            self.store(made)

    def person_cancels(self, node: str) -> None:
        """Each of the node that has not ended."""
        for one in list(self.by_name.values()):
            if one.spec.node == node and one.is_open:
                self.person_deletes(one.name)

    def person_deletes(self, name: str) -> None:
        """`kubectl delete operation NAME`: a finalizer keeps one that has begun."""
        there = self.by_name[name]
        if there.held:
            self.store(replace(there, deleting=True))
        else:
            self.remove(there)

    def _changed(self, operation: Operation) -> None:
        found = self.world.quarantines.get(operation.spec.node)
        if found is not None:
            self.show(found)

    def standing(self, operation: Operation) -> Operation:
        """The object that a write is about."""
        now = self.by_name.get(operation.name)
        if now is None or now.uid != operation.uid:
            raise NotFound(operation.name)
        if now.version != operation.version:
            raise Conflict(operation.name)
        return now


class MemoryOperations:
    """Implements `Operations`; each method is a call of its cluster."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    @property
    def _shelf(self) -> OperationShelf:
        return self._cluster.world.operations

    async def create(self, name: str, spec: OperationSpec) -> Operation:
        def effect() -> Operation:
            if name in self._shelf.by_name:
                raise Conflict(name)
            uid = f"o-{self._cluster.world.tick()}"
            self._cluster.world.writes.append(f"operation {spec.node}")
            return self._shelf.store(Operation(name, uid, "0", spec))

        return await self._cluster.call("create_operation", effect)

    async def adopt(self, operation: Operation) -> Operation:
        def effect() -> Operation:
            return self._shelf.store(replace(self._shelf.standing(operation), held=True))

        return await self._cluster.call("adopt_operation", effect)

    @property
    def known(self) -> KnownOperations:
        known = KnownOperations(self._cluster.installation)
        known.take_read(self._shelf.by_name.values())
        return known

    async def read(self, name: str) -> Operation | None:
        return await self._cluster.call("read_operation", lambda: self._shelf.by_name.get(name))

    async def of(self, node: str) -> list[Operation]:
        ours = self._cluster.installation
        return [one for one in await self.all() if one.spec.node == node and one.is_of(ours)]

    async def all(self) -> list[Operation]:
        return await self._cluster.call("list_operations", [*self._shelf.by_name.values()].copy)

    async def write_status(self, operation: Operation, status: OperationStatus) -> Operation:
        def effect() -> Operation:
            now = self._shelf.standing(operation)
            self._cluster.world.writes.append(f"operation {now.spec.node} {status.phase}")
            written = with_conditions(now.status, status, 0.0)
            return self._shelf.store(replace(now, status=replace(written, conditions=())))

        return await self._cluster.call("write_operation", effect)

    async def drop(self, operation: Operation) -> None:
        def effect() -> None:
            if operation.name in self._shelf.by_name:
                self._shelf.remove(self._shelf.standing(operation))

        await self._cluster.call("drop_operation", effect)
