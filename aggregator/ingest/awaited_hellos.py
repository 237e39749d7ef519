"""Calls that have presented a node's credentials and wait for their Hello: a few for each node."""

from collections.abc import Iterator
from itertools import chain
from typing import Protocol

#: Calls of one node that may wait for their Hello at once. An agent opens one; a second one is
#: there while the first breaks. All of them have presented the node's credentials.
MOST_AWAITED = 4


class GreetingCall(Protocol):
    """A call that waits for its Hello."""

    def crowd_out(self, text: str) -> None:
        """End it: too many of its node wait, and it has waited longest."""

    def close(self, reason: str) -> None: ...


class AwaitedHellos:
    """By node, the oldest first."""

    def __init__(self) -> None:
        self._by_node: dict[str, list[GreetingCall]] = {}

    def add(self, call: GreetingCall, node: str) -> None:
        """The oldest of too many goes: the newest may be the agent that has just come back."""
        awaited = self._by_node.setdefault(node, [])
        awaited.append(call)
        if len(awaited) > MOST_AWAITED:
            text = f"{len(awaited)} streams of node {node!r} wait for their Hello: the oldest ends"
            awaited[0].crowd_out(text)

    def remove(self, call: GreetingCall, node: str) -> None:
        awaited = self._by_node.get(node, [])
        if call in awaited:
            awaited.remove(call)
        if not awaited:
            self._by_node.pop(node, None)

    def __iter__(self) -> Iterator[GreetingCall]:
        return chain.from_iterable(list(self._by_node.values()))
