"""The leader, the reports that it takes, and each replica's doubts: called directly, no stream."""

import asyncio
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, ClusterError, Unreachable
from aggregator.health.model import Status
from aggregator.policy.network.verdict import Finding, NetworkVerdict
from aggregator.quarantine.coordination import coordinator, leader
from aggregator.quarantine.coordination.coordinator import TRIANGULATES_AFTER, Coordinator
from aggregator.quarantine.coordination.follower import BEAT, LeaderSessionClosed
from aggregator.quarantine.coordination.leader import (
    NotLeader,
    ProtocolViolation,
    SessionClosed,
)
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.admission_record import Record
from aggregator.quarantine.decide.replica_messages import (
    AdmissionDecision,
    AdmissionRequest,
    FleetFindings,
    KeepAlive,
    LeaderFindings,
    NodeReport,
    ReportBatch,
)
from aggregator.quarantine.decide.uncertainty import NO_UNCERTAINTY, Uncertainty
from aggregator.quarantine.state.decision import NodeHold
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import DirtyNodes, RemoteNodes
from aggregator.replicas.membership.view import RESPONDS_WITHIN, Member, MembershipView
from tests.support.replica import Notes
from tests.support.virtual_time import VirtualTimeLoop, play

PROPOSAL = Proposal("n1", "i", "", Action.DRAIN)
HELD = Held("limits.concurrent", "1", "x")


def view(*names: str, me: str = "a", **changes: Any) -> MembershipView:
    """The first leads."""
    members = {
        name: Member(name, f"epoch-{name}", since=number) for number, name in enumerate(names)
    }
    return MembershipView(me, MappingProxyType(members), **changes)


class Bench:
    """A replica's coordinator, whose counts and whose record the test plays."""

    def __init__(self, loop: VirtualTimeLoop, membership_view: MembershipView) -> None:
        self.loop = loop
        self.membership_view = membership_view
        self.changed: Callable[[], None] = lambda: None
        self.certain = True
        self.ours: set[str] = set()
        self.did: list[str] = []
        self.held: Held | None = None
        self.fails: ClusterError | None = None
        self.findings: dict[str, Finding] = {}
        self.fleet = FleetState()
        self.notes = Notes()
        self.remote_nodes = RemoteNodes()
        self.registry = NodeRegistry(self.fleet, "pool", self.remote_nodes, now=loop.time)
        self.switch = SimpleNamespace(begin_check=self._note("begin check"))
        record_writer: Any = SimpleNamespace(
            set_uncertainty_source=lambda _: None,
            record=Record(),
            switch=self.switch,
            propose=self._propose,
            confirm_entry=self._confirm,
            escalation_hold=lambda _: HELD,
            would_admit=lambda _: True,
        )
        self.causes: Any = SimpleNamespace(
            lead=self._note("causes lead"),
            follow=self._note("causes follow"),
            answered=self._note("causes answered"),
            find_causes=self._note("find causes"),
            go_round=self._note("causes round"),
            set_symptoms=lambda one: self.did.append(f"symptoms {one.node}"),
            drop_report=lambda node: self.did.append(f"unreported {node}"),
        )
        self.network: Any = SimpleNamespace(
            lead=lambda since: self.did.append(f"network lead {since:g}"),
            follow=self._note("network follow"),
            answered=self._note("network answered"),
            go_round=self._note("network round"),
            set_report=self._note("network report"),
            drop_report=self._note("network unreported"),
            finding=self.findings.get,
        )
        shards: Any = self
        counts: dict[str, Any] = {"cause_tracker": self.causes, "network_tracker": self.network}
        self.made: Any = Coordinator(
            shards=shards,
            node_registry=self.registry,
            remote_nodes=self.remote_nodes,
            dirty_nodes=DirtyNodes(),
            **counts,
            record_writer=record_writer,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(loop.time, lambda: 5000.0),
            again=lambda node_state: self.did.append(f"again {node_state.node}"),
        )
        self.leader: Any = self.made._leader_role

    def _note(self, what: str) -> Callable[..., None]:
        return lambda *_, **__: self.did.append(what)

    async def _propose(self, _: Proposal) -> Held | None:
        if self.fails is not None:
            raise self.fails
        return self.held

    async def _confirm(self, node: str) -> Held | None:
        self.did.append(f"confirm {node}")
        return self.held

    def on_change(self, call: Callable[[], None]) -> None:
        self.changed = call

    def owns(self, node: str) -> bool:
        return node in self.ours

    def leads(self) -> bool:
        return self.certain

    def see(self, *names: str, **changes: Any) -> list[str]:
        self.did.clear()
        self.membership_view = view(*names, **changes)
        self.changed()
        return self.did

    def follows(self) -> Any:
        """A session with the leader, "b"."""
        self.see("b", "a")
        return self.made.report_to_leader(self.membership_view.members["b"])


def on_bench(test: Callable[[Bench], Any], *names: str) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await test(Bench(loop, view(*(names or ("a",)))))

    play(main)


# -- the leader's sessions ------------------------------------------------------------------------


def test_only_a_known_replica_of_this_life_reports_to_who_leads() -> None:
    async def test(bench: Bench) -> None:
        made = bench.made
        for name, epoch in (("a", "epoch-a"), ("x", "epoch-x"), ("b", "epoch-x")):
            with pytest.raises(NotLeader, match=f"{name} is not among the replicas that a knows"):
                made.open_session(name, epoch)
        first = made.open_session("b", "epoch-b")
        second = made.open_session("b", "epoch-b")
        with pytest.raises(SessionClosed, match="opened another stream"):
            first.receive(KeepAlive())
        second.receive(KeepAlive())
        assert bench.leader._sessions == {"b": second}
        first.close("again")
        assert bench.leader._sessions == {"b": second}
        second.close("x")
        assert bench.leader._sessions == {}
        bench.see("b", "a")
        with pytest.raises(NotLeader, match="a does not lead; b does"):
            made.open_session("b", "epoch-b")
        bench.see()
        with pytest.raises(NotLeader, match="no leader is known"):
            made.open_session("b", "epoch-b")

    on_bench(test, "a", "b")


def test_a_replica_has_reported_once_complete_and_while_it_is_heard() -> None:
    async def test(bench: Bench) -> None:
        assert bench.leader.missing() == "b, c have not told of all nodes"
        b, c = (bench.made.open_session(name, f"epoch-{name}") for name in ("b", "c"))
        c.receive(ReportBatch(complete=True))
        assert bench.leader.missing() == "b has not told of all nodes"
        b.receive(ReportBatch())
        assert bench.leader.missing() != ""
        b.receive(ReportBatch(complete=True))
        assert bench.leader.missing() == ""
        assert RESPONDS_WITHIN == 4.0
        await asyncio.sleep(RESPONDS_WITHIN)
        assert bench.leader.missing() == ""
        await asyncio.sleep(0.1)
        b.receive(KeepAlive())
        assert bench.leader.missing() == "c has not told of all nodes"
        b.epoch = "another"
        assert bench.leader.missing().startswith("b, c")
        bench.membership_view = view("a")
        assert bench.leader.missing() == ""

    on_bench(test, "a", "b", "c")


def test_reports_of_a_replica_that_left_stand_for_a_while_and_its_stream_ends() -> None:
    async def test(bench: Bench) -> None:
        b = bench.made.open_session("b", "epoch-b")
        c = bench.made.open_session("c", "epoch-c")
        b.receive(ReportBatch((NodeReport("n1"), NodeReport("n2"))))
        assert bench.did[-4:] == ["symptoms n1", "network report", "symptoms n2", "network report"]
        assert bench.remote_nodes.teller("n1") == "b"
        c.receive(ReportBatch(gone=("n1",)))
        assert not bench.remote_nodes.is_leaving("n1"), "it is not c's"
        b.receive(ReportBatch(gone=("n1",)))
        assert bench.remote_nodes.is_leaving("n1")
        assert not bench.remote_nodes.is_leaving("n2")
        bench.see("a", "c")
        assert bench.remote_nodes.is_leaving("n2")
        with pytest.raises(SessionClosed, match="not among the replicas any more"):
            b.receive(KeepAlive())
        c.receive(KeepAlive())

    on_bench(test, "a", "b", "c")


def test_a_node_whose_agent_reports_to_us_is_not_anothers() -> None:
    async def test(bench: Bench) -> None:
        node_state = bench.registry.node_state("n1")
        node_state.agent.attached = True
        health: Any = SimpleNamespace(has_snapshot=True)
        node_state.agent.health, bench.ours = health, {"n1"}
        assert bench.leader.receive_report("b", NodeReport("n1")) is False
        bench.ours = set()
        assert bench.leader.receive_report("b", NodeReport("n1")) is True
        bench.ours, node_state.agent.attached = {"n1", "n2"}, False
        assert bench.leader.receive_report("b", NodeReport("n1")) is True
        assert bench.leader.receive_report("b", NodeReport("n2")) is True

    on_bench(test, "a", "b")


def test_a_peer_that_floods_us_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "MOST_NODES", 2)
    monkeypatch.setattr(leader, "MOST_ASKED", 2)

    async def test(bench: Bench) -> None:
        b = bench.made.open_session("b", "epoch-b")
        b.receive(ReportBatch((NodeReport("n1"), NodeReport("n2"))))
        b.receive(ReportBatch((NodeReport("n3"),), gone=("n1",)))
        with pytest.raises(ProtocolViolation, match="more than 2 nodes"):
            b.receive(ReportBatch((NodeReport("n4"),)))
        b.receive(AdmissionRequest(1, PROPOSAL))
        b.receive(AdmissionRequest(2, PROPOSAL))
        with pytest.raises(ProtocolViolation, match="asks more than 2 things"):
            b.receive(AdmissionRequest(3, PROPOSAL))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        b.receive(AdmissionRequest(4, PROPOSAL))
        b.close("x")

    on_bench(test, "a", "b")


def test_a_follower_is_sent_decisions_first_then_findings_and_else_a_beat() -> None:
    async def test(bench: Bench) -> None:
        b = bench.made.open_session("b", "epoch-b")
        finding = Finding(Status.FAILED, "r", "m", since=bench.loop.time() - 7)
        bench.findings["n1"] = finding
        cause: Any = NetworkVerdict("target", "t", "m", bench.loop.time() - 3, 1, 2, ())
        bench.fleet.network = {"t": cause}
        bench.leader.find_causes(NO_UNCERTAINTY, 5)
        b.receive(ReportBatch((NodeReport("n1"), NodeReport("n2"))))
        bench.held = HELD
        b.receive(AdmissionRequest(9, PROPOSAL))
        await asyncio.sleep(0.01)
        assert await b.next() == AdmissionDecision(9, HELD)
        outlook = await b.next()
        assert isinstance(outlook, FleetFindings)
        assert outlook.reported == 5
        assert outlook.network[0].since == pytest.approx(3, abs=0.1)
        told = await b.next()
        assert isinstance(told, LeaderFindings)
        assert told.findings.keys() == {"n1"}
        assert told.findings["n1"].since == pytest.approx(7, abs=0.1)
        began = bench.loop.time()
        assert await b.next() == KeepAlive()
        assert bench.loop.time() - began == pytest.approx(BEAT)
        bench.leader._tell_owner("n1")
        began = bench.loop.time()
        assert isinstance(await b.next(), LeaderFindings)
        assert bench.loop.time() == began
        bench.leader._tell_owner("n9")
        b.found("n2")
        assert await b.next() == KeepAlive(), "there is no finding of it"
        waiting = asyncio.create_task(b.next())
        await asyncio.sleep(0.1)
        b.close("it is over")
        with pytest.raises(SessionClosed, match="it is over"):
            await waiting

    on_bench(test, "a", "b")


def test_a_decision_is_the_records_unless_we_may_not_act() -> None:
    async def test(bench: Bench) -> None:
        ask = AdmissionRequest(3, PROPOSAL)
        assert await bench.leader.decide(ask) == AdmissionDecision(3)
        bench.fails = Unreachable("no answer")
        assert await bench.leader.decide(ask) == AdmissionDecision(3, failed="no answer")
        bench.fails = Unreachable("")
        assert (await bench.leader.decide(ask)).failed == "the record can't be used"
        bench.certain = False
        held = (await bench.leader.decide(ask)).held
        assert held is not None
        assert (held.limit, held.value) == ("shards", "no leader")

    on_bench(test, "a", "b")


# -- who leads ------------------------------------------------------------------------------------


def test_who_leads_anew_counts_anew_and_blames_nobody_at_first() -> None:
    async def test(bench: Bench) -> None:
        assert bench.made.leads
        assert [bench.made.leader] == [None]
        assert bench.did == []
        bench.remote_nodes.apply_reports("b", NodeReport("n1"))
        assert bench.see("b", "a") == [
            "causes follow",
            "network follow",
            "unreported n1",
            "network unreported",
        ]
        assert not bench.made.leads
        assert bench.made.leader.name == "b"
        assert len(bench.remote_nodes) == 0
        assert bench.see("b", "a") == []
        bench.remote_nodes.reported = 7
        since = bench.loop.time() + TRIANGULATES_AFTER
        assert TRIANGULATES_AFTER == 60.0
        assert bench.see("a", "b") == ["causes lead", f"network lead {since:g}"]
        assert bench.remote_nodes.reported == 0
        assert bench.see("a", "b") == []
        b = bench.made.open_session("b", "epoch-b")
        b.receive(ReportBatch(complete=True))
        assert bench.made.uncertainty().network != ""
        bench.membership_view = view("a")
        assert bench.made.uncertainty() == Uncertainty(network=bench.made.uncertainty().network)
        await asyncio.sleep(TRIANGULATES_AFTER)
        assert bench.made.uncertainty() == NO_UNCERTAINTY

    on_bench(test, "a", "b")


def test_a_stream_belongs_to_one_leader() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(NotLeader):
            bench.made.report_to_leader(Member("b"))
        first = bench.follows()
        second = bench.made.report_to_leader(bench.membership_view.members["b"])
        assert first.lost == "another stream was opened"
        assert second.lost == ""
        bench.see("b", "a", "c")
        assert second.lost == ""
        bench.see("c", "a")
        assert second.lost == "b does not lead any more"
        assert bench.made._leader_session is None
        third = bench.made.report_to_leader(bench.membership_view.members["c"])
        bench.made.close()
        assert third.lost == "the aggregator stops"

    on_bench(test)


def test_what_the_leader_answers_is_taken_from_its_own_stream_alone() -> None:
    async def test(bench: Bench) -> None:
        old = bench.follows()
        session = bench.made.report_to_leader(bench.membership_view.members["b"])
        bench.did.clear()
        verdict = NetworkVerdict("target", "t", "m", 3.0, 1, 2, ())
        answer = FleetFindings((), (verdict,), 42, Uncertainty(missing="c has not told"))
        bench.made.receive_report(old, answer)
        assert bench.did == []
        assert bench.made.uncertainty().missing == "the leader has not told anything yet"
        bench.made.receive_report(session, answer)
        assert bench.did == ["causes answered"]
        assert bench.remote_nodes.reported == 42
        assert bench.fleet.network.keys() == {"target t"}
        since = bench.fleet.network["target t"].since
        assert since == pytest.approx(bench.loop.time() - 3)
        assert bench.made.uncertainty().missing == "c has not told"
        assert bench.fleet.incomplete == "c has not told"
        bench.made.receive_report(session, LeaderFindings({}))
        assert bench.did[1:] == ["network answered"]
        member = bench.membership_view.members["b"]
        session.close("x")
        assert bench.made.uncertainty().missing == "b, which leads, is not reached"
        bench.made.unreached(member, "refused")
        assert bench.made.uncertainty().missing == "b, which leads, is not reached: refused"
        bench.made.unreached(Member("c"), "refused")
        assert bench.made.uncertainty().missing == "b, which leads, is not reached"
        bench.see("b")
        bench.see()
        assert bench.made.uncertainty().missing == "no replica is known to lead"

    on_bench(test)


def test_a_leader_that_was_paused_admits_nothing() -> None:
    async def test(bench: Bench) -> None:
        assert bench.made.uncertainty().missing == "b has not told of all nodes"
        assert await bench.made.propose(PROPOSAL) is None
        bench.certain = False
        assert bench.made.uncertainty().unsure != ""
        held = await bench.made.propose(PROPOSAL)
        assert (held.limit, held.value) == ("shards", "no answer")
        assert not bench.made._is_certain()
        bench.membership_view = view("a", "b", frozen="no API server")
        assert bench.made._is_certain()
        bench.certain, bench.membership_view = True, view("a", "b")
        assert bench.made._is_certain()

    on_bench(test, "a", "b")


# -- admission ------------------------------------------------------------------------------------


def test_a_follower_asks_the_leader_and_then_the_record() -> None:
    async def test(bench: Bench) -> None:
        assert bench.made.escalation_hold(PROPOSAL) is HELD
        assert bench.made.would_admit(PROPOSAL)
        bench.see("b", "a")
        held = await bench.made.propose(PROPOSAL)
        assert held.limit == "shards"
        assert held.reason == "b, which leads, is not reached; asked again in a moment"
        assert bench.made.escalation_hold(PROPOSAL) == held
        assert not bench.made.would_admit(PROPOSAL)
        session = bench.follows()
        assert bench.made.escalation_hold(PROPOSAL) is HELD
        assert bench.made.would_admit(PROPOSAL)
        answers: list[Any] = [
            AdmissionDecision(1),
            AdmissionDecision(2, HELD),
            AdmissionDecision(3, failed="no record"),
            LeaderSessionClosed("it is gone"),
        ]

        async def ask(_: Proposal) -> AdmissionDecision:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, AdmissionDecision)
            return answer

        session.ask = ask
        bench.did.clear()
        assert [await bench.made.propose(PROPOSAL)] == [None]
        assert bench.did == ["begin check", "confirm n1"]
        assert await bench.made.propose(PROPOSAL) is HELD
        with pytest.raises(ClusterError, match="no record"):
            await bench.made.propose(PROPOSAL)
        held = await bench.made.propose(PROPOSAL)
        assert held.reason == "it is gone; asked again in a moment"
        assert bench.did.count("confirm n1") == 1

    on_bench(test)


# -- in time --------------------------------------------------------------------------------------


def test_nodes_held_for_lack_of_an_answer_are_asked_again_when_a_doubt_changes() -> None:
    async def test(bench: Bench) -> None:
        for name, limit in (("n1", "shards"), ("n2", "limits.concurrent")):
            bench.registry.node_state(name).set_hold(NodeHold(limit, "x", "y", 1.0))
        bench.registry.node_state("n3")
        bench.see("b", "a")
        await asyncio.sleep(0.01)
        assert bench.did.count("again n1") == 1
        assert not {"again n2", "again n3"} & set(bench.did)
        bench.made._uncertainty_changed()
        await asyncio.sleep(0.01)
        assert bench.did.count("again n1") == 1, "nothing has changed"

    on_bench(test)


def test_the_leader_counts_for_others_in_each_tick_and_alone_for_none() -> None:
    async def test(bench: Bench) -> None:
        assert (coordinator.TICK, coordinator._ALONE, coordinator.COUNT_EVERY) == (0.5, 2.0, 4)
        bench.remote_nodes.apply_reports("c", NodeReport("n1", reported=True))
        bench.remote_nodes.leave("n1", bench.loop.time() - 59)
        running = asyncio.create_task(bench.made.run())
        await asyncio.sleep(0.75)
        assert bench.did.count("find causes") == 1
        assert bench.leader.outlook.reported == 1
        assert bench.leader.outlook.uncertainty.missing != ""
        await asyncio.sleep(0.5)
        assert bench.did.count("find causes") == 2
        assert "unreported n1" in bench.did
        assert len(bench.remote_nodes) == 0
        assert bench.leader.outlook.reported == 1, "it is counted every fourth tick"
        await asyncio.sleep(1.5)
        assert bench.leader.outlook.reported == 0
        bench.certain = False
        bench.did.clear()
        await asyncio.sleep(1)
        assert "find causes" not in bench.did
        bench.certain = True
        await asyncio.sleep(60)
        assert len(bench.notes.transitions) == 1, "people are told that a replica is missing"
        bench.see("a")
        await asyncio.sleep(10)
        assert "find causes" not in bench.did
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    on_bench(test, "a", "b")


def test_causes_last_while_a_leader_misses_reports_and_no_longer() -> None:
    async def test(bench: Bench) -> None:
        rounds: list[bool] = []
        bench.causes.go_round = lambda _, *, lasting: rounds.append(lasting)
        bench.leader.missing = lambda: "b has not reported"
        bench.made.go_round()
        bench.leader.missing = lambda: ""
        bench.made.go_round()
        assert rounds == [True, False]

    on_bench(test, "a", "b")


def test_rounds_go_on_for_followers_and_for_a_leader_that_is_certain() -> None:
    async def test(bench: Bench) -> None:
        rounds: list[bool] = []
        bench.causes.go_round = lambda _, *, lasting: rounds.append(lasting)
        bench.made.go_round()
        assert rounds == [True]
        assert bench.did[-1] == "network round"
        bench.certain = False
        bench.made.go_round()
        assert rounds == [True]
        session = bench.follows()
        silent: list[str] = []
        session.note_silence = lambda: silent.append("x")
        bench.made.go_round()
        assert rounds == [True, False]
        assert silent == ["x"]
        session.close("x")
        bench.made.go_round()
        assert silent == ["x"]

    on_bench(test, "a", "b")
