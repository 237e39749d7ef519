"""Ports and mounts that come late after a boot: links train, drivers are compiled for minutes."""

from collections.abc import Iterable
from dataclasses import replace

from nodeagent.checks.siblings import BOOT_GRACE
from nodeagent.model import NOT_UP_YET, Observation, Status
from nodeagent.sources import Sources

#: How the message of a port ends that is ok because it never had a link.
NOT_IN_USE = "not in use"
_NOT_UP = frozenset({"disabled", "inactive", "link-down", "missing", "not-mounted"})


class LateParts:
    """Until its first ok, or `BOOT_GRACE` seconds after a boot, a part that is not up is
    `NOT_UP_YET`.

    Not in a single run: a job that starts now needs it.
    """

    def __init__(self, sources: Sources) -> None:
        self._clock = sources.machine.clock
        self._single_run = sources.single_run
        self._been_up: set[str] = set()

    def excuse(self, report: Iterable[Observation]) -> list[Observation]:
        """``report``, with unknown in the place of a failure that may be a start."""
        is_young = self._clock.boottime() < BOOT_GRACE and not self._single_run
        return [self._starting(each) if is_young else each for each in report]

    def _starting(self, part: Observation) -> Observation:
        is_up = not part.message.endswith(NOT_IN_USE)
        if part.status in (Status.OK, Status.DEGRADED) and is_up:
            self._been_up.add(part.component)
        is_late = part.status is Status.FAILED and part.reason in _NOT_UP
        if is_late and part.component not in self._been_up:
            return replace(part, status=Status.UNKNOWN, reason=NOT_UP_YET)
        return part
