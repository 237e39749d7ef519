"""A cluster in memory with the API server's own semantics, and a crash wherever a test wants one.

Versions count up at every real change; a write with another version is a `Conflict`; a patch
without a change leaves the version alone. The process may be killed before or after the n-th call:
it leaves behind exactly the writes until then.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar, cast

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    ClusterError,
    ClusterEvent,
    Conflict,
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
    NodeSeen,
    NodeTestCondition,
    NodeUncordoned,
    NotFound,
    Operation,
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
    Refused,
    StopSeen,
    StopText,
    WatchLost,
    WatchSynced,
    WrittenConditions,
)
from aggregator.cluster.quarantine_conditions import with_conditions
from aggregator.cluster.unread_status import expect_lossless
from aggregator.cluster.words import KUBERNETES
from aggregator.policy.node_condition import ReportedCondition, ReportedConditions
from aggregator.policy.slurm_reason import SLURM_TYPES
from aggregator.quarantine.decide.uncordon import UNCORDONED_BY
from aggregator.quarantine.repair.protocol import RepairOrder
from tests.support.invariants import Facts, Watch
from tests.support.memory_operations import MemoryOperations, OperationShelf
from tests.support.memory_patch import is_as_expected, merged

T = TypeVar("T")

_ACTING = ("write_record", "create_quarantine", "patch_node", "evict", "delete_pod")
#: Calls that change nothing.
_READS = frozenset(
    {
        "definition_is_going",
        "list_conditions",
        "list_node_tests",
        "list_nodes",
        "list_operations",
        "pods_labelled",
        "pods_on",
        "read_node",
        "read_operation",
        "read_quarantine",
        "read_stop",
    }
)


@dataclass
class World:
    """The state that outlives the aggregator: the cluster's objects, and every write in order."""

    nodes: dict[str, Node] = field(default_factory=dict)
    #: Of other programs, by node and type.
    conditions: dict[str, dict[str, ReportedCondition]] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    record: RecordText = field(default_factory=lambda: RecordText("", "1", "record-1"))
    stop: StopText = field(default_factory=StopText)
    budget_blocks: set[str] = field(default_factory=set)  # pod uids
    rejections: dict[str, EvictionResult] = field(default_factory=dict)  # by pod uid
    without_notes: set[str] = field(default_factory=set)  # namespaces without the right to annotate
    #: Pods ("namespace/name") that their controller makes again on the same node.
    come_back: set[str] = field(default_factory=set)
    evicted: list[str] = field(default_factory=list)  # pod uids, each 2xx
    forced: list[str] = field(default_factory=list)  # pod uids that were deleted past a budget
    writes: list[str] = field(default_factory=list)
    announced: list[tuple[str, bool]] = field(default_factory=list)
    events: list[NodeEvent] = field(default_factory=list)
    #: The nodes' reports of their active tests, and each change of it.
    test_conditions: dict[str, NodeTestCondition] = field(default_factory=dict)
    told_tests: list[tuple[str, str, str]] = field(default_factory=list)
    definition_going: bool = False
    #: The uid of the definition of quarantines; empty: there is none.
    definition: str = "definition-1"
    clock: int = 1
    listeners: list["asyncio.Queue[ClusterEvent]"] = field(default_factory=list)
    #: Whether a cache shows each node as it was before its last change.
    cache_lags: bool = False
    _before: dict[str, Node] = field(default_factory=dict)
    #: Checks the invariants at each act, and what it has to know for that.
    watch: Watch | None = None
    facts: Facts = field(default_factory=Facts)
    #: Set when a node is added; another one waits for the next.
    node_added: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.operations = OperationShelf(self)

    @classmethod
    def of(cls, *names: str, **changes: object) -> Self:
        """A world with these nodes, each with these changes."""
        world = cls()
        for name in names:
            world.add_node(name, **changes)
        return world

    def tick(self) -> str:
        self.clock += 1
        return str(self.clock)

    @property
    def now(self) -> float:
        """The time of the watch; without one it stands still."""
        return self.watch.now() if self.watch is not None else 0.0

    def note_change(self, node: str) -> None:
        """Another party has changed the node, its pods or its quarantine."""
        self.facts.changed_at[node] = self.now

    def add_node(self, name: str, **changes: object) -> None:
        self.note_change(name)
        if name in self.quarantines:
            self.facts.came_back.add(name)
        node = Node(name, f"uid-{name}", self.tick(), False, (), {}, {}, "boot-1", True, "")
        self.nodes[name] = replace(node, **changes)  # type: ignore[arg-type]  # a test's words
        self.node_added.set()
        self.node_added = asyncio.Event()

    def add_pod(self, node: str, name: str, **changes: object) -> Pod:
        pod = Pod("jobs", name, f"uid-{name}", self.tick(), "Running", False, False, "Job", "j", ())
        pod = replace(pod, node=node)
        pod = replace(pod, **changes)  # type: ignore[arg-type]  # a test's words
        self.pods[f"{node}/{name}"] = pod
        self.note_change(node)
        return pod

    def backup(self) -> "Backup":
        """The contents of a copy of etcd's data at this moment."""
        return Backup(
            dict(self.nodes),
            dict(self.pods),
            dict(self.quarantines),
            dict(self.operations.by_name),
            self.record,
            self.clock,
        )

    def restore(self, backup: "Backup") -> None:
        """etcd has these data again: versions move backwards, and every watch breaks."""
        self.nodes, self.pods = dict(backup.nodes), dict(backup.pods)
        self.quarantines, self.record = dict(backup.quarantines), backup.record
        self.operations.by_name = dict(backup.operations)
        self.clock = backup.clock
        self.facts.lose_objects(self.now)
        for pod in self.pods.values():
            if not pod.deleting:
                self.facts.evicted.pop(pod.uid, None)  # it is back, and has to leave once more
        self._before.clear()
        self.interrupt_view("etcd was restored")

    def interrupt_view(self, reason: str) -> None:
        """Every listener loses its view, and gets all objects anew."""
        self.emit(WatchLost(reason))

    def kubelets_finish(self) -> None:
        """The pods that were told to go are gone, or come back as others under their names."""
        for key, pod in list(self.pods.items()):
            if not pod.deleting:
                continue
            del self.pods[key]
            if pod.key in self.come_back:
                at = float(int(asyncio.get_running_loop().time()))  # whole seconds, as stored
                version = self.tick()
                self.note_change(pod.node)
                self.pods[key] = replace(
                    pod, uid=f"{pod.name}-{version}", version=version, deleting=False, created_at=at
                )

    def emit(self, news: ClusterEvent) -> None:
        for listener in self.listeners:
            listener.put_nowait(news)

    def see_node(self, node: Node) -> None:
        """A watch of unschedulable nodes reports nodes with a quarantine."""
        if node.unschedulable and node.name in self.quarantines:
            self.emit(NodeSeen(node))

    def set_node(self, node: Node) -> None:
        before = self.nodes.get(node.name)
        self.note_change(node.name)
        if before is not None:
            self._before[node.name] = before
        self.nodes[node.name] = replace(node, version=self.tick())
        if before is not None and before.unschedulable and not node.unschedulable:
            self.emit(NodeUncordoned(node.name))
        self.see_node(self.nodes[node.name])

    def cached_node(self, name: str) -> Node | None:
        """A cache's answer: it may be behind, and still have a node that has gone."""
        now = self.nodes.get(name)
        return self._before.get(name, now) if self.cache_lags else now

    def put_quarantine(self, quarantine: Quarantine) -> Quarantine:
        """A test's own, whose attempts become operations."""
        self.operations.seed(quarantine)
        return self.store_quarantine(quarantine)

    def store_quarantine(self, quarantine: Quarantine) -> Quarantine:
        return self.operations.show(replace(quarantine, version=self.tick()))

    def delete_node(self, name: str) -> None:
        self.note_change(name)
        before = self._before[name] = self.nodes.pop(name)
        if before.unschedulable:
            self.emit(NodeUncordoned(name))

    def renew_node(self, name: str, boot_id: str) -> None:
        """The Node is deleted, and another one of its name is made."""
        self.delete_node(name)
        self.add_node(name, uid=f"uid-{self.tick()}-{name}", boot_id=boot_id)

    # -- what people do ------------------------------------------------------------

    def person_cordons(self, name: str) -> None:
        self.set_node(replace(self.nodes[name], unschedulable=True))

    def person_uncordons(self, name: str, *, reported_by: str = "") -> None:
        """``reported_by``: the user whom the optional admission policy writes on the node."""
        node = self.nodes[name]
        notes = (
            {**node.annotations, UNCORDONED_BY: reported_by} if reported_by else node.annotations
        )
        self.set_node(replace(node, unschedulable=False, annotations=notes))

    def person_annotates(self, name: str, key: str, value: str | None) -> None:
        """A ``value`` of None removes the annotation; setting it to the same value is no change."""
        node = self.nodes[name]
        kept = {k: v for k, v in node.annotations.items() if k != key}
        if value is not None:
            kept[key] = value
        if kept != node.annotations:
            self.set_node(replace(node, annotations=kept))

    def person_deletes(self, name: str) -> None:
        quarantine = self.quarantines[name]
        self.note_change(name)
        self.facts.ended_at.setdefault(quarantine.uid, self.now)
        if quarantine.has_finalizer:
            self.store_quarantine(replace(quarantine, deleting=True))
        else:
            del self.quarantines[name]
            self.emit(QuarantineGone(name, quarantine.uid))

    def person_removes_by_force(self, name: str) -> None:
        """Strips the finalizer, and deletes."""
        quarantine = self.quarantines.pop(name)
        self.note_change(name)
        self.emit(QuarantineGone(name, quarantine.uid))

    def person_removes_definition(self) -> None:
        """`kubectl delete crd` where no finalizer holds its objects any more: they go with it."""
        gone, self.quarantines = self.quarantines, {}
        self.facts.lose_objects(self.now)
        self.definition, self.definition_going = "", True
        for quarantine in gone.values():
            self.emit(QuarantineGone(quarantine.node, quarantine.uid, with_definition=True))
        self.interrupt_view("the definition of quarantines is gone")

    def person_applies_definition(self) -> None:
        self.definition, self.definition_going = f"definition-{self.tick()}", False
        self.interrupt_view("the definition of quarantines was replaced")

    def person_garbles_the_record(self, text: str = "not JSON") -> None:
        self.facts.lose_objects(self.now)
        self.record = replace(self.record, text=text, version=self.tick())
        self.emit(RecordSeen(self.record))

    def person_creates(self, name: str, spec: QuarantineSpec) -> None:
        uid = f"q-{self.tick()}"
        self.store_quarantine(
            Quarantine(name, uid, "0", spec, QuarantineStatus(), has_finalizer=False)
        )

    def person_edits_spec(self, name: str, **changes: object) -> None:
        """`kubectl edit quarantine NAME`; an edit that the API server would reject is refused."""
        quarantine = self.quarantines[name]
        rejected = changes.keys() - {"action", "reason", "requester"}
        if rejected:
            raise Refused(f"422: {sorted(rejected)} can't be changed by hand")
        spec = replace(quarantine.spec, **changes)  # type: ignore[arg-type]  # a test's words
        self.note_change(name)
        self.store_quarantine(replace(quarantine, spec=spec))

    def person_stops(self, reason: str) -> None:
        """`sickbay stop`; with an empty reason, `sickbay resume`."""
        self.facts.set_stop(self.now if reason else None)
        self.stop = StopText(reason, self.tick())
        self.emit(StopSeen(self.stop))

    def person_stops_unseen(self, reason: str) -> None:
        """`sickbay stop`, whose event never comes."""
        self.facts.set_stop(self.now, unseen=True)
        self.stop = StopText(reason, self.tick())

    def person_deletes_record(self) -> None:
        """The next reader makes it anew, empty: `MemoryCluster.read_record`."""
        self.facts.lose_record(self.now)
        self.record = RecordText("", "")
        self.emit(RecordSeen(self.record))

    def person_rolls_back_record(self, text: str) -> None:
        """An older text is written over it, from a backup say."""
        self.facts.lose_record(self.now)
        self.record = replace(self.record, text=text, version=self.tick())
        self.emit(RecordSeen(self.record))

    def person_deletes_stop(self) -> None:
        self.facts.set_stop(None)  # a process that starts now does not know of it
        self.stop = StopText()
        self.emit(StopSeen(self.stop))


@dataclass(frozen=True)
class Backup:
    """A world's objects at one time."""

    nodes: dict[str, Node]
    pods: dict[str, Pod]
    quarantines: dict[str, Quarantine]
    operations: dict[str, Operation]
    record: RecordText
    clock: int


@dataclass
class Arrival:
    """An effect that is an act: when it was sent, and whether its sender might act then."""

    watch: Watch
    call: str
    node: str
    effect: Callable[[], Any]
    pod: Pod | None = None
    order: RepairOrder | None = None
    repeatable: bool = False
    sent_at: float | None = None
    in_place: bool = True

    def __call__(self) -> Any:
        return self.watch.arrive(
            self.call,
            self.node,
            self.effect,
            sent_at=self.sent_at,
            in_place=self.in_place,
            pod=self.pod,
            order=self.order,
            repeatable=self.repeatable,
        )


class MemoryCluster:
    """One process's connection to a `World`.

    ``crash_at`` counts its `changes`, if given: a process that dies at a read leaves the same as
    one that dies at its next change.
    """

    words = KUBERNETES
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
        in_queue: Callable[[str], Awaitable[None]] | None = None,
        installation: str = "sickbay",
    ) -> None:
        """``fails`` is asked before each call, by its name: its error is raised instead.

        ``loses`` is asked after the call: the request is carried out, and its answer is an error.
        ``in_queue`` is awaited by each call of an acting method, by its name, while the call waits
        for its turn: after it the call's guard is awaited, and then the call is sent.
        """
        self.world = world
        self.in_queue = in_queue
        self.installation = installation
        self._fails = fails
        self._loses = loses
        self.calls = 0
        #: How many of these were no reads.
        self.changes = 0
        #: How many callers wait for a node to be there; whether such a watch gives no event.
        self.waits = 0
        self.deaf = False
        #: The requests, by name, and how many of them were made with ``background``.
        self.asked: Counter[str] = Counter()
        self.in_background: Counter[str] = Counter()
        #: Whether the effects of a call are reported as events before the call returns.
        self.answers_late = False
        self.crashed = asyncio.Event()
        self._crash_at, self._crash_at_change = -1, crash_at
        self._after = after
        self.operations = MemoryOperations(self)

    def act(
        self,
        call: str,
        node: str,
        effect: Callable[[], T],
        *,
        pod: Pod | None = None,
        order: RepairOrder | None = None,
        repeatable: bool = False,
    ) -> Callable[[], T]:
        """The effect; where the world is watched, its arrival is an act."""
        watch = self.world.watch
        if watch is None:
            return effect
        return Arrival(watch, call, node, effect, pod, order, repeatable)

    async def _call(self, name: str, effect: Callable[[], T], guard: Guard = UNGUARDED) -> T:
        """Yield to others, as the network does; then do it, unless the process is dead.

        An acting call has its time in the queue first, then its guard, and is then sent.
        """
        await asyncio.sleep(0)
        if self.in_queue is not None and name in _ACTING:
            await self.in_queue(name)
        if guard is not None and not self.crashed.is_set():
            await guard()
        if not self.crashed.is_set():
            self.calls += 1
            self.asked[name] += 1
            failure = self._fails(name)
            if failure is not None:
                self.world.facts.calm_since = self.world.now
                raise failure
            self.changes += name not in _READS
            strikes = self._crash_at == self.calls or self._crash_at_change == self.changes
            result = effect() if self._after or not strikes else None
            if self.answers_late:
                for _ in range(20):
                    await asyncio.sleep(0)
            if not strikes:
                lost = self._loses(name)
                if lost is not None:
                    self.world.facts.calm_since = self.world.now
                    raise lost
                return cast("T", result)
            self.crashed.set()
        self.world.facts.calm_since = self.world.now
        await asyncio.Event().wait()  # a dead process does nothing more, and no handler runs
        raise AssertionError(name)

    async def call(self, name: str, effect: Callable[[], T]) -> T:
        """A request that is no act on a node."""
        return await self._call(name, effect)

    def crash_in(self, calls: int, *, after: bool) -> None:
        """Die at the n-th call from now, before or after it is done."""
        self._crash_at, self._after = self.calls + calls, after

    def crash_at_change(self, changes: int, *, after: bool) -> None:
        """Die at the n-th change from now, before or after it is done."""
        self._crash_at_change, self._after = self.changes + changes, after

    # -- the protocol -----------------------------------------------------------------

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """Events as `cluster/kubernetes/informer.py` gives them: a lost view is listed anew."""
        queue: asyncio.Queue[ClusterEvent] = asyncio.Queue()
        self.world.listeners.append(queue)
        known: dict[str, str] = {}
        definition = self.world.definition
        while True:
            while not self.world.definition:
                await self._next_news(queue)
            yield StopSeen(self.world.stop)
            yield RecordSeen(self.world.record)
            standing = dict(self.world.quarantines)
            replaced = definition != self.world.definition
            definition = self.world.definition
            for node, uid in list(known.items()):
                if node not in standing or standing[node].uid != uid:
                    del known[node]
                    yield QuarantineGone(node, uid, replaced)
            for quarantine in standing.values():
                known[quarantine.node] = quarantine.uid
                yield QuarantineSeen(self._as_ours(quarantine))
            for unschedulable in list(self.world.nodes.values()):
                if unschedulable.unschedulable and unschedulable.name in self.world.quarantines:
                    yield NodeSeen(unschedulable)
            yield WatchSynced(
                frozenset(node.name for node in self.world.nodes.values() if node.unschedulable)
            )
            while True:
                news = await self._next_news(queue)
                match news:
                    case QuarantineSeen(seen):
                        known[seen.node] = seen.uid
                        news = QuarantineSeen(self._as_ours(seen))
                    case QuarantineGone(node):
                        known.pop(node, None)
                yield news
                if isinstance(news, WatchLost):
                    break

    async def _next_news(self, queue: "asyncio.Queue[ClusterEvent]") -> ClusterEvent:
        news = await queue.get()
        if self.crashed.is_set():
            await asyncio.Event().wait()
        return news

    async def list_nodes(self) -> list[NodeMeta]:
        def effect() -> list[NodeMeta]:
            return [
                NodeMeta(
                    node.name,
                    node.uid,
                    node.labels,
                    node.annotations,
                    annotated=bool(node.annotations),
                )
                for node in self.world.nodes.values()
            ]

        return await self._call("list_nodes", effect)

    def has_condition(self, kind: str) -> bool:
        return kind not in SLURM_TYPES

    async def list_conditions(self, types: Collection[str]) -> list[ReportedConditions]:
        def effect() -> list[ReportedConditions]:
            return [
                ReportedConditions(
                    node.name,
                    node.uid,
                    {
                        kind: one
                        for kind, one in self.world.conditions.get(node.name, {}).items()
                        if kind in types
                    },
                )
                for node in self.world.nodes.values()
            ]

        return await self._call("list_conditions", effect)

    async def list_node_tests(
        self, taint: str, tested: Collection[str] = ()
    ) -> list[ListedNodeTest]:
        def effect() -> list[ListedNodeTest]:
            return [
                ListedNodeTest(
                    node.name,
                    node.uid,
                    any(one.key == taint for one in node.taints),
                    self.world.test_conditions.get(node.name),
                )
                for node in self.world.nodes.values()
                if node.name in tested or any(one.key == taint for one in node.taints)
            ]

        return await self._call("list_node_tests", effect)

    async def read_record(self) -> RecordText:
        def effect() -> RecordText:
            if not self.world.record.version:  # it was deleted
                version = self.world.tick()
                self.world.record = RecordText("", version, f"record-{version}")
                self.world.emit(RecordSeen(self.world.record))
            return self.world.record

        return await self._call("read_record", effect)

    async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText:
        def effect() -> RecordText:
            if self.world.record.version != version:
                raise Conflict("record")
            made = self.world.record if version else RecordText("", "", f"r-{self.world.clock}")
            self.world.record = replace(made, text=text, version=self.world.tick())
            self.world.writes.append("record")
            self.world.emit(RecordSeen(self.world.record))
            return self.world.record

        return await self._call("write_record", self.act("write_record", "", effect), guard)

    async def read_stop(self) -> StopText:
        return await self._call("read_stop", lambda: self.world.stop)

    async def create_quarantine(
        self, node: str, spec: QuarantineSpec, *, guard: Guard
    ) -> Quarantine:
        def effect() -> Quarantine:
            if not self.world.definition:
                raise NotFound("the server could not find the requested resource")
            if node in self.world.quarantines:
                raise Conflict("exists")
            self.world.writes.append(f"create {node}")
            uid = f"q-{self.world.tick()}"
            at, status = self.world.now, QuarantineStatus()
            made = Quarantine(node, uid, "0", spec, status, created_at=at, generation=1)
            return self.world.store_quarantine(made)

        return await self._call(
            "create_quarantine", self.act("create_quarantine", node, effect), guard
        )

    async def read_quarantine(self, node: str) -> Quarantine | None:
        found = await self._call("read_quarantine", lambda: self.world.quarantines.get(node))
        return found and self._as_ours(found)

    def _as_ours(self, quarantine: Quarantine) -> Quarantine:
        """The quarantine as this installation sees it."""
        whose = quarantine.spec.installation
        return replace(quarantine, foreign=whose) if whose != self.installation else quarantine

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
            changed = spec != now.spec
            return self.world.store_quarantine(
                replace(now, spec=spec, generation=now.generation + changed)
            )

        return await self._call(
            "write_quarantine_spec", self.act("write_quarantine_spec", quarantine.node, effect)
        )

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        def effect() -> Quarantine:
            now = self._standing(quarantine)
            expect_lossless(now, status)
            self.world.writes.append(f"status {now.node} {status.phase}")
            written = with_conditions(quarantine, status, self.world.clock)
            return self.world.store_quarantine(replace(now, status=written))

        return await self._call(
            "write_quarantine_status", self.act("write_quarantine_status", quarantine.node, effect)
        )

    async def add_finalizer(self, quarantine: Quarantine) -> Quarantine:
        def effect() -> Quarantine:
            now = self._standing(quarantine)
            self.world.writes.append(f"finalizer {now.node}")
            return self.world.store_quarantine(replace(now, has_finalizer=True))

        return await self._call("add_finalizer", effect)

    async def drop_quarantine(self, quarantine: Quarantine, *, guard: Guard) -> None:
        def effect() -> None:
            now = self.world.quarantines.get(quarantine.node)
            if now is None or now.uid != quarantine.uid:
                return
            del self.world.quarantines[quarantine.node]
            self.world.writes.append(f"drop {quarantine.node}")
            self.world.emit(
                QuarantineGone(quarantine.node, quarantine.uid, self.world.definition_going)
            )

        effect = self.act("drop_quarantine", quarantine.node, effect)
        await self._call("drop_quarantine", effect, guard)

    async def definition_is_going(self) -> bool:
        return await self._call("definition_is_going", lambda: self.world.definition_going)

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        self.in_background["read_node"] += background

        def effect() -> Node | None:
            found = self.world.cached_node(name) if cached else None
            return found or self.world.nodes.get(name)

        return await self._call("read_node", effect)

    async def wait_for_node(self, name: str) -> None:
        self.waits += 1
        try:
            while self.deaf or name not in self.world.nodes or self.crashed.is_set():
                await self.world.node_added.wait()
                await asyncio.sleep(0)
        finally:
            self.waits -= 1

    async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        def effect() -> Node:
            now = self.world.nodes.get(node.name)
            if now is None:
                raise NotFound("node")
            if not is_as_expected(now, node, change):
                raise Conflict("node")
            after = replace(
                now,
                taints=now.taints if change.taints is None else change.taints,
                unschedulable=(
                    now.unschedulable if change.unschedulable is None else change.unschedulable
                ),
                labels=merged(now.labels, change.labels),
                annotations=merged(now.annotations, change.annotations),
            )
            self.world.writes.append(f"patch {node.name}")
            if after != now:
                self.world.set_node(after)
            return self.world.nodes[node.name]

        return await self._call("patch_node", self.act("patch_node", node.name, effect), guard)

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        self.in_background["pods_on"] += background

        def effect() -> list[Pod]:
            prefix = f"{node}/"
            return [pod for key, pod in self.world.pods.items() if key.startswith(prefix)]

        return await self._call("pods_on", effect)

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]:
        self.in_background["pods_labelled"] += background

        def effect() -> list[Pod]:
            return [
                pod
                for pod in self.world.pods.values()
                if pod.namespace == namespace and pod.labels.get(label) == value
            ]

        return await self._call("pods_labelled", effect)

    async def delete_pod(
        self, pod: Pod, *, grace: int, background: bool = False, guard: Guard
    ) -> EvictionResult:
        self.in_background["delete_pod"] += background

        def effect() -> EvictionResult:
            assert grace >= 1
            key = next((k for k, p in self.world.pods.items() if p.uid == pod.uid), None)
            if key is None or self.world.pods[key].version != pod.version:
                return EvictionResult(Evicted.GONE)
            self.world.forced.append(pod.uid)
            self.world.writes.append(f"delete {pod.uid}")
            self.world.pods[key] = replace(pod, deleting=True, version=self.world.tick())
            return EvictionResult(Evicted.ACCEPTED)

        return await self._call(
            "delete_pod", self.act("delete_pod", pod.node, effect, pod=pod), guard
        )

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard,
    ) -> EvictionResult:
        self.in_background["evict"] += background

        def effect() -> EvictionResult:
            key = next((k for k, p in self.world.pods.items() if p.uid == pod.uid), None)
            if key is None or self.world.pods[key].version != pod.version:
                return EvictionResult(Evicted.GONE)
            if pod.uid in self.world.rejections:
                return self.world.rejections[pod.uid]
            if pod.uid in self.world.budget_blocks:
                return EvictionResult(Evicted.BLOCKED, "the budget of jobs/j needs it")
            if dry_run:
                return EvictionResult(Evicted.ACCEPTED)
            self.world.evicted.append(pod.uid)
            self.world.writes.append(f"evict {pod.uid}")
            self.world.pods[key] = replace(pod, deleting=True, version=self.world.tick())
            return EvictionResult(Evicted.ACCEPTED)

        return await self._call("evict", self.act("evict", pod.node, effect, pod=pod), guard)

    async def annotate_pod(self, pod: Pod, annotations: Mapping[str, str], *, guard: Guard) -> None:
        def effect() -> None:
            key = next((k for k, p in self.world.pods.items() if p.uid == pod.uid), None)
            if key is None or self.world.pods[key].version != pod.version:
                raise Conflict("another version", status=409)
            if pod.namespace in self.world.without_notes:
                raise Refused("may not be annotated", status=403)
            self.world.writes.append(f"annotate {pod.uid}")
            there = {**pod.annotations, **annotations}
            self.world.pods[key] = replace(pod, annotations=there, version=self.world.tick())

        await self._call("annotate_pod", effect, guard)

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        def effect() -> None:
            self.world.announced.append((node, quarantined))
            found = self.world.nodes.get(node)
            if found is not None and found.uid == node_uid and is_marked(found) is quarantined:
                # (Its version stays: these tests are not about writes by others at the same time.)
                said = replace(found, condition=str(quarantined))
                self.world.nodes[node] = said
                self.world.see_node(said)

        await self._call("announce", effect)

    async def write_event(self, event: NodeEvent) -> None:
        self.world.events.append(event)  # a report that may be lost: no call of the protocol waits

    async def write_conditions(
        self,
        node: str,
        *,
        node_uid: str,
        wanted: Mapping[str, NodeCondition | None],
        guard: NodeGuard,
    ) -> WrittenConditions:
        raise NotImplementedError  # tests of conditions have the real API server

    async def write_test_condition(
        self, node: str, *, node_uid: str, condition: NodeTestCondition, guard: Guard
    ) -> None:
        def effect() -> None:
            now = self.world.nodes.get(node)
            if now is None or now.uid != node_uid:
                raise Conflict("node")
            if self.world.test_conditions.get(node) != condition:
                self.world.test_conditions[node] = condition
                self.world.told_tests.append((node, condition.status, condition.reason))

        await self._call("write_test_condition", effect, guard)


def phase_of(world: World, node: str) -> Phase | None:
    """The phase of the node's quarantine, or None when it has no quarantine."""
    quarantine = world.quarantines.get(node)
    return quarantine.status.phase if quarantine is not None else None
