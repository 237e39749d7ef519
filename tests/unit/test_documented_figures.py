"""Figures in documents and manifests that repeat a constant of the code."""

import re
from pathlib import Path

from aggregator.ingest import agent_exchange, stream
from aggregator.ingest.close_reason import CloseReason
from nodeagent.checks import registry
from nodeagent.config import reload
from tests.controlplane.versions import programs, tools

ROOT = Path(__file__).parents[2]


def text(path: str) -> str:
    """A file of the tree, with each line's end as a space."""
    return " ".join((ROOT / path).read_text().split())


def test_the_aggregators_page_has_the_times_in_which_an_agent_must_introduce_itself() -> None:
    page = text("docs/aggregator.md")
    for reason, seconds in (
        (CloseReason.NO_HELLO, agent_exchange.HELLO_WITHIN),
        (CloseReason.NO_SNAPSHOT, stream.SNAPSHOT_WITHIN),
    ):
        assert f"`{reason}` ({seconds:g} s)" in page


def test_the_agents_page_counts_the_gpu_checks() -> None:
    names = [spec.name for spec in registry.SPECS if spec.name.startswith("gpu-")]
    assert len(names) == 15
    assert "without it the fifteen GPU checks are off" in text("docs/agent.md")


def test_the_manifest_says_how_soon_the_agent_reads_its_file_again() -> None:
    manifest = re.sub(r"# ", "", text("deploy/kubernetes/agent.yaml"))
    assert f"reads the file again within {reload.EVERY:g} s" in manifest


def test_the_tests_of_make_test_build_no_program_of_the_chart() -> None:
    assert {"helm", "kubeconform"} <= tools().keys()
    assert {"helm", "kubeconform"} & programs().keys() == set()
