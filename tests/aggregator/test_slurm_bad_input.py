"""Hostile words and names on a real slurmctld: they are kept, bounded, and never an option."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    NodeChange,
    NotFound,
    QuarantineSpec,
    Refused,
    Taint,
)
from aggregator.cluster.slurm.client import SlurmPrograms
from aggregator.cluster.slurm.cluster import PARTITION, SlurmCluster
from aggregator.cluster.slurm.names import MappedSlurm, NameRules
from aggregator.cluster.slurm.state import SlurmNode
from aggregator.policy.node_condition import as_evidence
from aggregator.policy.slurm_reason import SLURM_TYPES
from tests.support.present import present
from tests.support.slurm import NO_NAMES, REASONS, Slurm, needs_slurm

pytestmark = [needs_slurm, pytest.mark.root]

XID = QuarantineSpec(Action.DRAIN, "gpu", "xid:79 on GPU 3 (0000:ab:00.0)\nfell off the bus")
OURS = "sickbay: xid:79 on GPU 3 (0000:ab:00.0) fell off the bus"
MARK = NodeChange(taints=(Taint(TAINT, "gpu", "NoSchedule"),), unschedulable=True)
UNMARK = NodeChange(taints=(), unschedulable=False)
MORE = """NodeName=--all,-x NodeAddr=127.0.0.1 Port=7
PartitionName=--all Nodes=w1
PartitionName=ALL Nodes=w1
PartitionName=<b>x</b> Nodes=w1"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm"), silent=1, more=MORE) as found:
        found.update("s1", "state=down", "reason=x")  # slurmctld refuses an undrain of UNKNOWN
        yield found


@asynccontextmanager
async def cluster_of(
    client: SlurmPrograms | MappedSlurm, folder: Path
) -> AsyncIterator[SlurmCluster]:
    made = SlurmCluster(folder / "cluster.db", client=client, poll=0.0, wall=time.time)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def cluster(slurm: Slurm, tmp_path: Path) -> AsyncIterator[SlurmCluster]:
    async with cluster_of(SlurmPrograms(conf=str(slurm.conf)), tmp_path) as made:
        yield made
    if "DRAIN" in slurm.state("w1"):
        slurm.update("w1", "state=undrain")


async def quarantined(cluster: SlurmCluster, name: str) -> None:
    await cluster.create_quarantine(name, XID, guard=UNGUARDED)
    await patched(cluster, name, MARK)


async def released(cluster: SlurmCluster, name: str) -> None:
    await patched(cluster, name, UNMARK)
    quarantine = present(await cluster.read_quarantine(name))
    await cluster.drop_quarantine(quarantine, guard=UNGUARDED)


async def patched(cluster: SlurmCluster, name: str, change: NodeChange) -> None:
    node = present(await cluster.read_node(name))
    await cluster.patch_node(node, change, guard=UNGUARDED)


async def shown(slurm: Slurm, name: str) -> SlurmNode:
    [found] = await SlurmPrograms(conf=str(slurm.conf)).read_nodes([name])
    return found


async def test_an_administrators_words_stay_whatever_they_are(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    for reason in REASONS:
        given = f'reason="{reason}"'  # scontrol takes the outer quotes away
        slurm.update("w1", "state=drain", given)
        slurm.update("s1", "state=down", given)
        for name in ("w1", "s1"):
            await quarantined(cluster, name)
        found = await shown(slurm, "w1")
        assert (found.has_drain, found.reason) == (True, reason), "the drain stays the person's"
        assert (await shown(slurm, "s1")).reason == OURS
        assert await cluster.read_changes() == []
        for name in ("w1", "s1"):
            await released(cluster, name)
        found = await shown(slurm, "w1")
        assert (found.has_drain, found.reason) == (True, reason)
        found = await shown(slurm, "s1")
        assert (found.has_drain, found.is_down, found.reason) == (False, True, reason)
        slurm.update("w1", "state=undrain")


async def test_words_over_our_drain_end_the_quarantine_whatever_they_are(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    for reason in REASONS:
        if reason == OURS:
            continue
        await quarantined(cluster, "w1")
        slurm.update("w1", f'reason="{reason}"')
        await cluster.read_changes()
        quarantine = present(await cluster.read_quarantine("w1"))
        assert quarantine.deleting
        await released(cluster, "w1")
        found = await shown(slurm, "w1")
        assert (found.has_drain, found.reason) == (True, reason)
        slurm.update("w1", "state=undrain")


async def test_slurms_words_with_a_persons_behind_them_are_bounded_evidence(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    slurm.update("w1", "state=drain", "reason=Kill task failed\n\x1b[31m" + 10_000 * "x")
    reported = {one.node: one for one in await cluster.list_conditions(SLURM_TYPES)}
    condition = reported["w1"].conditions["SlurmKillTaskFailed"]
    now = time.time()
    found = as_evidence("SlurmKillTaskFailed", condition, "True", now=1.0, earliest=now, latest=now)
    assert (found.status.name, found.message.isprintable()) == ("FAILED", True)
    assert len(found.message) <= 512


async def test_names_of_nodes_and_partitions_that_are_options_are_shown_and_never_used(
    cluster: SlurmCluster, slurm: Slurm, tmp_path: Path
) -> None:
    nodes = {one.name: one for one in await cluster.list_nodes()}
    assert {"--all", "-x", "w1", "s1"} == set(nodes)
    assert nodes["w1"].labels[PARTITION] == "--all"
    for name in NO_NAMES:
        with pytest.raises((Refused, NotFound)):
            await cluster.create_quarantine(name, XID, guard=UNGUARDED)
        with pytest.raises(Refused):
            await cluster.read_node(name)
    (tmp_path / "mapped").mkdir()
    rules = NameRules(pairs={"--all": "gpu-1"})
    mapped = MappedSlurm(SlurmPrograms(conf=str(slurm.conf)), rules)
    async with cluster_of(mapped, tmp_path / "mapped") as other:
        assert "gpu-1" in {one.name for one in await other.list_nodes()}
        with pytest.raises(Refused, match="'--all': expected a node's name"):
            await other.read_node("gpu-1")
        await quarantined(other, "w1")
        await released(other, "w1")
    assert {one.name for one in await cluster._client.read_nodes() if one.has_drain} == set()


async def test_a_jobs_name_is_one_bounded_line_and_no_other_job(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    forged = "\n7|RUNNING|root|(null)|main|1|N/A|fake"
    for name, text in (
        (f"llama{forged}", "llama"),
        (f"{forged}", ""),
        ("ALL", "ALL"),
        ("--all", "--all"),
        ("<script>alert(1)</script>\x1b[31m", "<script>alert(1)</script>?[31m"),
        ("a|b|RUNNING|" + 900 * "x", "a|b|RUNNING|"),
    ):
        job = slurm.queue("w1", name=name)
        await until_at_work(cluster)
        [pod] = await cluster.pods_on("w1")
        assert (pod.uid, pod.annotations["user"]) == (job, "root")
        found = pod.annotations["name"]
        assert found.startswith(text)
        assert len(found) <= 100
        why = (await cluster.evict(pod, guard=UNGUARDED)).message
        assert why.isprintable()
        assert len(why) <= 300
        slurm.run("scancel", job)
        await until_idle(cluster)


async def until_at_work(cluster: SlurmCluster) -> None:
    async with asyncio.timeout(300):
        while not await cluster.pods_on("w1"):  # noqa: ASYNC110 - Slurm has no watch
            await asyncio.sleep(0.1)


async def until_idle(cluster: SlurmCluster) -> None:
    async with asyncio.timeout(300):
        while await cluster.pods_on("w1"):  # noqa: ASYNC110 - Slurm has no watch
            await asyncio.sleep(0.1)


async def test_a_reservation_with_the_name_of_an_option_keeps_its_node(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    for name in ("--all", "ALL"):
        slurm.run(
            *("scontrol", "create", "reservation", f"reservationname={name}", "nodes=w1"),
            *("starttime=now", "duration=60", "users=root", "flags=maint,ignore_jobs"),
        )
        await quarantined(cluster, "w1")
        assert (await shown(slurm, "w1")).reason == OURS
        await released(cluster, "w1")
        assert name in slurm.run("scontrol", "show", "reservation")
        slurm.run("scontrol", "delete", f"reservationname={name}")
