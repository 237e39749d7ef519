"""Decodes the objects of a list while its body arrives.

The API server answers a list from its cache as one body: 280 MB for 100,000 Nodes. Joining and
scanning that at once stops the event loop for more than a second, and with it the renewal of the
Lease. Here no step takes longer than one piece of the body.
"""

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from aggregator.cluster.kubernetes.objects import RawList, decode
from aggregator.cluster.port import Refused

T = TypeVar("T")

#: The beginning of the first object. All objects of a list begin in the same way, and an unescaped
#: quote can't be part of a text.
_BEGIN = re.compile(rb'"items":\[(\{(?:"[a-zA-Z]+":"[^"\\]*",)*"metadata":\{)')
#: Bytes in which that must come; a list that is written in another way is decoded as a whole.
_HEAD = 64 * 1024


class ListReader(Generic[T]):
    """``read`` makes of one object what is kept of it; it raises Refused for no such object.

    Implements `BodySink`.
    """

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._read = read
        self.begin()

    def begin(self) -> None:
        """A new answer: a request may be sent again."""
        self._found: list[T] = []
        self._buffer = bytearray()
        self._head = b""
        self._separator = b""
        self._searched = 0

    def take(self, piece: bytes) -> None:
        """The next piece of the body."""
        self._buffer += piece
        if not self._separator:
            if self._searched < _HEAD:
                self._find_begin()
            if not self._separator:
                return
        start = 0
        while (at := self._buffer.find(self._separator, self._searched)) >= 0:
            self._searched = at + 1
            try:
                self._found.append(self._read(bytes(self._buffer[start:at])))
            except Refused:
                continue  # the separator was a part of the object
            start = at + 1
        self._searched = max(self._searched, len(self._buffer) - len(self._separator))
        if start:
            del self._buffer[:start]
            self._searched -= start

    def finish(self) -> list[T]:
        """The kept part of all objects. Raises Refused for a body that is no list."""
        rest = decode(self._head + self._buffer, RawList)
        return [*self._found, *(self._read(bytes(raw)) for raw in rest.items or ())]

    def _find_begin(self) -> None:
        self._searched = min(len(self._buffer), _HEAD)
        begin = _BEGIN.search(self._buffer, 0, _HEAD)
        if begin is None:
            return
        self._separator = b"," + begin[1]
        self._head = bytes(self._buffer[: begin.start(1)])
        del self._buffer[: begin.start(1)]
        self._searched = 0
