"""The keys of everything that sickbay writes on a Node, and whether a Node carries it. Pure."""

from aggregator.cluster.port import Node, NodeMeta

TAINT = "sickbay.dev/quarantine"
LABEL = "sickbay.dev/quarantined"
CODES = "sickbay.dev/codes"
#: The text in which a node remembers our changes; absent where we have not marked it.
APPLIED = "sickbay.dev/applied"
#: The keys of other tools' annotations that are ours.
KEPT = "sickbay.dev/kept"
OVERRULED = "sickbay.dev/overruled"
RELEASED = "sickbay.dev/released"
#: The type of the node's condition that shows the quarantine.
CONDITION = "SickbayQuarantined"
#: The type of the one that shows the result of the node's last active test.
TEST_CONDITION = "SickbayTestPassed"


def is_marked(node: Node | NodeMeta) -> bool:
    """Whether we have marked the node and not undone it.

    Our annotation shows it. A taint or a label with our key may be another's.
    """
    return node.annotations.get(APPLIED) is not None
