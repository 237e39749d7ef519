"""A cluster in memory with the API server's own semantics, and a crash wherever a test wants one.

Versions count up at every change that changes something; a write with another version is a
`Conflict`; a patch that changes nothing leaves the version alone. Death may strike before or after
the n-th call: what a killed process leaves behind is exactly what was written until then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from aggregator.quarantine.cluster import (
    ClusterError,
    Conflict,
    Evicted,
    EvictionResult,
    News,
    Node,
    NodeChange,
    NodeMeta,
    NodeUncordoned,
    NotFound,
    Phase,
    Pod,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    QuarantineSpec,
    QuarantineStatus,
    RecordPlace,
    RecordSeen,
    RecordText,
    ViewRestored,
)

T = TypeVar("T")


@dataclass
class World:
    """What outlives the aggregator: the cluster's objects, and every write in order."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    record: RecordText = field(default_factory=lambda: RecordText("", "1", ""))
    budget_blocks: set[str] = field(default_factory=set)  # pod uids
    evicted: list[str] = field(default_factory=list)  # pod uids, each 2xx
    forced: list[str] = field(default_factory=list)  # pod uids that were deleted past a budget
    writes: list[str] = field(default_factory=list)
    announced: list[tuple[str, bool]] = field(default_factory=list)
    definition_going: bool = False
    clock: int = 1
    listeners: list["asyncio.Queue[News]"] = field(default_factory=list)
    #: Whether a cache shows each node as it was before its last change.
    cache_lags: bool = False
    _before: dict[str, Node] = field(default_factory=dict)

    def tick(self) -> str:
        self.clock += 1
        return str(self.clock)

    def add_node(self, name: str, **changes: object) -> None:
        node = Node(name, f"uid-{name}", self.tick(), False, (), {}, {}, "boot-1", True)
        self.nodes[name] = replace(node, **changes)  # type: ignore[arg-type]  # a test's words

    def add_pod(self, node: str, name: str, **changes: object) -> Pod:
        pod = Pod(
            "jobs", name, f"uid-{name}", self.tick(), "Running", False, False, "Job", "j", False
        )
        pod = replace(pod, node=node)
        pod = replace(pod, **changes)  # type: ignore[arg-type]  # a test's words
        self.pods[f"{node}/{name}"] = pod
        return pod

    def kubelets_finish(self) -> None:
        """The pods that were told to go are gone."""
        for key, pod in list(self.pods.items()):
            if pod.deleting:
                del self.pods[key]

    def tell(self, news: News) -> None:
        for listener in self.listeners:
            listener.put_nowait(news)

    def set_node(self, node: Node) -> None:
        before = self.nodes.get(node.name)
        if before is not None:
            self._before[node.name] = before
        self.nodes[node.name] = replace(node, version=self.tick())
        if before is not None and before.unschedulable and not node.unschedulable:
            self.tell(NodeUncordoned(node.name))

    def cached_node(self, name: str) -> Node | None:
        """What a cache says: it may be behind, and tell of a node that has gone."""
        now = self.nodes.get(name)
        return self._before.get(name, now) if self.cache_lags else now

    def put_quarantine(self, quarantine: Quarantine) -> Quarantine:
        written = replace(quarantine, version=self.tick())
        self.quarantines[quarantine.node] = written
        self.tell(QuarantineSeen(written))
        return written

    def renew_node(self, name: str, boot_id: str) -> None:
        """The Node is deleted, and another one of its name is made."""
        before = self._before[name] = self.nodes.pop(name)
        if before.unschedulable:
            self.tell(NodeUncordoned(name))
        self.add_node(name, uid=f"uid-{self.tick()}-{name}", boot_id=boot_id)

    # -- what people do ------------------------------------------------------------

    def person_cordons(self, name: str) -> None:
        self.set_node(replace(self.nodes[name], unschedulable=True))

    def person_uncordons(self, name: str) -> None:
        self.set_node(replace(self.nodes[name], unschedulable=False))

    def person_annotates(self, name: str, key: str, value: str | None) -> None:
        """None takes the annotation away; what is so already is no change."""
        node = self.nodes[name]
        kept = {k: v for k, v in node.annotations.items() if k != key}
        if value is not None:
            kept[key] = value
        if kept != node.annotations:
            self.set_node(replace(node, annotations=kept))

    def person_deletes(self, name: str) -> None:
        quarantine = self.quarantines[name]
        if quarantine.has_finalizer:
            self.put_quarantine(replace(quarantine, deleting=True))
        else:
            del self.quarantines[name]
            self.tell(QuarantineGone(name, quarantine.uid))

    def person_removes_by_force(self, name: str) -> None:
        """Strips the finalizer, and deletes."""
        quarantine = self.quarantines.pop(name)
        self.tell(QuarantineGone(name, quarantine.uid))

    def person_creates(self, name: str, spec: QuarantineSpec) -> None:
        uid = f"q-{self.tick()}"
        self.put_quarantine(
            Quarantine(name, uid, "0", spec, QuarantineStatus(), has_finalizer=False)
        )

    def person_stops(self, reason: str) -> None:
        self.record = replace(self.record, stop=reason, version=self.tick())
        self.tell(RecordSeen(self.record))


class MemoryCluster:
    """One process's connection to a `World`. ``crash_at`` counts its calls; None: never."""

    kind = "memory"
    lists_all = True
    record_place = RecordPlace("memory", "empty it")

    def __init__(
        self,
        world: World,
        *,
        crash_at: int | None = None,
        after: bool = False,
        fails: Callable[[str], ClusterError | None] = lambda _: None,
        loses: Callable[[str], ClusterError | None] = lambda _: None,
    ) -> None:
        """``fails`` is asked before each call, by its name: an error is raised, nothing is done.

        ``loses`` is asked after it: what was asked for is done, and its answer is an error.
        """
        self.world = world
        self._fails = fails
        self._loses = loses
        self.calls = 0
        #: Whether what a call brings about is told as news before the call returns.
        self.answers_late = False
        self.crashed = asyncio.Event()
        self._crash_at = crash_at
        self._after = after

    async def _call(self, name: str, effect: Callable[[], T]) -> T:
        """Yield to others, as the network does; then do it, unless the process is dead."""
        await asyncio.sleep(0)
        if not self.crashed.is_set():
            self.calls += 1
            failure = self._fails(name)
            if failure is not None:
                raise failure
            strikes = self._crash_at == self.calls
            result = effect() if self._after or not strikes else None
            if self.answers_late:
                for _ in range(20):
                    await asyncio.sleep(0)
            if not strikes:
                lost = self._loses(name)
                if lost is not None:
                    raise lost
                return cast("T", result)
            self.crashed.set()
        await asyncio.Event().wait()  # a dead process does nothing more, and no handler runs
        raise AssertionError(name)

    def crash_in(self, calls: int, *, after: bool) -> None:
        """Die at the so-manieth call from now, before or after it is done."""
        self._crash_at, self._after = self.calls + calls, after

    # -- the protocol -----------------------------------------------------------------

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    async def news(self) -> AsyncIterator[News]:
        queue: asyncio.Queue[News] = asyncio.Queue()
        self.world.listeners.append(queue)
        yield RecordSeen(self.world.record)
        for quarantine in list(self.world.quarantines.values()):
            yield QuarantineSeen(quarantine)
        yield ViewRestored(
            frozenset(node.name for node in self.world.nodes.values() if node.unschedulable)
        )
        while True:
            news = await queue.get()
            if self.crashed.is_set():
                await asyncio.Event().wait()
            yield news

    async def list_nodes(self) -> list[NodeMeta]:
        def effect() -> list[NodeMeta]:
            return [
                NodeMeta(node.name, node.uid, node.labels, node.annotations)
                for node in self.world.nodes.values()
            ]

        return await self._call("list_nodes", effect)

    async def read_record(self) -> RecordText:
        return await self._call("read_record", lambda: self.world.record)

    async def write_record(self, text: str, version: str) -> RecordText:
        def effect() -> RecordText:
            if self.world.record.version != version:
                raise Conflict("record")
            self.world.record = replace(self.world.record, text=text, version=self.world.tick())
            self.world.writes.append("record")
            self.world.tell(RecordSeen(self.world.record))
            return self.world.record

        return await self._call("write_record", effect)

    async def create_quarantine(self, node: str, spec: QuarantineSpec) -> Quarantine:
        def effect() -> Quarantine:
            if node in self.world.quarantines:
                raise Conflict("exists")
            self.world.writes.append(f"create {node}")
            uid = f"q-{self.world.tick()}"
            return self.world.put_quarantine(Quarantine(node, uid, "0", spec, QuarantineStatus()))

        return await self._call("create_quarantine", effect)

    async def read_quarantine(self, node: str) -> Quarantine | None:
        return await self._call("read_quarantine", lambda: self.world.quarantines.get(node))

    def _standing(self, quarantine: Quarantine) -> Quarantine:
        now = self.world.quarantines.get(quarantine.node)
        if now is None or now.uid != quarantine.uid:
            raise NotFound("quarantine")
        if now.version != quarantine.version:
            raise Conflict("quarantine")
        return now

    async def write_quarantine_spec(
        self, quarantine: Quarantine, spec: QuarantineSpec
    ) -> Quarantine:
        def effect() -> Quarantine:
            now = self._standing(quarantine)
            self.world.writes.append(f"spec {now.node}")
            return self.world.put_quarantine(replace(now, spec=spec))

        return await self._call("write_quarantine_spec", effect)

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        def effect() -> Quarantine:
            now = self._standing(quarantine)
            self.world.writes.append(f"status {now.node} {status.phase}")
            return self.world.put_quarantine(replace(now, status=status))

        return await self._call("write_quarantine_status", effect)

    async def add_finalizer(self, quarantine: Quarantine) -> Quarantine:
        def effect() -> Quarantine:
            now = self._standing(quarantine)
            self.world.writes.append(f"finalizer {now.node}")
            return self.world.put_quarantine(replace(now, has_finalizer=True))

        return await self._call("add_finalizer", effect)

    async def drop_quarantine(self, quarantine: Quarantine) -> None:
        def effect() -> None:
            now = self.world.quarantines.get(quarantine.node)
            if now is None or now.uid != quarantine.uid:
                return
            del self.world.quarantines[quarantine.node]
            self.world.writes.append(f"drop {quarantine.node}")
            self.world.tell(
                QuarantineGone(quarantine.node, quarantine.uid, self.world.definition_going)
            )

        await self._call("drop_quarantine", effect)

    async def definition_is_going(self) -> bool:
        return await self._call("definition_is_going", lambda: self.world.definition_going)

    async def read_node(self, name: str, *, cached: bool = False) -> Node | None:
        def effect() -> Node | None:
            found = self.world.cached_node(name) if cached else None
            return found or self.world.nodes.get(name)

        return await self._call("read_node", effect)

    async def patch_node(self, node: Node, change: NodeChange) -> Node:
        def effect() -> Node:
            now = self.world.nodes.get(node.name)
            if now is None:
                raise NotFound("node")
            if now.version != node.version or now.uid != node.uid:
                raise Conflict("node")
            after = replace(
                now,
                taints=now.taints if change.taints is None else change.taints,
                unschedulable=(
                    now.unschedulable if change.unschedulable is None else change.unschedulable
                ),
                labels=_merged(now.labels, change.labels),
                annotations=_merged(now.annotations, change.annotations),
            )
            self.world.writes.append(f"patch {node.name}")
            if after != now:
                self.world.set_node(after)
            return self.world.nodes[node.name]

        return await self._call("patch_node", effect)

    async def pods_on(self, node: str) -> list[Pod]:
        def effect() -> list[Pod]:
            prefix = f"{node}/"
            return [pod for key, pod in self.world.pods.items() if key.startswith(prefix)]

        return await self._call("pods_on", effect)

    async def pods_labelled(self, namespace: str, label: str, value: str) -> list[Pod]:
        def effect() -> list[Pod]:
            return [
                pod
                for pod in self.world.pods.values()
                if pod.namespace == namespace and pod.labels.get(label) == value
            ]

        return await self._call("pods_labelled", effect)

    async def delete_pod(self, pod: Pod, *, grace: int) -> EvictionResult:
        def effect() -> EvictionResult:
            assert grace >= 1
            key = next((k for k, p in self.world.pods.items() if p.uid == pod.uid), None)
            if key is None or self.world.pods[key].version != pod.version:
                return EvictionResult(Evicted.GONE)
            self.world.forced.append(pod.uid)
            self.world.writes.append(f"delete {pod.uid}")
            self.world.pods[key] = replace(pod, deleting=True, version=self.world.tick())
            return EvictionResult(Evicted.ACCEPTED)

        return await self._call("delete_pod", effect)

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> EvictionResult:
        def effect() -> EvictionResult:
            key = next((k for k, p in self.world.pods.items() if p.uid == pod.uid), None)
            if key is None or self.world.pods[key].version != pod.version:
                return EvictionResult(Evicted.GONE)
            if pod.uid in self.world.budget_blocks:
                return EvictionResult(Evicted.BLOCKED, "the budget of jobs/j needs it")
            if dry_run:
                return EvictionResult(Evicted.ACCEPTED)
            self.world.evicted.append(pod.uid)
            self.world.writes.append(f"evict {pod.uid}")
            self.world.pods[key] = replace(pod, deleting=True, version=self.world.tick())
            return EvictionResult(Evicted.ACCEPTED)

        return await self._call("evict", effect)

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        def effect() -> None:
            self.world.announced.append((node, quarantined))

        await self._call("announce", effect)


def _merged(before: object, change: object) -> dict[str, str]:
    assert isinstance(before, dict)
    assert isinstance(change, dict)
    merged = {**before, **change}
    return {key: value for key, value in merged.items() if value is not None}


def phase_of(world: World, node: str) -> Phase | None:
    """The phase of the node's quarantine; None when it has none."""
    quarantine = world.quarantines.get(node)
    return quarantine.status.phase if quarantine is not None else None
