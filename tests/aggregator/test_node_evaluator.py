"""Reports about a node that is evaluated anew, and when it is evaluated again: no replica."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.events import EventKind
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.quarantine.actions.node_actions import NodeReports
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS, DesiredState
from aggregator.quarantine.decide.operator_requests import NONE
from aggregator.quarantine.reconcile.work_queue import NodeEvaluator, _is_done
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.stage_times import StageTimes
from tests.support.replica import POLICY, Notes, all_in_mode, fault, hello, snapshot
from tests.support.virtual_time import in_virtual_time, loop_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ITEM = Evidence("xid:79", "GPU-1", "boot-1", "gpu", "drain", "", None, 1.0)
OPEN = Incident("i", "n1", "boot-1", "gpu", "drain", "bad", 1.0, (ITEM,), 60.0)


class Bench:
    """An evaluator, and what it tells."""

    def __init__(self, mode: Action = Action.DRAIN) -> None:
        self.notes = Notes()
        self.seen_to: list[float] = []
        self.acted: list[str] = []
        self.fabric_hold_ends: float | None = None
        self.counted = 0
        self.node_state: Any = NodeState("n1", now=loop_time)
        tracker: Any = SimpleNamespace(
            receive_symptoms=lambda _: None,
            explains=lambda *_: "cause-1",
            fabric_hold_ends=lambda _: self.fabric_hold_ends,
            find_causes=self._count,
        )
        clocks = Clocks(loop_time, loop_time)
        told = NodeReports(event_sink=self.notes, clocks=clocks, stages=StageTimes())

        def emit_event(
            node_state: NodeState, kind: EventKind, text: str, *more: Any, incident: str = ""
        ) -> None:
            if incident:
                told.emit_event(node_state, kind, text, *more, incident=incident)
            else:
                self.acted.append(f"{kind.value}: {text}")

        reports: Any = SimpleNamespace(stages=told.stages, emit_event=emit_event, clocks=clocks)
        queue: Any = SimpleNamespace(evaluate=self._evaluate)
        self.made: Any = NodeEvaluator(
            policy=POLICY,
            pools=all_in_mode(mode),
            reports=reports,
            cause_tracker=tracker,
            queue=queue,
        )

    def _evaluate(self, node_state: NodeState) -> None:
        self.seen_to.append(loop_time())
        self.made.evaluate_node(node_state)

    def _count(self) -> None:
        self.counted += 1


def desired(action: Action, uncapped: Action, in_force: Action = Action.DRAIN) -> DesiredState:
    return DesiredState(QuarantineSpec(action, "gpu", "bad", OURS), uncapped, in_force)


async def test_a_node_is_evaluated_again_when_time_alone_may_change_it() -> None:
    bench, asked = Bench(), []
    due: list[float | None] = [loop_time() + 10.0, loop_time() - 5.0, None]

    def evaluate(*_: Any, **__: Any) -> tuple[list[Incident], float | None]:
        asked.append(round(loop_time() - begun, 2))
        return [], due.pop(0)

    begun = loop_time()
    node_state: Any = SimpleNamespace(
        node="n1",
        quarantine=None,
        cluster=bench.node_state.cluster,
        decision=bench.node_state.decision,
        work=bench.node_state.work,
        show_requests=lambda _: (),
        evaluate=evaluate,
        set_hold=bench.node_state.set_hold,
    )
    bench.made.evaluate_node(node_state)
    await asyncio.sleep(100)
    assert asked == [0.0, 10.0, 10.0]
    assert node_state.decision.timer is None
    assert len(bench.seen_to) == 2
    cancelled: list[str] = []
    node_state.decision.timer, due[:] = (
        SimpleNamespace(cancel=lambda: cancelled.append("x")),
        [None],
    )
    bench.made.evaluate_node(node_state)
    assert cancelled == ["x"]
    assert node_state.decision.timer is None


async def test_an_incident_is_told_when_it_opens_changes_and_closes() -> None:
    bench = Bench()
    many = replace(OPEN, evidence=(ITEM,) * 9)
    for before, now, closed, kinds in (
        ({}, {"i": many}, [], ["incident.opened"]),
        ({"i": replace(OPEN, action="observe")}, {"i": many}, [], ["incident.opened"]),
        ({"i": OPEN}, {"i": OPEN}, [], []),
        ({"i": OPEN}, {"i": replace(OPEN, summary="worse")}, [], ["incident.changed"]),
        ({"i": OPEN}, {"i": replace(OPEN, action="cordon")}, [], ["incident.changed"]),
        ({"i": OPEN}, {}, [OPEN], ["incident.closed"]),
    ):
        bench.notes.transitions.clear()
        bench.node_state.decision.incidents = now
        bench.made._emit_incidents(bench.node_state, before, closed)
        assert bench.notes.kinds("n1") == kinds
        for told in bench.notes.transitions:
            opened = kinds == ["incident.opened"]
            assert told.details.get("cause") == ("cause-1" if opened else None)
            assert told.details["evidence"].count("xid:79") == (8 if opened else 1)


async def test_an_incident_that_waits_for_its_fabric_is_told_when_the_wait_is_over() -> None:
    bench = Bench()
    bench.fabric_hold_ends = loop_time() + 15.0
    bench.node_state.decision.incidents = {"i": OPEN}
    bench.made._emit_incidents(bench.node_state, {}, [])
    bench.made._emit_incidents(bench.node_state, {"i": OPEN}, [])
    assert bench.notes.kinds("n1") == []
    watched = replace(OPEN, id="w", action="observe")
    bench.node_state.decision.incidents = {"i": OPEN, "w": watched}
    bench.made._emit_incidents(bench.node_state, {"i": OPEN}, [])
    assert bench.notes.kinds("n1") == ["incident.opened"], "what is only watched waits for none"
    bench.fabric_hold_ends = None
    for _ in range(2):
        bench.made._emit_incidents(bench.node_state, {"i": OPEN, "w": watched}, [])
    assert bench.notes.kinds("n1") == ["incident.opened"] * 2
    assert bench.counted == 1, "the causes are counted before it is told which explains it"


async def test_an_incident_that_closes_while_it_waits_for_its_fabric_is_told_of_in_full() -> None:
    bench = Bench()
    bench.fabric_hold_ends = loop_time() + 15.0
    bench.node_state.decision.incidents = {"i": OPEN}
    bench.made._emit_incidents(bench.node_state, {}, [])
    bench.node_state.decision.incidents = {}
    bench.made._emit_incidents(bench.node_state, {"i": OPEN}, [OPEN])
    assert bench.notes.kinds("n1") == ["incident.opened", "incident.closed"]


async def test_what_the_mode_keeps_from_being_done_is_told_once() -> None:
    bench = Bench(Action.CORDON)
    summary = bench.node_state.decision
    bench.made._emit_preview(bench.node_state, 1_000.0)
    assert summary.would == ""
    bench.node_state.decision.wanted = desired(Action.CORDON, Action.DRAIN)
    bench.made._emit_preview(bench.node_state, 1_000.0)
    bench.made._emit_preview(bench.node_state, 1_000.0)
    assert summary.would == "drain: bad"
    assert len(bench.acted) == 1
    assert "mode cordon keeps us from this: drain: bad" in bench.acted[0]
    bench.node_state.decision.wanted = desired(Action.DRAIN, Action.DRAIN)
    bench.made._emit_preview(bench.node_state, 1_000.0)
    assert summary.would == ""


async def test_a_hold_ends_where_nothing_is_to_be_done() -> None:
    bench = Bench()
    for wanted, ends in (
        (None, True),
        (desired(Action.OBSERVE, Action.DRAIN), True),
        (desired(Action.DRAIN, Action.DRAIN, Action.OBSERVE), True),
        (desired(Action.DRAIN, Action.DRAIN), False),
    ):
        bench.node_state.decision.wanted = wanted
        bench.node_state.decision.hold = Held("x", "1", "y", since=1.0)
        bench.made._emit_preview(bench.node_state, 1_000.0)
        assert (bench.node_state.decision.hold is None) == ends


def test_an_action_is_done_by_the_phase_that_it_leads_to() -> None:
    assert not _is_done(None, Action.CORDON)
    for phase, cordoned, drained in (
        (Phase.ADMITTED, False, False),
        (Phase.CORDONED, True, False),
        (Phase.DRAINING, True, False),
        (Phase.DRAINED, True, True),
    ):
        spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS)
        found = Quarantine("n1", "q", "1", spec, QuarantineStatus(phase=phase))
        assert _is_done(found, Action.CORDON) == cordoned
        assert _is_done(found, Action.DRAIN) == drained


async def test_what_people_ask_caps_what_is_wanted() -> None:
    bench = Bench()
    await asyncio.sleep(2000)
    bench.node_state.agent.health = NodeHealth(hello("n1"))
    bench.node_state.agent.health.snapshot(snapshot(fault()))
    bench.node_state.agent.attached = True
    bench.made.evaluate_node(bench.node_state)
    found = [bench.node_state.decision.wanted.spec.action]
    bench.node_state.cluster.operator_requests = replace(
        NONE, exempt_until=1e9, exempt_reason="mine"
    )
    bench.made.evaluate_node(bench.node_state)
    found.append(bench.node_state.decision.wanted.spec.action)
    assert found == [Action.DRAIN, Action.OBSERVE]
    assert bench.node_state.decision.spared
    assert any("exempt until" in text for text in bench.acted)
