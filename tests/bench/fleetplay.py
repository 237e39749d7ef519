"""A fleet that lives through a schedule of faults under the real evaluation, limits and controller.

Virtual time and a cluster in memory; agents are played: each keeps the entries of a real one's
latch, and sends those that have changed. People are played too: a node that is quarantined is
repaired and booted after a while, and one whose failure no check saw is found in the end.

The controller's rounds look at all nodes every 5 s, for held proposals and for silence: 518,400 in
30 days. Here they come every 10 minutes while no event concerns many at once, and every 30 s from
before a mass event until after it, and look at 50 of those that are held instead of 500; nodes are
listed every 6 hours. The rounds of nodes' tests, of which there are none, come as often. All else
is as it is.
"""

import asyncio
import contextlib
import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aggregator.quarantine.reconcile.node_rounds as node_rounds_module
import aggregator.quarantine.reconcile.node_test_rounds as node_tests_module
import aggregator.quarantine.reconcile.poller as poller_module
import aggregator.quarantine.reconcile.rounds as rounds_module
from aggregator.alerts.alert import DEFAULT_KINDS, alert_of
from aggregator.events import EventKind, Transition
from aggregator.health.model import (
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Hello,
    Snapshot,
    Status,
)
from aggregator.quarantine.settings import Settings
from tests.bench.faultplay import (
    DAY,
    GPUS,
    PORTS,
    Agent,
    Line,
    Machine,
    Reset,
    Sign,
    State,
    Story,
    gpu,
)
from tests.bench.massplay import FABRIC, RACK_EVENT
from tests.bench.repairplay import DOMAINS, Tally, Workshop
from tests.bench.repairplay import Fault as Broken
from tests.support import virtual_time
from tests.support.memory_cluster import World
from tests.support.present import of_type
from tests.support.replica import FakeLine, Replica
from tests.support.virtual_replica import LoopClock

LEAF = 32
RACK = 8
#: An agent's latched faults that expire do so after this.
EXPIRES = DAY
#: Seconds: people find out about a node that is dead, and about one whose fault no sign tells of.
DEAD_FOUND, UNSEEN_FOUND = 2 * 3600.0, 2 * DAY
_NEXT_LOOK = 60.0
#: Seconds between rounds: in quiet times, and around a mass event.
QUIET_ROUNDS, BUSY_ROUNDS = 600.0, 30.0
#: The same in quiet times where nodes are repaired: a repair's next step waits for a round.
REPAIR_ROUNDS = 120.0
#: A person takes over a node that no order and no end of its repairs has told of (seconds).
_NOT_REPAIRED, _FORGOTTEN = 1800.0, DAY
#: A node that has come again after a release is not released by itself: the person does it so long
#: after the repair (seconds).
_RELEASES = 5400.0
#: Rounds are frequent for so long after the last that a mass event did.
_AFTERMATH = 3600.0
#: A sign that shows later than this before a release may be seen after it (seconds).
_SEEN_WITHIN = 1.0
#: Sums of seconds differ by less.
_A_TICK = 1e-6
#: The module's own names; this one it has imported.
_NODE_TESTS = vars(node_tests_module)
_STATUS = {"ok": Status.OK, "degraded": Status.DEGRADED, "failed": Status.FAILED}

_WELL: tuple[tuple[str, str], ...] = (
    *(("gpu-inventory", gpu(number)) for number in range(GPUS)),
    *(("gpu-recovery", gpu(number)) for number in range(GPUS)),
    *(("infiniband", f"mlx5_{number}/1") for number in range(PORTS)),
    ("nic-link", "eth0"),
    ("disk-write", "/var/lib"),
    ("disk-readonly", "/"),
    ("disk-space", "/"),
    ("disk-nvme", "nvme1"),
    ("disk-mounts", "/shared"),
    ("dns", "dns://10.0.0.53"),
)


@dataclass(eq=False, slots=True)
class Trouble:
    """A story as it was lived: until when, and when the node was given a taint for it."""

    story: Story
    over: float = math.inf
    caught: float | None = None
    latency: float | None = None

    @property
    def cause(self) -> str:
        return self.story.cause

    @property
    def codes(self) -> frozenset[str]:
        """The codes of its lines."""
        return frozenset(sign.code for _, sign in self.story.signs if isinstance(sign, Line))

    @property
    def lasts(self) -> bool:
        """Whether the node is sick until it is repaired, by a fault of its own."""
        return self.story.sick and self.story.ends == math.inf and not self.story.mass

    def at_work(self, now: float) -> bool:
        """Whether the fault is at work.

        The end of one that ends by itself shows at the next look.
        """
        seen = _NEXT_LOOK if self.story.ends < math.inf else 0.0
        return self.story.at <= now < self.over + seen


@dataclass(eq=False, slots=True)
class Played:
    """A node and its agent. ``wrong``: for each component the state that each trouble gives it.

    ``last_boot``: the begin and the end of its last boot, in seconds since the play began.
    """

    name: str
    clique: str
    boot: int = 0
    version: str = "0.2.0"
    driver: str = "570.86"
    line: FakeLine = field(default_factory=FakeLine)
    attached: bool = False
    away_until: float = 0.0
    booting: bool = False
    last_boot: tuple[float, float] = (math.inf, math.inf)
    states: dict[tuple[str, str], Component] = field(default_factory=dict)
    wrong: dict[tuple[str, str], dict[Trouble, State]] = field(default_factory=dict)
    latched: dict[tuple[str, str], Fault] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    quarantined: bool = False
    #: Since when it is in quarantine, and how often it was; a person is called once in each.
    since: float = math.inf
    quarantines: int = 0
    ordered: int = 0
    person_called: int = 0
    seq: int = 0

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boot}"


@dataclass
class Outcome:
    """The outcome of the play.

    ``false`` and ``mass`` name the causes that were at work on the nodes that were wrongly taken.
    """

    troubles: list[Trouble] = field(default_factory=list)
    quarantines: int = 0
    right: int = 0
    false: list[str] = field(default_factory=list)
    mass: list[str] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    held_nodes: set[str] = field(default_factory=set)
    events: int = 0
    #: The alerts about nodes in a rack event, and about the common causes that hold them.
    rack_alerts: list[str] = field(default_factory=list)
    #: Seconds from each taint to its release, and those of quarantines that stand at the end.
    returned: list[float] = field(default_factory=list)
    standing: list[float] = field(default_factory=list)
    #: Nodes that were released while a fault for which they were taken was at work, by its cause.
    returned_sick: list[str] = field(default_factory=list)
    repairs: Tally = field(default_factory=Tally)


class Play:
    """Lives through ``stories`` for ``days``. ``restarts`` are when the aggregator is restarted."""

    def __init__(
        self,
        loop: virtual_time.VirtualTimeLoop,
        stories: list[Story],
        *,
        nodes: int,
        days: float,
        settings: Settings,
        rng: random.Random,
        restarts: tuple[float, ...] = (),
        repairs: str | None = None,
    ) -> None:
        """``repairs``: None, people repair all nodes; else the profile of the test before a
        release, which is empty for none.
        """
        self._loop = loop
        self._end = days * DAY
        self._settings = settings
        self._workshop: Workshop | None = None
        self._rng = rng
        self._machine = Machine(rng)
        self._begun = loop.time()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._sooner = asyncio.Event()
        self._restarts = restarts
        self._replica: Replica | None = None
        self.outcome = Outcome()
        if repairs is not None:
            self._workshop = Workshop(self, random.Random(rng.random()), verify=repairs)
            self._settings = replace(settings, repair=self._workshop.settings())
            self.outcome.repairs = self._workshop.tally
        self._quiet = REPAIR_ROUNDS if repairs is not None else QUIET_ROUNDS
        _rounds(self._quiet)
        self._open_rack_causes: set[str] = set()
        self.world = World()
        well = {key: Component(*key, Status.OK, "", "", self._begun) for key in _WELL}
        self._nodes: list[Played] = []
        for number in range(nodes):
            name = f"node-{number:05}"
            fabric = f"{number // FABRIC:08x}-0000-4000-8000-000000000000"
            node = Played(name, f"{fabric}.1", states=dict(well))
            labels = {
                "network.topology.nvidia.com/leaf": f"leaf-{number // LEAF}",
                "topology.kubernetes.io/rack": f"rack-{number // RACK}",
            }
            self.world.add_node(name, boot_id=node.boot_id, labels=labels)
            self._nodes.append(node)
        for first, last in _mass_times(stories):
            self._at(first - QUIET_ROUNDS, lambda: _rounds(BUSY_ROUNDS))
            self._at(last + _AFTERMATH, lambda: _rounds(self._quiet))
        for story in stories:
            self._at(story.at, lambda story=story: self._begin(story))  # type: ignore[misc]

    async def run(self) -> Outcome:
        await self._start_aggregator()
        for at in self._restarts:
            self._at(at, self._stop_aggregator)
        while self._heap and self._heap[0][0] <= self._end:
            at = self._heap[0][0]
            wait = self._begun + at - self._loop.time()
            if wait > 0 and await self._sleep(wait):
                continue  # an order has come meanwhile, and something follows it sooner
            while self._heap and self._heap[0][0] <= at:
                heapq.heappop(self._heap)[2]()
                self.outcome.events += 1
            if self._replica is None:
                await asyncio.sleep(self._rng.uniform(20, 40))
                await self._start_aggregator()
            self._collect_transitions()
        await asyncio.sleep(max(0.0, self._begun + self._end - self._loop.time()))
        self._collect_transitions()
        for node in self._nodes:
            if node.quarantined:
                self.outcome.standing.append(self._end - node.since)
        if self._replica is not None:
            await self._replica.stop()
        return self.outcome

    async def _sleep(self, seconds: float) -> bool:
        """Returns early, and True, where an earlier event than all others comes up meanwhile."""
        if self._workshop is None:  # the aggregator makes no events
            await asyncio.sleep(seconds)
            return False
        self._sooner.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._sooner.wait()
                return True
        return False

    # -- time ----------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        """Seconds since the play began."""
        return self._loop.time() - self._begun

    def _at(self, at: float, act: Callable[[], None]) -> None:
        self._count += 1
        if self._heap and at < self._heap[0][0]:
            self._sooner.set()
        heapq.heappush(self._heap, (at, self._count, act))

    # -- the aggregator --------------------------------------------------------------------

    async def _start_aggregator(self) -> None:
        self.world.listeners.clear()
        replica = await Replica(
            self.world, clock=LoopClock(self._loop), settings=self._settings
        ).ready()
        self._replica = replica
        for node in self._nodes:
            if not self._is_away(node):
                back = self._now + self._rng.uniform(0.0, 30.0)
                self._at(back, lambda node=node: self._attach(node))  # type: ignore[misc]

    def _stop_aggregator(self) -> None:
        assert self._replica is not None
        self._collect_transitions()
        self._replica.cluster.crashed.set()
        self._replica.task.cancel()
        self._replica = None
        for node in self._nodes:
            node.attached = False

    def _collect_transitions(self) -> None:
        if self._replica is None:
            return
        notes = self._replica.notes.transitions
        for told in notes:
            self._note(told)
        notes.clear()
        self.world.writes.clear()
        self.world.announced.clear()

    # -- agents ----------------------------------------------------------------------------

    def _attach(self, node: Played) -> None:
        if self._replica is None or node.attached or self._is_away(node):
            return
        node.attached, node.line = True, FakeLine()
        told = Hello(
            node.name,
            node.boot_id,
            f"epoch-{node.boot}",
            node.version,
            1,
            "played",
            traits={
                "driver": node.driver,
                "kernel": "6.8.0-87",
                "fabric_clique": node.clique,
            },
        )
        self._replica.controller.on_connect(told, node.line)
        self._replica.controller.on_evidence(
            node.name,
            Snapshot(tuple(node.states.values()), tuple(node.latched.values())),
            self._loop.time(),
        )

    def _send(self, node: Played, delta: Delta) -> None:
        if self._replica is not None and node.attached:
            self._replica.controller.on_evidence(node.name, delta, self._loop.time())

    def _leave(self, node: Played, down: float) -> None:
        """Its agent ends, and comes back after ``down`` seconds."""
        if self._replica is not None and node.attached:
            self._replica.controller.on_disconnect(node.name, node.line, "its agent ended")
        node.attached = False
        node.away_until = self._now + down
        if node.booting:
            node.last_boot = (self._now, node.away_until)
        if down < math.inf:
            self._at(node.away_until, lambda: self._return(node))

    def _is_away(self, node: Played) -> bool:
        """Whether its agent is away.

        Its return is due by the clock, up to a float's rounding error.
        """
        return self._now < node.away_until - _A_TICK

    def _return(self, node: Played) -> None:
        if not self._is_away(node):
            node.booting = False
            for key in node.wrong:
                self._run_check(node, key)
            self._attach(node)

    # -- what happens ------------------------------------------------------------------------

    def _begin(self, story: Story) -> None:
        node = self._nodes[story.node]
        if node.booting or node.away_until == math.inf:
            return  # the machine is off, so it shows no fault
        trouble = Trouble(story, over=_over(story))
        node.troubles = [old for old in node.troubles if old.over > self._now - _NEXT_LOOK]
        node.troubles.append(trouble)
        self.outcome.troubles.append(trouble)
        if story.sick and node.quarantined:
            trouble.caught = self._now
        for after, sign in story.signs:
            self._at(
                story.at + after,
                lambda sign=sign: self._show(node, trouble, sign),  # type: ignore[misc]
            )
        if story.sick and story.unseen and story.ends == math.inf:
            dead = any(isinstance(sign, Agent) for _, sign in story.signs)
            found = DEAD_FOUND if dead else UNSEEN_FOUND
            self._at(story.at + found, lambda: self._repair(node, trouble))

    def _show(self, node: Played, trouble: Trouble, sign: Sign) -> None:
        lasting = trouble.story.sick and trouble.story.ends == math.inf
        if lasting and not trouble.at_work(self._now):
            return  # it was repaired before it showed
        match sign:
            case Line():
                if not node.booting and node.away_until < math.inf:
                    self._latch(node, sign)
            case State():
                self._state(node, trouble, sign)
            case Reset():
                self._reset(node, sign.component)
            case Agent():
                self._agent(node, sign)

    def _agent(self, node: Played, sign: Agent) -> None:
        # A node that is off is rolled out too, when it boots: its GPUs read wrong by the driver
        # that it comes back with, and not by the one before.
        node.version = sign.version or node.version
        node.driver = sign.driver or node.driver
        if node.away_until == math.inf or node.booting:
            return
        if sign.boot:
            self._boot(node)
        self._leave(node, sign.down)

    def _boot(self, node: Played, *, mends: bool = True) -> None:
        """Another boot: faults from the log are historical; broken parts stay broken.

        ``mends``: faults that only the log reports are over.
        """
        node.boot += 1
        node.booting = True
        node.latched.clear()
        for trouble in node.troubles if mends else ():
            by_log = any(isinstance(sign, Line) for _, sign in trouble.story.signs)
            if trouble.story.sick and by_log and trouble.over == math.inf:
                trouble.over = self._now
                self._mend(node, trouble)
        self.world.set_node(replace(self.world.nodes[node.name], boot_id=node.boot_id))

    def _latch(self, node: Played, line: Line) -> None:
        now = self._loop.time()
        key = (line.code, line.component)
        known = node.latched.get(key)
        node.seq += 1
        if known is not None:
            occurrences = (*known.occurrences, now)[-32:]
            fault = replace(known, last_at=now, count=known.count + 1, occurrences=occurrences)
        else:
            fault = Fault(
                code=line.code,
                check="xid",
                component=line.component,
                message=f"NVRM: {line.code}",
                boot_id=node.boot_id,
                source="kmsg",
                source_seq=node.seq,
                first_at=now,
                last_at=now,
                count=1,
                cleared_by=ClearedBy(line.ends),
                details=_details(line),
                occurrences=(now,),
            )
        node.latched[key] = fault
        self._send(node, Delta(faults=(fault,)))
        if fault.cleared_by is ClearedBy.EXPIRY:
            self._at(self._now + EXPIRES, lambda: self._expire(node, fault))

    def _reset(self, node: Played, component: str) -> None:
        """The GPU is reset: its faults that a reset ends are over."""
        ended = [
            key
            for key, fault in node.latched.items()
            if key[1] == component and fault.cleared_by is ClearedBy.GPU_RESET
        ]
        for key in ended:
            del node.latched[key]
        signs = tuple(Cleared(code, component, "gpu-reset") for code, _ in ended)
        self._send(node, Delta(cleared=signs))

    def _expire(self, node: Played, fault: Fault) -> None:
        if node.latched.get(fault.key) is fault:
            del node.latched[fault.key]
            self._send(node, Delta(cleared=(Cleared(fault.code, fault.component, "expiry"),)))

    def _state(self, node: Played, trouble: Trouble, state: State) -> None:
        key = (state.check, state.component)
        if state.status == "ok":
            node.wrong.get(key, {}).pop(trouble, None)
        else:
            node.wrong.setdefault(key, {})[trouble] = state
        self._run_check(node, key)

    def _mend(self, node: Played, trouble: Trouble) -> None:
        """It shows no more. The agent sees that at its next look, or when it is back."""
        for key, holders in node.wrong.items():
            if holders.pop(trouble, None) is not None:
                self._run_check(node, key)

    def _run_check(self, node: Played, key: tuple[str, str]) -> None:
        if node.booting or node.away_until == math.inf:
            return  # the machine is off: its agent looks when it is back
        holders = node.wrong.get(key)
        wrong = next(iter(holders.values())) if holders else State(*key, "ok")
        before = node.states[key]
        status = _STATUS[wrong.status]
        if (before.status, before.reason) != (status, wrong.reason):
            since = before.since if before.status is status else self._loop.time()
            node.states[key] = Component(*key, status, wrong.reason, "", since)
            self._send(node, Delta(components=(node.states[key],)))

    # -- people ------------------------------------------------------------------------------

    def _repair(self, node: Played, trouble: Trouble | None = None) -> None:
        """Repair all that is broken, and boot. With a trouble: only if that is still at work."""
        if trouble is not None and not trouble.at_work(self._now):
            return
        if trouble is None and not node.quarantined:
            return
        for known in node.troubles:
            if not known.story.mass and known.story.ends == math.inf:
                known.over = min(known.over, self._now)
                self._mend(node, known)
        self._boot(node)
        self._leave(node, self._rng.uniform(240.0, 600.0))
        if self._workshop is not None and trouble is None:
            this = node.quarantines

            def release() -> None:
                standing = node.name in self.world.quarantines
                if not (standing and node.quarantined and node.quarantines == this):
                    return
                if self._lasting(node, self._now):  # it has broken again since, and says so
                    self._repair(node)
                else:
                    self.world.person_deletes(node.name)

            self._at(self._now + _RELEASES, release)

    def _note(self, told: Transition) -> None:
        if told.kind is EventKind.HELD:
            limit = told.details.get("limit", "")
            self.outcome.held[limit] = self.outcome.held.get(limit, 0) + 1
            self.outcome.held_nodes.add(told.node)
        self._count_rack_alert(told)
        if not told.node.startswith("node-"):
            return
        node = self._nodes[int(told.node.removeprefix("node-"))]
        at = told.at - self._begun
        if told.kind is EventKind.CORDONED:
            self._begin_quarantine(node, at)
        elif told.kind is EventKind.REPAIR_ORDERED:
            node.ordered = node.quarantines
        elif told.kind is EventKind.REPAIR_EXHAUSTED:
            self._send_person(node)
        elif told.kind in (EventKind.RELEASED, EventKind.OVERRULED):
            self._end_quarantine(node, at)

    def _begin_quarantine(self, node: Played, at: float) -> None:
        node.quarantined, node.since = True, at
        node.quarantines += 1
        self._evaluate(node, at)
        if self._workshop is None:
            self._send_person(node)
            return
        this = node.quarantines

        def unless_ordered() -> None:
            if node.quarantines == this and node.ordered != this:
                self._send_person(node)

        def if_forgotten() -> None:
            if node.quarantines == this:
                self._send_person(node)

        self._at(at + _NOT_REPAIRED, unless_ordered)
        self._at(at + _FORGOTTEN, if_forgotten)

    def _end_quarantine(self, node: Played, at: float) -> None:
        if not node.quarantined:
            return
        node.quarantined = False
        self.outcome.returned.append(at - node.since)
        # What breaks in the moment of the release may be seen before it or after it.
        broken = [one for one in self._lasting(node, at) if one.story.at < at - _SEEN_WITHIN]
        sick = [one for one in broken if one.caught is not None]
        if sick:
            self.outcome.returned_sick.append(sick[-1].cause)
        if self._workshop is not None:
            self._workshop.note_released(node.name)

    def _send_person(self, node: Played) -> None:
        """A person repairs the node, once in a quarantine."""
        if node.quarantined and node.person_called != node.quarantines:
            node.person_called = node.quarantines
            self._at(self._now + self._machine.repair_takes(), lambda: self._repair(node))

    def _lasting(self, node: Played, at: float) -> list[Trouble]:
        """The broken parts of which the node reports."""
        found = [one for one in node.troubles if one.lasts and one.at_work(at)]
        return [one for one in found if not one.story.unseen]

    # -- repairs: `repairplay.Bay` ---------------------------------------------------------------

    def now(self) -> float:
        return self._now

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._at(when, act)

    def domains(self, node: str) -> tuple[str, ...]:
        labels = self.world.nodes[node].labels
        return tuple(f"{key}={labels[key]}" for key in DOMAINS)

    def broken(self, node: str) -> Sequence[Broken]:
        return self._lasting(self._named(node), self._now)

    def reset_gpus(self, node: str, mended: Sequence[Broken]) -> None:
        played = self._named(node)
        self._mend_all(played, mended)
        for component in {key[1] for key in played.latched}:
            self._reset(played, component)

    def reboot(self, node: str, down: float, mended: Callable[[], Sequence[Broken]]) -> None:
        played = self._named(node)
        self._leave(played, down)

        def back() -> None:
            self._mend_all(played, mended())
            self._boot(played, mends=False)
            self._return(played)

        if down < math.inf:
            self._at(self._now + down, back)

    def show_again(self, node: str, fault: Broken) -> None:
        played = self._named(node)
        for trouble in self._lasting(played, self._now):
            if trouble is fault and not played.booting and played.away_until < math.inf:
                for _, sign in trouble.story.signs:
                    if isinstance(sign, Line):
                        self._latch(played, sign)

    def call_person(self, node: str) -> None:
        self._send_person(self._named(node))

    def _named(self, node: str) -> Played:
        return self._nodes[int(node.removeprefix("node-"))]

    def _mend_all(self, node: Played, mended: Sequence[Broken]) -> None:
        for trouble in node.troubles:
            if any(trouble is one for one in mended):
                trouble.over = min(trouble.over, self._now)
                self._mend(node, trouble)

    def _count_rack_alert(self, told: Transition) -> None:
        """Count an alert that a rack event causes: of a node in it, or of a cause of such nodes."""
        alert = alert_of(told)
        if told.kind is EventKind.COMMON_CAUSE_OVER:
            self._open_rack_causes.discard(told.incident)
        if alert is None or told.kind not in DEFAULT_KINDS or alert.severity == "info":
            return
        if told.incident in self._open_rack_causes:
            return  # after a restart: the outbox knows that it was sent
        at = told.at - self._begun
        if told.node.startswith("node-"):
            if self._is_of_rack_event(told.node, at):
                self.outcome.rack_alerts.append(alert.summary)
        elif told.kind is EventKind.COMMON_CAUSE:
            # The place that is blamed may be another one than the fabric, and a fabric is also the
            # cause where two of its nodes have a fault of their own at once.
            named = [name for name in told.details.get("nodes", "").split(", ") if name]
            of_rack = sum(self._is_of_rack_event(name, at, well=True) for name in named)
            if 2 * of_rack > len(named):
                self._open_rack_causes.add(told.incident)
                self.outcome.rack_alerts.append(alert.summary)

    def _is_of_rack_event(self, name: str, at: float, *, well: bool = False) -> bool:
        """Whether a rack event is all that is at work on the node then.

        Its own boot is at work too: people who repair another fault of it switch its agent off.
        ``well``: so may be what is no fault of the node. Of a whole rack, some node always has the
        lines of an application.
        """
        node = self._nodes[int(name.removeprefix("node-"))]
        began, ended = node.last_boot
        if began <= at < ended:
            return False
        at_work = [trouble.story for trouble in node.troubles if trouble.at_work(at)]
        others = [story for story in at_work if story.mass != RACK_EVENT]
        return len(others) < len(at_work) and not any(not well or each.sick for each in others)

    def _evaluate(self, node: Played, at: float) -> None:
        """Was it right?"""
        self.outcome.quarantines += 1
        at_work = [trouble for trouble in node.troubles if trouble.at_work(at)]
        sick = [trouble for trouble in at_work if trouble.story.sick]
        for trouble in sick:
            if trouble.caught is None:
                trouble.caught = at
                trouble.latency = at - trouble.story.at
        if sick:
            self.outcome.right += 1
        elif mass := [t.story.mass for t in node.troubles if t.story.mass]:
            self.outcome.mass.append(mass[-1])
        else:
            causes = [t.story.cause for t in node.troubles]
            self.outcome.false.append(causes[-1] if causes else "nothing")


def _details(line: Line) -> dict[str, str]:
    if line.registers:
        return {"intr_info": line.registers, "error_status": "0x00000000", "severity": "fatal"}
    return {"verdict": line.verdict} if line.verdict else {}


def _over(story: Story) -> float:
    """When the story is over by itself: one that is no fault ends a day after a line of its own."""
    if story.sick or story.ends < math.inf:
        return story.at + story.ends
    lines = any(isinstance(sign, Line) for _, sign in story.signs)
    last = max((after for after, _ in story.signs), default=0.0)
    return story.at + last + (EXPIRES if lines else 3600.0)


def _mass_times(stories: list[Story]) -> list[tuple[float, float]]:
    """From when to when each mass event lasts."""
    times: dict[tuple[str, float], float] = {}
    for story in stories:
        if story.mass:
            event = (story.mass, story.at)
            last = story.at + max(after for after, _ in story.signs)
            times[event] = max(times.get(event, 0.0), last)
    return [(at, last) for (_, at), last in times.items()]


def _rounds(every: float) -> None:
    rounds_module.ROUNDS = poller_module._ROUND = _NODE_TESTS["EVERY"] = every


@contextmanager
def fewer_rounds() -> Iterator[None]:
    """See the module's docstring."""
    before = rounds_module.ROUNDS, rounds_module.REFRESH, poller_module._ROUND
    held, tests = node_rounds_module.HELD_A_ROUND, _NODE_TESTS["EVERY"]
    rounds_module.REFRESH, node_rounds_module.HELD_A_ROUND = 6 * 3600.0, 50
    _rounds(QUIET_ROUNDS)
    try:
        yield
    finally:
        rounds_module.ROUNDS, rounds_module.REFRESH, poller_module._ROUND = before
        node_rounds_module.HELD_A_ROUND, _NODE_TESTS["EVERY"] = held, tests


def play(stories: list[Story], **how: Any) -> Outcome:
    """Live through it, in virtual time. `Play` has the arguments."""

    async def main() -> Outcome:
        loop = of_type(asyncio.get_running_loop(), virtual_time.VirtualTimeLoop)
        return await Play(loop, stories, **how).run()

    with fewer_rounds():
        return virtual_time.run(main())
