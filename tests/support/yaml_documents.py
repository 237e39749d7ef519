"""YAML for tests, read by libyaml where PyYAML has it.

PyYAML's parser in Python takes ten times as long: half of the time of the tests of the chart.
"""

from typing import Any

import yaml

#: Safe, by either name.
LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def read_yaml(text: str | bytes) -> Any:
    """The only document of the text."""
    return yaml.load(text, LOADER)


def read_documents(text: str | bytes) -> list[Any]:
    """Every document of the text, None for an empty one."""
    return list(yaml.load_all(text, LOADER))
