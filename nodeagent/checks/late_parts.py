"""Ports and mounts that come late after a boot: links train, drivers are compiled for minutes."""

from collections.abc import Iterable
from dataclasses import replace

from nodeagent.checks.siblings import BOOT_GRACE
from nodeagent.model import NOT_UP_YET, Observation, Status
from nodeagent.sources import Sources

_NOT_UP = frozenset({"disabled", "inactive", "link-down", "missing", "not-mounted"})


class LateParts:
    """Until it is first in ``been_up``, or `BOOT_GRACE` seconds after a boot, a part that is not
    up is `NOT_UP_YET`.

    Not in a single run: a job that starts now needs it.
    """

    def __init__(self, sources: Sources) -> None:
        #: The components that the check has seen up.
        self.been_up: set[str] = set()
        self._clock = sources.machine.clock
        self._single_run = sources.single_run

    def excuse(self, report: Iterable[Observation]) -> list[Observation]:
        """``report``, with unknown in the place of a failure that may be a start."""
        is_young = self._clock.boottime() < BOOT_GRACE and not self._single_run
        return [
            replace(each, status=Status.UNKNOWN, reason=NOT_UP_YET)
            if is_young and self._is_late(each)
            else each
            for each in report
        ]

    def _is_late(self, part: Observation) -> bool:
        is_down = part.status is Status.FAILED and part.reason in _NOT_UP
        return is_down and part.component not in self.been_up
