"""The bounded output of commands that are run for a site, with real processes."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

from aggregator.runtime.command_output import last_text, wait_for_end
from tests.support.waiting import PATIENCE

MOST = 10_000


@asynccontextmanager
async def shell(script: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, IO[bytes]]]:
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            yield process, output
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_command_is_waited_for_to_its_end() -> None:
    async with shell("echo first; echo second >&2; exit 3") as (process, output):
        async with asyncio.timeout(PATIENCE):
            assert await wait_for_end(process, output, MOST)
        assert process.returncode == 3
        assert last_text(output) == "first\nsecond"


async def test_a_command_that_writes_more_than_the_bound_is_waited_for_no_longer() -> None:
    script = f"head -c {MOST + 1} /dev/zero; exec sleep 300"
    async with shell(script) as (process, output):
        async with asyncio.timeout(PATIENCE):
            assert not await wait_for_end(process, output, MOST)
        assert process.returncode is None


async def test_a_command_that_has_ended_may_have_written_any_amount() -> None:
    async with shell(f"head -c {3 * MOST} /dev/zero") as (process, output):
        await asyncio.wait_for(process.wait(), 300)
        assert await wait_for_end(process, output, MOST)


async def test_a_process_that_the_command_leaves_running_is_not_waited_for() -> None:
    async with shell("sleep 300 & echo $!") as (process, output):
        async with asyncio.timeout(PATIENCE):
            assert await wait_for_end(process, output, MOST)
        left = int(last_text(output))
        os.kill(left, signal.SIGKILL)


async def test_of_a_long_output_people_see_the_end() -> None:
    async with shell("seq 1 5000; printf '\\377'") as (process, output):
        assert await wait_for_end(process, output, 10 * MOST)
        shown = last_text(output)
    assert len(shown) <= 2000
    assert shown.endswith("4999\n5000\n\N{REPLACEMENT CHARACTER}")
