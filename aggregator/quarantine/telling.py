"""Who tells people of a state of the fleet that every replica sees for itself: whoever leads."""

from collections.abc import Callable

#: A change that is younger (seconds) when another one comes to lead may not have been told: the
#: leader may have died of the same thing, or just before. Longer than a failover takes.
UNCERTAIN = 60.0


class Telling:
    """One such state, as a text; empty: there is nothing. Told once, and by two replicas rather
    than by none where the leader changes just then. ``now`` is monotonic, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._state = self._told = ""
        self._since = float("-inf")

    def is_due(self, state: str, *, leads: bool) -> bool:
        """Whether to tell of it now. Ask at each change, and now and then."""
        if state != self._state:
            self._state, self._since = state, self._now()
        if state == self._told:
            return False
        if not leads and self._now() - self._since < UNCERTAIN:
            return False
        self._told = state
        return leads
