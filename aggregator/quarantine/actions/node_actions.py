"""The shared part of all acts on a node: the guard, reads, marks, the write of the status, events.

A cluster may have an admission policy that is older than the annotations for other tools, or that
does not name the one of `marks.reason_annotation`. The taint, the cordon and their undo are worth
more: none of them may fail for an annotation.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Action,
    AdmissionRefused,
    Cluster,
    Guard,
    Node,
    NodeChange,
    Phase,
    Quarantine,
    QuarantineStatus,
    Refused,
    Unreachable,
    is_refusal,
)
from aggregator.events import EventKind, EventSink, Transition
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.act_guard import (
    NEVER,
    Against,
    FreshRead,
    act_guard,
    quarantine_read,
)
from aggregator.quarantine.actions.announcer import Announcer
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import without_notices
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodePools
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.runtime.rate_limited_log import RateLimitedLog
from aggregator.runtime.recent import Recent


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeReports:
    _event_sink: EventSink
    clocks: Clocks
    stages: StageTimes

    def emit_event(
        self,
        node_state: NodeState,
        kind: EventKind,
        summary: str,
        details: Mapping[str, str] | None = None,
        *,
        incident: str = "",
    ) -> None:
        """Emit an event about the node, of its quarantine's incident where none is named."""
        quarantine, wanted = node_state.quarantine, node_state.decision.wanted
        if not incident and quarantine is not None:
            incident = quarantine.spec.incident
        if not incident and wanted is not None:
            incident = wanted.spec.incident
        node, at = node_state.node, self.clocks.wall()
        text, more = f"{node}: {summary}", dict(details or {})
        self._event_sink.record_event(Transition(at, kind, node, text, incident, more))


log = logging.getLogger("sickbay.quarantine")


#: Annotations that admission refuses are logged at most this often (seconds).
_REFUSALS_EVERY = 600.0
#: A write that failed so long ago (seconds) is no longer tried, or was stored all the same.
_EMITTED_FOR = 600.0


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeActions(NodeReports):
    """For one node at a time; the controller runs many nodes at once. ``pools`` has each node's
    mode.
    """

    cluster: Cluster
    record_writer: AdmissionRecordWriter
    pools: NodePools
    announcer: Announcer
    policy: Policy

    def __attrs_post_init__(self) -> None:
        self.words, self.switch = self.cluster.words, self.record_writer.switch
        #: The guard of what undoes: its version may be of a read after another one's acts.
        self.place = Guard(self.switch.check_place)
        #: A storm has thousands of refusals, all for the same reason.
        self._refusals = RateLimitedLog(_REFUSALS_EVERY)
        #: By node, the event that was emitted although its write has failed, with the uid of the
        #: Quarantine; its version, which a later one follows where it was stored; and when the
        #: write last failed.
        self._emitted: Recent[str, tuple[tuple[EventKind, str], str, float]] = Recent()

    def guard(
        self,
        node_state: NodeState,
        *,
        granted: bool = True,
        against: Against = str,
        fresh: FreshRead | None = None,
    ) -> Guard:
        """The guard of each acting request on the node: it checks for changes since the decision.

        It checks the stop switch, read anew; the node's owner; whether it is being released; and,
        unless ``granted`` is False, whether the record still has the node's entry, by which it
        acts, and whether the mode of the pool, by the labels as last read, still lets us act on our
        own. ``against`` is the act's own check. ``fresh``: a read that is repeated where it is too
        old. Requests that undo or report take none.
        """
        decided_on = node_state.quarantine

        def released() -> str:
            known = node_state.quarantine
            if decided_on is not None and (known is None or known.uid != decided_on.uid):
                return f"the quarantine of {node_state.node} is gone"
            if known is None:
                return ""
            ends = known.deleting or known.status.phase is Phase.RELEASING
            return f"{node_state.node} is being released" if ends else ""

        def why_not() -> str:
            if granted and not self.record_writer.grants(node_state.node):
                return "the admission by which it was to be done is not in force any more"
            if granted and self._is_observed(node_state):
                return "the mode of the node's pool is observe now"
            return against()

        return act_guard(switch=self.switch, against=why_not, fresh=fresh, ends=released)

    def fresh_quarantine(self, quarantine: Quarantine) -> FreshRead:
        """The quarantine is read again before the act."""
        read = quarantine_read(self.cluster, quarantine)
        return FreshRead(read, clocks=self.clocks, began=NEVER)

    def _is_observed(self, node_state: NodeState) -> bool:
        """Whether its mode forbids acts of our own; a person's quarantine continues in any mode."""
        quarantine = node_state.quarantine
        ours = quarantine is None or quarantine.spec.requester == OURS
        return ours and self.pools.mode_of(node_state.node) is Action.OBSERVE

    def why_not_drained(self, node: str) -> str:
        """The mode that keeps us from evicting pods of the node; empty: it lets us."""
        drains = self.pools.mode_of(node) is Action.DRAIN
        return "" if drains else self.pools.describe_mode(node)

    async def read_node(self, node_state: NodeState) -> None:
        """Read the node, as the watches only hinted at a change."""
        node_state.work.needs_read = False
        try:
            node_state.take_node(await self.cluster.read_node(node_state.node))
        except Exception:
            node_state.work.needs_read = True
            raise

    async def reread(self, node_state: NodeState) -> Quarantine | None:
        """The object as it is now, and not as the watch last reported it."""
        before = node_state.quarantine
        quarantine = await self.cluster.read_quarantine(node_state.node)
        if quarantine is None:
            if node_state.quarantine is not None:
                node_state.quarantine_view.miss()
        else:
            node_state.take_read(quarantine, self.policy, self.clocks.now(), before=before)
        return quarantine

    async def read_anew(self, node_state: NodeState) -> tuple[Node | None, Quarantine | None]:
        """The node in full, and then its Quarantine: the fence of each change of the node's marks.
        An act on an older state fails by the node's version. See docs/fences.md.
        """
        node = await self.cluster.read_node(node_state.node)
        quarantine = await self.reread(node_state)
        node_state.take_node(node)
        return node, quarantine

    async def drop(self, node_state: NodeState, quarantine: Quarantine) -> str:
        """End the object. Returns the boot of a Node that has replaced its own."""

        async def check() -> None:  # no version fences a deletion by uid
            await self.place()
            node_state.quarantine_view.ended = quarantine.uid

        await self.cluster.drop_quarantine(quarantine, guard=Guard(check))
        return node_state.quarantine_view.drop()

    async def patch_marks(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        """As `Cluster.patch_node`, without annotations for other tools where admission refuses
        these. The refused request changed nothing, so the second one is based on the same read of
        the node. `KEPT` names the annotations that an undo leaves: they go with the next release.
        """
        try:
            return await self.cluster.patch_node(node, change, guard=guard)
        except AdmissionRefused as error:
            plain = without_notices(change)
            if plain is None:
                raise
            patched = await self.cluster.patch_node(node, plain, guard=guard)
            fields = self._refusals("annotations", self.clocks.now())
            if fields is not None:
                log.warning(
                    "admission refuses annotations for other tools: nodes are marked and released"
                    " without them (apply deploy/kubernetes/admission-policies.yaml, and name"
                    " marks.reason_annotation in its ownNotices)",
                    extra={"node": node.name, "error": str(error), **fields},
                )
            return patched

    @contextlib.contextmanager
    def reporting(
        self,
        node_state: NodeState,
        kind: EventKind | None,
        text: str,
        details: Mapping[str, str] | None = None,
    ) -> Iterator[None]:
        """Emit the event of a write of the status, once; None: it has none. It is emitted also
        where the write is refused, or got no answer: it may be stored, and no later step would
        report it then.
        """
        if kind is None:
            yield
            return
        node, now, quarantine = node_state.node, self.clocks.now(), node_state.quarantine
        uid, version = (quarantine.uid, quarantine.version) if quarantine is not None else ("", "")
        event = kind, uid
        known, failed_at, at = self._emitted.get(node, (None, "", now))
        is_same = known == event and failed_at in ("", version)
        is_emitted = is_same and now < at + _EMITTED_FOR
        try:
            yield
        except (Refused, Unreachable) as error:
            self._emitted[node] = event, "" if is_refusal(error) else version, now
            if not is_emitted:
                self.emit_event(node_state, kind, text, details)
            raise
        self._emitted.pop(node, None)
        if not is_emitted:
            self.emit_event(node_state, kind, text, details)

    async def write_status(
        self, node_state: NodeState, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        written = await self.cluster.write_quarantine_status(quarantine, status)
        node_state.wrote(written)
        return written
