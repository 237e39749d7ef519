"""Pods that were stopped, as the cluster reports it: which node lost one, and since when."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PodEnd:
    """A pod with accelerators that was evicted, preempted or deleted, and has failed.

    ``began`` is when its stop was requested, by the cluster's own wall clock (seconds); ``grace``
    is what it was given to end, in seconds. ``how`` is a phrase that the node's name follows.
    """

    node: str
    pod: str
    began: float
    grace: float
    how: str


class PodEndSink(Protocol):
    """The receiver of the ends of pods."""

    def note_pod_end(self, end: PodEnd) -> None: ...
