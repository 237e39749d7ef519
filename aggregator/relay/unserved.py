"""Decides when a gateway without a relay leaves its agents to other replicas. Pure.

A controller that was seen to renew its Lease this long after the relay's end is at work, and
another gateway may reach it. A dead one is not: its last renewal is read seconds after its death at
most. Its gateways keep their agents, or 10,000 would connect anew just as the next controller
begins.
"""

from collections.abc import Callable

from aggregator.leader.lease import Candidate

#: Seconds without a relay, after which a renewal of the Lease shows that the controller is at work.
UNSERVED_FOR = 10.0
#: A controller that has taken the gateway's connection lives. If it does not answer within the
#: first time it is busy, with the snapshots of 10,000 agents, and has the second one (seconds). So
#: has a new controller: all agents of a gateway that leaves it would connect to it, when it is busy
#: with the others' evidence.
BUSY_AFTER, BUSY_FOR = 2.0, 30.0


class UnservedGateway:
    """The time without a relay to the controller that the Lease names. Times are monotonic."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._controller: Candidate | None = None
        self._is_new = False  # it followed another one, and there was no relay to it

    def leaves_agents(
        self,
        now: float,
        *,
        relayed: bool,
        busy: bool,
        controller: Candidate | None,
        renewed_within: Callable[[float], bool],
    ) -> bool | None:
        """Whether the gateway leaves its agents; None: not now, and an earlier answer stays.

        ``busy``: the controller has accepted the present connection, and has not answered.
        ``renewed_within``: whether that controller was seen to renew the Lease that number of
        seconds ago or later.
        """
        if relayed or controller != self._controller or not renewed_within(UNSERVED_FOR):
            is_next = self._controller is not None and controller != self._controller
            self._is_new = not relayed and (self._is_new or is_next)
            self._since, self._controller = now, controller
            return False
        unserved = now - self._since
        if (busy or self._is_new) and unserved < BUSY_FOR:
            return None
        if unserved >= UNSERVED_FOR and renewed_within(unserved - UNSERVED_FOR):
            return True
        return None
