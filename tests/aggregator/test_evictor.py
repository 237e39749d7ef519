"""One drain's requests and its last words, called one by one: what is due, named, kept and told."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    Blocker,
    Evicted,
    EvictionResult,
    Guard,
    GuardRefused,
    Phase,
    Pod,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Unreachable,
)
from aggregator.cluster.words import KUBERNETES
from aggregator.events import EventKind
from aggregator.jobs.gangs import SHIPPED_KEYS, Gang, Gangs
from aggregator.quarantine.decide.drain_plan import (
    DrainMoment,
    DrainPlan,
    DrainRules,
    Leave,
    NamespaceRule,
)
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.returned_pods import slot_of
from aggregator.quarantine.drain import drainer
from aggregator.quarantine.drain.drainer import (
    STATUS_EVERY,
    UNCHANGED_EVERY,
    _after_the_drain,
    _found_again,
    _is_news,
    _late,
)
from aggregator.quarantine.drain.evictor import (
    IN_FLIGHT_PER_NODE,
    MOST_BLOCKERS,
    EvictionLanes,
    Evictor,
)
from aggregator.quarantine.drain.pod_waits import InTurn
from aggregator.quarantine.state.drain_memory import BlockedPod, DrainMemory
from tests.support.node_states import state_of
from tests.support.virtual_time import VirtualTimeLoop, play, played_by

LABEL = SHIPPED_KEYS[0]
GONE = EvictionResult(Evicted.ACCEPTED)
BLOCKED = EvictionResult(Evicted.BLOCKED, "a budget")


def pod(name: str, **changes: Any) -> Pod:
    made = Pod("jobs", name, name, "1", "Running", False, False, "Job", "j", (), node="n1")
    return replace(made, **changes)


def quarantine(**status: Any) -> Quarantine:
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", OURS)
    found = QuarantineStatus(phase=Phase.DRAINING, **status)
    return Quarantine("n1", "q", "1", spec, found, created_at=100.0)


class Bench:
    """An evictor whose cluster answers as the test says."""

    words = KUBERNETES

    def __init__(self, loop: VirtualTimeLoop, **rules: Any) -> None:
        self.loop = loop
        self.answers: dict[str, EvictionResult] = {}
        self.asked: list[tuple[str, str, bool]] = []
        self.told: list[str] = []
        self.gang_pods: list[Pod] = []
        self.listed: list[bool] = []
        self.stands = True
        self.node_state: Any = state_of("n1", loop.time, quarantine=quarantine())
        self.memory = DrainMemory("q")
        acts: Any = SimpleNamespace(
            guard=lambda _, against: Guard(lambda: self._guard(against)),
            emit_event=lambda _, kind, text, __: self.told.append(f"{kind.value}: {text}"),
        )
        cluster: Any = self
        self.evictor: Any = Evictor(
            cluster=cluster,
            acts=acts,
            clocks=Clocks(loop.time, lambda: 5000.0),
            rules=DrainRules(**rules),
            lanes=EvictionLanes(asyncio.Semaphore(9), asyncio.Semaphore(9), drains=1),
            rng=random.Random(1),
            node_state=self.node_state,
            still=lambda: self.stands,
            memory=self.memory,
        )

    async def _guard(self, against: Callable[[], str]) -> None:
        if why := against():
            raise GuardRefused(why)

    async def evict(self, pod: Pod, *, guard: Any, background: bool, dry_run: bool = False) -> Any:
        await guard()
        self.asked.append((pod.name, "dry" if dry_run else "evict", background))
        return self.answers.get(pod.name, GONE)

    async def delete_pod(self, pod: Pod, *, grace: int, guard: Any, background: bool) -> Any:
        await guard()
        self.asked.append((pod.name, f"delete {grace}", background))
        return self.answers.get(pod.name, GONE)

    async def pods_labelled(self, *_: str, background: bool) -> list[Pod]:
        self.listed.append(background)
        return self.gang_pods

    def block(self, name: str, **changes: Any) -> BlockedPod:
        given = {"reason": "x", "since": 7.0, "version": "1", "own": True, **changes}
        made = self.memory.blocked[name] = BlockedPod(**given)
        return made


def on_bench(test: Any, **rules: Any) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await test(Bench(loop, **rules))

    play(main)


pytestmark = pytest.mark.decorated(by=played_by(on_bench))


# -- requests -------------------------------------------------------------------------------------


async def test_a_pod_goes_and_one_that_may_not_is_asked_again_later_in_the_background(
    bench: Bench,
) -> None:
    plan = DrainPlan(evict=(pod("a"), pod("b")))
    bench.answers["b"] = BLOCKED
    assert await bench.evictor.evict(plan) is True
    assert bench.asked == [("a", "evict", False), ("b", "evict", False)]
    assert bench.memory.evicted[slot_of(pod("a"))] == 1
    assert bench.memory.blocked.keys() == {"b"}
    plan = DrainPlan(evict=(pod("b"),))
    assert await bench.evictor.evict(plan) is False
    assert len(bench.asked) == 2, "it is not due"
    assert bench.evictor.next_due(plan) == bench.memory.blocked["b"].retry_at
    await asyncio.sleep(2)
    bench.answers["b"] = EvictionResult(Evicted.GONE)
    assert await bench.evictor.evict(plan) is True
    assert bench.asked[2:] == [("b", "evict", True)]
    assert bench.memory.blocked == {}
    assert bench.evictor.next_due(DrainPlan()) == float("inf")
    assert bench.memory.evicted.total() == 1, "one that was gone already was not evicted"


@played_by(on_bench, namespaces=(NamespaceRule("jobs", Leave.FORCE),))
async def test_a_pod_is_deleted_at_once_when_its_time_is_over_and_once_where_that_fails(
    bench: Bench,
) -> None:
    bench.block("a", retry_at=1e9)
    plan = DrainPlan(force=(pod("a", grace=0.2),))
    bench.answers["a"] = BLOCKED
    assert await bench.evictor.evict(plan) is False
    assert bench.asked == [("a", "delete 1", False)]
    assert bench.memory.forced == {"a"}
    assert await bench.evictor.evict(plan) is False
    assert len(bench.asked) == 1, "it waits for its turn now"
    assert bench.evictor.next_due(plan) == bench.memory.blocked["a"].retry_at
    await asyncio.sleep(2)
    bench.answers["a"] = GONE
    assert await bench.evictor.evict(plan) is True
    assert bench.asked[1:] == [("a", "delete 1", True)]
    assert bench.memory.evicted[slot_of(pod("a"))] == 1
    assert [text for text in bench.told if "is deleted with a grace of 1 s" in text]


async def test_nothing_is_sent_for_a_drain_that_is_over(bench: Bench) -> None:
    bench.stands = False
    assert await bench.evictor.evict(DrainPlan(evict=(pod("a"),))) is False
    assert bench.asked == []
    bench.stands = True

    async def refuse() -> None:
        raise GuardRefused("stopped")

    bench.evictor.acts.guard = lambda _, against: Guard(refuse)
    with pytest.raises(GuardRefused):
        await bench.evictor.evict(DrainPlan(evict=(pod("a"),)))


async def test_what_came_back_is_asked_when_its_wait_is_over_and_its_wait_doubles(
    bench: Bench,
) -> None:
    back = pod("a")
    plan = DrainPlan(returned=(back,), back={back.key: "it came back"})
    await bench.evictor.evict(plan)
    assert bench.asked == []
    wait = bench.memory.returns[slot_of(back)]
    assert bench.evictor.next_due(plan) == wait.retry_at
    assert len(bench.told) == 1
    await asyncio.sleep(wait.retry_at - bench.loop.time())
    assert wait.waits == 1
    await bench.evictor.evict(plan)
    assert bench.asked == [("a", "evict", False)]
    assert wait.waits == 2
    assert len(bench.told) == 2, "its eviction; that it came back was told"


# -- gangs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gangs", "label", "stands", "found"),
    [
        (Gangs.WHOLE, LABEL, True, True),
        (Gangs.NODE, LABEL, True, False),
        (Gangs.WHOLE, "", True, False),
        (Gangs.WHOLE, LABEL, False, False),
    ],
)
def test_the_rest_of_a_gang_is_looked_for_only_where_it_goes_whole(
    gangs: Gangs, label: str, *, stands: bool, found: bool
) -> None:
    async def test(bench: Bench) -> None:
        bench.gang_pods = [
            pod("far", node="n2"),
            pod("same-time", node="n2", created_at=100.0),
            pod("here"),
            pod("nowhere", node=""),
            pod("new", node="n2", created_at=101.0),
            pod("leaving", node="n2", deleting=True),
            pod("done", node="n2", phase="Succeeded"),
            pod("daemon", node="n2", owner_kind="DaemonSet"),
        ]
        if not stands:
            bench.node_state.quarantine_view.quarantine = None
        gang = Gang("jobs", "key", "g", label)
        others = await bench.evictor._pods_on_other_nodes(gang, [pod("here")])
        assert [one.name for one in others] == (["far", "same-time"] if found else [])
        assert bench.listed == ([False] if found else [])
        if found:
            bench.block("here")
            await bench.evictor._pods_on_other_nodes(gang, [pod("here"), pod("other")])
            assert bench.listed == [False, True]
            for most, count in ((3, 2), (2, 0)):
                bench.evictor.rules = replace(bench.evictor.rules, gang_pods=most)
                assert len(await bench.evictor._pods_on_other_nodes(gang, [pod("here")])) == count

    on_bench(test, gangs=gangs)


async def test_a_gang_of_one_is_asked_without_a_rehearsal(bench: Bench) -> None:
    alone: Any = SimpleNamespace(gang=Gang("jobs", "spec", "g"), pods=(pod("a"),))
    both: Any = SimpleNamespace(gang=alone.gang, pods=(pod("b"), pod("c")))
    assert await bench.evictor._evict_group(alone) is True
    assert bench.asked == [("a", "evict", False)]
    assert await bench.evictor._evict_group(both) is True
    assert [one[1] for one in bench.asked[1:]] == ["dry", "dry", "evict", "evict"]


async def test_so_many_requests_of_one_node_are_in_flight_at_most(bench: Bench) -> None:
    within: list[int] = [0, 0]

    async def slow(*_: Any, **__: Any) -> EvictionResult:
        within[0] += 1
        within[1] = max(within)
        await asyncio.sleep(1)
        within[0] -= 1
        return GONE

    bench.evictor.cluster = SimpleNamespace(evict=slow, words=KUBERNETES)
    await bench.evictor.evict(DrainPlan(evict=tuple(pod(str(n)) for n in range(9))))
    assert within == [0, IN_FLIGHT_PER_NODE]


async def test_of_a_gang_each_says_why_it_stays(bench: Bench) -> None:
    group = SimpleNamespace(gang=Gang("jobs", "job", "g"), pods=(pod("a"), pod("b")))
    bench.answers["b"] = BLOCKED
    assert await bench.evictor._first_of_gang(group, []) is None
    blocked = bench.memory.blocked
    assert {name: one.own for name, one in blocked.items()} == {"a": False, "b": True}
    assert blocked["b"].reason == "a budget"
    assert blocked["a"].reason == "goes together with its gang: jobs/b: a budget"
    assert [one[1] for one in bench.asked] == ["dry", "dry"]
    bench.asked.clear()
    assert await bench.evictor._first_of_gang(group, []) is None
    assert bench.asked == [("b", "dry", True)], "the one that was refused decides it"
    bench.answers.clear()
    assert await bench.evictor._first_of_gang(group, []) == []


REJECTED = EvictionResult(Evicted.REJECTED, "a webhook denies")


@played_by(on_bench, gang_request_after=60.0)
async def test_a_gang_whose_dry_runs_admission_refuses_gets_its_real_requests_after_a_while(
    bench: Bench,
) -> None:
    """First the refused pods; the others follow once these have gone."""
    group = SimpleNamespace(gang=Gang("jobs", "job", "g"), pods=(pod("a"), pod("b")))
    first = bench.evictor._first_of_gang
    bench.answers["b"] = REJECTED
    assert await first(group, []) is None
    assert "the real request follows this dry run after 1m" in bench.memory.blocked["b"].reason
    assert bench.evictor.memory.due_at(group.pods) <= bench.loop.time() + 60
    await asyncio.sleep(59)
    assert await first(group, []) is None
    await asyncio.sleep(1)
    bench.answers["a"] = BLOCKED
    assert await first(group, []) is None, "a budget is in the way as well"
    assert bench.memory.rejected_since(["a", "b"]) is None, "a budget ends the wait"
    bench.answers["a"] = GONE
    assert await first(group, []) is None
    await asyncio.sleep(60)
    assert await first(group, []) == [pod("b")]


async def test_a_gang_whose_real_request_is_refused_stays_together(bench: Bench) -> None:
    a, b = (pod(name, labels={"job": "g"}) for name in "ab")
    group = SimpleNamespace(gang=Gang("jobs", "job", "g"), pods=(a, b))
    bench.answers["b"] = REJECTED
    assert await bench.evictor._first_of_gang(group, []) is None
    bench.asked.clear()
    assert await bench.evictor._all_went(group, [b]) is False
    assert bench.asked == [("b", "evict", True)]
    blocked = bench.memory.blocked
    assert blocked["a"].reason == "goes together with its gang: jobs/b: a webhook denies"
    assert blocked["b"].reason == "a webhook denies"
    assert blocked["b"].rejected_since is not None, "its next request is a real one again"


@played_by(on_bench, gang_request_after=0.0)
async def test_a_gang_gets_no_real_request_where_the_configuration_forbids_it(bench: Bench) -> None:
    group = SimpleNamespace(gang=Gang("jobs", "job", "g"), pods=(pod("a"), pod("b")))
    bench.answers["b"] = REJECTED
    for _ in range(3):
        assert await bench.evictor._first_of_gang(group, []) is None
        await asyncio.sleep(86400)
    assert "no real request follows" in bench.memory.blocked["b"].reason


# -- who is in the way ----------------------------------------------------------------------------


async def test_only_pods_that_are_to_go_and_are_named_are_in_the_way_the_longest_first(
    bench: Bench,
) -> None:
    bench.block("a", since=30.0)
    bench.block("b", since=10.0)
    bench.block("quiet", since=1.0, named=False)
    bench.block("gone", since=1.0)
    plan = DrainPlan(
        evict=(pod("a"), pod("quiet")), force=(pod("b"),), kept={"jobs/kept": "protected"}
    )
    found = bench.evictor.blockers(plan)
    assert [(one.pod, one.since) for one in found] == [
        ("jobs/b", 10.0),
        ("jobs/a", 30.0),
        ("jobs/kept", 5000.0),
    ]
    known = Blocker("jobs/kept", "protected", 3.0)
    bench.node_state.quarantine_view.quarantine = quarantine(blockers=(known,))
    assert bench.evictor.blockers(plan)[0] == known
    many = DrainPlan(kept={f"jobs/{number}": "x" for number in range(MOST_BLOCKERS + 5)})
    assert len(bench.evictor.blockers(many)) == MOST_BLOCKERS


async def test_a_pod_in_the_way_is_told_once_and_not_where_its_status_said_so(bench: Bench) -> None:
    known = Blocker("jobs/known", "x", 3.0)
    bench.node_state.quarantine_view.quarantine = quarantine(blockers=(known,))
    for key in ("jobs/known", "jobs/new", "jobs/new"):
        bench.evictor.emit_evictions(key, "x")
    assert len(bench.told) == 1


@pytest.mark.parametrize(
    ("refusals", "own", "expected"),
    [
        ((BLOCKED,), True, (True, 1.0, True)),
        ((), True, (False, 60.0, True)),
        ((EvictionResult(Evicted.MISCONFIGURED, "x"),), True, (True, 60.0, True)),
        ((EvictionResult(Evicted.FAILING, "x"),), True, (True, 1.0, False)),
        ((BLOCKED, EvictionResult(Evicted.MISCONFIGURED, "x")), False, (False, 1.0, True)),
        ((EvictionResult(Evicted.BLOCKED, "x", 20.0),), True, (True, 1.0, True)),
    ],
)
async def test_how_long_a_pod_is_left_goes_by_what_refused_it(
    bench: Bench,
    refusals: tuple[EvictionResult, ...],
    expected: tuple[bool, float, bool],
    *,
    own: bool,
) -> None:
    bench.evictor._block(pod("a"), "x", refusals, own=own)
    found = bench.memory.blocked["a"]
    most = expected[1] if refusals else 1.0
    assert (found.own, found.named) == (expected[0], expected[2])
    waits = found.retry_at - bench.loop.time()
    if refusals and refusals[0].retry_after:
        assert waits == 20.0
    else:
        assert 0.7 * most <= waits <= most
    assert bool(bench.told) == expected[2]


# -- its last words -------------------------------------------------------------------------------


def test_what_is_on_a_node_after_its_drain_is_named() -> None:
    before = QuarantineStatus(message="drained")
    assert _after_the_drain(DrainPlan(), before, KUBERNETES) == "drained"
    there = replace(before, pods_remaining=2)
    assert _after_the_drain(DrainPlan(), there, KUBERNETES) == KUBERNETES.empty_again
    plan = DrainPlan(
        evict=(pod("a"),), leaving=(pod("b"),), kept={"jobs/c": "x"}, waiting={"jobs/d": "x"}
    )
    text = _after_the_drain(plan, before, KUBERNETES)
    assert "4 pods on it again: jobs/a, jobs/b, jobs/c;" in text
    plan = DrainPlan(waiting={"jobs/d": "x"})
    assert "1 pod on it again: jobs/d;" in _after_the_drain(plan, before, KUBERNETES)
    force = DrainPlan(force=(pod("a"),))
    assert "again: jobs/a;" in _after_the_drain(force, before, KUBERNETES)


def test_pods_that_are_found_again_keep_their_time() -> None:
    read: Any = SimpleNamespace(
        plan=DrainPlan(evict=(pod("a"),), force=(pod("b"),), stuck={"jobs/c": "stuck"}), at=50.0
    )
    before = QuarantineStatus(blockers=(Blocker("jobs/b", "older", 20.0),))
    assert _found_again(read, before) == (
        Blocker("jobs/b", drainer._PLACED, 20.0),
        Blocker("jobs/a", drainer._PLACED, 50.0),
        Blocker("jobs/c", "stuck", 50.0),
    )


def test_the_time_of_a_read_alone_is_news_when_it_is_old() -> None:
    before = QuarantineStatus(pods_read_at=100.0)
    assert not _is_news(replace(before, pods_read_at=100.0 + UNCHANGED_EVERY - 1), before)
    assert _is_news(replace(before, pods_read_at=100.0 + UNCHANGED_EVERY), before)
    assert _is_news(replace(before, pods_read_at=101.0, pods_remaining=1), before)


def test_a_drain_that_is_late_says_since_when_and_what_follows() -> None:
    moment = DrainMoment(now=9000.0, began=1000.0, deadline=8200.0)
    assert _late(DrainPlan(evict=(pod("a"),)), moment, KUBERNETES) == (
        "past its deadline: 1 pod still there after 2h, no pod is deleted by force; a person must "
        "decide"
    )
    late = _late(DrainPlan(force=(pod("a"),)), moment, KUBERNETES)
    assert late.endswith("after 2h, and deleted by force")


def drainer_of(bench: Bench, writes: list[Any]) -> Any:
    async def write_status(_: Any, __: Any, status: Any) -> None:
        if isinstance(writes, list):
            writes.append(status)

    @contextlib.contextmanager
    def reporting(_: Any, kind: EventKind | None, text: str, __: Any) -> Iterator[None]:
        yield
        bench.told += [text] if kind is not None else []

    acts: Any = SimpleNamespace(
        cluster=bench,
        clocks=Clocks(bench.loop.time, lambda: 5000.0),
        write_status=write_status,
        emit_event=lambda *given: bench.told.append(given[2]),
        reporting=reporting,
    )
    made: Any = drainer.Drainer(
        acts=acts,
        rules=DrainRules(deadline=600.0, off_load_balancers=False),
        hook_runner=None,  # type: ignore[arg-type]
        lanes=bench.evictor.lanes,
        waits=InTurn(),
        rng=random.Random(1),
    )
    return made


def read_of(plan: DrainPlan, now: float = 1000.0, deadline: float = 2000.0) -> Any:
    return SimpleNamespace(plan=plan, moment=DrainMoment(now, 500.0, deadline), at=now)


async def test_progress_is_written_every_few_seconds_and_only_where_it_is_news(
    bench: Bench,
) -> None:
    writes: list[Any] = []
    made, plan = drainer_of(bench, writes), DrainPlan(evict=(pod("a"),))
    await made._progress(bench.node_state, read_of(plan), bench.evictor)
    assert [one.pods_remaining for one in writes] == [1]
    assert bench.memory.written_at == bench.loop.time()
    bench.node_state.quarantine_view.quarantine = replace(quarantine(), status=writes[0])
    two = DrainPlan(evict=(pod("a"), pod("b")))
    await asyncio.sleep(STATUS_EVERY - 0.1)
    await made._progress(bench.node_state, read_of(two), bench.evictor)
    assert len(writes) == 1
    await asyncio.sleep(0.1)
    await made._progress(bench.node_state, read_of(plan, 1010.0), bench.evictor)
    assert len(writes) == 1, "nothing has changed"
    await made._progress(bench.node_state, read_of(two), bench.evictor)
    assert len(writes) == 2
    assert bench.told == []


async def test_an_error_of_a_request_is_raised_after_the_progress_is_written(bench: Bench) -> None:
    writes: list[Any] = []
    made = drainer_of(bench, writes)

    async def fail(_: Any) -> bool:
        raise Unreachable("no answer")

    asking: Any = SimpleNamespace(
        evict=fail,
        still=lambda: bench.stands,
        memory=bench.memory,
        blockers=lambda _: (),
    )
    for stands, written in ((True, 1), (False, 0)):
        bench.stands, bench.memory.written_at = stands, float("-inf")
        writes.clear()
        with pytest.raises(Unreachable):
            await made._evict(bench.node_state, read_of(DrainPlan(evict=(pod("a"),))), asking)
        assert len(writes) == written
