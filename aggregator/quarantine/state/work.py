"""The work of this replica on a node, and the work that is left."""

import asyncio
from dataclasses import dataclass


class LazyEvent:
    """An `asyncio.Event` that is allocated only when a task waits for it.

    An event has a deque, of 800 bytes in all: too much for each of 10,000 nodes, of which a dozen
    are ever waited for.
    """

    __slots__ = ("_event", "_told")

    def __init__(self) -> None:
        self._told = False
        self._event: asyncio.Event | None = None

    def is_set(self) -> bool:
        return self._told

    def set(self) -> None:
        self._told = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        self._told = False
        if self._event is not None:
            self._event.clear()

    async def wait(self) -> None:
        """Return once it is set; at once where it is."""
        if self._told:
            return
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()


@dataclass(slots=True)
class Work:
    """Changed by the queue, its worker, and those who ask for a read of the node.

    ``task`` reconciles the node; ``again_event`` is set while it is to be reconciled once more.
    ``waiters``: messages that are acknowledged when their evidence is durable.
    ``needs_read``: an event hints that the node may be schedulable again, or gone; a read decides.
    ``recheck_pods``: it was drained, and its pods are to be read again.
    ``looked_at``: when the node was last polled, or read for the begin of its drain (monotonic).
    ``in_record``: the record, as last seen, has an entry of it.
    ``last_error``: why the last step failed, which is tried again; empty: it did not.
    ``evaluation_due``: its state has changed since it was last evaluated; ``arrived``: when the
    first delta since then arrived (monotonic). ``evaluation_cost``: seconds that its evaluations
    took and that its agent was not charged for yet.
    """

    task: asyncio.Task[None] | None = None
    again_event: LazyEvent | None = None
    waiters: tuple[asyncio.Future[None], ...] = ()
    needs_read: bool = False
    recheck_pods: bool = False
    looked_at: float = float("-inf")
    in_record: bool = False
    last_error: str = ""
    evaluation_due: bool = False
    arrived: float | None = None
    evaluation_cost: float = 0.0

    @property
    def again(self) -> LazyEvent:
        """Set: the node is to be reconciled once more. Most nodes never are, and have none."""
        if self.again_event is None:
            self.again_event = LazyEvent()
        return self.again_event

    @property
    def is_queued(self) -> bool:
        """Whether the node is to be reconciled once more."""
        return self.again_event is not None and self.again_event.is_set()

    @property
    def is_running(self) -> bool:
        """Whether its task reconciles the node now."""
        return self.task is not None and not self.task.done()

    def start(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def request_read(self) -> None:
        """The node is to be read in full; see `WorkQueue.add_for_read`."""
        self.needs_read = True

    def begin_read(self) -> None:
        """The node is about to be read: a hint that comes meanwhile is a new one."""
        self.needs_read = False

    def request_evaluation(self, arrived: float | None = None) -> None:
        """The node is to be evaluated once, however many changes request it; see `WorkQueue`."""
        self.evaluation_due = True
        if self.arrived is None:
            self.arrived = arrived

    def begin_evaluation(self) -> float | None:
        """The node is about to be evaluated. Returns when the delta that caused it arrived."""
        arrived, self.arrived, self.evaluation_due = self.arrived, None, False
        return arrived

    def add_evaluation_cost(self, seconds: float) -> None:
        self.evaluation_cost += seconds

    def take_evaluation_cost(self) -> float:
        """The seconds that evaluations took since the last call."""
        cost, self.evaluation_cost = self.evaluation_cost, 0.0
        return cost

    def request_pods(self) -> None:
        self.recheck_pods = True

    def begin_pods(self) -> bool:
        """Returns whether the pods are to be read; they are about to be."""
        requested, self.recheck_pods = self.recheck_pods, False
        return requested

    def note_poll(self, at: float) -> None:
        self.looked_at = at

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        self.waiters = (*self.waiters, waiter)

    def acknowledge(self) -> None:
        """The evidence is durable."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters = ()

    def refuse_waiters(self) -> None:
        """The evidence is not acknowledged: the agent sends it again."""
        for waiter in self.waiters:
            waiter.cancel()
        self.waiters = ()

    def set_in_record(self, *, in_record: bool) -> None:
        self.in_record = in_record

    def set_error(self, error: str) -> None:
        self.last_error = error
