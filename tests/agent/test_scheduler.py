"""The scheduler in virtual time: cadence, deadlines, hung and failing checks."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from random import Random

import pytest

from nodeagent.checks.base import Off, Report
from nodeagent.model import Observation, Status
from nodeagent.scheduler import FIRST_RUN, JITTER, Scheduled, Scheduler
from tests.support.present import of_type
from tests.support.tasks import end_tasks
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time, run

pytestmark = pytest.mark.decorated(by=in_virtual_time)

Delivered = list[tuple[float, str, Report, bool]]


class Probe:
    """A check that notes when it looks, and does what a test wants."""

    def __init__(self, action: Callable[[], Awaitable[Report]] | None = None) -> None:
        self.looks: list[float] = []
        self.at_work = 0
        self._action = action

    async def run_check(self) -> Report:
        assert self.at_work == 0, "two looks at a time"
        self.at_work += 1
        self.looks.append(asyncio.get_running_loop().time())
        try:
            return await self._action() if self._action else [Observation("a", "/", Status.OK)]
        finally:
            self.at_work -= 1


def scheduled(name: str, probe: Probe, *, interval: float = 60, deadline: float = 10) -> Scheduled:
    return Scheduled(name, probe, interval, deadline)


def scheduler(
    checks: Sequence[Scheduled], known: Sequence[str] = (), seed: int = 1
) -> tuple[Scheduler, Delivered]:
    loop = of_type(asyncio.get_running_loop(), VirtualTimeLoop)
    delivered: Delivered = []

    def deliver(name: str, report: Report, *, whole: bool) -> None:
        delivered.append((loop.time(), name, report, whole))

    made = Scheduler(
        checks, clock=loop, random=Random(seed).random, deliver=deliver, known=lambda _: known
    )
    return made, delivered


async def run_for(made: Scheduler, seconds: float) -> None:
    task = asyncio.create_task(made.run())
    await asyncio.sleep(seconds)
    await end_tasks(task)


async def never() -> Report:
    await asyncio.get_running_loop().create_future()
    return []


async def test_agents_that_start_together_do_not_stay_in_step() -> None:
    """Agents are rolled out in one second, and within the hour no moment is better than another."""
    probes = [Probe() for _ in range(300)]
    loop = asyncio.get_running_loop()
    started = loop.time()
    agents = [scheduler([scheduled("a", p)], seed=n)[0] for n, p in enumerate(probes)]
    await asyncio.gather(*(run_for(each, 3600) for each in agents))
    last_minute = Counter(
        int(at - started) for probe in probes for at in probe.looks if at > started + 3540
    )
    assert 270 <= sum(last_minute.values()) <= 330, "each looks once a minute"
    assert max(last_minute.values()) <= 20, "5 in each second would be even"


async def test_looks_come_soon_and_then_at_jittered_intervals() -> None:
    probe = Probe()
    made, delivered = scheduler([scheduled("a", probe)])
    started = asyncio.get_running_loop().time()
    await run_for(made, 3600)
    assert started <= probe.looks[0] <= started + FIRST_RUN
    gaps = [after - before for before, after in pairwise(probe.looks)]
    assert all(60 * (1 - JITTER) <= gap <= 60 * (1 + JITTER) for gap in gaps)
    assert len({round(gap, 3) for gap in gaps}) > len(gaps) // 2
    assert all(whole for _, _, _, whole in delivered)


async def test_two_agents_drift_apart() -> None:
    one, other = Probe(), Probe()
    first, _ = scheduler([scheduled("a", one)], seed=1)
    second, _ = scheduler([scheduled("a", other)], seed=2)
    await asyncio.gather(run_for(first, 600), run_for(second, 600))
    assert not set(one.looks) & set(other.looks)


async def test_checks_of_one_interval_look_together() -> None:
    probes = [Probe(), Probe(), Probe()]
    made, _ = scheduler(
        [
            scheduled("a", probes[0]),
            scheduled("b", probes[1]),
            scheduled("c", probes[2], interval=15),
        ]
    )
    await run_for(made, 600)
    assert probes[0].looks == probes[1].looks
    assert len(probes[2].looks) > 3 * len(probes[0].looks)


async def test_a_hung_check_is_unknown_for_each_component_and_not_started_again() -> None:
    stuck, well = Probe(never), Probe()
    made, delivered = scheduler([scheduled("a", stuck), scheduled("b", well)], known=["/", "/data"])
    await run_for(made, 600)
    assert len(stuck.looks) == 1
    assert len(well.looks) >= 9
    said = [(at, report, whole) for at, name, report, whole in delivered if name == "a"]
    assert len(said) == 1
    at, report, whole = said[0]
    assert at == stuck.looks[0] + 10
    assert not whole
    assert not isinstance(report, Off)
    assert [(o.component, o.status, o.reason) for o in report if isinstance(o, Observation)] == [
        ("/", Status.UNKNOWN, "hung"),
        ("/data", Status.UNKNOWN, "hung"),
    ]
    assert (made.checks["a"].hangs, made.checks["a"].hung_since) == (1, at)


async def test_a_hung_check_that_never_reported_is_unknown_as_a_whole() -> None:
    made, delivered = scheduler([scheduled("a", Probe(never))])
    await run_for(made, 60)
    report = delivered[0][2]
    assert not isinstance(report, Off)
    assert [o.component for o in report if isinstance(o, Observation)] == [""]


async def test_a_late_look_still_counts_and_the_check_goes_on() -> None:
    async def late_once() -> Report:
        if len(probe.looks) == 1:
            await asyncio.sleep(100)
        return [Observation("a", "/", Status.OK)]

    probe = Probe(late_once)
    made, delivered = scheduler([scheduled("a", probe)])
    await run_for(made, 600)
    assert [whole for _, _, _, whole in delivered][:3] == [False, True, True]
    assert delivered[1][0] == probe.looks[0] + 100
    assert made.checks["a"].hung_since is None
    assert len(probe.looks) >= 8


def test_a_check_that_raises_is_unknown_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken() -> Report:
        raise ZeroDivisionError("no disks")

    async def story() -> None:
        bad, well = Probe(broken), Probe()
        made, delivered = scheduler([scheduled("a", bad), scheduled("b", well)], known=["/"])
        await run_for(made, 600)
        assert len(bad.looks) == len(well.looks)
        expected = Observation(
            "a", "/", Status.UNKNOWN, "check-error", "ZeroDivisionError: no disks"
        )
        assert all(report == [expected] for _, name, report, _ in delivered if name == "a")
        assert made.checks["a"].errors == len(bad.looks)
        assert made.checks["a"].last_success is None

    run(story())
    assert len(caplog.records) == 1  # the same error is logged once


async def test_off_is_shown_and_ends_when_there_is_something_to_see() -> None:
    async def appears() -> Report:
        if len(probe.looks) < 3:
            return Off("no GPU")
        return [Observation("a", "GPU-1", Status.OK)]

    probe = Probe(appears)
    made, _ = scheduler([scheduled("a", probe)])
    await run_for(made, 70)
    assert [info.off_because for info in made.infos()] == ["no GPU"]
    await run_for(made, 120)
    assert [info.off_because for info in made.infos()] == [""]


async def test_run_now_waits_for_the_look_under_way_instead_of_a_second_one() -> None:
    async def slow() -> Report:
        await asyncio.sleep(5)
        return []

    probe = Probe(slow)
    made, delivered = scheduler([scheduled("a", probe)])
    hung = await asyncio.gather(made.run_now(), made.run_now(["a"]))
    assert list(hung) == [[], []]
    assert len(probe.looks) == 1
    assert len(delivered) == 1


async def test_run_now_names_what_hung_and_refuses_what_is_not_there() -> None:
    made, _ = scheduler([scheduled("a", Probe(never)), scheduled("b", Probe())])
    assert await made.run_now() == ["a"]
    with pytest.raises(KeyError):
        await made.run_now(["c"])


async def test_without_checks_it_runs_on() -> None:
    made, _ = scheduler([])
    task = asyncio.create_task(made.run())
    await asyncio.sleep(1000)
    assert not task.done()
    task.cancel()


async def test_intervals_share_their_moments_so_that_an_idle_agent_sleeps() -> None:
    """Each by itself would wake it up 13 times a minute."""
    probes = {interval: Probe() for interval in (10.0, 15.0, 30.0, 60.0)}
    made, _ = scheduler(
        [scheduled(str(each), probe, interval=each) for each, probe in probes.items()]
    )
    await run_for(made, 3600)
    for interval, probe in probes.items():
        gaps = [after - before for before, after in pairwise(probe.looks)]
        least, most = interval * (1 - JITTER), interval * (1 + JITTER)
        assert all(least - 1e-6 <= gap <= most + 1e-6 for gap in gaps)
        assert 0.95 <= len(probe.looks) * interval / 3600 <= 1.05
    moments = {at for probe in probes.values() for at in probe.looks}
    assert len(moments) <= 9 * 60, "8 a minute without jitter"


async def test_a_look_is_one_task() -> None:
    made, _ = scheduler([scheduled(str(n), Probe(never)) for n in range(20)])
    task = asyncio.create_task(made.run())
    await asyncio.sleep(FIRST_RUN)
    assert len(asyncio.all_tasks()) == 1 + 1 + 20, "this test, the scheduler and the looks"
    task.cancel()


async def test_a_look_that_ends_when_its_deadline_comes_is_not_hung() -> None:
    """A busy loop finds both in one turn, the end first."""
    loop = of_type(asyncio.get_running_loop(), VirtualTimeLoop)

    async def just_in_time() -> Report:
        loop.pass_time(10)
        await asyncio.sleep(0)
        return []

    made, delivered = scheduler([scheduled("a", Probe(just_in_time))])
    assert await made.run_now() == []
    assert (made.checks["a"].hangs, made.checks["a"].hung_since) == (0, None)
    assert len(delivered) == 1


async def test_a_beat_that_is_nearly_due_comes_while_the_agent_is_awake_anyway() -> None:
    probe = Probe()
    made, _ = scheduler([scheduled("a", probe)])
    task = asyncio.create_task(made.run())
    await asyncio.sleep(FIRST_RUN)
    for after in (50, 55):
        await asyncio.sleep(probe.looks[0] + after - made._clock.boottime())
        made.agent_is_awake()
    await asyncio.sleep(1)
    assert [at - probe.looks[0] for at in probe.looks] == [0, 55]
    task.cancel()
