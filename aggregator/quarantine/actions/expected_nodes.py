"""Nodes as the next patch expects them, so that a quarantine that begins needs no read of its node.

The list of nodes has each node's uid, labels and our annotations, and no taints. A patch that
begins a quarantine names all that it was decided on, and the API server checks it: a wrong
expectation changes nothing, and the node is read. See docs/fences.md.
"""

import logging

from aggregator.cluster.node_names import (
    APPLIED,
    CODES,
    KEPT,
    OVERRULED,
    RELEASED,
    is_marked,
)
from aggregator.cluster.port import Conflict, Node, NodesAndPods, Taint, Unread
from aggregator.quarantine.decide.mark_rules import DO_NOT_DISRUPT
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, PIN
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import NO_QUARANTINE
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")

#: Annotations by which it is decided whether, and how, a node is marked. A release always writes
#: `RELEASED`, so a decision of before a release fails here as it does on the version.
DECIDING = frozenset(
    {
        *(APPLIED, RELEASED, OVERRULED, KEPT, CODES),
        *(EXEMPT, FORCE, PIN, DO_NOT_DISRUPT),
    }
)
#: Taints of the cluster's own controllers, which come and go with a node's state.
_PASSING = "node.kubernetes.io/"


class ExpectedNodes:
    """One for all nodes of a replica.

    Nodes of a pool usually have the same taints, so the last one that was read tells those of the
    next.
    """

    def __init__(self, cluster: NodesAndPods, registry: NodeRegistry) -> None:
        self._cluster = cluster
        self._registry = registry
        self._taints: dict[str, tuple[Taint, ...]] = {}

    def expect(self, node_state: NodeState) -> Node | None:
        """The node as it is expected to be, or None where it has to be read.

        It is read where the list does not tell all that is known of it, and where it has been in
        quarantine since this process began: then our own writes are newer than the list.
        """
        view = node_state.cluster
        meta = view.meta
        if (
            meta is None
            or not self._cluster.lists_all  # else there is nothing but the agent's word
            or node_state.quarantine_view is not NO_QUARANTINE
            or view.foreign
            or view.labels != meta.labels
        ):
            return None
        expected = Node(
            name=meta.name,
            uid=meta.uid,
            version="",
            unschedulable=False,
            taints=self._taints.get(self._registry.pool_of(meta.name), ()),
            labels=meta.labels,
            annotations=meta.annotations,
            unread=Unread(DECIDING | node_state.others.annotations, annotated=meta.annotated),
        )
        return expected if node_state.bears_out(expected) else None

    def learn(self, node: Node | None, node_state: NodeState) -> None:
        """Take the taints of a node that was read before its quarantine."""
        if node is None or node.unschedulable or is_marked(node):
            return
        if node_state.others.forbids_all(node):
            return
        if not any(taint.key.startswith(_PASSING) for taint in node.taints):
            self._taints[self._registry.pool_of(node.name)] = node.taints

    def note_difference(self, node: Node, error: Conflict) -> None:
        """The server found another node than the expected one; it is read now."""
        log.info(
            "the node is not as expected: it is read, and decided on again",
            extra={"event": "step.node_differs", "node": node.name, "error": str(error)},
        )
