"""The demo: it tells its story, and however it ends no process or file of it remains."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from aggregator.demo.command import FAILED, INTERRUPTED, present
from aggregator.demo.processes import ChildProcesses
from tests.controlplane.waiting import wait_until
from tests.demo import readme

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "local": [str(Path(sys.executable).parent / "sickbay"), "demo"],
    "cluster": [sys.executable, "-m", "tests.demo"],
}
#: The same by the Makefile, which passes a signal on to no program.
TARGETS = {"local": "demo", "cluster": "demo-cluster"}


class Demo:
    """A demo whose temporary files are under ``folder``, and whose processes can be found by it."""

    def __init__(self, folder: Path, where: str, nodes: int, *, by_make: bool) -> None:
        options = ["--once", "--nodes", str(nodes)]
        command = [*COMMANDS[where], *options]
        environ = {**os.environ}
        if by_make:
            command = ["make", TARGETS[where], f"DEMO_OPTIONS={' '.join(options)}"]
            environ = {key: text for key, text in environ.items() if not key.startswith("MAKE")}
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._out = folder / "out"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environ, "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._out.read_text()

    def until_said(self, text: str) -> None:
        def said() -> bool:
            assert text in self.said() or self.process.poll() is None, self.said()
            return text in self.said()

        wait_until(said, what=f"{text!r} in {self.said()}", timeout_s=60)

    def alive(self) -> dict[int, str]:
        """Every process that has our folder in its environment, by pid: children's children too."""
        return {
            int(entry.name): _read(entry / "cmdline").replace("\0", " ")
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and f"TMPDIR={self.temporary}\0" in _read(entry / "environ")
        }

    def pid_of(self, words: str) -> int:
        [pid] = [pid for pid, line in self.alive().items() if words in line]
        return pid

    def left_behind(self) -> str:
        """The processes and files that are still there; empty when there are none."""
        files = list(self.temporary.iterdir())
        return f"{self.alive()} {files}" if self.alive() or files else ""

    def leaves_nothing(self) -> None:
        wait_until(lambda: not self.left_behind(), what=f"nothing left: {self.left_behind()}")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it has just ended


Begin = Callable[..., Demo]
#: A demo that is ended needs no more nodes than its story.
FEW = 10


@pytest.fixture(scope="module", autouse=True)
def _port_8080_is_taken() -> Iterator[None]:
    """So each demo takes a port of its own: another file's demo may look for 8080 just now."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another program has it
            other.bind(("127.0.0.1", 8080))
            other.listen()
        yield


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    demos: list[Demo] = []

    def begin(where: str = "local", *, nodes: int = 40, by_make: bool = False) -> Demo:
        demos.append(Demo(tmp_path, where, nodes, by_make=by_make))
        return demos[-1]

    yield begin
    for demo in demos:
        if demo.process.poll() is None:
            demo.process.kill()
        demo.process.wait()


def test_the_demo_tells_its_story_and_leaves_nothing_behind(begin: Begin) -> None:
    demo = begin(by_make=True)
    assert demo.process.wait(300) == 0, demo.said()
    said = demo.said()
    for text in (
        "the page   http://127.0.0.1:",
        "41 nodes are attached",
        "(by its agent)",
        "sim-0001: cordoned: xid:119",
        "its job got a notice (drain.pre_evict), and saved at step",
        "sim-0001: drained",
        "by policy it is only watched",
        "sim-0003: released",
        "sim-0001: released",
        "held by limits.common_cause_percent",
        "0 of 13 nodes are in quarantine; critical alerts: 1",
        "the alert: common cause:",
    ):
        assert text in said, f"{text!r} not in {said}"
    demo.leaves_nothing()
    page = ROOT / "README.md"
    if os.environ.get("SICKBAY_DEMO_README"):
        page.write_text(readme.put(page.read_text(), readme.excerpt(said)))
    assert readme.shape(readme.excerpt(said)) == readme.shape(readme.shown(page.read_text())), (
        "the demo's output in README.md is of another story: make screenshots"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_however_the_demo_is_ended_it_leaves_nothing_behind(
    begin: Begin, number: signal.Signals
) -> None:
    demo = begin(nodes=FEW)
    demo.until_said("sim-0001: cordoned")
    assert len(demo.alive()) >= 4
    demo.process.send_signal(number)
    code = demo.process.wait(300)
    assert code == (-number if number is signal.SIGKILL else 130)
    assert "Traceback" not in demo.said()
    demo.leaves_nothing()


def test_a_child_that_dies_ends_the_demo_with_its_last_words(begin: Begin) -> None:
    demo = begin(nodes=FEW)
    demo.until_said("nodes are attached")
    os.kill(demo.pid_of("sickbay-aggregator"), signal.SIGKILL)
    assert demo.process.wait(300) == 1
    assert "ended with -9. Its last words:" in demo.said()
    assert "Traceback" not in demo.said()
    demo.leaves_nothing()


ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def _signals_of_the_tests() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_of_the_tests")
@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
def test_each_signal_ends_the_processes_of_a_demo_and_removes_its_folder(
    number: signal.Signals,
) -> None:
    begun: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run() -> None:
        with ChildProcesses() as children:
            begun.append((children.start("sleeper", ["sleep", "600"]), children.folder))
            signal.raise_signal(number)

    assert present(run, once=True) == INTERRUPTED
    [(process, folder)] = begun
    assert process.poll() is not None
    assert not folder.exists()


@pytest.mark.usefixtures("_signals_of_the_tests")
def test_a_child_of_a_demo_that_ends_is_reported_with_its_last_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run() -> None:
        with ChildProcesses() as children:
            children.start("sleeper", ["sleep", "600"])
            children.check()
            children.start("brief", ["sh", "-c", "echo farewell; kill -9 $$"]).wait()
            children.check()

    assert present(run, once=True) == FAILED
    assert "brief ended with -9. Its last words:\nfarewell" in capfd.readouterr().err


def test_the_demo_on_a_real_api_server_tells_its_story_and_leaves_nothing_behind(
    control_plane_programs: Mapping[str, Path], begin: Begin
) -> None:
    assert control_plane_programs  # asked for, so that this is skipped loudly where there are none
    demo = begin("cluster", by_make=True)
    assert demo.process.wait(300) == 0, demo.said()
    for text in (
        "export KUBECONFIG=",
        "its job got a notice (drain.notice), and saved at step",
        "evicted training/train",
        "is not evicted: The disruption budget guarded",
        "gpu-00001: drained",
        "gpu-00000: released: deleted by a person",
        "held by limits.common_cause_percent",
        "the alert: common cause:",
    ):
        assert text in demo.said(), f"{text!r} not in {demo.said()}"
    demo.leaves_nothing()
