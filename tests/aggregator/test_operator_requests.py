"""Requests of people in a node's annotations: read, shown, obeyed, and never guessed at."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    Action,
    ClusterError,
    NodeUncordoned,
    Phase,
    Quarantine,
    QuarantineSpec,
    Taint,
)
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.operator_requests import (
    EXEMPT,
    FORCE,
    FORCED,
    PIN,
    OperatorRequests,
    describe,
    exemption,
    read_operator_requests,
)
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web.node_view import ViewMoment
from tests.support import virtual_time
from tests.support.fleet_views import view_fleet
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.present import present
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

ILL = snapshot(fault())


def wall(replica: Replica) -> float:
    return replica.clock()


def one_node(**annotations: str) -> World:
    world = World.of("n1")
    for key, value in annotations.items():
        world.person_annotates("n1", f"sickbay.dev/{key}", value)
    return world


def standing(world: World) -> Quarantine | None:
    return world.quarantines.get("n1")


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "until", "reason"),
    [
        ("until 1970-01-02T00:00:00Z firmware test", 86400.0, "firmware test"),
        ("  until   1970-01-02T01:00:00+01:00   x  y ", 86400.0, "x y"),
        ("until 1970-01-02T00:00:00Z", 86400.0, "no reason given"),
        ("until 1960-01-01T00:00:00Z long ago", 1.0, "long ago"),
    ],
)
def test_an_exemption_has_an_end_and_a_reason(text: str, until: float, reason: str) -> None:
    found = read_operator_requests({EXEMPT: text})
    assert (found.exempt_until, found.exempt_reason, found.exempt_unclear) == (until, reason, "")
    assert found.cap(until - 1) is Action.OBSERVE or until == 1.0
    assert found.cap(until) is Action.DRAIN  # over: as if it were not there, but said
    assert "ended at" in describe(found, until)[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "true",
        "yes please",
        "until",
        "until tomorrow",
        "until 2999-01-01",
        "2999-01-01T00:00:00Z",
        "until 2999-01-01T00:00:00 no zone",
        "until 9999999-01-01T00:00:00Z x",
        "\ud800",
        "UNTIL x",
    ],
)
def test_an_exemption_that_makes_no_sense_is_said_and_evicts_nobody(text: str) -> None:
    found = read_operator_requests({EXEMPT: text})
    assert found.cap(0.0) is Action.CORDON
    assert not found.exempt(0.0)
    assert 'expected "until TIME REASON"' in " ".join(describe(found, 0.0))


@pytest.mark.parametrize(
    ("text", "action", "reason"),
    [
        ("drain fan 3 is dead", Action.DRAIN, "fan 3 is dead"),
        ("cordon", Action.CORDON, "forced, no reason given"),
        ("observe it", None, ""),
        ("Drain x", None, ""),
        ("", None, ""),
    ],
)
def test_a_force_names_what_is_to_be_done(text: str, action: Action | None, reason: str) -> None:
    found = read_operator_requests({FORCE: text})
    assert (found.force, found.force_reason, found.force_requested) == (action, reason, True)
    assert bool(found.force_unclear) == (action is None)


TEXTS = st.none() | st.text(max_size=400) | st.from_regex(r"until [0-9TZ:+-]{0,30} .{0,9}")


@given(exempt=TEXTS, force=TEXTS, pin=TEXTS, at=st.floats(0, 1e12))
def test_nothing_that_somebody_writes_is_too_odd(
    exempt: str | None, force: str | None, pin: str | None, at: float
) -> None:
    some = {EXEMPT: exempt, FORCE: force, PIN: pin}
    found = read_operator_requests({key: text for key, text in some.items() if text is not None})
    for said in describe(found, at):
        assert said
        assert len(said) < 1000
    if exempt is None:
        assert found.cap(at) is Action.DRAIN
    assert found.forced(at) is None or not found.exempt(at)


@given(
    at=st.integers(1, 2**37), reason=st.from_regex(r"[a-z]{1,9}( [a-z]{1,9}){0,3}", fullmatch=True)
)
def test_what_the_command_writes_is_read_as_it_was_meant(at: int, reason: str) -> None:
    found = read_operator_requests({EXEMPT: exemption(at, reason)})
    assert (found.exempt_until, found.exempt_reason) == (at, reason)


def test_a_node_without_annotations_asks_for_nothing() -> None:
    assert read_operator_requests({"example.com/exempt": "until ever"}) == OperatorRequests()
    assert describe(OperatorRequests(), 0.0) == ()


def test_wishes_are_described_with_what_is_done_about_each() -> None:
    until = "until 1970-01-02T00:00:00Z firmware test"
    exempt = "exempt until 1970-01-02T00:00:00Z: firmware test"
    forced = "forced to drain: fan 3"
    both = read_operator_requests({EXEMPT: until, FORCE: "drain fan 3", PIN: ""})
    pinned = "pinned: no reason given"
    assert describe(both, 86_399.0) == (
        exempt,
        forced,
        "both exempt and forced: the exemption counts",
        pinned,
    )
    ended = "its exemption ended at 1970-01-02T00:00:00Z and is ignored"
    assert describe(both, 86_400.0) == (ended, forced, pinned)
    assert describe(read_operator_requests({EXEMPT: until}), 0.0) == (exempt,)
    assert describe(read_operator_requests({FORCE: "drain fan 3"}), 0.0) == (forced,)
    assert describe(read_operator_requests({PIN: " keep \n it "}), 0.0) == ("pinned: keep it",)
    unclear = describe(
        read_operator_requests({EXEMPT: "yes  please", FORCE: "stop", PIN: "x"}), 0.0
    )
    assert unclear == (
        (
            "sickbay.dev/exempt: 'yes please' makes no sense; expected \"until TIME REASON\", TIME "
            "such as 2026-12-01T00:00:00Z; not exempt, and its work stays"
        ),
        (
            "sickbay.dev/force: 'stop' makes no sense; expected \"cordon REASON\" or "
            '"drain REASON"; no action is taken'
        ),
        "pinned: x",
    )


def test_what_caps_the_action_is_told_and_nothing_where_nothing_does() -> None:
    exempt = read_operator_requests({EXEMPT: "until 1970-01-02T00:00:00Z x"})
    assert exempt.why_capped(86_399.0) == "exempt until 1970-01-02T00:00:00Z: x"
    assert exempt.why_capped(86_400.0) == ""
    unclear = read_operator_requests({EXEMPT: "until tomorrow"})
    assert unclear.why_capped(0.0).startswith("sickbay.dev/exempt: 'tomorrow' is no time with")
    assert OperatorRequests().why_capped(0.0) == ""


def test_a_person_who_exempts_a_forced_node_is_heard_until_the_exemption_ends() -> None:
    both = read_operator_requests({EXEMPT: "until 1970-01-02T00:00:00Z x", FORCE: "cordon y"})
    assert both.forced(86_399.0) is None
    assert both.forced(86_400.0) is Action.CORDON


# -- exempt ---------


async def test_an_exempt_node_is_left_alone_shown_and_evaluated_again_when_it_ends() -> None:
    world = one_node()
    replica = Replica(world, clock=Running())
    world.person_annotates("n1", EXEMPT, exemption(wall(replica) + 1000, "firmware test"))
    world.writes.clear()
    replica.agent("n1", ILL)
    await later(900)
    assert world.writes == ["record", "record"] * (len(world.writes) // 2)  # taken back
    assert parse_record(world.record.text).entries == {}
    assert not is_marked(world.nodes["n1"])
    node_summary = replica.fleet.node_summaries["n1"]
    assert node_summary.state() is QuarantineSummary.HELD
    found = view_fleet(replica.fleet, ViewMoment(replica.clock(), replica.clock()))
    assert found.exempt == 1
    assert [one.limit for one in found.holds] == ["exempt"]
    assert "firmware test" in found.requested[0].requests[0]
    assert replica.notes.kinds("n1").count("node.requested") == 1
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)
    assert "ended at" in replica.fleet.node_summaries["n1"].decision.requests[0]


@pytest.mark.parametrize("call", ["write_record", "read_node", "create_quarantine", "patch_node"])
async def test_one_that_is_set_while_we_act_is_seen_before_the_node_is_touched(call: str) -> None:
    world = one_node()
    if call == "read_node":  # a taint that the patch does not expect: the node is read
        theirs = Taint("example.com/rack-work", "", "NoSchedule")
        world.set_node(replace(world.nodes["n1"], taints=(theirs,)))
    asked: list[str] = []

    def fails(name: str) -> ClusterError | None:
        if name == call and call not in asked:
            world.person_annotates("n1", EXEMPT, exemption(10**9, "hands off"))
        asked.append(name)
        return None

    replica = Replica(world, clock=Running(), fails=fails)
    replica.agent("n1", ILL)
    await soon(lambda: replica.fleet.node_summaries["n1"].decision.exempt)
    await soon(lambda: not world.quarantines and not parse_record(world.record.text).entries)
    await later(600)
    assert not is_marked(world.nodes["n1"])
    assert not world.nodes["n1"].unschedulable
    assert not world.quarantines


async def test_what_an_exemption_kept_from_beginning_is_no_release_that_a_repeat_counts_from() -> (
    None
):
    world = one_node()
    asked: list[str] = []

    def fails(name: str) -> ClusterError | None:
        if name == "patch_node" and not asked:
            asked.append(name)
            world.person_annotates("n1", EXEMPT, exemption(wall(replica) + 1000, "wait"))
        return None

    replica = Replica(world, clock=Running(), fails=fails)
    replica.agent("n1", ILL)
    await soon(lambda: asked and not world.quarantines)
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)
    replica.agent("n1", snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    await soon(lambda: not world.quarantines)


async def test_one_that_is_set_while_it_drains_stops_the_evictions_and_keeps_the_cordon() -> None:
    world = one_node()
    pod = world.add_pod("n1", "a")
    world.budget_blocks.add(pod.uid)
    replica = Replica(world, clock=Running())
    await replica.agent_brings("n1", ILL, Phase.DRAINING)
    world.person_annotates("n1", EXEMPT, exemption(wall(replica) + 3600, "the job ends at four"))
    await later(30)
    world.budget_blocks.clear()
    await later(3000)
    assert world.evicted == []
    assert is_marked(world.nodes["n1"])
    await soon(lambda: world.evicted == [pod.uid])  # its end is the end


async def test_a_quarantine_made_by_hand_is_a_later_word_than_an_exemption() -> None:
    world = one_node(exempt=exemption(10**9, "x"))
    Replica(world, clock=Running())
    await later(10)
    world.person_creates("n1", QuarantineSpec(Action.DRAIN, "manual", "smoke", "alice"))
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)


async def test_an_exemption_that_makes_no_sense_keeps_evictions_off_and_no_cordon() -> None:
    world = one_node(exempt="forever")
    pod = world.add_pod("n1", "a")
    replica = Replica(world, clock=Running())
    await replica.agent_brings("n1", ILL, Phase.CORDONED)
    await later(1000)
    assert world.evicted == []
    assert "makes no sense" in replica.fleet.node_summaries["n1"].decision.requests[0]
    world.person_annotates("n1", EXEMPT, None)
    await soon(lambda: world.evicted == [pod.uid])


# -- force ---------


async def test_a_force_is_a_quarantine_until_it_is_taken_back() -> None:
    world = one_node(force="drain fan 3 is dead")
    none = replace(SETTINGS, limits=Limits(concurrent=0))
    replica = Replica(world, clock=Running(), settings=none)
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)
    found = present(standing(world))
    assert (found.spec.requester, found.spec.reason) == (FORCED, "fan 3 is dead")
    assert set(parse_record(world.record.text).entries) == {"n1"}  # counted, never refused
    await replica.stop()
    Replica(world, clock=Running(), settings=none)
    await later(1000)
    assert phase_of(world, "n1") is Phase.DRAINED  # a restart does not undo it
    world.person_annotates("n1", FORCE, None)
    await soon(lambda: not world.quarantines)
    assert not is_marked(world.nodes["n1"])
    assert not world.nodes["n1"].unschedulable


async def test_a_persons_release_takes_the_force_away_too() -> None:
    world = one_node(force="cordon wait for the vendor")
    Replica(world, clock=Running())
    await soon(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.person_deletes("n1")
    await soon(lambda: not world.quarantines)
    await later(1000)
    assert not world.quarantines
    assert FORCE not in world.nodes["n1"].annotations


async def test_a_force_can_be_made_stronger_and_weaker() -> None:
    world = one_node(force="cordon x")
    pod = world.add_pod("n1", "a")
    Replica(world, clock=Running())
    await soon(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.person_annotates("n1", FORCE, "drain x")
    await soon(lambda: world.evicted == [pod.uid])
    world.person_annotates("n1", FORCE, "cordon x")
    await soon(lambda: phase_of(world, "n1") is Phase.CORDONED)


@pytest.mark.parametrize("more", [{"exempt": exemption(10**9, "x")}, {"force": "explode"}])
async def test_a_force_that_is_unclear_or_contradicted_does_nothing(more: dict[str, str]) -> None:
    world = one_node(**({"force": "drain x"} | more))
    replica = Replica(world, clock=Running())
    replica.agent("n1", snapshot())
    await later(600)
    assert world.writes == []
    assert replica.fleet.node_summaries["n1"].decision.requests


async def test_a_force_goes_with_its_node() -> None:
    world = one_node(force="drain x")
    Replica(world, clock=Running())
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)
    del world.nodes["n1"]
    world.emit(NodeUncordoned("n1"))  # as its end is reported
    await soon(lambda: not world.quarantines)
    assert parse_record(world.record.text).entries == {}


async def test_a_node_that_goes_before_its_force_is_carried_out_gets_no_quarantine() -> None:
    world = one_node(force="drain x")

    def fails(name: str) -> ClusterError | None:
        if name == "read_node":
            world.nodes.pop("n1", None)
        return None

    replica = Replica(world, clock=Running(), fails=fails)
    await later(600)
    assert world.writes == []
    assert replica.cluster.calls < 100  # nor is it asked for over and over


async def test_a_force_waits_for_the_stop_switch() -> None:
    world = one_node(force="drain x")
    world.person_stops("wait")
    Replica(world, clock=Running())
    await later(600)
    assert not world.quarantines
    world.person_stops("")
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)


async def test_a_force_keeps_in_what_has_recovered() -> None:
    world = one_node()
    replica = Replica(world, clock=Running())
    disk: Any = fault("xid:79")
    await replica.agent_brings("n1", snapshot(disk), Phase.DRAINED)
    world.person_annotates("n1", FORCE, "drain RMA 7")
    world.set_node(replace(world.nodes["n1"], boot_id="boot-2"))
    replica.agent("n1", snapshot(), boot_id="boot-2")
    await later(2000)
    found = present(standing(world))
    assert "RMA 7" in found.status.release_held
    world.person_annotates("n1", FORCE, None)
    await soon(lambda: not world.quarantines)


async def test_nobody_asks_and_no_node_is_read() -> None:
    world = World.of(*(f"n{index}" for index in range(50)))
    reads: list[str] = []

    def fails(name: str) -> ClusterError | None:
        reads.extend([name] * (name == "read_node"))
        return None

    replica = Replica(world, clock=Running(), cluster=MemoryCluster(world, fails=fails))
    for index in range(50):
        replica.agent(f"n{index}", snapshot())
    await later(3600)
    assert reads == []
    # A person's word on one of them is read, of that node and no other: reads are seen here.
    world.person_annotates("n7", FORCE, "drain fan 3 is dead")
    await soon(lambda: "n7" in world.quarantines)
    assert reads
    assert set(world.quarantines) == {"n7"}
