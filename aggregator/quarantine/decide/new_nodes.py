"""The test of a new node, which carries a startup taint until it has passed. Pure.

Invariants:
- The taint is removed by a pass alone, of a test in the node's present boot, and in one write with
  that pass: no silence, no missing tool and no time limit removes it.
- Without a person's request at most `NewNodeRules.attempts` tests end without a verdict in one
  boot, and a failed test is the last one of its boot: so the tests of a node end. A quarantine
  that has begun since, and is over, begins the count anew: the node was repaired or judged there.
- `reserve_test` lets no test begin past `NewNodeRules.concurrent`. The record is changed by
  compare-and-set, so this holds for any interleaving of replicas.
- The id of a test follows from the Node's uid, its boot and the number of the test: each process
  that decides on a test computes the same.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from aggregator.cluster.node_names import NODE_TEST
from aggregator.cluster.port import (
    Node,
    NodeTestCondition,
    QuarantineStatus,
    RepairState,
    RepairStatus,
    Taint,
)
from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import LabelKey, refuse, show
from aggregator.health.model import Component, Status
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.admission import Held, settling, stopped
from aggregator.quarantine.decide.admission_record import Record, RunningRepair
from aggregator.quarantine.decide.profiles import Profile
from aggregator.runtime.text import truncate

#: The check of evidence about a failed test, in the aggregator's own name.
CHECK = "active-test"
#: The reason of such tests in events and metrics.
NEW_NODE = "new-node"
#: The same of periodic tests, and their kind in the admission record: they have limits of their
#: own there.
IDLE = "idle"
IDLE_TEST = "idle-test"
_BUSY = (RepairState.ORDERING, RepairState.ORDERED)
#: A test that ended so has said nothing about the node.
_NO_VERDICT = (RepairState.INCONCLUSIVE, RepairState.UNKNOWN)
_VERDICTS = (RepairState.SUCCEEDED, RepairState.FAILED)
#: A test counts so much longer than its deadline (seconds): until its end is written.
_LINGERS = 300.0
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


def _key_alone(value: Any) -> Any:
    """Refuse a taint as kubectl and the kubelet write it: KEY=VALUE:EFFECT."""
    if isinstance(value, str) and ("=" in value or ":" in value):
        expected = f"the taint's key alone: {show(value.partition(':')[0].partition('=')[0])}"
        raise refuse(show(value), expected)
    return value


@dataclass(frozen=True, slots=True)
class NewNodeRules(SectionDataclass):
    """The test of new nodes: the section ``repair.new_nodes``.

    ``taint``: the key of the startup taint with which the site registers its nodes; empty: no node
    is tested so. ``profile``: the test that a node with it has to pass. At most ``attempts`` tests
    in one boot end without a verdict; ``concurrent`` bounds the tests of new nodes in the whole
    fleet at once. ``remove_taint``: false leaves the taint to another controller, which goes by
    the condition.
    """

    taint: Annotated[LabelKey, BeforeValidator(_key_alone)] = ""
    profile: Profile = "quick"
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    concurrent: Positive = 4
    remove_taint: bool = True


@dataclass(frozen=True, slots=True)
class NodeTest:
    """The last test of a node, as its annotation has it. ``number`` counts the tests of the Node.

    ``inconclusive``: the tests without a verdict before this one, in its boot and since a person's
    last request. ``boot_after``: the boot in which the node was when the test ended, where that is
    another one than the test's. ``request``: the id of a person's request, empty without one.
    ``quarantined``: the node was in quarantine after its last test. Times are wall clock
    seconds.

    ``reason`` is `IDLE` for the periodic test of an idle node; such a test without a verdict leaves
    what was known: ``verdict_at`` is the end of the last test with a verdict before this one, and
    ``failed`` tells an earlier failure that still stands, of the boot ``failed_boot``.
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

    @property
    def is_busy(self) -> bool:
        """Whether it may still run on the node."""
        return self.state in _BUSY

    @property
    def without_verdict(self) -> int:
        """The tests without a verdict until now, this one counted if it is one."""
        return self.inconclusive + (self.state in _NO_VERDICT)

    def is_of_boot(self, boot_id: str) -> bool:
        """Whether it says something about the node in this boot; an unknown boot is the same."""
        return not boot_id or boot_id in (self.boot_id, self.boot_after)


class NodeTestUnreadable(Exception):
    """The annotation is not as sickbay writes it. No test begins until a person removes it."""


def read_test(annotations: Mapping[str, str], node_uid: str) -> NodeTest | None:
    """The node's last test, None without one. Raises NodeTestUnreadable.

    A copied annotation, of another Node say, is unreadable: its operations are not this node's.
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
    return f"annotation {NODE_TEST} can't be read: {truncate(why, 120)}; remove it to go on"


def write_test(test: NodeTest) -> str:
    """The annotation that `read_test` reads; fields at their default are left out."""
    told = {
        one.name: getattr(test, one.name)
        for one in fields(NodeTest)
        if getattr(test, one.name) != one.default
    }
    return json.dumps(told, sort_keys=True)


def operation_of(node_uid: str, boot_id: str, number: int) -> str:
    """The id of one test of a Node, the same for each process."""
    return f"{node_uid}-{boot_id or 'boot'}-{number}-{TEST}"


# -- what to do ------------------------------------------------------------------------------


class NewNodeStep(enum.Enum):
    """What to do about the test of a node."""

    NOTHING = "nothing"
    ORDER = "order"  # begin a test: reserve it, make it durable, send it
    SEND = "send"  # the order may not have been sent
    PROVE = "prove"  # ask for the verdict of the test under way
    STOP = "stop"  # end it without a verdict
    END = "end"  # its time is over


@dataclass(frozen=True, slots=True)
class NextTest:
    """``because``: why it is so; with NOTHING why no test begins now, empty if none is due.

    ``test``: with ORDER the one that begins, without its times.
    """

    do: NewNodeStep
    because: str = ""
    test: NodeTest | None = None


@dataclass(frozen=True, slots=True)
class NodeTestFacts:
    """All that the next step depends on, beside the node's last test.

    ``tainted``: the node carries the startup taint. ``against``: why no test may begin on it now.
    ``ends``: why a test under way has to end. ``request``: the id of a person's request for a test
    that is not followed yet, and ``request_profile`` the profile that it names.
    """

    node_uid: str
    boot_id: str
    tainted: bool
    against: str = ""
    ends: str = ""
    request: str = ""
    request_profile: str = ""


def next_test(
    last: NodeTest | None, facts: NodeTestFacts, rules: NewNodeRules, *, pause: float, now: float
) -> NextTest:
    """What to do now. ``pause``: seconds between two tests; ``now``: wall clock seconds."""
    if last is not None and last.is_busy:
        return under_way(last, facts, now, "" if facts.tainted else "the startup taint was removed")
    if not facts.tainted:
        return NextTest(NewNodeStep.NOTHING)
    asked = facts.request if last is None or last.request != facts.request else ""
    over = "" if asked else why_over(last, facts.boot_id, rules)
    if over:
        return NextTest(NewNodeStep.NOTHING, over)
    earlier = last is not None and not last.reason and last.is_of_boot(facts.boot_id)
    if not asked and last is not None and earlier:
        left = last.ended_at + pause - now
        if 0 < left <= pause:
            return NextTest(
                NewNodeStep.NOTHING, f"the next test begins {pause:g} s after the last one"
            )
    if facts.against:
        return NextTest(NewNodeStep.NOTHING, facts.against)
    number = last.number + 1 if last is not None else 1
    counts = last is not None and earlier and not asked and not last.quarantined
    failed, failed_boot = carried_failure(last)
    return NextTest(
        NewNodeStep.ORDER,
        "asked for by hand" if asked else "a new node",
        NodeTest(
            number=number,
            operation=operation_of(facts.node_uid, facts.boot_id, number),
            profile=(facts.request_profile if asked else "") or rules.profile,
            state=RepairState.ORDERING,
            boot_id=facts.boot_id,
            inconclusive=last.without_verdict if last and counts else 0,
            request=asked,
            verdict_at=verdict_at(last) if failed else 0.0,
            failed=failed,
            failed_boot=failed_boot,
        ),
    )


def under_way(last: NodeTest, facts: NodeTestFacts, now: float, lost: str) -> NextTest:
    """The same of a test under way. ``lost``: why it has no purpose any more."""
    if lost:
        return NextTest(NewNodeStep.STOP, lost)
    if facts.ends:
        return NextTest(NewNodeStep.STOP, facts.ends)
    if not last.is_of_boot(facts.boot_id):
        return NextTest(NewNodeStep.STOP, "the node is in another boot than the test was for")
    if now >= last.deadline_at:
        return NextTest(NewNodeStep.END, "its time is over")
    return NextTest(NewNodeStep.SEND if last.state is RepairState.ORDERING else NewNodeStep.PROVE)


def why_over(last: NodeTest | None, boot_id: str, rules: NewNodeRules) -> str:
    """Why no test begins by itself in this boot any more; empty: one may."""
    if last is None or last.reason or last.quarantined or not last.is_of_boot(boot_id):
        return ""
    if last.state is RepairState.SUCCEEDED and not rules.remove_taint:
        return "it has passed its test"
    if last.state is RepairState.FAILED:
        return f"it failed test {last.profile}: {last.message}"
    if last.without_verdict >= rules.attempts:
        return (
            f"{last.without_verdict} tests gave no verdict about it "
            f"(repair.new_nodes.attempts = {rules.attempts}): {last.message}"
        )
    return ""


def needs_a_person(last: NodeTest | None, boot_id: str, rules: NewNodeRules) -> bool:
    """Whether the node keeps its startup taint until a person, or another boot, goes on."""
    passed = last is not None and not last.reason and last.state is RepairState.SUCCEEDED
    return not passed and bool(why_over(last, boot_id, rules))


def ended(
    test: NodeTest, state: RepairState, message: str, *, at: float, boot_id: str = ""
) -> NodeTest:
    """The test with its end. ``boot_id``: the node's boot then."""
    after = boot_id if boot_id and boot_id != test.boot_id else ""
    if state in _VERDICTS:  # it is newer than an earlier failure
        test = replace(test, failed="", failed_boot="")
    return replace(
        test,
        state=state,
        message=truncate(message, _MOST_MESSAGE),
        ended_at=max(at, test.began_at),
        boot_after=after,
    )


def verdict_at(test: NodeTest | None) -> float:
    """When the node's last test with a verdict ended; 0: there was none."""
    if test is None:
        return 0.0
    return test.ended_at if test.state in _VERDICTS else test.verdict_at


def standing_failure(test: NodeTest | None) -> tuple[str, str]:
    """The failed idle test that no later verdict has replaced, in words, and its boot; else empty.

    The failure of a new node's test stands as long as its taint: `has_failed`.
    """
    if test is None:
        return "", ""
    if test.state is RepairState.FAILED:
        return (_failure_of(test), test.boot_id) if test.reason else ("", "")
    return ("", "") if test.state is RepairState.SUCCEEDED else (test.failed, test.failed_boot)


def carried_failure(last: NodeTest | None) -> tuple[str, str]:
    """The same for the test that follows: a quarantine since is over, and with it the failure."""
    return ("", "") if last is not None and last.quarantined else standing_failure(last)


def _failure_of(test: NodeTest) -> str:
    text = f"test {test.profile} failed: {test.message} (operation {test.operation})"
    return truncate(text, 2 * _MOST_MESSAGE)


# -- the Node ----------------------------------------------------------------------------------


def is_tainted(node: Node, key: str) -> bool:
    return any(taint.key == key for taint in node.taints)


def without_taint(node: Node, key: str) -> tuple[Taint, ...]:
    """The node's taints except those of this key: another party's stay as they are."""
    return tuple(taint for taint in node.taints if taint.key != key)


def not_ready(node: Node) -> str:
    """What the Node says against a test, which would have no verdict then; empty: nothing."""
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


_REASONS: Mapping[RepairState, tuple[str, str, str]] = {
    RepairState.ORDERING: ("Unknown", "TestUnderWay", "is under way"),
    RepairState.ORDERED: ("Unknown", "TestUnderWay", "is under way"),
    RepairState.SUCCEEDED: ("True", "TestPassed", "passed"),
    RepairState.FAILED: ("False", "TestFailed", "failed"),
}
_NONE = ("Unknown", "NoVerdict", "gave no verdict")


def condition_of(
    test: NodeTest | None, *, tainted: bool, rules: NewNodeRules
) -> NodeTestCondition | None:
    """The Node's condition: True where its last test passed; None: it stays as it is."""
    if test is not None and test.reason:
        if tainted:
            test = None
        elif test.state not in _VERDICTS:
            return None  # it says nothing about the node: the last verdict stays
    if test is None and not tainted:
        return None
    if test is None:
        text = f"no test of the node has begun: {rules.profile} is due (taint {rules.taint})"
        return NodeTestCondition("Unknown", "NotTested", text)
    status, reason, words = _REASONS.get(test.state, _NONE)
    told = f": {test.message}" if test.message and not test.is_busy else ""
    text = f"test {test.profile} {words} (operation {test.operation}, boot {test.boot_id}){told}"
    return NodeTestCondition(status, reason, text)


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
    failed, failed_boot = standing_failure(test)
    if failed:
        return failed_boot == boot_id
    repair = quarantine.repair if quarantine is not None else None
    if not tainted or test.reason or test.state is not RepairState.FAILED:
        return False
    return boot_id == test.boot_id and not passed_in_quarantine(test, boot_id, repair)


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


def failure_evidence(test: NodeTest | None, since: float) -> Component:
    """A failed test as level evidence in the aggregator's own name; None: that is over."""
    if test is None:
        return Component(CHECK, "", Status.OK, "", "no failed test counts any more", since)
    text = standing_failure(test)[0] or _failure_of(test)
    return Component(CHECK, "", Status.FAILED, "failed", text, since)


def is_own_evidence(code: str) -> bool:
    return code.partition(":")[0] == CHECK


# -- the limit of the fleet -----------------------------------------------------------------------


def running_of(
    node: str, test: NodeTest, *, at: float, domains: tuple[str, ...] = ()
) -> RunningRepair:
    """The reservation that a test under way must have. ``domains`` count for idle tests alone."""
    until = test.deadline_at + _LINGERS
    if test.reason == IDLE:
        return RunningRepair(node, test.operation, IDLE_TEST, at, until, domains=domains)
    return RunningRepair(node, test.operation, TEST, at, until)


def reserve_test(
    record: Record, wanted: RunningRepair, concurrent: int, *, now: float, stop: str = ""
) -> tuple[Record, Held | None]:
    """The record with the test under way, or why it may not begin now. Idempotent."""
    if stop:
        return record, stopped(stop)
    known = record.node_tests.get(wanted.node)
    if known is not None and known.operation == wanted.operation and now < known.until:
        return record, None
    settles = settling(record, now)
    if settles is not None:
        return record, settles
    others = {
        node: one
        for node, one in record.node_tests.items()
        if now < one.until and node != wanted.node
    }
    new = sum(one.repair != IDLE_TEST for one in others.values())
    if new >= concurrent:
        text = f"{new} new nodes are being tested"
        return record, Held("repair.new_nodes.concurrent", str(concurrent), text)
    return replace(record, node_tests={**others, wanted.node: wanted}), None


def as_details(test: NodeTest) -> dict[str, str]:
    """The details of events about it, as of the tests in a quarantine."""
    return {
        "repair": TEST,
        "operation": test.operation,
        "profile": test.profile,
        "reason": test.reason or NEW_NODE,
    }
