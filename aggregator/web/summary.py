"""The fleet in numbers and in a sentence, from a snapshot's findings. Pure."""

from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web import models, repair_view
from aggregator.web.fleet_view import FleetViewFindings
from aggregator.web.node_view import ViewMoment


def summarize(
    found: FleetViewFindings,
    moment: ViewMoment,
    *,
    version: str,
    revision: int,
    not_ready: list[str],
    history_trouble: str = "",
    alert_trouble: str = "",
    alerts_given_up: int = 0,
) -> models.Fleet:
    """The numbers, and the sentence above them."""
    when = moment.when(moment.now)
    return models.Fleet(
        at=when,
        version=version,
        revision=revision,
        mode=found.mode,
        stop=found.stop,
        view_lost=found.view_lost,
        waiting_for_quorum=found.waiting_for_quorum,
        cooling=found.cooling,
        clock_doubt=found.clock_doubt,
        causes=list(found.causes),
        not_ready=not_ready,
        nodes=len(found.states),
        attached=found.attached,
        counts=found.counts,
        incidents=len(found.incidents),
        quarantines=len(found.quarantines),
        held=len(found.holds),
        silent=len(found.silent),
        exempt=found.exempt,
        release_held=sum(1 for one in found.quarantines if one.release_held),
        never_seen=found.never_seen,
        record_entries=found.record_entries,
        limits=list(found.limits),
        headline=headline(found),
        pools=list(found.pools),
        replicas=list(found.replicas),
        lease_lost=found.lease_lost,
        history_trouble=history_trouble,
        alert_trouble=alert_trouble,
        alerts_given_up=alerts_given_up,
        repairs=repair_view.under_way(found.quarantines),
        untested=found.untested,
    )


def headline(found: FleetViewFindings) -> str:
    """The state of the fleet, in a sentence or two."""
    total, counts = len(found.states), found.counts
    if not total:
        return "No node is known yet."
    parts = []
    if counts[QuarantineSummary.QUARANTINED]:
        parts.append(f"{counts[QuarantineSummary.QUARANTINED]} in quarantine")
    if counts[QuarantineSummary.HELD]:
        parts.append(f"{counts[QuarantineSummary.HELD]} held back")
    if counts[QuarantineSummary.WARNING]:
        parts.append(f"{counts[QuarantineSummary.WARNING]} with a warning")
    if counts[QuarantineSummary.SILENT]:
        parts.append(f"{counts[QuarantineSummary.SILENT]} silent")
    if counts[QuarantineSummary.UNKNOWN]:
        parts.append(f"{counts[QuarantineSummary.UNKNOWN]} unknown")
    well = counts[QuarantineSummary.OK]
    if not parts:
        all_well = f"All {total:,} nodes are well." if total > 1 else "The only node is well."
        return f"{all_well}{_untested(found)}"
    listed = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return (
        f"{listed[0].upper()}{listed[1:]}. {well:,} of {total:,} nodes are well.{_untested(found)}"
    )


def _untested(found: FleetViewFindings) -> str:
    """A note that some of them are kept from work."""
    if not found.untested:
        return ""
    one = found.untested == 1
    return f" {found.untested:,} {'node is' if one else 'nodes are'} new, and not tested yet."
