"""The next repair of a node, and the limits of the fleet's repairs: for any order of events."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import (
    BUSY,
    Node,
    OperationRequest,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.policy.repairs import REPAIRS, TEST, TICKET, rank
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.admission_record import (
    Entry,
    Known,
    PastRepair,
    Rebuilt,
    Record,
    RecordUnreadable,
    RunningOperation,
    dump_record,
    parse_record,
    rebuild,
)
from aggregator.quarantine.decide.operation_step import Do, NextOperation
from aggregator.quarantine.decide.repair import (
    MOST_ATTEMPTS,
    RepairFacts,
    RepairLimits,
    RepairRules,
    domains_of,
    is_busy,
    lost_reservation,
    malformed,
    next_repair,
    operation_id,
    other_party,
)
from aggregator.quarantine.decide.reservation import reserve
from aggregator.quarantine.decide.verdicts import is_verified
from tests.support.present import present

ALL = dict.fromkeys(REPAIRS, False)
FULL = tuple(one for one in REPAIRS if one != "external")
RULES = RepairRules()
NOW = 1_000_000.0

ladders = st.lists(st.sampled_from(REPAIRS), unique=True, min_size=1).map(
    lambda some: tuple(sorted(some, key=rank))
)
outcomes = st.sampled_from([RepairState.SUCCEEDED, RepairState.FAILED])


def attempt(repair: str, state: RepairState, number: int = 1, **more: object) -> RepairAttempt:
    one = RepairAttempt(
        f"q-{number}-{repair}", repair, state, began_at=NOW, deadline_at=NOW + 600, ended_at=NOW
    )
    return replace(one, **more)  # type: ignore[arg-type]  # a test's words


def status(*attempts: RepairAttempt) -> RepairStatus:
    return RepairStatus(attempts)


def requested(what: str, before: RepairStatus | None = None, profile: str = "") -> RepairStatus:
    asked = OperationRequest("1", what, profile)
    return replace(before or RepairStatus(), requests=(asked,))


def facts(ladder: tuple[str, ...] = FULL, **more: Any) -> RepairFacts:
    return replace(RepairFacts(ladder, ALL), **more)


def climb(known: RepairFacts, ends: list[RepairState]) -> tuple[list[str], NextOperation]:
    """The repairs that are attempted, one after the other, where the evidence stays; the last."""
    had: tuple[RepairAttempt, ...] = ()
    left = list(ends)
    while True:
        now = NOW + len(had) * 10_000
        past = (*known.past, *(PastRepair(one.began_at, one.repair, "") for one in had))
        step = next_repair(status(*had), replace(known, past=past), RULES, now)
        if step.do is not Do.ORDER:
            return [one.repair for one in had], step
        end = left.pop() if left else RepairState.FAILED
        had += (attempt(step.repair, end, len(had), began_at=now, ended_at=now),)


# -- the ladder -----------------------------------------------------------------------------


@given(ladders, st.lists(outcomes))
def test_a_ladder_climbs_rung_by_rung_and_ends(
    ladder: tuple[str, ...], ends: list[RepairState]
) -> None:
    tried, last = climb(facts(ladder), ends)
    assert last.do is Do.EXHAUST
    assert last.because
    assert all(rank(before) < rank(after) for before, after in pairwise(tried))
    assert set(tried) <= set(ladder)
    assert sum(one != TICKET for one in tried) <= RULES.attempts


@given(ladders, st.lists(outcomes | st.just(RepairState.INCONCLUSIVE)))
def test_a_rung_that_was_not_begun_is_repeated_and_the_ladder_ends(
    ladder: tuple[str, ...], ends: list[RepairState]
) -> None:
    tried, last = climb(facts(ladder), ends)
    states = [*reversed(ends), *[RepairState.FAILED] * len(tried)]
    assert last.do is Do.EXHAUST
    for (before, after), state in zip(pairwise(tried), states, strict=False):
        same = state is RepairState.INCONCLUSIVE
        assert rank(before) < rank(after) or (same and before == after) or after == TICKET
    assert sum(one != TICKET for one in tried) <= RULES.attempts


def test_what_was_not_begun_waits_and_is_then_repeated() -> None:
    had = status(attempt("gpu-reset", RepairState.INCONCLUSIVE))
    assert next_repair(had, facts(), RULES, NOW + RULES.test_pause - 1) == NextOperation(Do.NOTHING)
    again = next_repair(had, facts(), RULES, NOW + RULES.test_pause)
    assert again == NextOperation(Do.ORDER, "gpu-reset")
    failed = status(
        attempt(TEST, RepairState.FAILED, began_at=NOW - 50),
        attempt("reboot", RepairState.INCONCLUSIVE, 2),
    )
    over = facts(("reboot",), is_open=False, returns=True, whole=("reboot",))
    tested = replace(RULES, verify="standard")
    assert next_repair(failed, over, tested, NOW + 1) == NextOperation(Do.NOTHING)
    later = next_repair(failed, over, tested, NOW + RULES.test_pause)
    assert (later.do, later.repair) == (Do.ORDER, "reboot")


def test_the_first_rung_of_the_whole_ladder_is_the_mildest() -> None:
    assert next_repair(RepairStatus(), facts(), RULES, NOW) == NextOperation(Do.ORDER, "gpu-reset")


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({"verdict": "reboot"}, "reboot"),
        ({"verdict": "gpu-reset"}, "gpu-reset"),
        ({"lemon": True}, "ticket"),
        ({"lemon": True, "verdict": "reboot"}, "ticket"),
        ({"past": (PastRepair(NOW - 9, "gpu-reset", "x"),), "began": NOW}, "reboot"),
        ({"past": (PastRepair(NOW - 9, "reboot", "x"),), "began": NOW}, "replace"),
        ({"past": (PastRepair(NOW - 9, "replace", "x"),), "began": NOW}, "ticket"),
        ({"available": {"reboot": False}}, "reboot"),
    ],
)
def test_verdict_history_and_what_is_configured_name_the_first_rung(
    more: dict[str, Any], first: str
) -> None:
    assert next_repair(RepairStatus(), facts(**more), RULES, NOW).repair == first


def test_a_node_with_too_many_attempts_gets_a_ticket_and_no_further_repair() -> None:
    past = tuple(PastRepair(NOW - 9, "gpu-reset", str(number)) for number in range(3))
    step = next_repair(RepairStatus(), facts(past=past, began=NOW), RULES, NOW)
    assert (step.do, step.repair) == (Do.ORDER, "ticket")
    assert "repair.attempts = 3" in step.because
    without = facts(("gpu-reset", "reboot"), past=past, began=NOW)
    assert next_repair(RepairStatus(), without, RULES, NOW).do is Do.EXHAUST


@given(ladders, st.sampled_from(REPAIRS), st.floats(0, 1e9))
def test_after_an_unknown_outcome_nothing_begins_by_itself(
    ladder: tuple[str, ...], repair: str, later: float
) -> None:
    had = status(attempt(repair, RepairState.UNKNOWN))
    assert next_repair(had, facts(ladder), RULES, NOW + later).do is Do.EXHAUST


def test_a_repair_that_helped_is_followed_by_none() -> None:
    had = status(attempt("gpu-reset", RepairState.SUCCEEDED))
    assert next_repair(had, facts(is_open=False), RULES, NOW + 10_000).do is Do.NOTHING


def test_the_next_rung_waits_until_the_evidence_has_had_time_to_clear() -> None:
    had = status(attempt("gpu-reset", RepairState.SUCCEEDED))
    assert next_repair(had, facts(), RULES, NOW + RULES.clear_within - 1).do is Do.NOTHING
    later = next_repair(had, facts(), RULES, NOW + RULES.clear_within)
    assert (later.do, later.repair) == (Do.ORDER, "reboot")


def test_a_failure_is_followed_by_the_next_rung_at_once() -> None:
    had = status(attempt("gpu-reset", RepairState.FAILED))
    assert next_repair(had, facts(), RULES, NOW).repair == "reboot"


def test_evidence_without_a_ladder_is_a_persons() -> None:
    assert next_repair(RepairStatus(), facts(()), RULES, NOW) == NextOperation(Do.NOTHING)


def test_a_ladder_without_any_repairer_says_so() -> None:
    step = next_repair(RepairStatus(), facts(available={}), RULES, NOW)
    assert step.do is Do.EXHAUST
    assert "no repairer is configured" in step.because


def test_what_is_exhausted_stays_so() -> None:
    over = replace(
        status(attempt("reboot", RepairState.FAILED)), exhausted="over", exhausted_at=NOW
    )
    assert next_repair(over, facts(), RULES, NOW).do is Do.NOTHING


def test_an_end_of_the_ladder_is_over_with_a_repair_that_began_after_it() -> None:
    """The write that removes it follows that of the repair's end, and may have failed."""
    over = replace(
        status(attempt("reboot", RepairState.FAILED, request="1")),
        exhausted="of before",
        exhausted_at=NOW - 1,
    )
    assert next_repair(over, facts(), RULES, NOW).repair == "replace"
    failed = attempt(TEST, RepairState.FAILED, 2, profile="quick", began_at=NOW + 1)
    tested = replace(over, attempts=(*over.attempts, failed))
    assert before(tested).repair == "replace"


# -- one attempt ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "twice", "later", "do"),
    [
        (RepairState.ORDERING, True, 0.0, Do.RESEND),
        (RepairState.ORDERING, False, 0.0, Do.PROVE),
        (RepairState.ORDERED, True, 0.0, Do.PROVE),
        (RepairState.ORDERED, False, 600.0, Do.END),
        (RepairState.ORDERING, True, 600.0, Do.END),
    ],
)
def test_an_attempt_under_way(state: RepairState, later: float, do: Do, *, twice: bool) -> None:
    had = status(attempt("reboot", state))
    known = facts(available={"reboot": twice})
    assert next_repair(had, known, RULES, NOW + later).do is do
    assert next_repair(had, replace(known, is_open=False), RULES, NOW + later).do is do


def test_only_an_order_that_may_be_sent_twice_is_sent_again() -> None:
    """A process that died between the write and the send leaves it open whether it was sent."""
    had = status(attempt("reboot", RepairState.ORDERING))
    for later in (0.0, 599.0, 600.0, 1e6):
        assert next_repair(had, facts(), RULES, NOW + later).do is not Do.RESEND


def test_a_persons_deletion_cancels_what_is_under_way_and_nothing_follows() -> None:
    busy = status(attempt("reboot", RepairState.ORDERED, deleted=True))
    assert next_repair(busy, facts(), RULES, NOW).do is Do.CANCEL
    ended = status(attempt("reboot", RepairState.CANCELLED, deleted=True))
    assert next_repair(ended, facts(), RULES, NOW).do is Do.EXHAUST


def test_a_persons_request_is_next_and_past_the_bounds_of_the_ladder() -> None:
    over = replace(
        status(attempt("reboot", RepairState.UNKNOWN)), exhausted="over", exhausted_at=NOW
    )
    asked = requested("gpu-reset", over)
    step = next_repair(asked, facts((), is_open=False), RULES, NOW)
    assert step == NextOperation(Do.ORDER, "gpu-reset", "requested by hand", "1")
    done = replace(over, attempts=(attempt("gpu-reset", RepairState.FAILED, request="1"),))
    assert next_repair(done, facts(()), RULES, NOW).do is Do.NOTHING


def test_a_persons_request_waits_for_the_attempt_under_way() -> None:
    busy = status(attempt("reboot", RepairState.ORDERED))
    assert next_repair(requested("replace", busy), facts(), RULES, NOW).do is Do.PROVE


def test_a_request_that_can_not_begin_holds_up_no_later_one_and_no_ladder() -> None:
    three = tuple(
        OperationRequest(name, kind)
        for name, kind in (("1", "dance"), ("2", TEST), ("3", "reboot"))
    )
    both = RepairStatus(requests=three)
    assert next_repair(both, facts(), RULES, NOW).request == "3"
    blocked = RepairStatus(requests=three[:2])
    assert next_repair(blocked, facts(), RULES, NOW) == NextOperation(Do.ORDER, "gpu-reset")
    idle = next_repair(blocked, facts(is_open=False), RULES, NOW)
    assert (idle.do, "'dance' was requested" in idle.because) == (Do.NOTHING, True)
    over = replace(blocked, exhausted="over")
    assert "'dance'" in next_repair(over, facts(), RULES, NOW).because


def test_a_request_for_a_repair_without_repairer_is_named() -> None:
    step = next_repair(requested("reboot"), facts((), available={}), RULES, NOW)
    assert step.do is Do.NOTHING
    assert "no such repairer" in step.because


def test_attempts_that_sickbay_cannot_have_written_stop_all_repairs() -> None:
    bad = (
        status(attempt("dance", RepairState.FAILED)),
        status(attempt("reboot", RepairState.ORDERED), attempt("replace", RepairState.FAILED, 2)),
        status(attempt("reboot", RepairState.ORDERED, deadline_at=0.0)),
    )
    for one in bad:
        assert malformed(one)
        step = next_repair(one, facts(), RULES, NOW)
        assert step.do is Do.NOTHING
        assert step.because


def test_each_attempt_has_an_id_of_its_own_that_every_process_computes_alike() -> None:
    assert operation_id("uid", RepairStatus(), "reboot") == "uid-1-reboot"
    had = status(attempt("reboot", RepairState.FAILED))
    assert operation_id("uid", had, "replace") == "uid-2-replace"


def test_busy_is_what_may_still_act() -> None:
    assert not is_busy(RepairStatus())
    for state in RepairState:
        assert is_busy(status(attempt("reboot", state))) == (state in BUSY)


# -- the test before a release ----------------------------------------------------------------

VERIFYING = replace(RULES, verify="standard")
#: A node whose evidence is over, in boot b.
BACK = RepairFacts(
    (), {**ALL, TEST: True}, is_open=False, returns=True, whole=("reboot", "replace"), boot_id="b"
)
verdicts = st.sampled_from(
    [
        RepairState.SUCCEEDED,
        RepairState.FAILED,
        RepairState.INCONCLUSIVE,
        RepairState.UNKNOWN,
        RepairState.CANCELLED,
    ]
)


def checked(state: RepairState, number: int = 1, **more: Any) -> RepairAttempt:
    return attempt(TEST, state, number, **{"profile": "standard", "boot_id": "b", **more})


def before(had: RepairStatus, now: float = NOW + 5000, **more: Any) -> NextOperation:
    return next_repair(had, replace(BACK, **more), VERIFYING, now)


def test_a_node_whose_evidence_is_over_is_tested_and_released_when_it_has_passed() -> None:
    first = before(status())
    assert (first.do, first.repair, first.profile) == (Do.ORDER, TEST, "standard")
    assert before(status(checked(RepairState.SUCCEEDED))).do is Do.NOTHING
    assert is_verified(status(checked(RepairState.SUCCEEDED)), "standard", "b")


@pytest.mark.parametrize(
    ("later", "more"),
    [
        ((), {"boot_id": "another"}),
        ((), {"boot_id": ""}),
        ((), {"profile": "quick"}),
        ((checked(RepairState.FAILED, 2),), {}),
        ((attempt("reboot", RepairState.SUCCEEDED, 2),), {}),
        ((attempt("gpu-reset", RepairState.FAILED, 2),), {}),
    ],
)
def test_a_pass_counts_in_its_boot_for_its_profile_until_something_else_is_done(
    later: tuple[RepairAttempt, ...], more: dict[str, Any]
) -> None:
    had = status(checked(RepairState.SUCCEEDED, **more), *later)
    assert not is_verified(had, "standard", "b")


def test_a_ticket_and_a_test_without_a_verdict_take_no_pass_away() -> None:
    later = attempt(TICKET, RepairState.SUCCEEDED, 2), checked(RepairState.INCONCLUSIVE, 3)
    assert is_verified(status(checked(RepairState.SUCCEEDED), *later), "standard", "b")


def test_no_verdict_of_before_the_latest_evidence_counts() -> None:
    for state in (RepairState.SUCCEEDED, RepairState.FAILED):
        had = replace(status(checked(state)), evidence_at=NOW)
        assert before(had).repair == TEST
        assert not is_verified(had, "standard", "b")


def test_a_failed_test_calls_for_the_next_rung_and_its_success_for_another_test() -> None:
    rung = attempt("reboot", RepairState.SUCCEEDED)
    failed = checked(RepairState.FAILED, 2)
    step = before(status(rung, failed))
    assert (step.do, step.repair) == (Do.ORDER, "replace")
    assert "test standard failed" in step.because
    again = before(status(rung, failed, attempt("replace", RepairState.SUCCEEDED, 3)))
    assert (again.do, again.repair) == (Do.ORDER, TEST)
    last = before(status(rung, failed, attempt("replace", RepairState.FAILED, 3)))
    assert last.do is Do.EXHAUST
    assert before(status(failed), whole=()).do is Do.EXHAUST


def test_after_a_repair_with_an_unknown_outcome_a_failed_test_climbs_no_further() -> None:
    had = status(checked(RepairState.FAILED), attempt("reboot", RepairState.UNKNOWN, 2))
    assert before(had).do is Do.EXHAUST
    told = replace(
        status(
            attempt("reboot", RepairState.UNKNOWN, began_at=NOW - 20),
            checked(RepairState.FAILED, 2),
        ),
        exhausted="the outcome of reboot is not known",
        exhausted_at=NOW - 10,
    )
    assert before(told).do is Do.EXHAUST
    assert "is not known" in before(told).because
    assert before(replace(told, exhausted_at=NOW)).do is Do.NOTHING


def test_evidence_that_stands_beside_a_test_climbs_the_ladder_as_without_one() -> None:
    unknown = status(attempt("reboot", RepairState.UNKNOWN), checked(RepairState.INCONCLUSIVE, 2))
    assert next_repair(unknown, facts(), VERIFYING, NOW).do is Do.EXHAUST
    rung = status(attempt("reboot", RepairState.SUCCEEDED), checked(RepairState.FAILED, 2))
    late = next_repair(rung, facts(), VERIFYING, NOW + RULES.clear_within)
    assert (late.do, late.repair) == (Do.ORDER, "replace")


def test_tests_without_a_verdict_are_repeated_after_a_pause_so_many_times() -> None:
    none = [checked(RepairState.INCONCLUSIVE, number) for number in range(1, 4)]
    soon = NOW + RULES.test_pause - 1
    assert before(status(*none[:2]), soon).do is Do.NOTHING
    assert before(status(*none[:2]), soon + 1).repair == TEST
    assert before(status(*none)).do is Do.EXHAUST
    told = replace(status(*none), exhausted="said", exhausted_at=NOW)
    assert before(told).do is Do.NOTHING
    by_hand = [replace(one, request="by-hand") for one in none]
    assert before(status(*by_hand)).repair == TEST


def test_a_test_that_a_person_cancelled_is_followed_by_none() -> None:
    had = status(checked(RepairState.CANCELLED))
    assert before(had).do is Do.EXHAUST
    assert before(replace(had, exhausted="said", exhausted_at=NOW)).do is Do.NOTHING


def test_a_test_that_waits_too_long_for_its_beginning_is_a_persons() -> None:
    had = replace(status(), test_waits_since=NOW, held="test is held by repair.concurrent")
    until = NOW + RULES.verify_within
    assert before(had, until - 1).repair == TEST
    step = before(had, until)
    assert step.do is Do.EXHAUST
    assert "repair.concurrent" in step.because
    assert before(replace(had, exhausted="said", exhausted_at=NOW), until).do is Do.NOTHING
    early = replace(had, exhausted="of the ladder", exhausted_at=NOW - 1)
    assert before(early, until).do is Do.EXHAUST


@given(st.lists(st.tuples(verdicts, st.booleans()), max_size=30), ladders)
def test_tests_end_and_only_a_pass_ends_them_without_a_person(
    ends: list[tuple[RepairState, bool]], ladder: tuple[str, ...]
) -> None:
    """``ends``: of each attempt, and whether evidence has come and gone since."""
    had, now = RepairStatus(), NOW
    for end, evidence in [*ends, *[(RepairState.INCONCLUSIVE, False)] * MOST_ATTEMPTS]:
        now += 10_000
        step = next_repair(had, replace(BACK, whole=ladder), VERIFYING, now)
        if step.do is not Do.ORDER:
            break
        number = len(had.attempts) + 1
        assert number <= MOST_ATTEMPTS
        known = end if step.repair == TEST or end is not RepairState.INCONCLUSIVE else None
        done = attempt(
            step.repair,
            known or RepairState.FAILED,
            number,
            boot_id="b",
            profile=step.profile,
            began_at=now,
            ended_at=now + 1,
        )
        had = replace(had, attempts=(*had.attempts, done))
        assert malformed(had) == ""
        if evidence:
            had = replace(had, evidence_at=now + 2)
    passed = is_verified(had, "standard", "b")
    assert step.do is (Do.NOTHING if passed else Do.EXHAUST)
    rungs = [one.repair for one in had.attempts if one.repair != TEST]
    assert all(rank(one) < rank(other) for one, other in pairwise(rungs))


def test_a_test_by_hand_has_the_profile_that_was_asked_for_else_the_configured_one() -> None:
    known = replace(facts(()), available={TEST: True})
    asked, plain = requested(TEST, profile="quick"), requested(TEST)
    assert next_repair(asked, known, RULES, NOW).profile == "quick"
    assert next_repair(plain, known, VERIFYING, NOW).profile == "standard"
    without = next_repair(plain, known, RULES, NOW)
    assert without.do is Do.NOTHING
    assert "without a profile" in without.because


def test_a_test_keeps_the_fleets_limits_and_counts_for_no_bound_of_repairs() -> None:
    record = WHOLE
    for number in range(5):
        proposal = RunningOperation("n1", f"t{number}", TEST, 0, 900, domains=("rack=1",))
        record, hold = reserve(record, proposal, LIMITS, SIZE, now=NOW)
        assert hold is None
        assert record.past_repairs == {}
        other = RunningOperation("n2", "x", TEST, 0, 900, domains=("rack=1",))
        _, hold = reserve(record, other, LIMITS, SIZE, now=NOW)
        assert hold is not None
        assert hold.limit == "repair.domain"
        record = record.without_operations({f"t{number}"})
    full = {"n1": tuple(PastRepair(NOW, "reboot", str(one)) for one in range(RULES.attempts))}
    proposal = RunningOperation("n1", "t", TEST, 0, 900)
    assert reserve(replace(record, past_repairs=full), proposal, LIMITS, SIZE, now=NOW)[1] is None


# -- other parties --------------------------------------------------------------------------


def node(labels: dict[str, str] | None = None, notes: dict[str, str] | None = None) -> Node:
    return Node("n1", "uid", "1", True, (), labels or {}, notes or {})


def test_other_parties_at_work_are_known_by_their_marks() -> None:
    assert other_party(node()) == ""
    assert "kured" in other_party(node(notes={"weave.works/kured-reboot-in-progress": "now"}))
    assert "Karpenter" in other_party(
        node(notes={"karpenter.sh/nodeclaim-termination-timestamp": "now"})
    )
    assert "medik8s" in other_party(node(notes={"remediation.medik8s.io/nhc-timed-out": "now"}))
    paused = {"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}
    assert "dcgm is paused-for-driver-upgrade" in other_party(node(paused))
    assert other_party(node({"nvidia.com/gpu.deploy.dcgm": "paused-for-sickbay"})) == ""
    assert other_party(node({"nvidia.com/gpu.deploy.dcgm": "true"})) == ""


# -- the fleet's limits ---------------------------------------------------------------------

NODES = tuple(f"n{number}" for number in range(8))
WHOLE = Record(entries={name: Entry(name, "i", "", NOW) for name in NODES})
SIZE = FleetSize(100, 100)
LIMITS = RepairLimits(RULES)

proposals = st.builds(
    RunningOperation,
    node=st.sampled_from(NODES),
    operation=st.sampled_from(["a", "b", "c", "d", "e"]),
    kind=st.sampled_from([*REPAIRS[:-1], TEST]),
    at=st.just(0.0),
    until=st.floats(360, 5300),
    pool=st.sampled_from(["", "p1", "p2"]),
    domains=st.sampled_from([(), ("rack=1",), ("rack=2",), ("rack=1", "clique=x")]),
).map(lambda one: replace(one, operation=f"{one.node}-{one.operation}"))
events = st.lists(
    st.tuples(st.floats(0, 100_000), st.one_of(proposals, st.sampled_from(NODES))), max_size=40
)


@given(
    events,
    st.builds(
        RepairRules,
        concurrent=st.integers(1, 4),
        concurrent_percent=st.floats(1, 100),
        pool_concurrent=st.integers(1, 2),
        attempts=st.integers(1, 4),
        window=st.floats(3600, 200_000),
    ),
)
def test_no_order_of_reservations_passes_a_limit(
    things: list[tuple[float, RunningOperation | str]], rules: RepairRules
) -> None:
    record, now = WHOLE, NOW
    begun: dict[str, list[tuple[float, str]]] = {}
    for pause, thing in things:
        now += pause
        if isinstance(thing, str):
            known = record.repairs.get(thing)
            if known is not None:
                record = record.without_operations({known.operation})
            continue
        record = record.without_operations(
            {one.operation for one in record.repairs.values() if one.until <= now}
        )
        standing = record.repairs.get(thing.node)
        record, held = reserve(record, thing, RepairLimits(rules), SIZE, now=now)
        if held is not None:
            assert held.reason
            continue
        if standing is not None and standing.operation == thing.operation:
            continue  # it had it already
        if thing.kind != TEST:
            begun.setdefault(thing.node, []).append((now, thing.operation))
        running = list(record.repairs.values())
        assert len(running) <= min(rules.concurrent, max(1, int(rules.concurrent_percent)))
        domains = [domain for one in running for domain in one.domains]
        assert len(domains) == len(set(domains))
        for pool in ("p1", "p2"):
            assert sum(one.pool == pool for one in running) <= rules.pool_concurrent
        lately = {
            operation for at, operation in begun.get(thing.node, []) if now - at < rules.window
        }
        assert len(lately) <= rules.attempts
        assert parse_record(dump_record(record)) == record


def proposal(node: str = "n1", **more: object) -> RunningOperation:
    return replace(RunningOperation(node, f"q-1-{node}", "reboot", 0.0, 900.0), **more)  # type: ignore[arg-type]


def held_by(record: Record, one: RunningOperation, *, by_hand: bool = False, stop: str = "") -> str:
    limits = RepairLimits(RULES, by_hand=by_hand)
    after, held = reserve(record, one, limits, SIZE, now=NOW + 1, stop=stop)
    if held is None:
        return ""
    assert after == record
    return held.limit


def test_a_reservation_is_idempotent_by_its_operation() -> None:
    once, held = reserve(WHOLE, proposal(), LIMITS, SIZE, now=NOW)
    assert held is None
    again, held = reserve(once, proposal(), LIMITS, SIZE, now=NOW + 5)
    assert held is None
    assert again == once
    assert held_by(once, proposal(operation="another")) == "repair.concurrent"


def test_a_reservation_that_is_over_has_to_keep_the_limits_again() -> None:
    one = proposal("n1", domains=("rack=1",))
    once, _ = reserve(WHOLE, one, LIMITS, SIZE, now=NOW)
    late = NOW + 600 + 300 + 1
    assert held_by(once, proposal("n2", domains=("rack=1",))) == "repair.domain"
    once = once.without_operations({one.operation})
    other, held = reserve(once, proposal("n2", domains=("rack=1",)), LIMITS, SIZE, now=late)
    assert held is None
    _, held = reserve(other, one, LIMITS, SIZE, now=late)
    assert held is not None
    assert held.limit == "repair.domain"
    again, held = reserve(once, one, LIMITS, SIZE, now=late)
    assert held is None
    assert again.repairs["n1"].until > late
    assert len(again.past_repairs["n1"]) == 1, "it is one attempt"


def test_what_holds_a_repair_is_named() -> None:
    one, _ = reserve(WHOLE, proposal("n1", domains=("rack=1",), pool="p"), LIMITS, SIZE, now=NOW)
    assert held_by(one, proposal("n2", domains=("rack=1",))) == "repair.domain"
    assert held_by(one, proposal("n2", pool="p")) == "repair.pool_concurrent"
    assert held_by(one, proposal("n2", domains=("rack=2",))) == ""
    two, _ = reserve(one, proposal("n2"), LIMITS, SIZE, now=NOW)
    assert held_by(two, proposal("n3")) == "repair.concurrent"
    assert held_by(WHOLE, proposal("n9")) == "repair"
    assert held_by(WHOLE, proposal(), stop="a fire") == "stop"
    rebuilt = replace(WHOLE, rebuilt=Rebuilt(NOW, "was deleted", "uid"))
    assert held_by(rebuilt, proposal()) == "record"
    past = {"n1": tuple(PastRepair(NOW, "reboot", str(number)) for number in range(3))}
    tired = replace(WHOLE, past_repairs=past)
    assert held_by(tired, proposal()) == "repair.attempts"
    assert held_by(tired, proposal(), by_hand=True) == ""
    by_hand, _ = reserve(WHOLE, proposal(), replace(LIMITS, by_hand=True), SIZE, now=NOW)
    assert len(by_hand.past_repairs["n1"]) == 1  # it counts for those by the ladder


def test_an_end_is_of_its_own_attempt_alone() -> None:
    one, _ = reserve(WHOLE, proposal(), LIMITS, SIZE, now=NOW)
    assert one.without_operations({"another"}) == one
    over = one.without_operations({"q-1-n1"})
    assert over.repairs == {}
    assert len(over.past_repairs["n1"]) == 1


def test_a_record_whose_repairs_cannot_be_read_is_no_record() -> None:
    text = dump_record(reserve(WHOLE, proposal(), LIMITS, SIZE, now=NOW)[0])
    with pytest.raises(RecordUnreadable):
        parse_record(text.replace('"kind":"reboot"', '"kinds":"reboot"'))


def test_a_record_made_anew_keeps_the_repairs_that_run_and_those_that_were() -> None:
    before, _ = reserve(WHOLE, proposal("n1"), LIMITS, SIZE, now=NOW)
    found = RunningOperation("n2", "q-1-n2", "reboot", NOW, NOW + 900)
    anew = rebuild(
        Record(),
        Known("uid", "", before),
        before.entries.values(),
        rebuilt=Rebuilt(NOW, "was deleted", "uid-2"),
        newest=0,
        repairs=[found],
    )
    assert set(anew.repairs) == {"n1", "n2"}
    assert anew.past_repairs == before.past_repairs


def test_the_reservation_of_an_attempt_under_way_is_known_from_its_quarantine() -> None:
    busy = status(attempt("reboot", RepairState.ORDERED, domains=("rack=1",)))
    found = present(lost_reservation("n1", busy, "p"))
    assert (found.node, found.operation, found.pool) == ("n1", "q-1-reboot", "p")
    assert found.domains == ("rack=1",)
    assert found.until > NOW + 600
    assert lost_reservation("n1", status(attempt("reboot", RepairState.FAILED)), "") is None
    assert lost_reservation("n1", status(attempt("ticket", RepairState.ORDERED)), "") is None
    assert lost_reservation("n1", RepairStatus(), "") is None


def test_failure_domains_are_labels_that_the_node_has() -> None:
    labels = {"rack": "7", "clique": "", "zone": "a"}
    assert domains_of(labels, ("rack", "clique", "rack", "none")) == ("rack=7",)
