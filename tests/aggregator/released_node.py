"""A node in quarantine, and the actions on it that a test runs one at a time."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    ClusterError,
    EvidenceItem,
    Phase,
    Quarantine,
    QuarantineSpec,
)
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.mark_restorer import MarkRestorer
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.lost_marks import RestoreRules
from aggregator.quarantine.decide.node_marks import PLAIN, cordon_change
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.plans.release import ReleaseStep
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.decide.uncordon import (
    OnUncordon,
    UncordonRules,
)
from tests.aggregator.test_node_actions import Bench, made
from tests.support.node_states import set_fields
from tests.support.replica import all_in_mode
from tests.support.virtual_time import VirtualTimeLoop, on

WORD = Override("xid:79", "GPU-1", "boot-1", "reboot")
EVIDENCE = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "a-rule", "i")
OVER = NextStep(ReleaseStep.RELEASE, because="its cause is over")
ENTRY = Entry("n1", "i", "", 1.0)
HEALTH: Any = SimpleNamespace(
    has_snapshot=True, boot_id="boot-2", components=SimpleNamespace(of=lambda _: ()), checks=()
)


class Back(Bench):
    """The same with the steps back."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__(loop)
        self.finished: list[Quarantine] = []
        self.forgotten: list[Entry | None] = []
        self.record_fails: ClusterError | None = None
        self.record_hangs = False
        record_writer: Any = SimpleNamespace(
            record=SimpleNamespace(entries=self.entries),
            grants=lambda _: True,
            entry=self._entry,
            forget_entry=self._forget,
            withdraw=self._withdraw,
            enter_quarantine=self._enter,
        )
        self.acts.record_writer, self.acts.pools = record_writer, all_in_mode(Action.DRAIN)
        self.back: Any = ReleaseActions(
            acts=self.acts,
            hooks=SimpleNamespace(after_release=self._after),
            uncordon=UncordonRules(OnUncordon.RELEASE),
            marks=PLAIN,
        )
        against: Any = self.back._against_release

        async def against_release(*args: Any) -> str:
            found: str = await against(*args)
            self.meanwhile()
            return found

        vars(self.back)["_against_release"] = against_release
        self.restorer: Any = MarkRestorer(acts=self.acts, rules=RestoreRules())
        self.adopter: Any = MarkAdopter(
            acts=self.acts,
            release_actions=self.back,
            orders=SimpleNamespace(withdraw=self._withdraw_orders),
        )

    async def _withdraw_orders(self, *_: Any) -> None:
        """This node has none."""

    async def _after(self, _: Any, quarantine: Quarantine) -> None:
        self.finished.append(quarantine)

    async def _entry(self, node: str) -> Entry | None:
        if self.record_hangs:
            await asyncio.sleep(3600)
        if self.record_fails is not None:
            raise self.record_fails
        return self.entries.get(node)

    async def _forget(self, entry: Entry | None) -> None:
        self.forgotten.append(entry)

    def recover(self) -> None:
        self.node_state.agent.attached, self.node_state.agent.health = True, HEALTH

    async def marked(self, phase: Phase = Phase.CORDONED, **changes: Any) -> Quarantine:
        """The node carries the marks of a Quarantine that stands."""
        node = self.world.nodes["n1"]
        spec = changes.pop("spec", None)
        base = made(phase, node_uid=node.uid, cordoned_at=4000.0, **changes)
        known = self.stands(replace(base, spec=spec) if spec is not None else base)
        node = await self.cluster.patch_node(node, cordon_change(node, known), guard=UNGUARDED)
        self.node_state.take_node(node)
        return known


with_back = on(Back)


def of_evidence(requester: str = OURS) -> QuarantineSpec:
    return QuarantineSpec(
        Action.DRAIN, "gpu", "x", requester, incident="i", boot_id="boot-1", evidence=(EVIDENCE,)
    )


# -- adoption -------------------------------------------------------------------------------------


async def strayed(bench: Back) -> None:
    """The node carries marks, and their Quarantine is gone."""
    await bench.marked(spec=of_evidence())
    del bench.world.quarantines["n1"]
    set_fields(bench.node_state, quarantine=None, to_adopt=True)
