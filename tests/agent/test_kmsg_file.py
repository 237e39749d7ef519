"""parse-kmsg on what people send: dmesg's and journald's way with long records, and garbage."""

import bz2
import gzip
import lzma
import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.terminal.kmsg_file import decode_file, table
from tests.agent.damage import decodes_damaged
from tests.agent.kernel_log import FIXTURES
from tests.support.folders import fresh_folder
from tests.support.text_files import text_file


def decoded(tmp_path: Path, text: str) -> list[tuple[int, str, str]]:
    log = text_file(tmp_path / "log", text)
    return [(entry["line"], entry["code"], entry["component"]) for entry in decode_file(log)]


def test_a_record_that_dmesg_broke_up_is_one_fault(tmp_path: Path) -> None:
    text = """\
[  81.042000] NVRM: The NVIDIA GPU 0000:3b:00.0
              NVRM: (PCI ID: 10de:20b5) installed in this system has
              NVRM: fallen off the bus and is not responding to commands.
"""
    assert decoded(tmp_path, text.replace("              ", "[  81.042000] ")) == [
        (1, "gpu-off-bus", "pci:0000:3b:00")
    ]


@pytest.mark.parametrize(
    ("fixture", "least"),
    [("public-lines", 140), ("source-lines", 530), ("h200-lines", 12), ("layer-lines", 620)],
)
def test_lines_have_the_codes_that_a_person_gives_them(fixture: str, least: int) -> None:
    told = (FIXTURES / f"{fixture}.codes").read_text().splitlines()
    codes = {int(number): code for number, code in (line.split() for line in told)}
    before = min(codes) - 1
    found = dict.fromkeys(codes, "-")
    for fault in decode_file(FIXTURES / f"{fixture}.log"):
        found[before + fault["line"]] = fault["code"]
    assert found == codes
    assert len(codes) > least


def test_of_a_healthy_gpus_lines_a_person_has_one_to_read() -> None:
    """The driver's words on its load, its settings and each GPU are known to be no fault."""
    read = decode_file(FIXTURES / "h200-lines.log")
    lines = (FIXTURES / "h200-lines.log").read_text().splitlines()
    assert ["FBHUB Interrupt detected" in lines[number - 1] for number in read.undecoded] == [True]


def test_a_syslog_file_lacks_the_space_before_a_session_or_port(tmp_path: Path) -> None:
    text = """\
Nov 21 11:22:33 host kernel: connection1:0: detected conn error (1020)
Nov 21 11:22:34 host kernel: rport-11:0-5: blocked FC remote port time out: removing target
"""
    assert decoded(tmp_path, text) == [
        (1, "disk-io:path", "session1"),
        (2, "disk-io:path", "rport-11:0-5"),
    ]


def test_lines_of_other_records_are_not_joined(tmp_path: Path) -> None:
    text = """\
[  81.0] NVRM: The NVIDIA GPU 0000:3b:00.0
[  81.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
[  81.2] NVRM: fallen off the bus and is not responding to commands.
"""
    assert decoded(tmp_path, text) == [(2, "xid:79", "pci:0000:3b:00")]


def test_every_kind_of_fault_is_decoded_without_its_machine(tmp_path: Path) -> None:
    text = """\
Nov 21 11:22:33 host kernel: I/O error, dev sda, sector 4096 op 0x0:(READ) flags 0x0 phys_seg 1
[   12.5] nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver)
[   13.5] mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 9: 8c000045000800c0
[   14.5] Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB
[   15.5] INFO: task jbd2/sda1-8:310 blocked for more than 120 seconds.
[   16.5] nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10
"""
    assert decoded(tmp_path, text) == [
        (1, "disk-io:error", "sda"),
        (2, "pcie-aer:corrected", "pci:0000:3b:00.0"),
        (3, "machine-check:corrected", ""),
        (4, "oom:node", ""),
        (5, "hung-task:blocked", ""),
        (6, "disk-io:lost", "nvme0"),
    ]


def test_of_a_line_that_does_not_end_the_beginning_alone_is_kept(tmp_path: Path) -> None:
    """Megabytes without a record: another file than the one that was meant."""
    log = tmp_path / "log"
    line = "[  81.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    log.write_text(f"{line}\n{line.replace('81.1', '82.1')}")
    os.truncate(log, 1 << 27)
    with log.open("ab") as file:
        file.write(f"\n{line.replace('81.1', '83.1')}\n".encode())
    tracemalloc.start()
    try:
        found = [(entry["line"], entry["code"]) for entry in decode_file(log)]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert found == [(1, "xid:79"), (2, "xid:79"), (3, "xid:79")]


def test_a_pipe_is_read_and_a_device_which_has_no_end_is_not(tmp_path: Path) -> None:
    line = "[  81.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(line,))
    writer.start()
    assert [entry["code"] for entry in decode_file(pipe)] == ["xid:79"]
    writer.join()
    with pytest.raises(OSError, match="it is a device; expected a file, as of: dmesg > FILE"):
        decode_file(Path("/dev/full"))


XID = b"[  81.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (
            gzip.compress(XID, mtime=0),
            r"it is compressed \(gzip\); expected text, as of: zcat FILE > OTHER",
        ),
        (lzma.compress(XID), r"it is compressed \(xz\); .* xzcat"),
        (bz2.compress(XID), r"it is compressed \(bzip2\); .* bzcat"),
        (b"\x28\xb5\x2f\xfd\x24\x5d" + XID, r"it is compressed \(zstd\); .* zstdcat"),
        (XID.decode().encode("utf-16"), "it is UTF-16; .* iconv -f UTF-16 -t UTF-8"),
        (b"\xfe\xff" + XID.decode().encode("utf-16-be"), "it is UTF-16; "),
        (XID.decode().encode("utf-16-le"), "it is UTF-16; .* iconv -f UTF-16LE "),
        (XID.decode().encode("utf-16-be"), "it is UTF-16; .* iconv -f UTF-16BE "),
        (XID.decode().encode("utf-32"), "it is UTF-32; "),
        (
            b"LPKSHHRH" + bytes(200),
            "it is a journal file; .* journalctl _TRANSPORT=kernel --file FILE >",
        ),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0>\0\n\0libc.so.6\0", "it is binary"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, raw: bytes, why: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(raw)
    with pytest.raises(OSError, match=why):
        decode_file(log)


@pytest.mark.parametrize("head", [bytes(512), bytes(512) + b"\n", b"a\0b\n", b"x" * 5000 + b"\n"])
def test_nuls_which_a_crash_left_in_a_log_are_no_reason_to_refuse_it(
    tmp_path: Path, head: bytes
) -> None:
    log = tmp_path / "log"
    log.write_bytes(head + XID + bytes(600) + b"\n" + XID)
    assert [entry["code"] for entry in decode_file(log)][-1:] == ["xid:79"]


def test_an_export_of_the_journal_with_nuls_in_a_value_is_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    value = bytes(4000) + b"\n"
    log.write_bytes(
        b"__CURSOR=s=0123456789\nDATA\n" + len(value).to_bytes(8, "little") + value + b"\n"
        b"_TRANSPORT=kernel\nMESSAGE=" + XID.partition(b"] ")[2] + b"\n"
    )
    assert [entry["code"] for entry in decode_file(log)] == ["xid:79"]


@pytest.mark.parametrize("text", ["", "\n \n", "-- No entries --\n"])
def test_a_file_without_lines_is_not_said_to_have_no_fault(tmp_path: Path, text: str) -> None:
    log = text_file(tmp_path / "log", text)
    assert table(decode_file(log)) == "this file has no line of a log"


@settings(max_examples=300)
@given(fixture=st.sampled_from(sorted(FIXTURES.glob("*.log"))), data=st.data())
def test_no_damage_to_a_log_breaks_it(
    tmp_path_factory: pytest.TempPathFactory, fixture: Path, data: st.DataObject
) -> None:
    """Bytes overwritten, cut out and doubled, anywhere."""
    raw = fixture.read_bytes()
    decodes_damaged(raw, fresh_folder(tmp_path_factory, "log") / "log", data, most=20)


FILLERS = (b"x", b"\xff", b"\0", b"\\x0a", b" IN= OUT= ", b"0x0 ")


@pytest.mark.parametrize(
    ("filler", "half"),
    [
        *((filler, at % 2) for at, filler in enumerate(FILLERS)),
        *(pytest.param(f, 1 - at % 2, marks=pytest.mark.slow) for at, f in enumerate(FILLERS)),
    ],
)
def test_a_line_of_100_kb_is_cheap(tmp_path: Path, filler: bytes, half: int) -> None:
    """Half of the fixtures' lines with each filler, and the other half where time allows."""
    log, names = tmp_path / "log", sorted(FIXTURES.glob("*.log"))
    starts = [line for name in names for line in name.read_bytes().splitlines()][half::2]
    log.write_bytes(b"\n".join(start + filler * (100_000 // len(filler)) for start in starts))
    for entry in decode_file(log):
        assert len(entry["message"]) <= 512
