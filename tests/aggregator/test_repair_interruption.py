"""The repair of a node where the process dies, an answer is lost, or the cluster keeps less."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Quarantine,
    QuarantineStatus,
    RepairState,
    RepairStatus,
    Unreachable,
)
from aggregator.quarantine.decide.admission_record import (
    RunningOperation,
    dump_record,
    parse_record,
)
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.decide.reservation import LINGERS
from aggregator.quarantine.reconcile.rounds import ROUNDS
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.runtime import recent
from tests.aggregator.repair_site import ILL, Site, reported_ends
from tests.support.memory_cluster import MemoryCluster
from tests.support.repair_shop import TIMEOUT, ShopRepairer, repair_settings
from tests.support.replica import (
    shipped_policy,
)
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time, loop_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


async def test_a_repair_whose_beginning_was_refused_for_hours_has_its_whole_time() -> None:
    """Else its deadline is over at once, and the next rung begins beside it."""
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.shop.boots, refused = False, [Unreachable("503")]
    fails = {"create_operation": refused}
    site.start(fails=lambda name: next(iter(fails.get(name, ())), None))
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(4 * TIMEOUT)
    assert site.attempts() == []
    refused.clear()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)], within=600)
    await later(TIMEOUT / 2)
    assert site.attempts() == [("reboot", RepairState.ORDERED)]


@pytest.mark.parametrize("stops", [False, True])
async def test_a_stop_until_the_deadline_of_an_order_that_was_not_sent_leads_to_no_stronger_rung(
    *, stops: bool
) -> None:
    """A repairer that takes no order until then has failed: the next rung is due."""
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.shop.answer, site.twice = RepairAnswer(AnswerState.NOT_SENT, "not now"), True
    await site.runs_until(lambda: "not now" in str(site.world.quarantines and site.quarantine()))
    if stops:
        site.world.person_stops("drill")
    await later(TIMEOUT + 60)
    site.shop.answer = RepairAnswer(AnswerState.TAKEN)
    site.world.person_stops("")
    await later(RepairRules().test_pause + 60)
    ended = RepairState.INCONCLUSIVE if stops else RepairState.FAILED
    assert site.attempts()[0] == ("reboot", ended)
    assert ("replace" in site.repaired) is not stops


@pytest.mark.parametrize("how", ["removed", "restored", "removed, and a restart"])
async def test_an_order_whose_operation_is_gone_is_not_sent_a_second_time(how: str) -> None:
    """Removed past its finalizer, or etcd is that of before: a second power cycle would follow."""
    restored = how == "restored"
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.shop.boots = False
    site.world.operations.person_requests("n2", "reboot", "anothers")
    await site.runs_until(lambda: site.world.quarantines and site.quarantine().status.cordoned_at)
    backup = site.world.backup()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    [ordered] = site.shop.orders
    if "restart" in how:
        await site.replica.stop()
    if restored:
        site.world.restore(backup)
    else:
        site.world.operations.remove(site.world.operations.by_name[ordered.operation])
    if "restart" in how:
        site.start()
    await site.settles(site.is_exhausted)
    await later(LINGERS)
    assert site.shop.orders == [ordered]
    assert "is gone" in site.quarantine().status.repair.exhausted
    counts = parse_record(site.world.record.text).repairs
    assert restored or counts["n1"].operation == ordered.operation
    site.shop._boot("n1")  # the boot that the order was for is not known any more
    await site.settles(lambda: site.quarantine().status.release_held)
    assert "the operation of its reboot is gone" in site.quarantine().status.release_held
    await later(TIMEOUT)
    site.seen = True
    assert not site.is_released()
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)
    site.check()


async def died_before_its_first_order() -> Site:
    """The Quarantine names its beginning, and its operation still waits: it was never ordered."""
    site, refused = Site(), [Unreachable("503")]
    fails = {"write_operation": refused}
    site.start(fails=lambda name: next(iter(fails.get(name, ())), None))
    await site.settles(lambda: site.world.quarantines)
    await site.settles(lambda: site.quarantine().status.repair.began_at)
    assert site.shop.orders == []
    await site.replica.stop()
    return site


async def test_a_process_that_died_before_the_first_order_leaves_none_for_a_person() -> None:
    site = await died_before_its_first_order()
    await site.runs_until(lambda: ("reboot", RepairState.SUCCEEDED) in site.attempts())
    site.check()


async def test_a_beginning_that_a_dead_process_left_holds_no_release() -> None:
    """The operation is removed with the release: a beginning without one would look like a loss."""
    site = await died_before_its_first_order()
    site.shop.on_boot = lambda _: None
    site.shop._boot("n1")
    await site.runs_until(site.is_released)
    assert site.shop.orders == []
    site.check()


async def test_an_end_whose_write_got_no_answer_is_reported_all_the_same() -> None:
    site, lost = Site(), list[ClusterError]()
    site.keeps_objects = False
    site.start(loses=lambda name: lost.pop() if lost and name == "write_operation" else None)
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    [order] = site.shop.orders
    lost.append(Unreachable("504"))
    await site.settles(lambda: not lost and reported_ends(site), within=TIMEOUT)
    assert reported_ends(site) == ["Succeeded"]
    assert site.shop.ended == [order.operation]
    await site.settles(lambda: not parse_record(site.world.record.text).repairs, within=60)
    site.check()


async def test_the_memory_of_orders_whose_operations_are_gone_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that vanishes with its operation reports no end."""
    monkeypatch.setattr(recent, "MOST", 2)
    names = [f"n{number}" for number in range(4)]
    site = Site(*names)
    site.rules, site.shop.boots = {"concurrent": 4, "concurrent_percent": 100}, False
    site.shop.answer = RepairAnswer(AnswerState.UNSURE)
    await site.runs_until(lambda: len(site.shop.orders) == len(names))
    kept = site.replica.controller.parts.repair_permissions._quarantined.engine
    assert len(kept._sent) == 2


async def test_the_end_of_a_ladder_is_reported_once_whatever_clock_began_its_last_rung() -> None:
    site = Site(kinds=("reboot",))
    site.shop.boots = False
    site.start().clock.time = 2 * TIMEOUT
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await site.replica.stop()
    await site.runs_until(site.is_exhausted)
    await later(TIMEOUT / 2)
    assert site.replica.notes.kinds("n1").count("repair.exhausted") == 1


async def test_an_order_whose_operation_is_gone_goes_on_where_its_repairer_takes_each_id_once() -> (
    None
):
    site = Site()
    site.shop.boots, site.twice = False, True
    site.world.operations.person_requests("n2", "reboot", "anothers")
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    [ordered] = site.shop.orders
    site.world.operations.remove(site.world.operations.by_name[ordered.operation])
    await site.settles(lambda: len(site.shop.orders) > 1)
    assert {one.operation for one in site.shop.orders} == {ordered.operation} == {*site.shop.done}
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    site.check()


async def test_the_time_of_a_reservation_passes_for_a_later_controller_without_any_write() -> None:
    """The order of a released node may still come until its deadline, and no longer."""
    site = Site()
    site.shop.boots = site.keeps_objects = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)
    await site.replica.stop()
    assert parse_record(site.world.record.text).repairs.keys() == {"n1"}
    site.ill = {}
    site.start()
    await later(TIMEOUT + LINGERS)
    site.world.add_node("n2")
    site.ill["n2"] = ILL
    site.report("n2")
    await site.replica.controller.parts.cluster_events.refresh_nodes()
    await site.settles(lambda: site.attempts("n2"), within=60)


async def test_a_reservation_that_the_record_has_lost_is_counted_again() -> None:
    """As where a replica of a version without repairs writes the record."""
    site = Site()
    site.world.set_node(replace(site.world.nodes["n1"], labels={"rack": "7"}))
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    record = parse_record(site.world.record.text)
    known = record.repairs["n1"]
    assert known.domains == ("rack=7",)
    older = replace(record, operations={}, past_repairs={}, generation=record.generation + 1)
    site.world.person_rolls_back_record(dump_record(older))
    await later(60)
    again = parse_record(site.world.record.text).repairs["n1"]
    assert replace(again, at=known.at, until=known.until) == known
    assert again.until == pytest.approx(known.until)


async def test_in_a_record_made_anew_a_repair_has_its_failure_domains() -> None:
    site = Site()
    site.world.set_node(replace(site.world.nodes["n1"], labels={"rack": "7"}))
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await site.replica.stop()
    site.world.person_deletes_record()
    await site.runs_until(lambda: parse_record(site.world.record.text).repairs)
    assert parse_record(site.world.record.text).repairs["n1"].domains == ("rack=7",)


T = TypeVar("T")


class Dropped(MemoryCluster):
    """Another replica's write takes the reservation out right after the attempt was written."""

    async def call(self, name: str, effect: Callable[[], T]) -> T:
        written = await super().call(name, effect)
        if name == "write_operation":
            record = parse_record(self.world.record.text)
            others = {
                f"{name}-1": RunningOperation(name, f"{name}-1", "reboot", one.at, one.until)
                for name in ("n8", "n9")
                for one in record.repairs.values()
            }
            text = dump_record(
                replace(record, operations=others, generation=record.generation + len(others))
            )
            if others:
                self.world.person_rolls_back_record(text)
                await asyncio.sleep(0.1)
        return written


async def test_no_order_is_sent_whose_reservation_is_gone() -> None:
    site = Site()
    site.twice = True
    site.start(Dropped(site.world))
    await site.settles(lambda: site.world.quarantines and site.attempts())
    await later(120)
    assert site.repaired == []
    repair = site.quarantine().status.repair
    assert "repair.concurrent" in repair.held


@pytest.mark.parametrize("full", [True, False])
async def test_an_order_that_was_perhaps_sent_counts_and_goes_again_within_the_limits(
    *, full: bool
) -> None:
    """It may act on its node: another repair must not take its place."""
    site = Site()
    site.twice, site.shop.boots = True, False
    cluster = MemoryCluster(site.world)

    def dies(_name: str) -> Unreachable | None:
        """Before it has written that the order was taken."""
        if site.shop.orders:
            cluster.crashed.set()
            return Unreachable("the process is dead")
        return None

    cluster._fails = dies
    first = site.start(cluster)
    await site.settles(cluster.crashed.is_set)
    await first.stop()
    assert site.attempts() == [("reboot", RepairState.ORDERING)]
    record = parse_record(site.world.record.text)
    [own] = record.operations.values()
    others = {
        f"{name}-1": replace(own, node=name, operation=f"{name}-1")
        for name in (("n8", "n9") if full else ())
    }
    lost = replace(record, operations=others, generation=record.generation + 1)
    site.world.person_rolls_back_record(dump_record(lost))
    site.start()
    await later(120)
    assert parse_record(site.world.record.text).repairs["n1"].operation == own.operation
    assert len(site.shop.orders) == (1 if full else 2)
    held = site.quarantine().status.repair
    assert ("repair.concurrent" in held.held) is full


async def test_status_that_sickbay_cannot_have_written_stops_the_repairs() -> None:
    site = Site()
    site.kinds = ()
    await site.runs_until(site.is_exhausted)
    await site.replica.stop()
    repair = site.quarantine().status.repair
    broken = replace(repair, exhausted="", attempts=(replace_attempt(),))
    site.world.put_quarantine(
        replace(site.quarantine(), status=replace(site.quarantine().status, repair=broken))
    )
    site.kinds = ("reboot",)
    site.start()
    await later(3600)
    assert site.repaired == []
    assert "is no repair" in site.quarantine().status.repair.held


class OldDefinition(MemoryCluster):
    """Its API server drops `status.repair`, as a definition of before does."""

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        return await super().write_quarantine_status(
            quarantine, replace(status, repair=RepairStatus())
        )


async def test_without_a_place_for_the_attempt_no_repair_is_ordered() -> None:
    site = Site()
    site.start(OldDefinition(site.world))
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(3600)
    assert site.repaired == []


async def test_after_a_start_no_repair_begins_before_the_agent_has_reported() -> None:
    site = Site()
    site.mode = RepairMode.OFF
    await site.runs_until(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await site.replica.stop()
    site.mode = RepairMode.REPAIR
    known, site.ill = site.ill, {}
    site.start()
    await later(50)  # within the patience with agents after a start
    assert site.repaired == []
    site.ill = known
    site.report("n1")
    await site.settles(lambda: site.repaired == ["reboot"])


def replace_attempt() -> Any:
    from aggregator.cluster.port import RepairAttempt

    return RepairAttempt("x", "dance", RepairState.FAILED)


def test_a_deployment_without_the_section_repairs_nothing() -> None:
    assert RepairSettings().off
    assert ROUNDS < TIMEOUT


# -- every interruption ---------------------------------------------------------------------


@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_death_at_any_call_of_a_repair_is_finished_by_the_next_process(
    *, after: bool, twice: bool
) -> None:
    """The process dies before or after each of its calls, the repairer's among them."""
    ends: set[str] = set()

    @in_virtual_time
    async def drained() -> tuple[Site, float]:
        site = Site()
        site.kinds, site.twice = (), twice
        await site.runs_until(
            lambda: site.world.quarantines and site.quarantine().status.drained_at
        )
        await site.stop()
        site.world.put_quarantine(
            replace(
                site.quarantine(), status=replace(site.quarantine().status, repair=RepairStatus())
            )
        )
        site.kinds = ("reboot", "ticket")
        return site, loop_time()

    begin, at = drained()

    @in_virtual_time
    async def dies(calls: int) -> bool:
        await later(at - loop_time())
        site = begin.copy()
        first = site.start(crash_at=calls, after=after)
        await site.settles(
            lambda: first.cluster.crashed.is_set() or site.is_released() or site.is_exhausted()
        )
        died = first.cluster.crashed.is_set()
        await first.stop()
        if not died:
            return False
        second = site.start()
        await site.settles(lambda: site.is_released() or site.is_exhausted())
        assert site.shop.wrong == [], calls
        assert len(site.shop.done) <= 1, calls
        if site.is_released():
            ends.add("released")
        else:
            # Whether the order was sent could not be known: a person decides.
            assert not twice, calls
            assert site.attempts() == [("reboot", RepairState.UNKNOWN)]
            assert site.shop.done == []
            ends.add("unknown")
        await later(400)
        assert parse_record(site.world.record.text).repairs == {}, calls
        await second.stop()
        return True

    assert not all(dies(calls) for calls in range(1, 60))
    assert "released" in ends
    assert ("unknown" in ends) == (not twice)


@pytest.mark.parametrize("lost", ["write_quarantine_status", "write_record", "read_node", "repair"])
async def test_lost_answers_of_the_cluster_repeat_no_order(lost: str) -> None:
    site = Site()
    left = [3]

    def loses(name: str) -> ClusterError | None:
        if (
            name == lost
            and site.world.quarantines
            and site.quarantine().status.drained_at
            and left[0]
        ):
            left[0] -= 1
            return Unreachable("the answer was lost")
        return None

    site.start(MemoryCluster(site.world, loses=loses))
    await site.settles(lambda: site.is_released() or site.is_exhausted())
    site.check()
    assert len(site.shop.done) <= 1


@pytest.mark.parametrize("refused", [1, 20])
@pytest.mark.parametrize("answer", [AnswerState.FAILED, AnswerState.TAKEN])
async def test_an_answer_whose_write_fails_is_not_lost(answer: AnswerState, refused: int) -> None:
    """Else nobody knows whether the order was carried out, and no other rung follows."""
    site, left = Site(kinds=("reboot", "replace", "ticket")), [refused]
    site.shop.boots, site.shop.answer = False, RepairAnswer(answer, "the BMC said so")

    def fails(call: str) -> ClusterError | None:
        if call != "write_operation" or not site.shop.orders or not left[0]:
            return None
        left[0] -= 1
        return Unreachable("503")

    site.start(fails=fails)
    await site.settles(lambda: site.shop.orders and not left[0], within=TIMEOUT)
    await later(120)
    states = {AnswerState.FAILED: RepairState.FAILED, AnswerState.TAKEN: RepairState.ORDERED}
    assert site.attempts()[0] == ("reboot", states[answer])
    assert [one.repair for one in site.shop.orders].count("reboot") == 1
    await later(TIMEOUT)
    assert site.attempts()[:1] == [("reboot", RepairState.FAILED)]
    assert len(site.attempts()) > 1


# -- cancellations, and ends that are not lost ------------------------------------------------


@pytest.mark.parametrize("sent", [True, False])
async def test_after_a_cancellation_that_came_too_late_no_other_rung_begins(*, sent: bool) -> None:
    """``sent``: the order was taken; else nobody knows, and it is not sent again."""
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.twice, site.shop.boots = True, False
    if not sent:
        site.shop.answer = RepairAnswer(AnswerState.UNSURE)
    site.start()
    state = RepairState.ORDERED if sent else RepairState.ORDERING
    await site.settles(lambda: site.shop.orders and site.attempts() == [("reboot", state)])
    site.shop.answer = RepairAnswer(AnswerState.UNSURE)
    site.world.operations.person_cancels("n1")
    await site.settles(site.is_exhausted)
    orders = len(site.shop.orders)
    await later(2 * TIMEOUT)
    ended = RepairState.FAILED if sent else RepairState.UNKNOWN
    assert site.attempts() == [("reboot", ended)]
    assert len(site.shop.orders) == orders
    site.world.operations.person_requests("n1", "replace", "a2")  # a person may go on
    await site.settles(lambda: site.repaired[-1] == "replace")


async def test_an_outcome_is_not_lost_while_what_the_order_left_is_being_removed() -> None:
    """A controller keeps its object for a moment, and then there is none that shows the outcome."""
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    site.shop.clean = RepairAnswer(AnswerState.NOT_SENT, "its controller's finalizer is there")
    site.shop.look = RepairAnswer(AnswerState.FAILED, "the machine has no power")
    await site.settles(lambda: site.shop.cleaned)
    site.shop.clean = RepairAnswer(AnswerState.DONE)
    site.shop.look = RepairAnswer(AnswerState.UNSURE, "the object is gone")
    await site.settles(lambda: ("reboot", RepairState.FAILED) in site.attempts(), within=60)
    await site.settles(lambda: "replace" in site.repaired)


@pytest.mark.parametrize("after", [False, True])
async def test_death_at_any_call_of_a_removal_keeps_an_outcome_that_no_object_tells_any_more(
    *, after: bool
) -> None:
    class Vanishing(ShopRepairer):
        async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
            gone = order.operation in self._shop.cleaned
            return RepairAnswer(AnswerState.UNSURE if gone else AnswerState.DONE, "the object")

    class ObjectSite(Site):
        def repair(self, cluster: MemoryCluster) -> RepairSettings:
            return repair_settings(
                ("gpu-reset", Vanishing(self.shop, cluster)),
                ("ticket", ShopRepairer(self.shop, cluster)),
            )

    cleaned = 0
    for calls in range(1, 80):
        site = ObjectSite()
        site.policy = shipped_policy("rules:\n  - {name: gpu-gone, repair: [gpu-reset]}\n")
        first = site.start(crash_at=calls, after=after)
        await site.settles(
            lambda s=site, f=first: (
                f.cluster.crashed.is_set() or s.attempts() == [("gpu-reset", RepairState.SUCCEEDED)]
            )
        )
        crashed = first.cluster.crashed.is_set()
        died_after_removal = crashed and bool(site.shop.cleaned)
        await first.stop()
        if not crashed:
            break
        second = site.start()
        await site.settles(lambda s=site: s.attempts() and s.attempts()[0][1] not in BUSY)
        assert site.shop.wrong == [], calls
        if died_after_removal:
            cleaned += 1
            assert site.attempts() == [("gpu-reset", RepairState.SUCCEEDED)], calls
        await second.stop()
    else:
        raise AssertionError("the repair needs more calls than were tried")
    assert cleaned > 0


@pytest.mark.parametrize(
    ("call", "how"),
    [("read_quarantine", "fails"), ("write_operation", "loses"), ("read_operation", "fails")],
)
async def test_nothing_is_removed_after_the_end_of_an_attempt_though_a_call_fails(
    call: str, how: str
) -> None:
    """Before its end a removal is repeated: no process remembers it."""
    site, left = Site(), [2]

    def error(name: str) -> ClusterError | None:
        if name == call and site.shop.cleaned and left[0]:
            left[0] -= 1
            return Unreachable("no answer")
        return None

    site.start(MemoryCluster(site.world, **{how: error}))  # type: ignore[arg-type]
    await site.settles(lambda: site.is_released() or site.is_exhausted())
    site.check()
    assert site.repaired == ["reboot"]


async def test_without_a_place_for_it_the_end_of_a_ladder_is_not_told_again_and_again() -> None:
    site = Site(kinds=("gpu-reset",))  # the ladder has no such rung
    site.start(OldDefinition(site.world))
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(3600)
    assert "repair.exhausted" not in site.replica.notes.kinds("n1")
