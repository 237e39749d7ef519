"""All cases by node, and how large the fleet is: the nodes that other replicas have counted in."""

from collections.abc import Mapping, Sequence

from aggregator.quarantine.case import Case
from aggregator.quarantine.cluster import NodeMeta
from aggregator.quarantine.decide.admission import Size
from aggregator.quarantine.elsewhere import Elsewhere
from aggregator.quarantine.fleet import Fleet


class Census:
    """Who is there. ``pool_label`` names the node label whose value is a node's pool.

    ``elsewhere`` are the nodes of other replicas: what is counted here counts them, too.
    ``lists_all``: what the cluster's list lacks is no node of it.
    """

    def __init__(
        self,
        fleet: Fleet,
        pool_label: str,
        elsewhere: Elsewhere | None = None,
        *,
        lists_all: bool = True,
    ) -> None:
        self._fleet = fleet
        self._lists_all = lists_all
        self._pool_label = pool_label
        self._elsewhere = elsewhere if elsewhere is not None else Elsewhere()
        self._cases: dict[str, Case] = {}
        self._metas: Mapping[str, NodeMeta] = {}
        self._listed = False
        self._pools: dict[str, int] = {}
        self._counted = 0

    def case(self, node: str) -> Case:
        """The node's case, made when there is none yet."""
        found = self._cases.get(node)
        if found is None:
            found = self._cases[node] = Case(self._fleet.patient(node))
        return found

    def known(self, node: str) -> Case | None:
        return self._cases.get(node)

    def cases(self) -> list[Case]:
        """A copy: what is done with them may add to them."""
        return list(self._cases.values())

    def forget(self, case: Case) -> None:
        """The node is no more, and nothing is left to do for it."""
        if case.timer is not None:
            case.timer.cancel()
        self._counted -= case.counted
        del self._cases[case.node]
        self._fleet.patients.pop(case.node, None)

    def is_listed(self, node: str) -> bool:
        """Whether the latest list had the node."""
        return node in self._metas

    def listed(self, nodes: Sequence[NodeMeta]) -> None:
        """The cluster's nodes, as just listed."""
        self._listed = True
        self._metas = {meta.name: meta for meta in nodes}
        self._pools = {}
        for meta in nodes:
            pool = meta.labels.get(self._pool_label, "")
            self._pools[pool] = self._pools.get(pool, 0) + 1
        for case in self._cases.values():
            self.count(case)

    def pool_of(self, node: str) -> str:
        meta = self._metas.get(node)
        return meta.labels.get(self._pool_label, "") if meta is not None else ""

    def observers(self, check: str, component: str) -> int:
        """How many nodes look at this component, with this check. Goes through all of them."""
        key = (check, component)
        here = sum(
            1
            for case in self._cases.values()
            if case.patient.health is not None
            and key in case.patient.health.components
            and case.node not in self._elsewhere
        )
        return here + sum(
            1
            for saying in self._elsewhere.sayings()
            if any((one[0], one[1]) == key for one in saying.sees)
        )

    def silence(self) -> tuple[int, int]:
        """How many agents have been gone for too long, of how many that were heard."""
        heard = [
            case
            for case in self._cases.values()
            if case.patient.health is not None
            and (not self._listed or case.node in self._metas)
            and case.node not in self._elsewhere
        ]
        theirs = [
            saying
            for saying in self._elsewhere.sayings()
            if not self._listed or saying.node in self._metas
        ]
        silent = sum(1 for case in heard if case.silent and not case.patient.attached)
        silent += sum(1 for saying in theirs if saying.silent)
        return silent, len(heard) + len(theirs)

    def count(self, case: Case) -> None:
        """The agent has given its snapshot, or was unheard: `size` is kept, and not counted anew.

        It is asked for at each admission; to go through 10,000 nodes takes as long as all the rest.
        """
        counts = case.heard and self._may_count(case.node)
        self._counted += counts - case.counted
        case.counted = counts

    def _may_count(self, node: str) -> bool:
        """Whether it may be one of those that make the quorum.

        The agents of another cluster's nodes, sent here by mistake, or of nodes that were deleted,
        say nothing of how the fleet is. One that has just joined counts from the next list on.
        """
        return not (self._listed and self._lists_all) or node in self._metas

    def size(self) -> Size:
        """Of all replicas' nodes; where we follow, as the leader last counted them."""
        reported = self._counted
        for saying in self._elsewhere.sayings():
            if self._may_count(saying.node):
                case = self._cases.get(saying.node)
                reported += saying.reported - (case is not None and case.counted)
        reported = max(reported, self._elsewhere.reported)
        return Size(max(len(self._metas), reported), reported, self._pools, listed=self._listed)
