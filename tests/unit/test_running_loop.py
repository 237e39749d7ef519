"""The running loop of tests is the one that asyncio's own code knows."""

import asyncio
import subprocess
import sys
import threading

#: asyncio's own look-up, in C, which this process does not call by its name any more.
from _asyncio import get_running_loop as asyncios_own
from asyncio import events
from pathlib import Path

import pytest

from tests.support.virtual_time import VirtualTimeLoop

ROOT = Path(__file__).parents[2]


def test_the_replacement_is_in_use() -> None:
    assert asyncio.get_running_loop is events.get_running_loop is not asyncios_own


@pytest.mark.parametrize("make", [asyncio.new_event_loop, VirtualTimeLoop])
def test_a_loop_is_found_while_it_runs_and_not_after_it(make: type[VirtualTimeLoop]) -> None:
    async def find_loops() -> list[object]:
        await asyncio.sleep(0)
        return [asyncio.get_running_loop(), asyncios_own(), events._get_running_loop()]

    loop = make()
    assert loop.run_until_complete(find_loops()) == [loop] * 3
    loop.close()
    assert events._get_running_loop() is None
    for look_up in (asyncio.get_running_loop, asyncios_own):
        with pytest.raises(RuntimeError, match="no running event loop"):
            look_up()


async def test_another_thread_has_a_loop_of_its_own_or_none() -> None:
    found: list[object] = []

    def find_loops() -> None:
        found.append(events._get_running_loop())

        async def inside() -> None:
            found.append(asyncio.get_running_loop() is asyncios_own())
            found.append(asyncio.get_running_loop() is not outside)

        asyncio.run(inside())

    outside = asyncio.get_running_loop()
    thread = threading.Thread(target=find_loops)
    thread.start()
    thread.join()
    assert found == [None, True, True]
    assert asyncio.get_running_loop() is outside


_FORKS = """
import asyncio, os
from tests.support.running_loop import look_up_loops_without_system_calls

async def fork():
    asyncio.get_running_loop()
    child = os.fork()
    if not child:
        os._exit(0 if asyncio._get_running_loop() is None else 7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

look_up_loops_without_system_calls()
raise SystemExit(asyncio.run(fork()))
"""


def test_a_forked_process_has_no_running_loop() -> None:
    # In a process of its own: one with threads, as pytest's may have, must not fork.
    done = subprocess.run([sys.executable, "-c", _FORKS], cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0
