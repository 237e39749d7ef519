"""The streams of all nodes: one at most for each, the newest."""

import logging

from aggregator.ingest.conflicts import Conflicts
from aggregator.ingest.intake import Intake
from aggregator.ingest.peers import Rings, address_of
from aggregator.ingest.stats import IngestStats, Sparingly
from aggregator.ingest.stream import Rules, Stream

log = logging.getLogger(__name__)

#: Seconds. Two agents push each other out every few seconds, and a second DaemonSet has them on all
#: nodes: so often at most the log says so. When it begins on a node whoever judges says it.
CONFLICT_EVERY = 60.0
#: Seconds after the API server is back in which tokens may stay expired: kubelets renew them when
#: they next look, which takes them minutes.
GRACE = 600.0
#: Seconds between two rounds of naming peers, and how many streams are looked at in one second.
PEERS_EVERY = 60.0
PEERS_AT_ONCE = 200
#: For so many seconds after its stream has ended a node is still looked for: whether others reach
#: it tells a dead agent from a dead network, and an agent that is restarted moves nobody's peers.
LINGER = 600.0


class StreamTable:
    """Who speaks for which node now."""

    def __init__(self, intake: Intake, stats: IngestStats, rules: Rules) -> None:
        self._intake = intake
        self._stats = stats
        self._rules = rules
        self._by_node: dict[str, Stream] = {}
        self._conflicts = Conflicts()
        self._sparingly = Sparingly(CONFLICT_EVERY)
        self._rings = Rings()
        self._left: dict[str, float] = {}  # nodes without a stream that are still looked for
        self._to_name: list[Stream] = []
        self._name_again = rules.now() + PEERS_EVERY
        self._excused_until = float("-inf")

    def attach(self, stream: Stream) -> None:
        """``stream`` speaks for its node from now on; an older one is closed first."""
        older = self._by_node.get(stream.node)
        if older is not None:
            self._stats.superseded += 1
            older.supersede(stream.peer)
        self._by_node[stream.node] = stream
        self._place(stream.node, address_of(stream.peer))
        self._stats.attached = len(self._by_node)
        if self._conflicts.attached(stream.node, stream.instance, self._rules.now()):
            self._stats.conflicts += 1
            other = f"{older.instance} at {older.peer}" if older else "another"
            detail = (
                f"two live agents claim this node: {other}, and {stream.instance} at {stream.peer}"
            )
            unsaid = self._sparingly("two agents", self._rules.now())
            if unsaid is not None:
                extra = {"node": stream.node, "who": detail, **unsaid}
                log.error("two live agents claim one node", extra=extra)
            self._intake.conflict(stream.node, detail)

    def detach(self, stream: Stream) -> None:
        """It speaks no more."""
        self._conflicts.heard(stream.node, stream.instance, stream.last_heard)
        if self._by_node.get(stream.node) is stream:
            del self._by_node[stream.node]
            self._left[stream.node] = self._rules.now()
            self._stats.attached = len(self._by_node)

    def tick(self) -> None:
        """Once a second: what time brings to each stream."""
        now, wall = self._rules.now(), self._rules.wall()
        if self._rules.cluster_away():
            self._excused_until = now + GRACE
        renewals_may_fail = now <= self._excused_until
        overdue = 0
        for stream in list(self._by_node.values()):
            expires = stream.identity.expires
            # To ask each of 10,000 streams every second would take 4 % of a core.
            if now >= stream.due_at or (expires is not None and wall >= expires):
                stream.tick(now, wall, renewals_may_fail=renewals_may_fail)
                overdue += stream.overdue
        self._stats.overdue = overdue
        for node in self._conflicts.over(now):
            self._intake.conflict(node, "")
        for node in [node for node, since in self._left.items() if now - since >= LINGER]:
            self._unplace(node)
        self._name_peers(now)

    def peers(self, stream: Stream) -> tuple[str, ...]:
        """The addresses that this stream's node is to probe."""
        return self._rings.peers(stream.node)

    def _place(self, node: str, address: str) -> None:
        """The node is to be looked for there; who has left that address is no more."""
        self._left.pop(node, None)
        for other in self._rings.at(address):
            if other in self._left:
                self._unplace(other)
        self._rings.put(node, address)
        self._intake.placed(node, address)

    def _unplace(self, node: str) -> None:
        self._left.pop(node, None)
        self._rings.remove(node)
        self._intake.placed(node, "")

    def _name_peers(self, now: float) -> None:
        """Nodes come and go: once in a while each is told of its peers anew, a few at a time."""
        if not self._to_name and now >= self._name_again:
            self._to_name = list(self._by_node.values())
            self._name_again = now + PEERS_EVERY
        for stream in self._to_name[-PEERS_AT_ONCE:]:
            if self._by_node.get(stream.node) is stream:
                stream.name_peers()
        del self._to_name[-PEERS_AT_ONCE:]

    def close_all(self, reason: str) -> None:
        """End every stream: the aggregator stops."""
        for stream in list(self._by_node.values()):
            stream.close(reason)
