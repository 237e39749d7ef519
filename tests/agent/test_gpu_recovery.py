"""The driver's recovery action, and its end as the sign of a reset."""

from pathlib import Path

import pytest

from nodeagent.checks import gpu_recovery
from nodeagent.model import Clearing
from tests.nvml import UNSUPPORTED, gpu, uuid_of
from tests.nvml.look import Bench, look


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
        seen = await look(bench.build(gpu_recovery.SPEC))
    assert seen.status(uuid_of(1)) == (status, reason)
    assert seen.status(uuid_of(0)) == ("OK", "")


@pytest.mark.parametrize("action", [1, 2, 4, 6, 7])
async def test_a_reset_that_was_asked_and_is_asked_no_more_has_happened(
    tmp_path: Path, action: int
) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=action)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        assert (await look(check)).clearings == []
        bench.gpus.write([gpu(0)])
        bench.later()
        assert (await look(check)).clearings == [Clearing(component=uuid_of(0), how="gpu-reset")]
        bench.later()
        assert (await look(check)).clearings == [], "one reset is one sign"


@pytest.mark.parametrize("action", [3, 5])
async def test_the_end_of_an_action_that_resets_nothing_clears_nothing(
    tmp_path: Path, action: int
) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=action)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await look(check)
        bench.gpus.write([gpu(0)])
        bench.later()
        assert (await look(check)).clearings == []


async def test_an_action_that_cannot_be_read_for_a_while_is_not_over(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=1)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await look(check)
        bench.gpus.fail("field:230", gpu=0, code=999)
        bench.later()
        seen = await look(check)
        assert seen.clearings == []
        assert seen.status(uuid_of(0)) == ("UNKNOWN", "nvml-error-999")
        bench.gpus.heal()
        bench.gpus.write([gpu(0)])
        bench.later()
        assert (await look(check)).clearings == [Clearing(component=uuid_of(0), how="gpu-reset")]


async def test_a_reset_done_while_the_agent_stood_aside_is_noticed(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, recovery_action=1)]) as bench:
        check = bench.build(gpu_recovery.SPEC)
        await look(check)
        await bench.nvml.quiesce(600)
        bench.gpus.write([gpu(0)])
        bench.later(601)
        assert (await look(check)).clearings == [Clearing(component=uuid_of(0), how="gpu-reset")]
