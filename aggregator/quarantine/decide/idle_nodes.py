"""The test of a node in service that has no work: periodic, or requested by hand. Pure.

Invariants:
- A node is tested only where no reason is against it and no pod is on it that a drain would move.
- `IdleNodeRules.hold` lets no test begin past ``concurrent`` and its share of the nodes,
  and never two in one failure domain. The record is changed by compare-and-set, so this holds for
  any interleaving.
- A test without a verdict changes nothing of what is known of the node: an earlier failure stays
  open, and the node is as long untested as before.
"""

import heapq
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from aggregator.cluster.port import Pod, RepairState
from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import Duration, Share, shaped
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.admission_record import IDLE_TEST, Record, RunningOperation
from aggregator.quarantine.decide.drain_plan import work_of
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    NodeTest,
    NodeTestFacts,
    ended,
    new_test,
    next_of_test,
    verdict_at,
)
from aggregator.quarantine.decide.operation_step import Do, NextOperation
from aggregator.quarantine.decide.pool_budget import allowance
from aggregator.quarantine.decide.profiles import Profile
from aggregator.runtime.text import some_of

#: After many tests without a verdict the next one waits no longer than this (seconds).
_LONGEST_PAUSE = 86400.0
_MOST_DOUBLED = 10
#: This number of pods of a node with work is named.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class IdleNodeRules(SectionDataclass):
    """The periodic test of idle nodes: the section ``repair.idle_nodes``; without it there is none.

    A node is tested again when its last verdict is older than ``every``. ``concurrent`` and
    ``concurrent_percent`` bound such tests in the whole fleet at once; in one failure domain
    (``limits.domain_labels``, ``limits.clique_label``) there is never more than one.
    ``priority_class``: that of the test's pod, which must be lower than that of all work, as work
    then preempts the test.
    """

    every: Annotated[Duration, Field(ge=3600)] = 7 * 86400.0
    """A node without work is tested again (docs/active-tests.md#idle-nodes) when its last verdict
    is older. Without the section ``repair.idle_nodes`` no idle node is tested.
    """
    profile: Profile = "quick"
    """The profile of that test."""
    concurrent: Positive = 2
    """Idle nodes under test at once, in the whole fleet. Never two in one failure domain."""
    concurrent_percent: Share = 5.0
    """The same, as a share of all nodes, at least one; the smaller one decides. ``0%``: none."""
    priority_class: Annotated[
        str,
        shaped(
            r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
            "the name of a PriorityClass: small letters, digits, '-' and '.'",
        ),
    ] = "sickbay-idle-test"
    """The PriorityClass of the test's pod; it must be lower than that of all work."""

    def most(self, nodes: int) -> tuple[int, str, str]:
        """How many may run at once in a fleet of ``nodes`` nodes, the limit's name, its value."""
        share = allowance(nodes, self.concurrent_percent)
        return min(
            (self.concurrent, "repair.idle_nodes.concurrent", str(self.concurrent)),
            (share, "repair.idle_nodes.concurrent_percent", f"{self.concurrent_percent:g}%"),
        )

    # Implements `OperationLimits`.

    def current(self, record: Record, _now: float) -> Record:
        return record

    def hold(self, record: Record, proposal: RunningOperation, size: FleetSize) -> Held | None:
        """Repairs and tests of new nodes count for no limit of idle tests, except that none begins
        in the domain of a repair; and idle tests hold neither of those.
        """
        idle = [one for one in record.tests_of_others(proposal.node) if one.kind == IDLE_TEST]
        most, name, value = self.most(size.nodes)
        if len(idle) >= most:
            nodes_are = "node is" if len(idle) == 1 else "nodes are"
            return Held(name, value, f"{len(idle)} idle {nodes_are} being tested")
        running = (*idle, *record.repairs.values())
        for domain in proposal.domains:
            near = next((one for one in running if domain in one.domains), None)
            if near is not None:
                what = "tested" if near.kind == IDLE_TEST else "repaired"
                text = f"{near.node} is being {what}, which has {domain} too"
                return Held("repair.domain", "1", text)
        return None


@dataclass(frozen=True, slots=True)
class IdleCandidate:
    """A node that no state in memory is against. ``test``: its last one."""

    node: str
    uid: str
    test: NodeTest | None


def choose(due: Iterable[IdleCandidate], most: int) -> list[IdleCandidate]:
    """At most ``most`` of the nodes whose test is due, the longest untested first.

    Those that were never tested come first, in the order of a hash: neighbours of one rack would
    hold each other.
    """
    return heapq.nsmallest(
        max(0, most), due, key=lambda one: (verdict_at(one.test), zlib.crc32(one.uid.encode()))
    )


def waits_for(last: NodeTest | None, rules: IdleNodeRules, *, pause: float, now: float) -> float:
    """Seconds until the next test of the node is due; 0: it is.

    After a test without a verdict it waits for ``pause``, doubled with each further such test. A
    clock that was set back holds no test for longer than that.
    """
    if last is None:
        return 0.0
    since = verdict_at(last)
    left = _left(since, rules.every, now) if since else 0.0
    # A refused request has no deadline: it was no test, and must not delay the periodic one.
    if last.state not in (RepairState.SUCCEEDED, RepairState.FAILED) and last.deadline_at:
        doubled = 2.0 ** min(max(0, last.without_verdict - 1), _MOST_DOUBLED)
        longest = min(rules.every, max(pause, _LONGEST_PAUSE))
        left = max(left, _left(last.ended_at, min(pause * doubled, longest), now))
    return left


def _left(since: float, lasts: float, now: float) -> float:
    left = since + lasts - now
    return left if 0 < left <= lasts else 0.0


def next_idle_test(
    last: NodeTest | None,
    facts: NodeTestFacts,
    rules: IdleNodeRules | None,
    *,
    pause: float,
    now: float,
) -> NextOperation:
    """The next step for a node without the startup taint, or with an idle test under way.

    A person's request is due at once, and needs no ``rules``.
    """
    if last is not None and last.is_busy:
        lost = "the node has the startup taint: it is tested as a new node" if facts.tainted else ""
        if rules is None and not last.request:
            lost = "repair.idle_nodes was removed from the configuration"
        return next_of_test(last, facts, now, lost)
    requested = facts.request
    due = rules is not None and not waits_for(last, rules, pause=pause, now=now)
    if facts.tainted or not (requested or due):
        return NextOperation(Do.NOTHING)
    if facts.against:
        return NextOperation(Do.NOTHING, because=facts.against)
    goes_on = last is not None and last.reason == IDLE
    return new_test(
        last,
        facts,
        (rules or IdleNodeRules()).profile,
        inconclusive=last.without_verdict if last is not None and goes_on else 0,
        reason=IDLE,
        verdict_at=verdict_at(last),
    )


def in_use(pods: Sequence[Pod], owner_kinds: Collection[str] = ()) -> str:
    """Which pod makes the node one with work: any that a drain would move. Empty: it is idle.

    Pods of DaemonSets, of ``owner_kinds`` and mirror pods belong to the node; if one has GPUs, the
    scheduler finds no room for the test, which requests all of them.
    """
    found = [pod.key for pod in work_of(pods, owner_kinds)]
    return f"the node is in use: pod {min(found)}" if found else ""


def why_refused(
    node: str,
    pods: Sequence[Pod],
    profile: str,
    profiles: Collection[str] | None,
    *,
    how: str,
    owner_kinds: Collection[str] = (),
) -> str:
    """Why a person's request for a test of a node in service is refused; empty: it is not.

    ``profiles``: those that there are, or None where they are not known. ``how``: flags for a
    command of `sickbay`. The command comes before the names of the pods, which may be cut off.
    """
    if profiles is not None and profile not in profiles:
        return f"there is no profile {profile}; expected one of {', '.join(sorted(profiles))}"
    found = sorted(pod.key for pod in work_of(pods, owner_kinds))
    if not found:
        return ""
    first = f'sickbay quarantine {node} --action drain --reason "for its test"{how}'
    return (
        f"the node has work, and a test evicts none. First: {first}. "
        f"Pods on the node: {some_of(found, _MOST_NAMED)}"
    )


def refused(test: NodeTest, why: str, *, at: float) -> NodeTest:
    """The end of a requested test that did not begin. ``at``: wall clock seconds."""
    begun = replace(test, began_at=at)
    return ended(begun, RepairState.CANCELLED, f"refused: {why}", at=at)
