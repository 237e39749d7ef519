"""Lemons: nodes that come back again and again, by history alone; told once; kept out if asked."""

import random
import time
from pathlib import Path

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import Phase
from aggregator.events import EventKind, Transition
from aggregator.health.model import Cleared, ClearedBy, Delta, Status
from aggregator.history.history import History
from aggregator.history.lemon_detector import LemonDetector, lemon_events
from aggregator.policy.lemons import (
    LemonEvent,
    LemonThresholds,
    evaluate_past,
    evidence,
)
from aggregator.quarantine.state.fleet import FleetState
from tests.support.memory_cluster import World
from tests.support.present import present
from tests.support.replica import (
    Notes,
    Replica,
    Turned,
    component,
    fault,
    shipped_policy,
    snapshot,
)
from tests.support.waiting import CLOCKS, until

DAY = 86_400.0
NOW = 2_000 * DAY
BOUNDS = LemonThresholds()


def opened(days_ago: float, *codes: str, incident: str = "") -> LemonEvent:
    return LemonEvent(NOW - days_ago * DAY, "opened", incident or f"i{days_ago}", frozenset(codes))


def quarantined(days_ago: float) -> LemonEvent:
    return LemonEvent(NOW - days_ago * DAY, "quarantined")


def released(days_ago: float) -> LemonEvent:
    return LemonEvent(NOW - days_ago * DAY, "released")


def story(*times: float, codes: tuple[str, ...] = ("xid:79",)) -> list[LemonEvent]:
    """A quarantine at each of these many days ago, over within the hour."""
    found = []
    for number, ago in enumerate(times):
        code = codes[number % len(codes)]
        found += [opened(ago, code), quarantined(ago - 0.01), released(ago - 0.04)]
    return found


@pytest.mark.parametrize(
    ("past", "strikes"),
    [
        ([], None),
        (story(20, 10), None),
        (story(21, 13, 5), None),  # three times on three days: chance does that to a fleet
        (story(25, 17, 9, 1), ("4 quarantines", "4 days with an incident")),
        (
            story(20, 15, 10, codes=("xid:79", "xid:48", "xid:119")),
            ("3 different codes", "2 returns within a week of a release"),
        ),
        (story(40, 35, 30, 29), None),  # too long ago
        (story(5.0, 5.1, 5.2, 5.3), ("4 quarantines", "3 returns within a week of a release")),
        ([opened(n, "xid:79") for n in (20, 15, 10, 5)], ("4 quarantines", "4 days with an ")),
    ],
)
def test_two_signals_of_four_make_a_lemon(
    past: list[LemonEvent], strikes: tuple[str, ...] | None
) -> None:
    lemon = evaluate_past("n1", past, BOUNDS, NOW)
    if strikes is None:
        assert lemon is None
    else:
        assert lemon is not None
        assert len(lemon.strikes) == len(strikes)
        assert all(one.startswith(word) for one, word in zip(lemon.strikes, strikes, strict=True))


def make_transition(kind: EventKind, action: str = "drain", **details: str) -> Transition:
    words = {"action": action, "evidence": "xid:79 GPU-1 (gpu-gone); disk-write:hung /a (b)"}
    return Transition(NOW, kind, "n1", "", "i1", {**words, **details})


def test_what_is_watched_or_explained_or_our_own_word_is_no_deed() -> None:
    (deed,) = lemon_events([make_transition(EventKind.INCIDENT_OPENED)])
    assert deed.what == "opened"
    assert set(deed.codes) == {"xid:79", "disk-write:hung"}
    assert list(lemon_events([make_transition(EventKind.INCIDENT_OPENED, "observe")])) == []
    assert list(lemon_events([make_transition(EventKind.INCIDENT_OPENED, cause="leaf-7")])) == []
    ours = make_transition(
        EventKind.INCIDENT_OPENED, "cordon", evidence="lemon:repeat-offender (lemon)"
    )
    assert list(lemon_events([ours])) == []
    assert list(lemon_events([make_transition(EventKind.MOVED)])) == []


# -- the whole way ---------------------------------------------------------------------------------


def url(path: Path) -> str:
    return f"sqlite:///{path}/history.db"


async def keep_story(history: History, node: str, times: tuple[float, ...]) -> None:
    wall = time.time()
    for number, ago in enumerate(times):
        at = wall - ago * DAY
        details = {"action": "drain", "evidence": "xid:79 GPU-1 (gpu-gone)"}
        ident = f"{node}-{number}"
        for kind in (
            EventKind.INCIDENT_OPENED,
            EventKind.CORDONED,
            EventKind.INCIDENT_CLOSED,
            EventKind.RELEASED,
        ):
            history.record_event(Transition(at, kind, node, "", ident, details))
    await until(lambda: not history.depth)


async def test_lemons_are_found_told_once_a_week_and_kept_out_where_a_rule_says_so(
    tmp_path: Path,
) -> None:
    """The real history, the real controller: a cordon through admission, for its own reason."""
    history = History(url(tmp_path), keep=60 * DAY, clocks=CLOCKS, rng=random.Random(1))
    history.start()
    world, notes = World.of("n1", "n2"), Notes()
    policy = shipped_policy("rules: [{name: lemon, action: cordon}]\n")
    replica = Replica(world, clock=Turned(1000.0), policy=policy)
    try:
        await keep_story(history, "n1", (20, 15, 10, 5))
        await keep_story(history, "n2", (20, 5))

        def watch() -> LemonDetector:
            return LemonDetector(
                history=history,
                fleet=replica.fleet,
                event_sink=_Both(history, notes),
                clocks=Clocks(replica.clock, time.time),
                bounds=BOUNDS,
                record_evidence=replica.controller.own_evidence.record,
            )

        replica.agents(("n1", "n2"), snapshot(component("disk-space", "/", Status.OK)))
        first = watch()
        await first.check_events()
        first.report_lemons()
        assert [lemon.node for lemon in replica.fleet.lemons] == ["n1"]
        assert [one.kind for one in notes.transitions] == [EventKind.LEMON]
        node_summary = replica.fleet.node_summaries["n1"]
        await until(
            lambda: (
                node_summary.quarantine and node_summary.quarantine.status.phase is Phase.CORDONED
            )
        )
        quarantine = present(node_summary.quarantine)
        assert "again and again within four weeks: 4 quarantines" in quarantine.spec.reason
        assert quarantine.spec.kind == "node"
        assert replica.fleet.node_summaries["n2"].quarantine is None

        # Another process, or an hour later: not reported again; the quarantine stands.
        await until(lambda: not history.depth)
        second = watch()
        await second.check_events()
        second.report_lemons()
        assert len(notes.transitions) == 1
        assert node_summary.quarantine is not None

        # Four weeks without it: a positive sign, and the node is released.
        replica.fleet.lemons = ()
        second.report_lemons()
        await until(lambda: node_summary.quarantine is None)
    finally:
        await replica.stop()
        await history.close()


async def test_a_lemon_that_flaps_is_told_once_a_week_however_many_rows_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (1.5, 1.4, 1.3, 1.2)
    monkeypatch.setattr("aggregator.history.lemon_detector.MOST_ROWS", 4 * len(times))
    history = History(url(tmp_path), keep=60 * DAY, clocks=CLOCKS, rng=random.Random(1))
    history.start()
    fleet, notes = FleetState(), Notes()
    watch = LemonDetector(
        history=history,
        fleet=fleet,
        event_sink=notes,
        clocks=CLOCKS,
        bounds=BOUNDS,
        record_evidence=lambda _node, _component: True,
    )
    told = Transition(time.time() - 2 * DAY, EventKind.LEMON, "n1", "")
    history.record_event(told)
    await keep_story(history, "n1", times)
    await watch.check_events()
    assert [lemon.node for lemon in fleet.lemons] == ["n1"]
    assert notes.transitions == []
    await history.close()


async def test_a_history_that_cannot_be_read_keeps_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_text("no database at all, by any means\n" * 100)
    history = History(url(tmp_path), keep=DAY, clocks=CLOCKS, rng=random.Random(1))
    fleet = FleetState()
    lemon = present(evaluate_past("n1", story(25, 17, 9, 1), BOUNDS, NOW))
    fleet.lemons = (lemon,)
    watch = LemonDetector(
        history=history,
        fleet=fleet,
        event_sink=Notes(),
        clocks=CLOCKS,
        bounds=BOUNDS,
        record_evidence=lambda _, __: True,
    )
    await watch.check_events()
    assert fleet.lemons == (lemon,)
    assert fleet.lemons_trouble.startswith("history can't be read: ")
    await history.close()


class _Both:
    """An event sink made of two."""

    def __init__(self, one: History, other: Notes) -> None:
        self._one, self._other = one, other

    def record_event(self, transition: Transition) -> None:
        self._one.record_event(transition)
        self._other.record_event(transition)


async def test_a_clock_that_jumps_ahead_ends_no_lemon(tmp_path: Path) -> None:
    ahead = 0.0
    clocks = Clocks(time.monotonic, lambda: time.time() + ahead)
    history = History(url(tmp_path), keep=60 * DAY, clocks=clocks, rng=random.Random(1))
    history.start()
    fleet = FleetState()
    lemons = LemonDetector(
        history=history,
        fleet=fleet,
        event_sink=Notes(),
        clocks=clocks,
        bounds=BOUNDS,
        record_evidence=lambda *_: True,
    )
    try:
        await keep_story(history, "n1", (20, 15, 10, 5))
        await lemons.check_events()
        assert [lemon.node for lemon in fleet.lemons] == ["n1"]
        ahead = 365 * DAY
        await lemons.check_events()
        assert [lemon.node for lemon in fleet.lemons] == ["n1"]
    finally:
        await history.close()


async def test_a_lemon_does_not_stand_in_the_way_of_its_other_incidents() -> None:
    """By the shipped rule a lemon is only watched: a repaired GPU is released as on any node."""
    world = World.of("n1")
    replica = Replica(world, clock=Turned(1000.0))
    try:
        replica.agent("n1", snapshot(fault("xid:48", cleared_by=ClearedBy.GPU_RESET)))
        lemon = evaluate_past("n1", story(25, 17, 9, 1), BOUNDS, NOW)
        assert replica.controller.own_evidence.record("n1", evidence(lemon, 990.0))
        node_summary = replica.fleet.node_summaries["n1"]
        await until(lambda: node_summary.quarantine is not None)
        replica.agent("n1", Delta(cleared=(Cleared("xid:48", "GPU-1", "gpu-reset"),)))
        replica.evaluate_due()
        replica.clock.time += 700
        replica.agent("n1", Delta())
        replica.evaluate_due()
        actions = sorted(one.action for one in node_summary.decision.incidents.values())
        assert actions == ["observe"]
        assert not replica.controller.own_evidence.record("nobody", evidence(lemon, 990.0))
    finally:
        await replica.stop()
