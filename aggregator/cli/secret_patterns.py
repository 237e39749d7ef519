"""Takes out of texts what looks like a secret, before they leave the site. Pure.

sickbay itself puts no secret into what it shows, so that this is a second line: messages come from
drivers, programs of a site and people, any of which may quote one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "***"

#: Each pattern, and what replaces it.
_PATTERNS: Sequence[tuple["re.Pattern[str]", str]] = (
    # PEM keys, whole, and what is left of one that was cut.
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)"), MARK),
    # JSON web tokens, as those of service accounts.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"), MARK),
    # The user's part of a URL.
    (re.compile(r"(?<=://)[^/\s:@]+(?::[^/\s@]*)?@"), f"{MARK}@"),
    # Authorization: Bearer ..., and Basic.
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {MARK}"),
    # password=..., "api_key": "..."; without what is before the word, and with a bound after it: an
    # unbounded one takes minutes for a long line of one word.
    (
        re.compile(
            r"(?i)((?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key)"
            r"[\w-]{0,64}[\"']?\s{0,64}[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s\"',;&]{3,})"
        ),
        rf"\1{MARK}",
    ),
    # Keys of AWS, GitHub and Slack by their own beginnings.
    (
        re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bxox[abprs]-[\w-]{10,}"),
        MARK,
    ),
)


def without_secrets(text: str) -> str:
    """The text with `MARK` in the place of what looks like a secret."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def scrubbed(value: Any) -> Any:
    """The same for every text of plain JSON values, keys included."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {without_secrets(str(key)): scrubbed(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(one) for one in value]
    return value
