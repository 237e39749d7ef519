"""Writes of intent, and of what people must see, to a Quarantine in force or to the record."""

import logging
from dataclasses import replace

from attrs import define

from aggregator.cluster.port import (
    STILL_SCHEDULABLE,
    Action,
    Phase,
    Quarantine,
    QuarantineSpec,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.holds import NO_NODE
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.intent import (
    OURS,
    DesiredState,
    changed_intent,
    describe_override,
    releasing,
)
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.uncordon import recordon_due
from aggregator.quarantine.state.node import NodeState

log = logging.getLogger("sickbay.quarantine")


@define(eq=False, repr=False, slots=False, kw_only=True)
class ObjectWrites:
    _acts: NodeActions

    async def enter(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Count a quarantine that the record does not have, such as one made by hand."""
        spec = quarantine.spec
        if spec.requester != OURS:
            node_state.take_node(await self._acts.cluster.read_node(node_state.node))
            if node_state.cluster.node_gone:
                await self.report_no_node(node_state, quarantine)
                return
        await self._acts.record_writer.enter_quarantine(node_state.node, spec)
        who = "by sickbay" if spec.requester == OURS else "by hand"
        text = f"{spec.action} entered, made {who}: {spec.reason}"
        self._acts.emit_event(node_state, EventKind.ADMITTED, text)

    async def update(
        self, node_state: NodeState, quarantine: Quarantine, wanted: DesiredState
    ) -> None:
        """Make changes of the intent durable."""
        spec = changed_intent(quarantine.spec, wanted)
        if spec is None:
            return
        await self._write_spec(node_state, quarantine, spec)
        if spec.action is not quarantine.spec.action:
            text = f"{quarantine.spec.action} becomes {spec.action}: {wanted.spec.reason}"
            self._acts.emit_event(node_state, EventKind.INCIDENT_CHANGED, text)

    async def force(self, node_state: NodeState) -> None:
        """A quarantine for an annotation of a person: made, or changed with it."""
        node_state.take_node(await self._acts.cluster.read_node(node_state.node))
        action = node_state.cluster.operator_requests.forced(self._acts.clocks.earliest())
        if action is None or node_state.agent.misnamed:
            return  # taken back in between
        reason = node_state.cluster.operator_requests.force_reason
        quarantine = node_state.quarantine
        if quarantine is None:
            spec = QuarantineSpec(
                action,
                "manual",
                reason,
                requester=FORCED,
                intent_action=action,
                installation=self._acts.cluster.installation,
            )
            guard = self._acts.guard(node_state, granted=False)  # it is entered after it is made
            node_state.wrote(
                await self._acts.cluster.create_quarantine(node_state.node, spec, guard=guard)
            )
            return
        spec = replace(quarantine.spec, action=action, reason=reason, intent_action=action)
        await self._write_spec(node_state, quarantine, spec)

    async def show_override(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Write a person's action to the status; a drain that has become a cordon is one again."""
        text, status = describe_override(quarantine.spec), quarantine.status
        changed = replace(status, override=text)
        if quarantine.spec.action is not Action.DRAIN and status.phase is Phase.DRAINING:
            message = self._acts.words.in_force.format(node=node_state.node)
            changed = replace(
                changed, phase=Phase.CORDONED, message=message, pods_remaining=None, blockers=()
            )
        await self._acts.write_status(node_state, quarantine, changed)
        if text != status.override:
            again = f"spec.action is {quarantine.spec.action} again, as it was decided"
            self._acts.emit_event(node_state, EventKind.OVERRIDDEN, text or again)

    async def show_cordon(self, node_state: NodeState, quarantine: Quarantine, text: str) -> None:
        """Write to the status that the node is left schedulable, or that others cordoned it."""
        wall = self._acts.clocks.wall()
        status = replace(quarantine.status, uncordoned=text)
        due = text.startswith(STILL_SCHEDULABLE) and recordon_due(quarantine.status, wall) <= wall
        kind = EventKind.UNCORDONED if due else None
        details = {"whose": node_state.quarantine_view.uncordoned.value}
        with self._acts.reporting(node_state, kind, text, details):
            await self._acts.write_status(node_state, quarantine, status)

    async def show_absence(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Write to the status that its Node is gone, and since when, or that it is back."""
        since = self._acts.clocks.latest() if node_state.cluster.node_gone else 0.0
        ends = quarantine.spec.requester == OURS
        event_text = (
            f"its Node is gone: it counts for no limit, and "
            f"{'ends by itself if the Node stays away' if ends else 'stays until it is deleted'}"
            if node_state.cluster.node_gone
            else "its Node is back, and is counted again"
        )
        message = event_text if quarantine.status.phase is not Phase.INVALID else NO_NODE
        status = replace(quarantine.status, node_absent_since=since, message=message)
        kind = EventKind.NODE_ABSENT if since else EventKind.NODE_BACK
        with self._acts.reporting(node_state, kind, event_text):
            await self._acts.write_status(node_state, quarantine, status)

    async def _write_spec(
        self, node_state: NodeState, quarantine: Quarantine, spec: QuarantineSpec
    ) -> None:
        node_state.wrote(await self._acts.cluster.write_quarantine_spec(quarantine, spec))

    async def write_conditions(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Write the status again: its conditions are made anew with each write of it."""
        written = await self._acts.write_status(node_state, quarantine, quarantine.status)
        node_state.quarantine_view.conditions_of = written.version

    async def refuse(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Report the error in a hand-made quarantine to its maker."""
        status = replace(quarantine.status, phase=Phase.INVALID, message=quarantine.problem)
        await self._acts.write_status(node_state, quarantine, status)

    async def unhold(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """The node is unhealthy again: the objections to its release no longer apply."""
        node_state.quarantine_view.unhold_release()
        if quarantine.status.release_held:
            status = replace(quarantine.status, release_held="")
            await self._acts.write_status(node_state, quarantine, status)

    async def void(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Withdraw a Quarantine made without admission, unless the record has an entry by now."""
        if await self._acts.record_writer.entry(node_state.node) is not None:
            return
        because = "made late, when its admission was over"
        ended = releasing(quarantine.status, because)
        node_state.wrote(await self._acts.cluster.write_quarantine_status(quarantine, ended))
        log.info(
            "Quarantine withdrawn",
            extra={
                "event": "step.quarantine_withdrawn",
                "node": node_state.node,
                "reason": because,
            },
        )

    async def report_no_node(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Report that the node does not exist. A hand-made quarantine is invalid until it does."""
        message = NO_NODE
        node_state.work.last_error = message
        by_hand = quarantine.spec.requester != OURS and quarantine.status.phase is Phase.ADMITTED
        phase = Phase.INVALID if by_hand else quarantine.status.phase
        if (quarantine.status.message, quarantine.status.phase) != (message, phase):
            status = replace(quarantine.status, phase=phase, message=message)
            await self._acts.write_status(node_state, quarantine, status)
