"""One aggregator over a `World`: the real controller, a clock that the test turns."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Self

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, ClusterError, Phase
from aggregator.composition.core import build_controller
from aggregator.events import EvidenceRecording, Transition
from aggregator.health.model import (
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Hello,
    Snapshot,
    Status,
)
from aggregator.policy.load import load_policy
from aggregator.policy.rules import Policy
from aggregator.quarantine.controller import Controller
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.decide.uncordon import OnUncordon, UncordonRules
from aggregator.quarantine.repair.operation_requests import OperationRequests
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodePools, NodeRegistry
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.tasks import end_tasks
from tests.support.waiting import until


def shipped_policy(site: str | None = None) -> Policy:
    """The shipped catalogue and rules, with a site's on top."""
    data = files("aggregator.policy")
    return load_policy(
        (data / "catalogue.yaml").read_text(), (data / "rules.yaml").read_text(), site, "site.yaml"
    )


POLICY = shipped_policy()

#: No limit in the way of what a test is about.
OPEN = Limits(
    concurrent=100,
    concurrent_percent=100,
    quorum_percent=0,
    new_per_window=5000,
    new_per_window_percent=100,
    after_upgrade=0,
)
UNSUSPECTING = CommonLimits(
    common_cause_percent=100, common_cause_nodes=5000, domain_percent=100, clique_label=""
)

SETTINGS = Settings(
    mode=Action.DRAIN,
    limits=OPEN,
    common=UNSUSPECTING,
    uncordon=UncordonRules(OnUncordon.RELEASE),
)


def all_in_mode(mode: Action) -> NodePools:
    """No pools: every node has this mode."""
    return NodePools(Pools((), mode), NodeRegistry(FleetState(), ""))


@dataclass
class Turned:
    """A clock that stands still until it is turned."""

    time: float = 1000.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Notes:
    """An event sink that remembers."""

    transitions: list[Transition] = field(default_factory=list)

    def record_event(self, transition: Transition) -> None:
        self.transitions.append(transition)

    def kinds(self, node: str) -> list[str]:
        return [t.kind.value for t in self.transitions if t.node == node]


def hello(node: str, boot_id: str = "boot-1") -> Hello:
    return Hello(node, boot_id, "epoch", "0.1.0", 1, "instance")


def fault(
    code: str = "xid:79", component: str = "GPU-1", *, boot_id: str = "boot-1", **changes: object
) -> Fault:
    """A latched fault as an agent would tell of it."""
    base = Fault(
        code=code,
        check="xid",
        component=component,
        message=f"NVRM: {code}",
        boot_id=boot_id,
        source="kmsg",
        source_seq=7,
        first_at=990.0,
        last_at=990.0,
        count=1,
        cleared_by=ClearedBy.REBOOT,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # a test's words


def component(
    check: str, name: str, status: Status, reason: str = "", *, since: float = 0.0
) -> Component:
    return Component(check, name, status, reason, "", since)


def snapshot(*evidence: Fault | Component, cleared: tuple[Cleared, ...] = ()) -> Snapshot:
    return Snapshot(
        tuple(item for item in evidence if isinstance(item, Component)),
        tuple(item for item in evidence if isinstance(item, Fault)),
        cleared,
    )


@dataclass
class FakeLine:
    """The way back to an agent; remembers why it was closed."""

    closed: str = ""

    def close(self, reason: str) -> None:
        self.closed = reason


def evaluate_due(controller: Controller) -> None:
    """Evaluate what was reported until now, as the loop's next turn does: a test turns the clock
    within the same turn.
    """
    controller.parts.queue._deliver()


def reconciler_of(replica: "Replica", kind: type) -> Any:
    """That of the replica's worker, for tests that call its acts one by one."""
    worker = replica.controller.parts.worker
    (found,) = (one for one in (worker._admission, *worker._reconcilers) if type(one) is kind)
    return found


def evaluator_of(replica: "Replica") -> Any:
    """The replica's evaluator, for tests that count its calls."""
    receivers = replica.controller.parts.queue._receivers
    assert receivers is not None
    return receivers[0]


#: The loop itself holds tasks weakly, and a test may hold no replica.
_RUNNING: set["asyncio.Task[None]"] = set()


class Replica:
    """A running controller. `stop` ends it in order, `die` as kill -9 does."""

    def __init__(
        self,
        world: World,
        *,
        clock: Turned,
        settings: Settings = SETTINGS,
        policy: Policy = POLICY,
        crash_at: int | None = None,
        after: bool = False,
        fails: Callable[[str], ClusterError | None] = lambda _: None,
        cluster: MemoryCluster | None = None,
        evidence_recording: EvidenceRecording | None = None,
        may_act: Callable[[], bool] = lambda: True,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """``wall``: the wall clock; unless given, it shows what ``clock`` does."""
        self.cluster = cluster or MemoryCluster(world, crash_at=crash_at, after=after, fails=fails)
        world.facts.limits, world.facts.rules = settings.limits, settings.repair.rules
        self.fleet = FleetState()
        self.notes = Notes()
        self.clock = clock
        self.controller = build_controller(
            cluster=self.cluster,
            policy=policy,
            settings=settings,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(clock, wall or clock),
            rng=random.Random(7),
            evidence_recording=evidence_recording,
            may_act=may_act,
        )
        self.task = asyncio.create_task(self.controller.run())
        _RUNNING.add(self.task)
        self.task.add_done_callback(_RUNNING.discard)

    async def ready(self) -> Self:
        """It knows the cluster."""
        await until(lambda: not self.fleet.view_lost)
        return self

    async def answer_requests(self) -> None:
        """One round of the reports on people's Operations, which run next to the controller."""
        clocks = Clocks(self.clock, self.clock)
        await OperationRequests(self.cluster, self.fleet, clocks, lambda: True).go_round()

    def agent(
        self,
        node: str,
        evidence: Snapshot | Delta,
        *,
        boot_id: str = "boot-1",
        node_uid: str = "",
        line: FakeLine | None = None,
    ) -> Awaitable[None] | None:
        """The node's agent attaches, and says this; later words come on the same stream."""
        node_summary = self.fleet.node_summaries.get(node)
        if (
            node_summary is None
            or not node_summary.agent.attached
            or isinstance(evidence, Snapshot)
        ):
            told = replace(hello(node, boot_id), node_uid=node_uid)
            self.controller.on_connect(told, line or FakeLine())
        self.cluster.world.facts.note_evidence(node, evidence)
        return self.controller.on_evidence(node, evidence, self.clock())

    def agents(self, nodes: Iterable[str], evidence: Snapshot | Delta, **more: Any) -> None:
        """The agents of these nodes say the same, one after the other."""
        for node in nodes:
            self.agent(node, evidence, **more)

    async def agent_brings(
        self, node: str, evidence: Snapshot | Delta, phase: Phase, **more: Any
    ) -> None:
        """The node's agent says this, and the node's quarantine comes to this phase."""
        self.agent(node, evidence, **more)
        await until(lambda: phase_of(self.cluster.world, node) is phase, within=600.0)

    def evaluate_due(self) -> None:
        """Evaluate at this time of its clock, which the test turns within the same turn."""
        evaluate_due(self.controller)

    async def stop(self) -> None:
        self.cluster.crashed.set()
        await end_tasks(self.task)
