"""Writes marks, and leaves annotations for other tools out where admission refuses them.

A cluster may have an admission policy that is older than those annotations, or that does not name
the one of `marks.reason_annotation`. The taint, the cordon and their undo are worth more: none of
them may fail for an annotation.
"""

import logging
from collections.abc import Callable

from aggregator.cluster.port import AdmissionRefused, Cluster, Guard, Node, NodeChange
from aggregator.quarantine.decide.mark_rules import without_notices

log = logging.getLogger("sickbay.quarantine")

#: After a refusal nodes are marked without these annotations for so long (seconds): the refused
#: request would delay each taint. Then they are tried again.
WITHOUT_FOR = 600.0


class MarkWriter:
    """One for all nodes of a replica. ``now`` is monotonic."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self._without_until = float("-inf")
        self._is_told = False

    async def mark(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        """As `Cluster.patch_node`. The refused request changed nothing, so the second one stands
        on the same read of the node.
        """
        plain = without_notices(change)
        if plain is not None and self._now() < self._without_until:
            return await self._cluster.patch_node(node, plain, guard=guard)
        try:
            marked = await self._cluster.patch_node(node, change, guard=guard)
        except AdmissionRefused as error:
            if plain is None:
                raise
            marked = await self._cluster.patch_node(node, plain, guard=guard)
            self._note_refusal(node, error)
        else:
            self._note_success(plain)
        return marked

    async def undo(self, node: Node, change: NodeChange) -> Node:
        """The same for an undo: it is tried as a whole each time. What stays is named by
        `KEPT` on the node, and goes with its next release.
        """
        try:
            return await self._cluster.patch_node(node, change)
        except AdmissionRefused as error:
            plain = without_notices(change)
            if plain is None:
                raise
            undone = await self._cluster.patch_node(node, plain)
            self._note_refusal(node, error)
            return undone

    def _note_refusal(self, node: Node, error: AdmissionRefused) -> None:
        self._without_until = self._now() + WITHOUT_FOR
        if not self._is_told:
            self._is_told = True
            text = (
                "admission refuses annotations for other tools: nodes are marked and released"
                " without them (apply deploy/kubernetes/admission-policies.yaml, and name"
                " marks.reason_annotation in its ownNotices)"
            )
            log.warning(text, extra={"node": node.name, "error": str(error)})

    def _note_success(self, plain: NodeChange | None) -> None:
        if plain is not None and self._is_told:
            self._is_told = False
            log.info("admission takes annotations for other tools again")
