"""How long each stage takes, from the kernel's line to the release, and the causes of quarantines.

Counted since the start of this process, of the nodes that it owns. Observations are made once for a
fault, a decision or a quarantine, never for a heartbeat.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.cluster.port import QuarantineSpec, QuarantineStatus, RepairAttempt
from aggregator.health.model import Fault
from aggregator.policy.repairs import NEEDS_PERSON, TEST
from aggregator.runtime.histogram import Histogram
from aggregator.runtime.text import visible

#: Upper bounds in seconds: milliseconds where no work waits, a minute where agents reconnect.
_QUICK = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: A thousand nodes at once take half a minute; a limit may hold a node for hours.
_TAINT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0, 3600.0)
#: Up to the default deadline of a drain, 7 days.
_DRAIN = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 43200, 86400, 604800)
#: Minutes for a check that recovers, days for a repair, weeks for a replacement.
_RELEASE = (60, 300, 900, 1800, 3600, 7200, 14400, 43200, 86400, 259200, 604800, 2592000)
#: A GPU's reset takes seconds, a reboot minutes, a replacement hours, a ticket's answer a day.
_REPAIR = (5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
#: Characters of a value of a label; codes of honest agents are far shorter.
_LONGEST_LABEL = 100
#: The source of faults that an agent reads from the kernel log; `nodeagent.sources.kmsg` names it.
KERNEL_LOG = "kmsg"
#: Pairs of rule and code that are counted apart: a site's own checks choose their codes.
MAX_CAUSES = 150
OTHER = "(other)"
#: Rule and code of a quarantine that a person made.
MANUAL = "(manual)"


@dataclass(slots=True)
class _Decision:
    """A node that is to be quarantined: since when (monotonic seconds), and if a limit held it."""

    at: float
    held: bool = False


class StageTimes:
    """Written by the controller's parts, read by the metrics."""

    def __init__(self) -> None:
        self.kernel_to_ingest = Histogram(_QUICK)
        self.ingest_to_decision = Histogram(_QUICK)
        #: By whether a limit held the node in between.
        self.decision_to_taint = {False: Histogram(_TAINT), True: Histogram(_TAINT)}
        self.taint_to_drained = Histogram(_DRAIN)
        self.quarantine_to_release = Histogram(_RELEASE)
        #: Ended attempts at a repair, by repair and outcome; and from order to end, by repair.
        self.repair_attempts: Counter[tuple[str, str]] = Counter()
        self.repair_durations: dict[str, Histogram] = {}
        #: Ended tests, by reason and outcome.
        self.tests: Counter[tuple[str, str]] = Counter()
        #: Of nodes that had a repair.
        self.node_return = Histogram(_RELEASE)
        #: Quarantines by (rule, code) of their evidence.
        self.causes: Counter[tuple[str, str]] = Counter()
        #: GPUs of nodes in quarantine, times seconds.
        self.gpu_seconds = 0.0
        #: Nodes of a decision in force; None: this process has tainted the node for it.
        self._decided: dict[str, _Decision | None] = {}

    def note_faults(self, faults: Iterable[Fault], at: float) -> None:
        """Faults of a delta that arrived at ``at``, monotonic seconds.

        A snapshot's are no measure: an agent sends those again whenever it connects.
        """
        for fault in faults:
            if fault.source == KERNEL_LOG and not fault.historical:
                self.kernel_to_ingest.observe(at - fault.last_at)

    def note_decision(
        self, node: str, now: float, *, acts: bool, arrived: float | None = None
    ) -> None:
        """The result of an evaluation. ``acts``: evidence calls for a quarantine.

        ``arrived``: when the evidence arrived that was evaluated at once, or None where a rule had
        waited, whose wait is configuration.
        """
        if not acts:
            self._decided.pop(node, None)
        elif node not in self._decided:
            self._decided[node] = _Decision(now)
            if arrived is not None:
                self.ingest_to_decision.observe(now - arrived)

    def note_hold(self, node: str) -> None:
        """A limit, or another reported reason, keeps the node from its quarantine."""
        decision = self._decided.get(node)
        if decision is not None:
            decision.held = True

    def note_taint(self, node: str, now: float) -> None:
        """The node of a quarantine that this process has just made has its taint."""
        decision = self._decided.get(node)
        if decision is not None:
            self.decision_to_taint[decision.held].observe(now - decision.at)
            self._decided[node] = None

    def note_causes(self, spec: QuarantineSpec) -> None:
        """A quarantine is carried out; each rule and code of its evidence counts once."""
        # A code has words of an agent, and dashboards show the values of labels.
        pairs = {
            (visible(item.rule, _LONGEST_LABEL), visible(item.code, _LONGEST_LABEL))
            for item in spec.evidence
        } or {(MANUAL, MANUAL)}
        for pair in pairs:
            known = pair in self.causes or len(self.causes) < MAX_CAUSES
            self.causes[pair if known else (OTHER, OTHER)] += 1

    def note_drained(self, cordoned_at: float, drained_at: float) -> None:
        """Both by the wall clock, from the Quarantine's status: another replica may have begun."""
        if cordoned_at > 0:
            self.taint_to_drained.observe(drained_at - cordoned_at)

    def note_release(self, cordoned_at: float, released_at: float) -> None:
        """As `note_drained`; a quarantine that never marked its node has no duration."""
        if cordoned_at > 0:
            self.quarantine_to_release.observe(released_at - cordoned_at)

    def note_repair(self, ended: RepairAttempt) -> None:
        """An attempt at a repair has ended. Its times are the wall clock's: see `note_drained`."""
        self.repair_attempts[ended.repair, ended.state.value] += 1
        found = self.repair_durations.setdefault(ended.repair, Histogram(_REPAIR))
        found.observe(ended.ended_at - ended.began_at)
        if ended.repair == TEST:
            self.note_test("by-hand" if ended.request else "before-release", ended.state.value)

    def note_test(self, reason: str, outcome: str) -> None:
        """An active test has ended, which was begun for this reason."""
        self.tests[reason, outcome] += 1

    def note_return(self, status: QuarantineStatus, released_at: float) -> None:
        """As `note_release`, of a quarantine with a repair; a ticket or a test is none."""
        attempts = status.repair.attempts
        none = {*NEEDS_PERSON, TEST}
        if status.cordoned_at > 0 and any(one.repair not in none for one in attempts):
            self.node_return.observe(released_at - status.cordoned_at)

    def note_out_of_service(self, gpus: int, seconds: float) -> None:
        """Add ``gpus`` GPUs on nodes in quarantine for ``seconds``."""
        self.gpu_seconds += gpus * max(seconds, 0.0)
