"""Lint and every test, beside each other: most tests wait, and few compute.

    python -m tests.side_by_side [options of pytest]

Each group of tests has one or more runs of pytest, which share its files (`tests/claims.py`):

machine  files of `MACHINE` with tests that change this machine for others (marked `root`: the
         kernel log, mounts, network namespaces, containers), one after another
cluster  tests of a control plane; each run has a plane of its own, and waits for its programs while
         they are built
rest     all other tests; a new folder of tests is in this group unless it is listed elsewhere

When a run of another group has ended, one more run of `rest` takes its place, unless the processors
have enough to do.

One run is shown as it goes, and the others after it. At the end stands a line for each
test that failed in any, and one for each of the slowest files. The exit code is 0 if none failed,
130 after Ctrl-C, which ends all. The time of each test is in build/test/NAME.xml (JUnit).
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from aggregator.demo.process_guard import ProcessGuard
from tests.support.agent_programs import (
    AGENT,
    AGENT_COMMANDS,
    AGENT_WITH_UPLINK,
    SIMULATOR,
)
from tests.support.aggregator_program import AGGREGATOR, SICKBAY
from tests.support.fork_server import (
    SHARED,
    Program,
    end_fork_servers,
    share_fork_servers,
    start_program,
    start_programs_by_fork,
)
from tests.support.listening import LISTENING
from tests.support.pytest_program import PYTEST

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "test"
#: Builds of images and packages, which take minutes: `make test-images`, `make test-packages`.
APART = ("tests/packages",)
MACHINE = ("tests/agent", "tests/deploy")
MARKED = "mark.root"
CLUSTER = ("tests/e2e", "tests/kube", "tests/deploy/test_docs.py")


@dataclass(frozen=True, slots=True)
class Group:
    """Files of tests, by arguments of pytest, and the number of runs that share them.

    ``then``: the group of which one more run begins when a run of this one has ended.
    ``niceness``: of its runs; those that mostly wait come first where it is higher.
    """

    runs: int
    arguments: Sequence[str]
    then: str = ""
    niceness: int = 0

    def count_files(self) -> int:
        """The number of files with tests, as pytest finds them."""
        ignored = [one.removeprefix("--ignore=") for one in self.arguments if one.startswith("--")]
        found: set[Path] = set()
        for one in self.arguments:
            path = ROOT / one
            found |= {path} if path.is_file() else set(path.rglob("test_*.py"))
        return sum(not any(path.is_relative_to(ROOT / one) for one in ignored) for path in found)


def _machine_files() -> tuple[str, ...]:
    files = (file for folder in MACHINE for file in sorted((ROOT / folder).rglob("test_*.py")))
    return tuple(str(file.relative_to(ROOT)) for file in files if MARKED in file.read_text())


MACHINE_FILES = _machine_files()
GROUPS: Mapping[str, Group] = {
    # They compute, so they take what the others leave: the tests of a cluster end last otherwise.
    "rest": Group(
        6,
        ("tests", *(f"--ignore={one}" for one in (*MACHINE_FILES, *CLUSTER, *APART))),
        niceness=5,
    ),
    "machine": Group(1, MACHINE_FILES, then="rest"),
    # They need a fifth of a processor each: they wait for Leases to expire and servers to start.
    "cluster": Group(5, CLUSTER, then="rest"),
}
#: A further run begins only where more files are left than this: its files import some more.
FEW_LEFT = 20
#: A further run begins only where fewer runs are at work than this for each processor. With five,
#: the processors idled for a tenth of the time: half of the runs wait.
PER_PROCESSOR = 6
#: Commands beside the tests. The control plane is built while tests without one run, with a higher
#: priority where the user is root, because the tests of the cluster wait for it. A build that fails
#: is a failure, though the tests that need it skip.
COMMANDS: Mapping[str, Sequence[str]] = {
    "lint": ("make", "--no-print-directory", "lint"),
    "controlplane": ("nice", "-n", "-10", sys.executable, "-m", "tests.controlplane", "build"),
}
#: What tests start by a fork: one server of each serves all runs, and forks these themselves.
FORKED = (PYTEST, AGGREGATOR, SICKBAY, AGENT, AGENT_WITH_UPLINK, AGENT_COMMANDS, SIMULATOR)
#: A folder of files in memory, and the bytes that must be free in it: the tests leave 4 GB there,
#: and their processes need as much.
MEMORY, ENOUGH = Path("/dev/shm"), 6 << 30
#: A run does not know how many tests it will have claimed at its end.
NO_PERCENTAGE = ("-o", "console_output_style=classic")
#: pytest's exit codes: https://docs.pytest.org/en/stable/reference/exit-codes.html
OK, NOTHING_CHOSEN = 0, 5
#: The beginnings of the summary's lines that name what failed.
FAILED = ("FAILED ", "ERROR ")
SLOWEST = 10


class Run:
    """One process, and its output: kept, and shown from when `show` is called.

    ``left``: how many files with tests nobody has claimed; a run that begins after another one
    needs some.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        program: Program | None = None,
        left: Callable[[], int] | None = None,
        niceness: int = 0,
    ) -> None:
        """``program``: that of which ``command`` has the arguments."""
        self.name = name
        self.left = left
        self.niceness = niceness
        self.code: int | None = None
        self._command = command
        self._program = program
        self._output = bytearray()
        self._shown = self._interrupted = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: asyncio.StreamReader | None = None

    @property
    def report(self) -> Path:
        """The times of its tests (JUnit)."""
        return RESULTS / f"{self.name}.xml"

    async def start(self) -> None:
        self._pipe = pipe = asyncio.StreamReader()
        ours, theirs = os.pipe()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(pipe), os.fdopen(ours, "rb", 0)
        )
        with os.fdopen(theirs, "wb") as output:
            # The fork server may still be loading.
            self._process = await asyncio.to_thread(self._start, output)
        if self.niceness:
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, self.niceness)
        if self._interrupted:
            self.interrupt()

    def _start(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        # A session of its own: a Ctrl-C at the terminal comes through `interrupt`, once. A second
        # one would interrupt the removal of what the tests have started.
        if self._program is not None:
            return start_program(
                self._program,
                self._command,
                output=output,
                new_session=True,
                environment=environment(),
                folder=ROOT,
            )
        return subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    async def finish(self) -> None:
        """Read its output to the end."""
        assert self._process is not None
        assert self._pipe is not None
        while piece := await self._pipe.read(1 << 16):
            self._output += piece
            if self._shown:
                _write(piece)
        self.code = await asyncio.to_thread(self._process.wait)

    @property
    def is_at_work(self) -> bool:
        return self._process is not None and self.code is None

    def show(self) -> None:
        """Show the output until now, and from now on each piece as it comes."""
        self._shown = True
        _write(f"===== {self.name} =====\n".encode() + self._output)

    def interrupt(self) -> None:
        """As Ctrl-C: it ends what it has started, and then itself."""
        self._interrupted = True
        if self._process is not None and self.code is None:
            self._process.send_signal(signal.SIGINT)

    @property
    def failed(self) -> list[str]:
        """The lines of its summary that name what failed."""
        return [line for line in self._lines if line.startswith(FAILED)]

    @property
    def result(self) -> str:
        """Its last line, with the counts."""
        return f"{self.name}: {self._lines[-1].strip('= ')}, exit code {self.code}"

    @property
    def _lines(self) -> list[str]:
        return self._output.decode(errors="replace").splitlines() or [""]


def group_of(file: str) -> str:
    """The name of the group that runs this file of tests."""
    folder = "/".join(file.split("/")[:2])
    if file in MACHINE_FILES:
        return "machine"
    return "cluster" if file in CLUSTER or folder in CLUSTER else "rest"


def runs_of_tests(
    options: Sequence[str], groups: Mapping[str, Group], temporary: Path | None
) -> tuple[list[Run], dict[Run, Run]]:
    """The runs of all groups, with nothing claimed yet; and the runs that begin after some.

    ``temporary``: where each has a folder for the files of its tests.
    """
    claims = RESULTS / "claims"
    shutil.rmtree(claims, ignore_errors=True)
    numbers: Counter[str] = Counter()

    def run_of(name: str, *, alone: bool = False, left: Callable[[], int] | None = None) -> Run:
        numbers[name] += 1
        own = name if alone else f"{name}-{numbers[name]}"
        shared = ("-p", "tests.claims", f"--claims={claims / name}", *NO_PERCENTAGE)
        arguments = (*groups[name].arguments, *shared, f"--junitxml={RESULTS / own}.xml")
        if temporary is not None:
            # Short, because a socket's path has 107 bytes.
            arguments += (f"--basetemp={temporary}/{numbers.total()}",)
        return Run(own, (*arguments, *options), PYTEST, left, groups[name].niceness)

    def left_of(name: str) -> int:
        return groups[name].count_files() - len(list((claims / name).iterdir()))

    runs, later = [], {}
    for name, group in groups.items():
        (claims / name).mkdir(parents=True)
        runs += [run_of(name, alone=group.runs == 1) for _ in range(group.runs)]
    for run in runs:
        then = groups[run.name.partition("-")[0]].then
        if then in groups:
            later[run] = run_of(then, left=partial(left_of, then))
    return runs, later


async def main(
    options: Sequence[str],
    groups: Mapping[str, Group] = GROUPS,
    temporary: Path | None = None,
) -> int:
    tests, later = runs_of_tests(options, groups, temporary)
    others = [
        Run(name, command)
        for name, command in COMMANDS.items()
        if name != "controlplane" or "cluster" in groups
    ]
    runs = [*others, *tests]
    interrupted = asyncio.Event()

    def interrupt() -> None:
        if not interrupted.is_set():
            interrupted.set()
            for run in (*runs, *later.values()):
                run.interrupt()

    async def follow(before: asyncio.Task[None], run: Run) -> None:
        await before
        at_work = sum(one.is_at_work for one in (*tests, *later.values()))
        busy = at_work >= PER_PROCESSOR * len(os.sched_getaffinity(0))
        if not (interrupted.is_set() or busy) and run.left is not None and run.left() > FEW_LEFT:
            await run.start()
            await run.finish()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    for run in runs:
        await run.start()
    ends = {run: asyncio.create_task(run.finish()) for run in runs}
    ends |= {run: asyncio.create_task(follow(ends[first], run)) for first, run in later.items()}
    for run, end in ends.items():
        run.show()
        await end
    tests += [run for run in later.values() if run.code is not None]
    runs = [*others, *tests]
    slowest = [
        f"{seconds:6.1f} s {file}" for file, seconds in slowest_files(run.report for run in tests)
    ]
    failed = [line for run in runs for line in run.failed]
    results = [run.result for run in runs]
    lines = ["", "===== slowest =====", *slowest, "===== all =====", *failed, *results, ""]
    _write("\n".join(lines).encode())
    if interrupted.is_set():
        return 130
    return verdict(run.code for run in tests) or verdict([OK, *(run.code for run in others)])


@contextlib.contextmanager
def fork_servers() -> Iterator[None]:
    """Those of `FORKED` for all runs, unless this is a run within one that has them."""
    if SHARED in os.environ:
        yield
        return
    with share_fork_servers([one.load for one in FORKED], environment()) as folder:
        os.environ[SHARED] = folder
        try:
            yield
        finally:
            end_fork_servers()
            del os.environ[SHARED]


@contextlib.contextmanager
def temporary_files_in_memory(memory: Path = MEMORY, enough: int = ENOUGH) -> Iterator[Path | None]:
    """Where there is room, and unless the caller has said where, until the end of all runs.

    Tests make and delete thousands of files a minute. For each new one ext4 looks at every inode
    that was deleted in the last seconds: a tenth of the processors' time.
    """
    if "TMPDIR" in os.environ or not has_room(memory, enough):
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="sb-", dir=memory))
    folder.chmod(0o755)  # PostgreSQL's user has a folder there
    guard = ProcessGuard(folder, remove=True)  # memory stays taken otherwise, after SIGKILL too
    os.environ["TMPDIR"] = str(folder)
    try:
        yield folder
    finally:
        del os.environ["TMPDIR"]
        guard.close()


def has_room(memory: Path, enough: int) -> bool:
    """Whether so many bytes are free in the folder, and twice as many in the machine's memory."""
    if not os.access(memory, os.W_OK):
        return False
    return (
        shutil.disk_usage(memory).free >= enough and psutil.virtual_memory().available >= 2 * enough
    )


def environment() -> dict[str, str]:
    """The environment of a run: all programs that tests start share compiled bytecode.

    A start of the aggregator takes 0.9 s more of a processor's time if it compiles each module,
    and tests start it hundreds of times.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return LISTENING | kept | {"PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}


def verdict(codes: Iterable[int | None]) -> int:
    """One exit code of several. A run without tests is no failure if another has run some."""
    counted = [code for code in codes if code != NOTHING_CHOSEN] or [NOTHING_CHOSEN]
    return next((code for code in counted if code), OK)


def slowest_files(reports: Iterable[Path]) -> list[tuple[str, float]]:
    """The modules with the longest tests in these reports (JUnit), in seconds."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        if report.exists():
            for case in ET.parse(report).getroot().iter("testcase"):
                seconds[case.get("classname", "")] += float(case.get("time", "0"))
    return sorted(seconds.items(), key=lambda file: -file[1])[:SLOWEST]


def _write(text: bytes) -> None:
    """All of it, at once: a reader sees each test when it is over."""
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


if __name__ == "__main__":
    start_programs_by_fork()
    os.environ |= environment()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with temporary_files_in_memory() as temporary, fork_servers():
        status = asyncio.run(main(sys.argv[1:], temporary=temporary))
    sys.exit(status)
