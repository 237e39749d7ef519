"""Every surface of a Slurm or a local cluster, rendered: none has a word of Kubernetes."""

import datetime as dt
from dataclasses import replace
from itertools import product

import pytest

from aggregator import advice
from aggregator.alerts.alert import alert_of
from aggregator.alerts.message import Message
from aggregator.alerts.next_step import FleetAdvice
from aggregator.alerts.plain_text import plain_text
from aggregator.cli import explain, render_nodes, wait
from aggregator.cli.screen import Screen
from aggregator.cluster.node_names import OVERRULED
from aggregator.cluster.port import Action, Blocker, Node, Phase, Quarantine
from aggregator.cluster.words import LOCAL, SLURM, ClusterWords
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.node_marks import foreign_hands
from aggregator.quarantine.decide.plans.marks import MarkView, plan_marks
from aggregator.quarantine.decide.release_checks import RELEASE_HISTORY
from aggregator.quarantine.decide.uncordon import Uncordoned, UncordonRules, after_uncordon
from aggregator.quarantine.state.fleet import FleetState
from tests.support.words_of_kubernetes import found_in, shown
from tests.web.support import (
    Hands,
    ListHistory,
    incident_of,
    quarantine_of,
    record_common_cause,
    serving,
    well,
)

HANDS = Hands()
NOW = dt.datetime.fromtimestamp(HANDS.wall, dt.UTC)
KINDS = pytest.mark.parametrize("words", [SLURM, LOCAL], ids=lambda one: one.kind)


def site(words: ClusterWords) -> FleetState:
    """A node in each phase, one for each hold, and every sentence about a node's marks."""
    fleet = FleetState(mode="drain", words=words, stop="maintenance of the hall")
    record_common_cause(fleet, HANDS.now)
    cause = next(iter(fleet.causes.values()))
    fleet.causes = {scope: replace(cause, id=scope, scope=scope) for scope in advice._CAUSES}
    unread = dict.fromkeys((OVERRULED, RELEASE_HISTORY), "{")
    for number, phase in enumerate(Phase):
        summary = well(fleet, f"n{number}", HANDS.now)
        incident_of(summary, HANDS.now)
        assert summary.cluster.meta is not None
        summary.cluster.meta = replace(summary.cluster.meta, annotations=unread)
        blocker = Blocker(f"{words.one} 7", "it is at work", HANDS.wall - 60)
        made = quarantine_of(summary, HANDS.wall, phase=phase, pods=2, blockers=(blocker,))
        status = replace(made.status, uncordoned=". ".join(sentences(made, words)))
        summary.quarantine_view.quarantine = replace(made, status=status)
        summary.cluster.foreign = words.before_us
    for number, limit in enumerate(sorted(advice.HOLDS.keys() - {"eviction"})):
        summary = well(fleet, f"h{number}", HANDS.now)
        incident_of(summary, HANDS.now)
        summary.decision.hold = Held(limit, "3", "for a reason", since=HANDS.wall)
    return fleet


def sentences(quarantine: Quarantine, words: ClusterWords) -> list[str]:
    """All that is written of the marks of a node that others have opened to new work, or closed."""
    marked = replace(quarantine, status=replace(quarantine.status, phase=Phase.CORDONED))
    view = MarkView(marked, Action.DRAIN, schedulable=True)
    views = (
        replace(view, stopped=True),
        replace(view, maintained=True),
        replace(view, exempt=True),
        replace(view, mode=Action.OBSERVE),
        replace(view, recordon_at=HANDS.wall),
    )
    steps = [plan_marks(one) for one in views]
    uid = quarantine.status.node_uid
    node = Node("n1", uid, "1", unschedulable=False, taints=(), labels={}, annotations={})
    return [
        *(step.because for step in steps if step is not None),
        *(
            after_uncordon(marked, node, whose, UncordonRules(), HANDS.wall, words).uncordoned
            for whose in Uncordoned
        ),
        foreign_hands(replace(node, unschedulable=True), marked, words),
    ]


def expect_none(text: str, where: str, words: ClusterWords) -> None:
    assert text.strip(), where
    assert found_in(text, cordons=words is LOCAL) == [], where


@KINDS
async def test_page_and_commands(words: ClusterWords) -> None:
    past = [
        Transition(HANDS.wall - 60, kind, "n1", f"n1: {words.marked}: xid:79") for kind in EventKind
    ]
    async with serving(site(words), HANDS.clocks(), history=ListHistory(past)) as served:
        for path in ("/", "/nodes", "/nodes/n1", "/nodes/n2", "/quarantines/n3", "/jobs", "/login"):
            expect_none(shown(await served.text(path)), path, words)
        screen = Screen(NOW, 400, wide=True)
        expect_none(
            "\n".join(render_nodes.quarantines(await served.json("/api/v1/quarantines"), screen)),
            "sickbay quarantines",
            words,
        )
        for name in served.fleet.node_summaries:
            told = await served.json(f"/api/v1/nodes/{name}")
            expect_none("\n".join(render_nodes.node(told, screen)), f"sickbay node {name}", words)
            lines = explain.lines(explain.explanation(told, NOW).as_json(), screen)
            expect_none("\n".join(lines), f"sickbay explain {name}", words)
            expect_none(wait.state(told["quarantine"]), f"sickbay wait {name}", words)


@KINDS
def test_alerts(words: ClusterWords) -> None:
    fleet = site(words)
    for kind, name in product(EventKind, [*fleet.node_summaries, ""]):
        incidents = fleet.node_summaries[name].decision.incidents if name else {}
        happened = Transition(HANDS.wall, kind, name, f"{name}: xid:79", next(iter(incidents), ""))
        for scope in advice._CAUSES if kind is EventKind.COMMON_CAUSE else [""]:
            alert = alert_of(replace(happened, details={"scope": scope}))
            if alert is not None:
                alert = replace(alert, advice=FleetAdvice(fleet)(alert))
                text = plain_text(Message("m", 1, (alert,)))
                expect_none(text, f"{kind} of {name}", words)


@KINDS
def test_sentences_about_marks_and_holds(words: ClusterWords) -> None:
    for limit in advice.HOLDS:
        expect_none(advice.lift(limit, "", words), limit, words)
    summary = well(FleetState(), "n1", HANDS.now)
    found = sentences(quarantine_of(summary, HANDS.wall), words)
    assert len(found) == 5 + len(Uncordoned) + 1
    for text in found:
        expect_none(text, text, words)
