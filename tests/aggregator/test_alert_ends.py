"""Alerts whose end was lost, or came while no controller ran: the next controller ends them."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.alerts import notifier as alerts_module
from aggregator.alerts.fleet_context import FleetEnds
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.receivers.alertmanager import AlertmanagerOptions
from aggregator.alerts.settings import AlertSettings, ReceiverConfig, RouteConfig
from aggregator.alerts.store import FileStore
from aggregator.cluster.port import (
    Action,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairStatus,
)
from aggregator.events import EventKind, Transition
from aggregator.health.model import Hello, Snapshot
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Incident
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.maintenance import STALE
from aggregator.quarantine.state.fleet import FleetState
from tests.support.node_states import summary_in
from tests.support.receiver import Receiver
from tests.support.waiting import CLOCKS, until

NOW = 1_750_000_000.0
K = EventKind
Subject = tuple[str, str, str]


def report(fleet: FleetState, node: str) -> None:
    """The node's agent is attached and has sent its snapshot."""
    agent = summary_in(fleet, node).agent
    agent.health = NodeHealth(Hello(node, "boot", "epoch", "1", 1, "1"))
    agent.health.snapshot(Snapshot((), ()))
    agent.attached = True


def ends_of(fleet: FleetState, *, lists_all: bool = True, problem: str = "") -> FleetEnds:
    return FleetEnds(fleet=fleet, lists_all=lists_all, record_problem=lambda: problem)


async def test_the_next_controller_ends_what_was_over_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that was silent for the controller before is not, for this one, "back"."""
    monkeypatch.setattr(alerts_module, "_SETTLED", 0.0)
    monkeypatch.setattr(alerts_module, "_ENDS_EVERY", 0.05)
    monkeypatch.setattr(alerts_module, "_POLL_EVERY", 0.02)
    fleet, found = FleetState(), list[Subject]()
    ends = ends_of(fleet)

    def is_over(*subject: str) -> bool:
        kind, node, incident = subject
        found.append((kind, node, incident))
        return ends(kind, node, incident)

    async with Receiver() as receiver:
        settings = AlertSettings(
            receivers=(ReceiverConfig("am", alertmanager=AlertmanagerOptions(receiver.url(""))),),
            routes=(RouteConfig(name="am", receiver="am"),),
        )

        def controller(**more: Any) -> Notifier:
            store = FileStore(tmp_path / "outbox.db")
            return Notifier(store, settings, clocks=CLOCKS, rng=random.Random(1), **more)

        def sent() -> list[tuple[str, bool]]:
            alerts = [one for request in receiver.requests for one in request.json]
            return [(one["labels"]["node"], "resolved" in one["annotations"]) for one in alerts]

        first = controller()
        first.start()
        for node in ("back", "silent"):
            first.record_event(Transition(NOW, K.AGENT_SILENT, node, "its agent is silent"))
        await until(lambda: len(sent()) == 2, lambda: first.problem)
        await first.close()
        report(fleet, "back")
        summary_in(fleet, "silent")
        second = controller(is_over=is_over)
        second.start()
        await until(lambda: ("back", True) in sent(), lambda: (sent(), second.problem))
        found.clear()
        await until(lambda: found.count((K.AGENT_SILENT, "silent", "")) > 2)
        assert ("silent", True) not in sent()
        # What is over may be reported again.
        summary_in(fleet, "back").agent.attached = False
        second.record_event(Transition(NOW + 9, K.AGENT_SILENT, "back", "its agent is silent"))
        await until(lambda: sent()[-1] == ("back", False), lambda: (sent(), second.problem))
        await second.close()


def test_an_alert_about_a_node_is_over_once_its_agent_reports_and_its_cause_is_gone() -> None:
    fleet = FleetState()
    is_over = ends_of(fleet)
    kinds = (K.AGENT_SILENT, K.SILENT_FAILING, K.NODE_LOST, K.INCIDENT_OPENED, K.HELD)
    node = summary_in(fleet, "n1")
    assert not any(is_over(kind, "n1", "i1") for kind in kinds)
    report(fleet, "n1")
    assert all(is_over(kind, "n1", "i1") for kind in kinds)
    incident = Incident("i1", "n1", "boot", "gpu", "drain", "n1: xid:79", 0.0, (), 60.0)
    node.decision.incidents = {"i1": incident}
    node.decision.hold = Held("limits.concurrent", "1", "1 node", since=NOW)
    assert [is_over(kind, "n1", "i1") for kind in kinds] == [True, True, True, False, False]
    assert is_over(K.INCIDENT_OPENED, "n1", "i2")
    node.agent.attached = False
    assert not any(is_over(kind, "n1", "i1") for kind in kinds)
    assert not is_over(K.AGENT_CONFLICT, "n1", ""), "a notice has no end"


def test_an_alert_about_a_quarantine_lasts_as_long_as_the_quarantine_or_its_marks() -> None:
    fleet = FleetState()
    is_over = ends_of(fleet)
    node = summary_in(fleet, "n1")
    kinds = (K.CORDONED, K.BLOCKED, K.REPAIR_EXHAUSTED)
    assert all(is_over(kind, "n1", "i1") for kind in kinds)
    node.cluster.marked = True
    assert not any(is_over(kind, "n1", "i1") for kind in kinds)


@pytest.mark.parametrize(
    "status",
    [
        QuarantineStatus(repair=RepairStatus(held="its operation is refused: exceeded quota")),
        QuarantineStatus(message=f"{STALE}, older than 24 h: spec.unschedulable"),
    ],
)
def test_an_alert_about_a_held_repair_or_drain_lasts_as_long_as_the_hold(
    status: QuarantineStatus,
) -> None:
    fleet = FleetState()
    report(fleet, "n1")
    view = summary_in(fleet, "n1").quarantine_view
    view.quarantine = Quarantine("n1", "q1", "1", QuarantineSpec(Action.DRAIN, "x", "x"), status)
    assert not ends_of(fleet)(K.HELD, "n1", "")
    view.quarantine = replace(view.quarantine, status=QuarantineStatus())
    assert ends_of(fleet)(K.HELD, "n1", "")


def test_the_alerts_of_a_node_that_the_cluster_has_no_more_are_over() -> None:
    assert ends_of(FleetState())(K.AGENT_SILENT, "gone", "")
    assert not ends_of(FleetState(), lists_all=False)(K.AGENT_SILENT, "gone", "")


def test_while_the_fleet_is_not_known_no_alert_is_over() -> None:
    for fleet in (FleetState(view_lost="not yet"), FleetState(waiting_for_quorum="not yet")):
        assert not ends_of(fleet)(K.AGENT_SILENT, "gone", "")


def test_an_alert_about_the_fleet_lasts_as_long_as_its_state() -> None:
    fleet = FleetState(stop="a test", cooling="until 12:00")
    kinds = (K.STOPPED, K.COOLDOWN, K.RECORD_LOST)
    assert [ends_of(fleet, problem="lost")(kind, "", "") for kind in kinds] == [False] * 3
    assert all(ends_of(FleetState())(kind, "", "") for kind in kinds)
    assert ends_of(FleetState())(K.COMMON_CAUSE, "", "rack=r1")
    assert ends_of(FleetState())(K.NETWORK_BLAMED, "", "target tcp://a")
