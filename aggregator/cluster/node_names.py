"""The keys of everything that sickbay writes on a Node, and whether a Node carries it. Pure.

The annotation with our changes has two names until a later version drops the former one. Replicas
of the version before write and remove `FORMER_APPLIED` alone, so that name decides: `APPLIED` alone
is left over by their release (docs/decisions/0017-two-names-of-one-annotation.md).
"""

import json
from collections.abc import Mapping

from aggregator.cluster.port import Node, NodeMeta

TAINT = "sickbay.dev/quarantine"
LABEL = "sickbay.dev/quarantined"
CODES = "sickbay.dev/codes"
APPLIED = "sickbay.dev/applied"
FORMER_APPLIED = "sickbay.dev/did"
#: The keys of other tools' annotations that are ours; beside `APPLIED`, which older versions write.
KEPT = "sickbay.dev/kept"
OVERRULED = "sickbay.dev/overruled"
RELEASED = "sickbay.dev/released"
#: The type of the node's condition that shows the quarantine.
CONDITION = "SickbayQuarantined"
#: The type of the one that shows the result of the node's last active test.
TEST_CONDITION = "SickbayTestPassed"
#: The annotation with that test.
NODE_TEST = "sickbay.dev/node-test"

#: A later version, which does not write the former name any more, says so in the annotation.
_SOLE = "sole"


def is_marked(node: Node | NodeMeta) -> bool:
    """Whether we have marked the node and not undone it.

    Our annotation tells. A taint or a label with our key may be another's.
    """
    return applied_text(node.annotations) is not None


def applied_text(annotations: Mapping[str, str | None]) -> str | None:
    """The text in which a node remembers our changes; None where we have not marked it."""
    former, text = annotations.get(FORMER_APPLIED), annotations.get(APPLIED)
    if former is None and text is not None and _is_sole(text):
        return text
    return former


def own_annotations(annotations: Mapping[str, str | None]) -> tuple[str, ...]:
    """The keys of other tools' annotations that we have set on the node, by our record there."""
    return tuple(key for key in (annotations.get(KEPT) or "").split(",") if key)


def applied_annotations(text: str | None) -> dict[str, str | None]:
    """The annotations of a patch that writes the text, or with None removes it."""
    return {FORMER_APPLIED: text, APPLIED: text}


def _is_sole(text: str) -> bool:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get(_SOLE) is True
