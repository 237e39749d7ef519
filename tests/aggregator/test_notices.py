"""``drain.notice``: workloads get one notice, time to end, and no more. Virtual time."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import ClusterError, NoticeState, Phase, Pod, Unreachable
from aggregator.jobs.notice import READY, REQUESTED, read_notice
from aggregator.jobs.settings import NoticeRules
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult
from aggregator.rfc3339 import read_time, write_time
from aggregator.workloads.notices import MOST_NOTICES
from tests.support.drains import GANG
from tests.support.memory_cluster import World, phase_of
from tests.support.notices import WITHIN, Webhook, started
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ILL = snapshot(fault("xid:119"))


async def fall_ill(replica: Replica, *nodes: str, evidence: Any = ILL) -> None:
    await until(lambda: not replica.fleet.view_lost)
    replica.agents(nodes, evidence)


def world_of(*nodes: str) -> World:
    return World.of(*nodes)


def notice(pod: Pod) -> dict[str, str]:
    found: dict[str, str] = json.loads(pod.annotations[REQUESTED])
    return found


def answer(world: World, key: str, text: str) -> None:
    pod = world.pods[key]
    there = {**pod.annotations, READY: text}
    world.pods[key] = replace(pod, annotations=there, version=world.tick())


def annotations(world: World) -> list[str]:
    return [one for one in world.writes if one.startswith("annotate")]


async def until_noted(world: World, key: str) -> dict[str, str]:
    await until(lambda: REQUESTED in world.pods[key].annotations, within=120)
    return notice(world.pods[key])


async def test_without_an_answer_the_pods_go_at_the_deadline_and_not_before() -> None:
    world = world_of("n1")
    world.add_pod("n1", "a")
    replica = started(world)
    await fall_ill(replica, "n1")
    told = await until_noted(world, "n1/a")
    assert (told["node"], told["workload"]) == ("n1", "jobs/a")
    assert "xid:119" in told["reason"]
    deadline = read_time(told["deadline"])
    # Texts of the workload itself move nothing: a later deadline, an answer to another notice.
    week = json.dumps({"id": told["id"], "deadline": "2100-01-01T00:00:00Z"})
    pod = world.pods["n1/a"]
    world.pods["n1/a"] = replace(pod, annotations={REQUESTED: week, READY: "another"})
    await asyncio.sleep(deadline - asyncio.get_running_loop().time() - 1)
    assert world.evicted == []
    [status] = world.quarantines["n1"].status.notices
    assert (status.state, status.ident) == (NoticeState.SENT, told["id"])
    blockers = world.quarantines["n1"].status.blockers
    assert "may end by itself until" in blockers[0].reason
    await until(lambda: world.evicted == ["uid-a"], within=60)
    [status] = world.quarantines["n1"].status.notices
    assert (status.state, status.message) == (NoticeState.OVER, "no answer by the deadline")
    assert len(annotations(world)) == 1


async def test_an_answer_begins_the_drain_and_a_pod_that_ends_by_itself_needs_none() -> None:
    world = world_of("n1")
    for name in ("a", "b", "c"):
        world.add_pod("n1", name)
    replica = started(world)
    await fall_ill(replica, "n1")
    told = await until_noted(world, "n1/a")
    other = await until_noted(world, "n1/b")
    assert told["id"] != other["id"]
    answer(world, "n1/b", told["id"])  # for somebody else's pod
    answer(world, "n1/a", told["id"])
    world.pods["n1/c"] = replace(world.pods["n1/c"], phase="Succeeded")
    await until(lambda: world.evicted == ["uid-a"], within=60)
    await asyncio.sleep(120)
    assert world.evicted == ["uid-a"]
    answer(world, "n1/b", other["id"])
    await until(lambda: world.evicted == ["uid-a", "uid-b"], within=60)
    world.kubelets_finish()
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=60)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("crash_at", range(2, 10))
async def test_a_process_that_dies_anywhere_leads_to_no_second_notice(
    crash_at: int, *, after: bool
) -> None:
    world = world_of("n1")
    world.add_pod("n1", "a")
    webhook = Webhook(HookAnswer(HookResult.LATER, "on it"))
    first = started(world, webhook, crash_at=crash_at, after=after)
    await fall_ill(first, "n1")
    await asyncio.sleep(60)
    before = world.quarantines["n1"].status.notices if "n1" in world.quarantines else ()
    await first.stop()
    second = started(world, webhook)
    await fall_ill(second, "n1")
    told = await until_noted(world, "n1/a")
    for known in before:
        assert known.ident == told["id"]
        assert abs(known.deadline_at - read_time(told["deadline"])) < 1.1
    at = asyncio.get_running_loop().time()
    await asyncio.sleep(read_time(told["deadline"]) - at - 1)
    assert world.evicted == []
    await until(lambda: world.evicted == ["uid-a"], within=60)
    assert len(webhook.calls) <= 1
    assert len(annotations(world)) == 1


async def test_a_webhook_is_called_also_where_the_answer_to_the_notice_s_write_is_lost() -> None:
    world, errors = world_of("n1"), [Unreachable("no answer")]
    world.add_pod("n1", "a")

    def loses(_: str) -> ClusterError | None:
        noted = any(one.status.notices for one in world.quarantines.values())
        return errors.pop() if noted and errors else None

    webhook = Webhook(HookAnswer(HookResult.LATER, "on it"))
    replica = started(world, webhook, loses=loses)
    await fall_ill(replica, "n1")
    await until_noted(world, "n1/a")
    await asyncio.sleep(60)
    assert (len(errors), len(webhook.calls)) == (0, 1)


async def test_a_gang_on_two_nodes_that_fail_together_gets_one_notice() -> None:
    world = world_of("n1", "n2", "n3")
    for node in ("n1", "n2", "n3"):
        world.add_pod(node, f"rank-{node}", labels=GANG)
    webhook = Webhook(HookAnswer(HookResult.LATER))
    replica = started(world, webhook)
    await fall_ill(replica, "n1", "n2")
    await until(lambda: len(annotations(world)) == 3, within=120)
    await asyncio.sleep(120)
    idents = {notice(pod)["id"] for pod in world.pods.values()}
    assert (len(idents), len(webhook.calls), world.evicted) == (1, 1, [])
    assert len(annotations(world)) == 3  # the leader may be on a third node
    await replica.stop()
    replica = started(world, webhook)  # the next controller asks nobody again
    await fall_ill(replica, "n1", "n2")
    await asyncio.sleep(60)
    assert (len(webhook.calls), len(annotations(world)), world.evicted) == (1, 3, [])
    answer(world, "n3/rank-n3", idents.pop())
    await until(lambda: len(world.evicted) == 2, within=60)
    assert sorted(world.evicted) == ["uid-rank-n1", "uid-rank-n2"]


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        (HookAnswer(HookResult.DONE, "saved"), False),
        (HookAnswer(HookResult.LATER), True),
        (HookAnswer(HookResult.FAILED, "HTTP 500"), True),
        (None, True),
    ],
)
async def test_a_webhook_is_called_once_and_only_its_ready_ends_the_wait(
    *, said: HookAnswer | None, waits: bool
) -> None:
    world = world_of("n1")
    world.add_pod("n1", "a")
    world.add_pod("n1", "other", namespace="elsewhere")
    world.without_notes |= {"jobs", "elsewhere"}  # no right to annotate: the webhook alone
    webhook = Webhook(said)
    replica = started(world, webhook)
    await fall_ill(replica, "n1")
    # This pod has no one to notify, so its eviction waits for no answer.
    await until(lambda: "uid-other" in world.evicted, within=60)
    await asyncio.sleep(120)
    assert ("uid-a" in world.evicted) is not waits
    assert len(webhook.calls) == 1
    body = webhook.calls[0]
    assert (body["workload"], body["pods"], body["node"]) == ("jobs/a", "jobs/a", "n1")
    await asyncio.sleep(WITHIN)
    assert sorted(world.evicted) == ["uid-a", "uid-other"]
    assert len(webhook.calls) == 1


@pytest.mark.parametrize("case", ["gone", "corrupt", "a-sites-own", "not-ready", "off", "unwanted"])
async def test_nobody_gets_a_notice_where_nothing_can_be_saved(case: str) -> None:
    world = world_of("n1")
    world.add_pod("n1", "a")
    if case == "not-ready":
        world.add_node("n1", ready=None, ready_since=-1.0)
    code = {"gone": "xid:79", "corrupt": "xid:95"}.get(case, "xid:119")
    rules = {
        "a-sites-own": NoticeRules(within=WITHIN, never_for=("xid:11?",)),
        "off": NoticeRules(),
        "unwanted": NoticeRules(within=WITHIN, namespaces=("ml-*",)),
    }.get(case)
    replica = started(world, rules=rules)
    await fall_ill(replica, "n1", evidence=snapshot(fault(code)))
    await until(lambda: world.evicted == ["uid-a"], within=60)
    assert (annotations(world), world.quarantines["n1"].status.notices) == ([], ())


@pytest.mark.parametrize("ident", ["", "\ud800", "\u202e<b>", "0" * 15, "0" * 17, "0" * 15 + "G"])
async def test_a_notice_of_a_workload_s_own_making_has_no_other_id_than_ours(ident: str) -> None:
    """What is no id could not be written to the Quarantine, and would end each round there."""
    world = world_of("n1")
    soon = write_time(asyncio.get_running_loop().time() + 300)
    text = json.dumps({"id": ident, "deadline": soon})
    world.add_pod("n1", "a", annotations={REQUESTED: text})
    replica = started(world)
    await fall_ill(replica, "n1")
    await until(lambda: phase_of(world, "n1") is Phase.DRAINING, within=120)
    await until(lambda: bool(annotations(world)), within=120)
    [status] = world.quarantines["n1"].status.notices
    assert status.ident == notice(world.pods["n1/a"])["id"] != ident


async def test_a_pod_that_joins_one_gang_after_the_other_keeps_its_deadline() -> None:
    world = world_of("n1")
    world.add_pod("n1", "a", labels={"pod-group-name": "g0"})
    replica = started(world)
    await fall_ill(replica, "n1")
    deadline = read_time((await until_noted(world, "n1/a"))["deadline"])
    for number in range(1, 6):
        await asyncio.sleep(WITHIN / 5 - 1)
        if "n1/a" not in world.pods or world.evicted:
            break
        pod = world.pods["n1/a"]
        labels = {"pod-group-name": f"g{number}"}
        world.pods["n1/a"] = replace(pod, labels=labels, version=world.tick())
    left = deadline - asyncio.get_running_loop().time()
    await until(lambda: world.evicted == ["uid-a"], within=left + 60)


async def test_a_pod_that_joins_200_gangs_takes_the_notice_of_no_other_workload() -> None:
    world = world_of("n1")
    world.add_pod("n1", "mallory", labels={"pod-group-name": "g0"})
    replica = started(world)
    await fall_ill(replica, "n1")
    first = await until_noted(world, "n1/mallory")
    for number in range(1, 200):
        pod = world.pods["n1/mallory"]
        labels = {"pod-group-name": f"g{number}"}
        world.pods["n1/mallory"] = replace(pod, labels=labels, version=world.tick())
        await asyncio.sleep(2)
    assert world.evicted == []
    world.add_pod("n1", "victim")
    await until_noted(world, "n1/victim")
    assert len(world.quarantines["n1"].status.notices) < 10
    left = read_time(first["deadline"]) - asyncio.get_running_loop().time()
    await until(lambda: world.evicted == ["uid-mallory"], within=left + 60)


async def test_of_more_workloads_than_a_quarantine_has_room_for_those_with_gpus_get_a_notice() -> (
    None
):
    world = world_of("n1")
    for number in range(MOST_NOTICES + 20):
        world.add_pod("n1", f"small-{number:03}")
    world.add_pod("n1", "victim", gpus=8)
    replica = started(world)
    await fall_ill(replica, "n1")
    await until_noted(world, "n1/victim")
    assert len(world.quarantines["n1"].status.notices) == MOST_NOTICES


async def test_a_webhook_s_answer_counts_for_each_node_of_the_gang() -> None:
    world = world_of("n1", "n2")
    for node in ("n1", "n2"):
        world.add_pod(node, f"rank-{node}", labels=GANG)
    webhook = Webhook(HookAnswer(HookResult.DONE, "saved"), after=60.0)
    replica = started(world, webhook)
    await fall_ill(replica, "n1", "n2")
    await until(lambda: len(world.evicted) == 2, within=180)
    assert len(webhook.calls) == 1
    for node in ("n1", "n2"):
        [status] = world.quarantines[node].status.notices
        assert (status.state, status.message) == (NoticeState.READY, "saved")


async def test_the_id_of_another_workload_s_notice_takes_no_answer_from_it() -> None:
    world = world_of("n1", "n2")
    world.add_pod("n1", "a")
    webhook = Webhook(HookAnswer(HookResult.DONE, "saved"), after=60.0)
    replica = started(world, webhook)
    await fall_ill(replica, "n1")
    seen = await until_noted(world, "n1/a")
    soon = write_time(asyncio.get_running_loop().time() + 20)
    text = json.dumps({"id": seen["id"], "deadline": soon})
    world.add_pod("n2", "thief", namespace="elsewhere", annotations={REQUESTED: text})
    replica.agent("n2", ILL)
    await until(lambda: world.evicted == ["uid-thief"], within=55)
    await until(lambda: "uid-a" in world.evicted, within=120)
    [status] = world.quarantines["n1"].status.notices
    assert (status.state, status.message) == (NoticeState.READY, "saved")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"id": 3}',
        '{"id": "0123456789abcdef", "deadline": 5}',
        '{"id": "x", "deadline": "2100-01-01T00:00:00Z"}',
        "9" * 9000,
    ],
)
def test_a_text_that_is_no_notice_is_none(text: str) -> None:
    world = world_of("n1")
    assert read_notice(world.add_pod("n1", "a", annotations={REQUESTED: text})) is None
