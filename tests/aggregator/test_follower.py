"""What a shard sends to the leader, when and in which order: one stream, in virtual time."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from aggregator.clock import Clocks
from aggregator.health.model import Hello, Status
from aggregator.health.node import NodeHealth
from aggregator.quarantine.coordination.follower import (
    ANSWER_WITHIN,
    BEAT,
    BYTES_A_MESSAGE,
    GATHER,
    LONGEST,
    LOST,
    MOST_SEEN,
    NODES_A_MESSAGE,
    LeaderSession,
    LeaderSessionClosed,
    Reporter,
)
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.replica_messages import (
    AdmissionDecision,
    AdmissionRequest,
    Answer,
    FleetFindings,
    KeepAlive,
    NodeReport,
    ReportBatch,
    Said,
    Seen,
)
from aggregator.quarantine.decide.symptoms import Symptom
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import DirtyNodes
from aggregator.replicas.membership.view import Member
from tests.support.replica import component, snapshot
from tests.support.virtual_time import VirtualTimeLoop, play

LEADER = Member("r0")


class ScriptedReporter(Reporter):
    """Says what the test wants of each node; None: nothing any more."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.known: dict[str, NodeReport | None] = {}
        self.dirty_nodes = DirtyNodes()
        self.clocks = Clocks(loop.time, loop.time)
        self.node_registry = NodeRegistry(FleetState(), "", now=loop.time)

    def nodes(self) -> Iterator[str]:
        return iter(list(self.known))

    def node_report(self, node: str) -> NodeReport | None:
        return self.known[node]

    def change(self, node: str, report: NodeReport | None) -> None:
        self.known[node] = report
        self.dirty_nodes.mark(node)


class Stream:
    """A `LeaderSession` whose leader the test plays."""

    def __init__(self, loop: VirtualTimeLoop, *nodes: str) -> None:
        self.loop, self.reporter = loop, ScriptedReporter(loop)
        self.began = loop.time()
        for node in nodes:
            self.reporter.known[node] = NodeReport(node)
        self.answers: list[Answer] = []
        self.leader_session = LeaderSession(
            LEADER, self.reporter, lambda _, answer: self.answers.append(answer)
        )

    async def next(self) -> tuple[float, Said]:
        """When the next message goes out (seconds from the begin), and the message."""
        said = await self.leader_session.next()
        return round(self.loop.time() - self.began, 3), said

    async def told_all(self) -> None:
        """Past the first message, which has everything."""
        words = await self.leader_session.next()
        assert isinstance(words, ReportBatch)
        assert words.complete

    def ask(self, node: str = "n1") -> "asyncio.Task[AdmissionDecision]":
        return asyncio.ensure_future(self.leader_session.ask(Proposal(node, "i", "", "drain")))


def test_a_stream_begins_with_all_nodes_and_beats_while_nothing_is_new() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1", "n2")
        both = (NodeReport("n1"), NodeReport("n2"))
        assert await stream.next() == (0.0, ReportBatch(both, (), complete=True))
        assert await stream.next() == (BEAT, KeepAlive())
        stream.leader_session.receive(KeepAlive())
        assert await stream.next() == (2 * BEAT, KeepAlive())
        empty = Stream(loop)
        assert await empty.next() == (0.0, ReportBatch((), (), complete=True))

    play(test)


def test_many_nodes_are_told_in_several_messages_and_the_last_completes_them() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, *(f"n{number}" for number in range(2 * NODES_A_MESSAGE + 1)))
        messages = [await stream.next() for _ in range(3)]
        words = [said for _, said in messages if isinstance(said, ReportBatch)]
        assert [len(one.reports) for one in words] == [NODES_A_MESSAGE, NODES_A_MESSAGE, 1]
        assert [one.complete for one in words] == [False, False, True]
        assert [at for at, _ in messages] == [0.0, 0.0, 0.0]

    play(test)


@pytest.mark.parametrize(
    "large",
    [
        replace(NodeReport("n"), signs=frozenset({Symptom("w" * 100_000, "", 1.0, acting=True)})),
        replace(NodeReport("n"), signs=frozenset({Symptom("w", "c" * 100_000, 1.0, acting=True)})),
        replace(NodeReport("n"), sees=(("reach", "c" * 100_000, Status.OK),)),
        replace(NodeReport("n"), sees=(("c" * 100_000, "x", Status.OK),)),
        replace(NodeReport("n"), checks=frozenset({"c" * 100_000})),
        replace(NodeReport("n"), assigned=("c" * 100_000,)),
        replace(NodeReport("n"), traits=(("driver", "c" * 100_000),)),
        replace(NodeReport("n"), traits=(("c" * 100_000, "1"),)),
    ],
)
def test_a_message_holds_so_many_bytes_and_not_much_more(large: NodeReport) -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop)
        for number in range(9):
            name = f"n{number}"
            stream.reporter.change(name, replace(large, node=name))
        await asyncio.sleep(GATHER)
        _, words = await stream.next()
        assert isinstance(words, ReportBatch)
        assert len(words.reports) == BYTES_A_MESSAGE // 100_000 + 1

    play(test)


def test_changes_are_gathered_for_a_moment_and_what_is_as_before_is_not_told() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1", "n2", "n3")
        await stream.told_all()
        sent = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0.5)
        stream.reporter.change("n2", NodeReport("n2", reported=True))
        await asyncio.sleep(GATHER / 2)
        stream.reporter.change("n1", NodeReport("n1", silent=True))
        stream.reporter.change("n3", NodeReport("n3"))  # as before
        told = (NodeReport("n2", reported=True), NodeReport("n1", silent=True))
        assert await sent == (0.5 + GATHER, ReportBatch(told, (), complete=True))
        stream.reporter.change("n3", NodeReport("n3"))
        assert await stream.next() == (0.5 + GATHER + BEAT, KeepAlive())
        stream.leader_session.receive(KeepAlive())
        # A node that is not ours any more is taken back, once, and only where it was told.
        stream.reporter.change("n1", None)
        stream.reporter.change("n4", None)
        _, gone = await stream.next()
        assert gone == ReportBatch((), ("n1",), complete=True)
        stream.reporter.change("n1", None)
        assert (await stream.next())[1] == KeepAlive()

    play(test)


def test_signs_are_told_with_their_age() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1")
        sign = Symptom("check:x", "", loop.time() - 7, acting=True)
        stream.reporter.known["n1"] = NodeReport("n1", signs=frozenset({sign}))
        _, words = await stream.next()
        assert isinstance(words, ReportBatch)
        assert words.reports[0].signs == {sign._replace(since=7.0)}

    play(test)


def test_a_question_goes_out_at_once_behind_all_that_is_unsaid() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1")
        await stream.told_all()
        stream.reporter.change("n1", NodeReport("n1", reported=True))
        first = stream.ask()
        second = stream.ask("n2")
        await asyncio.sleep(0)
        words = ReportBatch((NodeReport("n1", reported=True),), (), complete=True)
        assert await stream.next() == (0.0, words), "a question takes it along"
        stream.reporter.change("n1", NodeReport("n1", silent=True))  # came later than both
        assert await stream.next() == (0.0, AdmissionRequest(1, Proposal("n1", "i", "", "drain")))
        assert await stream.next() == (0.0, AdmissionRequest(2, Proposal("n2", "i", "", "drain")))
        held = Held("stop", "x", "x")
        stream.leader_session.receive(AdmissionDecision(2, held))
        stream.leader_session.receive(AdmissionDecision(9))  # nobody has asked that
        stream.leader_session.receive(AdmissionDecision(1))
        assert (await first, await second) == (AdmissionDecision(1), AdmissionDecision(2, held))
        assert stream.answers == []
        outlook = FleetFindings()
        stream.leader_session.receive(outlook)
        assert stream.answers == [outlook]

    play(test)


def test_a_question_behind_nothing_new_is_asked_at_once() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1")
        await stream.told_all()
        stream.reporter.change("n1", NodeReport("n1"))  # as before: there is nothing to tell
        asked = stream.ask()
        await asyncio.sleep(0)
        assert await stream.next() == (0.0, AdmissionRequest(1, Proposal("n1", "i", "", "drain")))
        stream.leader_session.close("over")
        with pytest.raises(LeaderSessionClosed, match="over"):
            await asked

    play(test)


def test_a_question_that_nobody_waits_for_is_not_asked() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1")
        await stream.told_all()
        asked = [stream.ask(f"n{number}") for number in range(3)]
        await asyncio.sleep(0)
        for one in asked[:2]:
            one.cancel()
        await asyncio.sleep(0)
        assert (await stream.next())[1] == AdmissionRequest(3, Proposal("n2", "i", "", "drain"))
        stream.leader_session.receive(AdmissionDecision(3))
        assert await asked[2] == AdmissionDecision(3)

    play(test)


def test_a_question_without_an_answer_is_given_up_after_some_seconds() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1")
        await stream.told_all()
        with pytest.raises(LeaderSessionClosed, match="r0 has not answered within 5 s"):
            await stream.leader_session.ask(Proposal("n1", "i", "", "drain"))
        assert loop.time() - stream.began == pytest.approx(ANSWER_WITHIN)
        assert stream.leader_session.lost == "", "the stream may be well"
        assert (await stream.next())[1] == KeepAlive()
        stream.leader_session.receive(AdmissionDecision(1))  # too late

    play(test)


def test_a_leader_that_says_nothing_for_some_seconds_is_lost() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1")
        await stream.told_all()
        beats = [(await stream.next())[0] for _ in range(int(LOST / BEAT))]
        assert beats == [BEAT * (number + 1) for number in range(int(LOST / BEAT))]
        asked = stream.ask()
        await asyncio.sleep(0.5)
        with pytest.raises(LeaderSessionClosed, match="r0 has sent no message for 5 s"):
            await stream.next()
        assert stream.leader_session.lost == "r0 has sent no message for 5 s"
        with pytest.raises(LeaderSessionClosed, match="has sent no message"):
            await asked
        with pytest.raises(LeaderSessionClosed, match="has sent no message"):
            await stream.leader_session.ask(Proposal("n1", "i", "", "drain"))
        with pytest.raises(LeaderSessionClosed, match="has sent no message"):
            await stream.next()

    play(test)


def test_a_stream_that_is_closed_wakes_whoever_waits_and_listens_no_more() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1")
        await stream.told_all()
        sent, asked = asyncio.ensure_future(stream.leader_session.next()), stream.ask()
        await asyncio.sleep(0)
        assert isinstance(await sent, AdmissionRequest)
        sent = asyncio.ensure_future(stream.leader_session.next())
        await asyncio.sleep(0.1)
        stream.leader_session.close("the leader has gone")
        stream.leader_session.close("and for another reason")
        before = loop.time()
        for one in (sent, asked):
            with pytest.raises(LeaderSessionClosed, match="the leader has gone"):
                await cast("asyncio.Task[object]", one)
        assert loop.time() == before
        assert stream.leader_session.lost == "the leader has gone"
        stream.reporter.change("n1", NodeReport("n1", reported=True))
        assert len(stream.reporter.dirty_nodes) == 0

    play(test)


def test_silence_that_time_alone_brings_is_told() -> None:
    async def test(loop: VirtualTimeLoop) -> None:
        stream = Stream(loop, "n1", "n2", "n3")
        stream.reporter.known["n2"] = NodeReport("n2", silent=True)
        await stream.told_all()
        for name in ("n1", "n2"):
            stream.reporter.node_registry.node_state(name).agent.silent = True
        stream.leader_session.note_silence()  # n2 was told as silent, and nothing is known of n3
        assert [
            stream.reporter.dirty_nodes.take_dirty()
            for _ in range(len(stream.reporter.dirty_nodes))
        ] == ["n1"]

    play(test)


# -- what is said of one node --------------------------------------------------------------------


class Word:
    """Stands for what is counted of a node, and for what it sees."""

    def __init__(self, *sees: Seen) -> None:
        self.sees = sees

    def node_report(self, _: str) -> tuple[object, ...]:
        raise NotImplementedError


class Counted(Word):
    def node_report(self, _: str) -> tuple[object, ...]:
        signs = frozenset({Symptom("check:x", "", 1.0, acting=True)})
        return signs, (("driver", "550"),), frozenset({"x"})


class Sees(Word):
    def node_report(self, _: str) -> tuple[object, ...]:
        return "10.0.0.1", True, self.sees, ("10.0.0.2",)


def reporter(name_of: str, *sees: Seen, ours: bool = True) -> tuple[Reporter, NodeState]:
    node_registry = NodeRegistry(FleetState(), "", now=lambda: 1.0)
    made = Reporter(
        node_registry=node_registry,
        cause_tracker=cast(CommonCauseTracker, Counted()),
        network_tracker=cast(NetworkTracker, Sees(*sees)),
        owns=lambda _: ours,
        dirty_nodes=DirtyNodes(),
        clocks=Clocks(lambda: 1.0, lambda: 1.0),
    )
    return made, node_registry.node_state(name_of)


def test_only_nodes_of_ours_that_were_heard_are_spoken_of() -> None:
    made, node_state = reporter("n1")
    assert list(made.nodes()) == []
    assert made.node_report("n1") is None
    assert made.node_report("unknown") is None
    node_state.agent.health = NodeHealth(Hello("n1", "boot-1", "epoch", "1.0", 1, "i"))
    assert list(made.nodes()) == ["n1"]
    said = made.node_report("n1")
    assert said == NodeReport(
        "n1",
        speaking=True,
        address="10.0.0.1",
        traits=(("driver", "550"),),
        checks=frozenset({"x"}),
        signs=frozenset({Symptom("check:x", "", 1.0, acting=True)}),
        assigned=("10.0.0.2",),
    )
    mount = component("disk-mounts", "/data", Status.FAILED, "gone")
    node_state.agent.health.snapshot(snapshot(mount, component("disk-space", "/", Status.OK)))
    node_state.agent.silent = True
    assert made.node_report("n1") == replace(
        said, reported=True, silent=True, sees=(("disk-mounts", "/data", Status.FAILED),)
    )
    node_state.agent.attached = True
    heard = made.node_report("n1")
    assert heard is not None
    assert heard.silent is False, "it speaks, whatever was noted before"
    theirs, another = reporter("n1", ours=False)
    another.agent.health = node_state.agent.health
    assert list(theirs.nodes()) == []
    assert theirs.node_report("n1") is None


def test_so_much_of_what_a_node_sees_is_told_and_no_name_that_is_too_long() -> None:
    def seen_components(*sees: Seen) -> tuple[Seen, ...]:
        made, node_state = reporter("n1", *sees)
        node_state.agent.health = NodeHealth(Hello("n1", "boot-1", "epoch", "1.0", 1, "i"))
        said = made.node_report("n1")
        assert said is not None
        return said.sees

    many: list[Seen] = [("reach", f"t{number}", Status.OK) for number in range(MOST_SEEN + 1)]
    assert seen_components(*many[:MOST_SEEN]) == tuple(many[:MOST_SEEN])
    assert seen_components(*many) == tuple(many[:MOST_SEEN])
    fits: Seen = ("reach", "x" * LONGEST, Status.OK)
    long: Seen = ("reach", "x" * (LONGEST + 1), Status.OK)
    assert seen_components(fits, many[0]) == (fits, many[0])
    assert seen_components(long, fits, many[0]) == (fits, many[0])
    assert seen_components(long, *many) == tuple(many[:MOST_SEEN])
