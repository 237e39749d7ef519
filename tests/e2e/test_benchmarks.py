"""The benchmarks on one control plane write their keys, in their small form (tests/targets)."""

import os
from pathlib import Path

import pytest

from tests.controlplane.plane import ControlPlane
from tests.targets.cluster import writes_its_keys
from tests.targets.table import BENCHMARKS

#: One drill and several replicas have names and files that only root may make.
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="its replicas need root")


@pytest.mark.parametrize("name", [name for name, form in BENCHMARKS.items() if form.planes == 1])
def test_a_benchmark_writes_its_keys(
    name: str, control_plane: ControlPlane, tmp_path: Path
) -> None:
    writes_its_keys(name, [control_plane], tmp_path)
