"""Any order of requests by hand, periodic tests, work, kills and restarts keeps what must hold.

The program that carries the tests out checks each order: durable and reserved before it, within
the limits and racks, on no node with work, in no quarantine, and never twice.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.quarantine.decide.admission_record import parse_record
from tests.support.idle_node_tests import HOUR, IdleNodes
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_node_tests import FAILED, GOING, NOTHING, PASSED
from tests.support.replica import fault
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

NAMES = ("n1", "n2", "n3", "n4")
RACKS = {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r3"}

steps = st.tuples(
    st.sampled_from(
        [
            "ask",
            "ask",
            "ask a busy one",
            "work",
            "idle",
            "stop",
            "resume",
            "crash",
            "fault",
            "second",
            "wait",
        ]
    ),
    st.sampled_from(NAMES),
    st.sampled_from([5.0, 20.0, 200.0]),
    st.integers(1, 12),
)


class Scenario:
    """One run: the acts of a person, of tenants and of the machines."""

    def __init__(self, *, periodic: bool) -> None:
        self.site = IdleNodes(*NAMES, verdicts=(PASSED, FAILED, NOTHING, GOING), racks=RACKS)
        if not periodic:
            self.site.idle = None
            for number in range(40):  # so that the default share has room for two
                self.site.world.add_node(f"other-{number}")
        self.asked = 0
        self.replicas = [self.site.start()]

    def act(self, what: str, name: str, calls: int) -> None:
        site, world = self.site, self.site.world
        match what:
            case "ask" | "ask a busy one":
                if what != "ask":
                    world.add_pod(name, f"work-of-{name}")
                self.asked += 1
                world.operations.person_requests(name, "test", f"r{self.asked}")
            case "work":
                world.add_pod(name, f"work-of-{name}")
            case "idle":
                world.pods.clear()
            case "stop":
                world.person_stops("maintenance")
            case "resume":
                world.person_stops("")
            case "crash":
                cluster = MemoryCluster(world)
                cluster.crash_in(calls, after=calls % 2 == 0)
                self.replicas.append(site.start(cluster))
            case "second":
                self.replicas.append(site.start())
            case "fault":
                site.report(name, fault("xid:79"))
            case _:
                pass

    def unanswered(self) -> list[str]:
        """The nodes whose last request has no end, except those in quarantine."""
        world = self.site.world
        asked = {one.spec.node for one in world.operations.by_name.values() if one.is_open}
        return [name for name in NAMES if name not in world.quarantines and name in asked]

    async def end(self) -> None:
        """The site comes to rest: the work is gone, and one process goes on."""
        for replica in self.replicas:
            replica.task.cancel()
        self.site.world.pods.clear()
        self.site.world.person_stops("")
        self.site.program.verdicts = [PASSED]
        self.site.start()
        await later(HOUR)
        await self.site.replica.stop()


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.booleans(), st.lists(steps, min_size=4, max_size=10))
def test_no_order_of_events_breaks_a_limit_or_tests_a_node_with_work(
    periodic: bool,  # noqa: FBT001 - drawn
    chosen: list[tuple[str, str, float, int]],
) -> None:
    @in_virtual_time
    async def one() -> None:
        scenario = Scenario(periodic=periodic)
        for what, name, wait, calls in chosen:
            scenario.act(what, name, calls)
            await later(wait)
        await scenario.end()
        scenario.site.check()
        program = scenario.site.program
        assert len(program.operations) == len({one.operation for one in program.orders})
        assert scenario.unanswered() == []
        assert parse_record(scenario.site.world.record.text).node_tests == {}

    one()
