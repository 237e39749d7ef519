"""The aggregator makes its own folders, or says plainly which it can't."""

import asyncio
import signal
import sys
from pathlib import Path

from tests.support.aggregator_program import AGGREGATOR_COMMANDS
from tests.support.fork_server import run_program, start_program
from tests.support.waiting import until


def settings(folder: Path) -> Path:
    file = folder / "aggregator.yaml"
    file.write_text(
        f"""cluster: {{kind: local, local: {{database: {folder}/a/cluster.db}}}}
listen: {{grpc: "127.0.0.1:0", web: "localhost:0"}}
identity: {{kind: insecure-trust-hello}}
history: {{database: "sqlite:///{folder}/b/deep/history.db"}}
alerts:
  outbox: {folder}/c/outbox.db
  receivers:
    - name: hook
      webhook: {{url: "http://127.0.0.1:9/x", secret_file: {folder}/secret}}
  routes: [{{name: all, receiver: hook}}]
"""
    )
    (folder / "secret").write_text("s")
    return file


def command(file: Path) -> list[str]:
    program = "from aggregator.daemon_cli.entry import main; main()"
    return [sys.executable, "-c", program, "run", "--config", str(file)]


async def test_missing_folders_are_made_for_nobody_else_and_used(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command(settings(tmp_path)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    files = [tmp_path / "a/cluster.db", tmp_path / "b/deep/history.db", tmp_path / "c/outbox.db"]
    await until(lambda: all(file.exists() for file in files) or process.returncode, within=30)
    assert [file.parent.stat().st_mode & 0o777 for file in files] == [0o700] * 3
    process.send_signal(signal.SIGTERM)
    _, stderr = await process.communicate()
    assert (process.returncode, stderr) == (0, b"")


def test_a_folder_that_cannot_be_made_is_named_with_its_key(tmp_path: Path) -> None:
    file = settings(tmp_path)
    (tmp_path / "b").write_text("a file where a folder should be")
    done = run_program(AGGREGATOR_COMMANDS, ["run", "--config", file], limit=300)
    assert done.returncode == 1
    assert done.stderr == (
        f"sickbay-aggregator: history.database: the folder {tmp_path}/b/deep can't be made: "
        "Not a directory; make it and let this user write to it, or name another\n"
    )


async def test_a_second_aggregator_on_a_local_clusters_file_refuses_to_start(
    tmp_path: Path,
) -> None:
    file = settings(tmp_path)
    line, log = ["run", "--config", str(file)], tmp_path / "log"
    with (tmp_path / "first.log").open("wb") as output:
        first = start_program(AGGREGATOR_COMMANDS, line, output=output)
    database = tmp_path / "a/cluster.db"
    await until(lambda: database.exists() or first.poll() is not None, within=30)
    second = await asyncio.to_thread(run_program, AGGREGATOR_COMMANDS, line, limit=300)
    assert second.returncode == 1
    assert second.stderr == (
        f"sickbay-aggregator: cluster.local.database: another aggregator runs on {database}: it "
        f"holds {database}.lock; stop it first, name another file, or share "
        "cluster.store.database\n"
    )
    first.kill()
    first.wait()
    with log.open("wb") as output:
        third = start_program(AGGREGATOR_COMMANDS, line, output=output)
    await until(
        lambda: '"connected to the cluster"' in log.read_text() or third.poll() is not None,
        log.read_text,
    )
    assert third.poll() is None, log.read_text()
    third.send_signal(signal.SIGTERM)
    await asyncio.to_thread(third.wait, 300)
    assert third.returncode == 0
