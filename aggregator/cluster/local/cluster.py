"""A cluster without Kubernetes: state in a database, an optional command for each step.

It has the same protocol and the same fences: the actor does not know the difference. A quarantine's
taint and "unschedulable" are rows here, and the site's command gives them their effect (`scontrol
update ...`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from aggregator.cluster.capabilities import Capabilities
from aggregator.cluster.local.commands import SiteCommandFailed, run_command
from aggregator.cluster.local.place import ClosableLease, FilePlace, StorePlace
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.local.store import ClusterStore
from aggregator.cluster.node_names import RELEASED
from aggregator.cluster.operations import KnownOperations
from aggregator.cluster.port import (
    ClusterError,
    ClusterEvent,
    Evicted,
    EvictionResult,
    Guard,
    ListedNodeTest,
    Node,
    NodeChange,
    NodeCondition,
    NodeEvent,
    NodeGuard,
    NodeMeta,
    NodeTestCondition,
    NodeUncordoned,
    Operation,
    OperationSpec,
    OperationStatus,
    Pod,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    QuarantineSpec,
    QuarantineStatus,
    RecordPlace,
    RecordSeen,
    RecordText,
    StopSeen,
    StopText,
    WatchLost,
    WatchSynced,
    WrittenConditions,
)
from aggregator.cluster.unread_status import expect_lossless
from aggregator.cluster.words import LOCAL
from aggregator.leader.lease import LeaseStore
from aggregator.policy.node_condition import ReportedConditions
from aggregator.runtime.worker_thread import WorkerThread

#: How soon another process's write (a person's `sickbay --local stop`) is noticed, in seconds.
POLL = 0.25
#: How soon a file that could not be read is tried again, in seconds.
AGAIN = 1.0
#: The record of a drain: the command `cordon` was begun, and no `release` has succeeded since. To
#: Slurm, with which the file may be used later, that is a drain by another.
_CORDON_BEGUN = '{"reason": "", "user": "", "foreign": true}'

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Reported:
    """The state reported so far, so that only differences are reported."""

    quarantines: dict[str, Quarantine]
    unschedulable: frozenset[str]
    record: RecordText
    stop: StopText


class LocalOperations:
    """Implements `Operations`, in the thread of its cluster."""

    def __init__(self, cluster: "LocalCluster") -> None:
        self._cluster = cluster
        #: As of the last change of the state.
        self.known = KnownOperations()

    async def create(self, name: str, spec: OperationSpec) -> Operation:
        made = await self._cluster.write_store(lambda store: store.operations.create(name, spec))
        self.known.take(made)
        return made

    async def adopt(self, operation: Operation) -> Operation:
        """Nothing but its deletion ends a row."""
        return operation

    async def read(self, name: str) -> Operation | None:
        return await self._cluster.read_store(lambda store: store.operations.read(name))

    async def of(self, node: str) -> list[Operation]:
        return await self._cluster.read_store(lambda store: store.operations.of(node))

    async def all(self) -> list[Operation]:
        return await self._cluster.read_store(lambda store: store.operations.all())

    async def write_status(self, operation: Operation, status: OperationStatus) -> Operation:
        written = await self._cluster.write_store(
            lambda store: store.operations.write_status(operation, status)
        )
        self.known.take(written)
        return written

    async def drop(self, operation: Operation) -> None:
        await self._cluster.write_store(lambda store: store.operations.drop(operation))
        self.known.drop(operation)


class LocalCluster:
    """The `Cluster` protocol on a SQLite file, or another ``place``.

    ``command_timeout``: seconds of each command.
    """

    words = LOCAL
    installation = ""
    lists_all = False

    def __init__(
        self,
        place: Path | StorePlace,
        *,
        commands: Commands,
        command_timeout: float = 30.0,
        wall: Callable[[], float],
    ) -> None:
        self._place = FilePlace(place) if isinstance(place, Path) else place
        self._commands = commands
        self._command_timeout = command_timeout
        self._wall = wall
        self._store: ClusterStore | None = None
        self._leases: list[ClosableLease] = []
        # One thread: SQLite has one writer, and a stuck disk must not stop the event loop.
        self._thread = WorkerThread("local-cluster")
        self._changed = asyncio.Event()
        self.operations = LocalOperations(self)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(lease=self._lease if self._place.lease is not None else None)

    def _lease(self, deadline: float) -> LeaseStore:
        assert self._place.lease is not None
        store = self._place.lease(deadline)
        self._leases.append(store)
        return store

    @property
    def record_place(self) -> RecordPlace:
        return self._place.record_place

    async def start(self) -> None:
        self._store = await self._in_thread(self._place.open, self._wall)

    async def close(self) -> None:
        for lease in self._leases:
            await lease.close()
        if self._store is not None:
            await self._in_thread(self._store.close)
        self._thread.stop()

    @property
    def _open(self) -> ClusterStore:
        assert self._store is not None, "start() comes first"
        return self._store

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread.run(function, *args, **kwargs)

    async def _write(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._in_thread(function, *args, **kwargs)
        finally:
            self._changed.set()

    async def read_store(self, work: Callable[[ClusterStore], T]) -> T:
        return await self._in_thread(work, self._open)

    async def write_store(self, work: Callable[[ClusterStore], T]) -> T:
        return await self._write(work, self._open)

    # -- events -------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[ClusterEvent]:
        lost = ""
        while True:
            try:
                async for item in self.poll_nodes():
                    lost = ""
                    yield item
            except ClusterError as error:
                if str(error) != lost:
                    lost = str(error)
                    yield WatchLost(lost)
                await asyncio.sleep(AGAIN)

    async def poll_nodes(self) -> AsyncIterator[ClusterEvent]:
        """The present state, then all changes, until the file can't be read."""
        reported = _Reported({}, frozenset(), RecordText("", ""), StopText())
        seen = -1
        whole = False
        while True:
            version = await self._in_thread(self._open.changed_elsewhere)
            if version != seen or self._changed.is_set():
                seen = version
                self._changed.clear()
                for item in await self._in_thread(self._differences, reported):
                    yield item
            for item in await self.read_changes():
                yield item
            if not whole:
                whole = True
                yield WatchSynced(reported.unschedulable)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._changed.wait()

    async def read_changes(self) -> Sequence[ClusterEvent]:
        """Events of nodes other than the file's; none here."""
        return ()

    def _differences(self, reported: _Reported) -> list[ClusterEvent]:
        news: list[ClusterEvent] = []
        stop = self._open.stop()
        if stop != reported.stop:
            news.append(StopSeen(stop))
            reported.stop = stop
        record = self._open.record()
        if record != reported.record:
            news.append(RecordSeen(record))
        now = {quarantine.node: quarantine for quarantine in self._open.quarantines()}
        for node, before in reported.quarantines.items():
            if node not in now or now[node].uid != before.uid:
                news.append(QuarantineGone(node, before.uid))
        news += [
            QuarantineSeen(q) for node, q in now.items() if reported.quarantines.get(node) != q
        ]
        nodes = frozenset(node.name for node in self._open.nodes() if node.unschedulable)
        news += [NodeUncordoned(name) for name in reported.unschedulable - nodes]
        reported.record, reported.quarantines, reported.unschedulable = record, now, nodes
        known = KnownOperations()
        known.take_read(self._open.operations.all())
        self.operations.known = known
        return news

    # -- the record and the quarantines ---------------------------------------------------

    async def read_record(self) -> RecordText:
        return await self._in_thread(self._open.record)

    async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText:
        await guard()
        return await self._write(self._open.write_record, text, version)

    async def read_stop(self) -> StopText:
        return await self._in_thread(self._open.stop)

    async def create_quarantine(
        self, node: str, spec: QuarantineSpec, *, guard: Guard
    ) -> Quarantine:
        await guard()
        return await self._write(self._open.create_quarantine, node, spec, finalizer=True)

    async def read_quarantine(self, node: str) -> Quarantine | None:
        return await self._in_thread(self._open.quarantine, node)

    async def write_quarantine_spec(
        self, quarantine: Quarantine, spec: QuarantineSpec
    ) -> Quarantine:
        return await self._write(self._open.write_quarantine, replace(quarantine, spec=spec))

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        expect_lossless(quarantine, status)
        return await self._write(self._open.write_quarantine, replace(quarantine, status=status))

    async def add_finalizer(self, quarantine: Quarantine) -> Quarantine:
        return await self._write(
            self._open.write_quarantine, replace(quarantine, has_finalizer=True)
        )

    async def drop_quarantine(self, quarantine: Quarantine, *, guard: Guard) -> None:
        await guard()
        await self._write(self._open.drop_quarantine, quarantine)

    async def definition_is_going(self) -> bool:
        return False

    # -- nodes ------------------------------------------------------------------------------

    async def list_nodes(self) -> list[NodeMeta]:
        nodes = await self._in_thread(self._open.nodes)
        return [NodeMeta(node.name, node.uid, node.labels, node.annotations) for node in nodes]

    def has_condition(self, kind: str) -> bool:
        return False

    async def list_conditions(self, types: Collection[str]) -> list[ReportedConditions]:
        return []  # without Kubernetes there are none

    async def list_node_tests(
        self, taint: str, tested: Collection[str] = ()
    ) -> list[ListedNodeTest]:
        return []  # nor startup taints

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        return await self._in_thread(self._open.node, name)

    async def wait_for_node(self, name: str) -> None:
        """Every node is there: a read of a node adds it to this cluster."""

    async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        """The site's command first, then the row: a crash between them runs the command again.

        A caller that decided on an older read runs no command either.
        """
        await self._in_thread(self._open.expect_node, node)
        after = replace(
            node,
            taints=node.taints if change.taints is None else change.taints,
            unschedulable=(
                node.unschedulable if change.unschedulable is None else change.unschedulable
            ),
            labels=merged(node.labels, change.labels),
            annotations=merged(node.annotations, change.annotations),
        )
        name = node.name
        undoes = change.annotations.get(RELEASED) and await self._in_thread(
            self._open.drain_of, name
        )
        if len(after.taints) > len(node.taints):
            await self._cordon(name, guard)
        elif len(after.taints) < len(node.taints) or undoes:
            await self._run(self._commands.release, name, "release", guard)
            await self._write(self._open.set_drain_of, name, "")
        else:
            await guard()
        return await self._write(self._open.write_node, after)

    async def _cordon(self, name: str, guard: Guard) -> None:
        """The note before the command outlasts one whose success is not known: a release undoes
        that command too.
        """
        await guard()
        before = await self._in_thread(self._open.drain_of, name)
        await self._write(self._open.set_drain_of, name, _CORDON_BEGUN)
        try:
            await self._run(self._commands.cordon, name, "cordon", guard)
        except ClusterError as error:
            if not (isinstance(error, SiteCommandFailed) and error.was_begun):
                await self._write(self._open.set_drain_of, name, before)
            raise

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        """One placeholder pod for the drain command, until that has succeeded."""
        quarantine = await self.read_quarantine(node)
        if quarantine is None or not self._commands.drain:
            return []
        if await self._in_thread(self._open.drained_for, node) == quarantine.uid:
            return []
        return [
            Pod(
                namespace="",
                name=f"the drain command of {node}",
                uid=quarantine.uid,
                version=quarantine.version,
                phase="Running",
                deleting=False,
                mirror=False,
                owner_kind="Command",
                owner_name=node,
                empty_dirs=(),
            )
        ]

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]:
        return []  # the command instead of the pods has no labels

    async def delete_pod(
        self, pod: Pod, *, grace: int, background: bool = False, guard: Guard
    ) -> EvictionResult:
        """A command can't be forced: it is run once more."""
        return await self.evict(pod, background=background, guard=guard)

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard,
    ) -> EvictionResult:
        if dry_run:
            return EvictionResult(Evicted.ACCEPTED)
        quarantine = await self.read_quarantine(pod.owner_name)
        if quarantine is None or quarantine.uid != pod.uid:
            return EvictionResult(Evicted.GONE)
        try:
            await self._run(self._commands.drain, pod.owner_name, "drain", guard)
        except SiteCommandFailed as error:
            return EvictionResult(Evicted.BLOCKED, str(error))
        await self._write(self._open.set_drained_for, pod.owner_name, pod.uid)
        return EvictionResult(Evicted.ACCEPTED)

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        """Without Kubernetes only the history, the page and the webhooks report it."""

    async def write_event(self, event: NodeEvent) -> None:
        """There is no `kubectl describe` of a local node: the page and the history have it."""

    async def write_conditions(
        self,
        node: str,
        *,
        node_uid: str,
        wanted: Mapping[str, NodeCondition | None],
        guard: NodeGuard,
    ) -> WrittenConditions:
        """Without Kubernetes there are none, and the configuration refuses them."""
        return WrittenConditions()

    async def write_test_condition(
        self, node: str, *, node_uid: str, condition: NodeTestCondition, guard: Guard
    ) -> None:
        """Without Kubernetes there are none."""

    async def _run(self, argv: Sequence[str], node: str, action: str, guard: Guard) -> None:
        if not argv:
            await guard()
            return
        quarantine = await self.read_quarantine(node)
        reason = quarantine.spec.reason if quarantine is not None else ""
        values = {"node": node, "action": action, "reason": reason}
        key, limit = f"cluster.local.commands.{action}", self._command_timeout
        await run_command(argv, key=key, values=values, limit=limit, guard=guard)


def merged(before: Mapping[str, str], change: Mapping[str, str | None]) -> dict[str, str]:
    """The labels or annotations after a change; None removes a key."""
    merged = {**before, **change}
    return {key: value for key, value in merged.items() if value is not None}
