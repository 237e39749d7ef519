"""Permission to begin an act: decided from the cluster as it is at that moment, and answered."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.cluster.node_names import APPLIED
from aggregator.cluster.port import Node, Phase, RepairState, StopText, Taint, Unreachable
from aggregator.ingest.codec import InvalidMessage, permission_request
from aggregator.quarantine.decide.operator_requests import EXEMPT, exemption
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.protocol import PermissionRequest
from aggregator.repairers.gpu_use import GpuUse
from aggregator.repairers.permission_answers import PermissionAnswers
from sickbay.v1 import sickbay_pb2 as pb
from tests.aggregator.repair_site import Site
from tests.support.gpu_reports import GpuReports
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.new_node_tests import GOING, NewNodes, own_test
from tests.support.relays import replicas
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

RELEASED = "the node is released"
NO_ORDER = "no quarantine and no test of the node has this order"


# -- the decision ---------------------------------------------------------------------------------


@dataclass
class Ordered:
    """A node with a reboot under way, which its agent has accepted and not begun."""

    site: Site
    cluster: MemoryCluster
    request: PermissionRequest
    #: The calls of the cluster's that fail.
    unreachable: set[str]
    #: Whether the replica may act.
    acts: bool = True

    async def refusal(self, **changed: str) -> str:
        controller = self.site.replica.controller
        request = replace(self.request, **changed)
        return await controller.repair_permissions.refusal("n1", request)

    def change_attempt(self, **changes: object) -> None:
        """Another process has changed the attempt, and no watch has reported that."""
        found = self.site.quarantine()
        repair = found.status.repair
        [attempt] = repair.attempts
        changed = replace(repair, attempts=(replace(attempt, **changes),))  # type: ignore[arg-type]
        self.change(repair=changed)

    def change(self, **status: object) -> None:
        world, found = self.site.world, self.site.quarantine()
        after = replace(found, status=replace(found.status, **status))  # type: ignore[arg-type]
        world.quarantines["n1"] = after

    @property
    def node(self) -> Node:
        return self.site.world.nodes["n1"]

    def change_node(self, **changes: object) -> None:
        nodes = self.site.world.nodes
        nodes["n1"] = replace(nodes["n1"], **changes)  # type: ignore[arg-type]


async def ordered() -> Ordered:
    site = Site()
    site.shop.boots = False
    unreachable: set[str] = set()
    cluster = MemoryCluster(
        site.world, fails=lambda name: Unreachable("no route") if name in unreachable else None
    )
    site.start(cluster)
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    [order] = site.shop.orders
    request = PermissionRequest(order.operation, "reboot", order.quarantine)
    one = Ordered(site, cluster, request, unreachable)
    permissions = site.replica.controller.repair_permissions
    permissions._quarantined.record_writer.switch.may_act = lambda: one.acts
    return one


async def test_an_open_order_on_its_own_empty_node_is_permitted() -> None:
    one = await ordered()
    assert await one.refusal() == ""
    one.change_attempt(state=RepairState.ORDERING)  # its answer is not written yet
    assert await one.refusal() == ""
    await one.site.replica.stop()


Change = Callable[[Ordered], object]
_CHANGES: list[tuple[str, Change, str]] = [
    ("deleted", lambda one: one.site.world.quarantines.pop("n1"), RELEASED),
    ("released", lambda one: one.change(phase=Phase.RELEASING), RELEASED),
    ("ended", lambda one: one.change_attempt(state=RepairState.UNKNOWN), NO_ORDER),
    ("ending", lambda one: one.change_attempt(ends_as=RepairState.FAILED), NO_ORDER),
    ("another attempt", lambda one: one.change_attempt(operation="q-2"), NO_ORDER),
    ("late", lambda one: one.change_attempt(deadline_at=1.0), "the time of the attempt is over"),
    (
        "another node",
        lambda one: one.change_node(uid="uid-2"),
        "the cluster's Node is another one, or none",
    ),
    ("no node", lambda one: one.site.world.nodes.pop("n1"), "the cluster's Node is another one"),
    ("another boot", lambda one: one.change_node(boot_id="boot-2"), "the node is in another boot"),
    (
        "uncordoned",
        lambda one: one.change_node(unschedulable=False),
        "the node does not have all of our marks",
    ),
    (
        "exempted",
        lambda one: one.change_node(
            annotations={**one.node.annotations, EXEMPT: exemption(2e9, "mine")}
        ),
        "exempt until",
    ),
    (
        "maintained",
        lambda one: one.change_node(
            taints=(*one.node.taints, Taint("karpenter.sh/disrupted", "", "NoSchedule"))
        ),
        "another party is at work on the node: Karpenter",
    ),
    ("work", lambda one: one.site.world.add_pod("n1", "late"), "work is still on the node"),
    (
        "cancelled",
        lambda one: one.site.world.operations.person_cancels("n1"),
        "a person has cancelled it",
    ),
    (
        "cancelled before",
        lambda one: one.change(
            repair=replace(
                one.site.quarantine().status.repair,
                exhausted="a person ended the repairs",
                exhausted_at=1e12,
            )
        ),
        "a person has cancelled it",
    ),
    (
        "stopped",
        lambda one: one.site.world.person_stops_unseen("no more"),
        "the stop switch is set: no more",
    ),
]


@pytest.mark.parametrize(("name", "change", "why"), _CHANGES, ids=[name for name, *_ in _CHANGES])
async def test_what_has_changed_since_the_order_refuses_it(
    name: str, change: Change, why: str
) -> None:
    one = await ordered()
    await asyncio.sleep(1)  # the switch was read for the order
    change(one)
    assert (await one.refusal()).startswith(why), name
    await one.site.replica.stop()


async def test_a_cancellation_after_the_read_of_the_attempts_refuses_it() -> None:
    """The other reads take their time."""
    one = await ordered()

    def cancelled(name: str) -> None:
        if name == "pods_on":
            one.site.world.operations.person_cancels("n1")

    one.cluster._fails = cancelled
    assert await one.refusal() == "a person has cancelled it"
    await one.site.replica.stop()


async def test_a_cancellation_during_the_last_wait_refuses_it() -> None:
    """That is the read of the stop switch."""
    one = await ordered()
    await asyncio.sleep(10)  # the switch was read for the order
    cancel_during_the_read_of_the_switch(one.site.world, one.cluster)
    assert await one.refusal() == "a person has cancelled it"
    await one.site.replica.stop()


def cancel_during_the_read_of_the_switch(world: World, cluster: MemoryCluster) -> None:
    read = cluster.read_stop

    async def cancelled() -> StopText:
        stop = await read()
        world.operations.person_cancels("n1")
        await asyncio.sleep(1)  # the watch has reported it
        return stop

    cluster.read_stop = cancelled  # type: ignore[method-assign]


async def test_a_replica_that_may_not_act_permits_nothing() -> None:
    one = await ordered()
    one.acts = False
    assert "may not be the controller any more" in await one.refusal()
    await one.site.replica.stop()


async def test_a_controller_that_was_cut_off_permits_nothing_on_a_node_that_another_released() -> (
    None
):
    """It has ordered the reboot, and reaches the agent, but not the API server."""
    one = await ordered()
    world, cut = one.site.world, one.site.replica
    labels = SimpleNamespace(labels={})
    remembered = SimpleNamespace(node="n1", quarantine=one.site.quarantine(), cluster=labels)
    one.unreachable.update(("read_node", "read_quarantine", "pods_on", "read_stop"))
    cut.cluster.in_queue = never  # nor does any act of it arrive
    other = one.site.start(MemoryCluster(world))
    world.person_deletes("n1")
    one.site.seen = True
    await one.site.settles(one.site.is_released, within=60)
    world.add_pod("n1", "new-work")
    permissions = cut.controller.repair_permissions
    known: Any = SimpleNamespace(known=lambda _: remembered)
    permissions._registry = known
    assert "can't be read" in await permissions.refusal("n1", one.request)
    one.unreachable.clear()
    assert await permissions.refusal("n1", one.request) == RELEASED
    assert await other.controller.repair_permissions.refusal("n1", one.request) == NO_ORDER
    await cut.stop()
    await other.stop()


async def never(_: str) -> None:
    await asyncio.Event().wait()


async def test_an_order_that_nobody_gave_is_refused_without_a_read() -> None:
    one = await ordered()
    before = dict(one.cluster.asked)
    for changed in (
        {"operation": "q-9"},
        {"quarantine": "q-9"},
        {"operation": "", "repair": ""},
    ):
        assert await one.refusal(**changed) == NO_ORDER
    assert dict(one.cluster.asked) == before
    assert await one.refusal(repair="gpu-reset") == NO_ORDER
    controller = one.site.replica.controller
    assert await controller.repair_permissions.refusal("n9", one.request) == NO_ORDER
    await one.site.replica.stop()


async def test_a_cluster_that_answers_late_permits_and_one_that_does_not_refuses() -> None:
    one = await ordered()
    loop = asyncio.get_running_loop()
    one.unreachable.add("read_node")
    loop.call_later(3, one.unreachable.clear)
    assert await one.refusal() == ""
    one.unreachable.add("read_node")
    began = loop.time()
    assert await one.refusal() == "the act waits, as what it is for can't be read: no route"
    assert loop.time() - began == pytest.approx(10.0)
    await one.site.replica.stop()


@pytest.mark.parametrize("mode", [RepairMode.OFF, RepairMode.OBSERVE])
async def test_a_controller_that_repairs_nothing_any_more_permits_nothing(mode: RepairMode) -> None:
    one = await ordered()
    await one.site.replica.stop()
    one.site.mode = mode
    one.site.start()
    assert await one.refusal() == f"repair.mode is {mode.value}"
    await one.site.replica.stop()


_NEW: list[tuple[str, Callable[[NewNodes], object], str]] = [
    ("as ordered", lambda site: None, ""),
    (
        "cancelled",
        lambda site: site.world.operations.person_cancels("n1"),
        "a person deleted its operation",
    ),
    ("opened", lambda site: site.set_taints(), "the startup taint was removed"),
    (
        "marked",
        lambda site: site.world.person_annotates("n1", APPLIED, "{}"),
        "the node is in quarantine",
    ),
    ("work", lambda site: site.world.add_pod("n1", "early"), "pods that do not tolerate"),
    ("another node", lambda site: site.world.renew_node("n1", "boot-2"), "the cluster's Node is"),
    ("no test", lambda site: site.world.operations.by_name.clear(), NO_ORDER),
    ("stopped", lambda site: site.world.person_stops_unseen("no more"), "the stop switch is set"),
]


@pytest.mark.parametrize(("name", "change", "why"), _NEW, ids=[name for name, *_ in _NEW])
async def test_the_test_of_a_new_node_is_permitted_while_it_still_waits_for_it(
    name: str, change: Callable[[NewNodes], object], why: str
) -> None:
    site = NewNodes(verdicts=(GOING,))
    site.world.operations.person_requests("n1", "test", "r1")
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    await asyncio.sleep(1)
    [order] = site.program.orders
    change(site)
    permissions = site.replica.controller.repair_permissions
    request = PermissionRequest(order.operation, "test", order.node_uid)
    refusal = await permissions.refusal("n1", request)
    assert refusal.startswith(why) if why else not refusal, (name, refusal)
    other = replace(request, operation=own_test(7))
    assert await permissions.refusal("n1", other) == NO_ORDER


def cancel_during_the_read_of_pods(world: World, cluster: MemoryCluster) -> None:
    def cancelled(name: str) -> None:
        if name == "pods_on":
            world.operations.person_cancels("n1")

    cluster._fails = cancelled


@pytest.mark.parametrize(
    "cancel", [cancel_during_the_read_of_pods, cancel_during_the_read_of_the_switch]
)
async def test_a_test_that_a_person_cancels_during_a_wait_is_not_permitted(
    cancel: Callable[[World, MemoryCluster], None],
) -> None:
    site = NewNodes(verdicts=(GOING,))
    site.world.operations.person_requests("n1", "test", "r1")
    cluster = MemoryCluster(site.world)
    site.start(cluster)
    await site.settles(lambda: site.last_test().get("state") == "Ordered")
    await asyncio.sleep(10)
    [order] = site.program.orders
    cancel(site.world, cluster)
    request = PermissionRequest(order.operation, "test", order.node_uid)
    refusal = await site.replica.controller.repair_permissions.refusal("n1", request)
    assert refusal == "a person deleted its operation"


# -- the answer -----------------------------------------------------------------------------------


@dataclass
class Line:
    answers: list[tuple[str, str]] = field(default_factory=list)

    def answer_permission(self, operation: str, refusal: str) -> None:
        self.answers.append((operation, refusal))


def deciding(
    by: Callable[[str, PermissionRequest], Awaitable[str]] | None,
) -> tuple[PermissionAnswers, dict[str, Line]]:
    lines = {"n1": Line(), "n2": Line()}
    answers = PermissionAnswers(lines.get)
    if by is not None:
        answers.decide_by(by)
    return answers, lines


def asks(operation: str = "op-1") -> PermissionRequest:
    return PermissionRequest(operation, "reboot", "q")


async def test_each_operation_is_decided_once_and_one_of_a_node_at_a_time() -> None:
    async def decide(node: str, request: PermissionRequest) -> str:
        await asyncio.sleep(1)
        return "" if node == "n1" else "no"

    answers, lines = deciding(decide)
    answers.on_request("n1", asks())
    answers.on_request("n1", asks("op-2"))
    answers.on_request("n2", asks())
    answers.on_request("n3", asks())  # it has no stream
    await asyncio.sleep(2)
    answers.on_request("n1", asks())
    answers.on_request("n1", asks("op-2"))
    await asyncio.sleep(2)
    assert lines["n1"].answers == [
        ("op-2", "another request is being decided on"),
        ("op-1", ""),
        ("op-1", "it was decided on before"),
        ("op-2", ""),
    ]
    assert lines["n2"].answers == [("op-1", "no")]


async def test_an_answer_goes_to_no_other_stream_than_the_requests() -> None:
    async def decide(node: str, request: PermissionRequest) -> str:
        await asyncio.sleep(1)
        return ""

    answers, lines = deciding(decide)
    first = lines["n1"]
    answers.on_request("n1", asks())
    await asyncio.sleep(0.5)
    lines["n1"] = Line()
    await asyncio.sleep(1)
    assert (first.answers, lines["n1"].answers) == ([], [])


async def test_a_decision_that_is_given_up_is_a_refusal() -> None:
    async def decide(node: str, request: PermissionRequest) -> str:
        await asyncio.sleep(100)
        return ""

    answers, lines = deciding(decide)
    answers.on_request("n1", asks())
    await asyncio.sleep(1)
    [task] = answers._tasks.values()
    task.cancel()
    await asyncio.sleep(1)
    assert lines["n1"].answers == [("op-1", "the aggregator could not decide")]
    without, lines = deciding(None)
    without.on_request("n1", asks())
    assert lines["n1"].answers == [("op-1", "this process decides on no repair")]


def test_a_request_without_an_operation_is_malformed_and_an_unknown_verb_is_none() -> None:
    told = pb.PermissionRequest(operation_id="op", quarantine_uid="q", verb=77)  # type: ignore[arg-type]
    assert permission_request(told) == PermissionRequest("op", "", "q")
    for name in ("operation_id", "quarantine_uid"):
        wrong = pb.PermissionRequest()
        wrong.CopyFrom(told)
        wrong.ClearField(name)
        with pytest.raises(InvalidMessage):
            permission_request(wrong)


# -- by a gateway ---------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_request_goes_by_a_gateway_to_the_controller_and_its_answer_back(
    tmp_path: Path,
) -> None:
    decided: list[tuple[str, PermissionRequest]] = []

    async def decide(node: str, request: PermissionRequest) -> str:
        decided.append((node, request))
        return "" if request.operation == "op-1" else "the node is released"

    async with replicas(tmp_path, "a", "b") as site:
        controller, gateway = site.all["a"], site.all["b"]
        assert controller.streams is not None
        async with gateway.agent() as agent:
            await agent.attend()
            controller.streams.table._rules.orders.permissions.decide_by(decide)
            for operation, granted, reason in (
                ("op-1", True, ""),
                ("op-2", False, "the node is released"),
            ):
                request = pb.PermissionRequest(
                    operation_id=operation, verb=pb.REPAIR_VERB_REBOOT, quarantine_uid="q"
                )
                await agent.send(pb.AgentMessage(permission_request=request))
                answer = await agent.expect("permission")
                assert answer == pb.Permission(
                    operation_id=operation, granted=granted, reason=reason
                )
            assert decided[0] == ("node-1", asks())
            # Without a controller the gateway refuses at once.
            for one in site.all.values():
                one.lease.name(None)
            await until(lambda: not gateway.gateway.relayed)
            await agent.send(pb.AgentMessage(permission_request=request))
            answer = await agent.expect("permission")
            assert (answer.granted, answer.reason) == (False, "there is no controller now")
            assert len(decided) == 2


# -- before another party's act -------------------------------------------------------------------


async def test_a_bmc_restarts_no_node_whose_agent_sees_a_gpu_in_use() -> None:
    site, agents = Site(), GpuReports("slurmstepd (pid 7) has /dev/nvidia0 open")
    site.gpu_use = agents.requests
    await site.runs_until(lambda: site.repaired == ["ticket"])
    assert site.attempts()[0] == ("reboot", RepairState.FAILED)
    repair = site.quarantine().status.repair
    text = "a GPU of the node is in use: slurmstepd (pid 7) has /dev/nvidia0 open"
    assert repair.attempts[0].message == text
    site.check()


async def test_an_order_that_may_be_repeated_waits_for_the_end_of_the_work() -> None:
    site, agents = Site(), GpuReports("slurmstepd (pid 7) has /dev/nvidia0 open")
    site.gpu_use, site.twice = agents.requests, True
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    await asyncio.sleep(300)
    assert site.repaired == []
    repair = site.quarantine().status.repair
    assert repair.held == f"reboot waits: a GPU of the node is in use: {agents.use.users[0]}"
    agents.use = GpuUse()
    await site.settles(site.is_released)
    assert site.repaired == ["reboot"]
    site.check()


@pytest.mark.parametrize(
    ("agents", "why"),
    [
        ({"connected": False}, "the node's agent is not connected"),
        ({"answers": False}, "the node's agent has not answered within 5 s"),
        ({"use": GpuUse(unknown="another PID namespace")}, "another PID namespace"),
        ({}, ""),
    ],
)
async def test_an_agent_without_an_answer_holds_up_no_bmc(agents: dict[str, Any], why: str) -> None:
    site, silent = Site(), GpuReports()
    for name, value in agents.items():
        setattr(silent, name, value)
    site.gpu_use = silent.requests
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    repair = site.quarantine().status.repair
    note = f"whether a GPU was in use is not known: {why}" if why else ""
    assert repair.attempts[0].message == note
    await site.settles(site.is_released)
    assert site.repaired == ["reboot"]
    site.check()


@pytest.mark.asyncio
async def test_the_request_goes_by_a_gateway_to_the_agent_and_its_answer_back(
    tmp_path: Path,
) -> None:
    async with replicas(tmp_path, "a", "b") as site:
        controller, gateway = site.all["a"], site.all["b"]
        assert controller.streams is not None
        async with gateway.agent() as agent:
            await agent.attend()
            orders = controller.streams.table._rules.orders
            reading = asyncio.create_task(orders.gpu_use.read("node-1"))
            request = await agent.expect("gpu_use_request")
            long = "x" * 5000
            told = pb.GpuUse(request_id=request.request_id, users=[long] * 9, unknown=long)
            await agent.send(pb.AgentMessage(gpu_use=told))
            use = await reading
            assert len(use.users) == 5
            assert {len(text) for text in (*use.users, use.unknown)} == {1000}
