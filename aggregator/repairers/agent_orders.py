"""Orders to the nodes' agents, and what they report of them: between a repairer and the streams.

An agent carries out each operation once, by a journal on its disk. It reports a final state again
in each new stream until it is acknowledged (docs/contract.md#orders). So what is here may be lost
with the process: the acknowledgement comes after the end of the attempt is durable.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from aggregator.repairers.gpu_use import GpuUseRequests
from aggregator.repairers.permission_answers import PermissionAnswers
from aggregator.runtime.recent import Recent

log = logging.getLogger(__name__)

#: Results of one node that are kept: an agent has one order at a time.
_MOST_KEPT = 8
#: Nodes whose agents' evidence is kept, and how much of one node: of the first and the latest act.
_MOST_NODES, _MOST_COLLECTED = 64, 2


class OrderState(enum.StrEnum):
    """How far an agent is with an order, as in the contract."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    INCONCLUSIVE = "inconclusive"


_OPEN = (OrderState.ACCEPTED, OrderState.RUNNING)


@dataclass(frozen=True, slots=True)
class AgentOrder:
    """``verb`` is gpu-reset, reboot or test. ``within``: seconds until the act must have begun.

    ``profile`` is that of a test.
    """

    operation: str
    verb: str
    quarantine: str
    boot_id: str
    within: float
    gpus: tuple[str, ...] = ()
    message: str = ""
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement of a test, of a component, or of the node (an empty one)."""

    measure: str
    component: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class AgentResult:
    """``reason`` is one word of the contract, ``message`` the agent's text for people.

    ``measured`` is of a test that has ended. ``evidence`` is what the agent collected before the
    act: a JSON object as text, within the contract's bound, and not checked further.
    """

    operation: str
    state: OrderState
    reason: str = ""
    message: str = ""
    measured: tuple[Measured, ...] = ()
    evidence: str = ""

    @property
    def is_final(self) -> bool:
        return self.state not in _OPEN


class OrderLine(Protocol):
    """The stream of one node's agent, which has proved its identity. No method blocks or raises.

    A message on a stream that ends may be lost.
    """

    #: The verbs that the node's own configuration allows, as the agent has reported.
    repair_verbs: tuple[str, ...]
    #: The test profiles of the node.
    test_profiles: tuple[str, ...]

    def order_repair(self, order: AgentOrder) -> None: ...

    def cancel_repair(self, operation: str, reason: str) -> None: ...

    def repair_result_taken(self, operation: str) -> None: ...

    def answer_permission(self, operation: str, refusal: str) -> None: ...

    def request_gpu_use(self, request: str, *, pods: bool) -> None: ...


class OrderLines(Protocol):
    """The streams of this replica."""

    def line_of(self, node: str) -> OrderLine | None:
        """The stream that reports for the node now."""


class AgentOrders:
    """The latest state of each order that an agent has reported, and who waits for it."""

    def __init__(self) -> None:
        self._lines: OrderLines | None = None
        self.permissions = PermissionAnswers(self.line_of)
        self.gpu_use = GpuUseRequests(self.line_of)
        self._note_end: Callable[[str], None] | None = None
        self._results: dict[str, dict[str, AgentResult]] = {}
        #: The quarantine of each operation that this process has ordered or follows, by node.
        self._ordered: dict[str, dict[str, str]] = {}
        #: The evidence of a quarantine's operations, by node; the one that came last is the last.
        self._collected: Recent[str, tuple[str, dict[str, str]]] = Recent(_MOST_NODES)
        #: Operations whose end is durable, by node, the latest ones.
        self._over: dict[str, deque[str]] = {}
        self._changed: dict[str, asyncio.Event] = {}

    def note_ends(self, note_end: Callable[[str], None]) -> None:
        """Call ``note_end`` with the node when the end of an order that this process has sent, or
        waits for, is first reported.
        """
        self._note_end = note_end

    # -- called by ingest ----------------------------------------------------------------

    def connect(self, lines: OrderLines) -> None:
        """Send by these streams from now on."""
        self._lines = lines

    def on_result(self, node: str, result: AgentResult) -> None:
        """The node's agent reports how far it is with an order."""
        log.info(
            "an agent reports an order",
            extra={
                "event": "repair.agent_result",
                "node": node,
                "operation": result.operation,
                "state": result.state.value,
                "reason": result.reason,
                "detail": result.message,
            },
        )
        self._collect(node, result)
        result = replace(result, evidence="")
        if result.operation in self._over.get(node, ()):
            if result.is_final:
                self._acknowledge(node, result.operation)
            return
        kept = self._results.setdefault(node, {})
        before = kept.pop(result.operation, result)
        kept[result.operation] = before if before.is_final and not result.is_final else result
        while len(kept) > _MOST_KEPT:
            del kept[next(one for one in kept if not self.is_ours(node, one))]
        self._wake(node)
        # Once, however often its agent reports it: an evaluation has its cost.
        is_new = result.is_final and (before is result or not before.is_final)
        if is_new and self._note_end is not None and self.is_ours(node, result.operation):
            self._note_end(node)

    def on_detach(self, node: str) -> None:
        """The node's stream has ended. In the next one its agent reports each open state anew."""
        kept = self._results.get(node, {})
        for operation in [name for name, one in kept.items() if not one.is_final]:
            del kept[operation]
        if not kept:
            self._results.pop(node, None)
        self._wake(node)

    # -- called by the repairer ----------------------------------------------------------

    def line_of(self, node: str) -> OrderLine | None:
        """The stream of the node's agent to this replica, or None."""
        return self._lines.line_of(node) if self._lines is not None else None

    def is_ours(self, node: str, operation: str) -> bool:
        """Whether it is the order that this process has sent, or follows."""
        return operation in self._ordered.get(node, ())

    def result_of(self, node: str, operation: str) -> AgentResult | None:
        """The latest state of the order, or None while none is known here."""
        return self._results.get(node, {}).get(operation)

    async def answer(
        self, node: str, operation: str, *, within: float, final: bool = False
    ) -> AgentResult | None:
        """The order's state once its agent has reported one (``final``: a final one).

        Returns None after ``within`` seconds, or where the node's present stream has ended.
        """
        line = self.line_of(node)
        try:
            async with asyncio.timeout(within):
                while True:
                    found = self.result_of(node, operation)
                    if found is not None and (found.is_final or not final):
                        return found
                    if line is None or self.line_of(node) is not line:
                        return None
                    await self._changed.setdefault(node, asyncio.Event()).wait()
        except TimeoutError:
            return None

    def collected(self, node: str, quarantine: str) -> Mapping[str, str]:
        """The agent's evidence of the quarantine's operations, as far as this process has it."""
        known, texts = self._collected.get(node, ("", {}))
        return texts if known == quarantine else {}

    def _collect(self, node: str, result: AgentResult) -> None:
        """Keep the evidence of an order of ours; other agents' texts must not fill the memory."""
        quarantine = self._ordered.get(node, {}).get(result.operation)
        if not result.evidence or quarantine is None:
            return
        known, texts = self._collected.pop(node, ("", {}))
        texts = texts if known == quarantine else {}
        texts[result.operation] = result.evidence
        if len(texts) > _MOST_COLLECTED:
            del texts[list(texts)[-2]]
        self._collected[node] = quarantine, texts

    def begin(self, node: str, operation: str, quarantine: str) -> None:
        """Another order of the node begins: no earlier one is of interest any more."""
        self.follow(node, operation, quarantine)
        for earlier in [name for name in self._results.get(node, {}) if name != operation]:
            self.settle(node, earlier)

    def follow(self, node: str, operation: str, quarantine: str) -> None:
        """The order's end is waited for here; another process may have sent it."""
        self._ordered[node] = {operation: quarantine}

    def settle(self, node: str, operation: str) -> None:
        """The end of the order's attempt is durable: the agent need not report it again."""
        self._over.setdefault(node, deque(maxlen=_MOST_KEPT)).append(operation)
        kept = self._results.get(node, {})
        result = kept.pop(operation, None)
        if not kept:
            self._results.pop(node, None)
        if result is not None and result.is_final:
            self._acknowledge(node, operation)

    def _acknowledge(self, node: str, operation: str) -> None:
        line = self.line_of(node)
        if line is not None:
            line.repair_result_taken(operation)

    def _wake(self, node: str) -> None:
        event = self._changed.pop(node, None)
        if event is not None:
            event.set()
