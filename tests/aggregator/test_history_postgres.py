"""PostgreSQL that is killed, paused, absent or not to be trusted: all other work goes on."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from aggregator.daemon_cli.main import main
from aggregator.events import EventKind
from aggregator.history import database as database_module
from aggregator.history import history as history_module
from aggregator.history.database import RETAINING, Database
from aggregator.history.engine import DatabaseCredentials
from aggregator.history.postgres import Postgres
from aggregator.history.row_codec import IdGenerator, evidence_row, to_row
from aggregator.history.tables import HISTORY, evidence
from aggregator.runtime.database import DatabaseError
from tests.support.histories import Place, happened
from tests.support.pki import Authority
from tests.support.postgres import PASSWORD, PostgresServer, StartPostgres
from tests.support.tasks import end_tasks
from tests.support.waiting import until


class Pulse:
    """How long the loop was held up, at worst (seconds)."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._task)

    async def _beat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            self.worst = max(self.worst, time.monotonic() - before - 0.01)


@pytest.fixture
def own(start_postgres: StartPostgres) -> Place:
    """A server of the test's own."""
    server = start_postgres()
    return Place(server.new_database(), server)


async def off_loop(do: Callable[[], object]) -> None:
    await asyncio.to_thread(do)


async def test_a_server_that_is_killed_in_mid_burst_and_comes_back_has_everything(
    own: Place,
) -> None:
    assert own.server is not None
    now = time.time()
    async with own.history() as history:
        history.record_event(happened(now, "first"))
        await until(lambda: history.written == 1)
        for number in range(4_000):
            history.record_event(happened(now + number, f"n{number}"))
        await until(lambda: history.written > 500)
        await off_loop(own.server.kill)
        for number in range(4_000, 6_000):
            history.record_event(happened(now + number, f"n{number}"))
        await until(lambda: history.problem)
        assert history.written < 6_001
        with pytest.raises(OSError, match="Connect call failed"):
            await history.recent()
        assert own.url.partition("@")[2] in history.problem
        await off_loop(own.server.start)
        await until(lambda: history.written == 6_001, lambda: history.problem)
        assert (history.lost, history.problem) == (0, "")
    counted = "SELECT count(*), count(DISTINCT node) FROM transitions"
    assert [tuple(row) for row in own.sql(counted)] == [(6_001, 6_001)]


async def test_what_did_not_fit_in_memory_meanwhile_is_a_gap_in_the_timeline(own: Place) -> None:
    assert own.server is not None
    async with own.history(most_waiting=20, replica="sickbay-aggregator-1") as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
        await off_loop(own.server.kill)
        for number in range(50):
            history.record_event(happened(2.0 + number))
        await until(lambda: "(30 transitions lost)" in history.problem)
        await off_loop(own.server.start)
        await until(lambda: history.written == 22, lambda: history.problem)
        gap = (await history.recent())[0]
    assert gap.kind is EventKind.HISTORY_LOST
    assert gap.details["count"] == "30"
    assert gap.details["replica"] == "sickbay-aggregator-1"


async def test_a_server_that_stands_still_holds_up_neither_the_loop_nor_the_end(
    own: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own.server is not None
    monkeypatch.setattr(database_module, "WRITING", 6.0)
    monkeypatch.setattr(database_module, "COUNTING", 6.0)
    monkeypatch.setattr(history_module, "_CLOSE_WITHIN", 0.5)
    async with own.history() as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
        await off_loop(own.server.pause)
        async with Pulse() as pulse:
            for number in range(1_000):
                history.record_event(happened(2.0 + number))
            with pytest.raises(OSError, match="no answer"):
                await history.recent()
            await until(lambda: "no answer" in history.problem)
        assert pulse.worst < 5.9  # a busy machine; a wait for the server takes 6 s
        await off_loop(own.server.resume)
        await until(lambda: history.written == 1_001, lambda: history.problem)
        await until(lambda: not history.problem)
        await off_loop(own.server.pause)
        for number in range(10):
            history.record_event(happened(2.0 + number))
        began = time.monotonic()
    assert time.monotonic() - began < 100
    assert history.lost == 10
    own.server.resume()
    # Rows in the server's socket may still be written: the lost ones are those not acknowledged.
    assert own.sql("SELECT count(*) FROM transitions")[0][0] in {1_001, 1_011}


def test_a_process_ends_although_its_server_stands_still(own: Place) -> None:
    """Work of an executor would be waited for when the interpreter ends."""
    assert own.server is not None
    own.ask(lambda database: database.recent("", 0.0, 1))
    own.server.pause()
    code = f"""
import asyncio, random, time
from pathlib import Path
from typing import Self
from aggregator.history import history as module
from aggregator.history.engine import DatabaseCredentials
from aggregator.clock import Clocks
from aggregator.events import EventKind, Transition

async def main():
    module._CLOSE_WITHIN = 0.2
    history = module.History(
        {own.url!r}, keep=1e10, clocks=Clocks(time.monotonic, time.time), rng=random.Random(1),
        credentials=DatabaseCredentials(Path({str(own.server.password_file)!r})),
    )
    history.start()
    history.record_event(Transition(1.0, EventKind.CORDONED, "n1", "x"))
    try:
        async with asyncio.timeout(0.5):
            await history.recent()
    except TimeoutError:
        pass
    await history.close()
    print("lost", history.lost)

asyncio.run(main())
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["lost", "1"]
    assert time.monotonic() - began < 60


async def test_a_server_that_comes_late_is_found(start_postgres: StartPostgres) -> None:
    server = start_postgres()
    place = Place(server.new_database(), server)
    await off_loop(server.stop)
    async with place.history() as history:
        history.record_event(happened(1.0))
        await until(lambda: "Connect call failed" in history.problem)
        await off_loop(server.start)
        await until(lambda: history.written == 1, lambda: history.problem)


async def test_a_password_is_read_anew_and_never_said(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url, file = postgres.new_database(), tmp_path / "password"
    file.write_text("wrong-s3cr3t\n")
    async with Place(url).history(most_waiting=9) as history:  # no password at all
        await until(lambda: "password" in history.problem)
    database = Database(url, DatabaseCredentials(file))
    with pytest.raises(DatabaseError, match="password authentication failed") as wrong:
        await asyncio.to_thread(database.recent, "", 0.0, 1)
    file.write_text(f"{PASSWORD}\n")
    assert await asyncio.to_thread(database.recent, "", 0.0, 1) == []
    await asyncio.to_thread(database.close)
    file.unlink()
    with pytest.raises(DatabaseError, match=r"history\.password_file .*/password can't be read"):
        await asyncio.to_thread(database.recent, "", 0.0, 1)
    for secret in ("s3cr3t", PASSWORD):
        assert secret not in caplog.text + str(wrong.value)
    await asyncio.to_thread(database.close)


def test_a_certificate_is_verified_where_it_is_said_who_signs(
    start_postgres: StartPostgres, tmp_path: Path
) -> None:
    ours, theirs = (Authority.create(tmp_path / name) for name in ("ours", "theirs"))
    server = start_postgres()
    server.stop()
    server.show(ours.server("postgres", ["127.0.0.1"]))
    server.start()
    url = server.new_database()
    good = Database(url, DatabaseCredentials(server.password_file, ours.certificate))
    assert good.recent("", 0.0, 1) == []
    count = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl"
    assert server.run(count, "postgres")[0][0] == 1
    good.close()
    bad = Database(url, DatabaseCredentials(server.password_file, theirs.certificate))
    with pytest.raises(DatabaseError, match="certificate verify failed"):
        bad.recent("", 0.0, 1)
    nobody = tmp_path / "nobody"
    missing = Database(url, DatabaseCredentials(server.password_file, nobody))
    with pytest.raises(
        DatabaseError, match=r"history\.ca_file: .*/nobody can't be read: No such f"
    ):
        missing.recent("", 0.0, 1)
    nobody.write_text("junk")
    with pytest.raises(
        DatabaseError, match=r"history\.ca_file: .*/nobody holds no certificate; exp"
    ):
        missing.recent("", 0.0, 1)


@pytest.mark.parametrize(
    ("where", "insecure", "tls"),
    [
        ("u@db.example/x", False, "require"),
        ("u@10.0.0.7/x", False, "require"),
        ("u@db.example/x", True, "prefer"),
        ("u@127.0.0.1/x", False, "prefer"),
        ("u@[::1]/x", False, "prefer"),
        ("u@/x?host=/run/postgresql", False, "prefer"),
    ],
)
def test_over_a_network_nothing_goes_in_plain_text_unless_told_so(
    *, where: str, insecure: bool, tls: str
) -> None:
    url = make_url(f"postgresql+asyncpg://{where}")
    given = DatabaseCredentials(insecure_plaintext=insecure)
    assert Postgres(url, given, "test", HISTORY)._tls() == tls


def test_what_agents_reported_is_replayed_from_it(
    postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(postgres.new_database(), postgres)
    rows = [
        evidence_row(
            number,
            time.time(),
            f"n{number % 3}",
            "hello",
            {"boot": str(number), "epoch": "", "driver": ""},
        )
        for number in range(1_200)  # more than are read at a time
    ]
    place.ask(lambda database: database.write(rows, evidence))
    found = place.ask(lambda database: list(database.evidence()))
    assert [one["node"] for one in found] == [f"n{n}" for n in range(3) for _ in range(400)]
    assert sorted(int(one["body"]["boot"]) for one in found) == [*range(1_200)]
    file, policy = tmp_path / "aggregator.yaml", tmp_path / "policy.yaml"
    policy.write_text("rules: []\n")
    file.write_text(
        "listen: {grpc: '127.0.0.1:0', web: 'localhost:0'}\n"
        f"history: {{database: '{place.url}', password_file: '{postgres.password_file}'}}\n"
    )

    def replay() -> object:
        with pytest.raises(SystemExit) as ended:
            main(["policy", "replay", str(policy), "--config", str(file)])
        return ended.value.code

    assert replay() == 0
    assert "no incident would have been different on 3 nodes" in capsys.readouterr().out
    file.write_text(file.read_text().replace("/test_", "/none_"))
    assert replay() == 2
    assert "does not exist" in capsys.readouterr().err


def test_retention_is_one_replicas_at_a_time(postgres: PostgresServer) -> None:
    place = Place(postgres.new_database(), postgres)
    numbers = IdGenerator(5)
    database, other = place.database(), place.database()
    database.write([to_row(numbers.next(at), happened(at)) for at in map(float, range(10))])

    def while_another_is_at_it(connection: sa.Connection) -> int:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(RETAINING)))
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(database.delete_before, 8.0, 5).result()

    assert other._engine.call(while_another_is_at_it, seconds=30) == 0
    assert database.delete_before(8.0, 5) == 5
    database.close()
    other.close()
