"""The last test of a node, new or idle, as its annotation has it; and what follows from it. Pure.

Invariant: the id of a test follows from the Node's uid, its boot and the number of the test. Each
process that decides on a test computes the same.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from aggregator.cluster.node_names import NODE_TEST
from aggregator.cluster.port import (
    Node,
    OperationRequest,
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
_MOST_NUMBER = 1_000_000
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
    """The last test of a node, as its annotation has it. ``number`` counts the tests of the Node.

    ``inconclusive``: the tests without a verdict before this one, in its boot and since a person's
    last request. ``boot_after``: the boot in which the node was when the test ended, where that is
    another one than the test's. ``request`` and ``request_uid``: the name and UID of a person's
    Operation, empty without one. ``quarantined``: the node was in quarantine after its last test.
    Times are wall clock seconds.

    ``reason`` is `IDLE` for the test of a node in service, periodic or by a person's request. Such
    a test without a verdict leaves what was known: ``verdict_at`` is the end of the last test with
    a verdict before this one, and ``failed`` is an earlier failure that is still open, of the boot
    ``failed_boot``.
    """

    number: int
    operation: str
    profile: str
    state: RepairState
    boot_id: str
    boot_after: str = ""
    inconclusive: int = 0
    request: str = ""
    request_uid: str = ""
    began_at: float = 0.0
    deadline_at: float = 0.0
    ended_at: float = 0.0
    message: str = ""
    quarantined: bool = False
    reason: str = ""
    verdict_at: float = 0.0
    failed: str = ""
    failed_boot: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether it may still run on the node."""
        return self.state in _BUSY

    @property
    def without_verdict(self) -> int:
        """The tests without a verdict until now, this one counted if it is one."""
        return self.inconclusive + (self.state in _NO_VERDICT)

    def answers(self, request: OperationRequest) -> bool:
        """Whether it is the test of just this object: another may have had its name before."""
        return (self.request, self.request_uid) == (request.name, request.uid)

    def is_of_boot(self, boot_id: str) -> bool:
        """Whether it is a result about the node in this boot; an unknown boot is the same."""
        return not boot_id or boot_id in (self.boot_id, self.boot_after)


class NodeTestUnreadable(Exception):
    """The annotation is not as sickbay writes it. No test begins until a person removes it."""


def read_test(annotations: Mapping[str, str], node_uid: str) -> NodeTest | None:
    """The node's last test, None without one. Raises NodeTestUnreadable.

    A copied annotation (for example of another Node) is unreadable: its operations are not this
    node's.
    """
    text = annotations.get(NODE_TEST)
    if text is None:
        return None
    try:
        found = json.loads(text)
        given = {one.name: found[one.name] for one in fields(NodeTest) if one.name in found}
        test = NodeTest(**given | {"state": RepairState(given["state"])})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise NodeTestUnreadable(_unreadable(why)) from error
    wrong = [name for name, value in given.items() if not _fits(name, value)]
    if wrong:
        raise NodeTestUnreadable(_unreadable(f"{wrong[0]} is {given[wrong[0]]!r}"))
    if not 0 < test.number <= _MOST_NUMBER:
        raise NodeTestUnreadable(_unreadable(f"number is {test.number}"))
    if test.operation != operation_of(node_uid, test.boot_id, test.number):
        raise NodeTestUnreadable(_unreadable("its operation is none of this Node"))
    if test.is_busy and not test.deadline_at:
        raise NodeTestUnreadable(_unreadable("a test is under way without a deadline"))
    return test


def _fits(name: str, value: object) -> bool:
    """Whether the value is of the field's type."""
    if name in ("number", "inconclusive"):
        return type(value) is int
    if name == "quarantined":
        return type(value) is bool
    if name.endswith("_at"):
        return type(value) in (int, float)
    return type(value) is str


def _unreadable(why: str) -> str:
    return f"note {NODE_TEST} can't be read: {truncate(why, 120)}; remove it to go on"


def write_test(test: NodeTest) -> str:
    """The annotation that `read_test` reads; fields at their default are left out."""
    written = {
        one.name: getattr(test, one.name)
        for one in fields(NodeTest)
        if getattr(test, one.name) != one.default
    }
    return json.dumps(written, sort_keys=True)


def operation_of(node_uid: str, boot_id: str, number: int) -> str:
    """The id of one test of a Node, the same for each process."""
    return f"{node_uid}-{boot_id or 'boot'}-{number}-{TEST}"


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

    def unanswered(self, last: NodeTest | None) -> OperationRequest | None:
        """The request, unless the ``last`` test is its own."""
        pending = self.request
        return None if pending is None or (last is not None and last.answers(pending)) else pending


def under_way(last: NodeTest, facts: NodeTestFacts, now: float, lost: str) -> NextTest:
    """The same of a test under way. ``lost``: why it has no purpose any more."""
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
