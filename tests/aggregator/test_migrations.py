"""The history's tables over time: older ones are migrated, newer ones are left alone."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from aggregator.events import FORMER_NAMES, EventKind
from aggregator.history import migrate
from aggregator.history.database import Database
from aggregator.history.engine import HistoryError
from aggregator.history.migrate import upgrade
from aggregator.history.row_codec import to_row
from aggregator.history.tables import REVISION, evidence, metadata, transitions
from tests.support.histories import Place, happened
from tests.support.waiting import until

#: As the last version before Alembic made it.
EARLIER = """
CREATE TABLE evidence (id INTEGER NOT NULL, at DOUBLE NOT NULL, node VARCHAR(253) NOT NULL,
 kind VARCHAR(16) NOT NULL, body JSON NOT NULL, PRIMARY KEY (id));
CREATE INDEX evidence_at ON evidence (at, id);
CREATE INDEX evidence_node_at ON evidence (node, at, id);
CREATE TABLE sickbay_history_schema (version INTEGER NOT NULL, PRIMARY KEY (version));
CREATE TABLE transitions (id INTEGER NOT NULL, at DOUBLE NOT NULL, kind VARCHAR(40) NOT NULL,
 node VARCHAR(253) NOT NULL, incident VARCHAR(64) NOT NULL, summary TEXT NOT NULL,
 details JSON NOT NULL, PRIMARY KEY (id));
CREATE INDEX transitions_node_at ON transitions (node, at, id);
CREATE INDEX transitions_kind_at ON transitions (kind, at, node);
CREATE INDEX transitions_at ON transitions (at, id);
INSERT INTO sickbay_history_schema VALUES (1);
INSERT INTO transitions VALUES
 (7, 1.5, 'quarantine.cordoned', 'n1', 'inc-1', 'n1: cordoned', '{"limit": "5%"}');
INSERT INTO evidence VALUES (8, 2.5, 'n1', 'base', '{"components": []}')
"""


def earlier(tmp_path: Path, *also: str) -> Place:
    place = Place(f"sqlite:///{tmp_path / 'history.db'}")
    for statement in [*EARLIER.split(";"), *also]:
        place.sql(statement)
    return place


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
    assert place.sql("SELECT version_num FROM alembic_version") == [(REVISION,)]


def test_the_steps_lead_to_what_the_program_works_with(place: Place) -> None:
    made_by(place, upgrade)

    def differences(connection: sa.Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return [
            one for one in compare_metadata(context, metadata) if "alembic_version" not in str(one)
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


def test_a_file_of_before_alembic_keeps_its_rows(tmp_path: Path) -> None:
    place = earlier(tmp_path)
    database = place.database()
    database.write([to_row(9, happened(3.5), "replica-0")])
    assert [one.at for one in database.recent("n1", 0.0, 9)] == [3.5, 1.5]
    assert database.recent("n1", 0.0, 9)[1].details == {"limit": "5%"}
    assert [(row["at"], row["replica"]) for row in database.evidence()] == [(2.5, "")]
    database.close()
    assert place.sql("SELECT replica FROM transitions ORDER BY id") == [("",), ("replica-0",)]


def test_half_made_tables_of_before_are_completed(tmp_path: Path) -> None:
    place = earlier(
        tmp_path,
        "DROP TABLE evidence",
        "DROP INDEX transitions_kind_at",
        "DELETE FROM sickbay_history_schema",
    )
    database = place.database()
    database.write([{"id": 1, "at": 1.0, "node": "n", "kind": "base", "body": {}}], evidence)
    assert len(database.recent("", 0.0, 9)) == 1
    database.close()
    assert "transitions_kind_at" in str(place.sql("SELECT name FROM sqlite_master"))


def test_each_step_is_taken_from_each_earlier_one(place: Place) -> None:
    """Each step runs on rows, which it must not lose."""
    door = place.database()._engine

    def first(connection: sa.Connection) -> None:
        upgrade(connection, "1.0")
        row = to_row(7, happened(1.5))
        del row["replica"]
        connection.execute(sa.insert(transitions), [row])

    def unprepared(*_: object) -> bool:
        return True

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        for module in ("sqlite", "postgres"):
            patch.setattr(f"aggregator.history.{module}.is_ready", unprepared)
        pool.submit(lambda: door.call(first, write=True, seconds=60)).result()
        pool.submit(door.close).result()
    assert place.ask(lambda database: database.recent("n1", 0.0, 9)) == [happened(1.5)]
    assert [tuple(row) for row in place.sql("SELECT version_num FROM alembic_version")] == [
        (REVISION,)
    ]


def test_rows_of_kinds_with_a_former_name_get_the_name_of_today(place: Place) -> None:
    place.ask(lambda database: database.write([to_row(1, happened(1.0))]))
    for number, old in enumerate(FORMER_NAMES, 10):
        values = f"{number}, {number}, '{old}', 'n2', '', 'x', '{{}}', ''"
        place.sql(f"INSERT INTO transitions VALUES ({values})")
    place.sql("UPDATE alembic_version SET version_num = '1.1'")
    place.ask(lambda database: database.recent("", 0.0, 1))
    kinds = [row[0] for row in place.sql("SELECT kind FROM transitions ORDER BY id")]
    assert kinds == ["quarantine.cordoned", *FORMER_NAMES.values()]


def test_rows_that_an_older_replica_goes_on_writing_are_read_by_the_name_of_today(
    place: Place,
) -> None:
    suppressed = to_row(1, happened(1.0)) | {"kind": "quarantine.would"}
    place.ask(lambda database: database.write([suppressed]))
    assert [row[0] for row in place.sql("SELECT kind FROM transitions")] == ["quarantine.would"]
    names = EventKind.SUPPRESSED.names
    assert names == ("quarantine.suppressed", "quarantine.would")
    [read] = place.ask(lambda database: database.recent("", 0.0, 9))
    assert read.kind is EventKind.SUPPRESSED
    assert place.ask(lambda database: database.busiest(names, 0.0, 9)) == ["n1"]
    assert place.ask(lambda database: database.node_transitions(["n1"], names, 0.0, 9)) == {
        "n1": [read]
    }


async def test_tables_of_a_newer_major_are_left_alone_and_everything_goes_on(place: Place) -> None:
    async with place.history() as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
    place.sql("UPDATE alembic_version SET version_num = '2.0'")
    async with place.history() as history:
        history.record_event(happened(2.0))
        await until(lambda: "written by a newer sickbay (tables 2.0" in history.problem)
        with pytest.raises(OSError, match="upgrade"):
            await history.recent()
    assert place.sql("SELECT count(*) FROM transitions")[0][0] == 1


def test_tables_of_a_later_minor_are_worked_with_and_not_touched(place: Place) -> None:
    """A roll: the first replica that is upgraded has migrated, the others still run."""
    place.ask(lambda database: database.write([to_row(1, happened(1.0))]))
    place.sql("UPDATE alembic_version SET version_num = '1.999'")
    place.sql("ALTER TABLE transitions ADD COLUMN colour TEXT DEFAULT 'red'")
    place.ask(lambda database: database.write([to_row(2, happened(2.0))]))
    assert len(place.ask(lambda database: database.recent("", 0.0, 9))) == 2
    assert place.sql("SELECT version_num FROM alembic_version")[0][0] == "1.999"


def test_somebody_elses_tables_are_refused(place: Place) -> None:
    place.sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    place.sql("INSERT INTO alembic_version VALUES ('ae1027a6acf')")
    with pytest.raises(HistoryError, match="none of sickbay's"):
        place.ask(lambda database: database.recent("", 0.0, 1))


def test_a_newer_file_of_before_alembic_is_refused(tmp_path: Path) -> None:
    place = earlier(tmp_path, "UPDATE sickbay_history_schema SET version = 2")
    with pytest.raises(HistoryError, match="written by a newer sickbay"):
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
    assert len(place.sql("SELECT version_num FROM alembic_version")) == 1


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


def test_a_large_file_is_migrated_in_bearable_time(tmp_path: Path) -> None:
    place = earlier(tmp_path)
    place.sql(
        "INSERT INTO transitions WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n "
        "WHERE i < 200000) SELECT i, i, 'pod.evicted', 'n' || (i % 100), 'i' || i, 'x', '{}' FROM n"
    )
    began = time.perf_counter()
    assert len(place.ask(lambda database: database.recent("n7", 0.0, 10))) == 10
    assert time.perf_counter() - began < 20
