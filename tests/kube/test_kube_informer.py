"""The events of a real API server: their contents, their order, and the events of an uninstall."""

import asyncio
import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.read_ahead import as_one_state
from aggregator.cluster.kubernetes.reflector import Resource, Watch, WatchEvent
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    ClusterEvent,
    Conflict,
    NodeChange,
    NodeUncordoned,
    Phase,
    QuarantineGone,
    QuarantineSeen,
    QuarantineSpec,
    QuarantineStatus,
    RecordSeen,
    RecordText,
    StopSeen,
    Unreachable,
    WatchLost,
    WatchSynced,
)
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.servers import FRUGAL
from tests.support.frozen_relay import frozen_relay
from tests.support.kube_cluster import DEPLOY, kube_cluster, listening
from tests.support.present import present
from tests.support.stack import remove_quarantines
from tests.support.waiting import PATIENCE, until

SPEC = QuarantineSpec(
    Action.DRAIN, "gpu", "Xid 79", requester="sickbay", incident="5a52c57cd2da0d26"
)
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/quarantines.sickbay.dev"


@pytest.fixture(scope="module")
def plane_to_break(control_plane_programs: Mapping[str, Path]) -> Iterator[ControlPlane]:
    assert control_plane_programs  # asked for, so that this is skipped loudly where there are none
    with ControlPlane(controller_manager=False, scheduler=False, kwok=False, go=FRUGAL) as started:
        started.create_namespace("sickbay")
        yield started


@pytest.fixture
def plane(plane_to_break: ControlPlane) -> Iterator[ControlPlane]:
    """API server and etcd of these tests' own, to break: whole for each, and empty."""
    plane = plane_to_break
    plane.apply(DEPLOY / "crd.yaml")
    yield plane
    for server in plane.servers.values():
        if server.paused:
            server.resume()
    if not plane.servers["etcd"].running:
        plane.start_etcd()
    if not plane.apiserver.running:
        plane.restart_apiserver()
    remove_quarantines(plane, "")
    plane.delete_nodes(
        node["metadata"]["name"] for node in plane.call("GET", "/api/v1/nodes")["items"]
    )


async def cordon(kube: KubeCluster, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            node = present(await kube.read_node(name))
            if node.unschedulable:
                return
            await asyncio.gather(
                kube.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED),
                return_exceptions=True,
            )


def of_node(name: str) -> Callable[[QuarantineGone | NodeUncordoned], bool]:
    return lambda news: news.node == name


async def kubectl(space: Space, *arguments: str) -> None:
    command = ["kubectl", "--kubeconfig", str(space.plane.kubeconfig), *arguments]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


async def test_what_exists_is_told_before_the_view_is_whole(
    kube: KubeCluster, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-a"
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    record = await kube.read_record()
    record = await kube.write_record("here", record.version, guard=UNGUARDED)
    async with listening(kube) as listener:
        whole = await listener.wait(WatchSynced)
        before = listener.heard[: listener.heard.index(whole)]
        assert RecordSeen(record) in before
        assert QuarantineSeen(made) in before
    await kube.drop_quarantine(made, guard=UNGUARDED)


async def test_what_is_read_ahead_is_not_read_again_and_is_whole_at_the_end(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    ahead, answers = kube.capabilities.read_ahead, kube.counters.answers
    assert ahead is not None
    ahead.begin()
    ahead.end()
    ahead.begin()
    ahead.begin()
    lists, watches = ("GET", "nodes", 200), ("WATCH", "quarantines", 200)
    await until(lambda: answers[lists] == 2 and answers[watches] == 1)
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    async with listening(kube) as listener:
        await listener.wait(QuarantineSeen, lambda seen: seen.quarantine == made)
        await listener.wait(WatchSynced)
        assert name in {node.name for node in await kube.list_nodes()}
        assert (answers[lists], answers[watches]) == (2, 1)
        await kube.list_nodes()
        assert answers[lists] == 3, "an answer is used once"
    ahead.end()
    await kube.drop_quarantine(made, guard=UNGUARDED)


SYNCED = WatchSynced(frozenset({"n"}))
GONE, LOST = NodeUncordoned("n"), WatchLost("away")


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([GONE, SYNCED, GONE], [GONE, GONE, SYNCED]),
        ([SYNCED, GONE, LOST, GONE], [GONE, LOST, GONE]),
        ([SYNCED, LOST, GONE, SYNCED, GONE], [LOST, GONE, GONE, SYNCED]),
        ([GONE], [GONE]),
    ],
)
def test_a_view_that_waited_is_whole_when_its_last_change_is_known(
    came: list[ClusterEvent], expected: list[ClusterEvent]
) -> None:
    assert as_one_state(came) == expected


async def test_changes_are_told_as_they_come(kube: KubeCluster, cluster_space: Space) -> None:
    name = f"{cluster_space.node_prefix}-a"
    async with listening(kube) as listener:
        await listener.wait(WatchSynced)
        assert RecordSeen(RecordText("", "")) in listener.heard  # there is no record yet
        made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
        await listener.wait(QuarantineSeen, lambda seen: seen.quarantine == made)
        status = QuarantineStatus(Phase.CORDONED, "x")
        cordoned = await kube.write_quarantine_status(made, status)
        await listener.wait(QuarantineSeen, lambda seen: seen.quarantine == cordoned)
        await kube.drop_quarantine(cordoned, guard=UNGUARDED)
        gone = await listener.wait(QuarantineGone, lambda gone: gone.node == name)
        assert gone == QuarantineGone(name, made.uid, with_definition=False)
        record = await kube.read_record()
        written = await kube.write_record("x", record.version, guard=UNGUARDED)
        await listener.wait(RecordSeen, lambda seen: seen.record == written)
        cluster_space.plane.call("DELETE", cluster_space.path("configmaps", "sickbay-record"))
        place = len(listener.heard)
        await listener.wait(RecordSeen, lambda seen: not seen.record.version, since=place - 1)
        assert listener.of(WatchLost) == []


async def test_a_stop_by_kubectl_is_told(kube: KubeCluster, cluster_space: Space) -> None:
    async with listening(kube) as listener:
        await listener.wait(WatchSynced)
        create = ("create", "configmap", "sickbay-stop", "--from-literal=reason=fire drill")
        await kubectl(cluster_space, "-n", cluster_space.namespace, *create)
        await listener.wait(StopSeen, lambda seen: seen.stop.reason == "fire drill")


async def test_an_uncordon_and_a_nodes_end_are_told_and_a_cordon_is_not(
    kube: KubeCluster, cluster_space: Space
) -> None:
    first, second = cluster_space.create_nodes(2)
    async with listening(kube) as listener:
        await listener.wait(WatchSynced)
        await cordon(kube, first)
        await cordon(kube, second)
        await kubectl(cluster_space, "uncordon", first)
        await listener.wait(NodeUncordoned, lambda news: news.node == first)
        cluster_space.plane.delete_nodes([second])
        await listener.wait(NodeUncordoned, lambda news: news.node == second)
        ours = [news for news in listener.of(NodeUncordoned) if news.node in {first, second}]
        assert len(ours) == 2


async def test_an_uncordon_while_nobody_listened_is_told_at_the_start(
    kube: KubeCluster, cluster_space: Space
) -> None:
    cordoned, uncordoned = cluster_space.create_nodes(2)
    await cordon(kube, cordoned)
    made = []
    for name, phase in ((cordoned, Phase.CORDONED), (uncordoned, Phase.DRAINING)):
        one = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
        made.append(await kube.write_quarantine_status(one, QuarantineStatus(phase)))
    async with listening(kube) as listener:
        whole = await listener.wait(WatchSynced)
        assert cordoned in whole.unschedulable
        assert uncordoned not in whole.unschedulable
    for one in made:
        await kube.drop_quarantine(one, guard=UNGUARDED)


async def test_a_silent_watch_is_asked_for_anew_and_nothing_is_missed(
    cluster_space: Space, quarantine_definition: None
) -> None:
    plane, name = cluster_space.plane, f"{cluster_space.node_prefix}-a"
    arguments = {"namespace": cluster_space.namespace, "silence": 0.2}
    async with kube_cluster(plane.kubeconfig, **arguments) as kube, listening(kube) as listener:
        await listener.wait(WatchSynced)
        watches = ("WATCH", "configmaps", 200)
        async with asyncio.timeout(PATIENCE):
            while kube.counters.answers[watches] < 3:
                await kube.read_record()
        record = await kube.write_record("x", (await kube.read_record()).version, guard=UNGUARDED)
        await listener.wait(RecordSeen, lambda seen: seen.record == record)
        made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
        await listener.wait(QuarantineSeen, lambda seen: seen.quarantine == made)
        await kube.drop_quarantine(made, guard=UNGUARDED)
        assert listener.of(WatchLost) == []


def open_watches(kube: KubeCluster) -> int:
    """How many watches the server has answered with 200."""
    answers = kube.counters.answers
    return sum(n for (method, _, code), n in answers.items() if (method, code) == ("WATCH", 200))


async def test_watches_are_opened_anew_once_a_request_finds_its_connection_dead(
    cluster_space: Space, quarantine_definition: None, tmp_path: Path
) -> None:
    """A load balancer fails over: open connections carry nothing, and nobody closes them.

    Watches may be silent for 1,000 s here; a request is answered in 5.
    """
    plane, name = cluster_space.plane, f"{cluster_space.node_prefix}-a"
    arguments = {"namespace": cluster_space.namespace, "silence": 1000.0, "deadline": 5.0}
    async with (
        frozen_relay(plane.kubeconfig, tmp_path) as (relay, by_relay),
        kube_cluster(by_relay, **arguments) as kube,
        listening(kube) as listener,
    ):
        await listener.wait(WatchSynced)
        await kube.read_record()
        await until(lambda: open_watches(kube) == 5)
        assert relay.freeze() >= 6  # five watches, and a connection that waits for a request
        with contextlib.suppress(Unreachable):
            await kube.read_record()
        body = {
            "apiVersion": "sickbay.dev/v1alpha1",
            "kind": "Quarantine",
            "metadata": {"name": name},
            "spec": {"reason": "x"},
        }
        await asyncio.to_thread(plane.call, "POST", paths.QUARANTINES, body)
        await listener.wait(QuarantineSeen, lambda seen: seen.quarantine.node == name)
        await kube.read_record()
        assert listener.of(WatchLost) == []
    await asyncio.to_thread(plane.call, "DELETE", f"{paths.QUARANTINES}/{name}")


async def test_the_definitions_deletion_releases_nobody(plane: ControlPlane) -> None:
    async with kube_cluster(plane.kubeconfig) as kube, listening(kube) as listener:
        await listener.wait(WatchSynced)
        mine, handmade = await kube.create_quarantine("n1", SPEC, guard=UNGUARDED), "n2"
        plane.apply(
            "{apiVersion: sickbay.dev/v1alpha1, kind: Quarantine,"
            f" metadata: {{name: {handmade}}}, spec: {{reason: x}}}}"
        )
        assert not await kube.definition_is_going()
        plane.call("DELETE", DEFINITION)
        # A quarantine held by a finalizer is reported as being deleted: its finalizer goes, no
        # undo.
        await listener.wait(QuarantineSeen, lambda seen: seen.quarantine.deleting)
        assert await kube.definition_is_going()
        await kube.drop_quarantine(mine, guard=UNGUARDED)
        both = [await listener.wait(QuarantineGone, of_node(name)) for name in ("n1", handmade)]
        assert [gone.with_definition for gone in both] == [True, True]
        await asyncio.to_thread(plane.wait_gone, DEFINITION)
        assert await kube.definition_is_going()

        # Installed again, quarantines are reported again, and their end is a release again.
        place = len(listener.heard)
        await asyncio.to_thread(plane.apply, DEPLOY / "crd.yaml")
        made = await kube.create_quarantine("n3", SPEC, guard=UNGUARDED)
        await listener.wait(
            QuarantineSeen, lambda seen: seen.quarantine.uid == made.uid, since=place
        )
        await kube.drop_quarantine(made, guard=UNGUARDED)
        gone = await listener.wait(QuarantineGone, lambda news: news.node == "n3")
        assert not gone.with_definition


async def test_quarantines_that_went_with_their_definition_while_we_were_away_are_no_release(
    plane: ControlPlane,
) -> None:
    async with kube_cluster(plane.kubeconfig) as kube, listening(kube) as listener:
        await listener.wait(WatchSynced)
        handmade = "{apiVersion: sickbay.dev/v1alpha1, kind: Quarantine, metadata: {name: n1},"
        plane.apply(handmade + " spec: {reason: x}}")
        await listener.wait(QuarantineSeen)
        plane.call("DELETE", DEFINITION)
        plane.wait_gone(DEFINITION)
        plane.apply(DEPLOY / "crd.yaml")
        gone = await listener.wait(QuarantineGone)
        assert gone.with_definition


async def test_the_view_survives_the_api_servers_death_and_return(plane: ControlPlane) -> None:
    stays, goes = plane.create_nodes(2)
    async with kube_cluster(plane.kubeconfig) as kube, listening(kube) as listener:
        made = await kube.create_quarantine(stays, SPEC, guard=UNGUARDED)
        ended = await kube.create_quarantine(goes, SPEC, guard=UNGUARDED)
        await cordon(kube, goes)
        await listener.wait(WatchSynced)
        await asyncio.to_thread(plane.kill_apiserver)
        lost = await listener.wait(WatchLost)
        assert "out of reach" in lost.reason
        place = len(listener.heard)
        await asyncio.to_thread(plane.restart_apiserver)
        await listener.wait(WatchSynced, since=place)
        anew = [news for news in listener.heard[place:] if isinstance(news, QuarantineSeen)]
        assert {news.quarantine.node for news in anew} == {stays, goes}

        # Changes during an outage of the watch are reported once it is back.
        await asyncio.to_thread(plane.kill_apiserver)
        await listener.wait(WatchLost, since=place)
        place = len(listener.heard)
        await asyncio.to_thread(plane.restart_apiserver)
        await kube.drop_quarantine(ended, guard=UNGUARDED)
        plane.call("PATCH", f"/api/v1/nodes/{goes}", {"spec": {"unschedulable": None}}, MERGE_PATCH)
        gone = await listener.wait(QuarantineGone, since=place)
        assert (gone.node, gone.uid, gone.with_definition) == (goes, ended.uid, False)

        def shows_uncordon(news: ClusterEvent) -> bool:
            lacks = isinstance(news, WatchSynced) and goes not in news.unschedulable
            return lacks or news == NodeUncordoned(goes)

        await until(lambda: any(map(shows_uncordon, listener.heard[place:])))
        assert made.node == stays


async def test_a_paused_server_is_noticed_and_its_return_too(plane: ControlPlane) -> None:
    arguments = {"silence": 4.0, "deadline": 3.0}
    async with kube_cluster(plane.kubeconfig, **arguments) as kube, listening(kube) as listener:
        await listener.wait(WatchSynced)
        plane.pause_apiserver()
        lost = await listener.wait(WatchLost)
        assert "no answer in 3 s" in lost.reason or "out of reach" in lost.reason
        place = len(listener.heard)
        await asyncio.to_thread(plane.resume_apiserver)
        await listener.wait(WatchSynced, since=place)


async def test_a_server_without_its_etcd_fails_every_request_and_then_works_again(
    plane: ControlPlane,
) -> None:
    [name] = plane.create_nodes(1)
    async with kube_cluster(plane.kubeconfig, deadline=3.0) as kube, listening(kube) as listener:
        await listener.wait(WatchSynced)
        record = await kube.read_record()
        plane.stop_etcd()
        for _ in range(3):
            with pytest.raises(Unreachable):
                await kube.write_record("x", record.version, guard=UNGUARDED)
        with pytest.raises(Unreachable):
            await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
        await asyncio.to_thread(plane.start_etcd)
        async with asyncio.timeout(PATIENCE):
            while not await eventually_created(kube, name):
                pass
        await listener.wait(QuarantineSeen, lambda seen: seen.quarantine.node == name)


async def eventually_created(kube: KubeCluster, name: str) -> bool:
    """Whether the node has a quarantine now; a try that got no answer may have made it."""
    try:
        await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    except Unreachable:
        return False
    except Conflict:
        return True
    return True


async def test_two_listeners_each_have_the_whole_view(
    kube: KubeCluster, cluster_space: Space
) -> None:
    made = await kube.create_quarantine(f"{cluster_space.node_prefix}-a", SPEC, guard=UNGUARDED)
    async with listening(kube) as one, listening(kube) as other:
        for listener in (one, other):
            whole = await listener.wait(WatchSynced)
            before = listener.heard[: listener.heard.index(whole)]
            assert QuarantineSeen(made) in before
    await kube.drop_quarantine(made, guard=UNGUARDED)


async def test_a_cluster_that_is_away_at_the_start_is_a_lost_view_and_no_error() -> None:
    kube = KubeCluster(environ={"KUBECONFIG": "/nowhere"}, rng=random.Random(1))
    async with listening(kube) as listener:
        lost = await listener.wait(WatchLost)
        assert "start() comes first" in lost.reason
    await kube.close()


async def test_a_watch_that_is_ahead_of_a_restored_server_is_listed_anew(
    plane: ControlPlane,
) -> None:
    """The server accepts a watch from a version of the future, and sends no event on it."""
    opened: list[float] = []

    async def count_open() -> None:
        opened.append(time.monotonic())

    async with kube_cluster(plane.kubeconfig) as kube:
        watch = Watch(
            kube._transport,
            Resource(paths.QUARANTINES),
            clock=time.monotonic,
            rng=random.Random(1),
            silence=0.5,
            before_open=count_open,
        )
        await watch.read_all()
        listed = watch._version
        watch._version = str(int(listed) + 1000)

        async def follow() -> None:
            async with contextlib.aclosing(watch.changes()) as changes:
                async for _ in changes:
                    raise AssertionError("nothing has changed")

        with pytest.raises(Unreachable, match="went back from"):
            await asyncio.wait_for(follow(), PATIENCE)
        # A version that is not ahead is asked for anew, again and again, and brings the changes.
        watch._version = listed
        opened.clear()
        first = asyncio.create_task(_first(watch))
        await until(lambda: len(opened) >= 3)
        assert not first.done()
        await kube.create_quarantine("gpu-00009", SPEC, guard=UNGUARDED)
        assert [change.type for change in await asyncio.wait_for(first, PATIENCE)] == ["ADDED"]


async def _first(watch: Watch) -> list[WatchEvent]:
    async with contextlib.aclosing(watch.changes()) as changes:
        async for batch in changes:
            return batch
    raise AssertionError("it ended")
