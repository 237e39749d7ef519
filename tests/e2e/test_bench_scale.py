"""The benchmarks that compare two control planes write their keys, in their small form."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.plane import ControlPlane
from tests.controlplane.servers import FRUGAL
from tests.targets.cluster import writes_its_keys
from tests.targets.table import BENCHMARKS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="its replicas need root")


@pytest.fixture(scope="module")
def apart(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A second one; the first is asked for so that this is skipped where there is none."""
    assert control_plane
    with ControlPlane(kwok=False, scheduler=False, go=FRUGAL) as plane:
        yield plane


@pytest.mark.parametrize("name", [name for name, form in BENCHMARKS.items() if form.planes == 2])
def test_a_benchmark_writes_its_keys(
    name: str, control_plane: ControlPlane, apart: ControlPlane, tmp_path: Path
) -> None:
    writes_its_keys(name, [control_plane, apart], tmp_path)
