"""Kernel log lines of drivers and of the kernel itself: each line's code and component."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeagent.checks.base import LogCheck
from nodeagent.checks.by_start import ChecksByStart
from nodeagent.checks.kernel_lines import KernelLines
from nodeagent.checks.xid import XidCheck
from nodeagent.evidence.latch import Latch
from nodeagent.kernel_feed import read
from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources.driver_log import DriverLog
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import GPU, UUID, HandClock, fixture_records, gpu_map, record
from tests.agent.line_checks import faults, line_check, node_check
from tests.agent.test_pcie_aer import NIC, PORT, a_bus


def seen(checks: Sequence[LogCheck], fixture: str) -> dict[int, FaultSighting]:
    """The faults by the index of their line; no line has two."""
    found: dict[int, FaultSighting] = {}
    for at, each in enumerate(fixture_records(fixture)):
        for check in checks:
            for fault in faults(check, each):
                assert at not in found, each.text
                found[at] = fault
    return found


def codes(found: dict[int, FaultSighting]) -> list[tuple[str, int]]:
    """The codes in their order, each with the number of lines in a row that have it."""
    runs: list[tuple[str, int]] = []
    for at in range(max(found) + 1):
        code = found[at].code if at in found else "-"
        if runs and runs[-1][0] == code:
            runs[-1] = (code, runs[-1][1] + 1)
        else:
            runs.append((code, 1))
    return runs


def adapters(sys: Path) -> KernelLines:
    """A node with an adapter, its interface and a bond."""
    machine = HostRoots(clock=HandClock(), sys=a_bus(sys))
    for name in ("eth0", "bond0"):
        (sys / "class/net" / name).mkdir(parents=True)
    return node_check("nic-driver", machine)


def test_every_line_of_a_network_driver_or_a_bond_has_its_code(tmp_path: Path) -> None:
    check = adapters(tmp_path)
    found = seen([check], "nic-driver.log")
    assert codes(found) == [
        ("nic-driver:power", 1),
        ("nic-driver:temperature", 2),
        ("nic-driver:health", 3),
        ("nic-driver:unrecoverable", 5),
        ("nic-driver:health", 1),
        ("nic-driver:command-timeout", 3),
        ("-", 1),
        ("nic-driver:cable", 1),
        ("nic-driver:transmit-timeout", 6),
        ("nic-driver:device-error", 3),
        ("nic-driver:transmit-timeout", 3),
        ("nic-driver:bond-member-down", 3),
        ("nic-driver:bond-down", 1),
        ("nic-driver:bond-member-down", 4),
        ("nic-driver:transmit-timeout", 4),
        ("nic-driver:health", 1),
    ]
    assert {found[at].component for at in range(26) if at != 15} == {f"pci:{NIC}"}
    assert [found[at].component for at in range(26, 33)] == ["eth0"] * 3 + ["bond0"] * 4
    assert dict(found[0].details) == {"driver": "mlx5_core", "interfaces": "eth0 mlx5_0"}
    assert {found[at].details["member"] for at in (*range(29, 32), *range(33, 37))} == {"eth0"}
    assert check.foreign == 2, "an adapter and an interface of another machine"


def test_an_interface_s_name_is_no_path(tmp_path: Path) -> None:
    check = adapters(tmp_path)
    for name in ("..", ".", "eth77"):
        line = f"NETDEV WATCHDOG: {name} (mlx5_core): transmit queue 3 timed out"
        assert check.read(record(line.encode())) == ()
    assert check.foreign == 3


def test_every_line_of_the_nvidia_driver_has_its_code(tmp_path: Path) -> None:
    gpus = gpu_map(tmp_path / "sys")
    gpus.learn(GPU, UUID)
    check = node_check("nvidia-driver", HostRoots(HandClock(), sys=tmp_path / "sys"), gpus)
    found = seen([check], "nvidia-driver.log")
    assert codes(found) == [
        ("nvidia-driver:init-failed", 4),
        ("nvidia-driver:uvm-fatal", 4),
        ("nvidia-driver:nvlink", 8),
        ("nvidia-driver:peermem", 4),
        ("-", 6),
        ("nvidia-driver:init-failed", 1),
    ]
    assert [found[at].component for at in range(5)] == [UUID, UUID, "", "", ""]
    assert found[0].details == {"status": "(0x62:0xffff:1863)", "pci": GPU}
    assert [found[at].cleared_by for at in (0, 4, 8)] == [
        ClearedBy.GPU_RESET,
        ClearedBy.GPU_RESET,
        ClearedBy.EXPIRY,
    ]
    assert check.foreign == 1


def test_a_gpu_that_does_not_start_was_not_reset_by_the_driver_s_load(tmp_path: Path) -> None:
    log = DriverLog()
    machine = HostRoots(HandClock(), sys=tmp_path)
    check = node_check("nvidia-driver", machine, GpuMap(machine, {GPU: UUID}), log)
    log.loaded(1.0)
    assert log.has_reset(GPU, 0.0)
    check.read(record(f"NVRM: GPU {GPU}.0: RmInitAdapter failed! (0x62:0x0:1)".encode()))
    assert not log.has_reset(GPU, 0.0)


def kernel_checks(sys: Path) -> list[LogCheck]:
    machine = HostRoots(clock=HandClock(), sys=a_bus(sys))
    return [
        *(line_check(name) for name in ("kernel-oops", "cpu-thermal", "kernel-limits")),
        *(line_check(name) for name in ("file-server", "oom", "hung-task", "machine-check")),
        node_check("pcie-aer", machine, GpuMap(machine, {GPU: UUID})),
    ]


def test_every_line_of_the_kernel_itself_has_its_code(tmp_path: Path) -> None:
    found = seen(kernel_checks(tmp_path), "kernel-lines.log")
    assert codes(found) == [
        ("kernel-oops:bug", 5),
        ("kernel-oops:warning", 1),
        ("kernel-oops:bug", 4),
        ("kernel-oops:oops", 10),
        ("kernel-oops:panic", 2),
        ("cpu-thermal:throttled", 3),
        ("cpu-thermal:power-limit", 1),
        ("cpu-thermal:critical", 3),
        ("kernel-limits:files", 1),
        ("kernel-limits:pids", 1),
        ("file-server:not-responding", 3),
        ("file-server:state-lost", 1),
        ("file-server:evicted", 2),
        ("file-server:connection-lost", 2),
        ("file-server:evicted", 1),
        ("oom:node", 1),
        ("oom:cgroup", 1),
        ("oom:node", 1),
        ("hung-task:rcu-stall", 4),
        ("hung-task:hard-lockup", 1),
        ("hung-task:workqueue-lockup", 1),
        ("machine-check:fatal", 2),
        ("machine-check:uncorrected", 1),
        ("pcie-aer:not-recovered", 5),
        ("pcie-aer:unstated", 2),
        ("pcie-aer:non-fatal", 1),
        ("pcie-aer:link-down", 5),
        ("pcie-aer:slot-power", 1),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"BUG: using smp_processor_id() in preemptible [00000000] code: python3/4711",
        b"BUG: Bad rss-counter state mm:00000000f2d5a3c1 type:MM_ANONPAGES val:1",
        b"BUG: sleeping function called from invalid context at mm/slab.h:412",
        b"BUG: scheduling while atomic: python3/4711/0x00000002",
    ],
)
def test_a_warning_of_the_kernel_s_own_checks_expires(line: bytes) -> None:
    (found,) = line_check("kernel-oops").read(record(line))
    assert (found.code, found.cleared_by) == ("kernel-oops:warning", ClearedBy.EXPIRY)


def test_a_gpu_that_does_not_start_and_has_no_address_expires(tmp_path: Path) -> None:
    check = line_check("nvidia-driver")
    (found,) = check.read(record(b"NVRM: RmInitAdapter failed! (0x26:0xffff:1096)"))
    assert (found.component, found.cleared_by) == ("", ClearedBy.EXPIRY)


def test_the_details_of_the_kernel_s_own_lines(tmp_path: Path) -> None:
    found = seen(kernel_checks(tmp_path), "kernel-lines.log")
    details = {fault.code: dict(fault.details) for fault in reversed(found.values())}
    assert details["kernel-oops:oops"] == {"what": "Oops", "number": "1"}
    assert found[14].details == {"what": "general protection fault", "number": "2"}
    assert found[19].details["what"] == "synchronous external abort"
    assert details["cpu-thermal:throttled"] == {"cpu": "12", "part": "package", "events": "31"}
    assert details["kernel-limits:pids"] == {"cgroup": "/kubepods/burstable/pod1f0e/c1"}
    assert details["oom:cgroup"] == {"pid": "812", "name": "my (odd), name"}
    assert details["hung-task:workqueue-lockup"] == {"seconds": "32"}
    assert details["machine-check:fatal"] == {
        "by": "serror",
        "cpu": "3",
        "status": "0x00000000be000011",
    }
    assert details["pcie-aer:link-down"] == {"slot": "3", "pci": PORT, "behind": UUID}
    assert {fault.component for fault in found.values() if fault.check == "file-server"} == {
        *("192.0.2.1", "files.example", "scratch-OST0001", "scratch-MDT0000", "MGS")
    }


@pytest.mark.parametrize("number", [1, 17])
def test_the_first_oops_is_told_from_those_that_follow_from_it(number: int) -> None:
    [fault] = line_check("kernel-oops").read(record(f"Oops: 0002 [#{number}] SMP NOPTI".encode()))
    assert fault.details["number"] == str(number)
    assert fault.cleared_by is ClearedBy.REBOOT


def test_a_load_of_the_driver_ends_a_failure_of_unified_memory_from_before_it() -> None:
    checks = ChecksByStart(
        {
            "xid": XidCheck(GpuMap(HostRoots(HandClock()))),
            "nvidia-driver": node_check("nvidia-driver", HostRoots(HandClock())),
        }
    )
    latch = Latch(boot_id="b", epoch="e")
    failed = b"NVRM: uvm encountered global fatal error 0x60, requiring os reboot to recover."
    loaded = b"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06"
    left = []
    for seq, line in enumerate((failed, loaded, failed)):
        latch.apply(read(checks, record(line, seq=seq)), 4000.0)
        left.append(len(latch.faults))
    assert left == [1, 0, 1]
