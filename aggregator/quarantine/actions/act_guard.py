"""The guard of an act on a node: its checks, in the one order that leaves no gap."""

import math
from collections.abc import Awaitable, Callable

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    Cluster,
    ClusterError,
    Guard,
    GuardRefused,
    GuardUnreadable,
    Phase,
    Quarantine,
)
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodePools

#: Why an act is not wanted any more, by what is known; empty: it is wanted.
Against = Callable[[], str]
#: The same by a read of what the act is for.
Read = Callable[[], Awaitable[str]]
#: Seconds for which a read of an object counts for an act.
MOST_AGE = 5.0
#: When a read began (monotonic) that there was not: what an act is for is read in any case.
NEVER = -math.inf


class FreshRead:
    """The last read of what an act is for. ``began``: when it was requested (monotonic). ``read``
    reads it again.
    """

    def __init__(self, read: Read, *, clocks: Clocks, began: float) -> None:
        self._read = read
        self._now = clocks.now
        self._began = began

    async def renew(self) -> None:
        """Read it again where it is too old. Raises GuardRefused."""
        if self.is_fresh():
            return
        began = self._now()
        try:
            why = await self._read()
        except ClusterError as error:
            raise GuardUnreadable(
                f"the act waits, as what it is for can't be read: {error}",
                status=error.status,
                retry_after=error.retry_after,
            ) from error
        if why:
            raise GuardRefused(why)
        self._began = began

    def is_fresh(self) -> bool:
        return self._now() - self._began < MOST_AGE


def quarantine_read(cluster: Cluster, quarantine: Quarantine) -> Read:
    """The ``read`` of `FreshRead` for an act of this quarantine."""

    async def read() -> str:
        found = await cluster.read_quarantine(quarantine.node)
        if found is None or found.uid != quarantine.uid or found.deleting:
            return f"the quarantine of {quarantine.node} is gone"
        releasing = found.status.phase is Phase.RELEASING
        return f"{quarantine.node} is being released" if releasing else ""

    return read


def act_guard(*, switch: StopSwitch, against: Against, fresh: FreshRead | None = None) -> Guard:
    """Checks that wait come first, and the known state is checked last, without a wait in
    between.
    """

    async def check() -> None:
        if fresh is not None:
            await fresh.renew()
        await switch.check()
        why = against() or switch.lost()
        if why:
            raise GuardRefused(why)
        if fresh is not None and not fresh.is_fresh():
            raise GuardRefused(f"the act is for what was read more than {MOST_AGE:g} s ago")

    return Guard(check, switch.lost)


@define(eq=False, repr=False, slots=False, kw_only=True)
class ActGuards:
    """``pools`` has each node's mode."""

    _cluster: Cluster
    _record_writer: AdmissionRecordWriter
    _switch: StopSwitch
    _pools: NodePools
    _clocks: Clocks

    def __attrs_post_init__(self) -> None:
        self.may_act = self._switch.may_act
        #: The guard of what undoes: its version may be of a read after another one's acts.
        self.place = Guard(self._switch.check_place)

    def guard(
        self,
        node_state: NodeState,
        *,
        granted: bool = True,
        against: Against = str,
        fresh: FreshRead | None = None,
    ) -> Guard:
        """The guard of each acting request on the node: it checks for changes since the decision.

        It checks the stop switch, read anew; the node's owner; and, unless ``granted`` is False,
        whether the record still has the node's entry, by which it acts, and whether the mode of the
        pool, by the labels as last read, still lets us act on our own. ``against`` is
        the act's own check. ``fresh``: what is read again where its last read is too old. Requests
        that undo or report take none.
        """

        def why_not() -> str:
            if granted and not self._record_writer.grants(node_state.node):
                return "the admission by which it was to be done is not in force any more"
            if granted and self._is_observed(node_state):
                return "the mode of the node's pool is observe now"
            return against()

        return act_guard(switch=self._switch, against=why_not, fresh=fresh)

    def fresh_quarantine(self, quarantine: Quarantine) -> FreshRead:
        """The quarantine is read again before the act."""
        read = quarantine_read(self._cluster, quarantine)
        return FreshRead(read, clocks=self._clocks, began=NEVER)

    def _is_observed(self, node_state: NodeState) -> bool:
        """Whether its mode forbids acts of our own; a person's quarantine continues in any mode."""
        quarantine = node_state.quarantine
        ours = quarantine is None or quarantine.spec.requester == OURS
        return ours and self._pools.mode_of(node_state.node) is Action.OBSERVE
