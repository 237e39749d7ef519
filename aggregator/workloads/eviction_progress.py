"""Whether a responder of the pod acts, by its EvictionRequest and its Eviction. Pure.

The cluster's controller makes an Eviction of the requests for a pod, and lets one responder act at
a time: ``status.targetResponders`` has their states, ``status.responders`` their own messages. The
cluster's own responder comes last: it evicts the pod, as the drain does.
Names: k8s.io/api v0.37.2, lifecycle/v1alpha1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.cluster.objects import ClusterObject

#: The cluster's own responder.
EVICTOR = "imperative-eviction.k8s.io/evictor"


@dataclass(frozen=True, slots=True)
class Progress:
    """``acts``: a responder does, or may as far as is known. ``ready``: all of the pod's have
    completed. ``text``: their messages, or the reason why the wait ends.
    """

    acts: bool = False
    ready: bool = False
    text: str = ""


def progress_of(request: ClusterObject, evictions: Sequence[ClusterObject] | None) -> Progress:
    """``evictions`` of the pod's namespace. They are None where they can't be read: then a request
    counts as soon as the cluster's controller has observed it.
    """
    if failed := _failed(request):
        return Progress(text=f"its EvictionRequest has failed: {failed}")
    if evictions is None:
        status = _status(request)
        return Progress(acts=bool(status.get("observedGeneration") or status.get("conditions")))
    pod = target_of(request)  # an Eviction that has failed is of earlier requests
    mine = [one for one in evictions if pod and target_of(one) == pod and not _failed(one)]
    states = {
        str(one.get("name", "")): str(one.get("state", ""))
        for eviction in mine
        for one in _items(eviction, "targetResponders")
    }
    last = states.pop(EVICTOR, "")
    if "Active" in states.values():
        return Progress(acts=True)
    if not states or ("Inactive" in states.values() and last in ("", "Inactive")):
        return Progress()  # the first or the next one is about to begin
    if set(states.values()) == {"Completed"}:
        return Progress(ready=True, text=_completed(mine, states))
    named = ", ".join(f"{name} is {state}" for name, state in sorted(states.items()))
    return Progress(text=f"its responders act no more: {named}")


def _completed(evictions: Sequence[ClusterObject], names: Mapping[str, str]) -> str:
    """Which have, with their messages."""
    messages = {
        str(one.get("name", "")): str(one.get("message") or "")
        for eviction in evictions
        for one in _items(eviction, "responders")
    }
    named = (f"{name}: {messages.get(name, '')}".rstrip(": ") for name in sorted(names))
    return f"its responders have completed ({'; '.join(named)})"


def target_of(found: ClusterObject) -> Any:
    """The uid of the pod that it is about."""
    spec = found.content.get("spec")
    target = spec.get("target") if isinstance(spec, Mapping) else None
    pod = target.get("pod") if isinstance(target, Mapping) else None
    return pod.get("uid") if isinstance(pod, Mapping) else None


def _failed(found: ClusterObject) -> str:
    """The message of the condition Failed, where it is true."""
    for one in _items(found, "conditions"):
        if one.get("type") == "Failed" and one.get("status") == "True":
            return str(one.get("message", "")) or str(one.get("reason", ""))
    return ""


def _status(found: ClusterObject) -> Mapping[str, Any]:
    status = found.content.get("status")
    return status if isinstance(status, Mapping) else {}


def _items(found: ClusterObject, key: str) -> Iterator[Mapping[str, Any]]:
    items = _status(found).get(key)
    for one in items if isinstance(items, list) else ():
        if isinstance(one, Mapping):
            yield one
