"""The state machine of the controller with pools: a canary that drains, a pool that cordons, the
rest observed, while people move nodes between the pools at any time.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Evicted, EvictionResult, Phase, Pod
from aggregator.policy.label_selector import LabelSelector
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.pools import Pool, PoolLimits
from tests.aggregator.controller_world import HOW, NODES, POOL
from tests.aggregator.test_controller_state_machine import ControllerMachine
from tests.support.invariants import parse_record

pytestmark = pytest.mark.timeout(900)

MODES = {"canary": Action.DRAIN, "gentle": Action.CORDON, "": Action.OBSERVE}
FIRST = {"n1": "canary", "n2": "canary", "n3": "gentle", "n4": ""}
#: Of the canary, at most so many in quarantine by its own limit.
CANARY_LIMIT = 1
#: Requests that were under way when the node moved may land so much later (seconds).
UNDER_WAY = 1.0

nodes = st.sampled_from(NODES)


class Pooled(ControllerMachine):
    """Two pools, and nodes in none; the file's mode is observe."""

    file_mode = Action.OBSERVE
    pools: ClassVar[tuple[Pool, ...]] = (
        Pool(
            "canary",
            LabelSelector({POOL: "canary"}),
            Action.DRAIN,
            PoolLimits(concurrent=CANARY_LIMIT),
        ),
        Pool("gentle", LabelSelector({POOL: "gentle"}), Action.CORDON),
    )

    def __init__(self) -> None:
        #: When a node was moved last, by its name.
        self.moved: dict[str, float] = {}
        super().__init__()

    def own_labels(self, name: str) -> Mapping[str, str]:
        return {POOL: FIRST[name]} if FIRST[name] else {}

    def pool(self, name: str) -> str:
        node = self.world.nodes.get(name)
        return node.labels.get(POOL, "") if node is not None else ""

    @rule(name=nodes, pool=st.sampled_from(sorted(MODES)))
    def a_person_moves_a_node(self, name: str, pool: str) -> None:
        self._move(name, pool)
        self._go(0)

    @rule(name=nodes, pools=st.lists(st.sampled_from(sorted(MODES)), min_size=2, max_size=4))
    def a_person_cannot_decide(self, name: str, pools: list[str]) -> None:
        for pool in pools:
            self._move(name, pool)
            self._go(0.05)

    @rule(name=nodes)
    def an_unfit_node_changes_its_pool_and_stays_in_quarantine(self, name: str) -> None:
        """A change of labels is no sign of health: it neither releases a node nor undoes a mark."""
        before = self.world.quarantines.get(name)
        if before is None or before.status.phase is Phase.RELEASING or before.deleting:
            return
        if before.spec.requester != OURS or not self.agents[name].faults:
            return
        calm = not (self.errors or self.lifted or self.by_hand or self.is_stopped())
        marked = is_marked(self.world.nodes[name])
        asks = {(one.code, one.component) for one in before.spec.evidence if not one.cleared}
        if not calm or not asks & set(self.agents[name].faults):
            return
        restarts = len(self.restarts)
        for pool in sorted(MODES):
            self._move(name, pool)
            self._go(30)
            found = self.world.quarantines.get(name)
            if len(self.restarts) != restarts or self.words.get(name):
                return
            assert found is not None
            assert found.uid == before.uid
            assert found.status.phase is not Phase.RELEASING
            assert not marked or is_marked(self.world.nodes[name])
            assert name in self.entries()

    def _move(self, name: str, pool: str) -> None:
        node = self.world.nodes.get(name)
        if node is None or self.pool(name) == pool:
            return
        labels = {key: value for key, value in node.labels.items() if key != POOL}
        if pool:
            labels[POOL] = pool
        self.moved[name] = self.loop.time()
        self.world.set_node(replace(node, labels=labels))

    def check_limits(self, entries: set[str], made: dict[str, str]) -> None:
        marked = self.marked
        super().check_limits(entries, made)
        record = parse_record(self.world.record.text)
        fresh = {name for name in record.entries.keys() - entries if name not in made}
        for name in fresh:
            entry = record.entries[name]
            canaries = {
                other
                for other, one in record.entries.items()
                if one.policy_pool == "canary" and other not in self.world.facts.came_back
            }
            if entry.incident and entry.policy_pool == "canary" and len(canaries) > CANARY_LIMIT:
                self.wrong.append(f"{name} entered past the canary's limit: {sorted(canaries)}")
        for name in self.marked - marked:
            found = self.world.quarantines.get(name)
            ours = found is None or found.spec.requester == OURS
            if ours and MODES[self.pool(name)] is Action.OBSERVE:
                self.wrong.append(f"{name} was marked in a pool that is only observed")

    def looked_at_eviction(self, pod: Pod, result: EvictionResult) -> None:
        super().looked_at_eviction(pod, result)
        if result.outcome is not Evicted.ACCEPTED or pod.node not in self.world.nodes:
            return
        late = self.loop.time() > self.moved.get(pod.node, float("-inf")) + UNDER_WAY
        if late and MODES[self.pool(pod.node)] is not Action.DRAIN:
            self.wrong.append(f"{pod.uid} evicted from {pod.node}, whose pool does not drain")

    def _settles(self) -> None:
        super()._settles()
        record: Any = parse_record(self.world.record.text)
        assert all(one.policy_pool or not one.incident for one in record.entries.values())


Pooled.TestCase.settings = settings(HOW, max_examples=120)
TestPooled = Pooled.TestCase
