"""Events that happened once, kept for the aggregator until it acknowledges them: clearings, losses,
and components that are gone.

All leave with the acknowledgement of a message that carried them; until then every snapshot carries
them again. A clearing that is reported twice has no further effect, nor has a component that is
gone. A loss that is reported twice may be counted twice, which is the right way to err.
"""

from collections.abc import Iterable
from dataclasses import field
from typing import Generic, TypeVar

from nodeagent.dataclass import dataclass
from nodeagent.model import Clearing, Gone, Loss
from sickbay.v1 import limits

#: Of more signs than this without one acknowledgement the oldest are dropped, which is reported.
LIMIT = limits.MAX_CLEARED
#: Losses that wait at most: of one source they are added up.
_MOST_LOSSES = 64

Item = TypeVar("Item", Clearing, Loss, Gone)


@dataclass(slots=True)
class _Owed(Generic[Item]):
    item: Item
    carried_by: int | None = None
    #: Of a component that is gone: it was other than ok in its past, so that a quarantine may be
    #: based on it.
    matters: bool = False

    def is_due(self, *, everything: bool) -> bool:
        return everything or self.carried_by is None

    def is_after(self, seq: int) -> bool:
        """Whether no message up to ``seq`` was the last that carried it."""
        return self.carried_by is None or self.carried_by > seq


@dataclass(slots=True)
class UnackedEvents:
    """The clearings, losses and vanished components that no aggregator has acknowledged yet."""

    _clearings: dict[tuple[str, str, str], _Owed[Clearing]] = field(default_factory=dict)
    _losses: list[_Owed[Loss]] = field(default_factory=list)
    _gone: dict[tuple[str, str], _Owed[Gone]] = field(default_factory=dict)
    _clearing_bytes: int = 0
    _gone_bytes: int = 0

    def clear(self, clearing: Clearing) -> None:
        """Owe this sign. The same sign is sent again: it may have a new fault to end."""
        key = (clearing.code, clearing.component, clearing.how)
        if self._clearings.pop(key, None) is not None:
            self._clearing_bytes -= _size(key)
        self._clearings[key] = _Owed(clearing)
        self._clearing_bytes += _size(key)
        while len(self._clearings) > LIMIT or self._clearing_bytes > limits.MAX_SIGNS_BYTES:
            oldest = next(iter(self._clearings))
            del self._clearings[oldest]
            self._clearing_bytes -= _size(oldest)
            self.add_loss(
                Loss("latch", 1, "more clearings than fit while no message was acknowledged")
            )

    def take_gone(self, gone: Gone, *, matters: bool) -> None:
        """Owe that a component is there no more. If there are too many, those that never failed are
        dropped first, because no quarantine can be based on them.
        """
        key = (gone.check, gone.component)
        self.drop_gone(key)
        self._gone[key] = _Owed(gone, matters=matters)
        self._gone_bytes += _size(key)
        while len(self._gone) > limits.MAX_GONE or self._gone_bytes > limits.MAX_SIGNS_BYTES:
            idle = (key for key, unacked in self._gone.items() if not unacked.matters)
            least = next(idle, None)
            if least is None:
                least = next(iter(self._gone))
                self.add_loss(Loss("latch", 1, "more components vanished than can be remembered"))
            self.drop_gone(least)

    def drop_gone(self, key: tuple[str, str]) -> None:
        """The component (check, component) is there again, so its loss need not be reported."""
        if self._gone.pop(key, None) is not None:
            self._gone_bytes -= _size(key)

    def add_loss(self, loss: Loss) -> None:
        """Owe this loss, added to the losses of the same source that were not sent yet."""
        for unacked in self._losses:
            before = unacked.item
            if before.source == loss.source:
                if unacked.carried_by is not None and len(self._losses) < _MOST_LOSSES:
                    continue
                known = bool(before.records and loss.records)
                records = min(before.records + loss.records, limits.MAX_COUNT) if known else 0
                unacked.item = Loss(loss.source, records, loss.message)
                unacked.carried_by = None
                return
        self._losses.append(_Owed(loss))
        del self._losses[:-_MOST_LOSSES]

    @property
    def clearings(self) -> list[Clearing]:
        return [unacked.item for unacked in self._clearings.values()]

    @property
    def losses(self) -> list[Loss]:
        return [unacked.item for unacked in self._losses]

    @property
    def gone(self) -> list[tuple[Gone, bool]]:
        """Components that are there no more, each with whether a quarantine may be based on it."""
        return [(unacked.item, unacked.matters) for unacked in self._gone.values()]

    @property
    def has_unsent(self) -> bool:
        """Whether an event was in no message yet."""
        if not (self._clearings or self._losses or self._gone):
            return False
        return any(unacked.is_due(everything=False) for unacked in self._all())

    def carry(self, seq: int, *, everything: bool) -> tuple[list[Clearing], list[Loss], list[Gone]]:
        """The events for message ``seq``: all, or those that no message carried yet."""
        clearings = [
            unacked for unacked in self._clearings.values() if unacked.is_due(everything=everything)
        ]
        losses = [unacked for unacked in self._losses if unacked.is_due(everything=everything)]
        gone = [unacked for unacked in self._gone.values() if unacked.is_due(everything=everything)]
        carried: list[_Owed[Clearing] | _Owed[Loss] | _Owed[Gone]] = [*clearings, *losses, *gone]
        for unacked in carried:
            unacked.carried_by = seq
        return (
            [one.item for one in clearings],
            [one.item for one in losses],
            [one.item for one in gone],
        )

    def acknowledged(self, seq: int) -> bool:
        """Drop the events that messages up to ``seq`` carried; whether there were any."""
        before = sum(1 for _ in self._all())
        self._clearings = {
            k: unacked for k, unacked in self._clearings.items() if unacked.is_after(seq)
        }
        self._losses = [unacked for unacked in self._losses if unacked.is_after(seq)]
        self._gone = {key: unacked for key, unacked in self._gone.items() if unacked.is_after(seq)}
        self._clearing_bytes = sum(map(_size, self._clearings))
        self._gone_bytes = sum(map(_size, self._gone))
        return sum(1 for _ in self._all()) < before

    def _all(self) -> Iterable[_Owed[Clearing] | _Owed[Loss] | _Owed[Gone]]:
        yield from self._clearings.values()
        yield from self._losses
        yield from self._gone.values()


def _size(names: tuple[str, ...]) -> int:
    """Bytes that a sign of these names takes in a message."""
    return 32 + sum(len(name) if name.isascii() else len(name.encode()) for name in names)
