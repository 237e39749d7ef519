"""parse-kmsg on logs of many machines, of clouds and of other systems; and on unknown forms."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.terminal.kmsg_file import decode_file, table
from nodeagent.terminal.log_file.lines import LONGEST_LINE
from tests.support.text_files import text_file

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
ENTRY = {"MESSAGE": XID, "SYSLOG_IDENTIFIER": "kernel", "_TRANSPORT": "kernel"}
OOM = "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB"


def decoded(tmp_path: Path, text: str) -> Any:
    log = text_file(tmp_path / "log", text)
    return decode_file(log)


def codes(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    return [(each.get("node", ""), each["code"]) for each in decoded(tmp_path, text)]


@pytest.mark.parametrize(
    ("prefix", "node"),
    [
        ("node17: ", "node17"),
        ("gpu-7.cluster.example: ", "gpu-7.cluster.example"),
        ("[pod/dmesg-7d9dd/dmesg] ", "dmesg-7d9dd"),
        ("[node17] ", "node17"),
        ("2026-04-22T21:23:52.123456789Z stdout F ", ""),
        ("node17 | ", "node17"),
        ("node17\t", "node17"),
        ("node[17-18]: ", "node[17-18]"),
        (" 7: ", "7"),
        ("logs/node17:31:", "logs/node17"),
        ('2026-04-22T21:23:52Z {host="node17", transport="kernel"} ', ""),
        ("> ", ""),
        ("&gt; ", ""),
        ("| ", ""),
        ("+", ""),
        ("- ", ""),
        ("     12 ", ""),
        ("node17:  ", "node17"),
        ("/var/log/kern.log:", "/var/log/kern.log"),
        ("[1,3]<stdout>: ", "3"),
        ("[prterun-node17-1@1,3]<stderr>: ", "3"),
        ("dmesg.1.x7d9@node17    | ", "dmesg.1.x7d9@node17"),
        ("node17: [pod/dmesg-7d9dd/dmesg] ", "node17"),
        ("[pod/dmesg-7d9dd/dmesg] 2026-04-22T21:23:52.123456789Z stdout F ", "dmesg-7d9dd"),
        ("> node17: 7: ", "node17"),
        ("kube-system/dmesg-7d9dd[dmesg]: ", "dmesg-7d9dd"),
        ("2026-04-22T21:23:52.123456789Z ", ""),
        ("[pod/dmesg-7d9dd/dmesg] 2026-04-22T21:23:52.123456789Z ", "dmesg-7d9dd"),
        ("dmesg-7d9dd dmesg 2026-04-22T21:23:52.123456789Z ", "dmesg-7d9dd"),
        ("Apr 22 21:23:52 ", ""),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "[  123.456789] {}",
        "[Thu Apr 23 21:25:32 2026] {}",
        "<4>[  123.456789] {}",
        "4,1,123456789,-;{}",
        "Apr 22 21:23:52 gpu-7 kernel: {}",
        "2026-04-22T21:23:52.123456+00:00 gpu-7 kernel: {}",
    ],
)
def test_the_name_of_a_machine_before_each_line_is_taken_off(
    tmp_path: Path, prefix: str, node: str, form: str
) -> None:
    text = "".join(f"{prefix}{form.format(line)}\n" for line in (XID, OOM))
    assert codes(tmp_path, text) == [(node, "xid:79"), (node, "oom:node")]


@pytest.mark.parametrize("prefix", ["node17 ", "node17  ", "node17,", "node17, ", "node17;"])
@pytest.mark.parametrize(
    "stamp",
    ["[  123.456789] ", "[Thu Apr 23 21:25:32 2026] ", "2026-04-22T21:23:52+0000 gpu-7 kernel: "],
)
def test_a_loop_names_the_machine_before_each_line(tmp_path: Path, prefix: str, stamp: str) -> None:
    text = "".join(f"{prefix}{stamp}{line}\n" for line in (XID, OOM))
    assert codes(tmp_path, text) == [("node17", "xid:79"), ("node17", "oom:node")]


def test_the_stream_of_a_cloud_is_taken_off_with_its_time(tmp_path: Path) -> None:
    line = "2026-04-22T21:23:52.000000+00:00 gpu-7/kern 2026-04-22T21:23:50+0000 gpu-7 kernel: "
    assert codes(tmp_path, "".join(f"{line}{each}\n" for each in (XID, OOM))) == [
        ("gpu-7/kern", "xid:79"),
        ("gpu-7/kern", "oom:node"),
    ]


def test_an_entry_of_the_journal_without_the_writer_s_fields_is_a_text_alone(
    tmp_path: Path,
) -> None:
    entry = {"MESSAGE": XID, "__REALTIME_TIMESTAMP": "1764421200000000", "_BOOT_ID": "3f2a"}
    assert codes(tmp_path, json.dumps(entry)) == [("", "xid:79")]
    assert codes(tmp_path, json.dumps({**entry, "_PID": "4711"})) == []


@pytest.mark.parametrize("stored", ["loki", "elasticsearch", "list"])
def test_a_long_answer_of_a_store_on_one_line_is_read_to_its_end(
    tmp_path: Path, stored: str
) -> None:
    lines = [*(f"[ {at}.000000] an ordinary line" for at in range(4000)), f"[ 4001.000000] {XID}"]
    answers: dict[str, Any] = {
        "loki": {"data": {"result": [{"stream": {}, "values": [["1", one] for one in lines]}]}},
        "elasticsearch": {"hits": {"hits": [{"_source": {"message": one}} for one in lines]}},
        "list": [{"message": one} for one in lines],
    }
    text = json.dumps(answers[stored])
    assert len(text) > 2 * LONGEST_LINE
    assert codes(tmp_path, text) == [("", "xid:79")]


def test_lines_of_the_driver_without_a_stamp_are_decoded_after_the_name_of_a_machine(
    tmp_path: Path,
) -> None:
    assert codes(tmp_path, f"node17: {XID}\nnode18: {XID}\n") == [
        ("node17", "xid:79"),
        ("node18", "xid:79"),
    ]
    assert codes(tmp_path, f"[   81.0] x\napp: {XID}\n") == []


@pytest.mark.parametrize(
    "head", ["2026-04-22 21:23:52.000000000 +0000 kernel: ", "2026-04-22T21:23:52+00:00\tkernel\t"]
)
@pytest.mark.parametrize(("writer", "found"), [("kernel", [("", "xid:79")] * 2), ("app", [])])
def test_fluentd_s_own_files_are_read_as_json(
    tmp_path: Path, head: str, writer: str, found: list[tuple[str, str]]
) -> None:
    entries = [json.dumps({"message": XID + end, "ident": writer}) for end in ("", " ")]
    assert codes(tmp_path, "".join(f"{head}{entry}\n" for entry in entries)) == found


def test_jq_prints_texts_in_quotes(tmp_path: Path) -> None:
    user_s = f"tmpfs: Unknown parameter 'x\n{XID}'"
    text = "".join(f"{json.dumps(line)}\n" for line in (XID, OOM, user_s))
    assert codes(tmp_path, text) == [("", "xid:79"), ("", "oom:node")]


@pytest.mark.parametrize("names", ["dmesg-7d9dd dmesg ", "kube-system dmesg-7d9dd dmesg "])
@pytest.mark.parametrize(
    "form",
    [
        "[  123.456789] {}",
        "2026-04-22T21:23:52.123456789Z [  123.456789] {}",
        "[Thu Apr 23 21:25:32 2026] {}",
        "Apr 22 21:23:52 gpu-7 kernel: {}",
        "<4>Apr 22 21:23:52 gpu-7 kernel: {}",
    ],
)
def test_stern_names_the_pod_before_each_line(tmp_path: Path, names: str, form: str) -> None:
    head = "+ dmesg-7d9dd \u203a dmesg\n"
    text = "".join(f"{names}{form.format(line)}\n" for line in (XID, OOM))
    assert codes(tmp_path, head + text) == [("dmesg-7d9dd", "xid:79"), ("dmesg-7d9dd", "oom:node")]


@pytest.mark.parametrize("quote", ["'", '"', ""])
@pytest.mark.parametrize("field", ["MESSAGE", "message"])
@pytest.mark.parametrize(("transport", "found"), [("kernel", 2), ("stdout", 0)])
def test_a_cloud_s_log_in_yaml_is_decoded(
    tmp_path: Path, quote: str, field: str, transport: str, found: int
) -> None:
    """Gcloud folds a long text over several lines."""
    fold = XID.replace("off the", "off\n    the")
    text = "".join(
        f"---\ninsertId: a\njsonPayload:\n  {field}: {quote}{each}{quote}\n  PRIORITY: '3'\n"
        f"  SYSLOG_FACILITY: '0'\n  _TRANSPORT: {transport}\nresource:\n  type: k8s_node\n"
        for each in (fold, OOM)
    )
    assert codes(tmp_path, text) == [("", "xid:79"), ("", "oom:node")][:found]


def test_the_machines_of_a_paste_are_told_apart(tmp_path: Path) -> None:
    text = f"node17: [  1.5] {XID}\nnode18: [  1.5] {XID}\nnode18: [  1.5] {XID}\n"
    found = decoded(tmp_path, text)
    assert [(each["line"], each["node"]) for each in found] == [(1, "node17"), (2, "node18")]
    assert "1 fault is in this file once more" in table(found)
    assert "NODE" in table(found)


@pytest.mark.parametrize(
    "text",
    [
        f"node17 | CHANGED | rc=0 >>\n[  1.5] {XID}\nnode18 | CHANGED | rc=0 >>\n[  1.5] {XID}\n",
        f"node17:\n    [  1.5] {XID}\nnode18:\n    [  1.5] {XID}\n",
        "".join(f"[{n}] 21:23:52 [SUCCESS] node1{n}\n[  1.5] {XID}\n" for n in (7, 8)),
        f"node17 dmesg [  1.5] {XID}\nnode18 dmesg [  1.5] {XID}\n",
        "".join(f"{'-' * 16}\n{n}\n{'-' * 16}\n[  1.5] {XID}\n" for n in ("node17", "node18")),
        "".join(f"=== {n} ===\n[  1.5] {XID}\n" for n in ("node17", "node18")),
        "".join(
            f"{n} | CHANGED | rc=0 | (stdout) usb 1-1\\n[  1.5] {XID}\n"
            for n in ("node17", "node18")
        ),
        "".join(f"{n}: {json.dumps(ENTRY)}\n" for n in ("node17", "node18")),
        *(
            "TASK [dmesg] ***\n" + "".join(form.format(n) for n in ("node17", "node18"))
            for form in (
                f'ok: [{{}}] => {{{{\n  "o.stdout_lines": [\n    "[  1.5] {XID}"\n  ]\n}}}}\n',
                f'changed: [{{}}] => {{{{"rc": 0, "stdout": "x\\n[  1.5] {XID}"}}}}\n',
                f'ok: [{{}} -> localhost] => {{{{\n    "msg": "[  1.5] {XID}"\n}}}}\n',
                f"ok: [{{}}] => \n  msg: |-\n    [  1.5] {XID}\n",
                f"ok: [{{}}] => \n  out.stdout_lines:\n  - '[  1.5] {XID}'\n",
            )
        ),
    ],
)
def test_the_lines_below_the_name_of_a_machine_are_its_own(tmp_path: Path, text: str) -> None:
    assert codes(tmp_path, text) == [("node17", "xid:79"), ("node18", "xid:79")]


def test_a_program_in_a_log_of_the_kernel_is_no_machine(tmp_path: Path) -> None:
    for line in (f"app: [  81.0] {XID}", f"[pod/a/b] [  81.0] {XID}", f"app | [  81.0] {XID}"):
        text = f"[    0.000000] Linux version 6.1.0\n{line}\n"
        assert codes(tmp_path, text) == [], line


@pytest.mark.parametrize(
    "line",
    [
        f"Thu Apr 22 21:23:52 2026 kern.warn kernel: [   81.042000] {XID}",
        f"<3>[   81.042000,0] {XID}",
        f"Apr 22 21:23:52 gpu-7 kernel: <3>{XID}",
        f"kernel: <3>[   81.042000] {XID}",
        f"2026-04-22T21:23:52.123Z [   81.042000] {XID}",
        f"2026-04-22T21:23:52.123Z Apr 22 21:23:52 gpu-7 kernel: [   81.042000] {XID}",
        f"2026-04-22T21:23:52.123000+00:00 gpu-7-stream [   81.042000] {XID}",
        f"22/04/2026 21:23:52 gpu-7 kernel: {XID}",
        f"22.04.2026, 21:23:52 gpu-7 kernel: {XID}",
        f"2026/04/22 21:23:52 gpu-7 kernel: {XID}",
        f"[   81.042000]\u00a0{XID}".replace(" pid", "\u00a0pid"),
        f"Apr\u00a022 21:23:52\u202fgpu-7 kernel: {XID}",
        f"Apr 22 21:23:52 gpu-7 kernel[0]: {XID}",
        f"[Wed Apr 22 21:23:52 UTC 2026] {XID}",
        f"6.8.0-100-generic,4,1000,81042000,-;{XID}",
        f"Apr 22 21:23:52 [   81.042000] {XID}",
        f"04 Aug, 14:03:26 fd183fd0-4585-374f-986e-a8595f986d1d kernel: {XID}",
        f"2026-04-22 21:23:52 +0000 UTC kern.warn kernel: {XID}",
        f"Apr 22 21:23:52.103350 gpu-7 WARNING kernel: [   81.042000] {XID}",
        f"2026-04-22T21:23:52+00:00 gpu-7 kernel[-]: {XID}",
        f"2026-04-22T21:23:52.123456789Z 4,1003,81003000,-;{XID}",
        f"11\u6708 15 14:15:47 gpu-7 kernel: {XID}",
        f"[\u4e8c 11\u6708 15 14:15:47 2023] {XID}",
        f"f\u00e9vr. 03 20:50:17 gpu-7 kernel: {XID}",
        f'{{"version": "1.1", "short_message": "{XID}", "facility": "kernel"}}',
    ],
)
def test_lines_of_other_systems_are_decoded(tmp_path: Path, line: str) -> None:
    found = decoded(tmp_path, line + "\n")
    assert [each["code"] for each in found] == ["xid:79"]
    assert found.notes() == []


@pytest.mark.parametrize(
    "line",
    [
        f"Thu Apr 22 21:23:52 2026 user.warn kernel: {XID}",
        f"Thu Apr 22 21:23:52 2026 daemon.err app[4711]: kernel: {XID}",
        f"Apr 22 21:23:52 gpu-7 kernel: <11>{XID}",
        f"Apr 22 21:23:52 gpu-7 kernel[4711]: {XID}",
        f"22/04/2026 21:23:52 gpu-7 app[4711]: {XID}",
        f"2026-04-22T21:23:52.123Z Apr 22 21:23:52 gpu-7 app[1]: kernel: {XID}",
        f"Apr 22 21:23:52 [   81.042000] {XID.replace('79', '79, [1]: x')}",
        f"Apr 22 21:23:52 gpu-7 [   81.042000] {XID}",
        f"04 Aug, 14:03:26 gpu-7 app[4711]: kernel: {XID}",
        f"2026-04-22 21:23:52 +0000 UTC user.warn kernel: {XID}",
        f"Apr 22 21:23:52.103350 gpu-7 WARNING app: kernel: {XID}",
        f"2026-04-22T21:23:52.123456789Z 12,1003,81003000,-;{XID}",
    ],
)
def test_lines_of_programs_in_these_forms_are_not(tmp_path: Path, line: str) -> None:
    assert codes(tmp_path, f"Apr 22 21:23:52 gpu-7 kernel: Linux version 6.1.0\n{line}\n") == []


def loki(line: str) -> dict[str, Any]:
    stream = {"stream": {"hostname": "node17"}, "values": [["1", line, {}], ["2", "usb 1-1"]]}
    return {"status": "success", "data": {"resultType": "streams", "result": [stream]}}


@pytest.mark.parametrize(
    "value",
    [
        loki(XID),
        loki(f"[   81.042000] {XID}"),
        loki(json.dumps(ENTRY)),
        loki(json.dumps({"log": f"[   81.042000] {XID}\n", "stream": "stdout"})),
        {"events": [{"timestamp": 1, "message": json.dumps(ENTRY)}]},
        {"results": [[{"field": "@timestamp", "value": "t"}, {"field": "@message", "value": XID}]]},
        {"_msg": XID, "_TRANSPORT": "kernel"},
        {"preview": False, "result": {"_raw": f"Apr 22 21:23:52 gpu-7 kernel: {XID}"}},
        {"plays": [{"tasks": [{"hosts": {"node17": {"stdout_lines": [f"[  1.5] {XID}"]}}}]}]},
        {"jsonPayload": ENTRY, "logName": "projects/p/logs/node-journal"},
        [{"jsonPayload": ENTRY, "resource": {"labels": {"node_name": "n1"}}}],
        {"entries": [{"jsonPayload": ENTRY}, {"jsonPayload": {**ENTRY, "MESSAGE": "usb 1-1"}}]},
        {"hits": {"hits": [{"_source": {"message": XID, "_TRANSPORT": "kernel"}}]}},
        {"events": [{"timestamp": 1, "message": f"[   81.042000] {XID}"}]},
        {"priority": 4, "sequence": 1000, "sec": 81, "usec": 42000, "msg": XID},
        {"textPayload": f"[   81.042000] {XID}"},
        {"Facility": "kern", "ProcessName": "kernel", "SyslogMessage": XID},
        {"properties": {"Facility": "kern", "ProcessName": "kernel", "SyslogMessage": XID}},
        {"InstanceId": "i-1", "Output": f"[    0.0] Linux\r\n[   81.042000] {XID}\r\n"},
        {"kind": "compute#serialPortOutput", "contents": f"[   81.042000] {XID}\n"},
        {"CommandInvocations": [{"CommandPlugins": [{"Output": f"[   81.042000] {XID}\n"}]}]},
        {"node17": f"[   81.042000] {XID}\n[   81.1] usb 1-1"},
        {"resourceLogs": [{"body": {"stringValue": f"[   81.042000] {XID}"}}]},
        {
            "scopeLogs": [
                {
                    "body": {
                        "kvlistValue": {
                            "values": [
                                {"key": key, "value": {"stringValue": each}}
                                for key, each in ENTRY.items()
                            ]
                        }
                    }
                }
            ]
        },
        {"version": "1.1", "short_message": XID, "facility": "kernel"},
        {"PROGRAM": "kernel", "MESSAGE": XID, "FACILITY": "kern"},
        {"msg": f" {XID}", "programname": "kernel", "syslogfacility-text": "kern"},
        {"msg": f" {XID}", "syslogtag": "kernel:", "syslogfacility-text": "kern"},
        {"message": f" [   81.042000] {XID}", "tag": "kernel:", "facility": "kern"},
        {"value": [{"code": "ok", "message": f"Enabled: \n[stdout]\n[   81.0] {XID}\n[stderr]\n"}]},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_of_clouds_and_stores_is_decoded(
    tmp_path: Path, value: Any, indent: int | None
) -> None:
    assert codes(tmp_path, json.dumps(value, indent=indent)) == [("", "xid:79")]


def test_the_rows_below_columns_are_entries(tmp_path: Path) -> None:
    table = {"columns": [{"name": "Facility"}, {"name": "SyslogMessage"}]}
    for facility, found in (("kern", [("", "xid:79")]), ("user", [])):
        answer = {"tables": [{**table, "rows": [[facility, XID]]}]}
        assert codes(tmp_path, json.dumps(answer)) == found


@pytest.mark.parametrize(
    ("names", "kernel_s", "program_s"),
    [
        ("Time,Line", f'"t","[   81.042000] {XID}"', None),
        ("t [UTC],Facility,SyslogMessage", f't,kern,"{XID}"', f't,user,"{XID}"'),
        ("id,jsonPayload.MESSAGE,jsonPayload._TRANSPORT", f'1,"{XID}",kernel', f'1,"{XID}",stdout'),
        ("@timestamp,@message", f'"t","[   81.042000] {XID}"', None),
    ],
)
def test_a_table_of_a_cloud_or_a_store_is_decoded(
    tmp_path: Path, names: str, kernel_s: str, program_s: str | None
) -> None:
    assert codes(tmp_path, f"{names}\n{kernel_s}\n") == [("", "xid:79")]
    if program_s is not None:
        assert codes(tmp_path, f"{names}\n{program_s}\n") == []


@pytest.mark.parametrize("writer", [{"_TRANSPORT": "syslog"}, {"SYSLOG_FACILITY": "3"}, {}])
def test_a_program_s_entry_in_a_cloud_s_json_is_not_the_kernel_s(
    tmp_path: Path, writer: dict[str, str]
) -> None:
    inner = {key: text for key, text in ENTRY.items() if key != "_TRANSPORT"} | writer
    assert codes(tmp_path, json.dumps({"jsonPayload": inner})) == []


@pytest.mark.parametrize(
    "outer",
    [
        {"_TRANSPORT": "stdout", "MESSAGE": json.dumps(ENTRY)},
        {"_TRANSPORT": "stdout", "message": json.dumps(ENTRY)},
        {"appname": "app", "message": json.dumps(ENTRY)},
        {"log": json.dumps({"message": XID, "SYSLOG_IDENTIFIER": "app"})},
        {"PROGRAM": "app", "MESSAGE": XID, "FACILITY": "kern"},
        {"PROGRAM": "kernel", "MESSAGE": XID, "FACILITY": "user"},
        {"msg": XID, "programname": "app", "syslogfacility-text": "user"},
        {"msg": XID, "syslogtag": "app:", "syslogfacility-text": "user"},
        {"message": f" [   81.042000] {XID}", "tag": "app:", "facility": "user"},
        {"appname": "app", "message": f"[stdout]\n[   81.042000] {XID}\n"},
        {"ident": "app", "Output": f"[   81.042000] {XID}\n"},
        {"version": "1.1", "short_message": XID, "facility": "app"},
    ],
)
def test_json_that_a_program_has_written_is_its_own(tmp_path: Path, outer: dict[str, str]) -> None:
    assert codes(tmp_path, json.dumps(outer)) == []


@pytest.mark.parametrize("field", [{"Facility": "user"}, {"ProcessName": "app"}])
def test_a_program_s_record_in_azure_s_log_is_not_the_kernel_s(
    tmp_path: Path, field: dict[str, str]
) -> None:
    record = {"Facility": "kern", "ProcessName": "kernel", "SyslogMessage": XID} | field
    assert codes(tmp_path, json.dumps(record)) == []


def test_every_line_of_an_unknown_form_is_counted(tmp_path: Path) -> None:
    line = "== node17 == 21:23:52 == EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2"
    found = decoded(tmp_path, f"{line}\n{line}\n")
    assert list(found) == []
    assert table(found) == "2 of 2 lines are of no known form: 1, 2"
    mixed = decoded(tmp_path, f"[    1.000000] Linux version\n{line}\n[    2.000000] {XID}\n")
    assert "1 of 3 lines is of no known form: 2" in table(mixed)


def test_the_known_lines_of_programs_are_no_unknown_form(tmp_path: Path) -> None:
    text = f"Apr 22 21:23:52 gpu-7 app[1]: hello\nApr 22 21:23:52 gpu-7 kernel: {XID}\n"
    assert decoded(tmp_path, text).unknown == []


@pytest.mark.parametrize("device", ["sr0", "fd0", "loop3"])
def test_a_virtual_cd_is_no_disk(tmp_path: Path, device: str) -> None:
    text = f"[  1.5] I/O error, dev {device}, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1\n"
    assert codes(tmp_path, text) == []
    assert codes(tmp_path, text.replace(device, "sda")) == [("", "disk-io:error")]


# -- tables, pairs, and nested JSON ---------------------------------------------------------------

STAMP = "[  123.456789] "
BOTH = ["xid:79", "oom:node"]


def each_line(form: str) -> str:
    return "".join(form.replace("TEXT", line) + "\n" for line in (XID, OOM))


def as_json(value: Any) -> str:
    return f"{json.dumps(value, indent=2)}\n"


def a_member(text: str, kind: str) -> dict[str, Any]:
    return {"EntryType": kind, "Id": "1", "Message": text, "Severity": "OK"}


def redfish(kind: str, stamp: str = STAMP) -> str:
    members = [a_member(stamp + line, kind) for line in (XID, OOM)]
    place = "/redfish/v1/Systems/1/LogServices/HostLogger/Entries"
    return as_json({"@odata.id": place, "Members": members, "Members@odata.count": 2})


def an_event(line: str, kind: str, component: str) -> dict[str, Any]:
    involved = {"kind": kind, "name": "gpu-7"}
    return {"involvedObject": involved, "message": line, "source": {"component": component}}


def events(kind: str = "Node", component: str = "kernel-monitor") -> str:
    items = [an_event(line, kind, component) for line in (XID, OOM)]
    return as_json({"kind": "List", "items": items})


def hits(program: str) -> str:
    """Elasticsearch's answer, with fields by its common schema."""
    source = {"host": {"name": "gpu-7"}, "process": {"name": program}}
    found = [{"_id": "1", "_source": {**source, "message": line}} for line in (XID, OOM)]
    return as_json({"took": 1, "hits": {"total": {"value": 2, "relation": "eq"}, "hits": found}})


def otlp(program: str) -> str:
    """OpenTelemetry's protocol in JSON."""
    writer = [{"key": "program", "value": {"stringValue": program}}]
    records = [{"body": {"stringValue": each}, "attributes": writer} for each in (XID, OOM)]
    return as_json({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})


def cee(before: str, **fields: str) -> str:
    return "".join(f"{before}{json.dumps({'msg': line, **fields})}\n" for line in (XID, OOM))


def of_pod(stamp: str) -> str:
    where = {"pod_name": "dmesg-7d9dd", "container_name": "main"}
    return "".join(
        f"{json.dumps({'log': stamp + line, 'kubernetes': where})}\n" for line in (XID, OOM)
    )


COLUMNS = "LAST SEEN   TYPE      REASON   OBJECT       MESSAGE\n"
DESCRIBED = "Events:\n  Type     Reason  Age  From            Message\n  ----     ------  ---  ----"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (each_line('ts=2026-04-22T21:23:52Z host=gpu-7 facility=kern msg="TEXT"'), BOTH),
        (each_line(f'level=info unit=dmesg msg="{STAMP}TEXT"'), BOTH),
        (each_line('level=error caller=plugin.go:33 msg="TEXT"'), []),
        (each_line('level=error facility=user msg="TEXT"'), []),
        (each_line('time=2026-04-22T21:23:52Z level=error msg="TEXT"'), []),
        (each_line('time=2026-04-22T21:23:52Z level=error msg="kernel: TEXT"'), []),
        (each_line('type=USER_CMD msg=audit(1.2:3): msg="TEXT"'), []),
        (each_line('ts=2026-04-22T21:23:52Z program=kernel msg="TEXT"'), BOTH),
        (each_line('ts=2026-04-22T21:23:52Z msg="Apr 22 21:23:52 gpu-7 kernel: TEXT"'), BOTH),
        (each_line(r'level=error app=x msg="\" facility=kern msg=\"TEXT"'), []),
        (COLUMNS + each_line("2m          Warning   Kernel   node/gpu-7   TEXT"), BOTH),
        (COLUMNS + each_line("2m          Warning   Forged   pod/gpu-7    TEXT"), []),
        (f"{DESCRIBED}\n" + each_line("  Warning  Kernel  2m   kernel-monitor  TEXT"), BOTH),
        (f"{DESCRIBED}\n" + each_line("  Warning  Kernel  2m   kubelet         TEXT"), []),
        ("Time\tFacility\tSyslogMessage\n" + each_line("21:23\tkern\tTEXT"), BOTH),
        ("Time\tFacility\tSyslogMessage\n" + each_line("21:23\tuser\tTEXT"), []),
        ("Date,Host,Message\n" + each_line(f'21:23,gpu-7,"{STAMP}TEXT"'), BOTH),
        (" time | message\n------+--------\n" + each_line(f" 21:23 | {STAMP}TEXT"), BOTH),
        ("| time | message |\n|---|---|\n" + each_line(f"| 21:23 | {STAMP}TEXT |"), BOTH),
        (redfish("Oem"), BOTH),
        (redfish("SEL", ""), []),
        (redfish("Event"), []),
        (events(), BOTH),
        (events("Pod"), []),
        (events(component="trainer"), []),
        (hits("kernel"), BOTH),
        (hits("trainer"), []),
        (hits("kernel/x"), []),
        (hits("kernel,x"), []),
        (each_line('{"message": "TEXT", "syslog_identifier": "kernel/x"}'), []),
        ('{"index": {}}\n' + each_line(f'{{"message": "{STAMP}TEXT"}}'), BOTH),
        (each_line('{"message": "TEXT", "syslog": {"facility": 3}}'), []),
        (otlp("kernel"), BOTH),
        (otlp("trainer"), []),
        (cee("@cee: ", pname="kernel", subsys="kern"), BOTH),
        (cee("@cee: ", pname="trainer"), []),
        (cee("@cee: "), []),
        (cee("Apr 22 21:23:52 gpu-7 kernel: @cee:"), BOTH),
        (cee("<3>1 2026-04-22T21:23:52Z gpu-7 kernel - - - @cee: "), BOTH),
        (cee("Apr 22 21:23:52 gpu-7 app[9]: @cee:", pname="kernel"), []),
        (each_line("1 2026-04-22T21:23:52.123Z gpu-7 kernel - - - TEXT"), BOTH),
        (each_line("1 2026-04-22T21:23:52.123Z gpu-7 app 9 - - TEXT"), []),
        (each_line("gpu-7 Apr 22 21:23:52.123456 gpu-7 kernel: TEXT"), BOTH),
        (each_line(f"[Wed Apr 22 21:23:52 2026]{STAMP}TEXT"), BOTH),
        (each_line(f'- "{STAMP}TEXT"'), BOTH),
        (as_json([STAMP + XID, STAMP + OOM]), BOTH),
        (each_line('[0] k: [[1.0, {}], {"MESSAGE"=>"TEXT", "_TRANSPORT"=>"kernel"}]'), BOTH),
        (each_line('[0] k: [[1.0, {}], {"MESSAGE"=>"TEXT", "_TRANSPORT"=>"stdout"}]'), []),
        (of_pod(STAMP), BOTH),
        (of_pod(""), []),
        (of_pod("kernel: "), []),
        (each_line('{"log": "TEXT\\n", "stream": "stdout", "time": "2026-04-22T21:23:52Z"}'), []),
        (each_line('{"log": "kernel: TEXT", "stream": "stdout"}'), []),
        (each_line(f'{{"message": "{STAMP}TEXT", "attributes": []}}'), BOTH),
    ],
)
def test_entries_are_the_kernel_s_by_the_fields_of_their_form(
    tmp_path: Path, text: str, found: list[str]
) -> None:
    assert [code for _, code in codes(tmp_path, text)] == found


@pytest.mark.parametrize(
    "form",
    [
        'time=2026-04-22T21:23:52Z level=error msg="TEXT"',
        '{"log": "kernel: TEXT", "stream": "stdout"}',
        '{"event": "TEXT", "attributes": []}',
        '{"event": "TEXT", "attributes": [{"key": "a", "value": {"stringValue": "b"}}]}',
    ],
)
def test_what_is_not_the_kernel_s_for_certain_is_mentioned(tmp_path: Path, form: str) -> None:
    found = decoded(tmp_path, each_line(form))
    assert (list(found), found.foreign) == ([], [1])


def test_a_line_that_is_almost_of_pairs_is_read_in_a_moment(tmp_path: Path) -> None:
    """One reading is tried: without a space between the pairs there are 10 ** 139."""
    assert codes(tmp_path, "a" + "=bb" * 1000 + '"\n') == []


def test_what_grafana_writes_before_an_export_is_no_entry(tmp_path: Path) -> None:
    head = 'Common labels: {"host":"gpu-7"}\nLine limit: "1000"\nTotal bytes processed: "1 kB"\n\n'
    text = head + each_line(f"2026-04-22T21:23:52.123Z\t{STAMP}TEXT")
    assert [code for _, code in codes(tmp_path, text)] == BOTH
    assert decoded(tmp_path, text).lines == 2
