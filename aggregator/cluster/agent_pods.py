"""The cluster's report about the agents' pods: to which their tokens are bound, by UID.

A pod that is not named here is unknown, and never "gone": only `PodGone` and a complete list show
that a pod is not there.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PodsListed:
    """The UIDs of all of them. ``began``: when the list was requested (monotonic seconds)."""

    uids: frozenset[str]
    began: float


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod was made or changed after the list."""

    uid: str


@dataclass(frozen=True, slots=True)
class PodGone:
    """The API server reports that the pod was deleted: a UID that does not come back."""

    uid: str


PodEvent = PodsListed | PodSeen | PodGone


class PodSink(Protocol):
    """The receiver of what the cluster reports about the agents' pods."""

    def take(self, news: PodEvent) -> None: ...

    def wants_list(self) -> bool:
        """Whether a new list would settle what is not known: it comes when one may."""
