"""A message as plain text, for mails and for services without markup of ours. Pure."""

from collections.abc import Mapping

from aggregator.alerts.alert import rfc3339
from aggregator.alerts.message import Message, digest, link, links, next_steps
from aggregator.runtime.text import visible

_MOST_LINE = 1_000
_MOST_LINES = 200


def plain_text(message: Message) -> str:
    """The whole message: its alerts, the next steps, where it is, the links."""
    lines = digest(message, most=_MOST_LINE)
    parts = [line.marked for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        parts.append(f"and {len(lines) - _MOST_LINES} more")
    parts += [f"\nTo do: {one}" for one in next_steps(message)]
    place = _shown(message.labels)
    parts += ["", *place] if place else []
    first = min(alert.at for alert in message.alerts)
    parts += ["", f"since {rfc3339(first)}"]
    if url := link(message):
        parts += ["", url]
    if documents := links(message):
        parts += ["", f"What to do: {' '.join(documents)}"]
    return "\n".join(parts) + "\n"


def _shown(labels: Mapping[str, str]) -> list[str]:
    return [f"{visible(key, 100)}: {visible(value, 200)}" for key, value in sorted(labels.items())]
