"""Repairs of drained nodes by the whole controller, in virtual time, and every interruption."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    BUSY,
    ClusterError,
    Phase,
    Quarantine,
    QuarantineStatus,
    RepairState,
    Unreachable,
)
from aggregator.health.model import Cleared, Delta, Status
from aggregator.quarantine.controller import ROUNDS
from aggregator.quarantine.decide.admission_record import (
    RunningRepair,
    dump_record,
    parse_record,
)
from aggregator.quarantine.decide.repair import REQUEST, RepairMode, read_request
from aggregator.quarantine.repair.orders import evidence_bundle
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.quarantine.repair.runner import LOOK_EVERY
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.repair_shop import TIMEOUT, Shop, ShopRepairer, repair_settings
from tests.support.replica import (
    SETTINGS,
    Replica,
    component,
    fault,
    shipped_policy,
    snapshot,
)
from tests.support.virtual_replica import Running, later, soon
from tests.support.virtual_time import in_virtual_time

#: The rule of Xid 79 with two rungs.
POLICY = shipped_policy("rules:\n  - {name: gpu-gone, repair: [reboot, replace, ticket]}\n")
ILL, WELL = snapshot(fault()), snapshot(cleared=(Cleared("xid:79", "GPU-1", "reboot"),))


class Site:
    """A world, its machines, and one replica after the other."""

    def __init__(self, *nodes: str, kinds: tuple[str, ...] = ("reboot", "ticket")) -> None:
        self.world = World()
        for name in nodes or ("n1",):
            self.world.add_node(name)
            self.world.add_pod(name, f"job-{name}")
        self.shop = Shop(self.world, on_boot=self.report)
        self.kinds = kinds
        self.twice = self.seen = False
        #: Whether orders leave objects in the cluster.
        self.keeps_objects = True
        self.replica: Replica
        self.mode, self.policy = RepairMode.REPAIR, POLICY
        self.rules: dict[str, Any] = {}
        self.ill = dict.fromkeys(nodes or ("n1",), ILL)

    def start(self, cluster: MemoryCluster | None = None, **more: Any) -> Replica:
        cluster = cluster or MemoryCluster(self.world, **more)
        self.replica = Replica(
            self.world,
            clock=Running(),
            settings=replace(SETTINGS, repair=self.repair(cluster)),
            policy=self.policy,
            cluster=cluster,
        )
        for name in self.ill:
            self.report(name)
        return self.replica

    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        """The repairers of a process with this connection."""
        made = [
            (kind, ShopRepairer(self.shop, cluster, sends_twice=self.twice)) for kind in self.kinds
        ]
        settings = repair_settings(*made, mode=self.mode, **self.rules)
        if self.keeps_objects:
            return settings
        found = {kind: replace(one, clean_up=None) for kind, one in settings.repairers.items()}
        return replace(settings, repairers=found)

    def report(self, name: str) -> None:
        """The node's agent attaches, in the machine's present boot: another one is well."""
        boot = self.world.nodes[name].boot_id
        told = self.ill[name] if boot == "boot-1" else WELL
        self.replica.agent(name, told, boot_id=boot)

    def quarantine(self, name: str = "n1") -> Quarantine:
        return self.world.quarantines[name]

    def attempts(self, name: str = "n1") -> list[tuple[str, RepairState]]:
        found = self.world.quarantines.get(name)
        repair = found.status.repair if found is not None else None
        return [(one.repair, one.state) for one in repair.attempts] if repair else []

    def is_exhausted(self, name: str = "n1") -> bool:
        found = self.world.quarantines.get(name)
        return bool(found and found.status.repair and found.status.repair.exhausted)

    def is_released(self) -> bool:
        """It was in quarantine, and is not any more."""
        self.seen = self.seen or bool(self.world.quarantines)
        return self.seen and not self.world.quarantines

    async def drained_by_hand(self) -> None:
        """A person has node n1 drained, which has no evidence."""
        self.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
        await self.replica.controller._cluster_events.refresh_nodes()
        await self.settles(lambda: self.world.quarantines and self.quarantine().status.drained_at)

    async def settles(self, what: Any, within: float = 4 * TIMEOUT) -> None:
        def settled() -> bool:
            self.go_on()
            return bool(what())

        await soon(settled, within=within)

    def go_on(self) -> None:
        """The acts of others in the cluster meanwhile."""
        self.world.kubelets_finish()

    def check(self) -> None:
        assert self.shop.wrong == []

    @property
    def repaired(self) -> list[str]:
        return [one.repair for one in self.shop.orders]


@in_virtual_time
async def test_a_drained_node_is_rebooted_and_released_after_another_boot() -> None:
    site = Site()
    site.start()
    await site.settles(site.is_released)
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
    await site.replica.stop()


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
@in_virtual_time
async def test_without_the_mode_no_repair_is_ordered_and_each_write_is_as_before(
    mode: RepairMode,
) -> None:
    before, _ = await writes_of_a_drain(None)
    after, site = await writes_of_a_drain(repair_settings(mode=mode))
    assert after == before
    assert site.repaired == []
    assert site.quarantine().status.repair is None
    assert "epair" not in site.world.record.text
    told = site.replica.notes.kinds("n1").count("repair.suppressed")
    assert told == (mode is RepairMode.OBSERVE)


@in_virtual_time
async def test_a_node_on_which_work_stays_is_not_repaired_before_that_is_gone() -> None:
    site = Site()
    site.start()
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
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
    await site.replica.stop()


@in_virtual_time
async def test_a_pod_that_came_after_the_drain_holds_the_repair() -> None:
    site = Site()
    site.kinds = ()
    site.start()
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await site.replica.stop()
    pod = site.world.add_pod("n1", "late")
    site.kinds = ("reboot",)
    site.world.put_quarantine(
        replace(site.quarantine(), status=replace(site.quarantine().status, repair=None))
    )
    site.start()
    await site.settles(lambda: site.quarantine().status.repair)
    repair = site.quarantine().status.repair
    assert repair is not None
    assert "pods are still on the node: jobs/late" in repair.held
    assert site.repaired == []
    del site.world.pods[f"n1/{pod.name}"]
    await site.settles(site.is_released)
    site.check()
    await site.replica.stop()


@in_virtual_time
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


@in_virtual_time
async def test_an_order_that_waited_after_the_drain_reads_the_pods_again() -> None:
    site = Site("n1", "n2")
    site.rules = {"concurrent": 1}
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.repaired)
    (first,) = site.shop.orders
    (second,) = {"n1", "n2"} - {first.node}

    def holds(text: str) -> bool:
        repair = site.quarantine(second).status.repair
        return repair is not None and text in repair.held

    await site.settles(lambda: holds("concurrent"))
    site.world.add_pod(second, "late")
    site.shop._boot(first.node)
    await site.settles(lambda: holds("pods are still on the node: jobs/late"))
    assert site.repaired == ["reboot"]
    site.check()
    await site.replica.stop()


@in_virtual_time
async def test_a_failed_rung_is_followed_by_the_next_and_a_ticket_ends_the_ladder() -> None:
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.shop.answer = RepairAnswer(AnswerState.FAILED, "the BMC refuses")
    site.start()
    await site.settles(site.is_exhausted)
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
    await site.replica.stop()


@in_virtual_time
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
    site.start()
    await site.settles(site.is_exhausted)
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
    await site.replica.stop()


@in_virtual_time
async def test_a_reboot_without_another_boot_fails_at_its_deadline() -> None:
    site = Site()
    site.shop.boots = False
    site.start()
    await site.settles(
        lambda: (
            site.attempts()[:1] == [("reboot", RepairState.FAILED)]
            if site.world.quarantines
            else False
        )
    )
    attempt = site.quarantine().status.repair.attempts[0]  # type: ignore[union-attr]
    assert attempt.ended_at >= attempt.deadline_at == pytest.approx(attempt.began_at + TIMEOUT)
    await site.settles(site.is_exhausted)
    assert site.repaired == ["reboot", "ticket"]
    await site.replica.stop()


@in_virtual_time
async def test_an_order_with_an_unknown_outcome_is_not_repeated_and_asks_a_person() -> None:
    site = Site()
    site.shop.answer, site.shop.boots = RepairAnswer(AnswerState.UNSURE, "a timeout"), False
    site.start()
    await site.settles(site.is_exhausted)
    assert site.attempts() == [("reboot", RepairState.UNKNOWN)]
    await later(4 * TIMEOUT)
    assert site.repaired == ["reboot"]
    site.check()
    await site.replica.stop()


@in_virtual_time
async def test_what_an_order_left_is_removed_before_its_end_is_written() -> None:
    site = Site()
    site.start()
    await site.settles(site.is_released)
    site.check()
    assert site.shop.cleaned == [one.operation for one in site.shop.orders]
    assert site.shop.ended == site.shop.cleaned
    await site.replica.stop()


@in_virtual_time
async def test_another_boot_is_no_proof_while_the_other_controller_is_at_work() -> None:
    """A remediator of medik8s deletes the pods of the node when it has returned."""
    site = Site()
    site.shop.over = False
    site.start()
    await site.settles(lambda: site.world.nodes["n1"].boot_id != "boot-1")
    await later(300)
    assert site.attempts() == [("reboot", RepairState.ORDERED)]
    site.shop.over = True
    await site.settles(site.is_released)
    site.check()
    await site.replica.stop()


@pytest.mark.parametrize("trouble", ["", "refused", "down", "hangs"])
@in_virtual_time
async def test_a_persons_release_withdraws_what_an_order_left_and_does_not_wait_for_it(
    trouble: str,
) -> None:
    """A Machine that stayed marked would be replaced with new work on its node."""
    site = Site()
    site.shop.boots = False
    site.shop.hangs = trouble == "hangs"
    refused = {"refused": AnswerState.FAILED, "down": AnswerState.NOT_SENT}
    site.shop.clean = RepairAnswer(refused.get(trouble, AnswerState.DONE), trouble)
    site.start()
    await site.settles(
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
    await site.replica.stop()


def reported_ends(site: Site) -> list[str]:
    notes = site.replica.notes.transitions
    return [one.details["outcome"] for one in notes if one.kind == "repair.ended"]


@pytest.mark.parametrize(
    ("cancels", "sent", "outcome"),
    [(True, True, "Cancelled"), (False, True, "Unknown"), (False, False, "Cancelled")],
)
@in_virtual_time
async def test_a_persons_release_cancels_the_open_order_first_and_reports_how_that_ended(
    *, cancels: bool, sent: bool, outcome: str
) -> None:
    site = Site()
    site.shop.boots, site.shop.cancels, site.keeps_objects = False, cancels, False
    site.twice = not sent
    if not sent:
        site.shop.answer = RepairAnswer(AnswerState.NOT_SENT)
    site.start()
    await site.settles(lambda: len(site.shop.orders) > 0 and bool(site.attempts()))
    await later(1)
    marked: list[bool] = []
    site.shop.on_cancel = lambda: marked.append(is_marked(site.world.nodes["n1"]))
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)
    assert site.shop.cancelled == [site.shop.orders[0].operation]
    assert marked == [True]
    assert reported_ends(site) == [outcome]
    await site.replica.stop()


@in_virtual_time
async def test_the_end_waits_for_the_removal_while_that_can_not_be_done_now() -> None:
    site = Site()
    site.shop.clean = RepairAnswer(AnswerState.NOT_SENT, "the API server is down")
    site.start()
    await site.settles(lambda: len(site.shop.cleaned) > 2)
    assert site.attempts() == [("reboot", RepairState.ORDERED)]
    site.shop.clean = RepairAnswer(AnswerState.DONE)
    await site.settles(site.is_released)
    site.check()
    assert site.repaired == ["reboot"]
    await site.replica.stop()


@pytest.mark.parametrize("state", [AnswerState.NOT_SENT, AnswerState.FAILED])
@in_virtual_time
async def test_what_can_not_be_removed_is_named_at_the_end(state: AnswerState) -> None:
    """Without an end of the attempt the node would never be released."""
    site = Site()
    site.shop.boots = False
    site.shop.clean = RepairAnswer(state, "may not delete")
    site.start()
    await site.settles(
        lambda: (
            bool(site.world.quarantines) and site.attempts()[:1] == [("reboot", RepairState.FAILED)]
        )
    )
    attempt = site.quarantine().status.repair.attempts[0]  # type: ignore[union-attr]
    assert attempt.message.endswith("what it left in the cluster can't be removed: may not delete")
    waited = attempt.ended_at - attempt.deadline_at
    assert 0 <= waited < (400 if state is AnswerState.NOT_SENT else 30)
    assert (waited >= 300) is (state is AnswerState.NOT_SENT)
    await site.replica.stop()


@in_virtual_time
async def test_an_order_with_an_unknown_outcome_that_worked_is_proved_by_the_node() -> None:
    site = Site()
    site.shop.answer = RepairAnswer(AnswerState.UNSURE, "a timeout")
    site.start()
    await site.settles(lambda: site.repaired)
    await later(100)
    site.shop._boot("n1")
    await site.settles(site.is_released)
    assert site.repaired == ["reboot"]
    await site.replica.stop()


@pytest.mark.parametrize("told", [True, False])
@in_virtual_time
async def test_the_end_of_an_order_is_taken_up_when_the_agent_tells_it(*, told: bool) -> None:
    site = Site()
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await later(LOOK_EVERY + 1.0)
    begun = asyncio.get_running_loop().time()
    site.shop.look = RepairAnswer(AnswerState.FAILED, "no")
    if told:
        site.replica.controller.on_order_end("n1")
    await site.settles(lambda: site.attempts()[0] == ("reboot", RepairState.FAILED))
    assert (asyncio.get_running_loop().time() - begun < 1.0) is told
    await site.replica.stop()


@in_virtual_time
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
    await site.replica.stop()


@in_virtual_time
async def test_the_end_of_an_order_to_a_node_out_of_quarantine_changes_nothing() -> None:
    site = Site()
    site.start()
    await site.settles(site.is_released)
    writes = list(site.world.writes)
    for node in ("n1", "unknown"):
        site.replica.controller.on_order_end(node)
    await later(60)
    assert site.world.writes == writes
    await site.replica.stop()


@pytest.mark.parametrize("action", ["observe", "cordon"])
@in_virtual_time
async def test_incidents_that_come_and_go_bring_no_look_at_a_repair(action: str) -> None:
    """An agent may tell of twenty a second, and each look reads the node and asks the repairer."""
    site = Site()
    flapping = f"{{name: flapping, kind: disk, check: own, status: failed, action: {action}, "
    site.policy = shipped_policy(
        "rules:\n  - {name: gpu-gone, repair: [reboot, ticket]}\n"
        f"  - {flapping}for: 0s, healthyFor: 0s}}\n"
    )
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await later(LOOK_EVERY + 1.0)
    before, closed = site.replica.cluster.asked["read_node"], len(site.replica.notes.transitions)
    for _ in range(300):
        for status in (Status.FAILED, Status.OK):
            site.replica.agent("n1", Delta((component("own", "", status),)))
            await later(0.05)
    assert len(site.replica.notes.transitions) - closed >= 300
    assert site.replica.cluster.asked["read_node"] - before <= 30 / LOOK_EVERY + 1
    await site.replica.stop()


@in_virtual_time
async def test_no_node_is_released_while_an_order_may_still_reach_it() -> None:
    site = Site()
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.repaired)
    site.replica.agent("n1", WELL)  # it recovers by itself, with the reboot on its way
    await later(TIMEOUT / 2)
    assert site.quarantine().status.phase is Phase.DRAINED
    site.shop._boot("n1")
    await site.settles(site.is_released)
    site.check()
    await site.replica.stop()


@in_virtual_time
async def test_the_stop_switch_holds_an_order_and_not_its_proof() -> None:
    site = Site()
    site.world.person_stops("a fire")
    site.kinds = ("reboot",)
    site.world.person_stops("")
    site.start()
    await site.settles(lambda: site.repaired)
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
        replace(other.quarantine(), status=replace(other.quarantine().status, repair=None))
    )
    other.kinds = ("reboot",)
    other.start()
    await later(3600)
    assert other.repaired == []
    other.world.person_stops("")
    await other.settles(lambda: other.repaired)
    other.check()
    await other.replica.stop()


@in_virtual_time
async def test_two_nodes_of_a_rack_are_repaired_one_after_the_other() -> None:
    site = Site("n1", "n2", "n3")
    site.rules = {"concurrent": 3, "concurrent_percent": 100.0}
    for name in ("n1", "n2"):
        site.world.set_node(replace(site.world.nodes[name], labels={"rack": "7"}))
    site.shop.boots = False
    site.start()
    await site.settles(lambda: len(site.shop.orders) >= 2)
    await later(600)
    racks = [site.world.nodes[one.node].labels.get("rack") for one in site.shop.orders]
    assert sorted(racks, key=str) == ["7", None]
    await site.settles(lambda: len([o for o in site.shop.orders if o.repair == "reboot"]) == 3)
    site.check()
    await site.replica.stop()


@in_virtual_time
async def test_a_person_starts_a_repair_and_takes_it_back() -> None:
    site = Site()
    site.ill = {}
    site.shop.boots, site.shop.cancels = False, True
    site.start()
    await site.drained_by_hand()
    await later(600)
    assert site.repaired == []  # a person's quarantine has no ladder
    site.world.person_annotates("n1", REQUEST, "reboot a1")
    await site.settles(lambda: site.repaired == ["reboot"])
    site.world.person_annotates("n1", REQUEST, "cancel a2")
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.CANCELLED)])
    await later(600)
    assert site.repaired == ["reboot"]
    site.check()
    await site.replica.stop()


@in_virtual_time
@pytest.mark.parametrize("request_text", ["reboot a1", "cancel a2"])
async def test_a_request_that_no_watch_has_shown_is_followed_after_the_next_list(
    request_text: str,
) -> None:
    """The local cluster has no watch of nodes, and a watch's event may be lost."""
    site = Site()
    site.ill = {}
    site.shop.boots, site.shop.cancels = False, True
    site.start()
    await site.drained_by_hand()
    if request_text.startswith("cancel"):
        site.world.person_annotates("n1", REQUEST, "reboot a1")
        await site.settles(lambda: site.repaired == ["reboot"])
    node = site.world.nodes["n1"]
    asked = {**node.annotations, REQUEST: request_text}
    site.world.nodes["n1"] = replace(node, annotations=asked, version=node.version + "1")
    ended = RepairState.CANCELLED if request_text.startswith("cancel") else RepairState.ORDERED
    await site.settles(lambda: site.attempts() == [("reboot", ended)], within=400)
    await site.replica.stop()


@in_virtual_time
async def test_a_persons_request_is_followed_once_and_not_again_in_a_later_quarantine() -> None:
    site = Site()
    site.ill = {}
    site.start()

    async def forced() -> None:
        site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
        await site.replica.controller._cluster_events.refresh_nodes()
        await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)

    async def released() -> None:
        site.world.person_annotates("n1", "sickbay.dev/force", None)
        await site.replica.controller._cluster_events.refresh_nodes()
        await site.settles(lambda: not site.world.quarantines)

    await forced()
    site.world.person_annotates("n1", REQUEST, "reboot a1")
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.SUCCEEDED)])
    await released()
    await forced()
    await later(600)
    assert site.repaired == ["reboot"]
    site.world.person_annotates("n1", REQUEST, "reboot a2")
    await site.settles(lambda: len(site.repaired) == 2)
    site.check()
    await site.replica.stop()


@in_virtual_time
async def test_a_request_is_remembered_where_its_quarantine_goes_without_an_undo() -> None:
    """As with its definition: the Node alone remembers it then."""
    site = Site()
    site.ill, site.shop.boots = {}, False
    site.start()
    await site.drained_by_hand()
    site.world.person_annotates("n1", REQUEST, "reboot a1")
    await site.settles(lambda: site.repaired)
    site.world.person_removes_by_force("n1")
    await site.settles(lambda: not site.world.nodes["n1"].unschedulable)
    site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 4")
    await site.replica.controller._cluster_events.refresh_nodes()
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(TIMEOUT + 600)  # the reservation of the first one is over
    assert site.repaired == ["reboot"]
    await site.replica.stop()


@in_virtual_time
async def test_a_request_that_was_not_followed_ends_with_its_quarantine() -> None:
    site = Site()
    site.ill = {}
    site.start()
    await site.drained_by_hand()
    site.world.person_annotates("n1", REQUEST, "replace a1")  # nobody carries that out
    await site.settles(lambda: site.quarantine().status.repair)
    site.world.person_annotates("n1", "sickbay.dev/force", None)
    await site.replica.controller._cluster_events.refresh_nodes()
    await site.settles(lambda: not site.world.quarantines)
    assert read_request(site.world.nodes["n1"].annotations) is None
    await site.replica.stop()


@pytest.mark.parametrize("there", [True, False])
@in_virtual_time
async def test_a_force_is_taken_back_while_a_repair_is_under_way(*, there: bool) -> None:
    """``there``: the Node. Where it is gone, nobody has taken anything back."""
    site = Site(kinds=("replace",))
    site.ill, site.shop.boots = {}, False
    site.start()
    await site.drained_by_hand()
    site.world.person_annotates("n1", REQUEST, "replace a1")
    await site.settles(lambda: site.repaired)
    if there:
        site.world.person_annotates("n1", "sickbay.dev/force", None)
    else:
        site.world.delete_node("n1")
    await site.replica.controller._cluster_events.refresh_nodes()
    await site.settles(lambda: not site.world.quarantines, within=TIMEOUT / 2)
    # The Node that is gone is the proof of its replacement.
    assert reported_ends(site) == ["Cancelled" if there else "Succeeded"]
    await site.replica.stop()


@pytest.mark.parametrize("look", [0.0, 7.0, 14.0])
@in_virtual_time
async def test_a_node_that_a_repair_replaced_is_never_marked(look: float) -> None:
    """The new Node may be seen at any time between two looks at the repair."""
    site = Site(kinds=("replace",))
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("replace", RepairState.ORDERED)])
    await later(look)
    site.world.renew_node("n1", "boot-2")
    marked: list[str] = []

    def settled() -> bool:
        marked.extend(name for name, node in site.world.nodes.items() if node.unschedulable)
        return not site.world.quarantines

    await site.settles(settled)
    assert marked == []
    assert "repair.ended" in site.replica.notes.kinds("n1")
    await site.replica.stop()


@in_virtual_time
async def test_a_node_in_place_of_one_that_is_being_rebooted_has_no_work_before_the_proof() -> None:
    """A BMC that is known by the node's name may still reboot the machine."""
    site = Site()
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
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
    await site.replica.stop()


@in_virtual_time
async def test_an_order_that_waited_is_not_sent_onto_work_that_has_come() -> None:
    """As where the node's agent was away for minutes."""
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    pod = site.world.add_pod("n1", "late")
    site.shop.answer = RepairAnswer(AnswerState.TAKEN)
    await later(120)
    assert site.shop.done == []
    repair = site.quarantine().status.repair
    assert repair is not None
    assert "pods are still on the node: jobs/late" in repair.held
    del site.world.pods[f"n1/{pod.name}"]
    await site.settles(site.is_released)
    assert len(site.shop.done) == 1
    site.check()
    await site.replica.stop()


@in_virtual_time
async def test_a_reservation_that_the_record_has_lost_is_counted_again() -> None:
    """As where a replica of a version without repairs writes the record."""
    site = Site()
    site.world.set_node(replace(site.world.nodes["n1"], labels={"rack": "7"}))
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    record = parse_record(site.world.record.text)
    known = record.repairs["n1"]
    assert known.domains == ("rack=7",)
    older = replace(record, repairs={}, past_repairs={}, generation=record.generation + 1)
    site.world.person_rolls_back_record(dump_record(older))
    await later(60)
    again = parse_record(site.world.record.text).repairs["n1"]
    assert replace(again, at=known.at, until=known.until) == known
    assert again.until == pytest.approx(known.until)
    await site.replica.stop()


@in_virtual_time
async def test_in_a_record_made_anew_a_repair_has_its_failure_domains() -> None:
    site = Site()
    site.world.set_node(replace(site.world.nodes["n1"], labels={"rack": "7"}))
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    await site.replica.stop()
    site.world.person_deletes_record()
    site.start()
    await site.settles(lambda: parse_record(site.world.record.text).repairs)
    assert parse_record(site.world.record.text).repairs["n1"].domains == ("rack=7",)
    await site.replica.stop()


class Dropped(MemoryCluster):
    """Another replica's write takes the reservation out right after the attempt was written."""

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        written = await super().write_quarantine_status(quarantine, status)
        if status.repair is not None and status.repair.attempts:
            record = parse_record(self.world.record.text)
            others = {
                name: RunningRepair(name, f"{name}-1", "reboot", one.at, one.until)
                for name in ("n8", "n9")
                for one in record.repairs.values()
            }
            text = dump_record(
                replace(record, repairs=others, generation=record.generation + len(others))
            )
            if others:
                self.world.person_rolls_back_record(text)
                await asyncio.sleep(0.1)
        return written


@in_virtual_time
async def test_no_order_is_sent_whose_reservation_is_gone() -> None:
    site = Site()
    site.twice = True
    site.start(Dropped(site.world))
    await site.settles(lambda: site.world.quarantines and site.attempts())
    await later(120)
    assert site.repaired == []
    repair = site.quarantine().status.repair
    assert repair is not None
    assert "repair.concurrent" in repair.held
    await site.replica.stop()


@in_virtual_time
async def test_status_that_sickbay_cannot_have_written_stops_the_repairs() -> None:
    site = Site()
    site.kinds = ()
    site.start()
    await site.settles(site.is_exhausted)
    await site.replica.stop()
    repair = site.quarantine().status.repair
    assert repair is not None
    broken = replace(repair, exhausted="", attempts=(replace_attempt(),))
    site.world.put_quarantine(
        replace(site.quarantine(), status=replace(site.quarantine().status, repair=broken))
    )
    site.kinds = ("reboot",)
    site.start()
    await later(3600)
    assert site.repaired == []
    assert "is no repair" in site.quarantine().status.repair.held  # type: ignore[union-attr]
    await site.replica.stop()


class OldDefinition(MemoryCluster):
    """Its API server drops `status.repair`, as a definition of before does."""

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        return await super().write_quarantine_status(quarantine, replace(status, repair=None))


@in_virtual_time
async def test_without_a_place_for_the_attempt_no_repair_is_ordered() -> None:
    site = Site()
    site.start(OldDefinition(site.world))
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(3600)
    assert site.repaired == []
    await site.replica.stop()


@in_virtual_time
async def test_after_a_start_no_repair_begins_before_the_agent_has_reported() -> None:
    site = Site()
    site.mode = RepairMode.OFF
    site.start()
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await site.replica.stop()
    site.mode = RepairMode.REPAIR
    known, site.ill = site.ill, {}
    following = site.start()
    await later(50)  # within the patience with agents after a start
    assert site.repaired == []
    site.ill = known
    site.report("n1")
    await site.settles(lambda: site.repaired == ["reboot"])
    await following.stop()


def replace_attempt() -> Any:
    from aggregator.cluster.port import RepairAttempt

    return RepairAttempt("x", "dance", RepairState.FAILED)


def test_a_deployment_without_the_section_repairs_nothing() -> None:
    assert RepairSettings().off
    assert ROUNDS < TIMEOUT


# -- every interruption ---------------------------------------------------------------------


@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("after", [True, False])
@in_virtual_time
async def test_death_at_any_call_of_a_repair_is_finished_by_the_next_process(
    *, after: bool, twice: bool
) -> None:
    """The process dies before or after each of its calls, the repairer's among them."""
    ends: set[str] = set()
    for calls in range(1, 60):
        site = Site()
        site.kinds, site.twice = (), twice
        site.start()
        await site.settles(lambda s=site: s.world.quarantines and s.quarantine().status.drained_at)
        await site.replica.stop()
        site.world.put_quarantine(
            replace(site.quarantine(), status=replace(site.quarantine().status, repair=None))
        )
        site.kinds = ("reboot", "ticket")
        first = site.start(crash_at=calls, after=after)
        await site.settles(
            lambda s=site, f=first: (
                f.cluster.crashed.is_set() or s.is_released() or s.is_exhausted()
            )
        )
        if not first.cluster.crashed.is_set():
            await first.stop()
            break
        await first.stop()
        second = site.start()
        await site.settles(lambda s=site: s.is_released() or s.is_exhausted())
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
    else:
        raise AssertionError("the repair needs more calls than were tried")
    assert "released" in ends
    assert ("unknown" in ends) == (not twice)


@pytest.mark.parametrize("lost", ["write_quarantine_status", "write_record", "read_node", "repair"])
@in_virtual_time
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
    await site.replica.stop()


# -- cancellations, and ends that are not lost ------------------------------------------------


@pytest.mark.parametrize("sent", [True, False])
@in_virtual_time
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
    site.world.person_annotates("n1", REQUEST, "cancel a1")
    await site.settles(site.is_exhausted)
    orders = len(site.shop.orders)
    await later(2 * TIMEOUT)
    ended = RepairState.FAILED if sent else RepairState.UNKNOWN
    assert site.attempts() == [("reboot", ended)]
    assert len(site.shop.orders) == orders
    site.world.person_annotates("n1", REQUEST, "replace a2")  # a person may go on
    await site.settles(lambda: site.repaired[-1] == "replace")
    await site.replica.stop()


@in_virtual_time
async def test_an_outcome_is_not_lost_while_what_the_order_left_is_being_removed() -> None:
    """A controller keeps its object for a moment, and then there is none that shows the outcome."""
    site = Site(kinds=("reboot", "replace", "ticket"))
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    site.shop.clean = RepairAnswer(AnswerState.NOT_SENT, "its controller's finalizer is there")
    site.shop.look = RepairAnswer(AnswerState.FAILED, "the machine has no power")
    await site.settles(lambda: site.shop.cleaned)
    site.shop.clean = RepairAnswer(AnswerState.DONE)
    site.shop.look = RepairAnswer(AnswerState.UNSURE, "the object is gone")
    await site.settles(lambda: ("reboot", RepairState.FAILED) in site.attempts(), within=60)
    await site.settles(lambda: "replace" in site.repaired)
    await site.replica.stop()


@pytest.mark.parametrize("after", [False, True])
@in_virtual_time
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


@in_virtual_time
async def test_an_order_that_was_not_sent_is_taken_back_without_the_repairer() -> None:
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    site.world.person_annotates("n1", REQUEST, "cancel a1")
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.CANCELLED)])
    assert site.shop.done == []
    await site.replica.stop()


@in_virtual_time
async def test_mode_observe_sends_no_order_that_waits() -> None:
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    await site.replica.stop()
    site.mode, site.shop.answer = RepairMode.OBSERVE, RepairAnswer(AnswerState.TAKEN)
    orders = len(site.shop.orders)
    site.start()
    await later(TIMEOUT / 2)
    assert len(site.shop.orders) == orders
    await site.replica.stop()


@in_virtual_time
async def test_another_boot_of_the_same_node_is_no_replacement() -> None:
    site = Site(kinds=("replace", "ticket"))
    site.shop.boots = False
    site.start()
    await site.settles(lambda: site.attempts() == [("replace", RepairState.ORDERED)])
    site.world.set_node(replace(site.world.nodes["n1"], boot_id="boot-2"))
    site.report("n1")
    await later(600)
    assert site.attempts() == [("replace", RepairState.ORDERED)]
    assert site.world.nodes["n1"].unschedulable
    await site.replica.stop()


@in_virtual_time
async def test_no_order_leaves_after_the_deletion_of_its_quarantine_is_known() -> None:
    site = Site()
    site.twice, site.shop.answer = True, RepairAnswer(AnswerState.NOT_SENT, "no agent")
    site.start()
    await site.settles(lambda: site.attempts() == [("reboot", RepairState.ORDERING)])
    runner, orders = site.replica.controller._repairs, len(site.shop.orders)
    node_state = site.replica.controller._registry.node_state("n1")
    known = node_state.node_summary.quarantine
    assert known is not None
    assert known.status.repair is not None
    deleted = replace(known, deleting=True, version=f"{int(known.version) + 1}")
    node_state.wrote(deleted)
    await runner._send(node_state, known, known.status.repair.attempts[0])
    assert len(site.shop.orders) == orders
    await site.replica.stop()


@in_virtual_time
async def test_a_request_of_before_the_drains_end_ends_with_its_quarantine() -> None:
    site = Site()
    site.ill = {}
    site.start()
    site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
    await site.replica.controller._cluster_events.refresh_nodes()
    await soon(lambda: site.world.quarantines and site.quarantine().status.phase is Phase.DRAINING)
    site.world.person_annotates("n1", REQUEST, "reboot a1")
    site.world.person_deletes("n1")
    await site.settles(lambda: not site.world.quarantines)
    assert read_request(site.world.nodes["n1"].annotations) is None
    await site.replica.stop()


@in_virtual_time
async def test_without_a_place_for_it_the_end_of_a_ladder_is_not_told_again_and_again() -> None:
    site = Site(kinds=("gpu-reset",))  # the ladder has no such rung
    site.start(OldDefinition(site.world))
    await site.settles(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    await later(3600)
    assert "repair.exhausted" not in site.replica.notes.kinds("n1")
    await site.replica.stop()
