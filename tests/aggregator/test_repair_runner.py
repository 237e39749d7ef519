"""Repairs of drained nodes by the whole controller, in virtual time, and every interruption."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    UNGUARDED,
    Guard,
    GuardRefused,
    Node,
    Phase,
    Quarantine,
    QuarantineStatus,
    Refused,
    RepairState,
    RepairStatus,
    Unreachable,
)
from aggregator.events import EventKind
from aggregator.health.model import Delta, Status
from aggregator.quarantine.actions.act_guard import MOST_AGE
from aggregator.quarantine.decide.admission_record import (
    parse_record,
)
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.decide.repair import RepairMode, is_busy, operation_id
from aggregator.quarantine.reconcile.operations import OperationReconciler
from aggregator.quarantine.repair.orders import evidence_bundle
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairSettings,
)
from aggregator.quarantine.repair.quarantine_case import QuarantineCase
from aggregator.quarantine.repair.runner import POLL_EVERY
from tests.aggregator.repair_site import ILL, POLICY, WELL, Site, reported_ends
from tests.support.memory_cluster import MemoryCluster
from tests.support.present import present
from tests.support.repair_shop import TIMEOUT, repair_settings
from tests.support.replica import (
    OPEN,
    SETTINGS,
    Replica,
    component,
    reconciler_of,
    shipped_policy,
    snapshot,
)
from tests.support.virtual_replica import Running, later
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


async def test_a_drained_node_is_rebooted_and_released_after_another_boot() -> None:
    site = Site()
    await site.runs_until(site.is_released)
    site.check()
    assert site.repaired == ["reboot"]
    (order,) = site.shop.orders
    assert (order.node, order.boot_id, order.gpus) == ("n1", "boot-1", ("GPU-1",))
    record = parse_record(site.world.record.text)
    assert record.repairs == {}
    assert [one.repair for one in record.past_repairs["n1"]] == ["reboot"]
    kinds = site.replica.notes.kinds("n1")
    told = ["quarantine.drained", "repair.ordered", "repair.ended", "quarantine.released"]
    assert [kind for kind in kinds if kind in told] == told


class WithoutKubelets(MemoryCluster):
    """Its nodes have neither boots nor readiness, as in Slurm and in a local cluster."""

    async def read_node(self, name: str, **more: bool) -> Node | None:
        found = await super().read_node(name, **more)
        return replace(found, boot_id="", ready=None) if found is not None else None


async def test_without_a_kubelet_the_boot_that_the_agent_reports_proves_the_reboot() -> None:
    site = Site()
    site.start(WithoutKubelets(site.world))
    await site.ends_well(site.is_released)
    (order,) = site.shop.orders
    assert (order.repair, order.boot_id) == ("reboot", "boot-1")
    [ended] = [one for one in site.replica.notes.transitions if one.kind is EventKind.REPAIR_ENDED]
    assert ended.details["outcome"] == RepairState.SUCCEEDED


async def writes_of_a_drain(settings: RepairSettings | None) -> tuple[list[str], Site]:
    """All writes of an hour; with None the configuration has no section about repairs."""
    site = Site()
    cluster = MemoryCluster(site.world)
    if settings is None:
        site.replica = Replica(site.world, clock=Running(), policy=POLICY, cluster=cluster)
        site.report("n1")
    else:
        site.mode = settings.rules.mode
        site.start(cluster)
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(3600)
    await site.replica.stop()
    return site.world.writes, site


@pytest.mark.parametrize("mode", [RepairMode.OFF, RepairMode.OBSERVE])
async def test_without_the_mode_no_repair_is_ordered_and_each_write_is_as_before(
    mode: RepairMode,
) -> None:
    before, _ = await writes_of_a_drain(None)
    after, site = await writes_of_a_drain(repair_settings(mode=mode))
    assert after == before
    assert site.repaired == []
    assert site.quarantine().status.repair == RepairStatus()
    record = parse_record(site.world.record.text)
    assert (record.operations, record.past_repairs) == ({}, {})
    told = site.replica.notes.kinds("n1").count("repair.suppressed")
    assert told == (mode is RepairMode.OBSERVE)


async def test_a_node_on_which_work_stays_is_not_repaired_before_that_is_gone() -> None:
    site = Site()
    await site.runs_until(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    # In the moment in which it is drained another pod comes, which tolerates our taint.
    site = Site()
    pod = site.world.add_pod("n1", "kept", owner_kind="")  # no controller: it is never evicted
    site.start()
    await later(3600)
    assert site.repaired == []
    del site.world.pods[f"n1/{pod.name}"]
    await site.settles(site.is_released)
    assert site.repaired == ["reboot"]
    site.check()


async def test_a_pod_that_came_after_the_drain_holds_the_repair() -> None:
    site = Site()
    site.kinds = ()
    await site.runs_until(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await site.replica.stop()
    pod = site.world.add_pod("n1", "late")
    site.kinds = ("reboot",)
    site.world.put_quarantine(
        replace(site.quarantine(), status=replace(site.quarantine().status, repair=RepairStatus()))
    )
    await site.runs_until(lambda: site.quarantine().status.repair.held)
    repair = site.quarantine().status.repair
    assert "work is still on the node: jobs/late" in repair.held
    assert site.repaired == []
    del site.world.pods[f"n1/{pod.name}"]
    await site.ends_well(site.is_released)


async def test_an_order_directly_after_the_drain_needs_no_further_read_of_the_pods() -> None:
    reads = []
    for kinds in ((), ("reboot",)):
        site = Site(kinds=kinds)
        cluster = MemoryCluster(site.world)
        site.start(cluster)
        await site.settles(lambda site=site: site.world.quarantines)
        await site.settles(
            lambda site=site: (
                site.quarantine().status.drained_at and len(site.repaired) == len(site.kinds)
            )
        )
        reads.append(cluster.asked["pods_on"])
        await site.replica.stop()
    drained, ordered = reads
    assert ordered == drained > 0


async def test_an_order_that_waited_after_the_drain_reads_the_pods_again() -> None:
    site = Site("n1", "n2")
    site.rules = {"concurrent": 1}
    site.shop.boots = False
    await site.runs_until(lambda: site.repaired)
    (first,) = site.shop.orders
    (second,) = {"n1", "n2"} - {first.node}

    def holds(text: str) -> bool:
        return text in site.quarantine(second).status.repair.held

    await site.settles(lambda: holds("concurrent"))
    site.world.add_pod(second, "late")
    site.shop._boot(first.node)
    await site.settles(lambda: holds("work is still on the node: jobs/late"))
    assert site.repaired == ["reboot"]
    site.check()


async def test_a_failed_rung_is_followed_by_the_next_and_a_ticket_ends_the_ladder() -> None:
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.shop.answer = RepairAnswer(AnswerState.FAILED, "the BMC refuses")
    await site.runs_until(site.is_exhausted)
    assert site.attempts() == [
        ("reboot", RepairState.FAILED),
        ("replace", RepairState.FAILED),
        ("ticket", RepairState.FAILED),
    ]
    await later(3600)
    assert len(site.shop.orders) == 3
    assert site.replica.notes.kinds("n1").count("repair.exhausted") == 1
    assert parse_record(site.world.record.text).repairs == {}
    site.check()


async def test_a_ticket_has_what_the_agent_collected_before_the_acts() -> None:
    site = Site()
    site.shop.answer = RepairAnswer(AnswerState.FAILED, "no")
    deep = "[" * 100_000
    told = {
        "q-1-reboot": '{"kernel_log": ["NVRM: Xid"], "at": "\\u00e9"}',
        "q-2": '{"n": NaN}',
        "q-3": f'{{"n": {deep}}}',
        "q-4": "[1]",
        "q-5": "no JSON",
    }
    asked: list[tuple[str, str]] = []

    def collected(node: str, quarantine: str) -> dict[str, str]:
        asked.append((node, quarantine))
        return told

    site.rules["collected"] = collected
    await site.runs_until(site.is_exhausted)
    ticket = site.shop.orders[-1]
    found = json.loads(ticket.bundle)
    assert found["agent"] == [
        {"operation": "q-1-reboot", "collected": {"kernel_log": ["NVRM: Xid"], "at": "\u00e9"}}
    ]
    assert [one["code"] for one in found["evidence"]] == ["xid:79"]
    assert [one["repair"] for one in found["attempts"]] == ["reboot", "ticket"]
    assert set(asked) == {("n1", ticket.quarantine)}
    assert site.shop.orders[0].bundle == ""
    told.clear()
    assert "agent" not in json.loads(evidence_bundle(site.quarantine(), told))


async def test_a_reboot_without_another_boot_fails_at_its_deadline() -> None:
    site = Site()
    site.shop.boots = False
    await site.runs_until(
        lambda: (
            site.attempts()[:1] == [("reboot", RepairState.FAILED)]
            if site.world.quarantines
            else False
        )
    )
    attempt = site.quarantine().status.repair.attempts[0]
    assert attempt.ended_at >= attempt.deadline_at == pytest.approx(attempt.began_at + TIMEOUT)
    await site.settles(site.is_exhausted)
    assert site.repaired == ["reboot", "ticket"]


async def test_an_order_with_an_unknown_outcome_is_not_repeated_and_asks_a_person() -> None:
    site = Site()
    site.shop.answer, site.shop.boots = RepairAnswer(AnswerState.UNSURE, "a timeout"), False
    await site.runs_until(site.is_exhausted)
    assert site.attempts() == [("reboot", RepairState.UNKNOWN)]
    await later(4 * TIMEOUT)
    assert site.repaired == ["reboot"]
    site.check()


async def test_what_an_order_left_is_removed_before_its_end_is_written() -> None:
    site = Site()
    await site.runs_until(site.is_released)
    site.check()
    assert site.shop.cleaned == [one.operation for one in site.shop.orders]
    assert site.shop.ended == site.shop.cleaned


async def test_another_boot_is_no_proof_while_the_other_controller_is_at_work() -> None:
    """A remediator of medik8s deletes the pods of the node when it has returned."""
    site = Site()
    site.shop.over = False
    await site.runs_until(lambda: site.world.nodes["n1"].boot_id != "boot-1")
    await later(300)
    assert site.attempts() == [("reboot", RepairState.ORDERED)]
    site.shop.over = True
    await site.ends_well(site.is_released)


async def test_an_order_with_an_unknown_outcome_that_worked_is_proved_by_the_node() -> None:
    site = Site()
    site.shop.answer = RepairAnswer(AnswerState.UNSURE, "a timeout")
    await site.runs_until(lambda: site.repaired)
    await later(100)
    site.shop._boot("n1")
    await site.settles(site.is_released)
    assert site.repaired == ["reboot"]


@pytest.mark.parametrize("told", [True, False])
async def test_the_end_of_an_order_is_taken_up_when_the_agent_tells_it(*, told: bool) -> None:
    site = Site()
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await later(POLL_EVERY + 1.0)
    begun = asyncio.get_running_loop().time()
    site.shop.look = RepairAnswer(AnswerState.FAILED, "no")
    if told:
        site.replica.controller.on_order_end("n1")
    await site.settles(lambda: site.attempts()[0] == ("reboot", RepairState.FAILED))
    assert (asyncio.get_running_loop().time() - begun < 1.0) is told


async def test_an_end_that_is_told_while_its_order_is_written_is_taken_up_at_once() -> None:
    site, told = Site(), list[float]()
    site.shop.boots = False

    class Slow(MemoryCluster):
        async def write_quarantine_status(
            self, quarantine: Quarantine, status: QuarantineStatus
        ) -> Quarantine:
            written = await super().write_quarantine_status(quarantine, status)
            if not told and site.attempts() == [("reboot", RepairState.ORDERED)]:
                told.append(asyncio.get_running_loop().time())
                site.shop.look = RepairAnswer(AnswerState.FAILED, "no")
                site.replica.controller.on_order_end("n1")
            return written

    site.start(Slow(site.world))
    await site.settles(lambda: told)
    await site.settles(lambda: site.attempts()[0] == ("reboot", RepairState.FAILED))
    assert asyncio.get_running_loop().time() - told[0] < 1.0


async def test_the_end_of_an_order_to_a_node_out_of_quarantine_changes_nothing() -> None:
    site = Site()
    await site.runs_until(site.is_released)
    writes = list(site.world.writes)
    for node in ("n1", "unknown"):
        site.replica.controller.on_order_end(node)
    await later(60)
    assert site.world.writes == writes


@pytest.mark.parametrize("action", ["observe", "cordon"])
async def test_incidents_that_come_and_go_bring_no_look_at_a_repair(action: str) -> None:
    """An agent may tell of twenty a second, and each look reads the node and asks the repairer."""
    site = Site()
    flapping = f"{{name: flapping, kind: disk, check: own, status: failed, action: {action}, "
    site.policy = shipped_policy(
        "rules:\n  - {name: gpu-gone, repair: [reboot, ticket]}\n"
        f"  - {flapping}for: 0s, healthyFor: 0s}}\n"
    )
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await later(POLL_EVERY + 1.0)
    before, closed = site.replica.cluster.asked["read_node"], len(site.replica.notes.transitions)
    for _ in range(300):
        for status in (Status.FAILED, Status.OK):
            site.replica.agent("n1", Delta((component("own", "", status),)))
            await later(0.05)
    assert len(site.replica.notes.transitions) - closed >= 300
    assert site.replica.cluster.asked["read_node"] - before <= 30 / POLL_EVERY + 1


async def test_no_node_is_released_while_an_order_may_still_reach_it() -> None:
    site = Site()
    site.shop.boots = False
    await site.runs_until(lambda: site.repaired)
    site.replica.agent("n1", WELL)  # it recovers by itself, with the reboot on its way
    await later(TIMEOUT / 2)
    assert site.quarantine().status.phase is Phase.DRAINED
    site.shop._boot("n1")
    await site.ends_well(site.is_released)


async def test_the_stop_switch_holds_an_order_and_not_its_proof() -> None:
    site = Site()
    site.world.person_stops("a fire")
    site.kinds = ("reboot",)
    site.world.person_stops("")
    await site.runs_until(lambda: site.repaired)
    site.world.person_stops("a fire")
    await site.settles(site.is_released)  # proof and release go on
    site.check()
    await site.replica.stop()
    other = Site()
    other.kinds = ()
    other.start()
    await other.settles(lambda: other.world.quarantines and other.quarantine().status.drained_at)
    await other.replica.stop()
    other.world.person_stops("a fire")
    other.world.put_quarantine(
        replace(
            other.quarantine(), status=replace(other.quarantine().status, repair=RepairStatus())
        )
    )
    other.kinds = ("reboot",)
    other.start()
    await later(3600)
    assert other.repaired == []
    other.world.person_stops("")
    await other.settles(lambda: other.repaired)
    other.check()
    await other.replica.stop()


async def test_a_common_cause_found_after_the_quarantine_holds_the_repair() -> None:
    others = [f"n{number}" for number in range(2, 11)]
    site = Site("n1", *others)
    suspecting = replace(SETTINGS.limits, cooldown=900.0)
    common = CommonLimits(common_cause_percent=50.0, clique_label="")
    site.settings = replace(SETTINGS, limits=suspecting, common=common)
    site.ill |= dict.fromkeys(others, snapshot())
    pod = site.world.add_pod("n1", "kept", owner_kind="")  # no controller: it is never evicted
    await site.runs_until(lambda: site.world.quarantines)
    site.replica.agents(others, ILL)
    await site.settles(lambda: site.replica.fleet.causes)
    assert set(site.world.quarantines) == {"n1"}
    del site.world.pods[f"n1/{pod.name}"]

    def held() -> str:
        return site.quarantine().status.repair.held

    await site.settles(held)
    assert held().startswith("reboot is held by limits.common_cause_percent = 50%: ")
    await later(3600)
    assert site.shop.orders == []
    # The cause is over, then its cooldown; a restart meanwhile changes nothing.
    for name in others:
        site.ill[name] = WELL
        site.report(name)
    await site.settles(lambda: not site.replica.fleet.causes)
    await site.replica.stop()
    await site.runs_until(lambda: "limits.cooldown" in held() or site.shop.orders)
    assert site.shop.orders == []
    await site.settles(lambda: site.shop.orders)
    assert [one.node for one in site.shop.orders] == ["n1"]
    site.check()


async def test_a_person_may_have_a_node_repaired_whatever_the_fleet_has() -> None:
    site = Site("n1", "n2")
    site.settings = replace(SETTINGS, limits=replace(SETTINGS.limits, quorum_percent=100.0))
    await site.runs_until(lambda: site.world.quarantines)
    await site.replica.stop()
    del site.ill["n2"]  # its agent does not report to the next controller
    await site.runs_until(lambda: site.quarantine().status.repair.held)
    repair = site.quarantine().status.repair
    assert "limits.quorum_percent" in repair.held
    assert site.shop.orders == []
    site.world.operations.person_requests("n1", "reboot", "by-hand")
    await site.settles(lambda: site.shop.orders)


async def test_two_nodes_of_a_rack_are_repaired_one_after_the_other() -> None:
    site = Site("n1", "n2", "n3")
    site.rules = {"concurrent": 3, "concurrent_percent": 100.0}
    for name in ("n1", "n2"):
        site.world.set_node(replace(site.world.nodes[name], labels={"rack": "7"}))
    site.shop.boots = False
    await site.runs_until(lambda: len(site.shop.orders) >= 2)
    await later(600)
    racks = [site.world.nodes[one.node].labels.get("rack") for one in site.shop.orders]
    assert sorted(racks, key=str) == ["7", None]
    await site.settles(lambda: len([o for o in site.shop.orders if o.repair == "reboot"]) == 3)
    site.check()


@pytest.mark.parametrize("call", ["create_operation", "write_operation", "guard"])
async def test_a_repair_whose_operation_is_refused_leaves_its_place_to_others(call: str) -> None:
    tries, refused = 0, True

    def fails(name: str) -> Refused | None:
        nonlocal tries
        tries += name == call
        return Refused("exceeded quota") if refused and name == call else None

    async def refuse() -> None:
        fails("guard")
        if refused and parse_record(site.world.record.text).operations:
            raise GuardRefused("the mode of the node's pool is observe now")

    site = Site()
    site.rules = {"attempts": 1}
    acts = site.start(fails=fails).controller.parts.worker._reads.acts
    if call == "guard":
        vars(acts)["guard"] = lambda *_, **__: Guard(refuse)
    await site.settles(lambda: tries > 9)
    assert not parse_record(site.world.record.text).operations
    told = [one.details.get("limit") for one in site.replica.notes.transitions]
    assert told.count("repair.refused") == (call != "guard")
    refused = False
    await site.settles(lambda: site.shop.orders)
    site.check()


async def test_a_repair_whose_name_a_stranger_has_leaves_its_place_to_others() -> None:
    site = Site()
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.world.quarantines)
    name = operation_id(site.quarantine().uid, RepairStatus(), "reboot")
    site.world.operations.person_requests("n1", "reboot", name, quarantine="another")
    await site.settles(lambda: site.quarantine().status.drained_at)
    await later(60)
    assert not parse_record(site.world.record.text).operations
    assert "delete it" in present(site.quarantine().status.repair).held
    site.world.operations.person_deletes(name)
    await site.settles(lambda: site.shop.orders)
    site.check()


async def test_a_repair_that_has_ended_counts_no_more_before_the_watch_shows_that() -> None:
    site = Site("n1", "n2")
    site.rules = {"concurrent": 1, "concurrent_percent": 100.0}
    index = site.start().controller.parts.registry.quarantine_index
    await site.settles(lambda: is_busy(index.repair_of("n1")) or is_busy(index.repair_of("n2")))
    [first] = site.shop.orders
    index.seen = lambda _: None  # type: ignore[method-assign, assignment]
    index.gone = lambda *_: None  # type: ignore[method-assign]
    await site.settles(lambda: len(site.shop.orders) == 2)
    assert first.node in {one.node for one in index.quarantines()}, "the watch has shown nothing"
    site.check()


@pytest.mark.parametrize("look", [0.0, 7.0, 14.0])
async def test_a_node_that_a_repair_replaced_is_never_marked(look: float) -> None:
    """The new Node may be seen at any time between two looks at the repair."""
    site = Site(kinds=("replace",))
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("replace", RepairState.ORDERED)])
    await later(look)
    site.world.renew_node("n1", "boot-2")
    marked: list[str] = []

    def settled() -> bool:
        marked.extend(name for name, node in site.world.nodes.items() if node.unschedulable)
        return not site.world.quarantines

    await site.settles(settled)
    assert marked == []
    assert "repair.ended" in site.replica.notes.kinds("n1")


async def test_a_node_in_place_of_one_that_is_being_rebooted_has_no_work_before_the_proof() -> None:
    """A BMC that is known by the node's name may still reboot the machine."""
    site = Site()
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await later(7)
    site.world.renew_node("n1", "boot-2")
    site.world.set_node(replace(site.world.nodes["n1"], ready=False))
    await site.settles(lambda: site.world.nodes["n1"].unschedulable, within=60)
    await later(60)
    assert site.attempts() == [("reboot", RepairState.ORDERED)]
    site.world.set_node(replace(site.world.nodes["n1"], ready=True))
    site.report("n1")
    await site.settles(site.is_released)
    assert not site.world.nodes["n1"].unschedulable


async def test_an_order_that_waited_is_not_sent_onto_work_that_has_come() -> None:
    """As where the node's agent was away for minutes."""
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    pod = site.world.add_pod("n1", "late")
    site.shop.answer = RepairAnswer(AnswerState.TAKEN)
    await later(120)
    assert site.shop.done == []
    repair = site.quarantine().status.repair
    assert "work is still on the node: jobs/late" in repair.held
    del site.world.pods[f"n1/{pod.name}"]
    await site.settles(site.is_released)
    assert len(site.shop.done) == 1
    site.check()


async def test_work_that_comes_while_the_repair_is_reserved_holds_its_order() -> None:
    """The reservation waits in a queue: the order rests on what was read before it."""
    site, came = Site(), list[str]()

    async def reserves(name: str) -> None:
        drained = site.world.quarantines and site.quarantine().status.drained_at
        if name == "write_record" and drained and not came:
            came.append(site.world.add_pod("n1", "late").name)
            await asyncio.sleep(MOST_AGE)

    site.start(MemoryCluster(site.world, in_queue=reserves))
    await site.settles(lambda: came and site.attempts())
    await later(120)
    assert site.shop.orders == []
    repair = site.quarantine().status.repair
    assert "work is still on the node: jobs/late" in repair.held
    del site.world.pods[f"n1/{came[0]}"]
    await site.settles(site.is_released)
    assert len(site.shop.done) == 1
    site.check()


async def test_an_end_is_reported_where_what_follows_it_can_not_be_written() -> None:
    site, failed = Site(), list[str]()
    site.keeps_objects = False

    def away(name: str) -> Unreachable | None:
        over = site.attempts() == [("reboot", RepairState.SUCCEEDED)]
        if name == "read_quarantine" and over and not failed:
            failed.append(name)
            return Unreachable("no answer")
        return None

    site.start(MemoryCluster(site.world, fails=away))
    await site.settles(site.is_released)
    assert failed
    assert reported_ends(site) == ["Succeeded"]
    assert parse_record(site.world.record.text).repairs == {}
    site.check()


async def test_an_order_that_was_not_sent_is_taken_back_without_the_repairer() -> None:
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    site.world.operations.person_cancels("n1")
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.CANCELLED)])
    assert site.shop.done == []


async def test_mode_observe_sends_no_order_that_waits() -> None:
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    await site.replica.stop()
    site.mode, site.shop.answer = RepairMode.OBSERVE, RepairAnswer(AnswerState.TAKEN)
    orders = len(site.shop.orders)
    site.start()
    await later(TIMEOUT / 2)
    assert len(site.shop.orders) == orders


async def test_another_boot_of_the_same_node_is_no_replacement() -> None:
    site = Site(kinds=("replace", "ticket"))
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("replace", RepairState.ORDERED)])
    site.world.set_node(replace(site.world.nodes["n1"], boot_id="boot-2"))
    site.report("n1")
    await later(600)
    assert site.attempts() == [("replace", RepairState.ORDERED)]
    assert site.world.nodes["n1"].unschedulable


async def test_no_order_leaves_after_the_deletion_of_its_quarantine_is_known() -> None:
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    runner = reconciler_of(site.replica, OperationReconciler)._repairs
    orders = len(site.shop.orders)
    node_state = site.replica.controller.parts.registry.node_state("n1")
    known = present(node_state.quarantine)
    deleted = replace(known, deleting=True, version=f"{int(known.version) + 1}")
    node_state.wrote(deleted)
    case = QuarantineCase(runner._of, node_state, known)
    with pytest.raises(GuardRefused):
        await runner._of.engine._send(case, known.status.repair.attempts[0], site.replica.clock())
    assert len(site.shop.orders) == orders


async def test_a_repair_counts_in_the_pool_that_its_node_has_joined_since_the_last_list() -> None:
    site = Site("n1", "n2")
    site.shop.boots = False
    site.settings = replace(SETTINGS, limits=replace(OPEN, pool_label="pool"))
    site.rules = {"concurrent": 4, "concurrent_percent": 100.0}
    for name, pool in (("n1", "a"), ("n2", "b")):
        site.world.set_node(replace(site.world.nodes[name], labels={"pool": pool}))
    blocked = next(one for one in site.world.pods.values() if one.node == "n2")
    site.world.budget_blocks.add(blocked.uid)

    def moved(name: str) -> None:
        """No watch reports it before the read that precedes the repair."""
        found = site.world.quarantines.get("n2")
        if name == "read_node" and found is not None and found.status.phase is Phase.DRAINED:
            node = site.world.nodes["n2"]
            site.world.nodes["n2"] = replace(node, labels={**node.labels, "pool": "a"})

    site.start(MemoryCluster(site.world, fails=moved))
    await site.settles(lambda: site.attempts("n1") == [("reboot", RepairState.ORDERED)])
    site.world.budget_blocks.clear()

    def held() -> str:
        return site.quarantine("n2").status.repair.held

    await site.settles(lambda: held() or site.attempts("n2"))
    assert ("repair.pool_concurrent" in held(), site.attempts("n2")) == (True, [])


class SlowWrites(MemoryCluster):
    """A write of a status takes 0.9 s, an order 3.5 s. Work comes while the end of the drain is
    written.
    """

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        if status.phase is Phase.DRAINED and quarantine.status.phase is not Phase.DRAINED:
            await later(0.05)
            self.world.add_pod("n1", "late")
        await later(0.9)
        return await super().write_quarantine_status(quarantine, status)

    async def _call(self, name: str, effect: Any, guard: Guard = UNGUARDED) -> Any:
        await later(3.5 if name == "repair" else 0.0)
        return await super()._call(name, effect, guard)


async def test_an_order_rests_on_no_read_of_the_pods_that_is_older_than_its_guard_allows() -> None:
    """The drain's last read counts for the beginning of the repair, too."""
    site = Site()
    site.shop.boots = False
    site.start(SlowWrites(site.world))
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(60)
    assert site.repaired == []
    site.check()
