"""parse-kmsg on one log in every form in which people send it; no form lets a tenant forge a fault.

The fixtures are the output of the real tools (tests/fixtures/log_forms/README.md).
"""

import io
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodeagent.terminal.kmsg_file import decode_file, table
from nodeagent.terminal.log_file.entries import read_entries
from nodeagent.terminal.log_file.prefix import Form, Writer, parse_line
from tests.agent.damage import decodes_damaged
from tests.support.folders import fresh_folder
from tests.support.text_files import text_file

FORMS = Path(__file__).parents[1] / "fixtures/log_forms"
KERNEL = ["sxid:24007:fatal", "xid:62", "gpu-off-bus", "disk-io:lost"]
XID = "NVRM: Xid (PCI:0000:48:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

#: Forms that show a line which root wrote to /dev/kmsg like the kernel's.
WITHOUT_FACILITY = {
    *(f"dmesg-{name}" for name in ("default", "iso", "ctime", "reltime", "delta", "notime")),
    *(f"dmesg-caller-{name}" for name in ("default", "ctime", "iso", "reltime", "colour")),
    *("dmesg-delta-alone", "dmesg-colour", "journal-no-hostname", "journal-with-unit"),
    *(f"journal-short{name}" for name in ("", "-full", "-iso", "-iso-precise", "-precise")),
    *("journal-short-monotonic", "journal-short-delta", "journal-short-unix"),
}
NAMES = sorted(path.stem for path in FORMS.glob("*.log"))
SAME_LOG = [name for name in NAMES if name not in ("journal-cat", "bare-kernel")]


def codes(name: str) -> list[str]:
    return [fault["code"] for fault in decode_file(FORMS / f"{name}.log")]


@pytest.mark.parametrize("name", SAME_LOG)
def test_every_form_gives_the_same_faults_and_none_that_a_tenant_wrote(name: str) -> None:
    by_root = ["xid:79"] if name in WITHOUT_FACILITY else []
    assert codes(name) == KERNEL + by_root


@pytest.mark.parametrize("name", SAME_LOG)
def test_the_line_that_is_no_known_fault_is_reported(name: str) -> None:
    decoded = decode_file(FORMS / f"{name}.log")
    [number] = decoded.undecoded
    lines = (FORMS / f"{name}.log").read_bytes().split(b"\n")
    # An entry of several lines is reported by its first.
    assert any(b"nvAssertOkFailedNoLog" in line for line in lines[number - 1 : number + 30])
    assert f"1 line mentions NVRM and was not decoded: {number}" in table(decoded)


def test_bare_lines_of_the_kernel_are_decoded() -> None:
    found = list(decode_file(FORMS / "bare-kernel.log"))
    assert [fault["code"] for fault in found] == ["xid:45"] * 3
    assert [fault["time_seconds"] for fault in found] == [None, None, 81.042]


@pytest.mark.parametrize(
    "name",
    [
        *("dmesg-default", "dmesg-caller-decode", "dmesg-json", "console", "kmsg-raw"),
        *("journal-short-monotonic", "journal-verbose", "journal-export", "journal-json-pretty"),
        "syslog-5424",
    ],
)
def test_the_kernels_stamp_is_read_where_the_form_has_it(name: str) -> None:
    times = {fault["code"]: fault["time_seconds"] for fault in decode_file(FORMS / f"{name}.log")}
    assert times["xid:62"] == pytest.approx(1002.505406)


@pytest.mark.parametrize(
    "line",
    [
        f"Apr 22 21:23:52 gpu-7 app[4711]: kernel: {XID}",
        f"Apr 22 21:23:52 gpu-7 app: kernel: {XID}",
        f"Apr 22 21:23:52 app: kernel: {XID}",
        f"Apr 22 21:23:52 gpu-7 kernel[4711]: {XID}",
        f"Apr 22 21:23:52 gpu-7 user.warn kernel: {XID}",
        f"2026-04-22T21:23:52.123456+00:00 gpu-7 app[1]: host kernel: {XID}",
        f"Wed 2026-04-22 21:23:52 UTC gpu-7 app.service/kernel[1]: {XID}",
        f"1776893032.505406 gpu-7 app[1]: kernel: {XID}",
        f"<11>{XID}",
        f"<11>kernel: {XID}",
        f"<14>1 2026-04-22T21:23:52Z gpu-7 kernel - - - {XID}",
        f"<6>1 2026-04-22T21:23:52Z gpu-7 kernel 4711 - - {XID}",
        f"<6>1 2026-04-22T21:23:52Z gpu-7 app - - - kernel: {XID}",
        f'<6>1 2026-04-22T21:23:52Z gpu-7 app - - [a b="\\] kernel - - - "] {XID}',
        f"user  :warn  : [   81.042000] {XID}",
        f"daemon:info  : 2026-04-22T21:23:52,123456+00:00 {XID}",
        f"10.5.0.3: user: warning: [2022-07-28T11:49:44.873616063Z]: {XID}",
        f"12,1003,81003000,-;{XID}",
        f"2026-04-22 21:23:52 {XID}",
        f"gpu-7 login: [   81.042000] {XID}",
    ],
)
def test_the_line_of_a_program_is_not_the_kernels(tmp_path: Path, line: str) -> None:
    log = text_file(tmp_path / "log", f"[    0.000000] Linux version 6.1.0\n{line}\n")
    decoded = decode_file(log)
    assert list(decoded) == []
    assert decoded.undecoded + decoded.continued + decoded.foreign == [2]


TAIL = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1[11878]: hi"


@pytest.mark.parametrize(
    "line",
    [
        f"Nov 23 16:31:39 vm kernel: {TAIL}",
        f"Nov 23 16:31:39 vm kernel: [   81.042000] {TAIL}",
        "Nov 23 16:31:39 vm kernel: NVRM: GPU at 0000:3b:00.0 has fallen off the bus.[1]: hi",
        "Nov 23 16:31:39 vm kernel: nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 24007, Fatal[1]: hi",
        f"2026-11-23T16:31:39+00:00 vm kernel: {TAIL}",
        f"2026-11-23T16:31:39,123456+00:00 vm kernel: {TAIL}",
        f"Mon 2026-11-23 16:31:39 UTC vm kernel: {TAIL}",
        f"1795451499.505406 vm kernel: {TAIL}",
        f"[   81.042000] vm kernel: {TAIL}",
        f"[   81.042000] kernel: {TAIL}",
    ],
)
def test_a_program_that_calls_itself_by_a_line_of_the_kernel_is_not_the_kernel(
    tmp_path: Path, line: str
) -> None:
    """journalctl prints any SYSLOG_IDENTIFIER as it is, then the process id."""
    log = text_file(tmp_path / "log", f"{line}\n")
    decoded = decode_file(log)
    assert (list(decoded), decoded.undecoded) == ([], [])
    assert decoded.foreign == ([1] if TAIL in line else [])


@pytest.mark.parametrize(
    "name", ["xid-variants", "sxid", "nvidia-lines", "nvidia-driver", "h200-lines"]
)
def test_no_line_of_the_driver_looks_like_a_programs_name(name: str) -> None:
    for raw in (FORMS.parent / f"kmsg/{name}.log").read_bytes().splitlines():
        text = raw.partition(b";")[2]
        assert parse_line(b"Nov 23 16:31:39 vm kernel: " + text).writer is Writer.KERNEL, text


@pytest.mark.parametrize(
    "line",
    [
        f"Apr 22 21:23:52 gpu-7 kernel: {XID}",
        f"Apr  2 21:23:52 gpu-7 kernel: [   81.042000] {XID}",
        f"Apr 22 2026 21:23:52 gpu-7 kernel: {XID}",
        f"2026-04-22T21:23:52,123456+00:00 gpu-7 kernel: [   81.042000] {XID}",
        f"Apr 22 21:23:52 kernel: {XID}",
        f"Apr 22 21:23:52 gpu-7 kern.warn kernel: [   81.042000] {XID}",
        f"<4>Apr 22 21:23:52 gpu-7 kernel: {XID}",
        f"212 <4>1 2026-04-22T21:23:52Z gpu-7 kernel - - - {XID}",
        f'<4>1 2026-04-22T21:23:52Z gpu-7 kernel - - [o@1 a="\\]"][p] \ufeff{XID}',
        f"<4>[   81.042000][    C0] {XID}",
        f"kern  :warn  : [   81.042000] [  T123] {XID}",
        f"[2026-04-22T21:23:52.123Z] [   81.042000] {XID}",
        f"2026-04-22 21:23:52 [   81.042000] {XID}",
        f"kern: warning: [2022-07-28T11:49:44.873616063Z]: {XID}",
        f"[Fri Aug 30 11:43:09 2024] {XID}",
        f"[   81.042000 <    0.000012>] {XID}",
        f"[  +0.000012] {XID}",
        f"\x1b[32m[   81.042000] \x1b[0m\x1b[33m{XID}\x1b[0m\r\r",
    ],
)
def test_the_line_of_the_kernel_is_decoded(tmp_path: Path, line: str) -> None:
    for indent in ("", "    ", "\t"):
        log = tmp_path / "log"
        log.write_text(f"{indent}{line}\n", encoding="utf-8")
        assert [fault["code"] for fault in decode_file(log)] == ["xid:79"]


OFF_BUS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:20b5)#012NVRM: installed in this system has"
    "#012NVRM: fallen off the bus and is not responding to commands."
)


@pytest.mark.parametrize(
    "head",
    [
        "Feb 14 05:03:41 gpu-1 kernel: ",
        "2026-02-14T05:03:41.123456+00:00 gpu-1 kernel: [   81.042000] ",
        "<3>Feb 14 05:03:41 gpu-1 kernel: ",
        "<3>1 2026-02-14T05:03:41Z gpu-1 kernel - - - ",
    ],
)
def test_a_newline_that_rsyslog_escaped_is_one_of_the_record(tmp_path: Path, head: str) -> None:
    """rsyslog's escapeControlCharactersOnReceive writes "#" and three octal digits."""
    log = tmp_path / "log"
    log.write_text(f"{head}{OFF_BUS}\n{head}tmpfs: Unknown parameter 'x#012{XID}'\n")
    assert [(fault["line"], fault["code"]) for fault in decode_file(log)] == [(1, "gpu-off-bus")]
    log.write_text(f"[   81.042000] {OFF_BUS}\n")
    assert list(decode_file(log)) == []


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"\ufeff[   81.042000] {XID}\r\n", encoding="utf-8")
    assert [fault["code"] for fault in decode_file(log)] == ["xid:79"]


def test_dmesg_leaves_out_a_facility_that_it_has_no_name_for(tmp_path: Path) -> None:
    """As of a line that root wrote with priority 130, by dmesg -x of util-linux 2.38."""
    log = text_file(tmp_path / "log", f"kern  :info  : [  826.1] x\n[  827.775358] {XID}\n")
    assert (list(decode_file(log)), decode_file(log).foreign) == ([], [2])
    item = {"time": 827.775358, "msg": XID}
    log.write_text(json.dumps({"dmesg": [item]}, indent=3))
    assert (list(decode_file(log)), decode_file(log).foreign) == ([], [3])


@pytest.mark.parametrize("more", [0, 2000])
def test_a_log_that_jq_wrote_on_one_line_is_decoded(tmp_path: Path, more: int) -> None:
    """As ``dmesg --json | jq -c``: a line that is longer than any record."""
    log = tmp_path / "log"
    whole = json.loads((FORMS / "dmesg-json.log").read_text())
    whole["dmesg"] = [{"pri": 6, "time": 1.0, "msg": "x" * 80}] * more + whole["dmesg"]
    log.write_text(json.dumps(whole, separators=(",", ":")) + "\n")
    assert [fault["code"] for fault in decode_file(log)] == KERNEL
    assert decode_file(log).undecoded == [1]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (json.dumps({"event": f"{XID}\n", "stream": "stdout"}) + "\n", [1]),
        (json.dumps([{"timestamp": "x", "text": XID}, XID]) + "\n", [1, 1]),
        (json.dumps({"text": XID}, indent=2) + "\n", [1]),
        (json.dumps({"MESSAGE": "x"}) + "\n" + json.dumps({"log": XID}) + "\n", [2]),
        (f'{{"MESSAGE":"x"}}\n[   81.042000] {XID}\n', [2]),
        (f'{{\n"MESSAGE":"x"\n}}\n{XID}\n{XID}\n', [4, 5]),
        (f'{{\n"MESSAGE":"x"\n{XID}\n{{"a":1}}\n', [1]),
        (f'{{\n"MESSAGE":"{XID}"\n', [1]),
    ],
)
def test_json_of_another_tool_and_text_beside_json_are_reported(
    tmp_path: Path, text: str, numbers: list[int]
) -> None:
    log = text_file(tmp_path / "log", text)
    assert (list(decode_file(log)), decode_file(log).foreign) == ([], numbers)


STAMPED = f"[   81.042000] {XID}"


@pytest.mark.parametrize(
    ("value", "faults", "foreign"),
    [
        ({"log": f"{STAMPED}\n", "stream": "stdout", "time": "2026-04-22T21:23:52Z"}, [1, 2], []),
        ({"log": f"{XID}\r\n"}, [1, 2], []),
        ({"line": f"4,1003,81042000,-;{XID}", "timestamp": "1776893032"}, [1, 2], []),
        ({"message": f"Apr 22 21:23:52 gpu-7 kernel: {XID}", "host": "gpu-7"}, [1, 2], []),
        ({"message": XID, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}, [1, 2], []),
        ({"message": XID, "appname": "kernel", "facility": "kern"}, [1, 2], []),
        ({"message": f"Apr 22 21:23:52 gpu-7 app[1]: {XID}"}, [], [1, 2]),
        ({"message": f"12,1003,81042000,-;{XID}"}, [], [1, 2]),
        ({"message": XID, "_TRANSPORT": "syslog"}, [], [1, 2]),
        ({"message": XID, "_transport": "kernel", "syslog_facility": "1"}, [], [1, 2]),
        ({"message": XID, "SYSLOG_IDENTIFIER": "app"}, [], [1, 2]),
        ({"message": XID, "appname": "app"}, [], [1, 2]),
        ({"message": f"tmpfs: Unknown parameter 'x\n{XID}'"}, [], []),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_line_that_a_tool_has_put_into_json_is_read_as_a_line_of_text(
    tmp_path: Path,
    value: dict[str, str],
    faults: list[int],
    foreign: list[int],
    indent: int | None,
) -> None:
    log = tmp_path / "log"
    text = json.dumps(value, indent=indent) + "\n"
    log.write_text(text + text.replace("has fallen", "has  fallen"))
    first, second = 1, 1 + text.count("\n")
    lines = {1: first, 2: second}
    found = decode_file(log)
    assert [fault["line"] for fault in found] == [lines[each] for each in faults]
    assert found.foreign == [lines[each] for each in foreign]


def test_a_record_of_three_lines_in_three_json_values_is_one_fault(tmp_path: Path) -> None:
    log = tmp_path / "log"
    record = (
        "[  81.0] NVRM: The NVIDIA GPU 0000:3b:00.0",
        "[  81.0] NVRM: (PCI ID: 10de:20b5) installed in this system has",
        "[  81.0] NVRM: fallen off the bus and is not responding to commands.",
    )
    values = [json.dumps({"log": f"{line}\n"}) for line in record]
    log.write_text("\n".join(values) + "\n")
    assert [(fault["line"], fault["code"]) for fault in decode_file(log)] == [(1, "gpu-off-bus")]
    beside = json.dumps({"log": "x", "appname": "app"})
    log.write_text("\n".join([values[0], beside, *values[1:]]) + "\n")
    assert list(decode_file(log)) == []


@pytest.mark.parametrize("indent", ["", "              ", "\t"])
def test_the_second_line_of_a_record_is_no_record(tmp_path: Path, indent: str) -> None:
    """A user makes the kernel, or a program, log a newline; some tools print it as it is."""
    log = text_file(tmp_path / "log", f"[   81.0] tmpfs: Unknown parameter 'x\n{indent}{XID}\n")
    decoded = decode_file(log)
    assert list(decoded) == []
    assert decoded.continued == [2]


def test_the_rest_of_an_undecoded_record_is_not_said_to_be_a_programs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[   50.8] NVRM: A new report: the client has the version 550.54.14, but\n"
        "          NVRM: this kernel module has the version 550.54.15.  Please\n"
        "          NVRM: make sure that this kernel module and all NVIDIA driver\n"
        "[   50.9] x\n"
        "Apr 22 21:23:52 gpu-7 app[1]: a\n"
        "          NVRM: b\n"
    )
    rest = "since they continue the record of an earlier line"
    assert decode_file(log).notes() == [
        "1 line mentions NVRM and was not decoded: 1",
        f"2 lines mention NVRM and were not decoded, {rest}: 2, 3",
        "1 line mentions NVRM and was not the kernel's, so not decoded: 6",
    ]


def test_a_kernel_text_that_looks_like_a_host_does_not_change_the_form(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"[ 1.0] Linux version 6.1.0\n[ 2.0] x kernel: {XID}\n[ 3.0] {XID}\n")
    assert [fault["line"] for fault in decode_file(log)] == [3]


HEADS = [
    "Apr 22 21:23:52 gpu-7 app[4711]: ",
    "Apr 22 21:23:52 gpu-7 app: ",
    "2026-04-22T21:23:52.123456+00:00 gpu-7 app[1]: ",
    "Wed 2026-04-22 21:23:52 UTC gpu-7 app.service[1]: ",
    "1776893032.505406 gpu-7 app[1]: ",
    "<14>1 2026-04-22T21:23:52Z gpu-7 app - - - ",
    "<11>",
    "user  :warn  : ",
    "10.5.0.3: user: warning: [2022-07-28T11:49:44.873616063Z]: ",
    "12,1003,81003000,-;",
]
PIECES = st.sampled_from(
    [
        *("kernel: ", "[   81.042000] ", "[ T12] ", "<4>", "kern  :warn  : ", "kern: warning: "),
        *("Apr 22 21:23:52 ", "gpu-7 ", "2026-04-22T21:23:52,123+00:00 ", "4,1,2,-;", "\x1b[0m"),
        *("[2022-07-28T11:49:44.873616063Z]: ", '"_TRANSPORT" : "kernel",', "{", "}", "\r", XID),
        *("x", ": ", "- ", " "),
    ]
)


@given(head=st.sampled_from(HEADS), text=st.lists(PIECES, max_size=8))
@example(head=HEADS[1], text=["kernel: ", XID])
def test_whatever_a_program_logs_on_a_line_is_not_the_kernels(head: str, text: list[str]) -> None:
    log = io.BytesIO(f"{head}{''.join(text)}{XID}\n".encode())
    assert [entry.record for entry in read_entries(log)] == [None]


@given(line=st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=12).map("".join)))
def test_no_line_breaks_the_reader_of_prefixes(line: bytes | str) -> None:
    raw = line.encode() if isinstance(line, str) else line
    for form in (Form(), Form(b"gpu-7"), Form(facilities=True)):
        found = parse_line(raw, form)
        assert found.writer in Writer
        assert len(found.text) <= len(raw)


@given(data=st.data())
def test_no_damage_to_a_log_of_any_form_breaks_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes overwritten, cut out and doubled, anywhere: the lengths of an export too."""
    raw = (FORMS / f"{data.draw(st.sampled_from(NAMES))}.log").read_bytes()
    decodes_damaged(raw, fresh_folder(tmp_path_factory, "log") / "log", data, most=10)


@given(raw=st.binary(max_size=2000), head=st.sampled_from([b"", b"__CURSOR=s\nMESSAGE\n", b"{\n"]))
def test_no_garbage_breaks_it(raw: bytes, head: bytes) -> None:
    for entry in read_entries(io.BytesIO(head + raw)):
        assert entry.number >= 1


@pytest.mark.parametrize("head", ["{\n", "[" * 5000, '{"MESSAGE":' * 5000, "__CURSOR=\nMESSAGE\n"])
@pytest.mark.parametrize("filler", ["}\n", "{\n", '"a" : 1,\n', "[   1.0] x\n", "<4>", "\n \n"])
def test_a_large_file_of_one_piece_is_read_in_a_moment(head: str, filler: str) -> None:
    """Each piece is looked at once: a square of it would take minutes."""
    log = io.BytesIO((head + filler * ((1 << 17) // len(filler))).encode())
    assert sum(1 for _ in read_entries(log)) <= 1 << 17


def test_the_lines_of_an_object_are_searched_for_a_text_once() -> None:
    """Not for each bracket after them: that would be 4 thousand million searches."""
    log = "{\n" + '"a": 1,\n' * (1 << 16) + '"message": "x",\n' + "{\n" * (1 << 16)
    assert sum(1 for _ in read_entries(io.BytesIO(log.encode()))) == 1


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (XID, True),
        (list(XID.encode()), True),  # journald's way with a message that is not printable
        ([XID, "another"], False),  # a field that was set twice, which the kernel's never is
        (f"x\n{XID}", False),
        (None, False),
        ({"a": XID}, False),
        ([256], False),
    ],
)
def test_a_message_of_the_journal_in_each_shape(
    tmp_path: Path, message: object, *, fault: bool
) -> None:
    log = tmp_path / "log"
    for indent in (None, 2):
        entry = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": message}
        log.write_text(json.dumps(entry, indent=indent) + "\n")
        assert [found["code"] for found in decode_file(log)] == ["xid:79"] * fault


@pytest.mark.parametrize(
    "changes",
    [{"_TRANSPORT": "syslog"}, {"_TRANSPORT": None}, {"SYSLOG_FACILITY": "1"}],
)
def test_an_entry_of_the_journal_that_is_not_the_kernels(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    entry = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": XID} | changes
    log = text_file(tmp_path / "log", json.dumps(entry) + "\n")
    decoded = decode_file(log)
    assert (list(decoded), decoded.foreign) == ([], [1])


def test_a_value_that_is_longer_than_the_file_ends_the_export() -> None:
    log = io.BytesIO(b"__CURSOR=s\n_TRANSPORT=kernel\nMESSAGE\n" + b"\xff" * 8 + XID.encode())
    [entry] = read_entries(log)
    assert entry.record is not None
    assert entry.text == XID.encode()


def test_many_lines_are_named_by_the_first_twenty(tmp_path: Path) -> None:
    log = text_file(tmp_path / "log", "[    1.0] NVRM: a word that no release has printed\n" * 25)
    numbers = ", ".join(str(number) for number in range(1, 21))
    said = f"25 lines mention NVRM and were not decoded: {numbers} and 5 more"
    lines = table(decode_file(log)).splitlines()
    assert " ".join(lines[1:]) == said
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("delta", [" " * 16, " <    0.000012 >", " <    0.000012*>"])
def test_a_short_delta_line_is_decoded_without_its_delta_too(tmp_path: Path, delta: str) -> None:
    path = text_file(tmp_path / "log", f"[12345.678901{delta}] gpu-7 kernel: {XID}\n")
    assert [fault["code"] for fault in decode_file(path)] == ["xid:79"]
