"""From a node's health to its incidents. Pure: health, open incidents and a time go in.

Invariants:
- An incident opens when evidence has lasted for its rule's time, and its start never moves.
- Evidence of an incident stays in force until a positive sign: a component seen ok, a fault cleared
  in this boot, or another boot for a fault that a boot ends. Absence, unknown status and silence
  are no sign.
- It closes when none is in force and ``healthy_for`` has passed since, with the agent reporting. A
  check that fails again for a moment, or an agent that falls silent, begins that time again.
- A level check that has failed `RECURS` times within `RECURS_WITHIN`, each for its rule's time,
  flaps: its recovery takes twice as long from then on, and twice that after each further failure.
  While evidence of flapping is in force for the same component no time counts towards recovery.
- A check's failure begins to count while its agent is attached; silence lets no rule's time pass.
- Lost evidence (missing from a snapshot of the same boot) keeps an incident open and opens none.
- No evaluation over time needs this process's memory: `windows` reads the past from the snapshot.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from aggregator.health.model import ClearedBy, Component, Status
from aggregator.health.node import NodeHealth, boot_ends, gpu_name, name_gpus
from aggregator.policy.lemons import CHECK as LEMON
from aggregator.policy.lemons import REASON
from aggregator.policy.outliers.measures import CHECK as OUTLIER
from aggregator.policy.precursors.counters import CHECK as PRECURSOR
from aggregator.policy.rules import (
    ACTIONS,
    FLAPS,
    HEALTHY_FOR,
    KINDS,
    Match,
    Policy,
    Rule,
    bad_statuses,
    level_code,
    matches,
)
from aggregator.policy.silent_agent import SILENT_FAILING, SILENT_RULE, silent_rule
from aggregator.policy.windows import LONGEST, flapping, recurrences, seen_well, well_since
from aggregator.rfc3339 import span
from aggregator.runtime.interning import EMPTY


@dataclass(frozen=True, slots=True)
class Evidence:
    """A piece of evidence of an incident: a fault's code, or "CHECK:REASON" for level evidence.

    ``cleared_by`` is None for level evidence, which is over when its component is ok again.
    ``over`` names the positive sign that ended it; empty: it is in force. ``lost`` means that the
    agent no longer knows of it although no sign has cleared it.
    """

    code: str
    component: str
    boot_id: str
    rule: str
    action: str
    message: str
    cleared_by: ClearedBy | None
    since: float
    over: str = ""
    lost: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return (self.code, self.component)


@dataclass(frozen=True, slots=True)
class Incident:
    """One cause on one node. ``since`` and ``recovering_since`` are monotonic seconds.

    All evidence of one kind (gpu, disk, network, node) on one node in one boot is one incident: two
    reasons that alternate do not move its start, and many components may share it. ``action`` is
    the strongest that its evidence calls for, before mode and admission. ``remembered``: it was
    restored from a durable record, which does not hold its start; the agent's snapshot does.
    """

    id: str
    node: str
    boot_id: str
    kind: str
    action: str
    summary: str
    since: float
    evidence: tuple[Evidence, ...]
    healthy_for: float
    recovering_since: float | None = None
    remembered: bool = False

    @property
    def in_force(self) -> tuple[Evidence, ...]:
        """The evidence that no positive sign has ended."""
        return tuple(item for item in self.evidence if not item.over)


def incident_id(node: str, boot_id: str, kind: str) -> str:
    """The same on every replica and after every restart: derived from the evidence alone.

    The node's UID is not in it: a Node created again with the same boot id is the same machine.
    """
    return blake2b(f"{node}\x1f{boot_id}\x1f{kind}".encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``incidents`` are open, by id. ``evaluate_again``: when time alone may change the result
    (monotonic).
    """

    incidents: Mapping[str, Incident]
    closed: tuple[Incident, ...]
    evaluate_again: float | None


#: Pieces of evidence of one incident. Evidence that is over makes room for evidence in force.
MOST_EVIDENCE = 1_000

#: A level check flaps that has failed that often ...
RECURS = 3
#: ... within this long (seconds): the longest that the rings hold.
RECURS_WITHIN = LONGEST
_MOST_DOUBLINGS = 16

_ALL_WELL = Evaluation(EMPTY, (), None)
_SILENT = silent_rule("observe")
#: The signs that another part has the place of this one, or that it has another name.
_ANOTHER = ("named", "replaced")
_STRENGTHS = {action: strength for strength, action in enumerate(ACTIONS)}


def evaluate(
    policy: Policy,
    health: NodeHealth,
    before: Mapping[str, Incident],
    now: float,
    *,
    reporting: bool = True,
    more: Iterable[Match] = (),
) -> Evaluation:
    """Update the node's incidents from its health.

    ``reporting`` is whether the agent is attached and has given its snapshot: while it has not, no
    time counts towards recovery. ``more`` is evidence that no agent reports.
    """
    found = [*matches(policy, health, now), *more]
    if not found and not before:
        return _ALL_WELL  # nearly every node at nearly every message
    rules = {**policy.by_name, SILENT_RULE: _SILENT}
    known = _known(before)
    begun = [
        match for match in found if match.due <= now and (reporting or _is_alone(match, known))
    ]
    due = _strongest(begun)
    after: dict[str, Incident] = {}
    closed: list[Incident] = []
    again = [match.due for match in found]
    concerned = {one.kind for one in before.values()} | {one.rule.kind for one in due.values()}
    for kind in (kind for kind in KINDS if kind in concerned):
        for acting in (True, False):
            earlier = _open_of(kind, before, acting=acting)
            evidence = _fold(
                earlier, due, health, rules, now, kind=kind, acting=acting, reporting=reporting
            )
            if not evidence:
                continue
            ident = _ident_of(kind, health, earlier, acting=acting)
            start = _start(earlier, begun, evidence, now, acting=acting)
            incident = _incident(ident, kind, health, earlier, evidence, start, policy, rules)
            if acting:
                incident, ages_at = _recurring(incident, health, rules, now)
                again += ages_at
            if incident.in_force or not reporting or (acting and _still_flaps(incident, due)):
                after[ident] = replace(incident, recovering_since=None)
                again += _flapping_ends(incident, health, rules)
                continue
            since = _well_since(incident, health, rules, now)
            if now >= since + incident.healthy_for:
                closed.append(incident)
                continue
            after[ident] = replace(incident, recovering_since=since)
            again.append(since + incident.healthy_for)
    return Evaluation(after, tuple(closed), min((at for at in again if at > now), default=None))


def _known(before: Mapping[str, Incident]) -> Mapping[tuple[str, str], int]:
    """The evidence of the open incidents, and the strongest action that it calls for."""
    found: dict[tuple[str, str], int] = {}
    for incident in before.values():
        for item in incident.evidence:
            found[item.key] = max(_strength(item.action), found.get(item.key, 0))
    return found


def _is_alone(match: Match, known: Mapping[tuple[str, str], int]) -> bool:
    """Whether evidence counts although the agent is silent.

    A check that had failed for a moment when its agent fell silent (for example in a reboot) has
    not failed for its rule's time; otherwise silence would cause an action.
    """
    if match.cleared_by is not None or match.code == SILENT_FAILING:
        return True
    return known.get((match.code, match.component), -1) >= _strength(match.rule.action)


def _start(
    earlier: Incident | None,
    begun: Iterable[Match],
    evidence: Iterable[Evidence],
    now: float,
    *,
    acting: bool,
) -> float:
    """When the incident began: by its evidence, and not when this process first saw it."""
    if earlier is not None and not earlier.remembered:
        return earlier.since
    keys = {item.key for item in evidence}
    dates = [
        match.due
        for match in begun
        if (match.code, match.component) in keys and (match.rule.action != "observe") == acting
    ]
    if earlier is not None:
        dates.append(earlier.since)
    return min(dates, default=now)


def _well_since(
    incident: Incident, health: NodeHealth, rules: Mapping[str, Rule], now: float
) -> float:
    """Since when all has been healthy: a failure for a moment, between two messages, counts too."""
    if incident.recovering_since is None:
        return now
    since = incident.recovering_since
    for item in incident.evidence:
        if item.cleared_by is None:
            component = health.level((item.code.partition(":")[0], item.component))
            if component is not None:
                bad = bad_statuses(rules.get(item.rule))
                since = max(since, well_since(component, bad))
    return min(since, now)


def _recurring(
    incident: Incident, health: NodeHealth, rules: Mapping[str, Rule], now: float
) -> tuple[Incident, list[float]]:
    """The incident with the recovery time and the summary of a check that flaps, and when the
    oldest of its failures no longer counts.
    """
    most, healthy_for, ages_at = 0, incident.healthy_for, list[float]()
    for item in incident.evidence:
        rule = rules.get(item.rule)
        if item.cleared_by is not None or rule is None or rule.flaps:
            continue
        component = health.level((item.code.partition(":")[0], item.component))
        if component is None:
            continue
        failed = recurrences(
            component, bad_statuses(rule), least=rule.hold, now=now, within=RECURS_WITHIN
        )
        if len(failed) < RECURS:
            continue
        most = max(most, len(failed))
        doublings = min(len(failed) - RECURS + 1, _MOST_DOUBLINGS)
        healthy_for = max(healthy_for, min(rule.healthy_for * 2.0**doublings, RECURS_WITHIN))
        ages_at.append(failed[0] + RECURS_WITHIN)
    if not most:
        return incident, []
    # A number that grows would change the summary, and alert, at each further failure.
    summary = f"{incident.summary}; flaps, {RECURS} times or more within {span(RECURS_WITHIN)}"
    return replace(incident, summary=summary, healthy_for=healthy_for), ages_at


def _still_flaps(incident: Incident, due: Mapping[tuple[str, str], Match]) -> bool:
    """Whether evidence of flapping is in force for a component of the incident."""
    return any(
        (f"{item.code.partition(':')[0]}:{FLAPS}", item.component) in due
        for item in incident.evidence
        if item.cleared_by is None
    )


def _flapping_ends(
    incident: Incident, health: NodeHealth, rules: Mapping[str, Rule]
) -> Iterable[float]:
    """When time alone may end the flapping that the incident rests on."""
    for item in incident.in_force:
        check, _, reason = item.code.partition(":")
        component = health.components.get((check, item.component))
        rule = rules.get(item.rule)
        if reason == FLAPS and component is not None and rule is not None and rule.flaps:
            found = flapping(component, rule.flaps, rule.within)
            if found is not None:
                yield found.until


def _strongest(found: Iterable[Match]) -> dict[tuple[str, str], Match]:
    """Of the rules that match one piece of evidence, the one with the strongest action."""
    best: dict[tuple[str, str], Match] = {}
    for match in found:
        key = (match.code, match.component)
        known = best.get(key)
        if known is None or _strength(match.rule.action) > _strength(known.rule.action):
            best[key] = match
    return best


def _strength(action: str) -> int:
    return _STRENGTHS[action]


def _open_of(kind: str, before: Mapping[str, Incident], *, acting: bool) -> Incident | None:
    """The node's open incident of a kind, from any boot.

    Evidence that is only observed is an incident of its own: an application's Xid of this morning
    must not keep a repaired GPU in quarantine.
    """
    for incident in before.values():
        if incident.kind == kind and (incident.action != "observe") == acting:
            return incident
    return None


def _ident_of(kind: str, health: NodeHealth, earlier: Incident | None, *, acting: bool) -> str:
    if earlier is not None:
        return earlier.id
    return incident_id(health.node, health.boot_id, kind if acting else f"{kind}:observed")


def _fold(
    earlier: Incident | None,
    due: Mapping[tuple[str, str], Match],
    health: NodeHealth,
    rules: Mapping[str, Rule],
    now: float,
    *,
    kind: str,
    acting: bool,
    reporting: bool,
) -> tuple[Evidence, ...]:
    """The earlier evidence, in force or over, with the new evidence."""
    held: dict[tuple[str, str], Evidence] = {}
    of_kind = {key: match for key, match in due.items() if match.rule.kind == kind}
    superseding = _superseding(of_kind, acting=acting)
    for item in earlier.evidence if earlier is not None else ():
        if not acting and item.key in due and due[item.key].rule.action != "observe":
            continue
        if item.code == SILENT_FAILING:
            over = "reporting" if reporting else ""
        elif item.cleared_by is not None:
            over = _fault_over(item, health)
        else:
            over = _level_over(item, health, superseding, rules, now)
        lost = _lost(item, health)
        same = over == item.over and lost == item.lost
        held[item.key] = item if same else replace(item, over=over, lost=lost)
    for key, match in of_kind.items():
        known = held.get(key)
        if known is None and len(held) >= MOST_EVIDENCE:
            continue  # it rests on far more already than a person reads
        observed = match.rule.action == "observe"
        if known is None and (match.lost or observed == acting):
            continue
        if known is not None and known.over and acting and observed:
            continue  # an observed match must not keep an incident that acts in force
        weaker = (
            known is not None
            and not known.over
            and _strength(known.action) > _strength(match.rule.action)
        )
        if known is not None and _is_same(known, match, weaker=weaker):
            continue
        held[key] = Evidence(
            code=match.code,
            component=match.component,
            boot_id=match.boot_id,
            rule=known.rule if known is not None and weaker else match.rule.name,
            action=known.action if known is not None and weaker else match.rule.action,
            message=match.message,
            cleared_by=known.cleared_by if known is not None and weaker else match.cleared_by,
            since=known.since if known is not None else match.since,
            lost=match.lost,
        )
    return _bounded(held.values())


def _is_same(known: Evidence, match: Match, *, weaker: bool) -> bool:
    """Whether the match adds nothing to the evidence. Of thousands, a message changes a few."""
    return (
        not known.over
        and known.message == match.message
        and known.boot_id == match.boot_id
        and known.lost == match.lost
        and (
            weaker
            or (
                known.rule == match.rule.name
                and known.action == match.rule.action
                and known.cleared_by == match.cleared_by
            )
        )
    )


def _bounded(evidence: Collection[Evidence]) -> tuple[Evidence, ...]:
    """The evidence without the oldest that is over, where there is too much."""
    surplus = len(evidence) - MOST_EVIDENCE // 2
    if surplus <= 0:
        return tuple(evidence)
    kept = []
    for item in evidence:
        if item.over and surplus > 0:
            surplus -= 1
            continue
        kept.append(item)
    return tuple(kept)


def _superseding(
    of_kind: Mapping[tuple[str, str], Match], *, acting: bool
) -> frozenset[tuple[str, str]]:
    """The evidence of the same incident at present, which may so take another's place."""
    return frozenset(
        key for key, match in of_kind.items() if (match.rule.action != "observe") == acting
    )


def _level_over(
    item: Evidence,
    health: NodeHealth,
    superseding: frozenset[tuple[str, str]],
    rules: Mapping[str, Rule],
    now: float,
) -> str:
    """The sign that level evidence is over; empty while its check fails, for any reason, or is
    degraded where its rule is about that.

    Another reason takes its place only when that counts itself: otherwise a check that keeps
    failing, for reasons that alternate or that no rule names, would look healthy.
    """
    check, _, reason = item.code.partition(":")
    if health.cleared.get((check, item.component)) == "gone":
        return "gone"
    component, bad = health.level((check, item.component)), bad_statuses(rules.get(item.rule))
    if component is None and (how := health.cleared.get(("", item.component))) in _ANOTHER:
        return how
    if component is None or (component.status is Status.UNKNOWN and not seen_well(component, bad)):
        return item.over
    if reason == FLAPS:
        return _steady(component, rules.get(item.rule), now)
    if component.status not in bad:
        return "ok"
    code = level_code(component)
    replaced = code != item.code and (code, item.component) in superseding
    return "changed" if replaced else ""


def _steady(component: Component, rule: Rule | None, now: float) -> str:
    """The sign that flapping is over: it has become rare, and the component does not fail."""
    if component.status is Status.FAILED:
        return ""
    if rule is not None and rule.flaps:
        found = flapping(component, rule.flaps, rule.within)
        if found is not None and found.until > now:
            return ""
    return "steady"


def _fault_over(item: Evidence, health: NodeHealth) -> str:
    """The positive sign that ended a fault; empty while there is none."""
    if item.cleared_by is None:
        return item.over
    # A late stream of an earlier boot looks like a boot, until the present one reports again.
    no_boot_after_all = item.over == "reboot" and item.boot_id == health.boot_id
    if item.over and not no_boot_after_all:
        return item.over
    fault = health.faults.get(item.key)
    if fault is not None and not fault.missing:
        # The fault is there: if it was cleared before, it has happened again. But by the driver's
        # latest verdict on a GPU no action may be due any more.
        return "verdict" if fault.details.get("verdict") == "none" else ""
    if item.boot_id != health.boot_id and boot_ends(item.cleared_by):
        return "reboot"
    return health.how_cleared(item.code, item.component, item.cleared_by)


def _lost(item: Evidence, health: NodeHealth) -> bool:
    """Whether a latched fault is no longer known to its agent although no sign has cleared it."""
    if item.cleared_by is None:
        return False
    fault = health.faults.get(item.key)
    return fault is None or fault.missing


def _incident(
    ident: str,
    kind: str,
    health: NodeHealth,
    earlier: Incident | None,
    evidence: tuple[Evidence, ...],
    since: float,
    policy: Policy,
    rules: Mapping[str, Rule],
) -> Incident:
    weighty = [item for item in evidence if not item.over] or list(evidence)
    action = max((item.action for item in weighty), key=ACTIONS.index)
    lead = next(item for item in weighty if item.action == action)
    return Incident(
        id=ident,
        node=health.node,
        boot_id=earlier.boot_id if earlier is not None else health.boot_id,
        kind=kind,
        action=action,
        summary=_summary(lead, evidence, policy, health),
        since=since,
        evidence=evidence,
        healthy_for=max(
            rules[item.rule].healthy_for if item.rule in rules else HEALTHY_FOR for item in evidence
        ),
        recovering_since=earlier.recovering_since if earlier is not None else None,
        remembered=earlier is not None and earlier.remembered and since == earlier.since,
    )


def _summary(
    lead: Evidence, evidence: tuple[Evidence, ...], policy: Policy, health: NodeHealth
) -> str:
    fault = health.faults.get(lead.key)
    device = gpu_name(health, lead.component, fault.details if fault is not None else None)
    where = f" on {device or lead.component}" if lead.component else ""
    more = f", and {len(evidence) - 1} more" if len(evidence) > 1 else ""
    if lead.code in (SILENT_FAILING, f"{LEMON}:{REASON}") or lead.code.startswith(
        (f"{OUTLIER}:", f"{PRECURSOR}:")
    ):
        return f"{name_gpus(lead.message, health)}{more}"
    return f"{policy.catalogue.describe(lead.code)}{where}{more}"
