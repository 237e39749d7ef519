"""docs/tutorial.md: every command of the part on the project's own control plane is run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.demo.ports import free_port
from tests.controlplane.waiting import wait_until
from tests.demo.screenshot import photograph
from tests.support.chromium import CHROMIUM

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
PICTURE = "SICKBAY_TUTORIAL_PICTURE"
"""The environment variable with the picture's file; unset: it is taken and thrown away."""


def blocks(heading: str) -> list[str]:
    """The commands of a section, block by block."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def with_own(block: str, ports: Mapping[str, str]) -> str:
    """The page's ports may be in use, and `make test PYTHON=...` has another environment."""
    for written, own in {**ports, "$PWD/.venv/bin": str(Path(sys.executable).parent)}.items():
        block = block.replace(written, own)
    return block


class Terminal:
    """One bash for all blocks. A command that fails ends it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "terminal.log"
        self._folder = folder
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-e"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder)},
                start_new_session=True,
                text=True,
                bufsize=1,
            )

    def run(self, block: str) -> str:
        """Run a block to its end. Returns what was printed meanwhile."""
        assert self.process.stdin is not None
        before, done = len(self.said()), self._folder / "done"
        done.unlink(missing_ok=True)
        # Each line is shown before it is run, so that the log says where it stopped.
        self.process.stdin.write(f"set -v\n{block}set +v\ntouch {done}\n")
        wait_until(
            lambda: done.exists() or self.process.poll() is not None,
            what=lambda: self.said()[-3000:],
            timeout_s=150,
        )
        assert done.exists(), self.said()[-3000:]
        return self.said()[before:]

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """End the shell; its children end with their pipes, or with the test's own folder."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.write("kill $(jobs -p) 2>/dev/null; wait; exit\n")
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_every_command_on_the_own_control_plane_does_what_the_page_says(
    control_plane_programs: dict[str, Path], tmp_path: Path
) -> None:
    ports = {"18443": str(free_port()), "18080": str(free_port())}
    terminal = Terminal(tmp_path)
    said: list[str] = []
    with closing(terminal):
        for block in blocks("On the project's own control plane"):
            said.append(terminal.run(with_own(block, ports)))
            if "=Drained" in block and Path(CHROMIUM).exists():
                target = Path(os.environ.get(PICTURE) or tmp_path / "tutorial.png")
                page = f"http://127.0.0.1:{ports['18080']}/"
                photograph(page, target, "in quarantine")
                assert target.stat().st_size > 10_000
    node = "node-00000"
    _cluster, _job, _aggregator, agents, fault, why, drain, mistake, repair, _end = said
    assert "4 agents attached" in agents
    assert "xid:79" in fault
    assert "No resources found" in fault
    assert "drain" in why
    assert drain.count("\nWaiting ") == 2, "20 s without a word"
    assert f"{node} " in drain
    assert "sickbay.dev/quarantine" in drain
    pods = drain[drain.rindex("NODE") :]
    assert node not in pods.split("set +v")[0]
    assert [one.split()[0] for one in mistake.splitlines() if one.startswith("node-")] == [node]
    assert "released" in repair
    assert not [one for one in tmp_path.iterdir() if one.name.startswith("tmp.")]
