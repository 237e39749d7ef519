"""A repair, or a ticket, by an HTTP endpoint of the site, signed like an alert (docs/alerts.md).

`X-Sickbay-Delivery` is the operation's id, the same for each attempt to deliver it: the endpoint
carries each id out once. 200: done (or ordered, where the node proves it). 202: under way, and
requested again with the same id until it answers otherwise. 408, 425, 429 and 503: nothing was
ordered, and it is requested again. Any other 4xx: it has failed.

The 200 of a test has a JSON object with ``verdict``: "passed", "failed" or "none", and ``message``.
Without one of these, and where the endpoint refuses, the test has no verdict about the node.
"""

import json
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp

from aggregator.alerts.http_channel import SecretError, words_of
from aggregator.alerts.webhook import headers
from aggregator.cluster.port import UNGUARDED, ClusterError, Guard
from aggregator.policy.repairs import TEST
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.secret import secret_of
from aggregator.runtime.guarded_connector import guarded_post
from aggregator.runtime.text import truncate

BODY_VERSION = 1
#: Seconds for one request: an endpoint that needs longer answers 202.
_ATTEMPT = 30.0
_MOST_ANSWER = 2000
#: Characters of a value: a person may have pasted a log as the reason.
_LONGEST = 4000
_VERDICTS = {
    "passed": AnswerState.DONE,
    "failed": AnswerState.FAILED,
    "none": AnswerState.INCONCLUSIVE,
}
_NOT_NOW = frozenset({408, 425, 429, 503})


class WebhookRepairer:
    """Implements `Repairer`. ``wall`` is wall clock seconds, for the signature."""

    sends_twice = True

    def __init__(self, url: str, secret_file: Path, *, wall: Callable[[], float]) -> None:
        self._url = url
        self._secret_file = secret_file
        self._wall = wall

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        return await self._post(order, "order", guard)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        """The same request once more: its answer states how far it has come. The endpoint has taken
        this id before, so nothing new is ordered.
        """
        answer = await self._post(order, "order", UNGUARDED)
        unsent = (
            answer.state is AnswerState.NOT_SENT
        )  # this question: the order itself was taken before
        return RepairAnswer(AnswerState.TAKEN, answer.text) if unsent else answer

    async def cancel(self, order: RepairOrder) -> bool:
        return (await self._post(order, "cancel", UNGUARDED)).state is AnswerState.DONE

    async def _post(self, order: RepairOrder, event: str, guard: Guard) -> RepairAnswer:
        timeout = aiohttp.ClientTimeout(total=min(order.lasts, _ATTEMPT))
        body: dict[str, object] = {
            name: truncate(text, _LONGEST) for name, text in order.values().items()
        }
        body |= {"version": BODY_VERSION, "source": "sickbay", "event": event}
        body["gpus"] = list(order.gpus)
        if order.bundle:
            body["evidence"] = json.loads(order.bundle)
        content = json.dumps(body).encode()
        try:
            secret = await secret_of(self._secret_file)
            ident = order.operation if event == "order" else f"{order.operation}-{event}"
            proof = headers(ident, content, secret, self._wall())
            async with guarded_post(
                self._url, check=guard, timeout=timeout, data=content, headers=proof
            ) as response:
                reply = await response.content.read(_MOST_ANSWER)
            text = reply.decode(errors="replace").strip()
            answer = _answer_of(response.status, text)
            return _verdict(answer, text) if order.repair == TEST else answer
        except (SecretError, ClusterError) as error:
            return RepairAnswer(AnswerState.NOT_SENT, str(error))
        except aiohttp.ClientConnectorError as error:
            return RepairAnswer(AnswerState.NOT_SENT, words_of(error))
        except TimeoutError:
            return RepairAnswer(AnswerState.UNSURE, f"no answer within {timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            return RepairAnswer(AnswerState.UNSURE, words_of(error))


def _verdict(answer: RepairAnswer, text: str) -> RepairAnswer:
    """The answer about a test. A word that is none of the three is no verdict."""
    if answer.state is AnswerState.FAILED:  # a refusal
        return RepairAnswer(AnswerState.INCONCLUSIVE, answer.text)
    if answer.state is not AnswerState.DONE:
        return answer
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    reply = found if isinstance(found, dict) else {}
    state = _VERDICTS.get(str(reply.get("verdict")), AnswerState.INCONCLUSIVE)
    if str(reply.get("verdict")) not in _VERDICTS:
        return RepairAnswer(state, f"its answer has no verdict: {text}")
    return RepairAnswer(state, str(reply.get("message", "")))


def _answer_of(status: int, text: str) -> RepairAnswer:
    if status == 200:
        return RepairAnswer(AnswerState.DONE, text)
    if status == 202:
        return RepairAnswer(AnswerState.TAKEN, text)
    reason = f"HTTP {status}: {text}".rstrip(": ")
    if status in _NOT_NOW:
        return RepairAnswer(AnswerState.NOT_SENT, reason)
    return RepairAnswer(AnswerState.FAILED if 300 <= status < 500 else AnswerState.UNSURE, reason)
