"""A hook that calls an HTTP endpoint of the site, signed like an alert (docs/alerts.md).

200: done. 202: not yet, send it again (Retry-After is honoured). Any other status: it has failed,
and is tried again too. `X-Sickbay-Delivery` is the same for every attempt about one quarantine.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from aggregator.alerts.signed_call import NoAnswerError, SignedEndpoint
from aggregator.cluster.port import ClusterError, Guard
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult


class WebhookHook:
    """Implements `Hook`. ``wall`` is wall clock seconds, for the signature."""

    def __init__(self, url: str, secret_file: Path, *, wall: Callable[[], float]) -> None:
        self._endpoint = SignedEndpoint(url, secret_file, wall)

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        ident = f"{values['quarantine']}-{values['hook']}"
        try:
            answer = await self._endpoint.call(ident, values, {}, limit=limit, check=guard)
        except NoAnswerError as error:
            return HookAnswer(HookResult.FAILED, str(error))
        except ClusterError as error:
            return HookAnswer(HookResult.LATER, str(error))
        if answer.status == 200:
            return HookAnswer(HookResult.DONE, answer.text)
        if answer.status == 202:
            return HookAnswer(HookResult.LATER, answer.text, answer.retry_after)
        return HookAnswer(HookResult.FAILED, answer.refusal, answer.retry_after)
