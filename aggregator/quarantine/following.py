"""What the cluster's news mean for each node."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.attending import Attending
from aggregator.quarantine.case import MARKED, Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import (
    Cluster,
    ClusterError,
    News,
    NodeMeta,
    NodeUncordoned,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    RecordSeen,
    RecordText,
    ViewLost,
    ViewRestored,
)
from aggregator.quarantine.decide.marks import LABEL, read_overruled
from aggregator.quarantine.decide.record import Entry
from aggregator.quarantine.decide.wishes import read_wishes
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.judging import Judging
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from aggregator.quarantine.registrar import Registrar
from aggregator.quarantine.suspecting import Suspecting
from aggregator.quarantine.telling import Telling
from aggregator.quarantine.triangulating import Triangulating
from aggregator.shards.council import Shards
from aggregator.sharing import NOTHING

log = logging.getLogger("sickbay.quarantine")

#: A node that the cluster has no more is shown for so long after its agent's last word (seconds).
FORGOTTEN_AFTER = 3600.0
#: Nodes seen to between two looks at whatever else is to be done: some milliseconds.
_SLICE = 100


class Following:
    """Takes the news in, one after the other."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        policy: Policy,
        census: Census,
        registrar: Registrar,
        attending: Attending,
        judging: Judging,
        suspecting: Suspecting,
        triangulating: Triangulating,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        shards: Shards,
        look_at_held: Callable[[], None],
    ) -> None:
        """``look_at_held`` has some that are held seen to: there may be room for them now."""
        self._cluster = cluster
        self._policy = policy
        self._census = census
        self._registrar = registrar
        self._attending = attending
        self._judging = judging
        self._suspecting = suspecting
        self._triangulating = triangulating
        self._fleet = fleet
        self._ledger = ledger
        self._clocks = clocks
        self._shards = shards
        self._look_at_held = look_at_held
        #: The record's entries, and why it can't be used, as last heard.
        self._entries: Mapping[str, Entry] = {}
        self._problem = ""
        self._stop = Telling(clocks.now)

    async def follow(self) -> None:
        """For ever."""
        async for news in self._cluster.news():
            await self._hear_news(news)

    async def _hear_news(self, news: News) -> None:
        match news:
            case QuarantineSeen(seen):
                self._quarantine_seen(self._census.case(seen.node), seen)
            case QuarantineGone(node, uid, with_definition):
                bereft = self._census.known(node)
                if bereft is not None:
                    self._quarantine_gone(bereft, uid, with_definition=with_definition)
            case NodeUncordoned(node):
                subject = self._census.case(node)
                quarantine = subject.patient.quarantine
                marked = quarantine is not None and quarantine.status.phase in MARKED
                if marked or subject.patient.foreign:
                    subject.suspect = True
                    self._attending.kick(subject)
            case RecordSeen(record):
                self._record_seen(record)
            case ViewLost(reason):
                self._attending.view = False
                self._fleet.view_lost = reason
                log.warning("the cluster's news stopped", extra={"reason": reason})
            case ViewRestored(unschedulable):
                await self._view_restored(unschedulable)

    def _quarantine_seen(self, case: Case, seen: Quarantine) -> None:
        """What we wrote ourselves is no news: in a storm most of what is told is that."""
        if not case.is_news(seen):
            return
        case.take_quarantine(seen, self._policy, self._clocks.now())
        self._judging.judge(case)
        self._attending.kick(case)

    def _record_seen(self, stored: RecordText) -> None:
        """See to those whose entry has come or gone, and where one has gone, to some that wait.

        Not to all that there is something to do for: in a storm the record is written many times a
        second. Where the stop switch or the record's use has changed all of them are concerned.
        """
        if not self._registrar.seen(stored):
            return
        before, self._entries = self._entries, self._registrar.record.entries
        others = self._fleet.stop != stored.stop or self._problem != self._registrar.problem
        self._take_stop()
        if others:
            for case in self._census.cases():
                self._attending.kick_if_busy(case)
            return
        for node in before.keys() ^ self._entries.keys():
            self._attending.kick_if_busy(self._census.case(node))
        if before.keys() - self._entries.keys():
            self._look_at_held()

    def _take_stop(self) -> None:
        self._fleet.stop = self._registrar.stop
        self._fleet.record_entries = len(self._registrar.record.entries)
        self._problem = self._registrar.problem
        self.tell_stop()

    def tell_stop(self) -> None:
        """Tell people of the stop switch, where that is for us to do. Asked in each round, too."""
        stop = self._fleet.stop
        if self._stop.is_due(stop, leads=self._shards.leads()):
            kind = Kind.STOPPED if stop else Kind.RESUMED
            text = f"the stop switch is set: {stop}" if stop else "the stop switch is off again"
            self._ledger.note(Transition(self._clocks.wall(), kind, "", text))

    def _quarantine_gone(self, case: Case, uid: str, *, with_definition: bool) -> None:
        known = case.patient.quarantine
        if known is None or known.uid != uid:
            return
        case.patient.quarantine = None
        if not case.heard:  # what is known of it stood on that object alone
            case.patient.incidents, case.wanted = NOTHING, None
        case.patient.release_held, case.release_look = "", 0.0
        case.definition_going = with_definition
        if not with_definition and uid != case.ended and self._shards.owns(case.node):
            case.orphan = uid  # of another shard's node the list of nodes tells, if it becomes ours
        case.ended = uid
        self._attending.kick(case)
        if case.task is not None and case.patient.last_heard is None:
            # What had its name from that object alone leaves with it, not at the next list.
            case.task.add_done_callback(lambda _: self._was_made_up(case))

    def _was_made_up(self, case: Case) -> None:
        """Forget a node that only a Quarantine ever named: the cluster has none of this name."""
        known = self._census.known(case.node) is case
        if known and case.node_gone and self._is_no_more(case):
            self._forget(case)

    async def _view_restored(self, unschedulable: frozenset[str]) -> None:
        try:
            await self._registrar.read()
        except ClusterError as error:
            log.warning("the record can't be read", extra={"error": str(error)})
        self._entries = self._registrar.record.entries
        self._take_stop()
        await self.refresh_nodes()
        self._attending.view = True
        self._fleet.view_lost = ""
        for count, case in enumerate(self._census.cases(), 1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            if self._census.known(case.node) is not case:
                continue  # forgotten in between
            case.definition_going = False
            quarantine = case.patient.quarantine
            if (
                quarantine is not None
                and quarantine.status.phase in MARKED
                and case.node not in unschedulable
            ):
                case.suspect = True
            if not case.suspect:
                case.signs = ()  # there is no person's word that they could end
            self._judging.judge(case)

    async def refresh_nodes(self) -> bool:
        """List the cluster's nodes anew: their number, their pools, our marks on them.

        Returns whether they could be listed. The list may be a little old: where it differs from
        what is known, the node is read.
        """
        try:
            nodes = await self._cluster.list_nodes()
        except ClusterError as error:
            log.warning("the nodes can't be listed", extra={"error": str(error)})
            return False
        self._census.listed(nodes)
        self._triangulating.listed(nodes)
        for count, meta in enumerate(nodes, 1):
            self._node_listed(self._census.case(meta.name), meta)
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        for name in self._registrar.record.entries:
            self._entry_stands(self._census.case(name))
        for case in self._census.cases():
            if self._is_no_more(case):
                self._forget(case)
        return True

    def _forget(self, case: Case) -> None:
        self._census.forget(case)
        self._suspecting.forget(case)
        self._triangulating.forget(case.node)

    def _entry_stands(self, case: Case) -> None:
        """An entry whose node and object are gone would take a place for ever: a read tells."""
        if case.patient.quarantine is None and not self._census.is_listed(case.node):
            case.suspect = True
            self._attending.kick(case)

    def _is_no_more(self, case: Case) -> bool:
        """Whether the node was taken away long ago: fleets that grow and shrink name many."""
        patient = case.patient
        if self._census.is_listed(case.node) or patient.attached or patient.quarantine is not None:
            return False
        if case.task is not None and not case.task.done():
            return False
        if self._attending.in_record(case) or case.orphan or case.waiters:
            return False
        if patient.last_heard is None:
            return True
        # What the cluster never listed may have no other way to be known than its agent's word.
        silent = self._clocks.now() - patient.last_heard
        return patient.meta is not None and silent >= FORGOTTEN_AFTER

    def _node_listed(self, case: Case, meta: NodeMeta) -> None:
        case.patient.meta = meta
        self._suspecting.hear(case)  # its labels may be others now
        quarantine = case.patient.quarantine
        if quarantine is None:
            unknown = self._registrar.problem or self._attending.in_record(case)
            unknown = unknown or not self._shards.owns(case.node)
            if LABEL in meta.labels and not unknown:
                case.orphan = case.orphan or "swept"
        elif quarantine.status.node_uid not in ("", meta.uid):
            case.suspect = True
        if case.claimed not in ("", meta.uid):
            case.suspect = True
        if case.node_gone or read_wishes(meta.annotations) != case.wishes:
            case.suspect = True
        else:
            case.wishes_known = True
        remembered = read_overruled(meta.annotations)
        if self._shards.may_act(case.node):
            case.unread = False
        if remembered != case.patient.overruled | case.over or case.patient.foreign:
            case.suspect = True
        if case.suspect or case.orphan:
            self._attending.kick(case)
