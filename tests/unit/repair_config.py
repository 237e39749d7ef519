"""Sections of repairs, as tests load and check them."""

from pathlib import Path

import pytest

from aggregator.config.repair import RepairConfig
from aggregator.config.settings import load
from aggregator.configfile.yaml_source import ConfigError
from tests.support.config_check import config_check

KUBERNETES = """\
listen: {grpc: "127.0.0.1:1", web: "127.0.0.1:2", insecure_plaintext: true}
identity: {kind: insecure-trust-hello}
"""
LOCAL = """\
cluster: {kind: local}
listen: {grpc: "127.0.0.1:1", web: "127.0.0.1:2", insecure_plaintext: true}
identity: {kind: insecure-trust-hello}
"""


def loaded(tmp_path: Path, repair: str, cluster: str = LOCAL) -> RepairConfig:
    path = tmp_path / "aggregator.yaml"
    (tmp_path / "secret").write_text("hush")
    path.write_text(cluster + repair)
    return load(path).repair


def problems(tmp_path: Path, repair: str, cluster: str = LOCAL) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, repair, cluster)
    return refused.value.lines()


TESTS = "    - {kind: test, agent: {}, timeout: 45m}\n"
IMAGE = f"registry.example/tests@sha256:{'0' * 64}"


def checked(tmp_path: Path, repair: str, cluster: str) -> tuple[int, list[str]]:
    """The exit code of `config check`, and its warnings without the place."""
    path = tmp_path / "aggregator.yaml"
    (tmp_path / "secret").write_text("hush")
    path.write_text(cluster + repair)
    done = config_check(path)
    told = [one.partition(": warning: ")[2] for one in done.stderr.splitlines()]
    return done.returncode, told
