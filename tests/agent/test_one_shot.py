"""One look where no agent runs: its answer is the answer that the agent would give."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import registry
from nodeagent.checks.base import CheckSpec, Report
from nodeagent.clock import SystemClock
from nodeagent.config.settings import load
from nodeagent.local.findings import Findings
from nodeagent.model import FaultSighting, Status
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record
from nodeagent.terminal.one_shot import run_once
from tests.agent.cli import configured
from tests.agent.kernel_log import GPU, pci_device, raw
from tests.support.waiting import PATIENCE


class Broken:
    """A check with a defect: as a probe and as a reader of the kernel log."""

    first = frozenset({b""})
    after_name: frozenset[bytes] = frozenset()
    of_pci = False

    def __init__(self, _sources: Sources, _options: Mapping[str, Any]) -> None:
        pass

    async def run_check(self) -> Report:
        raise ZeroDivisionError("by nought")

    def read(self, record: Record) -> Sequence[FaultSighting]:
        raise ZeroDivisionError(f"by record {record.seq}")


class Hanging(Broken):
    """A check whose look never ends."""

    async def run_check(self) -> Report:
        await asyncio.Event().wait()
        raise AssertionError("it has ended")


def broken(name: str, interval: float) -> CheckSpec:
    return CheckSpec(name, "s", "s", "c", "b", Broken, interval, interval)


async def check_once(file: Path, *, within: float = 10) -> Findings:
    config = load(file, {"NODE_NAME": "n1"})
    return await run_once(config, SystemClock(), within=within)


@pytest.fixture
def with_broken_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    more = (broken("bad-probe", 60.0), broken("bad-log", 0.0))
    monkeypatch.setattr(registry, "SPECS", (*more, *registry.SPECS))


async def test_what_hangs_is_told_within_the_time_however_long_its_own_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = CheckSpec("hangs", "s", "s", "c", "b", Hanging, 3600.0, 3600.0)
    monkeypatch.setattr(registry, "SPECS", (hangs, *registry.SPECS))
    async with asyncio.timeout(PATIENCE):
        found = await check_once(configured(tmp_path), within=1)
    [late] = [result for result in found.results if result.check == "hangs"]
    assert (late.status, late.reason) == (Status.UNKNOWN, "hung")


@pytest.mark.usefixtures("with_broken_checks")
async def test_a_defect_in_one_check_costs_no_other_its_word(tmp_path: Path) -> None:
    file = configured(tmp_path)
    pci_device(tmp_path / "sys", f"{GPU}.0", "0x030200")
    text = f"NVRM: Xid (PCI:{GPU}): 79, pid=1, name=x, and so on"
    (tmp_path / "kmsg.log").write_bytes(raw(7, text))
    found = await check_once(file)
    by_check = {result.check: result for result in found.results}
    assert by_check["bad-probe"].reason == "check-error"
    assert by_check["bad-probe"].message == "ZeroDivisionError: by nought"
    assert [fault.code for fault in found.faults] == ["xid:79"]
    assert [note for note in found.notes if "check bad-log failed on record 7" in note]
