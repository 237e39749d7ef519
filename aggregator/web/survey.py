"""The whole fleet, turned into what people read. Pure; patients are added one by one.

Adding is what costs (a few microseconds a node), so that whoever does it for 10,000 nodes can let
other work in between; what comes out then holds nothing that depends on the time but ``at``.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from aggregator.quarantine.cluster import Phase
from aggregator.quarantine.decide.admission import allowance
from aggregator.quarantine.fleet import Fleet, Patient, Standing
from aggregator.web import shapes, view
from aggregator.web.parts import Telling, Told
from aggregator.web.view import Moment

LETTERS = {
    Standing.OK: "o",
    Standing.UNKNOWN: "u",
    Standing.SILENT: "s",
    Standing.WARNING: "w",
    Standing.HELD: "h",
    Standing.QUARANTINED: "q",
}
_ACTIONS = ("drain", "cordon", "observe")
_PHASES = (
    Phase.INVALID,
    Phase.DRAINING,
    Phase.ADMITTED,
    Phase.RELEASING,
    Phase.CORDONED,
    Phase.DRAINED,
)
#: What limits say that are not counted in nodes.
_TEXTS = {
    "concurrent_percent": "of all nodes",
    "new_per_window_percent": "of all nodes, new within the window",
    "window": "what counts as at once",
    "cooldown": "nothing new for so long, after the rate or a common cause has tripped",
    "after_upgrade": "evidence must stand so long where the driver, kernel or agent is new",
    "common_cause_percent": "of those who look: more that fail alike are one cause",
    "common_cause_nodes": "nodes: more that fail alike are one cause",
    "domain_percent": "of a place or version: more that fail alike are its own",
    "evictions_at_once": "evictions in flight at once",
    "quorum_percent": "of the nodes must have reported before anything is admitted",
    "pool_label": "the node label that names a pool",
}
_DIGITS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts node-9 before node-10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the fleet's page and API show, but for history. Lists are whole and sorted.

    Where there are several replicas, ``elsewhere`` has who told of each node that is another's,
    and ``last_known`` counts the nodes of those who don't answer.
    """

    names: tuple[str, ...] = ()
    standings: Mapping[str, Standing] = field(default_factory=dict)
    incidents: tuple[shapes.Incident, ...] = ()
    quarantines: tuple[shapes.Quarantine, ...] = ()
    holds: tuple[shapes.Hold, ...] = ()
    silent: tuple[shapes.NodeRow, ...] = ()
    wished: tuple[shapes.NodeRow, ...] = ()
    exempt: int = 0
    never_heard: int = 0
    attached: int = 0
    conflicts: int = 0
    mode: str = ""
    stop: str = ""
    view_lost: str = ""
    in_company: bool = False
    clock_doubt: str = ""
    waiting_for_quorum: str = ""
    cooling: str = ""
    causes: tuple[shapes.CommonCause, ...] = ()
    record_entries: int = 0
    limits: tuple[shapes.LimitUse, ...] = ()
    replicas: tuple[shapes.Replica, ...] = ()
    frozen: str = ""
    differing: str = ""
    incomplete: str = ""
    last_known: int = 0
    elsewhere: Mapping[str, Telling] = field(default_factory=dict, compare=False)

    @property
    def counts(self) -> dict[Standing, int]:
        """Nodes by standing, every standing named."""
        found = Counter(self.standings.values())
        return {standing: found[standing] for standing in Standing}

    @property
    def letters(self) -> str:
        """One letter for each of ``names``."""
        return "".join(LETTERS[self.standings[name]] for name in self.names)


class Survey:
    """Goes through the patients, then concludes."""

    def __init__(self, fleet: Fleet, moment: Moment) -> None:
        self._fleet = fleet
        self._moment = moment
        self._standings: dict[str, Standing] = {}
        self._incidents: list[shapes.Incident] = []
        self._quarantines: list[shapes.Quarantine] = []
        self._holds: list[shapes.Hold] = []
        self._silent: list[tuple[float, shapes.NodeRow]] = []
        self._pools: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._pool_label = _setting(fleet.limits, "pool_label")
        self._wished: list[shapes.NodeRow] = []
        self._never = self._attached = self._conflicts = self._exempt = 0
        self._nodes = self._last_known = 0
        self._elsewhere: dict[str, Telling] = {}

    def add(self, patient: Patient) -> None:
        """Take one node in, by what this replica knows itself."""
        self.count(patient)
        moment, standing = self._moment, patient.standing()
        self._standings[patient.node] = standing
        self._attached += patient.attached
        self._conflicts += bool(patient.conflict)
        self._exempt += patient.exempt
        if patient.wishes:
            self._wished.append(view.node_row(patient, moment, standing))
        if not patient.attached:
            if view.agent(patient) == "never":
                self._never += 1
            else:
                heard = patient.last_heard if patient.last_heard is not None else moment.now
                self._silent.append((heard, view.node_row(patient, moment, standing)))
        if patient.incidents:
            self._incidents.extend(view.incidents(patient, moment, self._fleet.how))
        if patient.quarantine is not None:
            shown = view.quarantine(patient, patient.quarantine, self._fleet.how)
            self._quarantines.append(shown)
        held = view.hold(patient, self._fleet.mode, self._fleet.how)
        if held is not None:
            self._holds.append(held)

    def add_told(self, told: Told, telling: Telling, patient: Patient | None) -> None:
        """Take a node in that is another replica's, by what that one told.

        ``patient``: what every replica knows, and that is the Quarantine; None: not even that.
        """
        self.count(patient)
        quarantine = patient.quarantine if patient is not None else None
        standing = standing_told(told, patient)
        self._standings[told.node] = standing
        self._elsewhere[told.node] = telling
        self._last_known += bool(telling.trouble)
        self._attached += told.agent == "attached"
        self._conflicts += told.conflict
        self._exempt += told.exempt
        self._never += told.agent == "never"
        if told.wishes or told.agent == "silent":
            row = row_told(told, telling, patient, self._moment)
            if told.wishes:
                self._wished.append(row)
            if told.agent == "silent":
                at = told.last_heard.timestamp() if told.last_heard else self._moment.wall
                self._silent.append((at - self._moment.wall + self._moment.now, row))
        self._incidents.extend(told.incidents)
        if patient is not None and quarantine is not None:
            known = replace(patient, last_error=told.last_error, release_held=told.release_held)
            shown = view.quarantine(known, quarantine, self._fleet.how)
            self._quarantines.append(msgspec.structs.replace(shown, agent=told.agent))
        elif told.hold is not None:
            self._holds.append(told.hold)

    def count(self, patient: Patient | None) -> None:
        """Count a node for the limits, which are the whole fleet's, and show it nowhere."""
        self._nodes += 1
        if self._pool_label and patient is not None and patient.meta is not None:
            pool = patient.meta.labels.get(self._pool_label, "")
            self._pools[pool] += 1
            self._taken[pool] += patient.in_record

    def conclude(self, names: Iterable[str]) -> Findings:
        """What was found. ``names`` are the nodes in the order in which people read them.

        What is known of the replicas themselves is not from here.
        """
        fleet = self._fleet
        return Findings(
            names=tuple(name for name in names if name in self._standings),
            standings=self._standings,
            incidents=tuple(
                sorted(
                    self._incidents,
                    key=lambda one: (
                        _ACTIONS.index(one.action),
                        one.recovering_since is not None,
                        -one.since.timestamp(),
                        one.node,
                    ),
                )
            ),
            quarantines=tuple(sorted(self._quarantines, key=_urgency)),
            holds=tuple(sorted(self._holds, key=lambda one: natural(one.node))),
            silent=tuple(row for _, row in sorted(self._silent, key=lambda pair: pair[0])),
            wished=tuple(sorted(self._wished, key=lambda one: natural(one.node))),
            exempt=self._exempt,
            never_heard=self._never,
            attached=self._attached,
            conflicts=self._conflicts,
            mode=fleet.mode,
            stop=view.brief(fleet.stop),
            view_lost=fleet.view_lost,
            in_company=fleet.in_company,
            clock_doubt=fleet.clock_doubt,
            waiting_for_quorum=fleet.waiting_for_quorum,
            incomplete=fleet.incomplete,
            cooling=fleet.cooling,
            causes=view.causes(fleet.causes.values(), self._moment)
            + view.blamed(fleet.network.values(), self._moment),
            record_entries=fleet.record_entries,
            limits=tuple(self._limits()),
            last_known=self._last_known,
            elsewhere=self._elsewhere,
        )

    def _limits(self) -> Iterable[shapes.LimitUse]:
        for key, value in self._fleet.limits.items():
            name = f"limits.{key.removeprefix('limits.')}"
            yield self._limit(name, value)

    def _limit(self, name: str, value: str) -> shapes.LimitUse:
        nodes, used = self._nodes, self._fleet.record_entries
        match name.removeprefix("limits."):
            case "concurrent" if value.isdecimal():
                return _use(name, value, used, int(value), "nodes in quarantine at once")
            case "concurrent_percent" if nodes and _percent(value) is not None:
                most = allowance(nodes, _percent(value) or 0.0)
                return _use(name, value, used, most, f"{value} of {nodes:,} {_nodes(nodes)}")
            case "pool_percent" if _percent(value) is not None and self._pools:
                pool, taken, most = self._fullest_pool(_percent(value) or 0.0)
                text = f"{value} of a pool; the fullest is {pool or '(no pool)'}"
                return _use(name, value, taken, most, text)
            case "new_per_window" if value.isdecimal():
                lately, within = self._fleet.admitted_lately, _setting(self._fleet.limits, "window")
                return _use(name, value, lately, int(value), f"new quarantines within {within}")
        text = _TEXTS.get(name.removeprefix("limits."), "")
        return shapes.LimitUse(name=name, value=value, used=None, most=None, full=False, text=text)

    def _fullest_pool(self, percent: float) -> tuple[str, int, int]:
        shares = [
            (self._taken[pool] / allowance(total, percent), pool)
            for pool, total in self._pools.items()
        ]
        _, pool = max(shares)
        return pool, self._taken[pool], allowance(self._pools[pool], percent)


def standing_told(told: Told, patient: Patient | None) -> Standing:
    """How another's node stands: in quarantine if its Quarantine stands, which we see ourselves."""
    if patient is not None and patient.quarantine is not None:
        return Standing.QUARANTINED
    # Of its end we have heard before its replica has told how it stands now.
    return Standing.UNKNOWN if told.standing is Standing.QUARANTINED else told.standing


def row_told(
    told: Told, telling: Telling, patient: Patient | None, moment: Moment
) -> shapes.NodeRow:
    """Another replica's node in one line."""
    standing = standing_told(told, patient)
    why = told.why
    if patient is not None and patient.quarantine is not None:
        why = view.why(patient, standing)
        if telling.trouble:
            why = f"{why} ({telling.note})"
    elif told.standing is Standing.QUARANTINED:
        why = "its quarantine has just ended"
    return shapes.NodeRow(
        node=told.node,
        standing=standing,
        agent=told.agent,
        last_heard=telling.last_heard(told, moment),
        why=why,
        exempt=told.exempt,
        wishes=told.wishes,
        replica=telling.replica,
        last_known=telling.at if telling.trouble else None,
    )


def survey(fleet: Fleet, moment: Moment) -> Findings:
    """All of it at once."""
    found = Survey(fleet, moment)
    for patient in fleet.patients.values():
        found.add(patient)
    return found.conclude(sorted(fleet.patients, key=natural))


def _urgency(one: shapes.Quarantine) -> tuple[bool, int, float, str]:
    """Those that are stuck, then those under way, then those that wait for a repair."""
    since = one.phase_since
    return (
        not (one.blockers or one.last_error or one.release_held),
        _PHASES.index(Phase(one.phase)),
        -since.timestamp() if since else 0.0,
        one.node,
    )


def _use(name: str, value: str, used: int, most: int, text: str) -> shapes.LimitUse:
    return shapes.LimitUse(
        name=name, value=value, used=used, most=most, full=used >= most, text=text
    )


def _nodes(count: int) -> str:
    return "node" if count == 1 else "nodes"


def _setting(limits: Mapping[str, str], key: str) -> str:
    return limits.get(key, "") or limits.get(f"limits.{key}", "")


def _percent(value: str) -> float | None:
    try:
        return float(value.removesuffix("%"))
    except ValueError:
        return None
