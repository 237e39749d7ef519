"""docs/reference/events.md: every kind of event, with its severity."""

from collections.abc import Iterator

from aggregator.alerts.alert import DEFAULT_KINDS, SEVERITY
from aggregator.documentation import of_alert
from aggregator.events import EventKind
from release.reference.tables import table

_HEAD = """# Kinds of events
Made from the code by `make docs-reference`. History, event stream, log and alerts have these kinds;
[alert-kinds.md](../alert-kinds.md) has the meaning of each and what to do. An incident that
calls for a drain is critical. The Events of Kubernetes are in
[public-names.md](../public-names.md#kubernetes-events).
"""


def page() -> str:
    """The page's Markdown."""
    head = ("kind", "severity", "sent by default", "what to do")
    return "\n".join([_HEAD, *table(head, _rows())]).rstrip() + "\n"


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for kind in sorted(EventKind):
        section = of_alert(kind, "").removeprefix("docs/")
        sent = "yes" if kind in DEFAULT_KINDS else "no"
        link = f"[{section}](../{section})"
        yield f"`{kind}`", SEVERITY.get(kind, "info"), sent, link
