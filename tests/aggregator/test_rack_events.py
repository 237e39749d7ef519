"""A switch tray that fails under a rack: NVLink errors and verdicts on many nodes, in any order."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase as HypothesisPhase
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.alerts.alert import DEFAULT_KINDS, alert_of
from aggregator.cluster.port import Phase
from aggregator.events import EventKind
from aggregator.health.model import Cleared, Component, Delta, Fault, Snapshot, Status
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.settings import Settings
from tests.support import virtual_time
from tests.support.invariants import Watch
from tests.support.memory_cluster import World, phase_of
from tests.support.present import of_type, present
from tests.support.rack_faults import DRIVER, PEER, link_error, verdict, xid
from tests.support.replica import SETTINGS, FakeLine, Replica, component, hello
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import played_by
from tests.support.waiting import until

SHIPPED: Settings = replace(
    SETTINGS,
    limits=replace(Limits(), quorum_percent=0, concurrent=100, concurrent_percent=100),
    common=CommonLimits(),
)
HOLD = SHIPPED.common.fabric_hold
UUID = "5b4a3c2d-1e0f-4a5b-8c7d-6e5f40312233"
NODES = 40
RACK = 8
#: Three racks of nodes hang on one leaf switch.
LEAF = "network.topology.nvidia.com/leaf"


def recovery(gpu: str, now: float) -> Component:
    return component("gpu-recovery", gpu, Status.FAILED, "drain-and-reset", since=now)


@dataclass
class Racks:
    """An aggregator over racks of eight nodes, whose agents name the racks' NVLink fabrics."""

    loop: virtual_time.VirtualTimeLoop
    settings: Settings = SHIPPED
    labelled: bool = False
    nodes: int = NODES
    world: World = field(default_factory=World)
    shown: dict[str, tuple[Fault | Component, ...]] = field(default_factory=dict)
    told: list[tuple[EventKind, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = Watch(self.world, self.loop.time)

    async def begin(self) -> None:
        for number in range(self.nodes):
            rack = f"{UUID}.{number // RACK}"
            labels = {LEAF: f"leaf-{number // (3 * RACK)}"}
            labels |= {"nvidia.com/gpu.clique": rack} if self.labelled else {}
            self.world.add_node(f"n{number}", labels=labels)
        await self.start()
        for number in range(self.nodes):
            self.attach(number)

    async def start(self) -> None:
        self.world.listeners.clear()
        self.replica = await Replica(
            self.world, clock=LoopClock(self.loop), settings=self.settings
        ).ready()

    def attach(self, number: int) -> None:
        rack = number // RACK
        fabric = f"{UUID[:-1]}{rack}.32766"
        traits = {"driver": DRIVER, **({} if self.labelled else {"fabric_clique": fabric})}
        name = f"n{number}"
        self.replica.controller.on_connect(replace(hello(name), traits=traits), FakeLine())
        shown = self.shown.get(name, ())
        levels = tuple(one for one in shown if isinstance(one, Component))
        faults = tuple(one for one in shown if isinstance(one, Fault))
        evidence = Snapshot(levels, faults)
        self.world.facts.note_evidence(name, evidence)
        self.replica.controller.on_evidence(name, evidence, self.loop.time())

    def show(self, number: int, *evidence: Fault | Component, sent: bool = True) -> None:
        name = f"n{number}"
        self.shown[name] = (*self.shown.get(name, ()), *evidence)
        if sent:
            levels = tuple(one for one in evidence if isinstance(one, Component))
            faults = tuple(one for one in evidence if isinstance(one, Fault))
            told = Delta(levels, faults)
            self.world.facts.note_evidence(name, told)
            self.replica.controller.on_evidence(name, told, self.loop.time())

    def alerts(self) -> list[EventKind]:
        found = [alert_of(one) for one in self.replica.notes.transitions]
        kinds = [EventKind(one.kind) for one in found if one is not None]
        return [kind for kind in kinds if kind in DEFAULT_KINDS]

    @property
    def quarantined(self) -> set[str]:
        return set(self.world.quarantines)


def play(test: Callable[[Racks], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        loop = of_type(asyncio.get_running_loop(), virtual_time.VirtualTimeLoop)
        racks = Racks(loop, **options)
        await racks.begin()
        try:
            await test(racks)
        finally:
            await racks.replica.stop()

    virtual_time.run(main())


pytestmark = pytest.mark.decorated(by=played_by(play))


async def _tray_fails(racks: Racks, nodes: range = range(RACK)) -> None:
    for number in nodes:
        now = racks.loop.time()
        for gpu in ("GPU-0", "GPU-1"):
            racks.show(number, link_error(gpu, now), verdict(gpu, now + 0.001))
        await asyncio.sleep(0.05)


async def test_a_tray_that_fails_is_one_cause_with_one_alert_and_quarantines_no_node(
    racks: Racks,
) -> None:
    await _tray_fails(racks)
    await asyncio.sleep(60)
    for number in range(RACK):  # the check that reads the verdict comes later
        racks.show(number, recovery("GPU-0", racks.loop.time()))
    await asyncio.sleep(600)
    assert racks.quarantined == set()
    assert racks.watch.wrong == []
    assert racks.alerts() == [EventKind.COMMON_CAUSE]
    [cause] = racks.replica.fleet.causes.values()
    assert (cause.scope, cause.nodes, cause.total) == ("place", RACK, RACK)
    assert cause.reason.startswith(f"NVLink fabric {UUID[:-1]}0: NVLink evidence on 8 of 8")
    held = {
        one.decision.hold.limit
        for one in racks.replica.fleet.node_summaries.values()
        if one.decision.hold
    }
    assert held == {"fabric"}
    now = racks.loop.time()
    racks.show(20, xid(79, "GPU-3", now))  # elsewhere a GPU is gone: no cooldown keeps it
    await asyncio.sleep(20)
    assert racks.quarantined == {"n20"}


def test_a_tray_is_one_incident_until_its_last_gpu_is_reset_though_a_leaf_switch_has_its_rack() -> (
    None
):
    async def test(racks: Racks) -> None:
        await _tray_fails(racks)
        await asyncio.sleep(60)
        for number in range(RACK):
            codes = [(code, gpu) for code in ("xid:149", "xid:154") for gpu in ("GPU-0", "GPU-1")]
            over = tuple(Cleared(code, gpu, "gpu-reset") for code, gpu in codes)
            told = Delta(cleared=over)
            racks.replica.controller.on_evidence(f"n{number}", told, racks.loop.time())
            await asyncio.sleep(10)
        await asyncio.sleep(90)
        assert racks.alerts() == [EventKind.COMMON_CAUSE, EventKind.COMMON_CAUSE_OVER]
        assert racks.quarantined == set()

    common = CommonLimits(domain_labels=(LEAF,))
    play(test, settings=replace(SHIPPED, common=common))


@played_by(play, labelled=True)
async def test_the_node_label_serves_where_the_agent_names_no_fabric(racks: Racks) -> None:
    await _tray_fails(racks)
    await asyncio.sleep(120)
    assert racks.quarantined == set()
    assert racks.watch.wrong == []
    assert racks.alerts() == [EventKind.COMMON_CAUSE]


async def test_a_gpu_alone_in_its_fabric_is_drained_when_nobody_shows_the_same(
    racks: Racks,
) -> None:
    now = racks.loop.time()
    racks.show(3, link_error("GPU-0", now), verdict("GPU-0", now + 0.001))
    await asyncio.sleep(HOLD - 1.0)
    assert racks.quarantined == set()
    hold = present(racks.replica.fleet.node_summaries["n3"].decision.hold)
    assert hold.limit == "limits.fabric_hold"
    assert racks.alerts() == [], "whether it is the node's own is not known yet"
    await until(lambda: phase_of(racks.world, "n3") is Phase.DRAINED)
    assert racks.loop.time() - now < HOLD + 1.0
    assert EventKind.INCIDENT_OPENED in racks.alerts()
    assert racks.quarantined == {"n3"}


async def test_the_fabric_holds_no_fault_of_the_gpu_itself(racks: Racks) -> None:
    await _tray_fails(racks)
    await asyncio.sleep(5)
    now = racks.loop.time()
    racks.show(2, xid(95, "GPU-1", now))
    await asyncio.sleep(5)
    assert racks.quarantined == {"n2"}
    # A row was remapped, and the driver's verdict comes with that: it is the memory's.
    now = racks.loop.time()
    racks.show(5, xid(63, "GPU-1", now), verdict("GPU-1", now))
    await asyncio.sleep(5)
    assert racks.quarantined == {"n2", "n5"}


async def test_a_cordon_that_stands_becomes_no_drain_in_a_rack_event(racks: Racks) -> None:
    racks.show(0, xid(74, "GPU-3", racks.loop.time()))
    await until(lambda: phase_of(racks.world, "n0") is Phase.CORDONED)
    await asyncio.sleep(3600)
    await _tray_fails(racks)
    await asyncio.sleep(600)
    assert phase_of(racks.world, "n0") is Phase.CORDONED
    assert racks.quarantined == {"n0"}


async def test_a_reset_gpu_is_not_drained_for_a_verdict_that_was_read_before_the_reset(
    racks: Racks,
) -> None:
    """The errors are over at once, the check that reads the verdict runs each minute."""
    await _tray_fails(racks)
    for number in range(RACK):
        racks.show(number, recovery("GPU-0", racks.loop.time()))
    await asyncio.sleep(60)
    for number in range(RACK):
        codes = [(code, gpu) for code in ("xid:149", "xid:154") for gpu in ("GPU-0", "GPU-1")]
        over = tuple(Cleared(code, gpu, "gpu-reset") for code, gpu in codes)
        told = Delta(cleared=over)
        racks.replica.controller.on_evidence(f"n{number}", told, racks.loop.time())
        await asyncio.sleep(5)
    assert racks.quarantined == set()


async def test_errors_of_two_fabrics_are_no_cause_of_either(racks: Racks) -> None:
    now = racks.loop.time()
    for number in (0, RACK):
        racks.show(number, link_error("GPU-0", now), verdict("GPU-0", now))
    await asyncio.sleep(HOLD + 5)
    assert racks.quarantined == {"n0", f"n{RACK}"}


async def test_a_peer_device_row_never_drains_the_observer_alone(racks: Racks) -> None:
    now = racks.loop.time()
    racks.show(1, link_error("GPU-0", now, PEER), verdict("GPU-0", now + 0.001))
    racks.show(1, recovery("GPU-0", now + 30.0))
    await asyncio.sleep(120)
    assert phase_of(racks.world, "n1") is Phase.CORDONED


def _an_origin(racks: Racks, number: int, **more: str) -> None:
    now = racks.loop.time()
    racks.show(number, link_error("GPU-1", now, **more), verdict("GPU-1", now + 0.001))


def _followers(racks: Racks, but: int, nodes: range = range(RACK)) -> None:
    for number in nodes:
        if number != but:
            now = racks.loop.time()
            racks.show(number, xid(145, "GPU-0", now), verdict("GPU-0", now + 0.001))


def _reset(racks: Racks, number: int) -> None:
    shown = racks.shown.pop(f"n{number}")
    codes = [(one.code, one.component) for one in shown if isinstance(one, Fault)]
    over = tuple(Cleared(code, gpu, "gpu-reset") for code, gpu in codes)
    racks.replica.controller.on_evidence(f"n{number}", Delta(cleared=over), racks.loop.time())


@played_by(play, nodes=2 * RACK)
async def test_the_only_149_is_named_and_quarantined_alone_and_its_followers_wait_for_a_reset(
    racks: Racks,
) -> None:
    _followers(racks, but=3)
    _an_origin(racks, 3)
    await asyncio.sleep(30)
    assert racks.quarantined == {"n3"}
    [told] = [o for o in racks.replica.notes.transitions if o.kind is EventKind.COMMON_CAUSE]
    reason = "the only Xid 149; the 7 other nodes have Xid 145"
    assert told.summary.endswith(f"; origin GPU-1 of n3 (explicit): {reason}")
    assert told.details["origin"] == "n3"
    assert told.details["origin_gpu"] == "GPU-1"
    assert told.details["origin_confidence"] == "explicit"
    alert = present(alert_of(told))
    assert reason in alert.summary
    [cause] = racks.replica.fleet.causes.values()
    assert reason in cause.reason
    for number in range(RACK - 1):  # n7 is forgotten
        _reset(racks, number)
    await asyncio.sleep(2 * 3600)
    assert racks.replica.fleet.causes == {}
    assert racks.quarantined - {"n3"} == set()
    hold = present(racks.replica.fleet.node_summaries["n7"].decision.hold)
    assert hold.limit == "fabric-follower"
    assert "GPU-1 of n3" in hold.reason
    _reset(racks, 7)
    await asyncio.sleep(10)
    assert racks.replica.fleet.node_summaries["n7"].decision.hold is None
    now = racks.loop.time()  # an error of its own, later
    racks.show(7, link_error("GPU-0", now), verdict("GPU-0", now + 0.001))
    await asyncio.sleep(60)
    assert "n7" in racks.quarantined


@played_by(play, nodes=2 * RACK)
async def test_new_evidence_of_a_follower_is_its_own(racks: Racks) -> None:
    _followers(racks, but=3)
    _an_origin(racks, 3)
    await asyncio.sleep(30)
    for number in range(RACK - 1):
        _reset(racks, number)
    await asyncio.sleep(3600)
    racks.show(7, xid(79, "GPU-3", racks.loop.time()))
    await asyncio.sleep(60)
    assert "n7" in racks.quarantined


@played_by(play, nodes=2 * RACK)
async def test_a_149_that_names_its_peer_is_named_and_held(racks: Racks) -> None:
    _followers(racks, but=3)
    _an_origin(racks, 3, intr_info=PEER)
    await asyncio.sleep(300)
    assert racks.quarantined == set()
    [cause] = racks.replica.fleet.causes.values()
    assert "origin GPU-1 of n3 (likely)" in cause.reason


@played_by(play, nodes=2 * RACK)
async def test_a_second_149_within_the_hold_leaves_both_held(racks: Racks) -> None:
    _followers(racks, but=3)
    _an_origin(racks, 3)
    await asyncio.sleep(8)
    _an_origin(racks, 5)
    await asyncio.sleep(300)
    assert racks.quarantined == set()
    [cause] = racks.replica.fleet.causes.values()
    assert "origin unknown" in cause.reason


def test_the_explicit_origin_passes_no_other_limit() -> None:
    async def test(racks: Racks) -> None:
        racks.show(12, xid(79, "GPU-3", racks.loop.time()))
        await asyncio.sleep(20)
        assert racks.quarantined == {"n12"}
        _followers(racks, but=3)
        _an_origin(racks, 3)
        await asyncio.sleep(60)
        assert racks.quarantined == {"n12"}
        hold = present(racks.replica.fleet.node_summaries["n3"].decision.hold)
        assert hold.limit == "limits.concurrent"

    limits = replace(SHIPPED.limits, concurrent=1)
    play(test, nodes=2 * RACK, settings=replace(SHIPPED, limits=limits))


@played_by(play, nodes=2 * RACK)
async def test_a_rack_event_of_a_switch_names_nobody(racks: Racks) -> None:
    _followers(racks, but=-1)
    await asyncio.sleep(300)
    assert racks.quarantined == set()
    [told] = [o for o in racks.replica.notes.transitions if o.kind is EventKind.COMMON_CAUSE]
    assert told.details["origin"] == ""
    assert "origin unknown" in told.summary


@played_by(play, nodes=2 * RACK)
async def test_no_node_of_an_event_without_a_name_is_taken_after_its_cause_is_over(
    racks: Racks,
) -> None:
    _followers(racks, but=-1)
    await asyncio.sleep(60)
    for number in range(RACK - 1):
        _reset(racks, number)
    await asyncio.sleep(2 * 3600)
    assert racks.replica.fleet.causes == {}
    assert racks.quarantined == set()


MADE: dict[str, Callable[[str, float], Fault | Component]] = {
    "link": link_error,
    "verdict": verdict,
    "recovery": recovery,
}
#: One node's evidence, in the order in which it comes.
_ORDERS = st.permutations(["link", "verdict", "recovery"])
_EVENT = st.lists(
    st.tuples(
        _ORDERS,
        st.floats(0.0, 4.0),  # when its first evidence comes
        st.floats(0.0, 3.0),  # the time between one piece and the next
        st.sampled_from([0.0, 0.0, 0.0, 40.0, 400.0]),  # its agent is away for so long
    ),
    min_size=3,
    max_size=RACK,
)


@given(event=_EVENT, restart=st.none() | st.floats(0.0, 30.0), labelled=st.booleans())
@settings(max_examples=15, deadline=None, phases=[HypothesisPhase.generate])  # shrinking is slow
def test_no_order_of_arrival_quarantines_a_node_of_the_rack(
    event: list[tuple[list[str], float, float, float]], restart: float | None, *, labelled: bool
) -> None:
    """Two agents at least speak at once; the others may be late. The aggregator may restart."""
    event = [*event[:-2], *((order, at, gap, 0.0) for order, at, gap, _ in event[-2:])]

    async def node(racks: Racks, number: int, story: tuple[list[str], float, float, float]) -> None:
        order, at, gap, away = story
        await asyncio.sleep(at)
        for what in order:
            now = racks.loop.time()
            racks.show(number, MADE[what]("GPU-2", now), sent=not away)
            await asyncio.sleep(gap)
        if away:
            await asyncio.sleep(away)
            racks.attach(number)

    async def test(racks: Racks) -> None:
        lives = [asyncio.ensure_future(node(racks, n, story)) for n, story in enumerate(event)]
        if restart is not None:
            await asyncio.sleep(restart)
            await racks.replica.stop()
            await racks.start()
            for number in range(racks.nodes):
                racks.attach(number)
        await asyncio.gather(*lives)
        await asyncio.sleep(60)
        assert racks.quarantined == set()
        assert racks.watch.wrong == []
        assert racks.alerts() == [EventKind.COMMON_CAUSE]

    play(test, labelled=labelled, nodes=2 * RACK)  # more racks cost time, and change nothing
