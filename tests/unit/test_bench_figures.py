"""The benchmarks' own arithmetic, their bar, and how their figures come into the documents."""

import io
import resource
from typing import Any, cast

import pytest

from aggregator.ingest.os_limits import connections_allowed
from tests.bench.figures import percentile, slope, straightness
from tests.bench.progress import Progress
from tests.bench.rows import scale_rows, sizing_tables
from tests.bench.simulated_agents import AgentsRefused, most_agents, until_all_stream
from tests.bench.trials import AGGREGATOR, requests_until_taint
from tests.controlplane.plane import ControlPlane


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([7.0], 99) == 7.0


def test_a_line_is_straight_and_its_slope_is_its_slope() -> None:
    line = [(0.0, 100.0), (1000.0, 200.0), (4000.0, 500.0)]
    assert slope(line) == pytest.approx(0.1)
    assert straightness(line) == pytest.approx(0.0)


def test_what_grows_faster_than_its_nodes_is_off_the_line() -> None:
    square = [(float(n), float(n * n)) for n in (1, 2, 4, 8)]
    assert straightness(square) > 0.05


def test_the_bar_grows_with_the_clock_and_never_says_that_a_part_is_over_that_is_not() -> None:
    progress = Progress({"first": 60.0, "second": 40.0}, out=io.StringIO())
    shares = [progress.line("first", elapsed).split()[1] for elapsed in (0, 30, 600)]
    assert shares == ["0", "30", "58"]
    with progress.part("first"):
        pass
    assert "] 100 %" not in progress.line("second", 600)
    assert " 60 %" in progress.line("second", 0)


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    progress = Progress({"only": 1.0}, out=out)
    with progress.part("only"):
        pass
    progress.close()
    assert out.getvalue() == ""


def test_what_was_not_measured_is_said_and_what_was_has_its_share_of_the_aim() -> None:
    told = {what: (measured, aim) for what, measured, aim in scale_rows({"rss_mib": 614.5})}
    assert told["resident set size of the aggregator"] == ("614.5 MiB", "1229 MiB (0.50 of it)")
    assert told["CPU of one core, steady"] == ("not measured", "60 %")


def test_memory_is_that_of_the_day_on_which_one_replica_is_gone() -> None:
    figures = {
        "growth_base_mib": 150.0,
        "growth_mib_per_1000": 100.0,
        "growth_rss_off_line_percent": 1.0,
        "growth_cpu_percent_per_1000": 3.0,
        "growth_cpu_off_line_percent": 2.0,
    }
    told = sizing_tables(figures, {"growth": [[1000, 250.0, 3.0, 1.0]]})
    assert "| 10,000 | 1 | 10,000 | 1280Mi | 1792Mi |" in told
    assert "| 10,000 | 3 | 5,000 | 768Mi | 1024Mi |" in told


class Audited:
    """A control plane's audit log alone."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries

    def audit_entries(self, since: int) -> list[dict[str, Any]]:
        return self._entries[since:]


def asked(verb: str, resource: str, name: str = "", code: int = 200, **more: str) -> dict[str, Any]:
    about = {"resource": resource, **({"name": name} if name else {}), **more}
    user = {"username": AGGREGATOR}
    return {"verb": verb, "user": user, "objectRef": about, "responseStatus": {"code": code}}


def test_requests_until_the_taint_are_those_of_marked_nodes_and_none_that_trails() -> None:
    entries = [
        asked("patch", "nodes", "earlier"),
        asked("update", "configmaps", "sickbay-record"),
        asked("create", "quarantines", code=201),
        asked("create", "quarantines", code=201),
        asked("patch", "nodes", "a"),
        asked("patch", "nodes", "b", code=422),
        asked("get", "nodes", "b"),
        asked("get", "quarantines", "b"),
        asked("patch", "nodes", "b"),
        asked("patch", "nodes", "a", subresource="status"),
        asked("update", "quarantines", "a", subresource="status"),
        asked("patch", "nodes", "a"),
        asked("get", "nodes", "c"),
        asked("update", "leases", "sickbay-1"),
        asked("list", "pods"),
    ]
    plane = cast(ControlPlane, Audited(entries))
    assert requests_until_taint(plane, 1) == (1 + 2 + 1 + 4) / 2


def test_a_benchmark_plays_no_more_agents_than_the_aggregator_accepts() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < most_agents() <= connections_allowed(hard)


def test_agents_that_are_refused_end_the_wait_with_the_reason() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def streaming() -> int:  # the last thousand never come
        return min(9_000, int(now[0] * 1_000))

    with pytest.raises(AgentsRefused, match=r"9,000 of 10,000 agents .* none has come for 60 s"):
        until_all_stream(streaming, 10_000, timeout_s=600, clock=lambda: now[0], sleep=sleep)
    assert now[0] < 80


def test_agents_that_come_slowly_are_waited_for() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    until_all_stream(
        lambda: min(10, int(now[0] / 50)), 10, timeout_s=600, clock=lambda: now[0], sleep=sleep
    )
    assert now[0] >= 500
