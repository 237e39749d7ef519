"""Heat: how far each GPU and its memory are from the temperatures that slow it down."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import gpu_thermal
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import Gpu, GpuLimits
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

#: A GPU's temperatures, and the verdict.
HEAT: list[tuple[dict[str, int | None], tuple[str, str]]] = [
    ({}, ("OK", "")),
    ({"temperature": 86}, ("OK", "")),
    ({"temperature": 87}, ("DEGRADED", "hot")),
    ({"temperature": 95}, ("DEGRADED", "hot")),
    ({"temperature": 95, "margin": 3}, ("OK", "")),  # the driver's own margin counts
    ({"temperature": 60, "margin": 2}, ("DEGRADED", "hot")),
    ({"temperature": 95, "thresholds": None}, ("OK", "")),
    ({"memory": 92}, ("OK", "")),
    ({"memory": 93}, ("DEGRADED", "memory-hot")),
    ({"memory": None}, ("OK", "")),
]


async def test_a_gpu_is_degraded_near_its_slowdown(tmp_path: Path) -> None:
    gpus = [gpu(index, **values) for index, (values, _) in enumerate(HEAT)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_thermal.SPEC))
    found = [(values, seen.status(uuid_of(index))) for index, (values, _) in enumerate(HEAT)]
    assert found == HEAT


async def test_the_figures_are_shown(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, temperature=62, memory=71, power=(431_400, 700_000))]) as it:
        seen = await run_check(it.build(gpu_thermal.SPEC))
    assert seen.by_component[uuid_of(0)].message == (
        "62 degrees Celsius, 27 below its slowdown; its memory 71, 24 below its limit; 431 W of 700"
    )


async def test_a_gpu_without_a_margin_is_asked_for_it_once(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1, margin=30)]) as bench:
        check = bench.build(gpu_thermal.SPEC)
        for _ in range(4):
            await run_check(check)
            bench.later()
        assert bench.gpus.calls("nvmlDeviceGetMarginTemperature") == 1 + 4
        assert bench.gpus.calls("nvmlDeviceGetTemperatureThreshold") == 2 * 2, "every 5 minutes"


async def test_a_margin_that_could_not_be_read_once_is_read_again(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, temperature=60, margin=2)]) as bench:
        check = bench.build(gpu_thermal.SPEC)
        for code in (999, 10, 3):  # NVML_ERROR_UNKNOWN, TIMEOUT, NOT_SUPPORTED
            assert (await run_check(check)).status(uuid_of(0)) == ("DEGRADED", "hot")
            bench.gpus.fail("nvmlDeviceGetMarginTemperature", code=code)
            assert (await next_run(bench, check)).is_well(uuid_of(0))
            bench.gpus.heal()
            bench.later()
        assert (await run_check(check)).is_well(uuid_of(0)), "a GPU without a margin stays one"


async def test_gpus_that_tell_no_temperature_turn_the_check_off(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, temperature=None)]) as bench:
        check = bench.build(gpu_thermal.SPEC)
        assert await check.run_check() == Off("not supported by these GPUs")


async def test_the_temperature_of_a_gpu_at_work_is_measured_for_the_fleet(tmp_path: Path) -> None:
    working = gpu(1, temperature=71, clocks=0x4, load=99, sm_clock=1755)
    async with Bench(tmp_path, [gpu(0, temperature=35), working]) as bench:
        check = await first_run(bench, gpu_thermal.SPEC)
        measured = bench.sources.measurements.current(bench.clock.boottime())
        bench.gpus.fail("nvmlDeviceGetTemperature", code=3)
        bench.later()
        assert isinstance(await check.run_check(), Off)
        assert bench.sources.measurements.current(bench.clock.boottime()) == []
    found = {(one.measure, one.component): one.value for one in measured}
    assert found == {("gpu-temperature", uuid_of(1)): 71}


@given(
    st.integers(0, 120),
    st.none() | st.integers(-20, 100),
    st.none() | st.integers(50, 110),
    st.none() | st.integers(0, 120),
    st.none() | st.integers(50, 110),
)
def test_a_hotter_gpu_is_never_better(
    temperature: int,
    margin: int | None,
    slowdown: int | None,
    memory: int | None,
    limit: int | None,
) -> None:
    limits = GpuLimits(slowdown=slowdown, memory=limit)
    one = Gpu(0, temperature=temperature, margin=margin, memory_temperature=memory, limits=limits)
    hotter = Gpu(
        0,
        temperature=temperature + 5,
        margin=None if margin is None else margin - 5,
        memory_temperature=None if memory is None else memory + 5,
        limits=limits,
    )
    before = gpu_thermal.evaluate(one, margin=2)
    after = gpu_thermal.evaluate(hotter, margin=2)
    assert before[0] is not Status.DEGRADED or after[0] is Status.DEGRADED
