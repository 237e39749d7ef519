"""A repair, or a ticket, by an HTTP endpoint of the site, signed like an alert (docs/alerts.md).

`X-Sickbay-Delivery` is the operation's id ("-cancel" follows it in a cancellation), the same for
each attempt to deliver it: the endpoint carries each id out once. 200: done (or ordered, where the
node proves it). 202: under way, and requested again with the same id until it answers otherwise.
408, 425, 429 and 503: nothing was ordered, and it is requested again. Any other 3xx or 4xx: it has
failed.

The 200 of a test has a JSON object with ``verdict``: "passed", "failed" or "none", and ``message``.
Without one of these, and where the endpoint refuses, the test has no verdict about the node.
"""

from collections.abc import Callable
from pathlib import Path

from aggregator.alerts.signed_call import EndpointAnswer, NoAnswerError, SignedEndpoint
from aggregator.cluster.port import UNGUARDED, Guard, Unreachable
from aggregator.policy.repairs import TEST
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from sickbay.json_text import read_json

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
        self._endpoint = SignedEndpoint(url, secret_file, wall)

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        return await self._post(order, "order", guard)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        """The same request once more: its answer states how far it has come. The endpoint has taken
        this id before, so nothing new is ordered.
        """
        answer = await self._post(order, "order", UNGUARDED)
        # This question was not sent: the order itself was taken before.
        unsent = answer.state is AnswerState.NOT_SENT
        return RepairAnswer(AnswerState.TAKEN, answer.text) if unsent else answer

    async def cancel(self, order: RepairOrder) -> bool:
        answer = await self._post(order, "cancel", UNGUARDED)
        if answer.state in (AnswerState.NOT_SENT, AnswerState.UNSURE):
            raise Unreachable(answer.text)
        return answer.state is AnswerState.DONE

    async def _post(self, order: RepairOrder, event: str, guard: Guard) -> RepairAnswer:
        more: dict[str, object] = {"event": event, "gpus": list(order.gpus)}
        if order.bundle:
            more["evidence"] = read_json(order.bundle)
        ident = order.operation if event == "order" else f"{order.operation}-{event}"
        try:
            found = await self._endpoint.call(
                ident, order.values(), more, limit=order.lasts, check=guard
            )
        except NoAnswerError as error:
            unsure = AnswerState.UNSURE if error.sent else AnswerState.NOT_SENT
            return RepairAnswer(unsure, str(error))
        answer = _answer_of(found)
        tests = order.repair == TEST and event == "order"
        return _verdict(answer, found.text) if tests else answer


def _verdict(answer: RepairAnswer, text: str) -> RepairAnswer:
    """The answer about a test. A word that is none of the three is no verdict."""
    if answer.state is AnswerState.FAILED:  # a refusal
        return RepairAnswer(AnswerState.INCONCLUSIVE, answer.text)
    if answer.state is not AnswerState.DONE:
        return answer
    try:
        found = read_json(text)
    except ValueError:
        found = None
    reply = found if isinstance(found, dict) else {}
    state = _VERDICTS.get(str(reply.get("verdict")), AnswerState.INCONCLUSIVE)
    if str(reply.get("verdict")) not in _VERDICTS:
        return RepairAnswer(state, f"its answer has no verdict: {text}")
    return RepairAnswer(state, str(reply.get("message", "")))


def _answer_of(found: EndpointAnswer) -> RepairAnswer:
    if found.status == 200:
        return RepairAnswer(AnswerState.DONE, found.text)
    if found.status == 202:
        return RepairAnswer(AnswerState.TAKEN, found.text)
    if found.status in _NOT_NOW:
        return RepairAnswer(AnswerState.NOT_SENT, found.refusal)
    failed = 300 <= found.status < 500
    return RepairAnswer(AnswerState.FAILED if failed else AnswerState.UNSURE, found.refusal)
