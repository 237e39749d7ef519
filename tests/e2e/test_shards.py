"""Three replicas on the real API server: killed, stopped between a read and its write, ended."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.replicas.membership.view import Member, MembershipView
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.support.evictions import accepted_evictions
from tests.support.faulty_proxy import ApiFaults, FaultyProxy, Hold
from tests.support.shards import TRUSTING_TLS, Replicas
from tests.support.simulator import Simulator
from tests.support.stack import NAMESPACE, TAINT, AggregatorProcess, remove_quarantines

pytestmark = pytest.mark.cluster

NODES = "/api/v1/nodes"
#: A dead replica's Lease has expired within this (docs/shards.md), on a busy machine.
TAKEN_OVER = 60.0
#: A stopped replica's agents are with others within 30 s (docs/shards.md) on a machine that is not
#: busy. gRPC's own keepalive would take 75 s.
AGENTS_LEFT = 60.0


class Trio:
    """Three replicas, each by a proxy of its own, and a simulated fleet."""

    def __init__(
        self, space: Space, folder: Path, ends: ExitStack, more: dict[str, Any], nodes: int
    ) -> None:
        self.plane: ControlPlane = space.plane
        self.nodes = space.create_nodes(nodes)
        ends.callback(remove_quarantines, self.plane, space.node_prefix)
        settings = {**TRUSTING_TLS, "drain": {"evict_unmanaged": True}, **more}
        self.replicas = ends.enter_context(Replicas(self.plane, folder / "replicas", more=settings))
        self.proxies: dict[str, FaultyProxy] = {}
        for name, replica in self.replicas.replicas.items():
            proxy = ends.enter_context(FaultyProxy(self.plane, folder / f"way-{name}", ApiFaults()))
            replica.goes_by(proxy.kubeconfig)
            self.proxies[name] = proxy
        self.replicas.start()
        names = folder / "names"
        names.write_text("\n".join(self.nodes))
        self.simulator: Simulator = ends.enter_context(
            self.replicas.simulator(["--names", names], log=folder / "simulator.log")
        )
        self.simulator.until_streaming(nodes, timeout_s=60)

    def of(self, name: str) -> list[str]:
        """The nodes of this replica, while all three are there."""
        membership_view = MembershipView(name, {one: Member(one) for one in self.replicas.names})
        owners = {node: membership_view.owner(node) for node in self.nodes}
        return [node for node, owner in owners.items() if owner and owner.name == name]

    def leader(self) -> str:
        """The replica that joined first, by the Leases."""

        def joined(item: dict[str, Any]) -> float:
            return float(item["metadata"]["annotations"]["sickbay.dev/since"])

        leases = self.replicas.leases()
        return min(leases, key=lambda name: (joined(leases[name]), name))

    def troubles(self, asked: str) -> dict[str, str]:
        """The replicas that don't answer, and why, by the page of the one that is asked."""
        told = self.replicas.answer(asked, "replicas")["items"]
        return {one["name"]: one["trouble"] for one in told}

    def standings_of(self, name: str, *, asked: str) -> set[str]:
        """How another's page says that this one's nodes stand."""
        rows = self.replicas.answer(asked, "nodes?limit=1000")["items"]
        mine = set(self.of(name))
        return {one["standing"] for one in rows if one["node"] in mine}

    def attached(self, *names: str) -> int:
        """How many agents these replicas have."""
        told = self.replicas.standings(names)
        return round(sum(one.get("attached", 0.0) for one in told.values()))

    def hold(self, name: str, method: str, ends: str) -> Hold:
        """The replica is stopped when it has sent such a request, which goes no further."""
        process = self.replicas.replicas[name].process
        assert process is not None
        held = Hold(method, ends, lambda: process.send_signal(signal.SIGSTOP))
        self.proxies[name].hold = held
        return held

    def wake(self, name: str) -> None:
        process = self.replicas.replicas[name].process
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def entries(self) -> set[str]:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-record"
        return set(parse_record(self.plane.call("GET", path)["data"].get("record", "")).entries)

    def tainted(self) -> set[str]:
        found = {node["metadata"]["name"]: node for node in self.plane.call("GET", NODES)["items"]}
        return {node for node in self.nodes if _has_taint(found[node])}

    def has_taint(self, node: str) -> bool:
        return _has_taint(self.plane.node(node))

    def joined_again(self, name: str) -> Callable[[], bool]:
        """Whether the replica's Lease is renewed again, from when this is called."""
        before = self.replicas.leases()[name]["metadata"]["annotations"]["sickbay.dev/since"]

        def joined() -> bool:
            lease = self.replicas.leases()[name]
            return bool(lease["metadata"]["annotations"]["sickbay.dev/since"] != before)

        return joined


def _has_taint(node: dict[str, Any]) -> bool:
    return any(taint["key"] == TAINT for taint in node["spec"].get("taints", []))


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _status(held: Hold) -> int:
    assert held.happened is not None
    happened = held.happened
    wait_until(lambda: happened.status, what="the answer to what was held", timeout_s=30)
    return happened.status


@pytest.mark.timeout(400)
def test_a_replica_stopped_between_its_look_and_its_write_fails_when_it_writes(
    cluster_space: Space, tmp_path: Path, ends: ExitStack
) -> None:
    """The leader reaches its limit; then one acts, after a takeover and a person's release."""
    trio = Trio(cluster_space, tmp_path, ends, {"limits": {"concurrent": 1}}, nodes=24)
    leader = trio.leader()
    [other, third] = [name for name in trio.replicas.names if name != leader]
    late, quick = trio.of(leader)[0], trio.of(other)[0]

    record = trio.hold(leader, "PUT", "/configmaps/sickbay-record")
    trio.simulator.inject(nodes=[late], fault="xid:79")
    wait_until(lambda: record.happened, what="the leader to write the record", timeout_s=30)
    stopped = time.monotonic()
    trio.simulator.inject(nodes=[quick], fault="xid:79")
    # Any other replica's page reports this, and calls none of its nodes healthy.
    wait_until(
        lambda: trio.troubles(other)[leader],
        what="the page to say that the leader does not answer",
        timeout_s=30,
    )
    assert "ok" not in trio.standings_of(leader, asked=other)
    wait_until(lambda: trio.tainted() == {quick}, what="the next leader", timeout_s=TAKEN_OVER)
    assert trio.troubles(third)[leader]
    # Its kernel still takes all data that is sent; its agents go because it answers no heartbeat.
    left = stopped + AGENTS_LEFT - time.monotonic()
    wait_until(
        lambda: trio.attached(other, third) == len(trio.nodes),
        what=lambda: f"the stopped one's agents to be with others: {trio.replicas.standings()}",
        timeout_s=max(1.0, left),
    )
    record.let_go()
    assert _status(record) == 409
    trio.wake(leader)
    # Until the others know that it is back, its node and the node's agent are its successor's.
    trio.replicas.until_settled()

    # It holds the entry that it admitted before it was stopped, and so do all other replicas.
    patch = trio.hold(leader, "PATCH", f"/nodes/{late}")
    assert (trio.entries(), trio.tainted()) == ({quick}, {quick})
    trio.plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{quick}")
    wait_until(lambda: patch.happened, what="the actor to mark its node", timeout_s=90)
    assert trio.entries() == {late}
    wait_until(lambda: trio.has_taint(late), what="the heir to mark it", timeout_s=TAKEN_OVER)
    trio.plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{late}")
    wait_until(lambda: not trio.has_taint(late), what="the person's release", timeout_s=30)
    wait_until(lambda: trio.entries() == set(), what="its entry to go", timeout_s=30)
    patch.let_go()
    assert _status(patch) == 409
    again = trio.joined_again(leader)
    trio.wake(leader)
    wait_until(again, what="the former actor to join again", timeout_s=30)
    until = time.monotonic() + 12  # a newcomer's wait, and its writes after that
    while time.monotonic() < until:
        assert trio.tainted() == set()
        time.sleep(1)
    assert third in trio.replicas.leases()


def _at_rest_only_leases_are_asked_for(trio: Trio, *, seconds: float) -> None:
    """Except for the list of the nodes' metadata, due every few minutes. Watches stay open."""
    marks = {name: len(proxy.log) for name, proxy in trio.proxies.items()}
    time.sleep(seconds)  # the measured time: their requests in it
    for name, mark in marks.items():
        asked = [entry.request for entry in trio.proxies[name].log[mark:]]
        leases = [one for one in asked if "/leases" in one]
        assert 2 <= len(leases) <= 2 * (seconds / 3 + 2), asked
        rest = [one for one in asked if one not in leases]
        assert rest in ([], ["GET /api/v1/nodes"]), asked


def _a_lease_deleted_by_hand_moves_nobody(trio: Trio) -> None:
    """The Lease is made anew, and the page reports no change: each replica answers all along."""
    leader = trio.leader()
    [other, _] = [name for name in trio.replicas.names if name != leader]
    before = trio.simulator.at
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/sickbay-{leader}"
    assert trio.plane.request("DELETE", path).status == 200

    def back() -> bool:
        assert set(trio.troubles(other).values()) == {""}
        return leader in trio.replicas.leases()

    wait_until(back, what="the Lease to be made anew", timeout_s=30)
    standings = trio.replicas.standings().values()
    assert [(told["members"], told["attached"] > 0) for told in standings] == [(3.0, True)] * 3
    assert trio.simulator.at == before, "no agent was sent elsewhere"


def _a_roll_with_one_fault(trio: Trio, ill: str) -> None:
    """Each in turn ends in order and starts again; only the fault during it is acted on."""
    for number, replica in enumerate(trio.replicas.replicas.values()):
        assert replica.stop() == 0
        if number == 0:
            trio.simulator.inject(nodes=[ill], fault="xid:79")
        trio.simulator.until_streaming(len(trio.nodes), timeout_s=60)
        replica.start().ready()
    wait_until(lambda: trio.tainted() == {ill}, what="the one fault", timeout_s=60)
    trio.simulator.until_streaming(len(trio.nodes), timeout_s=60)
    assert trio.entries() == {ill}


def _the_leader_killed_in_a_burst(trio: Trio, space: Space, well: list[str]) -> None:
    """All unhealthy nodes have their taint, and each one's pod is evicted once."""
    plane, before = trio.plane, trio.tainted()
    for node in well:
        plane.create_pod(space.namespace, node, node=node)
    plane.wait_pod_running(space.namespace, well[-1], timeout_s=60)
    mark = plane.audit_mark()
    leader: AggregatorProcess = trio.replicas.replicas[trio.leader()]
    trio.simulator.inject(nodes=well, fault="xid:79")
    wait_until(lambda: trio.tainted() > before, what="the burst", every_s=0.01, timeout_s=30)
    leader.kill()
    wait_until(
        lambda: trio.tainted() == set(trio.nodes), what="all taints", timeout_s=TAKEN_OVER + 30
    )

    def evicted() -> list[str]:
        return sorted(accepted_evictions(plane, mark, space.namespace))

    expected = sorted(f"{space.namespace}/{node}" for node in well)
    wait_until(lambda: len(evicted()) >= len(expected), what="all evictions", timeout_s=90)
    assert evicted() == expected


@pytest.mark.timeout(400)
def test_neither_a_roll_nor_the_leaders_death_in_a_burst_loses_a_fault_or_does_more(
    cluster_space: Space, tmp_path: Path, ends: ExitStack
) -> None:
    """The requests of three replicas at rest, and a Lease deleted by hand, before both.

    One scene after another on the same three, as it takes half a minute until they have settled.
    """
    trio = Trio(cluster_space, tmp_path, ends, {}, nodes=24)
    _at_rest_only_leases_are_asked_for(trio, seconds=6)
    _a_lease_deleted_by_hand_moves_nobody(trio)
    [ill, *_] = trio.of(trio.replicas.names[0])
    _a_roll_with_one_fault(trio, ill)
    trio.replicas.until_settled()
    _the_leader_killed_in_a_burst(trio, cluster_space, [n for n in trio.nodes if n != ill])


@pytest.mark.timeout(300)
def test_a_replica_that_was_told_of_no_others_begins_when_none_is_at_work(
    cluster_space: Space, tmp_path: Path, ends: ExitStack
) -> None:
    """The agent has a fault all the while, on which no step is taken before the other has gone."""
    [node] = cluster_space.create_nodes(1)
    plane = cluster_space.plane
    ends.callback(remove_quarantines, plane, cluster_space.node_prefix)
    others = Replicas(plane, tmp_path / "others", count=1, more=TRUSTING_TLS)
    ends.enter_context(others).start()
    lone = AggregatorProcess(plane, tmp_path / "lone", more=TRUSTING_TLS).start()
    ends.callback(lone.close)
    lone.wait_for_log(f"replica {others.names[0]} is at work in this cluster", timeout_s=60)

    (tmp_path / "names").write_text(node)
    where: list[str | Path] = ["--aggregator", lone.address]
    where += ["--ca-file", lone.authority.certificate, "--names", tmp_path / "names"]
    simulator = ends.enter_context(Simulator(where, log=tmp_path / "simulator.log"))
    simulator.until_streaming(1, timeout_s=60)
    simulator.inject(nodes=[node], fault="xid:79")
    looks = lone.log().count("is at work in this cluster")
    assert looks == 1, "said once, however often it looks"
    assert "THIS REPLICA WAITS FOR OTHERS, and does nothing: replica" in _shown(lone)
    assert not plane.node(node)["spec"].get("taints")

    assert others.one(0).stop() == 0
    wait_until(
        lambda: any(taint["key"] == TAINT for taint in plane.node(node)["spec"].get("taints", [])),
        what="the lone one to act",
        timeout_s=60,
    )
    assert "WAITS FOR OTHERS" not in _shown(lone)


def _shown(replica: AggregatorProcess) -> str:
    """The output of `sickbay status` about it."""
    page = f"https://{replica.host}:{replica.web_port}"
    program = Path(sys.executable).parent / "sickbay"
    done = subprocess.run(
        [program, "status", "--url", page, "--ca-file", replica.authority.certificate],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=60,
    )
    return done.stdout
