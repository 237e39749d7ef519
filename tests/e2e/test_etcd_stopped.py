"""etcd stops answering for a minute: the API server is there, watches stay open, and no write comes
back. It is the outage in which the client can't know which of its writes took effect.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_process import AgentProcess
from tests.controlplane.pytest_plugin import StartControlPlane
from tests.e2e.test_bursts import TRUSTING, tainted
from tests.support.evictions import accepted_evictions
from tests.support.stack import Stack

OPENED = '"stream to the aggregator opened"'
pytestmark = pytest.mark.cluster

#: One eviction at a time, so that etcd stops while a drain is under way.
MORE: dict[str, Any] = TRUSTING | {
    "drain": {"evict_unmanaged": True},
    "limits": {"evictions_at_once": 1},
}
PODS = 20
#: Seconds for which etcd is stopped: several tries of every request end without an answer.
STOPPED = 60.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[AgentProcess]]:
    """Two, not started; both have ended by the end of the test."""
    made = [AgentProcess(tmp_path / name) for name in ("one", "other")]
    yield made
    for agent in made:
        agent.close()


def api(stack: Stack, path: str) -> Any:
    """The answer of the aggregator's own API."""
    url = f"http://127.0.0.1:{stack.aggregator.web_port}/api/v1/{path}"
    with urllib.request.urlopen(url, timeout=300) as answer:
        return json.load(answer)


def unacknowledged(agent: AgentProcess) -> int:
    """How many of its messages have not been acknowledged."""
    about = json.loads(agent._ask("/v1/results", "GET", "")[1])["agent"]
    return int(about["last_seq"]) - int(about["last_acked"])


def test_etcd_stopped_in_the_middle_of_a_drain_loses_nothing_and_evicts_nobody_twice(
    start_control_plane: StartControlPlane, tmp_path: Path, agents: list[AgentProcess]
) -> None:
    plane = start_control_plane(controller_manager=False, scheduler=False)
    draining, late = plane.create_nodes(2, "gpu")
    plane.create_namespace("train")
    for rank in range(PODS):
        plane.create_pod("train", f"rank-{rank}", node=draining)
    plane.create_pod("train", "late", node=late)
    plane.wait_pod_running("train", "late", timeout_s=60)
    mark = plane.audit_mark()
    with Stack(plane, tmp_path, more=MORE) as stack:
        stack.aggregator.start().ready()
        for agent, node in zip(agents, (draining, late), strict=True):
            agent.node, agent.aggregator = node, stack.aggregator.address
            agent.start()
            stack.until(lambda agent=agent: OPENED in agent.log(), node)  # type: ignore[misc]
        agents[0].xid(79)
        stack.until(lambda: accepted_evictions(plane, mark), "the first eviction")
        plane.servers["etcd"].pause()
        paused = time.monotonic()
        agents[1].xid(79)
        # The page reports the failure meanwhile, and why the controller has taken no step against
        # it yet.
        stack.until(lambda: "no answer in" in api(stack, f"nodes/{late}")["why"], "its word")
        said = api(stack, f"nodes/{late}")
        assert said["why"].startswith("the last step failed and is tried again: ")
        assert said["incidents"][0]["doing"] == "being admitted"
        assert said["quarantine"] is None
        # Evidence is accepted and acknowledged: the next Snapshot brings it again in any case.
        agents[1].xid(31)
        stack.until(lambda: len(api(stack, f"nodes/{late}")["faults"]) == 2, "evidence goes on")
        stack.until(lambda: not unacknowledged(agents[1]), "its acknowledgement")
        time.sleep(max(0.0, paused + STOPPED - time.monotonic()))
        said = api(stack, f"nodes/{late}")
        assert said["why"].startswith("the last step failed and is tried again: ")
        assert said["quarantine"] is None
        plane.servers["etcd"].resume()
        stack.until(lambda: tainted(plane, [draining, late]) == [draining, late], "both taints")
        for node in (draining, late):
            stack.until_phase(node, "Drained", timeout_s=60)
        stack.until(lambda: not any(map(unacknowledged, agents)), "every acknowledgement")
        assert api(stack, f"nodes/{late}")["last_error"] == ""
    expected = [f"train/rank-{rank}" for rank in range(PODS)] + ["train/late"]
    assert sorted(accepted_evictions(plane, mark, "train")) == sorted(expected)
