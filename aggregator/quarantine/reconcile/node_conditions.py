"""Writes the conditions that a site has chosen for other tools, where they have to change.

Transitions alone are written. What was written is in an annotation of the node, which the list of
nodes shows: so a replica that takes a node over, and one whose configuration has other entries,
know of the conditions that another has written.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.condition_record import CONDITIONS, WrittenCondition, read_written
from aggregator.cluster.port import (
    Cluster,
    ClusterError,
    GuardRefused,
    NodeCondition,
    NodeMeta,
    WrittenConditions,
)
from aggregator.health.node import name_gpus
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.decide.node_conditions import NodeConditionRule, condition_of
from aggregator.quarantine.decide.operator_requests import read_operator_requests
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")

#: The nodes are compared this often (seconds).
EVERY = 2.0
#: Without an entry only conditions that an earlier configuration left are looked for.
EVERY_WITHOUT = 60.0
#: After a failure, or a condition of another writer, a node is tried again after this long
#: (seconds).
AGAIN_AFTER = 60.0
_AT_ONCE = 8
_SLICE = 500


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeConditionPublisher:
    """One task. The stop switch is read before each write."""

    _cluster: Cluster
    _rules: Sequence[NodeConditionRule]
    _registry: NodeRegistry = field(alias="node_registry")
    _queue: WorkQueue
    _clocks: Clocks
    _switch: StopSwitch

    def __attrs_post_init__(self) -> None:
        self._rules = tuple(self._rules)
        self._types = frozenset(rule.type for rule in self._rules)
        self._now = self._clocks.now
        #: This process's writes, by node: newer than the list. With the Node's uid.
        self._written: dict[str, tuple[str, Mapping[str, WrittenCondition]]] = {}
        #: Nodes to leave alone, until then.
        self._waits: dict[str, float] = {}
        self._foreign: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.sweep()
            await asyncio.sleep(EVERY if self._rules else EVERY_WITHOUT)

    async def sweep(self) -> None:
        """Write each condition that has to change now."""
        if not self._queue.view:
            return
        due = [(meta, wanted) async for meta, wanted in self._due()]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def write(meta: NodeMeta, wanted: Mapping[str, NodeCondition | None]) -> None:
            async with slots:
                await self._write(meta, wanted)

        await asyncio.gather(*(write(meta, wanted) for meta, wanted in due))

    async def _due(self) -> AsyncIterator[tuple[NodeMeta, Mapping[str, NodeCondition | None]]]:
        names = set(self._registry.annotated(CONDITIONS))
        if self._rules:
            names |= {node_state.node for node_state in self._registry.node_states()}
        self._forget_others(names)
        for count, name in enumerate(sorted(names), 1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            meta = self._registry.meta(name)
            if meta is None or not self._queue.holds_lease():
                self._written.pop(name, None)
                continue
            if self._now() < self._waits.get(name, 0.0):
                continue
            wanted = self._changes(meta, self._registry.known(name))
            if wanted:
                yield meta, wanted

    def _forget_others(self, names: set[str]) -> None:
        for known in (self._written, self._waits):
            for gone in known.keys() - names:
                del known[gone]
        self._foreign = {one for one in self._foreign if one[0] in names}

    def _changes(
        self, meta: NodeMeta, node_state: NodeState | None
    ) -> dict[str, NodeCondition | None]:
        known = self._known(meta)
        changes: dict[str, NodeCondition | None] = {
            kind: None for kind in known if kind not in self._types
        }
        if node_state is None:
            return changes
        for rule in self._rules:
            wanted = _condition(rule, node_state)
            if wanted is None or (rule.type not in known and not wanted.unhealthy):
                continue
            if wanted.unhealthy and (self._registry.fleet.stop or node_state.decision.exempt):
                continue
            if rule.type not in known or known[rule.type].status != wanted.status:
                changes[rule.type] = wanted
        return changes

    def _known(self, meta: NodeMeta) -> Mapping[str, WrittenCondition]:
        """Those of this installation."""
        uid, written = self._written.get(meta.name, ("", {}))
        found = written if uid == meta.uid else read_written(meta.annotations)
        ours = self._cluster.installation
        return {kind: one for kind, one in found.items() if one.installation == ours}

    async def _write(self, meta: NodeMeta, wanted: Mapping[str, NodeCondition | None]) -> None:
        try:
            done = await self._cluster.write_conditions(
                meta.name, node_uid=meta.uid, wanted=wanted, guard=self._guard
            )
        except ClusterError as error:
            level = logging.INFO if isinstance(error, GuardRefused) else logging.WARNING
            extra = {"node": meta.name, "error": str(error)}
            log.log(level, "conditions not written", extra=extra)
            self._waits[meta.name] = self._now() + max(AGAIN_AFTER, error.retry_after or 0.0)
            return
        self._waits.pop(meta.name, None)
        self._written[meta.name] = (meta.uid, done.written)
        self._note_foreign(meta.name, done)

    async def _guard(self, annotations: Mapping[str, str] | None) -> None:
        """Raises ClusterError where a condition may not become unhealthy any more.

        A tool may replace the node by it, so the request is checked as an acting one is. Any other
        write needs the place: the next controller may have written a newer state.
        """
        if annotations is None:
            await self._switch.check_place()
            return
        await self._switch.check()
        requests = read_operator_requests(annotations)
        if requests.exempt(self._clocks.earliest()):
            raise GuardRefused(requests.why_capped(self._clocks.earliest()))

    def _note_foreign(self, node: str, done: WrittenConditions) -> None:
        if done.foreign:
            self._waits[node] = self._now() + AGAIN_AFTER
        for kind in done.foreign:
            if (node, kind) not in self._foreign:
                self._foreign.add((node, kind))
                text = "the condition is another writer's, and is left as it is"
                log.warning(text, extra={"node": node, "condition": kind})


def _condition(rule: NodeConditionRule, node_state: NodeState) -> NodeCondition | None:
    view = node_state.quarantine_view
    unsettled = view.quarantine is not None or view.definition_going or view.vanished
    found = condition_of(
        rule,
        quarantine=view.quarantine,
        incidents=node_state.decision.incidents,
        settled=not (unsettled or node_state.cluster.marked),
        reported=node_state.agent.is_fresh,
    )
    if found is None:
        return None
    return replace(found, message=name_gpus(found.message, node_state.agent.health))
