"""A neutral alert as a row of the outbox."""

import json
from dataclasses import asdict

import msgspec

from aggregator.alerts.alert import Alert

_ALERT = msgspec.json.Decoder(Alert)


def encode_alert(alert: Alert) -> str:
    return json.dumps(asdict(alert))


def decode_alert(text: str) -> Alert:
    """The alert of a row. Raises ValueError."""
    return _ALERT.decode(text)
