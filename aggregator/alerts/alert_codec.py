"""A neutral alert as a row of the outbox."""

import json
from dataclasses import asdict

from aggregator.alerts.alert import Alert, AlertState, Ending


def encode_alert(alert: Alert) -> str:
    return json.dumps(asdict(alert))


def decode_alert(text: str) -> Alert:
    """The alert of a row. Raises ValueError, KeyError and TypeError."""
    data = json.loads(text)
    ending = data.get("ending")
    return Alert(
        **{
            **data,
            "nodes": tuple(data["nodes"]),
            "state": AlertState(data["state"]),
            "ending": Ending(**ending) if ending else None,
        }
    )
