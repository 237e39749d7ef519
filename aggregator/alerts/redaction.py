"""Secrets taken out of a receiver's answer, which may repeat the address or a key. Pure."""

from collections.abc import Iterable, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

MARK = "***"
#: Characters of a part of a URL that may be a secret by itself, such as a token in its path.
_LEAST_PART = 12
#: Characters of a secret's beginning that are hidden where an answer is cut inside of it.
_LEAST_BEGINNING = 4


def secrets_of(url: str, others: Iterable[str] = ()) -> Sequence[str]:
    """The secrets of a request: ``others``, the URL, its path, its query, and their
    parts, as sent and with their percent escapes decoded. The longest come first.
    """
    parts = urlsplit(url)
    whole = [url, parts.path if len(parts.path) > 1 else "", parts.query, parts.password or ""]
    small = [*parts.path.split("/"), *parts.query.split("&")]
    small += [value for _, value in parse_qsl(parts.query)]
    whole += [part for part in small if len(part) >= _LEAST_PART]
    found = {*whole, *(unquote(one) for one in whole), *others} - {""}
    return sorted(found, key=lambda one: (-len(one), one))


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """The text with `MARK` instead of each secret, and of the beginning of one at its end."""
    for secret in secrets:
        text = text.replace(secret, MARK)
    cut = max((_beginning(text, secret) for secret in secrets), default=0)
    return text[:-cut] + MARK if cut else text


def _beginning(text: str, secret: str) -> int:
    """Characters at the end of the text that begin the secret."""
    sizes = range(min(len(secret), len(text)), _LEAST_BEGINNING - 1, -1)
    return next((size for size in sizes if text.endswith(secret[:size])), 0)
