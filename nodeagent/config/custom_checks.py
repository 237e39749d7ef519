"""``[own.NAME]``: the site's own checks, programs and entry points of Python packages."""

import re
from typing import Any

from nodeagent import kernel_feed, recorder
from nodeagent.checks import custom_command, custom_plugin, registry
from nodeagent.checks.base import CheckSpec
from nodeagent.config.checks import SHORTEST, settings_of
from nodeagent.config.settings import CheckSettings
from nodeagent.configfile import values
from nodeagent.configfile.toml_table import Table

_INTERVAL = 60.0
_TIME_LIMIT = 10.0
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_COMMAND = "a list of texts, the first an absolute path"
#: Names under which the agent itself reports.
_OURS = frozenset({"agent", kernel_feed.CHECK, recorder.CHECK})


def read_own(table: Table) -> tuple[tuple[CheckSpec, ...], dict[str, CheckSettings]]:
    """The specs, in the file's order, and their settings by name.

    The packages that are named are imported. A failed import gives a check that reports it.
    """
    specs: list[CheckSpec] = []
    settings: dict[str, CheckSettings] = {}
    for name in table.names():
        below = table.table(name)
        wrong = wrong_name(name)
        if wrong:
            table.problem(name, *wrong)
            below.skip()
            continue
        kind = "entry_point" if "entry_point" in below else "command"
        read = _entry_point if kind == "entry_point" else _command
        spec, settings[name] = read(name, below)
        specs.append(spec)
    return tuple(specs), settings


def wrong_name(name: str) -> tuple[str, str] | None:
    """Why a check of the site's may not have this name, and what it may have."""
    if not _NAME.fullmatch(name):
        expected = "lower-case letters, digits and '-', at most 63"
        return f"{name[:80]!r} is no name of a check", expected
    if name in registry.by_name() or name in _OURS:
        return "is the name of one of the agent's own", f"another name, or [checks.{name}]"
    return None


def _command(name: str, table: Table) -> tuple[CheckSpec, CheckSettings]:
    on = table.read("on", True, values.flag, "true or false")
    build = custom_command.Build(
        name=name,
        protocol=table.read(
            "protocol",
            "",
            values.one_of(custom_command.PROTOCOLS),
            f"one of {', '.join(custom_command.PROTOCOLS)}",
        ),
        command=table.read("command", ("",), _program, _COMMAND),
        time_limit=table.read(
            "time_limit", _TIME_LIMIT, values.duration(SHORTEST), values.DURATION
        ),
    )
    interval = table.read("interval", _INTERVAL, values.duration(SHORTEST), values.DURATION)
    sees = table.read("sees", "", values.text, "a text")
    if "command" not in table:
        table.wrong("has neither command nor entry_point", f"command = {_COMMAND}")
    elif "protocol" not in table:
        known = f'"{custom_command.NAGIOS}" or "{custom_command.NPD}"'
        expected = f"protocol = {known}: their exit codes differ"
        table.problem("command", "given without protocol", expected)
    spec = custom_command.spec(build, interval=interval, sees=sees)
    return spec, CheckSettings(on=on, interval=interval, deadline=spec.deadline)


def _program(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # not shown: a password may be among its words
        raise ValueError("is one text")  # noqa: TRY004 - as of every value
    command = values.texts(value)
    if not command:
        raise ValueError("is empty")
    values.absolute(command[0])
    return command


def _entry_point(name: str, table: Table) -> tuple[CheckSpec, CheckSettings]:
    entry_point = table.read("entry_point", "", values.text, "an entry point's name")
    for key in ("command", "protocol", "time_limit", "sees"):
        if key in table:
            table.problem(key, "given next to entry_point", "one of the two")
            table.read(key, None, _anything, "")
    try:
        spec = custom_plugin.wrapped(name, custom_plugin.load(entry_point))
    except custom_plugin.NotLoaded as error:
        # Its settings are unknown as well, so none is refused.
        table.skip()
        spec = custom_plugin.absent(name, entry_point, str(error))
    return spec, settings_of(table, spec)


def _anything(value: Any) -> Any:
    return value
