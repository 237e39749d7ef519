"""Outliers as evidence: from an agent's messages to an incident that is only observed."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import Cleared, MeasuredSeries, Measurements, Status
from aggregator.ingest import codec
from aggregator.policy.lint import parse_checks
from aggregator.policy.outliers.fleet import FleetMeasurements
from aggregator.policy.outliers.measures import CHECK, MEASURES
from nodeagent.simulate import machine
from nodeagent.uplink.measurements import MeasurementEncoder
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb
from tests.support.ingest import site
from tests.support.memory_cluster import World
from tests.support.present import present
from tests.support.replica import SETTINGS, FakeLine, Replica, hello, shipped_policy, snapshot
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import VirtualTimeLoop, play, played_by
from tests.support.waiting import until

NAMES = [f"node-{number:02}" for number in range(12)]
PARTS = tuple(MeasuredSeries("gpu-clock", f"GPU-{gpu}", "NVIDIA H200") for gpu in range(8))
SLOW = ("node-03", 5)
COMPONENT = "gpu-clock GPU-5"

SITE = """
rules:
  - name: slow-gpu
    kind: gpu
    check: fleet-outlier
    reasons: [gpu-clock]
    action: cordon
    healthyFor: 0s
    why: a site takes slow GPUs out
"""


class Bench:
    """A replica whose nodes report their clocks once a minute."""

    def __init__(self, loop: VirtualTimeLoop, site_rules: str | None = None) -> None:
        self.loop = loop
        self.world = World()
        self.lines = {name: FakeLine() for name in NAMES}
        self.known = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            self.world.add_node(name, boot_id="boot-1")
        self.policy = shipped_policy(site_rules)
        self.replica = self.start()

    def start(self) -> Replica:
        return Replica(
            self.world, clock=LoopClock(self.loop), settings=SETTINGS, policy=self.policy
        )

    async def attach(self) -> None:
        await until(lambda: not self.replica.fleet.view_lost)
        for name in NAMES:
            self.connect(name)

    def connect(self, name: str) -> None:
        self.known[name] = 0
        self.replica.controller.on_connect(hello(name), self.lines[name])
        self.replica.controller.on_evidence(name, snapshot(), self.loop.time())

    async def minutes(self, count: int, slow: int = 1740) -> None:
        """So many minutes in which one GPU has the clock ``slow``, and all others 1980 MHz."""
        for _ in range(count):
            await asyncio.sleep(60)
            for name in NAMES:
                values = [(gpu, slow if (name, gpu) == SLOW else 1980) for gpu in range(8)]
                told = Measurements(
                    self.known[name], () if self.known[name] else PARTS, tuple(values), ()
                )
                self.known[name] = len(PARTS)
                self.replica.controller.on_measurements(name, told, self.loop.time())
        await asyncio.sleep(0.001)  # of virtual time: the nodes are evaluated

    @property
    def incidents(self) -> list[str]:
        summary = self.replica.fleet.node_summaries["node-03"]
        return [f"{one.action}: {one.summary}" for one in summary.decision.incidents.values()]

    @property
    def status(self) -> Status | None:
        health = self.replica.fleet.node_summaries["node-03"].agent.health
        found = None if health is None else health.level((CHECK, COMPONENT))
        return None if found is None else found.status


def on_bench(test: Callable[[Bench], Awaitable[None]], site_rules: str | None = None) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        bench = Bench(loop, site_rules)
        try:
            await bench.attach()
            await test(bench)
        finally:
            await bench.replica.stop()

    play(main)


@played_by(on_bench)
async def test_a_slow_gpu_is_an_incident_that_is_only_observed(bench: Bench) -> None:
    await bench.minutes(29)
    assert bench.incidents == []
    await bench.minutes(2)
    [text] = bench.incidents
    assert text.startswith("observe: clock under load of GPU-5: 1740 MHz; the median of 96 on")
    assert not bench.world.quarantines
    others = [
        name
        for name, summary in bench.replica.fleet.node_summaries.items()
        if summary.decision.incidents and name != "node-03"
    ]
    assert not others
    await bench.minutes(31, slow=1980)
    assert bench.incidents == []
    assert bench.status is Status.OK


@played_by(on_bench, SITE)
async def test_a_sites_rule_cordons_it_and_releases_it_when_it_is_as_the_others(
    bench: Bench,
) -> None:
    await bench.minutes(32)
    await until(lambda: "node-03" in bench.world.quarantines)
    assert list(bench.world.quarantines) == ["node-03"]
    await bench.minutes(31, slow=1980)
    await until(lambda: not bench.world.quarantines)


@played_by(on_bench, SITE)
async def test_a_restarted_aggregator_keeps_the_finding_of_a_quarantine_and_ends_it_by_its_values(
    bench: Bench,
) -> None:
    await bench.minutes(32)
    await until(lambda: "node-03" in bench.world.quarantines)
    await bench.replica.stop()
    bench.replica = bench.start()
    await bench.attach()
    await bench.minutes(1)
    assert bench.status is Status.FAILED
    await bench.minutes(20, slow=1980)
    assert "node-03" in bench.world.quarantines
    await bench.minutes(15, slow=1980)
    await until(lambda: not bench.world.quarantines)


@played_by(on_bench)
async def test_silence_neither_begins_nor_ends_a_finding(bench: Bench) -> None:
    await bench.minutes(32)
    bench.replica.controller.on_disconnect("node-03", bench.lines["node-03"], "gone")
    await asyncio.sleep(7200)
    assert bench.status is Status.FAILED
    bench.connect("node-03")
    await bench.minutes(1)
    assert bench.status is Status.FAILED


@played_by(on_bench)
async def test_a_replaced_gpu_has_no_finding_any_more(bench: Bench) -> None:
    await bench.minutes(32)
    told = snapshot(cleared=(Cleared("", "GPU-5", "replaced"),))
    bench.replica.controller.on_evidence("node-03", told, bench.loop.time())
    await asyncio.sleep(0.001)
    assert bench.status is Status.OK
    assert bench.incidents == []


@played_by(on_bench)
async def test_measurements_after_the_node_was_forgotten_wait_for_its_next_stream(
    bench: Bench,
) -> None:
    await bench.minutes(2)
    measured = bench.replica.fleet.measurements
    measured.forget("node-03")
    await bench.minutes(2)
    assert measured.size("node-03") == 0
    bench.connect("node-03")
    await bench.minutes(1)
    assert measured.size("node-03") == 8


@played_by(on_bench)
async def test_series_that_begin_anew_within_a_stream_replace_those_before(bench: Bench) -> None:
    await bench.minutes(2)
    measured = bench.replica.fleet.measurements
    bench.known["node-03"] = 0  # as after a resync
    await bench.minutes(1)
    assert measured.size("node-03") == 8
    assert {spread.total for spread in measured.spreads()} == {8 * len(NAMES)}


def test_each_measure_is_in_a_shipped_rule_that_observes_in_the_checks_and_in_the_docs() -> None:
    rules = [rule for rule in shipped_policy().rules if rule.check == CHECK]
    assert {rule.action for rule in rules} == {"observe"}
    assert sorted(reason for rule in rules for reason in rule.reasons) == sorted(MEASURES)
    root = Path(__file__).parents[2]
    checks = parse_checks((root / "aggregator/policy/checks.yaml").read_text())
    assert sorted(checks[CHECK].failed or ()) == sorted(MEASURES)
    page = (root / "docs/outliers.md").read_text()
    for measure in MEASURES.values():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{measure.name}` |")]
        assert f"{measure.floor:,g}" in row.split("|")[5]
        assert row.split("|")[6].strip() == f"{measure.minutes} min"


# -- the message ------------------------------------------------------------------------------


def message(*series: str, numbers: dict[int, int] | None = None) -> pb.Measurements:
    told = pb.Measurements(
        series=[pb.MeasuredSeries(measure="gpu-clock", component=one) for one in series]
    )
    for number, value in (numbers or {}).items():
        told.numbers.append(number)
        told.values.append(value)
    return told


def test_a_message_is_decoded_with_its_numbers() -> None:
    told = codec.measurements(message("GPU-0", "GPU-1", numbers={4: 1980, 2: 7}), 3)
    assert told == Measurements(
        3,
        (MeasuredSeries("gpu-clock", "GPU-0"), MeasuredSeries("gpu-clock", "GPU-1")),
        ((4, 1980), (2, 7)),
        (),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        message("GPU-0", numbers={1: 5}),
        message(*(f"GPU-{number}" for number in range(limits.MAX_SERIES + 1))),
        message("x" * 129),
        pb.Measurements(numbers=[0], values=[1, 2]),
        pb.Measurements(absent=[0]),
        pb.Measurements(series=[pb.MeasuredSeries(component="GPU-0")]),
    ],
)
def test_a_message_outside_the_contract_is_refused(wrong: pb.Measurements) -> None:
    with pytest.raises(codec.InvalidMessage):
        codec.measurements(wrong, 0)


@given(st.binary(max_size=200), st.integers(0, limits.MAX_SERIES))
def test_no_message_breaks_the_codec_or_the_fold(data: bytes, known: int) -> None:
    told = pb.Measurements()
    try:
        told.ParseFromString(data)
    except Exception:
        return
    fleet = FleetMeasurements()
    fleet.add_series("n", "", [MeasuredSeries("gpu-clock", str(n)) for n in range(known)])
    try:
        found = codec.measurements(told, known)
    except codec.InvalidMessage:
        return
    fleet.add_series("n", "", found.series)
    fleet.update("n", found.values, found.absent)
    fleet.evaluate("n", 0.0)


def test_the_aggregator_takes_what_agents_send_and_finds_no_outlier_in_a_simulated_fleet() -> None:
    fleet = FleetMeasurements()
    names = [f"node-{number:02}" for number in range(12)]
    encoders = {name: MeasurementEncoder() for name in names}
    uuids = {name: [machine.gpu_uuid(name, gpu, 1) for gpu in range(8)] for name in names}
    for minute in range(150):
        for name in names:
            sent = present(encoders[name].message(machine.measured(name, uuids[name], minute)))
            told = codec.measurements(sent.measurements, fleet.size(name))
            fleet.add_series(name, "", told.series)
            fleet.update(name, told.values, told.absent)
            assert not fleet.evaluate(name, 60.0 * minute)
    spreads = {spread.key[1:]: spread for spread in fleet.spreads()}
    clocks = spreads["gpu-clock", "NVIDIA H100 80GB HBM3", ""]
    assert (clocks.total, clocks.nodes, clocks.median) == (96, 12, 1980)
    assert len(spreads) == 3 + len(machine.CHECKS)


async def test_a_wrong_message_ends_the_measurements_and_not_the_stream() -> None:
    async with site() as here, here.agent("node-a") as agent:
        await agent.attend()
        await agent.send(pb.AgentMessage(measurements=message("GPU-0", numbers={0: 1980})))
        await agent.send(pb.AgentMessage(measurements=message(numbers={7: 1})))
        await agent.send(pb.AgentMessage(measurements=message("GPU-1", numbers={1: 1980})))
        await agent.beat(0)
        await until(lambda: ("beat", "node-a") in here.intake.events)
        assert [told for _, told in here.intake.measured] == [
            Measurements(0, (MeasuredSeries("gpu-clock", "GPU-0"),), ((0, 1980),), ()),
            Measurements(1, (), (), (0,)),
        ]


async def test_the_series_of_a_stream_begin_anew_with_each_snapshot() -> None:
    async with site() as here, here.agent("node-a") as agent:
        await agent.attend()
        one = pb.AgentMessage(measurements=message("GPU-0", numbers={0: 1980}))
        await agent.send(one)
        here.intake.lines["node-a"].resync("for a test")
        await agent.expect("resync")
        await agent.snapshot(seq=2)
        await agent.send(one)
        await agent.beat(0)
        await until(lambda: ("beat", "node-a") in here.intake.events)
        first = Measurements(0, (MeasuredSeries("gpu-clock", "GPU-0"),), ((0, 1980),), ())
        assert [told for _, told in here.intake.measured] == [first, first]


def bytes_of_a_node() -> float:
    """The memory of one node with a hundred series, in a fleet of 500."""

    def first(node: int) -> Measurements:
        told = pb.Measurements(numbers=range(100), values=[1000 + node % 7] * 100)
        for measure in ("gpu-clock", "gpu-clock-capped", "pcie-replays", "nvlink-errors"):
            for gpu in range(8):
                name = f"GPU-{node:08x}-5ec7-4a11-9d00-{gpu:012x}"
                told.series.add(measure=measure, component=name, model="NVIDIA H200")
        for port in range(8):
            told.series.add(measure="ib-errors", component=f"mlx5_{port}/1", model="400 Gbit/s")
        for check in range(60):
            told.series.add(measure="check-duration", component=f"check-{check}", model="8 H200")
        return codec.measurements(told, 0)

    fleet = FleetMeasurements()
    names = [f"node-{node}" for node in range(201)]

    def take(node: int) -> None:
        told = first(node)
        fleet.add_series(names[node], "", told.series)
        fleet.update(names[node], told.values)

    take(0)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for node in range(1, 201):
        take(node)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / 200


def test_a_node_of_a_hundred_series_takes_some_three_kilobytes() -> None:
    # In a process of its own: the interpreter's table of strings may grow while the nodes come, and
    # after thousands of other tests that is 50 KiB.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        used = fresh.submit(bytes_of_a_node).result()
    assert used < 3_300, used
