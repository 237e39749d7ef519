"""The controller among all kinds of events in virtual time, and the states that are forbidden.

The events are in test_controller_state_machine.py. Each forbidden state is checked at every write,
the final state at the end.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aggregator.cluster.node_names import LABEL, TAINT, is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    ClusterError,
    Evicted,
    EvictionResult,
    Guard,
    Phase,
    Pod,
    Quarantine,
    Taint,
)
from aggregator.health.model import Cleared, Component, Delta, Fault, Snapshot, Status
from aggregator.quarantine.admission.stop_switch import FRESH
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, FORCED, PIN
from aggregator.quarantine.decide.plans.release import UNCORDONED
from aggregator.quarantine.decide.pools import Pool
from aggregator.quarantine.decide.uncordon import MOST_RECORDONS, OnUncordon, UncordonRules
from tests.support.invariants import Watch, parse_record
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.rack_faults import DRIVER, link_error, verdict
from tests.support.replica import SETTINGS, FakeLine, Replica, component, hello
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import VirtualTimeLoop

T = TypeVar("T")
NODES = ("n1", "n2", "n3", "n4")
#: The label by which pools select nodes.
POOL = "example.com/pool"
LIMIT = 2
#: At most so many are admitted in a window (seconds), those by hand counted.
RATE, WINDOW, COOLDOWN = 3, 60.0, 120.0
#: Two of the nodes share an NVLink clique, whose name is of the form that NVIDIA gives it.
CLIQUE, OF_CLIQUE = "nvidia.com/gpu.clique", ("n1", "n2")
CLIQUE_NAME = "5b4a3c2d-1e0f-4a5b-8c7d-6e5f40312233.7"
#: The lines of a switch tray that fails, on one GPU of each node; the evidence of a link.
TRAY_FAULTS = {"xid:149": link_error, "xid:154": verdict}
TRAY_GPU = "GPU-3"
OF_TRAY = {(code, TRAY_GPU) for code in TRAY_FAULTS}
OF_LINKS = (*TRAY_FAULTS, "xid:74")
FOREIGN = Taint("example.com/theirs", "1", "NoSchedule")
#: The same with our key: one beside ours, and one whose place ours takes.
OF_OUR_KEY = (Taint(TAINT, "hold", "NoExecute"), Taint(TAINT, "hold", "NoSchedule"))
#: The faults that another boot ends: all of these are over then.
CODES = ("xid:79", "xid:46", "xid:74")
LEVELS = (("disk-space", "bytes"), ("disk-readonly", "read-only"))
#: At the end, time passes until nothing has changed for so long (seconds), or for an hour. Longer
#: than any period of the settings: well for 600, marks missing for the third time for 960.
QUIET, LOOKS, AT_MOST = 1200.0, 60, 3600
#: Pods that were told to go are gone after so long, at the end.
GRACE = 900
#: A pod that comes back to its node is evicted so often at most within so long (seconds), and so
#: often again after each restart, which forgets how often that was.
RETURN_EVICTIONS, RETURN_SPACE, FORGOTTEN_EVICTIONS = 3, 150.0, 2
FABRIC_HOLD = CommonLimits().fabric_hold
#: Tasks that no code awaits: if one of these failed, the failure would stay unseen.
OWN_TASKS = ("attend", "announce", "registrar", "news", "rounds", "looking", "missing")

TOOL, KUBELET = "system:serviceaccount:kube-system:kured", "system:node:n1"

nodes = st.sampled_from(NODES)
HOW = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass
class PlayedAgent:
    """A node's agent: its whole state, and the events that no aggregator has acknowledged yet."""

    node: str
    node_uid: str
    boot: int = 1
    epoch: int = 1
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    levels: dict[tuple[str, str], Component] = field(default_factory=dict)
    unacked: list[Cleared] = field(default_factory=list)
    #: Components that were well and are no more, and those of them not acknowledged yet.
    vanished: set[tuple[str, str]] = field(default_factory=set)
    gone: list[tuple[str, str]] = field(default_factory=list)
    #: Signs that it forgot before they were acknowledged: an operator has to give them again.
    forgotten: list[Cleared] = field(default_factory=list)
    line: FakeLine | None = None

    @property
    def boot_id(self) -> str:
        return f"{self.node}-boot-{self.boot}"

    def snapshot(self) -> Snapshot:
        return Snapshot(
            tuple(self.levels.values()),
            tuple(self.faults.values()),
            tuple(self.unacked),
            gone=tuple(self.gone),
        )

    def standing(self) -> set[tuple[str, str]]:
        """The true faults of the machine, as the keys of evidence."""
        failed = {
            (f"{one.check}:{one.reason}", one.component)
            for one in self.levels.values()
            if one.status in (Status.FAILED, Status.UNKNOWN)
        }
        return failed | set(self.faults)


class Watched(MemoryCluster):
    """Calls that are looked at as they happen; ``look`` gets the name and the state before."""

    def __init__(self, world: World, machine: "ControllerWorld") -> None:
        super().__init__(world, fails=machine.fails, loses=machine.loses)
        self._machine = machine

    async def _call(self, name: str, effect: Callable[[], T], guard: Guard = UNGUARDED) -> T:
        def watched() -> T:
            entries = self._machine.entries()
            made = {node: one.uid for node, one in self.world.quarantines.items()}
            result = effect()
            self._machine.check_limits(entries, made)
            return result

        return await super()._call(name, watched, guard)

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard,
    ) -> EvictionResult:
        result = await super().evict(pod, dry_run=dry_run, background=background, guard=guard)
        if not dry_run:
            self._machine.looked_at_eviction(pod, result)
        if pod.key in self.world.come_back:
            self.world.kubelets_finish()  # it is back as soon as it has gone
        return result


class ControllerWorld(RuleBasedStateMachine):
    """Four nodes of which two may be in quarantine at once."""

    #: The most that is done to any node, and the mode in the file.
    mode = Action.DRAIN
    file_mode: ClassVar[Action | None] = None
    pools: ClassVar[tuple[Pool, ...]] = ()
    on_uncordon = OnUncordon.RELEASE
    quiet = QUIET
    more_limits: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.wrong: list[str] = []
        self.loop.set_task_factory(self._task)
        self.loop.set_exception_handler(lambda *_: None)  # tasks are asked themselves, see below
        self.tasks: list[asyncio.Task[Any]] = []
        self.world = World()
        self.watch = Watch(self.world, self.loop.time)
        self.world.facts.wall = self.loop.time
        self.world.facts.standing = lambda name: self.agents[name].standing()
        self.returns: dict[str, list[float]] = {}
        self.restarts: list[float] = []
        self.errors: list[tuple[str, bool, ClusterError]] = []
        self.agents: dict[str, PlayedAgent] = {}
        #: Evidence that people have overruled and whose override has not ended, by node.
        self.words: dict[str, set[tuple[str, str]]] = {name: set() for name in NODES}
        #: Nodes that a person cordoned while no other client had.
        self.cordoned: set[str] = set()
        self.foreign: set[str] = set()
        self.by_hand: set[str] = set()
        #: A taint of our key that others had set before us, by node.
        self.theirs: dict[str, Taint] = {}
        #: Until when people have exempted a node.
        self.exempt: dict[str, float] = {}
        self.marked: set[str] = set()
        #: Since when the stop switch is set; with None it is not, or not in a place that is sure to
        #: be seen.
        self.stopped_at: float | None = None
        #: Texts that the record had.
        self.texts: list[str] = [""]
        #: Quarantines, by uid, that a person has ended by an uncordon.
        self.lifted: set[str] = set()
        #: The action that a person has set, and when, by the uid of its quarantine.
        self.overridden: dict[str, tuple[Action, float]] = {}
        #: A switch tray of the clique has just failed.
        self.tray_fails = False
        self.pods = 0
        for name in NODES:
            labels = dict(self.own_labels(name))
            if name in OF_CLIQUE:
                labels[CLIQUE] = CLIQUE_NAME
            self.world.add_node(name, boot_id=f"{name}-boot-1", labels=labels)
            self.agents[name] = PlayedAgent(name, self.world.nodes[name].uid)
            self._job(name)
        self.replica = self._start()

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **how)
        self.tasks.append(task)
        return task

    def own_labels(self, name: str) -> Mapping[str, str]:
        """The labels that a new Node of the name has."""
        del name
        return {}

    def more_settings(self, cluster: MemoryCluster) -> Mapping[str, Any]:
        """Further fields of the settings of a process with this connection."""
        del cluster
        return {}

    # -- running ---------------------------------------------------------------------------

    def _start(self) -> Replica:
        async def start() -> Replica:
            cluster = Watched(self.world, self)
            return Replica(
                self.world,
                clock=LoopClock(self.loop),
                settings=replace(
                    SETTINGS,
                    mode=self.file_mode or self.mode,
                    pools=self.pools,
                    uncordon=UncordonRules(self.on_uncordon, trust_uncordoned_by=True),
                    limits=Limits(
                        concurrent=LIMIT,
                        concurrent_percent=100,
                        quorum_percent=50,
                        new_per_window=RATE,
                        new_per_window_percent=100,
                        window=WINDOW,
                        cooldown=COOLDOWN,
                        **self.more_limits,
                    ),
                    common=CommonLimits(window=WINDOW, clique_label=CLIQUE),
                    **self.more_settings(cluster),
                ),
                cluster=cluster,
            )

        return self.loop.run_until_complete(start())

    def _go(self, seconds: float) -> None:
        """Let virtual time pass; a process that died is started anew, and agents come back."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for _ in range(20):
            if not self.replica.cluster.crashed.is_set():
                return
            self._restart()
            self.loop.run_until_complete(asyncio.sleep(seconds))

    def _restart(self) -> None:
        self.restarts.append(self.loop.time())
        self.world.facts.calm_since = self.world.now  # until now no process could release a node
        self.loop.run_until_complete(self.replica.stop())
        self.world.listeners.clear()
        spoke = [agent for agent in self.agents.values() if agent.line is not None]
        self.replica = self._start()
        for agent in spoke:
            self._attach(agent)

    def _inside(self, what: Callable[[], T]) -> T:
        """Do it in the loop, as ingest would."""

        async def do() -> T:
            return what()

        return self.loop.run_until_complete(do())

    def _attach(self, agent: PlayedAgent) -> None:
        agent.line = FakeLine()
        told = replace(
            hello(agent.node, agent.boot_id),
            node_uid=agent.node_uid,
            spool_epoch=f"epoch-{agent.epoch}",
            traits={"driver": DRIVER},
        )
        self._inside(lambda: self.replica.controller.on_connect(told, agent.line))  # type: ignore[arg-type]
        self._send_evidence(agent, agent.snapshot())

    def _detach(self, agent: PlayedAgent) -> None:
        line, agent.line = agent.line, None
        if line is not None and not line.closed:
            self._inside(lambda: self.replica.controller.on_disconnect(agent.node, line, "gone"))

    def _send_evidence(self, agent: PlayedAgent, evidence: Snapshot | Delta) -> None:
        if agent.line is None or agent.line.closed:
            return
        self.world.facts.note_evidence(agent.node, evidence)
        signs, gone = list(evidence.cleared), list(evidence.gone)

        def acknowledged(future: "asyncio.Future[None] | None" = None) -> None:
            if future is None or (not future.cancelled() and future.exception() is None):
                agent.unacked = [sign for sign in agent.unacked if sign not in signs]
                agent.gone = [key for key in agent.gone if key not in gone]

        def deliver() -> None:
            safe = self.replica.controller.on_evidence(agent.node, evidence, self.loop.time())
            if safe is None:
                acknowledged()
            else:
                assert isinstance(safe, asyncio.Future)
                safe.add_done_callback(acknowledged)

        self._inside(deliver)

    def _job(self, name: str) -> None:
        self.pods += 1
        self.world.add_pod(name, f"pod-{self.pods}")

    # -- what fails -------------------------------------------------------------------------

    def fails(self, name: str) -> ClusterError | None:
        return self._error(name, after=False)

    def loses(self, name: str) -> ClusterError | None:
        return self._error(name, after=True)

    def _error(self, name: str, *, after: bool) -> ClusterError | None:
        for index, (kind, late, error) in enumerate(self.errors):
            if kind == name and late == after:
                del self.errors[index]
                return error
        return None

    # -- what is looked at ------------------------------------------------------------------

    def check_limits(self, entries: set[str], made: dict[str, str]) -> None:
        """After every call: ``entries`` and ``made`` (uids by node) are as before it."""
        if self.world.record.text not in self.texts:
            self.texts.append(self.world.record.text)
        for name, quarantine in self.world.quarantines.items():
            self._look_at_words_of_people(quarantine)
            spec = quarantine.spec
            if made.get(name) == quarantine.uid or spec.requester != OURS:
                continue
            asks = {(one.code, one.component) for one in spec.evidence if not one.cleared}
            if self.tray_fails and name in OF_CLIQUE and asks and asks <= OF_TRAY:
                self.wrong.append(f"{name} quarantined for a fault of its clique")
            if asks and asks <= self.words[name]:
                self.wrong.append(f"{name}: {asks} was overruled by a person")
        for name, node in self.world.nodes.items():
            if name in self.cordoned and not node.unschedulable:
                self.wrong.append(f"{name} lost somebody else's cordon")
            beside = self.theirs.get(name)
            if beside and beside.effect != "NoSchedule" and beside not in node.taints:
                self.wrong.append(f"{name} lost somebody else's taint of our key")
        marked = {name for name, node in self.world.nodes.items() if is_marked(node)}
        for name in marked - self.marked:
            found = self.world.quarantines.get(name)
            ours_here = found is None or found.spec.requester == OURS
            if ours_here and self.exempt.get(name, 0.0) > self.loop.time():
                self.wrong.append(f"{name} was touched though it is exempt")
        self.marked = marked
        if self.mode is Action.OBSERVE and self.world.writes:
            self.wrong.append(f"observe wrote {self.world.writes}")

    def is_stopped(self) -> bool:
        """Whether the switch was set so long ago that no step may begin any more."""
        return self.stopped_at is not None and self.loop.time() > self.stopped_at + FRESH

    def _look_at_words_of_people(self, quarantine: Quarantine) -> None:
        """Edits stand, and no tool's uncordon is a person's release."""
        name, status = quarantine.node, quarantine.status
        if status.released_because == UNCORDONED and quarantine.uid not in self.lifted:
            self.wrong.append(f"{name} was released by an uncordon that nobody meant so")
        action, _ = self.overridden.get(quarantine.uid, (None, 0.0))
        if action not in (None, quarantine.spec.action):
            self.wrong.append(f"{name}: a person set {action}, which was changed back")
        if status.recordons > MOST_RECORDONS + 1:
            self.wrong.append(f"{name} is fought for")

    def entries(self) -> set[str]:
        """The nodes that the record has entries of."""
        return set(parse_record(self.world.record.text).entries)

    def looked_at_eviction(self, pod: Pod, result: EvictionResult) -> None:
        if result.outcome is Evicted.ACCEPTED:  # a refusal by a budget harms no pod
            self._looked_at_return(pod)
        keys = (key for key, one in self.world.pods.items() if one.uid == pod.uid)
        name = next(keys, "").partition("/")[0]
        found = self.world.quarantines.get(name)
        action, at = self.overridden.get(found.uid if found else "", (Action.DRAIN, 0.0))
        if action is Action.CORDON and self.loop.time() > at + 1:  # some were under way
            self.wrong.append(f"{pod.uid} evicted from {name}, where a person wants a cordon")

    def _looked_at_return(self, pod: Pod) -> None:
        """A pod that comes back is evicted a few times in minutes at most, for each quarantine."""
        if pod.key not in self.world.come_back:
            return
        found = self.world.quarantines.get(pod.node)
        times = self.returns.setdefault(f"{found.uid if found else ''}/{pod.key}", [])
        times.append(self.loop.time())
        since = self.loop.time() - RETURN_SPACE
        restarts = sum(at > since for at in self.restarts)
        most = RETURN_EVICTIONS + FORGOTTEN_EVICTIONS * restarts
        if sum(at > since for at in times) > most:
            self.wrong.append(f"{pod.key} on {pod.node} is evicted as often as it comes back")

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert not self.wrong, self.wrong
        assert not self.watch.wrong, self.watch.wrong
        assert not self.replica.task.done(), self.replica.task
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.get_name().startswith(OWN_TASKS):
                assert task.exception() is None, task
        self.tasks = [task for task in self.tasks if not task.done()]
        node_registry = self.replica.controller.parts.registry
        size = node_registry.size()
        known = [
            node_state
            for node_state in node_registry.node_states()
            if node_registry.is_listed(node_state.node) or not size.listed
        ]
        assert size.reported == sum(node_state.agent.was_received for node_state in known)
        for name in NODES:
            self.words[name] &= self.agents[name].standing()

    @rule()
    def kubelets_finish(self) -> None:
        self._inside(self.world.kubelets_finish)

    # -- how it ends ----------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if not self.wrong and not self.watch.wrong:
                self._settles()
                self.nothing_is_wrong()
        finally:
            self.loop.run_until_complete(self.replica.stop())
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()

    def _settles(self) -> None:
        """Left alone, every step is done or explained; made well, no mark of ours is left."""
        self.errors.clear()
        self.replica.cluster.crash_in(-1, after=False)
        self.world.rejections.clear()
        self.world.come_back.clear()
        for key, pod in list(self.world.pods.items()):
            if pod.owner_kind == "StatefulSet":
                del self.world.pods[key]
        self._go(60)
        self._explained()
        self._told_as_they_are()
        self.stopped_at = None
        self.world.person_stops("")
        self.world.budget_blocks.clear()
        self.exempt.clear()
        for name, agent in self.agents.items():
            for key in (EXEMPT, PIN, FORCE):
                self.world.person_annotates(name, key, None)
            self._inside(lambda name=name: self.replica.controller.on_conflict(name, ""))  # type: ignore[misc]
            self._detach(agent)
            agent.unacked += agent.forgotten
            agent.unacked += [Cleared(*key, "operator") for key in agent.faults]
            agent.faults.clear()
            # A component that it forgot as gone is there again; otherwise no report could say that
            # it is well.
            lasting = agent.vanished if agent.epoch == 1 else set()
            agent.levels = {
                (c, "/"): component(c, "/", Status.OK) for c, _ in LEVELS if (c, "/") not in lasting
            }
            self._attach(agent)
        self._until_quiet()
        for name, one in list(self.world.quarantines.items()):
            if self.is_a_persons(one):
                self.world.person_deletes(name)
        self._go(60)
        mine = (OURS, FORCED)
        by_hand = {n for n, one in self.world.quarantines.items() if one.spec.requester not in mine}
        assert set(self.world.quarantines) == by_hand, self.world.quarantines
        assert set(parse_record(self.world.record.text).entries) == by_hand
        for name, node in self.world.nodes.items():
            assert is_marked(node) == (name in by_hand), node
            if name not in by_hand:
                assert node.unschedulable == (name in self.cordoned), node
                theirs = {self.theirs[name]} if name in self.theirs else set()
                assert {one for one in node.taints if one.key == TAINT} == theirs, node
                assert LABEL not in node.labels, node
            assert "sickbay.dev/overruled" not in node.annotations, node
        for agent in self.agents.values():
            assert agent.unacked == []
            assert agent.gone == []

    def _until_quiet(self) -> None:
        """Until every period has passed since the last change: what comes after it comes never."""
        quiet = 0.0
        for passed in range(0, AT_MOST, LOOKS):
            before = self._changes()
            if passed % GRACE == 0:
                self.kubelets_finish()
            self._go(LOOKS)
            quiet = quiet + LOOKS if self._changes() == before else 0.0
            if quiet >= self.quiet:
                return

    def _changes(self) -> tuple[object, ...]:
        """Another value after each change: of objects, of what is told, of what is decided."""
        world, decisions = self.world, self.replica.fleet.node_summaries.items()
        return (
            *(world.clock, len(world.writes), len(world.announced), len(world.events)),
            *(len(self.restarts), len(self.replica.notes.transitions), list(world.pods)),
            [(name, one.decision.hold, dict(one.decision.incidents)) for name, one in decisions],
        )

    def is_a_persons(self, quarantine: Quarantine) -> bool:
        """Whether a person decides on its end: the fault came again so soon after a release."""
        return "came again" in quarantine.status.release_held

    def _told_as_they_are(self) -> None:
        """No quarantine says that a Node is cordoned or drained that is not the one it marked, and
        none leaves out which marks are missing.
        """
        marked = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
        for name, one in self.world.quarantines.items():
            node_state, node = (
                self.replica.controller.parts.registry.node_state(name),
                self.world.nodes[name],
            )
            if one.status.phase not in marked or one.deleting or node_state.agent.conflict:
                continue
            assert one.status.node_uid == node.uid, one
            if node.unschedulable:
                told = one.status.marks.missing
                view = node_state.quarantine_view
                assert view.lacks(node, one) == told == view.missing, (one, node)

    def _explained(self) -> None:
        """A wanted action is done, or people are told why not; a recent change (an exemption that
        ended) is dealt with by the next round.
        """
        before = self._unexplained()
        self._go(6)
        assert not before & self._unexplained(), self.replica.fleet.node_summaries

    def _unexplained(self) -> set[str]:
        return {
            node_state.node
            for node_state in self.replica.controller.parts.registry.node_states()
            if node_state.decision.wanted is not None
            and node_state.decision.wanted.in_force is not Action.OBSERVE
            and not (
                node_state.agent.conflict or node_state.decision.hold or node_state.decision.would
            )
            and node_state.quarantine is None
        }
