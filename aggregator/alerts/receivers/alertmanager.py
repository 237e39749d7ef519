"""Prometheus Alertmanager, API v2: an alert with labels, that ends under the same labels.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml (postableAlerts). An
Alertmanager keeps no alerts over a restart, so alerts that last are sent again now and then
(https://prometheus.io/docs/alerting/latest/clients/).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aggregator.alerts.alert import Alert, AlertState, rfc3339
from aggregator.alerts.http_channel import PLAIN, Exchange, HttpOptions, compact_json, post
from aggregator.alerts.message import Message, link, section
from aggregator.alerts.webhook import Delivery, WebhookResponse
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import HttpUrl
from aggregator.runtime.text import visible

#: Alerts in one request.
_MOST_IN_ONE = 500
_MOST_LABEL = 256
_MOST_TEXT = 1_000
#: Seconds after which Alertmanager itself ends an alert that is not sent again, and a notice.
LASTS = 86400.0
_NOTICE_LASTS = 900.0
_NOT_IN_WORD = re.compile(r"[^A-Za-z0-9]+")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class AlertmanagerOptions(SectionDataclass):
    """``url`` is Alertmanager's own, without /api/v2/alerts. Name each replica in a receiver of its
    own.
    """

    url: HttpUrl
    """Without ``/api/v2/alerts``."""
    http: HttpOptions = PLAIN


class AlertmanagerReceiver:
    """Implements `Receiver`."""

    def __init__(self, options: AlertmanagerOptions) -> None:
        self._url = f"{options.url.rstrip('/')}/api/v2/alerts"
        self._http = options.http

    async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
        alerts = render(message, exchange.wall())
        answer = WebhookResponse(Delivery.DELIVERED, "no alerts")
        for start in range(0, len(alerts), _MOST_IN_ONE):
            some = alerts[start : start + _MOST_IN_ONE]
            answer = await post(exchange, self._url, compact_json(some), self._http, {})
            if answer.verdict is not Delivery.DELIVERED:
                return answer
        return answer


def render(message: Message, now: float) -> Sequence[Mapping[str, Any]]:
    """The postable alerts. ``now`` is wall clock seconds."""
    return [_postable(replace(message, alerts=(alert,)), alert, now) for alert in message.alerts]


def _postable(message: Message, alert: Alert, now: float) -> dict[str, Any]:
    begun = alert.at
    if alert.ending is not None:
        # An end at or before the start is refused.
        over = max(alert.ending.at, begun + 0.001)
    else:
        over = now + (LASTS if alert.state is AlertState.FIRING else _NOTICE_LASTS)
        begun = min(begun, now)
    annotations = {
        "summary": visible(alert.summary, _MOST_TEXT),
        "runbook_url": section(message, alert) if message.documentation_url else "",
        "resolved": visible(alert.ending.summary, _MOST_TEXT) if alert.ending else "",
        **{_name(key): visible(value, _MOST_TEXT) for key, value in alert.details.items()},
        "description": visible(alert.advice, _MOST_TEXT) if alert.ending is None else "",
    }
    found = {
        "labels": _labels(alert),
        "annotations": {key: value for key, value in annotations.items() if value},
        "startsAt": rfc3339(begun),
        "endsAt": rfc3339(over),
    }
    url = link(message)
    return found | ({"generatorURL": url} if url else {})


def _labels(alert: Alert) -> dict[str, str]:
    """The labels that identify the alert: those that do not change until its end."""
    found = {_name(key): visible(value, _MOST_LABEL) for key, value in alert.labels.items()}
    found |= {
        "alertname": _alert_name(alert.kind),
        "severity": alert.severity,
        "node": visible(alert.node, _MOST_LABEL),
        "incident": visible(alert.incident, _MOST_LABEL),
        "sickbay_key": alert.key,
        "source": "sickbay",
    }
    return {key: value for key, value in found.items() if value}


def _alert_name(kind: str) -> str:
    """SickbayQuarantineCordoned of quarantine.cordoned, as alerts of rules are named."""
    words = _NOT_IN_WORD.split(f"sickbay.{kind}")
    return "".join(word[:1].upper() + word[1:] for word in words)


def _name(key: str) -> str:
    name = _NOT_IN_NAME.sub("_", key)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"
