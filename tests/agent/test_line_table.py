"""The table of kernel lines: each row has a genuine line, a source, and a code of the catalogue."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.policy.defaults import read_policy
from nodeagent.checks.kernel_lines import ROWS, SPECS, TABLE, KernelLines, LineRow
from nodeagent.checks.line_pattern import line_pattern, starts
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Record
from nodeagent.terminal.kmsg_file import AnyPlaces
from tests.agent.kernel_log import (
    FIXTURES,
    GPU,
    UUID,
    HandClock,
    fixture_records,
    pci_device,
    record,
)
from tests.agent.line_checks import faults, node_check
from tests.agent.test_disk_io import a_machine, device, made_of

CATALOGUE = read_policy().catalogue
EACH = [(name, at) for name, rows in ROWS.items() for at in range(len(rows))]
each_row = pytest.mark.parametrize(("name", "at"), EACH, ids=str)
GENUINE = [
    each.text
    for path in sorted(FIXTURES.glob("*.log"))
    if not path.name.startswith("forged")
    for each in fixture_records(path.name)
]


CHECKS = {name: KernelLines(name, rows, AnyPlaces()) for name, rows in ROWS.items()}


def rows_of(line: bytes) -> Iterator[tuple[str, int]]:
    """The rows by which a line is read."""
    for name, check in CHECKS.items():
        for row in check.rows(line):
            if row.match(line) is not None:
                yield name, ROWS[name].index(row)
                break


BY_ROW = {key: line for line in GENUINE for key in rows_of(line)}


@each_row
def test_every_row_has_a_line_that_a_kernel_prints(name: str, at: int) -> None:
    assert (name, at) in BY_ROW, ROWS[name][at].pattern.compiled.pattern


@each_row
def test_every_row_begins_with_fixed_bytes_or_after_a_device(name: str, at: int) -> None:
    row = ROWS[name][at]
    assert row.of == "pci" or all(starts(row.pattern)), "it would cost a match for each record"


@each_row
def test_every_code_is_of_a_class_of_the_catalogue(name: str, at: int) -> None:
    kind = ROWS[name][at].kind
    assert not kind or CATALOGUE.classify(f"{name}:{kind}") != "unknown"


def test_every_row_names_its_source() -> None:
    table = tomllib.loads(TABLE.read_text())
    lines = [line for name in ROWS for line in table[name]["lines"]]
    assert all(line["in"] for line in lines)
    known = {"head", "any", "tail", "of", "kind", "component", "clears", "details", "in", "drivers"}
    assert {key for line in lines for key in line} <= known


def altered(row: LineRow, line: bytes, data: st.DataObject) -> Record:
    cut = data.draw(st.integers(0, len(line)))
    rest = data.draw(st.binary(max_size=60)) * data.draw(st.sampled_from([1, 400]))
    return record(line[:cut] + rest + (line[cut:] if data.draw(st.booleans()) else b""))


@pytest.mark.parametrize("name", ROWS)
@settings(max_examples=1000)
@given(data=st.data())
def test_no_damage_to_a_row_s_line_breaks_it(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ROWS[name]) - 1))
    check = KernelLines(name, ROWS[name], AnyPlaces())
    for fault in check.read(altered(ROWS[name][at], BY_ROW[name, at], data)):
        assert len(fault.message) <= 512
        assert all(len(value) <= 128 for value in fault.details.values())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abcdef", {b"abcd"}),
        ("ab(?:cd|e)f", {b"abcd", b"abef"}),
        ("a?bcde", {b"abcd", b"bcde"}),
        ("ab{2,3}c.", {b"abbc", b"abbb"}),
        (r"a\d", {b"a%d" % digit for digit in range(10)}),
        ("ab.*", {b"ab"}),
        (".*ab", {b"", b"ab"}),
        ("(?:ab)?.", {b"", b"ab"}),
        ("(?=x)abcd", {b"abcd"}),
        ("[^a]bcd", {b""}),
    ],
)
def test_the_fixed_bytes_of_a_pattern(pattern: str, expected: set[bytes]) -> None:
    assert starts(line_pattern(pattern, {})) == expected
    assert starts(line_pattern(pattern, {}, shipped=True)) == expected


def test_a_full_thin_pool_is_of_the_mounts_on_its_volumes(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    pool = device(machine.sys, "253:4", "virtual/block/dm-4")
    made_of(device(machine.sys, "253:7", "virtual/block/dm-7"), pool)
    table = machine.proc / "self/mountinfo"
    table.write_text(table.read_text() + "9 1 253:7 / /thin rw - ext4 /dev/mapper/thin rw\n")
    check = node_check("disk-io", machine)
    [fault] = faults(check, record(b"device-mapper: thin: 253:4: no free data space available."))
    assert (fault.code, fault.component) == ("disk-io:pool-full", "/thin")


def test_a_suspended_pool_is_of_its_mounts_or_stands_for_them(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    table = machine.proc / "self/mountinfo"
    table.write_text(table.read_text() + "9 1 0:60 / /scratch2 rw - zfs fast/home rw\n")
    check = node_check("disk-io", machine)
    words = b" has encountered an uncorrectable I/O failure and has been suspended."
    components = [
        fault.component
        for pool in (b"fast", b"other")
        for fault in faults(check, record(b"WARNING: Pool '" + pool + b"'" + words))
    ]
    assert components == ["/scratch2", "other"]


def test_a_line_about_a_device_that_the_node_lacks_is_counted(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:3b:00.0", "0x030200")
    check = node_check("iommu", HostRoots(HandClock(), sys=tmp_path))
    line = b"DMAR: VT-d detected Invalidation Time-out Error: SID "
    assert [f.component for f in faults(check, record(line + b"3b00"))] == ["pci:0000:3b:00"]
    assert faults(check, record(line + b"af00")) == []
    assert check.foreign == 1
    assert [f.component for f in faults(check, record(line + b"ffff"))] == [""]
    assert SPECS["iommu"].name == "iommu"


def test_a_gpu_that_does_not_come_back_is_named_by_its_uuid(tmp_path: Path) -> None:
    pci_device(tmp_path, f"{GPU}.0", "0x030200")
    machine = HostRoots(HandClock(), sys=tmp_path)
    check = node_check("pci-device", machine, GpuMap(machine, {GPU: UUID}))
    line = f"vfio-pci {GPU}.0: not ready 65535ms after FLR; giving up"
    [fault] = faults(check, record(line.encode()))
    assert (fault.code, fault.component) == ("pci-device:not-ready", UUID)
