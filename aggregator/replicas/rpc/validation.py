"""Fields of messages between replicas: received values are checked and bounded, never repaired."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence

from aggregator.health.model import Status

#: Of one message and of one node; our own messages stay far below.
MAX_NODES = 2_000
MAX_SEEN = 1_000
MAX_ASSIGNED = 64
MAX_SIGNS = 1_000
MAX_CHECKS = 500
MAX_SUSPECTS = 1_000
MAX_CAUSES = 1_000
#: Characters.
MAX_NAME = 512
MAX_COMPONENT = 4_096
MAX_TEXT = 8_000
#: Ten years (seconds).
MAX_AGE = 10 * 365 * 86_400.0

_STATUS = {int(found): found for found in Status}


class InvalidReport(ValueError):
    """A message that no replica of ours sends. The text names the field."""


def bounded(field: str, items: Sequence[object] | Mapping[str, str], most: int) -> None:
    if len(items) > most:
        raise InvalidReport(f"{field}: {len(items)} of them, more than {most}")


def name(field: str, text: str) -> str:
    if not text:
        raise InvalidReport(f"{field}: empty")
    return sys.intern(short(field, text))  # many nodes send the same


def short(field: str, text: str) -> str:
    if len(text) > MAX_NAME:
        raise InvalidReport(f"{field}: longer than {MAX_NAME} characters")
    return text


def names(field: str, texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(name(field, one) for one in texts)


def component(text: str) -> str:
    if len(text) > MAX_COMPONENT:
        raise InvalidReport(f"component: longer than {MAX_COMPONENT} characters")
    return sys.intern(text)


def text(field: str, value: str) -> str:
    if len(value) > MAX_TEXT:
        raise InvalidReport(f"{field}: too long")
    return value


def age(field: str, age: float) -> float:
    if not math.isfinite(age) or abs(age) > MAX_AGE:
        raise InvalidReport(f"{field}: no age")
    return age


def status(number: int) -> Status:
    found = _STATUS.get(number)
    if found is None:
        raise InvalidReport(f"status: {number} is none")
    return found
