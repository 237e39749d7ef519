"""The jobs that faults hit, from history, for page and API alike."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from aggregator.events import EventKind, Transition
from aggregator.jobs.hit import Hit
from aggregator.jobs.report import GROUPS, KINDS, CostRow, FleetInputs, Report, hits_of, make_report
from aggregator.quarantine.state.gpus import GpuCounts, count_gpus
from aggregator.runtime.shared_answers import SharedAnswers
from aggregator.web.cost_chart import days_of, groups_of
from aggregator.web.job_models import JobRecord, JobReport, JobRow
from aggregator.web.models import Shape
from aggregator.web.queries import FleetQueries, read_history
from aggregator.web.query_params import BadQuery, Form, Param, RequestProblem
from aggregator.web.snapshot_cache import rest
from aggregator.web.timefmt import bounded_time

#: Seconds that a read of history may take here: the page waits for it, and no other code does.
_PATIENCE = 30.0
#: From this number of transitions on the oldest may be left out (`aggregator.history`).
_MOST = 50_000
_MOST_RECORDS = 1000
_OUTAGES = (EventKind.CORDONED, EventKind.RELEASED)
#: Reports that are remembered, and the seconds for which one serves at most.
_MOST_REPORTS, _LONGEST = 16, 60.0
#: Reports that wait at most: a client that is gone has its report made nevertheless.
_MOST_WAITING = 16
_S = TypeVar("_S", bound=Shape)

PARAMS = (
    Param("by", Form.CHOICE, "The key of the sums.", "job", choices=GROUPS),
    Param("job", Form.TEXT, "Only this job, as NAMESPACE/FAMILY/NAME.", ""),
    Param(
        "since",
        Form.TIME,
        "From then on: seconds, or RFC 3339. Without it, the last 28 days.",
        -1.0,
    ),
    Param("until", Form.TIME, "Up to then; without it, until now.", -1.0),
    Param("limit", Form.WHOLE, "Rows at most.", 100, 1000),
)


async def job_report(queries: FleetQueries, values: Mapping[str, Any]) -> JobReport:
    """The report, a minute old at most. ``values``: of `PARAMS`, and maybe ``days`` instead of
    ``since``. Raises RequestProblem.
    """
    query = tuple(sorted(values.items()))
    if queries.reports.pending >= _MOST_WAITING and not queries.reports.known(query):
        text = f"{_MOST_WAITING} other reports are being made"
        raise RequestProblem(503, text, "Try again in a minute.")
    return await queries.reports.get(query, lambda: _read_report(queries, values))


def remembered_reports(now: Callable[[], float]) -> SharedAnswers[JobReport]:
    """A report takes seconds of a processor and of the history's only reader, and an open page
    requests it at each change of the fleet: one is made at a time, and serves for twenty times as
    long as it took. ``now`` is monotonic seconds.
    """
    return SharedAnswers(
        now, lasts=lambda _, took: min(_LONGEST, took + rest(took)), most=_MOST_REPORTS, at_once=1
    )


async def _read_report(queries: FleetQueries, values: Mapping[str, Any]) -> JobReport:
    now = queries.snapshots.moment().wall
    until = values["until"] if values["until"] >= 0 else now
    since = values["since"] if values["since"] >= 0 else until - values.get("days", 28) * 86400.0
    if until <= since:
        raise BadQuery("until is before since: no fault can be in between", "expected it later")
    begins, trouble = await read_history(queries.history.begins(), _PATIENCE)
    if begins and since < begins[0] < until:
        since = begins[0]  # no rate counts the time before it as time without faults
    read = queries.history.of_kinds(KINDS, since, until)
    past, trouble = await read_history(read, _PATIENCE)
    later: list[Transition] = []
    if until < now and not trouble:
        read = queries.history.first_of_kinds(_OUTAGES, until)
        later, trouble = await read_history(read, _PATIENCE)
    inputs = await _inputs(queries, past, later)
    wanted = {**values, "since": since, "until": until}
    # Outside the event loop, which admits nodes too: a month has tens of thousands of records.
    return await asyncio.to_thread(_made, past, inputs, wanted, trouble)


async def _inputs(
    queries: FleetQueries, past: Sequence[Transition], later: Sequence[Transition]
) -> FleetInputs:
    """``later``: the first begin or end of a quarantine since the report's time, of each node."""
    found = (await queries.current_snapshot()).found
    fleet = queries.fleet
    out = {
        one.node: (one.cordoned_at.timestamp(), one.incident)
        for one in found.quarantines
        if one.cordoned_at is not None
    }
    out |= {one.node: (0.0, one.incident) for one in later if one.kind is EventKind.RELEASED}
    nodes = {*out, *(one.node for one in past if one.kind in _OUTAGES)}
    summaries = {name: fleet.node_summaries.get(name) for name in nodes}
    gpus = {name: count_gpus(one) for name, one in summaries.items() if one is not None}
    pools = {name: fleet.pool_of(one) for name, one in summaries.items()}
    return FleetInputs(
        nodes=len(found.names),
        gpus=sum(sum(found.gpus.get(which, GpuCounts())) for which in (False, True)),
        gpus_of=lambda name: gpus.get(name, 0),
        pool_of=lambda name: pools.get(name, ""),
        out=out,
    )


def _made(
    past: Sequence[Transition], inputs: FleetInputs, wanted: Mapping[str, Any], trouble: str
) -> JobReport:
    """``wanted``: the query, with the times that it means."""
    since, until, by, job = (wanted[name] for name in ("since", "until", "by", "job"))
    made = make_report(past, inputs, since=since, until=until, by=by)
    hours = {(one.hit.key, one.hit.node, one.hit.at): one.hours for one in made.stops}
    rows = [one for one in made.rows if not job or one.name == job or by != "job"]
    return _filled(
        JobReport,
        made,
        since=bounded_time(since),
        until=bounded_time(until),
        by=by,
        per_node_day=_rounded(made.per_node_day, 6),
        mtbf=_rounded(made.mtbf, 1),
        mttr=_rounded(made.mttr, 1),
        lost_hours=_rounded(made.work_hours + made.restart_hours),
        goodput=_rounded(made.goodput, 6),
        stops=len(made.stops),
        stops_by_source=_sources(made),
        days=days_of(made.stops, since, until),
        codes=groups_of((one.hit.code, one.hours) for one in made.stops),
        teams=groups_of((one.hit.team, one.hours) for one in made.stops),
        items=[_row(one, hours) for one in rows[: wanted["limit"]]],
        total=len(rows),
        records=_records(past, job, hours) if job else [],
        cut=len(past) >= _MOST,
        trouble=trouble,
    )


def _records(
    past: Sequence[Transition], job: str, hours: Mapping[tuple[str, str, float], float]
) -> list[JobRecord]:
    found = [one for one in hits_of(sorted(past, key=lambda one: one.at)) if one.key == job]
    return [_record(one, hours) for one in reversed(found[-_MOST_RECORDS:])]


def _sources(made: Report) -> dict[str, int]:
    counted = Counter(one.hit.age_source for one in made.stops)
    return dict(sorted(counted.items()))


def _row(one: CostRow, hours: Mapping[tuple[str, str, float], float]) -> JobRow:
    last = _record(one.last, hours) if one.ettr is not None and one.last is not None else None
    mttr, ettr = _rounded(one.mttr, 1), _rounded(one.ettr, 6)
    return _filled(JobRow, one, mttr=mttr, ettr=ettr, last=last)


def _record(one: Hit, hours: Mapping[tuple[str, str, float], float]) -> JobRecord:
    lost = hours.get((one.key, one.node, one.at), 0.0) if one.stopped else 0.0
    return _filled(
        JobRecord,
        one,
        at=bounded_time(one.at),
        job=one.key,
        checkpoint_age=one.age,
        checkpoint_source=one.age_source,
        lost_hours=_rounded(lost),
    )


def _filled(kind: type[_S], source: object, **more: Any) -> _S:
    """The fields of ``source`` by their names, and ``more``."""
    names = [name for name in kind.__struct_fields__ if name not in more]
    return kind(**{name: _rounded(getattr(source, name)) for name in names}, **more)


def _rounded(value: Any, digits: int = 3) -> Any:
    return round(value, digits) if isinstance(value, float) else value
