"""The repairers that the configuration names, and the rights that they lack in the cluster."""

import logging
import time
from pathlib import Path

from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.objects import ObjectStore
from aggregator.cluster.port import ClusterError
from aggregator.config.settings import Config
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.repairers.factory import repair_settings

log = logging.getLogger("sickbay.app")


def build_repair(config: Config, cluster: OpenedCluster, agents: AgentOrders) -> RepairSettings:
    """The section ``repair``, with the repairers of this cluster and of the nodes' agents."""
    found = cluster.capabilities.objects

    def objects(kubeconfig: Path | None) -> ObjectStore:
        assert found is not None
        return found(str(kubeconfig or ""))

    return repair_settings(
        config.repair,
        domain_labels=(*config.limits.domain_labels, config.limits.clique_label),
        wall=time.time,
        objects=objects if found is not None else None,
        agents=agents,
        reboots=cluster.capabilities.reboots,
        taint=config.marks.taint.key,
    )


async def report_missing_rights(repair: RepairSettings) -> None:
    """Log each right that a repairer will lack. Nodes are quarantined all the same."""
    if repair.off:
        return
    for kind, one in repair.repairers.items():
        if one.missing_rights is None:
            continue
        try:
            missing = list(await one.missing_rights())
        except ClusterError as error:
            missing = [str(error)]
        if missing:
            log.warning(
                "a repairer can't do its work: docs/repair.md, Rights",
                extra={"event": "repair.rights_missing", "repair": kind, "missing": missing},
            )
