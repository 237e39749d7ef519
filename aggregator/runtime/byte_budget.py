"""Each node's share of a common resource: a bucket per node that fills up with time. Pure.

Only nodes that have used some of it lately are remembered, so 10,000 quiet ones cost no memory.
"""

#: Seconds between two searches for buckets that are full again.
_PRUNE_EVERY = 60.0


class Budgets:
    """``burst``: the amount for use at once; ``rate``: the amount that comes back in a second."""

    def __init__(self, *, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._used: dict[str, tuple[float, float]] = {}  # how much of the bucket, and when that was
        self._pruned = float("-inf")

    def __len__(self) -> int:
        return len(self._used)

    def used(self, node: str, now: float) -> float:
        """How much of its bucket the node has used and not got back yet; may exceed the bucket."""
        found = self._used.get(node)
        if found is None:
            return 0.0
        used, at = found
        return max(0.0, used - (now - at) * self._rate)

    def spend(self, node: str, amount: float, now: float) -> bool:
        """Use that much, if the bucket has as much. Returns whether it had. ``now`` is in
        seconds.
        """
        used = self.used(node, now)
        if used + amount > self._burst:
            return False
        self.set_used(node, used + amount, now)
        return True

    def set_used(self, node: str, used: float, now: float) -> None:
        """The node has used this much of its bucket now."""
        if used > 0:
            self._used[node] = (used, now)
        else:
            self._used.pop(node, None)
        self.prune(now)

    def prune(self, now: float) -> None:
        """Forget the nodes whose bucket is full again; at most once a minute."""
        if now - self._pruned >= _PRUNE_EVERY:
            self._pruned = now
            for one in [one for one in self._used if not self.used(one, now)]:
                del self._used[one]
