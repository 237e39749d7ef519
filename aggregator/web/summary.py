"""The fleet in numbers and in a sentence, from a snapshot's findings. Pure."""

from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web import models, repair_view
from aggregator.web.fleet_view import FleetViewFindings
from aggregator.web.node_view import ViewMoment

#: States in words for people, worst first.
STATE_LABELS = {
    QuarantineSummary.QUARANTINED: "in quarantine",
    QuarantineSummary.HELD: "held back",
    QuarantineSummary.WARNING: "warning",
    QuarantineSummary.SILENT: "silent",
    QuarantineSummary.UNKNOWN: "unknown",
    QuarantineSummary.OK: "well",
}
_IN_WORDS = STATE_LABELS | {QuarantineSummary.WARNING: "with a warning"}

#: A node whose hold is of its drain: what is held of any other is its quarantine.
_BEGUN = QuarantineSummary.QUARANTINED


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
    return models.shape_of(
        models.Fleet,
        found,
        at=moment.when(moment.now),
        version=version,
        revision=revision,
        counts=found.counts,
        not_ready=not_ready,
        nodes=len(found.states),
        incidents=len(found.incidents),
        quarantines=len(found.quarantines),
        held=len(found.holds),
        drains_held=sum(1 for one in found.holds if found.states[one.node] is _BEGUN),
        silent=len(found.silent),
        release_held=sum(1 for one in found.quarantines if one.release_held),
        headline=headline(found),
        history_trouble=history_trouble,
        alert_trouble=alert_trouble,
        alerts_given_up=alerts_given_up,
        repairs=repair_view.under_way(found.quarantines),
    )


def headline(found: FleetViewFindings) -> str:
    """The state of the fleet, in a sentence or two."""
    total, counts = len(found.states), found.counts
    if not total:
        return "No node is known yet."
    ill = [state for state in _IN_WORDS if counts[state] and state is not QuarantineSummary.OK]
    parts, well = [f"{counts[one]} {_IN_WORDS[one]}" for one in ill], counts[QuarantineSummary.OK]
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
