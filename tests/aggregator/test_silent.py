"""An agent that is gone: silence drains nobody; what was failing under a ready kubelet is told."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.health.model import Status
from aggregator.quarantine.cluster import Action, ClusterError, Phase
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.marks import is_marked
from tests.support import virtualtime
from tests.support.memorycluster import World, phase_of
from tests.support.replica import SETTINGS, FakeLine, Replica, component, fault, snapshot
from tests.support.running import Running, later, soon

#: Level evidence that the shipped rules only watch.
SLOW = component("nic-health", "eth0", Status.FAILED, "slow")
WELL = replace(SLOW, status=Status.OK, reason="")
CORDONS = replace(SETTINGS, silent_action="cordon")


class Scene:
    """One node, its agent, and how often the node was read."""

    def __init__(self, *, cordons: bool = False, **changes: object) -> None:
        self.world = World()
        self.world.add_node("n1", **changes)
        self.reads = 0
        self.line = FakeLine()
        self.replica = Replica(
            self.world,
            clock=Running(),
            settings=CORDONS if cordons else SETTINGS,
            fails=self._count,
        )

    def _count(self, name: str) -> ClusterError | None:
        self.reads += name == "read_node"
        return None

    def speaks(self, *evidence: object) -> None:
        self.line = FakeLine()
        told = snapshot(*evidence)  # type: ignore[arg-type]  # a test's words
        self.replica.agent("n1", told, line=self.line)

    def falls_silent(self) -> None:
        self.replica.controller.detached("n1", self.line, "gone")

    def told(self, kind: str) -> int:
        return self.replica.notes.kinds("n1").count(kind)


def test_one_silent_agent_whose_node_was_well_is_counted_and_nothing_else() -> None:
    async def main() -> None:
        scene = Scene(cordons=True)
        scene.speaks(WELL, fault("xid:13"))  # an application's Xid accuses nobody
        scene.falls_silent()
        await later(3600)
        assert scene.told("agent.silent") == 1
        assert scene.told("agent.silent_failing") == 0
        assert scene.world.writes == []
        assert scene.reads == 0  # nor is its kubelet asked about

    virtualtime.run(main())


def test_failing_and_silent_under_a_ready_kubelet_is_told_once_for_each_time() -> None:
    async def main() -> None:
        scene = Scene()
        for times in (1, 2):
            scene.speaks(SLOW)
            await later(10)
            scene.falls_silent()
            await later(3600)
            assert scene.told("agent.silent_failing") == times
        assert scene.reads <= 2 * 61  # one a minute
        assert scene.world.writes == []

    virtualtime.run(main())


@pytest.mark.parametrize("ready", [False, None])
def test_where_the_kubelet_is_not_ready_either_kubernetes_knows_already(
    ready: bool | None,  # noqa: FBT001 - a table of cases
) -> None:
    async def main() -> None:
        scene = Scene(cordons=True, ready=ready)
        scene.speaks(SLOW)
        scene.falls_silent()
        await later(1800)
        assert scene.told("agent.silent_failing") == 0
        assert scene.world.writes == []
        scene.world.set_node(replace(scene.world.nodes["n1"], ready=True))
        await soon(lambda: scene.told("agent.silent_failing") == 1)

    virtualtime.run(main())


def test_by_policy_it_is_cordoned_and_released_once_the_agent_has_been_well_for_its_time() -> None:
    async def main() -> None:
        scene = Scene(cordons=True)
        pod = scene.world.add_pod("n1", "a")
        scene.speaks(SLOW)
        scene.falls_silent()
        await soon(lambda: phase_of(scene.world, "n1") is Phase.CORDONED)
        quarantine = scene.world.quarantines["n1"]
        assert quarantine.spec.action is Action.CORDON
        assert "its kubelet is ready" in quarantine.spec.reason
        await later(3600)
        assert scene.world.evicted == []
        assert pod.uid in {one.uid for one in scene.world.pods.values()}
        scene.speaks(WELL)
        await later(500)
        assert is_marked(scene.world.nodes["n1"])
        await soon(lambda: not scene.world.quarantines)

    virtualtime.run(main())


def restarts(scene: Scene) -> None:
    scene.replica.task.cancel()
    scene.replica.cluster.crashed.set()
    scene.replica = Replica(scene.world, clock=Running(), settings=CORDONS)


def stays(_: Scene) -> None:
    return


@pytest.mark.parametrize("happens", [restarts, stays])
def test_such_a_cordon_stands_until_the_agent_speaks(happens: Callable[[Scene], None]) -> None:
    async def main() -> None:
        scene = Scene(cordons=True)
        scene.speaks(SLOW)
        scene.falls_silent()
        await soon(lambda: phase_of(scene.world, "n1") is Phase.CORDONED)
        happens(scene)
        await later(2 * 3600)
        assert phase_of(scene.world, "n1") is Phase.CORDONED
        scene.speaks(WELL)
        await soon(lambda: not scene.world.quarantines)

    virtualtime.run(main())


def test_it_goes_through_every_limit() -> None:
    async def main() -> None:
        scene = Scene()
        scene.replica = Replica(
            scene.world,
            clock=Running(),
            settings=replace(CORDONS, limits=Limits(concurrent=0, quorum_percent=0)),
        )
        scene.speaks(SLOW)
        scene.falls_silent()
        await soon(lambda: scene.told("quarantine.held") == 1)
        await later(600)
        assert not scene.world.quarantines

    virtualtime.run(main())


def test_a_person_who_uncordons_it_is_heard_until_the_agent_is_back() -> None:
    async def main() -> None:
        scene = Scene(cordons=True)
        scene.speaks(SLOW)
        scene.falls_silent()
        await soon(lambda: phase_of(scene.world, "n1") is Phase.CORDONED)
        scene.world.person_uncordons("n1")
        await soon(lambda: not scene.world.quarantines)
        await later(3600)
        assert not scene.world.quarantines
        scene.speaks(SLOW)
        await soon(lambda: not scene.replica.fleet.patients["n1"].overruled)
        scene.falls_silent()
        await soon(lambda: phase_of(scene.world, "n1") is Phase.CORDONED)

    virtualtime.run(main())


def test_a_node_in_quarantine_is_not_asked_about() -> None:
    async def main() -> None:
        scene = Scene()
        scene.speaks(fault())
        await soon(lambda: phase_of(scene.world, "n1") is Phase.DRAINED)
        before = scene.reads
        scene.falls_silent()
        await later(3600)
        assert scene.told("agent.silent_failing") == 0
        assert scene.reads == before

    virtualtime.run(main())
