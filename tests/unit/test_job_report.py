"""The cost of faults for jobs: the costs that pods state, and the sums of the records."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cli.jobs import GROUPS as CLI_GROUPS
from aggregator.events import EventKind, Transition
from aggregator.jobs.checkpoint import (
    CHECKPOINT_INTERVAL,
    LAST_CHECKPOINT,
    LONGEST_INTERVAL,
    LONGEST_RESTART,
    RESTART_TIME,
    costs_of,
)
from aggregator.jobs.hit import Hit, details_of, hit_of, jobs_on, on_node, summary
from aggregator.jobs.identity import SHIPPED
from aggregator.jobs.report import GROUPS, FleetInputs, ettr, hits_of, make_report
from aggregator.jobs.settings import JobRules
from aggregator.rfc3339 import write_time
from tests.unit.test_jobs import pod

BEGAN, HOUR = 1_800_000_000.0, 3600.0
RULES = JobRules()


def stated(**annotations: str) -> Any:
    keys = {"last": LAST_CHECKPOINT, "interval": CHECKPOINT_INTERVAL, "restart": RESTART_TIME}
    made = {keys[name]: text for name, text in annotations.items()}
    return replace(pod(annotations=made), created_at=BEGAN)


def test_the_age_of_a_checkpoint_is_measured_declared_or_a_default() -> None:
    at, fault = BEGAN + 10 * HOUR, BEGAN + 10 * HOUR - 60
    measured = costs_of([stated(last=write_time(at - 900), restart="5m")], at, fault, RULES)
    assert (measured.age, measured.age_source) == (900, "measured")
    assert (measured.restart, measured.restart_source) == (300, "declared")
    declared = costs_of([stated(interval="30m")], at, fault, RULES)
    assert (declared.age, declared.age_source) == (900 + 60, "declared")
    default = costs_of([stated()], at, fault, RULES)
    assert (default.age, default.age_source) == (1800 + 60, "default")
    assert (default.restart, default.restart_source) == (600, "default")


def test_no_age_is_longer_than_the_job_has_run() -> None:
    at = BEGAN + 120
    assert costs_of([stated()], at, at, RULES).age == 120
    assert costs_of([stated(interval="7d")], at, BEGAN - 9e6, RULES).age == 120


@given(
    last=st.one_of(st.text(max_size=60), st.floats(0, 4e9).map(write_time)),
    interval=st.text(alphabet="0123456789.smhdx ", max_size=14),
    ran=st.floats(0, 1e8),
)
def test_hostile_statements_are_bounded(last: str, interval: str, ran: float) -> None:
    found = costs_of(
        [stated(last=last, interval=interval, restart=interval)], BEGAN + ran, 0, RULES
    )
    assert 0 <= found.age <= ran + 1
    assert 0 < found.interval <= LONGEST_INTERVAL
    assert 0 < found.restart <= LONGEST_RESTART


def record(at: float = 0.0, *, stopped: bool = True, **changes: Any) -> Hit:
    label = {"jobset.sigs.k8s.io/jobset-name": "llama"}
    pods = [replace(pod(f"r{n}", labels=label, gpus="8"), node=f"gpu-{n}") for n in range(4)]
    [(job, here)] = jobs_on(pods[:1], SHIPPED, "sickbay").items()
    found = on_node(job, here, pods, SHIPPED)
    assert (found.here.gpus, found.whole.gpus, found.lost.gpus, found.nodes) == (8, 32, 32, 4)
    made = Hit(
        at=BEGAN + at,
        node="gpu-0",
        incident="i1",
        stopped=stopped,
        key=job.key,
        kind=job.kind,
        name=job.name,
        namespace=job.namespace,
        family=job.family,
        team=job.team,
        queue=job.queue,
        gang="llama",
        loss=job.loss.value,
        progress=True,
        pods_here=1,
        gpus_here=8,
        gpu_ids="",
        pods=4,
        gpus=32,
        lost_pods=4,
        lost_gpus=32,
        nodes=4,
        code="xid:79",
        pool="h100",
        pod=found.pod,
        age=1800.0,
        age_source="default",
        interval=3600.0,
        restart=600.0,
        restart_source="default",
    )
    return replace(made, **changes)


def transition_of(one: Hit) -> Transition:
    kind = EventKind.JOB_STOPPED if one.stopped else EventKind.JOB_HIT
    return Transition(one.at, kind, one.node, "", one.incident, details_of(one))


def moved(kind: EventKind, at: float, node: str = "gpu-0", incident: str = "i1") -> Transition:
    return Transition(BEGAN + at, kind, node, "", incident)


FLEET = FleetInputs(nodes=100, gpus=800, gpus_of=lambda _: 8, pool_of=lambda _: "h100")


def report(*past: Transition, by: str = "job", days: float = 30.0) -> Any:
    return make_report(past, FLEET, since=BEGAN, until=BEGAN + days * 24 * HOUR, by=by)


def test_a_record_survives_its_details() -> None:
    one = record()
    assert hit_of(transition_of(one)) == one
    for bad in ({}, details_of(one) | {"age": "nan"}):
        assert hit_of(replace(transition_of(one), details=bad)) is None


def test_a_stop_costs_the_gangs_work_and_restart_and_the_node_its_time() -> None:
    past = [
        transition_of(record(stopped=False)),
        moved(EventKind.CORDONED, 5),
        transition_of(record(10)),
        moved(EventKind.RELEASED, 5 + 2 * HOUR),
    ]
    found = report(*past)
    [row] = found.rows
    assert (row.name, row.hits, row.stops) == ("ml/jobset/llama", 1, 1)
    assert row.work_hours == pytest.approx(32 * 0.5)
    assert row.restart_hours == pytest.approx(32 / 6)
    assert found.out_of_service_hours == pytest.approx(16)
    assert (found.mttr, found.quarantines) == (pytest.approx(2 * HOUR), 1)
    assert found.mtbf == pytest.approx(100 * 30 * 24 * HOUR)
    lost = 32 * 0.5 + 32 / 6 + 16
    assert found.goodput == pytest.approx(1 - lost / (800 * 30 * 24))


@pytest.mark.parametrize(
    ("by", "name"), [("team", "ml"), ("code", "xid:79"), ("node", "gpu-0"), ("pool", "h100")]
)
def test_the_hours_are_summed_by_what_is_asked_for(by: str, name: str) -> None:
    past = [
        moved(EventKind.CORDONED, 5),
        transition_of(record(10)),
        moved(EventKind.RELEASED, 5 + HOUR),
    ]
    [row] = report(*past, by=by).rows
    assert (row.name, row.stops) == (name, 1)
    assert row.out_of_service_hours == pytest.approx(0 if by == "team" else 8)


def test_a_gang_that_is_stopped_again_before_it_computes_loses_the_further_time_alone() -> None:
    first, again = record(0), record(300, node="gpu-1", incident="i2")
    found = report(transition_of(first), transition_of(again))
    assert found.work_hours == pytest.approx(32 * 0.5)
    assert found.restart_hours == pytest.approx(32 * 900 / 3600)


def test_a_controller_that_takes_over_counts_no_stop_twice() -> None:
    past = [transition_of(record(0)), transition_of(record(30))]
    assert report(*past).rows[0].stops == 1
    later = [*past, moved(EventKind.RELEASED, 60), transition_of(record(9 * HOUR))]
    assert report(*later).rows[0].stops == 2
    assert len(hits_of(later)) == 2


def test_the_effective_time_is_metas_short_formula() -> None:
    one = record(restart=600.0, interval=3600.0, nodes=128)
    assert ettr(one, 6.5e-3) == pytest.approx(1 - 128 * 6.5e-3 * (600 + 1800) / 86400)
    assert ettr(replace(one, progress=False), 6.5e-3) > ettr(one, 6.5e-3)
    assert ettr(replace(one, nodes=10**9), 1.0) == 0.0


def test_a_fleet_without_nodes_or_faults_divides_by_nothing() -> None:
    empty = FleetInputs(0, 0, lambda _: 0, lambda _: "")
    found = make_report([], empty, since=0.0, until=0.0, by="job")
    assert (found.mtbf, found.mttr, found.goodput, found.rows) == (None, None, None, ())
    assert CLI_GROUPS == GROUPS


@given(
    st.lists(
        st.tuples(
            st.floats(0, 40 * 24 * HOUR),
            st.sampled_from(["stop", "hit", "cordon", "release"]),
            st.sampled_from(["gpu-0", "gpu-1"]),
            st.sampled_from(["i1", "i2"]),
        ),
        max_size=30,
    )
)
def test_no_order_of_records_makes_hours_negative_or_more_than_each_alone(past: Any) -> None:
    made = []
    for at, what, node, incident in past:
        if what in ("stop", "hit"):
            made.append(
                transition_of(record(at, stopped=what == "stop", node=node, incident=incident))
            )
        else:
            kind = EventKind.CORDONED if what == "cordon" else EventKind.RELEASED
            made.append(moved(kind, at, node, incident))
    found = report(*made)
    stops = sum(one.kind is EventKind.JOB_STOPPED for one in made)
    assert 0 <= found.work_hours <= stops * 16 + 1e-6
    assert 0 <= found.restart_hours <= stops * 32 / 6 + 1e-6
    assert 0 <= found.out_of_service_hours <= 2 * 8 * 30 * 24 + 1e-6
    assert all(math.isfinite(row.lost_hours) for row in found.rows)


def test_the_summary_is_in_the_owners_words() -> None:
    text = summary(record(), "nvlink (NVLink fault) on 1 GPU")
    assert text == (
        "JobSet ml/llama (team ml) stopped: nvlink (NVLink fault) on 1 GPU on gpu-0; "
        "32 GPUs restart"
    )
    assert "would start elsewhere" in summary(record(stopped=False, loss="replica"), "x")
