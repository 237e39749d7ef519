"""The cost of faults for the jobs of a fleet, from the records of history. Pure.

Every formula is in docs/jobs.md, and each of its inputs is a field of the report.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aggregator.events import EventKind, Transition
from aggregator.jobs.hit import Hit, hit_of

#: The kinds of transitions that a report is made of.
KINDS = (
    EventKind.JOB_HIT,
    EventKind.JOB_STOPPED,
    EventKind.CORDONED,
    EventKind.RELEASED,
)
#: The keys of the sums.
GROUPS = ("job", "team", "code", "node", "pool")
_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """``gpus_of`` and ``pool_of`` know the nodes; 0 and "" for one that is unknown now. ``out``:
    the nodes in quarantine at the end of the report's time or now, since when (wall clock seconds;
    0: before that time), and the incident of each.
    """

    nodes: int
    gpus: int
    gpus_of: Callable[[str], int]
    pool_of: Callable[[str], str]
    out: Mapping[str, tuple[float, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop of a job, with its cost in GPU hours: the work since the last checkpoint, and the
    time until the job computes again.
    """

    hit: Hit
    work: float
    restart: float

    @property
    def hours(self) -> float:
        return self.work + self.restart


@dataclass(slots=True)
class CostRow:
    """Sums for one job, team, code, node or pool. ``out_of_service``: GPU hours of its nodes in
    quarantine. ``ettr`` is that of a job, None for others.
    """

    name: str
    hits: int = 0
    stops: int = 0
    work_hours: float = 0.0
    restart_hours: float = 0.0
    out_of_service_hours: float = 0.0
    mttr: float | None = None
    last: Hit | None = None
    ettr: float | None = None

    @property
    def lost_hours(self) -> float:
        return self.work_hours + self.restart_hours


@dataclass(frozen=True, slots=True)
class Report:
    """``since`` and ``until`` are wall clock seconds; ``mtbf`` and ``mttr`` seconds, None without a
    quarantine. ``per_node_day`` is the number of quarantines for each node and day.
    """

    since: float
    until: float
    nodes: int
    gpus: int
    quarantines: int
    per_node_day: float
    mtbf: float | None
    mttr: float | None
    work_hours: float
    restart_hours: float
    out_of_service_hours: float
    goodput: float | None
    rows: tuple[CostRow, ...]
    stops: tuple[Stop, ...]


@dataclass(frozen=True, slots=True)
class _Outage:
    """A node in quarantine, within the report's time. ``ended``: it was released in it."""

    node: str
    incident: str
    seconds: float
    whole: float
    ended: bool


def make_report(
    transitions: Iterable[Transition], inputs: FleetInputs, *, since: float, until: float, by: str
) -> Report:
    """``by`` is one of `GROUPS`. Transitions may come in any order, and repeated."""
    past = sorted(
        {
            (one.at, one.kind.value, one.node, one.incident, one.details.get("key", "")): one
            for one in transitions
            if since <= one.at <= until
        }.values(),
        key=lambda one: one.at,
    )
    hits = hits_of(past)
    stops = stops_of(hits)
    outages = _outages(past, since, until, inputs.out)
    days = max(until - since, 1.0) / _DAY
    quarantines = sum(one.kind is EventKind.CORDONED for one in past)
    per_node_day = quarantines / (inputs.nodes * days) if inputs.nodes else 0.0
    rows = _rows(by, hits, stops, outages, inputs, per_node_day)
    work, restart = sum(one.work for one in stops), sum(one.restart for one in stops)
    out = sum(one.seconds * inputs.gpus_of(one.node) for one in outages) / _HOUR
    capacity = inputs.gpus * days * 24
    ended = [one.whole for one in outages if one.ended]
    return Report(
        since=since,
        until=until,
        nodes=inputs.nodes,
        gpus=inputs.gpus,
        quarantines=quarantines,
        per_node_day=per_node_day,
        mtbf=inputs.nodes * days * _DAY / quarantines if quarantines and inputs.nodes else None,
        mttr=sum(ended) / len(ended) if ended else None,
        work_hours=work,
        restart_hours=restart,
        out_of_service_hours=out,
        goodput=max(0.0, 1 - (work + restart + out) / capacity) if capacity else None,
        rows=rows,
        stops=tuple(stops),
    )


def hits_of(past: Iterable[Transition]) -> list[Hit]:
    """The records among the transitions, the earliest first. A controller that takes over may
    record a job again: it counts once for an incident, until the node is released.
    """
    known: dict[str, set[tuple[str, str, bool]]] = defaultdict(set)
    found = []
    for one in past:
        if one.kind is EventKind.RELEASED:
            known.pop(one.node, None)
        hit = hit_of(one)
        if hit is not None and (hit.key, hit.incident, hit.stopped) not in known[hit.node]:
            known[hit.node].add((hit.key, hit.incident, hit.stopped))
            found.append(hit)
    return found


def stops_of(hits: Iterable[Hit]) -> list[Stop]:
    """The stops and their costs. A gang that is stopped again before it computes loses only the
    further time.
    """
    ready: dict[tuple[str, str], float] = {}
    found = []
    for one in hits:
        if not one.stopped:
            continue
        # Replicas stop alone: those of another node cost their own time.
        gang = (one.key, one.gang if one.loss == "gang" else one.node)
        before = ready.get(gang, 0.0)
        age = min(one.age, max(0.0, one.at - before))
        ends = max(before, one.at + one.restart)
        seconds = ends - max(one.at, before)
        ready[gang] = ends
        found.append(Stop(one, one.lost_gpus * age / _HOUR, one.lost_gpus * seconds / _HOUR))
    return found


def ettr(one: Hit, per_node_day: float) -> float:
    """The share of its time in which the job computes what it keeps: 1 - N r (u0 + D/2).

    "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (arXiv 2410.21680),
    with N nodes, r failures per node-day, the restart u0 and the checkpoint interval D in days.
    """
    interval = one.interval if one.progress else 0.0
    return max(0.0, 1 - one.nodes * per_node_day * (one.restart + interval / 2) / _DAY)


def _outages(
    past: Iterable[Transition], since: float, until: float, out: Mapping[str, tuple[float, str]]
) -> list[_Outage]:
    """A node whose cordon is older than the report's time counts from its begin on. ``out``: as of
    `FleetInputs`.
    """
    open_since: dict[str, Transition] = {}
    begun: set[str] = set()
    found = []
    for one in past:
        if one.kind is EventKind.CORDONED:
            open_since.setdefault(one.node, one)
            begun.add(one.node)
        elif one.kind is EventKind.RELEASED:
            first = open_since.pop(one.node, None)
            if first is not None:
                length = one.at - first.at
                found.append(_Outage(one.node, first.incident, length, length, ended=True))
            elif one.node not in begun:
                begun.add(one.node)
                found.append(_Outage(one.node, one.incident, one.at - since, 0.0, ended=False))
    for node, first in open_since.items():
        length = until - first.at
        found.append(_Outage(node, first.incident, length, length, ended=False))
    for node, (at, incident) in out.items():
        if node not in begun and at < until:
            found.append(_Outage(node, incident, until - max(at, since), 0.0, ended=False))
    return found


def _rows(
    by: str,
    hits: Iterable[Hit],
    stops: Iterable[Stop],
    outages: Iterable[_Outage],
    inputs: FleetInputs,
    per_node_day: float,
) -> tuple[CostRow, ...]:
    sums: dict[str, CostRow] = {}
    repairs: dict[str, list[float]] = defaultdict(list)
    codes: dict[str, str] = {}

    def row_of(name: str) -> CostRow:
        return sums.setdefault(name, CostRow(name))

    for one in hits:
        codes.setdefault(one.incident, one.code)
        row = row_of(_group(by, one))
        row.hits += not one.stopped
        row.last = one
        row.ettr = ettr(one, per_node_day) if by == "job" else None
    for stop in stops:
        row = row_of(_group(by, stop.hit))
        row.stops += 1
        row.work_hours += stop.work
        row.restart_hours += stop.restart
    for outage in outages if by in ("node", "pool", "code") else ():
        names = {
            "node": outage.node,
            "pool": inputs.pool_of(outage.node),
            "code": codes.get(outage.incident, "unknown"),
        }
        row = row_of(names[by])
        row.out_of_service_hours += outage.seconds * inputs.gpus_of(outage.node) / _HOUR
        if outage.ended:
            repairs[row.name].append(outage.whole)
    for name, some in repairs.items():
        sums[name].mttr = sum(some) / len(some)
    return tuple(
        sorted(
            sums.values(), key=lambda row: (-row.lost_hours - row.out_of_service_hours, row.name)
        )
    )


def _group(by: str, one: Hit) -> str:
    return str(getattr(one, "key" if by == "job" else by))
