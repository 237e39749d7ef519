"""The control planes of the benchmarks.

Each is a new one, with its files in memory, unless BENCH_PLANES names the folders of some that run
(separated by colons): `make test` starts two, and every small form uses them. Such a plane has all
controllers; it is cleared before its use and after it.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.controlplane.plane import ControlPlane
from tests.controlplane.shared_plane import SharedPlane

#: Folders of running planes that nobody uses now.
_free = [Path(one) for one in os.environ.get("BENCH_PLANES", "").split(":") if one]
#: Kinds of objects that benchmarks leave, as the storage names them.
_LEFT = (
    "sickbay.dev/quarantines/",
    "minions/",
    "jobs/bench/",
    *(f"pods/{namespace}/" for namespace in ("bench", "drills", "sickbay")),
    *(f"{kind}/sickbay/sickbay-" for kind in ("configmaps", "leases")),
)


@contextlib.contextmanager
def plane(*, folder: Path | None = None, **options: Any) -> Iterator[ControlPlane]:
    """A control plane with these options of `ControlPlane`, or one that runs and is free."""
    if not _free:
        with ControlPlane(folder=folder, **options) as own:
            yield own
        return
    where = _free.pop(0)
    try:
        with SharedPlane(where) as shared:
            shared.delete_from_storage(*_LEFT)
            yield shared
            shared.delete_from_storage(*_LEFT)
    finally:
        _free.insert(0, where)


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """A folder whose files are in memory."""
    with tempfile.TemporaryDirectory(
        prefix="sickbay-bench-", dir="/dev/shm", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)
