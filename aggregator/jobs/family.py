"""The families of jobs: the markers on their pods, and what one lost pod costs.

Pure, except that it reads families.yaml at import, which describes each family and each key.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aggregator.cluster.port import Pod
from aggregator.policy.shipped_yaml import read_shipped_file


class Loss(enum.StrEnum):
    """The cost of one lost pod for its job."""

    GANG = "gang"  # all pods of the gang stop, and begin again at the last checkpoint
    REPLICA = "replica"  # the pod alone begins again
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of job. families.yaml describes the fields."""

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
    head_label: str = ""
    head_value: str = ""
    progress: bool = True

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


def _family(name: str, fields: Mapping[str, Any]) -> Family:
    lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return Family(name, **{**fields, **lists, "loss": Loss(fields["loss"])})


_SHIPPED = read_shipped_file("aggregator.jobs", "families.yaml")
_BY_NAME = {name: _family(name, fields) for name, fields in _SHIPPED["families"].items()}
#: In the order in which they name a pod's job.
FAMILIES = tuple(_BY_NAME.values())
#: In the order in which they name its gang.
GANG_FAMILIES = tuple(_BY_NAME[name] for name in _SHIPPED["gangs"])
