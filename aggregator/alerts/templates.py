"""A site's own words for a message: Jinja2 templates, sandboxed, and checked at the start.

A template can read the message and nothing else. One that fails at a delivery is replaced by the
built-in text: an alert is never lost for its words.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aggregator.alerts.alert import Alert, AlertState, Ending
from aggregator.alerts.message import (
    Message,
    digest,
    headline,
    link,
    next_steps,
    section,
    sections,
    summary_of,
)
from aggregator.configfile.section import SectionDataclass
from aggregator.runtime.text import visible, visible_lines

if TYPE_CHECKING:
    import jinja2

log = logging.getLogger("sickbay.alerts")

_MOST_VALUE = 1_000
_MOST_TITLE = 1_024
_MOST_TEXT = 100_000


@dataclass(frozen=True, slots=True)
class TemplateOptions(SectionDataclass):
    """Jinja2 templates; empty: the built-in text."""

    title: str = ""
    """One line: the headline, the subject, PagerDuty's summary."""
    text: str = ""
    """The text; Slack's own marks in it work."""


BUILT_IN = TemplateOptions()


class TemplateError(Exception):
    """The template can't be used; the text states where and why."""


class MessageTemplate:
    """``escape`` makes each value of the message harmless where the receiver has markup; by default
    it has none. Raises `TemplateError` where a template is no template.
    """

    def __init__(self, options: TemplateOptions, escape: Callable[[str], str] = str) -> None:
        def finalize(value: object) -> str:
            return escape(visible(str(value), _MOST_VALUE))

        self._title = _compiled(options.title, finalize)
        self._text = _compiled(options.text, finalize)

    def title(self, message: Message) -> str:
        """The template's title, in one line; empty: use the built-in one."""
        return visible(self._rendered(self._title, message), _MOST_TITLE)

    def text(self, message: Message) -> str:
        """The template's text; empty: use the built-in one."""
        return visible_lines(self._rendered(self._text, message), _MOST_TEXT).strip()

    def check(self) -> None:
        """Render both for messages of each state. Raises `TemplateError`."""
        for message in _samples():
            for template in (self._title, self._text):
                if template is not None:
                    try:
                        template.render(_variables(message))
                    except Exception as error:
                        raise TemplateError(_words(error)) from error

    def _rendered(self, template: "jinja2.Template | None", message: Message) -> str:
        if template is None:
            return ""
        try:
            return template.render(_variables(message))
        except Exception as error:  # noqa: BLE001 - a template may fail in any way
            log.warning(
                "a template has failed; the built-in text is sent",
                extra={"route": message.route, "error": _words(error)},
            )
            return ""


def _compiled(text: str, finalize: Callable[[object], str]) -> "jinja2.Template | None":
    if not text:
        return None
    # A start without templates need not import the library.
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals = {}
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno}: {error.message}") from error


def _words(error: Exception) -> str:
    return visible(f"{type(error).__name__}: {error}", 200)


def _variables(message: Message) -> Mapping[str, Any]:
    return {
        "state": message.state.value,
        "severity": message.severity,
        "route": message.route,
        "nodes": message.nodes,
        "labels": dict(message.labels),
        "headline": headline(message, _MOST_TITLE),
        "lines": [line.text for line in digest(message, most=_MOST_VALUE)],
        "link": link(message),
        "to_do": next_steps(message),
        "documentation": sections(message, 1)[0],
        "alerts": [_alert(message, alert) for alert in message.alerts],
    }


def _alert(message: Message, alert: Alert) -> Mapping[str, Any]:
    return {
        **alert.to_json(),
        "nodes": alert.nodes,
        "summary": summary_of(alert),
        "documentation": section(message, alert),
    }


def _samples() -> tuple[Message, ...]:
    one = Alert(
        id="0" * 32,
        kind="incident.opened",
        severity="critical",
        at=0.0,
        node="gpu-0001",
        nodes=("gpu-0001",),
        summary="gpu-0001: xid:79 (GPU has fallen off the bus)",
        incident="0" * 16,
        details={"action": "drain"},
        key="0" * 32,
        state=AlertState.FIRING,
        labels={"pool": "a", "rack": "r1", "rules": "gpu-gone"},
    )
    over = replace(one, state=AlertState.RESOLVED, ending=Ending(1.0, "gpu-0001: recovered"))
    return Message("sample", 1, (one,), "sample"), Message("sample", 1, (over,), "sample")
