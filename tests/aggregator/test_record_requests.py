"""The record's writer and its loss, its rebuild and its forecasts: each rule called directly."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    ClusterError,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
    Unreachable,
)
from aggregator.quarantine.decide.admission import SETTLES, FleetSize, Limits, Proposal
from aggregator.quarantine.decide.admission_record import Entry, Record, dump_record, parse_record
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.state.registry import QuarantineIndex
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.present import present
from tests.support.record_writers import record_writer_of
from tests.support.replica import OPEN
from tests.support.virtual_time import VirtualTimeLoop, play, played_by


def entry(node: str, at: float = 1000.0) -> Entry:
    return Entry(node, f"inc-{node}", "", at)


def proposal(node: str) -> Proposal:
    return Proposal(node, f"inc-{node}", "")


def quarantine(node: str, phase: Phase = Phase.CORDONED, generation: int = 0) -> Quarantine:
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS, f"inc-{node}")
    spec = replace(spec, record_generation=generation)
    return Quarantine(node, f"q-{node}", "1", spec, QuarantineStatus(phase=phase))


class Office:
    """A record writer over a world of its own, that has read the record."""

    def __init__(self, loop: VirtualTimeLoop, limits: Limits = OPEN) -> None:
        self.loop = loop
        self.world = World()
        self.error: ClusterError | None = None
        self.failing = ""
        self.sizes = 0
        self.cluster = MemoryCluster(self.world, fails=self._fails)
        self.quarantine_index = QuarantineIndex()
        self.made: Any = record_writer_of(
            self.cluster,
            limits=limits,
            size=self._size,
            wall=loop.time,
            quarantine_index=self.quarantine_index,
            pool="pool-a",
        )
        self.made.seen(self.world.record)

    def _fails(self, name: str) -> ClusterError | None:
        return self.error if name == self.failing else None

    def _size(self) -> FleetSize:
        self.sizes += 1
        return FleetSize(100, 100)

    def writes(self) -> int:
        return self.cluster.asked["write_record"]

    def stored(self) -> Record:
        return parse_record(self.world.record.text)


def in_office(test: Callable[[Office], Any], limits: Limits = OPEN) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await test(Office(loop, limits))

    play(main)


pytestmark = pytest.mark.decorated(by=played_by(in_office))


async def test_each_request_changes_the_record_and_counts_its_write(office: Office) -> None:
    made = office.made
    assert await made.propose(proposal("n1")) is None
    assert office.stored().entries.keys() == {"n1"}
    assert office.stored().generation == 1
    await made.enter(entry("n2", 7.0))
    assert office.stored().entries["n2"].at == 7.0
    assert office.stored().generation == 2
    assert await made.propose(proposal("n1")) is None
    assert office.stored().generation == 2, "it stands already"
    assert made.grants("n1")
    assert not made.grants("n3")
    await made.forget_entry(made.record.entries["n1"])
    assert office.stored().entries.keys() == {"n2"}
    before = len(office.stored().admissions)
    await made.withdraw(made.record.entries["n2"])
    assert office.stored().entries == {}
    assert len(office.stored().admissions) == before - 1
    assert office.stored().generation == 4
    writes = office.writes()
    await made.forget_entry(None)
    await made.withdraw(None)
    assert office.writes() == writes


async def test_requests_that_wait_together_are_one_write(office: Office) -> None:
    made = office.made
    found = await asyncio.gather(*(made.propose(proposal(f"n{one}")) for one in range(5)))
    assert found == [None] * 5
    assert office.writes() == 1
    assert len(office.stored().entries) == 5


async def test_a_stop_holds_proposals_and_no_entry_by_hand(office: Office) -> None:
    made = office.made
    office.world.person_stops("a drill")
    made.switch.apply_seen(office.world.stop)
    held, _ = await asyncio.gather(made.propose(proposal("n1")), made.enter(entry("n2")))
    assert held.limit == "stop"
    assert office.stored().entries.keys() == {"n2"}


async def test_a_stop_that_is_set_unseen_is_found_before_an_admission_is_written(
    office: Office,
) -> None:
    made = office.made
    assert await made.propose(proposal("n0")) is None  # the switch is read beside it
    await asyncio.sleep(1)
    office.world.person_stops_unseen("a drill")
    held = present(await made.propose(proposal("n1")))
    assert held.limit == "stop"
    assert office.stored().entries.keys() == {"n0"}


async def test_a_switch_that_cant_be_read_fails_proposals_and_no_release(office: Office) -> None:
    made = office.made
    await made.propose(proposal("n0"))
    await asyncio.sleep(1)
    office.failing, office.error = "read_stop", Unreachable("no answer")
    results = await asyncio.gather(
        made.propose(proposal("n1")),
        made.forget_entry(made.record.entries["n0"]),
        return_exceptions=True,
    )
    assert isinstance(results[0], ClusterError)
    assert "stop switch can't be read" in str(results[0])
    assert [results[1]] == [None]
    assert office.stored().entries == {}


async def test_a_failure_reaches_each_caller_and_the_next_request_reads_anew(
    office: Office,
) -> None:
    made = office.made
    office.failing, office.error = "write_record", Unreachable("no answer")
    results = await asyncio.gather(
        made.enter(entry("n1")), made.propose(proposal("n2")), return_exceptions=True
    )
    assert [str(one) for one in results] == ["no answer"] * 2
    office.error = None
    reads = office.cluster.asked["read_record"]
    await made.enter(entry("n1"))
    assert office.cluster.asked["read_record"] == reads + 1
    assert office.stored().entries.keys() == {"n1"}


async def test_an_unreadable_record_admits_nobody_and_says_where_it_is(office: Office) -> None:
    made = office.made
    made.seen(RecordText("not JSON", "900"))
    assert "can't be read: memory: " in made.problem
    assert made.problem.endswith("empty it")
    assert made.trouble == made.problem
    with pytest.raises(ClusterError, match="can't be read"):
        await made.propose(proposal("n1"))
    made.seen(RecordText(dump_record(Record()), "901"))
    assert (made.problem, made.trouble) == ("", "")


# -- a lost record --------------------------------------------------------------------------------


async def test_a_record_that_was_deleted_is_rebuilt_from_what_stands_and_admits_nobody_for_a_while(
    office: Office,
) -> None:
    made, quarantine_index = office.made, office.quarantine_index
    for name in ("n1", "n2", "n3"):
        await made.propose(proposal(name))
    at = made.record.entries["n1"].at
    quarantine_index.seen(quarantine("n1"))
    quarantine_index.seen(quarantine("n4"))
    quarantine_index.seen(quarantine("n5", Phase.INVALID))
    office.world.person_deletes_record()
    made.seen(office.world.record)
    assert not made.grants("n1")
    await asyncio.sleep(1)
    assert office.stored().entries.keys().isdisjoint({"n1", "n4"}), "not all is known yet"
    assert "no new quarantine is admitted until it is rebuilt" in made.trouble
    quarantine_index.whole = True
    made.go_round()
    await asyncio.sleep(1)
    stored = office.stored()
    assert stored.entries.keys() == {"n1", "n4"}
    assert stored.entries["n1"].at == at
    assert (stored.entries["n4"].incident, stored.entries["n4"].pool) == ("inc-n4", "pool-a")
    assert stored.generation > 3
    assert stored.rebuilt is not None
    assert stored.rebuilt.uid == office.world.record.uid
    assert made.grants("n1")
    assert "is rebuilt" in made.trouble
    present(await made.propose(proposal("n9")))
    await asyncio.sleep(SETTLES + 1)
    assert made.trouble == ""
    assert await made.propose(proposal("n9")) is None
    writes = office.writes()
    made.go_round()
    await asyncio.sleep(1)
    assert office.writes() == writes, "it is whole"


async def test_a_record_older_than_a_quarantine_that_stands_is_found_in_a_round(
    office: Office,
) -> None:
    made, quarantine_index = office.made, office.quarantine_index
    await made.propose(proposal("n1"))
    quarantine_index.seen(quarantine("n1", generation=9))
    made.go_round()
    await asyncio.sleep(1)
    assert made.record.generation == 1, "a part of them proves nothing"
    quarantine_index.whole = True
    made.go_round()
    assert not made.grants("n1")
    await asyncio.sleep(1)
    assert made.record.generation > 9
    assert made.grants("n1")


async def test_an_event_that_does_not_fit_is_doubted_and_a_read_decides(office: Office) -> None:
    made = office.made
    await made.propose(proposal("n1"))
    whole = office.world.record
    old = RecordText(dump_record(Record()), f"{int(whole.version) + 1}", whole.uid)
    assert made.seen(old)
    assert not made.grants("n1")
    made.forget_version()
    await asyncio.sleep(1)
    assert made.trouble == ""
    assert office.stored().entries.keys() == {"n1"}


async def test_an_answer_is_dropped_where_a_newer_event_came_before_it(office: Office) -> None:
    made = office.made
    known = made._stored
    old, new = (
        RecordText(dump_record(Record().enter([entry(name)])), version, known.uid)
        for name, version in (("n1", "901"), ("n2", "902"))
    )
    made.seen(new)
    made._take_answer(old, known, sure=True)
    assert made.record.entries.keys() == {"n2"}
    made._take_answer(old, made._stored, sure=True)
    assert made.record.entries.keys() == {"n1"}, "no event came: it counts, whatever it is"
    made._take_answer(new, known, sure=True)
    assert made.record.entries.keys() == {"n2"}, "it is newer than the event"
    made._stored = None
    made._take_answer(old, known, sure=True)
    assert made.record.entries.keys() == {"n1"}


async def test_what_stands_without_an_entry_takes_a_place(office: Office) -> None:
    made = office.made
    office.quarantine_index.seen(quarantine("n1"))
    office.quarantine_index.seen(quarantine("n2", Phase.RELEASING))
    assert made._unrecorded(Record()) == {"n1": "pool-a"}
    assert made._unrecorded(Record().enter([entry("n1")])) == {}
