"""Slack, by an incoming webhook with Block Kit blocks.

Limits: https://docs.slack.dev/reference/block-kit/blocks (50 blocks; header 150 characters; text of
a section 3,000) and https://docs.slack.dev/messaging/formatting-message-text (escapes).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.alerts.http_channel import PLAIN, HttpOptions
from aggregator.alerts.message import Message, digest, headline, link, links, next_steps
from aggregator.alerts.templates import BUILT_IN, MessageTemplate, TemplateOptions
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import OrdinaryPath

_MOST_HEADER = 150
_MOST_SECTION = 3_000
#: Lines that are written out: far below 50 blocks, and as much as a person reads.
_MOST_LINES = 20
_MOST_LINE = 500
_MOST_TEMPLATE = 10 * _MOST_SECTION


@dataclass(frozen=True, slots=True)
class SlackOptions(SectionDataclass):
    """``url_file`` holds the webhook's URL, which is a secret."""

    url_file: OrdinaryPath
    """Its content is the URL of the incoming webhook."""
    template: TemplateOptions = BUILT_IN
    http: HttpOptions = PLAIN


def render(message: Message, template: MessageTemplate) -> Mapping[str, Any]:
    """The payload of the webhook."""
    own = template.title(message)
    title = own or headline(message, _MOST_HEADER)
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": title[:_MOST_HEADER]}}
    ]
    written = template.text(message)
    if written:
        text = written[:_MOST_TEMPLATE]
        starts = range(0, len(text), _MOST_SECTION)
        blocks += [_section("mrkdwn", text[i : i + _MOST_SECTION]) for i in starts]
    else:
        lines = digest(message, most=_MOST_LINE)
        blocks += [_section("plain_text", line.marked) for line in lines[:_MOST_LINES]]
        if len(lines) > _MOST_LINES:
            blocks.append(_section("plain_text", f"and {len(lines) - _MOST_LINES} more"))
        blocks += [_section("plain_text", f"To do: {one}") for one in next_steps(message)]
    url = link(message)
    if url:
        blocks.append(_section("mrkdwn", f"<{url}|status page>"))
    shown = [f"<{one}|{one.partition('#')[2] or 'documentation'}>" for one in links(message)]
    if shown:
        blocks.append(_section("mrkdwn", f"What to do: {', '.join(shown)}"))
    # The values in a template's title are escaped already.
    return {"text": own or escape(title), "blocks": blocks}


def _section(kind: str, text: str) -> dict[str, Any]:
    """Of a plain text Slack makes no links, mentions or formats."""
    return {"type": "section", "text": {"type": kind, "text": text}}


def escape(text: str) -> str:
    """Text without Slack's own marks: mentions and links begin with "<", and a zero-width blank
    keeps "*bold*" and "`code`" as they are.
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\u200b{char}" if char in "*_~`" else char for char in escaped)
