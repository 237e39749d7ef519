"""Each check's own duration and success in the agent's metrics, site's checks and ours alike."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.site_package import install
from tests.support.waiting import PATIENCE

DOCS = (Path(__file__).parents[2] / "docs/reference/agent-metrics.md").read_text()

PACKAGE = """
import asyncio
from nodeagent.checks.base import CheckSpec
from nodeagent.model import Observation, Status

def spec(name, look, deadline=30.0):
    class Check:
        def __init__(self, sources, options): pass
    Check.run_check = look
    texts = dict(sees="s", source="s", cost="c", blind_to="b")
    return CheckSpec(name=name, **texts, interval=0.2, deadline=deadline, build=Check)

async def raising(self):
    raise RuntimeError("a defect")

async def hanging(self):
    await asyncio.sleep(3600)

async def slow(self):
    await asyncio.sleep(0.1)
    return [Observation("slow", "", Status.FAILED, "sick")]

RAISING, HANGING, SLOW = spec("raising", raising), spec("hanging", hanging, 0.3), spec("slow", slow)
"""
ENTRY_POINTS = "\n".join(f"{n} = site_looks:{n.upper()}" for n in ("raising", "hanging", "slow"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentProcess]:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path, "site_looks", PACKAGE, ENTRY_POINTS)))
    tables = [f'[own.{n}]\nentry_point = "{n}"\n' for n in ("raising", "hanging", "slow")]
    made = AgentProcess(tmp_path, more=QUIET + "".join(tables))
    yield made
    made.close()


async def page(node: AgentProcess) -> dict[str, dict[str, float]]:
    """The metrics of each check, by check and by the rest of their names."""
    _, text = await node.ask("/metrics")
    found: dict[str, dict[str, float]] = {}
    for name, check, value in re.findall(
        r'^sickbay_agent_check_(\w+)\{check="([\w-]+)"\} (\S+)$', text, re.MULTILINE
    ):
        found.setdefault(check, {})[name] = float(value)
    return found


async def test_each_check_reports_its_own_duration_and_success(node: AgentProcess) -> None:
    await node.start().up()
    found = await page(node)
    async with asyncio.timeout(PATIENCE):
        while (
            found.get("slow", {}).get("runs_total", 0) < 2
            or not found["raising"]["errors_total"]
            or not found["hanging"]["hangs_total"]
        ):
            found = await page(node)
    slow, raising, hanging = found["slow"], found["raising"], found["hanging"]
    assert 0.1 <= slow["duration_seconds"] < 30
    assert slow["success"] == 1, "a look that finds a sick node is a good look"
    assert slow["success_age_seconds"] < 60
    assert (slow["errors_total"], slow["hangs_total"]) == (0, 0)
    assert raising["success"] == 0
    assert raising["errors_total"] == raising["runs_total"]
    assert "success_age_seconds" not in raising, "it never went well"
    assert hanging["success"] == 0
    assert (hanging["hangs_total"], hanging["runs_total"]) == (1, 0), "one look, under way"


async def test_every_check_that_runs_is_on_the_page(node: AgentProcess) -> None:
    await node.start().up()
    names = {"runs_total", "errors_total", "hangs_total", "duration_seconds"}
    found = await page(node)
    assert {"gpu-inventory", "gpu-ecc", "slow"} <= set(found)
    assert all(names <= each.keys() for each in found.values())


async def test_kernel_log_checks_report_what_they_saw_and_the_time_of_all(
    node: AgentProcess,
) -> None:
    await node.start().up()
    node.xid(79)
    node.xid(43)
    text = ""
    async with asyncio.timeout(PATIENCE):
        while 'log_check_faults_total{check="xid"} 2' not in text:
            _, text = await node.ask("/metrics")
    assert 'sickbay_agent_log_check_errors_total{check="xid"} 0' in text
    assert 'sickbay_agent_log_check_faults_total{check="sxid"} 0' in text
    spent = re.search(r"^sickbay_agent_kernel_log_read_seconds_total (\S+)$", text, re.MULTILINE)
    assert spent is not None
    assert 0 < float(spent[1]) < 5


async def test_the_documented_metrics_are_those_of_the_page(node: AgentProcess) -> None:
    await node.start().up()
    _, text = await node.ask("/metrics")
    real = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert real == set(re.findall(r"^\| `(sickbay_agent_\w+)` \|", DOCS, re.MULTILINE))
