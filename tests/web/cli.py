"""Runs of the command line `sickbay`, in a process of its own or in this one."""

import asyncio
import io
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from aggregator.cli.main import main
from tests.support.aggregator_program import SICKBAY
from tests.support.fork_server import run_program
from tests.support.waiting import PATIENCE


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


async def sickbay(*arguments: str, **environ: str) -> Done:
    """Run the command to its end. `start` starts the program itself."""
    done = await asyncio.to_thread(
        run_program, SICKBAY, arguments, environment=_clean() | environ, limit=PATIENCE
    )
    return Done(done.returncode, done.stdout, done.stderr)


async def in_process(*arguments: str) -> Done:
    """The same without a process of its own, whose imports for a kubeconfig take seconds."""
    out, err = io.StringIO(), io.StringIO()

    def run() -> object:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(arguments)
        return ended.value.code

    async with asyncio.timeout(PATIENCE):
        code = await asyncio.to_thread(run)
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


async def start(*arguments: str, **environ: str) -> asyncio.subprocess.Process:
    return await start_on(asyncio.subprocess.DEVNULL, *arguments, **environ)


async def start_on(stdin: int, *arguments: str, **environ: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *SICKBAY.program,
        *arguments,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_clean() | environ,
    )


async def unwritten(*arguments: str, full: bool) -> tuple[int | None, str]:
    """Exit code and stderr where stdout is on a full disk, or its reader has gone, as head has."""
    read, write = os.pipe()
    os.close(read)
    with Path("/dev/full").open("wb") as device:  # noqa: ASYNC230 - a device: nothing waits
        process = await asyncio.create_subprocess_exec(
            *(*SICKBAY.program, *arguments),
            stdout=device if full else write,
            stderr=asyncio.subprocess.PIPE,
            env=_clean(),
        )
    os.close(write)
    _, err = await process.communicate()
    return process.returncode, err.decode()


def _clean() -> dict[str, str]:
    return {key: text for key, text in os.environ.items() if not key.startswith("SICKBAY_")}
