"""Lines of old and new NVIDIA drivers, and cut ones: their codes, and the words that decide."""

from pathlib import Path

import pytest

from nodeagent.checks.sxid import SxidCheck
from nodeagent.checks.xid import XidCheck
from nodeagent.model import FaultSighting
from nodeagent.sources.gpus import GpuMap
from tests.agent.kernel_log import GPU, fixture_records, gpu_map, record
from tests.agent.line_checks import faults


@pytest.fixture
def gpus(tmp_path: Path) -> GpuMap:
    return gpu_map(tmp_path / "sys")


@pytest.fixture
def found(gpus: GpuMap) -> dict[int, FaultSighting]:
    """The faults of the fixture, by the index of their line."""
    checks = (XidCheck(gpus), SxidCheck(gpus))
    return {
        fault.source_seq - 1000: fault
        for each in fixture_records("nvidia-lines.log")
        for check in checks
        for fault in faults(check, each)
    }


def details(gpus: GpuMap, rest: str, code: int = 149) -> dict[str, str]:
    [fault] = faults(XidCheck(gpus), record(f"NVRM: Xid (PCI:{GPU}): {code}, {rest}".encode()))
    return dict(fault.details)


def test_every_line_has_its_code(found: dict[int, FaultSighting]) -> None:
    assert [found[at].code for at in range(31)] == [
        *["gpu-off-bus"] * 5,
        *["xid:149", "xid:147", "xid:148", "xid:145", "xid:149", "xid:149", "xid:149", "xid:149"],
        *["xid:154", "xid:154", "xid:173", "xid:174", "xid:175", "xid:176"],
        *["sxid:10006:fatal", "sxid:10006:fatal", "sxid:10004:fatal", "sxid:10004:unstated"],
        *["sxid:26006:fatal", "sxid:26008:fatal", "sxid:26001:fatal"],
        *["sxid:28003:fatal", "sxid:28005:fatal", "sxid:28001:unstated"],
        *["sxid:11012:correctable", "sxid:26006:non-fatal"],
    ]


def test_a_fatal_nvlink_line_is_fatal_however_it_is_spaced_or_cut(
    found: dict[int, FaultSighting],
) -> None:
    fields = ("unit", "severity", "link", "intr_info", "error_status")
    assert {at: tuple(found[at].details.get(field) for field in fields) for at in range(5, 13)} == {
        5: ("NETIR_LINK_EVT", "fatal", "1", "0x0000000a", None),
        6: ("TREX_ERR", "non-fatal", "2", "0x00000005", None),
        7: ("NVLPW_CTRL", "fatal", "5", None, None),
        8: ("RLW_SRC_TRACK", "fatal", "0", "0x00000001", "0x00000002"),
        9: ("NETIR_LINK_EVT", "fatal", "9", "0x025525c6", None),
        10: ("NETIR_LINK_EVT", "fatal", None, None, None),
        11: ("NETIR_LINK_EVT", "fatal", None, None, None),
        12: (None, None, None, None, None),
    }
    assert found[5].details["injected"] == "yes"
    assert "injected" not in found[6].details


@pytest.mark.parametrize(
    "end",
    range(len("NETIR_LINK_EVT Fatal"), len("NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025525c6 ")),
)
def test_no_cut_makes_up_a_register_or_takes_the_word_back(gpus: GpuMap, end: int) -> None:
    whole = "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025525c6 0x00000001)"
    cut = details(gpus, whole[:end])
    assert cut["severity"] == "fatal"
    assert cut.get("intr_info") in (None, "0x025525c6")


@pytest.mark.parametrize(
    ("rest", "severity"),
    [
        ("pid=7, name=A_B Fatal, NETIR Nonfatal XC0 i0 Link 01 (0x1)", "non-fatal"),
        ("pid=7, name=A_B Fatal XC0 i, NETIR Nonfatal XC0 i0 Link 01 (0x1)", "non-fatal"),
        ("pid=7, name=A_B Fatal, words that are new", None),
        ("pid=7, name=A_B Fatal", None),
        (r"pid=7, name=\x01\x01\x01 A_B Fatal", None),
        ("pid=7, name=A_B Nonfatal, NETIR Fatal XC0 i0 Link 01 (0x1)", "fatal"),
        ("pid=7, name=python3, NETIR_LINK_EVT Fatal", "fatal"),
        ("MSE Non fatal XC0 i0 Link 01 (0x1)", "non-fatal"),
    ],
)
def test_the_name_of_a_process_does_not_state_the_severity(
    gpus: GpuMap, rest: str, severity: str | None
) -> None:
    assert details(gpus, rest).get("severity") == severity


def test_a_line_spaced_with_tabs_or_cut_after_its_number_is_read(gpus: GpuMap) -> None:
    tabs = details(
        gpus, r"NETIR_LINK_EVT\x09Fatal\x09XC0\x09i0\x09Link 01\x09(0x021425c6 0x00000000)"
    )
    assert (tabs["severity"], tabs["link"], tabs["intr_info"]) == ("fatal", "1", "0x021425c6")
    [cut] = faults(XidCheck(gpus), record(f"NVRM: Xid (PCI:{GPU}): 149,".encode()))
    assert (cut.code, dict(cut.details)) == ("xid:149", {"pci": GPU})


def test_the_drivers_new_verdicts_are_told(found: dict[int, FaultSighting]) -> None:
    assert [found[at].details["verdict"] for at in (13, 14)] == ["recover-imex", "unknown"]


@pytest.mark.parametrize(
    "line",
    [
        b"NVRM: GPU at 0000:3b:00.0 has not fallen off the bus.",
        b"NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1b06) installed in this system is old",
        b"NVRM: x GPU at 0000:3b:00.0 has fallen off the bus.",
        b"NVRM: GPU at 0000:77:00.0 has fallen off the bus.",
    ],
)
def test_other_lines_of_the_driver_are_not_a_gpu_off_the_bus(gpus: GpuMap, line: bytes) -> None:
    assert XidCheck(gpus).read(record(line)) == ()
