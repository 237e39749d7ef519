"""A token is of one Node object. Another one of the same name is another node."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from aggregator.cluster.port import ClusterError, Phase, Unreachable
from aggregator.health.model import Cleared, Delta
from aggregator.ingest.checked_auth import CheckedAuthenticator
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import CallCredentials, Caller, Identity, IdentityError, Refusal
from aggregator.quarantine.reconcile.current_nodes import KEPT
from tests.aggregator.test_identity import ISSUER, tokens
from tests.support import virtual_time
from tests.support.ingest import Clock, site
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import FakeLine, Replica, Turned, fault, snapshot
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ILL = snapshot(fault())


# -- at the door -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "let_in"), [(True, True), (False, False), (None, True)])
@pytest.mark.asyncio
async def test_the_cluster_is_asked_whether_the_node_of_a_token_is_the_one_there(
    tmp_path: Path, *, answer: bool | None, let_in: bool
) -> None:
    asked: list[tuple[str, str]] = []

    async def is_current(node: str, uid: str) -> bool | None:
        asked.append((node, uid))
        return answer

    def make(clock: Clock) -> CheckedAuthenticator:
        return CheckedAuthenticator(tokens(tmp_path)(clock), DeletedPods(now=clock.now), is_current)

    async with (
        site(make_authenticator=make) as running,
        running.agent("node-1", token=ISSUER.token("node-1")) as agent,
    ):
        await agent.hello()
        if let_in:
            await agent.expect("welcome")
        else:
            code, text = await agent.ending()
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "another Node object" in text
            assert running.stats.refused == {"another_node": 1}
            assert running.intake.events == []
    assert asked == [("node-1", "uid-of-node-1")]


class Proves:
    """An authenticator that believes."""

    async def authenticate(self, caller: Caller) -> CallCredentials:
        return CallCredentials(Identity("n1", "uid-1"), ("n1",))

    async def renew(self, identity: Identity, token: str) -> Identity:
        return replace(identity, node_uid=token)


@pytest.mark.asyncio
async def test_a_renewal_is_asked_about_too() -> None:
    async def is_current(node: str, uid: str) -> bool | None:
        return uid == "uid-1"

    door = CheckedAuthenticator(Proves(), DeletedPods(now=lambda: 0.0), is_current)
    known = (await door.authenticate(Caller("unix:"))).claimed("n1")
    assert await door.renew(known, "uid-1") == known
    with pytest.raises(IdentityError) as refused:
        await door.renew(known, "uid-2")
    assert refused.value.refusal is Refusal.ANOTHER_NODE


@pytest.mark.asyncio
async def test_the_list_answers_where_it_agrees_and_a_read_where_it_does_not() -> None:
    world, clock = World.of("n1"), Turned()
    down = False

    def fails(call: str) -> ClusterError | None:
        return Unreachable("down") if down else None

    replica = Replica(world, clock=clock, fails=fails)
    assert await replica.controller.is_current("n1", "uid-n1") is None  # there is no view yet
    await until(lambda: not replica.fleet.view_lost)
    calls = replica.cluster.calls
    assert await replica.controller.is_current("n1", "uid-n1") is True
    assert replica.cluster.calls == calls
    assert await replica.controller.is_current("n1", "uid-old") is False
    world.renew_node("n1", "boot-2")  # the list does not know yet
    assert await replica.controller.is_current("n1", world.nodes["n1"].uid) is True
    assert await replica.controller.is_current("nobody", "uid") is False
    down = True
    clock.time += KEPT[False]  # no answer is kept for longer
    assert await replica.controller.is_current("n1", world.nodes["n1"].uid) is None


@pytest.mark.parametrize("node", ["n1", "never-existed"])
@pytest.mark.asyncio
async def test_a_token_of_a_deleted_node_costs_one_read_a_minute_however_often_it_comes(
    node: str,
) -> None:
    world, clock = World.of("n1"), Turned()
    replica = await Replica(world, clock=clock).ready()
    calls = replica.cluster.calls

    async def comes() -> bool | None:
        return await replica.controller.is_current(node, "uid-of-old")

    for _ in range(10):
        assert await asyncio.gather(*(comes() for _ in range(50))) == [False] * 50
        clock.time += KEPT[False] / 20
    assert replica.cluster.calls == calls + 1
    # One that is made anew is not taken for the one that was asked about.
    if node == "n1":
        world.renew_node("n1", "boot-2")
        assert await replica.controller.is_current("n1", world.nodes["n1"].uid) is True
    clock.time += KEPT[False]
    assert await comes() is False
    assert replica.cluster.calls == calls + (3 if node == "n1" else 2)


@pytest.mark.asyncio
async def test_whoever_stops_waiting_for_a_shared_read_takes_it_from_nobody() -> None:
    world, clock = World(), Turned()
    replica = await Replica(world, clock=clock).ready()
    first = asyncio.create_task(replica.controller.is_current("n1", "uid-old"))
    second = asyncio.create_task(replica.controller.is_current("n1", "uid-old"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is False


# -- in the controller -----------------------------------------------------------------------------


async def test_a_stream_of_an_older_node_that_came_before_the_view_acts_on_nothing() -> None:
    world, clock = World.of("n1"), Turned()
    replica, line = Replica(world, clock=clock), FakeLine()
    replica.agent("n1", ILL, node_uid="uid-older", line=line)
    await until(lambda: line.closed)
    assert "uid-older" in line.closed
    late = replica.controller.on_evidence("n1", ILL, clock())  # it has not ended yet
    assert isinstance(late, asyncio.Future)
    await later(600)
    assert not late.done()
    assert world.writes == []
    assert replica.fleet.node_summaries["n1"].decision.incidents == {}
    await replica.agent_brings("n1", ILL, Phase.DRAINED, node_uid="uid-n1")


async def test_a_node_made_anew_is_not_quarantined_for_what_its_predecessor_says() -> None:
    world, clock = World.of("n1"), Turned()
    replica, line = Replica(world, clock=clock), FakeLine()
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", snapshot(), node_uid="uid-n1", line=line)
    world.renew_node("n1", "boot-2")  # no list has shown it
    replica.agent("n1", Delta(faults=(fault(),)), node_uid="uid-n1")
    await until(lambda: line.closed)
    await later(600)
    # The patch finds another uid than the list told, and the Quarantine is withdrawn.
    begun = ["create n1", "status n1 Releasing", "drop n1"]
    assert [write for write in world.writes if write != "record"] == begun
    assert "n1" not in world.record.text
    assert world.nodes["n1"].taints == ()


async def test_a_sign_from_an_older_node_releases_nothing_and_is_not_acknowledged() -> None:
    world, clock = World.of("n1"), Turned()
    first = Replica(world, clock=clock)
    await first.agent_brings("n1", ILL, Phase.DRAINED, node_uid="uid-n1")
    await first.stop()
    replica, line = Replica(world, clock=clock), FakeLine()
    await until(lambda: not replica.fleet.view_lost)
    sign = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))
    safe = replica.agent("n1", sign, node_uid="uid-older", line=line)
    await until(lambda: line.closed)
    assert isinstance(safe, asyncio.Future)
    assert safe.cancelled()
    clock.time += 10_000
    replica.agent("n1", ILL, node_uid="uid-n1")
    await later(600)
    assert phase_of(world, "n1") is Phase.DRAINED


@pytest.mark.parametrize("proves", [True, False], ids=["token", "certificate"])
async def test_a_new_node_in_another_boot_is_not_what_the_old_one_was_quarantined_for(
    *, proves: bool
) -> None:
    world, clock = World.of("n1"), Turned()
    pod = world.add_pod("n1", "a")
    world.budget_blocks.add(pod.uid)  # the drain is under way
    replica = Replica(world, clock=clock)
    replica.agent("n1", ILL, node_uid="uid-n1" if proves else "")
    await until(lambda: "work.blocked" in replica.notes.kinds("n1"))  # no eviction is in flight
    world.renew_node("n1", "boot-2")
    world.budget_blocks.clear()
    await until(lambda: not world.quarantines)
    await later(600)
    assert world.evicted == []
    assert world.nodes["n1"].taints == ()
    assert not world.nodes["n1"].unschedulable
    assert world.quarantines == {}
    # The messages of its own agent count.
    new = snapshot(fault(boot_id="boot-2"))
    replica.agent("n1", new, boot_id="boot-2", node_uid=world.nodes["n1"].uid if proves else "")
    await until(lambda: world.evicted)


@pytest.mark.asyncio
async def test_a_new_node_in_the_same_boot_is_the_same_patient() -> None:
    world, clock = World.of("n1"), Turned()
    replica = Replica(world, clock=clock)
    await replica.agent_brings("n1", ILL, Phase.DRAINED, node_uid="uid-n1")
    world.renew_node("n1", "boot-1")
    await until(lambda: world.nodes["n1"].taints)
    assert world.nodes["n1"].unschedulable


async def the_list_shows_another_node() -> None:
    world, clock = World.of("n1"), Turned()
    replica, line = Replica(world, clock=clock), FakeLine()
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", snapshot(), node_uid="uid-n1", line=line)
    world.renew_node("n1", "boot-2")
    clock.time += 200
    await until(lambda: line.closed)
    assert "agent.conflict" in replica.notes.kinds("n1")
    await replica.stop()


async def two_agents_go_on_pushing_each_other_out() -> None:
    world = World.of("n1")
    replica = await Replica(world, clock=Turned()).ready()

    def count_conflicts() -> int:
        return replica.notes.kinds("n1").count("agent.conflict")

    for port in range(100):
        replica.controller.on_conflict("n1", f"two live agents: a at :{port}, and b at :{port + 1}")
    assert count_conflicts() == 1
    assert replica.fleet.node_summaries["n1"].agent.conflict.endswith(":100")
    replica.controller.on_conflict("n1", "")
    replica.controller.on_conflict("n1", "two live agents: a at :1, and c at :2")
    assert count_conflicts() == 2
    await replica.stop()


def test_a_conflict_of_two_agents_is_told_once_until_it_is_over() -> None:
    virtual_time.run(two_agents_go_on_pushing_each_other_out())


def test_a_running_stream_ends_when_the_list_shows_that_the_node_is_another() -> None:
    virtual_time.run(the_list_shows_another_node())
