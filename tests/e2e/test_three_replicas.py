"""Three replicas on the real API server: killed, stopped, cut off from each other, rolled."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aggregator.quarantine.decide.admission_record import parse_record
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.support.evictions import accepted_evictions
from tests.support.faulty_proxy import ApiFaults, FaultyProxy, Hold
from tests.support.present import present
from tests.support.replica_processes import LEASE, SNAPSHOTS, TRUSTING_TLS, Replicas
from tests.support.simulator import Simulator
from tests.support.stack import NAMESPACE, TAINT, AggregatorProcess, remove_quarantines

pytestmark = pytest.mark.cluster

NODES = "/api/v1/nodes"
#: A dead controller's Lease has expired within this (docs/replicas.md), on a busy machine.
TAKEN_OVER = 60.0


class Trio:
    """Three replicas, each by a proxy of its own, and a simulated fleet."""

    def __init__(
        self, space: Space, folder: Path, ends: ExitStack, more: dict[str, Any], nodes: int
    ) -> None:
        self.plane: ControlPlane = space.plane
        self.nodes = space.create_nodes(nodes)
        ends.callback(remove_quarantines, self.plane, space.node_prefix)
        settings = {**TRUSTING_TLS, "drain": {"evict_unmanaged": True}, **more}
        self.replicas = Replicas(self.plane, folder / "replicas", more=settings)
        ends.callback(self.plane.request, "DELETE", LEASE)
        self.proxies: dict[str, FaultyProxy] = {}
        for name, replica in self.replicas.replicas.items():
            proxy = ends.enter_context(FaultyProxy(self.plane, folder / f"way-{name}", ApiFaults()))
            replica.goes_by(proxy.kubeconfig)
            self.proxies[name] = proxy
        # The proxies end last: a replica that lives on would connect to them until then.
        ends.enter_context(self.replicas)
        self.replicas.start()
        names = folder / "names"
        names.write_text("\n".join(self.nodes))
        self.simulator: Simulator = ends.enter_context(
            self.replicas.simulator(["--names", names], log=folder / "simulator.log")
        )
        self.simulator.until_streaming(nodes, timeout_s=60)
        self.until_known()

    def until_known(self) -> None:
        """Until the controller has the stream of each agent."""
        wait_until(
            lambda: self.known() == len(self.nodes),
            what=lambda: f"the controller to know all agents: {self.replicas.standings()}",
            timeout_s=TAKEN_OVER,
        )

    def known(self) -> int:
        told = self.replicas.standings()
        controllers = [one for one in told.values() if one.get("controller")]
        return round(controllers[0]["ingest_streams"]) if len(controllers) == 1 else -1

    def process(self, name: str) -> AggregatorProcess:
        return self.replicas.replicas[name]

    def signal(self, name: str, number: signal.Signals) -> None:
        process = present(self.process(name).process)
        process.send_signal(number)

    def hold(self, name: str, method: str, ends: str) -> Hold:
        """The replica is stopped when it has sent such a request, which goes no further."""
        held = Hold(method, ends, lambda: self.signal(name, signal.SIGSTOP))
        self.proxies[name].hold = held
        return held

    def entries(self) -> set[str]:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-record"
        return set(parse_record(self.plane.call("GET", path)["data"].get("record", "")).entries)

    def tainted(self) -> set[str]:
        found = {node["metadata"]["name"]: node for node in self.plane.call("GET", NODES)["items"]}
        return {node for node in self.nodes if _has_taint(found[node])}

    def has_taint(self, node: str) -> bool:
        return _has_taint(self.plane.node(node))

    def until_so_many_tainted(self, count: int) -> None:
        wait_until(
            lambda: len(self.tainted()) == count,
            what=lambda: f"{count} taints: {self.tainted()}, {self.replicas.standings()}",
            timeout_s=TAKEN_OVER,
        )

    def until_tainted(self, *nodes: str, within: float = TAKEN_OVER) -> None:
        wait_until(
            lambda: self.tainted() == set(nodes),
            what=lambda: f"the taints of {nodes}: {self.tainted()}, {self.replicas.standings()}",
            timeout_s=within,
        )


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


def test_a_controller_stopped_between_its_look_and_its_write_fails_when_it_writes(
    cluster_space: Space, tmp_path: Path, ends: ExitStack
) -> None:
    """It is stopped for longer than its Lease lasts, before two of its writes."""
    trio = Trio(cluster_space, tmp_path, ends, {"limits": {"concurrent": 1}}, nodes=12)
    late, quick = trio.nodes[0], trio.nodes[1]
    first = trio.replicas.controller()
    record = trio.hold(first, "PUT", "/configmaps/sickbay-record")
    trio.simulator.inject(nodes=[late], fault="xid:79")
    wait_until(lambda: record.happened, what="the controller to write the record", timeout_s=30)
    trio.simulator.inject(nodes=[quick], fault="xid:79")
    wait_until(lambda: len(trio.tainted()) == 1, what="the next controller", timeout_s=TAKEN_OVER)
    [acted] = trio.tainted()
    record.let_go()
    assert _status(record) == 409
    trio.signal(first, signal.SIGCONT)
    second = trio.replicas.until_served()
    assert second != first
    assert (trio.entries(), trio.tainted()) == ({acted}, {acted}), "the limit is 1"

    waits = late if acted == quick else quick
    patch = trio.hold(second, "PATCH", f"/nodes/{waits}")
    trio.plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{acted}")
    wait_until(lambda: patch.happened, what="the controller to mark its node", timeout_s=90)
    wait_until(lambda: trio.has_taint(waits), what="the heir to mark it", timeout_s=TAKEN_OVER)
    trio.plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{waits}")
    wait_until(lambda: not trio.has_taint(waits), what="the person's release", timeout_s=30)
    wait_until(lambda: trio.entries() == set(), what="its entry to go", timeout_s=30)
    patch.let_go()
    assert _status(patch) in {409, 422}, "by its version, or by what a patch without a read tests"
    trio.signal(second, signal.SIGCONT)
    trio.replicas.until_served()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        assert trio.tainted() == set()
        time.sleep(1)


def test_neither_a_stop_nor_a_cut_nor_a_roll_loses_a_fault_or_moves_agents_without_need(
    cluster_space: Space, tmp_path: Path, ends: ExitStack
) -> None:
    """One scene after another on the same three."""
    trio = Trio(cluster_space, tmp_path, ends, {}, nodes=24)
    ill = iter(trio.nodes)
    faulty: list[str] = []

    def fault() -> None:
        faulty.append(next(ill))
        trio.simulator.inject(nodes=[faulty[-1]], fault="xid:79")

    wait_until(
        lambda: _asks_for_the_lease_alone(trio, seconds=6), what=lambda: _last_requests(trio)
    )
    _the_lease_deleted_by_hand_moves_nobody(trio)
    for scene in (_paused_for_5_s, _stopped_for_25_s, _cut_off_from_the_api_server, _rolled):
        scene(trio, fault)
        trio.until_tainted(*faulty)
        trio.until_known()
        assert trio.entries() == set(faulty)
    _killed_in_a_burst(trio, cluster_space, list(ill))


def _asks_for_the_lease_alone(trio: Trio, *, seconds: float) -> bool:
    """Whether each replica does in this time: it does at rest, and what a start begins takes a
    while on a busy machine. The list of the nodes' metadata is due every few minutes, and watches
    stay open.
    """
    marks = {name: len(proxy.log) for name, proxy in trio.proxies.items()}
    time.sleep(seconds)  # the measured time: their requests in it
    for name, mark in marks.items():
        asked = [entry.request for entry in trio.proxies[name].log[mark:]]
        leases = [one for one in asked if "/leases" in one]
        rest = [one for one in asked if one not in leases]
        if rest not in ([], ["GET /api/v1/nodes"]) or not 1 <= len(leases) <= seconds / 2 + 2:
            return False
    return True


def _last_requests(trio: Trio) -> str:
    last = {name: [one.request for one in proxy.log[-9:]] for name, proxy in trio.proxies.items()}
    return f"a time without other requests than for the Lease: {last}"


def _the_lease_deleted_by_hand_moves_nobody(trio: Trio) -> None:
    controller, before = trio.replicas.controller(), trio.replicas.agents()
    assert trio.plane.request("DELETE", LEASE).status == 200
    wait_until(
        lambda: trio.plane.request("GET", LEASE).status == 200,
        what="the Lease to be made anew",
        timeout_s=30,
    )
    assert trio.replicas.controller() == controller
    assert trio.replicas.agents() == before, "no agent was sent elsewhere"


def _paused_for_5_s(trio: Trio, fault: Callable[[], None]) -> None:
    """The controller, and then a gateway. No relay ends, and no agent has to send a snapshot."""
    controller = trio.replicas.controller()
    gateway = next(name for name in trio.replicas.names if name != controller)

    def counts() -> tuple[float, int]:
        snapshots = trio.replicas.metrics(controller)[SNAPSHOTS]
        return snapshots, trio.replicas.replicas[controller].log().count("relay.detached")

    before = counts()
    for count, paused in enumerate((controller, gateway), 1):
        trio.signal(paused, signal.SIGSTOP)
        try:
            time.sleep(5)  # longer than a controller is waited for that does not renew the Lease
        finally:
            trio.signal(paused, signal.SIGCONT)
        fault()
        trio.until_so_many_tainted(count)
    assert trio.replicas.controller() == controller
    assert counts() == before


def _stopped_for_25_s(trio: Trio, fault: Callable[[], None]) -> None:
    """Its kernel takes all that is sent to it; the gateways' agents keep their streams."""
    stopped, before = trio.replicas.controller(), trio.replicas.agents()
    marks = {name: len(proxy.log) for name, proxy in trio.proxies.items()}
    trio.signal(stopped, signal.SIGSTOP)
    try:
        began = time.monotonic()
        fault()
        wait_until(
            lambda: trio.replicas.controller() != stopped, what="another", timeout_s=TAKEN_OVER
        )
        _has_read_ahead(trio, marks)
        time.sleep(max(0.0, began + 25 - time.monotonic()))
    finally:
        trio.signal(stopped, signal.SIGCONT)
    trio.replicas.until_served()
    _keep_theirs(trio, before, stopped)


def _has_read_ahead(trio: Trio, marks: dict[str, int]) -> None:
    """The new controller began its lists before it took the Lease. At rest a gateway has none."""
    heir = trio.replicas.controller()
    asked = [entry.request for entry in trio.proxies[heir].log[marks[heir] :]]
    taken = next(at for at, one in enumerate(asked) if "PUT" in one and "/leases" in one)
    assert any("/configmaps" in one for one in asked[:taken]), asked


def _keep_theirs(trio: Trio, before: dict[str, int], gone: str) -> None:
    """The agents of all others have kept their streams, and others may have come."""
    now = trio.replicas.agents()
    kept = {name: now.get(name, 0) >= count for name, count in before.items() if name != gone}
    assert all(kept.values()), (before, now)


def _cut_off_from_the_api_server(trio: Trio, fault: Callable[[], None]) -> None:
    """The controller can't reach the API server, and the gateways can."""
    cut = trio.replicas.controller()
    trio.proxies[cut].faults = ApiFaults(resets=1.0)
    try:
        wait_until(lambda: trio.replicas.controller() != cut, what="another", timeout_s=TAKEN_OVER)
        fault()
    finally:
        trio.proxies[cut].faults = ApiFaults()
    trio.replicas.until_served()


def _rolled(trio: Trio, fault: Callable[[], None]) -> None:
    """Each in turn ends in order and starts again."""
    for number, (name, replica) in enumerate(trio.replicas.replicas.items()):
        before = trio.replicas.agents()
        assert replica.stop() == 0
        if number == 0:
            fault()
        trio.simulator.until_streaming(len(trio.nodes), timeout_s=60)
        _keep_theirs(trio, before, name)
        replica.start()
        trio.replicas.until_served()


def _killed_in_a_burst(trio: Trio, space: Space, well: list[str]) -> None:
    """All unhealthy nodes have their taint, and each one's pod is evicted once."""
    plane, before = trio.plane, trio.tainted()
    for node in well:
        plane.create_pod(space.namespace, node, node=node)
    plane.wait_pod_running(space.namespace, well[-1], timeout_s=60)
    mark = plane.audit_mark()
    controller = trio.process(trio.replicas.controller())
    trio.simulator.inject(nodes=well, fault="xid:79")
    wait_until(lambda: trio.tainted() > before, what="the burst", every_s=0.01, timeout_s=30)
    controller.kill()
    trio.until_tainted(*trio.nodes, within=TAKEN_OVER + 30)

    def evicted() -> list[str]:
        return sorted(accepted_evictions(plane, mark, space.namespace))

    expected = sorted(f"{space.namespace}/{node}" for node in well)
    wait_until(lambda: len(evicted()) >= len(expected), what="all evictions", timeout_s=90)
    assert evicted() == expected
