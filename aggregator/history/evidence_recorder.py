"""Records the agents' evidence, as far as it can change an evaluation: for `policy replay`.

One row for each change, none for a component that is and stays healthy. It makes no decision and is
called after the evaluation: its rows wait in the history's own bounded queue.

The first message of a node that this process receives is its *base*: components that it does not
name were healthy. From then on a row holds the changes since the row before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aggregator.health.model import Component, Delta, Fault, Hello, Snapshot, Status
from aggregator.history import evidence_codec
from aggregator.runtime.interning import EMPTY

#: Row kinds, by the names of their content. The values are those in the database.
HELLO, BASE, CHANGE, LEFT = "hello", "base", "change", "left"

#: Up to this number the occurrences of a fault are a row each; then each growth by half, or minute.
_EACH = 8
_EVERY = 60.0
#: Of one node: components and faults beyond these are not recorded.
_MOST = 256
#: Of one node this number is remembered as failing, the latest; names may come and go for months.
_MOST_KEPT = 4096
#: Nodes. Fleets that grow and shrink name many: the node that was first named is forgotten first.
_MOST_NODES = 50_000

_T = TypeVar("_T")
Put = Callable[[str, str, Mapping[str, Any]], None]


@dataclass(slots=True)
class _Node:
    """The record of a node, without healthy components. ``mute``: greeted, and no message since.

    The mappings are never changed, only replaced: nearly all nodes share one empty mapping.
    """

    hello: Hello
    mute: bool = True
    reported: bool = False
    at: float = 0.0
    ill: Mapping[tuple[str, str], tuple[Status, str]] = field(default_factory=lambda: EMPTY)
    faults: Mapping[tuple[str, str], tuple[Fault, float]] = field(default_factory=lambda: EMPTY)
    left: bool = False


class EvidenceRecorder:
    """Implements `EvidenceRecording`. ``put`` takes (node, kind, body) and queues it."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._nodes: dict[str, _Node] = {}

    def record_hello(self, hello: Hello) -> None:
        """A new stream of the node. Another boot, epoch or driver is a row."""
        greeting = evidence_codec.of_hello(hello)
        known = self._nodes.get(hello.node)
        if known is None:
            while len(self._nodes) >= _MOST_NODES:
                del self._nodes[next(iter(self._nodes))]
            known = self._nodes[hello.node] = _Node(hello)
        elif evidence_codec.of_hello(known.hello) == greeting and not known.left:
            return
        known.hello, known.left, known.mute = hello, False, True
        self._put(hello.node, HELLO, greeting)

    def record_message(self, node: str, message: Snapshot | Delta, at: float) -> None:
        """Record a message that the agent sent ``at`` monotonic seconds, and that has been
        evaluated.
        """
        known = self._nodes.get(node)
        if known is None:
            return
        components = [one for one in message.components if _is_news(one, known)][:_MOST]
        faults = [one for one in message.faults if _is_new(one, known, at)][:_MOST]
        # Of a snapshot's losses only those recorded as failing: no others can matter.
        gone = message.gone if isinstance(message, Delta) else _known_ill(message.gone, known)
        body = evidence_codec.of_change(
            components, faults, message.cleared[:_MOST], gone[:_MOST], at
        )
        kind = CHANGE if known.reported else BASE
        if body or known.mute:
            self._put(node, kind, body)
        _remember(known, message, components, faults, at)

    def restart_node(self, hello: Hello, snapshot: Snapshot, at: float) -> None:
        """Begin again with a base, regardless of the earlier record of the node."""
        self._nodes.pop(hello.node, None)
        self.record_hello(hello)
        self.record_message(hello.node, snapshot, at)

    def forget_node(self, node: str) -> None:
        """Forget the node: its next messages are recorded from a greeting and a base."""
        self._nodes.pop(node, None)

    def record_disconnect(self, node: str) -> None:
        """Its stream has ended. A row where a fault may be recovering, because silence delays
        that.
        """
        known = self._nodes.get(node)
        if known is not None and (known.ill or known.faults) and not known.left:
            known.left = True
            self._put(node, LEFT, {})


def _known_ill(gone: Sequence[tuple[str, str]], known: _Node) -> tuple[tuple[str, str], ...]:
    return tuple(key for key in gone if key in known.ill or not known.reported)


def _is_news(one: Component, known: _Node) -> bool:
    """Whether it differs from the record; also where it differed for a moment between two
    messages.
    """
    before = known.ill.get(one.key) if known.ill else None
    if one.status is Status.OK:
        moved = len(one.recent) > 1 and (not known.reported or one.since >= known.at)
        return before is not None or moved
    return before != (one.status, one.reason) or one.since >= known.at


def _is_new(one: Fault, known: _Node, at: float) -> bool:
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
    message: Snapshot | Delta,
    components: list[Component],
    faults: list[Fault],
    at: float,
) -> None:
    known.reported, known.at, known.mute = True, at, False
    gone = message.gone if isinstance(message, Delta) else _known_ill(message.gone, known)
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
    if faults or message.cleared:
        latched = {**known.faults, **{fault.key: (fault, at) for fault in faults}}
        for sign in message.cleared:
            for key in [key for key in latched if key[1] == sign.component]:
                if sign.code in ("", key[0]):
                    del latched[key]
        known.faults = _latest(latched)


def _latest(kept: dict[tuple[str, str], _T]) -> Mapping[tuple[str, str], _T]:
    if len(kept) <= _MOST_KEPT:
        return kept or EMPTY
    return dict([*kept.items()][-_MOST_KEPT:])
