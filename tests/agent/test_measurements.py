"""Measurements that checks take, and the messages that carry them to the aggregator."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import disk_write, gpu_clocks, gpu_nvlink, gpu_pcie, infiniband
from nodeagent.simulate import machine
from nodeagent.simulate.node import SimulatedNode
from nodeagent.sources.measurements import FRESH, Measured, Measurements, rounded
from nodeagent.uplink.measurements import MeasurementEncoder
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.kernel_log import HandClock
from tests.agent.machines import built, made_up, options, sources, this_machine
from tests.agent.simulated import simulated_node
from tests.agent.test_infiniband import device, write_counters
from tests.nvml import gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench
from tests.support.fake_aggregator import FakeAggregator
from tests.support.present import present
from tests.support.waiting import until


def held(measurements: Measurements, measure: str, now: float = 0.0) -> dict[str, int]:
    """The values of one measure by component."""
    return {one.component: one.value for one in measurements.current(now) if one.measure == measure}


def test_a_value_that_is_old_or_was_taken_back_is_no_measurement() -> None:
    measurements = Measurements()
    measurements.put("gpu-clock", "GPU-0", 1980, at=100.0)
    measurements.put("gpu-clock", "GPU-1", 1965, at=100.0)
    assert held(measurements, "gpu-clock", 100 + FRESH) == {"GPU-0": 1980, "GPU-1": 1965}
    measurements.put("gpu-clock", "GPU-0", None, at=110.0)
    assert held(measurements, "gpu-clock", 110) == {"GPU-1": 1965}
    assert not held(measurements, "gpu-clock", 101 + FRESH)


def test_a_node_with_endless_parts_keeps_a_bounded_number() -> None:
    measurements = Measurements()
    for number in range(1000):
        measurements.put("ib-errors", f"mlx5_{number}/1", 0, at=0.0)
    assert len(measurements.current(0.0)) == limits.MAX_SERIES


@pytest.mark.parametrize(
    ("value", "text"), [(0, 0), (7.4, 7), (99, 99), (123, 120), (1049.9, 1000), (98_765, 99_000)]
)
def test_values_are_rounded_to_two_digits(value: float, text: int) -> None:
    assert rounded(value) == text


series = st.tuples(
    st.sampled_from(["gpu-clock", "ib-errors"]), st.sampled_from(["a", "b", "c"]), st.just("m")
)


@given(st.lists(st.dictionaries(series, st.integers(0, 5)), min_size=1, max_size=8))
def test_a_receiver_that_folds_the_messages_has_the_present_values(
    looks: Sequence[dict[tuple[str, str, str], int]],
) -> None:
    encoder = MeasurementEncoder()
    names: list[tuple[str, str, str]] = []
    values: dict[tuple[str, str, str], int] = {}
    for look in looks:
        message = encoder.message([Measured(*key, value) for key, value in look.items()])
        if message is None:
            assert not look
            assert not names
            continue
        told = message.measurements
        names += [(one.measure, one.component, one.model) for one in told.series]
        changed = dict(zip(told.numbers, told.values, strict=True))
        assert all(values.get(names[number]) != value for number, value in changed.items())
        values |= {names[number]: value for number, value in changed.items()}
        for number in told.absent:
            del values[names[number]]
        assert values == look
    assert len(set(names)) == len(names)


def test_a_quiet_minute_of_a_large_node_is_a_few_bytes() -> None:
    encoder = MeasurementEncoder()
    parts = [Measured("gpu-clock", uuid_of(n), "NVIDIA H200", 1980) for n in range(8)]
    checks = [Measured("check-duration", f"check-{n}", "8 NVIDIA H200", 12) for n in range(40)]
    first = encoder.message([*parts, *checks])
    quiet = encoder.message([*parts, *checks])
    assert first is not None
    assert quiet is not None
    assert first.ByteSize() < 3_000
    assert quiet.ByteSize() < 8
    busy = encoder.message([Measured(o.measure, o.component, o.model, 1500) for o in parts])
    assert busy is not None
    assert busy.ByteSize() < 100


# -- the checks that measure -------------------------------------------------------------------


#: A GPU's state, and the clock that is measured of it: under a load, and at the power cap.
CLOCKS: list[tuple[dict[str, int | None], int | None, int | None]] = [
    ({"load": 98, "sm_clock": 1980, "clocks": 0}, 1980, None),
    ({"load": 98, "sm_clock": 1980, "clocks": 0x40}, 1980, None),
    ({"load": 98, "sm_clock": 1500, "clocks": 0x4}, None, 1500),
    ({"load": 89, "sm_clock": 1980, "clocks": 0}, None, None),
    ({"load": 98, "sm_clock": 1200, "clocks": 0x2}, None, None),
    ({"load": 0, "sm_clock": 345, "clocks": 0x1}, None, None),
    ({"load": None, "sm_clock": 1980, "clocks": 0}, None, None),
    ({"load": 98, "sm_clock": None, "clocks": 0}, None, None),
    ({"load": 98, "sm_clock": 1980, "clocks": None}, None, None),
]


async def test_only_the_clock_of_a_load_is_measured_and_at_the_power_cap_apart(
    tmp_path: Path,
) -> None:
    gpus = [gpu(index, **values) for index, (values, _, _) in enumerate(CLOCKS)]
    async with Bench(tmp_path, gpus) as bench:
        await bench.build(gpu_clocks.SPEC).run_check()
        measurements, now = bench.sources.measurements, bench.clock.boottime()
    loads, capped = (held(measurements, name, now) for name in ("gpu-clock", "gpu-clock-capped"))
    assert [(loads.get(one.uuid), capped.get(one.uuid)) for one in gpus] == [
        (clock, at_the_cap) for _, clock, at_the_cap in CLOCKS
    ]
    assert measurements.machine == "9 NVIDIA H100 80GB HBM3"


async def test_a_load_that_ends_takes_its_clock_back(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, load=98, sm_clock=1980, clocks=0)]) as bench:
        check = bench.build(gpu_clocks.SPEC)
        await check.run_check()
        bench.gpus.write([gpu(0)])
        bench.later()
        await check.run_check()
        assert not bench.sources.measurements.current(bench.clock.boottime())


async def test_replays_and_nvlink_errors_are_rates_an_hour(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        for number in range(2):
            bench.sources.gpus.learn(pci_of(number), uuid_of(number))
        checks = [bench.build(gpu_pcie.SPEC), bench.build(gpu_nvlink.SPEC)]
        for check in checks:
            await check.run_check()
        bench.gpus.write([gpu(0, replays=11, link_errors={(161, 3): 70, (162, 4): 1}), gpu(1)])
        bench.later(301.0)
        for check in checks:
            await check.run_check()
        now = bench.clock.boottime()
        assert held(bench.sources.measurements, "pcie-replays", now) == {
            uuid_of(0): 66,
            uuid_of(1): 0,
        }
        assert held(bench.sources.measurements, "nvlink-errors", now) == {
            uuid_of(0): 71,
            uuid_of(1): 0,
        }


async def test_the_errors_of_a_port_are_counted_together(tmp_path: Path) -> None:
    clock = HandClock()
    machine = made_up(tmp_path, clock)
    [port] = device(machine, "mlx5_0", "0000:1a:00.0")
    seen = sources(machine)
    check = built(infiniband.SPEC, seen, options(infiniband.SPEC))
    await check.run_check()
    write_counters(port, symbol_error="30", port_rcv_errors="12")
    clock.now += 30
    await check.run_check()
    assert held(seen.measurements, "ib-errors", clock.now) == {"mlx5_0/1": 42}
    write_counters(port, state="1: DOWN", phys_state="2: Polling")
    clock.now += 30
    await check.run_check()
    assert not held(seen.measurements, "ib-errors", clock.now)


async def test_a_written_file_is_a_latency_and_a_directory_that_is_not_there_is_none(
    tmp_path: Path,
) -> None:
    seen = sources(this_machine())
    paths = (str(tmp_path), str(tmp_path / "none"))
    await built(disk_write.SPEC, seen, options(disk_write.SPEC, paths=paths)).run_check()
    now = seen.machine.clock.boottime()
    assert held(seen.measurements, "disk-latency", now).keys() == {str(tmp_path)}
    await seen.disk.close()


# -- on the stream -----------------------------------------------------------------------------


class MeasuringNode(SimulatedNode):
    """A simulated node whose measurements a test sets."""

    measured: Sequence[Measured] = ()

    def measurements(self) -> Sequence[Measured]:
        return self.measured


async def test_a_stream_sends_changes_alone_and_the_next_names_its_series_anew(
    aggregator: FakeAggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.uplink.stream.EVERY", 0.1)
    assert aggregator.welcome is not None
    aggregator.welcome.heartbeat_interval_ms = 1000
    node = simulated_node(aggregator.address, MeasuringNode)
    node.start()
    await until(lambda: bool(aggregator.streams and len(aggregator.latest.digests) > 1), within=30)
    assert not aggregator.latest.measured, "a node that measures nothing sends nothing"
    node.measured = [Measured("gpu-clock", "GPU-0", "H200", 1980)]
    await until(lambda: bool(aggregator.latest.measured), within=30)
    [first, *_] = aggregator.latest.measured
    assert [(s.measure, s.component, s.model) for s in first.series] == [
        ("gpu-clock", "GPU-0", "H200")
    ]
    assert (list(first.numbers), list(first.values)) == ([0], [1980])
    node.measured = []
    stream = aggregator.latest
    await until(lambda: any(list(told.absent) == [0] for told in stream.measured), within=30)
    node.measured = [Measured("gpu-clock", "GPU-0", "H200", 1965)]
    aggregator.latest.end()
    await until(
        lambda: aggregator.latest is not stream and bool(aggregator.latest.measured), within=30
    )
    [first, *_] = aggregator.latest.measured
    assert (len(first.series), list(first.values)) == (1, [1965])
    stream, told = aggregator.latest, len(aggregator.latest.measured)
    stream.send(resync=pb.Resync(reason="another aggregator"))
    await until(lambda: any(one.series for one in stream.measured[told:]), within=30)
    [again] = [one for one in stream.measured[told:] if one.series]
    assert (len(again.series), list(again.values)) == (1, [1965]), "a resync begins them anew"
    task = present(node.cut())
    await asyncio.wait({task})


def test_a_simulated_fleet_measures_as_a_real_one_and_has_equal_parts() -> None:
    uuids = [uuid_of(number) for number in range(8)]
    minutes = [machine.measured("node-1", uuids, minute) for minute in range(100)]
    assert {len(each) for each in minutes} == {24 + len(machine.CHECKS)}
    clocks = [one.value for each in minutes for one in each if one.measure == "gpu-clock"]
    assert set(clocks) == {1980, 1965}
    assert clocks.count(1965) < len(clocks) / 4
    encoder = MeasurementEncoder()
    sizes = [each.ByteSize() for one in minutes if (each := encoder.message(one)) is not None]
    assert max(sizes[1:]) < 100
