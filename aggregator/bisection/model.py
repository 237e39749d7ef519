"""The words of a search: a test of a group, its outcome, and what the search has found. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

Group = tuple[str, ...]


class GroupOutcome(StrEnum):
    """The answer of one test of one group."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    """The test is no evidence about the nodes: a missing tool, a time limit."""


class SearchVerdict(StrEnum):
    """The answer of a search."""

    PASSED = "passed"
    """The whole group passed its test."""
    FOUND = "found"
    """Nodes are confirmed as suspects, or groups are that fail together."""
    NO_VERDICT = "no-verdict"


@dataclass(frozen=True, slots=True)
class GroupTest:
    """One test to run. ``number`` counts from 1; ``attempt`` too, and is above 1 where the same
    question had no verdict before. ``why``: for people.
    """

    number: int
    nodes: Group
    why: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """A test and its outcome."""

    test: GroupTest
    outcome: GroupOutcome


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that failed next to several good nodes. ``tests`` are these failures, and last the
    test that these good nodes passed together.
    """

    node: str
    tests: tuple[Ended, ...]


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two groups, each of which passed, and that failed together: no node is named.

    ``faulty`` is the one that also failed next to good nodes of elsewhere while the other one
    passed next to such; empty where that is not known. ``domain``: of all nodes of that group.
    """

    first: Group
    second: Group
    tests: tuple[Ended, ...]
    faulty: Group = ()
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Nodes about which the search has no verdict, and why."""

    nodes: Group
    why: str


@dataclass(frozen=True, slots=True)
class Findings:
    """The result. ``cleared``: nodes that were in a group that passed, and are not suspected.

    ``rest_passed``: all nodes without evidence against them passed one test together, so that no
    further fault is known of, or None where there was no such test.
    """

    verdict: SearchVerdict
    suspects: tuple[Suspect, ...]
    interactions: tuple[Interaction, ...]
    unsettled: tuple[Unsettled, ...]
    cleared: Group
    rest_passed: bool | None
    rounds: int
    tests: int


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Bounds of one search."""

    parallel: int = 0
    """Tests of one round at most; 0: as many as there are disjoint groups."""
    attempts: int = 2
    """Runs of one test that gives no verdict."""
    confirmations: int = 2
    """Good nodes with which a node must fail. With fewer bad nodes than this no good node is
    named, even where a bad node's tests pass now and then.
    """
    rounds: int = 100
    silent_rounds: int = 4
    """This number of rounds in a row without a verdict ends the search: no node has the tool."""
    pairings: int = 16
    """Rounds in which nodes are paired anew, where no good node is known."""
    passes: int = 3
    """Searches of what is left, where it still fails without the suspects."""


def names(nodes: Sequence[str], most: int = 4) -> str:
    """A group for people: its nodes, or their number and the first ones."""
    if len(nodes) <= most:
        return ", ".join(nodes)
    return f"{len(nodes)} nodes ({', '.join(nodes[:2])}, ... {nodes[-1]})"
