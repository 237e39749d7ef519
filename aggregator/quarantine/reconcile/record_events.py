"""The admission record and the stop switch as the cluster's watches report them."""

import logging
from collections.abc import Mapping

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, RecordText, StopText
from aggregator.events import ChangeNotice, EventKind, EventSink, Transition
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.reconcile.node_rounds import NodeRounds
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")


@define(eq=False, slots=False, kw_only=True)
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
        self._switch.on_change(self.stop_changed)
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

    def stop_seen(self, stop: StopText) -> None:
        self._switch.apply_seen(stop)

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
