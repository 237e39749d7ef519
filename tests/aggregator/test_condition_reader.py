"""Node conditions of other programs as evidence: only where a rule names them, never on silence."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.node_names import CONDITION, TEST_CONDITION
from aggregator.cluster.port import ClusterError, Phase, Unreachable
from aggregator.health.model import Status
from aggregator.policy.node_condition import (
    OWN_TYPES,
    STALE_AFTER,
    ReportedCondition,
    as_evidence,
)
from aggregator.quarantine.reconcile.condition_reader import READ_EVERY
from tests.support.memory_cluster import World
from tests.support.replica import Replica, shipped_policy, snapshot
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import VirtualTimeLoop, play, played_by
from tests.support.waiting import until

DEADLOCK = """
rules:
  - name: npd-deadlock
    kind: node
    condition: KernelDeadlock
    reasons: [DockerHung]
    for: 10m
    action: cordon
    healthyFor: 5m
    why: a site trusts its node-problem-detector
"""
READY = DEADLOCK.replace("KernelDeadlock", "example.com/Fit").replace(
    "reasons: [DockerHung]", 'unhealthy: "False"'
)
NODE = "node-1"


class Detector:
    """A replica over one node, and the program that writes the node's conditions."""

    def __init__(self, loop: VirtualTimeLoop, rules: str | None) -> None:
        self.loop, self.world = loop, World()
        self.world.add_node(NODE, boot_id="boot-1")
        self.trouble: ClusterError | None = None
        self.policy = shipped_policy(rules)
        self.replica = self.start()
        self.renewing = asyncio.Event()

    def start(self) -> Replica:
        return Replica(
            self.world,
            clock=LoopClock(self.loop),
            policy=self.policy,
            fails=lambda name: self.trouble if name == "list_conditions" else None,
        )

    def says(
        self, status: str, reason: str = "DockerHung", *, kind: str = "KernelDeadlock"
    ) -> None:
        now = self.loop.time()
        self.world.conditions[NODE] = {
            kind: ReportedCondition(kind, status, reason, "task blocked", now, now)
        }

    async def pass_time(self, seconds: float, *, renewed: bool = True) -> None:
        """As long as that; its program renews what it says once a minute."""
        until_then = self.loop.time() + seconds
        while self.loop.time() < until_then:
            await asyncio.sleep(60)
            if renewed:
                for kind, one in self.world.conditions.get(NODE, {}).items():
                    self.world.conditions[NODE][kind] = replace(one, heartbeat=self.loop.time())

    @property
    def phase(self) -> Phase | None:
        found = self.world.quarantines.get(NODE)
        return None if found is None else found.status.phase

    @property
    def status(self) -> Status | None:
        health = self.replica.fleet.node_summaries[NODE].agent.health
        level = health.level(("node-condition", "KernelDeadlock")) if health is not None else None
        return None if level is None else level.status


def detecting(test: Callable[[Detector], Awaitable[None]], rules: str | None = DEADLOCK) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        detector = Detector(loop, rules)
        try:
            await until(lambda: not detector.replica.fleet.view_lost)
            detector.replica.agent(NODE, snapshot())
            await test(detector)
        finally:
            await detector.replica.stop()

    play(main)


pytestmark = pytest.mark.decorated(by=played_by(detecting))


async def test_a_condition_cordons_after_its_time_and_releases_by_its_opposite(
    npd: Detector,
) -> None:
    npd.says("True")
    await npd.pass_time(540)
    assert (npd.status, npd.phase) == (Status.FAILED, None)
    await npd.pass_time(120)
    assert npd.phase is Phase.CORDONED
    [item] = npd.world.quarantines[NODE].spec.evidence
    assert (item.code, item.component) == ("node-condition:DockerHung", "KernelDeadlock")
    npd.says("False", "KernelHasNoDeadlock")
    await npd.pass_time(240)
    assert npd.phase is Phase.CORDONED, "it must stay well for its time"
    await npd.pass_time(READ_EVERY + 120)
    assert npd.phase is None


@played_by(detecting, READY)
async def test_a_status_of_the_other_polarity_is_evaluated_by_the_rules_word(npd: Detector) -> None:
    npd.says("True", kind="example.com/Fit")
    await npd.pass_time(1200)
    assert npd.phase is None
    npd.says("False", kind="example.com/Fit")
    await npd.pass_time(1200)
    assert npd.phase is Phase.CORDONED


@pytest.mark.parametrize("status", ["Unknown", "", "true"])
async def test_no_other_status_acts_or_ends_anything(npd: Detector, status: str) -> None:
    npd.says(status)
    await npd.pass_time(900)
    assert npd.phase is None
    npd.says("True")
    await npd.pass_time(900)
    npd.says(status)
    await npd.pass_time(1500)
    assert npd.phase is Phase.CORDONED


@played_by(detecting, DEADLOCK.replace("for: 10m", "for: 20m"))
async def test_a_condition_that_is_not_renewed_is_silence(npd: Detector) -> None:
    npd.says("True")
    npd.world.conditions[NODE]["KernelDeadlock"] = replace(
        npd.world.conditions[NODE]["KernelDeadlock"], since=1.0, heartbeat=1.0
    )
    await npd.pass_time(STALE_AFTER + READ_EVERY, renewed=False)
    npd.says("True")  # it died just after this
    await npd.pass_time(2400, renewed=False)
    assert (npd.status, npd.phase) == (Status.UNKNOWN, None)


async def test_a_condition_of_an_earlier_node_of_the_name_accuses_no_new_one(npd: Detector) -> None:
    npd.says("True")
    await npd.pass_time(READ_EVERY + 60)
    assert (npd.status, npd.phase) == (Status.FAILED, None)
    npd.trouble = Unreachable("no answer")  # the last list is of the earlier node
    npd.world.add_node(NODE, uid="uid-2", boot_id="boot-2")
    npd.replica.agent(NODE, snapshot(), boot_id="boot-2", node_uid="uid-2")
    await npd.pass_time(60)
    assert (npd.status, npd.phase) == (Status.UNKNOWN, None)
    await npd.pass_time(540)
    assert npd.phase is None


async def test_a_condition_without_a_time_of_its_change_counts_from_when_it_was_read(
    npd: Detector,
) -> None:
    npd.says("True")
    bad = npd.world.conditions[NODE]["KernelDeadlock"]
    npd.world.conditions[NODE]["KernelDeadlock"] = replace(bad, since=0.0)
    await npd.pass_time(540)
    assert (npd.status, npd.phase) == (Status.FAILED, None)
    await npd.pass_time(READ_EVERY + 120)
    assert npd.phase is Phase.CORDONED


@played_by(detecting, DEADLOCK.replace("for: 10m", "for: 20m"))
async def test_lists_that_fail_age_what_is_known_and_cause_no_action(npd: Detector) -> None:
    npd.says("True")
    await npd.pass_time(READ_EVERY + 60)
    assert npd.status is Status.FAILED
    npd.trouble = Unreachable("no answer")
    await npd.pass_time(2400)
    assert (npd.status, npd.phase) == (Status.UNKNOWN, None)
    npd.trouble = None
    await npd.pass_time(READ_EVERY + 60)
    assert npd.phase is Phase.CORDONED, "it was so all the time, by its own word"


async def test_a_quarantine_outlives_the_aggregator_and_ends_by_the_condition(
    npd: Detector,
) -> None:
    npd.says("True")
    await npd.pass_time(900)
    assert npd.phase is Phase.CORDONED
    await npd.replica.stop()
    del npd.world.conditions[NODE]
    npd.replica = npd.start()
    await until(lambda: not npd.replica.fleet.view_lost)
    npd.replica.agent(NODE, snapshot())
    await npd.pass_time(2400)
    assert npd.phase is Phase.CORDONED, "a condition that is not there is no positive sign"
    npd.says("False")
    await npd.pass_time(900)
    assert npd.phase is None


@played_by(detecting, rules=None)
async def test_without_a_rule_no_condition_is_ever_asked_for(npd: Detector) -> None:
    npd.says("True")
    await npd.pass_time(1200)
    assert npd.replica.cluster.asked["list_conditions"] == 0
    assert npd.phase is None


async def test_a_reason_that_no_rule_names_is_shown_and_no_more(npd: Detector) -> None:
    npd.says("True", "AnotherReason")
    await npd.pass_time(1200)
    assert (npd.status, npd.phase) == (Status.FAILED, None)


def test_sickbays_own_condition_is_known_by_the_name_that_it_writes() -> None:
    assert {CONDITION, TEST_CONDITION} == OWN_TYPES


TIMES = st.floats(-10.0 * STALE_AFTER, 10.0 * STALE_AFTER)


@given(
    status=st.sampled_from(["True", "False", "Unknown", "", "yes"]),
    unhealthy=st.sampled_from(["True", "False"]),
    heartbeat=TIMES,
    since=TIMES,
    doubt=st.floats(0.0, 3600.0),
    texts=st.text(max_size=2000),
)
def test_only_a_fresh_word_fails_or_heals_whatever_the_clocks_say(
    status: str, unhealthy: str, heartbeat: float, since: float, doubt: float, texts: str
) -> None:
    wall, now = 1e9, 5_000.0
    condition = ReportedCondition("T", status, texts, texts, wall + heartbeat, wall + since)
    found = as_evidence("T", condition, unhealthy, now=now, earliest=wall, latest=wall + doubt)
    fresh = doubt - STALE_AFTER <= heartbeat <= STALE_AFTER
    meant = {unhealthy: Status.FAILED, "False" if unhealthy == "True" else "True": Status.OK}
    assert found.status is (meant.get(status, Status.UNKNOWN) if fresh else Status.UNKNOWN)
    assert found.since <= now
    assert ":" not in found.reason
    assert all(part.isprintable() for part in (found.reason, found.message))
