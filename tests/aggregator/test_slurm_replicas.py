"""Two real aggregators of a real Slurm on one PostgreSQL: the controller is killed in a burst."""

from pathlib import Path

import pytest

from tests.bench.slurm import takeover
from tests.support.postgres import StartPostgres
from tests.support.slurm import Slurm, needs_slurm

pytestmark = [needs_slurm, pytest.mark.root]


@pytest.mark.timeout(900)
def test_the_heir_of_a_killed_controller_drains_the_rest_and_no_node_twice(
    tmp_path: Path, start_postgres: StartPostgres
) -> None:
    for name in ("slurm", "replicas"):
        (tmp_path / name).mkdir()
    with Slurm(tmp_path / "slurm", working=0, silent=12) as slurm:
        lost, twice, _ = takeover(slurm, start_postgres(), tmp_path / "replicas", slurm.nodes)
        assert (lost, twice) == (0, 0)
        reasons = {slurm.shown(node)["Reason"] for node in slurm.nodes}
    assert {one.split(" ", 2)[1] for one in reasons} == {"xid:79"}
