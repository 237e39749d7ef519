"""The whole controller against all kinds of events, in any order, in virtual time.

Faults come and clear, machines reboot and are replaced, people cordon, uncordon, delete and stop,
the cluster fails, answers are lost, and the aggregator dies between any two calls. Each forbidden
state is looked for at every write; the final state is checked at the end.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aggregator.cluster.node_names import APPLIED, LABEL, TAINT, is_marked
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Conflict,
    Evicted,
    EvictionResult,
    Guard,
    Phase,
    Pod,
    Quarantine,
    QuarantineSpec,
    Refused,
    Taint,
    Toleration,
    Unreachable,
)
from aggregator.health.model import Cleared, Component, Delta, Fault, Snapshot, Status
from aggregator.quarantine.admission.stop_switch import FRESH
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import Rebuilt, Record
from aggregator.quarantine.decide.admission_record import parse_record as parse_anew
from aggregator.quarantine.decide.cause_search import CommonLimits
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import known_applied
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, FORCED, PIN, exemption
from aggregator.quarantine.decide.planner import UNCORDONED
from aggregator.quarantine.decide.pools import Pool
from aggregator.quarantine.decide.uncordon import MOST_RECORDONS, OnUncordon, UncordonRules
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.rack_faults import DRIVER, link_error, verdict
from tests.support.replica import SETTINGS, FakeLine, Replica, component, fault, hello
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import VirtualTimeLoop

#: It computes all the while: on a machine with much else to do that takes minutes.
pytestmark = pytest.mark.timeout(900)

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


@functools.lru_cache(maxsize=16)
def parse_record(text: str) -> Record:
    """The record, which is looked at before and after each call, and seldom changes in between."""
    return parse_anew(text)


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

    def __init__(self, world: World, machine: "ControllerMachine") -> None:
        super().__init__(world, fails=machine.fails, loses=machine.loses)
        self._machine = machine

    async def _call(self, name: str, effect: Callable[[], T], guard: Guard | None = None) -> T:
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
        guard: Guard | None = None,
    ) -> EvictionResult:
        result = await super().evict(pod, dry_run=dry_run, background=background, guard=guard)
        if not dry_run:
            self._machine.looked_at_eviction(pod, result)
        if pod.key in self.world.come_back:
            self.world.kubelets_finish()  # it is back as soon as it has gone
        return result


class ControllerMachine(RuleBasedStateMachine):
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
        #: Quarantined nodes that were created again: away they take no place, and back they are
        #: marked without a new admission.
        self.came_back: set[str] = set()
        #: A taint of our key that others had set before us, by node.
        self.theirs: dict[str, Taint] = {}
        #: Until when people have exempted a node.
        self.exempt: dict[str, float] = {}
        self.marked: set[str] = set()
        #: Since when the stop switch is set; with None it is not, or not in a place that is sure to
        #: be seen.
        self.stopped_at: float | None = None
        #: The record was deleted with the stop in it, and the events of the other place never come:
        #: the first entry after a rest is written, and no step is begun by it.
        self.unread = False
        self.rebuilt: Rebuilt | None = None
        #: When the record was last deleted or rolled back, and texts that it had.
        self.lost_at = float("-inf")
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
        record = parse_record(self.world.record.text)
        if self.world.record.text not in self.texts:
            self.texts.append(self.world.record.text)
        # An existing quarantine is entered, and not admitted.
        fresh = {name for name in record.entries.keys() - entries if name not in made}
        ours = {name for name in fresh if record.entries[name].incident}
        if ours and fresh == ours:
            now = self.loop.time()
            lately = [at for at in record.admissions if now - at < WINDOW]
            if len(lately) > RATE:
                self.wrong.append(f"{ours} entered past the rate: {lately} at {now}")
        for name in fresh:
            counted = record.entries.keys() - self.came_back
            if record.entries[name].incident and len(counted) > LIMIT:
                self.wrong.append(f"{name} entered past the limit: {sorted(record.entries)}")
        for name, quarantine in self.world.quarantines.items():
            self._look_at_words_of_people(quarantine)
            spec = quarantine.spec
            if made.get(name) == quarantine.uid or spec.requester != OURS:
                continue
            if name not in record.entries and self.loop.time() > self.lost_at:
                self.wrong.append(f"{name} quarantined without an entry")
            if self.is_stopped():
                self.wrong.append(f"{name} quarantined after the stop")
            asks = {(one.code, one.component) for one in spec.evidence if not one.cleared}
            if self.tray_fails and name in OF_CLIQUE and asks and asks <= OF_TRAY:
                self.wrong.append(f"{name} quarantined for a fault of its clique")
            if asks and asks <= self.words[name]:
                self.wrong.append(f"{name}: {asks} was overruled by a person")
        for name, node in self.world.nodes.items():
            if name in self.foreign and FOREIGN not in node.taints:
                self.wrong.append(f"{name} lost somebody else's taint")
            if name in self.cordoned and not node.unschedulable:
                self.wrong.append(f"{name} lost somebody else's cordon")
            beside = self.theirs.get(name)
            if beside and beside.effect != "NoSchedule" and beside not in node.taints:
                self.wrong.append(f"{name} lost somebody else's taint of our key")
        # A record that is made anew has entries of the Quarantines that its writer knows, also of
        # one whose end it has not heard of yet: that is no admission.
        made_anew, self.rebuilt = record.rebuilt != self.rebuilt, record.rebuilt
        if ours and self.is_stopped() and not self.unread and not made_anew:
            self.wrong.append(f"{ours} admitted after the stop")
        marked = {name for name, node in self.world.nodes.items() if is_marked(node)}
        if marked - self.marked and self.is_stopped():
            self.wrong.append(f"{marked - self.marked} marked after the stop")
        made_by_us = {
            name
            for name, one in self.world.quarantines.items()
            if one.spec.requester == OURS and one.status.phase is not Phase.RELEASING
        }
        self.came_back &= set(self.world.quarantines)
        if len((made_by_us & marked) - self.came_back) > LIMIT and marked - self.marked:
            self.wrong.append(f"more than {LIMIT} are marked: {made_by_us & marked}")
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
        if self.is_stopped():
            self.wrong.append(f"{pod.uid} evicted after the stop")
        if result.outcome is Evicted.ACCEPTED:  # a refusal by a budget harms no pod
            self._looked_at_return(pod)
        keys = (key for key, one in self.world.pods.items() if one.uid == pod.uid)
        name = next(keys, "").partition("/")[0]
        found = self.world.quarantines.get(name)
        action, at = self.overridden.get(found.uid if found else "", (Action.DRAIN, 0.0))
        if action is Action.CORDON and self.loop.time() > at + 1:  # some were under way
            self.wrong.append(f"{pod.uid} evicted from {name}, where a person wants a cordon")
        # An eviction that was under way when the record was lost is of a quarantine that stands.
        if name and name not in self.entries() and self.loop.time() > self.lost_at:
            self.wrong.append(f"{pod.uid} evicted from {name}, which has no entry")

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
        assert len(set(self.world.evicted)) == len(self.world.evicted)
        assert not self.replica.task.done(), self.replica.task
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.get_name().startswith(OWN_TASKS):
                assert task.exception() is None, task
        self.tasks = [task for task in self.tasks if not task.done()]
        node_registry = self.replica.controller._registry
        size = node_registry.size()
        known = [
            node_state
            for node_state in node_registry.node_states()
            if node_registry.is_listed(node_state.node) or not size.listed
        ]
        assert size.reported == sum(node_state.agent.was_heard for node_state in known)
        for name in NODES:
            self.words[name] &= self.agents[name].standing()

    # -- what happens to machines -----------------------------------------------------------

    @rule(name=nodes, code=st.sampled_from(CODES), gpu=st.sampled_from(("GPU-1", "GPU-2")))
    def a_fault(self, name: str, code: str, gpu: str) -> None:
        agent = self.agents[name]
        now = self.loop.time()
        known = agent.faults.get((code, gpu))
        self._latch(
            agent,
            replace(known, last_at=now, count=known.count + 1)
            if known
            else fault(code, gpu, first_at=now, last_at=now),
        )
        self._go(0)

    def _latch(self, agent: PlayedAgent, seen: Fault) -> None:
        """The agent has the fault from now on, and tells of it."""
        self.pods += 1
        known = agent.faults.get((seen.code, seen.component))
        sequence = known.source_seq if known else self.pods
        latched = replace(seen, boot_id=agent.boot_id, source_seq=sequence)
        agent.faults[seen.code, seen.component] = latched
        self._send_evidence(agent, Delta(faults=(latched,)))

    @rule(
        order=st.permutations([(name, code) for name in OF_CLIQUE for code in TRAY_FAULTS]),
        gap=st.sampled_from((0.0, 0.5, 3.0)),
        ends=st.booleans(),
    )
    def a_switch_tray_fails(self, order: list[tuple[str, str]], gap: float, *, ends: bool) -> None:
        """Each node of the clique logs an NVLink error and the driver's verdict, in any order; and
        a reset of one GPU after the other may end them.
        """
        if not self._links_are_well():
            return
        self.tray_fails = True
        for name, code in order:
            self._latch(self.agents[name], TRAY_FAULTS[code](TRAY_GPU, self.loop.time()))
            self._go(gap)
        self._go(FABRIC_HOLD + 5)
        for name, code in order if ends else ():
            if (code, TRAY_GPU) in self.agents[name].faults:
                self._clear(self.agents[name], (code, TRAY_GPU), "gpu-reset")
                self._go(gap)
        self.tray_fails = False

    @rule(name=st.sampled_from(OF_CLIQUE))
    def a_gpu_alone_loses_its_links(self, name: str) -> None:
        """No other node shows the same, so the fabric holds this one for a while and no longer."""
        if not self._links_are_well() or self.replica.fleet.causes:
            return
        restarts = len(self.restarts)
        for made in TRAY_FAULTS.values():
            self._latch(self.agents[name], made(TRAY_GPU, self.loop.time()))
        self._go(FABRIC_HOLD + 30)  # held nodes are looked at in rounds
        if len(self.restarts) == restarts and not self.replica.fleet.causes:
            hold = self.replica.fleet.node_summaries[name].decision.hold
            assert hold is None or hold.limit not in ("fabric", "limits.fabric_hold"), hold

    def _links_are_well(self) -> bool:
        """Whether no node of the clique has evidence of a link, and that of each would count."""
        for name in OF_CLIQUE:
            agent = self.agents[name]
            node_state = self.replica.controller._registry.node_state(name)
            if node_state.agent.conflict or self.exempt.get(name, 0.0) > self.loop.time():
                return False
            if CLIQUE not in self.world.nodes[name].labels:  # another machine, not in the rack
                return False
            if any(code in OF_LINKS for code, _ in agent.faults):
                return False
            if agent.line is None or agent.line.closed:
                self._attach(agent)
        return True

    @rule(name=nodes, how=st.sampled_from(("operator", "replaced", "gpu-reset")), data=st.data())
    def a_sign(self, name: str, how: str, data: st.DataObject) -> None:
        agent = self.agents[name]
        if not agent.faults:
            return
        self._clear(agent, data.draw(st.sampled_from(sorted(agent.faults))), how)
        self._go(0)

    def _clear(self, agent: PlayedAgent, key: tuple[str, str], how: str) -> None:
        del agent.faults[key]
        sign = Cleared(*key, how)
        agent.unacked.append(sign)
        self.words[agent.node].discard(key)
        self._send_evidence(agent, Delta(cleared=(sign,)))

    @rule(
        name=nodes,
        level=st.sampled_from(LEVELS),
        status=st.sampled_from((Status.OK, Status.FAILED, Status.FAILED, Status.UNKNOWN)),
    )
    def a_check(self, name: str, level: tuple[str, str], status: Status) -> None:
        agent, (check, reason) = self.agents[name], level
        told = "" if status is Status.OK else reason
        before = agent.levels.get((check, "/"))
        since = self.loop.time()
        if before is not None and before.status is status:
            return
        agent.levels[check, "/"] = component(check, "/", status, told, since=since)
        self._is_back(agent, (check, "/"))
        self.words[name] &= agent.standing()
        self._send_evidence(agent, Delta(components=(agent.levels[check, "/"],)))
        self._go(0)

    @rule(name=nodes, level=st.sampled_from(LEVELS), heard=st.booleans())
    def a_component_goes(self, name: str, level: tuple[str, str], *, heard: bool) -> None:
        """A mount that was well is taken away; the message of it is lost, it may be."""
        agent, key = self.agents[name], (level[0], "/")
        if key not in agent.levels or agent.levels[key].status is not Status.OK:
            return
        del agent.levels[key]
        agent.vanished.add(key)
        agent.gone.append(key)
        self.words[name] &= agent.standing()
        if heard:
            self._send_evidence(agent, Delta(gone=(key,)))
        self._go(0)

    @rule(name=nodes, level=st.sampled_from(LEVELS), dies=st.booleans())
    def a_component_fails_recovers_and_goes(
        self, name: str, level: tuple[str, str], *, dies: bool
    ) -> None:
        """The component may go while no process listens: the next process has to learn of it."""
        for agent in self.agents.values():
            if agent.line is None:
                self._attach(agent)
        self.a_check(name, level, Status.FAILED)
        self._go(40)
        self.a_check(name, level, Status.OK)
        if dies:
            self.replica.cluster.crashed.set()
        self.a_component_goes(name, level, heard=not dies)

    @staticmethod
    def _is_back(agent: PlayedAgent, key: tuple[str, str]) -> None:
        agent.vanished.discard(key)
        agent.gone = [one for one in agent.gone if one != key]

    @rule(name=nodes, times=st.integers(2, 6))
    def a_check_flaps(self, name: str, times: int) -> None:
        for turn in range(times):
            self.a_check(name, LEVELS[1], Status.OK if turn % 2 else Status.FAILED)
            self._go(3)

    @rule(name=nodes, away=st.sampled_from((0.0, 90.0)))
    def a_reboot(self, name: str, away: float) -> None:
        agent = self.agents[name]
        self._detach(agent)
        agent.boot += 1
        agent.faults.clear()
        agent.levels.clear()
        agent.unacked.clear()
        self.words[name] = {key for key in self.words[name] if not key[0].startswith("xid")}
        node = self.world.nodes[name]
        self.world.set_node(replace(node, boot_id=agent.boot_id))
        self._go(away)
        self._attach(agent)
        self._go(0)

    @rule(name=nodes, old_token=st.booleans())
    def a_machine_is_replaced(self, name: str, *, old_token: bool) -> None:
        """Another machine under the name; for a moment the old one still speaks, it may be."""
        agent = self.agents[name]
        self.theirs.pop(name, None)
        self.cordoned.discard(name)
        self.foreign.discard(name)
        self.exempt.pop(name, None)
        self.words[name].clear()
        for key in [key for key in self.world.pods if key.startswith(f"{name}/")]:
            del self.world.pods[key]
        self.world.renew_node(name, f"{name}-boot-{agent.boot + 1}")
        if old_token and agent.line is not None:
            self._send_evidence(agent, agent.snapshot())
            self._go(1)
        self._detach(agent)
        self.agents[name] = PlayedAgent(name, self.world.nodes[name].uid, boot=agent.boot + 1)
        self._attach(self.agents[name])
        self._job(name)
        self._go(0)

    @rule(name=nodes, away=st.sampled_from((0.0, 0.1, 20.0, 400.0)))
    def a_node_is_recreated_in_the_same_boot(self, name: str, away: float) -> None:
        """The Node object alone: the machine, its faults and its agent are the same."""
        agent, labels = self.agents[name], self.world.nodes[name].labels
        self._detach(agent)
        for kept in (self.cordoned, self.foreign):
            kept.discard(name)
        self.exempt.pop(name, None)
        self.theirs.pop(name, None)
        self.words[name].clear()
        for key in [key for key in self.world.pods if key.startswith(f"{name}/")]:
            del self.world.pods[key]
        self.came_back.add(name)
        self.world.delete_node(name)
        if away:
            self._go(away)
        uid = f"uid-{self.world.tick()}-{name}"
        kept_labels = {key: labels[key] for key in (CLIQUE, POOL) if key in labels}
        self.world.add_node(name, uid=uid, boot_id=agent.boot_id, labels=kept_labels)
        agent.node_uid = uid
        self._job(name)
        self._attach(agent)
        self._go(0)

    @rule(name=nodes)
    def an_agent_loses_its_memory(self, name: str) -> None:
        """The kernel's ring brings the faults back a little later."""
        agent = self.agents[name]
        self._detach(agent)
        agent.epoch += 1
        agent.forgotten += agent.unacked
        remembered, agent.faults, agent.unacked = agent.faults, {}, []
        levels, agent.levels = agent.levels, {}
        agent.gone = []
        self._attach(agent)
        self._go(1)
        agent.faults, agent.levels = remembered, levels
        both = Delta(tuple(levels.values()), tuple(remembered.values()))
        self._send_evidence(agent, both)
        self._go(0)

    @rule(name=nodes)
    def an_agent_falls_silent(self, name: str) -> None:
        self._detach(self.agents[name])
        self._go(0)

    @rule(name=nodes)
    def an_agent_comes_back(self, name: str) -> None:
        self._detach(self.agents[name])
        self._attach(self.agents[name])
        self._go(0)

    @rule(name=nodes, two=st.booleans())
    def two_agents_claim_it(self, name: str, *, two: bool) -> None:
        detail = "a and b" if two else ""
        self._inside(lambda: self.replica.controller.on_conflict(name, detail))
        self._go(0)

    # -- what people and others do ------------------------------------------------------------

    @rule(name=nodes)
    def a_person_deletes(self, name: str) -> None:
        quarantine = self.world.quarantines.get(name)
        if quarantine is None or quarantine.deleting:
            return
        self._overruled(name)
        self.world.person_deletes(name)
        self._go(0)

    @rule(name=nodes, user=st.sampled_from(("mary", "mary", "", TOOL, KUBELET)))
    def an_uncordon(self, name: str, user: str) -> None:
        """``user``: the name that the policy writes on the node; empty: it writes none."""
        if not self.world.nodes[name].unschedulable:
            return
        self.cordoned.discard(name)
        if self._lifts(name, user):
            self.lifted.add(self.world.quarantines[name].uid)
            self._overruled(name)
        self.world.person_uncordons(name, told_by=user)
        self._go(0)

    def _lifts(self, name: str, user: str) -> bool:
        """Whether that uncordon ends the node's quarantine: it is ours, and so is the cordon."""
        found = self.world.quarantines.get(name)
        marked = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
        if found is None or found.status.phase not in marked or found.spec.requester != OURS:
            return False
        applied = known_applied(self.world.nodes[name], found)
        if applied is None or not applied.cordoned:
            return False
        if self.on_uncordon is OnUncordon.ASK:
            return user == "mary"
        return user != KUBELET

    @precondition(lambda self: self.world.quarantines)
    @rule(data=st.data())
    def a_person_edits_the_action(self, data: st.DataObject) -> None:
        """To the other one."""
        name = data.draw(st.sampled_from(sorted(self.world.quarantines)))
        found = self.world.quarantines[name]
        action = Action.CORDON if found.spec.action is Action.DRAIN else Action.DRAIN
        if found.deleting:
            return
        self.world.person_edits_spec(name, action=action)
        if found.spec.intent_action is None or action is found.spec.intent_action:
            self.overridden.pop(found.uid, None)
        elif found.spec.requester == OURS:  # a force's annotation may ask for something else
            self.overridden[found.uid] = (action, self.loop.time())
        self._go(0)

    @rule(name=nodes, words=st.sampled_from(("RMA 7", "fan 3 is dead")))
    def a_person_edits_the_reason(self, name: str, words: str) -> None:
        if name in self.world.quarantines:
            self.world.person_edits_spec(name, reason=words)
            self._go(0)

    def _overruled(self, name: str) -> None:
        quarantine = self.world.quarantines[name]
        if quarantine.spec.requester == OURS and quarantine.status.phase is not Phase.RELEASING:
            self.words[name] |= {
                (one.code, one.component) for one in quarantine.spec.evidence if not one.cleared
            } & self.agents[name].standing()

    @rule(name=nodes)
    def a_person_removes_by_force(self, name: str) -> None:
        if name not in self.world.quarantines or self.errors:
            return
        if not is_marked(self.world.nodes[name]):
            return  # without the annotation no mark on the node is known to be ours
        self.replica.cluster.crash_in(-1, after=False)
        self._go(30)
        if name in self.world.quarantines:
            self._overruled(name)
            self.world.person_removes_by_force(name)
            self._go(30)

    @rule(name=nodes)
    def a_person_cordons(self, name: str) -> None:
        """One that comes between an uncordon and ours, for a quarantine that stands, is ours."""
        found = self.world.quarantines.get(name)
        applied = known_applied(self.world.nodes[name], found)
        pending = (
            applied is not None
            and applied.cordoned
            and (found is None or not self._is_lifted(found))
        )
        if not self.world.nodes[name].unschedulable:
            if not pending:
                self.cordoned.add(name)
            self.world.person_cordons(name)
            self._go(0)

    def _is_lifted(self, quarantine: Quarantine) -> bool:
        return quarantine.uid in self.lifted

    @precondition(lambda self: self.mode is Action.DRAIN)
    @rule(name=nodes, action=st.sampled_from((Action.CORDON, Action.DRAIN)))
    def a_person_quarantines(self, name: str, action: Action) -> None:
        if name not in self.world.quarantines:
            self.world.person_creates(name, QuarantineSpec(action, "manual", "smells of smoke"))
            self._go(0)

    @rule(name=nodes, seconds=st.sampled_from((0.0, 100.0, 1000.0)))
    def a_person_exempts(self, name: str, seconds: float) -> None:
        until = round(self.loop.time() + seconds)
        self.exempt[name] = until if seconds else 0.0
        self.world.person_annotates(name, EXEMPT, exemption(until, "a test") if seconds else None)

    @rule(name=nodes, text=st.sampled_from((None, "RMA 12345", "")))
    def a_person_pins(self, name: str, text: str | None) -> None:
        self.world.person_annotates(name, PIN, text)

    @precondition(lambda self: self.mode is Action.DRAIN)
    @rule(name=nodes, text=st.sampled_from((None, "drain fan 3", "cordon fan 3", "nonsense")))
    def a_person_forces(self, name: str, text: str | None) -> None:
        self.world.person_annotates(name, FORCE, text)

    @rule(name=nodes, there=st.booleans())
    def somebody_elses_taint(self, name: str, *, there: bool) -> None:
        node = self.world.nodes[name]
        others = tuple(taint for taint in node.taints if taint != FOREIGN)
        self.foreign.discard(name)
        if there:
            self.foreign.add(name)
            others = (*others, FOREIGN)
        self.world.set_node(replace(node, taints=others))
        self._go(0)

    @rule(name=nodes, taint=st.sampled_from((None, *OF_OUR_KEY)))
    def somebody_elses_taint_of_our_key(self, name: str, taint: Taint | None) -> None:
        """Only before a quarantine, because a change during one is ours, and set again."""
        node = self.world.nodes[name]
        if is_marked(node) or name in self.world.quarantines:
            return
        self.theirs.pop(name, None)
        others = tuple(one for one in node.taints if one.key != TAINT)
        if taint is not None:
            self.theirs[name] = taint
            others = (*others, taint)
        self.world.set_node(replace(node, taints=others))
        self._go(0)

    @rule(
        name=nodes,
        what=st.sampled_from(("taint", "value", "label", "applied", "condition", "all")),
    )
    def somebody_removes_our_marks(self, name: str, what: str) -> None:
        node, found = self.world.nodes[name], self.world.quarantines.get(name)
        marked = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
        if found is None or found.status.phase not in marked or found.status.applied is None:
            return
        if found.status.node_uid != node.uid:
            return
        if what in ("taint", "all"):
            ours = (TAINT, "NoSchedule")
            kept = tuple(one for one in node.taints if (one.key, one.effect) != ours)
            node = replace(node, taints=kept)
        if what == "value":
            changed = (replace(t, value="x") if t.key == TAINT else t for t in node.taints)
            if name not in self.theirs:
                node = replace(node, taints=tuple(changed))
        if what in ("label", "all"):
            node = replace(node, labels={k: v for k, v in node.labels.items() if k != LABEL})
        if what in ("applied", "all"):
            notes = {k: v for k, v in node.annotations.items() if k != APPLIED}
            node = replace(node, annotations=notes)
        if what in ("condition", "all"):
            node = replace(node, condition="")
        self.world.set_node(node)
        self._go(0)

    @rule(stop=st.booleans())
    def a_person_stops_all(self, *, stop: bool) -> None:
        self.stopped_at = self.loop.time() if stop else None
        self.unread = False
        self.world.person_stops("drill" if stop else "")
        self._go(0)

    @rule()
    def a_person_stops_all_and_the_news_are_late(self) -> None:
        self.stopped_at = self.loop.time()
        self.unread = True  # the first entry after a rest is written next to the read
        self.world.person_stops_unseen("drill")

    @rule()
    def a_person_deletes_the_stop(self) -> None:
        # A running process keeps it; a process that starts anew does not know of it.
        self.stopped_at = None
        self.world.person_deletes_stop()
        self._go(0)

    @rule(deleted=st.booleans(), older=st.integers(0, 50))
    def the_record_is_lost(self, *, deleted: bool, older: int) -> None:
        self.lost_at = self.loop.time() + 1.0
        if deleted:
            self.world.person_deletes_record()
        else:
            self.world.person_rolls_back_record(self.texts[older % len(self.texts)])
        self._go(0)

    @rule(name=nodes)
    def a_job_starts(self, name: str) -> None:
        if not self.world.nodes[name].unschedulable:
            self._job(name)

    @rule(name=nodes, tolerates=st.booleans())
    def a_pod_that_comes_back(self, name: str, *, tolerates: bool) -> None:
        """A StatefulSet's pod: it tolerates every taint, or its controller binds it to the node."""
        number = self.world.tick()
        pod = f"set-{number}"
        self.world.add_pod(
            name,
            pod,
            owner_kind="StatefulSet",
            owner_name=pod,
            tolerations=(Toleration(operator="Exists"),) if tolerates else (),
            created_at=float(int(self.loop.time())),
        )
        self.world.come_back.add(f"jobs/{pod}")

    @rule(name=nodes, tolerates=st.booleans(), seconds=st.sampled_from((30.0, 700.0)))
    def a_node_fails_whose_pod_comes_back(
        self, name: str, *, tolerates: bool, seconds: float
    ) -> None:
        """The fault may last for so long that a second eviction is due."""
        for agent in self.agents.values():
            if agent.line is None:
                self._attach(agent)
        self.a_pod_that_comes_back(name, tolerates=tolerates)
        self.a_fault(name, "xid:79", "GPU-1")
        self._go(seconds)

    @rule(rejection=st.sampled_from((None, Evicted.REJECTED, Evicted.FAILING)))
    def admission(self, rejection: Evicted | None) -> None:
        """A webhook rejects the evictions of all pods that are there, or no more."""
        self.world.rejections = {
            pod.uid: EvictionResult(rejection, "a webhook says so")
            for pod in self.world.pods.values()
            if rejection is not None
        }

    @rule(blocks=st.booleans())
    def budgets(self, *, blocks: bool) -> None:
        self.world.budget_blocks = {p.uid for p in self.world.pods.values()} if blocks else set()

    @rule(lags=st.booleans())
    def the_servers_cache(self, *, lags: bool) -> None:
        self.world.cache_lags = lags

    @rule()
    def kubelets_finish(self) -> None:
        self.world.kubelets_finish()

    # -- what happens to us ---------------------------------------------------------------------

    @rule(calls=st.integers(1, 12), after=st.booleans())
    def it_will_die(self, calls: int, *, after: bool) -> None:
        self.replica.cluster.crash_in(calls, after=after)

    @rule()
    def it_dies(self) -> None:
        self.replica.cluster.crashed.set()
        self._go(0)

    @rule(late=st.booleans())
    def answers_come_late(self, *, late: bool) -> None:
        self.replica.cluster.answers_late = late

    @rule(
        call=st.sampled_from(
            (
                "read_record",
                "write_record",
                "create_quarantine",
                "read_quarantine",
                "write_quarantine_spec",
                "write_quarantine_status",
                "drop_quarantine",
                "read_node",
                "patch_node",
                "pods_on",
                "evict",
                "announce",
                "list_nodes",
            )
        ),
        late=st.booleans(),
        error=st.sampled_from((Unreachable("503"), Conflict("409"), Refused("403"))),
        times=st.integers(1, 3),
    )
    def the_cluster_will_fail(
        self,
        call: str,
        *,
        late: bool,
        error: ClusterError,
        times: int,
    ) -> None:
        """The process dies before the call is done, or after it: then only the answer is lost."""
        if late and not isinstance(error, Unreachable):
            return
        self.errors += [(call, late, error)] * times

    @rule(seconds=st.sampled_from((0.01, 1.0, 6.0, 40.0, 200.0, 700.0)))
    def time_passes(self, seconds: float) -> None:
        self._go(seconds)

    # -- how it ends ----------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if not self.wrong:
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
                self.replica.controller._registry.node_state(name),
                self.world.nodes[name],
            )
            if one.status.phase not in marked or one.deleting or node_state.agent.conflict:
                continue
            assert one.status.node_uid == node.uid, one
            if node.unschedulable:
                told = one.status.marks.missing if one.status.marks is not None else ()
                assert node_state.lacks(node, one) == told == node_state.quarantine_view.missing, (
                    one,
                    node,
                )

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
            for node_state in self.replica.controller._registry.node_states()
            if node_state.decision.wanted is not None
            and node_state.decision.wanted.in_force is not Action.OBSERVE
            and not (
                node_state.agent.conflict or node_state.decision.hold or node_state.decision.would
            )
            and node_state.node_summary.quarantine is None
        }


class Observing(ControllerMachine):
    """The same state machine, in a mode that allows no action."""

    mode = Action.OBSERVE


class Asking(ControllerMachine):
    """The same state machine, where an uncordon by a tool or an unknown client releases no node."""

    on_uncordon = OnUncordon.ASK


_HOW = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
ControllerMachine.TestCase.settings = _HOW
Observing.TestCase.settings = settings(_HOW, max_examples=30)
Asking.TestCase.settings = settings(_HOW, max_examples=100)
TestControllerMachine = ControllerMachine.TestCase
TestAsking = Asking.TestCase
TestObserving = Observing.TestCase
