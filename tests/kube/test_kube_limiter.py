"""The limiter: priorities over one bucket, on a clock of the test's own."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes import limiter as kube_limiter
from aggregator.cluster.kubernetes.limiter import (
    BEGINS_FIRST,
    FAIR,
    HURRY,
    TRAILS_FOR,
    URGENT_PAUSE,
    Limiter,
    Priority,
    TokenBucket,
)
from aggregator.cluster.port import Unreachable
from tests.support import virtual_time


class FakeTime:
    """A clock that advances when the code under test sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        # Two turns, as others that were woken at the same time have had theirs by then.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.now += seconds


def limiter(
    time: FakeTime, *, qps: float = 10.0, burst: int = 1, at_once: int | None = None
) -> Limiter:
    return Limiter(qps=qps, burst=burst, at_once=at_once, clock=time.clock, sleep=time.sleep)


@given(
    rate=st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    steps=st.lists(st.floats(-1, 20), max_size=60),
)
def test_no_stretch_of_time_sees_more_than_burst_and_rate_allow(
    rate: float, burst: int, steps: list[float]
) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    now, latest = 0.0, 0.0
    taken: list[float] = []
    for step in steps:
        now += step  # steps back too: clocks do
        latest = max(latest, now)
        while bucket.take(now):
            taken.append(latest)
    for first, since in enumerate(taken):
        for last in range(first, len(taken)):
            allowed = burst + rate * (taken[last] - since)
            assert last - first + 1 <= allowed + 1e-3


@given(rate=st.floats(0.1, 1000), burst=st.integers(1, 5), takes=st.integers(1, 20))
def test_waiting_as_long_as_told_is_enough(rate: float, burst: int, takes: int) -> None:
    bucket, now = TokenBucket(rate, burst, 1e6), 1e6
    for _ in range(takes):
        now += bucket.wait(now)
        assert bucket.take(now)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        TokenBucket(rate, burst, 0.0)


async def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    time = FakeTime()
    limited = limiter(time, qps=10, burst=5)
    for _ in range(5):
        await limited.acquire(Priority.EVENT)
    assert time.now == 1000.0
    for _ in range(20):
        await limited.acquire(Priority.EVENT)
    assert time.now == pytest.approx(1002.0, abs=0.01)


async def test_the_more_urgent_go_first_and_equals_in_the_order_they_came() -> None:
    time = FakeTime()
    limited = limiter(time)
    await limited.acquire(Priority.EVENT)  # the bucket is empty
    went: list[tuple[Priority, int]] = []

    async def one(lane: Priority, turn: int) -> None:
        await limited.acquire(lane)
        went.append((lane, turn))

    lanes = [
        Priority.EVENT,
        Priority.STATUS,
        Priority.BACKGROUND,
        Priority.PHASE,
        Priority.EVICTION,
        Priority.READ,
        Priority.CREATE,
        Priority.TAINT,
        Priority.RECORD,
        Priority.RELEASE,
    ]
    await asyncio.gather(*(one(lane, turn) for lane in lanes for turn in (1, 2)))
    assert went == [(lane, turn) for lane in reversed(lanes) for turn in (1, 2)]


async def test_what_trails_goes_in_the_order_of_taints_and_of_a_burst_the_phases_first() -> None:
    time = FakeTime()
    limited = limiter(time, qps=1e6, burst=1000, at_once=1)
    burst, later = ("n1", "n2", "n3"), "n4"
    for node in (*burst, later):
        time.now += 2 * BEGINS_FIRST * (node == later)
        async with limited.turn(Priority.TAINT, node):
            pass
        time.now += 0.1 * BEGINS_FIRST
    went: list[tuple[str, Priority]] = []

    async def one(node: str, lane: Priority) -> None:
        async with limited.turn(lane, node):
            went.append((node, lane))

    await limited.acquire(Priority.READ)
    trailing = (Priority.PHASE, Priority.STATUS, Priority.EVENT)
    mixed = [(node, lane) for lane in trailing for node in (later, "n3", "n1", "n2")]
    others = [("", Priority.STATUS), ("n5", Priority.STATUS), ("", Priority.PHASE)]
    urgent = [("n3", Priority.EVICTION), ("n5", Priority.TAINT)]
    begun = [asyncio.create_task(one(*each)) for each in (*mixed, *others, *urgent)]
    await settled()
    limited.release(Priority.READ)
    await asyncio.gather(*begun)
    assert went == [
        ("n5", Priority.TAINT),
        ("n3", Priority.EVICTION),
        ("", Priority.PHASE),
        *((node, Priority.PHASE) for node in burst),
        *((node, lane) for node in burst for lane in trailing[1:]),
        *((later, lane) for lane in trailing),
        # They came before the taint of their node.
        ("", Priority.STATUS),
        ("n5", Priority.STATUS),
    ]


async def test_what_comes_long_after_the_taint_has_the_priority_of_its_kind() -> None:
    time = FakeTime()
    limited = limiter(time, qps=1e6, burst=1000, at_once=1)
    async with limited.turn(Priority.TAINT, "n1"):
        pass
    time.now += TRAILS_FOR
    flights = Flights(limited)
    await flights.ask("under way", Priority.READ)
    await flights.ask("late", Priority.EVENT, "n1")
    await flights.ask("background", Priority.BACKGROUND)
    for name in ("under way", "background", "late"):
        await flights.end(name)
    assert flights.began == ["under way", "background", "late"]


async def test_the_order_of_taints_is_kept_for_a_bounded_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kube_limiter, "_MOST_TAINTED", 2)
    time = FakeTime()
    limited = limiter(time, qps=1e6, burst=1000, at_once=1)
    for node in ("n1", "n2", "n3", "n2"):
        async with limited.turn(Priority.TAINT, node):
            time.now += 0.001
    flights = Flights(limited)
    await flights.ask("under way", Priority.READ)
    for node in ("n1", "n2", "n3"):
        await flights.ask(node, Priority.STATUS, node)
    for name in ("under way", "n3", "n2", "n1"):
        await flights.end(name)
    assert flights.began == ["under way", "n3", "n2", "n1"]


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    time = FakeTime()
    limited = limiter(time)
    await limited.acquire(Priority.TAINT)
    waiting = asyncio.create_task(limited.acquire(Priority.TAINT))
    await asyncio.sleep(0)
    time.now += 0.1  # a token is there, and it is spoken for
    late = asyncio.create_task(limited.acquire(Priority.TAINT))
    await waiting
    assert not late.done()
    await late


async def test_a_lease_waits_for_nobody() -> None:
    time = FakeTime()
    limited = limiter(time)
    await limited.acquire(Priority.EVENT)
    limited.pause(3600)
    await limited.acquire(Priority.LEASE)
    assert time.now == 1000.0


async def test_a_pause_holds_everybody_for_as_long_as_the_server_asked() -> None:
    time = FakeTime()
    limited = limiter(time, burst=10)
    limited.pause(4)
    limited.pause(2)  # a shorter pause does not shorten it
    await limited.acquire(Priority.RELEASE)
    assert time.now == pytest.approx(1004.0)


async def test_a_long_pause_holds_evictions_for_all_of_it_and_a_release_for_seconds() -> None:
    time = FakeTime()
    limited = limiter(time, burst=10, at_once=32)
    limited.pause(60)
    went: dict[Priority, float] = {}

    async def one(lane: Priority) -> None:
        await limited.acquire(lane)
        went[lane] = time.now - 1000.0
        limited.release(lane)

    lanes = [
        Priority.EVENT,
        Priority.EVICTION,
        Priority.BACKGROUND,
        Priority.READ,
        Priority.TAINT,
        Priority.RELEASE,
    ]
    await asyncio.gather(*map(one, lanes))
    for lane in lanes:
        assert went[lane] == pytest.approx(60.0 if lane.trails else URGENT_PAUSE, abs=0.2)


async def test_one_that_gives_up_takes_no_turn() -> None:
    time = FakeTime()
    limited = limiter(time)
    await limited.acquire(Priority.TAINT)
    gone = asyncio.create_task(limited.acquire(Priority.RELEASE))
    stays = asyncio.create_task(limited.acquire(Priority.EVENT))
    await asyncio.sleep(0)
    assert limited.waiting == 2
    gone.cancel()
    await stays
    assert time.now == pytest.approx(1000.1, abs=0.001)
    assert limited.waiting == 0


async def test_closing_ends_the_waiting() -> None:
    time = FakeTime()
    limited = limiter(time)
    limited.pause(3600)
    waiting = asyncio.create_task(limited.acquire(Priority.TAINT))
    await asyncio.sleep(0)
    limited.close()
    with pytest.raises(Unreachable, match="closed"):
        await waiting


class Flights:
    """Requests that are under way until the test ends them; ``began`` in the order they went."""

    def __init__(self, limited: Limiter) -> None:
        self._limited = limited
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(
        self, name: str, lane: Priority, node: str = "", *, is_list: bool = False
    ) -> "asyncio.Task[None]":
        async def fly() -> None:
            async with self._limited.turn(lane, node, is_list=is_list):
                self.began.append(name)
                await self._ends[name].wait()

        self._ends[name] = asyncio.Event()
        self._tasks.append(asyncio.create_task(fly()))
        await settled()
        return self._tasks[-1]

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_so_many_are_under_way_and_the_most_urgent_is_next() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=1000, at_once=2))
    for name, lane in (
        ("a", Priority.EVENT),
        ("b", Priority.EVENT),
        ("c", Priority.EVENT),
        ("d", Priority.TAINT),
    ):
        await flights.ask(name, lane)
    assert flights.began == ["a", "b"]
    await flights.end("b")
    assert flights.began == ["a", "b", "d"]
    await flights.end("a")
    await flights.end("d")
    assert flights.began == ["a", "b", "d", "c"]
    await flights.end("c")


@pytest.mark.parametrize("lane", [Priority.TAINT, Priority.CREATE])
async def test_what_trails_has_few_places_beside_either_request_before_a_taint(
    lane: Priority,
) -> None:
    time = FakeTime()
    flights = Flights(limiter(time, qps=1e6, burst=1000, at_once=16))
    await flights.ask("before a taint", lane)
    await flights.ask("r1", Priority.STATUS)
    await flights.ask("r2", Priority.STATUS)
    assert flights.began == ["before a taint", "r1"]
    await flights.end("before a taint")
    assert flights.began == ["before a taint", "r1", "r2"]
    assert time.now == pytest.approx(1000.0 + HURRY, abs=0.001)  # the next may be on its way
    await flights.end("r1")
    await flights.end("r2")


async def test_nodes_of_a_storm_are_tainted_one_after_the_other_and_not_all_at_its_end() -> None:
    """The rate allows a request each tenth of a second, and each node needs two."""
    time = FakeTime()
    limited = limiter(time, qps=10)
    tainted: list[float] = []

    async def one(number: int) -> None:
        await limited.acquire(Priority.CREATE)
        await limited.acquire(Priority.TAINT, f"n{number}")
        tainted.append(time.now - 1000.0)

    await asyncio.gather(*map(one, range(50)))
    assert tainted == pytest.approx([0.1 + 0.2 * number for number in range(50)], abs=0.15)


async def test_lists_take_no_place_of_other_requests_and_others_none_of_theirs() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=1000, at_once=2))
    for name in ("l1", "l2", "l3"):
        await flights.ask(name, Priority.PHASE, is_list=True)
    for name in ("r1", "r2", "r3"):
        await flights.ask(name, Priority.STATUS)
    assert flights.began == ["l1", "l2", "r1", "r2"]
    await flights.end("r1")
    await flights.end("l1")
    assert flights.began == ["l1", "l2", "r1", "r2", "r3", "l3"]
    for name in ("l2", "l3", "r2", "r3"):
        await flights.end(name)


async def test_a_list_without_a_place_holds_up_no_other_request_of_its_priority() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=1000, at_once=1))
    for name in ("l1", "l2"):
        await flights.ask(name, Priority.STATUS, is_list=True)
    for name in ("r1", "r2"):
        await flights.ask(name, Priority.STATUS)
    assert flights.began == ["l1", "r1"]
    await flights.end("r1")
    assert flights.began == ["l1", "r1", "r2"]
    await flights.end("l1")
    assert flights.began == ["l1", "r1", "r2", "l2"]
    for name in ("r2", "l2"):
        await flights.end(name)


async def test_lists_and_others_of_one_priority_go_in_the_order_they_came() -> None:
    time = FakeTime()
    limited = limiter(time, at_once=100)
    await limited.acquire(Priority.EVENT)  # the bucket is empty
    went: list[int] = []

    async def one(turn: int) -> None:
        await limited.acquire(Priority.STATUS, is_list=turn % 3 == 0)
        went.append(turn)

    await asyncio.gather(*map(one, range(20)))
    assert went == list(range(20))


async def test_the_request_that_has_waited_longest_gets_no_place_above_the_bound() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=10_000, at_once=1))
    for name in ("l1", "l2"):
        await flights.ask(name, Priority.EVENT, is_list=True)
    for number in range(2 * FAIR):
        await flights.ask(f"r{number}", Priority.STATUS)
    for number in range(2 * FAIR):
        await flights.end(f"r{number}")
    assert flights.began == ["l1", *(f"r{number}" for number in range(2 * FAIR))]
    await flights.end("l1")
    assert flights.began[-1] == "l2"
    await flights.end("l2")


async def test_lists_have_few_places_while_nodes_are_on_their_way_to_their_taint() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=1000, at_once=16))
    await flights.ask("taint", Priority.TAINT)
    for name in ("l1", "l2"):
        await flights.ask(name, Priority.PHASE, is_list=True)
    for name in ("r1", "r2"):
        await flights.ask(name, Priority.STATUS)
    assert flights.began == ["taint", "l1", "r1"]
    await flights.end("l1")
    assert flights.began == ["taint", "l1", "r1", "l2"]
    await flights.end("r1")
    assert flights.began == ["taint", "l1", "r1", "l2", "r2"]
    for name in ("l2", "r2", "taint"):
        await flights.end(name)


async def test_lists_that_trail_do_not_starve_what_trails_without_one() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=10_000, at_once=1))
    await flights.ask("t0", Priority.TAINT)
    await flights.ask("l0", Priority.PHASE, is_list=True)
    await flights.ask("waits", Priority.EVENT)
    for number in range(1, FAIR + 1):
        await flights.ask(f"l{number}", Priority.PHASE, is_list=True)
        await flights.end(f"l{number - 1}")
        await flights.ask(f"t{number}", Priority.TAINT)
        await flights.end(f"t{number - 1}")
    assert flights.began[-1] == "waits"
    for name in ("waits", f"l{FAIR}", f"t{FAIR}"):
        await flights.end(name)


@pytest.mark.parametrize(
    ("waits", "lists"),
    [
        (Priority.EVENT, Priority.READ),
        (Priority.EVENT, Priority.EVICTION),
        (Priority.READ, Priority.READ),
    ],
)
async def test_lists_that_go_do_not_starve_a_request_that_waits_for_a_place_of_others(
    waits: Priority, lists: Priority
) -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=10_000, at_once=1))
    await flights.ask("t0", Priority.TAINT)
    await flights.ask("waits", waits)
    for number in range(1, FAIR + 1):
        await flights.ask(f"t{number}", Priority.TAINT)
        await flights.ask(f"l{number}", lists, is_list=True)
        await flights.end(f"l{number}")
        await flights.end(f"t{number - 1}")
    assert flights.began[-1] == "waits"
    for name in ("waits", f"t{FAIR}"):
        await flights.end(name)


async def test_taints_that_go_do_not_starve_one_that_waits_for_a_place_of_what_trails() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=10_000, at_once=2))
    await flights.ask("t0", Priority.TAINT)
    await flights.ask("p0", Priority.PHASE)
    await flights.ask("waits", Priority.EVENT)
    for number in range(1, FAIR + 1):
        await flights.ask(f"p{number}", Priority.PHASE)
        await flights.end(f"p{number - 1}")
        if flights.began[-1] == "waits":
            break
        await flights.ask(f"t{number}", Priority.TAINT)
        await flights.end(f"t{number - 1}")
    assert number == FAIR
    assert flights.began[-1] == "waits"
    for name in ("waits", f"p{FAIR}", f"t{FAIR - 1}"):
        await flights.end(name)


@pytest.mark.parametrize("lane", [Priority.TAINT, Priority.CREATE])
async def test_a_list_goes_when_the_last_that_was_on_its_way_to_a_taint_gives_up(
    lane: Priority,
) -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=1000, at_once=2))
    for name in ("r1", "r2"):
        await flights.ask(name, Priority.READ)
    taint = await flights.ask("taint", lane)
    for name in ("l1", "l2"):
        await flights.ask(name, Priority.PHASE, is_list=True)
    assert flights.began == ["r1", "r2", "l1"]
    taint.cancel()
    await settled()
    assert flights.began == ["r1", "r2", "l1", "l2"]
    for name in ("r1", "r2", "l1", "l2"):
        await flights.end(name)


async def test_a_release_waits_for_none_of_those_under_way() -> None:
    flights = Flights(limiter(FakeTime(), qps=1e6, burst=1000, at_once=1))
    await flights.ask("hangs", Priority.TAINT)
    await flights.ask("waits", Priority.TAINT)
    await flights.ask("release", Priority.RELEASE)
    await flights.ask("another", Priority.RELEASE)
    assert flights.began == ["hangs", "release", "another"]
    await flights.end("release")
    await flights.end("another")
    assert flights.began == ["hangs", "release", "another"]  # above the bound, and gave no room
    await flights.end("hangs")
    assert flights.began[-1] == "waits"
    await flights.end("waits")


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("turns", [1, 2, 3])  # after two it is let go, and has not heard of it
async def test_one_that_gives_up_waiting_just_let_go_or_under_way_leaves_its_room(
    turns: int, *, is_list: bool
) -> None:
    limited = limiter(FakeTime(), qps=1e6, burst=1000, at_once=1)
    flights = Flights(limited)
    first = await flights.ask("first", Priority.READ, is_list=is_list)
    second = await flights.ask("second", Priority.READ, is_list=is_list)
    first.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    second.cancel()
    await settled()
    await flights.ask("third", Priority.READ, is_list=is_list)
    assert flights.began[-1] == "third"
    await flights.end("third")


class Storm:
    """Nodes whose taint is due, and the requests that trail behind each, in virtual time.

    An answer takes a millisecond for each request under way, because they share the server. Between
    two of its requests a node's turn is 10 ms away, because its sender is busy: so for moments no
    urgent request waits.
    """

    def __init__(self, loop: virtual_time.VirtualTimeLoop, *, qps: float = 1e6) -> None:
        self.limited = Limiter(qps=qps, burst=10, at_once=16, clock=loop.time)
        self.now = loop.time
        self.done: list[tuple[float, Priority]] = []
        self.begun = loop.time()
        self.under_way = 0

    async def request(self, lane: Priority, *, is_list: bool = False) -> None:
        async with self.limited.turn(lane, is_list=is_list):
            self.under_way += 1
            await asyncio.sleep(0.001 * self.under_way)
            self.under_way -= 1
        self.done.append((self.now() - self.begun, lane))

    async def node(self) -> None:
        await self.request(Priority.READ)
        await asyncio.sleep(0.01)
        await self.request(Priority.TAINT)
        await asyncio.sleep(0.01)
        await self.request(Priority.TAINT)

    async def nodes(self, count: int) -> None:
        """One after the other, for ever so long."""
        for _ in range(count):
            await self.node()

    def so_many(self, *, until: float) -> Counter[str]:
        return Counter(
            "trails" if lane.trails else "urgent" for at, lane in self.done if at <= until
        )


def test_what_trails_takes_few_places_while_nodes_are_on_their_way_to_their_taint() -> None:
    async def test(loop: virtual_time.VirtualTimeLoop) -> None:
        storm = Storm(loop)
        trailing = [asyncio.create_task(storm.request(Priority.PHASE)) for _ in range(1000)]
        storming = [asyncio.create_task(storm.nodes(5)) for _ in range(8)]
        await asyncio.gather(*storming)
        took = loop.time() - storm.begun
        went = storm.so_many(until=took)
        assert went["urgent"] == 8 * 5 * 3
        assert 3 <= went["trails"] < went["urgent"]  # with all places it would be twice as many
        assert took < 0.27
        ended = loop.time()
        await asyncio.gather(*trailing)
        assert loop.time() - ended < HURRY + 1000 * 0.001 + 0.1  # all places, a moment later

    virtual_time.play(test)


@pytest.mark.parametrize("qps", [100.0, 1e6])
def test_a_storm_without_an_end_starves_nobody(qps: float) -> None:
    async def test(loop: virtual_time.VirtualTimeLoop) -> None:
        storm = Storm(loop, qps=qps)
        storming = [asyncio.create_task(storm.nodes(10_000)) for _ in range(200)]
        await asyncio.sleep(0.2)
        late = [lane for lane in Priority if lane.trails]
        waiting = [
            asyncio.create_task(storm.request(lane, is_list=number % 2 == 0))
            for lane in late
            for number in range(10)
        ]
        await asyncio.sleep(0.02)
        release = asyncio.create_task(storm.request(Priority.RELEASE))
        asked = loop.time()
        await asyncio.wait([release])
        assert loop.time() - asked < 0.03  # its own time, and the next token
        await asyncio.wait(waiting, timeout=60)
        assert all(one.done() for one in waiting)
        # Events too: the request that has waited longest is next, not the most urgent of those that
        # trail.
        went = [lane for _, lane in storm.done if lane.trails]
        assert sorted(went) == sorted(late * 10)
        counted = storm.so_many(until=loop.time())
        assert counted["urgent"] > 5 * counted["trails"]
        for one in storming:
            one.cancel()
        await asyncio.wait(storming)

    virtual_time.play(test)


async def test_many_requests_about_a_node_do_not_starve_the_phase_of_a_later_one() -> None:
    time = FakeTime()
    limited = limiter(time, qps=10.0, burst=1)
    for node in ("n1", "n2"):
        async with limited.turn(Priority.TAINT, node):
            pass
    went: list[str] = []

    async def one(node: str, lane: Priority) -> None:
        async with limited.turn(lane, node):
            went.append(node)
            if node == "n1" and len(went) < 3 * FAIR:
                begun.append(asyncio.create_task(one("n1", Priority.STATUS)))

    begun = [asyncio.create_task(one("n1", Priority.STATUS)) for _ in range(3)]
    await asyncio.sleep(0)
    begun.append(asyncio.create_task(one("n2", Priority.PHASE)))
    while not all(each.done() for each in begun):
        await asyncio.gather(*begun)
    assert went.index("n2") <= FAIR + 3  # three came before it
