"""A site's own kernel lines and node-problem-detector's rules: read, refused, and seen."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.check_set import CheckSet
from nodeagent.checks.base import LogCheck
from nodeagent.checks.by_start import ChecksByStart
from nodeagent.config.settings import Config, ConfigError, load
from nodeagent.kernel_feed import read
from nodeagent.model import FaultSighting, Observation, Status
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import GPU, HandClock, pci_device, record
from tests.agent.machines import sources
from tests.agent.test_forged_lines import AFTER_A_NAME, IN_A_NAME
from tests.agent.test_log_edges import PACKET
from tests.support.text_files import text_file

LOST = """
[kernel_lines.scratch-lost]
check = "scratch"
pattern = 'scratchfs {dev}: lost its server (?P<server>\\S+)'
kind = "lost"
status = "failed"
component = "{dev}"
message = "scratchfs on {dev} has lost {server}"

[kernel_lines.scratch-back]
check = "scratch"
pattern = 'scratchfs {dev}: connected again'
kind = "back"
status = "ok"
component = "{dev}"

[kernel_lines.fpga-hot]
of = "pci"
pattern = 'board temperature \\d+ C exceeds'
component = "device"
"""

#: The rules of node-problem-detector's own config/kernel-monitor.json, with one of an older one.
MONITOR = {
    "plugin": "kmsg",
    "logPath": "/dev/kmsg",
    "lookback": "5m",
    "bufferSize": 10,
    "source": "kernel-monitor",
    "metricsReporting": True,
    "conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "no"}],
    "rules": [
        {
            "type": "temporary",
            "reason": "OOMKilling",
            "pattern": r"Kill process \d+ (.+) score \d+ or sacrifice child\n"
            r"Killed process \d+ (.+) total-vm:\d+kB, anon-rss:\d+kB, file-rss:\d+kB.*",
        },
        {
            "type": "temporary",
            "reason": "TaskHung",
            "pattern": r"task [\S ]+:\w+ blocked for more than \w+ seconds\.",
        },
        {
            "type": "temporary",
            "reason": "UnregisterNetDevice",
            "pattern": r"unregister_netdevice: waiting for \w+ to become free. Usage count = \d+",
        },
        {
            "type": "temporary",
            "reason": "KernelOops",
            "pattern": r"divide error: 0000 \[#\d+\] SMP",
        },
        {"type": "temporary", "reason": "Ext4Error", "pattern": "EXT4-fs error .*"},
        {
            "type": "permanent",
            "condition": "XfsShutdown",
            "reason": "XfsHasShutdown",
            "pattern": "XFS .* Shutting down filesystem.?",
        },
        {
            "type": "permanent",
            "condition": "KernelDeadlock",
            "reason": "DockerHung",
            "pattern": r"task docker:\w+ blocked for more than \w+ seconds\.",
        },
        {
            "type": "permanent",
            "condition": "ReadonlyFilesystem",
            "reason": "FilesystemIsReadOnly",
            "pattern": "Remounting filesystem read-only",
        },
    ],
}


def configured(tmp_path: Path, text: str) -> Config:
    file = text_file(tmp_path / "agent.toml", f'node = "n1"\n{text}')
    return load(file, {})


def monitored(tmp_path: Path, **changes: object) -> Config:
    (tmp_path / "kernel-monitor.json").write_text(json.dumps({**MONITOR, **changes}))
    return configured(tmp_path, f'kernel_monitor = "{tmp_path}/kernel-monitor.json"\n')


def checks_of(tmp_path: Path, config: Config) -> dict[str, LogCheck]:
    """The site's own log checks, as the agent builds them."""
    sys = tmp_path / "sys"
    if not sys.exists():
        pci_device(sys, f"{GPU}.0", "0x120000", vendor="0x10ee")
    made = CheckSet(sources(HostRoots(HandClock(), sys=sys)))
    made.follow(config)
    return {spec.name: made.log_checks[spec.name] for spec in config.own}


def seen(checks: dict[str, LogCheck], line: bytes) -> list[FaultSighting | Observation]:
    found = read(ChecksByStart(checks), record(line))
    return [each for each in found if isinstance(each, FaultSighting | Observation)]


def test_a_site_s_line_is_level_evidence_or_a_fault(tmp_path: Path) -> None:
    checks = checks_of(tmp_path, configured(tmp_path, LOST))
    [lost] = seen(checks, b"scratchfs sc0: lost its server 192.0.2.9")
    assert lost == Observation(
        "scratch", "sc0", Status.FAILED, "lost", "scratchfs on sc0 has lost 192.0.2.9"
    )
    [back] = seen(checks, b"scratchfs sc0: connected again")
    assert back == Observation("scratch", "sc0", Status.OK, "", "scratchfs sc0: connected again")
    [hot] = seen(checks, f"myfpga {GPU}.0: board temperature 99 C exceeds 95 C".encode())
    assert isinstance(hot, FaultSighting)
    assert (hot.code, hot.component) == ("fpga-hot:fpga-hot", f"pci:{GPU}.0")
    assert seen(checks, b"myfpga 0000:77:00.0: board temperature 99 C exceeds 95 C") == []


def test_no_user_makes_a_site_s_line(tmp_path: Path) -> None:
    checks = checks_of(tmp_path, configured(tmp_path, LOST))
    line = b"scratchfs sc0: lost its server 192.0.2.9"
    assert seen(checks, line + PACKET) == []
    assert seen(checks, b"tmpfs: Unknown parameter 'x\\x0a" + line) == []
    for after in AFTER_A_NAME:
        for cut in range(4, 16):
            assert seen(checks, line[:cut] + after) == []


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LogCheck]:
    folder = tmp_path_factory.mktemp("monitor")
    return checks_of(folder, monitored(folder))


@settings(max_examples=60)
@given(
    cut=st.integers(0, 15),
    words=st.lists(st.sampled_from(IN_A_NAME), max_size=4),
    after=st.sampled_from(AFTER_A_NAME),
)
def test_no_name_of_a_process_makes_a_monitor_s_line(
    monitor: dict[str, LogCheck], cut: int, words: list[bytes], after: bytes
) -> None:
    name = (b"EXT4-fs error (d"[:cut] + b"".join(words))[:15]
    assert seen(monitor, name + after) == []


@pytest.mark.parametrize("name", [b"EXT4-fs error x", b"x NVRM: Xid (PC", b"a SXid: 1 Fatal"])
@pytest.mark.parametrize(
    "line",
    [
        b"INFO: task %s:4711 blocked for some time.",
        b"Memory cgroup out of memory: Killed process 4711 (%s) total-vm:1kB",
        b"watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [%s:4711]",
        b"CPU: 3 PID: 4711 Comm: %s Not tainted 6.12.0",
        b"EXT4-fs (sda1): ext4_x: inode #2: comm %s: reading directory",
        b"NVRM: Fault (PCI:0000:3b:00): 31, pid=4711, name=%s, Ch 00000008",
        b"BUG: Bad page state in process %s  pfn:10aa2c",
        b"Memory failure: 0x1a2b3c: Sending SIGBUS to %s:4711 due to hardware memory corruption",
        b"oom_reaper: reaped process 4711 (%s), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        b"task:%s state:D stack:0     pid:4711  ppid:1      flags:0x00000002",
        b"Write of size 8 at addr ffff888012345678 by task %s/4711",
        b"Process %s (pid: 4711, stack limit = 0x00000000f2e1d3c4)",
        b"[   4711]  1000  4711   211020    33120   487424        0           200 %s",
        b"[4194304]  1000 4194304   211020    33120   487424        0           200 %s",
    ],
)
def test_no_name_within_a_line_makes_a_monitor_s_line(
    tmp_path: Path, name: bytes, line: bytes
) -> None:
    rules = [
        {"type": "permanent", "condition": "C", "reason": "R", "pattern": pattern}
        for pattern in ("EXT4-fs error .*", "NVRM: Xid.*", "SXid.*Fatal.*")
    ]
    assert seen(checks_of(tmp_path, monitored(tmp_path, rules=rules)), line % name) == []


def test_a_name_within_a_line_hides_no_other_rule_s_words(tmp_path: Path) -> None:
    rules = [
        {"type": "temporary", "reason": "R", "pattern": "EXT4-fs error .*"},
        {
            "type": "temporary",
            "reason": "OOMKilling",
            "pattern": r"Killed process \d+ (.+) total.*",
        },
    ]
    checks = checks_of(tmp_path, monitored(tmp_path, rules=rules))
    [kill] = seen(checks, b"Out of memory: Killed process 4711 (EXT4-fs error x) total-vm:1kB")
    assert isinstance(kill, FaultSighting)
    assert kill.code == "kernel-monitor:OOMKilling"


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"x[A-Z]+b[A-Z]+c[A-Z]+d", b"xAbBcCd"),
        (r"(?i)NVRM: XID.*", b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x"),
        (".*SXid.*", b"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal"),
        (r"lost [^\n]* server", b"scratchfs: lost its own server"),
        ("^scratchfs: lost its server$", b"scratchfs: lost its server"),
    ],
)
def test_patterns_of_other_monitors_are_read(tmp_path: Path, pattern: str, line: bytes) -> None:
    rules = [{"type": "temporary", "reason": "R", "pattern": pattern}]
    [found] = seen(checks_of(tmp_path, monitored(tmp_path, rules=rules)), line)
    assert isinstance(found, FaultSighting)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("pattern = '(a+)+$'", "is slow: it has a repeat within a repeat"),
        ("pattern = 'scratchfs: lost (a|bc)*d'", "is slow: it has alternatives within a repeat"),
        ("pattern = 'scratchfs: the server .*a.*b.*c'", "is slow: a line may take"),
        (r"pattern = 'scratchfs: lost .\S{1,40}[a-f]*?[a-z]*\s+x'", "is slow: a line may take"),
        (r"pattern = 'scratchfs: lost [a-z]*[a-f]+[a-z]+\s\d'", "is slow: a line may take"),
        (r"pattern = 'scratchfs: the lost server [a-z]*[a-z]*$'", "is slow: a line may take"),
        ("pattern = '.*lost its server for good'", "does not begin with 4 fixed bytes"),
        ("pattern = 'scratch lost'", "has less than 16 bytes before free text"),
        ("pattern = 'scratch: .*lost its server'", "has less than 16 bytes before free text"),
        ("pattern = 'tmpfs: Unknown parameter .*'", "matches lines that any user can cause"),
        ("pattern = 'x86/split lock detection: #AC: a'", "matches lines that any user can cause"),
        ("pattern = 'coredump: .*the sensor'", "matches lines that any user can cause"),
        ("pattern = 'Memory cgroup out of memory: K'", "matches lines that any user can cause"),
        (r"pattern = 'INFO: task scratchd:\d+ blocked'", "matches lines that any user can cause"),
        (r"pattern = 'Out of memory: Killed process \d+'", "matches lines that any user can cause"),
        ("pattern = 'NVRM: API mismatch: the client'", "matches lines that any user can cause"),
        ("pattern = '[\\w]+: Unknown parameter xyz'", "does not begin with 4 fixed bytes"),
        ("pattern = 'scratchfs: lost (its server'", "is no pattern"),
        ("pattern = 'scratchfs: (?=l)lost its server'", "look-around"),
        ("pattern = 'scratchfs: lost its (?>(a+)+b)'", "an atomic group"),
        ("pattern = '(?i)scratchfs: lost its server'", "ignores the case of letters"),
        ("pattern = 'scratchfs: lost its (?i:server)'", "ignores the case of letters"),
        ("pattern = 'scratchfs {disk}: lost its server'", "has {disk}, which is none of {pci}"),
        ("pattern = 'scratchfs: \u00fclost its server'", "outside ASCII"),
        ("kind = 'x'", "has no pattern"),
        ("pattern = 'scratchfs: lost its server'\nstatus = 'bad'", "failed"),
        ("pattern = 'scratchfs: lost its server'\ncomponent = '{dev}'", "has the field {dev}"),
        ("pattern = 'scratchfs: lost its server'\ncomponent = 'gpu'", "{gpu} in the pattern"),
        ("pattern = 'scratchfs: lost its server'\ncheck = 'xid'", "one of the agent's own"),
        ("pattern = 'scratchfs: lost its server'\nseverity = 3", "unknown key"),
        ("of = 'usb'\npattern = 'lost its server'", "pci, interface"),
        ("of = 'pci'\npattern = '.*'", "does not begin with 4 fixed bytes"),
    ],
)
def test_a_bad_line_is_refused_with_its_key_and_reason(
    tmp_path: Path, line: str, what: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(tmp_path, f"[kernel_lines.own-line]\n{line}\n")
    text = str(refused.value)
    assert what in text
    assert f"{tmp_path}/agent.toml:" in text
    assert "kernel_lines.own-line" in text


@pytest.mark.parametrize(
    "log",
    [
        {"plugin": "journald", "pluginConfig": {"source": "kernel"}},
        {"plugin": "filelog", "pluginConfig": {"message": r"kernel: \[.*\] (.*)"}},
    ],
)
def test_a_file_for_the_kernel_s_lines_elsewhere_is_read(
    tmp_path: Path, log: dict[str, object]
) -> None:
    checks = checks_of(tmp_path, monitored(tmp_path, **log))
    assert len(seen(checks, b"EXT4-fs error (device sda1): x")) == 1


def test_a_monitor_s_file_is_read_as_it_is(tmp_path: Path) -> None:
    checks = checks_of(tmp_path, monitored(tmp_path))
    [hung] = seen(checks, b"INFO: task jbd2/sda1-8:310 blocked for more than 120 seconds.")
    assert isinstance(hung, FaultSighting)
    assert (hung.code, hung.check) == ("kernel-monitor:TaskHung", "kernel-monitor")
    [shut] = seen(checks, b"XFS (dm-0): Shutting down filesystem.")
    assert isinstance(shut, Observation)
    assert (shut.check, shut.component, shut.status, shut.reason) == (
        *("kernel-monitor", "XfsShutdown"),
        *(Status.FAILED, "XfsHasShutdown"),
    )
    [kill] = seen(
        checks,
        b"Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:0kB",
    )
    assert isinstance(kill, FaultSighting)
    [docker] = seen(checks, b"INFO: task docker:4711 blocked for more than 122 seconds.")
    assert isinstance(docker, Observation), "its first rule for the line is of an event"
    assert (docker.component, docker.reason) == ("KernelDeadlock", "DockerHung")
    [ro] = seen(checks, b"EXT4-fs (sda1): Remounting filesystem read-only")
    assert isinstance(ro, Observation)
    assert seen(checks, b"EXT4-fs (sda1): Remounting filesystem read-only at last") == []
    assert seen(checks, b"tmpfs: Unknown parameter 'EXT4-fs error x'") == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rules": 5}, "is not of node-problem-detector's form"),
        ({"source": "xid"}, "one of the agent's own"),
        ({"source": "Kernel Monitor"}, "is no name of a check"),
        (
            {"rules": [{"type": "temporary", "reason": "X", "pattern": "(a+)+b"}]},
            "rules[0].pattern: is slow",
        ),
        *(
            (
                {"rules": [{"type": "temporary", "reason": "X", "pattern": pattern}]},
                "rules[0].pattern: is slow",
            )
            for pattern in ("(?i)x[A-Z]+b[A-Z]+c[A-Z]+d", "(?i:x(?:[A-Z]+b[A-Z]+c[A-Z]+d|y))")
        ),
        (
            {"rules": [{"type": "temporary", "reason": "X", "pattern": r"\pL+ lost"}]},
            "of RE2, which is not read here",
        ),
        (
            {"rules": [{"type": "temporary", "reason": "X", "pattern": "lost ("}]},
            "rules[0].pattern: is no pattern",
        ),
        (
            {"rules": [{"type": "sometimes", "reason": "X", "pattern": "x"}]},
            "temporary or permanent",
        ),
        (
            {"rules": [{"type": "permanent", "reason": "X", "pattern": "x"}]},
            "rules[0].pattern: is of a permanent rule without a condition",
        ),
        *(
            (
                {"rules": [{"type": "temporary", "reason": "X", "pattern": pattern}]},
                "rules[0].pattern: matches every line",
            )
            for pattern in ("", ".*", "BUG: x\n", "BUG: x\n.*")
        ),
        (
            {"plugin": "journald", "pluginConfig": {"source": "dockerd"}},
            "is of the journal of dockerd, not of the kernel log",
        ),
        (
            {
                "plugin": "filelog",
                "pluginConfig": {"message": "msg=(.*)"},
                "logPath": "/var/log/docker.log",
            },
            "is of the file /var/log/docker.log, not of the kernel log",
        ),
        ({"plugin": "custom"}, "is of the plugin custom, not of the kernel log"),
        ({"pluginConfig": "x"}, "is not of node-problem-detector's form"),
    ],
)
def test_a_monitor_s_file_that_cannot_be_read_is_refused(
    tmp_path: Path, changes: dict[str, object], what: str
) -> None:
    with pytest.raises(ConfigError, match="kernel_monitor: ") as refused:
        monitored(tmp_path, **changes)
    assert what in str(refused.value)


@pytest.mark.parametrize("filler", [b"a", b"task ", b"XFS ", b"x:1 ", b" ", b"\\x0a", b"task :"])
def test_a_hostile_line_is_cheap(tmp_path: Path, filler: bytes) -> None:
    checks = checks_of(tmp_path, monitored(tmp_path)) | checks_of(
        tmp_path, configured(tmp_path, LOST)
    )
    by_start = ChecksByStart(checks)
    line = record(b"INFO: task " + filler * (8000 // len(filler)))
    began = time.process_time()
    for _ in range(20):
        read(by_start, line)
    assert time.process_time() - began < 2.0, "100 ms for each"


def test_lines_are_changed_while_the_agent_runs(tmp_path: Path) -> None:
    made = CheckSet(sources(HostRoots(HandClock(), sys=tmp_path)))
    made.follow(configured(tmp_path, LOST))
    before = made.log_checks["scratch"]
    made.follow(configured(tmp_path, LOST))
    assert made.log_checks["scratch"] is before, "unchanged lines stay the same check"
    made.follow(configured(tmp_path, LOST.replace("lost its", "has lost its")))
    assert made.log_checks["scratch"] is not before
    made.follow(configured(tmp_path, ""))
    assert "scratch" not in made.log_checks


def test_without_a_kernel_log_its_lines_are_off(tmp_path: Path) -> None:
    made = CheckSet(sources(HostRoots(HandClock(), sys=tmp_path)))
    made.follow(configured(tmp_path, LOST + "\n[kernel_log]\nenabled = false\n"))
    assert made.off["scratch"] == "off by configuration (kernel_log.enabled)"
