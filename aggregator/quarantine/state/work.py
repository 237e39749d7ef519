"""The work of this replica on a node, and the work that is left."""

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """Changed by the queue, its worker, and those who ask for a read of the node.

    ``task`` reconciles the node; ``is_queued``: it is to be reconciled once more. ``queued`` is set
    meanwhile, and made when a task first waits for that: a dozen of 10,000 nodes have one, of 800
    bytes.
    ``waiters``: messages that are acknowledged when their evidence is durable.
    ``needs_read``: an event hints that the node may be schedulable again, or gone; a read decides.
    ``recheck_pods``: it was drained, and its pods are to be read again.
    ``polled_at``: when the node was last polled, or read for the begin of its drain (monotonic).
    ``in_record``: the record, as last seen, has an entry of it.
    ``last_error``: why the last step failed, which is tried again; empty: it did not.
    ``evaluation_due``: its state has changed since it was last evaluated; ``arrived``: when the
    first delta since then arrived (monotonic). ``evaluation_cost``: seconds that its evaluations
    took and that its agent was not charged for yet.
    """

    task: asyncio.Task[None] | None = None
    is_queued: bool = False
    queued: asyncio.Event | None = None
    waiters: tuple[asyncio.Future[None], ...] = ()
    needs_read: bool = False
    recheck_pods: bool = False
    polled_at: float = float("-inf")
    in_record: bool = False
    last_error: str = ""
    evaluation_due: bool = False
    arrived: float | None = None
    evaluation_cost: float = 0.0

    def queue(self) -> None:
        self.is_queued = True
        if self.queued is not None:
            self.queued.set()

    def take_queued(self) -> None:
        """The node is about to be reconciled, or what has changed was checked."""
        self.is_queued = False
        if self.queued is not None:
            self.queued.clear()

    async def wait_queued(self) -> None:
        """Return once the node is to be reconciled; at once where it is."""
        if self.queued is None:
            self.queued = asyncio.Event()
        if not self.is_queued:
            await self.queued.wait()

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
        self.polled_at = at

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
