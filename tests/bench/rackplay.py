"""Drawn rack events through the real controller: is the origin named, and is no follower taken?

One GPU of a rack loses a link. In 75 % of the events its driver logs Xid 149; the drivers of all
others log 145, and each its verdict, within a second. In 40 % the link had recoveries before
(marin-community/marin#9086 and assumptions; a switch or an unnamed link is behind the rest).
People reset the GPUs within two hours, and the origin's when it is out of service.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace

import aggregator.quarantine.reconcile.rounds as rounds_module
from aggregator.events import EventKind
from aggregator.health.model import Cleared, ClearedBy, Component, Delta, Fault, Snapshot, Status
from aggregator.policy.precursors.counters import CHECK
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.settings import Settings
from tests.bench.faultplay import GPUS, gpu
from tests.support import virtual_time
from tests.support.memory_cluster import World
from tests.support.present import of_type
from tests.support.replica import SETTINGS, FakeLine, Replica, fault, hello
from tests.support.virtual_replica import LoopClock
from tests.support.waiting import until

DRIVER = "580.82.07"
WITH_149, WITH_PRECURSOR = 0.75, 0.4
#: By NVIDIA's table: Xid 149 of a bad signal and of the other end; Xid 145 of a lost link.
_SIGNAL, _PEER, _REMAP = "0x02a00011", "0x01500011", "0x00000004"
_ROUNDS, _QUIET_ROUNDS = 5.0, 60.0
_SHIPPED: Settings = replace(SETTINGS, limits=replace(Limits(), quorum_percent=0))


@dataclass(frozen=True, slots=True)
class RackEvent:
    """A drawn event. ``late``: the node whose agent comes 45 s late."""

    origin: int
    gpu: int
    register: str | None
    has_149: bool
    has_precursor: bool
    late: int | None
    seed: int

    @property
    def named(self) -> bool:
        """Whether the evidence names the origin at all."""
        return self.has_149 or self.has_precursor

    @property
    def explicit(self) -> bool:
        return self.has_149 and self.register != _PEER


def draw(rng: random.Random, nodes: int) -> RackEvent:
    """One event of a rack of so many nodes."""
    origin = rng.randrange(nodes)
    late = rng.randrange(nodes) if rng.random() < 0.3 else None
    return RackEvent(
        origin=origin,
        gpu=rng.randrange(GPUS),
        register=rng.choice([_SIGNAL] * 6 + [None] * 3 + [_PEER]),
        has_149=rng.random() < WITH_149,
        has_precursor=rng.random() < WITH_PRECURSOR,
        late=late if late != origin else None,
        seed=rng.randrange(2**32),
    )


@dataclass
class RackOutcome:
    """The outcome of all events. ``wrong`` describes each whose origin was not right."""

    events: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    followers_evicted: int = 0
    #: Seconds until the explicit origin was in quarantine.
    taken: list[float] = field(default_factory=list)
    explicit: int = 0

    def add(self, other: "RackOutcome") -> None:
        self.events += other.events
        self.right += other.right
        self.wrong += other.wrong
        self.followers_evicted += other.followers_evicted
        self.taken += other.taken
        self.explicit += other.explicit


class _Rack:
    def __init__(self, loop: virtual_time.VirtualTimeLoop, event: RackEvent, nodes: int) -> None:
        self.loop, self.event, self.nodes = loop, event, nodes
        self.rng = random.Random(event.seed)
        self.world = World()
        self.latched: dict[int, dict[tuple[str, str], Fault]] = {}
        self.attached: set[int] = set()

    async def play(self) -> RackOutcome:
        for number in range(2 * self.nodes):  # the other rack is well
            self.world.add_node(f"n{number}")
        rounds_module.ROUNDS = _ROUNDS
        self.replica = await Replica(
            self.world, clock=LoopClock(self.loop), settings=_SHIPPED
        ).ready()
        for number in range(2 * self.nodes):
            self.attach(number)
        try:
            return await self.live()
        finally:
            await self.replica.stop()

    def attach(self, number: int) -> None:
        traits = {"driver": DRIVER, "fabric_clique": f"5b4a3c2d-{number // self.nodes}.1"}
        name = f"n{number}"
        self.replica.controller.on_connect(replace(hello(name), traits=traits), FakeLine())
        faults = tuple(self.latched.get(number, {}).values())
        self.replica.controller.on_evidence(name, Snapshot((), faults), self.loop.time())
        self.attached.add(number)

    async def live(self) -> RackOutcome:
        event, outcome = self.event, RackOutcome(events=1, explicit=int(self.event.explicit))
        if event.has_precursor:
            name = f"nvlink-recoveries {gpu(event.gpu)}"
            text = "3 more NVLink recoveries"
            since = self.loop.time()
            found = Component(CHECK, name, Status.FAILED, "nvlink-recoveries", text, since)
            self.replica.controller.own_evidence.record(f"n{event.origin}", found)
            await asyncio.sleep(30)
        began = self.loop.time()
        if event.late is not None:
            name = f"n{event.late}"
            self.attached.discard(event.late)
            self.replica.controller.on_disconnect(name, FakeLine(), "its agent ended")
        acts = [self.log(number) for number in range(self.nodes)]
        taken = asyncio.ensure_future(self.watch(began))
        await asyncio.gather(*acts)
        await asyncio.sleep(120 - (self.loop.time() - began))
        rounds_module.ROUNDS = _QUIET_ROUNDS
        if event.explicit and taken.done():
            outcome.taken.append(taken.result())
        taken.cancel()
        await asyncio.gather(*(self.repair(number) for number in range(self.nodes)))
        await asyncio.sleep(1200)
        self.count(outcome)
        return outcome

    async def log(self, number: int) -> None:
        """The lines of one node: each GPU's error, and the driver's verdict a millisecond later."""
        event = self.event
        is_origin = number == event.origin
        lines = []
        for each in range(GPUS):
            at = self.rng.uniform(0.0, 1.0)
            code, register = "xid:145", self.rng.choice([None, _REMAP])
            if is_origin and each == event.gpu and event.has_149:
                code, register = "xid:149", event.register
            lines.append((at, code, gpu(each), register))
        begun = self.loop.time()
        for at, code, component, register in sorted(lines):
            await asyncio.sleep(max(0.0, begun + at - self.loop.time()))
            details = {"severity": "fatal"}
            if register is not None:
                details |= {"intr_info": register, "error_status": "0x00000000"}
            self.latch(number, code, component, details)
            self.latch(number, "xid:154", component, {"verdict": "drain-and-reset"})
        if number == event.late:
            await asyncio.sleep(45)
            self.attach(number)

    def latch(self, number: int, code: str, component: str, details: dict[str, str]) -> None:
        now = self.loop.time()
        made = fault(
            code,
            component,
            first_at=now,
            last_at=now,
            occurrences=(now,),
            cleared_by=ClearedBy.GPU_RESET,
            details=details,
        )
        self.latched.setdefault(number, {})[made.key] = made
        if number in self.attached:
            self.replica.controller.on_evidence(f"n{number}", Delta((), (made,)), now)

    async def watch(self, began: float) -> float:
        """Until the origin is in quarantine."""
        await until(lambda: f"n{self.event.origin}" in self.world.quarantines)
        return self.loop.time() - began

    async def repair(self, number: int) -> None:
        """Its GPUs are reset: soon, or much later than the cause is over."""
        late = self.rng.random() < 0.2
        await asyncio.sleep(self.rng.uniform(5400, 7200) if late else self.rng.uniform(300, 1800))
        codes = list(self.latched.pop(number, {}))
        over = tuple(Cleared(code, component, "gpu-reset") for code, component in codes)
        self.replica.controller.on_evidence(f"n{number}", Delta(cleared=over), self.loop.time())

    def count(self, outcome: RackOutcome) -> None:
        event, told = self.event, self.replica.notes.transitions
        taken = {one.node for one in told if one.kind is EventKind.ADMITTED}
        outcome.followers_evicted = len(taken - {f"n{event.origin}"})
        causes = [one for one in told if one.kind is EventKind.COMMON_CAUSE]
        named = [(one.details["origin"], one.details["origin_gpu"]) for one in causes]
        right = [(f"n{event.origin}", gpu(event.gpu)) if event.named else ("", "")]
        outcome.right = int(named == right)
        if named != right:
            outcome.wrong.append(f"{event}: {[one.summary for one in causes]}")


def play_racks(events: int, nodes: int, seed: int) -> RackOutcome:
    """So many events of racks of so many nodes, one after the other in a new fleet each."""
    rng, total = random.Random(f"origin {seed}"), RackOutcome()
    before = rounds_module.ROUNDS
    for _ in range(events):
        event = draw(rng, nodes)

        async def main(event: RackEvent = event) -> RackOutcome:
            loop = of_type(asyncio.get_running_loop(), virtual_time.VirtualTimeLoop)
            return await _Rack(loop, event, nodes).play()

        try:
            total.add(virtual_time.run(main()))
        finally:
            rounds_module.ROUNDS = before
    return total
