"""The whole fleet from any replica: one that hangs, is dead, or answers nonsense breaks no page."""

import asyncio
import json
import re
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.events import EventKind, Transition
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web import replica_messages
from aggregator.web.replica_client import TrustError
from aggregator.web.replica_messages import NodesPart, PageAnswer
from tests.support.pki import Authority
from tests.web.replicas import Seat, Town, hands, plain_fleet, replicas, told_until, whole
from tests.web.schema import problems
from tests.web.support import (
    NIGHT,
    Served,
    incident_of,
    quarantine_of,
    running_clocks,
    serving,
    small_fleet,
    well,
)
from tests.web.test_cli import in_process, sickbay
from tests.web.test_server import read_node


async def test_each_replica_shows_the_same_whole_fleet() -> None:
    fleet = small_fleet(hands())
    async with serving(small_fleet(hands()), running_clocks()) as alone:
        expected = await alone.json("/api/v1/fleet")
        rows = {one["node"]: one for one in (await alone.json("/api/v1/nodes"))["items"]}
        wrong = await alone.json("/api/v1/incidents")
    async with replicas(fleet) as running:
        assert {running.owner(f"node-{number}") for number in range(1, 9)} == {"a", "b", "c"}
        for name, served in running.served.items():
            told = await told_until(served, "/api/v1/fleet", whole)
            for same in ("counts", "nodes", "attached", "held", "silent", "incidents", "headline"):
                assert told[same] == expected[same], (name, same)
            assert told["limits"] == expected["limits"]
            page = (await served.json("/api/v1/nodes"))["items"]
            assert [one["node"] for one in page] == list(rows)
            for one in page:
                assert one["replica"] == running.owner(one["node"])
                assert one["last_known"] is None
                for same in ("standing", "agent", "why", "exempt", "requests"):
                    assert one[same] == rows[one["node"]][same]
                assert (one["last_heard"] is None) == (rows[one["node"]]["last_heard"] is None)
            found = await served.json("/api/v1/incidents")
            assert {one["id"] for one in found["items"]} == {one["id"] for one in wrong["items"]}
            lines = {one["name"]: one for one in told["replicas"]}
            assert [line for line, one in lines.items() if one["here"]] == [name]
            assert [line for line, one in lines.items() if one["leads"]] == ["a"]
            assert sum(one["nodes"] for one in lines.values()) == 8
            document = await served.json("/api/v1/openapi.json")
            for path in ("fleet", "nodes", "replicas", "incidents", "map"):
                content = document["paths"][f"/api/v1/{path}"]["get"]["responses"]["200"]["content"]
                answer = await served.json(f"/api/v1/{path}")
                schema = content["application/json"]["schema"]
                assert list(problems(answer, schema, document)) == []
            assert sum(one["attached"] for one in lines.values()) == expected["attached"]


async def test_one_nodes_story_is_its_owners_from_every_replica() -> None:
    fleet = small_fleet(hands())
    async with replicas(fleet) as running:
        owner = running.owner("node-2")
        running.served[owner].history.items.append(
            Transition(NIGHT, EventKind.BLOCKED, "node-2", "node-2: a pod stays")
        )
        for served in running.served.values():
            await told_until(served, "/api/v1/fleet", whole)
        stories = [await one.json("/api/v1/nodes/node-2") for one in running.served.values()]
        for story in stories:
            assert story["replica"] == owner
            assert story["standing"] == "quarantined"
            assert len(story["faults"]) == 3
            assert story["components"][0]["message"] == "7 of 8 GPUs answer"
            assert [one["summary"] for one in story["timeline"]] == ["node-2: a pod stays"]
        for served in running.served.values():
            assert "of replica" in await served.text("/nodes/node-2")
            problem = await served.json("/api/v1/nodes/node-99", 404)
            assert problem["error"] == 'there is no node "node-99"'


async def test_a_change_at_another_replica_comes_by_the_stream_within_two_seconds() -> None:
    fleet = plain_fleet()
    async with replicas(fleet) as running:
        node = running.nodes_of("b")[0]
        asked, owner = running.served["a"], running.served["b"]
        async with asked.session.get(asked.url + "/api/v1/stream") as response:
            await told_until(asked, "/api/v1/fleet", whole)
            [(name, _, _), *_] = await read_node(response, 1)
            assert name == "hello"
            began = time.monotonic()
            incident_of(owner.fleet.node_summaries[node], began, ago=1.0, action="observe")
            owner.feed.record_event(
                Transition(NIGHT, EventKind.INCIDENT_OPENED, node, f"{node}: xid:79")
            )
            heard: set[str] = set()
            while heard != {"transition", "fleet"}:
                [(name, data, _)] = await read_node(response, 1)
                if name == "transition" and data["node"] == node:
                    heard.add(name)
                if name == "fleet" and data["counts"]["warning"] == 1:
                    heard.add(name)
            took = time.monotonic() - began
        # A second between questions, and a quarter for each of the two looks; the rest is for a
        # machine that is busy.
        assert took < 5, took
        assert f"{node}: xid:79" in await asked.text("/")
        assert asked.feed.counts[EventKind.INCIDENT_OPENED] == 0, "a metric counts its own alone"


async def test_the_stream_of_another_replicas_node_says_when_that_node_changes() -> None:
    async with replicas(plain_fleet()) as running:
        node = running.nodes_of("b")[0]
        asked, owner = running.served["a"], running.served["b"]
        await told_until(asked, "/api/v1/fleet", whole)
        url = f"{asked.url}/api/v1/stream?node={node}"
        async with asked.session.get(url) as response:
            assert [name for name, _, _ in await read_node(response, 2)] == ["hello", "fleet"]
            owner.fleet.node_summaries[node].cluster.foreign = "hall-2 is at work"
            assert (await read_node(response, 1))[0][0] == "fleet"


async def test_a_dead_replicas_nodes_are_last_known_and_never_well_and_it_comes_back() -> None:
    fleet = plain_fleet()
    async with replicas(fleet, ("a", "b")) as running:
        asked, dying = running.served["a"], running.served["b"]
        nodes = running.nodes_of("b")
        sick, quarantined, held, *rest = nodes
        incident_of(dying.fleet.node_summaries[sick], time.monotonic(), action="observe")
        incident_of(dying.fleet.node_summaries[held], time.monotonic())
        dying.fleet.node_summaries[held].decision.would = "drain it"
        quarantine_of(asked.fleet.node_summaries[quarantined], NIGHT)
        quarantine_of(dying.fleet.node_summaries[quarantined], NIGHT)
        await told_until(
            asked,
            "/api/v1/fleet",
            lambda told: (told["counts"]["warning"], told["held"]) == (1, 1),
        )
        assert (await asked.json(f"/api/v1/nodes/{sick}"))["incidents"]
        page = dying.url.removeprefix("http://")
        await running.stop("b")
        told = await told_until(asked, "/api/v1/fleet", lambda told: told["replicas"][1]["trouble"])
        assert told["last_known"] == len(nodes)
        assert told["counts"]["ok"] == 30 - len(nodes)
        assert told["attached"] == 30 - len(nodes)
        assert told["replicas"][1]["trouble"].startswith("does not answer: ")
        assert told["replicas"][1]["last_answer"] is not None
        assert told["replicas"][1]["attached"] == 0
        assert _samples(await asked.text("/metrics"))['sickbay_replica_peer_up{replica="b"}'] == 0
        assert "b does not answer: " in await asked.text("/")
        spoken = {
            "status": f"b does not answer: .*: its {len(nodes)} nodes are only last known",
            "nodes": f"{sick} +warning +unknown .*last known 03:1.*, b does not answer: ",
            f"node {sick}": "only last known: .*see: sickbay replicas",
            "replicas": f"a +leads here +{30 - len(nodes)} +{30 - len(nodes)} .* now +answers\n"
            f"b +- +{len(nodes)} +- +0.1.0 +p1 +.* does not answer: ",
        }
        commands = (sickbay(*one.split(), "--url", asked.url) for one in spoken)
        for said, done in zip(spoken.values(), await asyncio.gather(*commands), strict=True):
            assert re.search(said, done.out), (said, done)
        done = await in_process("replicas", "-o", "json", "--url", asked.url)
        assert [one["name"] for one in json.loads(done.out)["items"]] == ["a", "b"]
        rows = {one["node"]: one for one in (await asked.json("/api/v1/nodes?limit=1000"))["items"]}
        assert len(rows) == 30
        for name in nodes:
            assert rows[name]["standing"] != "ok"
            assert rows[name]["agent"] == "unknown"
            assert rows[name]["last_known"] is not None
            assert "last known 03:1" in rows[name]["why"]
            assert "b does not answer" in rows[name]["why"]
        assert rows[sick]["standing"] == "warning"
        assert rows[held]["standing"] == "held"
        assert rows[quarantined]["standing"] == "quarantined"
        assert rows[rest[0]]["standing"] == "unknown"
        assert rows[rest[0]]["last_heard"] is not None, "it was heard until then"
        # Details of its nodes: in full for those that were looked at, for the others the known
        # part.
        for name in (sick, rest[0], quarantined):
            story = await asked.json(f"/api/v1/nodes/{name}")
            assert story["last_known"] is not None
            assert story["agent"] == "unknown"
            assert story["standing"] == rows[name]["standing"]
            assert bool(story["components"]) == (name == sick)
            assert bool(story["quarantine"]) == (name == quarantined)
            assert "This is only last known" in await asked.text(f"/nodes/{name}")
        # A quarantine that ends meanwhile is seen to.
        asked.fleet.node_summaries[quarantined].own_quarantine_view().quarantine = None
        await told_until(asked, "/api/v1/fleet", lambda told: told["counts"]["quarantined"] == 0)
        async with serving(
            dying.fleet, running_clocks(), address=page, shards=Seat("b", running.town)
        ):
            await told_until(asked, "/api/v1/fleet", whole)
            story = await asked.json(f"/api/v1/nodes/{rest[0]}")
            assert (story["standing"], story["last_known"]) == ("ok", None)


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """Grows by one with each call of the module's function."""
    calls: list[str] = []
    real = getattr(module, name)

    def counted(*given: Any) -> Any:
        calls.append(name)
        return real(*given)

    monkeypatch.setattr(module, name, counted)
    return calls


async def test_at_rest_little_is_sent_and_a_heartbeat_is_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with replicas(plain_fleet(), ("a", "b")) as running:
        asked, other = running.served["a"], running.served["b"]
        await told_until(asked, "/api/v1/fleet", whole)
        url = other.url + "/replica/part"
        async with asked.session.get(url) as response:
            body = await response.read()
            first = replica_messages.decode(body, PageAnswer)
        assert first.part is not None
        assert [one.node for one in first.part.nodes] == running.nodes_of("b")
        assert len(body) < 100 + 20 * len(first.part.nodes)
        have = f"?have={first.revision}&seen={first.seen}"
        async with asked.session.get(url + have) as response:
            assert len(again := await response.read()) < 100 + len(first.part.nodes)
            assert replica_messages.decode(again, PageAnswer).part is None
        # A heartbeat is no change; a component that turns is one.
        node_summary = other.fleet.node_summaries[first.part.nodes[0].node]
        node_summary.agent.last_heard = time.monotonic()
        described = count_calls(monkeypatch, replica_messages, "to_node_reports")
        async with asyncio.timeout(30):
            while len(described) < 2 * len(first.part.nodes):  # the part was made anew, twice
                async with asked.session.get(url + have) as response:
                    answer = replica_messages.decode(await response.read(), PageAnswer)
                assert answer.part is None
        node_summary.agent.attached = False

        async def news() -> NodesPart | None:
            async with asked.session.get(url + have) as response:
                return replica_messages.decode(await response.read(), PageAnswer).part

        async with asyncio.timeout(30):
            while (fresh := await news()) is None:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
        assert [one.agent for one in fresh.nodes].count("silent") == 1


async def test_a_replicas_own_part_holds_nothing_of_the_others() -> None:
    async with replicas(plain_fleet()) as running:
        for name, served in running.served.items():
            await told_until(served, "/api/v1/fleet", whole)
            served.feed.record_event(Transition(NIGHT, EventKind.HELD, "node-0", f"told by {name}"))
        for name, served in running.served.items():
            others = [f"told by {other}" for other in running.served if other != name]
            await told_until(
                served,
                "/api/v1/transitions",
                lambda told: {one["summary"] for one in told["items"]} >= set(others),  # noqa: B023
            )
            async with served.session.get(served.url + "/replica/part?seen=0.0") as response:
                told = replica_messages.decode(await response.read(), PageAnswer)
            assert told.part is not None
            assert [one.node for one in told.part.nodes] == running.nodes_of(name)
            assert [one.summary for one in told.events] == [f"told by {name}"]


async def test_what_is_the_fleets_own_is_told_once_though_each_replica_notes_it() -> None:
    async with replicas(plain_fleet()) as running:
        for served in running.served.values():
            await told_until(served, "/api/v1/fleet", whole)
        for number, served in enumerate(running.served.values()):
            served.feed.record_event(
                Transition(NIGHT + number, EventKind.STOPPED, "", "stopped: a switch")
            )
        for served in running.served.values():
            served.feed.record_event(Transition(NIGHT, EventKind.HELD, "node-0", "said after it"))
        served = running.served["a"]
        await told_until(
            served,
            "/api/v1/transitions",
            lambda _: [one.kind for one in served.feed.recent()].count(EventKind.HELD) == 3,
        )
        assert [one.kind for one in served.feed.recent()].count(EventKind.STOPPED) == 1


async def test_metrics_tell_of_a_replicas_own_nodes_so_that_sums_are_right() -> None:
    fleet = small_fleet(hands())
    async with serving(small_fleet(hands()), running_clocks()) as alone:
        expected = _samples(await alone.text("/metrics"))
    async with replicas(fleet) as running:
        for served in running.served.values():
            await told_until(served, "/api/v1/fleet", whole)
        scrapes = [_samples(await one.text("/metrics")) for one in running.served.values()]
        for name in (
            *(f'sickbay_nodes{{standing="{standing}"}}' for standing in QuarantineSummary),
            'sickbay_incidents{action="drain",kind="gpu"}',
            'sickbay_quarantines{phase="Draining"}',
            "sickbay_agents_attached",
            "sickbay_agents_silent",
            "sickbay_agents_never_heard",
            "sickbay_replica_nodes",
            "sickbay_replica_leader",
        ):
            told = sum(one[name] for one in scrapes)
            assert told == {"sickbay_replica_nodes": 8}.get(name, expected[name]), name
        for scrape in scrapes:
            assert scrape["sickbay_record_entries"] == 2
            assert scrape["sickbay_replica_members"] == 3
            limit = 'sickbay_limit_max_nodes{limit="limits.concurrent_percent"}'
            assert scrape[limit] == expected[limit]
        scrape = _samples(await running.served["a"].text("/metrics"))
        peers = {name: value for name, value in scrape.items() if "_peer_up" in name}
        assert peers == {f'sickbay_replica_peer_up{{replica="{name}"}}': 1.0 for name in "bc"}


def _samples(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("sickbay_")]
    return {name: float(value) for name, value in lines}


async def test_frozen_and_unsettled_replicas_are_not_ready_and_the_page_says_why() -> None:
    async with replicas(plain_fleet(), ("a", "b")) as running:
        served = running.served["a"]
        assert await served.text("/readyz") == "ready\n"
        running.town.frozen = "the API server has not answered for 14 s"
        assert "the API server has not answered for 14 s" in await served.text("/readyz", 503)
        page = await told_until_text(served, "This replica does not know the other replicas")
        assert "Not ready." not in page, "it is said once, and in the replica's line"
        running.town.frozen, running.town.settled = "", False
        assert "it has joined a moment ago" in await served.text("/readyz", 503)
        running.town.settled = True
        running.town.joins("b", running.served["b"].url, policy_hash="p2")
        page = await told_until_text(served, "The replicas differ")
        assert "b runs policy p2 (here p1)" in page
        told = await served.json("/api/v1/replicas")
        assert told["differing"] == "b runs policy p2 (here p1)"


async def told_until_text(served: Served, said: str) -> str:
    async with asyncio.timeout(60):
        while said not in (text := await served.text("/")):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        return text


async def test_of_a_replica_that_has_left_its_last_word_counts_until_its_agents_have_moved() -> (
    None
):
    async with replicas(plain_fleet()) as running:
        served = running.served["a"]
        nodes = running.nodes_of("c")
        incident_of(
            running.served["c"].fleet.node_summaries[nodes[0]], time.monotonic(), action="observe"
        )
        await told_until(served, "/api/v1/fleet", lambda told: told["counts"]["warning"] == 1)
        running.town.leaves("c")
        told = await told_until(
            served, "/api/v1/fleet", lambda told: told["replicas"][2]["trouble"] == "has left"
        )
        assert told["replicas"][2]["nodes"] == 0
        assert told["last_known"] == len(nodes)
        assert told["nodes"] == 30
        assert told["counts"]["ok"] == 30 - len(nodes)
        assert told["counts"]["warning"] == 1
        story = await served.json(f"/api/v1/nodes/{nodes[0]}")
        assert story["standing"] == "warning"
        assert "UTC, c has left" in story["why"]
        # Now the agents come to the replicas that own their nodes.
        for name, one in running.served.items():
            for node in nodes:
                if running.owner(node) == name:
                    well(one.fleet, node, time.monotonic())
        told = await told_until(served, "/api/v1/fleet", lambda told: told["counts"]["ok"] == 30)
        assert told["last_known"] == 0
        running.town.joins("c", running.served["c"].url)
        await told_until(served, "/api/v1/fleet", whole)


async def test_alone_nobody_is_asked_and_no_replica_is_shown() -> None:
    async with serving(plain_fleet(), running_clocks()) as served:
        done = await in_process("replicas", "--url", served.url)
        assert done.out == "The replica you ask knows of no other.\n"
        told = await served.json("/api/v1/fleet")
        assert (told["replicas"], told["last_known"], told["frozen"]) == ([], 0, "")
        assert "Replicas" not in await served.text("/")
        assert (await served.json("/api/v1/nodes"))["items"][0]["replica"] == ""
        assert json.loads(await served.text("/api/v1/replicas"))["total"] == 0


async def test_replicas_are_asked_over_tls_and_only_if_their_authority_is_ours(
    tmp_path: Path,
) -> None:
    authority = Authority.create(tmp_path / "ours")
    pair = authority.server("b", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    stranger = Authority.create(tmp_path / "other").certificate
    mine = tmp_path / "ca.crt"
    mine.write_bytes(authority.certificate.read_bytes())
    town = Town()
    for name in "ab":
        town.joins(name)
    other = serving(plain_fleet(), running_clocks(), shards=Seat("b", town), ssl=context)
    asking = serving(plain_fleet(), running_clocks(), shards=Seat("a", town), ca_file=mine)
    async with other as answering_one, asking as asked:
        page = answering_one.url.replace("http:", "https:")
        town.members["b"] = replace(town.members["b"], page=page)
        town.notify()
        await told_until(asked, "/api/v1/fleet", whole)
        # The file is read again when it changes. A connection that stands is not asked anew.
        mine.write_bytes(stranger.read_bytes())
        town.joins("c", page.replace("127.0.0.1", "localhost"))
        told = await told_until(
            asked, "/api/v1/fleet", lambda told: len(told["replicas"]) == 3 and not whole(told)
        )
        assert told["replicas"][2]["trouble"].startswith(
            "does not answer properly: its certificate: "
        )
        mine.write_text("no certificate")
        assert (await asked.json("/api/v1/fleet"))["nodes"] == 30
    with pytest.raises(
        TrustError, match=f"shards.ca_file: {mine} holds no certificate; expected PEM, with"
    ):
        async with serving(plain_fleet(), running_clocks(), ca_file=mine):
            pass
