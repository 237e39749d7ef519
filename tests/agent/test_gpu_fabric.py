"""The NVLink fabric: a manager that is down is a fault, although no log line reports it."""

from pathlib import Path

from nodeagent.checks import gpu_fabric
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench, run_check

#: state, status, health mask, summary, clique, newest version.
WELL = (3, 0, 0, 1, 7, 3)
STARTING = (2, 0, 0, 0, 0, 3)


STATES = {
    WELL: ("OK", ""),
    (3, 999, 0, 0, 7, 3): ("FAILED", "registration-failed"),
    STARTING: ("FAILED", "not-registered"),
    (1, 0, 0, 0, 0, 3): ("DEGRADED", "not-started"),
    (4, 0, 0, 0, 0, 3): ("UNKNOWN", "unknown-state"),
    (3, 0, 0x5 << 8, 1, 7, 3): ("FAILED", "misconfigured"),
    (3, 0, 0, 2, 7, 3): ("FAILED", "unhealthy"),
    (3, 0, 0x1, 0, 7, 2): ("DEGRADED", "degraded-bandwidth"),
}


async def test_each_state_of_the_fabric_has_its_verdict(tmp_path: Path) -> None:
    gpus = [gpu(index, fabric=fabric) for index, fabric in enumerate(STATES)]
    gpus.append(gpu(len(gpus), fabric=None, name="NVIDIA L4"))
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_fabric.SPEC))
    assert [seen.status(each.uuid) for each in gpus[:-1]] == [*STATES.values()]
    assert gpus[-1].uuid not in seen.by_component, "its model has no fabric"
    assert "clique 7 of cluster c1c1" in seen.by_component[uuid_of(0)].message
