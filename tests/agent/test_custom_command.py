"""Programs of the site's as checks: the harm that they may do, and the meaning of their codes."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import custom_command
from nodeagent.checks.custom_command import NAGIOS, NPD
from nodeagent.model import Status
from nodeagent.sources import command_child
from nodeagent.sources.command import CommandProcess, CommandStuck, Outcome
from tests.agent import real_disks
from tests.agent.machines import made_up, observations, sources
from tests.controlplane.processes import ended
from tests.support.tasks import end_tasks
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE, until

BASH = "#!/bin/bash\n"


def script(folder: Path, text: str, *, name: str = "check", mode: int = 0o755) -> str:
    path = text_file(folder / name, text)
    path.chmod(mode)
    return str(path)


async def verdict(
    folder: Path, text: str, protocol: str = NAGIOS, *, time_limit: float = PATIENCE
) -> tuple[Status, str, str]:
    """The verdict on a bash script, run as the agent would run it."""
    build = custom_command.Build("mine", protocol, (script(folder, BASH + text),), time_limit)
    check = build(sources(made_up(folder / "machine")), {})
    [(component, seen)] = observations(await check.run_check()).items()
    assert component == ""
    return seen.status, seen.reason, seen.message


async def run(*command: str, time_limit: float = PATIENCE) -> Outcome:
    ran = await CommandProcess(command, time_limit=time_limit, host_root=Path("/")).run()
    assert isinstance(ran, Outcome)
    return ran


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


# -- what codes mean -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["KILL", "PIPE"])
async def test_a_signal_is_unknown(tmp_path: Path, name: str) -> None:
    status, reason, message = await verdict(tmp_path, f"kill -{name} $$")
    assert (status, reason) == (Status.UNKNOWN, "killed")
    assert f"SIG{name}" in message


@pytest.mark.parametrize(
    ("text", "mode", "reason", "words"),
    [
        (None, 0, "not-found", "ENOENT"),
        ("#!/no/such/interpreter\n", 0o755, "not-found", "interpreter"),
        (BASH, 0o644, "not-executable", "EACCES"),
        ("exit 0\n", 0o755, "not-executable", "#!INTERPRETER"),
        ("\x7fELF not", 0o755, "not-executable", "ENOEXEC"),
    ],
    ids=["missing", "no interpreter", "no x bit", "no shebang: never a shell", "a broken binary"],
)
async def test_a_program_that_cannot_be_started_is_unknown(
    tmp_path: Path, text: str | None, mode: int, reason: str, words: str
) -> None:
    path = str(tmp_path / "gone") if text is None else script(tmp_path, text, mode=mode)
    status, found, message = custom_command.evaluate(NAGIOS, await run(path))
    assert (status, found) == (Status.UNKNOWN, reason)
    assert words in message


@pytest.mark.parametrize(
    ("protocol", "text", "message"),
    [
        (NAGIOS, "echo 'on stderr | all' >&2; exit 2", "on stderr | all"),
        (NPD, r"printf 'a\tb\033[31mc\xff\0d'", "a b [31mc\N{REPLACEMENT CHARACTER} d"),
    ],
)
async def test_words_for_people(tmp_path: Path, protocol: str, text: str, message: str) -> None:
    assert (await verdict(tmp_path, text, protocol))[2] == message


# -- what programs do to us ------------------------------------------------------------------------


async def test_a_time_out_is_unknown_and_says_where_it_waited(tmp_path: Path) -> None:
    started = time.monotonic()
    found = await verdict(tmp_path, "echo so far; exec sleep 1000", time_limit=2.0)
    assert found[:2] == (Status.UNKNOWN, "timeout")
    assert re.search(r"^so far; not done by its time limit \(S( in \w+)?\), ended$", found[2])
    assert time.monotonic() - started < PATIENCE


async def test_megabytes_of_words_are_taken_and_the_first_kept(tmp_path: Path) -> None:
    text = "echo first; head -c 3000000 /dev/zero | tr '\\0' x; exit 2"
    assert await verdict(tmp_path, text) == (Status.FAILED, "critical", "first")


async def test_who_never_stops_talking_is_ended_at_once() -> None:
    started = time.monotonic()
    status, reason, message = custom_command.evaluate(NAGIOS, await run("/usr/bin/yes"))
    assert (status, reason) == (Status.UNKNOWN, "too-much-output")
    assert message.endswith("wrote more than 4 MiB, ended")
    assert time.monotonic() - started < PATIENCE


async def test_what_holds_the_output_open_does_not_keep_the_verdict(tmp_path: Path) -> None:
    started = time.monotonic()
    found = await verdict(tmp_path, "sleep 1000 & echo done; exit 1")
    assert found == (Status.DEGRADED, "warning", "done; 1 process left behind, ended")
    assert time.monotonic() - started < PATIENCE


LEAVES = """
echo $$ >> {pids}
sleep 61 & echo $! >> {pids}
setsid bash -c 'echo $$ >> {pids}; trap "" TERM HUP; sleep 62 & echo $! >> {pids}; wait' &
( setsid bash -c 'echo $$ >> {pids}; exec sleep 63' & )
while [ "$(wc -l < {pids})" -lt 5 ]; do sleep 0.02; done
{end}
"""


@pytest.mark.parametrize(("end", "limit"), [("exit 0", PATIENCE), ("exec sleep 60", 6)])
async def test_every_process_that_it_leaves_behind_is_ended(
    tmp_path: Path, end: str, limit: float
) -> None:
    """The program leaves children, a process group of its own, and a daemon."""
    pids = tmp_path / "pids"
    await verdict(tmp_path, LEAVES.format(pids=pids, end=end), time_limit=limit)
    assert len(pids_in(pids)) == 5
    assert not [pid for pid in pids_in(pids) if not ended(pid)]


async def test_who_forks_and_forks_is_ended_to_the_last(tmp_path: Path) -> None:
    """Each in a session of its own, and new ones while the first are being ended."""
    pids = tmp_path / "pids"
    text = f"""
    for ((i = 0; i < 200; i++)); do
      setsid bash -c 'echo $$ >> {pids}; (sleep 60 &) ; (sleep 60 &) ; exec sleep 60' &
    done
    wait"""
    found = await verdict(tmp_path, text, time_limit=4.0)
    assert found[:2] == (Status.UNKNOWN, "timeout")
    started = pids_in(pids)
    assert len(started) > 10
    assert not [pid for pid in started if not ended(pid)]
    assert not sessions() & set(started), "nor their children, which nobody is the parent of"


def sessions() -> set[int]:
    """Those of all processes."""
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            found.add(os.getsid(pid))
    return found


@given(
    protocol=st.sampled_from(custom_command.PROTOCOLS),
    code=st.integers(0, 255),
    out=st.text(max_size=40),
    err=st.text(max_size=40),
)
def test_only_codes_that_a_protocol_has_say_anything_of_the_node(
    protocol: str, code: int, out: str, err: str
) -> None:
    status, reason, message = custom_command.evaluate(
        protocol, Outcome(exit=code, out=out, err=err)
    )
    known = {NAGIOS: {0, 1, 2}, NPD: {0, 1}}[protocol]
    assert (status is Status.UNKNOWN) == (code not in known)
    assert re.fullmatch(r"[a-z-]*", reason)
    assert message.isprintable()
    assert message or code == 0


def test_without_the_kernels_list_of_children_they_are_found_all_the_same(
    tmp_path: Path,
) -> None:
    """CONFIG_PROC_CHILDREN may be off: then each process's stat names its parent."""
    parent = subprocess.Popen(["bash", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert command_child._children_by_stat(parent.pid) == [child]
        assert command_child._children(parent.pid) == [child]
        os.kill(child, 9)
    finally:
        parent.kill()
        parent.communicate()


async def test_nothing_of_ours_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, no variable, no ignored signal, no terminal."""
    monkeypatch.setenv("SICKBAY_SECRET", "hush")
    secret = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(secret, True)
    text = """
    echo "stdin: $(readlink /proc/$$/fd/0)"
    echo "env: $(tr '\\0' ' ' < /proc/$$/environ)"
    echo "cwd: $PWD umask: $(umask) session: $(( $(cut -d' ' -f6 /proc/$$/stat) == $$ ))"
    echo "oom: $(cat /proc/$$/oom_score_adj) core: $(ulimit -c)"
    """
    try:
        ran = await run(script(tmp_path, BASH + text))
        masks = (await run("/bin/grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")).out
        files = (await run("/bin/ls", "-l", "/proc/self/fd")).out
    finally:
        os.close(secret)
    lines = dict(line.strip().split(":", 1) for line in ran.out.strip().splitlines())
    targets = dict(re.findall(r" (\d+) -> (\S+)", files))
    assert sorted(targets) == ["0", "1", "2", "3"]
    assert re.fullmatch(r"/proc/\d+/fd", targets["3"]), "the list that ls itself reads"
    assert lines["stdin"] == " /dev/null"
    assert sorted(lines["env"].split()) == [
        "HOME=/",
        "LC_ALL=C.UTF-8",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SICKBAY_HOST_ROOT=/",
    ]
    assert lines["cwd"] == " / umask: 0077 session: 1"
    blocked, ignored = (int(mask, 16) for mask in re.findall(r":\t(\w+)", masks))
    assert blocked == 0
    assert ignored & 0x7FFFFFFF == 0, "glibc keeps two beyond the first 31"
    assert lines["oom"] == " 500 core: 0"


async def test_arguments_arrive_as_they_are_and_no_shell_reads_them(tmp_path: Path) -> None:
    strange = ["a b", "$(touch /tmp/x)", "", "; exit 2", "*", "-c"]
    path = script(tmp_path, BASH + 'printf "<%s>" "$@"')
    assert (await run(path, *strange)).out == "".join(f"<{each}>" for each in strange)


async def test_a_look_that_is_cancelled_ends_the_program(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = script(tmp_path, BASH + f"echo $$ >> {pids}; setsid sleep 60 & echo $! >> {pids}; wait")
    program = CommandProcess([path], time_limit=60, host_root=Path("/"))
    look = asyncio.ensure_future(program.run())
    await until(lambda: len(pids_in(pids)) == 2, what="the program")
    await end_tasks(look)
    await until(lambda: all(map(ended, pids_in(pids))), what="its end")


AGENT = """
import asyncio, sys
from pathlib import Path
from nodeagent.sources.command import CommandProcess as Program
asyncio.run(Program(sys.argv[1:], time_limit=60, host_root=Path('/')).run())
"""


async def test_the_agents_death_ends_the_program(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = script(tmp_path, BASH + f"echo $$ >> {pids}; setsid sleep 60 & echo $! >> {pids}; wait")
    agent = subprocess.Popen([sys.executable, "-c", AGENT, path])  # noqa: ASYNC220
    try:
        await until(lambda: len(pids_in(pids)) == 2, what="the program")
    finally:
        agent.kill()
        agent.wait()
    await until(lambda: all(map(ended, pids_in(pids))), what="its end")


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder on a frozen ext4, and what thaws it."""
    if real_disks.why_not():
        pytest.skip(real_disks.why_not())
    with real_disks.freezer(tmp_path / "frozen") as thaw:
        yield tmp_path / "frozen", thaw


@pytest.mark.root
async def test_one_that_hangs_in_the_kernel_is_said_to_and_not_started_again(
    tmp_path: Path, frozen: tuple[Path, Callable[[], None]]
) -> None:
    folder, thaw = frozen
    count = tmp_path / "count"
    path = script(tmp_path, BASH + f"echo x >> {count}; exec touch {folder}/new")
    program = CommandProcess([path], time_limit=2.0, host_root=Path("/"))
    first = await program.run()
    assert custom_command.evaluate(NAGIOS, first)[:2] == (Status.UNKNOWN, "timeout")
    assert isinstance(first, Outcome)
    assert first.late is not None
    assert first.late.startswith("D")
    assert re.search(r"process \d+: D", first.stuck)
    for _ in range(3):
        status, reason, message = custom_command.evaluate(NAGIOS, await program.run())
        assert (status, reason) == (Status.UNKNOWN, "stuck")
        assert first.stuck in message
    assert count.read_text() == "x\n", "no second one beside it"
    thaw()
    await until((folder / "new").exists, what="the end of the wait")
    async with asyncio.timeout(PATIENCE):
        while isinstance(again := await program.run(), CommandStuck):  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.05)
    assert custom_command.evaluate(NAGIOS, again)[0] is Status.OK
