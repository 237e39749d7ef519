"""PagerDuty, Events API v2: one incident for each delivery that announces alerts.

https://developer.pagerduty.com/docs/send-alert-event. The id of the delivery is the deduplication
key; the incident is resolved when the last alert of that delivery has ended. So one dead rack is
one page, and a later fault of the same rack is a page of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aggregator.alerts.alert import Alert, AlertState, rfc3339
from aggregator.alerts.http_channel import PLAIN, Exchange, HttpOptions, compact_json, post
from aggregator.alerts.message import Message, digest, headline, link, links, next_steps
from aggregator.alerts.templates import BUILT_IN, MessageTemplate, TemplateOptions
from aggregator.alerts.webhook import Delivery, WebhookResponse
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import HttpUrl, OrdinaryPath
from aggregator.runtime.secret_file import read_secret
from aggregator.runtime.text import visible

_MOST_SUMMARY = 1_024
_MOST_KEY = 255
_MOST_LINE = 500
_MOST_LINES = 50
_MOST_NODES = 100
_MOST_SOURCE = 255
_MOST_TEMPLATE = 10_000


@dataclass(frozen=True, slots=True)
class PagerDutyOptions(SectionDataclass):
    """``routing_key_file`` holds the integration key of the service."""

    routing_key_file: OrdinaryPath
    """Its content is the integration key."""
    url: HttpUrl = "https://events.pagerduty.com/v2/enqueue"
    """The Events API v2."""
    template: TemplateOptions = BUILT_IN
    http: HttpOptions = PLAIN


class PagerDutyReceiver:
    """Implements `Receiver`."""

    def __init__(self, options: PagerDutyOptions) -> None:
        self._options = options
        self._template = MessageTemplate(options.template)

    async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
        options = self._options
        secret = await exchange.thread.run(
            read_secret, options.routing_key_file, "routing_key_file"
        )
        key = secret.decode("ascii", "replace")
        events = await exchange.thread.run(render, message, key, self._template)
        answer = WebhookResponse(Delivery.DELIVERED, "no event")
        for event in events:
            answer = await post(
                exchange, options.url, compact_json(event), options.http, {}, secrets=(key,)
            )
            if answer.verdict is not Delivery.DELIVERED:
                return answer
        return answer


def render(
    message: Message, routing_key: str, template: MessageTemplate
) -> Sequence[Mapping[str, Any]]:
    """The events: one that triggers, and one for each incident that is over."""
    begun = tuple(one for one in message.alerts if one.state is not AlertState.RESOLVED)
    events: list[Mapping[str, Any]] = []
    if begun:
        events.append(_trigger(replace(message, alerts=begun), routing_key, template))
    over: dict[str, Alert] = {
        alert.ending.delivery or message.id: alert
        for alert in message.alerts
        if alert.ending is not None and not alert.ending.open
    }
    events += [
        {"routing_key": routing_key, "event_action": "resolve", "dedup_key": key[:_MOST_KEY]}
        for key in over
    ]
    return events


def _trigger(message: Message, routing_key: str, template: MessageTemplate) -> Mapping[str, Any]:
    lines = digest(message, most=_MOST_LINE)
    url = link(message)
    title = template.title(message) or headline(message, _MOST_SUMMARY)
    details: dict[str, Any] = {
        "alerts": [line.text for line in lines[:_MOST_LINES]],
        "left_out": max(0, len(lines) - _MOST_LINES),
        "nodes": [visible(node, _MOST_SOURCE) for node in message.nodes[:_MOST_NODES]],
        "node_count": len(message.nodes),
        "to_do": list(next_steps(message)),
        "documentation": list(links(message)),
    }
    if written := template.text(message)[:_MOST_TEMPLATE]:
        details["text"] = written
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "trigger",
        "dedup_key": message.id[:_MOST_KEY],
        "client": "sickbay",
        "payload": {
            "summary": title[:_MOST_SUMMARY],
            "source": visible(_source(message), _MOST_SOURCE),
            "severity": message.severity,
            "timestamp": rfc3339(min(alert.at for alert in message.alerts)),
            "class": message.alerts[0].kind,
            "custom_details": details,
        },
    }
    for name, label in (("component", "rack"), ("group", "pool")):
        if label in message.labels:
            event["payload"][name] = visible(message.labels[label], _MOST_SOURCE)
    shown = [{"href": url, "text": "status page"}] if url else []
    shown += [{"href": one, "text": "what to do"} for one in links(message)]
    if shown:
        event["links"] = shown
    if url:
        event["client_url"] = url
    return event


def _source(message: Message) -> str:
    return (message.nodes[0] if len(message.nodes) == 1 else "") or "sickbay"
