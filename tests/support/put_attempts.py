"""Attempts at repairs as a process has written them: an Operation each."""

from aggregator.cluster.operations import begun_status, spec_of, status_of
from aggregator.cluster.port import Cluster, Quarantine, RepairAttempt
from tests.support.present import present


async def put_attempts(
    cluster: Cluster, quarantine: Quarantine, *attempts: RepairAttempt
) -> Quarantine:
    """Write them, in this order. Returns the Quarantine as it is read then."""
    for number, one in enumerate(attempts, 1):
        there = await cluster.operations.read(one.name)
        if there is None:
            there = await cluster.operations.create(one.name, spec_of(quarantine, one))
        begun = begun_status(quarantine, one, number)
        known = there.status if there.status.quarantine else begun
        await cluster.operations.write_status(there, status_of(one, known))
    return present(await cluster.read_quarantine(quarantine.node))


async def drop_operations(cluster: Cluster, node: str) -> None:
    """Remove all of the node's."""
    for one in await cluster.operations.of(node):
        await cluster.operations.drop(one)
