"""Tests of a node on a real Slurm, whose jobs really run: no job is on a node that is tested."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.agent.agent_process import QUIET, AgentProcess
from tests.controlplane.waiting import wait_until
from tests.support.local_aggregator import LocalAggregator
from tests.support.slurm import Slurm, needs_slurm

pytestmark = [needs_slurm, pytest.mark.root]

#: The step's process writes its id, and goes on until a file is there.
PROFILE = """\
purpose = "Runs the test program of the site."
requires = []

[[step]]
name = "site"
command = ["/bin/sh", "-c", "echo $$ >{folder}/began; until [ -e {folder}/go ]; do sleep 1; done"]
limit = "20m"
output = "exit"
required = true
"""


@dataclass
class Site:
    """Node w1 with an agent whose test goes on for as long as the site wants."""

    folder: Path
    slurm: Slurm
    aggregator: LocalAggregator

    def sickbay(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("sickbay")
        page = ["--url", f"http://{self.aggregator.web}"] if words[0] in ("test", "explain") else []
        acts = ["--local", str(self.aggregator.database)] if words[0] != "explain" else []
        return subprocess.run(
            [program, *words, *page, *acts],
            check=False, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def done(self, *words: str) -> None:
        done = self.sickbay(*words)
        assert done.returncode == 0, done.stderr

    def quarantine(self, action: str, phase: str) -> None:
        self.done("quarantine", "w1", "--action", action, "--reason", "for its test", "--yes")
        wait_until(lambda: self.phase() == phase, what=self.aggregator.log)

    def request_test(self) -> subprocess.CompletedProcess[str]:
        return self.sickbay("test", "w1", "--profile", "own", "--yes", "--no-wait")

    def shown(self) -> dict[str, object]:
        return (self.aggregator.ask("nodes/w1") or {}).get("quarantine") or {}

    def phase(self) -> str:
        return str(self.shown().get("phase", ""))

    @property
    def tested(self) -> bool:
        """Whether the test's process runs now."""
        began = self.folder / "began"
        if not began.exists() or not began.read_text().strip():
            return False
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(int(began.read_text())).status() != psutil.STATUS_ZOMBIE
        return False

    def until_tested(self) -> None:
        wait_until(lambda: self.tested, what=self.aggregator.log)

    def until_untested(self) -> None:
        wait_until(lambda: not self.tested, what=self.aggregator.log)
        (self.folder / "began").unlink()

    def until_scheduled(self) -> None:
        """Slurm has tried three times to start what waits."""
        seen = self.slurm.cycles()
        wait_until(lambda: self.slurm.cycles() >= seen + 3, what=self.slurm.log)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folders = [tmp_path / name for name in ("slurm", "node", "profiles")]
    for each in folders:
        each.mkdir()
    (folders[2] / "own.toml").write_text(PROFILE.replace("{folder}", str(tmp_path)))
    with Slurm(folders[0], silent=0) as slurm:
        database = tmp_path / "aggregator" / "cluster.db"
        options = {"database": str(database), "conf": str(slurm.conf), "poll": "1s"}
        repairers = [{"kind": "test", "agent": {}, "timeout": "30m"}]
        repair = {"mode": "repair", "test_pause": "1s", "repairers": repairers}
        more = {"cluster": {"kind": "slurm", "slurm": options}, "repair": repair}
        aggregator = LocalAggregator(tmp_path / "aggregator", more)
        agent = AgentProcess(
            folders[1],
            aggregator=aggregator.address,
            more='[repair]\nallow = ["test"]\ninsecure_own_pid_namespace = true\n'
            f'insecure_loopback = true\nprofiles = "{folders[2]}"\n{QUIET}',
        )
        agent.node = "w1"
        try:
            agent.start()
            wait_until(
                lambda: (aggregator.ask("nodes/w1") or {}).get("agent") == "attached",
                what=aggregator.log,
            )
            yield Site(tmp_path, slurm, aggregator)
        finally:
            (tmp_path / "go").touch()
            agent.close()
            aggregator.close()


def test_no_job_starts_next_to_a_test_and_none_is_tested_in_service(site: Site) -> None:
    slurm = site.slurm
    job = slurm.submit("w1")
    refused = site.request_test()
    assert refused.returncode == 2
    assert "a job could start next to the test of a node in service" in refused.stderr
    assert "first: sickbay quarantine w1 --action drain" in refused.stderr
    site.quarantine("drain", "Draining")
    refused = site.request_test()
    assert (refused.returncode, "is not drained" in refused.stderr) == (2, True)
    waiting = slurm.queue("w1")
    slurm.run("scancel", job)
    wait_until(lambda: site.phase() == "Drained", what=site.aggregator.log)
    assert site.request_test().returncode == 0
    site.until_tested()
    site.until_scheduled()
    assert slurm.job_state(waiting) == "PENDING"
    assert site.tested
    (site.folder / "go").touch()
    site.until_untested()
    site.until_scheduled()
    assert slurm.job_state(waiting) == "PENDING", "a test is no release"
    site.done("release", "w1")
    wait_until(lambda: slurm.job_state(waiting) == "RUNNING", what=slurm.log)


def test_the_test_of_a_node_that_was_only_cordoned_waits_for_its_job(site: Site) -> None:
    job = site.slurm.submit("w1")
    site.quarantine("cordon", "Cordoned")
    assert site.request_test().returncode == 0
    text = f"work is still on the node: job {job}"
    wait_until(
        lambda: text in site.sickbay("explain", "w1").stdout or text in site.aggregator.log(),
        what=site.aggregator.log,
    )
    assert not site.tested
    site.slurm.run("scancel", job)
    site.until_tested()
    assert site.slurm.job_state(job) in ("", "CANCELLED")


def test_a_persons_resume_ends_the_test_as_its_job_starts(site: Site) -> None:
    site.quarantine("drain", "Drained")
    waiting = site.slurm.queue("w1")
    assert site.request_test().returncode == 0
    site.until_tested()
    site.slurm.update("w1", "state=resume")
    wait_until(lambda: site.slurm.job_state(waiting) == "RUNNING", what=site.slurm.log)
    site.until_untested()
    wait_until(lambda: site.shown() == {}, what=site.aggregator.log)
    assert site.slurm.job_state(waiting) == "RUNNING"
