"""Carries tasks of a search forward in rounds: the tests of one round have no node in common. Pure.

A task is a generator that yields what it wants to know and is sent the answer. The same nodes and
the same outcomes give the same rounds, so that a search can be continued from its outcomes alone.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aggregator.bisection.good_nodes import GoodNodes
from aggregator.bisection.model import Ended, Group, GroupOutcome, GroupTest, SearchLimits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Together:
    """Request the test of a group; answered with `Ended`. ``fresh``: an earlier test of the same
    nodes is no answer.
    """

    nodes: Group
    why: str
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class WithPartner:
    """Request the test of a node and a good node that is not in ``avoid``; answered with `Ended`,
    with None where there is no such node.
    """

    node: str
    why: str
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """Run several tasks at once; answered with the list of their results."""

    tasks: Sequence["Task[Any]"]


Task = Generator[Together | WithPartner | Fork, Any, T]


@dataclass(slots=True, eq=False)
class _Job:
    """A task under way. ``place``: that of its result among those of its parent."""

    task: Task[Any]
    parent: "_Job | None" = None
    place: int = 0
    results: list[Any] = field(default_factory=list)
    missing: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    job: _Job
    step: Together | WithPartner
    attempt: int = 1
    #: Good nodes with which the test had no verdict: others go first.
    last: tuple[str, ...] = ()


class Rounds:
    """The rounds of one root task. Call `next_round`, run its tests, `record` each outcome."""

    def __init__(
        self, root: Task[None], good: GoodNodes, order: Sequence[str], limits: SearchLimits
    ) -> None:
        self.over = False
        self.number = 0
        self.tests = 0
        #: Why the rounds ended before the search did; empty: they did not.
        self.cut_short = ""
        self._good = good
        self._order = {node: place for place, node in enumerate(order)}
        self._limits = limits
        self._seen: dict[frozenset[str], Ended] = {}
        #: The other node of each test of two that had a verdict.
        self._partners: dict[str, list[str]] = {}
        self._waiting: list[_Waiting] = []
        self._round: dict[GroupTest, _Waiting | None] = {}
        self._outcomes: dict[GroupTest, GroupOutcome] = {}
        self._silent = 0
        self._pairings = 0
        self._root = _Job(root)
        self._advance(self._root, None)

    def next_round(self) -> tuple[GroupTest, ...]:
        """The tests to run now, at once if possible; empty: the search is over. Those of a round
        that have no outcome yet are requested again.
        """
        if not self._round and not self.over:
            self._plan()
        return tuple(test for test in self._round if test not in self._outcomes)

    def record(self, test: GroupTest, outcome: GroupOutcome) -> None:
        """Take the outcome of a test of the current round."""
        if test not in self._round or test in self._outcomes:
            raise ValueError(f"test {test.number} was not requested")
        self._outcomes[test] = outcome
        if len(self._outcomes) == len(self._round):
            self._finish_round()

    def seen(self, nodes: Iterable[str]) -> Ended | None:
        """The last test of exactly these nodes that had a verdict."""
        return self._seen.get(frozenset(nodes))

    def open_nodes(self) -> Group:
        """The nodes whose tests were still to come."""
        found = {
            node
            for one in self._waiting
            for node in (one.step.nodes if isinstance(one.step, Together) else (one.step.node,))
        }
        return tuple(node for node in self._order if node in found)

    # -- tasks -------------------------------------------------------------------------

    def _advance(self, job: _Job, answer: Any) -> None:
        """Send the answer to the task, and continue until it waits for a test or for other
        tasks.
        """
        while True:
            try:
                step = job.task.send(answer)
            except StopIteration as end:
                self._deliver(job, end.value)
                return
            if isinstance(step, Fork):
                children = [_Job(task, job, place) for place, task in enumerate(step.tasks)]
                job.results, job.missing = [None] * len(children), len(children)
                for child in children:
                    self._advance(child, None)
                return
            known = self._known(step)
            if known is None:
                self._waiting.append(_Waiting(job, step))
                return
            answer = known

    def _deliver(self, job: _Job, result: Any) -> None:
        parent = job.parent
        if parent is None:
            self.over = True
            return
        parent.results[job.place] = result
        parent.missing -= 1
        if not parent.missing:
            self._advance(parent, parent.results)

    def _known(self, step: Together | WithPartner) -> Ended | None:
        """The answer that an earlier test has given."""
        if isinstance(step, Together):
            return None if step.fresh else self.seen(step.nodes)
        for partner in self._partners.get(step.node, ()):
            if partner not in step.avoid and self._good.has(partner):
                return self.seen((step.node, partner))
        return None

    # -- a round -----------------------------------------------------------------------

    def _plan(self) -> None:
        self._answer_the_known()
        if self.over:
            return
        if self.number >= self._limits.rounds:
            self._stop(f"it was ended after {self.number} rounds")
        elif self._silent >= self._limits.silent_rounds:
            self._stop(f"no test of {self._silent} rounds had a verdict")
        else:
            self._choose()
            if not self._round:
                self._choose_pairs()
            if not self._round:
                self._give_up_waiting()
                self._plan()
            else:
                self.number += 1

    def _stop(self, why: str) -> None:
        self.over, self.cut_short = True, why

    def _answer_the_known(self) -> None:
        """Good nodes are found in time, so that an earlier test may answer what waits."""
        changed = True
        while changed:
            changed = False
            for one in list(self._waiting):
                known = self._known(one.step)
                if known is not None:
                    self._waiting.remove(one)
                    self._advance(one.job, known)
                    changed = True

    def _choose(self) -> None:
        busy: set[str] = set()
        for one in self._waiting:
            if self._limits.parallel and len(self._round) >= self._limits.parallel:
                return
            nodes = self._nodes_of(one, busy)
            if nodes and busy.isdisjoint(nodes):
                busy.update(nodes)
                self._add(nodes, one.step.why, one)

    def _nodes_of(self, one: _Waiting, busy: set[str]) -> Group:
        """The nodes of the test; empty where no good node is free."""
        step = one.step
        if isinstance(step, Together):
            return step.nodes
        free = [node for node in self._good.with_partner(step.node, step.avoid) if node not in busy]
        others = [node for node in free if node not in one.last]
        partner = next(iter(others or free), None)
        return (step.node, partner) if partner is not None else ()

    def _add(self, nodes: Group, why: str, one: _Waiting | None) -> None:
        self.tests += 1
        attempt = one.attempt if one is not None else 1
        self._round[GroupTest(self.tests, nodes, why, attempt)] = one

    def _choose_pairs(self) -> None:
        """Where no good node is known at all, two nodes that pass together become the first. Each
        round pairs those that wait in another way (a tournament's rounds).
        """
        stuck = sorted(
            {one.step.node for one in self._waiting if isinstance(one.step, WithPartner)},
            key=self._order.__getitem__,
        )
        places: list[str | None] = [*stuck, *([None] if len(stuck) % 2 else [])]
        if self._good.any() or len(stuck) < 2:
            return
        for _ in range(len(places) - 1):
            if self._pairings >= self._limits.pairings:
                return
            turn = self._pairings % (len(places) - 1)
            self._pairings += 1
            ring = places[:1] + places[1 + turn :] + places[1 : 1 + turn]
            half = len(ring) // 2
            for one, other in zip(ring[:half], reversed(ring[half:]), strict=True):
                full = self._limits.parallel and len(self._round) >= self._limits.parallel
                if one is None or other is None or full or self.seen((one, other)):
                    continue
                self._add((one, other), "no good node is known yet", None)
            if self._round:
                return

    def _give_up_waiting(self) -> None:
        """No good node is left for what waits."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._advance(one.job, None)

    def _finish_round(self) -> None:
        done, self._round = self._round, {}
        outcomes, self._outcomes = self._outcomes, {}
        silent = all(outcome is GroupOutcome.INCONCLUSIVE for outcome in outcomes.values())
        self._silent = self._silent + 1 if silent else 0
        answered = {id(one) for one in done.values() if one is not None}
        self._waiting = [one for one in self._waiting if id(one) not in answered]
        for test in done:  # in the order of the tests, not of their ends
            outcome = outcomes[test]
            if outcome is not GroupOutcome.INCONCLUSIVE:
                self._seen[frozenset(test.nodes)] = Ended(test, outcome)
                if len(test.nodes) == 2:
                    one, other = test.nodes
                    self._partners.setdefault(one, []).append(other)
                    self._partners.setdefault(other, []).append(one)
            if outcome is GroupOutcome.PASSED:
                self._good.passed(test)
        for test, steps in done.items():
            if steps is None:
                continue
            if (
                outcomes[test] is GroupOutcome.INCONCLUSIVE
                and steps.attempt < self._limits.attempts
            ):
                steps.attempt += 1
                steps.last = (*steps.last, *test.nodes[1:])
                self._waiting.append(steps)
            else:
                self._advance(steps.job, Ended(test, outcomes[test]))


def again(test: GroupTest, why: str) -> Together:
    """The same test once more."""
    return Together(test.nodes, why, fresh=True)
