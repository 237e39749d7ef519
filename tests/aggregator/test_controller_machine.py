"""The whole controller against everything that may happen, in any order, in virtual time.

Faults come and clear, machines reboot and are replaced, people cordon, uncordon, delete and stop,
the cluster fails, answers are lost, and the aggregator dies between any two calls. What must never
happen is looked for at every write; how it all ends, at the end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aggregator.health.model import Cleared, Component, Delta, Fault, Snapshot, Status
from aggregator.quarantine.cluster import (
    Action,
    ClusterError,
    Conflict,
    EvictionResult,
    Phase,
    Pod,
    QuarantineSpec,
    Refused,
    Taint,
    Unreachable,
)
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.blame import CommonLimits
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.marks import is_marked
from aggregator.quarantine.decide.record import parse_record
from aggregator.quarantine.decide.wishes import EXEMPT, FORCE, FORCED, PIN, exemption
from tests.support.memorycluster import MemoryCluster, World
from tests.support.replica import SETTINGS, FakeLine, Replica, component, fault, hello
from tests.support.running import LoopClock
from tests.support.virtualtime import VirtualTimeLoop

#: It computes all the while: on a machine with much else to do that takes minutes.
pytestmark = pytest.mark.timeout(900)

T = TypeVar("T")
NODES = ("n1", "n2", "n3", "n4")
LIMIT = 2
#: At most so many are admitted in a window (seconds), those by hand counted.
RATE, WINDOW, COOLDOWN = 3, 60.0, 120.0
#: Two of the nodes share an NVLink clique.
CLIQUE, OF_CLIQUE = "nvidia.com/gpu.clique", ("n1", "n2")
FOREIGN = Taint("example.com/theirs", "1", "NoSchedule")
#: What becomes of a fault by another boot: all of these are over.
CODES = ("xid:79", "xid:48", "xid:74")
LEVELS = (("disk-space", "bytes"), ("disk-readonly", "read-only"))
WELL_AFTER = 900.0
#: What nobody waits for: when one of these fails, nobody would notice.
OWN_TASKS = ("attend", "announce", "registrar", "news", "rounds", "looking")

nodes = st.sampled_from(NODES)


@dataclass
class PlayedAgent:
    """A node's agent: all it knows, and what nobody has acknowledged yet."""

    node: str
    node_uid: str
    boot: int = 1
    epoch: int = 1
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    levels: dict[tuple[str, str], Component] = field(default_factory=dict)
    unacked: list[Cleared] = field(default_factory=list)
    #: Signs that it forgot before anybody acknowledged them: an operator has to say them again.
    forgotten: list[Cleared] = field(default_factory=list)
    line: FakeLine | None = None

    @property
    def boot_id(self) -> str:
        return f"{self.node}-boot-{self.boot}"

    def snapshot(self) -> Snapshot:
        return Snapshot(
            tuple(self.levels.values()), tuple(self.faults.values()), tuple(self.unacked)
        )

    def standing(self) -> set[tuple[str, str]]:
        """What is wrong in truth, as the keys of evidence."""
        failed = {
            (f"{one.check}:{one.reason}", one.component)
            for one in self.levels.values()
            if one.status in (Status.FAILED, Status.UNKNOWN)
        }
        return failed | set(self.faults)


class Watched(MemoryCluster):
    """Calls that are looked at as they happen; ``look`` gets the name and the state before."""

    def __init__(self, world: World, machine: "Ward") -> None:
        super().__init__(world, fails=machine.fails, loses=machine.loses)
        self._machine = machine

    async def _call(self, name: str, effect: Callable[[], T]) -> T:
        def watched() -> T:
            entries = set(parse_record(self.world.record.text).entries)
            made = {node: one.uid for node, one in self.world.quarantines.items()}
            result = effect()
            self._machine.look(entries, made)
            return result

        return await super()._call(name, watched)

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> EvictionResult:
        result = await super().evict(pod, dry_run=dry_run)
        if not dry_run:
            self._machine.looked_at_eviction(pod)
        return result


class Ward(RuleBasedStateMachine):
    """Four nodes of which two may be in quarantine at once."""

    mode = Action.DRAIN

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.wrong: list[str] = []
        self.loop.set_task_factory(self._task)
        self.loop.set_exception_handler(lambda *_: None)  # tasks are asked themselves, see below
        self.tasks: list[asyncio.Task[Any]] = []
        self.world = World()
        self.errors: list[tuple[str, bool, ClusterError]] = []
        self.agents: dict[str, PlayedAgent] = {}
        #: What people have overruled and nothing has ended, by node.
        self.words: dict[str, set[tuple[str, str]]] = {name: set() for name in NODES}
        #: Nodes that a person has cordoned while nobody else had.
        self.cordoned: set[str] = set()
        self.foreign: set[str] = set()
        self.by_hand: set[str] = set()
        #: Until when people have exempted a node.
        self.exempt: dict[str, float] = {}
        self.marked: set[str] = set()
        self.pods = 0
        for name in NODES:
            labels = {CLIQUE: "c1"} if name in OF_CLIQUE else {}
            self.world.add_node(name, boot_id=f"{name}-boot-1", labels=labels)
            self.agents[name] = PlayedAgent(name, self.world.nodes[name].uid)
            self._job(name)
        self.replica = self._start()

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=loop, **how)
        self.tasks.append(task)
        return task

    # -- running ---------------------------------------------------------------------------

    def _start(self) -> Replica:
        async def start() -> Replica:
            return Replica(
                self.world,
                clock=LoopClock(self.loop),
                settings=replace(
                    SETTINGS,
                    mode=self.mode,
                    limits=Limits(
                        concurrent=LIMIT,
                        concurrent_percent=100,
                        quorum_percent=50,
                        new_per_window=RATE,
                        new_per_window_percent=100,
                        window=WINDOW,
                        cooldown=COOLDOWN,
                    ),
                    common=CommonLimits(window=WINDOW, clique_label=CLIQUE),
                ),
                cluster=Watched(self.world, self),
            )

        return self.loop.run_until_complete(start())

    def _go(self, seconds: float) -> None:
        """Let virtual time pass; who died is started anew, and agents come back."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for _ in range(20):
            if not self.replica.cluster.crashed.is_set():
                return
            self._restart()
            self.loop.run_until_complete(asyncio.sleep(seconds))

    def _restart(self) -> None:
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
        )
        self._inside(lambda: self.replica.controller.attached(told, agent.line))  # type: ignore[arg-type]
        self._say(agent, agent.snapshot())

    def _detach(self, agent: PlayedAgent) -> None:
        line, agent.line = agent.line, None
        if line is not None and not line.closed:
            self._inside(lambda: self.replica.controller.detached(agent.node, line, "gone"))

    def _say(self, agent: PlayedAgent, evidence: Snapshot | Delta) -> None:
        if agent.line is None or agent.line.closed:
            return
        signs = list(evidence.cleared)

        def acknowledged(future: "asyncio.Future[None] | None" = None) -> None:
            if future is None or (not future.cancelled() and future.exception() is None):
                agent.unacked = [sign for sign in agent.unacked if sign not in signs]

        def say() -> None:
            safe = self.replica.controller.heard(agent.node, evidence, self.loop.time())
            if safe is None:
                acknowledged()
            else:
                assert isinstance(safe, asyncio.Future)
                safe.add_done_callback(acknowledged)

        self._inside(say)

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

    def look(self, entries: set[str], made: dict[str, str]) -> None:
        """After every call: ``entries`` and ``made`` (uids by node) are as before it."""
        record = parse_record(self.world.record.text)
        fresh = record.entries.keys() - entries
        ours = {name for name in fresh if record.entries[name].incident}
        if ours and fresh == ours:
            now = self.loop.time()
            lately = [at for at in record.admissions if now - at < WINDOW]
            if len(lately) > RATE:
                self.wrong.append(f"{ours} entered past the rate: {lately} at {now}")
        for name in fresh:
            if record.entries[name].incident and len(record.entries) > LIMIT:
                self.wrong.append(f"{name} entered past the limit: {sorted(record.entries)}")
        for name, quarantine in self.world.quarantines.items():
            spec = quarantine.spec
            if made.get(name) == quarantine.uid or spec.requester != OURS:
                continue
            if name not in record.entries:
                self.wrong.append(f"{name} quarantined without an entry")
            asks = {(one.code, one.component) for one in spec.evidence if not one.cleared}
            if asks and asks <= self.words[name]:
                self.wrong.append(f"{name}: {asks} was overruled by a person")
        for name, node in self.world.nodes.items():
            if name in self.foreign and FOREIGN not in node.taints:
                self.wrong.append(f"{name} lost somebody else's taint")
            if name in self.cordoned and not node.unschedulable:
                self.wrong.append(f"{name} lost somebody else's cordon")
        marked = {name for name, node in self.world.nodes.items() if is_marked(node)}
        for name in marked - self.marked:
            found = self.world.quarantines.get(name)
            ours_here = found is None or found.spec.requester == OURS
            if ours_here and self.exempt.get(name, 0.0) > self.loop.time():
                self.wrong.append(f"{name} was touched though it is exempt")
        self.marked = marked
        if self.mode is Action.OBSERVE and self.world.writes:
            self.wrong.append(f"observe wrote {self.world.writes}")

    def looked_at_eviction(self, pod: Pod) -> None:
        keys = (key for key, one in self.world.pods.items() if one.uid == pod.uid)
        name = next(keys, "").partition("/")[0]
        if name and name not in parse_record(self.world.record.text).entries:
            self.wrong.append(f"{pod.uid} evicted from {name}, which has no entry")

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert not self.wrong, self.wrong
        assert len(set(self.world.evicted)) == len(self.world.evicted)
        assert not self.replica.task.done(), self.replica.task
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.get_name().startswith(OWN_TASKS):
                assert task.exception() is None, task
        self.tasks = [task for task in self.tasks if not task.done()]
        census = self.replica.controller._census
        size = census.size()
        known = [case for case in census.cases() if census.is_listed(case.node) or not size.listed]
        assert size.reported == sum(case.heard for case in known)
        for name in NODES:
            self.words[name] &= self.agents[name].standing()

    # -- what happens to machines -----------------------------------------------------------

    @rule(name=nodes, code=st.sampled_from(CODES), gpu=st.sampled_from(("GPU-1", "GPU-2")))
    def a_fault(self, name: str, code: str, gpu: str) -> None:
        agent = self.agents[name]
        self.pods += 1
        now = self.loop.time()
        known = agent.faults.get((code, gpu))
        agent.faults[code, gpu] = fault(
            code,
            gpu,
            boot_id=agent.boot_id,
            source_seq=known.source_seq if known else self.pods,
            first_at=known.first_at if known else now,
            last_at=now,
            count=known.count + 1 if known else 1,
        )
        self._say(agent, Delta(faults=(agent.faults[code, gpu],)))
        self._go(0)

    @rule(name=nodes, how=st.sampled_from(("operator", "replaced", "gpu-reset")), data=st.data())
    def a_sign(self, name: str, how: str, data: st.DataObject) -> None:
        agent = self.agents[name]
        if not agent.faults:
            return
        key = data.draw(st.sampled_from(sorted(agent.faults)))
        del agent.faults[key]
        sign = Cleared(*key, how)
        agent.unacked.append(sign)
        self.words[name].discard(key)
        self._say(agent, Delta(cleared=(sign,)))
        self._go(0)

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
        self.words[name] &= agent.standing()
        self._say(agent, Delta(components=(agent.levels[check, "/"],)))
        self._go(0)

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
        self.cordoned.discard(name)
        self.foreign.discard(name)
        self.exempt.pop(name, None)
        self.words[name].clear()
        for key in [key for key in self.world.pods if key.startswith(f"{name}/")]:
            del self.world.pods[key]
        self.world.renew_node(name, f"{name}-boot-{agent.boot + 1}")
        if old_token and agent.line is not None:
            self._say(agent, agent.snapshot())
            self._go(1)
        self._detach(agent)
        self.agents[name] = PlayedAgent(name, self.world.nodes[name].uid, boot=agent.boot + 1)
        self._attach(self.agents[name])
        self._job(name)
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
        self._attach(agent)
        self._go(1)
        agent.faults, agent.levels = remembered, levels
        both = Delta(tuple(levels.values()), tuple(remembered.values()))
        self._say(agent, both)
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
        self._inside(lambda: self.replica.controller.conflict(name, detail))
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

    @rule(name=nodes)
    def a_person_uncordons(self, name: str) -> None:
        quarantine = self.world.quarantines.get(name)
        if not self.world.nodes[name].unschedulable:
            return
        self.cordoned.discard(name)
        marked = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
        if quarantine is not None and quarantine.status.phase in marked:
            self._overruled(name)
        self.world.person_uncordons(name)
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
        self.replica.cluster.crash_in(-1, after=False)
        self._go(30)
        if name in self.world.quarantines:
            self._overruled(name)
            self.world.person_removes_by_force(name)
            self._go(30)

    @rule(name=nodes)
    def a_person_cordons(self, name: str) -> None:
        if not self.world.nodes[name].unschedulable:
            self.cordoned.add(name)
            self.world.person_cordons(name)
            self._go(0)

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

    @rule(stop=st.booleans())
    def a_person_stops_all(self, *, stop: bool) -> None:
        self.world.person_stops("drill" if stop else "")
        self._go(0)

    @rule(name=nodes)
    def a_job_starts(self, name: str) -> None:
        if not self.world.nodes[name].unschedulable:
            self._job(name)

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
        """Before the call is done, or after it: then the answer alone is lost."""
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
        """Left alone, everything is done or says why not; made well, nothing of ours is left."""
        self.errors.clear()
        self.replica.cluster.crash_in(-1, after=False)
        self._go(60)
        self._explained()
        self.world.person_stops("")
        self.world.budget_blocks.clear()
        self.exempt.clear()
        for name, agent in self.agents.items():
            for key in (EXEMPT, PIN, FORCE):
                self.world.person_annotates(name, key, None)
            self._inside(lambda name=name: self.replica.controller.conflict(name, ""))  # type: ignore[misc]
            self._detach(agent)
            agent.unacked += agent.forgotten
            agent.unacked += [Cleared(*key, "operator") for key in agent.faults]
            agent.faults.clear()
            agent.levels = {(c, "/"): component(c, "/", Status.OK) for c, _ in LEVELS}
            self._attach(agent)
        for _ in range(4):
            self.kubelets_finish()
            self._go(WELL_AFTER)
        for name, one in list(self.world.quarantines.items()):
            if "came again" in one.status.release_held:
                self.world.person_deletes(name)  # so soon after a release a person decides
        self._go(60)
        mine = (OURS, FORCED)
        by_hand = {n for n, one in self.world.quarantines.items() if one.spec.requester not in mine}
        assert set(self.world.quarantines) == by_hand, self.world.quarantines
        assert set(parse_record(self.world.record.text).entries) == by_hand
        for name, node in self.world.nodes.items():
            assert is_marked(node) == (name in by_hand), node
            if name not in by_hand:
                assert node.unschedulable == (name in self.cordoned), node
            assert "sickbay.dev/overruled" not in node.annotations, node
        for agent in self.agents.values():
            assert agent.unacked == []

    def _explained(self) -> None:
        """What is wanted is done, or people are told why not; what has just changed (an exemption
        that ended) by the next round.
        """
        before = self._unexplained()
        self._go(6)
        assert not before & self._unexplained(), self.replica.fleet.patients

    def _unexplained(self) -> set[str]:
        return {
            case.node
            for case in self.replica.controller._census.cases()
            if case.wanted is not None
            and case.wanted.in_force is not Action.OBSERVE
            and not (case.patient.conflict or case.patient.hold or case.patient.would)
            and case.patient.quarantine is None
        }


class Observing(Ward):
    """The same where the mode allows nothing."""

    mode = Action.OBSERVE


_HOW = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
Ward.TestCase.settings = _HOW
Observing.TestCase.settings = settings(_HOW, max_examples=30)
TestWard = Ward.TestCase
TestObserving = Observing.TestCase
