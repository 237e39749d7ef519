"""Streams against a real server on loopback: intake, acknowledgements, refusals and ends."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from aggregator.health.model import Component, Delta, Snapshot, Status
from aggregator.ingest.resync_backoff import BACKOFF
from aggregator.ingest.stream import Stream
from sickbay.v1 import sickbay_pb2 as pb
from tests.support import evidence as said
from tests.support.ingest import Site, site
from tests.support.present import of_type
from tests.support.replica import fault
from tests.support.waiting import until

Code = grpc.StatusCode


@pytest.fixture
async def plain() -> AsyncIterator[Site]:
    async with site() as running:
        yield running


async def test_hello_snapshot_delta_over_tls_each_acknowledged(tmp_path: Path) -> None:
    async with site(folder=tmp_path) as tls, tls.agent() as agent:
        await agent.hello()
        welcome = await agent.expect("welcome")
        assert (welcome.aggregator, welcome.heartbeat_interval_ms) == ("aggregator-0", 10_000)
        full = Component("disk_space", "/", Status.FAILED, "full", "100 %", since=-90.0)
        await agent.snapshot(Snapshot(components=(full,), faults=()), seq=7)
        assert (await agent.expect("ack")).seq == 7
        await agent.delta(Delta(gone=(("disk_space", "/"),)), seq=8)
        assert (await agent.expect("ack")).seq == 8

        (node, first, at), (_, second, _) = tls.intake.evidence
        assert node == "node-1"
        assert isinstance(first, Snapshot)
        assert first.components[0].since == pytest.approx(at - 90)
        assert second == Delta(gone=(("disk_space", "/"),))


async def test_the_agents_end_is_told_once(plain: Site) -> None:
    async with plain.agent() as agent:
        await agent.attend()
        await agent.call.done_writing()
        assert await agent.ending() == (Code.OK, "")
    assert plain.intake.events[-1] == (
        "detached",
        "node-1",
        "i-1",
        "the agent closed the stream or its connection broke",
    )
    assert plain.stats.attached == 0
    assert plain.stats.ended == {"left": 1}


async def test_a_broken_connection_detaches(plain: Site) -> None:
    async with plain.agent() as agent:
        await agent.attend()
        assert plain.stats.attached == 1
    await until(lambda: plain.stats.ended == {"left": 1})
    assert plain.intake.events[-1][0] == "detached"


# -- acknowledgements ---------------------------------------------------------------------------


async def test_an_ack_waits_until_the_evidence_is_safe_and_covers_what_came_before(
    plain: Site,
) -> None:
    durable: list[asyncio.Future[None]] = []

    def safe(_: str, evidence: object) -> asyncio.Future[None] | None:
        if isinstance(evidence, Snapshot):
            return None
        durable.append(asyncio.get_running_loop().create_future())
        return durable[-1]

    plain.intake.safe = safe
    async with plain.agent() as agent:
        await agent.attend()
        for seq in (2, 3, 4):
            await agent.delta(seq=seq)
        await until(lambda: len(durable) == 3)
        durable[1].set_result(None)  # the second is safe; the first is not
        durable[2].set_result(None)
        await agent.beat(0)  # its answer comes next: no Ack has been sent
        await agent.expect("resync")
        durable[0].set_result(None)
        assert (await agent.expect("ack")).seq == 4
    assert plain.stats.acks == 2


async def test_evidence_that_cannot_be_made_safe_ends_the_stream_unacknowledged(
    plain: Site,
) -> None:
    async def fails() -> None:
        raise OSError("the API server said no")

    async with plain.agent() as agent, plain.agent("node-2") as other:
        await agent.attend()
        await other.attend()
        plain.intake.safe = lambda *_: fails()
        await agent.delta(seq=2)
        code, text = await agent.ending()
        assert code is Code.UNAVAILABLE
        assert "send it again" in text
        assert plain.stats.ended == {"unsafe": 1}
        plain.intake.safe = None
        await other.delta(seq=2)
        assert (await other.expect("ack")).seq == 2


# -- digests ------------------------------------------------------------------------------------


async def test_a_digest_that_agrees_asks_for_nothing(plain: Site) -> None:
    plain.intake.digests["node-1"] = 2**64 - 1
    async with plain.agent() as agent:
        await agent.attend()
        await agent.beat(2**64 - 1)
        await agent.delta(seq=2)
        assert (await agent.expect("ack")).seq == 2
    assert plain.stats.resyncs == 0
    assert ("beat", "node-1") in plain.intake.events


async def test_where_there_are_others_each_heartbeat_is_answered(plain: Site) -> None:
    plain.among_others[0] = "replica-0:1"
    plain.intake.digests["node-1"] = 5
    async with plain.agent() as agent:
        await agent.hello()
        welcome = await agent.expect("welcome")
        assert (welcome.answer_within_ms, welcome.address) == (12_000, "replica-0:1")
        await agent.snapshot()
        assert (await agent.expect("ack")).seq == 1
        for _ in range(3):
            await agent.beat(5)
            assert (await agent.expect("ack")).seq == 0
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        plain.intake.safe = lambda _, __: waits
        await agent.delta(seq=2)
        await agent.beat(5)
        assert (await agent.expect("ack")).seq == 0, "an answer acknowledges nothing"
        waits.set_result(None)
        assert (await agent.expect("ack")).seq == 2
    async with plain.agent("node-2") as agent:
        plain.among_others[0] = ""
        await agent.hello()
        assert (await agent.expect("welcome")).answer_within_ms == 0


async def test_a_digest_that_differs_asks_for_a_snapshot_and_not_at_every_heartbeat(
    plain: Site,
) -> None:
    plain.intake.digests["node-1"] = 5
    async with plain.agent() as agent:
        await agent.attend()
        for _ in range(5):
            await agent.beat(6)
        await agent.expect("resync")
        await agent.snapshot(seq=2)
        assert (await agent.expect("ack")).seq == 2  # and no second Resync before it
        plain.clock.ahead += BACKOFF.first
        await agent.beat(6)
        await agent.expect("resync")
        # The snapshot did not make them agree: the next time takes twice as long.
        await agent.snapshot(seq=3)
        await agent.expect("ack")
        plain.clock.ahead += BACKOFF.first
        await agent.beat(6)
        await agent.delta(seq=4)
        assert (await agent.expect("ack")).seq == 4
        assert plain.stats.resyncs == 2
        plain.clock.ahead += BACKOFF.first
        await agent.expect("resync")  # asked too early, so asked later


# -- what is refused ----------------------------------------------------------------------------


def message(**body: Any) -> pb.AgentMessage:
    return pb.AgentMessage(**body)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (message(snapshot=pb.Snapshot()), "snapshot came where Hello must come"),
        (message(heartbeat=pb.Heartbeat()), "heartbeat came where Hello must come"),
        (message(), "an empty message came where Hello must come"),
        (message(hello=pb.Hello(node="n")), "hello.boot_id: empty"),
    ],
)
async def test_a_stream_that_does_not_begin_with_a_sound_hello_is_refused(
    plain: Site, first: pb.AgentMessage, says: str
) -> None:
    async with plain.agent() as agent:
        await agent.send(first)
        code, text = await agent.ending()
    assert (code, text) == (Code.INVALID_ARGUMENT, says)
    assert plain.stats.refused == {"malformed": 1}
    assert plain.intake.events == []


async def test_a_delta_before_its_snapshot_is_refused(plain: Site) -> None:
    async with plain.agent() as agent:
        await agent.hello()
        await agent.delta(seq=1)
        code, text = await agent.ending()
    assert (code, text) == (Code.INVALID_ARGUMENT, "delta came where Snapshot must come")
    assert plain.intake.evidence == []


@pytest.mark.parametrize(
    ("bad", "code", "says", "why"),
    [
        (
            message(snapshot=pb.Snapshot(seq=2, quiesced_for_ms=2**63)),
            Code.INVALID_ARGUMENT,
            "snapshot.quiesced_for_ms: 9223372036854775808 ms; expected at most ten years",
            "malformed",
        ),
        (
            message(delta=pb.Delta(seq=0)),
            Code.INVALID_ARGUMENT,
            "delta.seq: 0 after 1",
            "malformed",
        ),
        (
            message(hello=pb.Hello(node="node-2")),
            Code.PERMISSION_DENIED,
            "the stream of node 'node-1' claims node 'node-2'",
            "another_node",
        ),
        (
            message(hello=pb.Hello(node="node-1")),
            Code.INVALID_ARGUMENT,
            "a second Hello in one stream",
            "malformed",
        ),
    ],
)
async def test_a_bad_message_ends_its_stream_says_why_and_harms_no_other(
    plain: Site, bad: pb.AgentMessage, code: grpc.StatusCode, says: str, why: str
) -> None:
    async with plain.agent() as agent, plain.agent("node-3") as other:
        await agent.attend()
        await other.attend()
        heard = len(plain.intake.evidence)
        await agent.send(bad)
        assert await agent.ending() == (code, says)
        assert len(plain.intake.evidence) == heard
        assert plain.intake.events[-1] == ("detached", "node-1", "i-1", says)
        assert plain.stats.ended == {why: 1}
        await other.delta(seq=2)
        assert (await other.expect("ack")).seq == 2


async def test_a_bad_entry_is_dropped_said_to_its_agent_and_ends_no_stream(plain: Site) -> None:
    """Digests that differ because of it ask for no further snapshot, which would lack it too."""
    plain.intake.digests["node-1"] = 5
    bad = pb.Fault(code="xid:79")
    xid = said.fault(fault(), 1000.0)
    async with plain.agent() as agent:
        await agent.attend()
        await agent.send(message(delta=pb.Delta(seq=2, faults=[bad, xid])))
        dropped = await agent.expect("entries_dropped")
        assert (dropped.seq, dropped.entries) == (2, 1)
        assert dropped.reason == "faults[0].count: 0; expected at least 1"
        assert (await agent.expect("ack")).seq == 2
        _, evidence, _ = plain.intake.evidence[-1]
        assert [one.code for one in evidence.faults] == ["xid:79"]
        assert [one.source for one in evidence.lost] == ["aggregator"]
        assert plain.stats.dropped == 1
        await agent.beat(4)
        await agent.delta(seq=3)
        assert (await agent.expect("ack")).seq == 3  # and no Resync before it
        await agent.snapshot(seq=4)
        assert (await agent.expect("ack")).seq == 4
        await agent.beat(4)
        await agent.expect("resync")  # all of it was taken, so the digests must agree


async def test_a_hello_that_is_refused_is_reported_for_its_node(plain: Site) -> None:
    """The token has proven whose node it is, so its silence can be reported with its reason."""
    async with plain.agent() as agent:
        await agent.send(message(hello=pb.Hello(node="node-1")))
        code, text = await agent.ending()
    assert code is Code.INVALID_ARGUMENT
    assert plain.intake.refusals == [("node-1", text)]


async def test_bytes_that_are_no_message_are_refused(plain: Site) -> None:
    async with plain.channel() as channel:
        attend: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        attend = channel.stream_stream("/sickbay.v1.AgentGateway/Connect")
        call = attend()
        await call.write(b"\xff\xff\xff")
        assert await call.code() is Code.INVALID_ARGUMENT
    assert plain.stats.refused == {"malformed": 1}


@pytest.mark.parametrize(
    "method", ["/sickbay.v1.Bench/Attend", "/sickbay.v1.AgentGateway/Attend", "/a/" + "b" * 900]
)
async def test_a_caller_of_an_unknown_method_is_told_what_to_install(
    plain: Site, method: str
) -> None:
    async with plain.channel() as channel:
        connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
        call = connect()
        assert await call.code() is Code.UNIMPLEMENTED
        told = await call.details() or ""
    assert f"has no method {method[:150]}" in told
    assert len(told) < 500
    assert told.endswith(
        "agents call /sickbay.v1.AgentGateway/Connect: install the aggregator's version on the "
        "caller"
    )
    assert plain.stats.opened == 0


async def test_a_message_larger_than_any_snapshot_is_refused(plain: Site) -> None:
    async with plain.agent() as agent:
        await agent.attend()
        huge = pb.ComponentState(check="c", message="x" * 5_000_000)
        await agent.send(message(delta=pb.Delta(seq=2, components=[huge])))
        code, _ = await agent.ending()
        assert code is Code.RESOURCE_EXHAUSTED
        await until(lambda: plain.stats.attached == 0)


async def test_a_kind_of_message_that_is_not_known_yet_is_passed_over(plain: Site) -> None:
    async with plain.agent() as agent:
        await agent.attend()
        # Field 15 of AgentMessage, which this version does not have.
        newer = pb.AgentMessage.FromString(b"\x7a\x02\x08\x01")
        await agent.send(newer)
        await agent.delta(seq=2)
        assert (await agent.expect("ack")).seq == 2


async def test_a_failure_of_ours_ends_one_stream_with_internal(plain: Site) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with plain.agent() as agent, plain.agent("node-2") as other:
        await agent.attend()
        await other.attend()
        plain.intake.safe = broken
        await agent.delta(seq=2)
        code, text = await agent.ending()
        assert (code, text) == (Code.INTERNAL, "the aggregator failed; see its log")
        plain.intake.safe = None
        await other.delta(seq=2)
        assert (await other.expect("ack")).seq == 2


# -- one stream a node --------------------------------------------------------------------------


async def test_a_newer_stream_of_a_node_closes_the_older(plain: Site) -> None:
    async with plain.agent() as older, plain.agent(instance="i-2") as newer:
        await older.attend()
        await newer.attend()
        code, text = await older.ending()
        assert code is Code.ABORTED
        assert "a newer stream of node 'node-1' has taken over" in text
        assert plain.stats.attached == 1
        ordered = [event[:3] for event in plain.intake.events if event[0] != "heard"]
        assert ordered == [
            ("attached", "node-1", "i-1"),
            ("detached", "node-1", "i-1"),
            ("attached", "node-1", "i-2"),
        ]
        await newer.delta(seq=2)
        assert (await newer.expect("ack")).seq == 2
    assert plain.intake.conflicts == []


async def test_two_live_agents_that_push_each_other_out_are_a_conflict_and_it_ends(
    plain: Site,
) -> None:
    for instance in ("a", "b", "a", "b"):
        assert plain.intake.conflicts == []
        async with plain.agent(instance=instance) as agent:
            await agent.attend()
    [(node, detail)] = plain.intake.conflicts
    assert node == "node-1"
    assert detail.startswith("two live agents claim this node")
    plain.clock.ahead += 601
    await until(lambda: len(plain.intake.conflicts) == 2)
    assert plain.intake.conflicts[-1] == ("node-1", "")


async def test_conflicts_that_go_on_are_said_once_a_minute_with_how_often(
    plain: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """However many they are: a second DaemonSet has two agents on each node."""

    def said() -> list[int]:
        found = [one for one in caplog.records if one.message == "two live agents claim one node"]
        assert {one.__dict__["node"] for one in found} <= {"node-1"}
        return [one.__dict__.get("left_out", 0) for one in found]

    for number in range(12):
        async with plain.agent(instance="ab"[number % 2]) as agent:
            await agent.attend()
    for number in range(5):
        async with plain.agent("node-2", instance="ab"[number % 2]) as agent:
            await agent.attend()
    assert said() == [0]
    for instance in "ab":
        plain.clock.ahead += 31
        async with plain.agent(instance=instance) as agent:
            await agent.attend()
    assert said() == [0, 11]
    heard = [node for node, _ in plain.intake.conflicts]
    assert heard == ["node-1"] * 9 + ["node-2"] * 2 + ["node-1"] * 2, (
        "whoever evaluates hears of each"
    )


async def test_an_agent_that_is_restarted_again_and_again_is_no_conflict(plain: Site) -> None:
    for instance in range(6):
        async with plain.agent(instance=f"i-{instance}") as agent:
            await agent.attend()
    assert plain.intake.conflicts == []


# -- the way back -------------------------------------------------------------------------------


async def test_a_stream_closed_by_the_controller_in_the_middle_of_a_message_ends_cleanly(
    plain: Site,
) -> None:
    def close(*_: object) -> None:
        plain.intake.lines["node-1"].close("go away")

    async with plain.agent() as agent:
        await agent.attend()
        plain.intake.safe = close
        await agent.delta(seq=2)
        assert await agent.ending() == (Code.UNAVAILABLE, "go away")
        # Later requests to it go nowhere, quietly.
        plain.intake.lines["node-1"].resync("too late")
        plain.intake.lines["node-1"].close("again")
    assert plain.stats.ended == {"closed": 1}


# -- time ---------------------------------------------------------------------------------------


async def test_an_agent_that_says_nothing_any_more_is_let_go(plain: Site) -> None:
    async with plain.agent() as agent, plain.agent("node-2") as other:
        await agent.attend()
        await other.attend()
        plain.clock.ahead += 50
        await other.beat(0)
        await other.expect("resync")
        plain.clock.ahead += 20
        assert await agent.ending() == (Code.DEADLINE_EXCEEDED, "no message for 60 s")
        assert plain.stats.attached == 1


async def test_a_flood_is_slowed_down_and_delays_no_other(plain: Site) -> None:
    async with plain.agent() as flooding, plain.agent("node-2") as other:
        await flooding.attend()
        await other.attend()
        for seq in range(2, 300):
            await flooding.delta(seq=seq)
        await until(lambda: plain.stats.throttled)
        await other.delta(seq=2)
        assert (await asyncio.wait_for(other.expect("ack"), 10)).seq == 2
        assert plain.stats.messages["delta"] < 290


async def test_a_new_stream_of_a_node_has_no_new_allowance(plain: Site) -> None:
    """Otherwise a flooding agent would end its stream after 200 messages, and have 200 more."""

    async def flood(count: int) -> None:
        async with plain.agent() as agent:
            await agent.hello()
            await agent.expect("welcome")
            for seq in range(1, count):
                await agent.snapshot(seq=seq)
            while (await agent.expect("ack")).seq < count - 1:
                pass

    started = plain.clock.now()
    await flood(150)
    assert plain.stats.throttled == 0
    async with plain.agent("node-2") as other:  # an agent that was quiet has its whole share
        await other.attend()
    await flood(150)
    taken = plain.clock.now() - started
    assert plain.stats.throttled > 0
    # 300 messages, 20 a second and 200 at once.
    assert taken > 3


async def test_work_that_a_message_causes_counts_as_messages_do(plain: Site) -> None:
    def work(*_: object) -> None:
        plain.clock.ahead += 0.2  # seconds of the event loop

    async with plain.agent() as agent:
        await agent.attend()
        plain.intake.safe = work
        seq = 1
        while not plain.stats.throttled and seq < 30:
            seq += 1
            await agent.delta(seq=seq)
            assert (await agent.expect("ack")).seq == seq
    assert 3 < seq < 30


async def test_an_agent_that_does_not_read_is_cut_off(plain: Site) -> None:
    async with plain.agent() as agent:
        await agent.attend()
        line = of_type(plain.intake.lines["node-1"], Stream)

        def cut_off() -> bool:
            for _ in range(20):  # the window grows as grpc likes: go on until it is full
                line.cancel_repair("op-1", "x" * 10_000)
            return plain.stats.attached == 0

        await until(cut_off)
        assert plain.stats.ended == {"slow_reader": 1}
        assert plain.intake.events[-1][0] == "detached"
        code, text = await agent.ending()  # when it reads at last
        assert (code, text) == (Code.RESOURCE_EXHAUSTED, "the agent does not read what it is sent")


async def test_stopping_sends_every_agent_elsewhere_at_once(plain: Site) -> None:
    async with plain.agent() as one, plain.agent("node-2") as two:
        await one.attend()
        await two.attend()
        await plain.server.stop()
        for agent in (one, two):
            code, text = await agent.ending()
            assert code is Code.UNAVAILABLE
            assert "the aggregator stops" in text


async def test_who_does_not_say_hello_or_send_a_snapshot_in_time_is_let_go(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.ingest.stream.SNAPSHOT_WITHIN", 0.2)
    async with plain.agent("node-2") as empty:
        await empty.hello()
        assert await empty.ending() == (Code.DEADLINE_EXCEEDED, "no Snapshot within 0.2 s")
    monkeypatch.setattr("aggregator.ingest.agent_exchange.HELLO_WITHIN", 0.2)
    async with plain.agent() as mute:
        assert await mute.ending() == (Code.DEADLINE_EXCEEDED, "no Hello within 0.2 s")
    assert plain.stats.refused == {"no_hello": 1}
    assert plain.stats.ended == {"no_snapshot": 1}


async def test_too_much_that_waits_to_be_safe_is_asked_for_again_as_one_snapshot(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.ingest.send_queue.MAX_UNSAFE", 5)
    loop = asyncio.get_running_loop()
    async with plain.agent() as agent:
        await agent.attend()
        plain.intake.safe = lambda *_: loop.create_future()
        for seq in range(2, 8):
            await agent.delta(seq=seq)
        code, text = await agent.ending()
    assert code is Code.UNAVAILABLE
    assert "one snapshot" in text
    assert len(plain.intake.evidence) == 6


async def test_a_stream_that_has_ended_is_freed_without_a_search_for_garbage(plain: Site) -> None:
    """Such a search holds up all streams where thousands are attached, and so it is rare."""

    def streams() -> int:
        return sum(type(one) is Stream for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        async with plain.agent() as left, plain.agent("node-2") as wrong:
            await left.attend()
            await wrong.attend()
            assert streams() == 2
            await left.call.done_writing()
            await wrong.hello()
            assert (await wrong.ending())[0] is Code.INVALID_ARGUMENT
        plain.intake.lines.clear()  # the real one forgets agents that have detached
        await until(lambda: streams() == 0)
    finally:
        gc.enable()
