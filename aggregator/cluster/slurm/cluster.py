"""A Slurm cluster: quarantines and the record in SQLite, the nodes and their jobs in Slurm.

A quarantine's mark is a DRAIN with our reason, which lets jobs end; the node is drained when Slurm
reports that no job runs or ends there. Slurm's own state decides: the row of a node keeps the rest.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from aggregator.cluster.capabilities import Capabilities
from aggregator.cluster.local.cluster import LocalCluster, merged
from aggregator.cluster.local.place import StorePlace
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.node_names import RELEASED
from aggregator.cluster.port import (
    UNGUARDED,
    ClusterEvent,
    Conflict,
    Evicted,
    EvictionResult,
    Guard,
    Node,
    NodeChange,
    NodeMeta,
    NodeUncordoned,
    NotFound,
    Phase,
    Pod,
    Quarantine,
    Unreachable,
)
from aggregator.cluster.slurm.client import SlurmClient
from aggregator.cluster.slurm.drain import (
    FOREIGN,
    OurDrain,
    Whose,
    has_changed,
    is_ended_by_slurm,
    reason_of,
    whose,
    words_to_leave,
)
from aggregator.cluster.slurm.reasons import conditions_of
from aggregator.cluster.slurm.reboot import SlurmReboots
from aggregator.cluster.slurm.shared_read import SharedRead
from aggregator.cluster.slurm.state import SlurmJob, SlurmNode
from aggregator.cluster.words import SLURM
from aggregator.policy.node_condition import ReportedConditions
from aggregator.policy.slurm_reason import SLURM_TYPES
from aggregator.runtime.text import truncate

log = logging.getLogger("sickbay.slurm")

#: The label with a node's first partition, by which pools and rules choose nodes.
PARTITION = "slurm.schedmd.com/partition"
#: As aggregator/jobs/families.yaml has a job.
JOB, ACCOUNT = "SlurmJob", "slurm.schedmd.com/account"
#: A read is good enough for the decision to act for this long (seconds).
_KNOWN_FOR = 60.0
_RECORD = msgspec.json.Decoder(OurDrain)


class SlurmCluster(LocalCluster):
    """The `Cluster` protocol on Slurm. ``poll``: seconds between two reads of the drained nodes."""

    words = SLURM
    lists_all = True

    def __init__(
        self,
        place: Path | StorePlace,
        *,
        client: SlurmClient,
        poll: float = 5.0,
        wall: Callable[[], float],
    ) -> None:
        super().__init__(place, commands=Commands(), wall=wall)
        self._client = client
        self._reads: SharedRead[SlurmNode] = SharedRead(self._read_some)
        self._poll = poll
        self._next_poll = 0.0
        #: The start of slurmctld, in its own words.
        self._started = ""
        #: SlurmUser; empty: not read yet, or not known.
        self._slurm_user = ""
        #: Nodes of which a drain or its record is being written: their state is between two.
        self.changing: set[str] = set()
        #: Nodes whose lost drain is reported.
        self._reported: set[str] = set()
        #: Nodes that were off when our drain was last seen in force.
        self._off: set[str] = set()
        #: Each node as last read, and when that read began.
        self._known: dict[str, tuple[SlurmNode, float]] = {}

    @property
    def capabilities(self) -> Capabilities:
        reboots = SlurmReboots(self, self._client)
        return replace(super().capabilities, runs_jobs=True, reboots=reboots)

    # -- reads ---------------------------------------------------------------------------

    async def list_nodes(self) -> list[NodeMeta]:
        rows = {row.name: row for row in await self._in_thread(self._open.nodes)}
        found = []
        for one in await self._read_all():
            row = rows.get(one.name)
            found.append(
                NodeMeta(
                    one.name,
                    _uid(row.uid, one) if row is not None else "",
                    _labels(one, row.labels if row is not None else {}),
                    row.annotations if row is not None else {},
                )
            )
        return found

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        if name in self.changing:  # a drain that is gone for a moment is no person's RESUME
            raise Unreachable(f"the drain of {name} is being changed")
        one = self._recent(name) if cached else None
        if one is None:
            one = await self._reads.get(name)
        if one is None:
            return None
        return _merge(await self._in_thread(self._open.node, name), one)

    async def _read_all(self) -> list[SlurmNode]:
        if not self._started:
            self._started, self._slurm_user = await self._client.read_controller()
        began = time.monotonic()
        nodes = await self._client.read_nodes()
        there = {one.name for one in nodes}
        self._known = {name: one for name, one in self._known.items() if name in there}
        self._note(nodes, began)
        return nodes

    async def _read_some(self, names: Collection[str]) -> list[SlurmNode]:
        began = time.monotonic()
        nodes = await self._client.read_nodes(names)
        self._note(nodes, began)
        return nodes

    def _note(self, nodes: Iterable[SlurmNode], began: float) -> None:
        """Keep what was read, unless a read that began later has shown the node already."""
        for one in nodes:
            if began >= self._known.get(one.name, (one, float("-inf")))[1]:
                self._known[one.name] = (one, began)

    def _recent(self, name: str) -> SlurmNode | None:
        """The node by a read that is not old: a patch reads Slurm before it writes, so that no
        further program has to run for the decision.
        """
        one, began = self._known.get(name, (None, float("-inf")))
        return one if time.monotonic() - began < _KNOWN_FOR else None

    async def wait_for_node(self, name: str) -> None:
        while await self._reads.get(name) is None:  # noqa: ASYNC110 - Slurm has no watch
            await asyncio.sleep(self._poll)

    def has_condition(self, kind: str) -> bool:
        return kind in SLURM_TYPES

    async def list_conditions(self, types: Collection[str]) -> list[ReportedConditions]:
        """Slurm's own reasons as conditions: True while they are in force, else False."""
        rows = {row.name: row for row in await self._in_thread(self._open.nodes)}
        drains = await self._in_thread(self._open.drains)
        now = self._wall()
        return [
            ReportedConditions(
                one.name,
                _uid(rows[one.name].uid, one) if one.name in rows else "",
                conditions_of(one, _decoded(drains.get(one.name, "")), types, now),
            )
            for one in await self._read_all()
        ]

    # -- the drain -----------------------------------------------------------------------

    async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        """Slurm first, then the row: a crash between them writes the same drain once more."""
        row = replace(node, uid=node.uid.partition("+")[0])
        await self._in_thread(self._open.expect_node, row)
        taints = row.taints if change.taints is None else change.taints
        more, fewer = len(taints) > len(row.taints), len(taints) < len(row.taints)
        self.changing.add(node.name)
        try:
            if more or change.unschedulable:
                found = await self._drain(node, guard)
            elif fewer or change.unschedulable is False or change.annotations.get(RELEASED):
                found = await self._undrain(node.name, guard)
            else:
                await guard()
                found = await self.now(node.name)
            labels = {key: text for key, text in row.labels.items() if key != PARTITION}
            unschedulable = node.unschedulable or more or bool(change.unschedulable)
            after = replace(
                row,
                taints=taints,
                unschedulable=unschedulable and not fewer and change.unschedulable is not False,
                labels=merged(labels, change.labels),
                annotations=merged(row.annotations, change.annotations),
            )
            written = await self._write(self._open.write_node, after)
        finally:
            self.changing.discard(node.name)
        return _merge(written, found)

    async def _drain(self, node: Node, guard: Guard) -> SlurmNode:
        """The node after it.

        Raises `Conflict` where the machine is another one than ``node``, and where a person has
        changed our drain: that ends the quarantine, and only a reading of the drains decides so.
        """
        found = await self.now(node.name)
        if _uid(node.uid.partition("+")[0], found) != node.uid:
            raise Conflict(f"{node.name} is another machine now")
        quarantine = await self.read_quarantine(node.name)
        reason = reason_of(quarantine.spec.reason if quarantine is not None else "quarantine")
        text = await self.recorded_text(node.name)
        ours = _decoded(text)
        author = whose(found, ours)
        if node.name not in self._reported and has_changed(author, ours):
            raise Conflict(f"the drain of {node.name} has changed, and is read first")
        self._reported.discard(node.name)
        if author is Whose.ANOTHER:
            # No new work starts there already; the words of the other stay.
            await self.record(node.name, FOREIGN, guard=guard)
            return found
        if author is Whose.NOBODY:
            if found.is_off and found.is_at_work:
                # slurmctld requeues a job whose node is drained while it is powered up for it.
                text = f"Slurm powers {node.name} up for a job, which a drain now would requeue"
                raise Unreachable(text)
            lost = ours or FOREIGN
            ours = OurDrain(
                reason,
                self._client.user,
                # Slurm 24.11 keeps the reason of a drain that has ended.
                before=words_to_leave(found, lost) or (found.reason if found.is_down else ""),
                reboot=lost.reboot,
                booted=lost.booted,
                slurm_user=self._slurm_user,
                started=self._started,
            )
            text = await self.record(node.name, ours, guard=guard)
            await self._client.drain(node.name, reason, guard=guard)
            # An end of the drain under another slurmctld would be no words of a person.
            self._started, self._slurm_user = await self._client.read_controller()
            ours = replace(ours, slurm_user=self._slurm_user, started=self._started)
            found = await self.now(node.name)
        else:
            await guard()
        if not found.has_drain:
            raise Unreachable(f"Slurm took the drain of {node.name}, and shows {found.shown}")
        seen = FOREIGN  # another wrote in the same moment
        if ours is not None and whose(found, ours) is Whose.OURS:
            seen = replace(ours, at=found.reason_at or ours.at)
        # No guard: without its time our drain has no author, and a person's RESUME would count for
        # nothing. The record of a later controller stays.
        await self.record(node.name, seen, guard=UNGUARDED, before=text)
        return found

    async def _undrain(self, name: str, guard: Guard) -> SlurmNode:
        """Only a drain with the words, the user and the time that we recorded; the rest stays.

        The node after it.
        """
        ours = await self.recorded(name)
        found = await self.now(name)
        if ours is None:
            await guard()
            return found
        if whose(found, ours) is Whose.OURS:
            await self._client.undrain(name, guard=guard)
            found = await self.now(name)
        # The next controller may have drained it again.
        if words := words_to_leave(found, ours):
            await self._client.write_reason(name, words, guard=guard)
        await self.record(name, None, guard=guard)
        return found

    async def now(self, name: str) -> SlurmNode:
        """The node as Slurm has it. Raises `NotFound`."""
        found = await self._reads.get(name)
        if found is None:
            raise NotFound(f"Slurm has no node {name}")
        return found

    async def recorded(self, name: str) -> OurDrain | None:
        """Our record of the node's drain; None: it is not ours."""
        return _decoded(await self.recorded_text(name))

    async def recorded_text(self, name: str) -> str:
        """The same as it is stored; empty: none."""
        return await self._in_thread(self._open.drain_of, name)

    async def record(
        self, name: str, ours: OurDrain | None, *, guard: Guard, before: str | None = None
    ) -> str:
        """Make our record of the node's drain durable, or forget it. ``before``: the record as it
        was read, where no guard knows of a later controller: `Conflict` where it has changed.
        Returns it as it is stored.
        """
        text = msgspec.json.encode(asdict(ours)).decode() if ours is not None else ""
        await guard()
        await self._write(self._open.set_drain_of, name, text, before)
        return text

    # -- jobs ----------------------------------------------------------------------------

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        """The jobs of a node as pods: an empty list where its state, too, shows no work."""
        found = await self._reads.get(node)
        if found is None:
            return []
        jobs = await self._client.read_jobs(node)
        if not jobs and found.is_at_work:
            jobs = [SlurmJob("of unknown id", "", "", "", "", found.shown)]
        return [_pod(job, node) for job in jobs]

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard,
    ) -> EvictionResult:
        """A job is never ended: DRAIN lets it run to its end."""
        await guard()
        return EvictionResult(Evicted.BLOCKED, _why_it_stays(pod))

    async def delete_pod(
        self, pod: Pod, *, grace: int, background: bool = False, guard: Guard
    ) -> EvictionResult:
        return await self.evict(pod, background=background, guard=guard)

    # -- changes by people ------------------------------------------------------------------

    async def read_changes(self) -> Sequence[ClusterEvent]:
        """Changes of our drains, by people or by slurmctld, since the last look."""
        if time.monotonic() < self._next_poll:
            return ()
        drains = await self._in_thread(self._open.drains)
        if drains:
            self._started = (await self._client.read_controller()).started
        found = {one.name: one for one in await self._client.read_nodes(drains)}
        self._next_poll = time.monotonic() + self._poll
        events: list[ClusterEvent] = []
        for name, text in drains.items():
            one, ours = found.get(name), _RECORD.decode(text)
            if one is None or not ours.was_seen:
                continue
            if await self.recorded_text(name) != text or name in self.changing:
                continue
            with contextlib.suppress(Conflict):  # another process has written it: read again
                events += await self._changes_of(name, one, ours, text)
        return events

    async def _changes_of(
        self, name: str, one: SlurmNode, ours: OurDrain, text: str
    ) -> list[ClusterEvent]:
        """``text``: the record as it was read."""
        author = whose(one, ours)
        restarted = self._started and ours.started not in ("", self._started)
        ended = is_ended_by_slurm(one, ours, was_off=name in self._off)
        if author is Whose.OURS and one.is_off:
            self._off.add(name)
        elif author is Whose.OURS:
            self._off.discard(name)
        if author is Whose.NOBODY and (ours.foreign or restarted or ended):
            # The end of another's drain is no request of a person about our quarantine, nor is that
            # of all drains when slurmctld has lost its saved state, or one that Slurm itself ends.
            if name in self._reported:
                return []
            self._reported.add(name)
            log.warning("drain lost", extra={"event": "slurm.drain_lost", "node": name})
            return [NodeUncordoned(name)]
        self._reported.discard(name)
        if author is Whose.OURS and self._started not in ("", ours.started):
            now = replace(ours, started=self._started)
            await self.record(name, now, guard=UNGUARDED, before=text)
        elif has_changed(author, ours):
            quarantine = await self.read_quarantine(name)
            # Once the record is gone a later controller may make another quarantine of this name.
            await self.record(name, None, guard=UNGUARDED, before=text)
            await self._give_up(name, one, author, quarantine)
        return []

    async def _give_up(
        self, name: str, one: SlurmNode, author: Whose, quarantine: Quarantine | None
    ) -> None:
        """A person's RESUME, or a person's words on our drain: the node is theirs, as if the
        quarantine had been deleted by hand.
        """
        resumed = author is Whose.NOBODY
        log.warning(
            "drain taken back" if resumed else "drain taken over",
            extra={
                "event": "slurm.resumed" if resumed else "slurm.taken_over",
                "node": name,
                "state": one.shown,
                "reason": truncate(one.reason, 500),
                "user": one.reason_user,
            },
        )
        if quarantine is not None and quarantine.status.phase is not Phase.RELEASING:
            await self._write(self._open.delete_quarantine, name, quarantine.uid)


def _decoded(text: str) -> OurDrain | None:
    return _RECORD.decode(text) if text else None


def _uid(row: str, one: SlurmNode) -> str:
    """The identity of the machine: another instance of a cloud under an old name is another one."""
    return f"{row}+{one.instance_id}" if one.instance_id else row


def _merge(row: Node, one: SlurmNode) -> Node:
    """The node as its row and Slurm have it."""
    return replace(
        row,
        uid=_uid(row.uid, one),
        unschedulable=one.has_drain,
        labels=_labels(one, row.labels),
    )


def _labels(one: SlurmNode, labels: object) -> dict[str, str]:
    kept = dict(labels) if isinstance(labels, dict) else {}
    return kept | ({PARTITION: one.partitions[0]} if one.partitions else {})


def _pod(job: SlurmJob, node: str) -> Pod:
    words = {"name": job.name, "user": job.user, "state": job.state}
    queue = {ACCOUNT: job.account, PARTITION: job.partition}
    return Pod(
        namespace="",
        name=f"job {job.job_id}",
        uid=job.job_id,
        version="",
        phase="Running",
        deleting=job.state == "COMPLETING",
        mirror=False,
        owner_kind=JOB,
        owner_name=job.job_id,
        empty_dirs=(),
        annotations=words | queue | {"ends-at": str(job.ends_at)},
        node=node,
        gpus=job.gpus,
    )


def _why_it_stays(pod: Pod) -> str:
    words = pod.annotations
    who = f"{words['name']} of {words['user']} is " if words.get("user") else ""
    ends = int(words.get("ends-at") or 0)
    until = time.strftime(", at most until %Y-%m-%d %H:%M UTC", time.gmtime(ends)) if ends else ""
    return truncate(f"{who}{words.get('state', '').lower()}, and DRAIN lets it end{until}", 300)
