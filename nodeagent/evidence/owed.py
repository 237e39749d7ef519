"""What happened once and is owed to the aggregator until it acknowledges: clearings and losses.

Both leave with the acknowledgement of a message that carried them; until then every snapshot
carries them again. A clearing told twice changes nothing. A loss told twice may be counted twice,
which is the right way to err.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from nodeagent.model import Clearing, Loss

#: More signs than this without one acknowledgement: the oldest go, and that is said.
LIMIT = 256


@dataclass(slots=True)
class _Owed:
    item: Clearing | Loss
    carried_by: int | None = None


@dataclass(slots=True)
class Owed:
    """The clearings and losses that no aggregator has acknowledged yet."""

    _clearings: dict[tuple[str, str, str], _Owed] = field(default_factory=dict)
    _losses: list[_Owed] = field(default_factory=list)

    def clear(self, clearing: Clearing) -> None:
        """Owe this sign. The same one again is told again: it may have a new fault to end."""
        key = (clearing.code, clearing.component, clearing.how)
        self._clearings.pop(key, None)
        self._clearings[key] = _Owed(clearing)
        if len(self._clearings) > LIMIT:
            del self._clearings[next(iter(self._clearings))]
            self.lose(Loss("latch", 1, "more clearings than fit while none was acknowledged"))

    def lose(self, loss: Loss) -> None:
        """Owe this loss, added to what was lost of the same source and not told yet."""
        for owed in self._losses:
            before = owed.item
            if isinstance(before, Loss) and before.source == loss.source:
                if owed.carried_by is not None and len(self._losses) < LIMIT:
                    continue
                known = bool(before.records and loss.records)
                records = before.records + loss.records if known else 0
                owed.item = Loss(loss.source, records, loss.message)
                owed.carried_by = None
                return
        self._losses.append(_Owed(loss))

    @property
    def clearings(self) -> list[Clearing]:
        return [o.item for o in self._clearings.values() if isinstance(o.item, Clearing)]

    @property
    def losses(self) -> list[Loss]:
        return [o.item for o in self._losses if isinstance(o.item, Loss)]

    @property
    def untold(self) -> bool:
        """Whether something was in no message yet."""
        if not (self._clearings or self._losses):
            return False
        return any(owed.carried_by is None for owed in self._all())

    def carry(self, seq: int, *, everything: bool) -> tuple[list[Clearing], list[Loss]]:
        """What message ``seq`` shall carry: all that is owed, or what no message carried yet."""
        clearings: list[Clearing] = []
        losses: list[Loss] = []
        for owed in self._all():
            if not everything and owed.carried_by is not None:
                continue
            owed.carried_by = seq
            if isinstance(owed.item, Clearing):
                clearings.append(owed.item)
            else:
                losses.append(owed.item)
        return clearings, losses

    def acknowledged(self, seq: int) -> bool:
        """Let go of what messages up to ``seq`` carried; whether anything left."""

        def still(owed: _Owed) -> bool:
            return owed.carried_by is None or owed.carried_by > seq

        before = len(self._clearings) + len(self._losses)
        self._clearings = {key: owed for key, owed in self._clearings.items() if still(owed)}
        self._losses = [owed for owed in self._losses if still(owed)]
        return len(self._clearings) + len(self._losses) < before

    def _all(self) -> Iterable[_Owed]:
        yield from self._clearings.values()
        yield from self._losses
