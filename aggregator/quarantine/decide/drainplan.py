"""Which pods of a node may go, and what keeps the others. Pure; as kubectl drain does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aggregator.quarantine.cluster import Pod

_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class DrainRules:
    """What a drain may take with it. A pod that has all labels of ``protected`` never goes."""

    delete_empty_dir_data: bool = False
    evict_unmanaged: bool = False
    protected: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """``evict`` now, ``leaving`` already, ``kept`` by rule with the reason (by pod key)."""

    evict: tuple[Pod, ...]
    leaving: tuple[Pod, ...]
    kept: Mapping[str, str]

    @property
    def remaining(self) -> int:
        return len(self.evict) + len(self.leaving) + len(self.kept)


def plan_drain(pods: Sequence[Pod], rules: DrainRules) -> DrainPlan:
    """Sort a node's pods. Those of DaemonSets and mirror pods are not counted at all."""
    evict: list[Pod] = []
    leaving: list[Pod] = []
    kept: dict[str, str] = {}
    for pod in pods:
        if pod.mirror or pod.owner_kind == "DaemonSet":
            continue
        if pod.deleting:
            leaving.append(pod)
            continue
        reason = _kept_because(pod, rules)
        if reason:
            kept[pod.key] = reason
        else:
            evict.append(pod)
    return DrainPlan(tuple(evict), tuple(leaving), kept)


def _kept_because(pod: Pod, rules: DrainRules) -> str:
    if rules.protected and all(
        pod.labels.get(key) == value for key, value in rules.protected.items()
    ):
        return "protected by drain.protected_selector"
    if pod.phase in _FINISHED:
        return ""
    if not pod.owner_kind and not rules.evict_unmanaged:
        return "has no controller that would make it anew (drain.evict_unmanaged is off)"
    if pod.empty_dir and not rules.delete_empty_dir_data:
        return "has emptyDir data that would be lost (drain.delete_empty_dir_data is off)"
    return ""
