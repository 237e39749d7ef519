"""Symptoms of a node that count for common causes, by whom and when: one replica's side."""

from collections.abc import Iterable

from aggregator.clock import Clocks
from aggregator.health.model import ClearedBy, Component, Hello, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.quarantine.correlation.common_cause import UPGRADED, CommonCauseTracker
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import FLEET, Cooldown, Record
from aggregator.quarantine.decide.common_cause import CommonLimits, Group
from aggregator.quarantine.decide.symptoms import FABRIC, FABRIC_BY_LABEL
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.support.replica import POLICY, Notes, Turned, component, snapshot

RACK, CLIQUE = "example.com/rack", "nvidia.com/gpu.clique"
LINK = "check:nic-link"
DOWN = component("nic-link", "eth0", Status.FAILED, "down", since=990.0)


class Bench:
    """A `CommonCauseTracker` over nodes that the test makes."""

    def __init__(self) -> None:
        self.clock, self.fleet, self.notes = Turned(), FleetState(), Notes()
        self.node_registry = NodeRegistry(self.fleet, "", clocks=Clocks(self.clock, self.clock))
        self.cause_tracker = CommonCauseTracker(
            limits=CommonLimits(domain_labels=(RACK,)),
            admission=Limits(cooldown=900.0, after_upgrade=120.0),
            policy=POLICY,
            node_registry=self.node_registry,
            event_sink=self.notes,
            clocks=Clocks(self.clock, self.clock),
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
        signs, groups, _ = self.cause_tracker._common.known(node)
        return {sign.what for sign in signs}, set(groups)

    def is_counted(self, node: str) -> bool:
        return bool(self.cause_tracker._common.known(node)[2])


VERSIONS = {("driver", "550"), ("agent", "1.0")}


def test_a_node_counts_as_its_agent_speaks() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    assert bench.known("n1") == ({LINK}, VERSIONS)
    bench.cause_tracker.forget_node(node_state)
    assert not bench.is_counted("n1")


def test_before_its_first_snapshot_what_was_told_of_a_node_stands() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    node_state.agent.health = NodeHealth(Hello("n1", "boot-1", "epoch", "1.0", 1, "i"))
    bench.cause_tracker.receive_symptoms(node_state)
    assert bench.known("n1") == ({LINK}, VERSIONS)


def test_a_node_without_an_agent_counts_no_more() -> None:
    bench = Bench()
    node_state = bench.report("n1", DOWN)
    node_state.agent.health = None
    bench.cause_tracker.receive_symptoms(node_state)
    assert not bench.is_counted("n1")


OWN, OTHER = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"


def fabrics(bench: Bench, node: str, clique: str, claimed: str) -> set[Group]:
    """The fabrics that the node counts to, with this clique label and this word of its agent."""
    node_state = bench.node_registry.node_state(node)
    node_state.cluster.labels = {CLIQUE: clique} if clique else {}
    hello = Hello(node, "boot-1", "e", "1.0", 1, "i", traits={"fabric_clique": f"{claimed}.1"})
    node_state.agent.health = NodeHealth(hello)
    node_state.agent.health.snapshot(snapshot())
    bench.cause_tracker.receive_symptoms(node_state)
    groups = bench.cause_tracker._common.known(node)[1]
    return {group for group in groups if group[0].startswith("fabric:")}


def test_an_agent_claims_no_fabric_of_labelled_nodes() -> None:
    bench, where = Bench(), "n1"
    by_label = {(FABRIC_BY_LABEL, OWN)}
    assert fabrics(bench, where, f"{OWN}.7", OTHER) == by_label
    assert fabrics(bench, where, f"{OTHER}.7", OTHER).isdisjoint(by_label)
    unlabelled = fabrics(bench, where, "", OWN)
    assert unlabelled == {(FABRIC, OWN)}, "no group that a labelled node is in"
    assert fabrics(bench, where, "rack-7", OWN) == set(), "a clique of another form"


# -- what is told --------------------------------------------------------------------------------


def failing(bench: Bench, number: int) -> None:
    for name in [f"n{n}" for n in range(number)]:
        bench.report(name, DOWN)


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
    record = Record(
        cooldowns={FLEET: Cooldown(1000.0, "the rate")}, admissions=((990.0, ""), (995.0, ""))
    )
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
        "have lasted for 2m"
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
