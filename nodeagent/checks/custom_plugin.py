"""Checks from other Python packages: the entry point group ``sickbay.checks``.

An entry point names a ``CheckSpec``. It is third-party code in the agent's process, so it is
imported only where the configuration names it. A failure of it (at import, when built, when it
runs) is ``unknown`` with the reason. Its reports are its own alone: it can neither report for
another check nor give a fault a code that the aggregator's catalogue knows.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nodeagent import python_tls
from nodeagent.checks.base import Check, CheckSpec, Off, Report
from nodeagent.dataclass import dataclass
from nodeagent.model import Clearing, FaultSighting, Gone, Loss, Observation, Status
from nodeagent.sources import Sources

GROUP = "sickbay.checks"
#: How often a check that could not be loaded reports that again.
_INTERVAL, _DEADLINE = 60.0, 10.0


class NotLoaded(Exception):
    """An entry point gives no check. The text is the reason, for people."""


def load(entry_point: str) -> CheckSpec:
    """The spec that the entry point names. Runs the package's code. Raises NotLoaded."""
    python_tls.restore()  # others' code may connect by TLS
    from importlib.metadata import entry_points  # 3 MB, only for sites with such checks

    found = list(entry_points(group=GROUP, name=entry_point))
    if not found:
        raise NotLoaded(f"no installed package has the entry point {entry_point} in {GROUP}")
    try:
        spec = found[0].load()
    except (Exception, SystemExit) as error:  # outermost edge of others' code
        why = f"{type(error).__name__}: {error}"
        raise NotLoaded(f"{found[0].value} cannot be imported: {why}") from error
    if not isinstance(spec, CheckSpec):
        raise NotLoaded(f"{found[0].value} is a {type(spec).__name__} and no CheckSpec")
    if not spec.interval:
        raise NotLoaded(f"{found[0].value} reads the kernel log; others' checks are probes")
    return spec


def wrapped(name: str, spec: CheckSpec) -> CheckSpec:
    """``spec`` under the name that the configuration gives it, limited to its own evidence."""
    return replace(spec, name=name, on=True, build=_Build(name, spec))


def absent(name: str, entry_point: str, why: str) -> CheckSpec:
    """A check that reports why the configured one is missing."""
    return CheckSpec(
        name=name,
        sees="no fault: the plugin could not be loaded",
        source=f"entry point {entry_point} in {GROUP}",
        cost="no cost",
        blind_to=why,
        interval=_INTERVAL,
        deadline=_DEADLINE,
        build=_BuildAbsent(name, "not-loaded", why),
    )


_NO_METHOD = "the check has no method `async def run_check(self)`"


@dataclass(frozen=True, slots=True)
class _Build:
    name: str
    spec: CheckSpec

    def __call__(self, sources: Sources, options: Mapping[str, Any]) -> Check:
        try:
            check: Any = self.spec.build(sources, options)
        except (Exception, SystemExit) as error:  # noqa: BLE001  outermost edge of others' code
            return _Absent(self.name, "not-built", f"{type(error).__name__}: {error}")
        if not hasattr(check, "run_check"):
            return _Absent(self.name, "not-built", _NO_METHOD)
        return _Kept(self.name, self.spec.name, check)


@dataclass(frozen=True, slots=True)
class _BuildAbsent:
    name: str
    reason: str
    why: str

    def __call__(self, sources: Sources, options: Mapping[str, Any]) -> Check:
        del sources, options
        return _Absent(self.name, self.reason, self.why)


class _Absent:
    def __init__(self, name: str, reason: str, why: str) -> None:
        self._word = Observation(name, "", Status.UNKNOWN, reason, why)

    async def run_check(self) -> Report:
        return [self._word]


class _Kept:
    """A third-party check, limited to its own evidence. The scheduler reports its errors."""

    def __init__(self, name: str, called: str, check: Check) -> None:
        self._name = name
        self._called = called
        self._check = check

    async def run_check(self) -> Report:
        try:
            report = await self._check.run_check()
        except (SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # by us: the agent ends
            # Else the agent would end with it, or take no notice of a check that gave no result.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        if isinstance(report, Off):
            return report
        return [self._own(item) for item in report]

    def _own(self, item: Any) -> Observation | FaultSighting | Clearing | Gone | Loss:
        """The item under the configured name.

        Raises ValueError for evidence that is not this check's.
        """
        match item:
            case Observation() | Gone():
                self._must(item.check == self._called, f"reports on the check {item.check!r}")
                return replace(item, check=self._name)
            case FaultSighting():
                self._must(item.check == self._called, f"reports on the check {item.check!r}")
                self._must_be_prefixed("code", item.code)
                self._must_be_prefixed("source", item.source)
                # The latch takes shared details as a storm's, and does not read them again.
                return replace(item, check=self._name, details={**item.details})
            case Clearing():
                self._must_be_prefixed("code", item.code)
                return item
            case Loss():
                return item
        raise ValueError(f"{self._called} reports a {type(item).__name__}, which is no evidence")

    def _must_be_prefixed(self, what: str, text: str) -> None:
        prefix = f"{self._called}:"
        self._must(
            text.startswith(prefix), f"has the {what} {text!r}, without {prefix!r} before it"
        )

    def _must(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001  a condition
        if not holds:
            raise ValueError(f"{self._called} {otherwise}: a check reports for itself alone")
