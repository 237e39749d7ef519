"""EvictionRequest (KEP-4563, Kubernetes 1.37, alpha): a pod's own responders act on its notice.

A request is the cluster's leave to evict the pod once its responders have ended. So only a pod that
names responders gets one, and none of a gang: a half of it would be evicted. It is owned by the
Quarantine: a release withdraws it by the cluster's garbage collection, also without this process.
Where the cluster does not serve the kind, or nobody acts on a request within seconds, it counts as
no notice.
https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/4563-eviction-request-api
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.cluster.objects import QUARANTINE, ClusterObject, ObjectKind, ObjectStore
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    Guard,
    GuardRefused,
    NotFound,
    Pod,
    Quarantine,
    Unreachable,
)

log = logging.getLogger("sickbay.notices")

KIND = ObjectKind("lifecycle.k8s.io/v1alpha1", "EvictionRequest")
REQUESTER = "sickbay.dev/aggregator"
#: Seconds until the cluster's controller has observed a request; 1.37.2 has none.
TAKEN_WITHIN = 10.0
_LOOK, _LOOK_LATER = 1.0, 10.0
_MOST_TEXT = 300
_DELETED = "its EvictionRequest was deleted"


@dataclass(slots=True)
class RequestState:
    """Of one notice. ``open``: it is not known yet whether it is acted on. ``taken``: it is.
    ``text``: why nothing acts on it, or not any more.
    """

    open: bool = True
    taken: bool = False
    text: str = ""

    @property
    def counts(self) -> bool:
        """Whether it counts as a notice, or may do so yet."""
        return self.open or (self.taken and not self.text)


def may_be_requested(pods: Sequence[Pod], *, of_gang: bool) -> bool:
    """Whether the workload, as a notice has it, can get a request."""
    return not of_gang and len(pods) == 1 and pods[0].has_responders and not pods[0].group


class EvictionRequests:
    """``sleep`` waits between two reads of a request."""

    def __init__(
        self, objects: ObjectStore, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._objects = objects
        self._sleep = sleep

    async def follow(
        self,
        pod: Pod,
        ident: str,
        quarantine: Quarantine,
        state: RequestState,
        *,
        guard: Guard,
        undo: Guard,
        lasts: Callable[[], bool],
    ) -> None:
        """Make the request and follow it until ``lasts`` is over, then withdraw it by the guard
        ``undo``. Raises nothing of the cluster's: ``state`` has what came of it. A process that
        ends withdraws nothing: the next one takes the request up.
        """
        try:
            if await self._make(pod, ident, quarantine, guard):
                await self._watch(pod, ident, state, lasts)
                await self._withdraw(pod, ident, undo)
            else:
                state.text = f"the cluster does not serve {KIND}"
        except ClusterError as error:
            state.text = f"{KIND.kind}: {error}"[:_MOST_TEXT]
            log.info("a workload got no EvictionRequest", extra={"error": str(error)})
        finally:
            state.open = False

    async def _make(self, pod: Pod, ident: str, quarantine: Quarantine, guard: Guard) -> bool:
        """Whether the request is there now, made by this process or by the one before."""
        try:
            resource = await self._objects.resource(KIND)
        except NotFound:
            return False
        content = request_of(pod, ident, quarantine)
        try:
            await self._objects.create(resource, pod.namespace, content, guard=guard)
        except Conflict:  # by its name, which follows from the notice
            found = await self._read(pod, ident)
            return found is not None and _target(found) == pod.uid
        return True

    async def _watch(
        self, pod: Pod, ident: str, state: RequestState, lasts: Callable[[], bool]
    ) -> None:
        waited = 0.0
        while lasts():
            with contextlib.suppress(Unreachable, Conflict):  # it is read again
                found = await self._read(pod, ident)
                state.text = _failed(found) if found is not None else _DELETED
                state.taken = state.taken or (found is not None and _is_taken(found))
            if state.text:
                return
            if not state.taken and waited >= TAKEN_WITHIN:
                state.text = f"nothing acted on its EvictionRequest within {TAKEN_WITHIN:g} s"
                return
            pause = _LOOK_LATER if state.taken else _LOOK
            waited += pause
            await self._sleep(pause)

    async def _read(self, pod: Pod, ident: str) -> ClusterObject | None:
        resource = await self._objects.resource(KIND)
        return await self._objects.get(resource, pod.namespace, name_of(ident))

    async def _withdraw(self, pod: Pod, ident: str, undo: Guard) -> None:
        """To delete it is to withdraw it. One of another pod by its name stays."""
        try:
            found = await self._read(pod, ident)
            if found is not None and _target(found) == pod.uid:
                resource = await self._objects.resource(KIND)
                await self._objects.delete(resource, found, as_read=False, guard=undo)
        except GuardRefused:
            return  # another controller follows it now
        except ClusterError as error:
            log.warning(
                "an EvictionRequest was not withdrawn",
                extra={"event": "notice.not_withdrawn", "workload": pod.key, "error": str(error)},
            )


def name_of(ident: str) -> str:
    return f"sickbay-{ident}"


def request_of(pod: Pod, ident: str, quarantine: Quarantine) -> dict[str, Any]:
    """The object. Its owner is the Quarantine, with which it goes."""
    owner = {
        "apiVersion": QUARANTINE.api_version,
        "kind": QUARANTINE.kind,
        "name": quarantine.node,
        "uid": quarantine.uid,
    }
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


def _target(found: ClusterObject) -> Any:
    spec = found.content.get("spec")
    target = spec.get("target") if isinstance(spec, Mapping) else None
    pod = target.get("pod") if isinstance(target, Mapping) else None
    return pod.get("uid") if isinstance(pod, Mapping) else None


def _is_taken(found: ClusterObject) -> bool:
    """Whether the cluster's controller has observed it."""
    status = found.content.get("status")
    return isinstance(status, Mapping) and bool(
        status.get("observedGeneration") or status.get("conditions")
    )


def _failed(found: ClusterObject) -> str:
    status = found.content.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, Mapping) and one.get("type") == "Failed" and one.get("status") == "True":
            return f"its EvictionRequest has failed: {one.get('message', '')}"[:_MOST_TEXT]
    return ""
