"""Which routes send an alert: matchers, groups, silences, exemptions; one message for a rack."""

import json
import random
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.alerts.alert import Alert, alert_of, dedup_key
from aggregator.alerts.fleet_context import FleetContext
from aggregator.alerts.next_step import FleetAdvice
from aggregator.alerts.notifier import Notifier
from aggregator.alerts.outbox import AlertOutbox, PendingDelivery
from aggregator.alerts.receivers.alertmanager import AlertmanagerOptions
from aggregator.alerts.receivers.slack import SlackOptions
from aggregator.alerts.receivers.webhook import WebhookOptions
from aggregator.alerts.routes import NodeContext, Router, group_of, targets_of
from aggregator.alerts.settings import AlertSettings, ReceiverConfig, RouteConfig, SilenceConfig
from aggregator.alerts.store import FileStore
from aggregator.cli.command_line import parser_for
from aggregator.clock import Clocks
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.cluster.port import NodeMeta
from aggregator.events import EventKind, Transition
from aggregator.policy.label_selector import LabelSelector
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.operator_requests import OperatorRequests
from aggregator.quarantine.decide.pools import Pool, Pools
from aggregator.quarantine.state.fleet import FleetState
from tests.support.node_states import summary_in
from tests.support.present import of_type, present

NOW = 1_750_000_000.0
K = EventKind
CHAT = ReceiverConfig("chat", slack=SlackOptions(Path("/url")))
OTHER = ReceiverConfig("other", slack=SlackOptions(Path("/url")))
HOOK = ReceiverConfig("hook", webhook=WebhookOptions("http://a", Path("/s")))
MANAGER = ReceiverConfig("am", alertmanager=AlertmanagerOptions("http://am"))
RACK = "topology.kubernetes.io/rack"
NODES = {
    "gpu-1": NodeContext({RACK: "r1", "team": "a"}, "h100", "r1", ("gpu-gone", "xid-79")),
    "gpu-2": NodeContext({RACK: "r1"}, "h100", "r1"),
    "cpu-1": NodeContext({RACK: "r2"}, "", "r2", ("disk-space",)),
    "away": NodeContext({}, "", "", (), exempt_until=NOW + 60),
}


def context(node: str) -> NodeContext:
    return NODES.get(node, NodeContext())


def happened(
    node: str, kind: EventKind = K.CORDONED, at: float = NOW, **details: str
) -> Transition:
    return Transition(at, kind, node, f"{node}: {kind}", f"inc-{node}", details)


def router(*routes: RouteConfig, silences: tuple[SilenceConfig, ...] = ()) -> Router:
    settings = AlertSettings(receivers=(CHAT, OTHER, MANAGER), routes=routes, silences=silences)
    return Router(targets_of(settings), settings, context)


def alert(transition: Transition, by: Router) -> Alert:
    made = present(alert_of(transition))
    return by.labelled(made)


def route(name: str = "one", receiver: str = "chat", **matchers: Any) -> RouteConfig:
    return RouteConfig(name=name, receiver=receiver, **matchers)


@pytest.mark.parametrize(
    ("matchers", "nodes"),
    [
        ({}, {"gpu-1", "gpu-2", "cpu-1"}),
        ({"nodes": ("gpu-*",)}, {"gpu-1", "gpu-2"}),
        ({"nodes": ("gpu-1", "cpu-*")}, {"gpu-1", "cpu-1"}),
        ({"pools": ("h*",)}, {"gpu-1", "gpu-2"}),
        ({"pools": ("",)}, {"cpu-1"}),
        ({"rules": ("xid-*",)}, {"gpu-1"}),
        ({"labels": {RACK: "r1", "team": "*"}}, {"gpu-1", "gpu-2"}),
        ({"labels": {"team": "a"}}, {"gpu-1"}),
        ({"severity": ("critical",)}, set()),
        ({"severity": ("critical", "warning")}, {"gpu-1", "gpu-2", "cpu-1"}),
        ({"kinds": (K.DRAINED,)}, set()),
        ({"kinds": (K.CORDONED,), "pools": ("h100",), "nodes": ("*-2",)}, {"gpu-2"}),
    ],
)
def test_a_route_sends_alerts_that_match_every_key(
    matchers: Mapping[str, Any], nodes: set[str]
) -> None:
    by = router(route(**matchers))
    sent = {node for node in NODES if node != "away" and by.targets(alert(happened(node), by))}
    assert sent == nodes


def test_a_receiver_has_an_alert_once_and_two_receivers_have_it_each() -> None:
    by = router(route("first", nodes=("gpu-1",)), route("second"), route("third", "other"))
    names = {
        node: [one.name for one in by.targets(alert(happened(node), by))]
        for node in ("gpu-1", "cpu-1")
    }
    assert names == {"gpu-1": ["first", "third"], "cpu-1": ["second", "third"]}


def test_an_alert_about_the_fleet_has_the_labels_that_its_nodes_share() -> None:
    by = router(route(labels={RACK: "r1"}), route("every", "other"))
    blamed = happened("", K.NETWORK_BLAMED, nodes="gpu-1, gpu-2")
    found = alert(blamed, by)
    assert found.labels == {"pool": "h100", "rack": "r1", RACK: "r1"}
    assert [one.name for one in by.targets(found)] == ["one", "every"]
    mixed = alert(happened("", K.NETWORK_BLAMED, nodes="gpu-1, cpu-1"), by)
    assert mixed.labels == {}
    assert [one.name for one in by.targets(mixed)] == ["every"]


def test_groups_are_by_rack_for_people_and_by_any_key_that_is_configured() -> None:
    by = router(
        route("default"), route("named", "other", group_by=("kind", RACK)), route("machine", "am")
    )
    one, two = (alert(happened(node), by) for node in ("gpu-1", "cpu-1"))
    groups = {target.name: group_of(target, one) for target in by.targets(one)}
    assert groups == {"default": "r1", "named": "quarantine.cordoned\x1fr1", "machine": ""}
    assert {group_of(target, two) for target in by.targets(two)[:1]} == {"r2"}


def test_receivers_for_people_wait_for_others_and_those_for_machines_do_not() -> None:
    settings = AlertSettings(
        receivers=(HOOK, CHAT, MANAGER),
        routes=(
            route("hook", "hook"),
            route("chat"),
            route("am", "am"),
            route("slow", group_wait=60.0, group_interval=600.0, resolved=False),
        ),
    )
    hook, chat, manager, slow = targets_of(settings)
    assert (hook.wait.linger, hook.wait.grouped, hook.wait.interval) == (0.5, 10.0, 0.0)
    assert (hook.resolved, hook.group_by) == (False, ())
    assert (chat.wait.linger, chat.wait.interval, chat.resolved) == (15.0, 60.0, True)
    assert (manager.wait.linger, manager.wait.grouped, manager.wait.interval) == (0.5, 0.5, 0.0)
    assert (slow.wait.linger, slow.wait.grouped, slow.wait.interval) == (60.0, 60.0, 600.0)
    assert not slow.resolved
    assert len({one.key for one in (hook, chat, manager, slow)}) == 4


def test_a_silence_holds_the_alerts_that_match_until_its_end() -> None:
    silences = (
        SilenceConfig(nodes=("gpu-*",), until=NOW + 100, reason="a test"),
        SilenceConfig(pools=("h100",), severity=("warning",), until=NOW + 900, reason="a test"),
        SilenceConfig(nodes=("cpu-*",), until=NOW - 1, reason="over"),
    )
    by = router(route(), silences=silences)
    ends = {
        (node, kind): by.silence(alert(happened(node, kind), by), NOW)
        for node in ("gpu-1", "cpu-1")
        for kind in (K.CORDONED, K.OVERDUE, K.MOVED)
    }
    assert ends == {
        ("gpu-1", K.CORDONED): NOW + 900,
        ("gpu-1", K.OVERDUE): NOW + 100,
        ("gpu-1", K.MOVED): NOW + 100,
        ("cpu-1", K.CORDONED): 0.0,
        ("cpu-1", K.OVERDUE): 0.0,
        ("cpu-1", K.MOVED): 0.0,
    }


async def test_a_silence_by_a_pool_or_a_rule_outlives_a_restart_before_which_nodes_are_known(
    tmp_path: Path,
) -> None:
    silences = (
        SilenceConfig(pools=("h100",), until=NOW + 900, reason="a test"),
        SilenceConfig(rules=("disk-*",), until=NOW + 800, reason="a test"),
        SilenceConfig(labels={RACK: "r1"}, until=NOW + 700, reason="a test"),
    )
    settings = AlertSettings(receivers=(CHAT,), routes=(route(),), silences=silences)
    story = Story(tmp_path, settings)
    story.record(happened("gpu-1"), happened("cpu-1"))
    clock = Clock()
    store = FileStore(tmp_path / "outbox.db")
    after = Notifier(store, settings, clocks=Clocks(clock, clock), rng=random.Random(1))
    await after._begin()
    await after.close()
    story.clock.now = NOW + 100
    assert story.next() == pytest.approx(700)
    story.outbox.close()


async def test_an_exemption_outlives_a_silence_also_over_a_restart(tmp_path: Path) -> None:
    silence = SilenceConfig(kinds=(K.CORDONED,), until=NOW + 70, reason="rack move")
    settings = AlertSettings(receivers=(CHAT,), routes=(route(),), silences=(silence,))
    story = Story(tmp_path, settings)
    story.record(happened("away"))  # exempt for less time
    story.clock.now = NOW + 80
    store, clocks = FileStore(tmp_path / "outbox.db"), Clocks(story.clock, story.clock)
    after = Notifier(store, settings, clocks=clocks, rng=random.Random(1))
    await after._begin()
    await after.close()
    assert story.next() == pytest.approx(60), "whether the node is exempt is not known yet"
    story.outbox.close()


def test_an_exemption_that_people_prolong_outlives_a_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = SilenceConfig(kinds=(K.CORDONED,), until=NOW + 70, reason="rack move")
    routes = (route(receiver="am"),)
    story = Story(tmp_path, AlertSettings(receivers=(MANAGER,), routes=routes, silences=(silence,)))
    story.record(happened("away"))
    monkeypatch.setitem(NODES, "away", NodeContext(exempt_until=NOW + 600))
    story.record(happened("away", K.REQUESTED, NOW + 10))
    story.clock.now = NOW + 80
    found = of_type(story.next(), PendingDelivery)
    assert [one["kind"] for one in json.loads(found.alerts)] == ["node.requested"]
    story.outbox.close()


def test_a_tenants_text_for_an_owner_makes_a_group_that_every_database_takes() -> None:
    [target] = router(route(group_by=("owner",)))._targets
    about = present(alert_of(happened("gpu-1")))
    groups = {
        group_of(target, replace(about, labels={"owner": owner}))
        for owner in ("a", "a\0", "a\ud800", "ä", "a" * 1_001, "a" * 1_002)
    }
    owners = NamespaceOwners("owner")
    owners.update("ns", {}, {"owner": "a" * 1_000})
    assert owners.owner_of("ns") == "a" * 253
    assert len(groups) == 6
    assert all(group.isascii() and group.isprintable() and len(group) <= 32 for group in groups)


def test_an_exempt_node_is_silent_and_peoples_requests_about_it_are_not() -> None:
    by = router(route())
    assert by.exempt_until(alert(happened("away"), by), NOW) == NOW + 60
    assert by.exempt_until(alert(happened("away"), by), NOW + 61) == 0.0
    assert by.exempt_until(alert(happened("away", K.REQUESTED), by), NOW) == 0.0
    assert by.exempt_until(alert(happened("gpu-1"), by), NOW) == 0.0
    assert by.exempt_until(alert(happened("", K.STOPPED), by), NOW) == 0.0


def test_the_fleets_state_knows_labels_pool_rack_and_exemption() -> None:
    fleet = FleetState()
    labels = {"pool": "h100", "leaf": "l1", RACK: "r1"}
    summary = summary_in(fleet, "n1")
    summary.cluster.take_listed(NodeMeta("n1", "u", labels), 0.0, marked=False)
    summary.cluster.operator_requests = OperatorRequests(exempt_until=NOW)
    found = FleetContext(fleet, "pool", ("leaf", RACK))("n1")
    assert found == NodeContext(labels, "h100", "r1", (), NOW, "observe")
    assert FleetContext(fleet, "", ("leaf",))("n1").rack == "l1"
    assert FleetContext(fleet, "pool", ())("unknown") == NodeContext()


def test_an_incident_in_mode_observe_says_that_nothing_was_done() -> None:
    fleet = FleetState()
    summary_in(fleet, "n1")
    settings = AlertSettings()
    by = Router(targets_of(settings), settings, FleetContext(fleet, "", ()))
    for mode, ends in (("observe", True), ("cordon", False), ("drain", False)):
        fleet.mode = mode
        said = alert(happened("n1", K.INCIDENT_OPENED, action="drain"), by).summary
        assert said.endswith("; mode observe: nothing was done") == ends
    fleet.mode = "observe"
    assert "nothing was done" not in alert(happened("n1", K.STOPPED), by).summary


def test_an_alert_carries_the_advice_of_the_page_and_the_command_that_explains_it() -> None:
    fleet = FleetState(mode="drain", how=" --url http://sickbay.test")
    settings = AlertSettings()
    contexts = FleetContext(fleet, "", ())
    by = Router(targets_of(settings), settings, contexts, advise=FleetAdvice(fleet))
    held = summary_in(fleet, "n1")
    held.decision.hold = Held("limits.concurrent", "13", "13 nodes", since=NOW)
    command = "Causes and next steps: sickbay explain n1 --url http://sickbay.test"
    told = alert(happened("n1", K.HELD, limit="limits.concurrent"), by).advice
    assert told.startswith("Repair or release nodes in quarantine")
    assert told.endswith(command)
    assert alert(happened("n1", K.RELEASED), by).advice == command
    assert alert(happened("", K.COMMON_CAUSE, scope="place"), by).advice.startswith("Repair what")
    assert "sickbay resume --url" in alert(happened("", K.STOPPED), by).advice
    assert "explain 'n1; rm'" in alert(happened("n1; rm", K.AGENT_SILENT), by).advice


def test_the_commands_of_an_alert_have_the_options_that_each_takes() -> None:
    fleet = FleetState(mode="drain", how=" --local /var/lib/cluster.db")
    summary_in(fleet, "n1").decision.hold = Held("stop", "set", "set", since=NOW)
    settings = AlertSettings()
    by = Router(
        targets_of(settings), settings, FleetContext(fleet, "", ()), advise=FleetAdvice(fleet)
    )
    advice = alert(happened("n1", K.HELD, limit="stop"), by).advice
    act, _, read = advice.partition(". Causes and next steps: ")
    assert act.endswith("sickbay resume --local /var/lib/cluster.db")
    for command in (act[act.index("sickbay resume") :], read):
        name, *given = shlex.split(command)
        parser_for(name, {}).parse_args(given)


def test_without_a_label_of_pools_an_alert_has_the_pool_of_the_configuration() -> None:
    fleet = FleetState(pools=Pools((Pool("canary", LabelSelector({"pool": "b"})),)))
    summary_in(fleet, "n1").cluster.labels = {"pool": "b"}
    assert FleetContext(fleet, "", ())("n1").pool == "canary"


# -- the whole way, without a receiver -------------------------------------------------------------


class Clock:
    """Wall clock and monotonic seconds, as one."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Story:
    """A notifier and its outbox, without a sender: time is the test's."""

    def __init__(self, folder: Path, settings: AlertSettings) -> None:
        self.clock = Clock()
        self.outbox = AlertOutbox(FileStore(folder / "outbox.db"))
        [self.target] = targets_of(settings)
        self._alerts = Notifier(
            FileStore(folder / "outbox.db"),
            settings,
            clocks=Clocks(self.clock, self.clock),
            rng=random.Random(1),
            context=context,
        )

    def record(self, *transitions: Transition) -> None:
        for transition in transitions:
            self._alerts.record_event(transition)
        self.outbox.accept(list(self._alerts._queue), self.clock.now)
        self._alerts._queue.clear()

    def next(self) -> PendingDelivery | float | None:
        found = self.outbox.next(self.target.key, self.clock.now, self.target.wait)
        if isinstance(found, PendingDelivery):
            self.outbox.done(found)
        return found


def test_a_rack_of_64_that_dies_is_two_messages_for_people(tmp_path: Path) -> None:
    """Silence within one heartbeat, a network that is blamed for the rack, and lost nodes later."""
    names = [f"rack-{n:02}" for n in range(64)]
    NODES.update({name: NodeContext({RACK: "r7"}, "h100", "r7") for name in names})
    told = [
        *(happened(name, K.AGENT_SILENT, NOW + n * 10 / 64) for n, name in enumerate(names)),
        happened("", K.NETWORK_BLAMED, NOW + 12, nodes=", ".join(names[:10]), blamed="rack"),
        *(happened(name, K.NODE_LOST, NOW + 300 + n / 64) for n, name in enumerate(names)),
    ]
    story = Story(tmp_path, AlertSettings(receivers=(CHAT,), routes=(route(),)))
    deliveries: list[PendingDelivery] = []
    before = -1
    for second in (*range(30), *range(30, 90, 5), *range(300, 400, 4)):
        story.clock.now = NOW + second
        story.record(*(one for one in told if before < one.at - NOW <= second))
        before = second
        found = story.next()
        if isinstance(found, PendingDelivery):
            deliveries.append(found)
    story.outbox.close()
    assert len(deliveries) == 2
    sent = [alert for one in deliveries for alert in json.loads(one.alerts)]
    assert len(sent) == len(told)


def test_an_alert_of_an_exempt_node_is_sent_when_people_end_the_exemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = AlertSettings(receivers=(MANAGER,), routes=(route(receiver="am"),))
    story = Story(tmp_path, settings)
    story.record(happened("away"))
    story.clock.now = NOW + 5
    assert story.next() == pytest.approx(55)
    monkeypatch.setitem(NODES, "away", NodeContext())
    story.record(happened("away", K.REQUESTED, NOW + 10))
    story.clock.now = NOW + 11
    found = of_type(story.next(), PendingDelivery)
    assert [one["kind"] for one in json.loads(found.alerts)] == [
        "quarantine.cordoned",
        "node.requested",
    ]
    story.outbox.close()


def test_a_shorter_silence_still_holds_when_people_end_an_exemption_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = SilenceConfig(kinds=(K.CORDONED,), until=NOW + 40, reason="rack move")
    routes = (route(receiver="am"),)
    story = Story(tmp_path, AlertSettings(receivers=(MANAGER,), routes=routes, silences=(silence,)))
    story.record(happened("away"))
    monkeypatch.setitem(NODES, "away", NodeContext())
    story.record(happened("away", K.REQUESTED, NOW + 10))
    kinds = []
    for later in (11, 41):
        story.clock.now = NOW + later
        found = of_type(story.next(), PendingDelivery)
        kinds.append([one["kind"] for one in json.loads(found.alerts)])
    assert kinds == [["node.requested"], ["quarantine.cordoned"]]
    story.outbox.close()


# -- owners of pods --------------------------------------------------------------------------------


def owned(*routes: RouteConfig, silences: tuple[SilenceConfig, ...] = ()) -> Router:
    owners = {"training": "vision", "batch": "speech"}
    settings = AlertSettings(receivers=(CHAT, OTHER, MANAGER), routes=routes, silences=silences)
    return Router(targets_of(settings), settings, context, lambda name: owners.get(name, ""))


def evicted(pod: str, kind: EventKind = K.JOB_STOPPED) -> Transition:
    return happened("gpu-1", kind, pod=pod, key=f"{pod.partition('/')[0]}/job/train")


def test_two_jobs_of_one_incident_are_two_alerts_and_one_job_is_one() -> None:
    keys = [dedup_key(evicted(pod)) for pod in ("a/x", "a/y", "b/x")]
    assert keys[0] == keys[1] != keys[2]


def test_owners_hear_of_their_own_pods_alone() -> None:
    by = owned(route("vision", owners=("vision",)), route("any", "other", owners=("*",)))
    unowned = owned(route("none", owners=("",)))
    sent = {
        pod: [one.name for one in by.targets(alert(evicted(pod), by))]
        for pod in ("training/a", "batch/b", "nobody/c")
    }
    assert sent == {"training/a": ["vision", "any"], "batch/b": ["any"], "nobody/c": []}
    assert unowned.targets(alert(evicted("nobody/c"), unowned))
    assert not unowned.targets(alert(evicted("batch/b"), unowned))
    assert by.targets(alert(happened("gpu-1"), by)) == []
    assert alert(evicted("training/a"), by).labels["owner"] == "vision"
    assert "owner" not in alert(evicted("nobody/c"), by).labels


@pytest.mark.parametrize("kind", [K.JOB_STOPPED, K.BLOCKED, K.FORCED])
def test_a_route_to_owners_has_every_kind_about_a_pod_and_one_group_for_each_owner(
    kind: EventKind,
) -> None:
    by = owned(route(owners=("vision", "speech")))
    assert by.wants(kind)
    [target] = by.targets(alert(evicted("training/a", kind), by))
    same = group_of(target, alert(evicted("training/b", kind), by))
    assert group_of(target, alert(evicted("training/a", kind), by)) == same
    assert group_of(target, alert(evicted("batch/a", kind), by)) != same


def test_kinds_and_groups_of_an_owners_route_can_be_configured() -> None:
    by = owned(route(owners=("*",), kinds=(K.CORDONED,), group_by=("node",)))
    assert not by.wants(K.MOVED)
    assert by.targets(alert(happened("gpu-1"), by)) == []
    [target] = by.targets(alert(happened("gpu-1", pod="training/a"), by))
    assert target.group_by == ("node",)


def test_a_silence_of_an_owner_holds_the_alerts_about_that_owners_pods() -> None:
    silence = SilenceConfig(owners=("vision",), until=NOW + 60, reason="moved")
    by = owned(route(owners=("*",)), silences=(silence,))
    assert by.silence(alert(evicted("training/a"), by), NOW) == NOW + 60
    assert by.silence(alert(evicted("batch/b"), by), NOW) == 0
