"""The kernel log checks, line by line: each field of a sighting, and lines that are not theirs."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nodeagent.checks import xid_codes
from nodeagent.checks.base import LogCheck
from nodeagent.checks.kernel_lines import ROWS, KernelLines
from nodeagent.checks.line_places import NodePlaces
from nodeagent.checks.loglines import LONGEST_DETAIL, LONGEST_MESSAGE, sighting
from nodeagent.checks.sxid import SxidCheck
from nodeagent.checks.xid import XidCheck
from nodeagent.model import ClearedBy, Clearing, FaultSighting
from nodeagent.sources.driver_log import DriverLog
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import SOURCE, Record
from nodeagent.sources.pci_bus import PciBus
from tests.agent.kernel_log import GPU, OTHER_GPU, UUID, HandClock, gpu_machine, record
from tests.agent.line_checks import faults, line_check
from tests.agent.machines import sources

#: The end of a line that a netfilter rule's prefix begins.
PACKET = b" IN=eth0 OUT= MAC=00 SRC=192.0.2.1 DST=192.0.2.2 LEN=40 TOS=0x00 PROTO=TCP"


@pytest.fixture
def gpus(tmp_path: Path) -> GpuMap:
    return GpuMap(gpu_machine(tmp_path / "sys"), {GPU: UUID})


@pytest.fixture
def log() -> DriverLog:
    return DriverLog()


@pytest.fixture
def check(gpus: GpuMap, log: DriverLog) -> XidCheck:
    return XidCheck(gpus, log)


def one(check: LogCheck, line: str) -> FaultSighting:
    [found] = faults(check, record(line.encode(), seq=7))
    return found


# -- xid ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "details"),
    [
        ("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", {}),
        ("79, pid=4711, name=python3, words", {"pid": "4711", "name": "python3"}),
        ("79, pid 4711, name=python3, words", {"pid": "4711", "name": "python3"}),
        ("79, pid='4711', name='a, b', words", {"pid": "4711", "name": "a, b"}),
        ("79, pid='', name='', words", {}),
        ("79, pid=4711", {"pid": "4711"}),
        ("79, name=python3, words", {"name": "python3"}),
        ("79, words, pid=4711, name=python3", {}),
        ("79", {}),
        ("45, pid=1, name=x, Ch 1, caused by previous Xid 079", {"caused_by": "xid:79"}),
        ("46, pid=1, name=x, Ch 1, caused by previous Xid 79", {}),
        (
            "74, pid=1, name=x, NVLink: fatal error detected on link 07(0x0, 0x1, 0x10000)",
            {"link": "7", "registers": "0x0 0x1 0x10000"},
        ),
        ("73, pid=1, name=x, NVLink: fatal error detected on link 7(0x0)", {}),
        ("74, pid=1, name=x, words", {}),
    ],
)
def test_the_details_of_an_xid(check: XidCheck, rest: str, details: dict[str, str]) -> None:
    found = one(check, f"NVRM: Xid (PCI:{GPU}): {rest}")
    if not {"pid", "name"} & details.keys():
        kept = {name: text for name, text in found.details.items() if name not in ("pid", "name")}
    else:
        kept = dict(found.details)
    assert kept == {"pci": GPU, **details}
    code = rest.partition(",")[0]
    assert (found.code, found.component, found.check) == (f"xid:{code}", UUID, "xid")
    said = rest.partition(", ")[2]
    assert found.message == f"Xid {code} on {GPU}: {said}"
    assert (found.source, found.source_seq, found.at) == (SOURCE, 7, 4000.0)


def test_a_process_that_is_not_known_is_no_detail(check: XidCheck) -> None:
    found = one(check, f"NVRM: Xid (PCI:{GPU}): 13, pid='<unknown>', name=<unknown>, words")
    assert found.details == {"pci": GPU}


@pytest.mark.parametrize(
    ("words", "verdict", "ends"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", "gpu-reset", ClearedBy.GPU_RESET),
        ("from 0x0 (None) to 0x2 (Node Reboot Required).", "node-reboot", ClearedBy.REBOOT),
        ("from 0x1 (x) to 0x0 (None)", "none", ClearedBy.EXPIRY),
        ("from 0x0 (None) to 0x3 (Drain P2P)", "drain-p2p", ClearedBy.GPU_RESET),
        ("from 0x0 (None) to 0x4 (Drain and Reset)", "drain-and-reset", ClearedBy.GPU_RESET),
        ("from 0x0 (None) to 0x1 (PF FLR)", "gpu-reset", ClearedBy.GPU_RESET),
        ("from 0x0 (None) to 0x6 (Bus Reset)", "gpu-reset", ClearedBy.GPU_RESET),
        ("from 0x0 (None) to 0x7 (System Reboot)", "node-reboot", ClearedBy.REBOOT),
        ("from 0x0 (None) to 0x5 (IMEX)", "recover-imex", ClearedBy.EXPIRY),
        ("from 0x0 (None) to 0x10 (New)", "unknown", ClearedBy.GPU_RESET),
        ("from 0x0 (None) to 0xff (New)", "unknown", ClearedBy.GPU_RESET),
        ("from nothing", "unknown", ClearedBy.GPU_RESET),
    ],
)
def test_the_verdict_of_xid_154(check: XidCheck, words: str, verdict: str, ends: ClearedBy) -> None:
    found = one(check, f"NVRM: Xid (PCI:{GPU}): 154, GPU recovery action changed {words}")
    assert found.details == {"pci": GPU, "verdict": verdict}
    assert found.cleared_by is ends


@pytest.mark.parametrize(
    ("words", "details", "ends"),
    [
        (
            "NETIR_LINK_EVT Fatal XC0 i0 Link 06 (0x004565c6 0x00000000 0x00000000)",
            {
                "unit": "NETIR_LINK_EVT",
                "severity": "fatal",
                "link": "6",
                "registers": "0x004565c6 0x00000000 0x00000000",
                "intr_info": "0x004565c6",
                "error_status": "0x00000000",
            },
            ClearedBy.GPU_RESET,
        ),
        (
            "MSE Degraded Nonfatal XC1 i1 Link -1 (0x1)",
            {
                "unit": "MSE Degraded",
                "severity": "non-fatal",
                "link": "-1",
                "registers": "0x1",
                "intr_info": "0x1",
                "injected": "yes",
            },
            ClearedBy.EXPIRY,
        ),
        (
            "SAW_MVB Non-fatal Link 3 (0x1, 0x2)",
            {
                "unit": "SAW_MVB",
                "severity": "non-fatal",
                "link": "3",
                "registers": "0x1 0x2",
                "intr_info": "0x1",
                "error_status": "0x2",
            },
            ClearedBy.EXPIRY,
        ),
        ("words that are new", {}, ClearedBy.EXPIRY),
    ],
)
@pytest.mark.parametrize("code", [144, 150])
def test_an_nvlink_5_error(
    check: XidCheck, code: int, words: str, details: dict[str, str], ends: ClearedBy
) -> None:
    found = one(check, f"NVRM: Xid (PCI:{GPU}): {code}, {words}")
    assert found.details == {"pci": GPU, **details}
    assert found.cleared_by is ends
    for other in (143, 151):
        assert "unit" not in one(check, f"NVRM: Xid (PCI:{GPU}): {other}, {words}").details


def test_a_mig_instance_is_a_detail(check: XidCheck) -> None:
    found = one(check, f"NVRM: Xid (PCI:{GPU} GPU-I:05 GPU-CI:01): 43, pid=1, name=x, words")
    assert found.details == {"pci": GPU, "pid": "1", "name": "x", "mig": "GPU-I:05 GPU-CI:01"}


def test_a_gpu_off_the_bus_without_an_xid(check: XidCheck, log: DriverLog) -> None:
    log.loaded(1.0)
    for line, address, name in (
        (f"NVRM: GPU at {GPU}.0: GPU has fallen off the bus.", GPU, UUID),
        (
            (
                f"NVRM: The NVIDIA GPU {OTHER_GPU}.0\\x0aNVRM: (PCI ID: 10de:2330) installed in "
                "this system has\\x0aNVRM: fallen off the bus and is not responding to commands."
            ),
            OTHER_GPU,
            f"pci:{OTHER_GPU}",
        ),
    ):
        assert log.has_reset(address, 0.0)
        found = one(check, line)
        assert (found.code, found.check, found.component) == ("gpu-off-bus", "xid", name)
        assert found.message == (
            f"GPU {address} has fallen off the bus, by a driver's line without an Xid"
        )
        assert found.details == {"pci": address, "text": line}
        assert (found.source_seq, found.at, found.historical) == (7, 4000.0, False)
        assert found.cleared_by is ClearedBy.REBOOT
        assert not log.has_reset(address, 0.0), "since the load it has erred"


def test_lines_of_other_gpus_and_packets_are_counted_and_say_nothing(
    check: XidCheck, log: DriverLog
) -> None:
    xid = f"NVRM: Xid (PCI:{GPU}): 79, words".encode()
    lost = f"NVRM: GPU {GPU}: GPU has fallen off the bus".encode()
    for number, line in enumerate((xid, lost), 1):
        assert check.read(record(line + PACKET)) == ()
        assert (check.packets, check.foreign) == (number, number - 1)
        assert check.read(record(line.replace(GPU.encode(), b"0000:77:00"))) == ()
        assert (check.packets, check.foreign) == (number, number)
    assert not log.has_reported(GPU, 79, 0.0)
    assert check.read(record(b"x" + xid)) == ()
    assert len(check.read(record(xid))) == 1
    assert log.has_reported(GPU, 79, 4000.0)
    assert not log.has_reported(GPU, 79, 4000.1)


def test_the_driver_s_load_is_noted_unless_it_is_old_or_a_packet(
    check: XidCheck, log: DriverLog
) -> None:
    line = b"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06"
    for refused in (
        record(line, historical=True),
        record(line + PACKET),
        record(b" " + line),
        record(b"NVRM: unloading"),
    ):
        assert check.read(refused) == ()
        assert log.loaded_at < 0
    ended = Clearing("", "gpu-reset", "nvidia-driver:uvm-fatal")
    assert check.read(record(line)) == (ended,), "its own module was unloaded with it"
    assert log.loaded_at == 4000.0


def test_the_driver_names_a_gpu_that_nothing_has_named_yet(check: XidCheck, gpus: GpuMap) -> None:
    other = UUID.replace("5a2f", "6b3f")
    for address in (GPU, OTHER_GPU, "0000:77:00"):
        assert check.read(record(f"NVRM: GPU at PCI:{address}: {other}".encode())) == ()
    assert gpus.remembered() == {GPU: UUID, OTHER_GPU: other}
    assert one(check, f"NVRM: Xid (PCI:{OTHER_GPU}): 48, x").component == other


def test_what_ends_an_xid_and_a_verdict() -> None:
    assert xid_codes.cleared_by(79) is ClearedBy.REBOOT
    assert xid_codes.cleared_by(48) is ClearedBy.GPU_RESET
    assert xid_codes.cleared_by(54) is ClearedBy.OPERATOR
    assert xid_codes.cleared_by(31) is ClearedBy.EXPIRY
    assert xid_codes.verdict(2, " GPU Reset Required ") == "gpu-reset", "words before numbers"


def test_long_words_are_cut(check: XidCheck) -> None:
    found = one(check, f"NVRM: Xid (PCI:{GPU}): 13, {'x' * 2_000}")
    assert len(found.message) == 512
    lost = one(check, f"NVRM: GPU {GPU}: GPU has fallen off the bus{'x' * 2_000}")
    assert len(lost.details["text"]) == LONGEST_DETAIL


# -- sxid -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "code", "details", "ends"),
    [
        ("11001, Fatal, Link 07 ingress", "11001:fatal", {"link": "7"}, ClearedBy.REBOOT),
        ("11001, Non-fatal, Link 7 x", "11001:non-fatal", {"link": "7"}, ClearedBy.EXPIRY),
        ("011001, words, Link 7", "11001:unstated", {}, ClearedBy.EXPIRY),
        ("10003, words", "10003:fatal", {}, ClearedBy.REBOOT),
        ("23000, words", "23000:unstated", {}, ClearedBy.EXPIRY),
        ("23001, words", "23001:fatal", {}, ClearedBy.REBOOT),
        ("23017, words", "23017:fatal", {}, ClearedBy.REBOOT),
        ("23018, words", "23018:unstated", {}, ClearedBy.EXPIRY),
        ("22011", "22011:fatal", {}, ClearedBy.REBOOT),
    ],
)
def test_an_sxid(
    gpus: GpuMap, rest: str, code: str, details: dict[str, str], ends: ClearedBy
) -> None:
    found = one(SxidCheck(gpus), f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {rest}")
    assert (found.code, found.check, found.component) == (f"sxid:{code}", "sxid", "")
    assert found.details == {"switch": "0000:c1:00", **details}
    assert found.cleared_by is ends
    number, severity = code.split(":")
    assert found.message.startswith(f"SXid {number} ({severity}) on NVSwitch 0000:c1:00: ")
    assert (found.source, found.source_seq, found.at) == (SOURCE, 7, 4000.0)


def test_an_sxid_of_no_switch_of_ours_and_a_packet_are_counted(gpus: GpuMap) -> None:
    check = SxidCheck(gpus)
    line = b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10003, Fatal, words"
    assert check.read(record(line + PACKET)) == ()
    assert (check.packets, check.foreign) == (1, 0)
    assert check.read(record(line.replace(b"c1", b"c7"))) == ()
    assert (check.packets, check.foreign) == (1, 1)
    assert check.read(record(b"x" + line)) == ()
    for repeat in (b"Severity 1", b"Data {0x0}", b"Engine instance 3"):
        assert check.read(record(line[: line.index(b"Fatal")] + repeat)) == ()
    assert (check.packets, check.foreign) == (1, 1)
    [old] = check.read(record(line, historical=True))
    assert old.historical
    assert len(one(check, line.decode() + "x" * 2_000).message) == 512


# -- machine-check, pcie-aer, oom, hung-task ------------------------------------------------------


def bank(status: int, exception: str = "") -> str:
    return f"mce: [Hardware Error]: CPU 2: Machine Check{exception}: 0 Bank 9: {status:016x}"


@pytest.mark.parametrize(
    ("line", "severity", "component", "details"),
    [
        (bank(0), "corrected", "", {"cpu": "2", "bank": "9", "status": "0" * 16}),
        (
            bank(~((1 << 61) | (1 << 57)) & (1 << 64) - 1),
            "corrected",
            "",
            {"cpu": "2", "bank": "9", "status": "ddffffffffffffff"},
        ),
        (bank(1 << 61), "uncorrected", "", {"cpu": "2", "bank": "9", "status": "2" + "0" * 15}),
        (bank(1 << 57), "fatal", "", {"cpu": "2", "bank": "9", "status": "02" + "0" * 14}),
        (bank(0, " Exception"), "fatal", "", {"cpu": "2", "bank": "9", "status": "0" * 16}),
        (
            "EDAC MC01: 3 UE on DIMM_A1 (channel:0)",
            "uncorrected",
            "mc1/DIMM_A1",
            {"by": "edac", "controller": "mc1", "errors": "3"},
        ),
        (
            "EDAC MC0: 1 CE memory read error on DIMM_A1 (channel:0)",
            "corrected",
            "mc0/DIMM_A1",
            {"by": "edac", "controller": "mc0", "errors": "1", "what": "memory read error"},
        ),
        (
            "{7}[Hardware Error]: event severity: recoverable",
            "uncorrected",
            "",
            {"by": "firmware"},
        ),
        (
            "[Hardware Error]: event severity: fatal",
            "fatal",
            "",
            {"by": "firmware", "boot": "previous"},
        ),
        (
            "[Hardware Error]: Deferred error, no action required.",
            "uncorrected",
            "",
            {"what": "Deferred error, no action required"},
        ),
        (
            "Memory failure: 0x12ab3: recovery action for dirty LRU page: Recovered",
            "uncorrected",
            "",
            {
                "by": "memory-failure",
                "page": "0x12ab3",
                "what": "dirty LRU page",
                "outcome": "recovered",
            },
        ),
        (
            "mce: Uncorrected hardware memory error in user-access at 12ab3000",
            "uncorrected",
            "",
            {"address": "12ab3000"},
        ),
        ("mce: [Hardware Error]: Machine check events logged", "unstated", "", {"by": "mce"}),
    ],
)
def test_a_hardware_error(
    line: str, severity: str, component: str, details: dict[str, str]
) -> None:
    check = line_check("machine-check")
    found = one(check, line)
    assert (found.code, found.component) == (f"machine-check:{severity}", component)
    assert found.details == {"by": "mce"} | details
    assert found.message == line
    assert check.read(record(line.encode() + PACKET)) == ()
    assert check.read(record(b"x" + line.encode())) == ()
    for info in (b"{7}[Hardware Error]: event", b"[Hardware Error]: event"):
        assert check.read(record(info + b" severity: info")) == ()


class Bus:
    def has(self, address: str) -> bool:
        return not address.startswith("0000:77")

    def behind(self, address: str) -> tuple[str, ...]:
        return (f"{GPU}.0", "0000:5e:00.0", f"{GPU}.0") if address == "0000:3a:00.0" else ()

    def interfaces(self, address: str) -> tuple[str, ...]:
        return ("eth0",) if address == "0000:5e:00.0" else ()


@pytest.mark.parametrize(
    ("rest", "severity", "details"),
    [
        ("AER: PCIe Bus Error: severity=Corrected, type=Physical Layer", "corrected", "layer"),
        ("PCIe Bus Error: severity=Correctable, type=Data Link Layer", "corrected", "layer"),
        ("PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=X", "non-fatal", "layer"),
        ("PCIe Bus Error: severity=Uncorrected (Fatal), type=X", "fatal", "layer"),
        ("DPC: containment event, status:0x1f01", "contained", "event"),
        ("AER: device recovery failed", "not-recovered", ""),
        ("DPC: subordinate device recovery failed", "not-recovered", ""),
    ],
)
def test_a_pcie_error(gpus: GpuMap, rest: str, severity: str, details: str) -> None:
    parts = replace(sources(HostRoots(HandClock())), gpus=gpus)
    check = KernelLines("pcie-aer", ROWS["pcie-aer"], NodePlaces(parts, bus=cast("PciBus", Bus())))
    line = f"pcieport 0000:3a:00.0: {rest}"
    found = one(check, line)
    assert (found.code, found.component) == (f"pcie-aer:{severity}", "pci:0000:3a:00.0")
    assert found.details.keys() - {details} == {"pci", "behind"}
    assert (details in found.details) is bool(details)
    assert found.details["behind"] == f"{UUID} eth0"
    assert found.message == f"{line} (leads to {UUID}, eth0)"
    alone = one(check, f"nvidia {OTHER_GPU}.0: {rest}")
    assert (alone.component, alone.message) == (f"pci:{OTHER_GPU}", f"nvidia {OTHER_GPU}.0: {rest}")
    assert alone.details.keys() - {details} == {"pci"}
    assert one(check, f"nvidia {GPU}.0: {rest}").component == UUID
    assert one(check, f"nvme 0000:5e:00.0: {rest}").component == "pci:0000:5e:00.0"
    assert check.read(record(line.encode() + PACKET)) == ()
    assert check.foreign == 0
    assert check.read(record(f"nvme 0000:77:00.0: {rest}".encode())) == ()
    assert check.foreign == 1
    assert len(one(check, f"nvme 0000:5e:00.0: {rest}{'x' * 400}").message) == 300


@pytest.mark.parametrize(
    ("check", "line", "code", "details"),
    [
        (
            line_check("oom"),
            "Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:7kB, file-rss:1kB",
            "oom:node",
            {"pid": "4711", "name": "python3", "resident_kib": "7"},
        ),
        (
            line_check("oom"),
            "Memory cgroup out of memory: Killed process 1 (a) b), UID 0, total-vm:9kB",
            "oom:cgroup",
            {"pid": "1", "name": "a) b"},
        ),
        (
            line_check("hung-task"),
            "INFO: task jbd2/sda1-8:310 blocked in I/O wait for more than 120 seconds.",
            "hung-task:blocked",
            {"name": "jbd2/sda1-8", "pid": "310", "seconds": "120"},
        ),
        (
            line_check("hung-task"),
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]",
            "hung-task:soft-lockup",
            {"cpu": "3", "seconds": "22", "name": "python3", "pid": "4711"},
        ),
        (
            line_check("hung-task"),
            "NMI watchdog: Watchdog detected hard LOCKUP on cpu 5",
            "hung-task:hard-lockup",
            {"cpu": "5"},
        ),
        (
            line_check("hung-task"),
            "rcu: INFO: rcu_preempt self-detected stall on CPU",
            "hung-task:rcu-stall",
            {"flavour": "rcu_preempt"},
        ),
    ],
)
def test_what_the_kernel_says_of_processes(
    check: LogCheck, line: str, code: str, details: dict[str, str]
) -> None:
    found = one(check, line)
    assert (found.code, found.component, found.message) == (code, "", line)
    assert found.details == details
    assert found.cleared_by is ClearedBy.EXPIRY
    assert check.read(record(line.encode() + PACKET)) == ()
    assert check.read(record(b"x" + line.encode())) == ()
    assert check.read(record(line[:20].encode())) == ()


def test_a_line_in_other_letters_than_the_kernel_s_is_none() -> None:
    line = b"NMI WATCHDOG: Watchdog detected hard LOCKUP on cpu 5"
    assert line_check("hung-task").read(record(line)) == ()
    assert (
        line_check("oom").read(record(b"out of memory: Killed process 1 (a), total-vm:9kB")) == ()
    )


def test_a_sighting_has_its_record_s_place_and_its_bounds() -> None:
    line = Record(0, 4, 9, 12.5, b" \xff" + b"w" * 600, historical=True)
    found = sighting(line, check="own", code="own:x", details={"a": "y" * 300, "b": ""})
    assert (found.source, found.source_seq, found.at) == (SOURCE, 9, 12.5)
    assert found.historical
    assert found.message == "\\xff" + "w" * (LONGEST_MESSAGE - 4)
    assert found.details == {"a": "y" * LONGEST_DETAIL}
    told = sighting(line, check="own", code="own:x", message="m" * 600)
    assert (told.message, told.details) == ("m" * LONGEST_MESSAGE, {})
