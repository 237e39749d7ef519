"""Finds the nodes that make the test of a group fail. Pure.

A group that fails is halved, and both halves are tested at the same time. A single node is tested
next to good nodes, because a test of one node alone is no evidence about the fabric. It is named as
a suspect only when it failed next to several good nodes that passed together. Where both halves of
a group pass and the group fails again, the cause is between them: the parts that fail together are
sought, and no node is named. A test without a verdict is repeated; after that it is evidence
neither for nor against a node, and its group is halved to find the node that has no verdict.
"""

from collections.abc import Iterable, Mapping

from aggregator.bisection.good_nodes import GoodNodes
from aggregator.bisection.halves import halves, in_order
from aggregator.bisection.model import (
    Ended,
    Findings,
    Group,
    GroupOutcome,
    GroupTest,
    Interaction,
    SearchLimits,
    SearchVerdict,
    Suspect,
    Unsettled,
    names,
)
from aggregator.bisection.rounds import Fork, Rounds, Task, Together, WithPartner, again

_PASSED, _FAILED, _INCONCLUSIVE = (
    GroupOutcome.PASSED,
    GroupOutcome.FAILED,
    GroupOutcome.INCONCLUSIVE,
)
#: How often the good nodes of a confirmation may turn out to be none.
_CONFIRMATIONS = 3


class Bisection:
    """One search among ``nodes``. ``domains``: the rack or leaf switch of a node, where known.
    ``known_good``: of the group or not. Raises ValueError for fewer than two nodes.
    """

    def __init__(
        self,
        nodes: Iterable[str],
        *,
        domains: Mapping[str, str] | None = None,
        known_good: Iterable[str] = (),
        limits: SearchLimits | None = None,
    ) -> None:
        self._domains = domains or {}
        self._group = in_order(nodes, self._domains)
        if len(self._group) < 2:
            raise ValueError("a group has two nodes or more: one alone does not test the fabric")
        self._limits = limits or SearchLimits()
        self._whole: GroupOutcome | None = None
        self._suspects: list[Suspect] = []
        self._interactions: list[Interaction] = []
        self._unsettled: list[Unsettled] = []
        #: Nodes that are no part of the last test, because evidence is against them.
        self._left_out: set[str] = set()
        self._rest_passed: bool | None = None
        known = tuple(dict.fromkeys(known_good))
        self._declared = frozenset(known)
        #: The first failure of each node that a person declares good, where it may be the cause.
        self._declared_failed: dict[str, Ended] = {}
        self._good = GoodNodes(known, self._domains)
        order = tuple(dict.fromkeys((*self._group, *known)))
        self._rounds = Rounds(self._search(), self._good, order, self._limits)

    @property
    def number(self) -> int:
        """The number of the current round, from 1."""
        return self._rounds.number

    def next_round(self) -> tuple[GroupTest, ...]:
        """The tests to run now, none of which has a node of another; empty: the search is over."""
        return self._rounds.next_round()

    def record(self, test: GroupTest, outcome: GroupOutcome) -> None:
        """Take the outcome of a test of this round."""
        self._rounds.record(test, outcome)

    def findings(self) -> Findings:
        """The state of knowledge; it is the result when the search is over."""
        named = {one.node for one in self._suspects}
        interactions = tuple(
            one for one in self._interactions if named.isdisjoint((*one.first, *one.second))
        )
        unsettled = [one for one in self._open() if not named.issuperset(one.nodes)]
        if self._rounds.cut_short and (left := self._rounds.open_nodes()):
            unsettled.append(Unsettled(left, self._rounds.cut_short))
        if self._whole is _PASSED:
            verdict = SearchVerdict.PASSED
        elif named or interactions:
            verdict = SearchVerdict.FOUND
        else:
            verdict = SearchVerdict.NO_VERDICT
        doubted = named | self._left_out
        cleared = self._good.cleared() - doubted
        return Findings(
            verdict,
            tuple(self._suspects),
            interactions,
            tuple(unsettled),
            tuple(node for node in self._group if node in cleared),
            self._rest_passed,
            self._rounds.number,
            self._rounds.tests,
        )

    # -- the search --------------------------------------------------------------------

    def _search(self) -> Task[None]:
        ended: Ended = yield Together(self._group, "the whole group")
        self._whole = ended.outcome
        if ended.outcome is _PASSED:
            return
        yield from self._divide(ended)
        for left in reversed(range(self._limits.passes)):
            rest = tuple(node for node in self._group if node not in self._left_out)
            if len(rest) < 2 or rest == self._group:
                return
            ended = yield Together(rest, "all except those that evidence accuses")
            self._rest_passed = {_PASSED: True, _FAILED: False}.get(ended.outcome)
            if ended.outcome is not _FAILED:
                return
            if not left:
                self._leave_open(rest, "they still fail together", keep=True)
                return
            yield from self._divide(ended)

    def _divide(self, whole: Ended) -> Task[None]:
        """Look into a group that did not pass."""
        group, number = whole.test.nodes, whole.test.number
        first, second = halves(group, self._domains)
        why = f"a half of test {number}"
        outcomes = yield Fork((self._descend(first, why), self._descend(second, why)))
        if any(outcome is not _PASSED for outcome in outcomes):
            return
        if whole.outcome is _FAILED:
            yield from self._narrow(first, second, whole)
        else:
            self._leave_open(group, "the test of all has no verdict, each half passed", keep=True)

    def _descend(self, group: Group, why: str) -> Task[GroupOutcome]:
        if len(group) == 1:
            return (yield from self._confirm(group[0]))
        ended: Ended = yield Together(group, why)
        if ended.outcome is not _PASSED:
            yield from self._divide(ended)
        return ended.outcome

    # -- one node ----------------------------------------------------------------------

    def _confirm(self, node: str) -> Task[GroupOutcome]:
        """Test one node next to good nodes, one after another."""
        used: tuple[str, ...] = ()
        for _ in range(_CONFIRMATIONS):
            failures: list[Ended] = []
            while len(failures) < self._limits.confirmations:
                ended: Ended | None = yield WithPartner(node, "next to a good node", used)
                if ended is None or ended.outcome is _INCONCLUSIVE:
                    return self._no_verdict(node, failures, ended)
                if ended.outcome is _PASSED:
                    if not failures:
                        return _PASSED
                    return (yield from self._contradict(failures[0], ended))
                failures.append(ended)
                self._note_declared((node,), ended)
                used = (*used, *_partners(ended, node))
                self._good.doubt(node)
            outcome = yield from self._check(node, failures)
            if outcome is not None:
                return outcome
        self._leave_open((node,), "the nodes with which it failed are not good either")
        return _FAILED

    def _check(self, node: str, failures: list[Ended]) -> Task[GroupOutcome | None]:
        """Have the good nodes of a confirmation pass together. None: they are not good."""
        with_partner = tuple(one for ended in failures for one in _partners(ended, node))
        control: Ended | None = None
        if len(with_partner) > 1:
            control = yield Together(with_partner, f"good nodes with which {node} failed")
            if control.outcome is _INCONCLUSIVE:
                why = f"it failed next to {names(with_partner)}, and their own test has no verdict"
                self._leave_open((node,), why)
                return _FAILED
            if control.outcome is _FAILED:
                self._note_declared(with_partner, control)
                for one in with_partner:
                    self._good.doubt(one)
                yield Fork([self._confirm(one) for one in with_partner if not self._is_named(one)])
                return None
        if not self._is_named(node):
            self._suspects.append(Suspect(node, (*failures, *([control] if control else []))))
        self._left_out.add(node)
        return _FAILED

    def _no_verdict(self, node: str, failures: list[Ended], ended: Ended | None) -> GroupOutcome:
        failed = [one for test in failures for one in _partners(test, node)]
        if ended is not None:
            why = f"its test next to {names(_partners(ended, node))} has no verdict"
        else:
            why = "there is no further good node to test it with"
        if failed:
            why = f"it failed next to {names(failed)}; {why}"
        self._leave_open((node,), why)
        return _FAILED if failed else _INCONCLUSIVE

    def _contradict(self, failed: Ended, passed: Ended) -> Task[GroupOutcome]:
        """A node failed next to one good node and passed next to another one."""
        node, partner = failed.test.nodes
        other = _partners(passed, node)
        repeated: Ended = yield again(failed.test, f"it passed next to {names(other)}")
        if repeated.outcome is _FAILED:
            # The good node may be none: a bad one that passed now and then.
            yield from self._confirm(partner)
            if self._is_named(partner):
                self._good.trust(node)
                return _FAILED
            self._interactions.append(Interaction((node,), (partner,), (failed, passed, repeated)))
            self._left_out.add(node)
        else:
            why = f"it failed next to {partner} in test {failed.test.number} alone"
            self._leave_open((node,), f"{why}: the fault comes and goes")
        return _FAILED

    # -- a fault between two groups ----------------------------------------------------

    def _narrow(self, first: Group, second: Group, failed: Ended) -> Task[None]:
        """Both groups pass and fail together: find the parts that do."""
        if len(first) == len(second) == 1:
            repeated: Ended = yield again(failed.test, "each passed next to other nodes")
            self._evaluate_repeated(first, second, failed, repeated)
            return
        parts = self._parts(first, second)
        why = f"parts of the groups of test {failed.test.number}"
        tests: list[Ended] = yield Fork([_step(Together((*a, *b), why)) for a, b in parts])
        failing = [
            (a, b, ended)
            for (a, b), ended in zip(parts, tests, strict=True)
            if ended.outcome is _FAILED
        ]
        if not failing:
            repeated = yield again(failed.test, "none of its parts failed")
            self._evaluate_repeated(first, second, failed, repeated)
        elif len(failing) == len(parts):
            yield from self._compare(first, second, failed)
        else:
            yield Fork([self._narrow(a, b, ended) for a, b, ended in failing])

    def _parts(self, first: Group, second: Group) -> list[tuple[Group, Group]]:
        """Each part of one with each of the other; neighbours can be tested at the same time."""
        ones, others = self._halves(first), self._halves(second)
        turns = max(len(ones), len(others))
        return list(
            dict.fromkeys(
                (ones[place % len(ones)], others[(place + turn) % len(others)])
                for turn in range(turns)
                for place in range(turns)
            )
        )

    def _halves(self, group: Group) -> tuple[Group, ...]:
        return halves(group, self._domains) if len(group) > 1 else (group,)

    def _compare(self, first: Group, second: Group, failed: Ended) -> Task[None]:
        """All parts fail together: see which of the groups fails next to other good nodes too."""
        elsewhere = [one for one in self._good.all() if one not in {*first, *second}]
        mine = elsewhere[: max(1, min(len(first), len(elsewhere) // 2))]
        yours = elsewhere[len(mine) :][: len(second)] or mine
        if not elsewhere:
            self._add_interaction(first, second, (failed,))
            return
        why = "a group next to good nodes of elsewhere"
        one, other = yield Fork(
            (_step(Together((*first, *mine), why)), _step(Together((*second, *yours), why)))
        )
        faulty: Group = ()
        if (one.outcome, other.outcome) == (_FAILED, _PASSED):
            faulty = first
        elif (one.outcome, other.outcome) == (_PASSED, _FAILED):
            faulty = second
        self._add_interaction(first, second, (failed, one, other), faulty)

    def _evaluate_repeated(
        self, first: Group, second: Group, failed: Ended, repeated: Ended
    ) -> None:
        if repeated.outcome is _FAILED:
            self._add_interaction(first, second, (failed, repeated))
            return
        if repeated.outcome is _PASSED:
            why = f"they failed together in test {failed.test.number}, and did not when repeated"
        else:
            why = f"they failed together in test {failed.test.number}; repeated it had no verdict"
        self._leave_open((*first, *second), why, keep=True)

    def _add_interaction(
        self, first: Group, second: Group, tests: tuple[Ended, ...], faulty: Group = ()
    ) -> None:
        passed = [self._rounds.seen(group) for group in (first, second)]
        shown = (*(one for one in passed if one is not None), *tests)
        domains = {self._domains.get(node, "") for node in faulty}
        domain = domains.pop() if len(domains) == 1 else ""
        self._interactions.append(Interaction(first, second, shown, faulty, domain))
        self._left_out.update(faulty or (first if len(first) < len(second) else second))

    # -- notes -------------------------------------------------------------------------

    def _is_named(self, node: str) -> bool:
        return any(one.node == node for one in self._suspects)

    def _leave_open(self, nodes: Group, why: str, *, keep: bool = False) -> None:
        """No verdict about these nodes. ``keep``: they are part of the last test all the same."""
        self._unsettled.append(Unsettled(nodes, why))
        if not keep:
            self._left_out.update(nodes)

    def _note_declared(self, nodes: Group, ended: Ended) -> None:
        for node in self._declared.intersection(nodes):
            self._declared_failed.setdefault(node, ended)

    def _open(self) -> list[Unsettled]:
        """The unsettled parts. A node with which many failed was tested as often: it is
        there once, with the first reason.
        """
        found: dict[Unsettled, Unsettled] = {}
        for one in self._unsettled:
            ended = self._declared_failed.get(one.nodes[0]) if len(one.nodes) == 1 else None
            if ended is None:
                found.setdefault(one, one)
                continue
            why = f"failed although declared good (test {ended.test.number}): {one.why}"
            found.setdefault(Unsettled(one.nodes, ""), Unsettled(one.nodes, why))
        return list(found.values())


def _partners(ended: Ended, node: str) -> tuple[str, ...]:
    return tuple(one for one in ended.test.nodes if one != node)


def _step(question: Together) -> Task[Ended]:
    ended: Ended = yield question
    return ended
