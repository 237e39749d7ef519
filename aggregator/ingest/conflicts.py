"""Two live agents that claim one node, told from an agent that was restarted.

A restarted agent has a new instance and the old one never comes back. Two live ones push each
other out, so that an instance *returns* while the other was alive. Once may be a rollout that
starts the new pod before the old one stops; twice is a conflict.
"""

from dataclasses import dataclass, field

#: Seconds. The other was alive when it was heard this recently.
ALIVE = 60.0
#: Returns older than this count no more; without one for this long a conflict is over.
CALM = 600.0
RETURNS = 2
MAX_INSTANCES = 4


@dataclass(slots=True)
class _History:
    last: str
    heard: dict[str, float] = field(default_factory=dict)  # instance: when it was last heard
    returns: tuple[float, ...] = ()


class Conflicts:
    """Per node, who has spoken for it lately. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, _History] = {}
        self._in_conflict: set[str] = set()

    def attached(self, node: str, instance: str, now: float) -> bool:
        """A stream of ``instance`` attached: whether this shows (again) two live agents."""
        history = self._nodes.get(node)
        if history is None:
            self._nodes[node] = _History(instance, {instance: now})
            return False
        other = history.last
        returned = (
            instance != other
            and instance in history.heard
            and now - history.heard.get(other, float("-inf")) <= ALIVE
        )
        history.last = instance
        self._remember(history, instance, now)
        if not returned:
            return False
        recent = (at for at in history.returns if now - at <= CALM)
        history.returns = (*recent, now)
        if len(history.returns) < RETURNS:
            return False
        self._in_conflict.add(node)
        return True

    def heard(self, node: str, instance: str, at: float) -> None:
        """When ``instance`` was last heard; told when its stream ends."""
        history = self._nodes.get(node)
        if history is not None and instance in history.heard:
            history.heard[instance] = max(at, history.heard[instance])

    def over(self, now: float) -> list[str]:
        """The nodes whose conflict is over as of now; each is told once."""
        ended = [node for node in self._in_conflict if now - self._nodes[node].returns[-1] > CALM]
        for node in ended:
            self._in_conflict.discard(node)
            self._nodes[node].returns = ()
        return ended

    @staticmethod
    def _remember(history: _History, instance: str, now: float) -> None:
        history.heard.pop(instance, None)  # to the end: the first is forgotten first
        history.heard[instance] = now
        while len(history.heard) > MAX_INSTANCES:
            history.heard.pop(next(iter(history.heard)))
