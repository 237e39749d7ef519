"""The events of log lines, as they stand in the code: literals under "event" in ``extra``."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


@cache
def log_events(program: str) -> Counter[str]:
    """How many log lines of this package have each event."""
    texts = (file.read_text("utf-8") for file in sorted((ROOT / program).rglob("*.py")))
    return Counter(
        event
        for text in texts
        if '"event"' in text  # most files have no such line, and need not be parsed
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        for event in _events(call)
    )


def _events(call: ast.Call) -> Iterator[str]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _LEVELS:
        return
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "event":
                    yield from _texts(value)


def _texts(value: ast.expr) -> Iterator[str]:
    """A literal, or both of ``A if ... else B``; a transition's kind is none."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from (*_texts(value.body), *_texts(value.orelse))
