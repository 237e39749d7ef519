"""Folding and evaluation: invariants for any messages of an agent, in any order and number."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.health.model import (
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Lost,
    Snapshot,
    Status,
)
from aggregator.health.node import NodeHealth, ends
from aggregator.policy.evaluate import Evaluation, Evidence, Incident, evaluate
from tests.support.replica import POLICY, component, fault, hello, snapshot

#: Codes of every class that matters here, with what ends them by the catalogue.
CODES = {
    "xid:79": ClearedBy.REBOOT,
    "xid:48": ClearedBy.GPU_RESET,
    "xid:54": ClearedBy.OPERATOR,
    "xid:31": ClearedBy.EXPIRY,
    "xid:109": ClearedBy.GPU_RESET,
    "xid:4711": ClearedBy.EXPIRY,
}
CHECKS = {
    "disk-space": ("bytes", "inodes"),
    "disk-write": ("io-error", "read-only", "timeout"),
    "gpu-inventory": ("missing", "lost"),
    "nic-link": ("down",),
    "reach": ("timeout",),
}
COMPONENTS = ("GPU-1", "GPU-2", "/data")


def latched(code: str, of: str = "GPU-1", **changes: object) -> Fault:
    return fault(code, of, **{"cleared_by": CODES[code], **changes})  # type: ignore[arg-type]


faults = st.builds(
    lambda code, of, count, seq, historical: latched(
        code,
        of,
        count=count,
        occurrences=tuple(990.0 - 60.0 * ago for ago in range(count))[::-1],
        source_seq=seq,
        historical=historical,
    ),
    st.sampled_from(sorted(CODES)),
    st.sampled_from(COMPONENTS),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)


def components_of(check: str) -> st.SearchStrategy[Component]:
    return st.builds(
        lambda of, status, reason, since: component(
            check, of, status, "" if status is Status.OK else reason, since=since
        ),
        st.sampled_from(COMPONENTS),
        st.sampled_from(list(Status)),
        st.sampled_from(CHECKS[check]),
        st.floats(0, 1000),
    )


#: Made once: Hypothesis examines each new strategy, which took a quarter of these tests' time.
OF_CHECKS = {check: components_of(check) for check in CHECKS}
components = st.sampled_from(sorted(CHECKS)).flatmap(OF_CHECKS.__getitem__)
cleared = st.builds(
    Cleared,
    st.sampled_from(["", *CODES]),
    st.sampled_from(COMPONENTS),
    st.sampled_from(["gpu-reset", "reboot", "expiry", "operator", "replaced", "named"]),
)
lost = st.builds(Lost, st.sampled_from(["kmsg", "nvml"]), st.integers(1, 3), st.just("gap"))
gone = st.tuples(st.sampled_from(sorted(CHECKS)), st.sampled_from(COMPONENTS))


def few(of: st.SearchStrategy[object], most: int = 3) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=most).map(tuple)


snapshots = st.builds(Snapshot, few(components), few(faults), few(cleared, 1), few(lost, 2))
deltas = st.builds(Delta, few(components), few(faults), few(cleared, 1), few(lost, 2), few(gone, 1))
messages = st.one_of(snapshots, deltas)


def fold(health: NodeHealth, message: Snapshot | Delta) -> None:
    if isinstance(message, Snapshot):
        health.snapshot(message)
    else:
        health.delta(message)


def state(health: NodeHealth) -> tuple[object, ...]:
    return (
        {one.key: one for one in health.components.all()},
        dict(health.faults),
        dict(health.cleared),
        list(health.lost),
        health.digest(),
    )


# -- folding ---------------------------------------------------------------------------------------


@given(st.lists(messages, max_size=6))
def test_applying_a_message_twice_changes_nothing(many: list[Snapshot | Delta]) -> None:
    health = NodeHealth(hello("n1"))
    for message in many:
        fold(health, message)
        once = state(health)
        fold(health, message)
        assert state(health) == once


@given(st.lists(messages, max_size=6), st.sampled_from(["boot-1", "boot-2"]))
def test_a_fault_leaves_by_a_sign_or_another_boot_and_by_nothing_else(
    many: list[Snapshot | Delta], boot: str
) -> None:
    health = NodeHealth(hello("n1"))
    for message in many:
        before = dict(health.faults)
        fold(health, message)
        for key, known in before.items():
            if key in health.faults:
                continue
            assert any(
                sign.component == known.component
                and sign.code in ("", known.code)
                and ends(sign.how, known.cleared_by, explicit=bool(sign.code))
                for sign in message.cleared
            )
    before = dict(health.faults)
    health.greet(hello("n1", boot))
    for key, known in before.items():
        gone_with_the_boot = known.cleared_by is not ClearedBy.OPERATOR
        assert (key not in health.faults) == (boot != "boot-1" and gone_with_the_boot)


@given(st.lists(messages, max_size=6))
def test_the_digest_is_of_the_state_and_not_of_its_order(many: list[Snapshot | Delta]) -> None:
    health = NodeHealth(hello("n1"))
    health.snapshot(Snapshot((), ()))
    for message in many:
        fold(health, message)
    present = [known for known in health.faults.values() if not known.missing]
    told = Snapshot(tuple(reversed([*health.components.all()])), tuple(reversed(present)))
    other = NodeHealth(hello("n1"))
    assert other.digest() is None
    other.snapshot(told)
    assert other.digest() == health.digest()


def test_the_digest_is_that_of_the_contract_page() -> None:
    health = NodeHealth(hello("n1", "b"))
    assert health.digest() is None, "an agent that has not spoken holds nothing to be compared"
    mine = fault("xid:79", boot_id="b", count=2)
    lost = fault("xid:48", "GPU-2", boot_id="b")
    health.snapshot(snapshot(component("disk-space", "/", Status.FAILED, "full"), mine, lost))
    health.snapshot(snapshot(component("disk-space", "/", Status.FAILED, "full"), mine))
    assert health.faults[lost.code, lost.component].missing, "what was lost is remembered"
    assert health.digest() == 0x32DD7D21C253ECE2
    assert health.digest() == 0x32DD7D21C253ECE2, "a second time, from what is kept"
    health.delta(Delta(gone=(("disk-space", "/"),)))
    assert health.digest() != 0x32DD7D21C253ECE2
    health.snapshot(Snapshot((), (), ()))
    nothing = NodeHealth(hello("n1", "b"))
    nothing.snapshot(Snapshot((), (), ()))
    assert health.digest() == nothing.digest() == NO_BYTES


#: BLAKE2b of no bytes at all, of 8 bytes, big endian.
NO_BYTES = int.from_bytes(blake2b(b"", digest_size=8).digest(), "big")


def test_a_component_that_came_back_is_not_gone() -> None:
    """Gone, then there again in the snapshot of a new stream, but not looked at yet."""
    health, bench = NodeHealth(hello("n1")), Bench()
    failed = component("nic-link", "eth0", Status.FAILED, "down", since=0.0)
    health.snapshot(snapshot(failed))
    bench.evaluate(health, 100.0)
    health.delta(Delta(gone=(("nic-link", "eth0"),)))
    health.greet(hello("n1"))
    health.snapshot(snapshot(failed))
    bench.evaluate(health, 200.0)
    health.snapshot(snapshot(component("nic-link", "eth0", Status.UNKNOWN, "hung")))
    for now in (300.0, 1000.0, 5000.0):
        bench.evaluate(health, now)
    assert [incident.recovering_since for incident in bench.incidents.values()] == [None]


# -- evaluating ----------------------------------------------------------------------------------


@dataclass
class Bench:
    """The controller's state between two evaluations."""

    incidents: Mapping[str, Incident] = field(default_factory=dict)
    closed: list[Incident] = field(default_factory=list)

    def evaluate(self, health: NodeHealth, now: float, *, reporting: bool = True) -> Evaluation:
        evaluation = evaluate(POLICY, health, self.incidents, now, reporting=reporting)
        self.incidents = evaluation.incidents
        self.closed += evaluation.closed
        return evaluation

    @property
    def acting(self) -> list[Incident]:
        return [one for one in self.incidents.values() if one.action != "observe"]

    @property
    def observed(self) -> list[Incident]:
        return [one for one in self.incidents.values() if one.action == "observe"]


def is_signed_off(item: Evidence, health: NodeHealth) -> bool:
    """Whether a positive sign has come for this evidence, now or since it was last there."""
    if item.cleared_by is None:
        check = item.code.partition(":")[0]
        seen = health.components.get((check, item.component))
        if seen is None:
            signs = (
                health.cleared.get((check, item.component)),
                health.cleared.get(("", item.component)),
            )
            return signs[0] == "gone" or signs[1] in ("named", "replaced")
        return seen.status in (Status.OK, Status.DEGRADED) or (
            seen.status is Status.FAILED and f"{check}:{seen.reason}" != item.code
        )
    if item.boot_id != health.boot_id and item.cleared_by is not ClearedBy.OPERATOR:
        return True
    return (item.code, item.component) in health.cleared or ("", item.component) in health.cleared


steps = st.lists(
    st.tuples(
        st.one_of(messages, st.sampled_from(["boot-1", "boot-2", "same"]), st.none()),
        st.sampled_from([0.0, 5.0, 31.0, 700.0]),
        st.booleans(),
    ),
    max_size=10,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_whatever_happens_the_invariants_of_evaluating_hold(
    many: list[tuple[Snapshot | Delta | str | None, float, bool]],
) -> None:
    health, bench, now = NodeHealth(hello("n1")), Bench(), 1000.0
    health.snapshot(Snapshot((), ()))
    recovering: dict[str, float] = {}
    for step, passed, speaks in many:
        now += passed
        reporting = True
        if isinstance(step, str):
            health.greet(hello("n1", health.boot_id if step == "same" else step))
            if speaks:
                health.snapshot(Snapshot((), ()))
            reporting = health.has_snapshot
        elif step is not None:
            fold(health, step)
        else:
            reporting = speaks
        before = dict(bench.incidents)
        evaluation = bench.evaluate(health, now, reporting=reporting)
        after = evaluation.incidents

        for ident, incident in after.items():
            assert incident.id == ident
            assert incident.evidence
            assert all(item.since <= now for item in incident.evidence)
            counts = reporting and not incident.in_force
            assert (incident.recovering_since is not None) == counts
            if ident in before:
                assert incident.since == before[ident].since
                assert incident.boot_id == before[ident].boot_id
                assert {i.key for i in before[ident].evidence} <= {
                    i.key for other in after.values() for i in other.evidence
                }
            else:
                assert incident.since <= now
                assert not all(item.lost for item in incident.evidence)
        for ident, earlier in before.items():
            was = {item.key: item for item in earlier.in_force if item.action != "observe"}
            now_there = {
                item.key: item
                for other in (*after.values(), *evaluation.closed)
                for item in other.evidence
            }
            for key, item in was.items():
                assert key in now_there
                if now_there[key].over:
                    assert is_signed_off(item, health)
            if ident in {one.id for one in evaluation.closed}:
                assert reporting
                assert not any(one.in_force for one in evaluation.closed)
                assert now >= recovering.get(ident, now) + earlier.healthy_for
        for one in evaluation.closed:
            assert one.id not in after
        recovering = {
            ident: incident.recovering_since
            for ident, incident in after.items()
            if incident.recovering_since is not None
        }
        assert len({(i.kind, i.action != "observe") for i in after.values()}) == len(after)
        if evaluation.evaluate_again is not None:
            assert evaluation.evaluate_again > now
        # A second evaluation at the same time makes no change.
        again = evaluate(POLICY, health, after, now, reporting=reporting)
        assert dict(again.incidents) == dict(after)
        assert again.closed == ()


@settings(deadline=None)
@given(st.lists(faults, max_size=4), st.lists(components, max_size=4))
def test_every_replica_computes_the_same_incidents(
    some: list[Fault], others: list[Component]
) -> None:
    found = []
    for order in (1, -1):
        health = NodeHealth(hello("n1"))
        health.snapshot(Snapshot(tuple(others), tuple(some)))
        bench = Bench()
        bench.evaluate(health, 5_000.0)
        found.append(
            {
                ident: (one.kind, one.action, {item.key for item in one.evidence})
                for ident, one in bench.incidents.items()
            }
        )
        some, others = some[::order], others[::order]
    assert found[0] == found[1]


@given(st.lists(faults, max_size=4), st.lists(components, max_size=4))
def test_what_acts_is_failed_or_latched_known_and_of_this_boot(
    some: list[Fault], others: list[Component]
) -> None:
    health, bench = NodeHealth(hello("n1")), Bench()
    health.snapshot(Snapshot(tuple(others), tuple(some)))
    bench.evaluate(health, 5_000.0)
    for incident in bench.acting:
        for item in incident.evidence:
            if item.action == "observe":
                continue
            if item.cleared_by is not None:
                found = health.faults[item.key]
                assert not found.historical
                assert item.code not in ("xid:31", "xid:4711")
                assert item.code != "xid:109" or found.count >= 2
            else:
                check = item.code.partition(":")[0]
                assert health.components[check, item.component].status is Status.FAILED
                assert check != "reach"


def test_recovery_begins_again_when_it_fails_again_or_falls_silent() -> None:
    health, bench = NodeHealth(hello("n1")), Bench()
    down = component("nic-link", "eth0", Status.FAILED, "down", since=900.0)
    up = component("nic-link", "eth0", Status.OK)
    health.snapshot(snapshot(down))
    bench.evaluate(health, 1000.0)
    (opened,) = bench.acting
    health.delta(Delta((up,)))
    bench.evaluate(health, 1100.0)  # healthyFor is 5m: well again at 1400
    health.delta(Delta((replace(down, since=1390.0),)))
    bench.evaluate(health, 1395.0)
    assert len(bench.acting) == 1  # its own `for` hasn't passed, and still it is not well
    health.delta(Delta((up,)))
    bench.evaluate(health, 1405.0)
    bench.evaluate(health, 1500.0, reporting=False)
    bench.evaluate(health, 1799.0)
    (incident,) = bench.acting
    assert incident.since == opened.since
    bench.evaluate(health, 2098.0)
    assert len(bench.acting) == 1
    assert [one.id for one in bench.evaluate(health, 2101.0).closed] == [opened.id]


def test_reasons_that_alternate_are_one_incident_whose_start_stands() -> None:
    health, bench = NodeHealth(hello("n1")), Bench()
    now = 1000.0
    first = component("disk-space", "/data", Status.FAILED, "bytes", since=900.0)
    health.snapshot(snapshot(first))
    bench.evaluate(health, now)
    (opened,) = bench.acting
    for turn in range(100):  # each lasts for less than the rule's 30 s
        now += 20.0
        reason = ("inodes", "bytes")[turn % 2]
        health.delta(
            Delta((component("disk-space", "/data", Status.FAILED, reason, since=now - 1),))
        )
        bench.evaluate(health, now)
        (incident,) = bench.acting
        assert incident.since == opened.since
        assert incident.in_force, "it has failed all the time"


def test_a_reason_that_no_rule_names_does_not_make_a_failed_disk_well() -> None:
    health, bench = NodeHealth(hello("n1")), Bench()
    health.snapshot(
        snapshot(component("disk-write", "/data", Status.FAILED, "io-error", since=900.0))
    )
    bench.evaluate(health, 1000.0)
    health.delta(Delta((component("disk-write", "/data", Status.FAILED, "timeout", since=1001.0),)))
    for now in (1001.0, 5_000.0, 50_000.0):
        bench.evaluate(health, now)
    assert [bool(one.in_force) for one in bench.acting] == [True]


@pytest.mark.parametrize("how", ["replaced", "named"])
def test_a_gpu_that_was_replaced_or_renamed_in_a_boot_keeps_no_node_in_quarantine(how: str) -> None:
    """No check will ever report the old GPU, or its address, as well."""
    health, bench = NodeHealth(hello("n1", "boot-1")), Bench()
    missing = component("gpu-inventory", "GPU-1", Status.FAILED, "missing", since=900.0)
    health.snapshot(Snapshot((missing,), ()))
    bench.evaluate(health, 1000.0)
    assert len(bench.acting) == 1
    health.greet(hello("n1", "boot-2"))
    health.snapshot(snapshot(component("gpu-inventory", "GPU-new", Status.OK, since=1100.0)))
    bench.evaluate(health, 1100.0)
    assert [bool(one.in_force) for one in bench.acting] == [True], "absence is no sign"
    health.delta(Delta(cleared=(Cleared("", "GPU-1", how),)))
    bench.evaluate(health, 1101.0)
    assert [one.in_force for one in bench.acting] == [()]
    assert len(bench.evaluate(health, 1702.0).closed) == 1


def test_what_is_only_watched_does_not_keep_a_repaired_gpu_in_quarantine() -> None:
    health, bench = NodeHealth(hello("n1")), Bench()
    health.snapshot(snapshot(latched("xid:48"), latched("xid:31")))
    bench.evaluate(health, 1000.0)
    assert (len(bench.acting), len(bench.observed)) == (1, 1)
    health.delta(Delta(cleared=(Cleared("xid:48", "GPU-1", "gpu-reset"),)))
    bench.evaluate(health, 1100.0)
    assert len(bench.evaluate(health, 1701.0).closed) == 1
    assert (len(bench.acting), len(bench.observed)) == (0, 1)


def test_a_repeat_makes_what_was_watched_act_and_it_is_one_incident() -> None:
    health, bench = NodeHealth(hello("n1")), Bench()
    health.snapshot(snapshot(latched("xid:109", count=1)))
    bench.evaluate(health, 1000.0)
    assert (len(bench.acting), len(bench.observed)) == (0, 1)
    channels = latched("xid:109", count=2, last_at=990.001, occurrences=(990.0, 990.001))
    health.delta(Delta(faults=(channels,)))
    bench.evaluate(health, 1010.0)
    assert (len(bench.acting), len(bench.observed)) == (0, 1), "two channels of one timeout"
    again = latched("xid:109", count=3, last_at=1060.0, occurrences=(990.0, 990.001, 1060.0))
    health.delta(Delta(faults=(again,)))
    bench.evaluate(health, 1061.0)
    assert (len(bench.acting), len(bench.observed)) == (1, 0)


@pytest.mark.parametrize("code", ["xid:63", "xid:94", "xid:171", "xid:172"])
def test_a_contained_error_that_comes_again_and_again_is_acted_on(code: str) -> None:
    def contained(*times: float) -> Fault:
        cleared_by = ClearedBy.GPU_RESET
        return fault(
            code,
            count=len(times),
            cleared_by=cleared_by,
            first_at=times[0],
            last_at=times[-1],
            occurrences=times,
        )

    hour, storm = 3600.0, tuple(float(second) for second in range(0, 900, 29))
    for times, acts in (
        ((0.0, hour, 2 * hour), False),
        (storm, False),
        ((0.0, hour, 2 * hour, 3 * hour), True),
        ((0.0, 9 * hour, 18 * hour, 27 * hour), False),
    ):
        health, bench = NodeHealth(hello("n1")), Bench()
        health.snapshot(snapshot(contained(*times)))
        bench.evaluate(health, 30 * hour)
        assert bool(bench.acting) == acts, times
        assert all(incident.action == "cordon" for incident in bench.acting)


def test_the_next_look_is_the_earliest_of_all_that_time_may_change() -> None:
    health, bench = NodeHealth(hello("n1")), Bench()
    health.snapshot(
        snapshot(
            *(
                component("disk-space", f"/{since:.0f}", Status.FAILED, "bytes", since=since)
                for since in (1008.0, 1003.0, 1005.0)
            )
        )
    )
    assert bench.evaluate(health, 1010.0).evaluate_again == 1093.0
    # Evidence that is due is looked at no more for that; the next of the others is.
    assert bench.evaluate(health, 1093.0).evaluate_again == 1095.0
    assert bench.evaluate(health, 1095.5).evaluate_again == 1098.0
    assert bench.evaluate(health, 1098.0).evaluate_again is None
