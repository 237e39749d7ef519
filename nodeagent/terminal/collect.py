"""The findings about this node: from the running agent, else from one look of our own."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nodeagent.config.settings import Config
from nodeagent.local.client import AgentTrouble, NoAgent, get_json
from nodeagent.local.findings import Findings, Result, from_agent
from nodeagent.model import Status

#: A healthy agent answers in milliseconds. The time that it doesn't use is left for a run of the
#: checks here.
_PATIENCE = 5.0


def gather(
    load: Callable[..., Config], *, timeout: float, late: Callable[[Findings], Any]
) -> Findings:
    """The findings, within ``timeout`` seconds.

    ``load(with_checks=...)`` gives the configuration and may raise ConfigError. ``late`` is called
    from another thread when the time is over without findings (this one then hangs in the kernel),
    and must not return.
    """
    started = time.monotonic()
    watchdog = threading.Timer(timeout, lambda: late(_nothing(timeout)))
    watchdog.daemon = True
    watchdog.start()
    try:
        config = load(with_checks=False)
        try:
            answer = get_json(config.socket, "/v1/results", min(_PATIENCE, timeout / 4))
            return from_agent(answer)
        except NoAgent as none:
            trouble: Sequence[Result] = ()
            note = f"no agent is running ({none})"
        except (AgentTrouble, ValueError) as error:
            reason = error.reason if isinstance(error, AgentTrouble) else "broken"
            trouble = [Result("agent", "", Status.UNKNOWN, reason, str(error))]
            note = "the agent gave no answer"
        left = timeout - (time.monotonic() - started)
        found = _run_once(load(with_checks=True), left)
        return replace(found, results=[*trouble, *found.results], notes=[note, *found.notes])
    finally:
        watchdog.cancel()


def _run_once(config: Config, timeout: float) -> Findings:
    import asyncio  # neither this nor the checks are needed where an agent answers

    from nodeagent.clock import SystemClock
    from nodeagent.terminal.one_shot import run_once

    # Not asyncio.run: it ends by waiting for every task, and one may hang. The process ends anyway.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(run_once(config, SystemClock(), within=timeout))


def _nothing(timeout: float) -> Findings:
    message = f"no result came within {timeout:g} s"
    return Findings("", "probe", [Result("agent", "", Status.UNKNOWN, "hung", message)])
