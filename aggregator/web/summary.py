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
    """The numbers, and the sentence that stands above them."""
    when = moment.when(moment.now)
    return models.Fleet(
        at=when,
        version=version,
        revision=revision,
        mode=found.mode,
        stop=found.stop,
        view_lost=found.view_lost,
        in_company=found.in_company,
        waiting_for_quorum=found.waiting_for_quorum,
        cooling=found.cooling,
        clock_doubt=found.clock_doubt,
        causes=list(found.causes),
        not_ready=not_ready,
        nodes=len(found.standings),
        attached=found.attached,
        counts=found.counts,
        incidents=len(found.incidents),
        quarantines=len(found.quarantines),
        held=len(found.holds),
        silent=len(found.silent),
        exempt=found.exempt,
        release_held=sum(1 for one in found.quarantines if one.release_held),
        never_heard=found.never_heard,
        record_entries=found.record_entries,
        limits=list(found.limits),
        headline=headline(found),
        pools=list(found.pools),
        replicas=list(found.replicas),
        frozen=found.frozen,
        differing=found.differing,
        incomplete=found.incomplete,
        last_known=found.last_known,
        history_trouble=history_trouble,
        alert_trouble=alert_trouble,
        alerts_given_up=alerts_given_up,
        repairs=repair_view.under_way(found.quarantines),
        untested=found.untested,
    )


def headline(found: FleetViewFindings) -> str:
    """The state of the fleet, in a sentence or two."""
    total, counts = len(found.standings), found.counts
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
    well, unsure = counts[QuarantineSummary.OK], _unsure(found)
    if not parts:
        all_well = f"All {total:,} nodes are well." if total > 1 else "The only node is well."
        return f"{all_well}{_untested(found)}"
    listed = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    notes = f"{_untested(found)}{unsure}"
    return f"{listed[0].upper()}{listed[1:]}. {well:,} of {total:,} nodes are well.{notes}"


def _untested(found: FleetViewFindings) -> str:
    """A note that some of them are kept from work."""
    if not found.untested:
        return ""
    one = found.untested == 1
    return f" {found.untested:,} {'node is' if one else 'nodes are'} new, and not tested yet."


def _unsure(found: FleetViewFindings) -> str:
    """A note that some of it is old, for a headline that must not hide it."""
    if not found.last_known:
        return ""
    silent = [one.name for one in found.replicas if one.trouble and one.nodes]
    many = f"{found.last_known:,} {'node' if found.last_known == 1 else 'nodes'}"
    is_so = "is" if found.last_known == 1 else "are"
    if not silent:
        return f" {many} {is_so} only last known, on the way to another replica."
    who = f"{' and '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
    return f" {many} {is_so} only last known: {who}."
