"""Merging replicas' reports: every node once, whichever reports it; and the event broker's part."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.events import EventKind, Transition
from aggregator.quarantine.state.fleet import FleetState, QuarantineSummary
from aggregator.web import fleet_view, models, node_view, replica_messages
from aggregator.web.event_broker import EventBroker
from aggregator.web.fleet_view import FleetViewBuilder, FleetViewFindings
from aggregator.web.merge import MergedScope, Owners
from aggregator.web.node_view import ViewMoment
from aggregator.web.replica_messages import (
    NodeReports,
    NodesPart,
    PageAnswer,
    ReplicaReport,
    Unreadable,
)
from aggregator.web.summary import headline
from tests.support.fleet_views import view_fleet
from tests.web.replicas import Seat, Town, owned
from tests.web.support import (
    NIGHT,
    Hands,
    big_fleet,
    incident_of,
    quarantine_of,
    small_fleet,
    well,
)

HANDS = Hands()
NOW = ViewMoment(HANDS.now, HANDS.wall)
NAMES = [f"node-{number}" for number in range(12)]
OTHERS = ("b", "c", "d")


class Heard:
    """The reports of the other replicas."""

    def __init__(self, tellings: Mapping[str, ReplicaReport]) -> None:
        self._tellings = tellings

    def tellings(self) -> Mapping[str, ReplicaReport]:
        return self._tellings


def merged(
    fleet: FleetState, town: Town, tellings: Mapping[str, ReplicaReport]
) -> FleetViewFindings:
    seat = Seat("a", town)
    whole = MergedScope(fleet, seat, Owners(seat), Heard(tellings), list)
    found = FleetViewBuilder(fleet, NOW)
    names = sorted(whole.names(), key=fleet_view.natural)
    whole.begin()
    for name in names:
        whole.add(found, name)
    return whole.conclude(found, names)


def telling_of(name: str, nodes: list[NodeReports], trouble: str = "") -> ReplicaReport:
    """The report that `Peer` makes of an answer, and of one that failed later."""
    told = ReplicaReport(
        name,
        {one.node: one for one in nodes},
        {one.node: place for place, one in enumerate(nodes)},
        heard=bytes(len(nodes)),
        seen_at=HANDS.now,
        at=NOW.when(HANDS.now),
    )
    if not trouble:
        return told
    old = replace(told, trouble=trouble)
    return replace(old, nodes=replica_messages.aged(old))


def told_by(fleet: FleetState, seat: Seat) -> list[NodeReports]:
    mine = [one for one in fleet.node_summaries.values() if seat.owns(one.node)]
    return [replica_messages.to_node_reports(one, NOW, fleet.mode, fleet.how) for one in mine]


@st.composite
def companies(draw: st.DrawFn) -> tuple[FleetState, Town, dict[str, ReplicaReport]]:
    """Replicas that know and report any nodes, also each other's; some don't answer."""
    fleet, town = FleetState(mode="drain"), Town()
    for name in ("a", *draw(st.sets(st.sampled_from(OTHERS)))):
        town.joins(name)
    for name in draw(st.sets(st.sampled_from(NAMES))):
        node_summary = well(fleet, name, HANDS.now)
        match draw(st.sampled_from(["attached", "silent", "never", "quarantined", "incident"])):
            case "silent":
                node_summary.agent.attached = False
            case "never":
                (
                    node_summary.agent.health,
                    node_summary.agent.attached,
                    node_summary.agent.last_heard,
                ) = (
                    None,
                    False,
                    None,
                )
            case "quarantined":
                quarantine_of(node_summary, HANDS.wall)
            case "incident":
                incident_of(node_summary, HANDS.now)
    tellings = {}
    for name in draw(st.sets(st.sampled_from(OTHERS))):
        nodes = []
        for node in draw(st.lists(st.sampled_from(NAMES), unique=True)):
            standing = draw(st.sampled_from(QuarantineSummary))
            agent = draw(st.sampled_from(["attached", "silent", "never"]))
            ill = well(FleetState(), node, HANDS.now)
            incident_of(ill, HANDS.now)
            incidents = replica_messages.to_node_reports(ill, NOW, "drain", "").incidents * draw(
                st.booleans()
            )
            requests = ["left alone"] * draw(st.booleans())
            ill.decision.would = "drain it" * draw(st.booleans())
            hold = replica_messages.to_node_reports(ill, NOW, "drain", "").hold
            made = NodeReports(
                node, standing, agent, requests=requests, incidents=incidents, hold=hold
            )
            nodes.append(made)
        trouble = draw(st.sampled_from(["", "", "does not answer: nothing", "has left"]))
        dropped = [NodeReports(node) for node in draw(st.sets(st.sampled_from(NAMES)))]
        before = telling_of(name, dropped, "has let it go") if dropped else None
        tellings[name] = replace(telling_of(name, nodes, trouble), before=before)
    return fleet, town, tellings


@given(companies())
def test_no_node_is_shown_twice_and_none_is_lost(
    company: tuple[FleetState, Town, dict[str, ReplicaReport]],
) -> None:
    fleet, town, tellings = company
    found = merged(fleet, town, tellings)
    current = [one for one in tellings.values() if not one.trouble]
    expected = set(fleet.node_summaries).union(*(one.nodes for one in current))
    assert len(found.names) == len(set(found.names))
    assert set(found.names) == set(found.standings) == expected
    assert sum(found.counts.values()) == len(expected)
    for rows in (found.silent, found.requested, found.quarantines, found.holds):
        assert max(Counter(one.node for one in rows).values(), default=1) == 1
    assert not {one.node for one in found.quarantines} & {one.node for one in found.holds}
    ids = Counter(one.id for one in found.incidents)
    assert max(ids.values(), default=1) == 1
    for name in expected:
        node_summary = fleet.node_summaries.get(name)
        in_quarantine = node_summary is not None and node_summary.quarantine is not None
        assert (found.standings[name] is QuarantineSummary.QUARANTINED) == in_quarantine
        teller = found.remote_nodes.get(name)
        assert teller is not None or node_summary is not None
        if teller is not None and teller.trouble:
            assert found.standings[name] is not QuarantineSummary.OK
            told = teller.nodes.get(name) or replica_messages.NodeReports(name)
            row = fleet_view.row_told(told, teller, node_summary, NOW)
            assert row.last_known == teller.at
    old = [one for one in found.remote_nodes.values() if one.trouble]
    assert found.last_known == len(old)
    assert ("last known" in headline(found)) == bool(old)


def test_until_a_nodes_agent_has_moved_whoever_heard_it_last_is_believed() -> None:
    fleet, town = FleetState(mode="drain"), Town()
    for name in ("a", "b"):
        town.joins(name)
    seat = Seat("a", town)
    mine = next(name for name in NAMES if seat.owns(name))
    theirs = next(name for name in NAMES if not seat.owns(name))
    for name in (mine, theirs):
        node_summary = well(fleet, name, HANDS.now)
        node_summary.agent.health, node_summary.agent.attached, node_summary.agent.last_heard = (
            None,
            False,
            None,
        )
    warned = [
        NodeReports(name, QuarantineSummary.WARNING, why="the fan") for name in (mine, theirs)
    ]
    unheard = telling_of(
        "b", [NodeReports(theirs, QuarantineSummary.UNKNOWN, "never", why="not heard")]
    )

    def why(name: str, tellings: dict[str, ReplicaReport]) -> tuple[QuarantineSummary, str]:
        found = merged(fleet, town, tellings)
        teller = found.remote_nodes.get(name)
        if teller is None:
            return found.standings[name], "here"
        return found.standings[name], teller.nodes[name].why

    left = telling_of("c", warned, "has left")
    word = "last known 03:14 UTC, c has left: the fan"
    assert why(mine, {"b": unheard, "c": left}) == (QuarantineSummary.WARNING, word)
    assert why(theirs, {"b": unheard, "c": left}) == (QuarantineSummary.WARNING, word)
    # It has not seen yet that they are others' now.
    stays = telling_of("c", warned)
    assert why(mine, {"b": unheard, "c": stays}) == (QuarantineSummary.WARNING, "the fan")
    assert why(theirs, {"b": unheard, "c": stays}) == (QuarantineSummary.WARNING, "the fan")
    assert why(theirs, {"b": unheard}) == (QuarantineSummary.UNKNOWN, "not heard")
    assert why(mine, {"b": unheard}) == (QuarantineSummary.UNKNOWN, "here")
    # In the middle of a roll: it still answers, and no longer reports them.
    empty = replace(
        telling_of("c", []), before=replica_messages.dropped(stays, telling_of("c", []))
    )
    word = "last known 03:14 UTC, c has let it go: the fan"
    assert why(mine, {"b": unheard, "c": empty}) == (QuarantineSummary.WARNING, word)
    assert why(theirs, {"b": unheard, "c": empty}) == (QuarantineSummary.WARNING, word)
    # Of two last reports the later one.
    later = replace(telling_of("d", [NodeReports(theirs)], "has left"), seen_at=HANDS.now + 5)
    word = "last known 03:14 UTC, d has left"
    assert why(theirs, {"b": unheard, "c": empty, "d": later}) == (QuarantineSummary.UNKNOWN, word)
    # An agent that is still here, and has been told where to go.
    well(fleet, theirs, HANDS.now)
    assert why(theirs, {"b": unheard, "c": left}) == (QuarantineSummary.OK, "here")
    # Its agent has come.
    fleet.node_summaries[theirs].agent.attached = False
    well(fleet, mine, HANDS.now)
    arrived = telling_of("b", [NodeReports(theirs)])
    assert why(mine, {"b": arrived, "c": left}) == (QuarantineSummary.OK, "here")
    assert why(theirs, {"b": arrived, "c": left}) == (QuarantineSummary.OK, "")


@given(st.sets(st.sampled_from(OTHERS)))
def test_what_all_tell_together_is_what_one_alone_would_show(others: set[str]) -> None:
    town, fleet = Town(), small_fleet(HANDS)
    for name in ("a", *others):
        town.joins(name)
    for name in ("node-1", "node-7"):
        fleet.node_summaries[name].cluster.set_untested("new node, awaits its test")
    alone = view_fleet(fleet, NOW)
    assert alone.untested == 2
    tellings = {
        name: telling_of(name, told_by(owned(fleet, Seat(name, town)), Seat(name, town)))
        for name in others
    }
    found = merged(owned(fleet, Seat("a", town)), town, tellings)
    assert found.standings == alone.standings
    assert found.incidents == alone.incidents
    assert found.quarantines == alone.quarantines
    assert found.holds == alone.holds
    assert found.limits == alone.limits
    assert [one.node for one in found.silent] == [one.node for one in alone.silent]
    named = ("names", "attached", "never_heard", "conflicts", "exempt", "untested")
    for same in (*named, "record_entries"):
        assert getattr(found, same) == getattr(alone, same), same


def test_what_a_part_drops_is_kept_as_its_last_word_unless_it_was_none() -> None:
    old = telling_of(
        "b",
        [
            NodeReports("node-1", why="x"),
            NodeReports("node-2"),
            NodeReports("node-3", agent="never"),
        ],
    )
    new = telling_of("b", [NodeReports("node-1")])
    kept = replica_messages.dropped(old, new)
    assert kept is not None
    assert list(kept.nodes) == ["node-2"]
    assert kept.nodes["node-2"].standing is QuarantineSummary.UNKNOWN
    assert kept.note == "last known 03:14 UTC, b has let it go"
    assert replica_messages.dropped(replace(new, before=kept), new) is kept, (
        "until something else is dropped"
    )


def test_a_part_travels_whole_and_a_well_node_takes_few_bytes() -> None:
    fleet = big_fleet(HANDS, 1000)
    told = [
        replica_messages.to_node_reports(one, NOW, fleet.mode, fleet.how)
        for one in fleet.node_summaries.values()
    ]
    body = replica_messages.encode(PageAnswer("b", "1.1", part=NodesPart(told)))
    back = replica_messages.decode(body, PageAnswer)
    assert back.part is not None
    assert back.part.nodes == told
    quiet = [one for one in told if one == NodeReports(one.node)]
    assert len(quiet) > 900
    assert len(replica_messages.encode(PageAnswer("b", "1.1", part=NodesPart(quiet)))) < 20 * len(
        quiet
    )


def story_of_a_node_in_quarantine() -> models.Node:
    node_summary = well(FleetState(), "node-1", HANDS.now)
    quarantine_of(node_summary, HANDS.wall)
    return node_view.node(node_summary, NOW, "drain", how=FleetState().how)


def test_a_newer_replicas_story_is_read_although_it_says_more() -> None:
    story = story_of_a_node_in_quarantine()
    told = msgspec.msgpack.decode(replica_messages.encode(replica_messages.NodeDetailAnswer(story)))
    for at in (told, told["node"], told["node"]["quarantine"]):
        at["of_a_later_version"] = {"what": ["it", "is"]}
    assert (
        replica_messages.decode(
            msgspec.msgpack.encode(told), replica_messages.NodeDetailAnswer
        ).node
        == story
    )


@given(st.binary(max_size=200))
def test_what_is_no_answer_is_refused_and_raises_nothing_else(body: bytes) -> None:
    for kind in (PageAnswer, replica_messages.HistoryAnswer, replica_messages.NodeDetailAnswer):
        with suppress(Unreadable):
            replica_messages.decode(body, kind)  # type: ignore[type-var]  # one of the three


@pytest.mark.parametrize(
    "value",
    [
        {"name": "b", "revision": "1", "part": {"nodes": [{"node": "x", "standing": "merry"}]}},
        {"name": "b", "revision": "1", "part": {"nodes": [{}]}},
        {"name": "b", "revision": "1", "events": [{"at": "noon", "kind": "x"}]},
        {"name": 7, "revision": "1"},
        [],
        None,
    ],
)
def test_an_answer_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(Unreadable):
        replica_messages.decode(msgspec.msgpack.encode(value), PageAnswer)


def test_an_answer_that_is_deeper_than_deep_is_refused() -> None:
    deep = msgspec.msgpack.encode({"name": "b", "revision": "1", "more": 1})[:-1]
    with pytest.raises(Unreadable):
        replica_messages.decode(deep + b"\x91" * 1_000_000 + b"\xc0", PageAnswer)


# -- the feed --------------------------------------------------------------------------------


def happened(number: int, node: str = "node-1") -> Transition:
    return Transition(NIGHT + number, EventKind.EVICTED, node, f"{node}: evicted pod-{number}")


def test_a_cursor_brings_each_of_our_own_events_once_and_never_others() -> None:
    feed = EventBroker(epoch=7)
    feed.record_event(happened(1))
    first, seen, _ = feed.own_since("", 100)
    assert first == [happened(1)]
    feed.relay([happened(2, "node-9")], fresh=True)
    feed.record_event(happened(3))
    second, seen, missed = feed.own_since(seen, 100)
    assert (second, missed) == ([happened(3)], 0)
    assert feed.own_since(seen, 100) == ([], seen, 0)
    assert [one.node for one in feed.recent()] == ["node-1", "node-9", "node-1"]


def test_a_cursor_of_another_life_brings_all_of_this_one() -> None:
    feed = EventBroker(epoch=7)
    for number in range(3):
        feed.record_event(happened(number))
    told, _, missed = feed.own_since("6.99", 100)
    assert (len(told), missed) == (3, 0)


def test_more_than_an_answer_holds_is_counted() -> None:
    feed = EventBroker(epoch=7)
    feed.record_event(happened(0))
    _, seen, _ = feed.own_since("", 100)
    for number in range(1, 1001):
        feed.record_event(happened(number))
    told, _, missed = feed.own_since(seen, 100)
    assert told[-1] == happened(1000)
    assert len(told) + missed == 1000


async def test_who_listens_hears_others_events_and_how_many_could_not_be_had() -> None:
    feed = EventBroker(epoch=7)
    with feed.subscribe() as reader, feed.subscribe("node-2") as other:
        feed.relay([happened(1)], fresh=True, missed=5)
        frames = await reader.next(1) or b""
        assert b"pod-1" in frames
        assert b'{"transitions":5}' in frames
        assert b"pod-1" not in (await other.next(1) or b"")
    assert not feed.counts


async def test_what_was_before_is_shown_and_told_to_nobody() -> None:
    feed = EventBroker(epoch=7)
    feed.record_event(happened(5))
    with feed.subscribe() as reader:
        feed.relay([happened(1, "node-9"), happened(9, "node-9")], fresh=False)
        assert await reader.next(0.01) == b""
    assert {one.summary[-1] for one in feed.recent()} == {"1", "5", "9"}


def test_a_stop_that_every_replica_notes_is_told_once_whoever_is_first() -> None:
    for ours_first in (True, False):
        feed = EventBroker(epoch=7)
        mine = Transition(NIGHT, EventKind.STOPPED, "", "stopped: a switch")
        theirs = replace(mine, at=NIGHT + 2)
        if ours_first:
            feed.record_event(mine)
        feed.relay([theirs], fresh=True)
        if not ours_first:
            feed.record_event(mine)
        assert [one.kind for one in feed.recent()] == [EventKind.STOPPED]
        assert feed.counts[EventKind.STOPPED] == 1
        assert feed.own_since("", 10)[0] == [mine]
        feed.relay([replace(mine, at=NIGHT + 3600)], fresh=True)
        assert len(feed.recent()) == 2, "another stop, an hour later"
