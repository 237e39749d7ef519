"""Quarantines on a real slurmctld: our drain, and nobody else's."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    ClusterEvent,
    Conflict,
    Evicted,
    Guard,
    GuardRefused,
    NodeChange,
    NodeUncordoned,
    NotFound,
    QuarantineSeen,
    QuarantineSpec,
    Refused,
    Taint,
    Unreachable,
    WatchLost,
    WatchSynced,
)
from aggregator.cluster.slurm.client import SlurmPrograms
from aggregator.cluster.slurm.cluster import SlurmCluster
from aggregator.cluster.slurm.names import MappedSlurm, NameRules
from aggregator.jobs.identity import job_of
from aggregator.policy.slurm_reason import SLURM_TYPES
from tests.controlplane.waiting import wait_until
from tests.support.present import present
from tests.support.slurm import Slurm, needs_slurm
from tests.support.waiting import patiently, until

EXAMPLES = Path(__file__).parents[2] / "deploy/examples/slurm"
pytestmark = [needs_slurm, pytest.mark.root]

XID = QuarantineSpec(Action.DRAIN, "gpu", "xid:79 on GPU 3 (0000:ab:00.0)\nfell off the bus")
OURS = "sickbay: xid:79 on GPU 3 (0000:ab:00.0) fell off the bus"
MARK = NodeChange(taints=(Taint(TAINT, "gpu", "NoSchedule"),), unschedulable=True)
UNMARK = NodeChange(taints=(), unschedulable=False)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm"), working=2, lacking=1) as found:
        yield found


@pytest.fixture
async def cluster(slurm: Slurm, tmp_path: Path) -> AsyncIterator[SlurmCluster]:
    made = cluster_of(slurm, tmp_path / "cluster.db")
    await made.start()
    yield made
    await made.close()
    for name in set(slurm.nodes) - set(slurm.lacking):
        if "DRAIN" in slurm.state(name):
            slurm.update(name, "state=undrain")


def cluster_of(slurm: Slurm, path: Path) -> SlurmCluster:
    client = SlurmPrograms(conf=str(slurm.conf))
    return SlurmCluster(path, client=client, poll=0.1, wall=time.time)


async def quarantined(cluster: SlurmCluster, name: str) -> None:
    await cluster.create_quarantine(name, XID, guard=UNGUARDED)
    node = present(await cluster.read_node(name))
    assert (await cluster.patch_node(node, MARK, guard=UNGUARDED)).unschedulable


async def released(cluster: SlurmCluster, name: str) -> None:
    node = present(await cluster.read_node(name))
    await cluster.patch_node(node, UNMARK, guard=UNGUARDED)


async def followed(cluster: SlurmCluster, seen: list[object]) -> None:
    async for event in cluster.events():
        seen.append(event)  # noqa: PERF401 - it does not end


async def test_a_quarantine_is_a_drain_with_our_reason_and_its_release_an_undrain(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    await quarantined(cluster, "w1")
    assert slurm.state("w1") == "IDLE+DRAIN"
    assert slurm.shown("w1")["Reason"] == OURS
    await released(cluster, "w1")
    assert (slurm.state("w1"), slurm.shown("w1")["Reason"]) == ("IDLE", "")


async def test_a_job_runs_to_its_end_and_the_node_is_drained_when_it_has_ended(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    other, job = slurm.submit("w2"), slurm.submit("w1")
    await quarantined(cluster, "w1")
    [pod] = await cluster.pods_on("w1")
    assert pod.key == f"job {job}"
    found = job_of(pod)
    assert (str(found), found.queue) == (f"Slurm job {job}", "main")
    result = await cluster.evict(pod, guard=UNGUARDED)
    assert result.outcome is Evicted.BLOCKED
    assert "llama of root is running, and DRAIN lets it end, at most until" in result.message
    assert slurm.run("squeue", "--noheader", "--format=%T").split() == ["RUNNING"] * 2
    slurm.run("scancel", job)
    async with asyncio.timeout(300):
        while await cluster.pods_on("w1"):  # noqa: ASYNC110 - Slurm has no watch
            await asyncio.sleep(0.1)
    assert slurm.state("w1") == "IDLE+DRAIN"
    slurm.run("scancel", other)


async def test_a_node_that_a_person_has_drained_keeps_its_words_and_stays_drained(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    slurm.update("w1", "state=drain", "reason=fan 3 dead RMA 123")
    await quarantined(cluster, "w1")
    assert slurm.shown("w1")["Reason"] == "fan 3 dead RMA 123"
    await released(cluster, "w1")
    assert slurm.state("w1") == "IDLE+DRAIN"
    assert slurm.shown("w1")["Reason"] == "fan 3 dead RMA 123"


async def changes(cluster: SlurmCluster) -> list[ClusterEvent]:
    """What the next look at the drains finds."""
    cluster._next_poll = 0.0
    return list(await cluster.read_changes())


async def test_the_end_of_anothers_drain_is_no_release_and_the_node_is_drained_anew(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    slurm.update("w1", "state=drain", "reason=fan 3 dead RMA 123")
    await quarantined(cluster, "w1")
    assert await changes(cluster) == []
    slurm.update("w1", "state=resume")
    assert await changes(cluster) == [NodeUncordoned("w1")]
    assert await changes(cluster) == [], "it is reported once"
    quarantine = present(await cluster.read_quarantine("w1"))
    assert not quarantine.deleting
    node = present(await cluster.read_node("w1"))
    assert not node.unschedulable
    await cluster.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED)
    assert slurm.shown("w1")["Reason"] == OURS
    assert await changes(cluster) == []
    await released(cluster, "w1")
    assert (slurm.state("w1"), slurm.shown("w1")["Reason"]) == ("IDLE", "")


@pytest.mark.parametrize(
    ("words", "state"), [("state=resume", "IDLE"), ("reason=under repair by ann", "IDLE+DRAIN")]
)
async def test_a_patch_that_comes_before_the_look_overrules_no_person(
    cluster: SlurmCluster, slurm: Slurm, words: str, state: str
) -> None:
    """Evidence that comes between the RESUME and the look lets the marks be written anew."""
    await quarantined(cluster, "w1")
    slurm.update("w1", words)
    node = present(await cluster.read_node("w1"))
    with pytest.raises(Conflict, match="the drain of w1 has changed"):
        await cluster.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED)
    assert slurm.state("w1") == state
    assert await changes(cluster) == []
    quarantine = present(await cluster.read_quarantine("w1"))
    assert quarantine.deleting
    await released(cluster, "w1")
    assert slurm.state("w1") == state


async def test_a_resume_and_new_words_by_a_person_end_the_quarantine_and_are_left_as_they_are(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    seen: list[object] = []
    following = asyncio.create_task(followed(cluster, seen))
    for words, state, reason in (
        (("state=resume",), "IDLE", ""),
        (("reason=under repair by ann",), "IDLE+DRAIN", "under repair by ann"),
    ):
        await quarantined(cluster, "w1")
        slurm.update("w1", *words)
        await until(
            lambda: any(isinstance(one, QuarantineSeen) and one.quarantine.deleting for one in seen)
        )
        await released(cluster, "w1")
        assert (slurm.state("w1"), slurm.shown("w1")["Reason"]) == (state, reason)
        gone = present(await cluster.read_quarantine("w1"))
        await cluster.drop_quarantine(gone, guard=UNGUARDED)
        seen.clear()
    following.cancel()


async def test_a_node_that_is_down_stays_down_with_the_words_it_had(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    slurm.update("s1", "state=down", "reason=no power in rack 7")
    await quarantined(cluster, "s1")
    assert "DOWN+DRAIN" in slurm.state("s1")
    assert slurm.shown("s1")["Reason"] == OURS
    await released(cluster, "s1")
    assert slurm.state("s1").startswith("DOWN")
    assert "DRAIN" not in slurm.state("s1")
    assert slurm.shown("s1")["Reason"] == "no power in rack 7"


async def test_a_node_that_an_administrator_expects_to_fail_stays_theirs(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    def as_hook(name: str) -> None:
        environ = os.environ | {"SLURM_CONF": str(slurm.conf)}
        words = [str(EXAMPLES / name), "w1", "sickbay: xid:79"]
        assert subprocess.run(words, check=False, env=environ).returncode == 0

    slurm.update("w1", "state=fail", "reason=PSU 2 dies, ann")
    await quarantined(cluster, "w1")
    await released(cluster, "w1")
    as_hook("slurm-drain")
    as_hook("slurm-undrain")
    assert (slurm.state("w1"), slurm.shown("w1")["Reason"]) == ("IDLE+FAIL", "PSU 2 dies, ann")
    slurm.update("w1", "state=resume")


async def test_slurms_power_down_of_a_drained_node_is_no_persons_resume(tmp_path: Path) -> None:
    programs = "SuspendProgram=/bin/true\nResumeProgram=/bin/true"
    times = "SuspendTime=100000\nSuspendTimeout=600"
    with Slurm(tmp_path, silent=0, more=f"{programs}\n{times}") as slurm:
        cluster = cluster_of(slurm, tmp_path / "cluster.db")
        await cluster.start()
        await cluster.list_nodes()
        await quarantined(cluster, "w1")
        slurm.update("w1", "state=power_down")
        await until(lambda: slurm.state("w1") == "IDLE+POWERING_DOWN", what=slurm.log)
        assert await changes(cluster) == [NodeUncordoned("w1")]
        assert not present(await cluster.read_quarantine("w1")).deleting
        node = present(await cluster.read_node("w1"))
        await cluster.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED)
        assert slurm.state("w1") == "IDLE+DRAIN+POWERING_DOWN"
        assert slurm.shown("w1")["Reason"] == OURS
        await released(cluster, "w1")
        assert slurm.state("w1") == "IDLE+POWERING_DOWN"
        await cluster.close()


async def conditions(cluster: SlurmCluster) -> dict[str, set[str]]:
    """The types that are in force, by node."""
    found = await cluster.list_conditions(SLURM_TYPES)
    return {
        one.node: {kind for kind, each in one.conditions.items() if each.status == "True"}
        for one in found
    }


async def test_slurms_own_reasons_are_conditions_and_our_drain_hides_none(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    await until(lambda: "count reported lower than configured" in slurm.shown("l1")["Reason"])
    slurm.update("w2", "state=drain", "reason=Kill task failed")
    slurm.update("s1", "state=down", "reason=Not responding")
    slurm.update("w1", "state=drain", "reason=fan 3 dead, Not responding")
    found = await conditions(cluster)
    assert found["l1"] == {"SlurmGresCountLow"}
    assert (found["w2"], found["s1"]) == ({"SlurmKillTaskFailed"}, {"SlurmNotResponding"})
    assert (found["w1"], found["s2"]) == (set(), set())
    for name in ("s1", "w2"):
        await quarantined(cluster, name)
    found = await conditions(cluster)
    assert (found["w2"], found["s1"]) == ({"SlurmKillTaskFailed"}, {"SlurmNotResponding"})
    assert slurm.shown("s1")["Reason"] == OURS
    for name in ("s1", "w2"):
        await released(cluster, name)
    slurm.update("w2", "state=resume")
    assert (await conditions(cluster))["w2"] == set()


async def test_a_drain_whose_end_was_not_seen_is_ours_after_a_restart(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.update("s2", "state=down", "reason=never there")  # no undrain in the state UNKNOWN
    first = cluster_of(slurm, tmp_path / "cluster.db")
    await first.start()
    await first.create_quarantine("s2", XID, guard=UNGUARDED)
    node = present(await first.read_node("s2"))
    reads = 0

    async def read_nodes(names: object = None) -> object:
        nonlocal reads
        reads += 1
        if reads > 1:
            raise Unreachable("the process ends here")
        return await SlurmPrograms(conf=str(slurm.conf)).read_nodes(["s2"])

    first._reads._read = read_nodes  # type: ignore[assignment]
    with pytest.raises(Unreachable):
        await first.patch_node(node, MARK, guard=UNGUARDED)
    await first.close()
    again = cluster_of(slurm, tmp_path / "cluster.db")
    await again.start()
    node = present(await again.read_node("s2"))
    assert not node.taints
    await again.patch_node(node, MARK, guard=UNGUARDED)
    await released(again, "s2")
    await again.close()
    assert "DRAIN" not in slurm.state("s2")


async def test_a_lost_place_after_the_last_wait_drains_nothing(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    async def refuse() -> None:
        raise GuardRefused("another controller acts")

    await cluster.create_quarantine("w1", XID, guard=UNGUARDED)
    node = present(await cluster.read_node("w1"))
    with pytest.raises(GuardRefused):
        await cluster.patch_node(node, MARK, guard=Guard(refuse))
    assert slurm.state("w1") == "IDLE"


async def test_a_stopped_slurmctld_is_reported_and_a_drain_that_it_forgot_is_no_persons_word(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    seen: list[object] = []
    await quarantined(cluster, "w1")
    following = asyncio.create_task(followed(cluster, seen))
    await until(lambda: any(isinstance(one, WatchSynced) for one in seen))
    slurm.stop_controller()
    client = SlurmPrograms(conf=str(slurm.conf), limit=1.0)
    with pytest.raises(Unreachable, match="did not end within 1 s"):
        await client.read_nodes(["w1"])
    seen.clear()
    cluster._client.limit = 1.0  # type: ignore[attr-defined]
    await until(lambda: any(isinstance(one, WatchLost) for one in seen))
    slurm.start_controller(clean=True)
    await until(lambda: any(type(one).__name__ == "NodeUncordoned" for one in seen))
    quarantine = present(await cluster.read_quarantine("w1"))
    assert not quarantine.deleting
    node = present(await cluster.read_node("w1"))
    assert not node.unschedulable
    await cluster.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED)
    assert slurm.shown("w1")["Reason"] == OURS
    following.cancel()
    # slurmctld refuses an undrain until the node has registered.
    await until(lambda: slurm.state("w1") == "IDLE+DRAIN", what=slurm.log)


async def test_a_drain_that_slurmctld_forgot_while_nobody_watched_is_no_persons_word(
    slurm: Slurm, tmp_path: Path
) -> None:
    first = cluster_of(slurm, tmp_path / "cluster.db")
    await first.start()
    await first.list_nodes()
    await quarantined(first, "w1")
    began = int((await first._client.read_controller()).started)
    await first.close()
    slurm.stop_controller()
    await until(lambda: time.time() >= began + 1)  # Slurm counts seconds
    slurm.start_controller(clean=True)
    again = cluster_of(slurm, tmp_path / "cluster.db")
    await again.start()
    assert await changes(again) == [NodeUncordoned("w1")]
    assert await changes(again) == []
    quarantine = present(await again.read_quarantine("w1"))
    assert not quarantine.deleting
    node = present(await again.read_node("w1"))
    await again.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED)
    assert slurm.shown("w1")["Reason"] == OURS
    # slurmctld refuses an undrain until the node has registered.
    await until(lambda: slurm.state("w1") == "IDLE+DRAIN", what=slurm.log)
    slurm.update("w1", "state=resume")
    assert await changes(again) == []
    quarantine = present(await again.read_quarantine("w1"))
    assert quarantine.deleting, "a RESUME under the same slurmctld is a person's"
    await again.close()


async def test_the_backup_of_slurmctld_keeps_our_drain_and_takes_it_back(tmp_path: Path) -> None:
    with Slurm(tmp_path, silent=0, backup=True) as slurm:
        cluster = cluster_of(slurm, tmp_path / "cluster.db")
        await cluster.start()
        await quarantined(cluster, "w1")
        await cluster.read_changes()
        slurm.kill_controller()

        async def changes() -> bool:
            try:
                return await cluster.read_changes() == []
            except Unreachable:
                return False

        for _ in patiently():  # it takes over within seconds, and answers no one before
            if await changes():
                break
            await asyncio.sleep(0.1)
        assert "backup is UP" in slurm.run("scontrol", "ping", check=False)
        quarantine = present(await cluster.read_quarantine("w1"))
        assert not quarantine.deleting, "a failover is no person's RESUME"
        assert slurm.shown("w1")["Reason"] == OURS
        await released(cluster, "w1")
        assert "DRAIN" not in slurm.state("w1")
        await cluster.close()


async def test_names_that_slurm_does_not_know_or_reads_as_all_nodes_are_refused(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    assert await cluster.read_node("stranger") is None
    assert {node.name for node in await cluster.list_nodes()} == set(slurm.nodes)
    for name in ("ALL", "w[1-2]", "w1,s1", "-f"):
        with pytest.raises(Refused):
            await cluster.create_quarantine(name, XID, guard=UNGUARDED)
        with pytest.raises(Refused):
            await SlurmPrograms(conf=str(slurm.conf)).undrain(name, guard=UNGUARDED)
    with pytest.raises(NotFound):
        await SlurmPrograms(conf=str(slurm.conf)).undrain("stranger", guard=UNGUARDED)
    assert slurm.state("w1") == "IDLE"


def test_the_examples_of_hooks_keep_anothers_drain_and_wait_for_jobs(slurm: Slurm) -> None:
    def run(name: str, *words: str) -> int:
        environ = os.environ | {"SLURM_CONF": str(slurm.conf)}
        program: list[str | Path] = [EXAMPLES / name, "w1", *words]
        return subprocess.run(program, check=False, env=environ).returncode

    job = slurm.submit("w1")
    assert run("slurm-drain", "sickbay: xid:79") == 75
    slurm.run("scancel", job)
    wait_until(lambda: run("slurm-drain", "sickbay: xid:79") == 0, what=slurm.log)
    assert slurm.shown("w1")["Reason"] == "sickbay: xid:79"
    assert (run("slurm-undrain"), slurm.state("w1")) == (0, "IDLE")
    slurm.update("w1", "state=drain", "reason=fan 3 dead RMA 123")
    assert run("slurm-drain", "sickbay: xid:79") == 0
    assert run("slurm-undrain") == 0
    assert (slurm.state("w1"), slurm.shown("w1")["Reason"]) == ("IDLE+DRAIN", "fan 3 dead RMA 123")
    slurm.update("w1", "state=undrain")


async def test_agents_names_are_mapped_and_an_ambiguous_one_is_refused(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.update("s1", "state=down", "reason=never there")
    programs = SlurmPrograms(conf=str(slurm.conf))
    client = MappedSlurm(programs, NameRules("hostname", {"w2": "gpu-02"}))
    mapped = SlurmCluster(tmp_path / "cluster.db", client=client, poll=0.1, wall=time.time)
    await mapped.start()
    assert {one.name for one in await mapped.list_nodes()} == {"host-s1", "host-s2", "gpu-02"}
    for name, node in (("host-s1", "s1"), ("gpu-02", "w2")):
        await quarantined(mapped, name)
        assert slurm.shown(node)["Reason"] == OURS
        assert await mapped.pods_on(name) == []
        await released(mapped, name)
        assert "DRAIN" not in slurm.state(node)
    for name in ("s1", "w2", "stranger", "localhost"):
        assert await mapped.read_node(name) is None
    with pytest.raises(NotFound, match="no node with NodeHostname s1"):
        await client.undrain("s1", guard=UNGUARDED)
    text = r"localhost means several nodes of Slurm \(l1, w1\): .*; set cluster\.slurm\.names"
    with pytest.raises(Refused, match=text):
        await client.drain("localhost", "x", guard=UNGUARDED)
    await mapped.close()


async def test_a_drain_runs_few_programs(slurm: Slurm, tmp_path: Path) -> None:
    ran: list[str] = []

    class Counted(SlurmPrograms):
        async def _run(
            self, command: Sequence[str], *, guard: Guard = UNGUARDED
        ) -> tuple[int, str]:
            ran.append(command[0])
            return await super()._run(command, guard=guard)

    counted = Counted(conf=str(slurm.conf))
    cluster = SlurmCluster(tmp_path / "cluster.db", client=counted, poll=60.0, wall=time.time)
    await cluster.start()
    await cluster.list_nodes()
    ran.clear()
    await cluster.create_quarantine("w1", XID, guard=UNGUARDED)
    node = present(await cluster.read_node("w1", cached=True))
    assert (await cluster.patch_node(node, MARK, guard=UNGUARDED)).unschedulable
    assert ran == ["sinfo", "scontrol", "scontrol", "sinfo"], "a read, the drain, and two reads"
    node = present(await cluster.read_node("w1", cached=True))
    assert node.unschedulable
    slurm.update("w1", "reason=RMA 123, ann")  # what a list shows is not what an undo goes by
    node = present(await cluster.read_node("w1", cached=True))
    await cluster.patch_node(node, UNMARK, guard=UNGUARDED)
    assert slurm.shown("w1")["Reason"] == "RMA 123, ann"
    slurm.update("w1", "state=undrain")
    await cluster.close()


async def test_a_late_writer_of_an_older_read_changes_nothing(
    cluster: SlurmCluster, slurm: Slurm
) -> None:
    old = present(await cluster.read_node("w1"))
    await quarantined(cluster, "w1")
    with pytest.raises(Conflict):
        await cluster.patch_node(old, UNMARK, guard=UNGUARDED)
    assert slurm.state("w1") == "IDLE+DRAIN"
