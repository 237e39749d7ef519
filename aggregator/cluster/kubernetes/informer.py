"""Events of quarantines, uncordons and the record: a complete view, or one reported lost.

Five watches make one view. When one of them can't be followed without a gap the view is lost. All
of them are then listed again, and objects deleted meanwhile are reported as gone. So the listener
never has to check whether it missed something. An error of the record or the stop switch alone
loses no view: releases need neither (`config_maps`).

Nodes that are unschedulable are listed and watched in full, for their taints: no other way shows
who removed our taint, and a read for each of their changes would cost more.

A change of an operation is reported as one of its Quarantine, which is read with its operations.

The order of the lists matters: quarantines before nodes. A node that was cordoned for a quarantine
of the first list is in the second, unless it was uncordoned.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from attrs import define, field

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.config_map_informer import ConfigMapInformer
from aggregator.cluster.kubernetes.crd import DefinitionState, read_definition
from aggregator.cluster.kubernetes.marked_nodes import MarkedNodes
from aggregator.cluster.kubernetes.objects import (
    RECORD_NAME,
    STOP_NAME,
    ConfigMap,
    NodeObject,
    PartialObjectMetadata,
    decode,
    to_record,
    to_stop,
)
from aggregator.cluster.kubernetes.operation_client import RESOURCE as OPERATIONS
from aggregator.cluster.kubernetes.operation_client import decode_operation
from aggregator.cluster.kubernetes.quarantine_codec import decode_quarantine
from aggregator.cluster.kubernetes.reflector import Resource, Watches, WatchEvent
from aggregator.cluster.operations import KnownOperations
from aggregator.cluster.port import (
    ClusterError,
    ClusterEvent,
    NodeSeen,
    NodeUncordoned,
    Operation,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    RecordSeen,
    RecordText,
    StopSeen,
    StopText,
    Unreachable,
    WatchLost,
    WatchSynced,
)
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.tasks import run_until_first_exit

#: Short, as few replicas list, with one request each, and new faults wait for the view.
_BACKOFF = Backoff(first=0.5, most=5.0)
#: A view that held for this long was no failed try: backoff begins anew.
_HELD_S = 10.0

#: Objects decoded before the event loop runs other tasks; about a millisecond.
_SLICE = 100

_NO_RECORD = RecordText(text="", version="")

Emit = Callable[[ClusterEvent], None]


@define(eq=False, repr=False, slots=False)
class ClusterInformer:
    """One listener's view of the cluster. `follow` runs for ever and gives everything to ``emit``.

    ``marked_nodes`` is kept up to date with the nodes in quarantine, and so is ``operations``;
    None: there is no right to them.
    """

    _watches: Watches
    _namespace: str = field(kw_only=True)
    _marked_nodes: MarkedNodes = field(kw_only=True)
    _known_operations: KnownOperations | None = field(alias="operations", kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._transport, self._rng = self._watches.transport, self._watches.rng
        self._clock, watch = self._watches.clock, self._watches.of
        record = watch(_config_map(self._namespace, RECORD_NAME))
        stop = watch(_config_map(self._namespace, STOP_NAME))
        self._record = ConfigMapInformer("the admission record", record, _record_seen, self._rng)
        self._stop = ConfigMapInformer("the stop switch", stop, _stop_seen, self._rng)
        self._quarantines = watch(Resource(paths.QUARANTINES), before_open=self._check_definition)
        self._operations = watch(OPERATIONS)
        self._nodes = watch(Resource(paths.NODES, {"fieldSelector": "spec.unschedulable=true"}))
        #: uid by node of every quarantine that was reported and not reported gone; survives a lost
        #: view.
        self._known: dict[str, str] = {}
        #: Each quarantine as last seen.
        self._seen: dict[str, Quarantine] = {}
        self._unschedulable: set[str] = set()
        self._definition = DefinitionState(uid="", going=False)

    async def follow(self, emit: Emit) -> None:
        """Report the present state, then all changes, for ever. Raises only its cancellation."""
        tries = 0
        lost = ""
        while True:
            began = self._clock()
            try:
                await self._list_all(emit)
                lost = ""
                await self._follow_all(emit)
            except ClusterError as error:
                tries = 1 if self._clock() - began > _HELD_S else tries + 1
                if str(error) != lost:
                    lost = str(error)
                    emit(WatchLost(lost))
                # Full jitter, and never earlier than the server requested.
                pause = _BACKOFF.pause(tries + 1, self._rng)
                await asyncio.sleep((error.retry_after or 0.0) + pause)

    async def _list_all(self, emit: Emit) -> None:
        await self._stop.list(emit)
        await self._record.list(emit)
        before = await read_definition(self._transport)
        if not before.uid:
            self._report_all_gone(emit)
            raise _no_definition()
        if self._known_operations is not None:
            self._known_operations.take_read(await self._list_operations())
        quarantines = [
            decode_quarantine(raw, self._namespace) for raw in await self._quarantines.read_all()
        ]
        await self._report_missing({one.node: one.uid for one in quarantines}, before, emit)
        for one in quarantines:
            self._report_quarantine(one, emit)
        self._unschedulable = await self._list_nodes(emit)
        emit(WatchSynced(frozenset(self._unschedulable)))

    async def _list_operations(self) -> list[Operation]:
        operations = []
        for number, raw in enumerate(await self._operations.read_all(), 1):
            operations.append(decode_operation(raw))
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return operations

    async def _list_nodes(self, emit: Emit) -> set[str]:
        """The names of all unschedulable nodes. Those with a quarantine are reported in full."""
        names: set[str] = set()
        listed = await self._nodes.read_all()
        self._marked_nodes.clear()
        for raw in listed:
            names.add(self._report_node(raw, emit))
            if len(names) % _SLICE == 0:
                await asyncio.sleep(0)
        return names

    def _report_node(self, raw: msgspec.Raw, emit: Emit) -> str:
        """Report an unschedulable node if it has a quarantine; returns its name."""
        name = decode(raw, PartialObjectMetadata).metadata.name
        if name in self._known:
            emit(NodeSeen(self._marked_nodes.take(decode(raw, NodeObject))))
        return name

    async def _report_missing(
        self, now: dict[str, str], before: DefinitionState, emit: Emit
    ) -> None:
        missing = {node: uid for node, uid in self._known.items() if now.get(node) != uid}
        # Read after the list: a definition that was deleted between took its objects along.
        after = await read_definition(self._transport) if missing else before
        with_definition = after.going or after.replaces(self._definition)
        # The earlier reading: if they differ, what we listed may have been the other's, and to
        # take an uninstall for a release is the worse mistake.
        self._definition = before
        for node, uid in missing.items():
            del self._known[node]
            self._seen.pop(node, None)
            emit(QuarantineGone(node, uid, with_definition=with_definition))

    def _report_all_gone(self, emit: Emit) -> None:
        for node, uid in self._known.items():
            emit(QuarantineGone(node, uid, with_definition=True))
        self._known.clear()
        self._seen.clear()

    async def _follow_all(self, emit: Emit) -> None:
        """Follow the watches until one can't be followed; raises its error."""
        await run_until_first_exit(
            kube_news_stop=self._stop.follow(emit),
            kube_news_record=self._record.follow(emit),
            kube_news_quarantines=self._follow_quarantines(emit),
            kube_news_operations=self._follow_operations(emit),
            kube_news_nodes=self._follow_nodes(emit),
        )

    async def _follow_quarantines(self, emit: Emit) -> None:
        async with contextlib.aclosing(self._quarantines.changes()) as batches:
            async for batch in batches:
                # One read serves all that was deleted before it.
                deleted = any(change.type == "DELETED" for change in batch)
                now = await read_definition(self._transport) if deleted else self._definition
                for change in batch:
                    self._report_change(change, now, emit)
                self._expect(now)

    async def _check_definition(self) -> None:
        """A watch that ended may have ended with its definition: then a new one starts afresh."""
        self._expect(await read_definition(self._transport))

    def _expect(self, now: DefinitionState) -> None:
        """Raises where the definition is no longer the one that we listed under."""
        if not now.uid:
            raise _no_definition()
        if now.replaces(self._definition):
            raise Unreachable("the definition of quarantines was replaced: listing anew")

    def _report_change(self, change: WatchEvent, definition: DefinitionState, emit: Emit) -> None:
        quarantine = decode_quarantine(change.object, self._namespace)
        if change.type != "DELETED":
            self._report_quarantine(quarantine, emit)
            return
        self._known.pop(quarantine.node, None)
        self._seen.pop(quarantine.node, None)
        with_definition = definition.going or definition.replaces(self._definition)
        emit(QuarantineGone(quarantine.node, quarantine.uid, with_definition=with_definition))

    def _report_quarantine(self, quarantine: Quarantine, emit: Emit) -> None:
        self._known[quarantine.node] = quarantine.uid
        self._seen[quarantine.node] = quarantine
        emit(QuarantineSeen(quarantine))

    async def _follow_operations(self, emit: Emit) -> None:
        known = self._known_operations
        if known is None:
            await asyncio.Event().wait()
        assert known is not None

        def take(change: WatchEvent) -> None:
            operation = decode_operation(change.object)
            if change.type == "DELETED":
                known.drop(operation)
            else:
                known.take(operation)
            # Also where a read has shown it before: no node has received that yet.
            seen = self._seen.get(operation.spec.node)
            if seen is not None:
                emit(QuarantineSeen(seen))

        await self._operations.each(take)

    async def _follow_nodes(self, emit: Emit) -> None:
        def take(change: WatchEvent) -> None:
            if change.type != "DELETED":
                self._unschedulable.add(self._report_node(change.object, emit))
                return
            node = decode(change.object, PartialObjectMetadata).metadata.name
            self._marked_nodes.drop(node)
            if node in self._unschedulable:
                self._unschedulable.discard(node)
                emit(NodeUncordoned(node))

        await self._nodes.each(take)


def _record_seen(raw: msgspec.Raw | None) -> ClusterEvent:
    return RecordSeen(_NO_RECORD if raw is None else to_record(decode(raw, ConfigMap)))


def _stop_seen(raw: msgspec.Raw | None) -> ClusterEvent:
    return StopSeen(StopText() if raw is None else to_stop(decode(raw, ConfigMap)))


def _config_map(namespace: str, name: str) -> Resource:
    return Resource(paths.config_maps(namespace), {"fieldSelector": f"metadata.name={name}"})


def _no_definition() -> Unreachable:
    return Unreachable(
        "the definition of quarantines is gone: apply deploy/kubernetes/crd.yaml", status=404
    )
