"""The driver's recovery action, and its end as the sign of a reset."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nodeagent.checks import gpu_recovery, xid
from nodeagent.checks.base import LogCheck
from nodeagent.model import Clearing
from nodeagent.sources.kmsg import Record
from tests.agent.kernel_log import fixture_records, record
from tests.nvml import UNSUPPORTED, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, run_check


@pytest.mark.parametrize(
    ("action", "status", "reason"),
    [
        (0, "OK", ""),
        (1, "FAILED", "reset"),
        (2, "FAILED", "reboot"),
        (3, "DEGRADED", "drain-p2p"),
        (4, "FAILED", "drain-and-reset"),
        (5, "DEGRADED", "recover-imex"),
        (6, "FAILED", "bus-reset"),
        (7, "FAILED", "system-reboot"),
        (8, "UNKNOWN", "unknown-action"),
        (UNSUPPORTED, "UNKNOWN", "unsupported"),
    ],
)
async def test_each_action_has_its_status_and_reason(
    tmp_path: Path, action: int, status: str, reason: str
) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1, recovery_action=action)]) as bench:
        seen = await run_check(bench.build(gpu_recovery.SPEC))
    assert seen.status(uuid_of(1)) == (status, reason)
    assert seen.status(uuid_of(0)) == ("OK", "")


@pytest.mark.parametrize("action", [1, 2, 4, 6, 7])
async def test_a_reset_that_was_asked_and_is_asked_no_more_has_happened(
    tmp_path: Path, action: int
) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=action)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        assert (await run_check(check)).clearings == []
        bench.gpus.write([gpu(0)])
        bench.later()
        assert (await run_check(check)).clearings == [
            Clearing(component=uuid_of(0), how="gpu-reset")
        ]
        bench.later()
        assert (await run_check(check)).clearings == [], "one reset is one sign"


@pytest.mark.parametrize("action", [3, 5])
async def test_the_end_of_an_action_that_resets_nothing_clears_nothing(
    tmp_path: Path, action: int
) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=action)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0)])
        bench.later()
        assert (await run_check(check)).clearings == []


async def test_an_action_that_cannot_be_read_for_a_while_is_not_over(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=1)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await run_check(check)
        bench.gpus.fail("field:230", gpu=0, code=999)
        bench.later()
        seen = await run_check(check)
        assert seen.clearings == []
        assert seen.status(uuid_of(0)) == ("UNKNOWN", "nvml-error-999")
        bench.gpus.heal()
        bench.gpus.write([gpu(0)])
        bench.later()
        assert (await run_check(check)).clearings == [
            Clearing(component=uuid_of(0), how="gpu-reset")
        ]


async def test_a_reset_done_while_the_agent_stood_aside_is_noticed(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=1)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await run_check(check)
        await bench.nvml.quiesce(600)
        bench.gpus.write([gpu(0)])
        bench.later(601)
        assert (await run_check(check)).clearings == [
            Clearing(component=uuid_of(0), how="gpu-reset")
        ]


# -- the driver loaded anew --------------------------------------------------------------------

LOADED = b"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06  Thu Jul 17 16:25:03 UTC 2026"
LOADED_OPEN = b"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
#: As an H200's driver wrote it, behind the lines of its other modules.
[LOADED_H200] = [
    each.text for each in fixture_records("h200-lines.log") if b"loading NVIDIA" in each.text
]
SIGN = [Clearing(component=uuid_of(0), how="gpu-reset")]


def xids(bench: Bench) -> LogCheck:
    return cast("LogCheck", xid.SPEC.build(bench.sources, {}))


def line(bench: Bench, text: bytes) -> Record:
    return replace(record(text), at=bench.clock.boottime())


def an_xid(bench: Bench, index: int = 0) -> Record:
    return line(bench, f"NVRM: Xid (PCI:{pci_of(index)}): 95, pid=1, name=x, text".encode())


@pytest.mark.parametrize("text", [LOADED, LOADED_OPEN, LOADED_H200])
async def test_a_driver_that_was_loaded_anew_has_reset_the_gpus_that_answer(
    tmp_path: Path, text: bytes
) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1), gpu(2)]) as bench:
        log, check = xids(bench), bench.build(gpu_recovery.SPEC)
        assert (await run_check(check)).clearings == []
        log.read(an_xid(bench))
        log.read(line(bench, text))
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=999)
        bench.gpus.fail("nvmlDeviceGetRemappedRows", gpu=2, code=16)
        bench.later()
        assert (await run_check(check)).clearings == SIGN
        bench.later()
        assert (await run_check(check)).clearings == [], "one load is one sign"
        bench.gpus.heal()
        bench.later()
        late = {each.component for each in (await run_check(check)).clearings}
    assert late == {uuid_of(1), uuid_of(2)}, "they answer now"


async def test_an_xid_that_came_after_the_load_is_not_over(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        log, check = xids(bench), bench.build(gpu_recovery.SPEC)
        await run_check(check)
        log.read(line(bench, LOADED))
        log.read(an_xid(bench, index=1))
        bench.later()
        assert (await run_check(check)).clearings == SIGN
        log.read(line(bench, LOADED))
        bench.later()
        assert len((await run_check(check)).clearings) == 2, "the next load counts for both"


async def test_a_look_from_before_the_load_says_nothing(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await run_check(check)
        xids(bench).read(line(bench, LOADED))
        assert (await run_check(check)).clearings == [], "the sample is older than the line"


@pytest.mark.parametrize(
    "text",
    [
        b"tmpfs: Unknown parameter 'x\\x0a" + LOADED + b"'",
        LOADED[1:],
        LOADED + b" IN=eth0 OUT= MAC= SRC=10.0.0.1 DST=10.0.0.2 LEN=40 TOS=0x00 PROTO=TCP",
    ],
)
async def test_no_forged_load_is_believed(tmp_path: Path, text: bytes) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await run_check(check)
        xids(bench).read(line(bench, text))
        bench.later()
        assert (await run_check(check)).clearings == []


async def test_a_load_of_before_our_time_is_history(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await run_check(check)
        xids(bench).read(replace(line(bench, LOADED), historical=True))
        bench.later()
        assert (await run_check(check)).clearings == []
