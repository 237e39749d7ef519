"""Microsoft Teams, by a workflow's webhook with an Adaptive Card.

https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/add-incoming-webhook
(a message of at most 28 KB) and https://adaptivecards.io/schemas/adaptive-card.json, version 1.4.
Text runs show Markdown as it is; text blocks would render it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.alerts.alert import AlertState
from aggregator.alerts.http_channel import PLAIN, HttpOptions, compact_json
from aggregator.alerts.message import Message, digest, headline, link, links, next_steps
from aggregator.alerts.templates import BUILT_IN, MessageTemplate, TemplateOptions
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import OrdinaryPath
from aggregator.runtime.text import truncate

_MOST_TITLE = 200
_MOST_LINE = 500
_MOST_LINES = 20
#: Characters of the text of a template.
_MOST_TEMPLATE = 6_000
#: Bytes of a message. JSON makes a hundred of a short line, and up to twelve of a character; the
#: text is cut by halves until it fits, and the last half is one line or 93 characters.
MOST_BYTES = 28_000
_MOST_HALVINGS = 6
_COLOUR = {"critical": "attention", "warning": "warning", "info": "default"}


@dataclass(frozen=True, slots=True)
class TeamsOptions(SectionDataclass):
    """``url_file`` holds the workflow's URL, which is a secret."""

    url_file: OrdinaryPath
    """Its content is the workflow's URL."""
    template: TemplateOptions = BUILT_IN
    http: HttpOptions = PLAIN


def render(message: Message, template: MessageTemplate) -> Mapping[str, Any]:
    """The workflow's message with one card: as much of its text as Teams takes."""
    title = template.title(message) or headline(message, _MOST_TITLE)
    colour = "good" if message.state is AlertState.RESOLVED else _COLOUR[message.severity]
    written = template.text(message)
    lines = [] if written else [line.marked for line in digest(message, most=_MOST_LINE)]
    for halvings in range(_MOST_HALVINGS + 1):
        if written:
            shown = truncate(written, _MOST_TEMPLATE >> halvings).split("\n")
        else:
            most = max(1, _MOST_LINES >> halvings)
            shown = lines[:most]
            if len(lines) > most:
                shown.append(f"and {len(lines) - most} more")
            shown += [f"To do: {one}" for one in next_steps(message)]
        items = [_text(title[:_MOST_TITLE], colour, bold=True)]
        document = _document([*items, *(_text(line, "default") for line in shown)], message)
        if len(compact_json(document)) <= MOST_BYTES:
            break
    return document


def _document(items: Sequence[Mapping[str, Any]], message: Message) -> Mapping[str, Any]:
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": items,
    }
    shown = {"Status page": link(message), "What to do": next(iter(links(message, 1)), "")}
    actions = [
        {"type": "Action.OpenUrl", "title": title, "url": url}
        for title, url in shown.items()
        if url
    ]
    if actions:
        card["actions"] = actions
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def _text(text: str, colour: str, *, bold: bool = False) -> dict[str, Any]:
    run: dict[str, Any] = {"type": "TextRun", "text": text or " ", "color": colour}
    if bold:
        run |= {"weight": "bolder", "size": "medium"}
    return {"type": "RichTextBlock", "inlines": [run]}
