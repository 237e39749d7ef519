"""A neutral alert as a row of the outbox."""

import json
from dataclasses import asdict

from aggregator.alerts.alert import Alert, AlertState, Ending
from aggregator.events import kind_named


def encode_alert(alert: Alert) -> str:
    return json.dumps(asdict(alert))


def decode_alert(text: str) -> Alert:
    """The alert, which an earlier version may have written."""
    data = json.loads(text)
    kind = kind_named(data["kind"])
    renamed = {} if kind is None else {"kind": kind.value}
    ending = data.get("ending")
    return Alert(
        **{
            **data,
            **renamed,
            "nodes": tuple(data["nodes"]),
            "state": AlertState(data.get("state", AlertState.NOTICE)),
            "ending": Ending(**ending) if ending else None,
        }
    )
