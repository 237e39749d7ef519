"""The measurements that one stream has sent, and the message with the changes. Pure."""

from collections.abc import Sequence

from nodeagent.evidence.bounds import cut, identifier
from nodeagent.sources.measurements import Measured
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb

#: Seconds between two messages.
EVERY = 60.0


class MeasurementEncoder:
    """Numbers the series of one stream, and sends values only when they change."""

    def __init__(self) -> None:
        #: By measure, component and model: the number, and the value that was sent; None: absent.
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._sent: list[int | None] = []

    def message(self, current: Sequence[Measured]) -> pb.AgentMessage | None:
        """The changes since the message before; None where the node has never measured anything."""
        changes = pb.Measurements()
        present = set()
        for one in current:
            key = (one.measure, one.component, one.model)
            number = self._numbers.get(key)
            if number is None:
                if len(self._sent) >= limits.MAX_SERIES:
                    continue
                number = self._numbers[key] = len(self._sent)
                self._sent.append(None)
                changes.series.add(
                    measure=identifier(one.measure),
                    component=cut(one.component, limits.MAX_NAME),
                    model=cut(one.model, limits.MAX_NAME),
                )
            present.add(number)
            if self._sent[number] != one.value:
                self._sent[number] = one.value
                changes.numbers.append(number)
                changes.values.append(one.value)
        for number, value in enumerate(self._sent):
            if value is not None and number not in present:
                self._sent[number] = None
                changes.absent.append(number)
        return pb.AgentMessage(measurements=changes) if self._sent else None
