"""Xids, in every variant of the line that drivers print; and lines that only look like them."""

from pathlib import Path

import pytest

from nodeagent.checks.xid import XidCheck
from nodeagent.checks.xid_codes import cleared_by
from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import (
    FIXTURES,
    GPU,
    OTHER_GPU,
    UUID,
    HandClock,
    fixture_records,
    gpu_map,
    open_log,
    record,
)
from tests.agent.line_checks import faults

Sightings = list[FaultSighting]


@pytest.fixture
def gpus(tmp_path: Path) -> GpuMap:
    return gpu_map(tmp_path / "sys")


@pytest.fixture
def check(gpus: GpuMap) -> XidCheck:
    return XidCheck(gpus)


@pytest.fixture
def variants(check: XidCheck) -> Sightings:
    """The faults found in the fixture of line variants."""
    return [
        fault for found in fixture_records("xid-variants.log") for fault in faults(check, found)
    ]


def see(check: XidCheck, text: str) -> FaultSighting:
    [fault] = faults(check, record(text.encode()))
    return fault


def test_every_line_variant_is_seen_with_its_code_and_what_ends_it(variants: Sightings) -> None:
    assert [(fault.source_seq, fault.code, fault.cleared_by.name) for fault in variants] == [
        (1002, "xid:79", "REBOOT"),
        (1003, "xid:79", "REBOOT"),
        (1004, "xid:48", "GPU_RESET"),
        (1005, "xid:94", "GPU_RESET"),
        (1006, "xid:43", "EXPIRY"),
        (1007, "xid:31", "EXPIRY"),
        (1008, "xid:13", "EXPIRY"),
        (1009, "xid:63", "GPU_RESET"),
        (1010, "xid:119", "GPU_RESET"),
        (1011, "xid:45", "EXPIRY"),
        (1012, "xid:74", "GPU_RESET"),
        (1013, "xid:149", "GPU_RESET"),
        (1014, "xid:145", "EXPIRY"),
        (1015, "xid:154", "GPU_RESET"),
        (1016, "xid:154", "REBOOT"),
        (1017, "xid:154", "GPU_RESET"),
        (1018, "xid:154", "GPU_RESET"),
        (1019, "xid:154", "EXPIRY"),
        (1020, "xid:154", "GPU_RESET"),
        (1021, "xid:154", "REBOOT"),
        (1022, "xid:999", "EXPIRY"),
        (1023, "xid:62", "GPU_RESET"),
        (1024, "xid:95", "GPU_RESET"),
        (1025, "gpu-off-bus", "REBOOT"),
        (1026, "gpu-off-bus", "REBOOT"),
        (1028, "xid:45", "EXPIRY"),
        (1029, "xid:144", "EXPIRY"),
        (1030, "xid:150", "GPU_RESET"),
        (1031, "xid:149", "GPU_RESET"),
    ]


def test_every_line_names_its_gpu(variants: Sightings) -> None:
    assert {fault.component for fault in variants if fault.source_seq != 1024} == {UUID}
    [other] = [fault for fault in variants if fault.source_seq == 1024]
    assert other.component == f"pci:{OTHER_GPU}", "no UUID is known, and the case is the map's"


def test_the_drivers_verdict_is_one_word(variants: Sightings) -> None:
    assert [fault.details["verdict"] for fault in variants if fault.code == "xid:154"] == [
        "gpu-reset",
        "node-reboot",
        "drain-p2p",
        "drain-and-reset",
        "none",
        "gpu-reset",  # "PF FLR", in newer drivers' words
        "node-reboot",  # although the process was called "to 0x0 (None)"
    ]


def test_a_mig_instance_is_a_detail_of_its_gpu(variants: Sightings) -> None:
    assert [fault.details["mig"] for fault in variants if "mig" in fault.details] == [
        "GPU-I:05",
        "GPU-I:05 GPU-CI:0",
    ]


def test_the_process_is_named_where_the_line_names_one(variants: Sightings) -> None:
    processes = {
        fault.source_seq: (fault.details.get("pid"), fault.details.get("name"))
        for fault in variants
    }
    assert processes[1002] == (None, None), "<unknown> is nobody"
    assert processes[1003] == (None, None)
    assert processes[1004] == ("1122", None)
    assert processes[1007] == ("79749", "tmux: server")
    assert processes[1008] == ("4242", "my trainer")
    assert processes[1010] == ("3366", "nvc:[driver]")


def test_a_real_drivers_lines_name_the_process_up_to_a_comma_in_its_name(check: XidCheck) -> None:
    records = fixture_records("h200-lines.log")
    found = [fault for each in records for fault in faults(check, each)]
    named = [(fault.details.get("pid"), fault.details.get("name")) for fault in found]
    assert named == [
        ("939", "faulty-1"),
        (None, None),
        (None, None),
        ("957", "faulty-2"),
        ("979", "faulty-3"),
        ("997", "a'"),
    ]


def test_lines_of_a_storm_share_the_words_of_half_a_second(check: XidCheck, gpus: GpuMap) -> None:
    def line(seq: int, at: float, code: int, words: str, gpu: str = GPU) -> FaultSighting:
        text = f"NVRM: Xid (PCI:{gpu}): {code}, pid={seq}, {words}".encode()
        [found] = faults(check, record(text, seq=seq, at=at))
        assert (found.source_seq, found.at, found.code) == (seq, at, f"xid:{code}")
        return found

    first = line(1, 10.0, 31, "MMU Fault")
    assert line(8, 10.4, 31, "other words").details["pid"] == "8", "seven records are no storm"
    assert line(9, 10.4, 31, "other words").details is first.details
    assert line(10, 10.4, 13, "Graphics").details["pid"] == "10", "another code"
    assert line(11, 10.4, 31, "MMU Fault", OTHER_GPU).details["pid"] == "11", "another GPU"
    assert line(30, 10.5, 31, "MMU Fault").details["pid"] == "30", "half a second later"
    assert line(40, 10.2, 31, "MMU Fault").details["pid"] == "40", "a clock that went back"
    gpus.learn(OTHER_GPU, "GPU-named-meanwhile")
    assert line(50, 10.4, 31, "MMU Fault", OTHER_GPU).component == "GPU-named-meanwhile"
    for code in (45, 74, *range(144, 151), 154):
        line(60, 11.0, code, "words that decide")
        assert line(90, 11.0, code, "words that decide").details["pid"] == "90", code


def test_a_storm_over_many_gpus_is_held_in_bounded_memory(tmp_path: Path) -> None:
    check = XidCheck(gpu_map(tmp_path))
    for code in range(1000):
        check.read(record(f"NVRM: Xid (PCI:{GPU}): {code}, pid=1".encode()))
    assert len(check._known) <= 256


def test_no_forged_line_is_believed(check: XidCheck) -> None:
    """The fixture has the raw bytes of the tmpfs attack and of a netfilter prefix, as tried."""
    raws = (FIXTURES / "forged.log").read_bytes()
    assert rb"tmpfs: Unknown parameter 'x\x0aNVRM: GPU 0000:3b:00.0: GPU has fallen" in raws
    found = fixture_records("forged.log")
    assert len(found) >= 10, "those of facility 0 do reach the check"
    assert [fault for each in found for fault in check.read(each)] == []
    assert check.packets == 2
    assert check.foreign == 1


def test_user_records_are_believed_only_in_the_test_mode(check: XidCheck) -> None:
    reader = open_log(FIXTURES / "forged.log", accept_user_records=True)
    seen = [fault for found in reader.read_batch() for fault in faults(check, found)]  # type: ignore[arg-type]  # the fixture has no gaps, so no Loss
    reader.close()
    assert [(fault.source_seq, fault.code) for fault in seen] == [(1002, "xid:79")]


def test_a_gpu_that_left_the_bus_is_still_known_by_its_uuid(tmp_path: Path) -> None:
    """After Xid 79 neither NVML nor sysfs may know it: the map that an earlier agent left does."""
    empty = HostRoots(clock=HandClock(), sys=tmp_path)
    check = XidCheck(GpuMap(empty, {"00000000:3B:00.0": UUID}))
    fault = see(check, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert fault.component == UUID


def test_what_nvml_said_outranks_the_log(check: XidCheck, gpus: GpuMap) -> None:
    gpus.learn(GPU, "GPU-of-nvml")
    check.read(record(f"NVRM: GPU at PCI:{GPU}: {UUID}".encode()))
    assert gpus.component(GPU) == "GPU-of-nvml"


def test_a_historical_record_is_a_historical_fault(check: XidCheck) -> None:
    line = b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert [fault.historical for fault in faults(check, record(line, historical=True))] == [True]


def test_no_two_records_are_joined(check: XidCheck) -> None:
    for text in (
        b"NVRM: The NVIDIA GPU 0000:3b:00.0",
        b"NVRM: (PCI ID: 10de:20b5) installed in this system has",
        b"NVRM: fallen off the bus and is not responding to commands.",
    ):
        assert check.read(record(text)) == ()


def test_a_code_that_nobody_has_published_expires() -> None:
    assert cleared_by(4711) is ClearedBy.EXPIRY


@pytest.mark.parametrize("code", [54, 78, 142, 159])
def test_what_needs_a_person_waits_for_one(code: int) -> None:
    assert cleared_by(code) is ClearedBy.OPERATOR
