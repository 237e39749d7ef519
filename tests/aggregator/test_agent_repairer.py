"""Orders to agents: every answer and every doubt, by fake streams and by real ones."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from aggregator.cluster.port import UNGUARDED
from aggregator.ingest.codec import InvalidMessage, repair_result
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.agent import AgentRepairer
from aggregator.repairers.agent_orders import (
    AgentOrder,
    AgentOrders,
    AgentResult,
    Measured,
    OrderLine,
    OrderState,
)
from aggregator.repairers.gpu_use import GpuUse
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1.limits import MAX_EVIDENCE_BYTES
from tests.support.ingest import Agent, Site, site
from tests.support.present import present
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

GPU = "GPU-00000000-0000-0000-0000-000000000001"
RESET = RepairOrder(
    "q-1-gpu-reset", "gpu-reset", "node-1", "uid", "boot-1", "q", "xid", 900, (GPU,)
)
REBOOT = replace(RESET, operation="q-1-reboot", repair="reboot")
TEST = replace(RESET, operation="q-2-test", repair="test", profile="standard")
BOTH = ("gpu-reset", "reboot", "test")
S, A = OrderState, AnswerState


@dataclass
class FakeStream:
    """An agent that answers each order with these states."""

    orders: AgentOrders
    states: list[AgentResult] = field(default_factory=list)
    repair_verbs: tuple[str, ...] = BOTH
    test_profiles: tuple[str, ...] = ("standard",)
    ordered: list[AgentOrder] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    permissions: list[tuple[str, str]] = field(default_factory=list)

    def order_repair(self, order: AgentOrder) -> None:
        self.ordered.append(order)
        self._answer(order.operation)

    def cancel_repair(self, operation: str, reason: str) -> None:
        self.cancelled.append(operation)
        self._answer(operation)

    def repair_result_taken(self, operation: str) -> None:
        self.taken.append(operation)

    def answer_permission(self, operation: str, refusal: str) -> None:
        self.permissions.append((operation, refusal))

    def request_gpu_use(self, request: str, *, pods: bool) -> None:
        assert not pods
        self.orders.gpu_use.on_answer("node-1", request, GpuUse())

    def _answer(self, operation: str) -> None:
        for one in self.states:
            told = replace(one, operation=operation)
            asyncio.get_running_loop().call_later(1.0, self.orders.on_result, "node-1", told)


class Bench:
    """A repairer, and the streams that come and go."""

    def __init__(self, *states: OrderState, reason: str = "", message: str = "") -> None:
        self.orders = AgentOrders()
        self.orders.connect(self)
        self.repairer = AgentRepairer(self.orders)
        told = [AgentResult("", state, reason, message) for state in states]
        self.stream: FakeStream | None = FakeStream(self.orders, told)
        self.first = self.stream

    def line_of(self, node: str) -> OrderLine | None:
        return self.stream if node == "node-1" else None

    def ends(self) -> None:
        self.stream = None
        self.orders.on_detach("node-1")


@pytest.mark.parametrize("state", [S.SUCCEEDED, S.FAILED, S.REFUSED, S.UNKNOWN, S.INCONCLUSIVE])
def test_the_end_of_an_order_is_reported_once(state: OrderState) -> None:
    orders, ended = AgentOrders(), list[str]()
    orders.note_ends(ended.append)
    orders.begin("node-1", "op-1", "q")
    for told in (S.ACCEPTED, S.RUNNING):
        orders.on_result("node-1", AgentResult("op-1", told))
    assert ended == []
    for _ in range(3):
        orders.on_result("node-1", AgentResult("op-1", state))
        for number in range(20):  # as many as make room for others
            orders.on_result("node-1", AgentResult(f"other-{number}", state))
        assert present(orders.result_of("node-1", "op-1")).state is state
    assert ended == ["node-1"]
    orders.begin("node-1", "op-2", "q")
    orders.on_result("node-1", AgentResult("op-2", state))
    orders.on_result("node-2", AgentResult("op-2", state))  # not ours
    assert ended == ["node-1", "node-1"]


async def test_the_end_of_an_order_of_an_earlier_process_is_reported_once_it_is_looked_at() -> None:
    bench, ended = Bench(), list[str]()
    bench.orders.note_ends(ended.append)
    done = AgentResult(RESET.operation, S.SUCCEEDED)
    bench.orders.on_result("node-1", done)
    assert ended == []  # the first look sees it
    bench.orders = AgentOrders()
    bench.orders.note_ends(ended.append)
    await AgentRepairer(bench.orders).read_outcome(RESET)
    for _ in range(3):
        bench.orders.on_result("node-1", done)
    assert ended == ["node-1"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("not-permitted", "did not permit it in time: no answer for 10 s"),
        ("busy", "another order or a test by hand is under way: no answer for 10 s"),
        ("agent-restarted", "the agent was restarted before it began: no answer for 10 s"),
        ("other-boot", "in another boot than the order was for: no answer for 10 s"),
    ],
)
async def test_an_order_that_could_not_begin_just_then_says_nothing_about_its_repair(
    reason: str, words: str
) -> None:
    """Else a test by hand, or an update of the agents, would have a machine replaced."""
    for order in (RESET, REBOOT, TEST):
        bench = Bench(S.REFUSED, reason=reason, message="no answer for 10 s")
        answer = await bench.repairer.order(order, UNGUARDED)
        assert answer.state is A.INCONCLUSIVE
        assert words in answer.text


@pytest.mark.parametrize(
    ("order", "state", "answer"),
    [
        (RESET, S.ACCEPTED, A.TAKEN),
        (RESET, S.RUNNING, A.TAKEN),
        (RESET, S.SUCCEEDED, A.DONE),
        (RESET, S.FAILED, A.FAILED),
        (RESET, S.REFUSED, A.FAILED),
        (RESET, S.UNKNOWN, A.UNSURE),
        (RESET, S.INCONCLUSIVE, A.UNSURE),
        (REBOOT, S.ACCEPTED, A.TAKEN),
        (REBOOT, S.REFUSED, A.FAILED),
        (REBOOT, S.UNKNOWN, A.UNSURE),
        (TEST, S.ACCEPTED, A.TAKEN),
        (TEST, S.RUNNING, A.TAKEN),
        (TEST, S.SUCCEEDED, A.DONE),
        (TEST, S.FAILED, A.FAILED),
        (TEST, S.REFUSED, A.INCONCLUSIVE),
        (TEST, S.UNKNOWN, A.INCONCLUSIVE),
        (TEST, S.INCONCLUSIVE, A.INCONCLUSIVE),
    ],
)
async def test_each_state_has_its_answer(
    order: RepairOrder, state: OrderState, answer: AnswerState
) -> None:
    bench = Bench(state, message="as it was")
    assert (await bench.repairer.order(order, UNGUARDED)).state is answer
    (sent,) = bench.first.ordered
    assert (sent.operation, sent.verb, sent.quarantine) == (order.operation, order.repair, "q")
    assert sent.boot_id == "boot-1"
    assert sent.within == 300.0
    assert sent.gpus == ((GPU,) if order is RESET else ())
    assert sent.profile == ("standard" if order is TEST else "")


async def test_a_profile_that_the_node_lacks_or_a_verb_that_it_forbids_is_no_verdict() -> None:
    bench = Bench(S.SUCCEEDED)
    answer = await bench.repairer.order(replace(TEST, profile="other"), UNGUARDED)
    assert answer.state is A.INCONCLUSIVE
    assert "no test profile other; it has: standard" in answer.text
    bench.first.repair_verbs = ("reboot",)
    assert (await bench.repairer.order(TEST, UNGUARDED)).state is A.INCONCLUSIVE
    assert bench.first.ordered == []


async def test_a_test_is_cancelled_at_any_time_and_says_nothing_about_the_node() -> None:
    bench = Bench(S.RUNNING)
    await bench.repairer.order(TEST, UNGUARDED)
    bench.first.states = [AgentResult("", S.INCONCLUSIVE, "cancelled")]
    assert await bench.repairer.cancel(TEST)
    assert bench.first.cancelled == [TEST.operation]
    assert (await bench.repairer.read_outcome(TEST)).state is A.INCONCLUSIVE


async def test_a_running_test_is_waited_for() -> None:
    bench = Bench(S.RUNNING)
    await bench.repairer.order(TEST, UNGUARDED)
    assert (await bench.repairer.read_outcome(TEST)).state is A.TAKEN


async def test_what_a_test_has_measured_goes_into_the_details_and_is_bounded() -> None:
    bench = Bench()
    many = tuple(Measured("m" * 100, f"GPU-{number}", 1.5, "GB/s") for number in range(1000))
    for measured, most in ((many[:2], 2), (many, 999)):
        assert bench.stream is not None
        bench.stream.states = [AgentResult("", S.FAILED, "threshold", "fio: slow", measured)]
        order = replace(TEST, operation=f"q-{len(measured)}")
        answer = await bench.repairer.order(order, UNGUARDED)
        assert answer.text == "threshold: fio: slow"
        rows = json.loads(answer.details["measurements"])
        assert rows[0] == ["m" * 100, "GPU-0", 1.5, "GB/s"]
        assert 2 <= len(rows) <= most
        assert len(answer.details["measurements"]) < 4000


def test_only_numbers_are_measurements() -> None:
    told = pb.RepairResult(operation_id="o", state=pb.REPAIR_STATE_SUCCEEDED)
    for value in (1.0, float("nan"), float("inf")):
        told.measurements.add(measure="m", component="", value=value, unit="GB/s")
    result = present(repair_result(told))
    assert [one.value for one in result.measured] == [1.0]


# -- the evidence of before the act ---------------------------------------------------------


def reported_by_agent(evidence: str, operation: str = "o") -> AgentResult:
    message = pb.RepairResult(
        operation_id=operation, state=pb.REPAIR_STATE_RUNNING, evidence=evidence
    )
    return present(repair_result(message))


def test_evidence_beyond_the_contracts_bound_is_left_out() -> None:
    assert reported_by_agent("x" * MAX_EVIDENCE_BYTES).evidence == "x" * MAX_EVIDENCE_BYTES
    assert reported_by_agent("x" * (MAX_EVIDENCE_BYTES + 1)).evidence == ""
    assert reported_by_agent("\u00e9" * (MAX_EVIDENCE_BYTES // 2 + 1)).evidence == ""


async def test_the_evidence_of_an_order_is_kept_over_the_end_of_the_stream_and_of_the_attempt() -> (
    None
):
    bench = Bench(S.ACCEPTED)
    await bench.repairer.order(RESET, UNGUARDED)
    bench.orders.on_result("node-1", reported_by_agent('{"a": 1}', RESET.operation))
    bench.ends()
    bench.repairer.note_end("node-1", RESET.operation)
    assert bench.orders.collected("node-1", "q") == {RESET.operation: '{"a": 1}'}
    assert bench.orders.collected("node-1", "q2") == {}
    assert bench.orders.collected("node-2", "q") == {}


def test_the_first_and_the_latest_evidence_of_a_quarantine_are_kept_and_no_earlier_ones() -> None:
    orders = AgentOrders()

    def tell(number: int, quarantine: str) -> None:
        operation = f"{quarantine}-{number}"
        orders.begin("n1", operation, quarantine)
        orders.on_result("n1", reported_by_agent(f'{{"n": {number}}}', operation))

    for number in (1, 2, 3):
        tell(number, "q")
    tell(3, "q")  # told again
    assert orders.collected("n1", "q") == {"q-1": '{"n": 1}', "q-3": '{"n": 3}'}
    tell(1, "p")
    assert orders.collected("n1", "q") == {}
    assert orders.collected("n1", "p") == {"p-1": '{"n": 1}'}


def test_agents_can_not_fill_the_memory_with_evidence() -> None:
    orders = AgentOrders()
    orders.on_result("n1", reported_by_agent('{"unasked": 1}', "q-1"))
    orders.begin("n1", "q-1", "q")
    orders.on_result("n1", reported_by_agent('{"unasked": 1}', "q-2"))
    assert orders.collected("n1", "q") == {}
    for number in range(100):
        orders.begin(f"n{number}", "q-1", "q")
        orders.on_result(f"n{number}", reported_by_agent('{"a": 1}', "q-1"))
    kept = [number for number in range(100) if orders.collected(f"n{number}", "q")]
    assert kept == list(range(36, 100))


async def test_an_order_to_no_stream_is_certainly_not_sent() -> None:
    bench = Bench()
    bench.ends()
    answer = await bench.repairer.order(RESET, UNGUARDED)
    assert answer.state is A.NOT_SENT
    assert "not connected" in answer.text
    assert (
        await bench.repairer.order(replace(RESET, node="node-2"), UNGUARDED)
    ).state is A.NOT_SENT
    assert bench.first.ordered == []


async def test_a_stream_that_ends_before_the_answer_leaves_the_doubt_and_it_is_sent_again() -> None:
    bench = Bench()
    waiting = asyncio.create_task(bench.repairer.order(RESET, UNGUARDED))
    await asyncio.sleep(1)
    bench.ends()
    assert (await waiting).state is A.UNSURE
    bench.stream = FakeStream(bench.orders, [AgentResult("", S.SUCCEEDED)])
    assert (await bench.repairer.order(RESET, UNGUARDED)).state is A.DONE
    assert [one.operation for one in bench.stream.ordered] == [RESET.operation]


async def test_a_stream_that_is_replaced_before_the_answer_leaves_the_doubt() -> None:
    bench = Bench()
    waiting = asyncio.create_task(bench.repairer.order(RESET, UNGUARDED))
    await asyncio.sleep(1)
    bench.orders.on_detach("node-1")
    bench.stream = FakeStream(bench.orders)
    assert (await waiting).state is A.UNSURE


async def test_an_agent_that_does_not_answer_leaves_the_doubt() -> None:
    assert (await Bench().repairer.order(RESET, UNGUARDED)).state is A.UNSURE


async def test_a_result_that_comes_later_is_kept_until_the_end_is_durable() -> None:
    bench = Bench(S.ACCEPTED)
    assert (await bench.repairer.order(RESET, UNGUARDED)).state is A.TAKEN
    assert (await bench.repairer.read_outcome(RESET)).state is A.UNSURE  # not known to have failed
    bench.ends()
    again = bench.stream = FakeStream(bench.orders)
    assert (await bench.repairer.read_outcome(RESET)).state is A.UNSURE
    bench.orders.on_result("node-1", AgentResult(RESET.operation, S.SUCCEEDED, "", "reset"))
    for _ in range(2):
        assert await bench.repairer.read_outcome(RESET) == RepairAnswer(A.DONE, "reset")
    assert again.taken == [], "it would be lost with this process"
    bench.repairer.note_end("node-1", RESET.operation)
    assert again.taken == [RESET.operation]
    bench.orders.on_result("node-1", AgentResult(RESET.operation, S.SUCCEEDED))
    assert again.taken == [RESET.operation] * 2, "the agent may not have read the first"


async def test_a_result_of_an_attempt_that_has_ended_is_acknowledged_when_it_comes() -> None:
    bench = Bench(S.ACCEPTED)
    await bench.repairer.order(RESET, UNGUARDED)
    bench.repairer.note_end("node-1", RESET.operation)
    assert bench.first.taken == []
    bench.orders.on_result("node-1", AgentResult(RESET.operation, S.RUNNING))
    assert bench.first.taken == []
    bench.orders.on_result("node-1", AgentResult(RESET.operation, S.UNKNOWN))
    assert bench.first.taken == [RESET.operation]


async def test_results_of_earlier_operations_are_acknowledged_with_the_next_order() -> None:
    """Another process has written their ends, or a person has released the node."""
    bench = Bench(S.ACCEPTED)
    bench.orders.on_result("node-1", AgentResult("earlier", S.SUCCEEDED))
    await bench.repairer.order(RESET, UNGUARDED)
    assert bench.first.taken == ["earlier"]


async def test_an_end_is_not_taken_back_by_a_state_that_was_late() -> None:
    bench = Bench()
    for state in (S.SUCCEEDED, S.RUNNING):
        bench.orders.on_result("node-1", AgentResult(RESET.operation, state))
    assert (await bench.repairer.order(RESET, UNGUARDED)).state is A.DONE
    assert bench.first.ordered == [], "its end is known"
    for state in (S.UNKNOWN, S.SUCCEEDED):  # another boot has proved it
        bench.orders.on_result("node-1", AgentResult(REBOOT.operation, state))
    assert (await bench.repairer.read_outcome(REBOOT)).state is A.DONE


async def test_a_reboot_under_way_waits_for_the_node_and_a_reset_for_the_agent() -> None:
    bench = Bench(S.RUNNING)
    assert (await bench.repairer.order(REBOOT, UNGUARDED)).state is A.TAKEN
    assert (await bench.repairer.read_outcome(REBOOT)).state is A.TAKEN
    assert (await bench.repairer.read_outcome(RESET)).state is A.UNSURE


@pytest.mark.parametrize(
    ("order", "verbs", "words"),
    [
        (RESET, ("reboot",), "the node's own configuration does not allow it (repair.allow"),
        (REBOOT, (), "the agent refuses reboot: the node's own configuration"),
        (replace(RESET, gpus=()), BOTH, "no evidence of the quarantine names a GPU"),
        (replace(RESET, gpus=(GPU,) * 65), BOTH, "65 GPUs have evidence"),
        (replace(REBOOT, boot_id=""), BOTH, "does not report the node's boot id"),
    ],
)
async def test_what_no_agent_could_carry_out_fails_and_is_not_sent(
    order: RepairOrder, verbs: tuple[str, ...], words: str
) -> None:
    bench = Bench()
    bench.first.repair_verbs = verbs
    answer = await bench.repairer.order(order, UNGUARDED)
    assert answer.state is A.FAILED
    assert words in answer.text
    assert bench.first.ordered == []


async def test_a_verb_that_is_not_allowed_any_more_says_nothing_of_an_order_that_was_sent() -> None:
    bench = Bench()
    assert (await bench.repairer.order(RESET, UNGUARDED)).state is A.UNSURE
    bench.first.repair_verbs = ()
    assert (await bench.repairer.order(RESET, UNGUARDED)).state is A.UNSURE


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("in-use", "a GPU is in use: python3 (pid 7); the pods of the GPU operator hold GPUs too"),
        ("not-allowed", "the node's own configuration does not allow it"),
        ("capped", "the node has had as many"),
        ("of-a-newer-agent", "of-a-newer-agent: python3 (pid 7)"),
    ],
)
async def test_a_refusal_is_in_words_for_people(reason: str, words: str) -> None:
    bench = Bench(S.REFUSED, reason=reason, message="python3 (pid 7)")
    answer = await bench.repairer.order(RESET, UNGUARDED)
    assert answer.state is A.FAILED
    assert words in answer.text


@pytest.mark.parametrize(
    ("states", "back"), [((S.REFUSED,), True), ((S.RUNNING, S.SUCCEEDED), False), ((), False)]
)
async def test_only_what_has_not_begun_is_taken_back(
    states: tuple[OrderState, ...], *, back: bool
) -> None:
    bench = Bench(*states)
    assert await bench.repairer.cancel(RESET) is back
    assert bench.first.cancelled == [RESET.operation]
    bench.ends()
    assert await bench.repairer.cancel(replace(RESET, operation="another")) is False


async def test_what_is_kept_of_a_node_is_bounded() -> None:
    bench = Bench()
    for number in range(1000):
        bench.orders.on_result("node-1", AgentResult(f"op-{number}", S.SUCCEEDED))
        bench.orders.settle("node-1", f"other-{number}")
    assert len(bench.orders._results["node-1"]) <= 8
    assert len(bench.orders._over["node-1"]) <= 8


# -- by real streams ------------------------------------------------------------------------


@pytest.fixture
async def plain() -> AsyncIterator[Site]:
    async with site() as running:
        yield running


async def greeted(agent: Agent, *, boottime_ms: int, verbs: list[int]) -> None:
    hello = pb.Hello(
        node=agent.node, boot_id="boot-1", spool_epoch="e", agent_version="1", instance="i",
        contract_version=1, repair_verbs=verbs, boottime_ms=boottime_ms,  # type: ignore[arg-type]
    )  # fmt: skip
    await agent.send(pb.AgentMessage(hello=hello))
    await agent.expect("welcome")
    await agent.snapshot()
    await agent.expect("ack")


@pytest.mark.asyncio
async def test_an_order_goes_by_the_nodes_own_stream_with_a_deadline_of_its_clock(
    plain: Site,
) -> None:
    orders = plain.server.orders
    repairer = AgentRepairer(orders)
    async with plain.agent() as agent:
        verbs: list[int] = [pb.REPAIR_VERB_GPU_RESET, 77, pb.REPAIR_VERB_TEST]
        await greeted(agent, boottime_ms=5_000_000, verbs=verbs)
        assert (await repairer.order(REBOOT, UNGUARDED)).state is A.FAILED
        ordering = asyncio.create_task(repairer.order(RESET, UNGUARDED))
        order = await agent.expect("repair_order")
        assert (order.operation_id, order.quarantine_uid) == (RESET.operation, "q")
        assert (order.verb, order.gpu_uuids) == (pb.REPAIR_VERB_GPU_RESET, [GPU])
        assert 5_300_000 <= order.deadline_ms < 5_330_000
        result = pb.RepairResult(operation_id=RESET.operation, state=pb.REPAIR_STATE_ACCEPTED)
        await agent.send(pb.AgentMessage(repair_result=result))
        assert (await ordering).state is A.TAKEN
        result.state = pb.REPAIR_STATE_SUCCEEDED
        await agent.send(pb.AgentMessage(repair_result=result))
        await until(
            lambda: (found := orders.result_of("node-1", RESET.operation)) and found.is_final
        )
        assert (await repairer.read_outcome(RESET)).state is A.DONE
        repairer.note_end("node-1", RESET.operation)
        assert (await agent.expect("repair_result_taken")).operation_id == RESET.operation
        await agent.send(pb.AgentMessage(heartbeat=pb.Heartbeat(boottime_ms=9_000_000)))
        await agent.expect("resync")  # the heartbeat was read
        again = asyncio.create_task(repairer.order(replace(RESET, operation="q-2"), UNGUARDED))
        assert 9_300_000 <= (await agent.expect("repair_order")).deadline_ms < 9_330_000
        cancelling = asyncio.create_task(repairer.cancel(replace(RESET, operation="q-2")))
        assert (await agent.expect("cancel_repair")).operation_id == "q-2"
        await agent.call.done_writing()
        assert (await again).state is A.UNSURE
        assert await cancelling is False
    assert (await repairer.order(replace(RESET, operation="q-3"), UNGUARDED)).state is A.NOT_SENT


@pytest.mark.asyncio
async def test_an_agent_that_does_not_tell_its_clock_gets_no_order(plain: Site) -> None:
    async with plain.agent() as agent:
        await greeted(agent, boottime_ms=0, verbs=[pb.REPAIR_VERB_GPU_RESET])
        assert (await AgentRepairer(plain.server.orders).order(RESET, UNGUARDED)).state is A.FAILED


@pytest.mark.asyncio
async def test_a_result_counts_for_the_node_of_its_stream_alone(plain: Site) -> None:
    async with plain.agent("node-2") as agent:
        await greeted(agent, boottime_ms=5_000, verbs=[])
        told = pb.RepairResult(operation_id=RESET.operation, state=pb.REPAIR_STATE_SUCCEEDED)
        await agent.send(pb.AgentMessage(repair_result=told))
        await until(lambda: plain.server.orders.result_of("node-2", RESET.operation))
    assert plain.server.orders.result_of("node-1", RESET.operation) is None


def test_results_that_are_none_are_refused_or_left_out() -> None:
    assert repair_result(pb.RepairResult(operation_id="x")) is None
    assert repair_result(pb.RepairResult(state=pb.REPAIR_STATE_REFUSED)) is None
    with pytest.raises(InvalidMessage):
        repair_result(pb.RepairResult(operation_id="x\n", state=pb.REPAIR_STATE_REFUSED))
    told = repair_result(
        pb.RepairResult(
            operation_id="x", state=pb.REPAIR_STATE_FAILED, message="y" * 10**6, reason="z" * 10**6
        )
    )
    assert told is not None
    assert len(told.message) + len(told.reason) < 10_000
