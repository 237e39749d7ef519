"""The steps of mode drain now, where the mode keeps sickbay from acting. Pure, except the cache.

The limits' answers come from admission itself, so that the preview and the real switch agree.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from aggregator import documentation
from aggregator.quarantine.decide.held import Held
from aggregator.web import models
from aggregator.web.fleet_view import FleetViewFindings
from aggregator.web.snapshot_cache import FleetSnapshot

_MODE, _OBSERVE = "mode", "observe"
#: The begin of a hold's reason by the mode: node_view.hold.
_WOULD = "would "
_DRAIN = "drain"
_MOST_NAMED = 100


#: Given nodes and actions in the order in which they would be requested: the holds, by node.
Preview = Callable[[Iterable[str]], Mapping[str, Held]]


class EffectCache:
    """The effect as of the latest snapshot, computed once for all readers."""

    def __init__(self) -> None:
        self._snapshot: FleetSnapshot | None = None
        self._effect: models.ModeEffect | None = None

    def of(self, snapshot: FleetSnapshot, preview: Preview | None) -> models.ModeEffect | None:
        """None without ``preview``, and where the mode holds no node and is not observe."""
        if self._snapshot is not snapshot:
            found = snapshot.found
            capped = found.mode == _OBSERVE or any(one.limit == _MODE for one in found.holds)
            self._effect = mode_effect(found, preview) if preview and capped else None
            self._snapshot = snapshot
        return self._effect


def mode_effect(found: FleetViewFindings, preview: Preview) -> models.ModeEffect:
    """The effect on all nodes that the mode holds; those of the oldest incidents come first."""
    since: dict[str, float] = {}
    for incident in found.incidents:
        at = incident.since.timestamp()
        since[incident.node] = min(at, since.get(incident.node, at))
    capped = [one for one in found.holds if one.limit == _MODE]
    capped.sort(key=lambda one: (since.get(one.node, float("inf")), one.node))
    wanted = [(one.node, _action(one.reason)) for one in capped]
    held = preview(node for node, _ in wanted)
    limits: Counter[str] = Counter(hold.limit for hold in held.values())
    first = {hold.limit: hold for hold in reversed(list(held.values()))}
    admitted = [action for node, action in wanted if node not in held]
    return models.ModeEffect(
        drained=admitted.count(_DRAIN),
        cordoned=len(admitted) - admitted.count(_DRAIN),
        held=len(held),
        nodes=[node for node, _ in wanted if node not in held][:_MOST_NAMED],
        limits=[
            models.LimitEffect(
                limit=limit,
                value=first[limit].value,
                reason=first[limit].reason,
                nodes=count,
                documentation=documentation.of_hold(limit),
            )
            for limit, count in limits.most_common()
        ],
    )


def _action(reason: str) -> str:
    """The action that a hold by the mode prevents: "would drain: xid:79 ..."."""
    return reason.removeprefix(_WOULD).partition(":")[0]
