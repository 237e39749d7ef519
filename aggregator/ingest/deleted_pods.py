"""Which pods' tokens count no more: the cluster reports that the pod was deleted.

A signature does not show that its pod is gone, so the cluster's reports about the agents' pods are
kept here. A pod is "gone" only by a deletion that a watch reported, or by a complete list without
it that was requested later than it was seen. An unknown pod is accepted. The cluster's reports do
not count either where they would end the streams of more than a small share of the agents: then
nothing changes, and a log line reports that.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet

from aggregator.cluster.agent_pods import PodEvent, PodGone, PodSeen, PodsListed
from aggregator.runtime.rate_limited_log import RateLimitedLog
from aggregator.runtime.recent import Recent

log = logging.getLogger(__name__)

#: Streams that may end within `WINDOW` seconds because their pods are gone: this many, or this
#: share of the attached ones. A pod's object goes after its containers, so there is hardly ever
#: any.
FEW = 3
SHARE = 0.02
WINDOW = 180.0
#: A token of a pod that the cluster has not named is checked by a new list after this long
#: (seconds): a watch may lag behind the pod's first steps.
UNSEEN_FOR = 60.0
#: A stream may present its token this long (seconds) before it is attached.
_ATTACHES_WITHIN = 120.0
#: Deleted pods that are remembered; an older one is checked by a list when its token comes again.
MOST_KEPT = 10_000
#: The same is logged at most this often (seconds).
_LOG_EVERY = 600.0


class DeletedPods:
    """Implements `PodSink`. ``now`` is monotonic seconds."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._alive: set[str] = set()
        #: Pods whose tokens were presented, and that the cluster has not named; since when.
        self._unseen: Recent[str, float] = Recent(MOST_KEPT)
        #: Reported as deleted, and when; and pods that the last list lacked.
        self._deleted: dict[str, float] = {}
        self._absent: set[str] = set()
        #: Their tokens are refused, the latest last.
        self._gone: Recent[str, None] = Recent(MOST_KEPT)
        self._ended_at: deque[float] = deque()
        self._sparingly = RateLimitedLog(_LOG_EVERY)

    def is_gone(self, uid: str) -> bool:
        """Whether tokens of this pod are refused."""
        return uid in self._gone

    def note(self, uid: str) -> None:
        """A valid token of this pod was presented."""
        if uid in self._alive or uid in self._gone or uid in self._unseen:
            return
        self._unseen[uid] = self._now()

    def take(self, news: PodEvent) -> None:
        """The cluster's report."""
        match news:
            case PodSeen(uid):
                self._alive.add(uid)
                self._absent.discard(uid)
                for of in (self._unseen, self._deleted, self._gone):
                    of.pop(uid, None)
            case PodGone(uid):
                self._alive.discard(uid)
                self._unseen.pop(uid, None)
                self._deleted[uid] = self._now()
            case PodsListed(uids, began):
                self._compare(uids, began)

    def _compare(self, listed: frozenset[str], began: float) -> None:
        earlier = {uid for uid, since in self._unseen.items() if since < began}
        if not listed and (self._alive or earlier):
            self._complain("the list of the agents' pods is empty", len(self._alive | earlier))
            return
        self._absent = (self._alive | earlier) - listed
        self._alive = set(listed)
        for of in (self._unseen, self._deleted, self._gone):
            for uid in listed.intersection(of):  # etcd restored from a backup has them again
                of.pop(uid)

    def wants_list(self) -> bool:
        """Whether a pod presents its token that the cluster has not named for a while."""
        now = self._now()
        oldest = next(iter(self._unseen.values()), now)
        return now - oldest >= UNSEEN_FOR

    def due(self, attached: Callable[[], AbstractSet[str]]) -> Collection[str]:
        """The attached pods whose streams are to end now; called once a second."""
        if not self._deleted and not self._absent:
            return ()
        now, here = self._now(), attached()
        doomed = [uid for uid in (*self._deleted, *self._absent) if uid in here]
        # Its stream has ended; the next one would be another's.
        presented = [uid for uid in self._absent if uid in self._unseen and uid not in here]
        self._refuse_detached(here, now)
        while self._ended_at and now - self._ended_at[0] >= WINDOW:
            self._ended_at.popleft()
        most = max(FEW, int(SHARE * len(here)))
        if len(doomed) + len(presented) + len(self._ended_at) > most:
            what = "the cluster reports that the pods of many agents are gone"
            self._complain(what, len(doomed) + len(presented))
            return ()
        for uid in (*doomed, *presented):
            self._refuse(uid)
            self._deleted.pop(uid, None)
            self._ended_at.append(now)
        self._absent.clear()
        return doomed

    def _refuse_detached(self, here: AbstractSet[str], now: float) -> None:
        """Deleted pods without a stream: remembered for a while, since one may be about to
        attach.
        """
        for uid in self._deleted.keys() - here:
            self._refuse(uid)
            if now - self._deleted[uid] >= _ATTACHES_WITHIN:
                del self._deleted[uid]

    def _refuse(self, uid: str) -> None:
        self._unseen.pop(uid, None)
        self._gone[uid] = None

    def _complain(self, what: str, count: int) -> None:
        fields = self._sparingly("pods", self._now())
        if fields is not None:
            text = f"{what}: no stream ends for it, and no token is refused"
            log.error(text, extra={"pods": count, **fields})
