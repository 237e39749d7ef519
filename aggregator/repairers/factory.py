"""The configured repairers."""

from collections.abc import Callable
from dataclasses import fields

from aggregator.config.repair import RepairConfig, RepairerSection
from aggregator.quarantine.decide.repair import RepairRules
from aggregator.quarantine.repair.protocol import ConfiguredRepairer, Repairer, RepairSettings
from aggregator.repairers.command import CommandRepairer
from aggregator.repairers.ipmi import IpmiRepairer, IpmiTarget
from aggregator.repairers.redfish import RedfishRepairer, RedfishTarget
from aggregator.repairers.webhook import WebhookRepairer


def repair_settings(
    config: RepairConfig, *, domain_labels: tuple[str, ...], wall: Callable[[], float]
) -> RepairSettings:
    """``domain_labels``: node labels whose value names a failure domain. ``wall`` is wall clock
    seconds.
    """
    rules = RepairRules(**{one.name: getattr(config, one.name) for one in fields(RepairRules)})
    repairers: dict[str, ConfiguredRepairer] = {}
    for section in config.repairers:
        repairer = _repairer(section, wall)
        if repairer is not None:
            repairers[section.kind] = ConfiguredRepairer(repairer, section.timeout)
    return RepairSettings(rules, repairers, domain_labels)


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
