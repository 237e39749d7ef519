"""One POST: its body, its signature, and what an answer to it means. Pure.

A receiver recomputes HMAC-SHA256 over "TIMESTAMP.BODY" with the shared secret; docs/alerts.md.
"""

import enum
import hashlib
import hmac
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from aggregator.runtime.backoff import Backoff

SIGNATURE = "X-Sickbay-Signature"
TIMESTAMP = "X-Sickbay-Timestamp"
DELIVERY = "X-Sickbay-Delivery"
BODY_VERSION = 1

#: Seconds. A receiver may request a delay, but not an endless one.
MOST_RETRY_AFTER = 3600.0
#: Of the 4xx, those that mean "not now" and not "never".
_NOT_NOW = frozenset({408, 425, 429})


_BACKOFF = Backoff(first=1.0, most=900.0)


@dataclass(frozen=True, slots=True)
class Retry:
    """``give_up``: an alert is dropped this number of seconds after its event."""

    backoff: Backoff = _BACKOFF
    give_up: float = 7 * 86400.0

    def pause(self, attempts: int, rng: random.Random) -> float:
        """How long to wait after ``attempts`` that failed (1 or more)."""
        return self.backoff.pause(attempts, rng)


class Delivery(enum.Enum):
    """The meaning of an answer: delivered, try again, or never try this one again."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The outcome of a POST. ``retry_after`` is in seconds, where the receiver named it."""

    verdict: Delivery
    because: str
    retry_after: float | None = None


def body(delivery: str, attempt: int, alerts: Sequence[Mapping[str, Any]]) -> bytes:
    """The JSON document of docs/alerts.md. ``delivery`` is its id."""
    document = {
        "version": BODY_VERSION,
        "source": "sickbay",
        "delivery": {"id": delivery, "attempt": attempt},
        "alerts": alerts,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def headers(ident: str, content: bytes, secret: bytes, now: float) -> dict[str, str]:
    """The headers by which a receiver trusts the body, refuses an old one, and accepts it only
    once.
    """
    timestamp = str(int(now))
    digest = hmac.new(secret, timestamp.encode() + b"." + content, hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/json",
        "User-Agent": "sickbay-aggregator",
        SIGNATURE: f"sha256={digest}",
        TIMESTAMP: timestamp,
        DELIVERY: ident,
    }


def classify_response(status: int, given: Mapping[str, str], now: float) -> WebhookResponse:
    """A 2xx accepts it, most 4xx refuse it for good, and any other status is tried again."""
    if 200 <= status < 300:
        return WebhookResponse(Delivery.DELIVERED, f"HTTP {status}")
    if 400 <= status < 500 and status not in _NOT_NOW:
        return WebhookResponse(Delivery.DROP, f"HTTP {status}")
    because = f"HTTP {status}"
    if status // 100 == 3:
        because += ": it redirects, which is not followed; configure where it points to"
    return WebhookResponse(Delivery.RETRY, because, retry_after(given.get("Retry-After", ""), now))


def retry_after(text: str, now: float) -> float | None:
    """Seconds of "120" or of an HTTP date, or None for any other text."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MOST_RETRY_AFTER)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the year 99999999999
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max(0.0, when.timestamp() - now), MOST_RETRY_AFTER)
