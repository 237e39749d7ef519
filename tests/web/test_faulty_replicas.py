"""Replicas that hang, answer nonsense or are of another version: reported, and all else works."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from aggregator.events import EventKind
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web import replica_messages
from aggregator.web.node_view import ViewMoment
from aggregator.web.replica_messages import NodeReports, NodesPart, PageAnswer
from tests.web.replicas import Handler, Town, answering, plain_fleet, replicas, told_until, whole
from tests.web.support import NIGHT, incident_of, well


async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await asyncio.sleep(600)
    finally:
        writer.close()


def sending(
    body: bytes, head: str = "HTTP/1.1 200 OK", kind: str = replica_messages.KIND
) -> Handler:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines = f"{head}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(lines.encode() + body)
        writer.close()

    return answer


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {replica_messages.KIND}\r\n\r\n".encode())
    try:
        while True:
            writer.write(b"\0" * (1 << 20))
            await writer.drain()
    except ConnectionError:
        writer.close()


def part_of(**changes: Any) -> bytes:
    told = PageAnswer(
        name="b", revision="9.1", part=NodesPart([NodeReports("node-0")]), heard=b"\x01"
    )
    return replica_messages.encode(msgspec.structs.replace(told, **changes))


BAD = {
    "hung": (hang, "does not answer: no reply within 1.5 s"),
    "no HTTP": (sending(b"", head="\x00\x01\x02"), "does not answer properly"),
    "garbage": (sending(b"\xc1\xff garbage"), "does not answer properly: its message can't be"),
    "another shape": (
        sending(msgspec.msgpack.encode({"name": "b", "revision": 7})),
        "does not answer properly: its message can't be read",
    ),
    "no body": (sending(b""), "does not answer properly: its message can't be read"),
    "a page": (sending(b"<html>", kind="text/html"), "does not answer properly: it sent text/html"),
    "500": (
        sending(b"", head="HTTP/1.1 500 Oh"),
        "does not answer properly: it answered 500",
    ),
    "elsewhere": (
        sending(b"", head="HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/"),
        "does not answer properly: it answered 302",
    ),
    "an old version": (
        sending(b"", head="HTTP/1.1 404 Not Found"),
        "does not answer properly: its version (0.1.0) tells no part",
    ),
    "another replica": (
        sending(part_of(name="z")),
        "does not answer properly: z answers at its address",
    ),
    "nothing, as if known": (sending(part_of(part=None)), "does not answer properly: it sent noth"),
    "heard others": (sending(part_of(heard=b"")), "does not answer properly: it names other nodes"),
    "no end": (endless, "does not answer"),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_replica_that_answers_badly_is_said_and_the_rest_is_shown(what: str) -> None:
    handler, said = BAD[what]
    town = Town()
    async with answering(handler) as url:
        town.joins("b", url)
        async with replicas(plain_fleet(), ("a",), town=town) as running:
            served = running.served["a"]
            began = time.monotonic()
            await served.text("/")
            assert time.monotonic() - began < 10, "one that hangs holds up nobody for long"
            told = await told_until(
                served, "/api/v1/fleet", lambda told: said in told["replicas"][1]["trouble"]
            )
            mine, theirs = running.nodes_of("a"), running.nodes_of("b")
            assert told["counts"]["ok"] == len(mine) > 0
            assert told["counts"]["unknown"] == told["last_known"] == len(theirs) > 0
            assert told["headline"].endswith(
                f"{len(theirs)} nodes are only last known: b does not answer."
            )
            assert told["replicas"][1]["last_answer"] is None
            story = await served.json(f"/api/v1/nodes/{theirs[0]}")
            assert "does not answer" in story["why"]
            page = await served.text("/")
            assert f"Its {len(theirs)} nodes are shown as last known" in page


def twisted() -> dict[str, Any]:
    """Answers that are read well, each with one value that would break a page that shows it."""
    fleet = FleetState(mode="drain")
    ill = well(fleet, "node-0", time.monotonic())
    incident_of(ill, time.monotonic())
    ill.decision.would = "drain it"
    told = replica_messages.to_node_reports(ill, ViewMoment(time.monotonic(), NIGHT), "drain", "")
    plain = msgspec.to_builtins(told)
    incident, hold = plain["incidents"][0], plain["hold"]
    naive = "2026-03-14T03:14:07"
    return {
        "an unknown action": plain | {"incidents": [incident | {"action": "explode"}]},
        "another's incident": plain | {"incidents": [incident | {"node": "9" * 5000}]},
        "another's hold": plain | {"hold": hold | {"node": "9" * 5000}},
        "a time without a zone": plain | {"incidents": [incident | {"since": naive}]},
        "heard without a zone": plain | {"last_heard": naive},
        "no time": plain | {"incidents": [incident | {"since": None}]},
        "a name too long": plain | {"node": "9" * 5000},
        "no name": plain | {"node": ""},
        "a standing that is none": plain | {"standing": "merry"},
    }


@pytest.mark.parametrize("what", twisted())
async def test_an_answer_with_one_thing_wrong_is_none_and_the_page_stands(what: str) -> None:
    told = {"name": "b", "revision": "1", "heard": b"\1", "part": {"nodes": [twisted()[what]]}}
    town = Town()
    async with answering(sending(msgspec.msgpack.encode(told))) as url:
        town.joins("b", url)
        async with replicas(plain_fleet(3), ("a",), town=town) as running:
            served = running.served["a"]
            said = (await served.json("/api/v1/fleet"))["replicas"][1]["trouble"]
            assert said.startswith("does not answer properly: ")
            assert "</html>" in await served.text("/")
            assert (await served.json("/api/v1/nodes"))["total"] == 3


async def test_events_of_impossible_times_are_passed_over() -> None:
    told = PageAnswer(name="b", revision="1", part=NodesPart(), fresh=True)
    times = (float("nan"), float("inf"), -1.0, 1e300, NIGHT)
    events = [
        replica_messages.EventMessage(at, EventKind.STOPPED, summary=f"at {at}") for at in times
    ]
    town = Town()
    body = replica_messages.encode(msgspec.structs.replace(told, events=events))
    async with answering(sending(body)) as url:
        town.joins("b", url)
        async with replicas(plain_fleet(3), ("a",), town=town) as running:
            served = running.served["a"]
            await told_until(served, "/api/v1/fleet", whole)
            assert [one.at for one in served.feed.recent()] == [NIGHT]
            assert "</html>" in await served.text("/")


async def test_a_replica_of_a_later_version_is_understood_as_far_as_it_goes() -> None:
    told = msgspec.to_builtins(
        PageAnswer(name="b", revision="9.1", heard=b"\x01\x02"), builtin_types=(bytes,)
    )
    told["part"] = {
        "nodes": [
            {"node": "node-0", "mood": "good", "standing": "warning", "why": "a new thing"},
            {"node": "node-1"},
        ],
        "weather": {"deep": [1, 2, {"x": None}]},
    }
    told["seen"], told["fresh"] = "9.2", True
    told["events"] = [
        {"at": NIGHT, "kind": "moon.rose", "summary": "of a kind that we don't know"},
        {"at": NIGHT, "kind": "fleet.stopped", "summary": "stopped: the moon"},
    ]
    town = Town()
    async with answering(sending(msgspec.msgpack.encode(told))) as url:
        town.joins("b", url)
        async with replicas(FleetState(mode="drain"), ("a",), town=town) as running:
            served = running.served["a"]
            await told_until(served, "/api/v1/fleet", whole)
            rows = (await served.json("/api/v1/nodes"))["items"]
            assert [(one["node"], one["standing"], one["why"]) for one in rows] == [
                ("node-0", "warning", "a new thing"),
                ("node-1", "ok", ""),
            ]
            page = await served.text("/")
            assert "stopped: the moon" in page
            assert "of a kind that we don" not in page
