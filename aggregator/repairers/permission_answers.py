"""Answers the agents' requests for permission to begin, on the stream that each came by."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from aggregator.quarantine.repair.protocol import PermissionRequest

log = logging.getLogger(__name__)


class AnswerLine(Protocol):
    """The stream of one node's agent."""

    def answer_permission(self, operation: str, refusal: str) -> None:
        """``refusal``: why it is not granted; empty: it is."""


class PermissionAnswers:
    """One request of a node at a time, and each operation once: an agent requests it once."""

    def __init__(self, line_of: Callable[[str], AnswerLine | None]) -> None:
        self._line_of = line_of
        self._refusal: Callable[[str, PermissionRequest], Awaitable[str]] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: The operation that was decided last, by node.
        self._decided: dict[str, str] = {}

    def decide_by(self, refusal: Callable[[str, PermissionRequest], Awaitable[str]]) -> None:
        """``refusal`` gives the reason against the act of a node's order; empty: there is none."""
        self._refusal = refusal

    def on_request(self, node: str, request: PermissionRequest) -> None:
        """The node's agent requests permission."""
        line = self._line_of(node)
        if line is None:
            return
        if self._refusal is None:
            line.answer_permission(request.operation, "this process decides on no repair")
        elif node in self._tasks:
            line.answer_permission(request.operation, "another request is being decided on")
        elif self._decided.get(node) == request.operation:
            line.answer_permission(request.operation, "it was decided on before")
        else:
            answering = self._answer(node, request, line, self._refusal(node, request))
            task = self._tasks[node] = asyncio.create_task(answering, name=f"permission {node}")
            task.add_done_callback(lambda _: self._tasks.pop(node, None))

    async def _answer(
        self, node: str, request: PermissionRequest, line: AnswerLine, deciding: Awaitable[str]
    ) -> None:
        self._decided[node] = request.operation
        refusal = "the aggregator could not decide"
        try:
            refusal = await deciding
        finally:
            # No wait lies between the decision's last check and this.
            if self._line_of(node) is line:
                line.answer_permission(request.operation, refusal)
        log.info(
            "an agent may begin" if not refusal else "an agent may not begin",
            extra={
                "event": "repair.permission",
                "node": node,
                "operation": request.operation,
                "granted": not refusal,
                "reason": refusal,
            },
        )
