"""Whether a responder of the pod acts, by its EvictionRequest and its Eviction. Pure.

The cluster's controller makes an Eviction of the requests for a pod, and lets one responder act at
a time: ``status.targetResponders`` has their states, ``status.responders`` their own messages. The
cluster's own responder comes last: it evicts the pod, as the drain does.
Names: k8s.io/api v0.37.2, lifecycle/v1alpha1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.cluster.objects import ClusterObject
from aggregator.config.field_path import read_condition, read_entries, read_field

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
        signs = (("status", "observedGeneration"), ("status", "conditions"))
        return Progress(acts=any(read_field(request.content, path) for path in signs))
    pod = target_of(request)  # an Eviction that has failed is of earlier requests
    mine = [one for one in evictions if pod and target_of(one) == pod and not _failed(one)]
    states = {
        str(one.get("name", "")): str(one.get("state", ""))
        for eviction in mine
        for one in read_entries(eviction.content, ("status", "targetResponders"))
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
        for one in read_entries(eviction.content, ("status", "responders"))
    }
    named = (f"{name}: {messages.get(name, '')}".rstrip(": ") for name in sorted(names))
    return f"its responders have completed ({'; '.join(named)})"


def target_of(found: ClusterObject) -> Any:
    """The uid of the pod that it is about."""
    return read_field(found.content, ("spec", "target", "pod", "uid"))


def _failed(found: ClusterObject) -> str:
    """The message of the condition Failed, where it is true."""
    one = read_condition(found.content, "Failed", "True") or {}
    return str(one.get("message", "")) or str(one.get("reason", ""))
