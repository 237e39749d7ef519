"""Tests the nodes that carry a startup taint, and removes that from those that pass; and tests
idle nodes now and then, and nodes in service where a person asks for that.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.node_test_advance import Look, NodeTestAdvance
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_events import NodeTestEvents
from aggregator.quarantine.repair.node_test_evidence import NodeTestEvidence
from aggregator.quarantine.repair.node_test_state import (
    AT_ONCE,
    EVERY,
    POLL_EVERY,
    WatchedNode,
    cancel_steps,
    start_steps,
)
from aggregator.quarantine.repair.node_test_watch import NodeTestWatch
from aggregator.quarantine.repair.protocol import RepairSettings

log = logging.getLogger("sickbay.quarantine")


class NodeTesting(Protocol):
    """`NodeTests`, or where no test is wanted `UnwantedTests`."""

    async def go_round(self) -> None: ...

    def cancel(self) -> None:
        """The process ends."""
        ...


class NodeTestRounds:
    """One task. ``view``: whether the picture of the cluster is whole."""

    def __init__(self, tests: NodeTesting, view: Callable[[], bool]) -> None:
        self.tests = tests
        self._view = view

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                if self._view():
                    await self.tests.go_round()
                await asyncio.sleep(EVERY)
        finally:
            self.tests.cancel()


class NodeTests:
    """Has each watched node looked at when that is due."""

    def __init__(
        self,
        *,
        clocks: Clocks,
        settings: RepairSettings,
        may_act: Callable[[], bool],
        watch: NodeTestWatch,
        advance: NodeTestAdvance,
        evidence: NodeTestEvidence,
        display: NodeTestDisplay,
        events: NodeTestEvents,
    ) -> None:
        """``may_act`` tells whether we are the controller at this moment."""
        self._clocks = clocks
        self._rules = settings.rules
        self._may_act = may_act
        self._watch = watch
        self._advance = advance
        self._evidence = evidence
        self._display = display
        self._events = events
        self._trouble = ""

    def cancel(self) -> None:
        cancel_steps(self._watch.nodes)

    async def go_round(self) -> None:
        await self._read_nodes()
        self._watch.take_requests()
        self._start_steps()
        for name, watched in self._watch.nodes.items():
            self._evidence.give(name, watched)
        self.show()
        idle = self._rules.idle_nodes
        if idle is not None:
            observes = self._rules.mode is RepairMode.OBSERVE
            reported = observes and self._events.idle_reported
            await self._watch.choose_idle(idle, reported=reported)

    def show(self) -> None:
        """Give the page and the metrics the state of the nodes."""
        self._display.show(self._watch.nodes, self._watch.done)

    async def _read_nodes(self) -> None:
        try:
            if self._watch.is_list_due:
                await self._watch.list()
                await self._note_list()
            elif self._rules.new_nodes.taint:
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
        self._advance.keep_operations(self._watch.busy_operations)

    def _start_steps(self) -> None:
        most = AT_ONCE + self._rules.new_nodes.concurrent
        now = self._clocks.now()
        start_steps(self._watch.nodes, now, most, self._may_start, self._step, "new-node")

    def _may_start(self, name: str, watched: WatchedNode) -> bool:
        return self._may_act() and not self._advance.rests(name, watched)

    async def _step(self, name: str, watched: WatchedNode) -> None:
        look = await self._advance.step(name, watched)
        if look is Look.GONE:
            self._watch.forget(name)
            return
        self._watch.note(name, watched)
        if look is Look.DONE:
            self._evidence.give(name, None)
            self._watch.finish(name, watched)
