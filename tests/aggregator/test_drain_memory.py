"""The memory of a drain between its rounds, reports of lost evidence, and small waits."""

import asyncio
from itertools import pairwise

from aggregator.cluster.port import Action, Pod, Quarantine, QuarantineSpec, QuarantineStatus
from aggregator.quarantine.state.drain_memory import (
    RETRY_FIRST,
    RETRY_MOST,
    BlockedPod,
    DrainMemory,
    blocked_backoff,
)
from aggregator.quarantine.state.fleet import Work
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import while_in_force
from aggregator.quarantine.state.registry import QuarantineIndex
from tests.support.draws import HighestDraw
from tests.support.virtual_time import in_virtual_time, loop_time


def pod(uid: str) -> Pod:
    return Pod(
        "default", uid, uid, "1", "Running", deleting=False, mirror=False, owner_kind="",
        owner_name="", empty_dirs=(),
    )  # fmt: skip


def refusal(memory: DrainMemory, uid: str = "a", **changes: object) -> BlockedPod:
    given: dict[str, object] = {
        "now": 100.0,
        "rng": HighestDraw(),
        "at_least": 0.0,
        "drains": 1,
        "hopeless": False,
        "passing": False,
    }
    block = BlockedPod("a budget", 7.0, "1", own=True)
    return memory.block(uid, block, **{**given, **changes})  # type: ignore[arg-type]


def waited(refused: BlockedPod) -> float:
    return refused.retry_at - 100.0


def test_the_first_retry_is_later_beside_many_drains() -> None:
    assert blocked_backoff(1).first == RETRY_FIRST
    assert blocked_backoff(8).first == 1.0
    assert blocked_backoff(80).first == 10.0


def test_each_refusal_doubles_the_wait_up_to_the_most() -> None:
    memory, rng = DrainMemory("q"), HighestDraw()
    waits = [waited(refusal(memory, rng=rng)) for _ in range(8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, RETRY_MOST, RETRY_MOST]
    assert memory.blocked["a"].tries == 8
    assert memory.blocked["a"].retry_at == 100.0 + RETRY_MOST
    assert {round(low / high, 9) for low, high in rng.ranges} == {0.7}
    many = DrainMemory("q")
    waits = [waited(refusal(many, drains=400)) for _ in range(4)]
    assert waits == [50.0, 100.0, 200.0, 200.0]


def test_a_refusal_keeps_the_time_of_the_first_and_a_pause_that_is_asked_for() -> None:
    memory = DrainMemory("q")
    refusal(memory)
    later = BlockedPod("another budget", 50.0, "2", own=False)
    found = memory.block(
        "a",
        later,
        now=100.0,
        rng=HighestDraw(),
        at_least=30.0,
        drains=1,
        hopeless=False,
        passing=False,
    )
    assert (found.since, found.reason, found.version, found.own) == (
        7.0,
        "another budget",
        "2",
        False,
    )
    assert found.retry_at == 130.0
    assert memory.blocked["a"] is found


def test_what_only_a_person_can_change_is_asked_for_seldom() -> None:
    memory = DrainMemory("q")
    assert waited(refusal(memory, hopeless=True)) == RETRY_MOST
    assert waited(refusal(DrainMemory("q"), hopeless=True, drains=400)) == 200.0


def test_a_webhook_that_fails_is_named_from_its_third_failure_on() -> None:
    memory = DrainMemory("q")
    assert [refusal(memory, passing=True).named for _ in range(4)] == [False, False, True, True]
    assert refusal(DrainMemory("q")).named


def test_a_pod_that_is_gone_is_forgotten_and_one_that_changed_is_asked_soon() -> None:
    memory, rng = DrainMemory("q"), HighestDraw()
    for uid in ("a", "b", "c"):
        refusal(memory, uid, hopeless=True)  # until 160
    refusal(memory, "d")  # until 101
    memory.keep_only({"a": "1", "b": "2", "d": "2"}, 110.0, rng)
    assert {uid: one.retry_at for uid, one in memory.blocked.items()} == {
        "a": 160.0,
        "b": 125.0,
        "d": 101.0,
    }
    assert memory.blocked["b"].version == "2"
    assert set(rng.ranges) == {(7.5, 15.0)}
    memory.keep_only({"a": "1", "b": "2", "d": "2"}, 111.0, rng)
    assert len(rng.ranges) == 2, "it has not changed since"


def test_pods_that_go_together_wait_for_the_last_of_them() -> None:
    memory = DrainMemory("q")
    refusal(memory, "a")
    refusal(memory, "b", hopeless=True)
    assert memory.due_at([pod("a"), pod("b"), pod("c")]) == 160.0
    assert memory.due_at([pod("c")]) == float("-inf")


def test_a_pod_that_came_back_is_asked_again_after_a_wait_that_doubles() -> None:
    memory, rng = DrainMemory("q"), HighestDraw()
    memory.note_return("a", 0.0, rng)
    assert memory.returns["a"].retry_at == 300.0
    memory.note_return("a", 50.0, rng)
    assert memory.returns["a"].retry_at == 300.0, "it is known"
    memory.note_retried(["a", "unknown"], 299.0, rng)
    assert memory.returns["a"].retry_at == 300.0, "it was not due"
    due = [300.0]
    for _ in range(6):
        memory.note_retried(["a"], due[-1], rng)
        due.append(memory.returns["a"].retry_at)
    waits = [later - earlier for earlier, later in pairwise(due)]
    assert waits == [600.0, 1200.0, 2400.0, 3600.0, 3600.0, 3600.0]
    assert {round(low / high, 9) for low, high in rng.ranges} == {0.7}


# -- lost evidence --------------------------------------------------------------------------------


# -- waiting --------------------------------------------------------------------------------------


@in_virtual_time
async def test_whoever_waits_for_news_of_a_node_returns_when_it_comes_or_is_there() -> None:
    news = Work()
    assert [news.is_queued] == [False]
    news.queue()
    assert news.is_queued
    await asyncio.wait_for(news.until_queued(), 1)
    news.take_queued()
    assert [news.is_queued] == [False]
    waits = news.until_queued()
    await asyncio.sleep(1)
    assert not waits.done()
    news.queue()
    await asyncio.wait_for(waits, 1)
    news.take_queued()
    waits = news.until_queued()
    await asyncio.sleep(1)
    assert not waits.done(), "it was cleared after the first wait"


@in_virtual_time
async def test_a_wait_ends_with_what_it_is_for_or_as_soon_as_news_void_it() -> None:
    node_state, asked, cancelled = NodeState("n1", now=loop_time), [], []
    stands = True

    def still() -> bool:
        asked.append(loop_time())
        return stands

    async def work() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            cancelled.append("work")
            raise
        return "done"

    begun = loop_time()
    waits = asyncio.ensure_future(while_in_force(node_state, work(), still))
    await asyncio.sleep(10)
    node_state.work.queue()
    await asyncio.sleep(10)
    assert len(asked) == 1
    assert [node_state.work.is_queued] == [False], "the news were taken"
    assert await waits == "done"
    assert loop_time() - begun == 100.0
    assert cancelled == []
    waits = asyncio.ensure_future(while_in_force(node_state, work(), still))
    await asyncio.sleep(10)
    stands = False
    node_state.work.queue()
    assert await waits is None
    assert loop_time() - begun == 110.0
    assert node_state.work.is_queued, "the next waiter needs it"
    assert cancelled == ["work"]


# -- the quarantines of the whole cluster ---------------------------------------------------------


def quarantine(node: str, uid: str, generation: int = 0, foreign: str = "") -> Quarantine:
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", record_generation=generation)
    return Quarantine(node, uid, "1", spec, QuarantineStatus(), foreign=foreign)


def test_the_index_has_our_quarantines_and_the_newest_generation_of_them() -> None:
    index = QuarantineIndex()
    assert not index.whole
    assert index.newest == 0
    index.seen(quarantine("n1", "a", 3))
    index.seen(quarantine("n2", "b", 7))
    index.seen(quarantine("n3", "c", 9, foreign="elsewhere"))
    assert [one.uid for one in index.quarantines()] == ["a", "b"]
    assert index.newest == 7
    index.gone("n2", "older")
    index.gone("unknown", "x")
    assert index.newest == 7
    index.gone("n2", "b")
    assert [one.uid for one in index.quarantines()] == ["a"]
