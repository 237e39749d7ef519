"""EvictionRequest (KEP-4563, Kubernetes 1.37, alpha): a pod's own responders act on its notice.

A request is the cluster's leave to evict the pod once its responders have ended. So only a pod that
names responders gets one, and none of a gang: a half of it would be evicted. Where the cluster does
not serve the kind, or no responder acts on a request within seconds, it counts as no notice.

A round withdraws each request that no open notice needs, also those of an earlier controller: the
notice in the Quarantine's status has a mark for it before it is made. The Quarantine owns it too.
https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/4563-eviction-request-api
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aggregator.clock import Clocks
from aggregator.cluster.objects import QUARANTINE, ClusterObject, ObjectKind, ObjectStore
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    EvictionNotice,
    Guard,
    GuardRefused,
    GuardUnreadable,
    NotFound,
    NoticeState,
    Pod,
    Quarantine,
    Refused,
    Unreachable,
)
from aggregator.config.field_path import read_field
from aggregator.runtime.backoff import Backoff
from aggregator.workloads.eviction_progress import Progress, progress_of, target_of

log = logging.getLogger("sickbay.notices")

KIND = ObjectKind("lifecycle.k8s.io/v1alpha1", "EvictionRequest")
#: The cluster's controller makes one of the requests for a pod.
EVICTION = ObjectKind("lifecycle.k8s.io/v1alpha1", "Eviction")
REQUESTER = "sickbay.dev/aggregator"
#: Seconds without an active responder; 1.37.2 has no controller that could choose one.
TAKEN_WITHIN = 10.0
#: Seconds between two rounds, and until a request that no drain of this process follows is
#: withdrawn although its notice is open: a new controller has to receive the evidence first.
EVERY, SETTLED = 5.0, 120.0
_POLL, _POLL_LATER = 1.0, 10.0
_MOST_TEXT = 300
_DELETED = "its EvictionRequest was deleted"
_RETRY = Backoff(first=EVERY, most=300.0)


@dataclass(slots=True)
class RequestState:
    """Of one notice. ``followed``: a task reads its request. ``taken``: a responder acts on it.
    ``ready``: the pod's responders have completed. ``text``: their messages, or the reason why the
    request is no notice; without one it counts.
    """

    followed: bool = True
    taken: bool = False
    ready: bool = False
    text: str = ""


@dataclass(slots=True)
class _Known:
    """A request that may exist. ``since``, ``retry_at``: monotonic seconds. ``absent``: it is known
    not to exist, ``closed``: since its notice was over.
    """

    workload: str
    since: float
    followed: bool = False
    absent: bool = False
    closed: bool = False
    failures: int = 0
    retry_at: float = -math.inf
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def may_be_requested(pods: Sequence[Pod], *, of_gang: bool) -> bool:
    """Whether the workload, as a notice has it, can get a request."""
    return not of_gang and len(pods) == 1 and pods[0].has_responders and not pods[0].group


@dataclass(slots=True)
class EvictionRequests:
    """``quarantines``: all of the cluster. ``may_act``: whether we are the controller now."""

    objects: ObjectStore
    quarantines: Callable[[], Iterable[Quarantine]]
    clocks: Clocks
    may_act: Callable[[], bool]
    #: By the id of the notice.
    _known: dict[str, _Known] = field(default_factory=dict)

    async def follow(
        self,
        pod: Pod,
        notice: EvictionNotice,
        quarantine: Quarantine,
        state: RequestState,
        *,
        guard: Guard,
        lasts: Callable[[], bool],
    ) -> None:
        """Make the request and follow it until ``lasts`` is over; a round withdraws it then.

        Raises nothing of the cluster's: ``state`` has what came of it.
        """
        known = self._known.setdefault(notice.ident, _Known(notice.workload, 0.0))
        known.followed, known.absent, known.since = True, False, -math.inf
        try:
            async with known.lock:  # a withdrawal that is under way comes first
                state.text = await self._make(pod, notice.ident, quarantine, guard)
            if state.text:
                known.absent = known.closed = True
            else:
                await self._watch(pod, notice.ident, state, lasts)
        except (GuardRefused, GuardUnreadable):
            pass  # it was not sent, and the next round of its drain decides again
        except ClusterError as error:
            state.text = f"{KIND.kind}: {error}"[:_MOST_TEXT]
            log.info("a workload got no EvictionRequest", extra={"error": str(error)})
        finally:
            state.followed = known.followed = False

    async def _make(self, pod: Pod, ident: str, quarantine: Quarantine, guard: Guard) -> str:
        """Why the request is not there; it may be one that the process before has made."""
        try:
            resource = await self.objects.resource(KIND)
        except NotFound:
            return f"the cluster does not serve {KIND}"
        content = request_of(pod, ident, quarantine)
        try:
            await self.objects.create(resource, pod.namespace, content, guard=guard)
        except Refused as error:
            return f"{KIND.kind}: {error}"[:_MOST_TEXT]
        except Conflict:  # by its name, which follows from the notice
            found = await self.objects.get(resource, pod.namespace, name_of(ident))
            if found is None or not _is_ours(found, pod.uid):
                return f"another {KIND.kind} has its name"
        return ""

    async def _watch(
        self, pod: Pod, ident: str, state: RequestState, lasts: Callable[[], bool]
    ) -> None:
        idle = 0.0
        while lasts() or await _lasts_later(lasts):
            with contextlib.suppress(Unreachable, Conflict):  # it is read again
                now = await self._progress(pod, ident)
                state.taken = state.taken or now.acts
                state.ready, state.text = now.ready, now.text[:_MOST_TEXT]
                if not state.text and not now.acts and idle >= TAKEN_WITHIN:
                    state.text = f"nothing acted on its EvictionRequest within {TAKEN_WITHIN:g} s"
                if state.text:
                    return
                idle = 0.0 if now.acts else idle + _POLL
            await asyncio.sleep(_POLL_LATER if state.taken and not idle else _POLL)

    async def _progress(self, pod: Pod, ident: str) -> Progress:
        resource = await self.objects.resource(KIND)
        found = await self.objects.get(resource, pod.namespace, name_of(ident))
        if found is None:
            return Progress(text=_DELETED)
        evictions: Sequence[ClusterObject] | None = None
        with contextlib.suppress(NotFound, Refused):  # the request's own status is all there is
            label = {REQUESTER: "requester"}  # the cluster's controller sets it
            kind = await self.objects.resource(EVICTION)
            evictions = await self.objects.select(kind, pod.namespace, label)
        return progress_of(found, evictions)

    # -- its withdrawal -----------------------------------------------------------------

    async def run(self) -> None:
        """For ever: withdraw those that no open notice needs."""
        while True:
            await self.withdraw_unneeded()
            await asyncio.sleep(EVERY)

    async def withdraw_unneeded(self) -> None:
        """Go one round. It makes requests only for notices of pods that could get a request."""
        noted, now = self._noted(), self.clocks.now()
        for ident, known in list(self._known.items()):
            closed = not noted.get(ident, False)
            settled = closed or now - known.since >= SETTLED
            if known.absent and (known.closed or not closed):
                if ident not in noted:
                    del self._known[ident]
            elif settled and not known.followed and now >= known.retry_at:
                await self._try(ident, known, closed=closed)

    def _noted(self) -> dict[str, bool]:
        """By the id of each notice whose request may exist, whether the notice is open."""
        noted, now, wall = dict[str, bool](), self.clocks.now(), self.clocks.earliest()
        for quarantine in self.quarantines():
            for notice in quarantine.status.notices:
                if notice.eviction_request:
                    self._known.setdefault(notice.ident, _Known(notice.workload, now))
                    is_open = notice.state is NoticeState.SENT and wall < notice.deadline_at
                    noted[notice.ident] = is_open or noted.get(notice.ident, False)
        return noted

    async def _try(self, ident: str, known: _Known, *, closed: bool) -> None:
        try:
            async with known.lock:
                await self._withdraw(ident, known)
        except NotFound:
            pass  # no such kind
        except GuardRefused:
            return  # it is followed, here or by another controller
        except ClusterError as error:
            known.failures += 1
            known.retry_at = self.clocks.now() + _RETRY.longest(known.failures)
            if known.failures == 1:
                why = f"{known.workload}: {error}"
                log.warning(
                    "an EvictionRequest was not withdrawn",
                    extra={"event": "notice.not_withdrawn", "error": why},
                )
            return
        known.absent, known.closed, known.failures = True, closed, 0

    async def _withdraw(self, ident: str, known: _Known) -> None:
        """To delete it is to withdraw it: no limit and no stop switch prevents that. One of another
        requester or pod by its name stays.
        """

        async def check() -> None:
            if known.followed or not self.may_act():
                raise GuardRefused("it is followed")

        await check()
        key, _, uid = known.workload.rpartition(" ")
        resource = await self.objects.resource(KIND)
        found = await self.objects.get(resource, key.partition("/")[0], name_of(ident))
        if found is not None and _is_ours(found, uid):
            await self.objects.delete(resource, found, as_read=True, guard=Guard(check))


async def _lasts_later(lasts: Callable[[], bool]) -> bool:
    """Also a read of the node that is under way lets a drain pause."""
    await asyncio.sleep(_POLL)
    return lasts()


def name_of(ident: str) -> str:
    return f"sickbay-{ident}"


def request_of(pod: Pod, ident: str, quarantine: Quarantine) -> dict[str, Any]:
    """The object. Its owner is the Quarantine, with which it goes."""
    owner = {"apiVersion": QUARANTINE.api_version, "kind": QUARANTINE.kind}
    owner |= {"name": quarantine.node, "uid": quarantine.uid}
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": {
            "name": name_of(ident),
            "namespace": pod.namespace,
            "labels": {"app.kubernetes.io/managed-by": "sickbay"},
            "ownerReferences": [owner],
        },
        "spec": {
            "target": {"pod": {"name": pod.name, "uid": pod.uid}},
            "requester": REQUESTER,
            "intent": "Eviction",
        },
    }


def _is_ours(found: ClusterObject, uid: str) -> bool:
    """Whether it is our request for this pod."""
    is_own: bool = read_field(found.content, ("spec", "requester")) == REQUESTER
    return is_own and target_of(found) == uid
