"""The history's tables: made once, and those of other versions and programs are left alone."""

import asyncio
import threading
from pathlib import Path

import pytest

from aggregator.history.database import Database
from aggregator.history.row_codec import to_row
from aggregator.runtime.database import DatabaseError
from tests.support.histories import Place, happened
from tests.support.waiting import until


async def test_tables_of_another_major_are_left_alone_and_everything_goes_on(place: Place) -> None:
    async with place.history() as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
    place.sql("UPDATE sickbay_history_version SET version_num = '2.0'")
    async with place.history() as history:
        history.record_event(happened(2.0))
        await until(lambda: "written by another sickbay (tables 2.0" in history.problem)
        with pytest.raises(OSError, match="use that version"):
            await history.recent()
    assert place.sql("SELECT count(*) FROM transitions")[0][0] == 1


def test_tables_of_a_later_minor_are_worked_with_and_not_touched(place: Place) -> None:
    """A roll: the first replica that is upgraded has added a column, the others still run."""
    place.ask(lambda database: database.write([to_row(1, happened(1.0))]))
    place.sql("UPDATE sickbay_history_version SET version_num = '1.999'")
    place.sql("ALTER TABLE transitions ADD COLUMN colour TEXT DEFAULT 'red'")
    place.ask(lambda database: database.write([to_row(2, happened(2.0))]))
    assert len(place.ask(lambda database: database.recent("", 0.0, 9))) == 2
    assert place.sql("SELECT version_num FROM sickbay_history_version")[0][0] == "1.999"


def test_somebody_elses_tables_are_refused(place: Place) -> None:
    place.sql("CREATE TABLE sickbay_history_version (version_num VARCHAR(32) NOT NULL)")
    place.sql("INSERT INTO sickbay_history_version VALUES ('ae1027a6acf')")
    with pytest.raises(DatabaseError, match="none of sickbay's"):
        place.ask(lambda database: database.recent("", 0.0, 1))


async def test_replicas_that_start_together_make_the_tables_once(place: Place) -> None:
    databases = [place.database() for _ in range(4)]
    together = threading.Barrier(len(databases))

    def write(number: int, database: Database) -> None:
        together.wait()
        database.write([to_row(number, happened(float(number)))])
        database.close()

    await asyncio.gather(
        *(asyncio.to_thread(write, number, one) for number, one in enumerate(databases))
    )
    assert place.sql("SELECT count(*) FROM transitions")[0][0] == len(databases)
    assert len(place.sql("SELECT version_num FROM sickbay_history_version")) == 1


async def test_two_that_begin_a_file_at_the_same_time_both_get_it(tmp_path: Path) -> None:
    for number in range(10):
        place = Place(f"sqlite:///{tmp_path / f'{number}.db'}")
        both = [place.database() for _ in range(2)]
        await asyncio.gather(
            *(
                asyncio.to_thread(one.write, [to_row(n, happened(1.0, incident=f"i{n}"))])
                for n, one in enumerate(both)
            )
        )
        assert len(both[0].recent("", 0.0, 10)) == 2
        for one in both:
            one.close()


#: Files of earlier trees: before Alembic, and with Alembic's own name of its table.
UNRELEASED = {
    "sickbay_history_schema": "CREATE TABLE sickbay_history_schema (version INTEGER NOT NULL)",
    "alembic_version": "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
}


@pytest.mark.parametrize("versions", UNRELEASED)
def test_tables_of_an_unreleased_version_are_refused_and_left_alone(
    place: Place, versions: str
) -> None:
    place.sql(UNRELEASED[versions])
    place.sql("CREATE TABLE transitions (id INTEGER NOT NULL, kind VARCHAR(40) NOT NULL)")
    place.sql("INSERT INTO transitions VALUES (7, 'quarantine.would')")
    with pytest.raises(DatabaseError, match=r"unreleased version of sickbay .*to start afresh"):
        place.ask(lambda database: database.write([to_row(1, happened(1.0))]))
    assert [tuple(row) for row in place.sql("SELECT * FROM transitions")] == [
        (7, "quarantine.would")
    ]
