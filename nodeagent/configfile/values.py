"""Kinds of configuration value: a parser takes a TOML value and gives ours, or ValueError."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.configfile import units
from nodeagent.configfile.toml_table import described
from sickbay import regular_file

DURATION = 'a duration such as "30s" or "10m"'
_LONGEST = 3650 * 86400.0
FILE = "the absolute path of a readable file"
DIRECTORY = "the absolute path of a directory"
NODE_NAME = "a node's name: letters, digits, '-', '_' and '.', at most 253"


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value)
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(value)
    if "\0" in value:
        raise ValueError("holds a zero byte")
    return value


def node_name(value: Any) -> str:
    name = text(value)
    if not name:
        raise ValueError("is empty")
    if len(name) > 253 or not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise ValueError(f"{name[:80]!r} is no node's name")
    return name


def texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(value)
    return tuple(text(item) for item in value)


def integer(low: int, high: int | None = None) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(value)
        if value < low:
            raise ValueError(f"{value} is less than {low}")
        if high is not None and value > high:
            raise ValueError(f"{value} is more than {high}")
        return value

    return parse


def duration(low: float = 0.0) -> Callable[[Any], float]:
    """Seconds, at least ``low``, at most ten years: the aggregator takes no longer interval."""

    def parse(value: Any) -> float:
        seconds = units.duration(with_unit(value))
        if seconds < low:
            raise ValueError(f'"{value}" is less than {low:g} s')
        if seconds > _LONGEST:
            raise ValueError(f'"{value}" is more than ten years')
        return seconds

    return parse


def percent(value: Any) -> float:
    return units.percent(with_unit(value))


def size(value: Any) -> int:
    return units.size(with_unit(value))


def with_unit(value: Any) -> str:
    """A text; for a bare number the message states that the unit is missing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise _wrong(value, " without a unit")
    return text(value)


def one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if text(value) not in choices:
            raise ValueError(f'is "{value}"')
        return str(value)

    return parse


def absolute(value: Any) -> Path:
    if not text(value).startswith("/"):
        raise ValueError(f'"{value}" is not absolute' if value else "is empty")
    return Path(value)


def socket(value: Any) -> Path:
    return Path(units.socket_path(text(value)))


def existing_directory(value: Any) -> Path:
    path = absolute(value)
    if not path.is_dir():
        raise ValueError(f"{path} is {'not a directory' if path.exists() else 'not there'}")
    return path


def filled_directory(value: Any) -> Path:
    """An empty one is a missing mount: checks would be off, as without any device."""
    path = existing_directory(value)
    with suppress(PermissionError), os.scandir(path) as entries:
        if not any(entries):
            raise ValueError(f"{path} is empty; is the host mounted there?")
    return path


def possible_directory(value: Any) -> Path:
    """A directory that the agent makes where it isn't there yet."""
    path = absolute(value)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is not a directory")
    return path


def readable_file(value: Any) -> Path:
    path = absolute(value)
    if not path.exists():
        raise ValueError(f"{path} is not there")
    other = regular_file.kind(path)
    if other:
        raise ValueError(f"{path} is {other}")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} can't be read by this user")
    return path


def existing_path(value: Any) -> Path:
    path = absolute(value)
    if not path.exists():
        raise ValueError(f"{path} is not there")
    return path


def listen(value: Any) -> str:
    """Checks "host:port", or empty for none."""
    if text(value):
        units.host_port(value)
    return str(value)


def target(value: Any) -> str:
    """Checks "host:port" or "unix:/path", or empty for none."""
    address = text(value)
    if address.startswith("unix:"):
        units.socket_path("/" + address.removeprefix("unix:").lstrip("/"))
        if not address.removeprefix("unix:").startswith("/"):
            raise ValueError(f'"{address}" has no absolute path')
    elif "://" in address:
        raise ValueError(f'"{address}" is a URL')
    elif address and not units.host_port(address)[0]:
        raise ValueError(f'"{address}" has no host')
    return address


def _wrong(value: Any, addition: str = "") -> ValueError:
    return ValueError(f"is {described(value)}{addition}")
