"""One drain's memory between its rounds: the blocked pods and until when, and the returned pods.

It can be lost. State that must survive a restart is in the Quarantine, or follows from the pods.
"""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from aggregator.cluster.port import Phase, Pod
from aggregator.events import EventKind
from aggregator.quarantine.decide.drain_plan import NotReady
from aggregator.runtime.backoff import Backoff

#: The request for a blocked pod is repeated after this long (seconds), twice as long each time, up
#: to the most.
RETRY_FIRST = 1.0
RETRY_MOST = 60.0
#: All blocked drains of a replica together retry about this many times a second, however many they
#: are.
RETRIES_A_SECOND = 2.0
#: The request for a blocked pod that has changed is repeated this soon (seconds): its budget may no
#: longer select it.
_CHANGED = Backoff(first=15.0, most=15.0, spread=0.5)
#: A pod that came back is evicted again after this long (seconds), twice as long each time.
_RETURN_BACKOFF = Backoff(first=300.0, most=3600.0, spread=0.3)
#: A webhook that can't be reached is named as the blocker from this failure on.
_NAMED_FROM = 3


def blocked_backoff(drains: int) -> Backoff:
    """The pauses between two requests for a blocked pod, with ``drains`` drains under way."""
    rate = drains / RETRIES_A_SECOND
    return Backoff(first=max(RETRY_FIRST, rate / 4), most=max(RETRY_MOST, rate), spread=0.3)


@dataclass(slots=True)
class BlockedPod:
    """A pod whose eviction is blocked: since when (wall), and when to request it again (monotonic).

    ``named``: it is reported to people. ``own``: its own eviction was refused, not its gang's.
    ``rejected_since``: admission alone refuses its gang's dry runs since then (monotonic).
    """

    reason: str
    since: float
    version: str
    own: bool
    retry_at: float = 0.0
    tries: int = 1
    named: bool = True
    rejected_since: float | None = None


@dataclass(slots=True)
class ReturnRetry:
    """When the next try is due (monotonic seconds), and how many waits have begun."""

    retry_at: float
    waits: int = 1


@dataclass(slots=True)
class DrainMemory:
    """Of the drain of one Quarantine, by its uid.

    ``first_seen``: the uids of the first list of pods. ``evicted``: accepted evictions by slot, and
    ``returns`` the backoff of returned pods, by slot (`decide.returned_pods`). ``found_empty``: the
    last read found no pod that would go. ``written_at`` is monotonic. ``unreported_phase``: the
    phase that was sent to the API server, and the event to emit once the Quarantine shows it.
    ``is_new``: this process began the drain, which had never begun before. ``begun_at``: when it
    wrote that begin together with the marks (monotonic), until the drain itself comes.
    ``not_ready``: the node's kubelet at the last read of the node, where it was not Ready.
    """

    uid: str
    blocked: dict[str, BlockedPod] = field(default_factory=dict)
    forced: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)
    first_seen: frozenset[str] | None = None
    evicted: Counter[str] = field(default_factory=Counter)
    returns: dict[str, ReturnRetry] = field(default_factory=dict)
    found_empty: bool = False
    written_at: float = float("-inf")
    unreported_phase: tuple[Phase, EventKind, str] | None = None
    is_new: bool = False
    begun_at: float = float("-inf")
    not_ready: NotReady | None = None

    def keep_only(self, present: dict[str, str], now: float, rng: random.Random) -> None:
        """Forget the blocked pods that are gone; retry soon those that changed.

        ``present``: the versions of the pods that are still to go, by uid.
        """
        self.blocked = {uid: one for uid, one in self.blocked.items() if uid in present}
        for uid, one in self.blocked.items():
            if one.version != present[uid]:
                one.version = present[uid]
                one.retry_at = min(one.retry_at, now + _CHANGED.pause(1, rng))

    def due_at(self, pods: Iterable[Pod]) -> float:
        """When these may be requested together (monotonic seconds); minus infinity at first."""
        waits = (self.blocked[pod.uid].retry_at for pod in pods if pod.uid in self.blocked)
        return max(waits, default=float("-inf"))

    def block(
        self,
        uid: str,
        block: BlockedPod,
        *,
        now: float,
        rng: random.Random,
        at_least: float,
        drains: int,
        hopeless: bool,
        passing: bool,
    ) -> BlockedPod:
        """Note a refusal and when to request again. ``drains``: how many run next to this one.

        ``hopeless``: only a person can change it. ``passing``: it may be over at the next try.
        """
        known = self.blocked.get(uid)
        if known is not None:
            block.since, block.tries = known.since, known.tries + 1
            block.rejected_since = known.rejected_since
        backoff = blocked_backoff(drains)
        if hopeless:
            backoff = replace(backoff, first=backoff.most)
        block.named = not passing or block.tries >= _NAMED_FROM
        block.retry_at = now + max(backoff.pause(block.tries, rng), at_least)
        self.blocked[uid] = block
        return block

    def note_rejected(self, uids: Iterable[str], now: float, after: float) -> None:
        """Admission refused a dry run of their gang: the real request is due ``after`` seconds; 0:
        never.
        """
        for uid in uids:
            one = self.blocked[uid]
            if one.rejected_since is None:
                one.rejected_since = now
            if after:
                one.retry_at = min(one.retry_at, max(now, one.rejected_since + after))

    def rejected_since(self, uids: Iterable[str]) -> float | None:
        """Since when admission has refused the dry runs of this gang; None: it has not."""
        found = [self.blocked[uid].rejected_since for uid in uids if uid in self.blocked]
        return min((since for since in found if since is not None), default=None)

    def forget_rejected(self, uids: Iterable[str]) -> None:
        """The last dry runs of this gang were not refused by admission alone."""
        for uid in uids:
            if uid in self.blocked:
                self.blocked[uid].rejected_since = None

    def note_return(self, slot: str, now: float, rng: random.Random) -> None:
        """A pod came back: when its slot is emptied once more is known from now on."""
        if slot not in self.returns:
            self.returns[slot] = ReturnRetry(now + _RETURN_BACKOFF.pause(1, rng))

    def note_retried(self, slots: Iterable[str], now: float, rng: random.Random) -> None:
        """Returned pods are evicted again: the next time is later by twice the wait."""
        for slot in slots:
            known = self.returns.get(slot)
            if known is not None and known.retry_at <= now:
                known.waits += 1
                known.retry_at = now + _RETURN_BACKOFF.pause(known.waits, rng)
