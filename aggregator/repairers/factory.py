"""The configured repairers."""

from collections.abc import Callable
from dataclasses import fields, replace
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
    repairers: dict[str, ConfiguredRepairer] = {}
    by_agents = agents or AgentOrders()
    for section in config.repairers:
        by_objects = _object_repairer(section, objects, taint) if objects is not None else None
        if by_objects is not None:
            repairers[section.kind] = _unless_in_use(section, by_objects, by_agents)
            continue
        if section.agent is not None:
            agent = AgentRepairer(by_agents)
            repairers[section.kind] = ConfiguredRepairer(
                agent,
                section.timeout,
                withdraw=agent.withdraw,
                note_end=agent.note_end,
                pauses_operands=section.pause_gpu_operator,
                by_agent=True,
            )
            continue
        if section.slurm and reboots is not None:
            slurm = SlurmRepairer(reboots)
            entry = ConfiguredRepairer(slurm, section.timeout, is_over=slurm.is_over)
            repairers[section.kind] = _unless_in_use(section, entry, by_agents)
            continue
        repairer = _repairer(section, wall)
        if repairer is not None:
            configured = ConfiguredRepairer(
                repairer, section.timeout, pauses_operands=section.pause_gpu_operator
            )
            repairers[section.kind] = _unless_in_use(section, configured, by_agents)
    return RepairSettings(rules, repairers, domain_labels, by_agents.collected)


def _unless_in_use(
    section: RepairerSection, entry: ConfiguredRepairer, agents: AgentOrders
) -> ConfiguredRepairer:
    """A ticket interrupts nothing. A test that is sent again finds its own program: only a Job's
    repairer knows that one first.
    """
    if section.kind in NEEDS_PERSON or (section.kind == TEST and section.job is None):
        return entry
    return replace(entry, repairer=UnlessGpuInUse(entry.repairer, agents.gpu_use))


def _repairer(section: RepairerSection, wall: Callable[[], float]) -> Repairer | None:
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


def _object_repairer(
    section: RepairerSection, objects: Objects, taint: str
) -> ConfiguredRepairer | None:
    """The repairer that acts by objects of the cluster's API, if the section has one."""
    if section.karpenter:
        karpenter = KarpenterRepairer(objects(None))
        return ConfiguredRepairer(
            karpenter, section.timeout, missing_rights=karpenter.missing_rights
        )
    if section.cluster_api:
        machines = ClusterApiRepairer(objects(None), objects(section.management_kubeconfig))
        return ConfiguredRepairer(
            machines, section.timeout, machines.clean_up, machines.missing_rights
        )
    if section.external is not None:
        external = ExternalRepairer(objects(None), section.external)
        return ConfiguredRepairer(
            external,
            section.timeout,
            external.clean_up,
            external.missing_rights,
            external.is_over,
        )
    if section.job is not None:
        job = JobRepairer(objects(None), section.job, taint=taint)
        return ConfiguredRepairer(
            job,
            section.timeout,
            job.clean_up,
            job.missing_rights,
            pod_namespace=section.job.namespace,
            profiles=frozenset(section.job.profiles),
            gives_way=section.job.gpus == "all",
        )
    return None
