"""The admission record is deleted or rolled back: limits hold, and it is rebuilt from what stands.

At no moment more nodes are marked than `limits.concurrent` allows, for any actions under way then.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    Action,
    GuardRefused,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.events import EventKind
from aggregator.quarantine.decide.admission import SETTLES, FleetSize
from aggregator.quarantine.decide.admission_record import (
    Cooldown,
    Entry,
    Known,
    Rebuilt,
    Record,
    RunningOperation,
    discontinuity,
    dump_record,
    parse_record,
    rebuild,
)
from aggregator.quarantine.decide.repair import RepairLimits, RepairMode, RepairRules
from aggregator.quarantine.state.registry import QuarantineIndex
from tests.support.invariants import Watch
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.record_writers import record_writer_of
from tests.support.replica import OPEN, SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

RECORD_LOST, RECORD_WHOLE = EventKind.RECORD_LOST, EventKind.RECORD_WHOLE
ILL = snapshot(fault())
STANDING, LIMIT, NEW = 15, 20, 25
SOME = replace(SETTINGS, mode=Action.CORDON, limits=replace(OPEN, concurrent=LIMIT))


def fleet() -> tuple[World, list[str]]:
    names = [f"n{number}" for number in range(STANDING + NEW)]
    world = World.of(*names)
    return world, names


def marked(world: World) -> int:
    return sum(is_marked(node) for node in world.nodes.values())


def cordoned(world: World, names: list[str]) -> bool:
    return all(phase_of(world, name) is Phase.CORDONED for name in names)


def entries(world: World) -> set[str]:
    return set(parse_record(world.record.text).entries)


def holds(replica: Replica, limit: str) -> list[str]:
    node_summaries = replica.fleet.node_summaries.items()
    return [
        name
        for name, one in node_summaries
        if one.decision.hold is not None and one.decision.hold.limit == limit
    ]


class Bursting:
    """A burst in which each call that acts is late by chance; ``then`` strikes once."""

    def __init__(self, seed: int, then: Callable[[], None]) -> None:
        self._rng = random.Random(seed)
        self._left = self._rng.randrange(1, 30)
        self._then = then

    async def __call__(self, _: str) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        self._left -= 1
        if self._left == 0:
            self._then()


Harm = Callable[[World, str], None]
HARMS: dict[str, Harm] = {
    "deleted": lambda world, _: world.person_deletes_record(),
    "rolled back": lambda world, older: world.person_rolls_back_record(older),
    "emptied": lambda world, _: world.person_rolls_back_record(""),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("seed", range(10))
async def test_a_record_that_is_lost_in_a_burst_lets_no_more_in_than_the_limit(
    seed: int, harm: str
) -> None:
    world, names = fleet()
    watch = Watch(world, loop_time)
    most = 0

    def count(_: str) -> None:
        nonlocal most
        most = max(most, marked(world))

    cluster = MemoryCluster(world, loses=count)
    replica = await Replica(world, clock=Running(), settings=SOME, cluster=cluster).ready()
    replica.agents(names[:10], ILL)
    await until(lambda: cordoned(world, names[:10]))
    older = world.record.text
    replica.agents(names[10:STANDING], ILL)
    await until(lambda: cordoned(world, names[:STANDING]))
    struck: list[float] = []

    def strike() -> None:
        struck.append(loop_time())
        HARMS[harm](world, older)

    replica.cluster.in_queue = Bursting(seed, strike)
    replica.agents(names[STANDING:], ILL)
    await until(lambda: struck or len(holds(replica, "limits.concurrent")) == NEW - 5)
    if not struck:
        strike()  # all were in already
    await asyncio.sleep(3 * SETTLES)
    assert most <= LIMIT
    await until(lambda: marked(world) == LIMIT and len(entries(world)) == LIMIT)
    await until(lambda: len(holds(replica, "limits.concurrent")) == STANDING + NEW - LIMIT)
    assert entries(world) == set(world.quarantines)
    assert watch.wrong == []


async def lost_while_away(harm: str) -> tuple[World, list[str]]:
    """The entries fill the limit, and the record is lost while no aggregator runs."""
    world, names = fleet()
    replica = await Replica(world, clock=Running(), settings=SOME).ready()
    replica.agents(names[:3], ILL)
    await until(lambda: cordoned(world, names[:3]))
    older = world.record.text
    replica.agents(names[3:LIMIT], ILL)
    await until(lambda: cordoned(world, names[:LIMIT]))
    await replica.stop()
    HARMS[harm](world, older)
    return world, names


@pytest.mark.parametrize("harm", HARMS)
async def test_a_record_that_was_lost_while_no_aggregator_ran_is_found_out_by_what_stands(
    harm: str,
) -> None:
    world, names = await lost_while_away(harm)
    replica = await Replica(world, clock=Running(), settings=SOME).ready()
    replica.agents(names[LIMIT:], ILL)
    await until(lambda: entries(world) == set(names[:LIMIT]))
    await until(lambda: holds(replica, "record") == names[LIMIT:])
    found = [replica.fleet.node_summaries[name].decision.hold for name in names[LIMIT:]]
    (reason,) = {hold.reason for hold in found if hold is not None}
    assert "rebuilt from the Quarantines in force" in reason
    await asyncio.sleep(2 * SETTLES)
    assert holds(replica, "limits.concurrent") == names[LIMIT:]
    assert marked(world) == LIMIT


async def test_after_the_record_is_rebuilt_what_waited_is_admitted() -> None:
    world, names = await lost_while_away("deleted")
    replica = await Replica(world, clock=Running(), settings=SOME).ready()
    replica.agent(names[LIMIT], ILL)
    await until(lambda: holds(replica, "record") == [names[LIMIT]])
    world.person_deletes(names[0])
    began = loop_time()
    await until(lambda: cordoned(world, [names[LIMIT]]))
    assert loop_time() - began >= SETTLES - 5.0
    assert marked(world) == LIMIT


@pytest.mark.parametrize("waits", [False, True], ids=["before it writes", "while its write waits"])
async def test_a_replica_that_lost_its_place_makes_no_lost_record(*, waits: bool) -> None:
    """It knows the record of before its place was lost: of what has ended since, too."""
    world, names = fleet()
    controller = True
    replica = await Replica(
        world, clock=Running(), settings=SOME, may_act=lambda: controller
    ).ready()
    replica.agent(names[0], ILL)
    await until(lambda: cordoned(world, names[:1]))
    seen: list[str] = []

    async def lose_place(method: str) -> None:
        nonlocal controller
        seen.append(method)
        controller = controller and method != "write_record"

    if waits:
        replica.cluster.in_queue = lose_place
    else:
        controller = False
    world.person_deletes_record()
    await asyncio.sleep(SETTLES)
    assert world.record.text == ""
    assert ("write_record" in seen) == waits
    replica.cluster.in_queue, controller = None, True
    await until(lambda: entries(world) == {names[0]})


async def test_a_replica_that_lost_its_place_counts_no_operation_of_before() -> None:
    """The operation may have ended since, and would hold others until its time is over."""
    world, _ = fleet()
    controller = True
    replica = Replica(world, clock=Running(), settings=SOME, may_act=lambda: controller)
    await until(lambda: not replica.fleet.view_lost)
    writer, before = replica.controller.parts.record_writer, world.record
    controller = False
    with pytest.raises(GuardRefused):
        await writer.restore_operation(RunningOperation("n1", "q-1-reboot", "reboot", 0, 9e9))
    assert world.record == before
    await replica.stop()


def record_events(replica: Replica) -> list[str]:
    """The fleet events about the record."""
    noted = [one for one in replica.notes.transitions if one.kind in (RECORD_LOST, RECORD_WHOLE)]
    return [f"{one.kind.value}: {one.summary}" for one in noted]


@pytest.mark.parametrize("harm", HARMS)
async def test_a_lost_record_is_told_once_and_its_end_once(harm: str) -> None:
    world, names = fleet()
    replica = await Replica(world, clock=Running(), settings=SOME).ready()
    replica.agent(names[0], ILL)
    await until(lambda: cordoned(world, names[:1]))
    await asyncio.sleep(3 * SETTLES)
    assert record_events(replica) == []
    for times in (1, 2):  # each incident anew
        HARMS[harm](world, "")
        await until(lambda times=times: len(record_events(replica)) == 2 * times)  # type: ignore[misc]
        lost, whole = record_events(replica)[-2:]
        assert lost.startswith("fleet.record_lost: the admission record ")
        assert "no new quarantine is admitted until it is rebuilt" in lost
        assert whole.startswith("fleet.record_whole: ")
        assert entries(world) == {names[0]}
    await asyncio.sleep(600)
    assert len(record_events(replica)) == 4


async def test_a_record_that_cannot_be_read_is_told_with_what_to_do_until_it_can() -> None:
    world, _ = fleet()
    replica = await Replica(world, clock=Running(), settings=SOME).ready()
    world.person_garbles_the_record()
    await until(lambda: record_events(replica))
    await asyncio.sleep(600)
    (lost,) = record_events(replica)
    assert "the admission record can't be read" in lost
    assert "No new quarantine is admitted" in lost
    world.person_garbles_the_record("")
    await until(lambda: len(record_events(replica)) == 2)
    assert record_events(replica)[-1].startswith("fleet.record_whole: ")


async def test_a_record_that_was_rebuilt_just_before_is_told_by_whoever_takes_over() -> None:
    """The aggregator that rebuilt it died before its next round."""
    world, names = await lost_while_away("deleted")
    first = Replica(world, clock=Running(), settings=SOME)
    await until(lambda: entries(world) == set(names[:LIMIT]))
    await first.stop()
    second = Replica(world, clock=Running(), settings=SOME)
    await until(lambda: len(record_events(second)) == 2)
    assert record_events(second)[0].startswith("fleet.record_lost: ")


async def test_times_of_admissions_outlast_the_record() -> None:
    """Otherwise the rate would begin anew with each deletion."""
    world, names = fleet()
    limits = replace(OPEN, new_per_window=10)
    replica = await Replica(
        world,
        clock=Running(),
        settings=replace(SETTINGS, mode=Action.CORDON, limits=limits),
    ).ready()
    replica.agents(names[:10], ILL)
    await until(lambda: cordoned(world, names[:10]))
    world.person_deletes_record()
    replica.agent(names[10], ILL)
    await asyncio.sleep(2 * SETTLES)
    assert len(parse_record(world.record.text).admissions) == 10
    assert holds(replica, "limits.new_per_window") or holds(replica, "limits.cooldown")
    assert marked(world) == 10


async def test_a_quarantine_that_has_no_entry_yet_takes_a_place() -> None:
    world, _ = fleet()
    settings = replace(SOME, limits=replace(SOME.limits, concurrent=2))
    world.person_creates("n0", QuarantineSpec(Action.CORDON, "manual", "fan", "hall-2"))
    world.person_creates("n1", QuarantineSpec(Action.CORDON, "manual", "fan", "hall-2"))
    entering = asyncio.Event()
    replica = Replica(world, clock=Running(), settings=settings)

    async def slow(call: str) -> None:
        if call == "write_record":
            await entering.wait()

    replica.cluster.in_queue = slow
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n2", ILL)
    await asyncio.sleep(1)
    entering.set()
    await until(lambda: entries(world) == {"n0", "n1"})
    await until(lambda: holds(replica, "limits.concurrent") == ["n2"])
    assert marked(world) <= 2


async def test_a_creation_in_flight_when_the_record_is_lost_is_taken_back_or_counted() -> None:
    world, _ = fleet()
    settings = replace(SOME, limits=replace(SOME.limits, concurrent=2))
    replica = await Replica(world, clock=Running(), settings=settings).ready()
    replica.agent("n0", ILL)
    await until(lambda: cordoned(world, ["n0"]))
    creating, go = asyncio.Event(), asyncio.Event()
    guarded: list[str] = []

    create: Callable[..., Awaitable[object]] = replica.cluster.create_quarantine

    async def late(node: str, spec: QuarantineSpec, **rest: object) -> object:
        """The first has passed its guard, and is sent long after."""
        if not guarded:
            guarded.append(node)
            await rest["guard"]()  # type: ignore[operator]
            creating.set()
            await go.wait()
            return await create(node, spec)
        return await create(node, spec, **rest)

    replica.cluster.create_quarantine = late  # type: ignore[method-assign, assignment]
    replica.agent("n1", ILL)
    await creating.wait()
    world.person_deletes_record()
    await asyncio.sleep(SETTLES + 10)
    replica.agent("n2", ILL)
    await until(lambda: cordoned(world, ["n2"]))
    go.set()
    await until(lambda: holds(replica, "limits.concurrent") == ["n1"])
    assert marked(world) == 2
    assert set(world.quarantines) == {"n0", "n2"}


# -- what continues what -----------------------------------------------------------------------


def record(generation: int, *nodes: str, uid: str = "") -> Record:
    entered = {node: Entry(node, "i", "", 5.0) for node in nodes}
    rebuilt = Rebuilt(1.0, "is gone", uid) if uid else None
    return Record(entered, generation=generation, rebuilt=rebuilt)


def compare(known: Record | None, uid: str, found: Record, newest: int = 0) -> str:
    before = Known("r1", dump_record(known), known) if known is not None else None
    return discontinuity(before, uid, dump_record(found), found, newest=newest)


def test_a_record_continues_only_what_it_was_written_on() -> None:
    known = record(7, "n1")
    assert compare(None, "r1", record(0)) == ""
    assert compare(record(0), "r2", record(0)) == ""  # no node was ever admitted
    assert compare(known, "r1", known) == ""
    assert compare(known, "r1", record(9)) == ""
    assert compare(known, "r1", record(6)) == "was rolled back from generation 7 to 6"
    assert compare(known, "r1", record(7, "n2")) == "has another content in its generation 7"
    assert compare(known, "r2", record(9)) == "was deleted and made anew"
    assert compare(known, "r2", record(9, uid="r2")) == ""
    assert compare(known, "r2", record(9, uid="r1")) == "was deleted and made anew"
    assert compare(known, "r2", record(7, uid="r2")) == "was deleted and made anew"
    assert "a Quarantine in force (8)" in compare(None, "r1", record(7), newest=8)
    assert discontinuity(Known("r1", "x", known), "", "", Record()) == "is gone"


def test_a_rebuilt_record_has_what_stands_and_forgets_no_admission_and_no_cooldown() -> None:
    known = Record(
        {"n1": Entry("n1", "i", "p", 5.0), "n2": Entry("n2", "i", "p", 6.0)},
        admissions=((5.0, ""), (5.0, ""), (6.0, "")),
        cooldowns={"": Cooldown(6.0, "newer"), "a": Cooldown(6.0, "only here")},
        generation=9,
    )
    found = Record(
        {"n3": Entry("n3", "i", "p", 4.0)},
        admissions=((5.0, ""), (4.0, "")),
        cooldowns={"": Cooldown(3.0, "older"), "b": Cooldown(3.0, "only there")},
        generation=4,
    )
    why = Rebuilt(100.0, "was rolled back", "r1")
    standing = [Entry("n1", "i", "p", 50.0), Entry("n4", "i", "p", 60.0)]
    made = rebuild(found, Known("r1", "", known), standing, rebuilt=why, newest=12)
    assert made.entries == {"n1": known.entries["n1"], "n4": standing[1]}
    assert [at for at, _ in made.admissions] == [4.0, 5.0, 5.0, 6.0, 60.0]
    assert {ident: one.because for ident, one in made.cooldowns.items()} == {
        "": "newer",
        "a": "only here",
        "b": "only there",
    }
    assert (made.generation, made.rebuilt) == (12, why)
    assert parse_record(dump_record(made)) == made


def test_a_record_of_before_generations_is_read_as_the_first() -> None:
    older = '{"admissions":[],"cooldowns":{},"entries":[],"policy_hash":"p"}'
    assert (parse_record(older).generation, parse_record(older).rebuilt) == (0, None)
    assert RecordText("", "").uid == ""


@pytest.mark.asyncio
async def test_a_repair_that_a_record_from_an_older_copy_lacks_counts_for_the_limits() -> None:
    """The process began after the record was restored: nothing shows that it is an older one."""
    world, index = World(), QuarantineIndex()
    attempt = RepairAttempt(
        "q-1-reboot", "reboot", RepairState.ORDERED, deadline_at=2000.0, domains=("rack=7",)
    )
    status = QuarantineStatus(Phase.DRAINED, cordoned_at=1.0, repair=RepairStatus((attempt,)))
    index.seen(Quarantine("n1", "q", "1", QuarantineSpec(Action.DRAIN, "gpu", "x"), status))
    writer = record_writer_of(
        MemoryCluster(world),
        limits=OPEN,
        size=lambda: FleetSize(10, 10),
        wall=lambda: 1000.0,
        quarantine_index=index,
    )
    limits = RepairLimits(RepairRules(RepairMode.REPAIR, concurrent=2, concurrent_percent=100.0))

    async def held(node: str, operation: str, rack: str) -> str:
        proposal = RunningOperation(node, operation, "reboot", 1000.0, 1600.0, domains=(rack,))
        expected, found = writer.hold_of(proposal, limits), await writer.reserve(proposal, limits)
        assert found == expected
        return found.limit if found is not None else ""

    for name in ("n1", "n2", "n3", "n4"):
        await writer.enter(Entry(name, "inc", "", 1.0))
    assert await held("n2", "p-1-reboot", "rack=7") == "repair.domain"
    assert await held("n3", "o-1-reboot", "rack=8") == ""
    assert await held("n4", "t-1-reboot", "rack=9") == "repair.concurrent"
    assert await held("n1", "q-1-reboot", "rack=7") == ""
    assert parse_record(world.record.text).repairs.keys() == {"n1", "n3"}
