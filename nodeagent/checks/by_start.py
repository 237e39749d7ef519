"""Which log checks a kernel record is given to: by its beginning, looked up once.

Nearly all records concern no check. Passing a record to each check costs a call; one lookup for all
does not grow with their number.
"""

from collections.abc import Mapping

from nodeagent.checks.base import LogCheck
from nodeagent.checks.line_pattern import START
from nodeagent.checks.loglines import names_pci_device, words_at

#: Checks with their names, in the order in which they get a record.
Named = tuple[tuple[str, LogCheck], ...]


class ChecksByStart:
    """The checks, by the beginnings of the records that they want."""

    def __init__(self, checks: Mapping[str, LogCheck]) -> None:
        self._checks = checks
        self._first = frozenset(start for check in checks.values() for start in check.first)
        self._shorter = sorted({len(start) for start in self._first} - {START})
        self._after_name = frozenset(each for check in checks.values() for each in check.after_name)
        self._of_pci = any(check.of_pci for check in checks.values())
        self._found: dict[tuple[tuple[bytes, ...], bytes, bool], Named] = {}

    def of(self, text: bytes) -> Named:
        """The checks that want a record with this text."""
        head = text[:START]
        starts: tuple[bytes, ...] = (head,) if head in self._first else ()
        if self._shorter:
            starts += tuple(text[:n] for n in self._shorter if text[:n] in self._first)
        words = b""
        of_pci = self._of_pci and names_pci_device(text)
        if not of_pci and self._after_name:
            at = words_at(text)
            words = text[at : at + 4]
            words = words if words in self._after_name else b""
        key = (starts, words, of_pci)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._wanting(*key)
        return found

    def _wanting(self, starts: tuple[bytes, ...], words: bytes, of_pci: bool) -> Named:  # noqa: FBT001  a key
        return tuple(
            (name, check)
            for name, check in self._checks.items()
            if not check.first.isdisjoint(starts)
            or words in check.after_name
            or (of_pci and check.of_pci)
        )
