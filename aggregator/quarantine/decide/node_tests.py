"""The last test of a node, new or in service, as its Operation has it; and what follows. Pure.

Invariant: the id of a test follows from the Node's uid, its boot and the number of the test. Each
process that decides on a test computes the same.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from aggregator.cluster import operations as attempts
from aggregator.cluster.operations import is_unread
from aggregator.cluster.port import (
    BUSY,
    Node,
    NodeTestStatus,
    Operation,
    OperationRequest,
    OperationStatus,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.health.model import Component, Status
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.admission_record import IDLE_TEST, NEW_NODE_TEST
from aggregator.quarantine.decide.operation_step import Do, NextOperation, under_way
from aggregator.runtime.text import truncate

#: The check of evidence about a failed test, in the aggregator's own name.
CHECK = "active-test"
#: The reason of a new node's tests in events and metrics.
NEW_NODE = "new-node"
#: The same of periodic tests.
IDLE = "idle"
#: The reason of a test that a person has requested, in metrics and for people.
BY_HAND = "by-hand"
#: A test that ended so has given no verdict about the node.
_NO_VERDICT = (RepairState.INCONCLUSIVE, RepairState.UNKNOWN)
VERDICTS = (RepairState.SUCCEEDED, RepairState.FAILED)
_MOST_MESSAGE = 500
#: Taints of the kubelet and of cloud controllers: the node is not ready for any pod yet.
_NOT_READY = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/unregistered",
)
#: Startup taints of network and storage agents, such as node.cilium.io/agent-not-ready.
_AGENT_NOT_READY = "/agent-not-ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTest(NodeTestStatus, RepairAttempt):
    """The last test of a node: the newest Operation of such a test of the Node. ``number`` counts
    the tests of the Node.

    ``reason`` is `IDLE` for the test of a node in
    service, periodic or by a person's request. Such a test without a verdict leaves what was known:
    ``verdict_at``, ``failed``, ``failed_boot``. With ``passed`` the state, the message and the end
    are those of that pass. ``ends_as``: also how it ends once the startup taint is removed.
    """

    repair: str = TEST
    number: int

    @property
    def is_busy(self) -> bool:
        """Whether it may still run on the node."""
        return self.state in BUSY

    @property
    def without_verdict(self) -> int:
        """The tests without a verdict until now, this one counted if it is one."""
        return self.inconclusive + (self.state in _NO_VERDICT)

    def is_of_boot(self, boot_id: str) -> bool:
        """Whether it is a result about the node in this boot; an unknown boot is the same."""
        return not boot_id or boot_id in (self.boot_id, self.boot_after)


def last_test(operations: Iterable[Operation], node_uid: str) -> tuple[NodeTest | None, str]:
    """The last test of the Node with this uid, None without one; and why that can't be read, so
    that no test begins until a person deletes it. ``operations``: the begun tests of the node.
    """
    own = [one for one in operations if one.status.node_uid in (node_uid, "")]
    unread = [one for one in own if is_unread(one) and not one.deleting]
    found = (one for one in own if not is_unread(one))
    newest = max(found, key=attempts.test_order, default=None)
    if unread:
        return None, f"operation {unread[0].name}: {unread[0].status.message}; delete it to go on"
    if newest is None:
        return None, ""
    last = node_test_of(newest)
    if last.is_busy and not last.deadline_at:
        return None, f"operation {last.name} is under way without a deadline; delete it to go on"
    return last, ""


def node_test_of(operation: Operation) -> NodeTest:
    """The test that an operation is."""
    about = operation.status.node_test or NodeTestStatus()
    values = _values(attempts.attempt_of(operation)) | _values(about)
    test = NodeTest(number=operation.status.number, **values)
    if not about.passed:
        return test
    state = RepairState.SUCCEEDED
    return replace(test, state=state, ended_at=about.passed_at, message=about.passed)


def begun_status(test: NodeTest) -> OperationStatus:
    """The status by which an operation becomes that test."""
    return status_of(test, attempts.begun_status(None, test, test.number))


def status_of(test: RepairAttempt, before: OperationStatus) -> OperationStatus:
    """The status of a test, or of an attempt in a quarantine, that has gone on since ``before``. A
    test in quarantine that was passed since changes nothing of how a test has ended itself.
    """
    if not isinstance(test, NodeTest):
        return attempts.status_of(test, before)
    about = NodeTestStatus(**{one.name: getattr(test, one.name) for one in fields(NodeTestStatus)})
    return replace(before if test.passed else attempts.status_of(test, before), node_test=about)


def _values(of: RepairAttempt | NodeTestStatus) -> dict[str, Any]:
    return {one.name: getattr(of, one.name) for one in fields(of)}


def operation_of(
    node_uid: str, boot_id: str, number: int, request_uid: str = "", *, installation: str = ""
) -> str:
    """The id of one test of a Node, the same for each process of the ``installation``: another one
    counts tests of its own. ``request_uid``: of the object with which a person requested it:
    numbers come again once the objects of before are deleted.
    """
    whose = f"{zlib.crc32(installation.encode()):08x}" if installation else ""
    parts = (node_uid, boot_id or "boot", str(number), whose, request_uid[:8], TEST)
    return "-".join(part for part in parts if part)


# -- what to do ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeTestFacts:
    """All that the next step depends on, in addition to the node's last test.

    ``tainted``: the node carries the startup taint. ``against``: why no test may begin on it now.
    ``ends``: why a test under way has to end. ``request``: the oldest of a person that has not
    begun. ``installation``: ours.
    """

    node_uid: str
    boot_id: str
    tainted: bool
    against: str = ""
    ends: str = ""
    request: OperationRequest | None = None
    installation: str = ""


def next_of_test(last: NodeTest, facts: NodeTestFacts, now: float, lost: str) -> NextOperation:
    """The next step of a test under way. ``lost``: why it has no purpose any more."""
    if last.ends_as is not None:  # its end is known
        return NextOperation(Do.PROVE, TEST)
    ends = facts.ends or lost
    if not last.is_of_boot(facts.boot_id):
        ends = ends or "the node is in another boot than the test was for"
    return under_way(last, now, ends)


def new_test(
    last: NodeTest | None, facts: NodeTestFacts, profile: str, **more: Any
) -> NextOperation:
    """The test that begins, after the ``last``. ``more``: fields of the test by its reason."""
    number, requested = last.number + 1 if last is not None else 1, facts.request
    uid, boot, by = facts.node_uid, facts.boot_id, requested.uid if requested else ""
    ident = operation_of(uid, boot, number, by, installation=facts.installation)
    failed, failed_boot = carried_failure(last)
    test = NodeTest(
        number=number,
        operation=ident,
        profile=(requested.profile if requested else "") or profile,
        state=RepairState.ORDERING,
        boot_id=facts.boot_id,
        node_uid=facts.node_uid,
        request=requested.name if requested else "",
        failed=failed,
        failed_boot=failed_boot,
        **more,
    )
    kind = "an idle node" if test.reason else "a new node"
    because = "requested by hand" if requested else kind
    return NextOperation(Do.ORDER, TEST, because, test.request, test.profile, test)


def ended(
    test: NodeTest, state: RepairState, message: str, *, at: float, boot_id: str = ""
) -> NodeTest:
    """The test with its end. ``boot_id``: the node's boot then."""
    after = boot_id if boot_id and boot_id != test.boot_id else ""
    if state in VERDICTS:  # it is newer than an earlier failure
        test = replace(test, failed="", failed_boot="")
    return replace(
        test,
        state=state,
        ends_as=None,
        message=truncate(message, _MOST_MESSAGE),
        ended_at=max(at, test.began_at),
        boot_after=after,
    )


def is_ended_by(test: NodeTest | None, why: str) -> bool:
    """Whether the test was ended without a verdict for this reason. ``why``: its message then, to
    which the end may have added the boot.
    """
    ends = (RepairState.CANCELLED, RepairState.INCONCLUSIVE)
    return test is not None and test.state in ends and test.message.endswith(why)


def verdict_at(test: NodeTest | None) -> float:
    """When the node's last test with a verdict ended; 0: there was none."""
    if test is None:
        return 0.0
    return test.ended_at if test.state in VERDICTS else test.verdict_at


def open_failure(test: NodeTest | None) -> tuple[str, str]:
    """The failed idle test that no later verdict has replaced, in words, and its boot; else empty.

    The failure of a new node's test lasts as long as its taint: `has_failed`.
    """
    if test is None:
        return "", ""
    if test.state is RepairState.FAILED:
        return (_failure_of(test), test.boot_id) if test.reason else ("", "")
    return ("", "") if test.state is RepairState.SUCCEEDED else (test.failed, test.failed_boot)


def carried_failure(last: NodeTest | None) -> tuple[str, str]:
    """The same for the test that follows: a quarantine since is over, and with it the failure."""
    return ("", "") if last is not None and last.quarantined else open_failure(last)


def passed_in_quarantine(test: NodeTest, boot_id: str, repair: RepairStatus) -> str:
    """The operation of a test in quarantine that the node has passed since; empty: none."""
    for one in repair.attempts:
        passed = one.repair == TEST and one.state is RepairState.SUCCEEDED
        if passed and one.boot_id == boot_id and one.began_at >= verdict_at(test):
            return one.operation
    return ""


def has_failed(
    test: NodeTest | None, boot_id: str, quarantine: QuarantineStatus | None, *, tainted: bool
) -> bool:
    """Whether a failed test counts as evidence: in its boot, and until the node has passed a test
    in quarantine or was released from there. Of a new node also until a person has taken it as it
    is by removing the taint, of an idle node until a later verdict. ``quarantine``: the present
    one, if any.
    """
    if test is None or not boot_id:
        return False
    if test.quarantined and quarantine is None:
        return False
    failed, failed_boot = open_failure(test)
    if failed:
        return failed_boot == boot_id
    repair = quarantine.repair if quarantine is not None else RepairStatus()
    if not tainted or test.reason or test.state is not RepairState.FAILED:
        return False
    return boot_id == test.boot_id and not passed_in_quarantine(test, boot_id, repair)


# -- what the Node and its evidence show -----------------------------------------------------


def not_ready(node: Node) -> str:
    """What in the Node is against a test, which would have no verdict then; empty: nothing."""
    if node.unschedulable:
        return "the node is cordoned"
    if node.ready is not True:
        return "its kubelet is not ready"
    for taint in node.taints:
        if taint.key.startswith(_NOT_READY) or taint.key.endswith(_AGENT_NOT_READY):
            return f"the node is not ready for pods (taint {taint.key})"
    for resource, (capacity, allocatable) in sorted(node.devices.items()):
        if capacity != allocatable:
            return f"{allocatable} of {capacity} {resource} are allocatable"
    return ""


def failure_evidence(test: NodeTest | None, since: float) -> Component:
    """A failed test as level evidence in the aggregator's own name; None: that is over."""
    if test is None:
        return Component(CHECK, "", Status.OK, "", "no failed test counts any more", since)
    text = open_failure(test)[0] or _failure_of(test)
    return Component(CHECK, "", Status.FAILED, "failed", text, since)


def is_own_evidence(code: str) -> bool:
    return code.partition(":")[0] == CHECK


def _failure_of(test: NodeTest) -> str:
    text = f"test {test.profile} failed: {test.message} (operation {test.operation})"
    return truncate(text, 2 * _MOST_MESSAGE)


def reserved_kind(test: NodeTest) -> str:
    """Its kind in the admission record. Failure domains count for idle tests alone."""
    return IDLE_TEST if test.reason == IDLE else NEW_NODE_TEST


def as_details(test: NodeTest) -> dict[str, str]:
    """The details of events about it, as of the tests in a quarantine."""
    return {
        "repair": TEST,
        "operation": test.operation,
        "profile": test.profile,
        "reason": test.reason or NEW_NODE,
    }
