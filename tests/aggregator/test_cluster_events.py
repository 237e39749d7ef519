"""The effect of each event of the cluster's watch, by itself: no replica."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    Node,
    NodeSeen,
    Phase,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    QuarantineSpec,
    QuarantineStatus,
    RecordSeen,
    RecordText,
    StopSeen,
    StopText,
    WatchLost,
    WatchSynced,
)
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.reconcile import cluster_events
from aggregator.quarantine.reconcile.cluster_events import ClusterEventHandler, RecordEvents
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.support.node_states import set_fields
from tests.support.replica import POLICY, Notes, all_in_mode
from tests.support.virtual_time import VirtualTimeLoop, on

ENTRY = Entry("n1", "i", "", 1.0)


def made(phase: Phase = Phase.CORDONED, **changes: Any) -> Quarantine:
    names = set(Quarantine.__dataclass_fields__)
    own = {name: changes.pop(name) for name in list(changes) if name in names}
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS)
    return replace(
        Quarantine("n1", "q", "1", spec, QuarantineStatus(phase=phase, **changes)), **own
    )


class Bench:
    """The handler, and what it has others do."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.did: list[str] = []
        self.fleet = FleetState()
        self.notes = Notes()
        self.takes_record = True
        self.registry = NodeRegistry(self.fleet, "pool", clocks=Clocks(loop.time, loop.time))
        self.record = SimpleNamespace(
            record=SimpleNamespace(entries={}, repairs={}),
            problem="",
            trouble="",
            seen=lambda _: self.takes_record,
            forget_version=lambda: self.did.append("forget version"),
        )
        self.queue = SimpleNamespace(
            view=True,
            holds_lease=lambda: True,
            add=self._note("add"),
            evaluate=self._note("evaluate"),
            begin=lambda _: None,
            forget_node=lambda _: None,
            add_if_pending=self._note("pending"),
            add_for_read=self._note("look"),
        )
        self.switch = SimpleNamespace(
            reason="",
            apply_seen=lambda _: self.did.append("stop seen"),
            view_lost=lambda: self.did.append("stop view lost"),
        )
        self.record.switch = self.switch
        record: Any = self.record
        queue: Any = self.queue
        nothing: Any = SimpleNamespace()
        rounds: Any = SimpleNamespace(requeue_held=lambda: self.did.append("held"))
        clocks = Clocks(loop.time, lambda: 5000.0)
        self.records: Any = RecordEvents(
            registry=self.registry,
            record_writer=record,
            queue=queue,
            rounds=rounds,
            event_sink=self.notes,
            clocks=clocks,
        )
        self.made: Any = ClusterEventHandler(
            cluster=nothing,
            policy=POLICY,
            node_registry=self.registry,
            records=self.records,
            queue=queue,
            trackers=nothing,
            clocks=clocks,
            pools=all_in_mode(Action.DRAIN),
        )
        self.made._listing = False

    def _note(self, what: str) -> Callable[[Any], None]:
        return lambda node_state: self.did.append(f"{what} {node_state.node}")

    async def send_event(self, news: Any) -> list[str]:
        self.did.clear()
        await self.made._take_event(news)
        return self.did

    def node_state(self, quarantine: Quarantine | None = None) -> Any:
        found: Any = self.registry.node_state("n1")
        found.quarantine_view.quarantine = quarantine
        return found


with_bench = on(Bench)
pytestmark = pytest.mark.decorated(by=with_bench)


# -- quarantines ----------------------------------------------------------------------------------


async def test_a_quarantine_that_is_seen_is_taken_evaluated_and_attended_to_once(
    bench: Bench,
) -> None:
    seen = made()
    assert await bench.send_event(QuarantineSeen(seen)) == ["evaluate n1", "add n1"]
    node_state = bench.registry.node_state("n1")
    assert node_state.quarantine is seen
    assert list(bench.registry.quarantine_index.quarantines()) == [seen]
    assert await bench.send_event(QuarantineSeen(seen)) == [], "it is no news"
    newer = replace(seen, version="2")
    assert len(await bench.send_event(QuarantineSeen(newer))) == 2
    assert await bench.send_event(QuarantineSeen(seen)) == [], "it is older"
    assert node_state.quarantine is newer
    bench.made._listing = True
    assert len(await bench.send_event(QuarantineSeen(seen))) == 2, "a list counts"
    assert node_state.quarantine is seen


async def test_an_absence_gives_room_to_others_once(bench: Bench) -> None:
    gone = made(node_absent_since=1.0)
    assert "held" in await bench.send_event(QuarantineSeen(gone))
    assert bench.registry.absent == {"n1"}
    assert "held" not in await bench.send_event(QuarantineSeen(replace(gone, version="2")))
    assert "held" not in await bench.send_event(QuarantineSeen(made(version="3")))
    assert bench.registry.absent == set()


async def test_the_end_of_a_quarantine_that_is_not_the_known_one_changes_nothing(
    bench: Bench,
) -> None:
    assert await bench.send_event(QuarantineGone("n1", "q")) == []
    assert bench.registry.known("n1") is None
    node_state = bench.node_state(made())
    assert await bench.send_event(QuarantineGone("n1", "r")) == []
    assert node_state.quarantine is not None
    bench.node_state(None)
    assert await bench.send_event(QuarantineGone("n1", "q")) == []
    assert node_state.quarantine_view.ended == ""


async def test_one_that_a_read_missed_first_is_told_of_by_the_watch(bench: Bench) -> None:
    node_state = bench.node_state(None)
    node_state.quarantine_view.vanished = "q"
    assert await bench.send_event(QuarantineGone("n1", "q")) == ["add n1"]
    assert (
        node_state.quarantine_view.orphan,
        node_state.quarantine_view.vanished,
        node_state.quarantine_view.ended,
    ) == ("q", "", "q")
    set_fields(node_state, vanished="r", orphan="")
    await bench.send_event(QuarantineGone("n1", "r", with_definition=True))
    assert (
        node_state.quarantine_view.orphan,
        node_state.quarantine_view.to_adopt,
        node_state.quarantine_view.definition_going,
    ) == ("", True, True)
    assert [node_state.quarantine_view.remains] == [None]


# -- nodes ----------------------------------------------------------------------------------------


async def test_a_quarantined_node_that_lacks_marks_is_read_at_once_and_then_now_and_then(
    bench: Bench,
) -> None:
    node = Node("n1", "u", "1", True, (), {}, {})
    assert await bench.send_event(NodeSeen(node)) == []
    node_state = bench.node_state(None)
    assert await bench.send_event(NodeSeen(node)) == []
    bench.node_state(made(Phase.ADMITTED, node_uid="u"))
    assert await bench.send_event(NodeSeen(node)) == []
    bench.node_state(made(node_uid="u"))
    assert await bench.send_event(NodeSeen(node)) == ["look n1"]
    assert node_state.work.polled_at == bench.loop.time()
    began = bench.loop.time()
    for _ in range(3):
        assert await bench.send_event(NodeSeen(node)) == []
    bench.did.clear()
    await asyncio.sleep(1.9)
    assert bench.did == []
    await asyncio.sleep(0.2)
    assert bench.did == ["look n1"]
    assert node_state.work.polled_at == pytest.approx(began + 2.0)
    assert bench.made._timer is None
    assert bench.made._changed == set()
    await asyncio.sleep(2.0)
    assert await bench.send_event(NodeSeen(node)) == ["look n1"]
    await bench.send_event(NodeSeen(node))
    bench.made.close()
    await asyncio.sleep(5)
    assert bench.did == []


# -- the record and the switch --------------------------------------------------------------------


async def test_nodes_whose_entry_came_or_went_are_attended_to_and_a_place_goes_to_others(
    bench: Bench,
) -> None:
    seen = RecordSeen(RecordText("", "1"))
    bench.node_state()
    bench.record.record.entries = {"n1": ENTRY}
    assert await bench.send_event(seen) == ["pending n1"]
    assert bench.fleet.record_entries == 1
    assert await bench.send_event(seen) == []
    bench.record.record.entries = {}
    assert await bench.send_event(seen) == ["pending n1", "held"]
    assert bench.fleet.record_entries == 0
    bench.registry.node_state("n2")
    bench.record.problem = "unreadable"
    assert await bench.send_event(seen) == ["pending n1", "pending n2"]
    assert await bench.send_event(seen) == []
    bench.record.problem = ""
    assert await bench.send_event(seen) == ["pending n1", "pending n2"]
    bench.takes_record, bench.record.problem = False, "x"
    assert await bench.send_event(seen) == [], "it is an older one"


async def test_a_stop_is_shown_told_once_and_attended_to_everywhere(bench: Bench) -> None:
    assert await bench.send_event(StopSeen(StopText("x", "1"))) == ["stop seen"]
    bench.node_state()
    bench.switch.reason = "a drill"
    bench.records.stop_changed()
    assert bench.fleet.stop == "a drill"
    assert bench.did[1:] == ["pending n1"]
    bench.records.report_stop()
    bench.switch.reason = ""
    bench.records.stop_changed()
    assert [(one.summary, one.at) for one in bench.notes.transitions] == [
        ("the stop switch is set: a drill", 5000.0),
        ("the stop switch is off again", 5000.0),
    ]
    kinds = [one.kind.name for one in bench.notes.transitions]
    assert kinds == ["STOPPED", "RESUMED"]


async def test_a_lost_record_is_told_and_its_end(bench: Bench) -> None:
    for trouble in ("", "it is gone", "it is gone", ""):
        bench.record.trouble = trouble
        bench.records.report_record()
    told = [(one.kind.name, one.summary) for one in bench.notes.transitions]
    assert told == [
        ("RECORD_LOST", "it is gone"),
        ("RECORD_WHOLE", "the admission record is whole again: admission goes on"),
    ]


# -- the view -------------------------------------------------------------------------------------


async def test_a_lost_view_stops_all_and_the_next_list_counts_whatever_its_versions(
    bench: Bench,
) -> None:
    bench.registry.quarantine_index.whole = True
    found = await bench.send_event(WatchLost("the API server is away"))
    assert found == ["stop view lost", "forget version"]
    assert not bench.registry.quarantine_index.whole
    assert not bench.queue.view
    assert bench.made._listing
    assert bench.fleet.view_lost == "the API server is away"
    restored: list[frozenset[str]] = []

    async def restore(unschedulable: frozenset[str]) -> None:
        assert not bench.made._listing
        restored.append(unschedulable)

    bench.made._view_restored = restore
    await bench.send_event(WatchSynced(frozenset({"n1"})))
    assert restored == [frozenset({"n1"})]
    assert cluster_events._BETWEEN_READS == 2.0
