"""``[checks.NAME]``: a check's settings, read by its spec; which checks there are."""

from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.checks import registry
from nodeagent.checks.base import CheckSpec, Kind, Option
from nodeagent.config.settings import CheckSettings, Config
from nodeagent.configfile import values
from nodeagent.configfile.toml_table import Table

#: Why the agent reports neither on the kernel log nor on its records.
NO_KERNEL_LOG = "off by configuration (kernel_log.enabled)"

#: Below this, a mistyped unit ("10ms") would make the agent a load on its node.
SHORTEST = 0.1

_PARSERS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.DURATION: values.duration(),
    Kind.PERCENT: values.percent,
    Kind.SIZE: values.size,
    Kind.INTEGER: values.integer(0),
    Kind.FLAG: values.flag,
    Kind.TEXT: values.text,
    Kind.TEXTS: values.texts,
}


def read_checks(table: Table) -> dict[str, CheckSettings]:
    """Settings of every registered check, by name; the spec's default where the file has none."""
    return {spec.name: settings_of(table.table(spec.name), spec) for spec in registry.SPECS}


def specs_of(config: Config) -> tuple[CheckSpec, ...]:
    """Every check that there is with this configuration: the agent's, then the site's own."""
    return (*registry.SPECS, *config.own)


def off_by_config(spec: CheckSpec, config: Config) -> str:
    """Why the configuration keeps ``spec`` from running; empty when it doesn't."""
    if spec in config.own:
        if not spec.interval and not config.kernel_log.enabled:
            return NO_KERNEL_LOG
        off = not config.checks[spec.name].on
        return f"off by configuration (own.{spec.name}.on)" if off else ""
    if not config.checks[spec.name].on:
        return f"off by configuration (checks.{spec.name}.on)" if spec.on else "off by default"
    if not spec.interval and not config.kernel_log.enabled:
        return NO_KERNEL_LOG
    if spec.name.startswith("gpu") and not config.nvml.enabled:
        return "off by configuration (nvml.enabled)"
    return ""


def settings_of(table: Table, spec: CheckSpec) -> CheckSettings:
    """The settings in ``table``; the spec's default where it has none."""
    on = table.read("on", spec.on, values.flag, "true or false")
    interval, deadline = spec.interval, spec.deadline
    if spec.interval:
        often = values.duration(SHORTEST)
        interval = table.read("interval", interval, often, values.DURATION)
        deadline = table.read("deadline", deadline, often, values.DURATION)
    else:
        for name in ("interval", "deadline"):
            table.read(name, 0.0, _refuse_timing, "no such key here")
    options = {option.name: _option(table, option) for option in spec.options}
    return CheckSettings(on=on, interval=interval, deadline=deadline, options=options)


def _refuse_timing(value: Any) -> float:
    raise ValueError(f"is {value!r}, but this check runs as the kernel log comes")


def _option(table: Table, option: Option) -> Any:
    def parse(value: Any) -> Any:
        known = _PARSERS[option.kind](value)
        return option.parse(known) if option.parse else known

    return table.read(option.name, option.default, parse, option.kind.value)
