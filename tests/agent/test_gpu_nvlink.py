"""NVLinks: one that went down, errors by the hour, from Volta's counters to Blackwell's."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import gpu_nvlink
from nodeagent.sources.gpu_sample import NvLinks
from tests.agent.gpu_node import GPUS, Node, failing
from tests.nvml import FakeGpu, gpu, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

HOPPER = {"link_fields": (161, 162, 163)}
BLACKWELL = {"link_fields": (208, 211, 214, 215)}


def volta(link: int = 0, **counts: int) -> Mapping[str, Any]:
    """Six links without error fields, and what the older counters of one of them say."""
    numbers = {"replay": 0, "recovery": 1, "crc": 2, "crc_data": 3}
    counters = {(number, each): 0 for number in range(4) for each in range(6)}
    counters |= {(numbers[name], link): count for name, count in counts.items()}
    return {"links": (1,) * 6, "link_fields": (), "link_counters": counters}


async def test_links_that_are_up_are_well(tmp_path: Path) -> None:
    gpus = [gpu(0, fabric=None), gpu(1, fabric=None, links=(1,) * 4)]
    gpus += [gpu(2, fabric=None, links=()), gpu(3, fabric=None, link_fields=(), name="NVIDIA L4")]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    assert seen.status(uuid_of(0)) == ("OK", "")
    assert seen.by_component[uuid_of(0)].message == "18 NVLinks are up"
    assert seen.status(uuid_of(2)) == ("UNKNOWN", "unsupported")
    assert seen.status(uuid_of(3)) == ("OK", "")
    assert "can't be read (error 3)" in seen.by_component[uuid_of(3)].message


@pytest.mark.parametrize("links", [(1,) * 17 + (0,), (0,) * 18])
async def test_links_may_come_up_late_and_other_models_have_fewer(
    tmp_path: Path, links: tuple[int, ...]
) -> None:
    gpus = [gpu(index) for index in range(3)]
    async with Bench(tmp_path, [*gpus, gpu(3, links=links)], boottime=60.0) as bench:
        check = bench.build(gpu_nvlink.SPEC)
        assert (await run_check(check)).is_well(uuid_of(3))
        assert (await next_run(bench, check, 1200.0)).status(uuid_of(3)) == (
            "DEGRADED",
            "fewer-links",
        )
        await bench.nvml.quiesce(1.0)
        assert (await next_run(bench, check, 301.0)).is_well(uuid_of(3))
        bench.gpus.write([*gpus, gpu(3, links=links, name="NVIDIA L4", uuid="GPU-L4")])
        assert (await next_run(bench, check, 1200.0)).status("GPU-L4") == ("OK", "")


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("fabric", [None, (0, 0, 0, 0, 0, 0)])
async def test_pairs_with_a_bridge_do_not_accuse_those_without(
    tmp_path: Path, count: int, fabric: tuple[int, ...] | None
) -> None:
    gpus = [gpu(each, fabric=fabric, links=((1, 1, 0, 0)[each],) * 12) for each in range(count)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    assert {seen.status(uuid_of(index)) for index in range(count)} == {("OK", "")}


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("links", "reason"), [((0,) * 18, "fewer-links"), ((), "unlike-siblings")])
async def test_a_gpu_of_a_fabric_without_any_link_is_noticed(
    tmp_path: Path, count: int, links: tuple[int, ...], reason: str
) -> None:
    gpus = [gpu(each, links=links if each == 1 else (1,) * 18) for each in range(count)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    if count == 2 and not links:
        assert seen.status(uuid_of(1)) == ("UNKNOWN", "unsupported"), "either may be the odd one"
    else:
        assert seen.status(uuid_of(1)) == ("DEGRADED", reason)
    assert all(seen.is_well(uuid_of(each)) for each in range(count) if each != 1)


#: The links of a GPU before and after, and the reason and words that follow.
COUNTED: list[tuple[Mapping[str, Any], Mapping[str, Any], str, str]] = [
    (HOPPER, HOPPER | {"link_errors": {(162, 5): 1}}, "recovery", "1 recovery on link 5"),
    (HOPPER, HOPPER | {"link_errors": {(163, 5): 101}}, "errors", "101 crc on link 5"),
    (HOPPER, HOPPER | {"link_errors": {(161, 2): 5000}}, "errors", "5000 replay on link 2"),
    (HOPPER, HOPPER | {"link_errors": {(163, 5): 100}}, "", ""),
    (
        BLACKWELL,
        BLACKWELL | {"link_errors": {(214, 17): 1}},
        "recovery",
        "1 recovery-failed on link 17",
    ),
    (BLACKWELL, BLACKWELL | {"link_errors": {(215, 1): 3}}, "", ""),
    (BLACKWELL, BLACKWELL | {"link_errors": {(208, 1): 300}}, "errors", "300 receive"),
    (volta(), volta(3, recovery=1), "recovery", "1 recovery on link 3"),
    (volta(), volta(3, crc_data=101), "errors", "101 crc-data on link 3"),
]


def of_models(links: Iterable[Mapping[str, Any]]) -> list[FakeGpu]:
    """A GPU with each of these links, each of a model of its own."""
    return [gpu(index, name=f"model {index}", **each) for index, each in enumerate(links)]


async def test_errors_of_every_generation_are_counted_by_the_hour(tmp_path: Path) -> None:
    before, after = (of_models(links) for links in list(zip(*COUNTED, strict=True))[:2])
    async with Bench(tmp_path, before) as bench:
        check = bench.build(gpu_nvlink.SPEC)
        first = await run_check(check)
        bench.gpus.write(after)
        counted = await next_run(bench, check, 301)
        within_the_hour = await next_run(bench, check, 3400)
        bench.later(201)  # the counters of the sample before
        over = await run_check(check)
    for each, (_, _, reason, text) in zip(after, COUNTED, strict=True):
        assert first.status(each.uuid) == ("OK", "")
        assert over.is_well(each.uuid), "over after an hour"
        if reason:
            assert counted.status(each.uuid) == ("DEGRADED", reason)
            assert text in counted.by_component[each.uuid].message
            assert within_the_hour.status(each.uuid) == ("DEGRADED", reason)
        else:
            assert counted.is_well(each.uuid)


async def test_links_are_read_every_five_minutes_and_not_at_every_sample(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        for _ in range(4):
            await bench.sample()
        assert bench.gpus.calls("nvmlDeviceGetNvLinkState") == 18
        bench.later(120)
        await bench.sample()
        assert bench.gpus.calls("nvmlDeviceGetNvLinkState") == 36


# -- MIG ------------------------------------------------------------------------------------------

WITHOUT_LINKS = (0,) * 18


async def test_mig_turns_the_links_off_and_that_is_no_fault(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(index) for index in range(4)]) as bench:
        check = bench.build(gpu_nvlink.SPEC)
        assert (await run_check(check)).is_well(uuid_of(1))
        bench.gpus.write(
            [gpu(0), gpu(1, mig=(1, 1), links=WITHOUT_LINKS), gpu(2, mig=(1, 1), links=()), gpu(3)]
        )
        seen = await next_run(bench, check, 301)
        assert seen.is_well(uuid_of(1))
        assert seen.is_well(uuid_of(2))
        bench.gpus.write([gpu(0), gpu(1, links=WITHOUT_LINKS), gpu(2), gpu(3)])
        bench.later(301)
        waits = ("DEGRADED", "fewer-links")
        assert (await run_check(check)).status(uuid_of(1)) == waits, "they come back after a reset"
        bench.gpus.write([gpu(index) for index in range(4)])
        assert (await next_run(bench, check, 301)).is_well(uuid_of(1))
        bench.gpus.write([gpu(0), gpu(1, links=WITHOUT_LINKS), gpu(2), gpu(3)])
        assert (await next_run(bench, check, 301)).status(uuid_of(1)) == ("FAILED", "link-down")


async def test_gpus_with_mig_do_not_say_how_many_links_are_usual(tmp_path: Path) -> None:
    mig = [gpu(index, mig=(1, 1), links=WITHOUT_LINKS) for index in range(3)]
    async with Bench(tmp_path, [*mig, gpu(3), gpu(4), gpu(5, links=(1,) * 12)]) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
        assert seen.status(uuid_of(5)) == ("DEGRADED", "fewer-links")
        assert seen.is_well(uuid_of(0))


@pytest.mark.parametrize("mig", [None, (0, 1)])
async def test_a_link_goes_down_where_mig_is_not_enabled(
    tmp_path: Path, mig: tuple[int, int] | None
) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        check = await first_run(bench, gpu_nvlink.SPEC)
        bench.gpus.write([gpu(0), gpu(1, mig=mig, links=(1,) * 17 + (0,))])
        assert (await next_run(bench, check, 301)).status(uuid_of(1)) == ("FAILED", "link-down")


# -- bit errors, and the links to the CPU ---------------------------------------------------------


#: A link's rate of bit errors as NVML packs it: mantissa and exponent.
BIT_ERRORS = {
    0x0F_FF: ("OK", ""),  # 15e-255: none at all
    0x01_0F: ("OK", ""),  # 1e-15
    0x01_0C: ("OK", ""),  # 1e-12
    0x02_0C: ("DEGRADED", "bit-errors"),
    0x05_09: ("DEGRADED", "bit-errors"),
}


async def test_a_link_with_many_bit_errors_is_degraded(tmp_path: Path) -> None:
    gpus = [
        gpu(index, link_fields=(208, 220), link_errors={(220, 3): packed})
        for index, packed in enumerate(BIT_ERRORS)
    ]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    for each, verdict in zip(gpus, BIT_ERRORS.values(), strict=True):
        assert seen.status(each.uuid) == verdict
        assert verdict[1] == "" or "on 3" in seen.by_component[each.uuid].message


async def test_a_link_to_the_cpu_that_is_not_active_beside_others_is_degraded(
    tmp_path: Path,
) -> None:
    gpus = [gpu(0, c2c=(1,) * 10), gpu(1, c2c=(1,) * 9 + (0,)), gpu(2, name="L40S")]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    assert seen.status(uuid_of(1)) == ("DEGRADED", "c2c-down")
    assert all(seen.is_well(uuid_of(index)) for index in (0, 2))


@pytest.mark.parametrize("field", ["field:170", "field:171"])
@pytest.mark.parametrize(("code", "is_well"), [(999, True), (3, False)])
async def test_links_to_the_cpu_that_cannot_be_read_are_not_down(
    tmp_path: Path, field: str, code: int, *, is_well: bool
) -> None:
    async with Bench(tmp_path, [gpu(each, c2c=(1,) * 10) for each in range(3)]) as bench:
        bench.gpus.fail(field, gpu=1, code=code)
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    assert seen.is_well(uuid_of(1)) is is_well


@pytest.mark.parametrize("code", [15, 16])
async def test_a_gpu_that_was_lost_before_its_links_to_the_cpu_were_read_has_some(
    tmp_path: Path, code: int
) -> None:
    node = Node(tmp_path)
    up = [replace(each, links=NvLinks((True,), {}), c2c=(True,) * 10) for each in GPUS]
    node.set_gpus(replace(failing(up[0], mig=code), c2c=()), *up[1:])
    assert (await run_check(node.build(gpu_nvlink.SPEC))).is_well("GPU-0")
    node.set_gpus(replace(failing(up[0], mig=3), c2c=()), *up[1:])
    seen = await run_check(node.build(gpu_nvlink.SPEC))
    assert seen.status("GPU-0") == ("DEGRADED", "c2c-down")


@pytest.mark.parametrize("c2c", [(), (0,) * 10])
async def test_links_to_the_cpu_that_only_its_siblings_have_are_missed(
    tmp_path: Path, c2c: tuple[int, ...]
) -> None:
    gpus = [gpu(0, c2c=(1,) * 10), gpu(1, c2c=c2c), gpu(2, name="L40S")]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    assert seen.status(uuid_of(1)) == ("DEGRADED", "c2c-down")
    assert "most GPUs of its model have 10" in seen.by_component[uuid_of(1)].message
    assert all(seen.is_well(uuid_of(index)) for index in (0, 2))
    async with Bench(tmp_path / "none", [gpu(0, c2c=c2c), gpu(1, c2c=c2c)]) as bench:
        seen = await run_check(bench.build(gpu_nvlink.SPEC))
    assert seen.is_well(uuid_of(0)), "GPUs next to another maker's CPU have none"
