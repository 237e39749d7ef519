"""Run in a network namespace of its own: an agent in another one, and a link that drops all.

No FIN and no RST reaches either side. Prints as JSON the reports of each side and their times
(seconds since the link began to drop).
"""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from aggregator.ingest.identity import TrustingAuthenticator
from tests.agent.agent_process import AgentProcess
from tests.support.in_process_aggregator import InProcessAggregator, running_aggregator
from tests.support.waiting import PATIENCE, until

HERE, THERE = "10.77.0.1", "10.77.0.2"
SILENT_AFTER = 5.0


def run(line: str) -> None:
    subprocess.run(line.split(), check=True)


class Cable:
    """From this namespace to the one of process ``pid``."""

    def __init__(self, pid: int) -> None:
        self._inside = f"nsenter --net --target {pid}"
        run("ip link set lo up")
        run(f"ip link add bench type veth peer name nic netns {pid}")
        run(f"ip addr add {HERE}/24 dev bench")
        run("ip link set bench up")
        run(f"{self._inside} ip addr add {THERE}/24 dev nic")
        run(f"{self._inside} ip link set nic up")

    def swallow(self) -> None:
        """Both sides send to a station that is not there."""
        nobody = "lladdr 02:00:00:00:00:99 nud permanent"
        run(f"ip neigh replace {THERE} {nobody} dev bench")
        run(f"{self._inside} ip neigh replace {HERE} {nobody} dev nic")

    def mend(self) -> None:
        run(f"ip neigh del {THERE} dev bench")
        run(f"{self._inside} ip neigh del {HERE} dev nic")


async def uplink(agent: AgentProcess) -> Any:
    return json.loads((await agent.ask("/v1/results"))[1])["agent"]["uplink"]


async def play(bench: InProcessAggregator, agent: AgentProcess) -> dict[str, Any]:
    agent.prefix = ("unshare", "--net")
    agent.aggregator, agent.uplink = bench.address, "insecure_plaintext = true\n"
    await agent.start().up()
    assert agent.process is not None
    cable = Cable(agent.process.pid)

    async def seen(what: str, value: Any) -> Any:
        """The API's answer about the node, once this holds."""
        async with asyncio.timeout(PATIENCE):
            while True:
                node = await bench.node("node-a")
                if node is not None and node[what] == value:
                    return node
                await asyncio.sleep(0.05)

    await seen("state", "ok")
    cable.swallow()
    began = time.monotonic()
    agent.xid(79)
    silent = await seen("state", "silent")
    told: dict[str, Any] = {
        "silent_at": time.monotonic() - began,
        "why": silent["why"],
        "agent": silent["agent"],
    }
    while (await uplink(agent))["state"] == "streaming":  # noqa: ASYNC110 - another process's word
        await asyncio.sleep(0.05)
    told["noticed_at"] = time.monotonic() - began
    told["error"] = (await uplink(agent))["error"]
    told["quarantined_meanwhile"] = list(bench.world.quarantines)
    cable.mend()
    await until(lambda: bench.world.quarantines, what="the fault of meanwhile")
    told["back_after"] = time.monotonic() - began - told["noticed_at"]
    back = await seen("agent", "attached")
    told["faults"] = [fault["code"] for fault in back["faults"]]
    return told


async def main(folder: Path) -> None:
    agent = AgentProcess(folder / "node")
    with closing(agent):
        async with running_aggregator(
            "node-a",
            silent_after=SILENT_AFTER,
            heartbeat=1.0,
            host="0.0.0.0",
            authenticator=TrustingAuthenticator(anywhere=True),
        ) as bench:
            bench.address = f"{HERE}:{bench.site.server.port}"
            print(json.dumps(await play(bench, agent)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
