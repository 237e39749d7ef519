"""Agents at a gateway, and the controller that receives them: real listeners, TLS, tokens."""

import asyncio
import itertools
import socket
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from aggregator.health.model import Delta, Snapshot
from aggregator.relay import abandoned as abandoned_module
from aggregator.relay import client as client_module
from aggregator.relay import gateway as gateway_module
from aggregator.relay import resync_pacer
from aggregator.relay import server as server_module
from aggregator.relay import unserved as unserved_module
from aggregator.relay.frame_queue import AT_ONCE, BATCH_SPACING, FrameQueue
from aggregator.relay.protocol import AGENT_MESSAGES, PART_BYTES
from sickbay.v1 import relay_pb2 as frames
from sickbay.v1 import sickbay_pb2 as pb
from tests.support import evidence as said
from tests.support.pki import TokenIssuer
from tests.support.present import present
from tests.support.relay_frames import hello, message, opened, snapshot
from tests.support.relays import ISSUER, PROBE_KEY, PlayedReplica, replica_token, replicas
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import PATIENCE, until

STRANGER = TokenIssuer(algorithm="ES256")  # the same kid, another key


def takes_connections(replica: PlayedReplica) -> bool:
    try:
        socket.create_connection(("localhost", replica.listener.port)).close()
    except ConnectionRefusedError:
        return False
    return True


# -- an agent at a gateway -------------------------------------------------------------------------


async def test_an_agents_messages_reach_the_controller_and_its_acks_the_agent(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        controller, gateway = site.all["a"], site.all["b"]
        async with gateway.agent() as agent:
            await agent.attend()
            await agent.delta(seq=2)
            assert (await agent.expect("ack")).seq == 2
            assert controller.streams is not None
            assert controller.streams.stats.attached == 1
            assert gateway.gateway.stats.attached == 1
            assert gateway.kept_keys == [PROBE_KEY]
            controller.intake.lines["node-1"].resync("for a test")
            assert (await agent.expect("resync")).reason == "for a test"
        await until(lambda: any(e[0] == "detached" for e in controller.intake.events))
        assert gateway.gateway.stats.attached == 0


async def test_the_controllers_own_agents_need_no_relay(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site, site.all["a"].agent() as agent:
        await agent.attend()
        assert site.all["a"].intake.hellos[0].node_uid == "uid-of-node-1"


async def test_a_welcome_promises_the_gateways_answers_and_it_answers_each_heartbeat(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        controller, gateway = site.all["a"], site.all["b"]
        async with gateway.agent() as agent:
            await agent.hello()
            welcome = await agent.expect("welcome")
            assert welcome.answer_within_ms == 12_000
            assert welcome.address == gateway.address.address
            await agent.snapshot()
            await agent.expect("ack")
            for one in site.all.values():
                one.lease.name(None)
            await until(lambda: not gateway.gateway.relayed)
            await agent.beat(7)
            assert (await agent.expect("ack")).seq == 0
            assert ("beat", "node-1") not in controller.intake.events


async def test_heartbeats_whose_digest_is_agreed_end_at_the_gateway_and_count_at_the_controller(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        controller, gateway = site.all["a"], site.all["b"]
        controller.intake.digests["node-1"] = 7
        async with gateway.agent() as agent:
            await agent.attend()
            await agent.beat(7)
            [call] = gateway.gateway._calls.values()
            await until(lambda: call._agreed == 7)
            before = controller.intake.events.count(("beat", "node-1"))
            controller.intake.digests["node-1"] = 8  # seen only if the heartbeat is forwarded
            await agent.beat(7)
            await until(
                lambda: controller.intake.events.count(("beat", "node-1")) == before + 1, within=10
            )
            site.clock.ahead += 61.0
            await agent.beat(7)
            assert (await agent.expect("ack")).seq == 0
            while (told := await agent.receive()).WhichOneof("body") == "ack":
                pass
            assert told.WhichOneof("body") == "resync", "one in a minute is forwarded in any case"


async def test_evidence_ends_an_agreement(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        site.all["a"].intake.digests["node-1"] = 7
        async with site.all["b"].agent() as agent:
            await agent.attend()
            await agent.beat(7)
            [call] = site.all["b"].gateway._calls.values()
            await until(lambda: call._agreed == 7)
            await agent.delta(seq=2)
            await until(lambda: call._agreed is None)


async def test_a_message_of_megabytes_goes_in_parts(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site, site.all["b"].agent() as agent:
        await agent.attend()
        told = said.delta(Delta(), seq=2)
        for number in range(1_000):
            told.delta.cleared.add(code=f"c-{number}", component="x" * 3_000, how="operator")
        assert told.ByteSize() > 10 * PART_BYTES
        await agent.send(told)
        # More signs than the contract allows: those within it were taken.
        assert (await agent.expect("entries_dropped")).seq == 2
        assert (await agent.expect("ack")).seq == 2


async def test_a_renewed_token_reaches_the_controller(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site, site.all["b"].agent() as agent:
        await agent.attend()
        renewed = pb.Credentials(token=ISSUER.token("node-1", expires_in=90_000))
        await agent.send(pb.AgentMessage(credentials=renewed))
        streams = present(site.all["a"].streams)
        await until(lambda: streams.stats.renewed == 1)
        stolen = pb.Credentials(token=ISSUER.token("node-2"))
        await agent.send(pb.AgentMessage(credentials=stolen))
        code, text = await agent.ending()
        assert code is grpc.StatusCode.PERMISSION_DENIED, text


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (STRANGER.token("node-1"), grpc.StatusCode.UNAUTHENTICATED),
        (ISSUER.token("node-2"), grpc.StatusCode.PERMISSION_DENIED),
        (replica_token(), grpc.StatusCode.UNAUTHENTICATED),
    ],
)
async def test_a_gateway_refuses_what_the_controller_would(
    tmp_path: Path, token: str, code: grpc.StatusCode
) -> None:
    async with replicas(tmp_path, "a", "b") as site, site.all["b"].agent(token=token) as agent:
        await agent.try_hello()
        assert (await agent.ending())[0] is code


async def test_a_newer_call_of_a_node_closes_the_older(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        gateway = site.all["b"]
        async with gateway.agent() as older, gateway.agent(instance="i-2") as newer:
            await older.attend()
            await newer.attend()
            assert (await older.ending())[0] is grpc.StatusCode.ABORTED
            await newer.delta(seq=2)
            await newer.expect("ack")
            streams = present(site.all["a"].streams)
            assert (streams.stats.attached, streams.stats.superseded) == (1, 1)


# -- another controller ----------------------------------------------------------------------------


async def test_agents_keep_their_streams_when_another_replica_takes_over(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b", "c") as site:
        b, c = site.all["b"], site.all["c"]
        async with b.agent("n-b") as at_b, c.agent("n-c") as at_c:
            await at_b.attend()
            await at_c.attend()
            site.all["a"].service.close("killed")
            for one in site.all.values():
                one.lease.name(None)
            await until(lambda: not b.gateway.relayed and not c.gateway.relayed)
            await at_c.delta(seq=2)  # taken, and not acknowledged
            await until(lambda: c.gateway.dropped == 1)
            intake = site.elect("b")
            for agent in (at_b, at_c):
                assert (await agent.expect("resync")).reason
            await at_b.snapshot(seq=2)
            assert (await at_b.expect("ack")).seq == 2  # it has had its Welcome
            intake.digests["n-b"] = 7
            await at_b.beat(7)
            assert (await at_b.expect("ack")).seq == 0, "as it was promised by the gateway"
            await at_c.delta(seq=3)  # before its snapshot: not forwarded
            await at_c.snapshot(seq=4)
            assert (await at_c.expect("ack")).seq == 4
            told = [(node, type(one)) for node, one, _ in intake.evidence]
            assert sorted(told, key=lambda one: one[0]) == [("n-b", Snapshot), ("n-c", Snapshot)]
            assert b.streams is not None
            for stream in b.streams.table.streams():
                stream.name_peers()
            for agent in (at_b, at_c):
                assert (await agent.expect("welcome")).aggregator == "b"
            assert (b.gateway.stats.superseded, c.gateway.stats.ended.total()) == (0, 0)


async def test_an_agent_that_came_without_a_controller_is_welcomed_by_the_first(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path) as site:
        a, b = await site.start("a"), await site.start("b")
        b.start_client()
        async with a.agent("n-a") as at_a, b.agent("n-b") as at_b:
            for agent in (at_a, at_b):
                await agent.hello()
            await until(lambda: a.gateway.stats.attached == b.gateway.stats.attached == 1)
            site.elect("a")
            for agent in (at_a, at_b):
                await agent.expect("welcome")
                await agent.snapshot()
            for agent in (at_a, at_b):
                assert (await agent.expect("ack")).seq == 1


async def test_without_a_controller_a_gateway_refuses_an_agents_request_to_begin_at_once(
    tmp_path: Path,
) -> None:
    def request(operation: str) -> pb.AgentMessage:
        told = pb.PermissionRequest(operation_id=operation, quarantine_uid="uid")
        return pb.AgentMessage(permission_request=told)

    async with replicas(tmp_path, "a", "b") as site:
        b = site.all["b"]
        async with b.agent() as agent:
            await agent.attend()
            await agent.send(request("op-1"))
            assert (await agent.expect("permission")).operation_id == "op-1"
            assert b.gateway._calls[1]._requested == "", "the controller has answered it"
            b.gateway._calls[1]._requested = "op-2"  # forwarded, and the controller dies
            for one in site.all.values():
                one.lease.name(None)
            answer = await agent.expect("permission")
            assert (answer.operation_id, answer.granted) == ("op-2", False)
            await agent.send(request("op-3"))
            answer = await agent.expect("permission")
            assert (answer.operation_id, answer.granted) == ("op-3", False)
            assert answer.reason == "there is no controller now"
            site.elect("a")
            await agent.expect("resync")
            await agent.send(request("op-4"))  # before its snapshot: not forwarded
            answer = await agent.expect("permission")
            assert (answer.operation_id, answer.granted) == ("op-4", False)
            assert answer.reason == "the controller has no snapshot of this agent yet"
            await agent.snapshot(seq=2)
            await agent.expect("ack")


async def test_a_controller_that_stops_ends_no_call_of_a_gateways_agents(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        async with b.agent() as agent:
            await agent.attend()
            assert a.streams is not None
            a.service.close("the controller stops")
            a.streams.close()
            await until(lambda: not b.gateway.relayed)
            assert b.gateway.connected == 1
            a.become_controller()
            await agent.expect("resync")


@pytest.fixture
def one_snapshot_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync_pacer, "AHEAD", 1)
    monkeypatch.setattr(resync_pacer, "AHEAD_BUSY", 1)
    monkeypatch.setattr(resync_pacer, "MISSED_AFTER", 0.2)


@pytest.mark.usefixtures("one_snapshot_at_a_time")
async def test_agents_whose_evidence_was_dropped_come_first(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        b = site.all["b"]
        async with b.agent("n-0") as first, b.agent("n-1") as second:
            await first.attend()
            await second.attend()
            for one in site.all.values():
                one.lease.name(None)
            await until(lambda: not b.gateway.relayed)
            await second.delta(seq=2)
            await until(lambda: b.gateway.dropped == 1)
            site.elect("a")
            hellos = site.all["a"].intake.hellos
            await until(lambda: len(hellos) == 4)
            assert [told.node for told in hellos[2:]] == ["n-1", "n-0"]


@pytest.mark.usefixtures("one_snapshot_at_a_time")
async def test_agents_whose_evidence_no_controller_acknowledged_come_first(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        async with b.agent("n-0") as first, b.agent("n-1") as second:
            await first.attend()
            await second.attend()
            unsaved = asyncio.get_running_loop().create_future()
            a.intake.safe = lambda *_: unsaved
            await second.delta(seq=2)
            await until(lambda: isinstance(a.intake.evidence[-1][1], Delta))
            a.intake.safe = None
            for one in site.all.values():
                one.lease.name(None)
            await until(lambda: not b.gateway.relayed)
            site.elect("a")
            hellos = a.intake.hellos
            await until(lambda: len(hellos) == 4)
            assert [told.node for told in hellos[2:]] == ["n-1", "n-0"]


@pytest.mark.usefixtures("one_snapshot_at_a_time")
async def test_agents_that_came_without_a_controller_come_before_those_that_were_welcomed(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        b = site.all["b"]
        async with b.agent("n-0") as first, b.agent("n-1") as second:
            await first.attend()
            for one in site.all.values():
                one.lease.name(None)
            await until(lambda: not b.gateway.relayed)
            await second.hello()
            await until(lambda: b.gateway.stats.attached == 2)
            site.elect("a")
            hellos = site.all["a"].intake.hellos
            await until(lambda: len(hellos) == 3)
            assert [told.node for told in hellos[1:]] == ["n-1", "n-0"]


async def test_a_controller_that_stops_without_an_end_is_left_after_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        await until(lambda: b.gateway.relayed and bool(a.service._links))
        [link] = a.service._links
        b.lease.renewed = False
        monkeypatch.setattr(link._queue, "wait", lambda _: asyncio.Event().wait())
        await until(lambda: not b.gateway.relayed)
        assert b.client.trouble == "the controller has sent no message for 4 s"
        await until(lambda: b.gateway.relayed, "and connected to again")


async def test_a_controller_that_is_busy_and_renews_the_lease_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        async with b.agent() as agent:
            await agent.attend()
            [link] = a.service._links
            idle, looks, wait = asyncio.Event(), 0, link._queue.wait

            async def wait_until_idle(seconds: float) -> None:
                await idle.wait()
                await wait(seconds)

            def renewed_within(_: float) -> bool:
                nonlocal looks
                looks += b.client._silent
                return True

            monkeypatch.setattr(link._queue, "wait", wait_until_idle)
            monkeypatch.setattr(b.lease, "renewed_within", renewed_within)
            await until(lambda: b.client._silent)
            # Each look counts as half a second without a message.
            monkeypatch.setattr(client_module, "POLL_EVERY", 0.1)
            seen = looks
            await until(lambda: looks > seen + 20)
            assert b.gateway.connected == 1
            monkeypatch.setattr(client_module, "POLL_EVERY", 0.5)
            idle.set()
            await until(lambda: not b.client._silent)
            assert (b.gateway.relayed, a.service._links) == (True, {link})
            assert len(a.intake.hellos) == 1, "the agent's stream began anew"
            # One that never sends again is left in the end.
            idle.clear()
            monkeypatch.setattr(client_module, "POLL_EVERY", 0.1)
            await until(lambda: link not in a.service._links)
            idle.set()


async def test_agents_that_are_left_stay_once_the_controller_is_reached_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "SLICE", 1)
    async with replicas(tmp_path, "a", "b") as site:
        b = site.all["b"]
        async with b.agent("n-0") as first, b.agent("n-1") as second:
            await first.attend()
            await second.attend()
            b.listener.close_port()
            await b.gateway.end_calls("elsewhere", still=lambda: not b.gateway.relayed)
            assert (await first.ending())[1] == "elsewhere"
            await b.listener.open_port()
            await second.delta(seq=2)
            await second.expect("ack")
            async with b.agent("n-0") as again:
                await again.attend()


async def test_a_gateway_that_sends_nothing_is_left_after_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "POLL_EVERY", 0.1)
    async with replicas(tmp_path, "a") as site, site.all["a"].relay() as relay:
        await relay.begin()
        await relay.frames(opened(1))
        await until(lambda: len(site.all["a"].intake.hellos) == 1)
        code, text = await relay.ending()
        assert (code, text) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "the gateway has sent no message for 16 s",
        )
        await until(lambda: any(e[0] == "detached" for e in site.all["a"].intake.events))


async def test_a_gateway_that_connects_anew_ends_its_silent_relay_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(tmp_path, "a", "b") as site, site.all["a"].relay() as silent:
        service = site.all["a"].service
        await silent.begin()
        await until(lambda: any(link.silent_for >= 4 for link in service._links))
        async with site.all["a"].relay() as anew:
            await anew.begin()
            code, text = await silent.ending()
            assert (code, text) == (
                grpc.StatusCode.UNAVAILABLE,
                "the gateway has connected anew",
            )
            async with site.all["a"].relay() as another:
                await another.begin()
                await until(lambda: len(service._links) == 3)


async def test_a_gateway_whose_batch_takes_long_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_AT_ONCE", 1)
    async with replicas(tmp_path, "a") as site, site.all["a"].relay() as relay:
        await relay.begin()
        await until(lambda: bool(site.all["a"].service._links))
        [link] = site.all["a"].service._links
        take = link._take

        def take_slowly(frame: frames.AgentFrame) -> None:
            # From the first frame on: then the time that the batch takes is all that counts.
            monkeypatch.setattr(server_module, "POLL_EVERY", 0.05)
            time.sleep(0.06)
            take(frame)

        monkeypatch.setattr(link, "_take", take_slowly)
        await relay.frames(*(opened(number, f"node-{number}") for number in range(1, 61)))
        await until(lambda: len(site.all["a"].intake.hellos) == 60)


async def test_a_gateway_that_reaches_no_controller_leaves_its_agents_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (client_module, unserved_module):
        monkeypatch.setattr(module, "UNSERVED_FOR", 1.0)
    async with replicas(tmp_path, "a", "b") as site:
        b = site.all["b"]
        async with b.agent() as agent:
            await agent.attend()
            dead = site.all["a"].address
            site.all["a"].service.close("cut off")
            code, text = await agent.ending()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "has not reached the controller for 1 s" in text
            assert "FAILED_PRECONDITION: this replica is not the controller" in b.gateway.problem
            # Connections are refused, so that an agent goes on to another address of the name.
            await until(lambda: not takes_connections(b))
            b.lease.renewed = False  # nobody renews the Lease: all wait for another controller
            await until(lambda: takes_connections(b))
            assert (b.gateway.problem, b.lease.named) == ("", dead)


async def test_a_gateway_keeps_its_agents_while_a_busy_controller_has_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (client_module, unserved_module):
        monkeypatch.setattr(module, "UNSERVED_FOR", 1.0)
    monkeypatch.setattr(client_module, "ANSWERED_WITHIN", 0.5)
    monkeypatch.setattr(client_module, "BUSY_AFTER", 0.1)
    monkeypatch.setattr(client_module, "BUSY_FOR", PATIENCE)
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        async with b.agent() as agent:
            await agent.attend()
            idle, looks = asyncio.Event(), 0
            greet, controller = a.service._gateway_hello, b.lease.other

            async def greet_late(context: Any) -> Any:
                await idle.wait()
                return await greet(context)

            def count_looks() -> Any:
                nonlocal looks
                looks += b.client._busy
                return controller()

            monkeypatch.setattr(a.service, "_gateway_hello", greet_late)
            monkeypatch.setattr(b.lease, "other", count_looks)
            [link] = a.service._links
            link.end("cut")
            await until(lambda: looks > 6)  # 3 s
            assert (b.gateway.problem, b.gateway.relayed, b.gateway.connected) == ("", False, 1)
            idle.set()
            await until(lambda: b.gateway.relayed and bool(a.service._links))
            # From now on it accepts connections and never answers.
            idle.clear()
            monkeypatch.setattr(unserved_module, "BUSY_FOR", 2.0)
            [link] = a.service._links
            link.end("cut")
            code, text = await agent.ending()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "has not reached the controller" in text
            assert b.client._busy
            idle.set()


async def test_a_controller_that_all_have_left_and_whose_lease_stands_still_leaves_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned_module, "UNSERVED_FOR", 1.0)
    async with replicas(tmp_path, "a", "b") as site:
        a, b = site.all["a"], site.all["b"]
        renewed, looks = True, 0

        def may_act() -> bool:
            nonlocal looks
            looks += 1
            return renewed

        watch = abandoned_module.AbandonedWatch(
            a.gateway, a.service, may_act=may_act, now=lambda: looks / 2
        )
        async with a.agent() as agent, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run())
            await agent.attend()
            await until(lambda: bool(a.service.gateways))
            renewed = False  # the API server is away for all: the gateway stays, and so do agents
            seen = looks
            await until(lambda: looks > seen + 4)
            assert not a.gateway.problem
            b.lease.name(None)
            code, text = await agent.ending()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "all gateways have left it" in text
            async with a.agent() as another:
                await another.try_hello()
                assert (await another.ending())[0] is grpc.StatusCode.UNAVAILABLE
            renewed = True  # at its own version: there was no other
            await until(lambda: not a.gateway.problem)
            watching.cancel()


async def test_a_gateway_that_served_nobody_serves_agents_as_the_controller(tmp_path: Path) -> None:
    async with replicas(tmp_path) as site:
        a = await site.start("a")
        a.gateway.problem = "it reached no controller"
        a.become_controller()
        async with a.agent() as agent:
            await agent.attend()


# -- gateways that can't be trusted ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (replica_token(STRANGER), grpc.StatusCode.UNAUTHENTICATED),
        (replica_token(expires_in=-3600), grpc.StatusCode.UNAUTHENTICATED),
        (replica_token(audience="sickbay"), grpc.StatusCode.UNAUTHENTICATED),
        (replica_token(account="sickbay:sickbay-agent"), grpc.StatusCode.PERMISSION_DENIED),
        (ISSUER.token("node-1"), grpc.StatusCode.UNAUTHENTICATED),
    ],
)
async def test_only_a_replicas_token_opens_a_relay(
    tmp_path: Path, token: str, code: grpc.StatusCode
) -> None:
    async with replicas(tmp_path, "a") as site, site.all["a"].relay(token) as relay:
        assert (await relay.ending())[0] is code


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("", grpc.StatusCode.UNAUTHENTICATED),
        (STRANGER.token("node-1"), grpc.StatusCode.UNAUTHENTICATED),
        (ISSUER.token("node-2"), grpc.StatusCode.PERMISSION_DENIED),
        (replica_token(), grpc.StatusCode.UNAUTHENTICATED),
    ],
)
async def test_a_stolen_replica_token_speaks_for_no_node(
    tmp_path: Path, token: str, code: grpc.StatusCode
) -> None:
    async with replicas(tmp_path, "a") as site, site.all["a"].relay() as relay:
        await relay.begin()
        await relay.frames(opened(1, token=token), snapshot(1), opened(2, "node-3"), snapshot(2))
        frame = await relay.frame("ended")
        assert (frame.stream, frame.ended.code) == (1, code.value[0])
        intake = site.all["a"].intake
        await until(lambda: bool(intake.evidence))
        assert {node for node, _, _ in intake.evidence} == {"node-3"}


async def test_a_gateway_of_another_protocol_is_refused_and_of_another_version_is_not(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a") as site:
        async with site.all["a"].relay(protocol=2, version="9.0") as relay:
            await relay.send(hello=frames.GatewayHello(protocol=2, name="g", version="9.0"))
            code, text = await relay.ending()
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "version 9.0, speaks relay protocol 2, and this controller 1" in text
        async with site.all["a"].relay(version="9.0") as relay:
            assert (await relay.begin()).version == "0.1.0"
            await until(lambda: site.all["a"].service.gateways == {"g": "9.0"})


async def test_a_replica_that_is_not_the_controller_refuses_gateways(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        async with site.all["b"].relay() as relay:
            await relay.send(hello=frames.GatewayHello(protocol=1, name="g", version="0.1.0"))
            assert await relay.ending() == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "this replica is not the controller",
            )
        async with site.all["a"].relay() as relay:
            await relay.begin()
            site.all["a"].holds = False  # its Lease was not renewed in time
            assert await relay.ending() == (
                grpc.StatusCode.UNAVAILABLE,
                "this replica is not the controller any more",
            )


async def test_hostile_frames_end_their_own_stream_or_relay_and_no_other(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        controller: PlayedReplica = site.all["a"]
        async with site.all["b"].agent("n-b") as agent:
            await agent.attend()
            async with controller.relay() as relay:
                await relay.begin()
                garbage = frames.AgentFrame(stream=1, message=b"\xff\xff\xff")
                await relay.frames(opened(1), snapshot(1), garbage)
                assert (await relay.frame("ended")).ended.message.startswith("a message that is no")
                again = opened(2, instance="i-2")
                await relay.frames(again, snapshot(2, seq=5), snapshot(2, seq=3))
                assert "3 after 5" in (await relay.frame("ended")).ended.message
                await relay.frames(opened(3, instance="i-3"), message(3, hello()))
                assert "Snapshot must come" in (await relay.frame("ended")).ended.message
                unknown = frames.AgentFrame(stream=77, message=b"x")
                closed = frames.AgentFrame(stream=78, closed=frames.AgentClosed())
                await relay.frames(unknown, closed, frames.AgentFrame(stream=1))
                await relay.frames(opened(4, "n-4"), opened(4, "n-4"))
                code, text = await relay.ending()
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert text == "stream 4 is opened a second time"
            async with controller.relay() as relay:
                await relay.send(frames=[opened(1)])
                code, text = await relay.ending()
                assert (code, text) == (
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "the first batch must be the gateway's hello",
                )
            await agent.delta(seq=2)
            assert (await agent.expect("ack")).seq == 2


async def test_a_repeated_message_changes_nothing_and_is_acknowledged_again(tmp_path: Path) -> None:
    async with replicas(tmp_path, "a") as site, site.all["a"].relay() as relay:
        await relay.begin()
        twice = message(1, said.delta(Delta(), seq=2))
        await relay.frames(opened(1), snapshot(1), twice, twice)
        await until(lambda: len(site.all["a"].intake.evidence) == 3)
        while True:
            frame = await relay.frame("message")
            told = pb.AggregatorMessage.FromString(frame.message)
            if told.HasField("ack") and told.ack.seq == 2:
                break


async def test_more_messages_than_may_wait_end_the_stream_that_does_not_take_them(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a") as site, site.all["a"].relay() as relay:
        await relay.begin()
        beats = [message(1, said.heartbeat(1)) for _ in range(2 * AGENT_MESSAGES + 300)]
        await relay.frames(opened(1), snapshot(1), opened(2, "n-2"), *beats, snapshot(2))
        ended = await relay.frame("ended")
        assert (ended.stream, ended.ended.message) == (1, "more of its messages wait than may")
        await until(lambda: any(node == "n-2" for node, _, _ in site.all["a"].intake.evidence))


# -- bounds at the gateway -------------------------------------------------------------------------


async def test_a_full_relay_drops_evidence_and_asks_for_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        b = site.all["b"]
        async with b.agent() as agent:
            await agent.attend()
            link = present(b.gateway._link)
            with monkeypatch.context() as full:
                full.setattr(link.queue, "has_room", lambda *_: False)
                await agent.delta(seq=2)
                await until(lambda: b.gateway.dropped == 1)
            assert (await agent.expect("resync")).reason
            await agent.delta(seq=3)  # sent before the agent read the resync
            await agent.snapshot(seq=4)
            assert (await agent.expect("ack")).seq == 4
            kinds = [type(one) for _, one, _ in site.all["a"].intake.evidence]
            assert kinds == [Snapshot, Snapshot]


def test_a_queue_is_bounded_in_all_and_for_each_stream() -> None:
    queue: FrameQueue[frames.AgentFrame] = FrameQueue(most_bytes=1_000, most_of_one=400)
    assert queue.has_room(1, 400)
    queue.put(frames.AgentFrame(stream=1, message=b"x" * 200))
    assert not queue.has_room(1, 200)
    assert queue.has_room(2, 200)
    queue.put(frames.AgentFrame(stream=2, message=b"x" * 300))
    queue.put(frames.AgentFrame(stream=3, message=b"x" * 200))
    assert not queue.has_room(4, 200)
    assert [frame.stream for frame in queue.take(300)] == [1, 2]
    assert queue.has_room(4, 200)
    assert [frame.stream for frame in queue.take(1)] == [3]
    assert (queue.take(1), queue.bytes) == ([], 0)


@in_virtual_time
async def test_a_frame_waits_for_others_only_where_many_batches_came_before_it() -> None:
    queue: FrameQueue[frames.AgentFrame] = FrameQueue(most_bytes=1_000, most_of_one=400)
    sent = []
    for number in range(AT_ONCE + 3):
        queue.put(frames.AgentFrame(stream=number, message=b"x"))
        await queue.wait(1.0)
        assert len(queue.take(100)) == 1
        sent.append(loop_time())
    paces = [after - before for before, after in itertools.pairwise(sent)]
    assert paces[: AT_ONCE - 1] == [0] * (AT_ONCE - 1)
    assert paces[AT_ONCE - 1 :] == pytest.approx([BATCH_SPACING] * 3)
    await asyncio.sleep(AT_ONCE * BATCH_SPACING)
    queue.put(frames.AgentFrame(stream=0, message=b"x"))
    late = loop_time()
    await queue.wait(1.0)
    assert loop_time() == late
