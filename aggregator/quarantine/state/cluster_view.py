"""A node as the cluster has it: its Node, with requests, overrides and the marks of other tools."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aggregator.clock import Clocks
from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Node, NodeMeta, Quarantine
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.health.model import Cleared
from aggregator.health.node import REMEMBERED
from aggregator.quarantine.decide.maintenance import (
    Forbids,
    MaintenanceRules,
    MarkKind,
    OthersMark,
    claims_on,
)
from aggregator.quarantine.decide.node_marks import foreign_hands, read_overruled
from aggregator.quarantine.decide.operator_requests import (
    NONE,
    OperatorRequests,
    read_operator_requests,
)
from aggregator.quarantine.decide.overrides import Override, ended_by

log = logging.getLogger("sickbay.quarantine")

#: A mark on a node, its value, and since when it is there (monotonic).
_Claim = tuple[OthersMark, str, float]
_Seen = dict[tuple[MarkKind, str, str], float]


class OthersMarks:
    """One for all nodes of a replica. Marks with a time of their own are compared with the earliest
    wall clock time that it may be. ``words``: the cluster's.

    The age of a mark without one counts from when this process first saw it: a restart begins anew.
    """

    def __init__(
        self,
        rules: MaintenanceRules | None = None,
        *,
        clocks: Clocks | None = None,
        words: ClusterWords = KUBERNETES,
    ) -> None:
        rules = rules or MaintenanceRules()
        clocks = clocks or Clocks(time.monotonic, time.time)
        self._marks = rules.all_marks()
        self._acts = rules.on_stale == "act"
        self._now = clocks.now
        self._earliest = clocks.earliest
        self.words = words
        self._seen: dict[str, _Seen] = {}
        self._taints, self._labels, annotations = (
            frozenset(one.key for one in self._marks if one.kind is kind)
            for kind in (MarkKind.TAINT, MarkKind.LABEL, MarkKind.ANNOTATION)
        )
        #: Keys of annotations that are marks: a patch without a read requires their absence.
        self.annotations = annotations

    def forbids_all(self, node: Node) -> str:
        """The tool at work on the node, or that wants its work left there; empty without one."""
        return self.forbidden(node)[0]

    def forbidden(self, node: Node) -> tuple[str, str]:
        """`forbids_all`, and why no pod of the node is to be evicted, although it may be cordoned;
        else empty.
        """
        found = self._claims(node)
        if not found:
            return "", ""
        return self._reason(found, Forbids.ALL), self._reason(found, Forbids.EVICTION)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._seen.pop(node, None)

    def _reason(self, found: Sequence[_Claim], forbids: Forbids) -> str:
        """A valid mark comes before one that is stale."""
        stale = ""
        for mark, value, since in found:
            if mark.forbids is not forbids:
                continue
            if not self._is_stale(mark, value, since):
                return mark.describe(value)
            if not self._acts:
                stale = stale or mark.describe_stale(value)
        return stale

    def _claims(self, node: Node) -> Sequence[_Claim]:
        found: tuple[tuple[OthersMark, str], ...] = ()
        if not (  # as on nearly every node
            self._labels.isdisjoint(node.labels)
            and self.annotations.isdisjoint(node.annotations)
            and self._taints.isdisjoint([one.key for one in node.taints])
        ):
            found = tuple(claims_on(node, self._marks))
        if not found:
            self._seen.pop(node.name, None)
            return ()
        before, now = self._seen.get(node.name, {}), self._now()
        seen: _Seen = {}
        for mark, value in found:
            key = (mark.kind, mark.key, value)
            seen[key] = before.get(key, now)
        self._seen[node.name] = seen
        return [(mark, value, seen[mark.kind, mark.key, value]) for mark, value in found]

    def _is_stale(self, mark: OthersMark, value: str, since: float) -> bool:
        if not mark.believed_for:
            return False
        age = self._now() - since
        if mark.timed and value.isdecimal() and len(value) < 12:
            age = max(age, self._earliest() - int(value))
        return age > mark.believed_for


@dataclass(slots=True)
class ClusterView:
    """Changed by lists, reads and our own writes of the Node, and by signs that end an override.

    ``meta``: the Node as last listed. ``labels``: as it was last read or listed, also after it is
    gone, or None before the first time.
    ``marked``: our marks are on the node, as it was last read or listed; ``read_at``: when that was
    (monotonic seconds), None before the first time. ``marked_at``: when we have set them (monotonic
    seconds).
    ``node_gone``, ``node_found``: the last read of the node found none, or found it.
    ``foreign``: cordoned by another party, being maintained: shown, left alone.
    ``maintained``: another party is at work on the node; no step begins meanwhile.
    ``operator_requests``: operators' requests in its annotations, as last read in full, or listed.
    ``overruled``: evidence that a person has overruled.
    ``ended_overrides``: overrides that have ended, and that the node still remembers.
    ``signs``: signs that came before the overrides in the node's annotation were read.
    ``untested``: why it still has the startup taint of new nodes; empty: it has none.
    """

    meta: NodeMeta | None = None
    labels: Mapping[str, str] | None = None
    marked: bool = False
    read_at: float | None = None
    marked_at: float = float("-inf")
    node_gone: bool = False
    node_found: bool = False
    foreign: str = ""
    maintained: str = ""
    evictions_forbidden: str = ""
    operator_requests: OperatorRequests = NONE
    operator_requests_known: bool = False
    overruled: frozenset[Override] = frozenset()
    ended_overrides: frozenset[Override] = frozenset()
    signs: tuple[Cleared, ...] = ()
    untested: str = ""

    def take_listed(
        self, meta: NodeMeta, now: float, *, marked: bool, keeps_labels: bool = False
    ) -> None:
        """The Node as just listed, which may be a little old: ``keeps_labels`` of a newer read."""
        self.meta, self.marked, self.read_at = meta, marked, now
        if not keeps_labels:
            self.labels = meta.labels

    def take_node(
        self, node: Node | None, quarantine: Quarantine | None, now: float, others: OthersMarks
    ) -> None:
        """The Node as just read, None for no Node. ``quarantine``: the one that is in force."""
        self.marked, self.read_at = node is not None and is_marked(node), now
        self.node_gone, self.node_found = node is None, node is not None
        if node is None:
            self.foreign = self.maintained = self.evictions_forbidden = ""
            self.operator_requests, self.operator_requests_known = NONE, False  # they were on it
            return
        self.labels = node.labels
        self.maintained, self.evictions_forbidden = others.forbidden(node)
        self.foreign = self.maintained or foreign_hands(node, quarantine, others.words)
        self.operator_requests = read_operator_requests(node.annotations)
        self.operator_requests_known = True
        self.take_overruled(read_overruled(node.annotations))

    def has_others_marks_of(self, node: Node, others: OthersMarks) -> bool:
        """Whether the marks of other tools are as on this read."""
        return others.forbidden(node) == (self.maintained, self.evictions_forbidden)

    def has_notes_of(self, node: Node) -> bool:
        """Whether people's requests and overrides are as in its annotations, and no mark of ours is
        there.
        """
        if not node.annotations:  # as on nearly every node
            return self.operator_requests == NONE and not self.overruled
        return (
            not is_marked(node)
            and read_operator_requests(node.annotations) == self.operator_requests
            and read_overruled(node.annotations) - self.ended_overrides == self.overruled
        )

    def note_marks(self, now: float) -> None:
        """Our marks were just written."""
        self.marked, self.marked_at = True, now

    def take_overruled(self, remembered: frozenset[Override]) -> None:
        """The overrides as the node remembers them: read from it, or just written."""
        self.ended_overrides &= remembered
        self.overruled = remembered - self.ended_overrides
        if self.signs:
            self._end_by(self.signs)
            self.signs = ()

    def take_signs(self, signs: tuple[Cleared, ...], *, node_read: bool) -> None:
        """Take the signs of faults that ended; the overrides of these faults end too.

        ``node_read``: the node's overrides are known. Until then the signs are kept for them.
        """
        if not signs:
            return
        self._end_by(signs)
        if not node_read:
            self.signs = (*self.signs, *signs)[-REMEMBERED:]

    def end_overrides(self, ended: set[Override]) -> None:
        """The evidence of these overrides is over; the node still remembers them."""
        if not ended:
            return  # on nearly every message; a new empty set would be 216 bytes
        self.ended_overrides |= ended
        self.overruled -= ended

    def _end_by(self, signs: tuple[Cleared, ...]) -> None:
        self.end_overrides({word for word in self.overruled if ended_by(word, signs)})
