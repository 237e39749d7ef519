"""Detects other tools at work on a node, by the marks that they set themselves. Pure.

Such a node is left to them: we begin no action and evict no pod meanwhile. Some marks forbid
evictions alone. Their marks are never changed. An annotation that we have set ourselves is no mark
of another tool. Each mark is a promise of its tool, so most are doubted after a time: a tool that
was removed, or that has failed, leaves its marks behind.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from aggregator.cluster.port import Node
from aggregator.configfile.section import SectionDataclass, Strings
from aggregator.configfile.values import Duration, LabelKey
from aggregator.policy.shipped_yaml import read_shipped_file
from aggregator.quarantine.decide.node_marks import own_annotations
from aggregator.rfc3339 import span

#: How the reason begins where a mark is older than it is valid.
STALE = "a mark of another tool is stale"


class MarkKind(enum.StrEnum):
    """The part of a Node that has the mark."""

    TAINT = "taint"
    LABEL = "label"
    ANNOTATION = "annotation"


class Forbids(enum.StrEnum):
    """The acts that a mark forbids."""

    ALL = "all"
    EVICTION = "eviction"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class OthersMark(SectionDataclass):
    """A mark by which another tool, or a person, claims a node.

    It counts with one of ``values`` (empty: with any), except ``idle_values``. ``believed_for``:
    seconds until it is stale, since this process first saw it, or since the Unix time that is its
    value (``timed``); 0: it is valid without end. ``reason`` is for people.
    """

    kind: Annotated[MarkKind, Field(strict=False)]
    """``taint``, ``label`` or ``annotation``: a mark of another tool
    (docs/drain.md#other-peoples-nodes), in addition to the shipped ones.
    """
    key: Annotated[LabelKey, Field(min_length=1)]
    """Its key."""
    values: Strings = ()
    """The values with which it counts. Empty: with any."""
    idle_values: Strings = ()
    """The values with which it does not count."""
    forbids: Annotated[Forbids, Field(strict=False)] = Forbids.ALL
    """``all``: no step begins. ``eviction``: the node is cordoned, and its pods stay. ``nothing``:
    the mark is ignored.
    """
    believed_for: Duration = 86400.0
    """After this long the mark is stale. ``"0s"``: it is valid without end."""
    timed: bool = False
    """Its value is the Unix time since when it counts."""
    reason: Annotated[str, Field(max_length=200)] = ""
    """The words for people."""

    def counts_with(self, value: str) -> bool:
        """Whether it counts with this value."""
        return value not in self.idle_values and (not self.values or value in self.values)

    def describe(self, value: str) -> str:
        """For people: the claim, and the mark."""
        shown = f"={value}" if value and self.kind is MarkKind.LABEL else ""
        reason = self.reason or "another tool is at work on it"
        return f"{reason} ({self.kind} {self.key}{shown})"

    def describe_stale(self, value: str) -> str:
        """The same where it is no longer valid."""
        return f"{STALE}, older than {span(self.believed_for)}: {self.describe(value)}"


@dataclass(frozen=True, slots=True)
class MaintenanceRules(SectionDataclass):
    """The section ``maintenance``: ``marks`` are added to the shipped ones, and replace those of
    the same kind and key. ``on_stale``: a node whose mark is stale is held on, and reported
    again, or acted on.
    """

    marks: Annotated[tuple[OthersMark, ...], Field(strict=False, max_length=100)] = ()
    on_stale: Literal["hold", "act"] = "hold"
    """``hold``: a stale mark holds the node on, and is alerted again. ``act``: it is ignored."""

    def all_marks(self) -> tuple[OthersMark, ...]:
        """A site's marks, then the shipped ones that it does not replace."""
        own = {(one.kind, one.key) for one in self.marks}
        return (*self.marks, *(one for one in _shipped() if (one.kind, one.key) not in own))


@cache
def _shipped() -> tuple[OthersMark, ...]:
    """marks.yaml is a section ``maintenance`` like a site's."""
    section = read_shipped_file("aggregator.quarantine.decide", "marks.yaml")
    return TypeAdapter(MaintenanceRules).validate_python(section).marks


def claims_on(node: Node, marks: tuple[OthersMark, ...]) -> Iterator[tuple[OthersMark, str]]:
    """The marks that count on this node, each with its value."""
    ours = own_annotations(node.annotations)
    present: Mapping[MarkKind, Mapping[str, str]] = {
        MarkKind.TAINT: {one.key: one.value for one in reversed(node.taints)},  # the first counts
        MarkKind.LABEL: node.labels,
        MarkKind.ANNOTATION: {
            key: value for key, value in node.annotations.items() if key not in ours
        },
    }
    for mark in marks:
        value = present[mark.kind].get(mark.key)
        if value is None or mark.forbids is Forbids.NOTHING:
            continue
        if mark.counts_with(value):
            yield mark, value


def is_stale(reason: str) -> bool:
    """Whether this reason is that of a mark which is no longer valid."""
    return reason.startswith(STALE)
