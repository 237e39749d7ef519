"""Log, history, alerts and page get each event a moment later: complete, in order, in time."""

import asyncio
import logging

import pytest

from aggregator.composition.event_bus import EventBus
from aggregator.events import EventKind, Transition
from tests.support.virtual_time import in_virtual_time, loop_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


class Heard:
    """An event sink that remembers each event and its time."""

    def __init__(self, *, deaf_to: str = "") -> None:
        self.told: list[tuple[float, str]] = []
        self._deaf_to = deaf_to

    def record_event(self, transition: Transition) -> None:
        if transition.node == self._deaf_to:
            raise RuntimeError("deaf")
        self.told.append((asyncio.get_running_loop().time(), transition.node))

    @property
    def nodes(self) -> list[str]:
        return [node for _, node in self.told]


def happened(node: str) -> Transition:
    return Transition(at=1.0, kind=EventKind.CORDONED, node=node, summary=f"{node}: cordoned")


async def test_a_single_transition_is_told_within_a_tenth_of_a_second() -> None:
    heard = Heard()
    begun = loop_time()
    EventBus([heard]).record_event(happened("n1"))
    assert heard.told == []  # the acting code goes first
    await asyncio.sleep(1)
    assert heard.nodes == ["n1"]
    assert heard.told[0][0] - begun < 0.1


async def test_a_storm_is_told_behind_it_and_in_order() -> None:
    heard = Heard()
    ledgers = EventBus([heard])
    for number in range(400):
        ledgers.record_event(happened(f"n{number}"))
        await asyncio.sleep(0.0025)
    over = loop_time()
    assert heard.told == []
    await asyncio.sleep(1)
    assert heard.nodes == [f"n{number}" for number in range(400)]
    assert heard.told[-1][0] - over < 0.3


async def test_a_storm_without_an_end_delays_nothing_for_more_than_two_seconds() -> None:
    heard = Heard()
    ledgers = EventBus([heard])
    came: dict[str, float] = {}
    for number in range(6000):
        came[f"n{number}"] = loop_time()
        ledgers.record_event(happened(f"n{number}"))
        await asyncio.sleep(0.001)
    await asyncio.sleep(1)
    assert heard.nodes == list(came)
    assert max(at - came[node] for at, node in heard.told) < 2.2


async def test_what_is_left_is_told_at_the_end() -> None:
    heard = Heard()
    ledgers = EventBus([heard])
    for number in range(100):
        ledgers.record_event(happened(f"n{number}"))
    ledgers.flush()
    assert heard.nodes == [f"n{number}" for number in range(100)]


async def test_a_ledger_that_fails_holds_up_nothing_that_comes_after() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    heard = Heard(deaf_to="n1")
    ledgers = EventBus([heard])
    for number in range(4):
        ledgers.record_event(happened(f"n{number}"))
    await asyncio.sleep(1)
    assert heard.nodes == ["n0", "n2", "n3"]


@pytest.mark.asyncio
async def test_the_log_line_of_a_transition_has_its_kind_and_its_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sickbay.app")
    EventBus([]).notify_sinks(happened("n1"))
    [line] = caplog.records
    assert vars(line)["event"] == happened("n1").kind.value
    assert vars(line)["node"] == "n1"
