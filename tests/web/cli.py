"""Runs of the command line `sickbay`, in a process of its own or in this one."""

import asyncio
import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from aggregator.cli.main import main
from tests.support.waiting import PATIENCE


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


async def sickbay(*arguments: str, **environ: str) -> Done:
    """Run the command to its end."""
    process = await start(*arguments, **environ)
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


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
    program = "from aggregator.cli import main; main()"
    clean_environ = {k: v for k, v in os.environ.items() if not k.startswith("SICKBAY_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        *arguments,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environ | environ,
    )
