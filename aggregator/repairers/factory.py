"""The configured repairers."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.objects import ObjectStore
from aggregator.cluster.reboots import NodeReboots
from aggregator.config.repair import RepairConfig, RepairerSection
from aggregator.policy.repairs import NEEDS_PERSON, TEST
from aggregator.quarantine.decide.repair import RepairRules
from aggregator.quarantine.repair.protocol import ConfiguredRepairer, Repairer, RepairSettings
from aggregator.repairers.agent import AgentRepairer
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.repairers.cluster_api import ClusterApiRepairer
from aggregator.repairers.command import CommandRepairer
from aggregator.repairers.external import ExternalRepairer
from aggregator.repairers.gpu_use import UnlessGpuInUse
from aggregator.repairers.ipmi import IpmiRepairer, IpmiTarget
from aggregator.repairers.job import JobRepairer
from aggregator.repairers.karpenter import KarpenterRepairer
from aggregator.repairers.redfish import RedfishRepairer, RedfishTarget
from aggregator.repairers.slurm import SlurmRepairer
from aggregator.repairers.webhook import WebhookRepairer

#: Objects of the cluster, or of that of another kubeconfig.
Objects = Callable[[Path | None], ObjectStore]
#: What some repairers can do besides, as `ConfiguredRepairer` has it.
_MORE = ("clean_up", "missing_rights", "is_over", "withdraw", "note_end")


def repair_settings(
    config: RepairConfig,
    *,
    domain_labels: tuple[str, ...],
    wall: Callable[[], float],
    objects: Objects | None = None,
    agents: AgentOrders | None = None,
    reboots: NodeReboots | None = None,
    taint: str = TAINT,
) -> RepairSettings:
    """``domain_labels``: node labels whose value names a failure domain. ``wall`` is wall clock
    seconds. ``objects``: None where the cluster has none. ``agents`` takes orders to the nodes'
    agents; None: no agent is ever connected. ``reboots``: those of the cluster itself, if it has
    any. ``taint``: the key of the taint of nodes in quarantine.
    """
    rules = RepairRules(**{one.name: getattr(config, one.name) for one in fields(RepairRules)})
    by_agents = agents or AgentOrders()
    made: dict[str, ConfiguredRepairer] = {}
    for section in config.repairers:
        by_object = _object_repairer(section, objects, taint) if objects is not None else None
        repairer = by_object or _repairer(section, by_agents, reboots, wall)
        if repairer is not None:
            made[section.kind] = _configured(section, repairer, by_agents)
    return RepairSettings(rules, made, domain_labels, by_agents.collected)


def _configured(
    section: RepairerSection, repairer: Repairer, agents: AgentOrders
) -> ConfiguredRepairer:
    """The repairer with all that it can do besides."""
    job = section.job
    # A ticket interrupts nothing, and an agent sees the use of its GPUs. A test that is sent again
    # finds its own program: only a Job's repairer knows that one first.
    by_test = section.kind == TEST and job is None
    unguarded = section.kind in NEEDS_PERSON or section.agent is not None or by_test
    return ConfiguredRepairer(
        repairer if unguarded else UnlessGpuInUse(repairer, agents.gpu_use),
        section.timeout,
        **{name: getattr(repairer, name, None) for name in _MORE},
        pauses_operands=section.pause_gpu_operator,
        by_agent=section.agent is not None,
        pod_namespace=job.namespace if job is not None else "",
        profiles=frozenset(job.profiles) if job is not None else None,
        gives_way=job is not None and job.gpus == "all",
    )


def _repairer(
    section: RepairerSection,
    agents: AgentOrders,
    reboots: NodeReboots | None,
    wall: Callable[[], float],
) -> Repairer | None:
    if section.agent is not None:
        return AgentRepairer(agents)
    if section.slurm and reboots is not None:
        return SlurmRepairer(reboots)
    if section.command:
        return CommandRepairer(
            section.command,
            cancel=section.cancel,
            limit=section.call_timeout,
            sends_twice=section.idempotent,
        )
    if section.webhook is not None:
        return WebhookRepairer(section.webhook.url, section.webhook.secret_file, wall=wall)
    if section.redfish is not None:
        one = section.redfish
        return RedfishRepairer(
            RedfishTarget(one.url, one.user, one.password_file, one.reset_type, one.ca_file)
        )
    if section.ipmi is not None:
        bmc = section.ipmi
        return IpmiRepairer(
            IpmiTarget(bmc.host, bmc.port, bmc.user, bmc.password_file, bmc.power, bmc.program)
        )
    return None


def _object_repairer(section: RepairerSection, objects: Objects, taint: str) -> Repairer | None:
    """The repairer that acts by objects of the cluster's API, if the section has one."""
    if section.karpenter:
        return KarpenterRepairer(objects(None))
    if section.cluster_api:
        return ClusterApiRepairer(objects(None), objects(section.management_kubeconfig))
    if section.external is not None:
        return ExternalRepairer(objects(None), section.external)
    if section.job is not None:
        return JobRepairer(objects(None), section.job, taint=taint)
    return None
