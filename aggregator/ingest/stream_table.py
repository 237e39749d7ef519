"""The streams of all nodes: one at most for each, the newest."""

import logging

from attrs import define, field

from aggregator.ingest.awaited_hellos import AwaitedHellos
from aggregator.ingest.checked_auth import pod_deleted
from aggregator.ingest.close_reason import CloseReason, Code, StreamClosed
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.duplicate_agents import DuplicateAgentDetector
from aggregator.ingest.interfaces import EvidenceSink
from aggregator.ingest.probe_assignment import ProbeRings, address_of
from aggregator.ingest.rate_limit import budgets
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import Stream, StreamConfig
from aggregator.runtime.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

#: Seconds. Two agents displace each other every few seconds, and a second DaemonSet has them on all
#: nodes: the log reports it at most this often. The sink's `on_conflict` reports when it begins on
#: a node.
CONFLICT_EVERY = 60.0
#: Seconds after the API server is back in which tokens may stay expired: kubelets renew them at
#: their next check, which takes minutes.
GRACE = 600.0
#: Seconds between two rounds of peer assignment, and how many streams are checked in one second.
PEERS_EVERY = 60.0
PEERS_AT_ONCE = 200
#: For this number of seconds after its stream has ended a node is still probed: whether others
#: reach it distinguishes a dead agent from a dead network, and an agent's restart changes no
#: other's peers.
LINGER = 600.0


@define(eq=False, repr=False, slots=False)
class StreamTable:
    """The stream that reports for each node now. ``probe_key``: the secret by which probes are
    assigned (see `ProbeRings`).
    """

    _intake: EvidenceSink
    _stats: IngestStats
    _rules: StreamConfig
    _probe_key: bytes = field(default=b"", kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._by_node: dict[str, Stream] = {}
        self.awaited = AwaitedHellos()
        self.sparingly = RateLimitedLog()
        self.budgets = budgets()
        self._conflicts = DuplicateAgentDetector()
        self._conflicts_sparingly = RateLimitedLog(CONFLICT_EVERY)
        self._probe_rings = ProbeRings(self._probe_key)
        self._left: dict[str, float] = {}  # nodes without a stream, for `LINGER`
        self._to_name: list[Stream] = []
        self._name_again = self._rules.now() + PEERS_EVERY
        self._excused_until = float("-inf")
        #: Tokens that have expired count: the API server is away, or was until lately.
        self.renewals_may_fail = False

    def attach(self, stream: Stream) -> None:
        """``stream`` reports for its node from now on; an older one is closed first.

        Raises `StreamClosed` where the attached one is newer: that Hello came by a slow gateway.
        """
        older = self._by_node.get(stream.node)
        if (
            older is not None
            and older.boot_id == stream.boot_id
            and 0 < stream.hello_written < older.hello_written
        ):
            text = f"a newer stream of this node is attached, from {older.peer}"
            raise StreamClosed(CloseReason.SUPERSEDED, Code.ABORTED, text)
        if older is not None:
            self._stats.superseded += 1
            older.supersede(stream.peer)
        self._by_node[stream.node] = stream
        self._place(stream.node, address_of(stream.peer))
        self._stats.attached = len(self._by_node)
        if self._conflicts.on_connect(stream.node, stream.instance, self._rules.now()):
            self._stats.conflicts += 1
            other = f"{older.instance} at {older.peer}" if older else "another"
            detail = (
                f"two live agents claim this node: {other}, and {stream.instance} at {stream.peer}"
            )
            log_fields = self._conflicts_sparingly("two agents", self._rules.now())
            if log_fields is not None:
                extra = {"node": stream.node, "who": detail, **log_fields}
                log.error(
                    "two live agents claim one node", extra={"event": "stream.conflict", **extra}
                )
            self._intake.on_conflict(stream.node, detail)

    def detach(self, stream: Stream) -> None:
        """The stream no longer reports for its node."""
        self._conflicts.on_message(stream.node, stream.instance, stream.last_seen)
        if self._by_node.get(stream.node) is stream:
            del self._by_node[stream.node]
            self._left[stream.node] = self._rules.now()
            self._stats.attached = len(self._by_node)

    def line_of(self, node: str) -> Stream | None:
        """The stream that reports for the node now."""
        return self._by_node.get(node)

    def streams(self) -> list[Stream]:
        """The streams of all nodes now."""
        return list(self._by_node.values())

    def tick(self) -> None:
        """Once a second: apply to each stream the changes that time brings."""
        now, wall = self._rules.now(), self._rules.wall()
        if self._rules.cluster_away():
            self._excused_until = now + GRACE
        self.renewals_may_fail = now <= self._excused_until
        self.budgets.prune(now)
        overdue = 0
        for stream in list(self._by_node.values()):
            expires = stream.identity.expires
            # Checking each of 10,000 streams every second would take 4 % of a core.
            if now >= stream.due_at or (expires is not None and wall >= expires):
                stream.tick(now, wall, renewals_may_fail=self.renewals_may_fail)
                overdue += stream.overdue
        self._stats.overdue = overdue
        for node in self._conflicts.over(now):
            self._intake.on_conflict(node, "")
        for node in [node for node, since in self._left.items() if now - since >= LINGER]:
            del self._left[node]
            self._unplace(node)
            if self._conflicts.forget_node(node):
                self._intake.on_conflict(node, "")
        self._name_peers(now)

    def end_deleted(self, deleted: DeletedPods) -> None:
        """Once a second: end the streams of pods that are gone."""
        doomed = frozenset(deleted.due(lambda: {one.identity.pod_uid for one in self.streams()}))
        for stream in self.streams() if doomed else ():
            if stream.identity.pod_uid in doomed:
                stream.revoke(pod_deleted(stream.identity))

    def peers(self, stream: Stream) -> tuple[str, ...]:
        """The addresses that this stream's node is to probe."""
        return self._probe_rings.peers(stream.node)

    def _place(self, node: str, address: str) -> None:
        """The node is to be probed there; a node that has left that address no longer is."""
        self._left.pop(node, None)
        for other in self._probe_rings.at(address):
            if other in self._left:
                self._unplace(other)
        self._probe_rings.put(node, address)
        self._intake.placed(node, address)

    def _unplace(self, node: str) -> None:
        self._probe_rings.remove(node)
        self._intake.placed(node, "")
        self._intake.assigned(node, ())

    def _name_peers(self, now: float) -> None:
        """Nodes come and go: once in a while each agent gets its peers anew, a few at a time."""
        if not self._to_name and now >= self._name_again:
            self._to_name = list(self._by_node.values())
            self._name_again = now + PEERS_EVERY
        for stream in self._to_name[-PEERS_AT_ONCE:]:
            if self._by_node.get(stream.node) is stream:
                stream.name_peers()
        del self._to_name[-PEERS_AT_ONCE:]

    def close_all(self, reason: str) -> None:
        """End every stream: the aggregator stops."""
        for stream in [*self._by_node.values(), *self.awaited]:
            stream.close(reason)
