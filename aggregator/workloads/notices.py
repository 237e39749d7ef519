"""``drain.notice``: a workload gets a notice before its first pod is evicted, and time to end.

A notice is in the Quarantine's status before it is sent, by compare-and-set, so that a restart or
another replica sends no second one. Two drains of one gang share one notice. It ends with the
workload's answer, with its pods, or at its deadline, which no workload can move.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.capabilities import PodNotes
from aggregator.cluster.port import (
    ClusterError,
    EvictionNotice,
    NoticeState,
    Pod,
    Refused,
)
from aggregator.jobs.notice import (
    READY,
    REQUESTED,
    Workload,
    has_answered,
    ident_of,
    never_because,
    read_notice,
    text_of,
    workloads_of,
)
from aggregator.jobs.settings import NoticeRules, NoticeWebhook
from aggregator.quarantine.drain.hooks import Hook, HookResult
from aggregator.quarantine.drain.pod_waits import DrainRound
from aggregator.rfc3339 import write_time
from aggregator.runtime.interning import EMPTY
from aggregator.workloads.eviction_requests import (
    EvictionRequests,
    RequestState,
    may_be_requested,
)

log = logging.getLogger("sickbay.notices")

#: Notices in one Quarantine; the schema has the same bound.
MOST_NOTICES = 128
#: Pods of one gang that get the annotation.
MOST_PODS = 256
_PODS_AT_ONCE = 4
#: Seconds after its deadline that a pod has no other one.
_REMEMBERED = 86_400.0
_MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class WebhookRoute:
    """A webhook, and the pods whose notices it receives."""

    takes: NoticeWebhook
    hook: Hook


@dataclass(slots=True)
class _Delivery:
    """The state of one notice in this process. ``known``: pods that have it, by uid. ``due``: the
    webhooks are to be called once it is stored: also where the answer to that write was lost.

    It lasts until the deadline: the other drains of a gang need an answer to the notice too.
    """

    deadline_at: float
    due: bool = False
    known: set[str] = field(default_factory=set)
    ready: bool = False
    reached: bool = False
    ended: bool = False
    text: str = ""
    request: RequestState | None = None

    @property
    def is_reached(self) -> bool:
        """Whether the workload has the notice by some way, or may have it yet."""
        request = self.request
        return self.reached or (request is not None and not request.text)


@define(eq=False, repr=False, slots=False)
class EvictionNotices:
    """Implements `PodWaits`. ``keys`` are a site's own markers of gangs. ``requests``: None where
    the cluster has no objects for them.
    """

    _cluster: PodNotes
    _rules: NoticeRules
    _webhooks: Sequence[WebhookRoute]
    _keys: Sequence[str]
    _clocks: Clocks
    _requests: EvictionRequests | None = None

    def __attrs_post_init__(self) -> None:
        #: By workload: the notice of this process that another drain of the gang may share.
        self._open: dict[str, EvictionNotice] = {}
        #: By workload and id: a pod's owner may write the id of another workload's notice.
        self._deliveries: dict[tuple[str, str], _Delivery] = {}
        #: By uid of a Quarantine and of a pod, that of the pod's first notice: its owner may put it
        #: into one gang after the other, each of which gets a notice.
        self._deadlines: dict[tuple[str, str], float] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._beginning = asyncio.Lock()

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        if not self._rules.within or _why_none(one, self._rules):
            return EMPTY
        going = [
            pod
            for pod in (*one.plan.evict, *one.plan.force)
            if self._rules.wants(pod.namespace, pod.labels)
        ]
        workloads = workloads_of(going, self._keys)
        notices = {notice.workload: notice for notice in one.quarantine.status.notices}
        new = self._new(one, workloads, notices)
        if new:
            room = MOST_NOTICES - len(notices)
            notices |= await self._begin(one, [workloads[key] for key in new[:room]])
        await self._deliver(one, workloads, notices)
        ended = {
            key: notice
            for key, workload in workloads.items()
            if key in notices and (notice := await self._settled(one, workload, notices[key]))
        }
        if ended:
            notices |= ended
            await one.write_status(notices=tuple(notices.values()))
        return {
            pod.uid: _reason(notices[key]) if key in notices else _reason_of_another(until)
            for key, workload in workloads.items()
            if key not in notices or notices[key].state is NoticeState.SENT
            for pod in workload.pods
            if one.moment.now < (until := self._deadline(one, pod, notices.get(key)))
        }

    def _new(
        self,
        one: DrainRound,
        workloads: Mapping[str, Workload],
        notices: Mapping[str, EvictionNotice],
    ) -> list[str]:
        """The workloads that get a notice now, those with the most GPUs first: a Quarantine has
        room for a limited number. Pods that had one and join another gang get no second one: their
        owner could take all of the room.
        """
        quarantine = one.quarantine.uid
        new = [
            key
            for key, workload in workloads.items()
            if key not in notices
            and any((quarantine, pod.uid) not in self._deadlines for pod in workload.pods)
        ]
        return sorted(new, key=lambda key: -sum(pod.gpus for pod in workloads[key].pods))

    # -- the begin of a notice ----------------------------------------------------------

    async def _begin(
        self, one: DrainRound, workloads: Sequence[Workload]
    ) -> dict[str, EvictionNotice]:
        """Note them in the Quarantine first, so that each is sent once."""
        async with self._beginning:
            now = self._clocks.latest()
            made = {each.key: self._first(one, each, now) for each in workloads}
            known = {notice.workload: notice for notice in one.quarantine.status.notices}
            for key, notice in made.items():
                self._delivery(notice).due |= notice.ident == ident_of(one.quarantine.uid, key)
            await one.write_status(notices=tuple((known | made).values()))
            self._forget_over(now)
            self._open |= made
        return made

    def _forget_over(self, now: float) -> None:
        """What is past its deadline: the quarantine of an open notice may have gone meanwhile."""
        self._open = {key: one for key, one in self._open.items() if now < one.deadline_at}
        self._deliveries = {
            key: one for key, one in self._deliveries.items() if now < one.deadline_at
        }
        self._deadlines = {key: at for key, at in self._deadlines.items() if now < at + _REMEMBERED}

    def _deadline(self, one: DrainRound, pod: Pod, notice: EvictionNotice | None) -> float:
        key = one.quarantine.uid, pod.uid
        if notice is None:
            return self._deadlines.get(key, 0.0)
        return self._deadlines.setdefault(key, notice.deadline_at)

    def _first(self, one: DrainRound, workload: Workload, now: float) -> EvictionNotice:
        """A notice of its own, unless the workload has an open one by another drain: of its gang,
        or by a Quarantine before this one, whichever controller sent it.
        """
        ident, latest = ident_of(one.quarantine.uid, workload.key), now + self._rules.within
        deadline, known = latest, self._open.get(workload.key)
        if known is not None and now < known.deadline_at:
            ident, deadline = known.ident, min(known.deadline_at, latest)
        else:
            seen = filter(None, map(read_notice, workload.pods))
            found = next((notice for notice in seen if now < notice.deadline <= latest), None)
            if found is not None:
                ident, deadline = found.ident, found.deadline
        of_gang = workload.gang is not None
        return EvictionNotice(
            workload.key,
            ident,
            NoticeState.SENT,
            sent_at=round(now, 3),
            deadline_at=round(deadline, 3),
            eviction_request=self._requests is not None
            and may_be_requested(workload.pods, of_gang=of_gang),
        )

    # -- its delivery -------------------------------------------------------------------

    async def _deliver(
        self,
        one: DrainRound,
        workloads: Mapping[str, Workload],
        notices: Mapping[str, EvictionNotice],
    ) -> None:
        """Annotate the pods of open notices that have no annotation yet."""
        for key, workload in workloads.items():
            notice = notices.get(key)
            if notice is None or notice.state is not NoticeState.SENT:
                continue
            if one.moment.now >= notice.deadline_at:
                continue  # it ends in this round: the drain was held past the deadline
            delivery = self._delivery(notice)
            if delivery.due:
                self._call_webhooks(one, workload, notice, delivery)
            self._follow_request(one, workload, notice, delivery)
            missing = [
                pod
                for pod in await self._members(workload, delivery)
                if pod.uid not in delivery.known and not _has(pod, notice)
            ]
            await self._annotate(one, notice, missing[:MOST_PODS], delivery)

    def _delivery(self, notice: EvictionNotice) -> _Delivery:
        return self._deliveries.setdefault(_of(notice), _Delivery(notice.deadline_at))

    async def _members(self, workload: Workload, delivery: _Delivery) -> Sequence[Pod]:
        """The workload's pods; those on other nodes too before its first delivery."""
        gang = workload.gang
        if gang is None or not gang.label or delivery.known:
            return workload.pods
        found = await self._cluster.pods_labelled(
            gang.namespace, gang.label, gang.name, background=True
        )
        return [pod for pod in found if pod.node and not pod.deleting] or workload.pods

    async def _annotate(
        self, one: DrainRound, notice: EvictionNotice, pods: Sequence[Pod], delivery: _Delivery
    ) -> None:
        spec = one.quarantine.spec
        text = text_of(
            notice.ident,
            notice.deadline_at,
            node=one.quarantine.node,
            workload=notice.workload.partition(" ")[0],
            reason=spec.reason,
        )
        lane = asyncio.Semaphore(_PODS_AT_ONCE)

        def over() -> str:
            lasts = one.still() and self._clocks.earliest() < notice.deadline_at
            return "" if lasts else f"the notice of {notice.workload} is over"

        guard = one.acts.guard(one.node_state, against=over)

        async def annotate(pod: Pod) -> None:
            async with lane:
                try:
                    await self._cluster.annotate_pod(pod, {REQUESTED: text}, guard=guard)
                except Refused as error:
                    delivery.text = str(error)[:_MOST_TEXT]
                    delivery.known.add(pod.uid)
                except ClusterError as error:
                    # A pod that changed or went meanwhile: the next round shows it.
                    log.info("a notice was not delivered", extra={"error": str(error)})
                else:
                    delivery.known.add(pod.uid)
                    delivery.reached = True

        await asyncio.gather(*map(annotate, pods))

    def _follow_request(
        self, one: DrainRound, workload: Workload, notice: EvictionNotice, delivery: _Delivery
    ) -> None:
        """Once in this process, and again after a pause of the drain. The next process takes the
        same request up by its name.
        """
        known = delivery.request
        if self._requests is None or not notice.eviction_request:
            return
        if known is not None and (known.followed or known.text):
            return

        def over() -> str:
            return "" if lasts() else f"the notice of {notice.workload} is over"

        def lasts() -> bool:
            """Until the notice ends; an answer or the deadline begins the ordinary eviction."""
            now = self._clocks.earliest()
            return one.still() and not delivery.ended and now < notice.deadline_at

        if not lasts():
            return
        delivery.request = RequestState()
        following = self._requests.follow(
            workload.pods[0],
            notice,
            one.quarantine,
            delivery.request,
            guard=one.acts.guard(one.node_state, against=over),
            lasts=lasts,
        )
        self._start(following)

    def _start(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _call_webhooks(
        self, one: DrainRound, workload: Workload, notice: EvictionNotice, delivery: _Delivery
    ) -> None:
        """Once: a process that ends meanwhile makes no further call, and the deadline stays."""
        pod, delivery.due = workload.pods[0], False
        for route in self._webhooks:
            if not route.takes.takes(pod.namespace, pod.labels):
                continue
            delivery.reached = True
            self._start(self._call(one, route.hook, workload, notice, delivery))

    async def _call(
        self,
        one: DrainRound,
        hook: Hook,
        workload: Workload,
        notice: EvictionNotice,
        delivery: _Delivery,
    ) -> None:
        def over() -> str:
            is_over = delivery.ended or not one.still()
            return f"the drain of {one.quarantine.node} is over" if is_over else ""

        values = {
            "hook": "notice",
            "quarantine": notice.ident,
            "id": notice.ident,
            "workload": notice.workload.partition(" ")[0],
            "namespace": workload.namespace,
            "pods": ", ".join(pod.key for pod in workload.pods),
            "node": one.quarantine.node,
            "reason": one.quarantine.spec.reason,
            "deadline": write_time(notice.deadline_at),
        }
        guard = one.acts.guard(one.node_state, against=over)
        left = max(1.0, notice.deadline_at - self._clocks.latest())
        answer = await hook.call(values, limit=left, guard=guard)
        delivery.text = answer.text[:_MOST_TEXT]
        delivery.ready |= answer.result is HookResult.DONE
        if answer.result is HookResult.FAILED:
            log.warning(
                "a webhook of drain.notice failed",
                extra={
                    "event": "notice.failed",
                    "node": one.quarantine.node,
                    "workload": notice.workload,
                    "error": answer.text,
                },
            )

    # -- its end ------------------------------------------------------------------------

    async def _settled(
        self, one: DrainRound, workload: Workload, notice: EvictionNotice
    ) -> EvictionNotice | None:
        """The notice with its end, or None while it is open or where it has ended before."""
        if notice.state is not NoticeState.SENT:
            return None
        delivery = self._deliveries.get(_of(notice))
        if delivery is not None and delivery.ready:
            return self._end(notice, NoticeState.READY, delivery.text or "the webhook answered 200")
        request = delivery.request if delivery is not None else None
        if request is not None and request.ready:
            return self._end(notice, NoticeState.READY, request.text)
        if has_answered(await self._all_pods(workload), notice.ident):
            return self._end(notice, NoticeState.READY, f"{READY} was set")
        if one.moment.now >= notice.deadline_at:
            return self._end(notice, NoticeState.OVER, "no answer by the deadline")
        if delivery is not None and delivery.known and not delivery.is_reached:
            why = "; ".join(filter(None, (delivery.text, request.text if request else "")))
            return self._end(notice, NoticeState.OVER, f"not notified: {why}")
        return None

    async def _all_pods(self, workload: Workload) -> Sequence[Pod]:
        gang = workload.gang
        if gang is None or not gang.label:
            return workload.pods
        others = await self._cluster.pods_labelled(
            gang.namespace, gang.label, gang.name, background=True
        )
        return (*workload.pods, *others)

    def _end(self, notice: EvictionNotice, state: NoticeState, message: str) -> EvictionNotice:
        self._open.pop(notice.workload, None)
        delivery = self._deliveries.get(_of(notice))
        if delivery is not None:
            delivery.ended = True
        return replace(notice, state=state, message=message[:_MOST_TEXT])


def _why_none(one: DrainRound, rules: NoticeRules) -> str:
    """Why no workload of the node gets a notice; empty where all may."""
    if one.moment.not_ready is not None:
        return f"the node is {one.moment.not_ready}"
    if one.node_state.agent.silent:
        return "the node's agent is silent"
    codes = (item.code for item in one.quarantine.spec.evidence if not item.cleared)
    return never_because(codes, rules.never_for)


def _of(notice: EvictionNotice) -> tuple[str, str]:
    return notice.workload, notice.ident


def _has(pod: Pod, notice: EvictionNotice) -> bool:
    seen = read_notice(pod)
    return seen is not None and seen.ident == notice.ident


def _reason(notice: EvictionNotice) -> str:
    until = write_time(notice.deadline_at)
    return f"may end by itself until {until}: it has notice {notice.ident} (drain.notice)"


def _reason_of_another(until: float) -> str:
    return f"may end by itself until {write_time(until)}: it had a notice before (drain.notice)"
