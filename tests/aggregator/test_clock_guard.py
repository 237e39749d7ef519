"""A wall clock that jumps: when it is doubted, and what waits then. In virtual time."""

import asyncio
import json
import logging
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aggregator.clock import BOUND, EVEN_FOR, ClockGuard, Clocks, watch
from aggregator.cluster.port import HookState, Phase
from aggregator.demo.ports import free_port
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.decide.operator_requests import EXEMPT, exemption
from aggregator.quarantine.decide.release_checks import RELEASE_HISTORY
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules
from tests.aggregator.test_drain_hooks import PlayedHook
from tests.controlplane.waiting import wait_until
from tests.support import virtual_time
from tests.support.drains import ILL, begun, drained, status, world_with
from tests.support.memory_cluster import World
from tests.support.replica import OPEN, SETTINGS, Replica
from tests.support.virtual_replica import Running
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

HOUR, DAY = 3600.0, 86400.0


class Hands:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now, self.wall = 1000.0, 1_700_000_000.0
        self.clocks = Clocks(lambda: self.now, lambda: self.wall)
        assert self.clocks.doubt() == ""

    def passes(self, seconds: float, *, jump: float = 0.0) -> None:
        self.now += seconds
        self.wall += seconds + jump


# -- when it is doubted --------------------------------------------------------------------------


@pytest.mark.parametrize(("jump", "words"), [(DAY, "ahead by 1d"), (-2 * HOUR, "back by 2h")])
def test_a_clock_that_jumps_is_doubted_until_it_has_run_evenly(jump: float, words: str) -> None:
    hands = Hands()
    before = hands.wall
    hands.passes(5, jump=jump)
    said = hands.clocks.doubt()
    assert words in said
    for _ in range(int(EVEN_FOR / 5) - 1):
        hands.passes(5)
        assert hands.clocks.doubt() == said  # the same words: no new report
        assert abs(hands.clocks.trusted_wall() - before - (hands.now - 1000)) <= BOUND
    hands.passes(5)
    assert hands.clocks.doubt() == ""
    assert (
        hands.clocks.earliest()
        == hands.clocks.latest()
        == hands.clocks.trusted_wall()
        == hands.wall
    )


def test_a_clock_that_is_back_is_believed_at_once() -> None:
    hands = Hands()
    hands.passes(1, jump=DAY)
    assert hands.clocks.doubt()
    hands.passes(120, jump=-DAY)
    assert hands.clocks.doubt() == ""
    assert hands.clocks.trusted_wall() == hands.wall
    hands.passes(EVEN_FOR - 1, jump=DAY)  # the time in which it was away makes nothing even
    assert hands.clocks.doubt()


def test_a_clock_that_never_runs_evenly_is_never_believed_again() -> None:
    hands = Hands()
    for _ in range(1000):
        hands.passes(60, jump=BOUND * 1.5)
    assert hands.clocks.doubt()
    assert hands.clocks.earliest() <= 1_700_000_000 + 1000 * 60 + BOUND


@given(steps=st.lists(st.tuples(st.floats(0, 60), st.floats(-1 / 12, 1 / 12)), max_size=60))
def test_a_clock_that_is_corrected_slowly_is_always_believed(
    steps: list[tuple[float, float]],
) -> None:
    """chrony moves it by a twelfth of the time at most."""
    hands = Hands()
    for seconds, rate in steps:
        hands.passes(seconds, jump=seconds * rate)
        assert hands.clocks.doubt() == ""
        assert hands.clocks.trusted_wall() == hands.wall


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 400), st.one_of(st.just(0.0), st.floats(-1e6, 1e6))), max_size=60
    )
)
def test_what_waits_is_never_due_before_its_time_has_passed_evenly(
    steps: list[tuple[float, float]],
) -> None:
    """Checked against the readings: a lead counts once it was seen for `EVEN_FOR` on end."""
    guard, now, wall = ClockGuard(), 0.0, 1e9
    guard.trusted_wall(now, wall)
    seen = [(now, wall - now)]
    for seconds, jump in steps:
        now, wall = now + seconds, wall + seconds + jump
        seen.append((now, wall - now))
        even = guard.trusted_wall(now, wall)
        # Every lead that all looks of some `EVEN_FOR` agree on, and the first.
        proven = [seen[0][1]]
        for end, (then, lead) in enumerate(seen):
            near = then
            for earlier, other in reversed(seen[: end + 1]):
                if abs(other - lead) > 2 * BOUND:
                    break
                near = earlier
            if then - near >= EVEN_FOR:
                proven.append(lead)
        assert any(abs(even - now - lead) <= BOUND + 1e-3 for lead in proven)
        clocks = Clocks(lambda: now, lambda: wall)  # noqa: B023 - asked at once
        assert clocks.earliest() <= clocks.latest()


@pytest.mark.asyncio
async def test_people_are_told_of_a_doubt_and_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hands, told = Hands(), list[str]()
    looks = iter([(1.0, 0.0), (1.0, DAY), (1.0, 0.0), (1.0, 0.0), (1.0, -DAY), (1.0, 0.0)])

    async def sleep(_: float) -> None:
        step = next(looks, None)
        if step is None:
            raise asyncio.CancelledError
        hands.passes(step[0], jump=step[1])

    caplog.set_level(logging.INFO)
    with pytest.raises(asyncio.CancelledError):
        await watch(hands.clocks.doubt, told.append, sleep=sleep)
    assert [bool(one) for one in told] == [False, False, True, True, True, False, False]
    assert [one.message for one in caplog.records] == [
        "the wall clock is doubted",
        "the wall clock is believed again",
    ]


# -- what waits ----------------------------------------------------------------------------------


class Wall:
    """The wall clock beside the loop's virtual time; ``ahead`` is how far it has jumped."""

    def __init__(self) -> None:
        self.ahead = 1_700_000_000.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


async def test_no_pod_is_evicted_or_deleted_early_by_a_clock_that_jumps_ahead() -> None:
    wall, world = Wall(), world_with("a")
    world.add_pod("n1", "waiting", namespace="quiet")
    world.budget_blocks.add("uid-a")
    forces = NamespaceRule("jobs", Leave.FORCE, force_after=2 * HOUR)
    waits = NamespaceRule("quiet", Leave.WAIT, wait=2 * HOUR)
    settings = replace(SETTINGS, drain=DrainRules(namespaces=(forces, waits)))
    await begun(world, settings, wall=wall)
    await asyncio.sleep(HOUR)
    wall.ahead += 30 * DAY
    await asyncio.sleep(EVEN_FOR / 2)
    assert (world.forced, world.evicted) == ([], [])
    assert not status(world).overdue_at
    wall.ahead -= 30 * DAY
    await asyncio.sleep(HOUR - EVEN_FOR)
    assert (world.forced, world.evicted) == ([], [])
    await asyncio.sleep(EVEN_FOR)
    assert (world.forced, world.evicted) == (["uid-a"], ["uid-waiting"])  # as ever


async def test_a_drain_that_begins_while_the_clock_is_set_back_is_not_over_early() -> None:
    wall, world = Wall(), world_with("a")
    world.budget_blocks.add("uid-a")
    forces = NamespaceRule("jobs", Leave.FORCE, force_after=HOUR)
    settings = replace(SETTINGS, drain=DrainRules(namespaces=(forces,)))
    replica = Replica(world, clock=Running(), settings=settings, wall=wall)
    await asyncio.sleep(10)
    wall.ahead -= DAY
    await asyncio.sleep(10)
    await replica.agent_brings("n1", ILL, Phase.DRAINING)
    wall.ahead += DAY
    await asyncio.sleep(HOUR / 2)
    assert world.forced == []


async def test_a_hook_is_given_its_whole_time_when_the_clock_jumps_ahead() -> None:
    wall, world = Wall(), world_with("a")
    hook = PlayedHook(world, [HookAnswer(HookResult.LATER, "3 jobs run")])
    hooks = HookRules(pre_evict=hook, pre_evict_timeout=HOUR, go_on=True)
    await begun(world, replace(SETTINGS, hooks=hooks), wall=wall)
    await asyncio.sleep(60)
    wall.ahead += DAY
    await asyncio.sleep(EVEN_FOR / 2)
    assert world.evicted == []
    assert status(world).pre_evict.state is HookState.RUNNING


async def test_an_exemption_does_not_end_by_a_clock_that_jumps_ahead() -> None:
    wall, world = Wall(), world_with("a")
    world.person_annotates("n1", EXEMPT, exemption(wall() + DAY, "firmware test"))
    replica = await begun(world, SETTINGS, wall=wall)
    await asyncio.sleep(60)
    wall.ahead += 2 * DAY
    replica.agent("n1", ILL)  # it is evaluated anew
    await asyncio.sleep(EVEN_FOR / 2)
    assert world.quarantines == {}
    assert replica.fleet.node_summaries["n1"].decision.exempt
    await asyncio.sleep(EVEN_FOR)  # it was right
    await drained(world)


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_a_clock_that_jumps_makes_no_room_in_the_window_of_admissions(jump: float) -> None:
    world, wall = World.of(*(f"n{number}" for number in range(6))), Wall()
    limits = replace(OPEN, new_per_window=2, window=HOUR, cooldown=0.0)
    replica = await Replica(
        world, clock=Running(), settings=replace(SETTINGS, limits=limits), wall=wall
    ).ready()
    for number in range(6):
        replica.agent(f"n{number}", ILL)
    await asyncio.sleep(60)
    assert len(world.quarantines) == 2
    wall.ahead += jump
    await asyncio.sleep(EVEN_FOR / 2)
    assert replica.fleet.admitted_lately == 2
    wall.ahead -= jump
    await asyncio.sleep(HOUR - EVEN_FOR)
    assert len(world.quarantines) == 2
    await asyncio.sleep(EVEN_FOR)
    assert len(world.quarantines) == 4  # the window is over, by both clocks


async def test_releases_go_on_while_the_clock_is_doubted_and_what_is_remembered_of_them_stays() -> (
    None
):
    wall, world = Wall(), world_with("a")
    memory = f'[["xid:48", "GPU-1", {round(wall())}]]'
    world.person_annotates("n1", RELEASE_HISTORY, memory)
    await begun(world, SETTINGS, wall=wall)
    await drained(world)
    wall.ahead += 365 * DAY
    world.person_deletes("n1")
    await until(lambda: not world.quarantines)
    remembered = world.nodes["n1"].annotations[RELEASE_HISTORY]
    assert "xid:48" in remembered
    assert "xid:79" in remembered


# -- the real process ----------------------------------------------------------------------------

#: The aggregator, in a world whose wall clock is ahead by the number in the file.
_IN_ANOTHER_TIME = """
import pathlib, sys, time
file, real = pathlib.Path(sys.argv.pop(1)), time.time
time.time = lambda: real() + float(file.read_text())
from aggregator.daemon_cli.main import main
main()
"""


def test_an_aggregator_whose_clock_jumps_says_so_and_when_it_is_back(tmp_path: Path) -> None:
    web, ahead, log = free_port(), tmp_path / "ahead", tmp_path / "log"
    config, page = tmp_path / "aggregator.yaml", f"http://127.0.0.1:{web}/api/v1/fleet"
    config.write_text(
        yaml.safe_dump(
            {
                "cluster": {"kind": "local", "local": {"database": str(tmp_path / "cluster.db")}},
                "listen": {"grpc": f"127.0.0.1:{free_port()}", "web": f"127.0.0.1:{web}"},
                "identity": {"kind": "insecure-trust-hello"},
                "history": {"database": f"sqlite:///{tmp_path / 'history.db'}"},
            }
        )
    )

    def doubt() -> str | None:
        try:
            with urllib.request.urlopen(page, timeout=300) as answer:
                return str(json.load(answer)["clock_doubt"])
        except OSError:
            return None

    ahead.write_text("0")
    command = [sys.executable, "-c", _IN_ANOTHER_TIME, str(ahead), "run", "--config", str(config)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_until(lambda: doubt() == "", what=log.read_text, timeout_s=60)
        (tmp_path / "next").write_text(str(3 * DAY))
        (tmp_path / "next").replace(ahead)
        wait_until(lambda: doubt() == "it has moved ahead by 3d", what=log.read_text, timeout_s=30)
        (tmp_path / "next").write_text("0")
        (tmp_path / "next").replace(ahead)
        wait_until(lambda: doubt() == "", what=log.read_text, timeout_s=30)
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    assert said.count("the wall clock is doubted") == 1
    assert said.count("the wall clock is believed again") == 1
