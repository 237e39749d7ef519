"""Jobs that faults hit: the page, the API and the commands, from the records of history."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest

from aggregator.cli import jobs as cli_jobs
from aggregator.cluster.port import NodeMeta
from aggregator.events import EventKind, Transition
from aggregator.jobs.recorder import JobCounts
from aggregator.web import job_view
from aggregator.web.cost_chart import days_of, groups_of
from aggregator.web.job_metrics import job_values
from aggregator.web.metric_families import families_of
from tests.support.waiting import until
from tests.unit.test_job_report import record, transition_of
from tests.web.cli import in_process
from tests.web.support import NIGHT, Hands, ListHistory, Served, serving, small_fleet

EVIL = "ml/job/<script>alert(1)</script>"


def past() -> list[Transition]:
    """A gang that was hit and stopped, a job with a hostile name, and a node out of service."""
    began, at = NIGHT - 7200, NIGHT - 3600
    hit = record(stopped=False, node="node-1")
    stop = record(node="node-1")
    evil = record(
        node="node-1", key=EVIL, name=EVIL[7:], team="=cmd()", lost_gpus=1, gpus_here=1, gpus=1
    )

    def on(kind: EventKind, when: float) -> Transition:
        return Transition(when, kind, "node-1", "", "i1")

    def at_time(one: Transition, when: float) -> Transition:
        return Transition(when, one.kind, one.node, one.summary, one.incident, one.details)

    return [
        at_time(transition_of(hit), began),
        on(EventKind.CORDONED, began + 1),
        at_time(transition_of(stop), began + 30),
        at_time(transition_of(evil), began + 31),
        on(EventKind.RELEASED, at),
    ]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    hands = Hands()
    history, fleet = ListHistory(past()), small_fleet(hands)
    labels = {"nvidia.com/gpu.count": "8"}
    fleet.node_summaries["node-1"].cluster.meta = NodeMeta("node-1", "uid-node-1", labels)
    async with serving(fleet, hands.clocks(), history=history) as one:
        yield one


async def test_the_report_sums_the_hours_and_names_its_inputs(served: Served) -> None:
    found = await served.json("/api/v1/report")
    assert (found["stops"], found["quarantines"], found["nodes"]) == (2, 1, 8)
    assert found["stops_by_source"] == {"default": 2}
    assert found["work_hours"] == pytest.approx(33 * 0.5)
    # Also the GPU of node-2, which is in quarantine, and whose taint the history does not have.
    assert found["out_of_service_hours"] == pytest.approx((8 * 3599 + 231) / 3600, abs=0.001)
    assert found["mttr"] == pytest.approx(3599)
    [row, evil] = found["items"]
    assert (row["name"], row["hits"], row["stops"]) == ("ml/jobset/llama", 1, 1)
    assert (row["last"]["restart_source"], row["last"]["code"]) == ("default", "xid:79")
    assert evil["name"] == EVIL
    by_node = await served.json("/api/v1/report?by=node")
    assert [one["name"] for one in by_node["items"]] == ["node-1", "node-2", "node-7"]
    assert by_node["items"][0]["ettr"] is None


async def test_the_hours_are_summed_by_day_code_and_team(served: Served) -> None:
    found = await served.json("/api/v1/report?since=2026-03-12T00:00:00Z")
    days = {one["day"][:10]: one["lost_hours"] for one in found["days"]}
    assert min(days) == "2026-03-12"
    assert sum(days.values()) == pytest.approx(found["lost_hours"], abs=0.01)
    assert sum(1 for hours in days.values() if hours) == 1
    assert [one["name"] for one in found["codes"]] == ["xid:79"]
    assert {one["name"] for one in found["teams"]} == {"ml", "=cmd()"}
    assert sum(one["lost_hours"] for one in found["teams"]) == pytest.approx(sum(days.values()))
    page = await served.text("/jobs?days=90")
    assert page.count('class="bar-lost"') == 1
    assert re.findall(r"<dt>(.*?)</dt>", page) == ["xid:79", "ml", "=cmd()"]


def test_many_groups_end_with_the_sum_of_the_others_and_days_are_bounded() -> None:
    found = groups_of((f"t{number}", float(number)) for number in range(12))
    assert [one.name for one in found[:2]] == ["t11", "t10"]
    assert (found[-1].others, found[-1].lost_hours) == (4, 0 + 1 + 2 + 3)
    assert len(days_of([], 0.0, 5000 * 86400.0)) == 366  # whoever asks for all years


async def test_one_job_has_its_records(served: Served) -> None:
    found = await served.json("/api/v1/report?job=ml/jobset/llama")
    assert [one["stopped"] for one in found["records"]] == [True, False]
    assert found["records"][0]["lost_hours"] == pytest.approx(32 * 0.5 + 32 / 6, abs=0.01)
    assert [one["name"] for one in found["items"]] == ["ml/jobset/llama"]
    none = await served.json("/api/v1/report?job=ml/job/none")
    assert (none["records"], none["items"]) == ([], [])


async def test_bad_times_are_refused_and_a_lost_history_is_said(served: Served) -> None:
    refused = await served.json("/api/v1/report?since=2026-01-02T00:00:00Z&until=1", 400)
    assert "until is before since" in refused["error"]
    await served.json("/api/v1/report?by=colour", 400)
    served.history.broken = "disk I/O error"
    assert "disk I/O error" in (await served.json("/api/v1/report"))["trouble"]
    assert "disk I/O error" in await served.text("/jobs")


async def test_the_pages_show_jobs_and_no_markup_of_a_tenant(served: Served) -> None:
    page = await served.text("/jobs")
    assert '<a href="/jobs?job=ml/jobset/llama&amp;days=28">ml/jobset/llama</a>' in page
    assert "<script>alert" not in page
    own = await served.text("/jobs?job=ml/jobset/llama&days=7")
    assert "checkpoint 30 min old (default)" in own
    for by in ("team", "code", "node", "pool"):
        assert "Out of service" in await served.text(f"/jobs?by={by}")


async def test_a_quarantine_from_before_the_report_counts_for_all_of_its_time(
    served: Served,
) -> None:
    found = await served.json(f"/api/v1/report?by=node&since={NIGHT - 60}")
    assert [one["name"] for one in found["items"]][:1] == ["node-2"]
    assert found["items"][0]["out_of_service_hours"] == pytest.approx(60 / 3600, abs=0.001)
    assert found["quarantines"] == 0


async def test_a_report_begins_no_earlier_than_the_history(served: Served) -> None:
    served.history.oldest = [NIGHT - 86400.0]
    found = await served.json("/api/v1/report")
    assert (found["since"], found["quarantines"]) == ("2026-03-13T03:14:07Z", 1)
    assert found["mtbf"] == pytest.approx(8 * 86400, rel=0.01)
    later = await served.json(f"/api/v1/report?until={NIGHT - 90_000}&since=1")
    assert later["since"] == "1970-01-01T00:00:01Z"


async def test_a_quarantine_that_spans_a_past_report_counts_for_all_of_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_view, "_MOST", 1)  # however many came later

    async def hours(since: float, until: float) -> dict[str, float]:
        times = f"since={NIGHT - since}&until={NIGHT - until}"
        found = await served.json(f"/api/v1/report?by=node&{times}")
        return {one["name"]: one["out_of_service_hours"] for one in found["items"]}

    assert (await hours(6000, 5400))["node-1"] == pytest.approx(8 * 600 / 3600, abs=0.001)
    assert "node-1" not in await hours(9000, 8000)
    assert "node-1" not in await hours(3000, 2000)


async def test_reports_are_made_one_at_a_time_and_serve_others_for_a_while() -> None:
    hands, under_way, reads = Hands(), 0, list[int]()

    class Slow(ListHistory):
        async def of_kinds(self, *_: object) -> list[Transition]:
            nonlocal under_way
            under_way += 1
            reads.append(under_way)
            await asyncio.sleep(0)  # others may come in between
            hands.advance(1.0)
            under_way -= 1
            return []

    async with serving(small_fleet(hands), hands.clocks(), history=Slow()) as served:
        paths = [f"/api/v1/report?by={by}" for by in ("job", "team", "code")] + ["/jobs"]
        read = [served.text(path) for path in 3 * paths]
        await asyncio.gather(*read)
        assert reads == [1, 1, 1, 1]
        hands.advance(21.0)
        await served.text("/jobs")
        assert len(reads) == 5


async def test_reports_that_wait_are_bounded() -> None:
    go = asyncio.Event()

    class Hung(ListHistory):
        async def begins(self) -> list[float]:
            await go.wait()
            return []

    async with serving(small_fleet(Hands()), Hands().clocks(), history=Hung()) as served:
        paths = [f"/api/v1/report?since={number}" for number in range(1, 17)]
        waiting = [asyncio.create_task(served.text(path)) for path in (*paths, paths[0])]
        queries = served.web._queries
        await until(lambda: queries.reports.pending == len(paths))
        assert "16 other reports" in (await served.json("/api/v1/report?since=99", 503))["error"]
        go.set()
        await asyncio.gather(*waiting)


async def test_rows_that_are_left_out_are_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_jobs, "_MOST", 1)
    for more in ([], ["--csv"], ["-o", "json"]):
        done = await in_process("report", *more, "--url", served.url)
        assert (done.code, done.err) == (0, "warning: 1 of 2 rows, those with most hours\n")


async def test_the_commands_print_tables_json_and_csv(served: Served) -> None:
    listed = await in_process("jobs", "--url", served.url)
    assert listed.code == 0, listed.err
    assert "ml/jobset/llama" in listed.out
    since = ("--since", "2026-03-13T00:00:00Z")
    one = await in_process("jobs", "ml/jobset/llama", "--url", served.url, *since)
    assert "checkpoint 1800 s old (default), restart 600 s (default)" in one.out
    report = await in_process("report", "--by", "code", "--url", served.url)
    assert "GPU hours lost in 2 stops of jobs" in report.out
    assert json.loads((await in_process("report", "-o", "json", "--url", served.url)).out)["stops"]
    rows = (await in_process("report", "--by", "team", "--csv", "--url", served.url)).out
    assert rows.splitlines()[0].startswith("team,hits,stops,lost_hours")
    assert "'=cmd()," in rows
    both = await in_process("report", "--csv", "-o", "json", "--url", served.url)
    assert (both.code, "expected one of them" in both.err) == (2, True)


def test_the_metrics_have_a_family_for_each_label_and_no_tenants_text() -> None:
    counts = JobCounts(unattributed=3)
    counts.stopped["jobset"] = 2
    found = {metric.name: metric for metric in families_of(job_values(counts))}
    stopped = {one.labels["family"]: one.value for one in found["sickbay_jobs_stopped"].samples}
    assert stopped["jobset"] == 2
    assert len(stopped) < 30
    assert found["sickbay_jobs_unattributed"].samples[0].value == 3
