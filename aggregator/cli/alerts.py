"""`sickbay alert`: where alerts go, dead letters, and a test of a route."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aggregator.cli.errors import CommandFailed, UsageError

if TYPE_CHECKING:
    from aggregator.alerts.alert import Alert
    from aggregator.alerts.message import Message
    from aggregator.alerts.routes import RouteTarget
    from aggregator.alerts.webhook import WebhookResponse


def send_test(name: str, config: Path) -> str:
    """Send a test alert, and its end, on the route, once each. Returns the sentence that reports
    it.

    Raises UsageError for a wrong file or an unknown route, CommandFailed for a receiver that does
    not take them.
    """
    from aggregator.alerts.routes import targets_of
    from aggregator.alerts.webhook import Delivery
    from aggregator.config.settings import ConfigError, load

    try:
        settings = load(config).alert_settings
    except ConfigError as error:
        raise UsageError(str(error)) from error
    targets = targets_of(settings)
    target = next((one for one in targets if one.name == name), None)
    if target is None:
        known = ", ".join(one.name for one in targets) or "the file has none"
        raise UsageError(f'no route is named "{name}" in {config}; expected one of: {known}')
    for message in _messages(target):
        answer = asyncio.run(_attempt(target, message))
        if answer.verdict is not Delivery.DELIVERED:
            raise CommandFailed(f"{target.title}: {answer.because}")
    return f"{target.title} took the test alert{' and its end' if target.resolved else ''}"


def _messages(target: "RouteTarget") -> "Sequence[Message]":
    """The test alert and, where the route sends ends, its end."""
    from aggregator.alerts.alert import Alert, AlertState, Resolution, ended

    now = time.time()
    ident = f"test-{now:.3f}"
    alert = Alert(
        id=f"{ident}-1",
        kind="sickbay.test",
        severity="info",
        at=now,
        node="",
        nodes=(),
        summary=f'a test of route "{target.name}" by a person; no action is needed',
        incident="",
        details={},
        key=ident,
        state=AlertState.FIRING,
    )
    begun = target.message(ident, 1, [alert])
    if not target.resolved:
        return (begun,)
    over = Resolution("", frozenset(), at=now + 0.001, summary="the test is over")
    end = ended(alert, over)
    return begun, target.message(f"{ident}-end", 1, [_of(end, ident)])


def _of(end: "Alert", delivery: str) -> "Alert":
    assert end.ending is not None
    return replace(end, ending=replace(end.ending, delivery=delivery))


async def _attempt(target: "RouteTarget", message: "Message") -> "WebhookResponse":
    import aiohttp

    from aggregator.alerts.http_channel import Exchange
    from aggregator.alerts.sender import deliver
    from aggregator.runtime.worker_thread import WorkerThread

    thread = WorkerThread("alert-test")
    try:
        async with aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as session:
            return await deliver(target, message, Exchange(session, thread, time.time))
    finally:
        thread.stop()
