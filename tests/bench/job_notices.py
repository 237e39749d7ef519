"""Workloads with ``drain.notice`` over controllers that die: second notices, early ends.

Each round is a node with workloads that answer after a save, answer never, or end; its controller
is killed after a drawn number of calls, and another one goes on. A workload that answers parks at
the step that it has saved, so each step after its save, and before its eviction, is lost.
"""

import asyncio
import json
import random
from dataclasses import dataclass, replace

from aggregator.cluster.port import NoticeState
from aggregator.jobs.notice import READY, REQUESTED
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult
from aggregator.rfc3339 import read_time
from tests.support import virtual_time
from tests.support.memory_cluster import World
from tests.support.notices import WITHIN, Webhook, started
from tests.support.replica import Replica, fault, snapshot
from tests.support.waiting import until

_STEP = 30.0
_WORKLOADS = 4


@dataclass
class NoticeTally:
    """The sums over all rounds."""

    notices: int = 0
    asked_twice: int = 0
    early: int = 0
    steps_lost: int = 0
    answered: int = 0


@dataclass
class _Workload:
    """``save`` seconds after its notice it answers; None: never. Times are the loop's."""

    key: str
    save: float | None
    noticed_at: float = 0.0
    answered_at: float = 0.0
    deadline: float = 0.0
    steps: int = 0
    saved_steps: int = 0


def play(rounds: int, seed: int) -> NoticeTally:
    tally = NoticeTally()
    for number in range(rounds):
        rng = random.Random(f"notices {seed} {number}")
        virtual_time.run(_round(rng, tally))
    return tally


async def _round(rng: random.Random, tally: NoticeTally) -> None:
    world = World.of("n1")
    workloads = []
    for number in range(_WORKLOADS):
        world.add_pod("n1", f"w{number}")
        save = None if rng.random() < 0.3 else rng.uniform(5, WITHIN / 2)
        workloads.append(_Workload(f"n1/w{number}", save))
    webhook = Webhook(HookAnswer(HookResult.LATER))
    running = [asyncio.create_task(_run(world, one, tally)) for one in workloads]
    replica = started(world, webhook, crash_at=rng.randrange(8, 60))
    await _fall_ill(replica)
    for _ in range(3):
        await asyncio.sleep(rng.uniform(1, WITHIN / 4))
        await replica.stop()
        replica = started(world, webhook)
        await _fall_ill(replica)
    await until(lambda: len(world.evicted) == _WORKLOADS, within=4 * WITHIN)
    await replica.stop()
    for task in running:
        task.cancel()
    called = [call["workload"] for call in webhook.calls]
    annotated = [one for one in world.writes if one.startswith("annotate")]
    tally.asked_twice += len(called) - len(set(called)) + len(annotated) - len(set(annotated))
    notices = world.quarantines["n1"].status.notices
    tally.notices += len(notices)
    tally.answered += sum(one.state is NoticeState.READY for one in notices)


async def _fall_ill(replica: Replica) -> None:
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", snapshot(fault("xid:119")))


async def _run(world: World, one: _Workload, tally: NoticeTally) -> None:
    """Steps until its eviction; saves and parks after its notice."""
    now = asyncio.get_running_loop().time
    stepped_at = now()
    while True:
        await asyncio.sleep(1)
        pod = world.pods.get(one.key)
        if pod is None or pod.uid in world.evicted:
            if not one.noticed_at or (not one.answered_at and now() < one.deadline - 1):
                tally.early += 1
            if one.answered_at:
                tally.steps_lost += one.steps - one.saved_steps
            return
        if not one.noticed_at and REQUESTED in pod.annotations:
            one.noticed_at = now()
            one.deadline = read_time(json.loads(pod.annotations[REQUESTED])["deadline"])
        due = one.noticed_at and one.save is not None and now() >= one.noticed_at + one.save
        if due and not one.answered_at:
            one.answered_at, one.saved_steps = now(), one.steps
            ident = json.loads(pod.annotations[REQUESTED])["id"]
            there = {**pod.annotations, READY: ident}
            world.pods[one.key] = replace(pod, annotations=there, version=world.tick())
        if not one.answered_at and now() >= stepped_at + _STEP:
            one.steps, stepped_at = one.steps + 1, now()
