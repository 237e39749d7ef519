"""Applies cluster events to each node's state: objects, nodes, the record, the stop switch."""

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.node_names import LABEL, is_marked
from aggregator.cluster.port import (
    Cluster,
    ClusterError,
    ClusterEvent,
    Node,
    NodeMeta,
    NodeSeen,
    NodeUncordoned,
    Phase,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    RecordSeen,
    RecordText,
    StopSeen,
    WatchLost,
    WatchSynced,
)
from aggregator.cluster.words import ClusterWords
from aggregator.events import ChangeNotice, EventKind, EventSink, Transition
from aggregator.policy.rules import Policy
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.correlation.trackers import FleetTrackers
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.node_marks import marked_for, read_overruled
from aggregator.quarantine.decide.operator_requests import read_operator_requests
from aggregator.quarantine.decide.unreadable_annotations import unreadable_annotations
from aggregator.quarantine.reconcile.node_rounds import NodeRounds
from aggregator.quarantine.reconcile.poller import waits_for_its_node
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.registry import NodePools, NodeRegistry


@define(eq=False, repr=False, slots=False, kw_only=True)
class RecordEvents:
    """Enqueues the nodes that a change concerns, and reports it to people."""

    _registry: NodeRegistry
    record_writer: AdmissionRecordWriter
    _queue: WorkQueue
    _rounds: NodeRounds
    _event_sink: EventSink
    _clocks: Clocks

    def __attrs_post_init__(self) -> None:
        self._fleet = self._registry.fleet
        self._switch = self.record_writer.switch
        self._switch.listener = self
        #: The record's entries, and why it can't be used, by the last event.
        self._entries: Mapping[str, Entry] = {}
        self._problem = ""
        self._stop = ChangeNotice()
        self._record_reported = ChangeNotice()

    def view_lost(self) -> None:
        """The watches stopped: their next events count, whatever the versions are."""
        self._switch.view_lost()
        self.record_writer.forget_version()

    async def read(self) -> None:
        """Read the record, after the watches were lost."""
        try:
            await self.record_writer.read()
        except ClusterError as error:
            log.warning(
                "the record can't be read",
                extra={"event": "cluster.record_unread", "error": str(error)},
            )
        self._entries = self.record_writer.record.entries
        self._take_record()

    def record_seen(self, stored: RecordText) -> None:
        """Enqueue nodes whose entry has come or gone, and where one has gone, some that wait.

        Not all nodes with work: in a storm the record is written many times a second. Where the
        record became usable or unusable all of them are enqueued.
        """
        if not self.record_writer.seen(stored):
            return
        before, self._entries = self._entries, self.record_writer.record.entries
        if self._take_record():
            self._kick_all()
            return
        for node in before.keys() ^ self._entries.keys():
            self._queue.add_if_pending(self._registry.node_state(node))
        if before.keys() - self._entries.keys():
            self.make_room()

    def make_room(self) -> None:
        """A node counts no more: enqueue some held ones."""
        self._rounds.requeue_held()

    def _take_record(self) -> bool:
        """Returns whether the record can be used now and could not before, or the reverse."""
        self._fleet.record_entries = len(self.record_writer.record.entries)
        self._fleet.repairing = len(self.record_writer.record.repairs)
        before, self._problem = self._problem, self.record_writer.problem
        return before != self._problem

    def stop_changed(self) -> None:
        """The stop switch is set, is off, or has another reason, by an event or by a read."""
        self._fleet.stop = self._switch.reason
        self.report_stop()
        self._kick_all()

    def _kick_all(self) -> None:
        for node_state in self._registry.node_states():
            self._queue.add_if_pending(node_state)

    def report_stop(self) -> None:
        """Report the stop switch to people. Called in each round, too."""
        stop = self._fleet.stop
        if self._stop.is_due(stop):
            kind = EventKind.STOPPED if stop else EventKind.RESUMED
            text = f"the stop switch is set: {stop}" if stop else "the stop switch is off again"
            self._event_sink.record_event(Transition(self._clocks.wall(), kind, "", text))

    def report_record(self) -> None:
        """Report to people, once, a lost record, and the end of that. Called in each round.

        A rebuild takes less than a round, while its hold on admissions afterwards lasts longer.
        """
        trouble = self.record_writer.trouble
        if self._record_reported.is_due(trouble):
            kind = EventKind.RECORD_LOST if trouble else EventKind.RECORD_WHOLE
            text = trouble or "the admission record is whole again: admission goes on"
            self._event_sink.record_event(Transition(self._clocks.wall(), kind, "", text))


log = logging.getLogger("sickbay.quarantine")

#: A node that has left the cluster is shown for this long after its agent's last report (seconds).
FORGOTTEN_AFTER = 3600.0
#: Nodes handled before the event loop runs other tasks: some milliseconds.
_SLICE = 100
#: A quarantined node is read at most this often (seconds) because of a watch event about its marks.
_BETWEEN_READS = 2.0


def _is_requested_otherwise(node: Node, node_state: NodeState) -> bool:
    """Whether a person or another tool requests something else than by the last read."""
    cluster, requests = node_state.cluster, read_operator_requests(node.annotations)
    others = cluster.has_others_marks_of(node, node_state.others)
    return requests != cluster.operator_requests or not others


def _may_be_marked(node_state: NodeState, quarantine: Quarantine) -> bool:
    """Whether the node carries our marks, also where the status does not have them yet."""
    phase = quarantine.status.phase
    return phase in MARKED or (phase is Phase.ADMITTED and node_state.cluster.marked)


def _shows_known_marks(node: Node, node_state: NodeState, quarantine: Quarantine) -> bool:
    """Whether the node lacks just those marks that are known to be missing."""
    if quarantine.status.phase not in MARKED:  # its status does not have them yet
        status = replace(quarantine.status, node_uid=node.uid)
        return not node_state.quarantine_view.lacks(node, replace(quarantine, status=status))
    known, listed = node_state.quarantine_view.missing, quarantine.status.marks.missing
    return node_state.quarantine_view.lacks(node, quarantine) == known == listed


def _has_lost(node_state: NodeState, meta: NodeMeta) -> bool:
    """Whether the list shows that marks are gone which are not known to be."""
    quarantine, missing = node_state.quarantine, node_state.quarantine_view.missing
    if quarantine is None or quarantine.status.phase not in MARKED or missing:
        return False
    return LABEL not in meta.labels or not is_marked(meta)


@define(eq=False, repr=False, slots=False, kw_only=True)
class ClusterEventHandler:
    """Applies the events, one after the other."""

    _cluster: Cluster
    _policy: Policy
    _registry: NodeRegistry = field(alias="node_registry")
    records: RecordEvents
    _queue: WorkQueue
    _trackers: FleetTrackers
    _clocks: Clocks
    _pools: NodePools

    def __attrs_post_init__(self) -> None:
        self._index = self._registry.quarantine_index
        #: Quarantined nodes that have changed, to be read when the timer is due.
        self._changed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        #: Whether events come from a fresh list, and so count whatever their version is.
        self._listing = True
        #: When the list of nodes that was applied last was requested (monotonic seconds).
        self.listed_at = -math.inf
        #: Whether the nodes are being listed now: many take longer than a round.
        self.listing_nodes = False

    def close(self) -> None:
        """Stop reading."""
        if self._timer is not None:
            self._timer.cancel()

    async def follow(self) -> None:
        """For ever."""
        async for event in self._cluster.events():
            await self._take_event(event)

    async def _take_event(self, event: ClusterEvent) -> None:
        match event:
            case QuarantineSeen(seen):
                self._index.seen(seen)
                self._quarantine_seen(self._registry.node_state(seen.node), seen)
            case QuarantineGone(node, uid, with_definition):
                self._index.gone(node, uid)
                bereft = self._registry.known(node)
                if bereft is not None:
                    self._quarantine_gone(bereft, uid, with_definition=with_definition)
            case NodeUncordoned(node):
                subject = self._registry.node_state(node)
                quarantine = subject.quarantine
                marked = quarantine is not None and _may_be_marked(subject, quarantine)
                if marked or subject.cluster.foreign:
                    subject.work.needs_read = True
                    self._queue.add(subject)
            case NodeSeen(node):
                self._node_seen(node)
            case RecordSeen(record):
                self.records.record_seen(record)
            case StopSeen(stop):
                self.records.record_writer.switch.apply_seen(stop)
            case WatchLost(reason):
                self.records.view_lost()
                self._index.whole = False
                self._queue.view = False
                self._listing = True
                self._registry.fleet.view_lost = reason
                log.warning(
                    "watches of the cluster lost",
                    extra={"event": "cluster.watches_lost", "reason": reason},
                )
            case WatchSynced(unschedulable):
                self._listing = False
                await self._view_restored(unschedulable)

    def _node_seen(self, node: Node) -> None:
        """A quarantined node as a watch reports it, which may be behind: a read decides.

        A node that differs from its known state is read at once, or a little later where the same
        node was read a moment ago.
        """
        node_state = self._registry.known(node.name)
        quarantine = node_state.quarantine if node_state is not None else None
        if node_state is None or quarantine is None or not _may_be_marked(node_state, quarantine):
            return
        if _shows_known_marks(node, node_state, quarantine) and not (
            self._pools.has_moved(node) or _is_requested_otherwise(node, node_state)
        ):
            return
        now = self._clocks.now()
        if now - node_state.work.polled_at < _BETWEEN_READS:
            self._changed.add(node.name)
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_BETWEEN_READS, self._evaluate_changed)
            return
        node_state.work.polled_at = now
        self._queue.add_for_read(node_state)

    def _evaluate_changed(self) -> None:
        """Read those nodes whose marks have changed too soon after their last read."""
        changed, self._changed, self._timer = self._changed, set(), None
        for name in changed:
            node_state = self._registry.known(name)
            if node_state is not None:
                node_state.work.polled_at = self._clocks.now()
                self._queue.add_for_read(node_state)

    def _quarantine_seen(self, node_state: NodeState, seen: Quarantine) -> None:
        """Events of our own writes are skipped: in a storm most events are those.

        A fresh list always counts: after etcd was restored its versions are lower than ours.
        """
        now = self._clocks.now()
        self._take_absence(seen)
        if self._listing:
            node_state.take_read(seen, self._policy, now, before=node_state.quarantine)
        elif not node_state.is_news(seen):
            return
        else:
            node_state.take_quarantine(seen, self._policy, now)
        self._queue.evaluate(node_state)
        self._queue.add(node_state)

    def _take_absence(self, seen: Quarantine) -> None:
        """Whether its Node is gone decides whether the limits count it, for all replicas' nodes."""
        absent = seen.status.node_absent_since > 0
        changed = absent != (seen.node in self._registry.absent)
        self._registry.note_absence(seen.node, absent=absent)
        if changed and absent:
            self.records.make_room()

    def _quarantine_gone(self, node_state: NodeState, uid: str, *, with_definition: bool) -> None:
        self._registry.note_absence(node_state.node, absent=False)
        known = node_state.quarantine
        if (known is None or known.uid != uid) and node_state.quarantine_view.vanished != uid:
            return
        if not node_state.agent.was_received:  # its incidents came from that object alone
            node_state.decision.forget_evidence()
        if known is not None and known.foreign:
            node_state.work.needs_read = True  # a person may have ended it
        node_state.quarantine_view.end(uid, with_definition=with_definition)
        self._queue.add(node_state)
        self._queue.begin(node_state)
        if node_state.work.task is not None and node_state.agent.last_seen is None:
            # A node known from that object alone is forgotten with it, not at the next list.
            node_state.work.task.add_done_callback(lambda _: self._was_made_up(node_state))

    def _was_made_up(self, node_state: NodeState) -> None:
        """Forget a node that only a Quarantine ever named: the cluster has none of this name."""
        known = self._registry.known(node_state.node) is node_state
        if known and node_state.cluster.node_gone and self._is_no_more(node_state):
            self._forget(node_state)

    async def _view_restored(self, unschedulable: frozenset[str]) -> None:
        self._index.whole = True
        await self.records.read()
        await self.refresh_nodes()
        self._queue.view = True
        self._registry.fleet.view_lost = ""
        for count, node_state in enumerate(self._registry.node_states(), 1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            if self._registry.known(node_state.node) is not node_state:
                continue  # forgotten in between
            if node_state.quarantine_view.definition_going:
                node_state.quarantine_view.definition_going = False
            if node_state.quarantine_view.vanished:
                node_state.quarantine_view.adopt_vanished()
            quarantine = node_state.quarantine
            marked = quarantine is not None and _may_be_marked(node_state, quarantine)
            if marked and node_state.node not in unschedulable:
                node_state.work.needs_read = True
            if not node_state.work.needs_read:
                node_state.cluster.signs = ()
            self._queue.evaluate(node_state)

    async def refresh_nodes(self) -> bool:
        """List the cluster's nodes anew: their number, their pools, our marks on them.

        Returns whether they could be listed. The list may be a little old: where it differs from
        what is known, the node is read.
        """
        requested_at = self._clocks.now()
        self.listing_nodes = True
        try:
            nodes = await self._cluster.list_nodes()
        except ClusterError as error:
            log.warning(
                "the nodes can't be listed",
                extra={"event": "cluster.nodes_unlisted", "error": str(error)},
            )
            return False
        finally:
            self.listing_nodes = False
        if requested_at < self.listed_at:
            return True  # two tasks list: this answer came after a newer one
        self.listed_at = requested_at
        self._registry.listed(nodes)
        for count, meta in enumerate(nodes, 1):
            self._trackers.network.place(meta)
            self._node_listed(self._registry.node_state(meta.name), meta, requested_at)
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        self._trackers.network.listed()
        for name in self.records.record_writer.record.entries:
            self._entry_is_open(self._registry.node_state(name))
        async for node_state in self._registry.by_slices():
            if self._is_no_more(node_state):
                self._forget(node_state)
            elif self._is_unlisted(node_state):
                self._queue.add_for_read(node_state)
        return True

    def _is_unlisted(self, node_state: NodeState) -> bool:
        """Whether a Node that was marked may be gone, and that is not known yet."""
        quarantine = node_state.quarantine
        marked = quarantine is not None and bool(quarantine.status.node_uid)
        is_known = node_state.cluster.node_gone or self._registry.is_listed(node_state.node)
        return marked and not is_known

    def _forget(self, node_state: NodeState) -> None:
        self._registry.forget_node(node_state)
        self._queue.forget_node(node_state)
        self._trackers.forget_node(node_state)

    def _entry_is_open(self, node_state: NodeState) -> None:
        """An entry whose node and object are gone would take a place for ever: a read decides."""
        if node_state.quarantine is None and not self._registry.is_listed(node_state.node):
            self._queue.add_for_read(node_state)

    def _is_no_more(self, node_state: NodeState) -> bool:
        """Whether the node was taken away long ago: fleets that grow and shrink name many."""
        agent, work, view = node_state.agent, node_state.work, node_state.quarantine_view
        if self._registry.is_listed(node_state.node) or agent.attached or work.is_running:
            return False
        if view.quarantine is not None or view.orphan or view.to_adopt or work.waiters:
            return False
        if self._queue.in_record(node_state):
            return False
        if node_state.agent.last_seen is None:
            return True
        # Where the list lacks nodes only the agent's report shows that one exists.
        known = node_state.cluster.meta is not None or self._cluster.lists_all
        return known and self._clocks.now() - node_state.agent.last_seen >= FORGOTTEN_AFTER

    def _take_listed(self, node_state: NodeState, meta: NodeMeta, requested_at: float) -> None:
        view = node_state.cluster
        if self._queue.holds_lease():
            _log_unreadable(meta, view.meta, self._cluster.words)
        moved = self._pools.is_other_place(view.labels, meta.labels)
        is_older = view.read_at is not None and view.read_at > requested_at
        # A list from before our marks does not have them; what the watch shows since counts.
        marked = is_marked(meta) or (view.marked and view.marked_at > requested_at)
        if view.read_at is not None and marked != view.marked:
            # The list may be older than our own last write, and no event would correct that.
            node_state.work.needs_read = True
        view.take_listed(meta, self._clocks.now(), marked=marked, keeps_labels=moved and is_older)
        if moved and is_older:
            node_state.work.needs_read = True  # the pool that it has left must not decide again
        elif moved:
            self._queue.evaluate(node_state)  # its mode may be another

    def _node_listed(
        self, node_state: NodeState, meta: NodeMeta, requested_at: float = math.inf
    ) -> None:
        """``requested_at``: when the list began (monotonic seconds); later reads are newer."""
        before = node_state.cluster.meta
        self._take_listed(node_state, meta, requested_at)
        if node_state.cluster.maintained and before is not None and before.labels != meta.labels:
            node_state.work.needs_read = True  # another party's label may be gone
        self._trackers.causes.receive_symptoms(node_state)  # its labels may have changed
        quarantine = node_state.quarantine
        if quarantine is None:
            theirs = marked_for(meta.annotations) not in ("", self._cluster.installation)
            if not is_marked(meta) or theirs:
                if node_state.quarantine_view.unclaimed:
                    node_state.quarantine_view.unclaimed = ""
            elif not node_state.quarantine_view.orphan and not node_state.quarantine_view.unclaimed:
                node_state.quarantine_view.to_adopt = True
        elif quarantine.status.node_uid not in ("", meta.uid) or _has_lost(node_state, meta):
            node_state.work.needs_read = True
        if node_state.agent.claimed not in ("", meta.uid):
            node_state.work.needs_read = True
        requests = read_operator_requests(meta.annotations)
        if node_state.cluster.node_gone or requests != node_state.cluster.operator_requests:
            node_state.work.needs_read = True
        else:
            node_state.cluster.operator_requests_known = True
        remembered = read_overruled(meta.annotations)
        # `NodePoller` reads those that wait for their node.
        foreign = node_state.cluster.foreign and not waits_for_its_node(node_state)
        known = node_state.cluster.overruled | node_state.cluster.ended_overrides
        if remembered != known or foreign:
            node_state.work.needs_read = True
        view = node_state.quarantine_view
        if node_state.work.needs_read or view.orphan or view.to_adopt:
            self._queue.add(node_state)


def _log_unreadable(meta: NodeMeta, before: NodeMeta | None, words: ClusterWords) -> None:
    """Log once of each annotation that it can't be read. ``before``: as the Node was last listed,
    None the first time.
    """
    if before is not None and before.annotations == meta.annotations:
        return
    found = unreadable_annotations(meta.name, meta.annotations, words)
    known = unreadable_annotations(meta.name, before.annotations, words) if before else ()
    for text in found:
        if text not in known:
            log.warning(
                "a note on a node can't be read, and a person has to remove it",
                extra={"event": "node.annotation_unreadable", "node": meta.name, "error": text},
            )
