"""Records what the agents told, as far as it can change a judgement: for `policy replay`.

One row where something has changed, none for what is well and stays so. It decides nothing and is
asked after the judgement: what it hands on waits in the history's own bounded queue.

The first word of a node that this process hears is its *base*: what it does not name was well. From
then on a row holds what has changed since the row before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aggregator.health.model import Component, Delta, Fault, Hello, Snapshot, Status
from aggregator.history import testimony
from aggregator.sharing import NOTHING

#: Rows by the names of what they hold. The values stand in the database.
HELLO, BASE, CHANGE, LEFT = "hello", "base", "change", "left"

#: So many times each occurrence of a fault is a row; then growth by half is, or a minute's passing.
_EACH = 8
_EVERY = 60.0
#: Of one node: components and faults beyond these are not recorded.
_MOST = 256
#: Of one node: so many are remembered as ill, the latest; names may come and go for months.
_MOST_KEPT = 4096
#: Nodes. Fleets that grow and shrink name many: who was heard of first is forgotten first.
_MOST_NODES = 50_000

_T = TypeVar("_T")
Put = Callable[[str, str, Mapping[str, Any]], None]


@dataclass(slots=True)
class _Node:
    """What was recorded of a node: nothing of what is well. ``mute``: greeted, and no more yet.

    The mappings are never changed, but replaced: nearly all nodes have one empty one.
    """

    hello: Hello
    mute: bool = True
    told: bool = False
    at: float = 0.0
    ill: Mapping[tuple[str, str], tuple[Status, str]] = field(default_factory=lambda: NOTHING)
    faults: Mapping[tuple[str, str], tuple[Fault, float]] = field(default_factory=lambda: NOTHING)
    left: bool = False


class Recorder:
    """A `Witness`. ``put`` takes (node, kind, body) and keeps it, some time."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._nodes: dict[str, _Node] = {}

    def greeted(self, hello: Hello) -> None:
        """A new stream of the node. Another boot, epoch or driver is a row."""
        greeting = testimony.of_hello(hello)
        known = self._nodes.get(hello.node)
        if known is None:
            while len(self._nodes) >= _MOST_NODES:
                del self._nodes[next(iter(self._nodes))]
            known = self._nodes[hello.node] = _Node(hello)
        elif testimony.of_hello(known.hello) == greeting and not known.left:
            return
        known.hello, known.left, known.mute = hello, False, True
        self._put(hello.node, HELLO, greeting)

    def told(self, node: str, told: Snapshot | Delta, at: float) -> None:
        """The node's agent said this ``at`` monotonic seconds, and it has been judged."""
        known = self._nodes.get(node)
        if known is None:
            return
        components = [one for one in told.components if _is_news(one, known)][:_MOST]
        faults = [one for one in told.faults if _is_told_anew(one, known, at)][:_MOST]
        gone = told.gone if isinstance(told, Delta) else ()
        body = testimony.of_told(components, faults, told.cleared, gone, at)
        kind = CHANGE if known.told else BASE
        if body or known.mute:
            self._put(node, kind, body)
        _remember(known, told, components, faults, at)

    def anew(self, hello: Hello, told: Snapshot, at: float) -> None:
        """A base for what comes, whatever was recorded of the node before."""
        self._nodes.pop(hello.node, None)
        self.greeted(hello)
        self.told(hello.node, told, at)

    def left(self, node: str) -> None:
        """Its stream has ended. A row where something may be recovering: silence delays that."""
        known = self._nodes.get(node)
        if known is not None and (known.ill or known.faults) and not known.left:
            known.left = True
            self._put(node, LEFT, {})


def _is_news(one: Component, known: _Node) -> bool:
    """Whether it is other than recorded; also where it was so for a moment between two messages."""
    before = known.ill.get(one.key)
    if one.status is Status.OK:
        moved = len(one.recent) > 1 and (not known.told or one.since >= known.at)
        return before is not None or moved
    return before != (one.status, one.reason) or one.since >= known.at


def _is_told_anew(one: Fault, known: _Node, at: float) -> bool:
    recorded = known.faults.get(one.key)
    if recorded is None:
        return True
    before, when = recorded
    if one.count == before.count and one.details == before.details:
        return one.historical != before.historical or one.boot_id != before.boot_id
    return (
        one.count <= _EACH
        or one.count >= before.count * 1.5
        or at - when >= _EVERY
        or one.details.get("verdict") != before.details.get("verdict")
        or one.details.get("error_status") != before.details.get("error_status")
    )


def _remember(
    known: _Node,
    told: Snapshot | Delta,
    components: list[Component],
    faults: list[Fault],
    at: float,
) -> None:
    known.told, known.at, known.mute = True, at, False
    gone = told.gone if isinstance(told, Delta) else ()
    if components or gone:
        ill = dict(known.ill)
        for one in components:
            if one.status is Status.OK:
                ill.pop(one.key, None)
            else:
                ill[one.key] = (one.status, one.reason)
        for key in gone:
            ill.pop(key, None)
        known.ill = _latest(ill)
    if faults or told.cleared:
        latched = {**known.faults, **{fault.key: (fault, at) for fault in faults}}
        for sign in told.cleared:
            for key in [key for key in latched if key[1] == sign.component]:
                if sign.code in ("", key[0]):
                    del latched[key]
        known.faults = _latest(latched)


def _latest(kept: dict[tuple[str, str], _T]) -> Mapping[tuple[str, str], _T]:
    if len(kept) <= _MOST_KEPT:
        return kept or NOTHING
    return dict([*kept.items()][-_MOST_KEPT:])
