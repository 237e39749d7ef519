"""The test of a new node, which carries a startup taint until it has passed. Pure.

Invariants:
- The taint is removed by a pass alone, of a test in the node's present boot, and after that pass is
  durable: no silence, no missing tool and no time limit removes it.
- Without a person's request at most `NewNodeRules.attempts` tests end without a verdict in one
  boot, and a failed test is the last one of its boot: so the tests of a node end. A quarantine
  that has begun since, and is over, begins the count anew: the node was repaired or tested there.
- `NewNodeRules.no_room` lets no test begin past ``concurrent``. The record is changed by
  compare-and-set, so this holds for any interleaving of replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from aggregator.cluster.port import Node, NodeTestCondition, RepairState, Taint
from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import LabelKey, refuse, show
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.admission_record import IDLE_TEST, Record, RunningOperation
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.node_tests import (
    VERDICTS,
    NodeTest,
    NodeTestFacts,
    carried_failure,
    new_test,
    next_of_test,
    verdict_at,
)
from aggregator.quarantine.decide.operation_step import Do, NextOperation
from aggregator.quarantine.decide.profiles import Profile
from aggregator.runtime.text import counted


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
    fleet at once. ``remove_taint``: false leaves the taint to another controller, which uses the
    condition.
    """

    taint: Annotated[LabelKey, BeforeValidator(_key_alone)] = ""
    """The key of the startup taint of new nodes (docs/active-tests.md#new-nodes), which have to
    pass a test; empty: no node is tested so.
    """
    profile: Profile = "quick"
    """The profile of that test."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Tests without a verdict in one boot; then a person decides."""
    concurrent: Positive = 4
    """New nodes under test at once, in the whole fleet."""
    remove_taint: bool = True
    """``false``: another controller removes the taint, by the condition ``SickbayTestPassed``."""

    def no_room(self, record: Record, node: str) -> Held | None:
        """Why this new node may not be tested next to the others; None: it may."""
        new = sum(one.kind != IDLE_TEST for one in record.tests_of_others(node))
        if new < self.concurrent:
            return None
        text = f"{counted(new, 'new node is', 'new nodes are')} being tested"
        return Held("repair.new_nodes.concurrent", str(self.concurrent), text)

    # Implements `OperationLimits`.

    def current(self, record: Record, _now: float) -> Record:
        return record

    def hold(self, record: Record, proposal: RunningOperation, _size: FleetSize) -> Held | None:
        return self.no_room(record, proposal.node)


def next_test(
    last: NodeTest | None, facts: NodeTestFacts, rules: NewNodeRules, *, pause: float, now: float
) -> NextOperation:
    """The next step now. ``pause``: seconds between two tests; ``now``: wall clock seconds."""
    if last is not None and last.is_busy:
        lost = "" if facts.tainted else "the startup taint was removed"
        return next_of_test(last, facts, now, lost)
    if not facts.tainted:
        return NextOperation(Do.NOTHING)
    requested = facts.request
    over = "" if requested else why_over(last, facts.boot_id, rules)
    if over:
        return NextOperation(Do.NOTHING, because=over)
    earlier = last is not None and not last.reason and last.is_of_boot(facts.boot_id)
    if not requested and last is not None and earlier:
        left = last.ended_at + pause - now
        if 0 < left <= pause:
            text = f"the next test begins {pause:g} s after the last one"
            return NextOperation(Do.NOTHING, because=text)
    if facts.against:
        return NextOperation(Do.NOTHING, because=facts.against)
    counts = last is not None and earlier and not requested and not last.quarantined
    return new_test(
        last,
        facts,
        rules.profile,
        inconclusive=last.without_verdict if last and counts else 0,
        verdict_at=verdict_at(last) if carried_failure(last)[0] else 0.0,
    )


def why_over(last: NodeTest | None, boot_id: str, rules: NewNodeRules) -> str:
    """Why no test begins by itself in this boot any more; empty: one may."""
    if last is None or last.reason or last.quarantined or not last.is_of_boot(boot_id):
        return ""
    if has_passed(last, boot_id, rules):
        return "it has passed its test"
    if last.state is RepairState.FAILED:
        return f"it failed test {last.profile}: {last.message}"
    if last.without_verdict >= rules.attempts:
        return (
            f"{counted(last.without_verdict, 'test')} gave no verdict about it "
            f"(repair.new_nodes.attempts = {rules.attempts}): {last.message}"
        )
    return ""


def has_passed(last: NodeTest | None, boot_id: str, rules: NewNodeRules) -> bool:
    """Whether the node has passed as a new one, and another controller is to remove its taint."""
    if rules.remove_taint or last is None or last.reason or last.quarantined:
        return False
    return last.state is RepairState.SUCCEEDED and last.is_of_boot(boot_id)


def how_to_take(node: str, rules: NewNodeRules) -> str:
    """The command by which a person takes a new node as it is, without a pass."""
    command = f"kubectl taint nodes {node} {rules.taint}-"
    if rules.remove_taint:
        return command
    return f"{command} (the controller that removes it by the condition may set it again)"


def needs_a_person(last: NodeTest | None, boot_id: str, rules: NewNodeRules) -> bool:
    """Whether the node keeps its startup taint until a person acts, or another boot."""
    passed = last is not None and not last.reason and last.state is RepairState.SUCCEEDED
    return not passed and bool(why_over(last, boot_id, rules))


def why_untested(test: NodeTest | None, held: str, *, needs_person: bool) -> str:
    """In a line for people, why a new node still has its startup taint. ``held``: why no test
    begins now.
    """
    if test is not None and test.is_busy:
        return f"new node, test {test.profile} is under way"
    if needs_person:
        return f"new node, no test begins by itself any more: {held}"
    return f"new node, awaits its test: {held}" if held else "new node, awaits its test"


# -- the Node ----------------------------------------------------------------------------------


def is_tainted(node: Node, key: str) -> bool:
    return any(taint.key == key for taint in node.taints)


def without_taint(node: Node, key: str) -> tuple[Taint, ...]:
    """The node's taints except those of this key: another party's stay as they are."""
    return tuple(taint for taint in node.taints if taint.key != key)


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
        elif test.state not in VERDICTS:
            return None  # it is no verdict about the node: the last one stays
    if test is None and not tainted:
        return None
    if test is None:
        text = f"no test of the node has begun: {rules.profile} is due (taint {rules.taint})"
        return NodeTestCondition("Unknown", "NotTested", text)
    status, reason, words = _REASONS.get(test.state, _NONE)
    more = f": {test.message}" if test.message and not test.is_busy else ""
    text = f"test {test.profile} {words} (operation {test.operation}, boot {test.boot_id}){more}"
    return NodeTestCondition(status, reason, text)
