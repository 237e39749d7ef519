"""Reads the marks of other tools on nodes, and remembers since when each is there."""

import logging
import time
from collections.abc import Callable, Sequence

from aggregator.cluster.port import Node
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.quarantine.decide.maintenance import (
    Forbids,
    MaintenanceRules,
    MarkKind,
    OthersMark,
    claims_on,
)

log = logging.getLogger("sickbay.quarantine")

#: A mark on a node, its value, and since when it is there (monotonic).
_Claim = tuple[OthersMark, str, float]
_Seen = dict[tuple[MarkKind, str, str], float]


class OthersMarks:
    """One for all nodes of a replica. ``now``: monotonic seconds; ``earliest``: the earliest wall
    clock seconds that it may be, for marks with a time of their own. ``words``: the cluster's.

    The age of a mark without one counts from when this process first saw it: a restart begins anew.
    """

    def __init__(
        self,
        rules: MaintenanceRules | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        earliest: Callable[[], float] = time.time,
        words: ClusterWords = KUBERNETES,
    ) -> None:
        rules = rules or MaintenanceRules()
        self._marks = rules.all_marks()
        self._acts = rules.on_stale == "act"
        self._now = now
        self._earliest = earliest
        self.words = words
        self._seen: dict[str, _Seen] = {}
        #: Keys of annotations that are marks: a patch without a read requires their absence.
        self.annotations = frozenset(
            one.key for one in self._marks if one.kind is MarkKind.ANNOTATION
        )

    def forbids_all(self, node: Node) -> str:
        """The tool at work on the node, or that wants its work left there; empty without one."""
        return self.forbidden(node)[0]

    def forbids_evictions(self, node: Node) -> str:
        """Why no pod of the node is to be evicted, although it may be cordoned; else empty."""
        return self.forbidden(node)[1]

    def forbidden(self, node: Node) -> tuple[str, str]:
        """Both: `forbids_all` and `forbids_evictions`."""
        found = self._claims(node)
        if not found:
            return "", ""
        return self._reason(found, Forbids.ALL), self._reason(found, Forbids.EVICTION)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._seen.pop(node, None)

    def _reason(self, found: Sequence[_Claim], forbids: Forbids) -> str:
        """A mark that is believed comes before one that is stale."""
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
