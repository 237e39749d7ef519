"""Distinguishes two live agents that claim one node from an agent that was restarted.

A restarted agent has a new instance and the old one never comes back. Two live ones displace each
other, so that an instance *returns* while the other was alive. Once may be a rollout that starts
the new pod before the old one stops; twice is a conflict.
"""

from dataclasses import dataclass

#: Seconds. The other agent counts as alive when its last message was this recent.
ALIVE = 60.0
#: Older returns count no more; without one for this long a conflict is over.
CALM = 600.0
RETURNS = 2
MAX_INSTANCES = 4


@dataclass(slots=True)
class _History:
    """The instance that attached last, and the time of its last message; the same of those before
    it.
    """

    last: str
    at: float
    earlier: tuple[tuple[str, float], ...] = ()
    returns: tuple[float, ...] = ()


class DuplicateAgentDetector:
    """Per node, the agents that reported for it lately. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, _History] = {}
        self._in_conflict: set[str] = set()

    def on_connect(self, node: str, instance: str, now: float) -> bool:
        """A stream of ``instance`` attached. Returns whether this shows (again) two live agents."""
        history = self._nodes.get(node)
        if history is None:
            self._nodes[node] = _History(instance, now)
            return False
        other = history.last
        others = {**dict(history.earlier), other: history.at}
        returned = instance != other and instance in others and now - history.at <= ALIVE
        others.pop(instance, None)
        history.last, history.at = instance, now
        history.earlier = tuple(others.items())[-(MAX_INSTANCES - 1) :]
        if not returned:
            return False
        recent = (at for at in history.returns if now - at <= CALM)
        history.returns = (*recent, now)
        if len(history.returns) < RETURNS:
            return False
        self._in_conflict.add(node)
        return True

    def on_message(self, node: str, instance: str, at: float) -> None:
        """The time of the last message of ``instance``, noted when its stream ends."""
        history = self._nodes.get(node)
        if history is None:
            return
        if instance == history.last:
            history.at = max(at, history.at)
        history.earlier = tuple(
            (one, max(at, before) if one == instance else before) for one, before in history.earlier
        )

    def forget_node(self, node: str) -> bool:
        """The node's agents have been gone for long. Returns whether two were in conflict until
        now.
        """
        self._nodes.pop(node, None)
        was = node in self._in_conflict
        self._in_conflict.discard(node)
        return was

    def __len__(self) -> int:
        """How many nodes are remembered."""
        return len(self._nodes)

    def over(self, now: float) -> list[str]:
        """The nodes whose conflict is over as of now; each is returned once."""
        ended = [node for node in self._in_conflict if now - self._nodes[node].returns[-1] > CALM]
        for node in ended:
            self._in_conflict.discard(node)
            self._nodes[node].returns = ()
        return ended
