"""A memory with a bound: the oldest entries give way."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: More nodes, and so operations and drains under way, than a cluster has at a time. One may vanish
#: without an end that would remove its entry.
MOST = 10_000


class Recent(OrderedDict[K, V]):
    """The entries that were written last, ``most`` at most (`MOST` without it), in the order of
    their writes.
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self._most = MOST if most is None else most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
