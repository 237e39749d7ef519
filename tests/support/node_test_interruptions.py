"""Interrupts the process of a node's test at each of its calls, in virtual time."""

from collections.abc import Callable
from typing import TypeVar

from aggregator.cluster.port import Unreachable
from aggregator.quarantine.decide.admission_record import parse_record
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_node_tests import TIMEOUT, NewNodes
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

S = TypeVar("S", bound=NewNodes)

#: More calls than a test takes from its beginning to its end.
STEPS = 60


def die_anywhere(
    made: Callable[[], S],
    is_over: Callable[[S], bool],
    check: Callable[[S], None],
    *,
    after: bool,
    within: float = 4 * TIMEOUT,
) -> None:
    """Kill the process at each of its calls, until one has made them all; the next one goes on.
    ``check``: what is so at the end.
    """

    @in_virtual_time
    async def one(number: int) -> bool:
        site = made()
        cluster = MemoryCluster(site.world)
        first = site.start(cluster)
        cluster.crash_at_change(number, after=after)
        await later(120)
        died = cluster.crashed.is_set()
        first.task.cancel()
        site.start()
        await site.settles(lambda: is_over(site), within=within)
        await later(TIMEOUT)
        await _end(site)
        check(site)
        return died

    assert not all(one(number) for number in range(1, STEPS))


def fail_anywhere(made: Callable[[], NewNodes]) -> None:
    """Let each request fail once: the end is a pass all the same."""

    @in_virtual_time
    async def one(number: int) -> None:
        site, calls = made(), iter(range(1, 10_000))

        def fails(_name: str) -> Unreachable | None:
            return Unreachable("503") if next(calls) == number else None

        site.start(MemoryCluster(site.world, loses=fails))
        await site.settles(lambda: site.condition() == ("True", "TestPassed"))
        await later(TIMEOUT)
        await _end(site)
        assert len(site.program.operations) == 1
        assert site.last_test()["state"] == "Succeeded"

    for number in range(1, STEPS):
        one(number)


async def _end(site: NewNodes) -> None:
    site.check()
    assert parse_record(site.world.record.text).node_tests == {}
    await site.replica.stop()
