"""The interface of a check. One file per check: a spec, a pure parse, a verdict.

A check reads through sources, reports what it saw and evaluates nothing: whether a disk matters is
the aggregator's policy. The scheduler runs it under its deadline and reports for it when it is late
(``unknown``, reason ``hung``). So a check needs no time-outs of its own beyond its source's.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from nodeagent.dataclass import dataclass
from nodeagent.model import Clearing, FaultSighting, Gone, Loss, Observation
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record


@dataclass(frozen=True, slots=True)
class Off:
    """The check has nothing to check on this machine ("no GPU"): shown, and no failure."""

    reason: str


#: The result of one look. An empty sequence means that there is no evidence.
Report = Sequence[Observation | FaultSighting | Clearing | Gone | Loss] | Off


class Check(Protocol):
    """A probe that is run at intervals."""

    async def run_check(self) -> Report:
        """Look once. A sick machine raises no exception: it is a verdict, or ``unknown``."""
        ...


class LogCheck(Protocol):
    """A check that reads kernel log records as they come; it is pure.

    It is given those whose first bytes are in ``first`` (all records, if b"" is); with ``of_pci``
    those of a PCI device's driver; and those in which the four bytes after a name and a colon are
    in ``after_name``.
    """

    first: frozenset[bytes]
    after_name: frozenset[bytes]
    of_pci: bool

    def read(self, record: Record) -> Sequence[FaultSighting | Observation | Clearing]: ...


class Kind(enum.Enum):
    """The kind of an option's value in the configuration file, and its type here."""

    DURATION = 'a duration such as "30s" or "10m"'  # float, seconds
    PERCENT = 'a percentage such as "95%"'  # float, 0 to 100
    SIZE = 'a size such as "1GiB"'  # int, bytes
    INTEGER = "a whole number"  # int
    FLAG = "true or false"  # bool
    TEXT = "a text"  # str
    TEXTS = "a list of texts"  # tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A setting under ``[checks.NAME]``. ``parse`` may narrow it further; it raises ValueError."""

    name: str
    kind: Kind
    default: Any
    help: str
    parse: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """A check before it is built: its name, its documentation, its settings.

    ``interval`` and ``deadline`` are in seconds; interval 0 is "as the kernel log comes".
    ``on`` is whether it runs where the configuration does not set it. ``sees``, ``source``,
    ``cost`` and ``blind_to`` are the row that ``sickbay-agent checks`` and the docs show.
    """

    name: str
    sees: str
    source: str
    cost: str
    blind_to: str
    build: Callable[[Sources, Mapping[str, Any]], Check | LogCheck]
    interval: float = 60.0
    deadline: float = 20.0
    options: tuple[Option, ...] = field(default=())
    on: bool = True
