"""The file of a cluster without Kubernetes, as tests open and write it."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    QuarantineSpec,
    Taint,
)

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1", "NVRM: gone")
SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79 on GPU-1", "sickbay", "inc-1", "b", "h", (ITEM,))
OURS = Taint(TAINT, "gpu", "NoSchedule")


@asynccontextmanager
async def opened(path: Path, commands: Commands | None = None) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(path, commands=commands or Commands(), wall=time.time)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


async def run_other_process(path: Path, does: str) -> None:
    """Another process that has the file open: ``does`` is Python with a ``store``."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from aggregator.cluster.local.store import LocalStore as Store\n"
        f"store = Store(Path(sys.argv[1]), wall=time.time)\n{does}\nstore.close()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), cwd=Path(__file__).parents[2]
    )
    assert await process.wait() == 0
