"""Checks of one look: their verdicts at their thresholds, and their memory between looks."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import (
    clock,
    container_runtime,
    custom_command,
    disk_mounts,
    disk_readonly,
    dns,
    kubelet,
    maintenance,
    nic_link,
    peers,
    pod_network,
    pressure,
    processes,
    reboot,
    registry,
)
from nodeagent.checks.base import Kind, Off
from nodeagent.checks.custom_command import NAGIOS, NPD
from nodeagent.model import Status
from nodeagent.sources.cloud_events import MaintenanceEvent, ServiceError
from nodeagent.sources.command import CommandStuck as StuckRun
from nodeagent.sources.command import Outcome
from nodeagent.sources.disk_probe import Result, Space
from nodeagent.sources.dns import Reply
from nodeagent.sources.http import HttpError, Response
from nodeagent.sources.pod_network import NoProber, ProberError, ProberReply
from nodeagent.sources.pressure import Stall
from nodeagent.sources.processes import Found, StuckProcess
from nodeagent.sources.timex import Timex
from tests.agent.kernel_log import HandClock
from tests.agent.machines import built, made_up, observations, options, sources, verdicts
from tests.agent.test_clock import UNSYNCHRONISED
from tests.support.text_files import text_file

OK = (Status.OK, "")
DEGRADED, FAILED, UNKNOWN = Status.DEGRADED, Status.FAILED, Status.UNKNOWN


# -- own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "ran", "verdict"),
    [
        (NAGIOS, Outcome(exit=0, out="fine"), (*OK, "fine")),
        (NAGIOS, Outcome(exit=0), (*OK, "exit code 0, not a word")),
        (NAGIOS, Outcome(exit=1, out="hm | a=1"), (DEGRADED, "warning", "hm")),
        (NAGIOS, Outcome(exit=2, err="no | a=1\nmore"), (FAILED, "critical", "no | a=1")),
        (NAGIOS, Outcome(exit=3, out=" \n", err="x"), (UNKNOWN, "unknown", "x")),
        (NAGIOS, Outcome(exit=4, out="x"), (UNKNOWN, "bad-exit", "x; exit code 4")),
        (NAGIOS, Outcome(exit=126), (UNKNOWN, "not-executable", "exit code 126")),
        (NAGIOS, Outcome(exit=127), (UNKNOWN, "not-found", "exit code 127")),
        (NPD, Outcome(exit=1, out="a | b\nc"), (FAILED, "problem", "a | b c")),
        (NPD, Outcome(exit=2, out="x"), (UNKNOWN, "unknown", "x; exit code 2")),
        (NPD, Outcome(exit=126), (UNKNOWN, "not-executable", "exit code 126")),
        (NPD, Outcome(exit=127), (UNKNOWN, "not-found", "exit code 127")),
        (
            NPD,
            Outcome(exit=0, out="x", left=2, stuck="pid 7 in nfs_wait"),
            (*OK, "x; 2 processes left behind, ended; cannot be ended: pid 7 in nfs_wait"),
        ),
        (
            NPD,
            Outcome(errno=errno.ENOENT),
            (
                UNKNOWN,
                "not-found",
                "cannot be started: ENOENT (or the interpreter in its first line)",
            ),
        ),
        (
            NPD,
            Outcome(errno=errno.ENOEXEC),
            (
                UNKNOWN,
                "not-executable",
                "cannot be started: ENOEXEC (a script without a first line #!INTERPRETER)",
            ),
        ),
        (
            NPD,
            Outcome(errno=errno.EACCES),
            (UNKNOWN, "not-executable", "cannot be started: EACCES"),
        ),
        (NPD, Outcome(errno=9999), (UNKNOWN, "not-executable", "cannot be started: 9999")),
        (
            NPD,
            Outcome(late="", flood=True, exit=0),
            (UNKNOWN, "timeout", "not done by its time limit, ended"),
        ),
        (
            NPD,
            Outcome(late="D in nfs_wait"),
            (UNKNOWN, "timeout", "not done by its time limit (D in nfs_wait), ended"),
        ),
        (
            NPD,
            Outcome(flood=True, signal=9),
            (UNKNOWN, "too-much-output", "wrote more than 4 MiB, ended"),
        ),
        (NPD, Outcome(signal=9, exit=0), (UNKNOWN, "killed", "killed by SIGKILL")),
        (NPD, Outcome(signal=99), (UNKNOWN, "killed", "killed by signal 99")),
        (NPD, Outcome(broken="no pipe"), (UNKNOWN, "not-started", "no pipe")),
        (
            NPD,
            StuckRun("pid 7 in nfs_wait"),
            (UNKNOWN, "stuck", "an earlier run cannot be ended: pid 7 in nfs_wait"),
        ),
    ],
)
def test_what_a_program_s_end_means(
    protocol: str, ran: Outcome | StuckRun, verdict: tuple[Status, str, str]
) -> None:
    assert custom_command.evaluate(protocol, ran) == verdict


def test_a_program_s_words_are_cut_and_made_printable() -> None:
    [*_, message] = custom_command.evaluate(NPD, Outcome(exit=0, out="a\x1b\t b" + "x" * 600))
    assert message == ("a b" + "x" * 600)[:500]


# -- processes, memory, clock ---------------------------------------------------------------------


def found(zombies: int = 0, *stuck: StuckProcess) -> Found:
    return Found(100, {(1, "init"): zombies} if zombies else {}, list(stuck))


@pytest.mark.parametrize(("number", "verdict"), [(9, OK), (10, (DEGRADED, "zombies"))])
def test_zombies(number: int, verdict: tuple[Status, str]) -> None:
    said = processes.evaluate_zombies(found(number), limit=10)
    assert (said.status, said.reason) == verdict
    assert said.message == (
        "9 of 100 processes are dead"
        if verdict == OK
        else "10 dead processes that no parent reaps: 10 of init (pid 1)"
    )


def test_of_many_parents_of_zombies_the_five_worst_are_named() -> None:
    zombies = {(pid, "" if pid == 7 else f"p{pid}"): pid for pid in range(1, 8)}
    said = processes.evaluate_zombies(Found(100, zombies, []), limit=1)
    worst = ["7 of ? (pid 7)", *(f"{pid} of p{pid} (pid {pid})" for pid in range(6, 2, -1))]
    assert said.message == f"28 dead processes that no parent reaps: {', '.join(worst)}"


def test_processes_that_hang() -> None:
    hanging = [
        StuckProcess(pid, f"p{pid}", "nfs_wait" if pid > 2 else "", 600.0) for pid in range(1, 8)
    ]
    young = StuckProcess(9, "young", "x", 599.9)

    def evaluated(*stuck: StuckProcess) -> tuple[Status, str, str]:
        said = processes.evaluate_stuck(found(0, *stuck), stuck_for=600.0, many=3)
        return said.status, said.reason, said.message

    assert evaluated() == evaluated(young) == (*OK, "0 of 100 processes hang in the kernel")
    status, reason, message = evaluated(young, hanging[2])
    assert (status, reason) == (DEGRADED, "stuck")
    assert message == "1 hang in the kernel, in nfs_wait (1): p3 (pid 3)"
    assert evaluated(*hanging[:2])[0] is DEGRADED
    assert evaluated(*hanging[:3])[0] is FAILED
    names = ", ".join(f"p{pid} (pid {pid})" for pid in range(1, 6))
    where = "nfs_wait (5), an unknown place (2)"
    assert evaluated(*hanging)[2] == f"7 hang in the kernel, in {where}: {names}"


@pytest.mark.parametrize(
    ("timex", "starting", "verdict"),
    [
        (Timex(True, 0.5, 1.0), False, OK),
        (Timex(True, 0.6, 9.0), False, (FAILED, "offset")),
        (Timex(False, -0.6, 0.0), True, (FAILED, "offset")),
        (Timex(True, -0.5, 1.0), False, OK),
        (Timex(True, 0.0, 1.1), False, (DEGRADED, "uncertain")),
        (Timex(False, 0.0, 9.0), False, (DEGRADED, "unsynchronised")),
        (Timex(False, 0.0, 9.0), True, (UNKNOWN, "starting")),
        (Timex(True, 0.0, 1.0), True, OK),
    ],
)
def test_a_clock(timex: Timex, verdict: tuple[Status, str], *, starting: bool) -> None:
    said = clock.evaluate(timex, starting=starting, max_error=1.0, max_offset=0.5)
    assert said[:2] == verdict
    if verdict[1] == "offset":
        assert said[2] == f"{timex.offset:+.3g} s off, being corrected"


@pytest.mark.parametrize(("up", "reason"), [(599.9, "starting"), (600.0, "unsynchronised")])
async def test_a_clock_may_be_wrong_for_a_while_after_the_boot(up: float, reason: str) -> None:
    settings = options(clock.SPEC, boot_grace=600.0)
    check = clock.ClockCheck(HandClock(up), settings, lambda: UNSYNCHRONISED)
    assert [one.reason for one in observations(await check.run_check()).values()] == [reason]


@pytest.mark.parametrize(
    ("resource", "stalled", "message"),
    [
        ("cpu", Stall(80.0, 99.0), "some work waited for cpu for 80% of the last minute"),
        ("cpu", Stall(80.1, 0.0), "some work waited for cpu for 80% of the last minute"),
        ("io", Stall(99.0, 80.0), "all work waited for io for 80% of the last minute"),
        ("io", Stall(99.0, 80.1), "all work waited for io for 80% of the last minute"),
    ],
)
def test_work_that_stands_still(resource: str, stalled: Stall, message: str) -> None:
    said = pressure.evaluate(resource, stalled, limit=80.0)
    assert (said.component, said.message) == (resource, message)
    above = stalled.some > 80 if resource == "cpu" else stalled.full > 80
    assert (said.status, said.reason) == ((DEGRADED, "stalled") if above else OK)


# -- reboot ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "name", "before_boot", "counts"),
    [
        ("sys/fs/pstore", "dmesg-efi-1", 3600, True),
        ("sys/fs/pstore", "dmesg-efi-1", 3601, False),
        ("sys/fs/pstore", "dmesg-efi-1", -1000, True),
        ("sys/fs/pstore", "console-1", 10, False),
        ("var/lib/systemd/pstore", "1700000000", 60, True),
        ("var/lib/systemd/pstore", "1700000000", 61, False),
        ("var/lib/systemd/pstore", "1700000000", -1000, True),
        ("var/crash", "127.0.0.1-x/", 3600, True),
        ("var/crash", "127.0.0.1-x/", 3601, False),
        ("var/crash", "127.0.0.1-x/", -60, True),
        ("var/crash", "127.0.0.1-x/", -61, False),
        ("var/crash", "kdump.log", 10, False),
    ],
)
def test_what_a_crash_leaves_counts_if_it_is_of_this_reboot(
    tmp_path: Path, folder: str, name: str, before_boot: int, *, counts: bool
) -> None:
    machine = made_up(tmp_path)
    left = tmp_path / folder / name
    left.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("/"):
        left.mkdir()
    else:
        left.touch()
    booted = 1_700_000_000
    os.utime(left, (booted - before_boot,) * 2)
    path = f"/{folder}/{name.rstrip('/')}" if counts else ""
    assert reboot.crash_evidence(machine, booted) == path


async def test_a_boot_is_told_for_a_while(tmp_path: Path) -> None:
    hand = HandClock(99.0)
    machine = made_up(tmp_path, hand)
    check = built(reboot.SPEC, sources(machine), options(reboot.SPEC, recent=100.0))
    for text in (None, "cpu 1\n", "btime x\n", "xbtime 5\n", "btime ٣\n"):
        if text is not None:
            (tmp_path / "proc/stat").write_text(text)
        assert verdicts(await check.run_check()) == {"": (UNKNOWN, "no-procfs")}
    (tmp_path / "proc/stat").write_text("cpu 1\nbtime 1700000000\nprocesses 1\n")
    assert reboot.boot_time(machine) == 1_700_000_000.0
    [said] = observations(await check.run_check()).values()
    assert (said.status, said.reason, said.message) == (
        *(Status.OK, "rebooted", "came up 1 min ago"),
    )
    dump = tmp_path / "var/crash/1"
    dump.mkdir(parents=True)
    os.utime(dump, (1_700_000_000,) * 2)
    [said] = observations(await check.run_check()).values()
    assert (said.status, said.reason) == (DEGRADED, "crashed")
    assert said.message == "the kernel crashed before this boot: /var/crash/1"
    hand.now = 129_600.0
    assert verdicts(await check.run_check()) == {"": OK}
    [said] = observations(await check.run_check()).values()
    assert said.message == "up for 1.5 days"


# -- kubelet, container-runtime, pod-network, maintenance -----------------------------------------


async def test_a_kubelet_that_answered_is_missed_and_one_that_never_did_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Response | HttpError] = []

    async def request(*_: object, **__: object) -> Response:
        answer = answers[-1]
        if isinstance(answer, HttpError):
            raise answer
        return answer

    monkeypatch.setattr(kubelet, "request", request)
    machine = made_up(tmp_path)
    check = built(kubelet.SPEC, sources(machine), options(kubelet.SPEC))
    answers.append(HttpError("refused", "x"))
    assert await check.run_check() == Off("no kubelet")
    expected = built(kubelet.SPEC, sources(machine), options(kubelet.SPEC, expected=True))
    assert verdicts(await expected.run_check()) == {"": (FAILED, "refused")}
    (tmp_path / "var/lib/kubelet").mkdir(parents=True)
    assert verdicts(await check.run_check()) == {"": (UNKNOWN, "never-answered")}
    answers.append(Response(500, {}, b"x"))
    assert verdicts(await check.run_check()) == {"": (FAILED, "unhealthy")}
    answers.append(HttpError("timeout", "x"))
    assert verdicts(await check.run_check()) == {"": (FAILED, "timeout")}


async def test_a_runtime_s_socket_is_missed_once_it_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = container_runtime.USUAL
    socket = tmp_path / usual[1].lstrip("/")
    there = {socket}

    async def greet(path: Path, _deadline: float) -> tuple[str, str]:
        return ("", "answers") if path in there else ("missing", "no such file")

    monkeypatch.setattr(container_runtime, "greet", greet)
    machine = made_up(tmp_path)
    check = built(container_runtime.SPEC, sources(machine), options(container_runtime.SPEC))
    assert await check.run_check() == Off("no container runtime")
    socket.parent.mkdir(parents=True)
    socket.touch()
    assert verdicts(await check.run_check()) == {usual[1]: OK}
    socket.unlink()
    there.clear()
    assert verdicts(await check.run_check()) == {usual[1]: (FAILED, "missing")}
    named = options(container_runtime.SPEC, sockets=("/run/a.sock",))
    check = built(container_runtime.SPEC, sources(machine), named)
    assert verdicts(await check.run_check()) == {"/run/a.sock": (FAILED, "missing")}


async def test_a_prober_that_was_there_once_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[ProberReply | Exception] = []

    async def ask(*_: object, **__: object) -> ProberReply:
        if isinstance(said[-1], Exception):
            raise said[-1]
        return said[-1]

    monkeypatch.setattr(pod_network, "query", ask)
    machine = made_up(tmp_path)
    check = built(pod_network.SPEC, sources(machine), options(pod_network.SPEC))
    said.append(NoProber("no file"))
    assert await check.run_check() == Off(
        "no prober on the pod network (deploy/profiles/pod-network)"
    )
    said.append(ProberError("garbled", "not JSON"))
    assert verdicts(await check.run_check()) == {"": (UNKNOWN, "garbled")}
    said.append(NoProber("no file"))
    [unknown] = observations(await check.run_check()).values()
    assert (unknown.reason, unknown.message) == ("no-prober", "no file")
    said.append(ProberReply({"a": ("", "1 ms")}, {"b:1": ("timeout", "silent")}))
    report = await check.run_check()
    assert verdicts(report) == {"": OK, "dns://a": OK, "tcp://b:1": (FAILED, "timeout")}
    assert observations(report)[""].message == "the prober answers"
    assert observations(report)["tcp://b:1"].message == "silent"
    said.append(NoProber("gone"))
    kept = {"": (UNKNOWN, "no-prober"), "dns://a": OK, "tcp://b:1": (FAILED, "timeout")}
    assert verdicts(await check.run_check()) == kept
    said.append(ProberReply({"a": ("", "1 ms")}, {}))
    assert verdicts(await check.run_check()) == {"": OK, "dns://a": OK}
    never = built(pod_network.SPEC, sources(machine), options(pod_network.SPEC))
    await never.run_check()
    said.append(NoProber("gone"))
    assert verdicts(await never.run_check()) == {"": (UNKNOWN, "no-prober"), "dns://a": OK}


@pytest.mark.parametrize("text", ["", "a b", "a\tb", "a/b", "a:1"])
def test_a_name_for_the_prober_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no host name"):
        options(pod_network.SPEC, names=("ok", text))


def test_targets_for_the_prober() -> None:
    chosen = options(pod_network.SPEC, targets=("tcp://a:1", "a:1", "b:2"), names=("x", "x"))
    assert (chosen["targets"], chosen["names"]) == (("a:1", "b:2"), ("x",))
    with pytest.raises(ValueError, match='":1" has no host'):
        options(pod_network.SPEC, targets=(":1",))


async def test_planned_events_stay_while_the_cloud_does_not_answer() -> None:
    class Cloud:
        answer: list[MaintenanceEvent] | ServiceError

        async def events(self) -> list[MaintenanceEvent]:
            if isinstance(self.answer, ServiceError):
                raise self.answer
            return self.answer

    cloud = Cloud()
    check = maintenance.Maintenance(cloud)  # type: ignore[arg-type]
    cloud.answer = [
        MaintenanceEvent("reboot", "at 1"),
        MaintenanceEvent("stop", "at 2"),
        MaintenanceEvent("reboot", "at 3"),
    ]
    report = await check.run_check()
    planned = {"": OK, "reboot": (DEGRADED, "reboot"), "stop": (DEGRADED, "stop")}
    assert verdicts(report) == planned
    assert observations(report)["reboot"].message == "at 1; at 3"
    cloud.answer = ServiceError("timeout", "silent")
    report = await check.run_check()
    assert verdicts(report) == planned | {"": (UNKNOWN, "timeout")}
    assert observations(report)[""].message == "silent"
    cloud.answer = [MaintenanceEvent(f"kind-{n:02}", "") for n in range(20)]
    report = await check.run_check()
    assert set(verdicts(report)) == {"", *(f"kind-{n:02}" for n in range(16))}
    assert isinstance(await maintenance.Maintenance(None).run_check(), Off)


# -- peers, dns, nic-link, disk-mounts ------------------------------------------------------------


async def test_a_peer_that_answered_is_missed_after_two_tries_until_it_is_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[float | OSError | None] = []

    async def echo(*_: object) -> float | None:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(peers, "echo", echo)
    found = sources(made_up(tmp_path))
    check = built(peers.SPEC, found, {})
    assert isinstance(await check.run_check(), Off)
    found.peers.named(("192.0.2.1",))

    async def looked(*said: float | OSError | None) -> tuple[Status, str, str]:
        answers[:] = said
        [one] = observations(await check.run_check()).values()
        assert answers == []
        return one.status, one.reason, one.message

    no_route = OSError(errno.EHOSTUNREACH, "No route to host")
    assert await looked(None, None) == (UNKNOWN, "never-answered", "no answer to 2 echoes")
    assert await looked(None, 0.0) == (*OK, "answers an echo in 0.0 ms")
    assert await looked(0.001) == (*OK, "answers an echo in 1.0 ms")
    assert await looked(None, no_route) == (FAILED, "unreachable", "No route to host")
    assert await looked(OSError("odd"), None) == (FAILED, "unreachable", "odd")
    found.peers.named(())
    assert isinstance(await check.run_check(), Off)
    found.peers.named(("192.0.2.1",))
    assert await looked(None, None) == (UNKNOWN, "never-answered", "no answer to 2 echoes")


async def test_the_servers_are_read_again_after_thirty_looks_or_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble, asked = [""], []

    async def ask(_server: str, name: str, *_: object, **__: object) -> Reply:
        asked.append(name)
        return Reply(trouble[0], "noerror", 0.01, "fine")

    monkeypatch.setattr(dns, "query", ask)
    machine = made_up(tmp_path)
    check = built(dns.SPEC, sources(machine), options(dns.SPEC))
    assert isinstance(await check.run_check(), Off), "a node that resolves nothing"
    check = built(dns.SPEC, sources(machine), options(dns.SPEC))
    conf = text_file(tmp_path / "etc/resolv.conf", "nameserver 192.0.2.1\n")
    looks = []
    for turn in range(63):
        looks.append([*verdicts(await check.run_check())])
        if turn == 40:
            conf.write_text("nameserver 192.0.2.2\n")
    old, new = ["dns://192.0.2.1"], ["dns://192.0.2.2"]
    assert looks == [old] * 62 + [new], "read at the looks 0, 31 and 62"
    conf.write_text("nameserver 192.0.2.3\n")
    trouble[0] = "timeout"
    assert verdicts(await check.run_check()) == {new[0]: (FAILED, "timeout")}
    assert [*verdicts(await check.run_check())] == ["dns://192.0.2.3"]
    conf.unlink()
    assert isinstance(await check.run_check(), Off)
    assert set(asked) == {""}, "without names the root's servers"
    conf.write_text("nameserver 192.0.2.1\n")
    named = options(dns.SPEC, names=("localhost", "localhost.localdomain"))
    await built(dns.SPEC, sources(machine), named).run_check()
    assert asked[-1] == "localhost", "the first of the names"
    conf.unlink()
    conf.mkdir()
    check = built(dns.SPEC, sources(machine), options(dns.SPEC))
    assert verdicts(await check.run_check()) == {"": (UNKNOWN, "no-resolv-conf")}


async def test_a_port_whose_losses_nobody_counts_flaps_never(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    folder = machine.sys / "class/net/eth0"
    (folder / "device").mkdir(parents=True)
    for name, text in {"flags": "0x1003", "operstate": "up", "type": "1"}.items():
        (folder / name).write_text(f"{text}\n")
    check = built(nic_link.SPEC, sources(machine), options(nic_link.SPEC, flaps=1))
    assert verdicts(await check.run_check()) == {"eth0": OK}


@pytest.mark.parametrize("fstype", ["hugetlbfs", "bpf", "overlay", "tmpfs", "xfs", "fuse.x"])
async def test_an_expected_mount_is_there_whatever_its_filesystem(
    tmp_path: Path, fstype: str
) -> None:
    """The table of disks leaves out what holds no files: that it is mounted is asked here alone."""
    machine = made_up(tmp_path)
    table = tmp_path / "proc/self/mountinfo"
    root = f"1 0 8:1 / {tmp_path} rw - ext4 /dev/sda rw\n"
    table.write_text(root + f"2 1 0:9 / {tmp_path}/pages rw - {fstype} none rw\n")
    settings = options(disk_mounts.SPEC, expected=("/pages",))
    check = built(disk_mounts.SPEC, sources(machine), settings)
    [said] = observations(await check.run_check()).values()
    assert (said.component, said.status, said.message) == ("/pages", Status.OK, "mounted")
    named = options(disk_readonly.SPEC, mounts=("/pages",))
    watching = built(disk_readonly.SPEC, sources(machine), named)
    assert verdicts(await watching.run_check()) == {"/": OK, "/pages": OK}
    table.write_text(root)
    missed = {"/pages": (FAILED, "not-mounted")}
    assert verdicts(await check.run_check()) == missed
    there_is_no_error = {"/pages": (Status.UNKNOWN, "not-mounted")}  # on which a rule drains
    assert verdicts(await watching.run_check()) == {"/": OK} | there_is_no_error


async def test_an_expected_remote_mount_is_told_once_by_its_answer(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    (tmp_path / "proc/self/mountinfo").write_text(
        f"1 0 8:1 / {tmp_path} rw - ext4 /dev/sda rw\n"
        f"2 1 0:9 / {tmp_path}/home rw - nfs4 filer:/home rw\n"
        f"3 1 0:10 / {tmp_path}/auto rw - autofs systemd-1 rw\n"
    )
    settings = options(disk_mounts.SPEC, expected=("/home", "/", "/auto", "/none"))
    check = built(disk_mounts.SPEC, sources(machine), settings)

    class Answering:
        async def space(self, paths: list[str], *, apart: bool) -> dict[str, Result]:
            assert apart
            return {path: Space(1, 0, 1, 0, 0) for path in paths}

    check._probe = Answering()
    said = observations(await check.run_check())
    assert {name: (one.status, one.message) for name, one in said.items()} == {
        "/home": (Status.OK, "filer:/home answers"),
        "/": (Status.OK, "mounted"),
        "/auto": (Status.OK, "mounted on demand"),
        "/none": (FAILED, "expected by the configuration, and not mounted"),
    }


# -- the table of checks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Kind.DURATION, 1.5, '"1.5s"'),
        (Kind.PERCENT, 97.0, '"97%"'),
        (Kind.SIZE, 0, '"0B"'),
        (Kind.SIZE, 1, '"1B"'),
        (Kind.SIZE, 1023, '"1023B"'),
        (Kind.SIZE, 1024, '"1KiB"'),
        (Kind.SIZE, 1536, '"1536B"'),
        (Kind.SIZE, 50 * 2**30, '"50GiB"'),
        (Kind.SIZE, 2**50, '"1PiB"'),
        (Kind.SIZE, 2**60, '"1024PiB"'),
        (Kind.FLAG, True, "true"),
        (Kind.TEXTS, ("a", "b"), '["a", "b"]'),
    ],
)
def test_a_value_as_it_stands_in_a_configuration(kind: Kind, value: Any, text: str) -> None:
    assert registry.written(kind, value) == text


def test_each_check_and_setting_has_its_row() -> None:
    table = registry.markdown()
    rows: Mapping[str, int] = {line: table.count(line) for line in table.splitlines() if line}
    for spec in registry.SPECS:
        assert table.count(f"| [`{spec.name}`](#{spec.name}) |") == 1
        section = table.partition(f"\n## {spec.name}\n")[2].partition("\n## ")[0]
        keys = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
        timed = ["interval", "deadline"] if spec.interval else []
        assert keys == ["on", *timed, *(each.name for each in spec.options)]
    assert rows["| check | sees | source | every | cost | can't see |"] == 1
    assert "| as it is logged |" in table


@pytest.mark.parametrize("name", ["zombies", "many_stuck"])
def test_a_number_of_processes_is_one_at_least(name: str) -> None:
    assert options(processes.SPEC, **{name: 1})[name] == 1
    with pytest.raises(ValueError, match="0 is less than 1"):
        options(processes.SPEC, **{name: 0})
