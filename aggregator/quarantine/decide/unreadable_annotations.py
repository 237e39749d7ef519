"""The annotations of a node that sickbay reads and can't understand, for people. Pure.

Each of them counts as absent, or holds what depends on it, and no other surface would show why.
"""

from collections.abc import Mapping

from aggregator.cluster.node_names import OVERRULED
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.quarantine.decide.node_marks import is_readable_memory
from aggregator.quarantine.decide.release_checks import RELEASE_HISTORY, is_readable_history

_READ = frozenset({OVERRULED, RELEASE_HISTORY})


def unreadable_annotations(
    node: str, annotations: Mapping[str, str], words: ClusterWords = KUBERNETES
) -> tuple[str, ...]:
    """A sentence for each, with what follows from it and the command that ends that."""
    if _READ.isdisjoint(annotations):
        return ()
    return tuple(
        f"note {key} can't be read: {effect}. To go on: "
        f"{words.forget_note.format(node=node, keys=keys)}"
        for key, effect, keys in _unreadable(annotations)
    )


def _unreadable(annotations: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """The key, the effect, and the end of the command."""
    found = []
    if not is_readable_memory(annotations):
        text = "evidence that a person has overruled counts again"
        found.append((OVERRULED, text, f"{OVERRULED}-"))
    if not is_readable_history(annotations.get(RELEASE_HISTORY, "")):
        text = "earlier releases of the node count no more"
        found.append((RELEASE_HISTORY, text, f"{RELEASE_HISTORY}-"))
    return found
