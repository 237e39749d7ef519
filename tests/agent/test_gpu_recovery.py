"""The driver's recovery action, and its end as the sign of a reset."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nodeagent.checks import gpu_recovery, xid
from nodeagent.checks.base import LogCheck, Off
from nodeagent.checks.kernel_lines import SPECS
from nodeagent.evidence.latch import Latch
from nodeagent.factory import restore_driver_log
from nodeagent.model import Clearing
from nodeagent.sources.gpu_sample import Gpu
from nodeagent.sources.kmsg import Record
from tests.agent.gpu_node import GPUS, Node, failing
from tests.agent.kernel_log import fixture_records, record
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check


async def test_an_action_that_cannot_be_read_for_a_while_is_not_over(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=1)]) as bench:
        check = await first_run(bench, gpu_recovery.SPEC)
        bench.gpus.fail("field:230", gpu=0, code=999)
        seen = await next_run(bench, check)
        assert seen.clearings == []
        assert seen.status(uuid_of(0)) == ("UNKNOWN", "nvml-error-999")
        bench.gpus.heal()
        bench.gpus.write([gpu(0)])
        assert (await next_run(bench, check)).clearings == [
            Clearing(component=uuid_of(0), how="gpu-reset")
        ]


async def test_a_reset_done_while_the_agent_stood_aside_is_noticed(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=1)]) as bench:
        check = await first_run(bench, gpu_recovery.SPEC)
        await bench.nvml.quiesce(600)
        bench.gpus.write([gpu(0)])
        assert (await next_run(bench, check, 601)).clearings == [
            Clearing(component=uuid_of(0), how="gpu-reset")
        ]


# -- the driver loaded anew --------------------------------------------------------------------

LOADED = b"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06  Thu Jul 17 16:25:03 UTC 2026"
LOADED_OPEN = b"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
#: As an H200's driver wrote it, behind the lines of its other modules.
[LOADED_H200] = [
    each.text for each in fixture_records("h200-lines.log") if b"loading NVIDIA" in each.text
]
FINE = [replace(each, recovery_action=0) for each in GPUS[:3]]
SIGN = [Clearing(component=FINE[0].uuid, how="gpu-reset")]


def xids(node: Node) -> LogCheck:
    return cast("LogCheck", xid.SPEC.build(node.sources, {}))


def line(node: Node, text: bytes) -> Record:
    return replace(record(text), at=node.nvml.answer.at)


def an_xid(node: Node, gpu: Gpu) -> Record:
    return line(node, f"NVRM: Xid (PCI:{gpu.pci}): 95, pid=1, name=x, text".encode())


@pytest.mark.parametrize("text", [LOADED, LOADED_OPEN, LOADED_H200])
async def test_a_driver_that_was_loaded_anew_has_reset_the_gpus_that_answer(
    tmp_path: Path, text: bytes
) -> None:
    node = Node(tmp_path)
    node.set_gpus(*FINE)
    log, check = xids(node), node.build(gpu_recovery.SPEC)
    assert (await run_check(check)).clearings == []
    log.read(an_xid(node, FINE[0]))
    log.read(line(node, text))
    node.later()
    node.set_gpus(FINE[0], failing(FINE[1], handle=999), failing(FINE[2], rows=16))
    assert (await run_check(check)).clearings == SIGN
    assert (await next_run(node, check)).clearings == [], "one load is one sign"
    node.set_gpus(*FINE)
    late = {each.component for each in (await run_check(check)).clearings}
    assert late == {FINE[1].uuid, FINE[2].uuid}, "they answer now"


async def test_an_xid_that_came_after_the_load_is_not_over(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.set_gpus(*FINE[:2])
    log, check = xids(node), node.build(gpu_recovery.SPEC)
    await run_check(check)
    log.read(line(node, LOADED))
    log.read(an_xid(node, FINE[1]))
    assert (await next_run(node, check)).clearings == SIGN
    log.read(line(node, LOADED))
    node.later()
    assert len((await run_check(check)).clearings) == 2, "the next load counts for both"


async def test_a_gpu_that_failed_to_start_is_well_once_it_gives_values(tmp_path: Path) -> None:
    """At a boot the second program that opens a GPU may succeed where the first failed."""
    node = Node(tmp_path)
    works = [replace(each, clocks=0) for each in FINE[:2]]
    node.set_gpus(works[0], failing(FINE[1], handle=999))
    log = cast("LogCheck", SPECS["nvidia-driver"].build(node.sources, {}))
    check = await first_run(node, gpu_recovery.SPEC)
    node.clock.now = node.nvml.answer.at
    for each in works:
        failed = f"NVRM: GPU {each.pci}.0: RmInitAdapter failed! (0x62:0x40:2461)"
        assert len(log.read(line(node, failed.encode()))) == 1
    assert (await run_check(check)).clearings == [], "it was sampled before"
    node.later()
    over = [
        Clearing(name, "gpu-reset", "nvidia-driver:init-failed")
        for name in (FINE[0].uuid, f"pci:{FINE[0].pci}")
    ]
    assert (await run_check(check)).clearings == over
    assert (await next_run(node, check)).clearings == [], "the other gives no values yet"
    node.set_gpus(*works)
    assert {each.component for each in (await run_check(check)).clearings} == {
        FINE[1].uuid,
        f"pci:{FINE[1].pci}",
    }


async def test_a_gpu_that_recovers_while_no_agent_runs_is_well_all_the_same(
    tmp_path: Path,
) -> None:
    node, latch = Node(tmp_path / "a"), Latch(boot_id="boot", epoch="e")
    node.set_gpus(FINE[0], replace(FINE[1], recovery_action=1))
    log = cast("LogCheck", SPECS["nvidia-driver"].build(node.sources, {}))
    failed = f"NVRM: GPU {FINE[0].pci}.0: RmInitAdapter failed! (0x62:0x40:2461)"
    node.clock.now = node.nvml.answer.at
    latch.apply(log.read(line(node, failed.encode())), node.clock.now)
    report = await node.build(gpu_recovery.SPEC).run_check()
    assert not isinstance(report, Off)
    latch.apply(report, node.clock.now)

    later = Node(tmp_path / "b")
    restore_driver_log(later.sources.driver_log, latch)
    later.set_gpus(replace(FINE[0], clocks=0), FINE[1])
    later.later()
    seen = await run_check(later.build(gpu_recovery.SPEC))
    found = {(one.component, one.code) for one in seen.clearings}
    assert (FINE[0].uuid, "nvidia-driver:init-failed") in found
    assert (FINE[1].uuid, "") in found


async def test_an_xid_of_a_program_after_the_load_is_no_fault_of_the_gpu(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.set_gpus(FINE[0])
    log, check = xids(node), node.build(gpu_recovery.SPEC)
    await run_check(check)
    log.read(an_xid(node, FINE[0]))
    log.read(line(node, LOADED))
    for code in (13, 31, 43, 45):
        log.read(line(node, f"NVRM: Xid (PCI:{FINE[0].pci}): {code}, pid=1, name=x".encode()))
    assert (await next_run(node, check)).clearings == SIGN


@pytest.mark.parametrize(
    ("text", "historical"),
    [
        (b"tmpfs: Unknown parameter 'x\\x0a" + LOADED + b"'", False),
        (LOADED[1:], False),
        (LOADED + b" IN=eth0 OUT= MAC= SRC=10.0.0.1 DST=10.0.0.2 LEN=40 TOS=0 PROTO=TCP", False),
        (LOADED, True),
    ],
    ids=["in a parameter", "cut", "of a firewall", "of before our time"],
)
async def test_no_forged_or_old_load_is_believed(
    tmp_path: Path, text: bytes, *, historical: bool
) -> None:
    node = Node(tmp_path)
    node.set_gpus(*FINE)
    check = await first_run(node, gpu_recovery.SPEC)
    xids(node).read(replace(line(node, text), historical=historical))
    assert (await next_run(node, check)).clearings == []
