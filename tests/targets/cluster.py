"""Runs the small form of a benchmark on control planes that run already."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.controlplane.plane import ControlPlane
from tests.targets.table import BENCHMARKS, make


def writes_its_keys(name: str, planes: Sequence[ControlPlane], folder: Path) -> None:
    """Run it, and compare the keys of its JSON with the table's."""
    shared = ":".join(str(plane.share()) for plane in planes)
    done = make(name, BENCH_SMALL="1", BENCH_FOLDER=str(folder), BENCH_PLANES=shared)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((folder / f"{name.removeprefix('bench-')}.json").read_text())
    assert BENCHMARKS[name].keys - set(written) == set()
    assert {"date", "commit", "machine"} <= set(written)
