"""Tests the nodes that carry a startup taint, and removes that from those that pass; and tests
idle nodes now and then, and nodes in service where a person requests that.
"""

import asyncio
import logging
from collections.abc import Callable

from attrs import define, field

from aggregator.cluster.port import ClusterError
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.node_test_advance import NodeTestAdvance, StepOutcome
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_events import NodeTestEvents
from aggregator.quarantine.repair.node_test_evidence import NodeTestEvidence
from aggregator.quarantine.repair.node_test_state import (
    AT_ONCE,
    EVERY,
    POLL_EVERY,
    NodeTestContext,
    WatchedNode,
    cancel_steps,
    start_steps,
)
from aggregator.quarantine.repair.node_test_watch import NodeTestWatch

log = logging.getLogger("sickbay.quarantine")


@define(eq=False, slots=False, kw_only=True)
class NodeTests:
    """Polls each watched node when that is due. Where no test may continue, each that is under way
    is ended. ``view``: whether the picture of the cluster is whole.
    """

    _shared: NodeTestContext
    _view: Callable[[], bool]
    _watch: NodeTestWatch
    _advance: NodeTestAdvance
    _evidence: NodeTestEvidence
    _display: NodeTestDisplay
    _events: NodeTestEvents
    _trouble: str = field(init=False, default="")

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                if self._view():
                    await self.go_round()
                await asyncio.sleep(EVERY)
        finally:
            cancel_steps(self._watch.nodes)

    async def go_round(self) -> None:
        await self._read_nodes()
        self._watch.take_requests()
        self._start_steps()
        for name, watched in self._watch.nodes.items():
            self._evidence.give(name, watched)
        self.show()
        rules = self._shared.settings.rules
        idle = rules.idle_nodes
        if idle is not None and not self._shared.ends:
            observes = rules.mode is RepairMode.OBSERVE
            reported = observes and self._events.idle_reported
            await self._watch.choose_idle(idle, reported=reported)

    def show(self) -> None:
        """Give the page and the metrics the state of the nodes."""
        self._display.show(self._watch.nodes)

    async def _read_nodes(self) -> None:
        try:
            if self._watch.is_list_due:
                await self._watch.take_list()
                await self._note_list()
            elif self._shared.rules.taint:
                await self._watch.read_new()
        except ClusterError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                text = "nodes can't be listed: no test of a new or an idle one begins"
                log.warning(text, extra={"error": self._trouble})
            self._watch.list_later(max(POLL_EVERY, error.retry_after or 0.0))
        else:
            self._trouble = ""

    async def _note_list(self) -> None:
        self._events.keep_observed(self._watch.seen or set())
        await self._evidence.end_all_but(self._watch.nodes)  # evidence from before this process

    def _start_steps(self) -> None:
        most = AT_ONCE + (0 if self._shared.ends else self._shared.rules.concurrent)
        now = self._shared.clocks.now()
        start_steps(self._watch.nodes, now, most, self._may_start, self._step)

    def _may_start(self, name: str, watched: WatchedNode) -> bool:
        return self._shared.may_act() and not self._advance.rests(name, watched)

    async def _step(self, name: str, watched: WatchedNode) -> None:
        outcome = await self._advance.step(name, watched)
        if outcome is StepOutcome.GONE:
            self._watch.forget(name)
            return
        self._watch.note(name, watched)
        if outcome is StepOutcome.DONE:
            self._evidence.give(name, None)
            self._watch.finish(name)
