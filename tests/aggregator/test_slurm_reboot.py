"""Reboots by a real slurmctld of nodes that we have drained; the machines are slurmd processes."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Guard,
    GuardRefused,
    NodeChange,
    QuarantineSpec,
    Taint,
)
from aggregator.cluster.slurm.client import SlurmPrograms
from aggregator.cluster.slurm.cluster import SlurmCluster
from aggregator.quarantine.repair.protocol import AnswerState, RepairOrder
from aggregator.repairers.slurm import SlurmRepairer
from tests.agent.agent_process import QUIET, AgentProcess
from tests.controlplane.waiting import wait_until
from tests.nvml import FakeGpus, gpu, pci_of
from tests.support.local_aggregator import LocalAggregator
from tests.support.present import present
from tests.support.slurm import Slurm, needs_slurm
from tests.support.text_files import text_file
from tests.support.waiting import until

pytestmark = [needs_slurm, pytest.mark.root]

XID = QuarantineSpec(Action.DRAIN, "gpu", "xid:79 on GPU 3")
OURS = "sickbay: xid:79 on GPU 3"
MARK = NodeChange(taints=(Taint(TAINT, "gpu", "NoSchedule"),), unschedulable=True)
UNMARK = NodeChange(taints=(), unschedulable=False)
PROFILE = """\
purpose = "Runs the test program of the site."
requires = []

[[step]]
name = "site"
command = ["true"]
limit = "2m"
output = "exit"
required = true
"""


class Machines(Slurm):
    """A Slurm that can reboot its nodes, and counts how often RebootProgram ran.

    `slurmd -b` reports a boot with each registration. Where the second one comes within the same
    second, slurmctld 22.05 takes it for another boot, which sets the node DOWN unless
    ReturnToService is 2.
    """

    def __init__(self, folder: Path) -> None:
        self._ran = folder / "reboots"
        program = text_file(folder / "reboot-node", f"#!/bin/sh\necho one >> {self._ran}\n")
        program.chmod(0o755)
        super().__init__(folder, silent=0, more=f"RebootProgram={program}\nReturnToService=2")

    @property
    def reboots(self) -> int:
        return len(self._ran.read_text().splitlines()) if self._ran.exists() else 0


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with Machines(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
async def cluster(slurm: Machines, tmp_path: Path) -> AsyncIterator[SlurmCluster]:
    """Node w1 is in quarantine; it is in service again after the test."""
    async with quarantined(slurm, tmp_path) as made:
        yield made
    if "REBOOT_ISSUED" in slurm.state("w1"):
        slurm.reboot_node("w1")
    if "DRAIN" in slurm.state("w1"):
        slurm.update("w1", "state=undrain")
    await until(lambda: slurm.state("w1") == "IDLE")


@asynccontextmanager
async def quarantined(slurm: Slurm, tmp_path: Path) -> AsyncIterator[SlurmCluster]:
    """A cluster with node w1 in quarantine."""
    client = SlurmPrograms(conf=str(slurm.conf))
    made = SlurmCluster(tmp_path / "cluster.db", client=client, poll=0.0, wall=time.time)
    await made.start()
    await until(lambda: slurm.boot_time("w1") > 0)  # slurmd has registered since the last undrain
    await patch(made, MARK)
    try:
        yield made
    finally:
        await made.close()


async def patch(cluster: SlurmCluster, change: NodeChange) -> None:
    if change is MARK:
        await cluster.create_quarantine("w1", XID, guard=UNGUARDED)
    node = present(await cluster.read_node("w1"))
    await cluster.patch_node(node, change, guard=UNGUARDED)


def repairer_of(cluster: SlurmCluster) -> SlurmRepairer:
    assert cluster.capabilities.reboots is not None
    return SlurmRepairer(cluster.capabilities.reboots)


def order(operation: str = "q-1") -> RepairOrder:
    return RepairOrder(operation, "reboot", "w1", "u", "b", "q", "xid:79", 600.0)


async def is_kept(cluster: SlurmCluster) -> bool:
    """Whether no look at the drains ends the quarantine."""
    await cluster.read_changes()
    found = await cluster.read_quarantine("w1")
    return found is not None and not found.deleting


async def test_a_reboot_keeps_our_drain_is_ordered_once_and_is_over_when_slurmd_is_back(
    cluster: SlurmCluster, slurm: Machines
) -> None:
    repairer, before = repairer_of(cluster), slurm.reboots
    assert (await repairer.order(order(), UNGUARDED)).state is AnswerState.TAKEN
    await until(lambda: "REBOOT_ISSUED" in slurm.state("w1"))
    assert (await repairer.order(order(), UNGUARDED)).state is AnswerState.TAKEN
    assert not await repairer.is_over(order())
    assert "REBOOT_ISSUED" in (await repairer.read_outcome(order())).text
    assert not await repairer.cancel(order())
    assert slurm.shown("w1")["Reason"] == f"{OURS} : reboot issued"
    assert await is_kept(cluster)
    await until(lambda: slurm.reboots == before + 1)
    slurm.reboot_node("w1")
    await until(lambda: slurm.state("w1") == "IDLE+DRAIN")
    assert await repairer.is_over(order())
    assert (await repairer.order(order(), UNGUARDED)).state is AnswerState.TAKEN
    assert await is_kept(cluster)
    await patch(cluster, UNMARK)
    await until(lambda: (slurm.state("w1"), slurm.shown("w1")["Reason"]) == ("IDLE", ""))
    assert slurm.reboots == before + 1


async def test_nothing_is_rebooted_with_a_job_by_anothers_drain_or_against_the_guard(
    cluster: SlurmCluster, slurm: Machines
) -> None:
    repairer, before = repairer_of(cluster), slurm.reboots

    async def refuse() -> None:
        raise GuardRefused("the Lease is lost")

    with pytest.raises(GuardRefused):
        await repairer.order(order(), Guard(refuse))
    slurm.update("w1", "reason=fan 3 dead RMA 123")
    refused = await repairer.order(order(), UNGUARDED)
    assert refused.state is AnswerState.FAILED
    assert "RMA 123" in refused.text
    slurm.update("w1", "state=undrain")
    await patch_again(cluster, slurm)
    slurm.update("w1", "state=undrain")
    job = slurm.submit("w1")
    await patch_again(cluster, slurm)
    answer = await repairer.order(order(), UNGUARDED)
    assert (answer.state, "a job is on w1" in answer.text) == (AnswerState.NOT_SENT, True)
    slurm.run("scancel", job)
    await until(lambda: slurm.state("w1") == "IDLE+DRAIN")
    assert slurm.reboots == before


async def patch_again(cluster: SlurmCluster, slurm: Machines) -> None:
    """Another quarantine's drain."""
    found = present(await cluster.read_quarantine("w1"))
    await cluster.drop_quarantine(found, guard=UNGUARDED)
    await patch(cluster, UNMARK)
    await patch(cluster, MARK)
    assert "DRAIN" in slurm.state("w1")


async def test_a_cancelled_reboot_leaves_the_drain_and_the_job(
    cluster: SlurmCluster, slurm: Machines
) -> None:
    repairer, before = repairer_of(cluster), slurm.reboots
    slurm.update("w1", "state=undrain")
    job = slurm.submit("w1")
    await patch_again(cluster, slurm)
    assert not await repairer.cancel(order())
    ours = present(await cluster.recorded("w1"))
    # The order of a node with a job, which no repairer sends, waits for the end of the job.
    await cluster.record(
        "w1", replace(ours, reboot="q-1", booted=slurm.boot_time("w1")), guard=UNGUARDED
    )
    slurm.run("scontrol", "reboot", "w1")
    assert "REBOOT_REQUESTED" in slurm.state("w1")
    other = await repairer.order(order("q-2"), UNGUARDED)
    assert (other.state, "somebody else" in other.text) == (AnswerState.NOT_SENT, True)
    assert await repairer.cancel(order())
    assert "REBOOT" not in slurm.state("w1")
    assert "DRAIN" in slurm.state("w1")
    assert slurm.shown("w1")["Reason"] == OURS
    assert await is_kept(cluster)
    assert not await repairer.cancel(order())
    slurm.run("scancel", job)
    await until(lambda: slurm.state("w1") == "IDLE+DRAIN")
    assert slurm.reboots == before


async def test_a_reboot_that_somebody_cancels_or_slurm_refuses_has_failed(
    cluster: SlurmCluster, slurm: Machines, tmp_path: Path
) -> None:
    repairer, ours = repairer_of(cluster), await cluster.recorded("w1")
    assert ours is not None
    await cluster.record(
        "w1", replace(ours, reboot="q-1", booted=slurm.boot_time("w1")), guard=UNGUARDED
    )
    failed = await repairer.read_outcome(order())
    assert (failed.state, "was cancelled in Slurm" in failed.text) == (AnswerState.FAILED, True)
    bare = tmp_path / "slurm.conf"
    lines = slurm.conf.read_text().splitlines()
    bare.write_text("\n".join(one for one in lines if not one.startswith("RebootProgram")))
    for client, text in (
        (SlurmPrograms(conf=str(bare)), "set RebootProgram in slurm.conf"),
        (SlurmPrograms(conf=str(slurm.conf), folder=str(without_right(tmp_path))), "Administrator"),
    ):
        cluster._client = client
        refused = await repairer_of(cluster).order(order("q-3"), UNGUARDED)
        assert refused.state is AnswerState.FAILED
        assert text in refused.text
    assert slurm.state("w1") == "IDLE+DRAIN"


def without_right(folder: Path) -> Path:
    """Slurm's programs, with slurmctld's answer to a user who may not reboot nodes."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("scontrol", "sinfo", "squeue"):
        refusal = "scontrol_reboot_nodes error: Permission denied"
        refuse = f'if [ "$1" = reboot ]; then echo "{refusal}" >&2; exit 1; fi\n'
        (programs / name).write_text(f'#!/bin/sh\n{refuse}exec {name} "$@"\n')
        (programs / name).chmod(0o755)
    return programs


async def test_a_node_that_slurm_has_set_down_under_our_words_is_its_own_to_return(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    with Slurm(tmp_path_factory.mktemp("slurm"), silent=0) as slurm:  # ReturnToService=1
        async with quarantined(slurm, tmp_path) as cluster:
            # As slurmctld does it when slurmd does not answer: DOWN, under the drain's words.
            slurm.update("w1", "state=down", f"reason={OURS}")
            ours, [found] = await cluster.recorded("w1"), await cluster._client.read_nodes(["w1"])
            assert ours is not None
            await cluster.record("w1", replace(ours, at=found.reason_at), guard=UNGUARDED)
            await patch(cluster, UNMARK)
            await until(lambda: slurm.state("w1") == "IDLE")


def test_the_ladder_reboots_by_slurm_tests_by_the_agent_and_returns_the_node(
    slurm: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair = {
        "mode": "repair",
        "verify": "own",
        "test_pause": "1s",
        "repairers": [
            {"kind": "reboot", "slurm": True, "timeout": "30m"},
            {"kind": "test", "agent": {}, "timeout": "30m"},
        ],
    }
    database = tmp_path / "aggregator" / "cluster.db"
    options = {"database": str(database), "conf": str(slurm.conf), "poll": "1s"}
    cluster = {"kind": "slurm", "slurm": options}
    (tmp_path / "policy.yaml").write_text("rules:\n  - {name: gpu-gone, healthyFor: 1s}\n")
    policy = {"file": str(tmp_path / "policy.yaml")}
    more = {"cluster": cluster, "repair": repair, "policy": policy}
    aggregator = LocalAggregator(tmp_path / "aggregator", more)
    (tmp_path / "node").mkdir()
    for name, value in FakeGpus(tmp_path / "node", [gpu(0)]).env.items():
        monkeypatch.setenv(name, value)
    agent = AgentProcess(tmp_path / "node", aggregator=aggregator.address)
    agent.node = "w1"
    boot = agent.folder / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot-1\n")
    agent.top = f'proc = "{agent.folder / "proc"}"\n[expect]\ngpus = 1\n'
    agent.address = pci_of(0)
    (agent.folder / "profiles").mkdir()
    (agent.folder / "profiles" / "own.toml").write_text(PROFILE)
    agent.more = (
        '[repair]\nallow = ["test"]\ninsecure_own_pid_namespace = true\n'
        f'insecure_loopback = true\nprofiles = "{agent.folder}/profiles"\n{QUIET}'
    )

    def attempts() -> list[tuple[str, str]]:
        found = (aggregator.ask("nodes/w1") or {}).get("quarantine") or {}
        repair = found.get("repair") or {}
        return [(one["repair"], one["state"]) for one in repair.get("attempts", ())]

    before = slurm.reboots
    try:
        agent.start()
        agent.xid(79)
        wait_until(lambda: slurm.reboots == before + 1, what=aggregator.log)
        wait_until(lambda: attempts() == [("reboot", "Ordered")], what=aggregator.log)
        agent.kill()
        boot.write_text("boot-2\n")
        slurm.reboot_node("w1")
        agent.start()
        wait_until(lambda: slurm.state("w1") == "IDLE", what=aggregator.log)
        wait_until(lambda: attempts() == [], what=aggregator.log)
    finally:
        agent.close()
        aggregator.close()
    assert slurm.reboots == before + 1
    assert "reboot succeeded: another boot" in aggregator.log()
    assert "test own succeeded: passed: site" in aggregator.log()
    assert "Traceback" not in aggregator.log()
