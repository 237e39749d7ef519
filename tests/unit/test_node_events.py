"""Which transitions are told as Kubernetes Events, once each, and what follows a failure."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    NodeEvent,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Refused,
    Unreachable,
)
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.node_events import EventRules, event_of
from aggregator.quarantine.reconcile import node_events
from aggregator.quarantine.reconcile.node_events import NodeEventPublisher
from tests.support.present import present
from tests.support.replica import all_in_mode
from tests.support.waiting import until

STATUS = QuarantineStatus(Phase.DRAINING, drain_started_at=50.0)
QUARANTINE = Quarantine("n1", "q", "1", QuarantineSpec(Action.DRAIN, "gpu", "why"), STATUS)
DOCUMENTATION = "https://docs.test/0.1.0"
HELD = Transition(7.0, EventKind.HELD, "n1", "n1: held", "incident", {"limit": "concurrent"})


def make_transition(kind: EventKind, **changes: Any) -> Transition:
    return replace(Transition(7.0, kind, "n1", f"n1: {kind}", "incident"), **changes)


@pytest.mark.parametrize(
    ("kind", "reason", "warning"),
    [
        (EventKind.MOVED, "Draining", False),
        (EventKind.FORCED, "Draining", False),
        (EventKind.BLOCKED, "DrainBlocked", True),
        (EventKind.OVERDUE, "DrainOverdue", True),
    ],
)
def test_a_drain_is_told_about_the_node_and_the_quarantine(
    kind: EventKind, reason: str, *, warning: bool
) -> None:
    event = present(event_of(make_transition(kind), "uid", QUARANTINE))
    assert (event.reason, event.warning, event.action) == (reason, warning, "Drain")
    assert (event.node_uid, event.quarantine_uid) == ("uid", "q")
    assert event_of(make_transition(kind), "uid", None) is None
    assert event_of(make_transition(kind), "", QUARANTINE) is None, "an Event needs the node's uid"


def test_a_node_that_no_list_has_yet_is_named_by_the_uid_in_its_quarantine() -> None:
    known = replace(QUARANTINE, status=replace(STATUS, node_uid="joined"))
    event = present(event_of(make_transition(EventKind.BLOCKED), "", known))
    assert event.node_uid == "joined"
    assert event_of(HELD, "", replace(known, foreign="another installation")) is None


def test_one_drain_has_one_event_of_a_reason_and_the_next_drain_another() -> None:
    first = event_of(make_transition(EventKind.BLOCKED), "uid", QUARANTINE)
    again = event_of(
        make_transition(EventKind.BLOCKED, summary="another pod", at=9.0), "uid", QUARANTINE
    )
    later = replace(QUARANTINE, status=replace(STATUS, drain_started_at=60.0))
    next_one = event_of(make_transition(EventKind.BLOCKED), "uid", later)
    assert first is not None
    assert again is not None
    assert next_one is not None
    assert first.name == again.name != next_one.name


def test_a_hold_is_told_once_for_each_incident_and_limit() -> None:
    event = present(event_of(HELD, "uid", None))
    assert (event.reason, event.quarantine_uid, event.action) == ("Held", "", "Quarantine")
    names = {
        found.name
        for found in (
            event_of(HELD, "uid", None),
            event_of(replace(HELD, summary="other words"), "uid", None),
            event_of(replace(HELD, details={"limit": "stop"}), "uid", None),
            event_of(replace(HELD, incident="another"), "uid", None),
            event_of(HELD, "uid of another Node", None),
        )
        if found is not None
    }
    assert len(names) == 4
    held_drain = present(event_of(HELD, "uid", QUARANTINE))
    assert held_drain.quarantine_uid == "q"


def test_pods_that_come_after_the_drain_and_other_transitions_have_no_event() -> None:
    drained = replace(QUARANTINE, status=replace(STATUS, phase=Phase.DRAINED))
    assert event_of(make_transition(EventKind.BLOCKED), "uid", drained) is None
    assert event_of(make_transition(EventKind.CORDONED), "uid", QUARANTINE) is None
    found = present(event_of(make_transition(EventKind.DRAINED), "uid", drained))
    assert found.reason == "Drained"
    assert event_of(make_transition(EventKind.DRAINING), "uid", QUARANTINE) is None


def repair(kind: EventKind, **details: str) -> Any:
    return event_of(make_transition(kind, details=details), "uid", QUARANTINE)


def test_an_attempt_at_a_repair_has_one_event_of_its_order_and_one_of_its_end() -> None:
    ordered = repair(EventKind.REPAIR_ORDERED, operation="q-1-reboot")
    assert (ordered.reason, ordered.action, ordered.warning) == ("RepairOrdered", "Repair", False)
    assert (ordered.node_uid, ordered.quarantine_uid) == ("uid", "q")
    again = repair(EventKind.REPAIR_ORDERED, operation="q-1-reboot", repair="reboot")
    following = repair(EventKind.REPAIR_ORDERED, operation="q-2-replace")
    ended = repair(EventKind.REPAIR_ENDED, operation="q-1-reboot", outcome="Succeeded")
    assert ordered.name == again.name
    assert len({ordered.name, following.name, ended.name}) == 3
    foreign = replace(QUARANTINE, foreign="another installation")
    assert event_of(make_transition(EventKind.REPAIR_ORDERED), "uid", foreign) is None
    assert event_of(make_transition(EventKind.REPAIR_ORDERED), "uid", None) is None


@pytest.mark.parametrize(
    ("kind", "outcome", "warning"),
    [
        (EventKind.REPAIR_ENDED, "Succeeded", False),
        (EventKind.REPAIR_ENDED, "Cancelled", False),
        (EventKind.REPAIR_ENDED, "Failed", True),
        (EventKind.REPAIR_ENDED, "Unknown", True),
        (EventKind.REPAIR_EXHAUSTED, "", True),
    ],
)
def test_a_repair_that_went_wrong_is_a_warning(
    kind: EventKind, outcome: str, *, warning: bool
) -> None:
    assert repair(kind, outcome=outcome).warning is warning


class Bench:
    """The publisher over a cluster that answers as told."""

    def __init__(self, answers: Sequence[Exception | None] = (), *, enabled: bool = True) -> None:
        self.passed_on: list[Transition] = []
        self.written: list[NodeEvent] = []
        self.answers = list(answers)
        self.summaries: dict[str, Any] = {}
        self.quarantine(QUARANTINE)
        fleet = SimpleNamespace(documentation_url=DOCUMENTATION)
        known: Any = SimpleNamespace(known=self.summaries.get, uid_of=lambda _: "uid", fleet=fleet)
        self.publisher = NodeEventPublisher(
            SimpleNamespace(record_event=self.passed_on.append),
            cluster=self,  # type: ignore[arg-type]
            registry=known,
            pools=all_in_mode(Action.CORDON if enabled else Action.OBSERVE),
            rules=EventRules(),
        )

    def quarantine(self, found: Quarantine) -> None:
        """The node's quarantine as it is now."""
        self.summaries["n1"] = SimpleNamespace(quarantine=found)

    async def write_event(self, event: NodeEvent) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.written.append(event)

    def record(self, *kinds: EventKind) -> None:
        for kind in kinds:
            self.publisher.record_event(make_transition(kind))

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.written]


async def test_events_are_written_in_the_background_and_once_each() -> None:
    bench = Bench()
    for transition in (make_transition(EventKind.OVERDUE), HELD, HELD):
        bench.publisher.record_event(transition)
    assert bench.written == []
    assert len(bench.passed_on) == 3
    running = asyncio.create_task(bench.publisher.run())
    await until(lambda: len(bench.written) == 2)
    assert bench.reasons == ["DrainOverdue", "Held"]
    running.cancel()


@pytest.mark.parametrize(
    ("kinds", "reasons"),
    [
        ([], []),
        ([EventKind.MOVED, EventKind.MOVED, EventKind.FORCED], ["Draining"]),
        ([EventKind.BLOCKED, EventKind.MOVED], ["DrainBlocked", "Draining"]),
        ([EventKind.OVERDUE], ["DrainOverdue"]),
        ([EventKind.HOOK], []),
    ],
)
async def test_a_drain_with_pods_to_evict_has_an_event_of_that_and_its_end_names_the_quarantine(
    kinds: list[EventKind], reasons: list[str]
) -> None:
    bench = Bench()
    bench.record(EventKind.DRAINING, *kinds, EventKind.DRAINED)
    running = asyncio.create_task(bench.publisher.run())
    await until(lambda: "Drained" in bench.reasons)
    assert bench.reasons == [*reasons, "Drained"]
    assert bool(bench.written[-1].quarantine_uid) == bool(reasons)
    running.cancel()


async def test_a_held_node_has_the_section_of_its_hold_however_long_the_reason_is() -> None:
    bench = Bench()
    limits = {"limit": "limits.concurrent"}
    bench.publisher.record_event(replace(HELD, summary="n1: " + "x" * 5_000, details=limits))
    bench.publisher.record_event(replace(HELD, incident="other", details=limits))
    running = asyncio.create_task(bench.publisher.run())
    await until(lambda: len(bench.written) == 2)
    section = f"({DOCUMENTATION}/docs/holds.md#limitsconcurrent)"
    assert bench.written[1].note == f"n1: held {section}"
    assert bench.written[0].note.endswith(section)
    assert len(bench.written[0].note.encode()) < 1024
    running.cancel()


async def test_mode_observe_writes_no_event() -> None:
    bench = Bench(enabled=False)
    bench.publisher.record_event(HELD)
    assert bench.passed_on == [HELD]
    assert not bench.publisher._waiting


async def test_a_failure_is_tried_again_and_a_refusal_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_events, "_PAUSE", 0.0)
    bench = Bench([Unreachable("away"), None, Refused("no right")])
    bench.record(EventKind.BLOCKED, EventKind.OVERDUE)
    bench.publisher.record_event(HELD)
    running = asyncio.create_task(bench.publisher.run())
    await until(lambda: len(bench.written) == 2)
    assert bench.reasons == ["DrainBlocked", "Held"]
    running.cancel()


async def test_no_more_than_a_bounded_number_of_events_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_events, "MOST_WAITING", 3)
    bench = Bench()
    for number in range(5):
        bench.publisher.record_event(replace(HELD, incident=str(number)))
    assert (len(bench.publisher._waiting), bench.publisher.dropped) == (3, 2)
    running = asyncio.create_task(bench.publisher.run())
    await until(lambda: not bench.publisher.dropped)
    assert len(bench.written) == 3
    bench.publisher.record_event(replace(HELD, incident="later"))
    await until(lambda: len(bench.written) == 4)
    running.cancel()


@pytest.mark.parametrize("reason", ["new-node", "idle"])
def test_the_test_of_a_new_or_idle_node_has_events_without_a_quarantine(reason: str) -> None:
    details = {"operation": "uid-b-1-test", "repair": "test", "reason": reason}
    kinds = (EventKind.REPAIR_ORDERED, EventKind.REPAIR_ENDED, EventKind.NEW_NODE_HELD)
    found = [event_of(make_transition(kind, details=details), "uid", None) for kind in kinds]
    assert [one.reason for one in found if one is not None] == [
        "RepairOrdered",
        "RepairEnded",
        "TestExhausted",
    ]
    assert {one.quarantine_uid for one in found if one is not None} == {""}
    assert [one.warning for one in found if one is not None] == [False, False, True]
    assert len({one.name for one in found if one is not None}) == 3
