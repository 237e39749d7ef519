"""Which checks run: built from the configuration, and built again only where it has changed.

A check has a memory (which mounts were writable, which GPUs there were). So a check with unchanged
settings stays the same object when the configuration is read again.
"""

import fnmatch
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodeagent.checks.base import CheckSpec, LogCheck, Off, Report
from nodeagent.checks.custom_command import OwnCheck
from nodeagent.config.checks import off_by_config, specs_of
from nodeagent.config.settings import CheckSettings, Config
from nodeagent.dataclass import dataclass
from nodeagent.scheduler import Scheduled
from nodeagent.sources import Sources


@dataclass(frozen=True, slots=True)
class _Made:
    """A check, and the part of the configuration that it was made from."""

    origin: tuple[Any, ...]
    check: Any


class CheckSet:
    """The checks that run and those that are off, by the latest configuration."""

    def __init__(self, sources: Sources) -> None:
        self.scheduled: tuple[Scheduled, ...] = ()
        self.log_checks: Mapping[str, LogCheck] = {}
        #: Checks that do not run, and why.
        self.off: dict[str, str] = {}
        self._sources = sources
        self._made: dict[str, _Made] = {}

    @property
    def names(self) -> frozenset[str]:
        """The checks that run."""
        return frozenset(self._made)

    def follow(self, config: Config) -> None:
        """Run the checks that ``config`` wants, and end the programs of those that it does not."""
        self._sources = replace(self._sources, expected_gpus=config.expected_gpus)
        before, self._made, self.off = self._made, {}, {}
        scheduled: list[Scheduled] = []
        log_checks: dict[str, LogCheck] = {}
        for spec in specs_of(config):
            off = off_by_config(spec, config)
            if off:
                self.off[spec.name] = off
                continue
            made = self._make(spec, config, before.get(spec.name))
            self._made[spec.name] = made
            if spec.interval:
                scheduled.append(made.check)
            else:
                log_checks[spec.name] = made.check
        self.scheduled, self.log_checks = tuple(scheduled), log_checks
        for name, made in before.items():
            check = getattr(made.check, "check", None)
            if isinstance(check, OwnCheck) and self._made.get(name) is not made:
                check.stop()

    def _make(self, spec: CheckSpec, config: Config, before: _Made | None) -> _Made:
        origin = _origin(spec, config)
        if before is not None and before.origin == origin:
            return before
        settings = config.checks[spec.name]
        check: Any = spec.build(self._sources, settings.options)
        if spec.interval:
            check = Scheduled(spec.name, check, settings.interval, settings.deadline)
        return _Made(origin, check)


def is_excluded(component: str, settings: CheckSettings | None) -> bool:
    """Whether the option ``exclude`` of its check names a mount, a port, or a port's device."""
    patterns = settings.options.get("exclude") if settings else None
    if not isinstance(patterns, tuple):
        return False  # of a third party's check it may be anything
    names = component, component.partition("/")[0]
    return any(fnmatch.fnmatchcase(name, str(each)) for name in names for each in patterns)


def ends_what_it_leaves_out(name: str, report: Report) -> bool:
    """Whether a part that this whole report of the check ``name`` leaves out is over: a peer or DNS
    server in whose place others are named, a remote filesystem that was unmounted.
    """
    if isinstance(report, Off):
        return name == "disk-mounts"  # the aggregator names no peers at an agent's start
    knows_all = all(getattr(each, "component", "") for each in report)  # else no table was read
    return name in ("disk-mounts", "dns", "peers") and knows_all


def named(config: Config) -> dict[str, list[str]]:
    """By check: the parts in lists of its options, such as mounts, ports and targets."""
    return {
        name: sorted(str(part) for each in lists for part in each)
        for name, settings in config.checks.items()
        if (lists := _lists(settings))
    }


def unnamed(before: Mapping[str, Sequence[str]], config: Config) -> dict[str, frozenset[str]]:
    """By check: the parts that were ``named`` before, and are no longer."""
    now = named(config)
    return {name: frozenset(parts).difference(now.get(name, ())) for name, parts in before.items()}


def _lists(settings: CheckSettings) -> list[tuple[Any, ...]]:
    options = settings.options.items()
    return [each for key, each in options if key != "exclude" and isinstance(each, tuple)]


def _origin(spec: CheckSpec, config: Config) -> tuple[Hashable, ...]:
    """All parts of the configuration that the check is made from."""
    # Only the GPU checks need the expected number of GPUs.
    expected = config.expected_gpus if spec.name.startswith("gpu") else None
    return spec, config.checks[spec.name], expected
