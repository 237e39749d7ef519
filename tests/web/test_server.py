"""The real server on loopback: every route, its errors, its headers."""

import asyncio
import json
import re
import socket
from typing import Any

import aiohttp
import pytest
from yarl import URL

from aggregator import documentation
from aggregator.events import EventKind, Transition
from aggregator.health.model import Component, Snapshot, Status
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web.api import nearest
from aggregator.web.connections import WebListenError
from aggregator.web.event_broker import EventBroker
from tests.support.node_states import set_fields
from tests.support.present import present
from tests.support.waiting import PATIENCE
from tests.unit.test_page_delta import applied
from tests.web.schema import problems
from tests.web.support import (
    NIGHT,
    Hands,
    ListHistory,
    Served,
    big_fleet,
    component,
    fault,
    incident_of,
    record_common_cause,
    running_clocks,
    serving,
    small_fleet,
    well,
)

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\'"&{{7*7}}'


PAGES = ["/", "/nodes", "/nodes/node-2", "/nodes?state=held", "/nodes?q=node", "/?rows=3"]
ANSWERS = [
    "/api/v1/fleet",
    "/api/v1/nodes",
    "/api/v1/nodes?state=quarantined&limit=1",
    "/api/v1/quarantines",
    "/api/v1/incidents?limit=2",
    "/api/v1/transitions?node=node-2&limit=5",
    "/api/v1/map",
    "/api/v1/alerts",
    "/api/v1/lemons",
    "/api/v1/replicas",
    *(f"/api/v1/nodes/node-{number}" for number in range(1, 9)),
]


@pytest.mark.parametrize("path", PAGES)
async def test_each_page_is_whole_without_its_script(served: Served, path: str) -> None:
    text = await served.text(path)
    assert "</html>" in text
    assert "node-3" in text or "node-2" in text
    assert '<main id="main">' in text


async def test_the_page_shows_lemons_where_there_are_any(served: Served) -> None:
    assert "5 quarantines, 4 days with an incident" in await served.text("/")
    served.fleet.lemons = ()
    assert "lemons-title" not in await served.text("/")


@pytest.mark.parametrize("path", ANSWERS)
async def test_each_answer_is_as_the_openapi_document_says(served: Served, path: str) -> None:
    document = await served.json("/api/v1/openapi.json")
    route = path.partition("?")[0]
    known = route if route in document["paths"] else "/api/v1/nodes/{name}"
    content = document["paths"][known]["get"]["responses"]["200"]["content"]
    schema = content["application/json"]["schema"]
    assert list(problems(await served.json(path), schema, document)) == []


async def test_the_document_is_checked_for_real(served: Served) -> None:
    document = await served.json("/api/v1/openapi.json")
    told = await served.json("/api/v1/fleet")
    schema = {"$ref": "#/components/schemas/Fleet"}
    for broken in (
        told | {"nodes": "eight"},
        told | {"more": 1},
        {key: value for key, value in told.items() if key != "mode"},
        told | {"counts": {"ok": "two"}},
    ):
        assert list(problems(broken, schema, document))


async def test_the_document_names_every_route_of_the_api(served: Served) -> None:
    document = await served.json("/api/v1/openapi.json")
    assert document["openapi"].startswith("3.1")
    routes = {
        resource.canonical
        for resource in served.web._runner.app.router.resources()
        if resource.canonical.startswith("/api/")
    }
    assert set(document["paths"]) == routes
    for path, item in document["paths"].items():
        operation = item.get("get") or item["post"]
        named = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert all(f"{{{name}}}" in path for name in named)


async def test_a_parameter_that_is_documented_is_one_that_is_read(served: Served) -> None:
    document = await served.json("/api/v1/openapi.json")
    moment = "2026-01-31T03:14:00Z"
    examples = {"limit": "3", "state": "held", "since": moment, "until": moment}
    examples |= {"by": "team", "sort": "-nodes", "agent": "silent", "label": "!x"}
    by_path = {"/api/v1/nodes": {"sort": "-state"}}
    for path, item in document["paths"].items():
        if path.endswith("stream") or "post" in item:
            continue
        for one in item["get"].get("parameters", []):
            if one["in"] == "query":
                value = by_path.get(path, examples).get(
                    one["name"], examples.get(one["name"], "node-2")
                )
                key = "key=rack&" if path.endswith("groups") and one["name"] != "key" else ""
                await served.json(f"{path}?{key}{one['name']}={value}")


async def test_nodes_come_page_by_page_and_each_once(served: Served) -> None:
    seen: list[str] = []
    path = "/api/v1/nodes?limit=3"
    for _ in range(10):
        page = await served.json(path)
        assert page["total"] == 8
        seen += [row["node"] for row in page["items"]]
        if not page["next"]:
            break
        path = f"/api/v1/nodes?limit=3&after={page['next']}"
    assert seen == [f"node-{number}" for number in range(1, 9)]


async def test_paging_goes_on_after_a_node_that_has_gone(served: Served) -> None:
    page = await served.json("/api/v1/nodes?after=node-4-which-was-removed")
    assert next(row["node"] for row in page["items"]) == "node-5"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/v1/nodes?stae=held", 'did you mean "state"?'),
        ("/api/v1/nodes?state=sick", "expected one of ok, unknown"),
        ("/api/v1/nodes?limit=0", "a whole number from 1 to 1000"),
        ("/api/v1/nodes?limit=1&limit=2", "expected it once"),
        ("/api/v1/nodes?limit=99999999999999999999", "a whole number from 1 to 1000"),
        ("/api/v1/transitions?since=yesterday", "RFC 3339"),
        ("/api/v1/transitions?since=nan", "RFC 3339"),
        ("/api/v1/fleet?x=1", "it takes none"),
        ("/api/v1/stream?nodes=x", 'did you mean "node"?'),
    ],
)
async def test_a_bad_query_is_refused_with_what_is_expected(
    served: Served, path: str, says: str
) -> None:
    problem = await served.json(path, 400)
    assert says in problem["hint"]


async def test_an_unknown_node_is_404_for_people_and_for_programs(served: Served) -> None:
    page = await served.text("/nodes/node-99", 404)
    assert "There is no node" in page
    assert "node-99" in page
    problem = await served.json("/api/v1/nodes/node-99", 404)
    assert problem["error"] == 'there is no node "node-99"'
    assert "kubectl get nodes" in problem["hint"]
    assert "Did you mean" not in problem["hint"]
    typo = await served.json("/api/v1/nodes/nod-2", 404)
    assert typo["hint"].startswith("Did you mean node-2?")


def test_the_nearest_of_10_000_names_is_found_among_those_that_are_alike() -> None:
    names = [f"gpu-{rack:03d}-{place:02d}" for rack in range(556) for place in range(18)]
    assert nearest("gpu-017-7", names) in {"gpu-017-07", "gpu-017-17"}
    assert nearest("gpu-555-177", names) == "gpu-555-17"
    assert nearest("x" * 100_000, names) == nearest("", names) == nearest("a", []) == ""


async def test_an_unknown_path_is_404_for_people_and_for_programs(served: Served) -> None:
    assert "</html>" in await served.text("/nothing", 404)
    assert "openapi.json" in (await served.json("/api/v2/fleet", 404))["hint"]
    await served.text("/static/../server.py", 404)
    await served.text("/static/other.js", 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/api/v1/quarantines", "/api/v1/nodes/node-2"])
async def test_nothing_here_acts(served: Served, method: str, path: str) -> None:
    async with served.session.request(method, served.url + path) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"
        assert "read only" in (await response.text()).lower()


async def test_components_that_are_ok_are_folded_below_the_others() -> None:
    hands = Hands()
    fleet = FleetState(mode="drain")
    broken = component(hands.now, "disk-space", "/var", Status.FAILED, "full")
    for name, parts in (("node-1", ()), ("node-2", (broken,))):
        health = present(well(fleet, name, hands.now).agent.health)
        fine = [component(hands.now, "gpu-ecc", f"GPU-{n}", Status.OK) for n in range(8)]
        health.snapshot(Snapshot((*fine, *parts), ()))
    async with serving(fleet, hands.clocks()) as served:
        shown, folded = (await served.text("/nodes/node-2")).split("<summary>8 components are ok<")
        assert shown.count('<tr data-key="disk-space /var failed">') == 1
        assert folded.split("</details>")[0].count('<tr data-key="gpu-ecc GPU-') == 8
        text = await served.text("/nodes/node-1")
        assert "<summary>8 components are ok<" in text
        assert 'class="status failed"' not in text


async def test_a_drain_shows_progress_blocker_and_deadline(served: Served) -> None:
    view = served.fleet.node_summaries["node-2"].quarantine_view
    view.most_pods = 6
    for path in ("/", "/nodes/node-2"):
        text = await served.text(path)
        assert 'aria-label="2 of 6 pods have left"' in text
        assert "training/llm-worker-17" in text
        assert "in 6 d" in text
    assert (await served.json("/api/v1/quarantines"))["items"][0]["pods_total"] == 6


async def test_finding_a_node_by_its_whole_name_goes_there(served: Served) -> None:
    async with served.session.get(served.url + "/nodes?q=node-2") as response:
        assert str(response.url).endswith("/nodes/node-2")
        assert response.status == 200


@pytest.mark.parametrize("path", ["/", "/nodes/none", "/api/v1/fleet", "/metrics", "/healthz"])
async def test_every_answer_carries_the_security_headers(served: Served, path: str) -> None:
    async with served.session.get(served.url + path) as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Frame-Options"] == "DENY"
        assert response.headers["Cache-Control"] == "no-store"


async def test_no_page_has_a_script_or_a_style_of_its_own_or_anything_from_outside(
    served: Served,
) -> None:
    for path in PAGES:
        text = await served.text(path)
        assert text.count("<script") == text.count("<script src=") == 1
        assert "<style" not in text
        assert " style=" not in text
        assert "http://" not in text
        assert "https://" not in text
        assert 'src="//' not in text


async def test_assets_are_cached_by_their_hash_alone(served: Served) -> None:
    page = await served.text("/")
    sheet = page.split('rel="stylesheet" href="')[1].split('"')[0]
    async with served.session.get(served.url + sheet) as response:
        assert "immutable" in response.headers["Cache-Control"]
        assert response.content_type == "text/css"
    async with served.session.get(served.url + "/static/style.css?v=old") as response:
        assert response.headers["Cache-Control"] == "no-cache"


async def test_what_nodes_and_people_write_is_shown_and_never_run() -> None:
    hands = Hands()
    fleet = FleetState(mode="drain", stop=HOSTILE, view_lost=HOSTILE, waiting_for_quorum=HOSTILE)
    fleet.clock_doubt = HOSTILE
    node_summary = well(fleet, "node-1", hands.now)
    assert node_summary.agent.health is not None
    bad = Component(HOSTILE, HOSTILE, Status.FAILED, HOSTILE, HOSTILE, hands.now)
    node_summary.agent.health.snapshot(Snapshot((bad,), (fault(hands.now, HOSTILE, HOSTILE),)))
    node_summary.agent.health.traits = {HOSTILE: HOSTILE}
    incident_of(node_summary, hands.now, code=HOSTILE, message=HOSTILE, summary=HOSTILE)
    set_fields(node_summary, last_error=HOSTILE, conflict=HOSTILE, foreign=HOSTILE, would=HOSTILE)
    set_fields(node_summary, requests=(HOSTILE,), spared=HOSTILE, release_held=HOSTILE)
    well(fleet, HOSTILE.replace("/", ""), hands.now)
    past = [Transition(NIGHT, EventKind.INCIDENT_OPENED, "node-1", HOSTILE, details={"x": HOSTILE})]
    async with serving(fleet, hands.clocks(), history=ListHistory(past)) as served:
        served.troubles.append(HOSTILE)
        for path in ("/", "/nodes", "/nodes/node-1", "/?fragment=1", "/nodes/%3Cscript%3E"):
            text = await served.text(path, 404 if "%3C" in path else 200)
            assert "<script>" not in text
            assert "<img" not in text
            assert "{{7*7}}" in text or "%3C" in path
        raw = await served.text("/api/v1/nodes/node-1")
        assert json.loads(raw)["faults"][0]["message"] == HOSTILE


@pytest.mark.parametrize("base", ["", "https://docs.test/0.1.0"])
async def test_a_hold_names_its_section_and_links_to_it_where_there_is_an_address(
    base: str,
) -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    fleet.documentation_url = base
    held, hold = next(
        (name, one.decision.hold)
        for name, one in fleet.node_summaries.items()
        if one.decision.hold is not None
    )
    section = documentation.of_hold(hold.limit)
    async with serving(fleet, hands.clocks()) as served:
        for path in ("/", f"/nodes/{held}"):
            text = await served.text(path)
            assert section in text
            assert (f'href="{base}/{section}"' in text) is bool(base)
        found = await served.json(f"/api/v1/nodes/{held}")
        assert found["hold"]["documentation"] == section


async def test_the_page_shows_commands_with_the_options_that_they_need() -> None:
    fleet = FleetState(mode="drain", stop="maintenance", how=" --local /var/lib/a/cluster.db")
    well(fleet, "node-1", Hands().now).decision.would = "drain: xid:79"
    async with serving(fleet, Hands().clocks()) as served:
        for path in ("/", "/nodes/node-1"):
            text = await served.text(path)
            resume = "sickbay resume --local /var/lib/a/cluster.db"
            assert f'<code class="command">{resume}</code><button class="copy"' in text
            assert "&#39;why&#39; --local /var/lib/a/cluster.db" in text


async def test_every_node_is_reachable_by_its_link_whatever_its_name() -> None:
    hands = Hands()
    fleet = FleetState()
    for name in ("a/b", "a b?c#d", "ä%2F", "..", "a&b"):
        well(fleet, name, hands.now)
    async with serving(fleet, hands.clocks()) as served:
        text = await served.text("/nodes")
        links = [part.split('"')[0] for part in text.split('class="node" href="')[1:]]
        assert len(links) == 5
        for link in links:
            if link.endswith("/.."):
                continue  # no client sends such a path; no such node can be
            url = f"{served.url}{link}"
            async with served.session.get(URL(url, encoded=True)) as response:
                assert response.status == 200, link


async def test_a_large_fleet_renders_within_a_bound_and_says_how_many_more() -> None:
    hands = Hands()
    async with serving(big_fleet(hands), hands.clocks()) as served:
        text = await served.text("/")
        assert len(text) < 120_000
        assert re.search(r'<li class="soft">and \d+ more: <a href="/\?rows=1000">', text)
        assert "more agents" in text
        assert len(await served.text("/nodes")) < 80_000
        assert len(await served.text("/api/v1/fleet")) < 3_000
        drawn = await served.json("/api/v1/map")
        assert len(drawn["names"]) == len(drawn["states"]) == 7500
        async with served.session.get(
            served.url + "/api/v1/map", headers={"Accept-Encoding": "gzip"}
        ) as response:
            await response.read()
            assert response.headers["Content-Encoding"] == "gzip"
        assert "and 50" not in await served.text("/?rows=1000")


async def test_readiness_says_in_words_what_is_not(served: Served) -> None:
    assert await served.text("/readyz") == "ready\n"
    served.troubles += ["the API server at 10.0.0.1 refuses us: 403", "the record can't be read"]
    text = await served.text("/readyz", 503)
    assert text.splitlines() == [
        "not ready:",
        "- the API server at 10.0.0.1 refuses us: 403",
        "- the record can't be read",
    ]
    assert await served.text("/healthz") == "ok\n"
    assert "refuses us: 403" in await served.text("/")


async def test_the_page_says_stop_view_lost_and_quorum(served: Served) -> None:
    served.fleet.stop = "replacing the switch"
    served.fleet.view_lost = "no answer in 10 s"
    served.fleet.waiting_for_quorum = "3 of 8 nodes have reported"
    async with serving(served.fleet, Hands().clocks()) as other:
        text = await other.text("/")
    for said in ("replacing the switch", "sickbay resume", "no answer in 10 s", "3 of 8 nodes"):
        assert said in text


async def test_the_page_and_the_api_say_what_many_nodes_share_and_what_to_do() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    record_common_cause(fleet, hands.now)
    async with serving(fleet, hands.clocks()) as served:
        text = await served.text("/")
        told = await served.json("/api/v1/fleet")
    for said in (
        "Common causes",
        "rack=&lt;r1&gt;: check nic-link on 9 of 18 nodes",
        "Check the switch, power and cooling of the place.",
        "No new quarantine is admitted until 03:29 UTC",
    ):
        assert said in text
    [cause] = told["causes"]
    assert (cause["scope"], cause["nodes"], cause["total"]) == ("place", 9, 18)
    assert cause["sample"] == ["node-1", "node-2"]
    assert told["cooling"].startswith("until 03:29 UTC")


async def test_a_history_that_is_broken_is_said_and_the_story_is_told_from_memory(
    served: Served,
) -> None:
    served.history.broken = "database is locked"
    served.feed.record_event(Transition(NIGHT, EventKind.BLOCKED, "node-2", "node-2: a pod stays"))
    story = await served.json("/api/v1/nodes/node-2")
    assert "database is locked" in story["timeline_trouble"]
    assert "node-2: a pod stays" in [one["summary"] for one in story["timeline"]]
    assert "database is locked" in await served.text("/nodes/node-2")
    answer = await served.json("/api/v1/transitions")
    assert "database is locked" in answer["trouble"]


async def test_a_clock_that_is_doubted_is_said_on_the_page_in_the_api_and_in_the_metrics() -> None:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        assert (await served.json("/api/v1/fleet"))["clock_doubt"] == ""
        assert "clock is doubted" not in await served.text("/")
        assert "sickbay_clock_doubted 0.0" in await served.text("/metrics")
        served.fleet.clock_doubt = "it has moved ahead by 3d"
        hands.advance(10)
        assert (await served.json("/api/v1/fleet"))["clock_doubt"] == "it has moved ahead by 3d"
        page = await served.text("/")
        assert "clock is doubted" in page
        assert "it has moved ahead by 3d" in page
        assert "sickbay_clock_doubted 1.0" in await served.text("/metrics")


async def test_a_history_that_is_not_kept_is_said_on_the_page_and_in_the_fleets_numbers(
    served: Served,
) -> None:
    assert (await served.json("/api/v1/fleet"))["history_trouble"] == ""
    assert "The past is not kept" not in await served.text("/")
    served.history.problem = "history is not written since 2026-03-14T03:09:00Z: db: no answer"
    assert (await served.json("/api/v1/fleet"))["history_trouble"] == served.history.problem
    page = await served.text("/")
    assert "The past is not kept" in page
    assert served.history.problem in page


async def test_alerts_that_do_not_get_out_are_said_on_the_page_in_the_numbers_and_the_metrics(
    served: Served,
) -> None:
    assert (await served.json("/api/v1/fleet"))["alert_trouble"] == ""
    assert "Alerts do not get out" not in await served.text("/")
    assert "sickbay_alerts_up 1.0" in await served.text("/metrics")
    served.untold.append("webhook alerts.test: HTTP 403")
    assert (await served.json("/api/v1/fleet"))["alert_trouble"] == "webhook alerts.test: HTTP 403"
    page = await served.text("/")
    assert "Alerts do not get out" in page
    assert "webhook alerts.test: HTTP 403" in page
    assert "sickbay_alerts_up 0.0" in await served.text("/metrics")
    assert await served.text("/readyz") == "ready\n"


async def test_what_a_takeover_says_again_is_told_once(served: Served) -> None:
    before, again = (
        Transition(NIGHT + at, EventKind.INCIDENT_OPENED, "node-2", "node-2: gone", "inc-9")
        for at in (1, 60)
    )
    served.history.items.append(before)
    served.feed.record_event(again)
    answer = await served.json("/api/v1/transitions?node=node-2")
    opened = [one["at"] for one in answer["items"] if one["incident"] == "inc-9"]
    assert len(opened) == 1
    story = await served.json("/api/v1/nodes/node-2")
    assert [one["at"] for one in story["timeline"] if one["incident"] == "inc-9"] == opened


async def test_what_was_noted_a_moment_ago_is_told_before_history_has_it(served: Served) -> None:
    fresh = Transition(NIGHT + 1, EventKind.RELEASED, "node-2", "node-2: released")
    served.feed.record_event(fresh)
    assert (await served.json("/api/v1/nodes/node-2"))["timeline"][0]["kind"] == fresh.kind
    served.history.items.append(fresh)
    story = await served.json("/api/v1/nodes/node-2")
    assert [one["kind"] for one in story["timeline"]].count(fresh.kind) == 1


async def test_transitions_can_be_asked_for_since_a_time(served: Served) -> None:
    for since in (str(NIGHT - 100), "2026-03-14T03:12:27Z"):
        answer = await served.json(f"/api/v1/transitions?since={since}")
        assert [one["kind"] for one in answer["items"]] == ["quarantine.held"]


async def test_what_happened_is_read_backwards_page_by_page(served: Served) -> None:
    told = [
        Transition(NIGHT - 500 - n / 8, EventKind.MOVED, "node-2", f"pod {n}") for n in range(40)
    ]
    served.history.items += told
    query = f"/api/v1/transitions?node=node-2&since={NIGHT - 600}&limit=15"
    found: list[str] = []
    page = (await served.json(f"{query}&until={NIGHT - 499}"))["items"]
    while True:
        found += [one["summary"] for one in page if one["summary"] not in found]
        again = (await served.json(f"{query}&until={page[-1]['at']}"))["items"]
        if again[-1] == page[-1]:
            break
        page = again
    assert found == [one.summary for one in told]


async def test_requests_that_come_together_share_a_read_of_the_history() -> None:
    class Counting(ListHistory):
        reads = 0

        async def recent(self, *query: Any) -> list[Transition]:
            self.reads += 1
            await asyncio.sleep(0)
            return await super().recent(*query)

    history = Counting([Transition(NIGHT, EventKind.MOVED, "node-2", "pod 1")])
    async with serving(small_fleet(Hands()), running_clocks(), history=history) as served:
        queries = served.web._queries
        await queries.past("node-2")
        before = history.reads
        found = await asyncio.gather(*(queries.past("node-2") for _ in range(100)))
        assert {len(one.transitions) for one in found} == {1}
        assert history.reads == before + 1
        history.broken = "the disk is gone"
        for one in await asyncio.gather(*(queries.past("node-2") for _ in range(3))):
            assert "the disk is gone" in one.trouble


async def test_a_port_in_use_is_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WebListenError, match=f"127.0.0.1:{port}.*listens there already"):
            async with serving(FleetState(), Hands().clocks(), address=f"127.0.0.1:{port}"):
                pass


async def test_it_listens_on_a_unix_socket_too(tmp_path: Any) -> None:
    path = tmp_path / "web.sock"
    async with serving(FleetState(), Hands().clocks(), address=f"unix:{path}"):
        connector = aiohttp.UnixConnector(str(path))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://page/healthz") as response,
        ):
            assert response.status == 200


# -- what a page's script asks for -------------------------------------------------------------


async def fragment(served: Served, path: str) -> tuple[int, str, str]:
    """Status, tag and text of an answer; the text of a difference is its JSON."""
    async with served.session.get(served.url + path) as response:
        return (response.status, response.headers.get("ETag", "").strip('"'), await response.text())


def joined(before: str, answer: str) -> tuple[str, str]:
    """The text, and its tag, that a difference makes of the text before it."""
    told = json.loads(answer)
    return applied(before, told["parts"]), told["tag"]


@pytest.mark.parametrize("path", ["/?fragment=1", "/nodes?fragment=1", "/nodes/node-8?fragment=1"])
async def test_a_script_that_has_the_page_gets_what_has_changed(path: str) -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    async with serving(fleet, hands.clocks()) as served:
        _, tag, text = await fragment(served, path)
        assert (await fragment(served, f"{path}&base={tag}"))[0] == 204
        hands.advance(30.0)
        told = await fragment(served, f"{path}&base={tag}")
        assert told[0] == 204, "only the ages of things differ, which the script knows"
        incident_of(fleet.node_summaries["node-8"], hands.now, ago=1.0)
        hands.advance(30.0)
        status, _, answer = await fragment(served, f"{path}&base={tag}")
        assert status == 200
        assert len(answer) < len(text) / 2
        now, tag = joined(text, answer)
        assert (await fragment(served, path))[1:] == (tag, now)
        assert (await fragment(served, f"{path}&base=unknown"))[2] == now


async def test_a_transition_is_in_the_next_fragment_whoever_asked_just_before() -> None:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        _, _, before = await fragment(served, "/?fragment=1")
        event = Transition(NIGHT, EventKind.AGENT_SILENT, "node-8", "node-8: just now")
        served.feed.record_event(event)
        _, _, after = await fragment(served, "/?fragment=1")
        assert "just now" not in before
        assert "node-8: just now" in after


async def test_one_nodes_change_on_the_map_of_a_large_fleet_is_one_line() -> None:
    hands = Hands()
    fleet = big_fleet(hands)
    async with serving(fleet, hands.clocks()) as served:
        _, tag, text = await fragment(served, "/?fragment=1")
        fleet.node_summaries["gpu-100-01"].agent.attached = False
        hands.advance(30.0)
        _, _, answer = await fragment(served, f"/?fragment=1&base={tag}")
        now, _ = joined(text, answer)
        drawn = await served.json("/api/v1/map")
        _, *rows = now.split('id="cells"')[1].split("</div>")[0].partition("\n")[2].split()
        assert "".join(rows) == drawn["states"]
        assert len(answer) < 2_000


# -- the stream ------------------------------------------------------------------------------


async def read_node(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any, str]]:
    """The next ``count`` events: name, data, id."""
    found: list[tuple[str, Any, str]] = []
    name = data = ident = ""
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            line = (await response.content.readline()).decode().rstrip("\n")
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                data = value
            elif key == "id":
                ident = value
            elif not line and data:
                found.append((name, json.loads(data), ident))
                name = data = ident = ""
    return found


async def test_a_stream_tells_what_happens_and_that_the_fleet_has_changed() -> None:
    fleet = small_fleet(Hands())
    async with (
        serving(fleet, running_clocks()) as served,
        served.session.get(served.url + "/api/v1/stream") as response,
    ):
        assert response.content_type == "text/event-stream"
        document = await served.json("/api/v1/openapi.json")
        events = document["paths"]["/api/v1/stream"]["get"]["responses"]["200"]["content"]
        shapes = events["text/event-stream"]["schema"]["x-events"]
        (hello, tick) = await read_node(response, 2)
        assert (hello[0], tick[0]) == ("hello", "fleet")
        fleet.node_summaries["node-8"].agent.attached = False
        served.feed.record_event(
            Transition(NIGHT, EventKind.AGENT_SILENT, "node-8", "node-8: silent")
        )
        told = await read_node(response, 2)
        assert {name for name, _, _ in told} == {"transition", "fleet"}
        for name, data, _ in (hello, tick, *told):
            assert list(problems(data, shapes[name], document)) == []
            if name == "fleet" and data["revision"] > 1:
                assert data["counts"]["silent"] == 2


async def test_a_brief_stream_says_only_that_something_has_changed() -> None:
    fleet = small_fleet(Hands())
    async with (
        serving(fleet, running_clocks()) as served,
        served.session.get(served.url + "/api/v1/stream?brief=1") as response,
    ):
        assert [name for name, _, _ in await read_node(response, 2)] == ["hello", "changed"]
        fleet.node_summaries["node-8"].agent.attached = False
        served.feed.record_event(
            Transition(NIGHT, EventKind.AGENT_SILENT, "node-8", "node-8: silent")
        )
        [(name, data, _)] = await read_node(response, 1)
        assert (name, list(data)) == ("changed", ["at"])


async def test_a_reader_that_comes_back_misses_nothing() -> None:
    async with serving(small_fleet(Hands()), running_clocks()) as served:
        url = served.url + "/api/v1/stream?node=node-1"
        async with served.session.get(url) as response:
            await read_node(response, 1)
            served.feed.record_event(Transition(NIGHT, EventKind.HELD, "node-1", "first"))
            events = await read_node(response, 2)
            ident = next(one for name, _, one in events if name == "transition")
        served.feed.record_event(Transition(NIGHT, EventKind.HELD, "node-2", "another's"))
        served.feed.record_event(Transition(NIGHT, EventKind.ADMITTED, "node-1", "second"))
        async with served.session.get(url, headers={"Last-Event-ID": ident}) as response:
            events = await read_node(response, 2)
            assert events[0][1]["resumed"]
            assert events[1][1]["summary"] == "second"


async def test_streams_are_bounded_and_the_next_is_told_why() -> None:
    async with serving(FleetState(), Hands().clocks(), feed=EventBroker(epoch=1, most=1)) as served:
        url = served.url + "/api/v1/stream"
        async with served.session.get(url) as response:
            await read_node(response, 1)
            problem = await served.json("/api/v1/stream", 503)
            assert "1 event streams are open" in problem["error"]
        async with asyncio.timeout(PATIENCE):
            while served.feed.streams:
                served.feed.record_event(Transition(NIGHT, EventKind.HELD, "", "something"))
                await asyncio.sleep(0.02)
        async with served.session.get(url) as response:
            assert response.status == 200


async def test_the_server_closes_at_once_with_streams_open() -> None:
    async with (
        serving(FleetState(), Hands().clocks()) as served,
        served.session.get(served.url + "/api/v1/stream") as response,
    ):
        await read_node(response, 1)
        async with asyncio.timeout(PATIENCE):
            await served.web.close()
            await response.content.read()  # to its end, which has come


async def test_a_reader_that_takes_nothing_holds_up_neither_others_nor_the_feed() -> None:
    async with serving(small_fleet(Hands()), running_clocks()) as served:
        host, port = served.url.removeprefix("http://").split(":")
        _, stuck = await asyncio.open_connection(host, int(port), limit=1024)
        stuck.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await stuck.drain()
        async with served.session.get(served.url + "/api/v1/stream") as response:
            await read_node(response, 1)
            for number in range(5000):
                served.feed.record_event(
                    Transition(NIGHT, EventKind.MOVED, "node-2", f"{number} " * 200)
                )
                if number % 100 == 0:
                    await asyncio.sleep(0)
            assert await served.text("/healthz") == "ok\n"
            names = [name for name, _, _ in await read_node(response, 50)]
            assert "transition" in names
        stuck.close()
