"""The writer of the admission record, alone: its waits, its second reads, and its refusals."""

import asyncio
from collections.abc import Callable

import pytest

from aggregator.cluster.port import ClusterError, Unreachable
from aggregator.quarantine.decide.admission import FleetSize, Limits, Proposal
from aggregator.quarantine.decide.admission_record import Entry, Record, dump_record
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.present import present
from tests.support.record_writers import record_writer_of
from tests.support.replica import OPEN
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


def entry(node: str) -> Entry:
    return Entry(node, f"inc-{node}", "", 1000.0)


def proposal(node: str) -> Proposal:
    return Proposal(node, f"inc-{node}", "")


class Office:
    """A record writer over a world of its own, that has read the record."""

    def __init__(
        self,
        *,
        limits: Limits = OPEN,
        fails: Callable[[str], ClusterError | None] = lambda _: None,
    ) -> None:
        self.world = World()
        self.cluster = MemoryCluster(self.world, fails=fails)
        self.size = FleetSize(100, 100)
        self.clock = Running()
        self.record_writer = record_writer_of(
            self.cluster,
            limits=limits,
            size=lambda: self.size,
            wall=self.clock,
        )
        self.record_writer.seen(self.world.record)

    def another_writes(self, *nodes: str) -> None:
        """Another replica enters these; the event has not come yet."""
        record = Record().enter([entry(node) for node in nodes])
        self.world.person_rolls_back_record(dump_record(record))

    def record_event(self) -> None:
        """The event of the record as it is now."""
        self.record_writer.seen(self.world.record)

    @property
    def reads(self) -> int:
        return self.cluster.asked["read_record"]


async def test_that_a_node_has_no_entry_is_read_and_that_it_has_one_is_not() -> None:
    office = Office()
    assert await office.record_writer.entry("n1") is None
    assert office.reads == 1
    office.another_writes("n1")
    found = await office.record_writer.entry("n1")
    assert found == entry("n1")
    assert office.reads == 2
    assert await office.record_writer.entry("n1") == found
    assert office.reads == 2


async def test_nothing_is_taken_out_where_there_is_no_entry_and_an_admission_not_begun_is() -> None:
    office = Office()
    record_writer = office.record_writer

    def entries() -> set[str]:
        return set(record_writer.record.entries)

    def admissions() -> tuple[tuple[float, str], ...]:
        return record_writer.record.admissions

    await record_writer.forget_entry(None)
    await record_writer.withdraw(None)
    assert office.cluster.asked["write_record"] == 0
    assert await record_writer.propose(proposal("n1")) is None
    assert await record_writer.propose(proposal("n2")) is None
    assert entries() == {"n1", "n2"}
    assert len(admissions()) == 2
    await record_writer.withdraw(await record_writer.entry("n1"))
    assert entries() == {"n2"}
    assert len(admissions()) == 1, "as if it had never been admitted"
    await record_writer.forget_entry(await record_writer.entry("n2"))
    assert entries() == set()
    assert len(admissions()) == 1, "it was"
    await record_writer.enter(entry("n3"))
    assert entries() == {"n3"}
    assert office.world.record.text == dump_record(record_writer.record)


async def test_everybody_who_waits_hears_of_a_record_that_cannot_be_written() -> None:
    failing = True

    def fails(call: str) -> ClusterError | None:
        return Unreachable("503") if failing and call == "write_record" else None

    office = Office(fails=fails)
    asked = [office.record_writer.propose(proposal(f"n{number}")) for number in range(3)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["503"] * 3
    assert not office.record_writer.record.entries
    assert office.cluster.asked["write_record"] == 1, "one write for all who wait together"
    failing = False
    assert await office.record_writer.propose(proposal("n1")) is None
    assert office.record_writer.grants("n1")
    assert not office.record_writer.grants("n2")


async def test_a_write_that_conflicts_is_decided_again_on_what_the_other_wrote() -> None:
    office = Office(limits=Limits(concurrent=2, concurrent_percent=100, quorum_percent=0))
    office.another_writes("n8", "n9")  # of which this one has not heard
    held = present(await office.record_writer.propose(proposal("n1")))
    assert held.limit == "limits.concurrent"
    assert office.record_writer.record.entries.keys() == {"n8", "n9"}
    assert await office.record_writer.propose(proposal("n8")) is None, "it stands already"


async def test_an_entry_that_stands_by_an_old_record_is_not_granted_from_memory() -> None:
    office = Office(limits=Limits(concurrent=2, concurrent_percent=100, quorum_percent=0))
    assert await office.record_writer.propose(proposal("n1")) is None
    reads = office.reads
    assert await office.record_writer.propose(proposal("n1")) is None
    assert office.reads == reads + 1
    assert office.cluster.asked["write_record"] == 1
    # A hold is answered from memory, because no step is taken on it.
    held = [await office.record_writer.propose(proposal(f"n{number}")) for number in (2, 3)]
    assert [one is None for one in held] == [True, False]
    assert office.reads == reads + 1


async def test_older_news_change_nothing_until_the_versions_are_forgotten() -> None:
    office = Office()
    old = office.world.record
    office.another_writes("n1")
    new = office.world.record
    assert office.record_writer.seen(new)
    assert not office.record_writer.seen(old)
    assert office.record_writer.record.entries.keys() == {"n1"}
    assert office.record_writer.seen(new), "the same again is not older"
    office.record_writer.forget_version()
    assert office.record_writer.seen(old), "etcd was restored"
    assert not office.record_writer.grants("n1")
