"""Which pods belong together: those that a scheduler or controller runs all or none of. Pure.

A gang is named by the pod's spec (KEP-4671), or by a label or an annotation whose equal value makes
it. The shipped keys are those of the families of jobs; a site adds those of its scheduler.
"""

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from aggregator.cluster.port import Pod
from aggregator.jobs.family import GANG_FAMILIES

SHIPPED_KEYS = tuple(key for family in GANG_FAMILIES for key in family.gang_keys)
_SPEC = "spec"
#: Characters of a name, as of Kubernetes' objects; an annotation may have 256 KiB.
_LONGEST = 253
_KEPT = 200


class Gangs(enum.StrEnum):
    """How far a gang is taken together."""

    NODE = "node"  # its pods on the node that is drained
    WHOLE = "whole"  # those on other nodes too


@dataclass(frozen=True, slots=True, order=True)
class Gang:
    """One gang. ``key`` is the label, the annotation, or "spec" that names it.

    ``label``: the label that all of its pods can be listed by; empty where there is none.
    """

    namespace: str
    key: str
    name: str
    label: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(pod: Pod, more: Sequence[str] = ()) -> Gang | None:
    """The gang that the pod belongs to, or None for a pod without one.

    ``more``: a site's own keys, which go before the shipped ones.
    """
    if pod.group:
        return Gang(pod.namespace, _SPEC, pod.group)
    for key in (*more, *SHIPPED_KEYS):
        if name := pod.labels.get(key):
            return Gang(pod.namespace, key, name, label=key)
        if name := pod.annotations.get(key):
            return Gang(pod.namespace, key, _bounded(name))
    return None


def _bounded(name: str) -> str:
    """The name, or a short one in its place: the status of a Quarantine has to hold many."""
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{name[:_KEPT]}-{digest}"
