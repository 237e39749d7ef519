"""SXids: the driver's own word, and the lines that repeat its number."""

from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.checks.sxid import SxidCheck
from nodeagent.model import FaultSighting
from tests.agent.kernel_log import fixture_records, gpu_map, record


@pytest.fixture
def check(tmp_path: Path) -> SxidCheck:
    return SxidCheck(gpu_map(tmp_path / "sys"))


@pytest.fixture
def faults(check: SxidCheck) -> dict[int, FaultSighting]:
    found = [fault for each in fixture_records("sxid.log") for fault in check.read(each)]
    return {fault.source_seq: fault for fault in found}


def test_the_drivers_word_is_part_of_the_code(faults: dict[int, FaultSighting]) -> None:
    assert {seq: (fault.code, fault.cleared_by.name) for seq, fault in faults.items()} == {
        1000: ("sxid:12028:non-fatal", "EXPIRY"),
        1003: ("sxid:24007:fatal", "REBOOT"),
        1005: ("sxid:4007:non-fatal", "EXPIRY"),
        1006: ("sxid:12020:non-fatal", "EXPIRY"),
        1007: ("sxid:10003:fatal", "REBOOT"),
        1008: ("sxid:19999:unstated", "EXPIRY"),
        1011: ("sxid:20034:fatal", "REBOOT"),
        1013: ("sxid:22013:non-fatal", "EXPIRY"),
        1014: ("sxid:19999:fatal", "REBOOT"),
        1015: ("sxid:24007:fatal", "REBOOT"),
        1016: ("sxid:12020:non-fatal", "EXPIRY"),
    }


def test_a_severity_whose_sxid_had_no_word_or_was_lost_is_one(
    faults: dict[int, FaultSighting],
) -> None:
    """Of 1011 the line before is lost, and 1015 is of another switch than 1003."""
    assert faults[1011].message.startswith("SXid 20034 (fatal) on NVSwitch 0000:c1:00: Severity 1 ")
    assert faults[1014].code == "sxid:19999:fatal"
    assert "always fatal" in faults[1016].details["disagrees"]
    assert 1018 not in faults, "the driver has no severity 2"


@pytest.mark.parametrize(("seconds", "codes"), [(5.0, 1), (5.1, 2)])
def test_a_severity_repeats_only_the_sxid_just_before_it(
    check: SxidCheck, seconds: float, codes: int
) -> None:
    worded = record(b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM")
    stated = record(
        b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, "
        b"Severity 1 Engine instance 30 Sub-engine instance 00"
    )
    found = [check.read(replace(worded, at=10.0)), check.read(replace(stated, at=10.0 + seconds))]
    assert sum(map(len, found)) == codes


def test_sxids_of_endless_numbers_are_not_all_remembered(check: SxidCheck) -> None:
    for number in range(10_000, 11_000):
        text = f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {number}, Fatal, Link 30 LTSSM"
        check.read(record(text.encode()))
    assert len(check._worded) <= 64


def test_no_forged_line_is_believed(check: SxidCheck) -> None:
    assert [fault for each in fixture_records("forged.log") for fault in check.read(each)] == []
    assert check.packets == 1
