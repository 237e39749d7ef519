"""The versions and settings of this node, for the aggregator to compare with the node's pool.

This check finds nothing by itself: each row is ok, and its message lists facts as ``name: value``.
The aggregator reports in the same name, with the group as the reason (degraded): ``kernel``
(release, command line), ``gpu`` (driver, VBIOS, modes), ``nic``, ``nvme`` (firmware) and
``sysctl``.
"""

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources, node_facts

NAME = "drift"
_MOST_BYTES = 900  # of a text of the contract


class Drift:
    """The last known facts of the GPUs stay while NVML gives no answer."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._gpus: dict[str, str] = {}

    async def run_check(self) -> Report:
        machine = self._sources.machine
        sample = await gpu_common.take_sample(self._sources)
        if not isinstance(sample, Off) and sample.trouble is None:
            self._gpus = node_facts.gpus(sample, self._sources.driver.read())
        groups = {
            "kernel": node_facts.kernel(machine),
            "gpu": self._gpus,
            "nic": node_facts.adapters(machine),
            "nvme": node_facts.drives(machine),
            "sysctl": node_facts.sysctls(machine),
        }
        report = [
            Observation(NAME, group, Status.OK, "", node_facts.to_text(facts, _MOST_BYTES))
            for group, facts in groups.items()
            if facts
        ]
        return report or Off("no fact can be read")


SPEC = CheckSpec(
    name=NAME,
    sees="what the node runs, for comparison: kernel, command line, driver, VBIOS and modes of "
    "GPUs, firmware of adapters and drives, sysctls",
    source="/proc/sys, /proc/cmdline, /sys/class/infiniband, /sys/class/nvme, NVML",
    cost="3 ms of CPU every 10 minutes",
    blind_to="firmware of the board, of Ethernet adapters without RDMA and of switches; values of "
    "kernel parameters that are a node's own, or that resemble secrets",
    interval=600.0,
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: Drift(sources),
)
