"""The checks change while the scheduler runs: remaining checks go on, new ones look at once."""

import asyncio

import pytest

from nodeagent.checks.base import Report
from nodeagent.model import Observation, Status
from nodeagent.scheduler import Scheduled, Scheduler
from tests.agent.test_scheduler import Probe, never, scheduled, scheduler
from tests.support.present import of_type
from tests.support.tasks import end_tasks
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


async def running(made: Scheduler, seconds: float) -> "asyncio.Task[None]":
    task = asyncio.create_task(made.run())
    await asyncio.sleep(seconds)
    return task


async def ended(task: "asyncio.Task[None]") -> None:
    await end_tasks(task)


async def test_a_check_that_stays_keeps_its_rhythm_and_a_new_one_looks_at_once() -> None:
    stays, comes = Probe(), Probe()
    kept = scheduled("a", stays)
    made, _ = scheduler([kept])
    task = await running(made, 30)
    before = list(stays.looks)
    made.use([kept, scheduled("b", comes, interval=10)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert stays.looks == before, "not looked anew"
    assert len(comes.looks) == 1
    await asyncio.sleep(600)
    assert 9 <= len(stays.looks) <= 12
    assert 50 <= len(comes.looks) <= 70
    await ended(task)


async def test_a_check_that_goes_is_not_run_again_and_its_late_words_are_dropped() -> None:
    loop = asyncio.get_running_loop()
    wait: asyncio.Future[None] = loop.create_future()

    async def late() -> Report:
        await wait
        return [Observation("a", "/", Status.FAILED)]

    probe = Probe(late)
    made, delivered = scheduler([scheduled("a", probe)])
    task = await running(made, 5)
    assert probe.at_work == 1
    made.use([])
    wait.set_result(None)
    await asyncio.sleep(600)
    assert len(probe.looks) == 1
    assert delivered == []
    await ended(task)


async def test_of_two_with_one_name_only_the_newer_is_heard() -> None:
    old, new = Probe(never), Probe()
    made, delivered = scheduler([scheduled("a", old, deadline=30)])
    task = await running(made, 5)
    made.use([scheduled("a", new, interval=120)])
    await asyncio.sleep(300)
    assert {whole for _, _, _, whole in delivered} == {True}, "no word of the hung old one"
    assert 3 <= len(new.looks) <= 5
    await ended(task)


async def test_checks_may_come_after_none() -> None:
    probe = Probe()
    made, _ = scheduler([])
    task = await running(made, 100)
    made.use([scheduled("a", probe)])
    await asyncio.sleep(300)
    assert 4 <= len(probe.looks) <= 7
    await ended(task)


async def test_a_hung_look_says_what_of_ours_waits_in_the_kernel() -> None:
    loop = of_type(asyncio.get_running_loop(), VirtualTimeLoop)
    said: list[Report] = []
    made = Scheduler(
        [Scheduled("a", Probe(never), 60, 10)],
        clock=loop,
        random=lambda: 0.0,
        deliver=lambda _name, report, *, whole: said.append(report),
        known=lambda _: ["/data"],
        stuck=lambda: ["disk_child (pid 17) waits in the kernel, in jbd2_log_wait_commit"],
    )
    task = await running(made, 20)
    [[observation]] = said  # type: ignore[misc]  # a hung look gives observations
    assert isinstance(observation, Observation)
    assert observation.message == (
        "no result in 10 s; disk_child (pid 17) waits in the kernel, in jbd2_log_wait_commit"
    )
    await ended(task)
