"""The state kept of one node: each question about it, each message, each bound."""

from dataclasses import replace

import pytest

from aggregator.health import node as health_node
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
from aggregator.health.node import FEW, GONE, REMEMBERED, Components, NodeHealth, boot_ends
from sickbay.v1.limits import MAX_COMPONENTS, MAX_FAULTS
from tests.support.replica import component, fault, hello, snapshot

OK, DEGRADED, FAILED, UNKNOWN = Status.OK, Status.DEGRADED, Status.FAILED, Status.UNKNOWN
DISK, PEER = ("disk-space", "/"), ("triangulation", "")


def of(*evidence: Component | Fault, **more: object) -> NodeHealth:
    """A node whose agent has sent only this."""
    health = NodeHealth(hello("n1"))
    health.snapshot(replace(snapshot(*evidence), **more))  # type: ignore[arg-type]  # a test's words
    return health


def disk(status: Status, name: str = "/", reason: str = "r") -> Component:
    return component("disk-space", name, status, "" if status is OK else reason)


# -- questions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", list(Status))
@pytest.mark.parametrize("inferred", [None, *Status])
def test_what_others_say_of_a_node_is_a_level_beside_its_own(
    said: Status, inferred: Status | None
) -> None:
    health = of(disk(said))
    other = None if inferred is None else component(*PEER, inferred, "blamed")
    health.inferred = other
    both = [disk(said), *([other] if other is not None else [])]
    assert list(health.levels()) == both
    assert health.failed() == [one for one in both if one.status is FAILED]
    assert health.level(DISK) == disk(said)
    assert health.level(PEER) == other
    assert health.level(("disk-space", "/other")) is None
    assert health.worst_is_degraded() is (said in (DEGRADED, FAILED))
    assert health.only_unknown() is (said is UNKNOWN)


def test_a_latched_fault_is_as_bad_as_a_degraded_check_unless_it_is_of_an_earlier_boot() -> None:
    assert not of().worst_is_degraded()
    assert of(fault()).worst_is_degraded()
    assert not of(fault(historical=True)).worst_is_degraded()
    assert of(fault(historical=True), fault("xid:48")).worst_is_degraded()


def test_a_level_that_the_agent_tells_of_itself_comes_before_what_others_infer() -> None:
    health = of(component(*PEER, OK))
    health.inferred = component(*PEER, FAILED, "blamed")
    assert health.level(PEER) == component(*PEER, OK)


def test_what_we_say_is_news_by_its_status_and_words_and_no_part_of_what_its_agent_said() -> None:
    health = of(disk(OK))
    digest, nothing = health.digest(), of().digest()
    lemon = component("lemon", "", FAILED, "lemon")
    assert health.record_own_evidence(lemon)
    assert not health.record_own_evidence(lemon)
    assert not health.record_own_evidence(replace(lemon, since=5.0)), "when it is from is no news"
    assert health.record_own_evidence(replace(lemon, message="again"))
    assert health.record_own_evidence(replace(lemon, status=OK, message="again"))
    assert health.components["lemon", ""].status is OK
    assert health.digest() == digest != nothing
    assert not health.only_unknown()
    health.snapshot(snapshot())  # its agent forgets all; our evidence stays
    assert list(health.components) == [("lemon", "")]
    assert health.digest() == nothing
    assert health.only_unknown(), "the agent has told nothing"
    health.greet(hello("n1", "boot-2"))
    assert list(health.components) == [("lemon", "")]


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cleared_by", list(ClearedBy))
def test_another_boot_ends_what_a_boot_ends_and_only_that(cleared_by: ClearedBy) -> None:
    health = of(disk(FAILED), fault(cleared_by=cleared_by))
    health.delta(Delta(cleared=(Cleared("xid:48", "GPU-2", "gpu-reset"),)))
    health.greet(replace(hello("n1", "boot-2"), agent_version="9", traits={"a": "b"}))
    assert boot_ends(cleared_by) is (cleared_by is not ClearedBy.OPERATOR)
    assert bool(health.faults) is (cleared_by is ClearedBy.OPERATOR)
    assert (health.boot_id, health.agent_version, health.traits) == ("boot-2", "9", {"a": "b"})
    assert len(health.components) == 0
    assert not health.cleared
    assert not health.has_snapshot
    assert health.digest() is None


def test_a_new_stream_of_the_same_boot_ends_nothing() -> None:
    health = of(disk(FAILED), fault())
    health.delta(Delta(cleared=(Cleared("xid:48", "GPU-2", "gpu-reset"),)))
    health.greet(hello("n1"))
    assert set(health.faults) == {("xid:79", "GPU-1")}
    assert list(health.components) == [DISK]
    assert health.cleared == {("xid:48", "GPU-2"): "gpu-reset"}
    assert not health.has_snapshot


@pytest.mark.parametrize(
    ("epoch", "boot_id", "partial", "gone"),
    [
        ("epoch", "boot-1", False, True),
        ("epoch", "boot-1", True, False),  # a component that it lacks may be there
        ("another", "boot-1", False, False),  # its memory was lost
        ("epoch", "boot-2", False, False),  # this boot has not been reported on yet
    ],
)
def test_what_an_unbroken_memory_lacks_was_dropped_by_somebodys_decision(
    epoch: str, boot_id: str, *, partial: bool, gone: bool
) -> None:
    health = of(disk(FAILED), disk(FAILED, "/b"))
    health.greet(replace(hello("n1", boot_id), spool_epoch=epoch))
    health.snapshot(replace(snapshot(disk(FAILED)), partial=partial))
    assert dict(health.cleared) == ({("disk-space", "/b"): GONE} if gone else {})
    # From here on its memory is unbroken, whatever came before.
    health.snapshot(snapshot())
    assert health.cleared[DISK] == GONE
    health.snapshot(snapshot(disk(FAILED)))
    assert DISK not in health.cleared, "gone once, and there again"


def test_what_a_delta_says_is_gone_is_remembered_until_it_is_there_again() -> None:
    health = of(disk(FAILED), disk(OK, "/b"))
    health.delta(Delta(gone=(DISK,)))
    assert (list(health.components), dict(health.cleared)) == (
        [("disk-space", "/b")],
        {DISK: GONE},
    )
    health.delta(Delta(components=(disk(FAILED),)))
    assert not health.cleared
    told = of(gone=(DISK,))
    assert dict(told.cleared) == {DISK: GONE}, "a snapshot says it too, until it is acknowledged"


def test_a_fault_that_comes_again_is_cleared_no_more() -> None:
    health = of(fault())
    health.delta(Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    assert not health.faults
    health.delta(Delta(faults=(fault(count=2),)))
    assert not health.cleared
    assert health.faults["xid:79", "GPU-1"].count == 2


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("gpu-reset", {"gpu_reset", "expiry"}),
        ("reboot", {"reboot", "gpu_reset", "expiry"}),
        ("expiry", {"expiry"}),
        ("operator", {"reboot", "gpu_reset", "expiry", "operator"}),
        ("replaced", {"reboot", "gpu_reset", "expiry", "operator"}),
        ("magic", set()),
    ],
)
def test_a_sign_of_a_component_ends_what_such_a_sign_can_end_there(
    how: str, ended: set[str]
) -> None:
    faults = [fault(f"xid:{n}", cleared_by=by) for n, by in enumerate(ClearedBy)]
    faults.append(fault("xid:99", "GPU-2", cleared_by=ClearedBy.EXPIRY))
    health = of(*faults)
    health.delta(Delta(cleared=(Cleared("", "GPU-1", how),)))
    left = {one.cleared_by.value for one in health.faults.values() if one.component == "GPU-1"}
    assert left == {by.value for by in ClearedBy} - ended
    assert ("xid:99", "GPU-2") in health.faults
    for one in faults:
        cleared = health.how_cleared(one.code, one.component, one.cleared_by)
        over = one.component == "GPU-1" and one.cleared_by.value in ended
        assert cleared == (how if over else "")


def test_a_sign_that_names_the_code_is_the_agents_own_conclusion() -> None:
    health = of(fault(), fault("xid:48"))
    health.delta(Delta(cleared=(Cleared("xid:79", "GPU-1", "expiry"),)))
    assert set(health.faults) == {("xid:48", "GPU-1")}
    assert health.how_cleared("xid:79", "GPU-1", ClearedBy.REBOOT) == "expiry"
    assert health.how_cleared("xid:48", "GPU-1", ClearedBy.REBOOT) == ""
    assert health.how_cleared("xid:79", "GPU-2", ClearedBy.REBOOT) == ""


def test_a_fault_that_a_snapshot_lacks_is_missing_and_stays() -> None:
    health = of(fault(), fault("xid:48"))
    health.snapshot(snapshot(fault("xid:48"), fault("xid:74")))
    assert {key[0]: one.missing for key, one in health.faults.items()} == {
        "xid:79": True,
        "xid:48": False,
        "xid:74": False,
    }
    assert health.digest() == of(fault("xid:48"), fault("xid:74")).digest()
    health.snapshot(snapshot(fault(), fault("xid:48"), fault("xid:74")))
    assert not any(one.missing for one in health.faults.values())


def test_each_message_changes_the_digest_and_what_it_says_of_itself() -> None:
    health = of(disk(OK), quiesced_for=7.0)
    assert health.quiesced_for == 7.0
    first = health.digest()
    health.delta(Delta(components=(disk(FAILED),)))
    assert health.digest() == of(disk(FAILED)).digest() != first
    health.snapshot(snapshot(disk(OK)))
    assert health.digest() == first
    assert health.quiesced_for == 0.0


def test_the_latest_losses_are_remembered_each_once() -> None:
    losses = [Lost("kmsg", n, "gap") for n in range(40)]
    health = of(lost=(losses[0], losses[1]))
    health.delta(Delta(lost=(losses[0], losses[2])))
    assert health.lost == (losses[1], losses[0], losses[2])
    health.delta(Delta())
    assert len(health.lost) == 3
    health.delta(Delta(lost=tuple(losses)))
    assert health.lost == tuple(losses[-32:])


def test_the_latest_signs_are_remembered() -> None:
    signs = tuple(Cleared(f"xid:{n}", "GPU-1", "expiry") for n in range(REMEMBERED + 5))
    health = of()
    health.delta(Delta(cleared=signs[:REMEMBERED]))
    health.delta(Delta(cleared=signs[:1]))  # said again: it is the latest now
    health.delta(Delta(cleared=signs[REMEMBERED:]))
    assert len(health.cleared) == REMEMBERED
    assert ("xid:0", "GPU-1") in health.cleared
    assert {f"xid:{n}" for n in range(1, 6)}.isdisjoint(code for code, _ in health.cleared)


def test_of_few_signs_one_that_is_said_again_is_the_latest() -> None:
    signs = tuple(Cleared(f"xid:{n}", "GPU-1", "expiry") for n in range(REMEMBERED + 1))
    health = of()
    health.delta(Delta(cleared=signs[:2]))
    health.delta(Delta(cleared=signs[:1]))
    health.delta(Delta(cleared=signs[2:]))
    assert len(health.cleared) == REMEMBERED
    assert ("xid:0", "GPU-1") in health.cleared
    assert ("xid:1", "GPU-1") not in health.cleared


# -- bounds ----------------------------------------------------------------------------------------


def test_of_too_many_faults_those_go_that_are_only_shown_and_then_what_is_missing() -> None:
    many = [fault(f"xid:{n}") for n in range(MAX_FAULTS)]
    health = of(*many)
    assert len(health.faults) == MAX_FAULTS
    assert not any(one.missing for one in health.faults.values())
    health.snapshot(snapshot(*many[:-1]))  # the last of them is missing
    extra = fault("xid:100000", "GPU-2")
    health.delta(Delta(faults=(extra,)))
    assert set(health.faults) == {*(one.key for one in many[:-1]), extra.key}
    shown = replace(fault("xid:100001", "GPU-3"), historical=True)
    health.delta(Delta(faults=(shown,)))
    assert shown.key not in health.faults
    assert len(health.faults) == MAX_FAULTS


def test_faults_of_more_bytes_than_a_message_are_cut_and_the_first_of_them_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_node, "_MOST_BYTES", 100 * 1000)
    size = len("GPU-1") + 200 + len("pid") + len("12345") + 128 + 32 * 2
    many = [
        fault(f"xid:{n}", message="m" * 200, details={"pid": "12345"}, occurrences=(1.0, 2.0))
        for n in range(400)
    ]
    fits = 100 * 1000 // size
    assert set(of(*many).faults) == {one.key for one in many[:fits]}
    assert len(of(*many[:fits]).faults) == fits


def numbered(count: int, status: Status = OK) -> list[Component]:
    return [disk(status, f"/{n}") for n in range(count)]


@pytest.mark.parametrize("count", [20, 70, FEW - 1, FEW, FEW + 1, FEW + 60])
def test_many_components_are_held_as_few_are(count: int) -> None:
    found = Components(numbered(count))
    expected = {one.key: one for one in numbered(count)}
    for step in range(3):
        bad, new = disk(FAILED, "/5"), disk(DEGRADED, f"/new-{step}")
        found.put(bad)
        found.put(new)
        expected |= {bad.key: bad, new.key: new}
    more = [disk(UNKNOWN, f"/{n}") for n in (*range(3, 20), *range(500, 520))]
    assert found.put_all(more) == 0
    expected |= {one.key: one for one in more}
    assert found.put_all([disk(FAILED, "/6")]) == 0
    expected["disk-space", "/6"] = disk(FAILED, "/6")
    other = component("gpu-ecc", "GPU-1", OK)
    found.put(other)
    expected[other.key] = other
    for gone in ([("disk-space", "/7")], [("disk-space", f"/{n}") for n in range(8, 60)]):
        found.drop_all(gone)
        for key in gone:
            expected.pop(key, None)
    found.drop(("disk-space", "/never"))
    assert list(found.all()) == list(expected.values())
    assert list(found) == list(expected)
    assert len(found) == len(expected)
    assert (found.of("gpu-ecc"), found.names_of("gpu-ecc")) == ([other], ["GPU-1"])
    del expected[other.key]
    assert found.of("disk-space") == list(expected.values())
    assert found.names_of("disk-space") == [name for _, name in expected]
    assert (found.of("nic-link"), found.names_of("nic-link")) == ([], [])
    assert found.that_are(FAILED) == [one for one in expected.values() if one.status is FAILED]
    assert found.get(("disk-space", "/6")) == disk(FAILED, "/6")
    assert found.get(("disk-space", "/7")) is None
    assert ("disk-space", "/6") in found
    assert ("disk-space", "/7") not in found
    with pytest.raises(KeyError):
        found["disk-space", "/7"]


@pytest.mark.parametrize("count", [12, 100])
def test_few_components_of_which_many_go_at_once(count: int) -> None:
    found = Components([*numbered(count), component("gpu-ecc", "GPU-1", OK)])
    found.drop_all([("disk-space", f"/{n}") for n in range(10)])
    assert found.names_of("disk-space") == [f"/{n}" for n in range(10, count)]
    assert found.names_of("gpu-ecc") == ["GPU-1"]


def test_of_too_many_components_those_stay_that_fail_and_then_those_that_came_first() -> None:
    well, failed = numbered(MAX_COMPONENTS), [disk(FAILED, f"/bad-{n}") for n in range(3)]
    found = Components(well)
    assert len(found) == MAX_COMPONENTS
    assert found.put_all(failed) == 3
    assert found.that_are(FAILED) == failed
    assert found.that_are(OK) == well[:-3]
    order = [disk(status, f"/{status.name}") for status in (OK, UNKNOWN, DEGRADED, FAILED)]
    kept = health_node._bounded({one.key: one for one in [*well, *order]})
    assert [one.status for one in kept.values()][:3] == [FAILED, DEGRADED, UNKNOWN]
    assert order[0].key not in kept


def test_components_of_more_bytes_than_a_message_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_node, "MOST_BYTES", 100_000)
    size = len("/100") + len("reason") + 300 + 80 * 2
    many = [
        Component("c", f"/{n}", FAILED, "reason", "m" * 300, 5.0, ((1.0, OK), (5.0, FAILED)))
        for n in range(100, 100 + 2 * FEW)
    ]
    fits = 100_000 // size
    assert FEW < fits < 2 * FEW
    assert list(Components(many).all()) == many[:fits]
    assert len(Components(many[:fits])) == fits


def test_an_empty_snapshot_holds_nothing() -> None:
    health = NodeHealth(hello("n1"))
    health.snapshot(Snapshot((), ()))
    assert (list(health.levels()), health.faults, health.cleared, health.lost) == ([], {}, {}, ())
    assert health.has_snapshot
