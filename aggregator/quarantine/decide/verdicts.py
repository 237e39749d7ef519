"""The verdict of a quarantine's active tests about its node now. Pure.

A verdict counts from its boot alone, and only where the test began after evidence was last in
force: an earlier pass is no evidence about the fault that came later.
"""

from aggregator.cluster.port import RepairAttempt, RepairState, RepairStatus
from aggregator.policy.repairs import NEEDS_PERSON, TEST

#: A test that ended so has given no verdict about the node, and is harmless to repeat.
_NO_VERDICT = (RepairState.INCONCLUSIVE, RepairState.UNKNOWN)


def is_verified(status: RepairStatus, profile: str, boot_id: str) -> bool:
    """Whether the node has passed this profile in this boot, and no later attempt or evidence
    counts against it.

    A repair that began after the test is something new: the test is due again.
    """
    for one in reversed(status.attempts):
        if one.repair in NEEDS_PERSON:
            continue
        if one.repair != TEST or one.state is RepairState.FAILED:
            return False
        passed = one.state is RepairState.SUCCEEDED and one.profile == profile
        if passed and counts(status, one):
            return bool(one.boot_id) and one.boot_id == boot_id
    return False


def counts(status: RepairStatus, test: RepairAttempt) -> bool:
    """Whether the test began after evidence was last in force."""
    return test.began_at > status.evidence_at


def outdates(status: RepairStatus) -> bool:
    """Whether evidence that is in force now outdates a test, or the wait for one: that has to be
    durable.
    """
    tested = any(one.repair == TEST and counts(status, one) for one in status.attempts)
    return tested or status.test_waits_since > 0


def open_failure(status: RepairStatus) -> RepairAttempt | None:
    """The failed test that no repair and no later test has answered."""
    for one in reversed(status.attempts):
        answered = one.state is RepairState.SUCCEEDED and one.repair not in NEEDS_PERSON
        if answered:
            return None
        if one.repair == TEST and one.state is RepairState.FAILED:
            return one if counts(status, one) else None
    return None


def unknown_repair(status: RepairStatus) -> RepairAttempt | None:
    """The latest repair whose outcome is not known, unless something succeeded after it."""
    for one in reversed(status.attempts):
        if one.repair in NEEDS_PERSON:
            continue
        if one.state is RepairState.SUCCEEDED:
            return None
        if one.state is RepairState.UNKNOWN and one.repair != TEST:
            return one
    return None


def without_verdict(status: RepairStatus) -> list[RepairAttempt]:
    """The tests of this quarantine that began by themselves and ended without a verdict."""
    tests = (one for one in status.attempts if one.repair == TEST and not one.request)
    return [one for one in tests if one.state in _NO_VERDICT]


def is_about_tests(status: RepairStatus) -> bool:
    """Whether the last that was done is a test, or one waits: that leaves the node to a person."""
    tested = bool(status.attempts) and status.attempts[-1].repair == TEST
    return tested or status.test_waits_since > 0


def last_repair(status: RepairStatus) -> RepairAttempt | None:
    """The last attempt that is no test."""
    return next((one for one in reversed(status.attempts) if one.repair != TEST), None)
