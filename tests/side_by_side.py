"""Every test, in two runs of pytest beside each other: each waits for half of its time.

    python -m tests.side_by_side [options of pytest]

One run has what waits for a whole cluster: Leases that expire, servers that start. The other has
everything else, and a new folder of tests is in it without a word. What they share is the processor
and free ports: what tries this machine itself (the kernel log, mounts, namespaces, containers) is
all in the other run, where one test follows another.

One run is shown as it goes, and the second one after it. At the end stands a line for each
test that failed in either. The exit code is 0 if neither failed, 130 after Ctrl-C, which ends both.
The time of each test is in build/test/NAME.xml (JUnit).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "test"
#: They take as long as everything else does.
CLUSTER = ("tests/e2e", "tests/kube")
RUNS: dict[str, Sequence[str]] = {
    "other": ("tests", *(f"--ignore={folder}" for folder in CLUSTER)),
    "cluster": CLUSTER,
}
#: pytest's exit codes: https://docs.pytest.org/en/stable/reference/exit-codes.html
OK, NOTHING_CHOSEN = 0, 5
#: How the lines of its summary begin that name what failed.
FAILED = ("FAILED ", "ERROR ")


class Run:
    """One run of pytest, and what it says: kept, and shown from when `show` is called."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.code: int | None = None
        self._said = bytearray()
        self._shown = False
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, options: Sequence[str]) -> None:
        report = f"--junitxml={RESULTS / self.name}.xml"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", *RUNS[self.name], report, *options),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A group of its own: a Ctrl-C at the terminal comes through `interrupt`, once. A second
            # one would break into its clearing up.
            process_group=0,
        )

    async def finish(self) -> None:
        """Hear it to its end."""
        assert self._process is not None
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(1 << 16):
            self._said += piece
            if self._shown:
                _write(piece)
        self.code = await self._process.wait()

    def show(self) -> None:
        """What it has said, and from now on what it says."""
        self._shown = True
        _write(f"===== {self.name} =====\n".encode() + self._said)

    def interrupt(self) -> None:
        """As Ctrl-C: it ends what it has started, and then itself."""
        if self._process is not None and self._process.returncode is None:
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
        return self._said.decode(errors="replace").splitlines() or [""]


async def main(options: Sequence[str]) -> int:
    RESULTS.mkdir(parents=True, exist_ok=True)
    runs = [Run(name) for name in RUNS]
    interrupted = asyncio.Event()

    def interrupt() -> None:
        if not interrupted.is_set():
            interrupted.set()
            for run in runs:
                run.interrupt()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    for run in runs:
        await run.start(options)
    ends = [asyncio.create_task(run.finish()) for run in runs]
    for run, end in zip(runs, ends, strict=True):
        run.show()
        await end
    failed = [line for run in runs for line in run.failed]
    lines = ["", "===== both =====", *failed, *(run.result for run in runs), ""]
    _write("\n".join(lines).encode())
    return 130 if interrupted.is_set() else verdict([run.code for run in runs])


def verdict(codes: Iterable[int | None]) -> int:
    """One exit code of several. To have had nothing to do is no failure where another had."""
    told = [code for code in codes if code != NOTHING_CHOSEN] or [NOTHING_CHOSEN]
    return next((code for code in told if code), OK)


def _write(text: bytes) -> None:
    """All of it, at once: who reads along sees each test when it is over."""
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
