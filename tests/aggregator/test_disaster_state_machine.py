"""The state machine of the controller, with moves that remove objects past the aggregator.

The definition is made anew, the record is garbled or lost, Nodes stay away for long, etcd is
restored from a backup, and finalizers are stripped. Only a person's request releases a node in any
of these cases, and it is carried out in all of them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Phase, RecordText
from aggregator.quarantine.decide.admission_record import RecordUnreadable, parse_record
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import FORCED
from tests.aggregator.controller_world import HOW, NODES, nodes
from tests.aggregator.test_controller_state_machine import ControllerMachine

pytestmark = pytest.mark.timeout(900)

#: A quarantine of ours stands for so long (seconds) after its Node went.
ABSENT = 600.0
#: Long enough for the steps decided now to be done, and for a record to be believed again.
SOON = 40.0
_MARKED = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)


class Disasters(ControllerMachine):
    """Each forbidden state is looked for where each disaster is over."""

    more_limits: ClassVar[Mapping[str, Any]] = {"absent_node_after": ABSENT}

    def __init__(self) -> None:
        super().__init__()
        #: Acknowledged signs are lost with the object that they were written to.
        self.forgets = False

    def _settles(self) -> None:
        if not self.forgets:
            super()._settles()
            return
        self._quiet()
        self._explained()

    def check_limits(self, entries: set[str], made: dict[str, str]) -> None:
        """The limits belong to tests that lose no object; these are about the fate of nodes."""
        for name, node in self.world.nodes.items():
            if name in self.cordoned and not node.unschedulable:
                self.wrong.append(f"{name} lost somebody else's cordon")

    def entries(self) -> set[str]:
        """A record that can't be read has no known entries: the quarantines stand for them."""
        try:
            return set(parse_record(self.world.record.text).entries)
        except RecordUnreadable:
            return set(self.world.quarantines)

    @initialize(gpu=st.sampled_from(("GPU-1", "GPU-2")))
    def a_fleet_with_quarantines(self, gpu: str) -> None:
        """One of ours and one made by hand; disasters come to those that have something to lose."""
        for name in NODES:
            self._attach(self.agents[name])
        self._go(1)
        self.a_fault(NODES[0], "xid:79", gpu)
        self.a_person_quarantines(NODES[2], Action.CORDON)
        self._go(SOON)

    def _patient(self, name: str) -> str:
        """The node, or the next one that is in quarantine."""
        at = NODES.index(name)
        turned = NODES[at:] + NODES[:at]
        return next((one for one in turned if one in self.world.quarantines), name)

    def _quiet(self) -> None:
        """Planned failures and crashes have happened or are dropped: a disaster is enough."""
        self.errors.clear()
        self.replica.cluster.crash_in(-1, after=False)
        self._go(SOON)

    def _standing(self) -> set[str]:
        """The nodes that only a person may release: their cause has not ended."""
        found = set()
        for name, one in self.world.quarantines.items():
            node = self.world.nodes.get(name)
            if one.deleting or one.status.phase not in _MARKED or node is None:
                continue
            asks = {(item.code, item.component) for item in one.spec.evidence if not item.cleared}
            stands = one.spec.requester != OURS or asks & self.agents[name].standing()
            if node.unschedulable and is_marked(node) and stands:
                found.add(name)
        return found

    def _kept(self, before: set[str], what: str) -> None:
        for name in before:
            node = self.world.nodes[name]
            if not (node.unschedulable and is_marked(node)):
                self.wrong.append(f"{what} has released {name}")
            elif name not in self.world.quarantines:
                self.wrong.append(f"{name} has no quarantine after {what}")

    @rule(record_too=st.booleans(), dies=st.booleans())
    def the_definition_is_made_anew(self, *, record_too: bool, dies: bool) -> None:
        self._quiet()
        before = self._standing()
        self.forgets = True  # its objects went at once: no aggregator could let go of them
        self.world.person_removes_definition()
        if record_too:
            self.world.record = RecordText("", self.world.tick())
        if dies:
            self.replica.cluster.crashed.set()
        self._go(1)
        self.world.person_applies_definition()
        self._go(SOON)
        self._kept(before, "a new definition")

    @rule(name=nodes, dies=st.booleans())
    def a_person_deletes_while_the_record_is_unreadable(self, name: str, *, dies: bool) -> None:
        self._quiet()
        name = self._patient(name)
        quarantine = self.world.quarantines.get(name)
        self.world.person_garbles_the_record()
        if dies:
            self.replica.cluster.crashed.set()
        self._go(1)
        if quarantine is not None and not quarantine.deleting:
            self._overruled(name)
            self.world.person_deletes(name)
            self._go(SOON)
            if is_marked(self.world.nodes[name]):
                self.wrong.append(f"the record held up the release of {name}")
        before = self._standing()
        self.world.person_garbles_the_record("")
        self._go(SOON)
        self._kept(before, "an emptied record")

    @rule(name=nodes, seconds=st.sampled_from((30.0, ABSENT + 60)), dies=st.booleans())
    def a_node_is_away(self, name: str, seconds: float, *, dies: bool) -> None:
        """The Node comes back in the same boot, without our marks."""
        self._quiet()
        name = self._patient(name)
        node = self.world.nodes[name]
        standing = name in self._standing()
        if standing and self.world.quarantines[name].spec.requester == FORCED:
            return  # the annotation that forces it goes with the Node
        by_hand = standing and self.world.quarantines[name].spec.requester != OURS
        self.world.delete_node(name)
        if dies:
            self.replica.cluster.crashed.set()
        self._go(seconds)
        stays = name in self.world.quarantines
        if standing and seconds < ABSENT and not stays:
            self.wrong.append(f"the quarantine of {name} ended while its Node was away")
        if stays and seconds > ABSENT and not by_hand:
            left = self.world.quarantines[name]
            if left.spec.requester == OURS:
                self.wrong.append(f"the quarantine of {name} outlived its Node: {left}")
        self.cordoned.discard(name)
        self.foreign.discard(name)
        self.exempt.pop(name, None)
        self.words[name].clear()
        self.world.add_node(name, uid=f"uid-{self.world.tick()}", boot_id=node.boot_id)
        agent = self.agents[name]
        self._detach(agent)
        agent.node_uid = self.world.nodes[name].uid
        self._attach(agent)
        self._go(SOON)
        node_summary = self.replica.fleet.node_summaries[name]
        held = (
            node_summary.decision.hold
            or node_summary.agent.conflict
            or node_summary.decision.exempt
            or node_summary.cluster.maintained
        )
        if standing and stays and not held and not is_marked(self.world.nodes[name]):
            self.wrong.append(f"{name} came back to its quarantine and was not marked")

    @rule(name=nodes)
    def etcd_is_restored(self, name: str) -> None:
        """Every change since the copy is undone; a person's next word is carried out."""
        self._quiet()
        name = self._patient(name)
        self.forgets = True
        backup, evicted = self.world.backup(), list(self.world.evicted)
        people = {key: set(words) for key, words in self.words.items()}
        quarantine = self.world.quarantines.get(name)
        if quarantine is not None and not quarantine.deleting:
            for _ in range(30):
                self.world.tick()
            self.world.person_deletes(name)
            self._go(SOON)
        self.world.restore(backup)
        self.world.evicted[:] = evicted
        self.words = people
        before = self._standing()
        self._go(SOON)
        self._kept(before, "a restored etcd")
        quarantine = self.world.quarantines.get(name)
        if quarantine is not None and not quarantine.deleting:
            self._overruled(name)
            self.world.person_deletes(name)
            self._go(SOON)
            again = self.world.quarantines.get(name)
            if again is not None and again.uid == quarantine.uid:
                self.wrong.append(f"after a restore the deletion of {name} was not carried out")

    @rule(name=nodes)
    def a_person_removes_by_force(self, name: str) -> None:
        """The finalizer is stripped while it is watched, which counts as a person's release."""
        self._quiet()
        name = self._patient(name)
        quarantine = self.world.quarantines.get(name)
        if quarantine is None or self.world.nodes[name].unschedulable is False:
            return
        self._overruled(name)
        self.world.person_removes_by_force(name)
        self._go(SOON)
        again = self.world.quarantines.get(name)
        asks = again.spec.evidence if again is not None else ()
        keys = {(item.code, item.component) for item in asks if not item.cleared}
        if again is not None and again.spec.requester == OURS and keys <= self.words[name]:
            self.wrong.append(f"{name} was taken away by force and made again")


Disasters.TestCase.settings = settings(HOW, max_examples=60, stateful_step_count=30)
TestDisasters = Disasters.TestCase


def test_a_pod_that_a_restored_etcd_brings_back_is_evicted_once_more() -> None:
    play = Disasters()
    play.a_fleet_with_quarantines(gpu="GPU-1")
    play.a_check_flaps(name="n2", times=3)
    play.etcd_is_restored(name="n1")
    play.teardown()
    assert not play.watch.wrong
