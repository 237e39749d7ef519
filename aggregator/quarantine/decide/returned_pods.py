"""Pods that come back to the node that they were evicted from. Pure.

A pod that tolerates our taint, or that its controller binds to the node by name, is made again on
the node as often as it is evicted. It is evicted once, as kubectl drain does, and then named.
"""

from collections.abc import Collection, Mapping, Sequence

from aggregator.cluster.port import Pod, Taint

#: Of pods that do not tolerate the taint: a scheduler with an old picture may place one of them.
_FREE_EVICTIONS = 2
_TOLERATES = "it tolerates the taint "
_BOUND = "it came back although it does not tolerate the taint "


def slot_of(pod: Pod) -> str:
    """A key that a pod shares with the pods that its controller makes in its place."""
    if not pod.owner_kind:
        return pod.key
    return f"{pod.namespace}/{pod.owner_kind}/{pod.owner_name}"


def is_return(reason: str) -> bool:
    """Whether a blocker's reason is one of this module's."""
    return reason.startswith((_TOLERATES, _BOUND))


def find_returned(
    pods: Sequence[Pod],
    *,
    taint: Taint,
    began: float,
    first_seen: Collection[str] | None,
    evicted: Mapping[str, int],
    blocking: Collection[str] = (),
) -> dict[str, str]:
    """By uid, the pods that came back, and why each did.

    ``taint`` is the one that we set, ``began`` when the drain began (wall clock seconds).
    ``first_seen`` are the uids of this process's first list of the drain, None before it.
    ``evicted`` counts its accepted evictions by `slot_of`. ``blocking`` are the keys of pods that
    the Quarantine names as such already. A pod's time of creation makes this known after a restart;
    the other two hold where clocks differ.
    """
    found: dict[str, str] = {}
    for pod in pods:
        is_new = pod.created_at > began or (first_seen is not None and pod.uid not in first_seen)
        if not is_new and pod.key not in blocking:
            continue
        who = f" ({pod.owner_kind} {pod.owner_name})" if pod.owner_kind else ""
        if pod.tolerates(taint):
            found[pod.uid] = f"{_TOLERATES}{taint.key} and came back{who}"
        elif evicted.get(slot_of(pod), 0) >= _FREE_EVICTIONS or pod.key in blocking:
            found[pod.uid] = f"{_BOUND}{taint.key}{who}"
    return found
