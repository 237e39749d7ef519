"""The keys of everything that sickbay writes on a Node, and whether a Node carries it. Pure."""

from aggregator.cluster.port import Node

TAINT = "sickbay.dev/quarantine"
LABEL = "sickbay.dev/quarantined"
CODES = "sickbay.dev/codes"
APPLIED = "sickbay.dev/did"
OVERRULED = "sickbay.dev/overruled"
RELEASED = "sickbay.dev/released"
#: The type of the node's condition that shows the quarantine.
CONDITION = "SickbayQuarantined"


def is_marked(node: Node) -> bool:
    """Whether we have marked the node and not undone it.

    Our annotation tells. A taint or a label with our key may be another's.
    """
    return APPLIED in node.annotations
