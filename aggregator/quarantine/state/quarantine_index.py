"""The Quarantines that stand in the whole cluster, by watch events: this replica's or not.

Those of another installation are not among them.
"""

from collections.abc import Callable, Collection

from aggregator.cluster.port import Quarantine, RepairStatus


class QuarantineIndex:
    """``pool_of`` tells the value of a node's `Limits.pool_label`, ``policy_pool_of`` its pool.

    ``whole``: all of them are known, and none that is gone.
    """

    def __init__(
        self,
        pool_of: Callable[[str], str] = lambda _: "",
        policy_pool_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.pool_of = pool_of
        self.policy_pool_of = policy_pool_of
        self._quarantines: dict[str, Quarantine] = {}
        self.whole = False

    def seen(self, quarantine: Quarantine) -> None:
        """It was made or changed. Another installation's is counted by its own record."""
        if quarantine.foreign:
            return
        self._quarantines[quarantine.node] = quarantine

    def gone(self, node: str, uid: str) -> None:
        known = self._quarantines.get(node)
        if known is not None and known.uid == uid:
            del self._quarantines[node]

    def quarantines(self) -> Collection[Quarantine]:
        return self._quarantines.values()

    def repair_of(self, node: str) -> RepairStatus | None:
        """The attempts at a repair of the node's quarantine, if it has one."""
        known = self._quarantines.get(node)
        return known.status.repair if known is not None else None

    @property
    def newest(self) -> int:
        """The highest generation of the record by which one of them was admitted."""
        return max((one.spec.record_generation for one in self._quarantines.values()), default=0)
