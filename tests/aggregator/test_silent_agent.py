"""An agent that is gone: silence drains no node; a failure under a ready kubelet is reported."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.cluster.port import ClusterError, Phase
from aggregator.health.model import Status
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.settings import SilenceRules
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web.node_view import why
from tests.support import virtual_time
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import SETTINGS, FakeLine, Replica, component, fault, hello, snapshot
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

#: Level evidence that the shipped rules only watch.
SLOW = component("nic-health", "eth0", Status.FAILED, "slow")
WELL = replace(SLOW, status=Status.OK, reason="")
CORDONS = replace(SETTINGS, silence=SilenceRules(silent_failing="cordon"))


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
        self.replica.controller.on_disconnect("n1", self.line, "gone")

    def count_of(self, kind: str) -> int:
        return self.replica.notes.kinds("n1").count(kind)


async def test_failing_and_silent_under_a_ready_kubelet_is_told_once_for_each_time() -> None:
    scene = Scene()
    for times in (1, 2):
        scene.speaks(SLOW)
        await later(10)
        scene.falls_silent()
        await later(3600)
        assert scene.count_of("agent.silent_failing") == times
    assert scene.reads <= 2 * 61  # one a minute
    assert scene.world.writes == []


def restarts(scene: Scene) -> None:
    scene.replica.task.cancel()
    scene.replica.cluster.crashed.set()
    scene.replica = Replica(scene.world, clock=Running(), settings=CORDONS)


def stays(_: Scene) -> None:
    return


@pytest.mark.parametrize("happens", [restarts, stays])
async def test_such_a_cordon_stands_until_the_agent_speaks(
    happens: Callable[[Scene], None],
) -> None:
    scene = Scene(cordons=True)
    scene.speaks(SLOW)
    scene.falls_silent()
    await soon(lambda: phase_of(scene.world, "n1") is Phase.CORDONED)
    happens(scene)
    await later(2 * 3600)
    assert phase_of(scene.world, "n1") is Phase.CORDONED
    scene.speaks(WELL)
    await soon(lambda: not scene.world.quarantines)


async def test_it_goes_through_every_limit() -> None:
    scene = Scene()
    scene.replica = Replica(
        scene.world,
        clock=Running(),
        settings=replace(CORDONS, limits=Limits(concurrent=0, quorum_percent=0)),
    )
    scene.speaks(SLOW)
    scene.falls_silent()
    await soon(lambda: scene.count_of("quarantine.held") == 1)
    await later(600)
    assert not scene.world.quarantines


async def test_a_person_who_uncordons_it_is_heard_until_the_agent_is_back() -> None:
    scene = Scene(cordons=True)
    scene.speaks(SLOW)
    scene.falls_silent()
    await soon(lambda: phase_of(scene.world, "n1") is Phase.CORDONED)
    scene.world.person_uncordons("n1")
    await soon(lambda: not scene.world.quarantines)
    await later(3600)
    assert not scene.world.quarantines
    scene.speaks(SLOW)
    await soon(lambda: not scene.replica.fleet.node_summaries["n1"].cluster.overruled)
    scene.falls_silent()
    await soon(lambda: phase_of(scene.world, "n1") is Phase.CORDONED)


async def test_a_node_in_quarantine_is_not_asked_about() -> None:
    scene = Scene()
    scene.speaks(fault())
    await soon(lambda: phase_of(scene.world, "n1") is Phase.DRAINED)
    before = scene.reads
    scene.falls_silent()
    await later(3600)
    assert scene.count_of("agent.silent_failing") == 0
    assert scene.reads == before


# -- attached, and not understood ---------------------------------------------------------------


async def test_an_agent_that_is_refused_again_and_again_is_silent_and_told_with_the_reason() -> (
    None
):
    """The agent comes back within 30 s each time, and each time its snapshot is the same."""
    scene = Scene()
    for _ in range(10):
        scene.line = FakeLine()
        scene.replica.controller.on_connect(hello("n1"), scene.line)
        await later(1)
        scene.replica.controller.on_disconnect("n1", scene.line, "snapshot.seq: 1 after 2")
        await later(20)
    assert scene.count_of("agent.silent") == 1
    [told] = [one for one in scene.replica.notes.transitions if one.kind == "agent.silent"]
    assert "not understood" in told.summary
    assert "snapshot.seq: 1 after 2" in told.summary
    node_summary = scene.replica.fleet.node_summaries["n1"]
    assert node_summary.state() is QuarantineSummary.SILENT
    assert "snapshot.seq" in why(node_summary, QuarantineSummary.SILENT)
    assert scene.count_of("agent.back") == 0
    scene.speaks(WELL)
    await later(1)
    assert scene.count_of("agent.back") == 1
    assert node_summary.state() is QuarantineSummary.OK
    await scene.replica.stop()


async def test_an_agent_that_is_attached_and_never_sends_a_snapshot_is_silent() -> None:
    scene = Scene()
    scene.replica.controller.on_connect(hello("n1"), scene.line)
    await later(30)
    assert scene.count_of("agent.silent") == 0
    await later(60)
    assert scene.count_of("agent.silent") == 1
    await scene.replica.stop()


async def test_an_agent_whose_hello_is_refused_is_silent() -> None:
    scene = Scene()
    for _ in range(10):
        scene.replica.controller.on_refusal("n1", "hello.boot_id: empty")
        await later(20)
    assert scene.count_of("agent.silent") == 1
    node_summary = scene.replica.fleet.node_summaries["n1"]
    assert "hello.boot_id: empty" in why(node_summary, node_summary.state())
    await scene.replica.stop()


async def test_an_agent_that_comes_back_in_time_was_never_silent() -> None:
    """A positive control: it detaches every 20 s, and each of its snapshots is taken."""
    scene = Scene()
    for _ in range(10):
        scene.speaks(WELL)
        await later(10)
        scene.falls_silent()
        await later(10)
    assert scene.count_of("agent.silent") == 0
    await later(120)
    assert scene.count_of("agent.silent") == 1
    await scene.replica.stop()
