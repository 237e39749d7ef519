"""The meaning of an uncordon of a quarantined node: a release, or a cordon that is set again."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import STILL_SCHEDULABLE, Action, Phase, QuarantineSpec, Taint
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE
from aggregator.quarantine.decide.uncordon import (
    MOST_RECORDONS,
    QUIET,
    UNCORDONED_BY,
    OnUncordon,
    UncordonRules,
)
from aggregator.quarantine.settings import Settings
from tests.support.memory_cluster import World, phase_of
from tests.support.present import of_type
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time, loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ILL = snapshot(fault())
UNCORDONED = "quarantine.uncordoned"
PERSON = "oidc:mary"
TOOL = "system:serviceaccount:kube-system:kured"
KUBELET = "system:node:n1"


def under(action: OnUncordon, *, trusts_author: bool = False) -> Settings:
    return replace(SETTINGS, uncordon=UncordonRules(action, trust_uncordoned_by=trusts_author))


def world_with_a_job(*, blocked: bool = False, **node: object) -> World:
    world = World.of("n1", **node)
    pod = world.add_pod("n1", "a")
    if blocked:
        world.budget_blocks = {pod.uid}
    return world


async def quarantined(world: World, replica: Replica) -> None:
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", ILL)

    def settled() -> bool:
        world.kubelets_finish()
        found = world.quarantines.get("n1")
        return found is not None and bool(
            found.status.blockers or found.status.phase is Phase.DRAINED
        )

    await until(settled)


def is_in_service(world: World) -> bool:
    return not world.quarantines and not world.nodes["n1"].unschedulable


def is_schedulable(world: World) -> bool:
    return not world.nodes["n1"].unschedulable


def is_cordoned_again(world: World) -> bool:
    found = world.quarantines["n1"]
    return world.nodes["n1"].unschedulable and bool(found.status.uncordoned)


@pytest.mark.parametrize("action", list(OnUncordon))
async def test_the_uncordon_of_somebody_elses_cordon_is_never_a_release(action: OnUncordon) -> None:
    world = world_with_a_job(unschedulable=True)  # kured has cordoned it, before the fault
    replica = Replica(world, clock=Running(), settings=under(action))
    await quarantined(world, replica)
    world.person_uncordons("n1", reported_by=TOOL)
    await until(lambda: is_cordoned_again(world))
    await asyncio.sleep(600)
    assert any(taint.key == TAINT for taint in world.nodes["n1"].taints)
    assert "sickbay.dev/overruled" not in world.nodes["n1"].annotations
    assert "somebody else's" in world.quarantines["n1"].status.uncordoned
    assert replica.notes.kinds("n1").count(UNCORDONED) == 1
    # It is cordoned in our own name now: the release takes that away.
    world.person_deletes("n1")
    await until(lambda: is_in_service(world))


@pytest.mark.parametrize(
    ("action", "trusts", "user", "released"),
    [
        (OnUncordon.RELEASE, False, "", True),
        (OnUncordon.RELEASE, True, TOOL, True),
        (OnUncordon.RELEASE, True, KUBELET, False),
        (OnUncordon.CONFIRM, False, "", False),
        (OnUncordon.CONFIRM, False, PERSON, False),  # any client may have written that annotation
        (OnUncordon.CONFIRM, True, "", False),
        (OnUncordon.CONFIRM, True, PERSON, True),
        (OnUncordon.CONFIRM, True, TOOL, False),
        (OnUncordon.CONFIRM, True, KUBELET, False),
        (OnUncordon.RECORDON, False, "", False),
        (OnUncordon.RECORDON, True, PERSON, False),
    ],
)
async def test_the_uncordon_of_our_cordon_is_a_release_by_configuration_and_author(
    action: OnUncordon, user: str, *, trusts: bool, released: bool
) -> None:
    world = world_with_a_job()
    settings = under(action, trusts_author=trusts)
    replica = Replica(world, clock=Running(), settings=settings)
    await quarantined(world, replica)
    world.person_uncordons("n1", reported_by=user)
    if released:
        await until(lambda: is_in_service(world))
        assert "sickbay.dev/overruled" in world.nodes["n1"].annotations
        assert UNCORDONED not in replica.notes.kinds("n1")
    else:
        await until(lambda: is_cordoned_again(world))
        assert UNCORDONED in replica.notes.kinds("n1")
        assert "sickbay release n1" in world.quarantines["n1"].status.uncordoned
        if trusts and user:
            assert f"by {user}" in world.quarantines["n1"].status.uncordoned
    assert UNCORDONED_BY not in world.nodes["n1"].annotations


async def test_by_default_an_uncordon_of_unknown_origin_releases_nothing_and_holds_evictions() -> (
    None
):
    world = world_with_a_job(blocked=True)
    settings = replace(SETTINGS, uncordon=UncordonRules())
    assert settings.uncordon.on_uncordon is OnUncordon.CONFIRM
    replica = Replica(world, clock=Running(), settings=settings)
    await quarantined(world, replica)
    world.person_uncordons("n1")
    await until(lambda: is_cordoned_again(world))
    world.budget_blocks.clear()
    await asyncio.sleep(settings.uncordon.hold_evictions - 60)
    assert world.evicted == []
    # No person has asked for it back.
    await until(lambda: world.evicted == ["uid-a"], within=300)


async def test_an_uncordon_never_lifts_a_quarantine_that_a_person_made() -> None:
    world = world_with_a_job()
    replica = Replica(world, clock=Running())  # release_on_uncordon: release
    await until(lambda: not replica.fleet.view_lost)
    world.person_creates("n1", QuarantineSpec(Action.CORDON, "manual", "compromised", "mary"))
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.person_uncordons("n1")
    await until(lambda: is_cordoned_again(world))
    assert "sickbay release n1" in world.quarantines["n1"].status.uncordoned
    world.person_deletes("n1")
    await until(lambda: is_in_service(world))


async def test_an_uncordon_never_lifts_a_forced_quarantine() -> None:
    world = world_with_a_job(annotations={FORCE: "cordon fan 3"})
    Replica(world, clock=Running())
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.person_uncordons("n1")
    await until(lambda: is_cordoned_again(world))
    assert FORCE in world.nodes["n1"].annotations


async def test_a_tool_that_uncordons_again_and_again_is_reported_and_not_fought() -> None:
    world = world_with_a_job()
    settings = under(OnUncordon.RECORDON)
    replica = Replica(world, clock=Running(), settings=settings)
    await quarantined(world, replica)
    written = len(world.writes)
    until_time = loop_time() + 3600  # four times as long as all recordons take
    while loop_time() < until_time:
        if world.nodes["n1"].unschedulable:
            world.person_uncordons("n1")
        await asyncio.sleep(30)
    patches = [one for one in world.writes[written:] if one == "patch n1"]
    assert len(patches) == MOST_RECORDONS
    assert replica.notes.kinds("n1").count(UNCORDONED) == MOST_RECORDONS + 1
    assert is_schedulable(world)
    assert any(taint.key == TAINT for taint in world.nodes["n1"].taints)
    assert "Find the tool or person that does it" in world.quarantines["n1"].status.uncordoned
    of_type(asyncio.get_running_loop(), VirtualTimeLoop).pass_time(
        QUIET
    )  # without its rounds, each of which a sleep would have
    await until(lambda: not is_schedulable(world))  # a day later it is tried again


async def test_a_node_that_is_well_again_is_released_though_it_was_uncordoned() -> None:
    world = world_with_a_job()
    settings = under(OnUncordon.RECORDON)
    replica = Replica(world, clock=Running(), settings=settings)
    await quarantined(world, replica)
    for _ in range(MOST_RECORDONS + 1):  # until it is left as it is
        await until(lambda: world.nodes["n1"].unschedulable, within=3600)
        world.person_uncordons("n1")
        await asyncio.sleep(700)
    assert not world.nodes["n1"].unschedulable
    world.set_node(replace(world.nodes["n1"], boot_id="boot-2"))
    replica.agent("n1", snapshot(), boot_id="boot-2")
    await until(lambda: is_in_service(world), within=2000)


async def test_an_uncordon_while_no_aggregator_runs_is_found_by_the_next() -> None:
    world = world_with_a_job()
    settings = under(OnUncordon.CONFIRM)
    first = Replica(world, clock=Running(), settings=settings)
    await quarantined(world, first)
    await first.stop()
    world.person_uncordons("n1")
    await Replica(world, clock=Running(), settings=settings).ready()
    await until(lambda: is_cordoned_again(world))


async def test_a_tool_that_has_left_its_marks_is_named() -> None:
    world = world_with_a_job(annotations={"weave.works/kured-reboot-in-progress": "2026"})
    replica = Replica(world, clock=Running(), settings=under(OnUncordon.CONFIRM))
    await quarantined(world, replica)
    world.person_uncordons("n1")
    await until(lambda: is_cordoned_again(world))
    assert "kured has left its marks" in world.quarantines["n1"].status.uncordoned


@pytest.mark.parametrize("held_by", ["stop", "mode", "exempt", "maintained"])
async def test_a_node_that_may_not_be_cordoned_again_is_told_to_be_schedulable(
    held_by: str,
) -> None:
    world = world_with_a_job()
    settings = under(OnUncordon.CONFIRM)
    replica = Replica(world, clock=Running(), settings=settings)
    await quarantined(world, replica)
    world.person_uncordons("n1")
    await until(lambda: is_cordoned_again(world))  # its text says so: "and cordoned again"
    if held_by == "stop":
        world.person_stops("a test")
    elif held_by == "exempt":
        world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z firmware")
    elif held_by == "maintained":
        busy = Taint("karpenter.sh/disrupted", "", "NoSchedule")
        world.set_node(replace(world.nodes["n1"], taints=(*world.nodes["n1"].taints, busy)))
    else:
        await replica.stop()
        observing = replace(settings, mode=Action.OBSERVE)
        replica = await Replica(world, clock=Running(), settings=observing).ready()
        replica.agent("n1", ILL)
    await asyncio.sleep(60)
    world.person_uncordons("n1")
    await until(lambda: is_told_schedulable(world), within=30)
    told = world.quarantines["n1"].status.uncordoned
    assert "cordoned again (" not in told
    assert "sickbay release n1" in told
    assert is_schedulable(world)
    world.person_cordons("n1")
    await until(lambda: not is_told_schedulable(world), within=240)


async def test_an_uncordon_in_a_stop_and_then_a_lost_taint_are_told_and_undone_after_it() -> None:
    world = world_with_a_job()
    replica = Replica(world, clock=Running(), settings=under(OnUncordon.CONFIRM))
    await quarantined(world, replica)
    world.person_stops("a test")
    await asyncio.sleep(5)
    world.person_uncordons("n1")
    await until(lambda: is_told_schedulable(world), within=30)
    assert "the stop switch is set" in world.quarantines["n1"].status.uncordoned
    await asyncio.sleep(600)
    assert replica.notes.kinds("n1").count(UNCORDONED) == 1
    world.set_node(replace(world.nodes["n1"], taints=()))
    await until(lambda: lacks_the_taint(world), within=60)
    world.person_stops("")
    await until(lambda: is_cordoned_again(world) and not is_told_schedulable(world))
    assert "cordoned again (1 of" in world.quarantines["n1"].status.uncordoned


def is_told_schedulable(world: World) -> bool:
    return world.quarantines["n1"].status.uncordoned.startswith(STILL_SCHEDULABLE)


def lacks_the_taint(world: World) -> bool:
    return "taint" in world.quarantines["n1"].status.marks.missing
