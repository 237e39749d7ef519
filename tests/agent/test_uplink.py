"""The stream between a real agent process and a real gRPC server: no event is lost or doubled."""

import asyncio
import time

import grpc
import pytest

from nodeagent.clock import SystemClock
from nodeagent.config.settings import UplinkConfig
from nodeagent.simulate.node import SimulatedNode
from nodeagent.uplink.dialer import Dialer
from nodeagent.uplink.uplink import Uplink
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.agent_process import Make
from tests.agent.kernel_log import log_line
from tests.agent.simulated import simulated_node
from tests.support.fake_aggregator import Attended, FakeAggregator
from tests.support.waiting import until

GPU = "pci:0000:3b:00"
XID_79 = ("xid:79", GPU)


async def attended(aggregator: FakeAggregator, count: int = 1) -> Attended:
    """The newest stream, once ``count`` have come and it has sent its snapshot."""
    await until(
        lambda: len(aggregator.streams) >= count and "snapshot" in aggregator.latest.kinds(),
        within=20,
    )
    return aggregator.latest


# -- the life of a stream -------------------------------------------------------------------------


async def test_hello_then_snapshot_then_a_delta_for_a_new_fault(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    assert stream.kinds()[:2] == ["hello", "snapshot"]
    assert stream.hello.node == "node-a"
    assert {"kernel", "arch"} <= set(stream.hello.traits)
    assert {"xid", "gpu-ecc", "kernel-log"} <= {check.name for check in stream.hello.checks}
    agent.xid(79)
    await until(lambda: XID_79 in stream.faults)
    fault = stream.faults[XID_79]
    assert (fault.source, fault.source_seq, fault.count) == ("kmsg", 1, 1)
    assert fault.boot_id == stream.hello.boot_id
    assert fault.first_age_ms < 5000
    assert not fault.historical


async def test_the_digest_agrees_with_whoever_folds_the_stream(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    for turn in range(30):
        agent.xid(48 + turn % 3)
        await asyncio.sleep(0.05)
    seen = len(stream.digests)
    await until(lambda: len(stream.digests) >= seen + 2)
    assert all(told == own for told, own in stream.digests)
    stream.send(clear_faults=pb.ClearFaults(command_id="c", component=GPU))
    seen = len(stream.digests)
    await until(lambda: len(stream.digests) >= seen + 2)
    assert stream.faults == {}
    assert all(told == own for told, own in stream.digests)


async def test_kill_9_in_a_burst_loses_no_fault_and_doubles_no_count(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address, replayable=True).start()
    await attended(aggregator)
    written: dict[int, int] = {}
    for kill in range(4):
        for turn in range(100):
            code = 200 + (kill * 37 + turn * 7) % 50
            written[code] = written.get(code, 0) + 1
            agent.xid(code)
            if turn == 20 + 20 * kill:
                # Not before it has begun to read: a kill that comes too early would prove nothing.
                await until(lambda: len(aggregator.latest.faults) > 0)
                agent.kill()
        agent.start()
        await attended(aggregator, kill + 2)

    def counts() -> dict[int, int]:
        return {int(code[4:]): fault.count for (code, _), fault in aggregator.latest.faults.items()}

    await until(lambda: counts() == written, what="every line counted once")
    assert len({stream.hello.spool_epoch for stream in aggregator.streams}) == 1
    assert [stream.lost for stream in aggregator.streams] == [[], [], [], [], []]
    seqs = [
        message.snapshot.seq or message.delta.seq
        for stream in aggregator.streams
        for _, message in stream.messages
        if message.WhichOneof("body") in ("snapshot", "delta")
    ]
    assert seqs == sorted(set(seqs)), "a sequence number was used twice"


@pytest.mark.root
async def test_a_line_of_the_real_kernel_log_survives_kill_9(
    aggregator: FakeAggregator, make: Make
) -> None:
    # Others write Xids into this ring, and it keeps those of earlier runs.
    address = f"{int(time.time()) % 0xFF00 + 0x10:04x}:e7:00"
    agent = make(aggregator=aggregator.address, address=address)
    agent.kernel_log = "/dev/kmsg"
    agent.more_kernel_log = "insecure_accept_user_records = true"
    agent.start()
    first = await attended(aggregator)
    log_line(f"NVRM: Xid (PCI:{address}): 79, pid=1, name=a, GPU has fallen off the bus.")
    key = ("xid:79", f"pci:{address}")
    await until(lambda: key in first.faults)
    identity = first.faults[key].source_seq
    agent.kill()
    log_line(f"NVRM: Xid (PCI:{address}): 79, pid=2, name=a, GPU has fallen off the bus.")
    agent.start()
    second = await attended(aggregator, 2)
    await until(lambda: key in second.faults and second.faults[key].count == 2)
    assert second.faults[key].source_seq == identity


async def test_a_server_that_dies_misses_nothing(aggregator: FakeAggregator, make: Make) -> None:
    agent = make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    agent.xid(48)
    await until(lambda: ("xid:48", GPU) in stream.faults)
    address = aggregator.address
    await aggregator.stop()
    agent.xid(79)
    agent.xid(48)
    again = await FakeAggregator().start(address)
    try:
        stream = await attended(again)
        await until(lambda: XID_79 in stream.faults)
        assert stream.faults["xid:48", GPU].count == 2
        assert stream.hello.last_acked_seq > 0
    finally:
        await again.stop()


async def test_an_ack_frees_what_it_may_and_without_one_it_is_told_again(
    aggregator: FakeAggregator, make: Make
) -> None:
    aggregator.ack_all = False
    agent = make(aggregator=aggregator.address).start()
    first = await attended(aggregator)
    agent.xid(79)
    agent.line("something else", skip=5)
    await until(lambda: [lost.records for lost in first.lost] == [5])
    first.end()
    second = await attended(aggregator, 2)
    assert [lost.records for lost in second.lost] == [5]
    second.send(ack=pb.Ack(seq=second.messages[1][1].snapshot.seq))
    await until(lambda: not agent.state()["losses"])
    assert agent.state()["faults"], "an ack frees the delivery copy, never the latch"
    second.end()
    third = await attended(aggregator, 3)
    assert third.lost == []
    assert XID_79 in third.faults


async def test_a_resync_brings_a_snapshot_within_the_stream(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    agent.xid(79)
    await until(lambda: XID_79 in stream.faults)
    stream.faults.clear()
    stream.send(resync=pb.Resync(reason="the digests differ"))
    await until(lambda: XID_79 in stream.faults)
    assert stream.kinds().count("snapshot") == 2
    assert len(aggregator.streams) == 1
    assert stream.hello.boottime_ms, "told by an agent that allows no order, too"


async def test_a_burst_of_5000_lines_is_a_few_messages(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    before = len(stream.messages)

    def burst() -> None:
        for turn in range(5000):
            agent.xid(95 if turn % 2 else 48, pid=turn)

    await asyncio.to_thread(burst)
    await until(lambda: sum(fault.count for fault in stream.faults.values()) == 5000, within=20)
    deltas = stream.kinds()[before:].count("delta")
    assert deltas <= 10
    # The first and the last of a burst; a machine that takes long over it makes several of it.
    assert 2 <= len(stream.faults["xid:48", GPU].occurrence_ages_ms) <= 32


# -- refused ---------------------------------------------------------------------------------------


async def test_who_is_refused_comes_back_with_growing_pauses(
    aggregator: FakeAggregator, make: Make
) -> None:
    aggregator.refuse = grpc.StatusCode.UNAUTHENTICATED
    agent = await make(aggregator=aggregator.address).start().up()
    await until(lambda: "UNAUTHENTICATED: you are not known here" in agent.log())
    refused = aggregator.refused
    await until(lambda: aggregator.refused >= refused + 2, within=30)
    assert agent.log().count("UNAUTHENTICATED") == 1  # said once, not at each attempt
    aggregator.refuse = None
    await until(lambda: aggregator.streams, within=20)


# -- what is asked of it --------------------------------------------------------------------------


async def test_cleared_faults_are_told_and_stay_cleared_after_kill_9(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address, replayable=True).start()
    stream = await attended(aggregator)
    agent.xid(79)
    agent.xid(48)
    await until(lambda: len(stream.faults) == 2)
    stream.send(clear_faults=pb.ClearFaults(command_id="c1", code="xid:79", reason="replaced"))
    await until(lambda: stream.results and stream.cleared)
    assert stream.results[0] == pb.CommandResult(command_id="c1", ok=True, message="cleared 1")
    assert stream.cleared[0] == pb.Cleared(code="xid:79", component=GPU, how="operator")
    agent.kill()
    agent.start()
    again = await attended(aggregator, 2)
    assert set(again.faults) == {("xid:48", GPU)}


async def test_an_aggregator_without_the_agents_service_is_named_with_what_to_install(
    make: Make,
) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    agent = make(aggregator=f"127.0.0.1:{port}").start()
    said = (
        "no stream to the aggregator: the aggregator does not know this agent's service: there "
        "is no sickbay.v1.AgentGateway/Connect at its address; install agent and aggregator of the "
        "same version, or correct aggregator.address (UNIMPLEMENTED: "
    )
    try:
        await until(lambda: said in agent.log(), what=agent.log)
    finally:
        await server.stop(grace=0)


async def test_commands_that_make_no_sense_are_refused(
    aggregator: FakeAggregator, make: Make
) -> None:
    make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    stream.send(clear_faults=pb.ClearFaults(command_id="1"))
    stream.send(run_checks=pb.RunChecks(command_id="2", checks=["no-such"]))
    stream.send(quiesce=pb.Quiesce(command_id="3", for_ms=10**12))
    stream.send(run_checks=pb.RunChecks(command_id="4", checks=["gpu-ecc"]))
    await until(lambda: len(stream.results) == 4, within=20)
    answers = {result.command_id: result for result in stream.results}
    assert [answers[name].ok for name in "1234"] == [False, False, False, True]
    assert "no-such" in answers["2"].message


async def test_quiesce_is_told_in_the_next_snapshot(aggregator: FakeAggregator, make: Make) -> None:
    make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    stream.send(quiesce=pb.Quiesce(command_id="q", for_ms=60_000))
    await until(lambda: stream.results)
    assert stream.results[0].ok
    stream.send(resync=pb.Resync())
    await until(lambda: stream.kinds().count("snapshot") == 2)
    told = [m.snapshot for _, m in stream.messages if m.HasField("snapshot")][-1]
    assert 50_000 < told.quiesced_for_ms <= 60_000


async def test_sigterm_sends_what_is_pending_and_half_closes(
    aggregator: FakeAggregator, make: Make
) -> None:
    agent = make(aggregator=aggregator.address).start()
    stream = await attended(aggregator)
    agent.xid(79)
    assert await agent.terminate() == 0
    await until(lambda: stream.ended)
    assert XID_79 in stream.faults
    assert not agent.socket.exists()
    assert '"level": "error"' not in agent.log()


async def test_the_node_hears_of_each_heartbeat(aggregator: FakeAggregator) -> None:
    """So that its checks look when the agent is awake anyway."""
    node = simulated_node(aggregator.address, SimulatedNode)
    beats = list[float]()
    uplink = Uplink(
        address=aggregator.address,
        dialer=Dialer(UplinkConfig(address=aggregator.address)),
        host=node,
        hello=lambda: pb.AgentMessage(hello=pb.Hello(node="node-a", boot_id="b", spool_epoch="e")),
        clock=SystemClock(),
        random=lambda: 0.1,
        on_beat=lambda: beats.append(time.monotonic()),
    )
    task = asyncio.create_task(uplink.run())
    stream = await attended(aggregator)
    await until(lambda: len(stream.digests) >= 2)
    assert len(beats) >= len(stream.digests)
    uplink.stop()
    await task
