"""One family of jobs: the markers on its pods, and what one lost pod costs. Pure.

A marker is a label or an annotation. Both are the text of whoever may create pods in a namespace,
so a marker names a job within the pod's own namespace alone.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.cluster.port import Pod


class Loss(enum.StrEnum):
    """The cost of one lost pod for its job."""

    GANG = "gang"  # all pods of the gang stop, and begin again at the last checkpoint
    REPLICA = "replica"  # the pod alone begins again
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of job. ``kind`` is the name of its objects for people.

    ``job_keys``: the markers whose value names the job. ``gang_keys``: those whose equal value
    makes a gang. ``size_keys``: those with the number of a gang's pods. ``owner_kinds``: the kinds
    of controlling owners that name the job where no marker does. ``only_with``: a pod without this
    marker is not of the family; with ``only_value`` the marker must have this value. ``progress``:
    a lost pod loses the work since its last checkpoint; a server has none. ``loss_of`` decides the
    loss where the pod's role matters.
    """

    name: str
    kind: str
    loss: Loss
    job_keys: tuple[str, ...] = ()
    gang_keys: tuple[str, ...] = ()
    size_keys: tuple[str, ...] = ()
    queue_keys: tuple[str, ...] = ()
    owner_kinds: tuple[str, ...] = ()
    only_with: str = ""
    only_value: str = ""
    progress: bool = True
    loss_of: Callable[[Pod], Loss] | None = None

    def name_in(self, pod: Pod) -> tuple[str, str]:
        """The job's name and the label that its pods can be listed by; empty where it is not of the
        family.
        """
        if self.only_with:
            value = marker(pod, self.only_with)
            if not value or (self.only_value and value != self.only_value):
                return "", ""
        for key in self.job_keys:
            if name := pod.labels.get(key, ""):
                return name, key
            if name := pod.annotations.get(key, ""):
                return name, ""
        if pod.owner_kind in self.owner_kinds:
            return pod.owner_name, ""
        return "", ""


def marker(pod: Pod, key: str) -> str:
    """The value of a label or, without one, of an annotation; empty for neither."""
    return pod.labels.get(key) or pod.annotations.get(key) or ""
