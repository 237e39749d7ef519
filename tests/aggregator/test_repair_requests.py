"""A person requests a repair, takes it back, or releases the node that is under repair."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    Operation,
    OperationSpec,
    Phase,
    RepairState,
    Unreachable,
)
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
)
from tests.aggregator.repair_site import ILL, Site, phases, reported_ends
from tests.support.memory_cluster import MemoryCluster
from tests.support.repair_shop import TIMEOUT, ShopRepairer
from tests.support.virtual_replica import later, soon
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


@pytest.mark.parametrize("trouble", ["", "refused", "down", "hangs"])
async def test_a_persons_release_withdraws_what_an_order_left_and_does_not_wait_for_it(
    trouble: str,
) -> None:
    """A Machine that stayed marked would be replaced with new work on its node."""
    site = Site()
    site.shop.boots, site.shop.cancels = False, True
    site.shop.hangs = trouble == "hangs"
    refused = {"refused": AnswerState.FAILED, "down": AnswerState.NOT_SENT}
    site.shop.clean = RepairAnswer(refused.get(trouble, AnswerState.DONE), trouble)
    await site.runs_until(
        lambda: (
            bool(site.world.quarantines) and site.attempts() == [("reboot", RepairState.ORDERED)]
        )
    )
    assert site.shop.cleaned == []
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)
    cleaned = [] if trouble == "hangs" else [one.operation for one in site.shop.orders]
    assert site.shop.cleaned == cleaned
    assert reported_ends(site) == ["Unknown" if trouble else "Cancelled"]
    site.check()


@pytest.mark.parametrize("keeps_objects", [False, True])
@pytest.mark.parametrize(
    ("cancels", "sent", "outcome"),
    [(True, True, "Cancelled"), (False, True, "Unknown"), (False, False, "Cancelled")],
)
async def test_a_persons_release_cancels_the_open_order_first_and_reports_how_that_ended(
    *, cancels: bool, sent: bool, outcome: str, keeps_objects: bool
) -> None:
    """Without its object a controller may go on: that the object is gone is no cancellation."""
    site = Site()
    site.shop.boots, site.shop.cancels, site.keeps_objects = False, cancels, keeps_objects
    site.twice = not sent
    if not sent:
        site.shop.answer = RepairAnswer(AnswerState.NOT_SENT)
    await site.runs_until(lambda: len(site.shop.orders) > 0 and bool(site.attempts()))
    await later(1)
    marked: list[bool] = []
    site.shop.on_cancel = lambda: marked.append(is_marked(site.world.nodes["n1"]))
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)
    assert site.shop.cancelled == [site.shop.orders[0].operation]
    assert marked == [True]
    assert reported_ends(site) == [outcome]
    counts = parse_record(site.world.record.text).repairs
    assert ("n1" in counts) is (outcome == "Unknown")


@pytest.mark.parametrize("cancels", [False, True])
async def test_an_order_is_cancelled_though_its_quarantine_was_taken_away_by_force(
    *, cancels: bool
) -> None:
    """That is a person's release too: a Machine that stayed marked would be replaced with work."""
    site = Site()
    site.shop.boots, site.shop.cancels = False, cancels
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    [order] = site.shop.orders
    site.world.person_removes_by_force("n1")
    await site.settles(lambda: not is_marked(site.world.nodes["n1"]), within=30)
    assert site.shop.cancelled == site.shop.cleaned == [order.operation]
    assert reported_ends(site) == ["Cancelled" if cancels else "Unknown"]
    await site.settles(lambda: phases(site) == {order.operation: reported_ends(site)[0]}, within=30)
    # Else it would hold the repairs of its failure domain until its time is over.
    assert ("n1" in parse_record(site.world.record.text).repairs) is not cancels


@pytest.mark.parametrize("call", ["read_outcome", "cancel", "clean_up"])
async def test_a_persons_release_waits_for_no_repairer_that_hangs(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's program may run for an hour, and the release has a call of its own, for seconds."""

    site, begun = Site(), list[str]()
    monkeypatch.setattr(ShopRepairer, call, hanging(begun))
    site.shop.boots = call == "clean_up"
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    if call == "cancel":
        site.world.operations.person_cancels("n1")
    await site.settles(lambda: begun, within=120)
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)
    site.check()


def hanging(begun: list[str]) -> Any:
    """A call of a repairer that gives no answer."""

    async def hangs(self: ShopRepairer, order: RepairOrder) -> Any:
        begun.append(order.operation)
        await asyncio.sleep(3600)

    return hangs


@pytest.mark.parametrize("repairs", [True, False])
async def test_a_persons_release_waits_for_no_write_of_an_operations_end(
    monkeypatch: pytest.MonkeyPatch, *, repairs: bool
) -> None:
    """A busy API server makes such a write wait for minutes."""
    site, begun = Site(), list[str]()

    async def hangs(operation: Operation, _: object) -> Any:
        begun.append(operation.name)
        await asyncio.sleep(3600)

    site.shop.boots = False
    if repairs:
        await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    else:
        site.ill = {}
        site.start()
        await site.drained_by_hand()
        site.world.operations.person_requests("n1", "replace", "a1")
        site.world.operations.person_requests("n1", "replace", "a2")
        await site.settles(lambda: len(site.quarantine().status.repair.requests) == 2)
    monkeypatch.setattr(site.replica.cluster.operations, "write_status", hangs)
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=12)
    assert len(begun) == 1 + (not repairs)


@pytest.mark.parametrize("by", ["force", "uncordon"])
async def test_a_persons_release_by_the_node_waits_for_no_repairer_that_hangs(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event of the Quarantine shows it: the node is read next to the call."""
    site, begun = Site(), list[str]()
    monkeypatch.setattr(ShopRepairer, "read_outcome", hanging(begun))
    site.shop.boots = False
    if by == "force":
        site.ill = {}
        site.start()
        await site.drained_by_hand()
        site.world.operations.person_requests("n1", "reboot", "a1")
    else:
        site.start()
    await site.settles(lambda: begun)
    site.seen = True
    if by == "force":
        site.world.person_annotates("n1", "sickbay.dev/force", None)
    else:
        site.world.person_uncordons("n1")
    await site.settles(site.is_released, within=30)
    assert reported_ends(site) == ["Unknown"]
    site.check()


async def test_a_repair_goes_on_while_a_pin_holds_the_release_of_a_force_taken_back() -> None:
    site = Site()
    site.ill, site.shop.boots = {}, False
    site.start()
    await site.drained_by_hand()
    site.world.operations.person_requests("n1", "reboot", "a1")
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    site.world.person_annotates("n1", "sickbay.dev/pin", "for the vendor")
    site.world.person_annotates("n1", "sickbay.dev/force", None)
    await site.settles(lambda: "pinned" in site.quarantine().status.release_held)
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.FAILED)])
    site.check()


async def test_a_release_ends_the_reservation_of_a_repair_that_never_began() -> None:
    """Else it would hold the repairs of its failure domain until that repair's time is over."""
    site = Site("n1", "n2")
    for name in ("n1", "n2"):
        site.world.set_node(replace(site.world.nodes[name], labels={"rack": "7"}))
    site.ill, refused = {"n1": ILL}, [Unreachable("503")]
    fails = {"create_operation": refused}
    site.start(fails=lambda name: next(iter(fails.get(name, ())), None))
    await site.settles(lambda: "n1" in parse_record(site.world.record.text).repairs)
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=60)
    assert parse_record(site.world.record.text).repairs == {}
    refused.clear()
    site.ill["n2"] = ILL
    site.report("n2")
    await site.settles(lambda: site.attempts("n2"), within=300)
    site.check()


async def test_a_release_leaves_an_outcome_that_is_known_as_it_is() -> None:
    """Its end only waits for the removal of what its order left."""
    site = Site()
    site.shop.boots = False
    site.shop.clean = RepairAnswer(AnswerState.NOT_SENT, "its finalizer is there")
    site.shop.look = RepairAnswer(AnswerState.FAILED, "the machine has no power")
    await site.runs_until(lambda: site.shop.cleaned)
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)
    [status] = [one.status for one in site.world.operations.by_name.values()]
    assert (status.phase, status.ends_as) == (RepairState.FAILED, None)
    assert status.message == "the machine has no power"
    assert reported_ends(site) == ["Failed"]


async def test_the_end_waits_for_the_removal_while_that_can_not_be_done_now() -> None:
    site = Site()
    site.shop.clean = RepairAnswer(AnswerState.NOT_SENT, "the API server is down")
    await site.runs_until(lambda: len(site.shop.cleaned) > 2)
    assert site.attempts() == [("reboot", RepairState.ORDERED)]
    site.shop.clean = RepairAnswer(AnswerState.DONE)
    await site.ends_well(site.is_released)
    assert site.repaired == ["reboot"]


@pytest.mark.parametrize("state", [AnswerState.NOT_SENT, AnswerState.FAILED])
async def test_what_can_not_be_removed_is_named_at_the_end(state: AnswerState) -> None:
    """Without an end of the attempt the node would never be released."""
    site = Site()
    site.shop.boots = False
    site.shop.clean = RepairAnswer(state, "may not delete")
    await site.runs_until(
        lambda: (
            bool(site.world.quarantines) and site.attempts()[:1] == [("reboot", RepairState.FAILED)]
        )
    )
    attempt = site.quarantine().status.repair.attempts[0]
    assert attempt.message.endswith("what it left in the cluster can't be removed: may not delete")
    waited = attempt.ended_at - attempt.deadline_at
    assert 0 <= waited < (400 if state is AnswerState.NOT_SENT else 30)
    assert (waited >= 300) is (state is AnswerState.NOT_SENT)


async def test_a_person_starts_a_repair_and_takes_it_back() -> None:
    site = Site()
    site.ill = {}
    site.shop.boots, site.shop.cancels = False, True
    site.start()
    await site.drained_by_hand()
    await later(600)
    assert site.repaired == []  # a person's quarantine has no ladder
    site.world.operations.person_requests("n1", "reboot", "a1")
    await site.settles(lambda: site.repaired == ["reboot"])
    await later(60)
    began = asyncio.get_running_loop().time()
    site.world.operations.person_cancels("n1")
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.CANCELLED)])
    assert asyncio.get_running_loop().time() - began < 60  # by the watch, before its deadline
    await later(600)
    assert site.repaired == ["reboot"]
    site.check()


@pytest.mark.parametrize(
    ("answers_after", "end"), [(100, RepairState.CANCELLED), (10_000, RepairState.UNKNOWN)]
)
async def test_a_cancellation_without_an_answer_is_repeated_until_the_deadline(
    answers_after: float, end: RepairState
) -> None:
    site = Site()
    site.shop.boots, site.shop.cancels = False, True
    site.shop.look = RepairAnswer(AnswerState.UNSURE)
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    began = asyncio.get_running_loop().time()

    def away() -> None:
        if asyncio.get_running_loop().time() < began + answers_after:
            raise Unreachable("HTTP 503")

    site.shop.on_cancel = away
    site.world.operations.person_cancels("n1")
    await site.settles(lambda: site.attempts() == [("reboot", end)])
    await later(600)
    assert site.repaired == ["reboot"]
    site.check()


async def test_a_person_deletes_an_operation_before_its_order() -> None:
    """A process made it, and died before it began."""
    site = Site()
    await site.runs_until(lambda: site.world.quarantines)
    uid = site.quarantine().uid
    name, spec = f"{uid}-1-reboot", OperationSpec("n1", "reboot", uid)
    site.world.operations.store(Operation(name, "o", "0", spec, deleting=True))
    await site.settles(site.is_exhausted)
    assert site.attempts() == [("reboot", RepairState.CANCELLED)]
    await later(600)
    assert site.repaired == []
    assert parse_record(site.world.record.text).repairs == {}
    site.check()


async def test_a_cancellation_between_adoption_and_order_ends_at_once_and_clears_nothing() -> None:
    site = Site(kinds=("reboot",))
    site.shop.boots = False
    cluster = MemoryCluster(site.world)
    site.start(cluster)
    await site.settles(site.is_exhausted)
    [_] = site.repaired

    def cancels(name: str) -> None:
        there = site.world.operations.by_name.get("a1")
        if name == "write_operation" and there is not None and there.held and not there.deleting:
            site.world.operations.person_deletes("a1")

    cluster._fails = cancels
    site.world.operations.person_requests("n1", "reboot", "a1")
    await site.settles(lambda: site.world.operations.by_name["a1"].deleting, within=60)
    await site.replica.answer_requests()
    assert "operation n1 Cancelled" in site.world.writes
    assert "a1" not in site.world.operations.by_name
    assert site.is_exhausted(), "its beginning has failed"
    await later(600)
    assert len(site.repaired) == 1
    cluster._fails = lambda _: None
    site.world.operations.person_requests("n1", "reboot", "a2")
    await site.settles(lambda: len(site.repaired) == 2)
    await site.settles(lambda: not site.is_exhausted(), within=60)
    site.check()


async def test_the_ladder_goes_on_after_a_persons_repair_although_its_last_write_has_failed() -> (
    None
):
    site = Site(kinds=("reboot", "replace"))
    site.rules, site.shop.boots, site.shop.cancels = {"attempts": 9}, False, True
    cluster = MemoryCluster(site.world)
    site.start(cluster)
    await site.settles(lambda: site.repaired == ["reboot"])
    site.world.operations.person_cancels("n1")
    await site.settles(site.is_exhausted)

    def fails(name: str) -> Unreachable | None:
        ordered = len(site.repaired) == 2
        return Unreachable("no route") if ordered and name == "write_quarantine_status" else None

    cluster._fails = fails
    site.world.operations.person_requests("n1", "reboot", "a1")
    await site.settles(lambda: site.attempts()[1:] == [("reboot", RepairState.FAILED)])
    await later(60)
    cluster._fails = lambda _: None
    assert site.is_exhausted(), "that it is over could not be written"
    await site.settles(lambda: site.repaired == ["reboot", "reboot", "replace"])
    site.check()


async def test_a_request_that_another_replaced_under_its_name_does_not_begin_as_the_first() -> None:
    site = Site(kinds=("reboot", "replace"))
    site.ill, site.shop.boots = {}, False
    cluster = MemoryCluster(site.world)
    site.start(cluster)
    await site.drained_by_hand()

    def replaced(name: str) -> None:
        there = site.world.operations.by_name.get("a1")
        if name == "read_operation" and there is not None and there.spec.kind == "replace":
            site.world.operations.person_deletes("a1")
            site.world.operations.person_requests("n1", "reboot", "a1")

    cluster._fails = replaced
    site.world.operations.person_requests("n1", "replace", "a1")
    await site.settles(lambda: site.repaired)
    assert site.repaired == ["reboot"]
    assert site.attempts() == [("reboot", RepairState.ORDERED)]
    site.check()


async def test_a_cancellation_of_what_is_over_lets_no_further_repair_begin() -> None:
    """The order has ended, and its leftovers are not removed yet."""
    site = Site(kinds=("reboot", "replace"))
    site.shop.boots, site.shop.look = False, RepairAnswer(AnswerState.FAILED, "no power")
    site.shop.clean = RepairAnswer(AnswerState.NOT_SENT, "the API server is down")
    await site.runs_until(lambda: len(site.shop.cleaned) > 1)
    site.world.operations.person_cancels("n1")
    await later(60)
    site.shop.clean = RepairAnswer(AnswerState.DONE)
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.FAILED)])
    await later(3600)
    assert site.repaired == ["reboot"]
    assert site.is_exhausted()
    site.check()


async def test_an_object_of_another_tool_with_the_next_name_is_neither_used_nor_removed() -> None:
    """The ladder waits until a person deletes it."""
    site = Site()
    await site.runs_until(lambda: site.world.quarantines)
    uid = site.quarantine().uid
    name, spec = f"{uid}-1-reboot", OperationSpec("n1", "reboot", "of-another")
    theirs = Operation(name, "o", "0", spec, held=False)
    site.world.operations.store(theirs)
    await site.settles(lambda: site.quarantine().status.drained_at)
    await later(600)
    assert (site.repaired, phases(site)) == ([], {name: "Pending"})
    site.world.operations.remove(theirs)
    await site.settles(site.is_released)
    assert site.repaired == ["reboot"]
    site.check()


async def test_a_persons_request_is_followed_once_and_not_again_in_a_later_quarantine() -> None:
    site = Site()
    site.ill = {}
    site.start()

    async def forced() -> None:
        await site.person_annotates("sickbay.dev/force", "drain fan 3")
        await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)

    async def released() -> None:
        await site.person_annotates("sickbay.dev/force", None)
        await site.settles(lambda: not site.world.quarantines)

    await forced()
    site.world.operations.person_requests("n1", "reboot", "a1")
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.SUCCEEDED)])
    await released()
    await forced()
    await later(600)
    assert site.repaired == ["reboot"]
    site.world.operations.person_requests("n1", "reboot", "a2")
    await site.settles(lambda: len(site.repaired) == 2)
    site.check()


async def test_a_request_is_remembered_where_its_quarantine_goes_without_an_undo() -> None:
    """As with its definition: the Node alone remembers it then."""
    site = Site()
    site.ill, site.shop.boots = {}, False
    site.start()
    await site.drained_by_hand()
    site.world.operations.person_requests("n1", "reboot", "a1")
    await site.settles(lambda: site.repaired)
    site.world.person_removes_by_force("n1")
    await site.settles(lambda: not site.world.nodes["n1"].unschedulable)
    await site.person_annotates("sickbay.dev/force", "drain fan 4")
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(TIMEOUT + 600)  # the reservation of the first one is over
    assert site.repaired == ["reboot"]


async def test_a_request_that_was_not_followed_ends_with_its_quarantine() -> None:
    site = Site()
    site.ill = {}
    site.start()
    await site.drained_by_hand()
    site.world.operations.person_requests("n1", "replace", "a1")  # nobody carries that out
    await site.settles(lambda: site.quarantine().status.repair.requests)
    await site.person_annotates("sickbay.dev/force", None)
    await site.settles(lambda: not site.world.quarantines)
    assert phases(site) == {"a1": "Cancelled"}


@pytest.mark.parametrize("there", [True, False])
async def test_a_force_is_taken_back_while_a_repair_is_under_way(*, there: bool) -> None:
    """``there``: the Node. Where it is gone, nobody has taken anything back."""
    site = Site(kinds=("replace",))
    site.ill, site.shop.boots, site.shop.cancels = {}, False, True
    site.start()
    await site.drained_by_hand()
    site.world.operations.person_requests("n1", "replace", "a1")
    await site.settles(lambda: site.repaired)
    if there:
        site.world.person_annotates("n1", "sickbay.dev/force", None)
    else:
        site.world.delete_node("n1")
    await site.replica.controller.parts.cluster_events.refresh_nodes()
    await site.settles(lambda: not site.world.quarantines, within=TIMEOUT / 2)
    # The Node that is gone is the proof of its replacement.
    assert reported_ends(site) == ["Cancelled" if there else "Succeeded"]


async def test_a_request_of_before_the_drains_end_ends_with_its_quarantine() -> None:
    site = Site()
    site.ill = {}
    site.start()
    await site.person_annotates("sickbay.dev/force", "drain fan 3")
    await soon(lambda: site.world.quarantines and site.quarantine().status.phase is Phase.DRAINING)
    site.world.operations.person_requests("n1", "reboot", "a1")
    site.world.person_deletes("n1")
    await site.settles(lambda: not site.world.quarantines)
    assert phases(site) == {"a1": "Cancelled"}
