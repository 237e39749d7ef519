"""Symptoms of a node that count for common causes, by whom and when: one replica's side."""

from collections.abc import Iterable

import pytest

from aggregator.clock import Clocks
from aggregator.health.model import ClearedBy, Component, Hello, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.incident import Evidence, Incident
from aggregator.quarantine.correlation.common_cause import UPGRADED, CommonCauseTracker
from aggregator.quarantine.decide.admission import FLEET, Limits
from aggregator.quarantine.decide.admission_record import Cooldown, Record
from aggregator.quarantine.decide.cause_search import CommonCause, CommonLimits, Group
from aggregator.quarantine.decide.fabric import FABRIC, FABRIC_BY_LABEL
from aggregator.quarantine.decide.replica_messages import NodeReport
from aggregator.quarantine.decide.symptoms import Symptom
from aggregator.quarantine.decide.uncertainty import EvidenceBasis
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import DirtyNodes, RemoteNodes
from tests.support.replica import POLICY, Notes, Turned, component, snapshot

RACK, CLIQUE = "example.com/rack", "nvidia.com/gpu.clique"
LINK = "check:nic-link"
DOWN = component("nic-link", "eth0", Status.FAILED, "down", since=990.0)


class Bench:
    """A `CommonCauseTracker` over nodes that the test makes; ``ours`` are those that it owns."""

    def __init__(self) -> None:
        self.clock, self.fleet, self.notes = Turned(), FleetState(), Notes()
        self.remote_nodes, self.dirty_nodes = RemoteNodes(), DirtyNodes()
        self.node_registry = NodeRegistry(self.fleet, "", self.remote_nodes, now=self.clock)
        self.ours = {"n1", "n2"}
        self.dirty_nodes.listen(lambda: None)
        self.cause_tracker = CommonCauseTracker(
            limits=CommonLimits(domain_labels=(RACK,)),
            admission=Limits(cooldown=900.0, after_upgrade=120.0),
            policy=POLICY,
            node_registry=self.node_registry,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(self.clock, self.clock),
            owns=lambda node: node in self.ours,
            remote_nodes=self.remote_nodes,
            dirty_nodes=self.dirty_nodes,
        )

    def report(self, node: str, *components: Component, driver: str = "550") -> NodeState:
        """The node's agent says this."""
        node_state = self.node_registry.node_state(node)
        health = NodeHealth(
            Hello(node, "boot-1", "epoch", "1.0", 1, "i", traits={"driver": driver})
        )
        health.snapshot(snapshot(*components))
        node_state.agent.health = health
        self.cause_tracker.receive_symptoms(node_state)
        return node_state

    def known(self, node: str) -> tuple[set[str], set[tuple[str, str]]]:
        """The node's symptoms, and its versions."""
        signs, versions, _ = self.cause_tracker.node_report(node)
        return {sign.what for sign in signs}, set(versions)

    def is_counted(self, node: str) -> bool:
        return self.cause_tracker._common.knows(node)

    def taken(self) -> list[str]:
        return [self.dirty_nodes.take_dirty() for _ in range(len(self.dirty_nodes))]


VERSIONS = {("driver", "550"), ("agent", "1.0")}


def test_a_node_of_ours_counts_as_its_agent_speaks_and_is_to_be_told_of() -> None:
    bench = Bench()
    bench.remote_nodes.apply_reports("r2", NodeReport("n1"))
    node_state = bench.report("n1", DOWN)
    assert bench.known("n1") == ({LINK}, VERSIONS)
    assert "n1" not in bench.remote_nodes, "it is ours now, whoever spoke of it before"
    assert bench.taken() == ["n1"]
    bench.cause_tracker.forget_node(node_state)
    assert not bench.is_counted("n1")
    assert bench.taken() == ["n1"]


def test_before_its_first_snapshot_what_was_told_of_a_node_stands() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    bench.taken()
    node_state.agent.health = NodeHealth(Hello("n1", "boot-1", "epoch", "1.0", 1, "i"))
    bench.cause_tracker.receive_symptoms(node_state)
    assert bench.known("n1") == ({LINK}, VERSIONS)
    assert bench.taken() == []


def test_a_node_of_ours_without_an_agent_counts_no_more_unless_it_is_on_its_way_to_us() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    node_state.agent.health = None
    bench.remote_nodes.leave("n1", bench.clock())
    bench.cause_tracker.receive_symptoms(node_state)
    assert bench.is_counted("n1")
    bench.remote_nodes.reclaim("n1")
    bench.remote_nodes.apply_reports("r2", NodeReport("n1", reported=True))
    bench.cause_tracker.receive_symptoms(node_state)
    assert bench.is_counted("n1"), "another replica spoke of it a moment ago"
    bench.remote_nodes.reclaim("n1")
    bench.cause_tracker.receive_symptoms(node_state)
    assert not bench.is_counted("n1")
    bench.report("n1", DOWN)
    node_state.agent.health = None
    bench.remote_nodes.leave("n1", bench.clock())
    assert "n1" not in bench.remote_nodes
    bench.cause_tracker.receive_symptoms(node_state)
    assert bench.is_counted("n1"), "it is leaving another, and was not told of"


def test_another_replicas_node_counts_by_its_words_and_not_by_what_is_heard_here() -> None:
    bench = Bench()
    signs = frozenset({Symptom("check:reach", "tcp://x", 1.0, acting=True)})
    told = NodeReport("n9", reported=True, signs=signs, traits=(("driver", "560"),))
    bench.remote_nodes.apply_reports("r2", told)
    node_state = bench.report("n9", DOWN)  # its agent was here a moment ago
    assert bench.known("n9") == ({"check:reach"}, {("driver", "560")})
    assert bench.taken() == []
    node_state.cluster.labels = {RACK: "r7"}
    bench.cause_tracker.receive_symptoms(node_state)
    assert (RACK, "r7") in bench.cause_tracker._common.known("n9")[1]
    bench.cause_tracker.drop_report("n9")
    assert not bench.is_counted("n9")


def test_a_node_that_left_us_stands_until_somebody_speaks_of_it() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    bench.taken()
    bench.ours.clear()
    bench.cause_tracker.receive_symptoms(node_state)
    assert bench.known("n1")[0] == {LINK}
    assert bench.remote_nodes.is_leaving("n1")
    assert bench.taken() == ["n1"]
    # No report is due about a node that was never counted here.
    bench.cause_tracker.receive_symptoms(bench.node_registry.node_state("n5"))
    assert bench.taken() == []
    assert not bench.remote_nodes.is_leaving("n5")


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        (NodeReport("n9"), False),
        (NodeReport("n9", reported=True), True),
        (NodeReport("n9", signs=frozenset({Symptom(LINK, "", 1.0, acting=True)})), True),
        (NodeReport("n9", checks=frozenset({"xid"})), True),
        (NodeReport("n9", traits=(("driver", "550"),)), True),
    ],
)
def test_a_node_whose_agent_has_said_nothing_yet_is_not_counted(
    told: NodeReport, *, counts: bool
) -> None:
    bench = Bench()
    bench.cause_tracker.set_symptoms(told)
    assert bench.is_counted("n9") == counts


def test_a_forgotten_node_that_another_replica_speaks_of_is_for_that_one_to_forget() -> None:
    bench = Bench()
    bench.remote_nodes.apply_reports("r2", NodeReport("n9", reported=True))
    node_state = bench.node_registry.node_state("n9")
    bench.cause_tracker.receive_symptoms(node_state)
    bench.cause_tracker.forget_node(node_state)
    assert bench.is_counted("n9")


OWN, OTHER = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"


def fabrics(bench: Bench, node: str, clique: str, claimed: str, *, remote: bool) -> set[Group]:
    """The fabrics that the node counts to, with this clique label and this word of its agent."""
    node_state = bench.node_registry.node_state(node)
    node_state.cluster.labels = {CLIQUE: clique} if clique else {}
    if remote:
        traits = ((FABRIC, claimed),)
        bench.cause_tracker.set_symptoms(NodeReport(node, reported=True, traits=traits))
    else:
        hello = Hello(node, "boot-1", "e", "1.0", 1, "i", traits={"fabric_clique": f"{claimed}.1"})
        node_state.agent.health = NodeHealth(hello)
        node_state.agent.health.snapshot(snapshot())
        bench.cause_tracker.receive_symptoms(node_state)
    groups = bench.cause_tracker._common.known(node)[1]
    return {group for group in groups if group[0].startswith("fabric:")}


@pytest.mark.parametrize("remote", [False, True])
def test_an_agent_claims_no_fabric_of_labelled_nodes(*, remote: bool) -> None:
    bench, where = Bench(), "n9" if remote else "n1"
    by_label = {(FABRIC_BY_LABEL, OWN)}
    assert fabrics(bench, where, f"{OWN}.7", OTHER, remote=remote) == by_label
    assert fabrics(bench, where, f"{OTHER}.7", OTHER, remote=remote).isdisjoint(by_label)
    unlabelled = fabrics(bench, where, "", OWN, remote=remote)
    assert unlabelled == {(FABRIC, OWN)}, "no group that a labelled node is in"
    assert fabrics(bench, where, "rack-7", OWN, remote=remote) == set(), "a clique of another form"


# -- who leads -----------------------------------------------------------------------------------


def cause(ident: str) -> CommonCause:
    return CommonCause(ident, "check", ident, "limits.common_cause_nodes", "50", "x", 60, 100, ())


def failing(bench: Bench, number: int) -> None:
    for name in [f"n{n}" for n in range(number)]:
        bench.ours.add(name)
        bench.report(name, DOWN)


def test_who_follows_goes_by_the_leaders_word_and_who_leads_again_by_its_own_count() -> None:
    bench = Bench()
    failing(bench, 20)
    assert bench.cause_tracker.causes().keys() == {LINK}
    assert bench.fleet.causes.keys() == {LINK}
    bench.cause_tracker.answered([cause("check:other")])  # of a leader that was
    assert bench.cause_tracker.causes().keys() == {LINK}
    bench.cause_tracker.follow()
    assert bench.cause_tracker.causes().keys() == {LINK}, "what we said before it stands"
    assert bench.fleet.causes.keys() == {LINK}
    bench.cause_tracker.answered([cause("check:dns"), cause("check:reach")])
    assert bench.cause_tracker.causes().keys() == {"check:dns", "check:reach"}
    assert bench.fleet.causes.keys() == {"check:dns", "check:reach"}
    bench.cause_tracker.follow()  # it does already
    assert bench.cause_tracker.causes().keys() == {"check:dns", "check:reach"}
    told = len(bench.notes.transitions)
    bench.cause_tracker.go_round(Record())
    assert len(bench.notes.transitions) == told, "the leader tells"
    bench.cause_tracker.lead()
    assert bench.cause_tracker.causes().keys() == {LINK, "check:dns", "check:reach"}
    bench.cause_tracker.lead()
    assert bench.fleet.causes.keys() == {LINK, "check:dns", "check:reach"}
    for _ in range(3):
        bench.clock.time += 100
        bench.cause_tracker.go_round(Record())
    assert bench.cause_tracker.causes().keys() == {LINK}, "what the last leader had found is over"
    ended = [one for one in bench.notes.transitions if one.kind == "fleet.common_cause_over"]
    assert {one.incident for one in ended} == {"check:dns", "check:reach"}


def test_while_replicas_are_missing_no_cause_is_over() -> None:
    bench = Bench()
    bench.cause_tracker.follow()
    bench.cause_tracker.answered([cause("check:dns")])
    bench.cause_tracker.lead()
    for _ in range(3):
        bench.clock.time += 100
        bench.cause_tracker.go_round(Record(), lasting=True)
    assert bench.cause_tracker.causes().keys() == {"check:dns"}


def test_a_cause_is_told_with_its_numbers() -> None:
    bench = Bench()
    failing(bench, 20)
    bench.cause_tracker.find_causes()
    [told] = bench.notes.transitions
    assert (told.kind, told.node, told.incident) == ("fleet.common_cause", "", LINK)
    assert told.summary.startswith("common cause: check nic-link fails on 20 of 20 nodes")
    assert told.details == {
        "cause": LINK,
        "scope": "check",
        "limit": "limits.common_cause_percent",
        "value": "10%",
        "count": "20",
        "of": "20",
        "nodes": "n0, n1, n10, n11, n12, n13, n14, n15, n16, n17",
    }


def test_the_fleets_cooldown_is_shown_and_told_at_its_begin_and_its_end() -> None:
    bench = Bench()
    record = Record(cooldowns={FLEET: Cooldown(1000.0, "the rate")}, admissions=(990.0, 995.0))
    bench.cause_tracker.go_round(record)
    bench.cause_tracker.go_round(record)
    text = "until 00:31 UTC: the rate"
    assert bench.fleet.cooling == text
    assert bench.fleet.admitted_lately == 2
    bench.clock.time += 899
    bench.cause_tracker.go_round(record)
    assert bench.fleet.cooling == text
    assert bench.fleet.admitted_lately == 0
    bench.clock.time += 1
    bench.cause_tracker.go_round(record)
    assert bench.fleet.cooling == ""
    assert [(one.kind, one.summary) for one in bench.notes.transitions] == [
        ("fleet.cooldown", f"no new quarantine is admitted {text}"),
        ("fleet.cooldown_over", "admission goes on"),
    ]


# -- one node's evidence --------------------------------------------------------------------------


def evidence(
    code: str = "xid:79", *, action: str = "drain", since: float = 1000.0, level: bool = False
) -> Evidence:
    cleared_by = None if level else ClearedBy.REBOOT
    return Evidence(code, "eth0", "boot-1", "some-rule", action, "x", cleared_by, since)


def with_evidence(node_state: NodeState, *items: Evidence) -> Incident:
    made = Incident("i1", node_state.node, "boot-1", "gpu", "drain", "x", 1000.0, items, 60.0)
    node_state.decision.incidents = {"i1": made}
    return made


def test_evidence_on_a_node_with_a_new_version_must_have_stood_for_a_while() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    with_evidence(node_state, evidence(since=1000.0))
    assert bench.cause_tracker.unsettled(node_state) == "", "its version is the one it came with"
    bench.clock.time = 1050.0
    bench.report("n1", DOWN, driver="560")
    assert bench.cause_tracker.unsettled(node_state).startswith(
        "its version has just changed (now driver 560, agent 1.0); the evidence against it must "
        "have stood for 2m"
    )
    bench.report("n1", driver="560")
    bench.clock.time = 1119.0
    assert bench.cause_tracker.unsettled(node_state)
    bench.clock.time = 1120.0
    assert bench.cause_tracker.unsettled(node_state) == ""
    with_evidence(node_state, evidence(since=1119.0))
    assert bench.cause_tracker.unsettled(node_state)
    with_evidence(node_state, evidence(since=1119.0), evidence("xid:94", since=1000.0))
    assert bench.cause_tracker.unsettled(node_state) == "", "the oldest counts"
    with_evidence(node_state)
    assert bench.cause_tracker.unsettled(node_state)
    bench.clock.time = 1050.0 + UPGRADED - 1
    with_evidence(node_state, evidence(since=bench.clock.time))
    assert bench.cause_tracker.unsettled(node_state)
    bench.clock.time += 1
    with_evidence(node_state, evidence(since=bench.clock.time))
    assert bench.cause_tracker.unsettled(node_state) == "", "it was upgraded long ago"
    bench.report("n1", driver="570")
    bench.cause_tracker.forget_node(node_state)
    assert bench.cause_tracker.unsettled(node_state) == ""


@pytest.mark.parametrize(
    ("items", "basis"),
    [
        ((), EvidenceBasis.OTHER),
        ((evidence("xid:79"),), EvidenceBasis.FAULT),
        ((evidence("xid:79", action="observe"),), EvidenceBasis.OTHER),
        (
            (evidence("xid:74"),),
            EvidenceBasis.OTHER,
        ),  # of NVLink: the fault may be at the other end
        ((evidence("nonsense:1"),), EvidenceBasis.OTHER),
        ((evidence("nic-link:down", level=True),), EvidenceBasis.OTHER),
        ((evidence("triangulation:blamed", level=True),), EvidenceBasis.REACH),
        (
            (
                evidence("triangulation:blamed", level=True),
                evidence("nic-link:down", level=True),
            ),
            EvidenceBasis.OTHER,
        ),
        ((evidence("triangulation:blamed", level=True), evidence("xid:79")), EvidenceBasis.FAULT),
    ],
)
def test_what_asks_for_a_quarantine_is_a_fault_or_reach_or_something_else(
    items: tuple[Evidence, ...], basis: EvidenceBasis
) -> None:
    bench = Bench()
    node_state = bench.report("n1")
    with_evidence(node_state, *items)
    assert bench.cause_tracker.basis(node_state) is basis


def test_each_piece_of_evidence_that_acts_has_its_suspects_and_a_drain_those_of_its_own() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    link = evidence("nic-link:down", action="cordon", level=True)
    gpu = evidence("xid:79")
    watched = evidence("disk-space:full", action="observe", level=True)
    made = with_evidence(node_state, link, gpu, watched)

    def whats(found: Iterable[frozenset[str]]) -> list[set[str]]:
        return [{one for one in ids if "=" not in one} for ids in found]

    assert whats(bench.cause_tracker.suspects(node_state)) == [{LINK}, {"rule:some-rule"}]
    assert whats(bench.cause_tracker.drain_suspects(node_state)) == [{"rule:some-rule"}]
    assert bench.cause_tracker.explains(node_state, made) == "", "nothing is open"
    failing(bench, 20)
    bench.cause_tracker.find_causes()
    assert bench.cause_tracker.explains(node_state, made) == "", "its GPU is its own"
    only = with_evidence(node_state, link)
    assert bench.cause_tracker.explains(node_state, only) == LINK
    none = with_evidence(node_state, watched)
    assert bench.cause_tracker.explains(node_state, none) == ""
