"""Makes the attempt at a repair that is about to begin: its id, its place and its times."""

from aggregator.clock import Clocks
from aggregator.cluster.port import Node, Quarantine, RepairAttempt, RepairState, RepairStatus
from aggregator.quarantine.decide.repair import NextRepair, domains_of, operation_id
from aggregator.quarantine.repair.attempts import MOST_TEXT
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.state.node import NodeState

#: Failure domains that an attempt keeps: as many as the definition of quarantines takes.
_MOST_DOMAINS = 32
#: Times of attempts are in whole parts of this long (seconds).
_LATER = 0.001


class AttemptMaker:
    """Reads no object and changes nothing."""

    def __init__(self, clocks: Clocks, settings: RepairSettings) -> None:
        self._clocks = clocks
        self._settings = settings

    def operation(self, quarantine: Quarantine, step: NextRepair) -> str:
        """The id of the step's attempt."""
        return operation_id(quarantine.uid, quarantine.status.repair, step.repair)

    def domains(self, node: Node) -> tuple[str, ...]:
        """The failure domains that the limits count."""
        return domains_of(node.labels, self._settings.domain_labels)

    def make(
        self, node_state: NodeState, node: Node, quarantine: Quarantine, step: NextRepair
    ) -> RepairAttempt:
        """The attempt that begins now."""
        now = self._begins_at(quarantine)
        return RepairAttempt(
            operation=self.operation(quarantine, step),
            repair=step.repair,
            state=RepairState.ORDERING,
            boot_id=node.boot_id or boot_of(node_state),
            node_uid=node.uid,
            domains=self.domains(node)[:_MOST_DOMAINS],
            request=step.request,
            began_at=now,
            deadline_at=now + self._settings.repairers[step.repair].timeout,
            message=step.because[:MOST_TEXT],
            profile=step.profile,
        )

    def _begins_at(self, quarantine: Quarantine) -> float:
        """The time, and after the last evidence and the last end of the repairs: another replica
        may have written these by a clock that is ahead, and the attempt would count as earlier.
        """
        repair = quarantine.status.repair or RepairStatus()
        after = max(repair.evidence_at, repair.exhausted_at) + _LATER
        return round(max(self._clocks.latest(), after), 3)
