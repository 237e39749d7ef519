"""The nodes in quarantine as the watch last showed them."""

import asyncio

import pytest

from aggregator.cluster.kubernetes.marked_nodes import MarkedNodes
from aggregator.cluster.kubernetes.objects import (
    Condition,
    Meta,
    NodeObject,
    NodeSpec,
    NodeStatus,
    TaintObject,
)
from aggregator.cluster.node_names import APPLIED, CONDITION, TAINT
from tests.support.present import present
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


def node(*, marked: bool = True, version: str = "5", uid: str = "u") -> NodeObject:
    ours = [TaintObject(TAINT, "NoSchedule", "gpu")] if marked else None
    notes = {APPLIED: "{}", "example.com/long": "x" * 1000} if marked else {}
    return NodeObject(
        Meta(name="n1", uid=uid, resource_version=version, annotations=notes),
        NodeSpec(unschedulable=True, taints=ours),
        NodeStatus(conditions=[Condition("Ready", "True"), Condition(CONDITION, "False", "R")]),
    )


def test_a_marked_node_is_kept_with_its_own_condition_and_no_annotation() -> None:
    nodes = MarkedNodes()
    nodes.take(node())
    found = present(nodes.find("n1", "u"))
    assert found.metadata == Meta(name="n1", uid="u", resource_version="5")
    assert found.condition(CONDITION) == Condition(CONDITION, "False", "R")
    assert found.condition("Ready") is None
    assert nodes.find("n1", "another") is None


def test_a_node_whose_marks_are_gone_is_not_kept() -> None:
    nodes = MarkedNodes()
    nodes.take(node())
    nodes.take(node(marked=False, version="6"))
    assert nodes.find("n1", "u") is None
    nodes.take(node(version="7"))
    nodes.drop("n1")
    assert nodes.find("n1", "u") is None


async def test_a_mark_that_the_watch_shows_soon_is_waited_for() -> None:
    nodes, loop = MarkedNodes(), asyncio.get_running_loop()
    loop.call_later(0.4, nodes.take, node(marked=False))
    loop.call_later(0.6, nodes.take, node())
    began = loop.time()
    found = await asyncio.gather(*(nodes.wait_for("n1", "u", within=1.0) for _ in range(2)))
    assert [one is not None and one.metadata.uid for one in found] == ["u", "u"]
    assert loop.time() - began < 0.7


async def test_a_mark_that_the_watch_does_not_show_is_waited_for_no_longer_than_asked() -> None:
    nodes, loop = MarkedNodes(), asyncio.get_running_loop()
    began = loop.time()
    assert await nodes.wait_for("n1", "u", within=1.0) is None
    assert loop.time() - began == 1.0
    nodes.take(node(uid="another"))
    assert await nodes.wait_for("n1", "u", within=1.0) is None
    assert loop.time() - began == 1.0, "the Node of this name is another one: no wait"


async def test_each_of_several_waits_lasts_until_the_mark_or_its_own_end() -> None:
    nodes, loop = MarkedNodes(), asyncio.get_running_loop()

    async def waited(after: float) -> tuple[bool, float]:
        await asyncio.sleep(after)
        began = loop.time()
        found = await nodes.wait_for("n1", "u", within=1.0)
        return found is not None, round(loop.time() - began, 3)

    given_up = asyncio.create_task(waited(0.5))
    loop.call_later(0.6, given_up.cancel)
    loop.call_later(1.2, nodes.take, node())
    found = list(await asyncio.gather(waited(0.0), waited(0.9)))
    assert found == [(False, 1.0), (True, 0.3)]
    assert given_up.cancelled()
