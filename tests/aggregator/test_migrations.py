"""The history's tables over time: older ones are migrated, other ones are left alone."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from aggregator.history import migrate
from aggregator.history.database import Database
from aggregator.history.engine import HistoryError
from aggregator.history.migrate import upgrade
from aggregator.history.row_codec import to_row
from aggregator.history.tables import REVISION, metadata
from tests.support.histories import Place, happened
from tests.support.waiting import until


def work(place: Place, do: Callable[[sa.Connection], object]) -> object:
    return place.ask(lambda database: database._engine.call(do, write=True, seconds=60))


def made_by(place: Place, make: Callable[[sa.Connection], object]) -> object:
    """Each table, its columns and its indexes, in a database that was empty before."""

    def read_tables(connection: sa.Connection) -> object:
        for name in sa.inspect(connection).get_table_names():
            connection.execute(sa.text(f"DROP TABLE {name}"))
        make(connection)
        found = sa.inspect(connection)
        return {
            table: (
                [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in columns],
                found.get_pk_constraint(table),
                sorted(found.get_indexes(table), key=lambda index: str(index["name"])),
            )
            for table in found.get_table_names()
            for columns in (found.get_columns(table),)
        }

    return work(place, read_tables)


def test_a_new_database_gets_the_tables_to_which_the_steps_lead(place: Place) -> None:
    assert made_by(place, migrate.create) == made_by(place, upgrade)
    assert place.sql("SELECT version_num FROM sickbay_history_version") == [(REVISION,)]


def test_the_steps_lead_to_what_the_program_works_with(place: Place) -> None:
    made_by(place, upgrade)

    def differences(connection: sa.Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return [
            one for one in compare_metadata(context, metadata) if migrate.VERSIONS not in str(one)
        ]

    assert work(place, differences) == []


def test_the_newest_step_is_the_one_that_is_looked_for() -> None:
    config = Config()
    config.set_main_option("path_separator", "os")
    folder = Path(migrate.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    steps = ScriptDirectory.from_config(config)
    assert steps.get_heads() == [REVISION]
    for step in steps.walk_revisions():
        name = Path(step.path).name
        assert name.startswith(f"v{step.revision.replace('.', '_')}_")


async def test_tables_of_a_newer_major_are_left_alone_and_everything_goes_on(place: Place) -> None:
    async with place.history() as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
    place.sql("UPDATE sickbay_history_version SET version_num = '2.0'")
    async with place.history() as history:
        history.record_event(happened(2.0))
        await until(lambda: "written by a newer sickbay (tables 2.0" in history.problem)
        with pytest.raises(OSError, match="upgrade"):
            await history.recent()
    assert place.sql("SELECT count(*) FROM transitions")[0][0] == 1


def test_tables_of_a_later_minor_are_worked_with_and_not_touched(place: Place) -> None:
    """A roll: the first replica that is upgraded has migrated, the others still run."""
    place.ask(lambda database: database.write([to_row(1, happened(1.0))]))
    place.sql("UPDATE sickbay_history_version SET version_num = '1.999'")
    place.sql("ALTER TABLE transitions ADD COLUMN colour TEXT DEFAULT 'red'")
    place.ask(lambda database: database.write([to_row(2, happened(2.0))]))
    assert len(place.ask(lambda database: database.recent("", 0.0, 9))) == 2
    assert place.sql("SELECT version_num FROM sickbay_history_version")[0][0] == "1.999"


def test_somebody_elses_tables_are_refused(place: Place) -> None:
    place.sql("CREATE TABLE sickbay_history_version (version_num VARCHAR(32) NOT NULL)")
    place.sql("INSERT INTO sickbay_history_version VALUES ('ae1027a6acf')")
    with pytest.raises(HistoryError, match="none of sickbay's"):
        place.ask(lambda database: database.recent("", 0.0, 1))


async def test_replicas_that_start_together_migrate_once(place: Place) -> None:
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


@pytest.mark.parametrize("is_new", [True, False])
def test_a_database_that_is_new_or_up_to_date_is_opened_without_alembic(
    tmp_path: Path, *, is_new: bool
) -> None:
    """The import of alembic costs a start more than all other parts of the history."""
    place = Place(f"sqlite:///{tmp_path / 'history.db'}")
    if not is_new:
        place.ask(lambda database: database.recent("", 0.0, 1))
    code = (
        "import sys; import aggregator.history.history\n"
        "from aggregator.history.database import Database\n"
        f"assert Database({place.url!r}).recent('', 0.0, 1) == []\n"
        "print([name for name in ('alembic', 'asyncpg', 'mako') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
    with pytest.raises(HistoryError, match=r"unreleased version of sickbay .*to start afresh"):
        place.ask(lambda database: database.write([to_row(1, happened(1.0))]))
    assert [tuple(row) for row in place.sql("SELECT * FROM transitions")] == [
        (7, "quarantine.would")
    ]


def test_the_step_is_taken_where_alembic_runs_it(place: Place) -> None:
    made_by(place, upgrade)
    place.ask(lambda database: database.write([to_row(1, happened(1.0))]))
    assert place.ask(lambda database: database.recent("", 0.0, 9)) == [happened(1.0)]
