"""Reports once what repairs would do, or did not, and changes nothing."""

from attrs import define

from aggregator.cluster.port import Quarantine
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.state.node import NodeState


@define(eq=False, slots=False)
class SuppressedRepairs:
    """Remembers what it has reported of each node."""

    _acts: NodeActions

    def __attrs_post_init__(self) -> None:
        #: By node: the quarantine's uid, and the repair.
        self._reported: dict[str, tuple[str, str]] = {}

    def report(self, node_state: NodeState, quarantine: Quarantine, repair: str, text: str) -> None:
        if self._reported.get(node_state.node) == (quarantine.uid, repair):
            return
        self._reported[node_state.node] = (quarantine.uid, repair)
        details = {"repair": repair}
        self._acts.emit_event(node_state, EventKind.REPAIR_SUPPRESSED, text, details)
