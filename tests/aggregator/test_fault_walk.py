"""The walk of docs/architecture.md from a kernel log line to the taint, against one real fault.

The ingest's files and the Kubernetes client are not called here: the evidence is handed to the
controller, and the cluster is in memory.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from aggregator.cluster.port import Action
from aggregator.health.model import Delta, Status
from tests.support.memory_cluster import World
from tests.support.replica import SETTINGS, Replica, Turned, component, fault, snapshot
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
BESIDE = ("aggregator/ingest/", "aggregator/cluster/kubernetes/")


def walk() -> set[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## From a kernel log line to a taint")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `(aggregator/[^`]+)` \|", section, re.MULTILINE)
    return {file for file in files if not file.startswith(BESIDE)}


def is_cordoned(replica: Replica, node: str) -> bool:
    return "quarantine.cordoned" in replica.notes.kinds(node)


class CalledFiles:
    """A profile that remembers in which files of this tree a function was called until ``node`` was
    cordoned.
    """

    def __init__(self, replica: Replica, node: str) -> None:
        self.files: set[str] = set()
        self._replica, self._node = replica, node

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if is_cordoned(self._replica, self._node):
            return
        if event == "call" and path.startswith(f"{ROOT}/aggregator/"):
            self.files.add(str(Path(path).relative_to(ROOT)))


async def test_one_fault_calls_each_file_of_the_walk() -> None:
    world = World()
    for name in ("n1", "n2"):
        world.add_node(name, uid=f"uid-of-{name}", boot_id="boot-1")
    # In mode cordon no drain of the first node is under way beside the second fault.
    settings = replace(SETTINGS, mode=Action.CORDON)
    replica = Replica(world, clock=Turned(), settings=settings)
    healthy = snapshot(component("disk-space", "/", Status.OK))
    try:
        await until(lambda: {"n1", "n2"} <= replica.fleet.node_summaries.keys(), "both nodes")
        replica.agents(("n1", "n2"), healthy)
        replica.agent("n1", Delta(components=(), faults=(fault(),), cleared=(), gone=()))
        # The Node of a first quarantine is read. The walk is that of all later ones.
        await until(lambda: is_cordoned(replica, "n1"))
        called, before = CalledFiles(replica, "n2"), sys.getprofile()
        sys.setprofile(called)
        try:
            replica.agent("n2", Delta(components=(), faults=(fault(),), cleared=(), gone=()))
            await until(lambda: is_cordoned(replica, "n2"))
        finally:
            sys.setprofile(before)
    finally:
        await replica.stop()
    assert walk() - called.files == set()
    assert len(walk()) > 10
