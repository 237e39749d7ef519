"""A fabric with known faults, as the test of a group of nodes sees it; and a search in it."""

from collections.abc import Callable, Collection, Iterable, Mapping

from aggregator.bisection.model import Findings, Group, GroupOutcome, SearchLimits
from aggregator.bisection.search import Bisection

Answer = Callable[[Group], GroupOutcome]


def nodes(count: int) -> Group:
    return tuple(f"gpu-{number:04d}" for number in range(count))


def fabric(
    bad: Collection[str] = (),
    links: Iterable[Collection[str]] = (),
    uplinks: Iterable[Collection[str]] = (),
) -> Answer:
    """``bad`` nodes fail in every group, ``links`` are sets of nodes that fail together, and
    ``uplinks`` sets of nodes that fail with any node outside.
    """
    pairs, racks = [set(one) for one in links], [set(one) for one in uplinks]

    def answer(group: Group) -> GroupOutcome:
        there = set(group)
        fails = (
            not there.isdisjoint(bad)
            or any(one <= there for one in pairs)
            or any(one & there and there - one for one in racks)
        )
        return GroupOutcome.FAILED if fails else GroupOutcome.PASSED

    return answer


def search(
    group: Iterable[str],
    answer: Answer,
    *,
    domains: Mapping[str, str] | None = None,
    known_good: Iterable[str] = (),
    limits: SearchLimits | None = None,
) -> Findings:
    """The result of a search whose tests ``answer`` answers."""
    bisection = Bisection(group, domains=domains, known_good=known_good, limits=limits)
    while tests := bisection.next_round():
        taken: set[str] = set()
        for test in tests:
            assert len(set(test.nodes)) == len(test.nodes) >= 2
            assert taken.isdisjoint(test.nodes), "two tests of one round have a node in common"
            taken.update(test.nodes)
        for test in tests:
            bisection.record(test, answer(test.nodes))
    return bisection.findings()


def named(findings: Findings) -> set[str]:
    return {one.node for one in findings.suspects}
