"""Groups, ends of alerts, holds, claims of replicas, and files of an earlier version."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.alerts.alert import DECIDED_WITHIN, alert_of, decision_of, dedup_key, resolves
from aggregator.alerts.batch import Exemption
from aggregator.alerts.outbox import AlertHold, AlertOutbox, BatchWait, Item, PendingDelivery
from aggregator.alerts.store import FileStore
from aggregator.events import EventKind, Transition
from tests.support.present import of_type

NOW = 1_750_000_000.0
CHAT, MACHINE = "chat", "machine"
WAIT = BatchWait(linger=10.0, grouped=10.0, interval=60.0)
K = EventKind


def happened(
    node: str, kind: EventKind = K.CORDONED, at: float = NOW, **details: str
) -> Transition:
    return Transition(at, kind, node, f"{node}: {kind}", f"inc-{node}", details)


def item(
    transition: Transition,
    group: str = "",
    hold: AlertHold | None = None,
    exempt: Exemption | None = None,
) -> Item:
    """For a chat that wants to learn of ends, and a machine that does not."""
    return Item(
        dedup_key(transition),
        alert_of(transition),
        resolves(transition),
        (CHAT, MACHINE),
        {CHAT: group},
        frozenset({CHAT}),
        hold,
        exempt,
        decision_of(transition),
    )


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[AlertOutbox]:
    made = AlertOutbox(FileStore(tmp_path / "outbox.db"))
    yield made
    made.close()


def composed(outbox: AlertOutbox, now: float, route: str = CHAT) -> list[dict[str, Any]]:
    """The next delivery's alerts; it is taken at once."""
    found = outbox.next(route, now, WAIT)
    assert isinstance(found, PendingDelivery), found
    outbox.done(found)
    return [one | {"delivery": found.id} for one in json.loads(found.alerts)]


def test_alerts_of_one_group_share_a_delivery_and_groups_do_not(outbox: AlertOutbox) -> None:
    outbox.accept([item(happened(f"a{n}"), "r1") for n in range(3)], NOW)
    outbox.accept([item(happened("b0"), "r2")], NOW + 5)
    assert outbox.next(CHAT, NOW + 6, WAIT) == pytest.approx(4)
    assert [one["node"] for one in composed(outbox, NOW + 11)] == ["a0", "a1", "a2"]
    assert outbox.next(CHAT, NOW + 11, WAIT) == pytest.approx(4)
    assert [one["node"] for one in composed(outbox, NOW + 16)] == ["b0"]


def test_a_group_that_was_sent_waits_for_its_interval_and_others_do_not(
    outbox: AlertOutbox,
) -> None:
    outbox.accept([item(happened("a0"), "r1")], NOW)
    composed(outbox, NOW + 10)
    outbox.accept([item(happened("a1"), "r1"), item(happened("b0"), "r2")], NOW + 12)
    assert [one["node"] for one in composed(outbox, NOW + 22)] == ["b0"]
    assert outbox.next(CHAT, NOW + 22, WAIT) == pytest.approx(48)
    assert [one["node"] for one in composed(outbox, NOW + 70)] == ["a1"]


def test_groups_that_wait_for_their_interval_hold_up_no_other_however_many_they_are(
    outbox: AlertOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.alerts.composition.MOST_GROUPS", 2)
    for turn in range(2):
        some = [happened(f"a{n}", K.CORDONED if turn else K.OVERDUE) for n in range(3)]
        outbox.accept([item(one, one.node) for one in some], NOW + turn)
        for _ in () if turn else some:
            composed(outbox, NOW + 10)
    outbox.accept([item(happened("b0"), "b0")], NOW + 12)
    assert [one["node"] for one in composed(outbox, NOW + 22)] == ["b0"]
    assert outbox.next(CHAT, NOW + 22, WAIT) == pytest.approx(48)


def test_a_batch_whose_commit_was_not_answered_can_be_written_again(outbox: AlertOutbox) -> None:
    batch = [
        item(happened("n1")),
        item(happened("n1", K.RELEASED, NOW + 1)),
        item(happened("n1", at=NOW + 2)),
    ]
    outbox.accept(batch, NOW + 3)
    outbox.accept(batch, NOW + 4)
    outbox.accept([item(happened("n2"))], NOW + 5)
    assert composed(outbox, NOW + 20)[-1]["node"] == "n2"


def test_a_hook_that_succeeds_at_last_ends_the_alert_about_its_failure(outbox: AlertOutbox) -> None:
    outbox.accept([item(happened("n1", K.HOOK_FAILED, hook="pre_evict"))], NOW)
    outbox.accept([item(happened("n1", K.HOOK, hook="pre_evict"))], NOW + 1)
    found = [(one["kind"], one["state"]) for one in composed(outbox, NOW + 20)]
    assert found[1] == ("quarantine.hook_failed", "resolved")


def test_a_hook_that_fails_after_the_release_is_not_ended_by_that_release(
    outbox: AlertOutbox,
) -> None:
    failed = [happened("n1", K.HOOK_FAILED, hook=hook) for hook in ("pre_evict", "post_release")]
    outbox.accept([item(one) for one in failed], NOW)
    outbox.accept([item(happened("n1", K.RELEASED, NOW + 1))], NOW + 1)
    found = [(one["details"]["hook"], one["state"]) for one in composed(outbox, NOW + 20)]
    assert found == [("pre_evict", "firing"), ("post_release", "notice"), ("pre_evict", "resolved")]


def test_an_end_goes_to_the_routes_that_follow_and_names_the_delivery_that_announced_it(
    outbox: AlertOutbox,
) -> None:
    outbox.accept([item(happened("n1")), item(happened("n2"))], NOW)
    begun = composed(outbox, NOW + 10)
    assert [one["state"] for one in begun] == ["firing", "firing"]
    assert len(composed(outbox, NOW + 10, MACHINE)) == 2
    outbox.accept([item(happened("n1", K.RELEASED, NOW + 90))], NOW + 90)
    [over] = composed(outbox, NOW + 100)
    assert (over["state"], over["kind"]) == ("resolved", "quarantine.cordoned")
    assert over["key"] == begun[0]["key"]
    assert over["id"] != begun[0]["id"]
    assert over["resolved"] == {
        "at": "2025-06-15T15:08:10.000Z",
        "summary": "n1: quarantine.released",
        "delivery": begun[0]["delivery"],
        "open": 1,
    }
    # A route that does not follow has the transition itself, as before.
    assert [one["kind"] for one in composed(outbox, NOW + 101, MACHINE)] == ["quarantine.released"]
    outbox.accept([item(happened("n2", K.RELEASED))], NOW + 200)
    [last] = composed(outbox, NOW + 210)
    assert last["resolved"]["open"] == 0


def test_an_end_without_an_alert_before_it_is_the_notice_that_it_was(outbox: AlertOutbox) -> None:
    outbox.accept([item(happened("n1", K.RELEASED))], NOW)
    assert [(one["kind"], one["state"]) for one in composed(outbox, NOW + 10)] == [
        ("quarantine.released", "notice")
    ]


def test_what_begins_and_ends_before_it_was_sent_is_sent_in_that_order(outbox: AlertOutbox) -> None:
    """In one batch of transitions, and in two."""
    outbox.accept([item(happened("n1")), item(happened("n1", K.RELEASED))], NOW)
    outbox.accept([item(happened("n2"))], NOW)
    outbox.accept([item(happened("n2", K.RELEASED))], NOW + 1)
    found = composed(outbox, NOW + 10)
    assert [(one["node"], one["state"]) for one in found] == [
        ("n1", "firing"),
        ("n1", "resolved"),
        ("n2", "firing"),
        ("n2", "resolved"),
    ]
    assert {one["resolved"]["delivery"] for one in found if "resolved" in one} == {
        found[0]["delivery"]
    }
    assert outbox.lasting_alerts(CHAT) == []


def test_the_end_of_an_incident_ends_no_quarantine(outbox: AlertOutbox) -> None:
    opened = happened("n1", K.INCIDENT_OPENED, action="drain")
    outbox.accept([item(opened), item(happened("n1"))], NOW)
    composed(outbox, NOW + 10)
    outbox.accept([item(happened("n1", K.INCIDENT_CLOSED, action="drain"))], NOW + 90)
    found = composed(outbox, NOW + 100)
    assert [(one["kind"], one["state"]) for one in found] == [("incident.opened", "resolved")]
    assert [one.kind for one in outbox.lasting_alerts(CHAT)] == ["quarantine.cordoned"]


def test_the_same_fault_after_its_end_is_announced_again(outbox: AlertOutbox) -> None:
    for turn in range(3):
        at = NOW + 100 * turn
        outbox.accept([item(happened("n1", at=at))], at)
        outbox.accept([item(happened("n1", K.ADMITTED, at=at))], at)
        outbox.accept([item(happened("n1", K.RELEASED, at=at + 20))], at + 20)
        found = composed(outbox, at + 80)
        assert [one["state"] for one in found if "admitted" not in one["kind"]] == [
            "firing",
            "resolved",
        ]


def test_a_silenced_alert_waits_and_is_sent_when_the_silence_ends(outbox: AlertOutbox) -> None:
    hold = AlertHold(NOW + 3600, "silence")
    outbox.accept([item(happened("n1"), hold=hold), item(happened("n2"))], NOW)
    assert [one["node"] for one in composed(outbox, NOW + 10)] == ["n2"]
    assert outbox.next(CHAT, NOW + 100, WAIT) == pytest.approx(3500)
    assert outbox.expire(CHAT, NOW + 1800) == 0
    assert [one["node"] for one in composed(outbox, NOW + 3601)] == ["n1"]


def test_a_silenced_alert_that_ends_meanwhile_is_never_sent_nor_is_its_end(
    outbox: AlertOutbox,
) -> None:
    hold = AlertHold(NOW + 3600, "silence")
    outbox.accept([item(happened("n1"), hold=hold)], NOW)
    outbox.accept([item(happened("n2"), hold=hold), item(happened("n2", K.RELEASED))], NOW)
    over = replace(item(happened("n1", K.RELEASED)), hold=hold)
    outbox.accept([over], NOW + 60)
    for route in (CHAT, MACHINE):
        found = composed(outbox, NOW + 4000, route)
        assert [(one["node"], one["kind"]) for one in found] == [("n2", "quarantine.released")]
        assert outbox.next(route, NOW + 4000, WAIT) is None


def test_a_silence_that_was_taken_out_of_the_configuration_holds_no_alert(
    outbox: AlertOutbox,
) -> None:
    outbox.accept([item(happened("n1"), hold=AlertHold(NOW + 3600, "silence"))], NOW)
    held = outbox.held()
    assert [alert.node for _, alert in held] == ["n1", "n1"]  # on two routes
    outbox.hold({number: None for number, _ in held})
    assert [one["node"] for one in composed(outbox, NOW + 20)] == ["n1"]


def test_an_exemption_that_people_end_early_frees_its_alerts_and_a_longer_one_holds_them(
    outbox: AlertOutbox,
) -> None:
    def exempt(node: str, until: float) -> Exemption:
        return Exemption(node, until, lambda _: 0.0)

    hold = AlertHold(NOW + 3600, "exempt")
    outbox.accept([item(happened("n1"), hold=hold), item(happened("n3"), hold=hold)], NOW)
    assert outbox.held() == []
    outbox.accept([item(happened("n2", K.REQUESTED), exempt=exempt("n1", 0.0))], NOW + 60)
    outbox.accept([item(happened("n3", K.REQUESTED), exempt=exempt("n3", NOW + 9000))], NOW + 60)
    found = composed(outbox, NOW + 120)
    assert [one["node"] for one in found] == ["n1", "n2", "n3"]
    assert found[-1]["kind"] == "node.requested"
    assert outbox.exempt_nodes() == ["n3"]
    assert outbox.next(CHAT, NOW + 3700, WAIT) == pytest.approx(5300)
    assert [one["node"] for one in composed(outbox, NOW + 9001)] == ["n3"]


def opened(node: str) -> Item:
    transition = happened(node, K.INCIDENT_OPENED, action="drain")
    return item(transition, hold=AlertHold(NOW + DECIDED_WITHIN, "decision"))


def test_a_common_cause_found_after_its_faults_leaves_one_alert(outbox: AlertOutbox) -> None:
    nodes = [f"n{number}" for number in range(13)]
    outbox.accept([opened(node) for node in nodes], NOW)
    outbox.accept([item(happened("", K.COMMON_CAUSE))], NOW + 2)
    held = [happened(node, K.HELD, cause="c1", limit="limits.common_cause_nodes") for node in nodes]
    outbox.accept([item(one) for one in held], NOW + 2)
    assert [one["kind"] for one in composed(outbox, NOW + 60)] == ["fleet.common_cause"]
    outbox.accept([item(happened("n1", K.INCIDENT_CLOSED))], NOW + 90)
    # Nor is the end sent of an alert that was not sent.
    assert [one["state"] for one in composed(outbox, NOW + 600)] == ["notice"]


@pytest.mark.parametrize(
    "decision", [K.ADMITTED, K.SUPPRESSED, K.HELD], ids=lambda kind: kind.value
)
def test_the_decision_about_one_node_sends_its_alert_at_once(
    outbox: AlertOutbox, decision: EventKind
) -> None:
    outbox.accept([opened("n1"), opened("n2")], NOW)
    assert outbox.next(CHAT, NOW + 1, BatchWait(0, 0)) == pytest.approx(DECIDED_WITHIN - 1)
    outbox.accept([item(happened("n1", decision, limit="limits.concurrent"))], NOW + 1)
    sent = of_type(outbox.next(CHAT, NOW + 1, BatchWait(0, 0)), PendingDelivery)
    about = [(one["kind"], one["node"]) for one in json.loads(sent.alerts)]
    assert ("incident.opened", "n1") in about
    assert ("incident.opened", "n2") not in about


def test_without_a_decision_the_alert_of_an_incident_is_sent_after_a_bounded_time(
    outbox: AlertOutbox,
) -> None:
    outbox.accept([opened("n1")], NOW)
    late = NOW + max(DECIDED_WITHIN, WAIT.linger) + 1
    assert [one["kind"] for one in composed(outbox, late)] == ["incident.opened"]


def test_kill_9_between_the_end_and_its_delivery_loses_neither(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    first = AlertOutbox(FileStore(path))
    first.accept([item(happened("n1"))], NOW)
    begun = composed(first, NOW + 10)
    first.accept([item(happened("n1", K.RELEASED))], NOW + 90)
    second = AlertOutbox(FileStore(path))  # the first was never closed: it was killed
    delivery = of_type(second.next(CHAT, NOW + 100, WAIT), PendingDelivery)
    third = AlertOutbox(FileStore(path))
    assert third.next(CHAT, NOW + 101, WAIT) == delivery
    [over] = json.loads(delivery.alerts)
    assert over["resolved"]["delivery"] == begun[0]["delivery"]
    for one in (first, second, third):
        one.close()


def test_dead_letters_are_listed_newest_first_and_counted(outbox: AlertOutbox) -> None:
    for number in range(3):
        outbox.accept([item(happened(f"n{number}"))], NOW + 100 * number)
        found = of_type(outbox.next(CHAT, NOW + 100 * number + 20, WAIT), PendingDelivery)
        outbox.dead_letter(found, f"HTTP 40{number}", NOW + 100 * number + 21)
    letters = outbox.dead_letters(2)
    assert [(one.because, one.alerts) for one in letters] == [("HTTP 402", 1), ("HTTP 401", 1)]
    assert outbox.dead_count() == {CHAT: 3}
