"""A fault, a real agent, the real aggregator and a real Slurm with a job: drained, and returned."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.agent_process import QUIET, AgentProcess
from tests.controlplane.waiting import wait_until
from tests.support.local_aggregator import LocalAggregator
from tests.support.slurm import Slurm, needs_slurm
from tests.support.words_of_kubernetes import found_in, shown

pytestmark = [needs_slurm, pytest.mark.root]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Slurm, LocalAggregator, AgentProcess]]:
    folders = [tmp_path / name for name in ("slurm", "node")]
    for each in folders:
        each.mkdir()
    with Slurm(folders[0], silent=0) as slurm:
        database = tmp_path / "aggregator" / "cluster.db"
        options = {"database": str(database), "conf": str(slurm.conf), "poll": "1s"}
        cluster = {"cluster": {"kind": "slurm", "slurm": options}}
        aggregator = LocalAggregator(tmp_path / "aggregator", cluster)
        agent = AgentProcess(folders[1], aggregator=aggregator.address, more=QUIET)
        agent.node = "w1"
        try:
            agent.start()
            yield slurm, aggregator, agent
        finally:
            agent.close()
            aggregator.close()


def sickbay(*words: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("sickbay"), *words],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def expect_slurms_words(aggregator: LocalAggregator) -> None:
    """The page and the commands speak of jobs and DRAIN, and of nothing of Kubernetes."""
    url = f"http://{aggregator.web}"
    for path in ("", "nodes/w1", "nodes", "jobs"):
        with urllib.request.urlopen(f"{url}/{path}", timeout=300) as answer:
            text = answer.read().decode()
        assert found_in(shown(text)) == [], path
        assert "<script>alert" not in text
        assert "DRAIN" in text or path in ("nodes", "jobs")
    for command in (["explain", "w1"], ["node", "w1"], ["quarantines"], ["history"], ["jobs"]):
        assert found_in(sickbay(*command, "--url", url)) == [], command


def test_a_fault_drains_the_node_its_job_ends_and_a_persons_release_returns_it(
    site: tuple[Slurm, LocalAggregator, AgentProcess],
) -> None:
    slurm, aggregator, agent = site

    def phase() -> str:
        found = aggregator.ask("nodes/w1") or {}
        return str((found.get("quarantine") or {}).get("phase", ""))

    wait_until(
        lambda: (aggregator.ask("nodes/w1") or {}).get("agent") == "attached", what=aggregator.log
    )
    job = slurm.submit("w1", name="llama <script>alert(1)</script>\x1b[31m --all")
    agent.xid(79)
    wait_until(lambda: phase() == "Draining", what=aggregator.log)
    assert slurm.shown("w1")["Reason"].startswith("sickbay: xid:79")
    assert slurm.run("squeue", "--noheader", "--format=%T").split() == ["RUNNING"]
    wait_until(
        lambda: (
            f"by job {job}: llama <script>alert(1)</script>?[31m --all of root is running"
            in sickbay("explain", "w1", "--url", f"http://{aggregator.web}")
        ),
        what=aggregator.log,
    )
    wait_until(
        lambda: (
            f"Slurm job {job} (team main) is on the node"
            in sickbay("history", "--url", f"http://{aggregator.web}")
        ),
        what=aggregator.log,
    )
    expect_slurms_words(aggregator)
    slurm.run("scancel", job)
    wait_until(lambda: phase() == "Drained", what=aggregator.log)
    expect_slurms_words(aggregator)
    assert slurm.state("w1") == "IDLE+DRAIN"
    sickbay("release", "w1", "--local", str(aggregator.database))
    wait_until(lambda: slurm.state("w1") == "IDLE", what=aggregator.log)
    wait_until(lambda: phase() == "", what=aggregator.log)
    assert "Traceback" not in aggregator.log()


def test_the_demo_drains_a_node_lets_its_job_end_and_returns_the_node() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "demo-slurm", "DEMO_OPTIONS=--once"],
        cwd=Path(__file__).parents[2], check=False, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Slurm: w1 is MIXED+DRAIN, sickbay: xid:79" in done.stdout or (
        "Slurm: w1 is ALLOCATED+DRAIN, sickbay: xid:79" in done.stdout
    )
    assert "Slurm: w1 is in service again" in done.stdout


def test_a_persons_resume_ends_the_quarantine_and_the_same_fault_drains_no_more(
    site: tuple[Slurm, LocalAggregator, AgentProcess],
) -> None:
    slurm, aggregator, agent = site
    agent.xid(79)
    wait_until(lambda: "DRAIN" in slurm.state("w1"), what=aggregator.log)
    wait_until(
        lambda: (
            ((aggregator.ask("nodes/w1") or {}).get("quarantine") or {}).get("phase") == "Drained"
        ),
        what=aggregator.log,
    )
    slurm.update("w1", "state=resume")
    wait_until(
        lambda: (aggregator.ask("nodes/w1") or {}).get("quarantine") is None, what=aggregator.log
    )
    agent.xid(13)  # any further evidence
    wait_until(lambda: '"event": "slurm.resumed"' in aggregator.log(), what=aggregator.log)
    assert slurm.state("w1") == "IDLE"


def test_the_end_of_a_persons_drain_leaves_the_node_drained_for_its_fault(
    site: tuple[Slurm, LocalAggregator, AgentProcess],
) -> None:
    slurm, aggregator, agent = site
    slurm.update("w1", "state=drain", "reason=fan 3 dead RMA 123")
    agent.xid(79)
    wait_until(
        lambda: (
            ((aggregator.ask("nodes/w1") or {}).get("quarantine") or {}).get("phase") == "Drained"
        ),
        what=aggregator.log,
    )
    assert slurm.shown("w1")["Reason"] == "fan 3 dead RMA 123"
    slurm.update("w1", "state=resume")
    wait_until(
        lambda: slurm.shown("w1")["Reason"].startswith("sickbay: xid:79"), what=aggregator.log
    )
    assert "DRAIN" in slurm.state("w1")
    told = "it was somebody else's before"
    wait_until(
        lambda: told in (aggregator.ask("nodes/w1") or {})["quarantine"]["uncordoned"],
        what=aggregator.log,
    )
