"""Configuration files of the aggregator, as tests write and read them."""

from pathlib import Path

import pytest

from aggregator.config.settings import ConfigError, load
from aggregator.configfile.yaml_source import SectionType, fields_of, section_in
from tests.support.text_files import text_file

ROOT = Path(__file__).parents[2]
EMPTY = ROOT / "tests/__init__.py"
LOCAL = "listen: {grpc: '127.0.0.1:0', web: 'localhost:0'}\n"
ONE = "{type: A, rules: [gpu-fatal], unhealthy: 'True'}"


def written(folder: Path, text: str) -> Path:
    return text_file(folder / "aggregator.yaml", text)


def problems(folder: Path, text: str) -> list[str]:
    """The errors in ``text``, each with its line and its key."""
    with pytest.raises(ConfigError) as refused:
        load(written(folder, text))
    prefix = f"{folder}/aggregator.yaml:"
    lines = str(refused.value).splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


# -- what people read ---------------------------------------------------------------------------


def keys_of(model: SectionType, prefix: str = "") -> list[str]:
    """Every key that can be set, dotted."""
    found: list[str] = []
    for name, annotation in fields_of(model).items():
        section = section_in(annotation)
        if section is None or not fields_of(section):
            found.append(prefix + name)
        else:
            several = "[]" if "tuple" in str(annotation) else ""
            found += keys_of(section, f"{prefix}{name}{several}.")
    return found
