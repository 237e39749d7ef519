"""Query parameters: declared once, so that documentation, parsing and refusals agree."""

import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


class RequestProblem(Exception):
    """Why a request is not answered: the HTTP status, the problem, and the next step."""

    def __init__(self, status: int, error: str, hint: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.hint = hint


class BadQuery(RequestProblem):
    """An invalid parameter; ``hint`` gives the expected form."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(400, error, hint)


class Form(enum.Enum):
    """The form of a parameter."""

    TEXT = "text"
    WHOLE = "whole"
    TIME = "time"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter. ``default`` is its value when it is absent; ``most`` bounds a number, and
    ``choices`` are the values of a choice.
    """

    name: str
    form: Form
    text: str
    default: str | int | float
    most: int = 0
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """As OpenAPI has it."""
        match self.form:
            case Form.WHOLE:
                return {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": self.most,
                    "default": self.default,
                }
            case Form.CHOICE:
                return {"type": "string", "enum": list(self.choices)}
            case _:
                return {"type": "string"}

    def read(self, text: str) -> str | int | float:
        """The value, or BadQuery."""
        match self.form:
            case Form.WHOLE:
                if text.isdecimal() and len(text) < 10 and 1 <= int(text) <= self.most:
                    return int(text)
                expected = f"a whole number from 1 to {self.most}"
            case Form.TIME:
                at = _time(text)
                if at is not None:
                    return at
                expected = "seconds since the epoch, or RFC 3339 such as 2026-01-31T03:14:00Z"
            case Form.CHOICE:
                if text in self.choices:
                    return text
                expected = "one of " + ", ".join(self.choices)
            case Form.TEXT:
                return text
        raise BadQuery(f'{self.name}: "{text[:80]}" is not understood', f"expected {expected}")


def read_query(params: tuple[Param, ...], query: Mapping[str, str]) -> dict[str, Any]:
    """Every parameter's value. Raises BadQuery for an unknown one too: a typo must not pass."""
    known = {param.name: param for param in params}
    names = [name for name, _ in query.items()]  # a MultiDict iterates over each name once
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else _known(known)
            raise BadQuery(f'there is no parameter "{name[:80]}" here', hint)
        if names.count(name) > 1:
            raise BadQuery(f'"{name}" is given more than once', "expected it once")
    return {
        name: param.read(query[name]) if query.get(name) else param.default
        for name, param in known.items()
    }


def _known(names: Mapping[str, Param]) -> str:
    return "expected " + ", ".join(names) if names else "it takes none"


def _time(text: str) -> float | None:
    try:
        at = float(text)
    except ValueError:
        try:
            found = dt.datetime.fromisoformat(text)
        except ValueError:
            return None
        aware = found if found.tzinfo else found.replace(tzinfo=dt.UTC)
        return aware.timestamp()
    return at if 0 <= at < 1e11 else None
