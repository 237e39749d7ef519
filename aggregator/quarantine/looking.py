"""Looks at those nodes now and then of which nothing else would tell, one request at a time.

Nodes are not watched. Two things are worth a read of their own: what people ask of a node that is
being drained (an exemption must stop evictions soon), and whether the kubelet of a silent agent is
ready, where the agent's last evidence was failing. Both grow with faults, and never with the fleet:
at most `A_SECOND` requests a second, whatever happens.
"""

import asyncio
import logging

from aggregator.policy.silent import worst_failing
from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import Cluster, ClusterError, Node, Phase
from aggregator.quarantine.decide.wishes import read_wishes
from aggregator.quarantine.judging import Judging
from aggregator.quarantine.ledger import Kind
from aggregator.shards.council import Shards

log = logging.getLogger("sickbay.quarantine")

A_SECOND = 5.0
#: A node that is being drained is looked at so often (seconds).
DRAINING_EVERY = 15.0
#: The kubelet of a silent agent is looked at so often (seconds).
SILENT_EVERY = 60.0
#: Between two rounds (seconds).
_ROUND = 5.0


class Looking:
    """Reads what is due, and has it judged. It writes nothing."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        census: Census,
        judging: Judging,
        acts: Acts,
        clocks: Clocks,
        shards: Shards,
    ) -> None:
        self._cluster = cluster
        self._census = census
        self._judging = judging
        self._acts = acts
        self._clocks = clocks
        self._shards = shards

    async def run(self) -> None:
        """For ever."""
        while True:
            for case in self._due():
                if self._is_due(case):
                    await self._look(case)
                    await asyncio.sleep(1 / A_SECOND)
            await asyncio.sleep(_ROUND)

    def _due(self) -> list[Case]:
        """Those of one round: what is drained first, and no storm of silence puts that off."""
        due = [case for case in self._census.cases() if self._is_due(case)]
        due.sort(key=lambda case: (not _is_draining(case), case.looked_at))
        return due[: int(A_SECOND * _ROUND)]

    def _is_due(self, case: Case) -> bool:
        waited = self._clocks.now() - case.looked_at
        if not self._shards.may_act(case.node):
            return False
        if _is_draining(case):
            return waited >= DRAINING_EVERY
        return waited >= SILENT_EVERY and bool(failing_in_silence(case))

    async def _look(self, case: Case) -> None:
        case.looked_at = self._clocks.now()
        try:
            node = await self._cluster.read_node(case.node)
        except ClusterError as error:
            log.info("not looked at", extra={"node": case.node, "error": str(error)})
            return
        if node is None:
            return
        if _is_draining(case):
            wishes = read_wishes(node.annotations)
            if wishes != case.wishes:
                case.wishes = wishes
                self._judging.judge(case)
        self._look_at_silence(case, node)

    def _look_at_silence(self, case: Case, node: Node) -> None:
        last = failing_in_silence(case)
        if not last or case.silent_failing or node.ready is not True:
            return
        case.silent_failing, case.silent_failing_since = last, self._clocks.now()
        text = f"its agent is silent, its kubelet is ready, and this was failing: {last}"
        self._acts.note(case, Kind.SILENT_FAILING, text)
        self._judging.judge(case)


def _is_draining(case: Case) -> bool:
    quarantine = case.patient.quarantine
    return quarantine is not None and quarantine.status.phase is Phase.DRAINING


def failing_in_silence(case: Case) -> str:
    """What was failing when the agent fell silent; empty for all that need no look.

    A node in quarantine needs none: its agent's silence changes nothing there.
    """
    patient = case.patient
    if not case.silent or patient.attached or patient.health is None:
        return ""
    if patient.quarantine is not None or patient.conflict:
        return ""
    acting = [one for one in patient.incidents.values() if one.action != "observe" and one.in_force]
    return acting[0].summary if acting else worst_failing(patient.health)
