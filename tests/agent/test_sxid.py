"""SXids: the driver's own word, and the lines that repeat its number."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks.sxid import SPEC, SxidCheck
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
    }


def test_the_repeated_severity_and_data_lines_are_no_sxids(
    faults: dict[int, FaultSighting],
) -> None:
    assert not {1001, 1002, 1004} & faults.keys()


def test_a_switch_concerns_the_node_and_is_a_detail(faults: dict[int, FaultSighting]) -> None:
    assert {fault.component for fault in faults.values()} == {""}
    assert dict(faults[1003].details) == {"switch": "0000:c2:00", "link": "30"}
    assert faults[1005].details["link"] == "7"


def test_a_word_that_contradicts_the_guide_is_kept_and_marked(
    faults: dict[int, FaultSighting],
) -> None:
    assert faults[1006].code == "sxid:12020:non-fatal"
    assert "always fatal" in faults[1006].details["disagrees"]


def test_a_switch_of_another_machine_is_ignored_and_counted(
    check: SxidCheck, faults: dict[int, FaultSighting]
) -> None:
    assert 1009 not in faults
    assert check.foreign == 1


def test_no_forged_line_is_believed(check: SxidCheck) -> None:
    assert [fault for each in fixture_records("forged.log") for fault in check.read(each)] == []
    assert check.packets == 1


@given(
    start=st.sampled_from(
        [
            b"nvidia-nvswitch",
            b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): ",
            b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link ",
        ]
    ),
    rest=st.binary(max_size=200),
    repeat=st.sampled_from([1, 500]),
)
def test_no_text_raises_and_no_message_is_endless(
    tmp_path_factory: pytest.TempPathFactory, start: bytes, rest: bytes, repeat: int
) -> None:
    check = SxidCheck(gpu_map(tmp_path_factory.mktemp("bus")))
    for fault in check.read(record(start + rest * repeat)):
        assert len(fault.message) <= 512


def test_the_check_is_in_the_shape_that_the_registry_takes() -> None:
    assert (SPEC.name, SPEC.interval, SPEC.on) == ("sxid", 0, True)
