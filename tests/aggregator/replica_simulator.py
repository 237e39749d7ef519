"""A fleet, its API server and its replicas in one virtual time, for schedules that try to break it.

Each replica is a process of its own: the real LeaseHolder on a played Lease, and while it holds
that the real Controller on a played cluster. Requests travel, are lost or late, and go on after
their sender was paused or killed; events of the cluster come late, and in order. Agents are
outside: they keep what they know, and their gateways connect them to the replica that the Lease
names.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from aggregator.clock import Clocks
from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    ClusterEvent,
    Guard,
    Phase,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    RecordSeen,
    StopSeen,
    Unreachable,
    WatchLost,
    WatchSynced,
)
from aggregator.composition.core import build_controller
from aggregator.health.model import Cleared, ClearedBy, Delta, Fault, Snapshot
from aggregator.leader.election import TIMES
from aggregator.leader.holder import LeaseHolder
from aggregator.leader.lease import (
    Candidate,
    Draft,
    Lease,
    LeaseConflict,
    LeaseNotFound,
    LeaseStoreError,
)
from aggregator.quarantine.controller import Controller
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.tasks import run_until_first_exit
from tests.aggregator.replica_workshop import UNTESTED, Workshop
from tests.support.invariants import (
    KNOWN_WITHIN,
    Watch,
    at_most_one_may_act,
    parse_record,
    releases_held_up,
)
from tests.support.memory_cluster import Arrival, MemoryCluster, World
from tests.support.rack_faults import link_error, verdict
from tests.support.replica import Notes, fault, hello, shipped_policy
from tests.support.virtual_processes import Clockwork, Process

T = TypeVar("T")

#: The API server's errors, status and Retry-After: the request was carried out, or was not.
ERRORS = ((500, None), (429, 1.0), (504, None))
#: A replica's request to the API server is given up after so long (seconds).
DEADLINE = 10.0
#: A gateway reads so often whom the Lease names, and connects.
READS = 2.5
#: Agents: how long until one sees that its replica is gone without a word, and its longest pause.
NOTICES, LONGEST = 75.0, 15.0
#: How long until it leaves one that has not greeted it, as the agent does the first two times.
GREETS = 15.0
#: Two nodes share a rack.
RACKS = {"n4": "7", "n5": "7"}
#: How far apart wall clocks may be, and jump (seconds).
DAY = 86_400.0
CODE, GPU = "xid:46", "GPU-1"
#: These nodes share an NVLink clique; of three replicas two own them.
OF_CLIQUE = ("n1", "n2", "n3")
CLIQUE = {"nvidia.com/gpu.clique": "5b4a3c2d-1e0f-4a5b-8c7d-6e5f40312233.7"}
#: As shipped, except that a node counts as well sooner, because idle hours cost time, however often
#: it fails.
POLICY = shipped_policy("rules: [{name: gpu-fatal, healthyFor: 20s, repeatWithin: 0s}]")


@dataclass
class Wire:
    """How requests fare between the replicas and the API server."""

    time: Clockwork
    rng: random.Random
    latency: float = 0.02
    late: float = 0.02  # the share of messages that take seconds
    lost: float = 0.0  # the share of requests, and of answers, that are lost
    failing: float = 0.0  # the share of requests that the API server answers with an error
    #: Replicas that do not reach the API server now.
    cut: set[str] = field(default_factory=set)

    async def ask(
        self, who: "Host", deadline: float, effect: Callable[[], T], *, to_nodes: bool = False
    ) -> T:
        """Send it; ``effect`` happens at the other end, whatever becomes of the sender.

        ``to_nodes``: to a node's BMC, which a replica reaches that is cut off from the API server.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            if (who.name in self.cut and not to_nodes) or self.rng.random() < self.lost:
                return
            try:
                result = effect()
            except Exception as error:
                self._carry(who, answer, lambda error=error: answer.set_exception(error))  # type: ignore[misc]
            else:
                self._carry(who, answer, lambda: answer.set_result(result), to_nodes=to_nodes)

        self.time.after(self._travel(), arrive)
        async with asyncio.timeout(deadline):
            return await answer

    def _carry(
        self,
        who: "Host",
        answer: "asyncio.Future[T]",
        deliver: Callable[[], None],
        *,
        to_nodes: bool = False,
    ) -> None:
        def come() -> None:
            if not answer.done() and not who.process.dead:
                deliver()
                who.answered()

        if (to_nodes or who.name not in self.cut) and self.rng.random() >= self.lost:
            self.time.after(self._travel(), come)

    def _travel(self) -> float:
        """Mostly quick, now and then very late."""
        late = self.rng.random() < self.late
        return self.rng.uniform(0.0, 4.0 if late else self.latency)


class SimBoard:
    """The Lease, by compare-and-set."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0
        self.deleted_at = float("-inf")

    def write(self, draft: Draft) -> Lease:
        if self.lease is None and draft.version:
            raise LeaseNotFound("gone")
        if self.lease is not None and self.lease.version != draft.version:
            raise LeaseConflict("written in between")
        self.version += 1
        uid = self.lease.uid if self.lease is not None else f"uid-{self.version}"
        self.lease = Lease(draft.holder, str(self.version), uid, draft.transitions)
        return self.lease

    @property
    def named(self) -> str:
        """The replica that the Lease names."""
        holder = self.lease.holder if self.lease is not None else None
        return holder.name if holder is not None else ""


class BoardAt:
    """The store as one replica reaches it: a `LeaseStore`."""

    def __init__(self, board: SimBoard, wire: Wire, host: "Host") -> None:
        self._board, self._wire, self._host = board, wire, host

    async def read(self) -> Lease | None:
        return await self._ask(lambda: self._board.lease)

    async def write(self, draft: Draft) -> Lease:
        return await self._ask(lambda: self._board.write(draft))

    async def _ask(self, effect: Callable[[], T]) -> T:
        try:
            return await self._wire.ask(self._host, TIMES.deadline, effect)
        except TimeoutError:
            raise LeaseStoreError("no answer in time") from None


class ClusterAt(MemoryCluster):
    """The cluster as one replica reaches it."""

    def __init__(self, sim: "Simulation", host: "Host", settings: Settings) -> None:
        super().__init__(sim.world)
        self._sim, self._host, self._settings = sim, host, settings
        self._told: dict[str, str] = {}
        self._stop_told = False

    async def _call(self, name: str, effect: Callable[[], T], guard: Guard = UNGUARDED) -> T:
        host, settings, sim = self._host, self._settings, self._sim
        sent_at, in_place = 0.0, False

        error, late = sim.next_error() if name != "repair" else (None, False)

        def watched() -> T:
            if error is not None and not late:
                raise error
            if isinstance(effect, Arrival):
                effect.sent_at, effect.in_place = sent_at, in_place
            facts = self.world.facts
            facts.limits, facts.rules = settings.limits, settings.repair.rules
            facts.stop_unseen = not self._stop_told
            result = effect()
            self._sim.check_invariants(host, name)
            if error is not None:
                raise error
            return result

        if name == "repair":
            await asyncio.sleep(self._sim.connect_time())
        if guard is not None:
            await guard()
        sent_at, in_place = self._sim.time.now, host.lease.may_act()
        try:
            return await self._sim.wire.ask(host, DEADLINE, watched, to_nodes=name == "repair")
        except TimeoutError:
            raise Unreachable(f"{name}: no answer in time") from None

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """All anew after each gap, as the informer does; a gap is noticed late."""
        while True:
            while self._host.name in self._sim.wire.cut:
                yield WatchLost("the API server does not answer")
                await asyncio.sleep(1.0)
            stream = _Stream(self._sim, self._host)
            self.world.listeners.append(stream)  # type: ignore[arg-type]  # what it is used as
            try:
                for news in self._all_anew():
                    yield self._note_event(news)
                while not stream.broken:
                    yield self._note_event(await stream.queue.get())
            finally:
                self.world.listeners.remove(stream)  # type: ignore[arg-type]
            yield WatchLost("the watch broke")

    def _note_event(self, news: ClusterEvent) -> ClusterEvent:
        if isinstance(news, StopSeen):
            self._stop_told = bool(news.stop.reason)
        elif isinstance(news, QuarantineSeen):
            self._told[news.quarantine.node] = news.quarantine.uid
        elif isinstance(news, QuarantineGone):
            self._told.pop(news.node, None)
        return news

    def _all_anew(self) -> list[ClusterEvent]:
        now: dict[str, Quarantine] = dict(self.world.quarantines)
        gone = [node for node, uid in self._told.items() if node not in now or now[node].uid != uid]
        told: list[ClusterEvent] = [StopSeen(self.world.stop), RecordSeen(self.world.record)]
        told += [QuarantineGone(node, self._told[node]) for node in gone]
        told += [QuarantineSeen(one) for one in now.values()]
        self._told = {node: one.uid for node, one in now.items()}
        cordoned = {one.name for one in self.world.nodes.values() if one.unschedulable}
        return [*told, WatchSynced(frozenset(cordoned))]


class _Stream:
    """One watch: in order, each item late by a little; breaks a while after its replica is cut."""

    def __init__(self, sim: "Simulation", host: "Host") -> None:
        self.queue: asyncio.Queue[ClusterEvent] = asyncio.Queue()
        self.broken = False
        self._sim, self.host = sim, host
        self._last = 0.0

    def put_nowait(self, news: ClusterEvent) -> None:
        if self.broken or self.host.process.dead:
            return
        if self.host.name in self._sim.wire.cut:
            self.break_off(self._sim.rng.uniform(0, 30))
            return
        self._last = max(self._last, self._sim.time.now + self._sim.rng.uniform(0, 0.05))
        self._sim.time.at(self._last, lambda: self.queue.put_nowait(news))

    def break_off(self, noticed_after: float = 0.0) -> None:
        """It ends, as by a 410 of the API server."""
        self.broken, lost = True, WatchLost("the watch broke")
        self._sim.time.after(noticed_after, lambda: self.queue.put_nowait(lost))


class Host:
    """One replica: a name that stays, and the process that runs under it now."""

    def __init__(self, sim: "Simulation", name: str) -> None:
        self.name = name
        self._sim = sim
        self._lives = 0
        self._starts = True
        self.notes = Notes()
        #: Those of its last life as the controller.
        self.settings = sim.settings
        self.start()

    def start(self) -> None:
        """A new life of it."""
        sim, rng = self._sim, self._sim.rng
        self._lives += 1
        self._stops_in = 0
        self.leaving = False
        self.process = process = Process(
            sim.time, rate=rng.uniform(0.99, 1.01), offset=rng.uniform(100, 1e6)
        )
        self.skew = rng.uniform(-DAY, DAY)
        me = Candidate(self.name, f"{self.name}-{self._lives}", f"{self.name}:8443")
        clocks = Clocks(process.time, self.wall)
        self.lease = lease = LeaseHolder(
            me, BoardAt(sim.board, sim.wire, self), clock=process.time, starts=self._starts
        )
        self.fleet = FleetState()
        self.controller: Controller | None = None

        async def act() -> None:
            await lease.acquired()
            settings = self.settings = sim.settings
            cluster = ClusterAt(sim, self, settings)
            self.controller = build_controller(
                cluster=cluster,
                policy=POLICY,
                settings=sim.workshop.equip(settings, cluster),
                fleet=self.fleet,
                event_sink=self.notes,
                clocks=clocks,
                rng=random.Random(rng.random()),
                may_act=lease.may_act,
            )
            await self.controller.run()

        async def live() -> None:
            await run_until_first_exit(lease=lease.run(), controller=act())

        self.work = process.begin(live(), self.name)
        self.work.add_done_callback(self._start_over)

    def _start_over(self, work: "asyncio.Task[None]") -> None:
        """Another has taken the Lease: this process goes on as a gateway."""
        if not work.cancelled() and work.exception() is None and work is self.work and self.up:
            self._starts = False
            life = self.process
            self._sim.time.after(0.2, lambda: self.start() if life is self.process else None)
            self.process.kill()

    def wall(self) -> float:
        """Its wall clock."""
        return 1.75e9 + self._sim.time.now + self.skew

    @property
    def up(self) -> bool:
        return not self.process.dead

    def kill(self) -> None:
        self._starts = True
        self.process.kill()

    def leave(self) -> None:
        """End as by SIGTERM: give the Lease up, then end. A paused replica hears it later."""
        life = self.process

        async def leave() -> None:
            self.leaving = True
            await self.lease.release()
            await asyncio.sleep(2)
            if life is self.process:
                self.kill()

        if self.up:
            life.call_soon(lambda: life.begin(leave(), f"{self.name} leaves"))

    def stop_at(self, answers: int) -> None:
        """Be paused just when it gets its n-th answer of the API server from now."""
        self._stops_in = answers

    def answered(self) -> None:
        self._stops_in -= 1
        if self._stops_in == 0:
            self.pause(paused=True)

    def pause(self, *, paused: bool) -> None:
        self.process.paused = paused


class Agent:
    """One node's agent, outside of all processes. Its messages arrive a moment later."""

    def __init__(self, sim: "Simulation", node: str) -> None:
        self.node = node
        self.ill: Fault | None = None
        self.boot_id, self._boots = "boot-1", 1
        #: When a switch tray failed above its GPU, in the simulation's time.
        self.links_lost_at: float | None = None
        self.unacked: tuple[Cleared, ...] = ()
        #: A person has released the node although it is unhealthy.
        self.overruled = False
        #: When a person last released the node, in the simulation's time.
        self.released_at = float("-inf")
        self.at: Host | None = None
        self._life: Process | None = None
        self._sim = sim
        self._failures = 0
        self._seq = 0
        self._undelivered = self._greeted = False
        self._tries = 0
        self._heard_at = 0.0
        #: Replicas that this agent's packets do not reach.
        self.cut: set[str] = set()
        self._again(sim.rng.uniform(0, 1))

    # -- what happens to it --------------------------------------------------------------

    def boots(self) -> None:
        """The machine has been rebooted, which mends its GPU."""
        self._boots += 1
        self.boot_id = f"boot-{self._boots}"
        self.ill, self.links_lost_at, self.unacked = None, None, ()
        self.restarts()

    def restarts(self) -> None:
        """Its state is on the machine's disk; its stream is a new one."""
        self.leave()
        self._back_off()

    def standing(self) -> set[tuple[str, str]]:
        return {(CODE, GPU)} if self.ill is not None else set()

    def falls_ill(self) -> None:
        self._seq += 1
        if self.ill is None:  # else it is what the person's word is about: until it has ended
            # A fault in the instant of the release may arrive before it or after it: also while
            # no controller has learned of the release. So may one whose predecessor's end no
            # controller has acknowledged.
            quarantine = self._sim.world.quarantines.get(self.node)
            unlearned = quarantine is not None and quarantine.deleting
            soon = self._sim.time.now - self.released_at < 1.0 or unlearned
            self.overruled = soon or (self.overruled and bool(self.unacked))
        self.ill = fault(
            CODE,
            GPU,
            source_seq=self._seq,
            cleared_by=ClearedBy.GPU_RESET,
            boot_id=self.boot_id,
        )
        self.unacked = ()
        self._send_evidence(lambda clock: Delta(faults=(self._fault(clock),)))

    def loses_its_links(self) -> None:
        """A switch tray fails: an NVLink error, and the driver's verdict on the GPU."""
        self.links_lost_at = self._sim.time.now
        self._send_evidence(lambda clock: Delta(faults=self._link_faults(clock)))

    def is_mended(self) -> None:
        self.ill, self.unacked = None, (Cleared(CODE, GPU, "gpu-reset"),)
        signs = self.unacked
        self._send_evidence(lambda _: Delta(cleared=signs))

    def close(self, reason: str) -> None:
        self.leave()
        self._back_off()

    # -- its stream ------------------------------------------------------------------------

    def _fault(self, clock: Callable[[], float]) -> Fault:
        assert self.ill is not None
        return replace(self.ill, first_at=clock(), last_at=clock())

    def _link_faults(self, clock: Callable[[], float]) -> tuple[Fault, ...]:
        """By their age: each replica has a clock of its own."""
        if self.links_lost_at is None:
            return ()
        at = clock() - (self._sim.time.now - self.links_lost_at)
        return link_error("GPU-3", at), verdict("GPU-3", at)

    def _again(self, seconds: float) -> None:
        self._tries += 1
        mine = self._tries

        def come() -> None:
            if mine == self._tries and self.at is None:
                self._connect()

        self._sim.time.after(seconds, come)

    def _back_off(self) -> None:
        most = min(LONGEST, 0.1 * 2**self._failures)
        self._failures += 1
        self._again(self._sim.rng.uniform(0, most))

    def _connect(self) -> None:
        name = self._sim.board.named  # the relay of its gateway, which knows whom the Lease names
        host = self._sim.hosts.get(name)
        if host is None or not host.up or host.controller is None or name in self.cut:
            self._back_off()
            return
        self.at, self._life, self._greeted = host, host.process, False
        life, mine = host.process, self._tries

        def greet() -> None:
            if self.at is not host or mine != self._tries or host.controller is None:
                return
            self._failures, self._greeted = 0, True
            host.controller.on_connect(hello(self.node, self.boot_id), self)
            self._deliver_evidence(host, self._snapshot(life.time))

        life.call_soon(greet)
        self._watch(host)

    def _watch(self, host: Host) -> None:
        """A killed replica is noticed at once, one that is paused or cut off after a while."""
        life, mine, since = host.process, self._tries, self._sim.time.now
        named_since = since

        def notice_loss() -> None:
            nonlocal since, named_since
            if self.at is not host or mine != self._tries:
                return
            if life.dead or host.process is not life:
                self.leave()
                self._back_off()
                return
            if self._sim.board.named in ("", host.name):
                named_since = self._sim.time.now
            if self._sim.time.now - named_since > READS:  # its gateway has read the Lease
                self.leave()
                self._back_off()
                return
            if not life.paused and host.name not in self.cut:
                since = self._sim.time.now
            if (
                self._undelivered and host.name not in self.cut
            ):  # messages that TCP has kept for so long
                self._undelivered = False
                self._send_evidence(self._snapshot)
            if self._sim.time.now - since > (NOTICES if self._greeted else GREETS):
                self.leave()
                self._back_off()
                return
            self._sim.time.after(0.5, notice_loss)

        notice_loss()

    def leave(self) -> None:
        """End the stream; the replica hears of it when it can."""
        host, life = self.at, self._life
        self.at = None
        self._tries += 1
        if host is None or life is None or life.dead:
            return

        def gone() -> None:
            if host.process is life and host.controller is not None:
                host.controller.on_disconnect(self.node, self, "gone")

        life.call_soon(gone)

    def _send_evidence(self, evidence: Callable[[Callable[[], float]], Snapshot | Delta]) -> None:
        host, life, mine = self.at, self._life, self._tries
        if host is None or life is None or life.dead:
            return
        if host.name in self.cut:
            self._undelivered = True
            return

        def arrive() -> None:
            if self.at is host and mine == self._tries:
                self._deliver_evidence(host, evidence(life.time))

        life.call_soon(arrive)

    def _deliver_evidence(self, host: Host, evidence: Snapshot | Delta) -> None:
        assert host.controller is not None
        self._sim.world.facts.note_evidence(self.node, evidence)
        safe = host.controller.on_evidence(self.node, evidence, host.process.time())
        signs = evidence.cleared

        def acknowledged(_: object = None) -> None:
            if isinstance(safe, asyncio.Future) and (safe.cancelled() or safe.exception()):
                return
            if self.unacked == signs:
                self.unacked = ()

        if safe is None:
            acknowledged()
        else:
            assert isinstance(safe, asyncio.Future)
            safe.add_done_callback(acknowledged)

    def _snapshot(self, clock: Callable[[], float]) -> Snapshot:
        faults = (self._fault(clock),) if self.ill is not None else ()
        return Snapshot((), (*faults, *self._link_faults(clock)), self.unacked)


class Simulation:
    """Some replicas, some nodes. ``wrong`` has the forbidden states that were seen."""

    def __init__(self, seed: int, *, replicas: int = 3, nodes: int = 6, settings: Settings) -> None:
        self.rng = random.Random(seed)
        self.time = Clockwork(self.rng)
        self.settings = settings
        self.wire = Wire(self.time, self.rng)
        self.board = SimBoard()
        self.world = World(cache_lags=seed % 2 == 1)
        self.watch = Watch(self.world, lambda: self.time.now)
        self.wrong = self.watch.wrong
        self.workshop = Workshop(self)
        self._usual = settings
        self._jobs = 0
        #: Texts that the record had.
        self.records: list[str] = []
        names = [f"n{number}" for number in range(nodes)]
        for name in names:
            self.world.add_node(name, boot_id="boot-1", labels=self.labels_of(name))
            self.world.add_pod(name, f"job-{name}")
        self.hosts: dict[str, Host] = {}
        for number in range(replicas):
            self.hosts[f"r{number}"] = Host(self, f"r{number}")
        self.agents = {name: Agent(self, name) for name in names}
        self.world.facts.most = settings.limits.concurrent
        self.world.facts.unknown_for = KNOWN_WITHIN  # a replica may be cut off from its watch
        self.world.facts.standing = lambda name: self.agents[name].standing()
        self._kubelets()

    def _kubelets(self) -> None:
        """The kubelets end the evicted pods, and the job's next pod runs where it may."""
        self.world.kubelets_finish()
        for name, node in self.world.nodes.items():
            if (
                not node.unschedulable
                and UNTESTED not in node.taints
                and not any(k.startswith(f"{name}/") for k in self.world.pods)
            ):
                self._jobs += 1
                self.world.add_pod(name, f"job-{self._jobs}-{name}")
        self._note_outage()
        if self.records[-1:] != [self.world.record.text]:
            self.records.append(self.world.record.text)
        self.time.after(2.0, self._kubelets)

    def _note_outage(self) -> None:
        """While no controller runs and reaches the API server, every release has to wait."""
        reaching = set(self.acting()) - self.wire.cut
        if all(self.hosts[name].process.paused for name in reaching):
            self.world.facts.calm_since = self.time.now

    # -- what must hold after every request --------------------------------------------------

    def check_invariants(self, host: Host, call: str) -> None:
        where = f"{self.time.now:.2f} {host.name} {call}"
        for name, node in self.world.nodes.items():
            if is_marked(node) and name not in self.world.quarantines:
                self.wrong.append(f"{where}: {name} is marked, and has no quarantine")
        self.wrong += [f"{where}: {one}" for one in self.workshop.untested_without_taint()]
        # A replica that starts where a person has just deleted the Lease knows of no holder.
        if self.time.now - self.board.deleted_at > TIMES.lease_duration:
            self.wrong += [f"{where}: {one}" for one in at_most_one_may_act(self.acting())]

    def streams_of(self, host: str) -> list[_Stream]:
        """The watches of this replica."""
        streams = [one for one in self.world.listeners if isinstance(one, _Stream)]
        return [one for one in streams if one.host.name == host]

    def next_error(self) -> tuple[Unreachable | None, bool]:
        """The API server's error to the next request, and whether it carries that out."""
        if not self.wire.failing or self.rng.random() >= self.wire.failing:
            return None, False
        status, pause = self.rng.choice(ERRORS)
        return Unreachable(f"{status}", status=status, retry_after=pause), self.rng.random() < 0.5

    def connect_time(self) -> float:
        """How long an order's connection takes."""
        return self.rng.choice((0.0, 0.5, 5.0, 20.0, 60.0))

    def bring_back(self, name: str) -> None:
        """A Node of the machine is created again."""
        more = {"labels": self.labels_of(name), "boot_id": self.agents[name].boot_id}
        taints = (UNTESTED,) if self._usual.repair.new_nodes.taint else ()
        self.world.add_node(name, uid=f"uid-{self.world.tick()}-{name}", taints=taints, **more)

    @staticmethod
    def labels_of(name: str) -> dict[str, str]:
        return {**(CLIQUE if name in OF_CLIQUE else {}), "rack": RACKS.get(name, name)}

    # -- what must hold in the end ------------------------------------------------------------

    def heal(self) -> None:
        """All that was broken is whole again."""
        self.wire.cut.clear()
        self.wire.lost = self.wire.late = self.wire.failing = 0.0
        for name in self.agents.keys() - self.world.nodes.keys():
            self.bring_back(name)
        self.settings = self._usual
        self.world.person_stops("")
        for host in self.hosts.values():
            if host.settings is not self._usual:
                host.kill()
            if host.up and host.leaving:
                host.kill()
            if not host.up:
                host.start()
            host.stop_at(0)
            host.pause(paused=False)
        for agent in self.agents.values():
            agent.cut.clear()
            for key in (EXEMPT, FORCE):
                self.world.person_annotates(agent.node, key, None)

    def acting(self) -> list[str]:
        """The replicas that may act now, by their own clocks, paused ones too."""
        return [host.name for host in self.hosts.values() if host.up and host.lease.may_act()]

    def check_one_acts(self) -> None:
        if len(self.acting()) != 1:
            self.wrong.append(f"{self.time.now:.2f}: {self.acting()} may act")

    def check_settled(self) -> None:
        """All unhealthy nodes are in quarantine, and no other, unless a limit holds a node back."""
        self.wrong += [f"in the end {one}" for one in releases_held_up(self.world, self.time.now)]
        most = self.settings.limits.concurrent
        full = len(self.world.quarantines) >= most
        for name, agent in self.agents.items():
            quarantine = self.world.quarantines.get(name)
            phase = quarantine.status.phase if quarantine is not None else None
            if agent.overruled:
                continue  # whether the word came before the fault did is looked at on the way
            repair = quarantine.status.repair if quarantine is not None else None
            if repair is not None and (repair.exhausted or repair.attempts[-1:]):
                continue  # its attempt ends by its deadline, or by a person
            wanted = Phase.DRAINED if agent.ill is not None else None
            if wanted is not None and phase is None and full:
                continue
            if phase is not wanted or is_marked(self.world.nodes[name]) != (wanted is not None):
                errors = [
                    h.fleet.node_summaries[name].work.last_error
                    for h in self.hosts.values()
                    if name in h.fleet.node_summaries
                ]
                self.wrong.append(f"in the end {name} is {phase} and not {wanted}: {errors}")
        entries = set(parse_record(self.world.record.text).entries)
        there = self.world.quarantines.items()
        # A release takes its entry out first, and may be just between these two steps.
        ending = {name for name, one in there if one.status.phase is Phase.RELEASING}
        if (entries ^ set(self.world.quarantines)) - ending:
            self.wrong.append(f"in the end the record has {entries}")
        for host in self.hosts.values():
            if host.work.done():
                self.wrong.append(f"{host.name} ended: {host.work}")
