"""Reads the node conditions that rules name, and gives each node its evidence.

The evidence is level evidence in the aggregator's own name, next to the agent's own evidence: a
node without an agent is not evaluated. What was read ages by its own heartbeat. So a list that
fails, or a writer that has died, ends in "unknown" and in no action.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, EvidenceItem, NodesAndPods
from aggregator.health.model import Status
from aggregator.policy.evaluate import Evidence
from aggregator.policy.node_condition import (
    ReportedCondition,
    ReportedConditions,
    as_evidence,
    unhealthy_statuses,
)
from aggregator.policy.rules import CONDITION_CHECK, Policy
from aggregator.quarantine.reconcile.own_evidence import OwnEvidence
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")

#: Seconds between two lists of all nodes. Writers renew a condition every 5 minutes.
READ_EVERY = 180.0
#: The last list is passed on again this often (seconds): an agent may attach between two lists.
LOG_EVERY = 5.0
#: Nodes handled before the event loop runs other tasks.
_SLICE = 500


#: A node, and the type of a condition.
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A condition as the last list has it, and the UID of the Node that it is of."""

    condition: ReportedCondition | None = None
    uid: str = ""


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeConditionReader:
    _cluster: NodesAndPods
    _policy: Policy
    _registry: NodeRegistry = field(alias="node_registry")
    _own_evidence: OwnEvidence
    _queue: WorkQueue
    _clocks: Clocks

    def __attrs_post_init__(self) -> None:
        self._unhealthy = {
            kind: status
            for kind, status in unhealthy_statuses(self._policy.rules).items()
            if self._cluster.has_condition(kind)
        }
        #: Conditions that are unhealthy, and those that were, until their end was reported.
        self._open: dict[_Key, _Reading] = {}
        self._trouble = ""

    async def run(self) -> None:
        """For ever; without a rule about a condition no request is ever sent."""
        if not self._unhealthy:
            await asyncio.Event().wait()
        due = float("-inf")
        while True:
            if self._queue.view and self._clocks.now() >= due:
                due = self._clocks.now() + READ_EVERY
                await self.read()
            self.report()
            await asyncio.sleep(LOG_EVERY)

    async def read(self) -> None:
        """List the conditions of all nodes, once."""
        try:
            found = await self._cluster.list_conditions(frozenset(self._unhealthy))
        except ClusterError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                text = "node conditions can't be read: no new one counts, and those known age"
                log.warning(text, extra={"error": self._trouble})
            return
        if self._trouble:
            log.info("node conditions can be read again")
            self._trouble = ""
        for count, one in enumerate(found, 1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            self._take(one)
        there = {one.node for one in found}
        self._open = {
            key: reading if key[0] in there else _Reading() for key, reading in self._open.items()
        }

    def _take(self, found: ReportedConditions) -> None:
        meta = self._registry.meta(found.node)
        if meta is not None and meta.uid != found.uid:
            return  # another Node of this name: the list of nodes has to show it first
        for kind, unhealthy in self._unhealthy.items():
            key, condition = (found.node, kind), found.conditions.get(kind)
            is_bad = condition is not None and condition.status == unhealthy
            if is_bad or key in self._open or self._is_open(key):
                self._open[key] = _Reading(self._dated(condition, key), found.uid)

    def _dated(self, condition: ReportedCondition | None, key: _Key) -> ReportedCondition | None:
        """The condition; one without a time of its change has been so since it was first read."""
        if condition is None or condition.since:
            return condition
        before = self._open.get(key, _Reading()).condition
        if before is not None and before.status == condition.status:
            return replace(condition, since=before.since)
        return replace(condition, since=self._clocks.earliest())

    def report(self) -> None:
        """Give what was read to the nodes whose agents report here."""
        now = self._clocks.now()
        earliest, latest = self._clocks.earliest(), self._clocks.latest()
        for (node, kind), reading in list(self._open.items()):
            evidence = as_evidence(
                kind,
                reading.condition if self._is_present(node, reading.uid) else None,
                self._unhealthy[kind],
                now=now,
                earliest=earliest,
                latest=latest,
            )
            recorded = self._own_evidence.record(node, evidence)
            is_over = evidence.status is Status.OK and recorded
            is_unknown = evidence.status is not Status.FAILED
            if is_over or (is_unknown and self._registry.known(node) is None):
                del self._open[node, kind]

    def _is_present(self, node: str, uid: str) -> bool:
        """Whether the Node of this name still is the one of this UID, as far as that is known: by
        the list of nodes, and by the token of its agent, which may be of a newer Node.
        """
        meta, node_state = self._registry.meta(node), self._registry.known(node)
        claimed = node_state.agent.claimed if node_state is not None else ""
        return (meta is None or meta.uid == uid) and claimed in {"", uid}

    def _is_open(self, key: _Key) -> bool:
        """Whether evidence of the condition is open, perhaps from before this process."""
        node_state = self._registry.known(key[0])
        return node_state is not None and key[1] in _types_in_force(node_state)


def _types_in_force(node_state: NodeState) -> set[str]:
    """The types of conditions on which the node's incidents or its quarantine rest."""
    quarantine = node_state.quarantine
    items: list[Evidence | EvidenceItem] = [*node_state.decision.evidence]
    items += quarantine.spec.evidence if quarantine is not None else ()
    found = (item for item in items if item.code.partition(":")[0] == CONDITION_CHECK)
    return {item.component for item in found if item.component}
