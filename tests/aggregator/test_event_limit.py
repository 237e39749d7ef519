"""The events of one node's agent fill neither memory nor history nor the alerts' outbox."""

import random
from pathlib import Path

from aggregator.alerts.alert import alert_of, dedup_key
from aggregator.alerts.outbox import MOST_OF_NODE, MOST_WAITING, AlertOutbox, BatchWait, Item
from aggregator.alerts.store import FileStore
from aggregator.composition.event_bus import EventBus
from aggregator.event_limit import BURST, EventLimit, size_of
from aggregator.events import EventKind, Transition
from aggregator.history.history import EVIDENCE_BURST, History
from tests.support.replica import Notes
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import CLOCKS


def changed(node: str, number: int = 0, kind: EventKind = EventKind.INCIDENT_CHANGED) -> Transition:
    return Transition(float(number), kind, node, f"{node}: {number} of many", f"i-{node}")


def test_what_an_agent_brings_about_is_limited_and_said_and_no_other_node_is_concerned() -> None:
    limit = EventLimit()
    told = [limit.admit(changed("n0", n), 0.0) for n in range(1_000)]
    assert sum(map(len, told)) == BURST
    assert limit.admit(changed("n1"), 0.0) != ()
    report, later = limit.admit(changed("n0", 1_000), 10.0)
    assert (report.kind, report.details["count"]) == (EventKind.EVIDENCE_LOST, "800")
    assert later.summary == "n0: 1000 of many"


def test_what_is_done_to_a_node_is_told_however_noisy_its_agent_is() -> None:
    limit = EventLimit()
    for number in range(1_000):
        limit.admit(changed("n0", number), 0.0)
    for kind in (
        EventKind.ADMITTED,
        EventKind.CORDONED,
        EventKind.DRAINED,
        EventKind.RELEASED,
        EventKind.OVERDUE,
    ):
        assert limit.admit(changed("n0", kind=kind), 0.0) == (changed("n0", kind=kind),)


@in_virtual_time
async def test_what_waits_is_bounded_in_bytes_and_acts_are_told_all_the_same() -> None:
    notes = Notes()
    one = size_of(changed("n100"))
    ledgers = EventBus([notes], most_bytes=50 * one)
    for number in range(100, 200):
        ledgers.record_event(changed(f"n{number}"))
    ledgers.record_event(changed("n100", kind=EventKind.CORDONED))
    ledgers.flush()
    assert 45 <= len(notes.transitions) <= 51
    assert notes.transitions[-1].kind is EventKind.CORDONED
    assert ledgers.lost == 101 - len(notes.transitions)
    ledgers.record_event(changed("n100"))  # there is room again
    ledgers.flush()
    assert notes.transitions[-1] == changed("n100")


def _item(transition: Transition) -> Item:
    return Item(dedup_key(transition), alert_of(transition), None, ("hook",))


def test_alerts_of_one_node_do_not_displace_those_of_others(tmp_path: Path) -> None:
    outbox = AlertOutbox(FileStore(tmp_path / "outbox.db"))
    outbox.accept([_item(changed("honest", kind=EventKind.CORDONED))], 0.0)
    for begin in range(0, MOST_WAITING + 2_000, 2_000):
        items = [_item(changed("noisy", n)) for n in range(begin, begin + 2_000)]
        outbox.accept(items, 1.0)
    assert outbox.depths() == {"hook": MOST_OF_NODE + 1}
    delivery = outbox.next("hook", 100.0, BatchWait(0.0, 0.0))
    assert not isinstance(delivery, float | None)
    assert '"node":"honest"' in delivery.alerts
    outbox.close()


def test_lost_evidence_of_one_source_is_one_alert_whatever_its_words_are() -> None:
    def lost(source: str, words: str) -> Transition:
        return Transition(0.0, EventKind.EVIDENCE_LOST, "n0", words, details={"source": source})

    assert dedup_key(lost("kmsg", "a")) == dedup_key(lost("kmsg", "b"))
    assert dedup_key(lost("kmsg", "a")) != dedup_key(lost("latch", "a"))


async def test_what_one_agent_told_is_kept_up_to_a_bound_and_others_words_are_kept(
    tmp_path: Path,
) -> None:
    url = f"sqlite+pysqlite:///{tmp_path / 'history.db'}"
    history = History(url, keep=3600.0, clocks=CLOCKS, rng=random.Random(1))
    try:
        for number in range(200):
            history.record("noisy", "change", {"components": ["x" * 100_000, number]})
        noisy = EVIDENCE_BURST // 100_000
        assert history.evidence_lost == 200 - noisy
        history.record("honest", "change", {"components": ["x" * 100_000]})
        history.record("quiet", "left", {})
        assert history.evidence_lost == 200 - noisy
    finally:
        await history.close()
