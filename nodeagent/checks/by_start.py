"""Which log checks a kernel record is given to: by its first four bytes, looked up once.

Nearly all records concern no check. To ask each of them costs a call; one lookup for all does not
grow with their number.
"""

from collections.abc import Mapping

from nodeagent.checks.base import LogCheck, SelectiveLogCheck

#: Checks with their names, in the order in which they are asked.
Named = tuple[tuple[str, LogCheck], ...]


class ChecksByStart:
    """The checks, by the first four bytes of the records that they want.

    A check that is no SelectiveLogCheck is given every record.
    """

    def __init__(self, checks: Mapping[str, LogCheck]) -> None:
        starts = {
            start
            for check in checks.values()
            if isinstance(check, SelectiveLogCheck)
            for start in check.first
        }
        self._others = _wanting(None, checks)
        self._by_start = {start: _wanting(start, checks) for start in starts}

    def of(self, text: bytes) -> Named:
        """The checks that want a record with this text."""
        return self._by_start.get(text[:4], self._others)


def _wanting(start: bytes | None, checks: Mapping[str, LogCheck]) -> Named:
    return tuple(
        (name, check)
        for name, check in checks.items()
        if not isinstance(check, SelectiveLogCheck) or start in check.first
    )
