"""Which pods of a node may be evicted, and why the others may not. Pure; as kubectl drain does."""

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Self

from pydantic import Field

from aggregator.cluster.port import Node, Pod
from aggregator.configfile.section import Positive, SectionDataclass
from aggregator.configfile.values import Duration, LabelKeys, NamespacePattern, OwnerKinds, Selector
from aggregator.jobs.gangs import Gang, Gangs, gang_of
from aggregator.rfc3339 import span, write_time
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.text import some_of

FINISHED = ("Succeeded", "Failed")
#: How the reason of a pod begins that is deleted and still there.
TERMINATING = "Terminating"
#: Kinds of owners that make one pod for each node. OpenKruise's is a DaemonSet as well.
NODE_OWNERS = ("DaemonSet", "ExtendedDaemonSetReplicaSet")
#: A pod's annotation for autoscalers; "true" means that it belongs to its node, whoever its owner.
_DAEMON = "cluster-autoscaler.kubernetes.io/daemonset-pod"
#: A pod's annotation for autoscalers; "true" means that the data in its emptyDir may be lost.
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
#: The same of single volumes, as "NAME,NAME".
_SAFE_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
_MOST_NAMED = 3
#: Annotations for autoscalers by which a pod declares that it must not be moved.
_UNWILLING = {_SAFE_TO_EVICT: "false", "karpenter.sh/do-not-disrupt": "true"}


class Leave(enum.StrEnum):
    """How the pods of a namespace leave."""

    EVICT = "evict"  # requested, as their budgets allow
    WAIT = "wait"  # they may complete first, for a while
    FORCE = "force"  # requested, and after a while deleted past their budgets
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class NamespaceRule(SectionDataclass):
    """How the pods of namespaces whose name matches leave; the first rule that matches decides.

    ``pods``: only pods with all of these labels match. Labels are the text of a pod's own owner.
    Seconds since the drain began: for ``wait`` the pods may complete, past ``force_after`` they are
    deleted, their budgets notwithstanding (None: at the drain's deadline).
    """

    match: NamespacePattern
    """A namespace, or a pattern with ``*`` and ``?``. The first that matches decides how its pods
    leave; without a match: ``evict``.
    """
    policy: Annotated[Leave, Field(strict=False)]
    """``evict``, ``wait``, ``force`` or ``never``. See draining (docs/drain.md#namespaces)."""
    wait: Duration | None = None
    """With ``wait`` (needed) or ``force``: its pods may complete for this long since the drain
    began.
    """
    force_after: Duration | None = None
    """With ``force``: this long since the drain began its pods are deleted, whatever their budgets.
    Default: the deadline.
    """
    pods: Selector = None
    """``"KEY=VALUE,..."``: only pods that have all of these labels match."""

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.pods and any(labels.get(key) != value for key, value in self.pods.items()):
            return False
        return fnmatchcase(namespace, self.match)

    def __str__(self) -> str:
        labels = ",".join(f"{key}={value}" for key, value in (self.pods or {}).items())
        return f'drain.namespaces "{self.match}"' + (f" with {labels}" if labels else "")


_EVICTED = NamespaceRule("*", Leave.EVICT)


@dataclass(frozen=True, slots=True)
class DrainRules(SectionDataclass):
    """The limits of a drain, a part of the section ``drain``. Durations are seconds.

    A pod that autoscalers must not move is evicted with ``evict_unwilling`` alone; one that
    has all labels of ``protected_selector``, never. ``stuck_after``: a pod may be in Terminating
    this long past its grace before the drain no longer waits for it; ``unreachable_wait``: this
    long since the kubelet does not answer. ``gang_pods``: a gang of more is not taken whole.
    ``gang_keys`` and ``node_owner_kinds`` are added to the shipped ones. ``gang_request_after``:
    admission may refuse a gang's dry runs this long before its pods get the real request (0:
    never). ``gpu_scope_for``: this long pods that do not use the faulty GPU may run to their end,
    by a rule with ``scope: gpu``. ``off_load_balancers``: a drained node is excluded from them.
    ``deadline``: a drain that takes longer is reported.
    """

    delete_empty_dir_data: bool = False
    """Evict pods with emptyDir volumes on disk: their data is lost. Without it, only the pods that
    are marked as movable (docs/drain.md#what-goes-and-what-stays) are evicted.
    """
    evict_unmanaged: bool = False
    """Evict pods that no controller makes anew."""
    evict_unwilling: bool = False
    """Evict pods whose annotations forbid autoscalers to move them (``safe-to-evict``,
    ``do-not-disrupt``).
    """
    protected_selector: Selector = None
    """``"KEY=VALUE,..."``: a pod that has all of these labels is never evicted."""
    namespaces: Annotated[tuple[NamespaceRule, ...], Field(strict=False)] = ()
    stuck_after: Annotated[Duration, Field(ge=10)] = 600.0
    """A pod in Terminating for this long past its grace is named, and no longer waited for."""
    unreachable_wait: Annotated[Duration, Field(ge=10)] = 300.0
    """A pod in Terminating is waited for no longer than this after the node's Ready became
    ``Unknown``.
    """
    gangs: Annotated[Gangs, Field(strict=False)] = Gangs.NODE
    """``node``: a gang's pods on the node go together. ``whole``: those on other nodes go with
    them.
    """
    gang_pods: Positive = 256
    """With ``whole``: of a gang of more pods only those on the node go."""
    gang_keys: LabelKeys = ()
    """Further labels or annotations whose equal value makes a gang (docs/drain.md#gangs)."""
    gang_request_after: Duration = 600.0
    """Where admission alone refuses a gang's dry runs (docs/drain.md#gangs) for this long, the
    refused pods get the real request. ``"0s"``: none follows, and the drain names the webhook or
    policy.
    """
    node_owner_kinds: OwnerKinds = ()
    """Further kinds of owners whose pods belong to their node
    (docs/drain.md#what-goes-and-what-stays), as a DaemonSet's do.
    """
    gpu_scope_for: Duration = 3 * 86400.0
    """By a rule with ``scope: gpu`` (docs/drain.md#one-gpu), pods that do not use the faulty GPU
    may run to their end for this long.
    """
    off_load_balancers: bool = True
    """Label a node that is drained ``node.kubernetes.io/exclude-from-external-load-balancers``."""
    deadline: Annotated[Duration, Field(ge=60)] = 7 * 86400.0
    """After this long a drain reports that it could not, and alerts; it keeps trying. See draining
    (docs/drain.md).
    """

    def of(self, namespace: str, labels: Mapping[str, str] = EMPTY) -> NamespaceRule:
        """The first rule that matches a pod; without one, it is evicted."""
        found = (rule for rule in self.namespaces if rule.matches(namespace, labels))
        return next(found, _EVICTED)


@dataclass(frozen=True, slots=True)
class NotReady:
    """A kubelet that is not Ready, ``since`` that wall clock time (seconds).

    ``silent``: its status is Unknown, so no kubelet ends the containers of a deleted pod.
    """

    since: float
    silent: bool

    def gives_up_at(self, rules: DrainRules) -> float:
        """Until when its pods in Terminating are waited for, whatever their grace."""
        return self.since + rules.unreachable_wait if self.silent else math.inf

    @classmethod
    def of(cls, node: Node | None) -> Self | None:
        """None where the kubelet is Ready, or the cluster has no such status."""
        if node is None or node.ready is True or not node.ready_since:
            return None
        return cls(node.ready_since, node.ready is None)

    def __str__(self) -> str:
        status = "Unknown, no kubelet answers" if self.silent else "False"
        return f"NotReady since {write_time(self.since)} ({status})"


@dataclass(frozen=True, slots=True)
class DrainMoment:
    """Wall clock seconds: now, when the drain began, and when it should have ended.

    ``not_ready``: the node's kubelet, where it is not Ready.
    """

    now: float
    began: float
    deadline: float
    not_ready: NotReady | None = None


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """``evict`` now; ``force`` now, as the time for requests is over; ``leaving`` already;
    ``returned`` get a request now and then, as they were evicted once and are back.

    By pod key, with the reason: ``kept`` until a person acts; ``waiting`` for their time; ``back``
    again on the node; ``lingering``: those of ``leaving`` on a node that is not Ready; ``stuck`` in
    Terminating, which the drain no longer waits for.
    """

    evict: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    leaving: tuple[Pod, ...] = ()
    returned: tuple[Pod, ...] = ()
    kept: Mapping[str, str] | None = None
    waiting: Mapping[str, str] | None = None
    back: Mapping[str, str] | None = None
    lingering: Mapping[str, str] | None = None
    stuck: Mapping[str, str] | None = None

    @property
    def remaining(self) -> int:
        """Pods that still have to leave the node."""
        going = len(self.evict) + len(self.force) + len(self.leaving) + len(self.returned)
        return going + len(self.kept or ()) + len(self.waiting or ())

    @property
    def named(self) -> dict[str, str]:
        """Every pod that is not evicted now, and why not."""
        parts = (self.kept, self.waiting, self.back, self.lingering, self.stuck)
        return {key: reason for part in parts for key, reason in (part or {}).items()}


def plan_drain(
    pods: Sequence[Pod],
    rules: DrainRules,
    moment: DrainMoment,
    came_back: Mapping[str, str] = EMPTY,
    waits: Mapping[str, str] = EMPTY,
) -> DrainPlan:
    """Sort a node's pods. Only `work_of` them counts: a pod that has ended runs nothing, whatever
    finalizers it has.

    ``came_back``: why they are back, by uid (`decide.returns`). ``waits``: why pods wait that the
    rules would evict, by uid.
    """
    work = work_of(pods, rules.node_owner_kinds)
    sorted_pods = [(pod, *_place(pod, rules, moment, came_back, waits)) for pod in work]

    def at(place: str) -> tuple[Pod, ...]:
        return tuple(pod for pod, one, _ in sorted_pods if one == place)

    def named(place: str) -> dict[str, str]:
        return {pod.key: reason for pod, one, reason in sorted_pods if one == place and reason}

    going = at("evict"), at("force"), at("leaving"), at("returned")
    kept, waiting, back = named("kept"), named("waiting"), named("returned")
    plan = DrainPlan(*going, kept, waiting, back, named("leaving"), named("stuck"))
    return _together(work, plan, rules)


def _place(
    pod: Pod,
    rules: DrainRules,
    moment: DrainMoment,
    came_back: Mapping[str, str],
    waits: Mapping[str, str],
) -> tuple[str, str]:
    """The pod's field of the plan, and the reason; empty where it needs none."""
    if pod.deleting:
        reason, gone = _stuck_because(pod, rules, moment), moment.not_ready
        if reason:
            return "stuck", reason
        return "leaving", _lingers_because(pod, rules, gone) if gone is not None else ""
    if reason := kept_because(pod, rules):
        return "kept", reason
    if reason := _waits_because(pod, rules, moment) or waits.get(pod.uid, ""):
        return "waiting", reason
    if reason := came_back.get(pod.uid, ""):
        return "returned", reason
    return "force" if _is_due_by_force(pod, rules, moment) else "evict", ""


def stays_by_nature(pod: Pod, kinds: Collection[str] = ()) -> bool:
    """Whether the pod belongs to its node, so that its eviction would gain nothing.

    ``kinds``: those of a site's owners, in addition to the shipped ones.
    """
    if pod.mirror or pod.annotations.get(_DAEMON) == "true":
        return True
    return pod.owner_kind in NODE_OWNERS or pod.owner_kind in kinds


def work_of(pods: Iterable[Pod], kinds: Collection[str] = ()) -> list[Pod]:
    """The pods that have not ended, and do not belong to their node (`stays_by_nature`)."""
    return [pod for pod in pods if pod.phase not in FINISHED and not stays_by_nature(pod, kinds)]


def kept_because(pod: Pod, rules: DrainRules) -> str:
    """Why the pod is not to go at all; empty when it may."""
    protected = rules.protected_selector
    if protected and all(pod.labels.get(key) == value for key, value in protected.items()):
        return "protected by drain.protected_selector"
    rule = rules.of(pod.namespace, pod.labels)
    if rule.policy is Leave.NEVER:
        return f"never evicted ({rule})"
    if not pod.owner_kind and not rules.evict_unmanaged:
        return "has no controller that would make it anew (drain.evict_unmanaged is off)"
    if not rules.delete_empty_dir_data and (volumes := _data_of(pod)):
        names = some_of(volumes, _MOST_NAMED)
        return f"has emptyDir data that would be lost: {names} (drain.delete_empty_dir_data is off)"
    annotation = next((key for key, no in _UNWILLING.items() if pod.annotations.get(key) == no), "")
    if annotation and not rules.evict_unwilling:
        return f"must not be evicted ({annotation}; drain.evict_unwilling is off)"
    return ""


def _data_of(pod: Pod) -> list[str]:
    """Its volumes with data on the node, except those that its annotations release."""
    if pod.annotations.get(_SAFE_TO_EVICT) == "true":
        return []
    released = {name.strip() for name in pod.annotations.get(_SAFE_VOLUMES, "").split(",")}
    return [name for name in pod.empty_dirs if name not in released]


def _stuck_because(pod: Pod, rules: DrainRules, moment: DrainMoment) -> str:
    if pod.deletion_at and moment.now >= pod.deletion_at + rules.stuck_after:
        return f"stuck in Terminating for more than {span(rules.stuck_after)}: not waited for"
    gone = moment.not_ready
    if gone is None or moment.now < gone.gives_up_at(rules):
        return ""
    after = f"not waited for, {span(rules.unreachable_wait)} after that (drain.unreachable_wait)"
    return f"{_grace(pod)}; the node is {gone}: {after}"


def _lingers_because(pod: Pod, rules: DrainRules, gone: NotReady) -> str:
    end = gone.gives_up_at(rules)
    until = "" if math.isinf(end) else f" until {write_time(end)}"
    return f"{_grace(pod)}; the node is {gone}: waited for{until}"


def _grace(pod: Pod) -> str:
    return f"{TERMINATING}: its grace ends at {write_time(pod.deletion_at)}"


def _waits_because(pod: Pod, rules: DrainRules, moment: DrainMoment) -> str:
    rule = rules.of(pod.namespace, pod.labels)
    if not rule.wait:
        return ""  # also where the drain began by a clock that is ahead of ours
    if moment.now >= moment.began + rule.wait:
        return ""
    return f"may complete, for {span(rule.wait)} at most ({rule})"


def _is_due_by_force(pod: Pod, rules: DrainRules, moment: DrainMoment) -> bool:
    rule = rules.of(pod.namespace, pod.labels)
    if rule.policy is not Leave.FORCE:
        return False
    after = moment.deadline if rule.force_after is None else moment.began + rule.force_after
    return moment.now >= after


def _together(pods: Sequence[Pod], plan: DrainPlan, rules: DrainRules) -> DrainPlan:
    """A gang is evicted when all of it on this node may be: else its other pods wait for the one.

    A pod that came back holds up no other: its gang was taken apart already.
    """
    named = {key: reason for key, reason in plan.named.items() if key not in (plan.back or {})}
    held: dict[Gang, str] = {}
    for pod in pods:
        gang = gang_of(pod, rules.gang_keys)
        # Except deleting pods: they are as good as gone, and hold up no other.
        if gang is not None and pod.key in named and not pod.deleting:
            held.setdefault(gang, f"{pod.key} {named[pod.key]}")
    if not held:
        return plan
    going = [(pod, gang_of(pod, rules.gang_keys)) for pod in (*plan.evict, *plan.force)]
    waiting = {
        pod.key: f"goes together with its gang: {held[gang]}"
        for pod, gang in going
        if gang is not None and gang in held
    }
    return replace(
        plan,
        evict=tuple(pod for pod in plan.evict if pod.key not in waiting),
        force=tuple(pod for pod in plan.force if pod.key not in waiting),
        waiting={**(plan.waiting or {}), **waiting},
    )
