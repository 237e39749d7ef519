"""Writes that a node's marks are set; in the same write that its drain begins, where it is next."""

from collections.abc import Callable
from dataclasses import replace

from aggregator.cluster.port import Quarantine
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.plans.drain import DrainStep
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.race import while_in_force


class NewMarksWriter:
    def __init__(self, *, acts: NodeActions, drain: Drainer, queue: WorkQueue) -> None:
        self._acts = acts
        self._drain = drain
        self._queue = queue

    async def write(
        self, node_state: NodeState, is_next: Callable[[DrainStep, Quarantine], bool]
    ) -> None:
        """After a failure the object still is as before the marks, which then are set again.

        In a burst the marks of all nodes come first.

        ``is_next``: whether this step follows, once the quarantine is as given.
        """
        marks = node_state.quarantine_view.take_new_marks()
        if marks is None:
            return
        marked = replace(marks.quarantine, status=marks.status)

        def writable() -> bool:
            known = node_state.quarantine
            if known is None or node_state.work.needs_read or not self._queue.may_act():
                return False
            # The watch may show the phase that was written before its answer comes.
            return known.version == marked.version or known.status.phase in MARKED

        def still() -> bool:
            known = node_state.quarantine
            if known is None or known.version != marked.version:
                return False  # the write would be refused
            return is_next(DrainStep.DRAIN, marked)

        if self._queue.is_marking:
            await while_in_force(node_state, self._queue.until_marked(), writable)
            if not self._queue.may_act():
                return  # another replica may be the controller by now
        if self._drain.is_ready(marks.node) and still():
            await self._drain.begin_with_marks(node_state, marks, writable)
        else:
            await self._acts.write_status(node_state, marks.quarantine, marks.status)
