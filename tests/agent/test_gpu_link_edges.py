"""The checks of fabric, NVLinks and PCIe link at the edges of what NVML and the bus answer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import (
    gpu_common,
    gpu_fabric,
    gpu_nvlink,
    gpu_pcie,
)
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import (
    Fabric,
    Gpu,
    GpuSample,
    NvLinks,
    NvmlTrouble,
    TroubleKind,
)
from nodeagent.sources.pcie_link import PcieLink
from tests.agent.gpu_node import ADDRESSES, GPUS, ONE, TWO, Node, failing, said
from tests.nvml.gpu_bench import next_run, run_check


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- gpu-fabric -----------------------------------------------------------------------------------

#: Two bits for each trouble, "false" (2) in all; no configuration error; the manager is connected.
HEALTHY = 0b01_00_00_0001_10_10_10_10
JOINED = Fabric(state=3, status=0, health=HEALTHY, summary=1, cluster="c0ffee", clique=7)
WHERE = "; clique 7 of cluster c0ffee"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, ("OK", "", "registered" + WHERE)),
        ({"health": 0}, ("OK", "", "registered" + WHERE)),
        ({"state": 4}, ("UNKNOWN", "unknown-state", "fabric state 4 is not known")),
        (
            {"status": 1},
            (
                "FAILED",
                "registration-failed",
                "the fabric manager refused this GPU (error 1)" + WHERE,
            ),
        ),
        (
            {"health": 0b01_10_10_10},
            (
                "DEGRADED",
                "recovering",
                "an access to the fabric has timed out and is recovered" + WHERE,
            ),
        ),
        (
            {"health": 0b01_10_01_10},
            (
                "DEGRADED",
                "recovering",
                "a route through the fabric is being recovered" + WHERE,
            ),
        ),
        (
            {"health": 0b01_10_01_01},
            ("DEGRADED", "degraded-bandwidth", "the fabric gives it less bandwidth" + WHERE),
        ),
        (
            {"health": 0b01_01_01_01},
            (
                "FAILED",
                "route-unhealthy",
                "a route through the fabric is unhealthy" + WHERE,
            ),
        ),
        ({"health": 0b11_11_11_11}, ("OK", "", "registered" + WHERE)),
        (
            {"health": 2 << 14},
            (
                "DEGRADED",
                "manager-disconnected",
                "the fabric manager is not connected" + WHERE,
            ),
        ),
        ({"health": 1 << 14}, ("OK", "", "registered" + WHERE)),
        ({"health": 3 << 14}, ("OK", "", "registered" + WHERE)),
        ({"health": 1 << 16}, ("OK", "", "registered" + WHERE)),
        (
            {"summary": 2},
            ("FAILED", "unhealthy", f"the fabric calls it unhealthy ({HEALTHY:#x})" + WHERE),
        ),
        (
            {"summary": 3},
            (
                "DEGRADED",
                "limited-capacity",
                f"the fabric has limited capacity ({HEALTHY:#x})" + WHERE,
            ),
        ),
        ({"summary": 4}, ("OK", "", "registered" + WHERE)),
    ],
)
def test_a_fabric(change: Mapping[str, Any], verdict: tuple[str, str, str]) -> None:
    for is_young in (True, False):
        status, reason, text = gpu_fabric.evaluate(replace(JOINED, **change), is_young=is_young)
        assert (status.name, reason, text) == verdict


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (2, "a wrong system GUID"),
        (3, "a wrong chassis serial number"),
        (8, "an invalid GPU state"),
        (9, "error 9"),
        (15, "error 15"),
    ],
)
def test_a_fabric_that_is_misconfigured(number: int, what: str) -> None:
    wrong = replace(JOINED, health=HEALTHY & ~(0xF << 8) | number << 8, summary=2)
    assert gpu_fabric.evaluate(wrong, is_young=False) == (
        Status.FAILED,
        "misconfigured",
        f"the fabric's configuration is wrong: {what}{WHERE}",
    )
    for fine in (0, 1):
        right = replace(JOINED, health=HEALTHY & ~(0xF << 8) | fine << 8)
        assert gpu_fabric.evaluate(right, is_young=False)[1] == ""


@pytest.mark.parametrize(("state", "late"), [(1, "not-started"), (2, "not-registered")])
async def test_a_gpu_may_take_its_time_to_join_after_each_new_beginning(
    node: Node, state: int, late: str
) -> None:
    def waiting() -> Gpu:
        return replace(GPUS[0], fabric=replace(JOINED, state=state))

    async def reason() -> str:
        node.set_gpus(waiting(), trouble=None)
        return (await run_check(check)).status("GPU-0")[1]

    check = node.build(gpu_fabric.SPEC, boot_grace=600.0)
    assert await reason() == late, "the boot was long ago"
    node.clock.now = 599.0
    assert await reason() == "starting"
    node.clock.now = 600.0
    assert await reason() == late
    node.nvml.back_for = 599.0
    assert await reason() == "starting"
    node.nvml.back_for = 600.0
    assert await reason() == late
    node.clock.now = node.nvml.answer.at
    node.fail(TroubleKind.FAILED)
    await check.run_check()
    node.clock.now += 599.0
    assert await reason() == "starting"
    node.clock.now += 1.0
    assert await reason() == late
    node.sources.driver_log.loaded(node.clock.now)
    node.clock.now += 599.0
    assert await reason() == "starting"
    node.set_gpus(replace(GPUS[0], fabric=JOINED))
    assert (await run_check(check)).status("GPU-0") == ("OK", "")
    assert await reason() == late, "it had joined, so it is not starting any more"
    node.sources.driver_log.loaded(node.clock.now)
    assert await reason() == "starting", "a driver that was loaded anew registers anew"
    node.set_gpus(replace(GPUS[0], fabric=JOINED))
    await check.run_check()
    node.nvml.answer = replace(node.nvml.answer, at=node.clock.now)
    node.fail(TroubleKind.FAILED)
    await check.run_check()
    assert await reason() == "starting", "and so does one that was in trouble"


async def test_the_fabric_is_off_only_where_no_gpu_is_part_of_one(node: Node) -> None:
    none = replace(JOINED, state=0)
    check = node.build(gpu_fabric.SPEC)
    node.set_gpus(*(replace(gpu, fabric=none) for gpu in TWO))
    assert await check.run_check() == gpu_common.NOT_SUPPORTED
    node.set_gpus(*(failing(gpu, fabric=13) for gpu in TWO))
    assert await check.run_check() == gpu_common.NOT_SUPPORTED
    node.set_gpus(replace(GPUS[0], fabric=none), replace(GPUS[1], fabric=JOINED))
    seen = await run_check(check)
    assert said(seen, "GPU-0") == ("UNKNOWN", "unsupported", "this GPU is part of no fabric")
    node.set_gpus(failing(GPUS[0], fabric=999), replace(GPUS[1], fabric=none))
    seen = await run_check(check)
    assert said(seen, "GPU-0") == (
        "UNKNOWN",
        "nvml-error-999",
        "nvmlDeviceGetGpuFabricInfoV gave error 999",
    )
    node.set_gpus(replace(GPUS[0], fabric=none), trouble=NvmlTrouble(TroubleKind.HUNG, "late"))
    assert said(await run_check(check), "")[:2] == ("UNKNOWN", "hung")


# -- gpu-nvlink and gpu-pcie ----------------------------------------------------------------------


def linked(gpu: Gpu, up: int, errors: Mapping[str, Mapping[int, int]] | None = None) -> Gpu:
    states = tuple(link < up for link in range(6))
    return replace(gpu, links=NvLinks(states, errors if errors is not None else {}))


@pytest.mark.parametrize(
    ("rises", "verdict"),
    [
        ({}, ("OK", "", "6 NVLinks are up")),
        ({"crc 0": 100, "recovery 1": 0}, ("OK", "", "6 NVLinks are up")),
        (
            {"crc 0": 101, "replay 3": 500, "crc 2": 1},
            (
                "DEGRADED",
                "errors",
                "6 NVLinks are up; within an hour: 500 replay on link 3, 101 crc on link 0",
            ),
        ),
        (
            {"recovery 5": 1, "crc 0": 500},
            ("DEGRADED", "recovery", "6 NVLinks are up; within an hour: 1 recovery on link 5"),
        ),
        (
            {"recovery-failed 5": 2, "recovery 5": 1},
            (
                "DEGRADED",
                "recovery",
                (
                    "6 NVLinks are up; within an hour: 2 recovery-failed on link 5, 1 recovery on "
                    "link 5"
                ),
            ),
        ),
        ({"link-recovery 5": 100}, ("OK", "", "6 NVLinks are up")),
    ],
)
def test_what_nvlinks_count(rises: Mapping[str, int], verdict: tuple[str, str, str]) -> None:
    six = set(range(6))
    status, reason, text = gpu_nvlink.evaluate(linked(GPUS[0], 6), six, six, 6, rises, 100)
    assert (status.name, reason, text) == verdict


def test_of_many_links_the_eight_worst_are_named() -> None:
    rises = {f"crc {link}": 200 + link for link in range(12)}
    text = gpu_nvlink.evaluate(linked(GPUS[0], 6), {0}, {0}, 0, rises, 100)[2]
    worst = ", ".join(f"{200 + link} crc on link {link}" for link in range(11, 3, -1))
    assert text.endswith(f"within an hour: {worst}")


def test_links_that_are_down_come_first_and_few_links_last() -> None:
    gpu = linked(GPUS[0], 4)
    found = gpu_nvlink.evaluate(gpu, {0, 1}, {0, 1, 4, 3}, 6, {"recovery 0": 1}, 100)
    assert found == (Status.FAILED, "link-down", "NVLink 3, 4 was up and is not")
    found = gpu_nvlink.evaluate(gpu, {0, 1}, {0, 1}, 3, {"crc 0": 100}, 100)
    assert found == (
        Status.DEGRADED,
        "fewer-links",
        "2 NVLinks are up, and 3 of most GPUs of its model",
    )
    assert gpu_nvlink.evaluate(gpu, {0, 1}, {0, 1}, 2, {}, 100)[1] == ""
    assert gpu_nvlink.evaluate(gpu, set(), set(), 6, {}, 100)[1] == "fewer-links", "in a fabric"


def test_errors_that_cannot_be_read_are_said() -> None:
    for errors, code in (({"linkerr": 4}, 4), ({}, 0)):
        gpu = replace(failing(GPUS[0], **errors), links=NvLinks((True,), None))
        status, _, text = gpu_nvlink.evaluate(gpu, {0}, {0}, 1, {}, 100)
        assert status is Status.OK
        assert text == f"1 NVLinks are up; their errors can't be read (error {code})"


@pytest.mark.parametrize(
    ("up", "usual"),
    [([6, 6], 0), ([6, 6, 4], 6), ([6, 4, 4], 4), ([6, 6, 4, 4], 4), ([6, 6, 6, 4], 6), ([6], 0)],
)
def test_the_usual_number_of_links_and_lanes_is_that_of_more_than_half(
    up: list[int], usual: int
) -> None:
    gpus = [linked(gpu, count) for gpu, count in zip(GPUS, up, strict=False)]
    others = (replace(linked(each, 1), name="NVIDIA L4") for each in GPUS)
    sample = GpuSample(at=1.0, gpus=(*gpus, Gpu(9), *others))
    assert gpu_nvlink._usual(sample, GPUS[0].name) == usual
    links = [PcieLink(width=count) for count in up]
    assert gpu_pcie._usual(links) == usual
    assert gpu_pcie._usual([PcieLink()] * 3) == 0


@pytest.mark.parametrize(
    ("link", "rises", "verdict"),
    [
        (PcieLink(16, 16, "16 GT/s"), {"replays": 80}, ("OK", "", "16 lanes at 16 GT/s")),
        (
            PcieLink(16, 16, "16 GT/s"),
            {"replays": 81},
            ("DEGRADED", "replays", "16 lanes at 16 GT/s; 81 replays in 10 minutes"),
        ),
        (
            PcieLink(16),
            {"replays": 81, "non-fatal": 1, "fatal": 0},
            ("DEGRADED", "errors", "16 lanes; PCIe errors within an hour: 1 non-fatal"),
        ),
        (
            PcieLink(16),
            {"fatal": 2, "non-fatal": 1},
            ("DEGRADED", "errors", "16 lanes; PCIe errors within an hour: 2 fatal, 1 non-fatal"),
        ),
        (PcieLink(8), {}, ("OK", "", "8 lanes")),
        (
            PcieLink(7),
            {"fatal": 1},
            ("DEGRADED", "narrow", "7 lanes, and it had, or other GPUs have, 8"),
        ),
        (PcieLink(4), {}, ("DEGRADED", "narrow", "4 lanes, and it had, or other GPUs have, 8")),
        (PcieLink(3), {}, ("FAILED", "narrow", "3 lanes, expected 4")),
        (PcieLink(), {}, ("UNKNOWN", "no-sysfs", "the width of the link can't be read")),
        (
            PcieLink(),
            {"fatal": 1},
            (
                "DEGRADED",
                "errors",
                "the width of the link can't be read; PCIe errors within an hour: 1 fatal",
            ),
        ),
    ],
)
def test_a_pcie_link(
    link: PcieLink, rises: Mapping[str, int], verdict: tuple[str, str, str]
) -> None:
    status, reason, text = gpu_pcie.evaluate(link, rises, wanted=4, seen=8, most_replays=80)
    assert (status.name, reason, text) == verdict


async def test_links_are_remembered_and_their_errors_counted_for_each_gpu(node: Node) -> None:
    def gpus(up: int, crc: int, *, other: int = 6) -> tuple[Gpu, Gpu]:
        errors = {"crc": {0: crc, 1: 0}}
        return linked(GPUS[0], up, errors), linked(GPUS[1], other, errors)

    check = node.build(gpu_nvlink.SPEC, errors_per_hour=10)
    node.set_gpus(*gpus(5, 1_000, other=6))
    await run_check(check)
    node.later()
    node.set_gpus(*gpus(6, 1_010))
    assert (await run_check(check)).is_well("GPU-0")
    node.later()
    node.set_gpus(*gpus(6, 1_011))
    crc = "6 NVLinks are up; within an hour: 11 crc on link 0"
    for name in ("GPU-0", "GPU-1"):
        assert said(await run_check(check), name) == ("DEGRADED", "errors", crc)
    node.later(3539.0)  # an hour after ten of them
    assert (await run_check(check)).is_well("GPU-0")
    node.set_gpus(*gpus(4, 1_011))
    down = "NVLink 4, 5 was up and is not"
    assert said(await run_check(check), "GPU-0") == ("FAILED", "link-down", down)
    node.nvml.quiesced_for = 5.0
    assert (await run_check(check)).status("GPU-0") == ("OK", "")
    node.nvml.quiesced_for = 0.0
    assert (await run_check(check)).status("GPU-0") == ("OK", "")
    node.set_gpus(failing(GPUS[0], links=999), gpus(4, 1_011)[1])
    assert (await run_check(check)).status("GPU-0") == ("UNKNOWN", "nvml-error-999")
    node.set_gpus(*(failing(gpu, links=3) for gpu in TWO))
    assert await check.run_check() == gpu_common.NOT_SUPPORTED


def pcie(node: Node, number: int, **files: object) -> None:
    device = node.sys / f"bus/pci/devices/{ADDRESSES[number]}.0"
    values = {"current_link_width": 16, "max_link_width": 16, "current_link_speed": "32 GT/s"}
    for name, value in (values | files).items():
        (device / name).write_text(f"{value}\n")


def replayed(gpu: Gpu, count: int | None) -> Gpu:
    return replace(gpu, replays=count)


async def test_replays_are_nvml_s_where_it_counts_them_and_else_the_bus_s(node: Node) -> None:
    def aer(timeouts: int) -> str:
        return f"Rollover 0\nTimeout {timeouts}\nTOTAL_ERR_COR {timeouts}"

    check = node.build(gpu_pcie.SPEC)
    name = f"pci:{ADDRESSES[0]}"
    for number in (0, 1):
        pcie(node, number, aer_dev_correctable=aer(5))
    node.set_gpus(*(replayed(gpu, 1_000) for gpu in TWO))
    seen = await run_check(check)
    assert said(seen, name) == ("OK", "", "16 lanes at 32 GT/s")
    node.later()
    node.set_gpus(*(replayed(gpu, None) for gpu in TWO))
    assert (await run_check(check)).is_well(name)
    node.set_gpus(replayed(GPUS[0], 1_081), replayed(GPUS[1], 1_080))
    words = "16 lanes at 32 GT/s; 81 replays in 10 minutes"
    seen = await run_check(check)
    assert said(seen, name) == ("DEGRADED", "replays", words)
    assert seen.is_well(f"pci:{ADDRESSES[1]}")
    assert (await next_run(node, check, 600.0)).status(name) == ("OK", "")
    node.set_gpus(*(replayed(gpu, None) for gpu in TWO))
    await run_check(check)
    pcie(node, 0, aer_dev_correctable=aer(86))
    assert (await next_run(node, check)).status(name) == ("DEGRADED", "replays")


async def test_a_width_is_compared_with_the_widest_of_before_and_with_the_others(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, on_bus=4)
    name = f"pci:{ADDRESSES[3]}"
    for number in range(4):
        pcie(node, number, current_link_width=8)
    pcie(node, 3, current_link_width=4, max_link_width=4)
    check = node.build(gpu_pcie.SPEC)
    assert (await run_check(check)).status(name) == ("OK", ""), "its card takes no more"
    pcie(node, 3, current_link_width=4, max_link_width=8)
    narrow = "4 lanes at 32 GT/s, and it had, or other GPUs have, 8"
    assert said(await run_check(check), name) == ("DEGRADED", "narrow", narrow)
    (node.sys / f"bus/pci/devices/{ADDRESSES[3]}.0/max_link_width").unlink()
    assert (await run_check(check)).status(name) == ("DEGRADED", "narrow")
    pcie(node, 3, current_link_width=16)
    assert (await run_check(check)).status(name) == ("OK", "")
    pcie(node, 3, current_link_width=8)
    assert (await run_check(check)).by_component[name].message.endswith("other GPUs have, 16")
    unwatched = node.build(gpu_pcie.SPEC, width=9)
    assert (await run_check(unwatched)).status(name) == ("FAILED", "narrow")


async def test_without_a_bus_or_a_word_of_any_link(tmp_path: Path) -> None:
    node = Node(tmp_path, on_bus=1)
    check = node.build(gpu_pcie.SPEC)
    node.set_gpus(*ONE)
    assert await check.run_check() == Off("neither sysfs nor NVML reports GPU link faults")
    node.set_gpus(replayed(GPUS[0], 7))
    unread = "the width of the link can't be read"
    assert said(await run_check(check), f"pci:{ADDRESSES[0]}") == ("UNKNOWN", "no-sysfs", unread)
    node.set_gpus(replayed(replace(GPUS[0], pci=""), 7))
    assert await check.run_check() == Off("neither sysfs nor NVML reports GPU link faults")
    node.take_off_the_bus(0)
    assert said(await run_check(check), "") == ("UNKNOWN", "no-sysfs", "no GPU on the PCI bus")
