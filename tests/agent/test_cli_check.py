"""``sickbay-agent check``: of a running agent, of none, of a broken one; always in time."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import registry
from nodeagent.model import ClearedBy, Status
from tests.agent import real_disks
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.cli import PROGRAM, StandIn, agent, answer, configured, fault, result
from tests.agent.fuse_server import Filer
from tests.agent.kernel_log import GPU, pci_device, raw
from tests.nvml import FakeGpus, gpu, link_the_rest, uuid_of
from tests.support.text_files import text_file
from tests.support.waiting import until

XID = f"NVRM: Xid (PCI:{GPU}): 79, pid=1, name=x, GPU has fallen off the bus."


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below ``folder`` with its modification time and content."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
        if not path.is_socket()
    }


@pytest.fixture
def node_agent(tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path)
    yield process
    process.close()


# -- where no agent runs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "reason"), [("proc", "the boot id cannot be read: "), ("sys", "{folder} is empty; ")]
)
def test_an_empty_kernel_folder_is_refused_with_its_reason(
    tmp_path: Path, key: str, reason: str
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(f'{key} = "{empty}"\nrun_dir = "{tmp_path}/run"\n')
    found = f"{key}: {reason.format(folder=empty)}"
    for command in ("check", "checks"):
        done = agent(command, "--config", config)
        assert (done.code, done.out) == (2, "")
        assert found in done.err
        assert "Traceback" not in done.err
    slurm = agent("check", "--config", config, "--slurm")
    assert (slurm.code, slurm.out.count("\n")) == (0, 1)
    assert slurm.out.startswith(f"sickbay: not checked: {empty}: {found}")
    assert "internal error" not in slurm.out


def test_config_check_lists_every_error_and_runs_no_check(tmp_path: Path) -> None:
    """Before a roll-out: `check` reads less of the file where an agent answers."""
    monitor = tmp_path / "kernel-monitor.json"
    rule = {"type": "temporary", "reason": "Any", "pattern": ".*"}
    monitor.write_text(json.dumps({"source": "kernel-monitor", "rules": [rule]}))
    lines = '[kernel_lines.any]\npattern = "(.*a)*b"\n[checks.disk-spac]\non = false\n'
    config = configured(tmp_path, lines, top=f'kernel_monitor = "{monitor}"\n')
    with StandIn(tmp_path / "run/agent.sock", answer(result(Status.OK))):
        assert agent("check", "--config", config).code == 0
        done = agent("config", "check", config)
    assert (done.code, done.out) == (2, "")
    number = {line.split(" =")[0]: at for at, line in enumerate(config.read_text().split("\n"), 1)}
    at = number["kernel_monitor"]
    every = f"{config}:{at}: kernel_monitor: {monitor}: rules[0].pattern: matches every line"
    assert every in done.err
    assert f"{config}:{number['pattern']}: kernel_lines.any.pattern: " in done.err
    assert "checks.disk-spac: unknown key (did you mean checks.disk-space?)" in done.err
    assert done.err.count("; expected ") == done.err.count("\n") == 3
    assert not (tmp_path / "state").exists()

    rule["pattern"] = "scratchfs: lost .*"
    monitor.write_text(json.dumps({"source": "kernel-monitor", "rules": [rule]}))
    config.write_text(config.read_text().replace(lines, ""))
    done = agent("config", "check", config)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(
        rf"{config}: sound \(node n1, \d\d checks on, 1 of them your own\)\n", done.out
    )
    missing = agent("config", "check", tmp_path / "none.toml")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == f"{tmp_path}/none.toml: there is no such file; expected a TOML file\n"


def test_config_check_names_each_file_that_holds_no_token_or_certificate(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    garbage = tmp_path / "garbage"
    keys = "ca_file", "cert_file", "key_file"
    config.write_text(
        f'metrics_listen = "127.0.0.1:9"\nmetrics_token_file = "{garbage}"\n'
        '[aggregator]\naddress = "aggregator:8443"\n'
        + "".join(f'{key} = "{garbage}"\n' for key in keys)
    )
    for content in (b"", b"two\nlines", b"\xff\0"):
        garbage.write_bytes(content)
        done = agent("config", "check", config)
        assert (done.code, done.out) == (2, "")
        assert [line.split(": ")[:2] for line in done.err.splitlines()] == [
            [str(config), "metrics_token_file"],
            [str(config), "aggregator.ca_file"],
            [str(config), "aggregator.cert_file"],
        ]
    token = text_file(tmp_path / "token", "t\n")
    config.write_text(f'[aggregator]\naddress = "127.0.0.1:1"\ntoken_file = "{token}"\n')
    assert agent("config", "check", config).code == 0


def test_a_machine_without_a_gpu_says_no_gpu_and_does_not_fail(tmp_path: Path) -> None:
    done = agent("check", "--config", configured(tmp_path))
    assert done.code == 0, done
    assert done.out.startswith("n1: ok (by one run of the checks")
    off = done.out[done.out.index("off, no GPU: ") :]
    for name in ("gpu-inventory", "gpu-ecc", "gpu-rows", "gpu-recovery"):
        assert name in off[: off.index("off, ", 5)]
    assert "off, by configuration (" in off
    assert "no agent is running" in done.row("note:")


def test_the_same_machine_fails_when_eight_gpus_are_expected(tmp_path: Path) -> None:
    config = configured(tmp_path, "[expect]\ngpus = 8\n" + QUIET)
    done = agent("check", "--config", config)
    assert done.code == 1, done
    row = done.row("gpu-inventory")
    assert row.startswith("failed  ")
    assert "0 of 8" in row
    slurm = agent("check", "--config", config, "--slurm")
    assert slurm.code == 1
    assert slurm.out.startswith("sickbay: gpu-inventory: 0 of 8 ")


def test_one_look_sees_gpus_and_their_faults_through_the_real_pynvml(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path, [gpu(0), gpu(1, rows=(0, 1, 0, 1))])
    config = configured(tmp_path, "[expect]\ngpus = 2\n" + QUIET)
    done = agent("check", "--config", config, env=gpus.env)
    assert done.code == 1, done
    assert done.row(f"gpu-rows       {uuid_of(1)}").startswith("failed")
    assert done.row(f"gpu-inventory  {uuid_of(0)}").startswith("ok")


def test_one_look_at_a_machine_of_eight_gpus_is_json_with_each_of_them(tmp_path: Path) -> None:
    gpus = [gpu(index) for index in range(8)]
    gpus[3] = gpu(3, fabric=(3, 999, 0, 0, 7, 3), clocks=0x40)
    machine = FakeGpus(tmp_path, gpus)
    link_the_rest(machine.sys)
    config = configured(tmp_path, "[expect]\ngpus = 8\n")
    done = agent("check", "-o", "json", "--config", config, env=machine.env)
    assert done.code == 1, done
    assert done.json["status"] == "failed"
    found = {(r["check"], r["component"]): r["status"] for r in done.json["results"]}
    off = {each["name"]: each["off_because"] for each in done.json["checks"]}
    per_gpu = {spec.name for spec in registry.SPECS if spec.name.startswith("gpu-")}
    per_gpu -= {"gpu-pages", "gpu-events", "gpu-driver", "gpu-fabric-manager"}
    sick = {("gpu-fabric", uuid_of(3)): "failed", ("gpu-clocks", uuid_of(3)): "degraded"}
    for name in per_gpu:
        for index in range(8):
            key = (name, uuid_of(index))
            assert found[key] == sick.get(key, "ok"), (key, done.out)
    assert found["gpu-events", ""] == found["gpu-driver", ""] == "ok"
    assert off["gpu-fabric-manager"] == "no NVSwitch"
    assert off["gpu-pages"] == "not supported by these GPUs"
    # Except for the PCI bus the machine is the real one.
    assert ("nic-health", "") not in found, "no sysfs, it would say"
    assert len(done.json["checks"]) == len(registry.SPECS)


def test_an_old_xid_in_the_ring_is_history_for_a_look_without_an_agent(tmp_path: Path) -> None:
    config = configured(tmp_path)
    pci_device(tmp_path / "sys", f"{GPU}.0", "0x030200")
    (tmp_path / "kmsg.log").write_bytes(raw(7, XID, at=0.5))
    text = config.read_text()
    config.write_text(text.replace("[kernel_log]", "[nvml]\nenabled = false\n[kernel_log]"))
    grace = '[kernel_log]\nboot_grace = "%s"'
    config.write_text(config.read_text().replace("[kernel_log]", grace % "1ms"))
    old = agent("check", "--config", config, "-o", "json")
    assert (old.code, old.json["faults"][0]["historical"]) == (0, True), old
    # ... and counts as new where the machine came up within boot_grace.
    config.write_text(config.read_text().replace("1ms", "3650d"))
    new = agent("check", "--config", config, "-o", "json")
    assert (new.code, new.json["faults"][0]["historical"]) == (1, False), new
    assert new.json["faults"][0]["component"] == f"pci:{GPU}"


async def test_what_a_killed_agent_had_latched_counts_and_its_files_stay_as_they_are(
    node_agent: AgentProcess, tmp_path: Path
) -> None:
    await node_agent.start().up()
    node_agent.xid(79)
    await until(lambda: node_agent.state()["faults"], what="the latch")
    node_agent.kill()
    before = tree(tmp_path / "run")  # the copy in state_dir may still be under way, by a child
    done = agent("check", "--config", node_agent.config, "-o", "json")
    assert done.code == 1, done
    assert done.json["source"] == "probe"
    assert [entry["code"] for entry in done.json["faults"]] == ["xid:79"]
    assert tree(tmp_path / "run") == before


def test_one_look_makes_no_folders(tmp_path: Path) -> None:
    config = configured(tmp_path)
    before = tree(tmp_path)
    agent("check", "--config", config)
    assert tree(tmp_path) == before


def test_a_damaged_state_file_is_told_and_left_alone(tmp_path: Path) -> None:
    config = configured(tmp_path)
    (tmp_path / "run").mkdir()
    state = text_file(tmp_path / "run/state.json", "{")
    done = agent("check", "--config", config)
    assert done.code == 0
    assert f"note: {state} can't be used, so latched faults are not known" in done.out
    assert state.read_text() == "{"


def test_a_kernel_log_that_may_not_be_read_is_unknown(tmp_path: Path) -> None:
    config = configured(tmp_path)
    config.write_text(config.read_text().replace("kmsg.log", "kmsg.d"))
    (tmp_path / "kmsg.d").mkdir()
    done = agent("check", "--config", config, "--fail-on", "unknown")
    assert done.code == 1
    assert done.row("kernel-log").startswith("unknown")


# -- where an agent runs -----------------------------------------------------------------------


async def test_a_fault_that_a_running_agent_has_latched_fails_the_check(
    node_agent: AgentProcess,
) -> None:
    await node_agent.start().up()
    assert agent("check", "--config", node_agent.config).code == 0
    node_agent.xid(79)
    node_agent.xid(79)

    def failed() -> bool:
        return agent("check", "--config", node_agent.config).code == 1

    await until(failed, within=20, what="the check")
    done = agent("check", "--config", node_agent.config)
    assert done.out.startswith("node-a: failed (by its agent)")
    assert f"pci:{GPU}" in done.row("xid:79")
    slurm = agent("check", "--config", node_agent.config, "--slurm")
    assert (slurm.code, slurm.out.count("\n")) == (1, 1)
    assert slurm.out.startswith(f"sickbay: xid:79 pci:{GPU}: ")
    checks = agent("checks", "--config", node_agent.config, "-o", "json").json
    states = {check["name"]: check["off_because"] for check in checks}
    assert states["xid"] == ""
    assert states["reach"] == "off by configuration (checks.reach.on)"


@pytest.mark.parametrize(
    ("status", "codes"),
    [
        (Status.OK, (0, 0, 0)),
        (Status.UNKNOWN, (0, 0, 1)),
        (Status.DEGRADED, (0, 1, 1)),
        (Status.FAILED, (1, 1, 1)),
    ],
)
def test_the_exit_code_is_1_at_or_above_fail_on(
    tmp_path: Path, status: Status, codes: tuple[int, int, int]
) -> None:
    config = configured(tmp_path)
    with StandIn(tmp_path / "run/agent.sock", answer(result(Status.OK), result(status, "/x"))):
        levels = ("failed", "degraded", "unknown")
        found = [agent("check", "--config", config, "--fail-on", x).code for x in levels]
        slurm = agent("check", "--config", config, "--slurm")
    assert tuple(found) == codes
    assert slurm.code == int(status is Status.FAILED)
    assert slurm.out.count("\n") == 1


@pytest.mark.parametrize(
    ("cleared_by", "historical", "status"),
    [
        (ClearedBy.REBOOT, False, "failed"),
        (ClearedBy.GPU_RESET, False, "failed"),
        (ClearedBy.OPERATOR, False, "failed"),
        (ClearedBy.EXPIRY, False, "degraded"),
        (ClearedBy.REBOOT, True, "ok"),
    ],
)
def test_a_latched_fault_counts_by_what_ends_it(
    tmp_path: Path, cleared_by: ClearedBy, *, historical: bool, status: str
) -> None:
    config = configured(tmp_path)
    latched = fault(cleared_by, historical=historical)
    with StandIn(tmp_path / "run/agent.sock", answer(faults=[latched])):
        done = agent("check", "--config", config, "-o", "json")
    assert (done.json["status"], done.code) == (status, int(status == "failed"))


def test_the_json_has_the_keys_that_the_docs_promise(tmp_path: Path) -> None:
    config = configured(tmp_path)
    with StandIn(tmp_path / "run/agent.sock", answer(result(Status.DEGRADED), faults=[fault()])):
        done = agent("check", "--config", config, "-o", "json")
    assert done.json == {
        "node": "n1",
        "source": "agent",
        "status": "failed",
        "results": [
            {
                "check": "disk-space",
                "component": "/",
                "status": "degraded",
                "reason": "full",
                "message": "so and so full",
                "age_seconds": 12.0,
            }
        ],
        "faults": [
            {
                "code": "xid:79",
                "check": "xid",
                "component": "GPU-5a2f",
                "status": "failed",
                "message": "fallen off",
                "count": 3,
                "first_age_seconds": 60.0,
                "last_age_seconds": 5.0,
                "cleared_by": "reboot",
                "historical": False,
                "details": {"pid": "1"},
            }
        ],
        "checks": [],
        "notes": [],
    }


def test_the_table_is_worst_first_and_fits_100_columns(tmp_path: Path) -> None:
    config = configured(tmp_path)
    results = [result(s, f"/{s.name}") for s in (Status.OK, Status.UNKNOWN, Status.FAILED)]
    long = result(Status.DEGRADED, "/long")
    results.append(type(long)(long.check, long.component, long.status, "", "word " * 60, 3.0))
    with StandIn(tmp_path / "run/agent.sock", answer(*results)):
        done = agent("check", "--config", config)
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 100
    starts = [line.split()[0] for line in lines if line[:1].strip()]
    assert starts == ["n1:", "STATUS", "failed", "degraded", "unknown", "ok"]
    assert done.out.count("word") == 60
    assert "\033" not in done.out


def test_a_message_cannot_play_tricks_on_the_terminal(tmp_path: Path) -> None:
    config = configured(tmp_path)
    evil = result(Status.FAILED, "/\033[2Jx\ny")
    with StandIn(tmp_path / "run/agent.sock", answer(evil)):
        table = agent("check", "--config", config)
        slurm = agent("check", "--config", config, "--slurm")
    assert "\033" not in table.out + slurm.out
    assert slurm.out.count("\n") == 1


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_without_no_color(
    tmp_path: Path, no_colour: str, *, coloured: bool
) -> None:
    config = configured(tmp_path)
    ours, theirs = pty.openpty()
    environ = {**os.environ, "NO_COLOR": no_colour, "TERM": "xterm"}
    with StandIn(tmp_path / "run/agent.sock", answer(result(Status.FAILED))):
        command = [str(PROGRAM), "check", "--config", str(config)]
        done = subprocess.run(command, stdout=theirs, env=environ, timeout=300, check=False)
    os.close(theirs)
    out = os.read(ours, 65536)
    os.close(ours)
    assert done.returncode == 1
    assert (b"\033[31m" in out) is coloured


# -- where an agent is broken ------------------------------------------------------------------


def never(connection: socket.socket) -> None:
    connection.recv(4096)


def drip(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)  # the pace of the fault that is tested: never silent, never done


@pytest.mark.parametrize(
    ("serve", "reason", "words"),
    [
        (never, "hung", "no answer in 3 s"),
        (drip, "hung", "no answer in 3 s"),
        (b"", "broken", "no sickbay agent"),
        (b"SSH-2.0-x\r\n", "broken", "no sickbay agent"),
        (b"HTTP/1.1 500 no\r\n\r\n", "broken", "answered 500"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", "broken", "no valid JSON"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "broken", "can't be read"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"node": 1, "results": [{}]}', "broken", "can't be read"),
    ],
)
def test_an_agent_without_a_usable_answer_is_unknown_and_a_look_is_taken(
    tmp_path: Path, serve: Callable[[socket.socket], None] | bytes, reason: str, words: str
) -> None:
    config = configured(tmp_path)
    with StandIn(tmp_path / "run/agent.sock", serve):
        done = agent("check", "--config", config, "-o", "json", "--timeout", "12s")
    assert done.code == 0, done
    trouble = next(entry for entry in done.json["results"] if entry["check"] == "agent")
    assert (trouble["status"], trouble["reason"]) == ("unknown", reason)
    assert words in trouble["message"]
    assert {entry["check"] for entry in done.json["results"]} == {"agent", "drift", "kernel-log"}
    assert done.seconds < 120, "an agent is waited for a quarter of the time"


def test_a_socket_that_nobody_listens_on_is_no_agent(tmp_path: Path) -> None:
    config = configured(tmp_path)
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "run/agent.sock"))
    done = agent("check", "--config", config)
    assert "no process listens" in done.row("no agent is running")


# -- in time, whatever happens -----------------------------------------------------------------


@pytest.mark.root
def test_a_configuration_that_hangs_ends_with_the_timeout(filer: Filer) -> None:
    filer.stop()
    config = filer.point / "agent.toml"
    done = agent("check", "--config", config, "--timeout", "1s", "-o", "json")
    assert done.json["results"][0]["reason"] == "hung"
    assert done.code == 0
    assert done.seconds >= 1
    assert agent("check", "--config", config, "--timeout", "1s", "--fail-on", "unknown").code == 1
    assert agent("check", "--config", config, "--timeout", "1s", "--slurm").code == 0


@pytest.mark.root
@pytest.mark.skipif(bool(real_disks.why_not()), reason=real_disks.why_not() or "-")
def test_a_probe_in_state_d_does_not_hold_up_the_command(tmp_path: Path) -> None:
    with real_disks.ext4(tmp_path / "disk") as disk, real_disks.frozen(disk):
        on = f'[checks.disk-write]\npaths = ["{disk}"]\ndeadline = "2s"\n'
        config = configured(tmp_path, QUIET.replace("[checks.disk-write]\non = false\n", on))
        done = agent("check", "--config", config, "--timeout", "120s", "-o", "json")
    assert done.seconds < 120
    [late] = [entry for entry in done.json["results"] if entry["check"] == "disk-write"]
    assert (late["status"], late["reason"]) == ("unknown", "hung")


def test_a_hung_driver_does_not_hold_up_the_command(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path, [gpu(0)])
    gpus.fail("nvmlInitWithFlags", hang=True)
    try:
        config = configured(tmp_path, f'{QUIET}\n[nvml]\ndeadline = "2s"\n')
        done = agent("check", "--config", config, "--timeout", "120s", "-o", "json", env=gpus.env)
    finally:
        gpus.heal()
    assert done.seconds < 120
    states = {entry["check"]: entry["status"] for entry in done.json["results"]}
    assert states["gpu-inventory"] == "unknown"


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--fail-on", "ok"],
        ["check", "--timeout", "20"],
        ["check", "--timeout", "1ms"],
        ["quiesce", "--for", "2d"],
        ["check", "--timeot", "20s"],
        ["check", "-o", "yaml"],
        ["chek"],
        [],
        ["parse-kmsg"],
        ["parse-kmsg", "/nope"],
        ["run", "--config", "/nope"],
    ],
)
def test_bad_usage_exits_2_and_says_so_without_a_traceback(arguments: list[str]) -> None:
    done = agent(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["run", "check", "checks"])
def test_a_bad_configuration_exits_2_before_anything_starts(tmp_path: Path, command: str) -> None:
    config = configured(tmp_path, top='log_level = "loud"\nmetrics = 1')
    done = agent(command, "--config", config)
    assert done.code == 2
    assert [line.partition(": ")[0] for line in done.err.splitlines()] == [
        f"{config}:6",
        f"{config}:7",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["check", "--slurm", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["check", "--slurm", "-o", "json"], "not allowed with argument --slurm"),
        (["check", "--slurm", "--fail-on", "degraded"], "--fail-on: not allowed with argument"),
        (["check", "--fail-on", "failed", "--slurm"], "--fail-on: not allowed with argument"),
        (["check", "--slurm", "--config", "/nope"], "/nope"),
        (["check", "--slurm", "--config", "/"], "/: "),
        (["check", "--slurm", "--timeout", "soon"], '"soon" is no duration'),
        (["chek", "--slurm"], "'chek'"),
        (["--slurm"], "the following arguments are required"),
    ],
)
def test_a_mistake_in_the_prolog_does_not_drain_the_node(arguments: list[str], why: str) -> None:
    done = agent(*arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("sickbay: not checked: ")
    assert done.out.count("\n") == 1
    assert why in done.out


def test_a_bad_configuration_does_not_drain_the_node(tmp_path: Path) -> None:
    config = configured(tmp_path, top='log_level = "loud"\nmetrics = 1')
    done = agent("check", "--slurm", "--config", config)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"sickbay: not checked: {config}:6: log_level")
    assert done.out.endswith(" (and 1 more)\n")


#: `sickbay-agent` whose command fails as a defect does.
_DEFECTIVE = """
from nodeagent import cli
def check(options, environ):
    raise FileNotFoundError("no such part")
cli._COMMANDS["check"] = check
cli.main()
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(("check", "--slurm"), 0), (("check",), 70)], ids=["slurm", "loud"]
)
def test_a_defect_of_ours_does_not_drain_the_node(arguments: tuple[str, ...], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DEFECTIVE, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    if code:
        assert "Traceback" in done.stderr
    else:
        line = "sickbay: not checked: internal error: FileNotFoundError: no such part\n"
        assert (done.stdout, done.stderr) == (line, "")


@pytest.mark.root
def test_a_look_that_takes_too_long_does_not_drain_the_node(filer: Filer) -> None:
    filer.stop()
    config = filer.point / "agent.toml"
    done = agent("check", "--config", config, "--timeout", "1s", "--slurm")
    assert (done.code, done.err) == (0, "")
    assert done.out == "sickbay: unknown: agent: no result came within 1 s\n"


@pytest.mark.parametrize(("status", "code"), [(Status.DEGRADED, 0), (Status.FAILED, 1)])
@pytest.mark.parametrize("stdout", ["", " | true", " >&-", " >&- 2>&-", " > /dev/full"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_that_nobody_takes_changes_no_exit_code(
    tmp_path: Path, status: Status, code: int, stdout: str, unbuffered: str
) -> None:
    config = configured(tmp_path)
    command = f"set -o pipefail; {PROGRAM} check --slurm --config {config}{stdout}"
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with StandIn(tmp_path / "run/agent.sock", answer(result(status))):
        done = subprocess.run(
            ["bash", "-c", command], env=env, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(("status", "code"), [(Status.DEGRADED, 0), (Status.FAILED, 1)])
def test_a_table_for_a_closed_output_changes_no_exit_code(
    tmp_path: Path, status: Status, code: int
) -> None:
    command = f"{PROGRAM} check --config {configured(tmp_path)} >&-"
    with StandIn(tmp_path / "run/agent.sock", answer(result(status))):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_version_is_told() -> None:
    done = agent("--version")
    assert (done.code, done.out) == (0, "sickbay-agent 0.1.0\n")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    config = configured(tmp_path)
    process = subprocess.Popen(
        [PROGRAM, "checks", "--config", config], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(300) == 0
    process.stderr.close()


def test_ctrl_c_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    config = configured(tmp_path)
    asked = threading.Event()

    def silent(connection: socket.socket) -> None:
        connection.recv(4096)
        asked.set()

    with StandIn(tmp_path / "run/agent.sock", silent):
        process = subprocess.Popen(
            [PROGRAM, "check", "--config", config], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert asked.wait(300)  # it waits 5 s for the answer
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_an_answer_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [PROGRAM, "check", "--config", configured(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 70
    assert "the answer can't be written" in done.stderr
    assert "Traceback" not in done.stderr


# -- the other commands ------------------------------------------------------------------------


def test_checks_lists_every_check_with_its_cost_and_blind_spots(tmp_path: Path) -> None:
    config = configured(tmp_path)
    done = agent("checks", "--config", config)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 100
    assert "gpu-ecc: off: no GPU" in done.out
    assert "xid: on, as the kernel log comes" in done.out
    entries: list[dict[str, Any]] = agent("checks", "--config", config, "-o", "json").json
    assert {key for entry in entries for key in entry} == {
        "name",
        "on",
        "off_because",
        "interval_seconds",
        "deadline_seconds",
        "sees",
        "source",
        "cost",
        "blind_to",
    }
    assert all(entry["sees"] and entry["cost"] and entry["blind_to"] for entry in entries)


def test_parse_kmsg_decodes_every_format_that_people_send(tmp_path: Path) -> None:
    log = tmp_path / "log"
    xid = b"NVRM: Xid (PCI:0000:3b:00): %d, pid=1, name=x, Words"
    log.write_bytes(
        b"[   12.345678] " + xid % 79 + b"\n"
        b"[Sat Nov 21 11:22:33 2026] " + xid % 48 + b"\r\n"
        b"kern  :err   : [   13.500000] " + xid % 63 + b"\n"
        b"Nov 21 11:22:33 n1 kernel: " + xid % 43 + b"\n"
        b"2026-11-21T11:22:33,123456+00:00 n1 kernel: [  14.0] " + xid % 31 + b"\n"
        b"3,1189,178281992,-;" + xid % 13 + b"\n"
        b"<3>[   15.0] " + xid % 94 + b"\n"
        b"[   16.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress\n"
        b"[   17.0] usb 1-1: new device\n\xff\xfe\x00 garbage\n"
        b"[   18.0] tmpfs: Unknown parameter 'x\\x0a" + xid % 79 + b"'\n"
    )
    found = agent("parse-kmsg", log, "-o", "json").json
    assert [(entry["line"], entry["code"], entry["time_seconds"]) for entry in found] == [
        (1, "xid:79", 12.345678),
        (2, "xid:48", None),
        (3, "xid:63", 13.5),
        (4, "xid:43", None),
        (5, "xid:31", 14.0),
        (6, "xid:13", 178.281992),
        (7, "xid:94", 15.0),
        (8, "sxid:12028:non-fatal", 16.0),
    ]
    table = agent("parse-kmsg", log)
    assert table.code == 0
    assert max(map(len, table.out.splitlines())) <= 100
    assert table.row("xid:79").split()[:4] == ["1", "12.346", "xid:79", "pci:0000:3b:00"]


def test_parse_kmsg_reads_standard_input(tmp_path: Path) -> None:
    log = b"[   12.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, Words\n"
    (tmp_path / "log").write_bytes(log)

    def parse(given: bytes | None = None, stdin: Any = None) -> subprocess.CompletedProcess[bytes]:
        command = [str(PROGRAM), "parse-kmsg", "-", "-o", "json"]
        return subprocess.run(
            command, input=given, stdin=stdin, capture_output=True, timeout=300, check=False
        )

    with (tmp_path / "log").open("rb") as file:
        for done in (parse(log), parse(stdin=file)):
            assert done.returncode == 0
            assert [fault["code"] for fault in json.loads(done.stdout)] == ["xid:79"]
    refused = parse(b"\x1f\x8b\x08")
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"standard input: can't be read: it is compressed (gzip); ")
    refused = parse(stdin=subprocess.DEVNULL)  # as /dev/kmsg, which would be read without an end
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"standard input: can't be read: it is a device; ")


def test_parse_kmsg_says_when_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("all is well\n")
    assert agent("parse-kmsg", tmp_path / "log").out.startswith("no line of this file")
    assert json.loads(agent("parse-kmsg", tmp_path / "log", "-o", "json").out) == []
