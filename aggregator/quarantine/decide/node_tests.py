"""The last test of a node, new or in service, as its Operation has it; and what follows. Pure.

Invariant: the id of a test follows from the Node's uid, its boot and the number of the test. Each
process that decides on a test computes the same.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from aggregator.cluster import operations as attempts
from aggregator.cluster.operations import is_unread
from aggregator.cluster.port import (
    Node,
    NodeTestStatus,
    Operation,
    OperationRequest,
    OperationStatus,
    QuarantineStatus,
    RepairState,
    RepairStatus,
)
from aggregator.health.model import Component, Status
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.admission_record import (
    IDLE_TEST,
    NEW_NODE_TEST,
    RunningOperation,
)
from aggregator.quarantine.decide.reservation import LINGERS
from aggregator.runtime.text import truncate

#: The check of evidence about a failed test, in the aggregator's own name.
CHECK = "active-test"
#: The reason of a new node's tests in events and metrics.
NEW_NODE = "new-node"
#: The same of periodic tests.
IDLE = "idle"
#: The reason of a test that a person has requested, in metrics and for people.
BY_HAND = "by-hand"
_BUSY = (RepairState.ORDERING, RepairState.ORDERED)
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


@dataclass(frozen=True, slots=True)
class NodeTest:
    """The last test of a node: the newest Operation of such a test of the Node. ``number`` counts
    the tests of the Node.

    ``inconclusive``: the tests without a verdict before this one, in its boot and since a person's
    last request. ``boot_after``: the boot in which the node was when the test ended, where that is
    another one than the test's. ``request``: the name of a person's Operation, empty without one.
    ``quarantined``: the node was in quarantine after its last test. ``ends_as``: how it ends once
    the startup taint is removed. ``deleted``: a person has deleted its Operation, which cancels it.
    Times are wall clock seconds.

    ``reason`` is `IDLE` for the test of a node in service, periodic or by a person's request. Such
    a test without a verdict leaves what was known: ``verdict_at`` is the end of the last test with
    a verdict before this one, and ``failed`` is an earlier failure that is still open, of the
    boot ``failed_boot``. ``passed``: a pass in quarantine since, in words.
    """

    number: int
    operation: str
    profile: str
    state: RepairState
    boot_id: str
    boot_after: str = ""
    inconclusive: int = 0
    request: str = ""
    began_at: float = 0.0
    deadline_at: float = 0.0
    ended_at: float = 0.0
    message: str = ""
    quarantined: bool = False
    reason: str = ""
    verdict_at: float = 0.0
    failed: str = ""
    failed_boot: str = ""
    passed: str = ""
    ends_as: RepairState | None = None
    deleted: bool = False

    @property
    def name(self) -> str:
        """The name of its object."""
        return self.request or self.operation

    @property
    def is_busy(self) -> bool:
        """Whether it may still run on the node."""
        return self.state in _BUSY

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
    found = [node_test_of(one) for one in own if not is_unread(one)]
    last = max(found, key=lambda one: (one.number, one.began_at), default=None)
    if unread:
        return None, f"operation {unread[0].name}: {unread[0].status.message}; delete it to go on"
    if last is None:
        return None, ""
    if last.is_busy and not last.deadline_at:
        return None, f"operation {last.name} is under way without a deadline; delete it to go on"
    return last, ""


def node_test_of(operation: Operation) -> NodeTest:
    """The test that an operation is."""
    spec, status = operation.spec, operation.status
    about = status.node_test or NodeTestStatus()
    passed = bool(about.passed)
    return NodeTest(
        number=status.number,
        operation=status.operation or operation.name,
        profile=status.profile or spec.profile,
        state=RepairState.SUCCEEDED if passed else status.phase,
        boot_id=status.boot_id,
        boot_after=about.boot_after,
        inconclusive=about.inconclusive,
        request=operation.name if status.operation else "",
        began_at=status.began_at,
        deadline_at=status.deadline_at,
        ended_at=about.passed_at if passed else status.ended_at,
        message=about.passed or status.message,
        quarantined=about.quarantined,
        reason=about.reason,
        verdict_at=about.verdict_at,
        failed=about.failed,
        failed_boot=about.failed_boot,
        passed=about.passed,
        ends_as=status.ends_as,
        deleted=operation.deleting,
    )


def begun_status(test: NodeTest, node_uid: str, domains: tuple[str, ...]) -> OperationStatus:
    """The status by which an operation becomes that test."""
    return status_of(
        test,
        OperationStatus(
            operation=test.operation if test.request else "",
            number=test.number,
            boot_id=test.boot_id,
            node_uid=node_uid,
            domains=domains,
            profile=test.profile if test.request else "",
        ),
    )


def status_of(test: NodeTest, before: OperationStatus) -> OperationStatus:
    """The status of a test that has gone on since ``before``. A pass in quarantine since changes
    nothing of how it has ended itself.
    """
    about = NodeTestStatus(
        reason=test.reason,
        boot_after=test.boot_after,
        inconclusive=test.inconclusive,
        quarantined=test.quarantined,
        verdict_at=test.verdict_at,
        failed=test.failed,
        failed_boot=test.failed_boot,
        passed=test.passed,
        passed_at=test.ended_at if test.passed else 0.0,
    )
    return replace(before if test.passed else attempts.status_of(test, before), node_test=about)


def operation_of(node_uid: str, boot_id: str, number: int, request_uid: str = "") -> str:
    """The id of one test of a Node, the same for each process. ``request_uid``: of the object with
    which a person requested it: numbers come again once the objects of before are deleted.
    """
    parts = (node_uid, boot_id or "boot", str(number), request_uid[:8], TEST)
    return "-".join(part for part in parts if part)


# -- what to do ------------------------------------------------------------------------------


class NodeTestStep(enum.Enum):
    """The next step of the test of a node."""

    NOTHING = "nothing"
    ORDER = "order"  # begin a test: reserve it, make it durable, send it
    SEND = "send"  # the order may not have been sent
    PROVE = "prove"  # read the verdict of the test under way
    STOP = "stop"  # end it without a verdict
    END = "end"  # its time is over


@dataclass(frozen=True, slots=True)
class NextTest:
    """``because``: why it is so; with NOTHING why no test begins now, empty if none is due.

    ``test``: with ORDER the one that begins, without its times.
    """

    do: NodeTestStep
    because: str = ""
    test: NodeTest | None = None


@dataclass(frozen=True, slots=True)
class NodeTestFacts:
    """All that the next step depends on, in addition to the node's last test.

    ``tainted``: the node carries the startup taint. ``against``: why no test may begin on it now.
    ``ends``: why a test under way has to end. ``request``: the oldest of a person that has not
    begun.
    """

    node_uid: str
    boot_id: str
    tainted: bool
    against: str = ""
    ends: str = ""
    request: OperationRequest | None = None


def under_way(last: NodeTest, facts: NodeTestFacts, now: float, lost: str) -> NextTest:
    """The same of a test under way. ``lost``: why it has no purpose any more."""
    if last.ends_as is not None:  # its end is known
        return NextTest(NodeTestStep.PROVE)
    ends = facts.ends or lost
    if ends:
        return NextTest(NodeTestStep.STOP, ends)
    if not last.is_of_boot(facts.boot_id):
        return NextTest(NodeTestStep.STOP, "the node is in another boot than the test was for")
    if now >= last.deadline_at:
        return NextTest(NodeTestStep.END, "its time is over")
    return NextTest(NodeTestStep.SEND if last.state is RepairState.ORDERING else NodeTestStep.PROVE)


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


def passed_in_quarantine(test: NodeTest, boot_id: str, repair: RepairStatus | None) -> str:
    """The operation of a test in quarantine that the node has passed since; empty: none."""
    found = (
        one.operation
        for one in (repair.attempts if repair is not None else ())
        if one.repair == TEST
        and one.state is RepairState.SUCCEEDED
        and one.boot_id == boot_id
        and one.began_at >= verdict_at(test)
    )
    return next(found, "")


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
    repair = quarantine.repair if quarantine is not None else None
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
    """Its kind in the admission record."""
    return IDLE_TEST if test.reason == IDLE else NEW_NODE_TEST


def running_of(
    node: str, test: NodeTest, *, at: float, domains: tuple[str, ...] = ()
) -> RunningOperation:
    """The reservation that a test under way must have. ``domains`` count for idle tests alone."""
    until, kind = test.deadline_at + LINGERS, reserved_kind(test)
    counted = domains if kind == IDLE_TEST else ()
    return RunningOperation(node, test.operation, kind, at, until, domains=counted)


def as_details(test: NodeTest) -> dict[str, str]:
    """The details of events about it, as of the tests in a quarantine."""
    return {
        "repair": TEST,
        "operation": test.operation,
        "profile": test.profile,
        "reason": test.reason or NEW_NODE,
    }
