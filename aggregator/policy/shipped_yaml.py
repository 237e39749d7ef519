"""YAML that sickbay ships, read by libyaml where PyYAML has it: 3 ms for the catalogue, not 53.

A site's files are read by PyYAML's own parser: its errors are known, and `ShallowLoader` bounds
their depth.
"""

from importlib.resources import files
from typing import Any

import yaml

#: Safe, and for shipped texts alone.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_shipped_file(package: str, name: str) -> Any:
    """The data of a file that a package has next to its modules."""
    return read_shipped((files(package) / name).read_text("utf-8"))


def read_shipped(text: str) -> Any:
    """The data of a shipped file."""
    return yaml.load(text, Loader=LOADER)  # noqa: S506  a safe loader, by either name
