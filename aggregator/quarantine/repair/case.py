"""One node's operation as the engine sees it: the differences by the place of the node."""

from collections.abc import Awaitable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from aggregator.cluster.port import (
    Guard,
    Operation,
    OperationSpec,
    OperationStatus,
    RepairAttempt,
    RepairState,
)
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.operation_step import NextOperation
from aggregator.quarantine.decide.reservation import OperationLimits
from aggregator.quarantine.repair.protocol import RepairAnswer, RepairOrder

T = TypeVar("T")


class AttemptOutcome(NamedTuple):
    """The state in which an attempt ends, and why, for people."""

    state: RepairState
    text: str


class OperationCase(Protocol):
    """A node in a quarantine, or one with a test in none. Bound to a step of one node.

    ``busy`` is the attempt that may act; ``held`` is why it waits, as people see it.
    """

    node: str
    #: The node's pool, for the limit of pools.
    pool: str = ""

    @property
    def busy(self) -> RepairAttempt | None: ...

    @property
    def held(self) -> str: ...

    # -- its data ---------------------------------------------------------------------------

    def order(self, attempt: RepairAttempt) -> RepairOrder: ...

    def limits(self, attempt: RepairAttempt) -> tuple[str, OperationLimits]:
        """Its kind in the record, and the limits that it has to keep."""

    def spec(self, attempt: RepairAttempt, because: str) -> OperationSpec: ...

    def begun_status(self, attempt: RepairAttempt) -> OperationStatus: ...

    def is_request(self, there: Operation, attempt: RepairAttempt) -> bool:
        """Whether a person's object may become just this attempt."""

    # -- reads, and the guards of its acts --------------------------------------------------

    async def make(self, step: NextOperation) -> RepairAttempt | None:
        """The attempt that begins, by the node as it is now, if one does; a reason against it is
        noted where people see it.
        """

    def beginning_guard(self, attempt: RepairAttempt) -> Guard: ...

    async def may_resend(self, attempt: RepairAttempt) -> bool:
        """Whether an order may be sent now that perhaps was not: minutes may have passed. Why not
        is noted where people see it.
        """

    async def prepare(self, _attempt: RepairAttempt) -> str:
        """Make the node ready for the order. Returns what is waited for; empty: it is."""
        return ""

    def order_guard(self, attempt: RepairAttempt, read_at: float) -> Guard:
        """``read_at``: when what it rests on was last read (monotonic)."""

    async def while_wanted(self, call: Awaitable[T]) -> T:
        """The repairer's answer. Raises Conflict where the purpose of the operation goes meanwhile:
        a release waits for no repairer.
        """
        return await call

    async def proof(self, _attempt: RepairAttempt) -> AttemptOutcome | None:
        """The success that the Node itself shows."""
        return None

    async def lost(self, attempt: RepairAttempt, answer: RepairAnswer) -> AttemptOutcome | None:
        """The outcome of one that can't come to its end any more. ``answer``: its repairer's."""

    async def take_back(self, attempt: RepairAttempt) -> str:
        """Take the order back. Returns what is awaited before it is over; empty: it is."""

    def cancelled_as(self, _attempt: RepairAttempt) -> RepairState:
        """The state of one that was taken back."""
        return RepairState.CANCELLED

    # -- what follows -----------------------------------------------------------------------

    def poll_in(self, seconds: float) -> None:
        """Look after the node again then."""

    async def hold(self, why: str, step: NextOperation | None = None) -> None:
        """Show why it waits. ``step``: the one that does not begin."""

    async def refused(self, why: str, step: NextOperation) -> None:
        """The same of one whose object the cluster refuses."""
        await self.hold(why, step)

    async def hold_by(
        self, held: Held, _attempt: RepairAttempt, step: NextOperation | None
    ) -> None:
        """The same of a limit."""
        await self.hold(held.text, step)

    async def note_beginning(self, attempt: RepairAttempt) -> None:
        """It is about to begin: the last write before it counts as an attempt."""
        del attempt

    def begun(self, attempt: RepairAttempt, because: str) -> None:
        """It is durable: take and announce it."""

    async def changed(self, before: RepairAttempt, after: RepairAttempt) -> None:
        """It has gone on, which is written."""

    def ended(self, ended: RepairAttempt, text: str, details: Mapping[str, str]) -> None:
        """Its end is durable: count and announce it. ``details``: by its repairer."""

    async def not_taken_back(self, attempt: RepairAttempt, because: str, awaited: str) -> None: ...

    async def nothing_follows(self, attempt: RepairAttempt) -> None:
        """A person has cancelled it, and its end was known before."""
        del attempt

    async def left(self, _attempt: RepairAttempt) -> str:
        """Undo the preparation. Returns what keeps that from being done; empty: it is."""
        return ""

    async def end_of(
        self, attempt: RepairAttempt, outcome: AttemptOutcome, *, late: bool
    ) -> RepairAttempt | None:
        """The attempt with its end, by the node as it is now, unless its end waits, which is noted.
        ``late``: it waits no longer.
        """
        ...
