"""Every act awaits its guard after its last wait: where this replica has lost its place, the stop
switch is set or the object is gone by then, nothing arrives.

The acts are found in the code, so that a new one without a case here fails.
"""

import asyncio
import contextlib
import importlib
import inspect
import json
import pkgutil
import random
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import aggregator
import aggregator.hooks
import aggregator.repairers
from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.objects import ClusterObject, ObjectResource, ObjectStore
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Cluster,
    Guard,
    GuardRefused,
    NodeChange,
    NodeCondition,
    NodeTestCondition,
    Pod,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Taint,
)
from aggregator.cluster.reboots import RebootProgress, RebootState
from aggregator.cluster.slurm.client import SlurmClient, SlurmPrograms
from aggregator.cluster.slurm.cluster import SlurmCluster
from aggregator.cluster.slurm.drain import FOREIGN
from aggregator.cluster.slurm.rest import SlurmRest
from aggregator.config.external import ExternalSection
from aggregator.hooks.command import CommandHook
from aggregator.hooks.retried import RetriedHook
from aggregator.hooks.webhook import WebhookHook
from aggregator.quarantine.actions.act_guard import FreshRead, act_guard, quarantine_read
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.repair.protocol import AnswerState, RepairOrder
from aggregator.repairers.agent import AgentRepairer
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.repairers.cluster_api import ClusterApiRepairer
from aggregator.repairers.command import CommandRepairer
from aggregator.repairers.external import ExternalRepairer
from aggregator.repairers.gpu_use import GpuUse, UnlessGpuInUse
from aggregator.repairers.ipmi import IpmiRepairer, IpmiTarget
from aggregator.repairers.job import JobRepairer
from aggregator.repairers.karpenter import KarpenterRepairer
from aggregator.repairers.redfish import RedfishRepairer, RedfishTarget
from aggregator.repairers.slurm import SlurmRepairer
from aggregator.repairers.webhook import WebhookRepairer
from tests.kube.test_kube_transport import kubeconfig
from tests.support.active_test_jobs import job_section
from tests.support.pki import Authority
from tests.support.present import present
from tests.support.tasks import end_tasks
from tests.support.text_files import text_file
from tests.support.waiting import until


class LateServer:
    """``answers``: JSON by path, each given on a connection of its own. The connection that follows
    ``at_once`` answers waits in its handshake until `let_go`.
    """

    def __init__(self, answers: Mapping[str, Any], at_once: int) -> None:
        self.url, self.ca = "", Path()
        self.arrived: list[str] = []
        self.is_late = asyncio.Event()
        self.let_go = asyncio.Event()
        self._answers = answers
        self._at_once = at_once

    async def serve(self, taken: socket.socket, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            if len(self.arrived) >= self._at_once:
                self.is_late.set()
                await self.let_go.wait()
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, taken, ssl=tls)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            with closing(writer):
                await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client sent nothing

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n")[0].split(" ")
        self.arrived.append(f"{method} {target}")
        found = self._answers.get(target.partition("?")[0])
        status = b"404 Not Found" if found is None and method == "GET" else b"200 OK"
        body = json.dumps(found or {}).encode()
        writer.write(
            b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()


@asynccontextmanager
async def late_server(
    folder: Path, answers: Mapping[str, Any], at_once: int
) -> AsyncIterator[LateServer]:
    authority = Authority.create(folder / "pki")
    pair = authority.server("server", ("127.0.0.1",))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    made = LateServer(answers, at_once)
    made.ca = authority.certificate
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    made.url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    accepting = asyncio.create_task(_accept(listener, made, tls))
    try:
        yield made
    finally:
        made.let_go.set()
        await end_tasks(accepting)
        listener.close()


async def _accept(listener: socket.socket, server: LateServer, tls: ssl.SSLContext) -> None:
    async with asyncio.TaskGroup() as group:
        while True:
            taken, _ = await asyncio.get_running_loop().sock_accept(listener)
            group.create_task(server.serve(taken, tls))


SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79", "us", "inc-1")
TAINTS = NodeChange(taints=(Taint("sickbay.dev/quarantine", "", "NoSchedule"),))
NO_COMMANDS = Commands()
REASONS = ("place", "stop", "object")


class World:
    """A node in quarantine in a real local cluster, and the guard of an act on it."""

    def __init__(self, folder: Path, commands: Commands = NO_COMMANDS) -> None:
        self.folder = folder
        self.cluster = LocalCluster(folder / "state.sqlite", commands=commands, wall=time.time)
        self.checks = 0
        #: Where the act has no other wait, the first check is the wait.
        self.at_check: Callable[[], Awaitable[None]] | None = None
        self._is_controller, self._later = True, 0.0

    def _now(self) -> float:
        return time.monotonic() + self._later

    async def start(self) -> None:
        await self.cluster.start()
        self.quarantine = await self.cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        clocks = Clocks(self._now, time.time)
        self._switch = StopSwitch(self.cluster, clocks=clocks, may_act=lambda: self._is_controller)
        read = quarantine_read(self.cluster, self.quarantine)
        fresh = FreshRead(read, clocks=clocks, began=self._now())
        inner = act_guard(switch=self._switch, against=str, fresh=fresh)

        async def check() -> None:
            self.checks += 1
            if self.at_check is not None:
                await self.at_check()
            await inner()

        self.guard = Guard(check, inner.lost)
        await inner()

    async def change(self, reason: str) -> None:
        """The events while the act waits, which takes a while."""
        self._later += 6.0
        if reason == "place":
            self._is_controller = False
        elif reason == "stop":
            self.cluster._open.set_stop("a person")
            self._switch.apply_seen(await self.cluster.read_stop())
        elif reason == "object":
            self.cluster._open.delete_quarantine("n1")
            await self.cluster.drop_quarantine(self.quarantine, guard=UNGUARDED)


@asynccontextmanager
async def world(folder: Path, commands: Commands = NO_COMMANDS) -> AsyncIterator[World]:
    made = World(folder, commands)
    await made.start()
    try:
        yield made
    finally:
        await made.cluster.close()


# -- what the code has -----------------------------------------------------------------------

#: Methods of `Cluster` that read or report, and writes that a version fences.
NOT_ACTS = {
    *("start", "close", "events", "list_nodes", "list_conditions", "list_node_tests"),
    "has_condition",
    # Writes of an Operation alone begin nothing: its order has the guard (`OrderSender`).
    "operations",
    *("read_record", "read_stop", "read_quarantine", "read_node"),
    *("wait_for_node", "pods_on", "pods_labelled", "definition_is_going", "record_place"),
    *("write_quarantine_spec", "write_quarantine_status", "add_finalizer"),
    *("announce", "write_event"),
}
NOT_ACTS_ON_OBJECTS = {"resource", "get", "find", "select", "lacks"}
#: A cancellation has no guard.
NOT_ACTS_ON_SLURM = {"read_nodes", "read_jobs", "read_controller", "cancel_reboot"}


def methods_of(protocol: type) -> set[str]:
    own = {name for one in protocol.__mro__[:-1] for name in vars(one)}
    return {name for name in own if not name.startswith("_")} - {
        "words",
        "installation",
        "lists_all",
        "user",
    }


def classes_with(package: Any, method: str) -> Iterator[type]:
    for one in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for _, found in inspect.getmembers(importlib.import_module(one.name), inspect.isclass):
            if found.__module__ == one.name and inspect.iscoroutinefunction(
                getattr(found, method, None)
            ):
                yield found


def acts() -> set[str]:
    """The name of each act that the code has."""
    found = {f"kubernetes.{name}" for name in methods_of(Cluster) - NOT_ACTS}
    of_nodes = {"write_conditions", "write_test_condition"}  # a local node has no conditions
    found |= {f"local.{name}" for name in methods_of(Cluster) - NOT_ACTS - of_nodes}
    found |= {f"objects.{name}" for name in methods_of(ObjectStore) - NOT_ACTS_ON_OBJECTS}
    of_slurm = methods_of(SlurmClient) - NOT_ACTS_ON_SLURM
    found |= {f"slurm.{name}" for name in of_slurm | {"record"}}
    found |= {f"slurmrestd.{name}" for name in of_slurm - {"reboot"}}  # by a program alone
    found |= {one.__name__ for one in classes_with(aggregator.repairers, "order")}
    return found | {one.__name__ for one in classes_with(aggregator.hooks, "call")}


def test_every_act_has_a_case() -> None:
    assert acts() == {name.partition(",")[0] for name in (*SERVED, *RUN, *AT_ONCE)}


def test_nothing_sends_a_request_or_runs_a_program_next_to_the_guards() -> None:
    """Sessions without `GuardedConnector`, and programs that `run_guarded` does not begin."""
    folder = Path(aggregator.__path__[0])
    #: Alerts, the keys of tokens, what people run on their own machine, and the demo.
    allowed = re.compile(r"(alerts|cli|demo|ingest|access|web|relay|runtime|tls)/")
    sent, run = set(), set()
    for path in folder.rglob("*.py"):
        name, text = str(path.relative_to(folder)), path.read_text()
        if allowed.match(name):
            continue
        if any("GuardedConnector" not in call for call in sessions_in(text)):
            sent.add(name)
        if re.search(r"create_subprocess|subprocess\.(run|Popen)|os\.(exec|posix_spawn)", text):
            run.add(name)
    assert sent == set()
    assert run == {"cluster/guarded_program.py"} | READERS


#: Programs that give credentials or read something.
READERS = {"cluster/kubernetes/kubeconfig_reader.py"}


def sessions_in(text: str) -> Iterator[str]:
    for found in re.finditer(r"aiohttp\.ClientSession\((?!\])", text):
        yield text[found.start() : found.start() + 200]


# -- requests over TLS ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """An act by a request; ``reads``: the requests before it, ``acts`` of which are guarded."""

    act: Callable[["Site"], Awaitable[object]]
    reads: int = 0
    acts: int = 0


@dataclass(frozen=True)
class Site:
    url: str
    ca: Path
    folder: Path
    kube: KubeCluster
    guard: Guard
    local: LocalCluster


ORDER = RepairOrder("q-1-reboot", "reboot", "n1", "uid-n1", "boot-1", "q", "xid:79", 600.0)
RESOURCE = ObjectResource("v1", "ConfigMap", "configmaps", namespaced=True)
OBJECT = ClusterObject("a", "x", "uid-a", "1", False, {}, {})
POD = Pod(
    namespace="x",
    name="p",
    uid="uid-p",
    version="1",
    phase="Running",
    deleting=False,
    mirror=False,
    owner_kind="Job",
    owner_name="j",
    empty_dirs=(),
)
CLAIM = {
    "metadata": {"name": "claim", "uid": "uid-c", "resourceVersion": "3"},
    "status": {"nodeName": "n1"},
}
MACHINE = {
    "metadata": {
        "name": "m",
        "namespace": "x",
        "uid": "uid-m",
        "resourceVersion": "3",
        "ownerReferences": [{"controller": True}],
    },
    "status": {"nodeRef": {"name": "n1"}},
}


def served(group_version: str, kind: str, plural: str, *, namespaced: bool) -> dict[str, Any]:
    one = {"name": plural, "kind": kind, "namespaced": namespaced}
    return {"groupVersion": group_version, "resources": [one]}


ANSWERS: Mapping[str, Any] = {
    "/api/v1/nodes/n1": {
        "metadata": {
            "name": "n1",
            "uid": "uid-n1",
            "resourceVersion": "1",
            "annotations": {
                "cluster.x-k8s.io/machine": "m",
                "cluster.x-k8s.io/cluster-namespace": "x",
            },
        },
        "status": {"capacity": {"nvidia.com/gpu": "8"}},
    },
    "/apis/karpenter.sh/v1": served("karpenter.sh/v1", "NodeClaim", "nodeclaims", namespaced=False),
    "/apis/karpenter.sh/v1/nodeclaims": {"metadata": {}, "items": [CLAIM]},
    "/apis/karpenter.sh/v1/nodeclaims/claim": CLAIM,
    "/apis/cluster.x-k8s.io": {"preferredVersion": {"groupVersion": "cluster.x-k8s.io/v1beta2"}},
    "/apis/cluster.x-k8s.io/v1beta2": served(
        "cluster.x-k8s.io/v1beta2", "Machine", "machines", namespaced=True
    ),
    "/apis/cluster.x-k8s.io/v1beta2/namespaces/x/machines/m": MACHINE,
    "/api/v1": served("v1", "ConfigMap", "configmaps", namespaced=True),
    "/api/v1/namespaces/x/pods": {"metadata": {}, "items": []},
    "/apis/sickbay.dev/v1alpha1/quarantines/held": {
        "metadata": {"name": "held", "uid": "uid-q", "finalizers": ["sickbay.dev/undo"]},
    },
    "/openapi/v3": {
        "paths": {"/slurm/v0.0.41/nodes/": {}, "/slurm/v0.0.41/node/{node_name}": {}},
    },
}
TEMPLATE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "x"}, "data": {}}


def secret(site: Site) -> Path:
    return text_file(site.folder / "secret", "hush\n")


async def patch(site: Site) -> object:
    node = present(await site.local.read_node("n1"))
    return await site.kube.patch_node(node, TAINTS, guard=site.guard)


async def condition(site: Site) -> object:
    wanted = {"Sick": NodeCondition("True", "Why", "why", unhealthy=True)}
    return await site.kube.write_conditions(
        "n1", node_uid="uid-n1", wanted=wanted, guard=lambda _: site.guard()
    )


def redfish(site: Site) -> Awaitable[object]:
    target = RedfishTarget(f"{site.url}/Systems/1", "u", secret(site), "ForceRestart", site.ca)
    return RedfishRepairer(target).order(ORDER, site.guard)


def by_job(site: Site) -> Awaitable[object]:
    order = RepairOrder("q-1-test", "test", "n1", "uid", "b", "q", "why", 600.0, profile="quick")
    return JobRepairer(site.kube.objects(), job_section("x")).order(order, site.guard)


async def drop(site: Site, name: str) -> None:
    gone = Quarantine(name, "uid-q", "1", SPEC, QuarantineStatus())
    await site.kube.drop_quarantine(gone, guard=site.guard)


def slurmrestd(site: Site) -> SlurmRest:
    token = text_file(site.folder / "token", "a.e30.c\n")
    return SlurmRest(site.url, token, SlurmPrograms(), name="u", ca_file=site.ca)


HOOK = {"hook": "pre_evict", "node": "n1", "quarantine": "q"}
#: The reads of each act stand before its request.
SERVED: Mapping[str, Served] = {
    "kubernetes.write_record": Served(lambda s: s.kube.write_record("{}", "", guard=s.guard)),
    "kubernetes.create_quarantine": Served(
        lambda s: s.kube.create_quarantine("n1", SPEC, guard=s.guard)
    ),
    "kubernetes.drop_quarantine": Served(lambda s: drop(s, "n1")),
    "kubernetes.drop_quarantine, its finalizer": Served(lambda s: drop(s, "held"), 1, acts=1),
    "slurmrestd.drain": Served(lambda s: slurmrestd(s).drain("n1", "why", guard=s.guard), 1),
    "slurmrestd.undrain": Served(lambda s: slurmrestd(s).undrain("n1", guard=s.guard), 1),
    "slurmrestd.write_reason": Served(
        lambda s: slurmrestd(s).write_reason("n1", "why", guard=s.guard), 1
    ),
    "kubernetes.patch_node": Served(patch),
    "kubernetes.evict": Served(lambda s: s.kube.evict(POD, guard=s.guard)),
    "kubernetes.delete_pod": Served(lambda s: s.kube.delete_pod(POD, grace=1, guard=s.guard)),
    "kubernetes.write_conditions": Served(condition, 1),
    "kubernetes.write_test_condition": Served(
        lambda s: s.kube.write_test_condition(
            "n1",
            node_uid="uid-n1",
            condition=NodeTestCondition("True", "TestPassed", "passed"),
            guard=s.guard,
        ),
        1,
    ),
    "objects.create": Served(
        lambda s: s.kube.objects().create(RESOURCE, "x", {"metadata": {}}, guard=s.guard)
    ),
    "objects.annotate": Served(
        lambda s: s.kube.objects().annotate(RESOURCE, OBJECT, {"a": "b"}, guard=s.guard)
    ),
    "objects.delete": Served(
        lambda s: s.kube.objects().delete(RESOURCE, OBJECT, as_read=True, guard=s.guard)
    ),
    "KarpenterRepairer": Served(
        lambda s: KarpenterRepairer(s.kube.objects()).order(ORDER, s.guard), 4
    ),
    "ClusterApiRepairer": Served(
        lambda s: ClusterApiRepairer(s.kube.objects(), s.kube.objects()).order(ORDER, s.guard), 4
    ),
    "ExternalRepairer": Served(
        lambda s: ExternalRepairer(
            s.kube.objects(), ExternalSection.model_validate({"template": TEMPLATE})
        ).order(ORDER, s.guard),
        1,
    ),
    "JobRepairer": Served(by_job, 3),
    "RedfishRepairer": Served(redfish),
    "WebhookRepairer": Served(
        lambda s: WebhookRepairer(s.url, secret(s), wall=time.time).order(ORDER, s.guard)
    ),
    "RetriedHook": Served(
        lambda s: RetriedHook(WebhookHook(s.url, secret(s), wall=time.time), random.Random(1)).call(
            HOOK, limit=20, guard=s.guard
        )
    ),
    "WebhookHook": Served(
        lambda s: WebhookHook(s.url, secret(s), wall=time.time).call(HOOK, limit=20, guard=s.guard)
    ),
}


@pytest.mark.parametrize("reason", [*REASONS, ""])
@pytest.mark.parametrize("name", SERVED)
async def test_a_request_whose_connection_comes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    case = SERVED[name]
    async with world(tmp_path) as here, late_server(tmp_path, ANSWERS, case.reads) as server:
        trusts = ssl.create_default_context(cafile=str(server.ca))
        monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trusts)
        config = kubeconfig(tmp_path / "config", server.url, {"token": "t"})
        config.write_text(
            config.read_text().replace(
                '"server":', f'"certificate-authority": "{server.ca}", "server":'
            )
        )
        kube = KubeCluster(environ={"KUBECONFIG": str(config)})
        await kube._transport.open()
        try:
            site = Site(server.url, server.ca, tmp_path, kube, here.guard, here.cluster)
            acting = asyncio.ensure_future(case.act(site))
            await asyncio.wait(
                {acting, late := asyncio.ensure_future(server.is_late.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert late.done(), f"it ended before its last wait: {await acting}"
            reads = list(server.arrived)
            assert here.checks == case.acts, "the guard comes after the last wait"
            await here.change(reason)
            server.let_go.set()
            refused = await outcome(acting)
        finally:
            await kube.close()
        if reason:
            assert refused
            assert server.arrived == reads
        else:
            assert here.checks == case.acts + 1
            assert len(server.arrived) == len(reads) + 1


async def outcome(acting: "asyncio.Future[object]") -> bool:
    """Whether the act was certainly not done."""
    try:
        answer = await acting
    except GuardRefused:
        return True
    except Exception:
        return False
    result = getattr(answer, "result", None)
    return getattr(answer, "state", None) is AnswerState.NOT_SENT or (
        result is not None and result.value == "not yet"
    )


# -- programs --------------------------------------------------------------------------------------

PROGRAM = "#!/bin/sh\necho $$ > {mark}\nsleep 600 &\necho $! >> {mark}\nwait\n"


@dataclass(frozen=True)
class Run:
    act: Callable[[World, str, Path], Awaitable[object]]


def ipmi(here: World, program: str, folder: Path) -> Awaitable[object]:
    path = text_file(folder / "secret", "hush\n")
    target = IpmiTarget("bmc", 623, "u", path, "cycle", program)
    return IpmiRepairer(target).order(ORDER, here.guard)


def by_command(here: World, program: str, folder: Path) -> Awaitable[object]:
    made = CommandRepairer((program,), cancel=(), limit=60.0, sends_twice=False)
    return made.order(ORDER, here.guard)


class Reboots:
    """`NodeReboots` without Slurm's state: the act alone."""

    def __init__(self, folder: Path) -> None:
        self._client = SlurmPrograms(folder=str(folder))

    async def order(self, node: str, operation: str, *, guard: Guard) -> None:
        await self._client.reboot(node, guard=guard)

    async def progress(self, node: str, operation: str) -> RebootProgress:
        return RebootProgress(RebootState.NONE)

    async def cancel(self, node: str, operation: str) -> bool:
        return False


def by_slurm(here: World, program: str, folder: Path) -> Awaitable[object]:
    scontrol(program, folder)
    return SlurmRepairer(Reboots(folder)).order(ORDER, here.guard)


async def cordon(here: World, program: str, folder: Path) -> object:
    node = present(await here.cluster.read_node("n1"))
    return await here.cluster.patch_node(node, TAINTS, guard=here.guard)


def scontrol(program: str, folder: Path) -> SlurmPrograms:
    (folder / "scontrol").symlink_to(program)
    return SlurmPrograms(folder=str(folder))


def drain_pod(here: World) -> Pod:
    return replace(
        POD,
        namespace="local",
        name="drain-n1",
        uid=here.quarantine.uid,
        owner_kind="Command",
        owner_name="n1",
    )


RUN: Mapping[str, Run] = {
    "IpmiRepairer": Run(ipmi),
    "CommandRepairer": Run(by_command),
    "SlurmRepairer": Run(by_slurm),
    "CommandHook": Run(
        lambda here, program, _: CommandHook((program,)).call(HOOK, limit=60, guard=here.guard)
    ),
    "slurm.drain": Run(lambda h, p, f: scontrol(p, f).drain("n1", "why", guard=h.guard)),
    "slurm.undrain": Run(lambda h, p, f: scontrol(p, f).undrain("n1", guard=h.guard)),
    "slurm.write_reason": Run(
        lambda h, p, f: scontrol(p, f).write_reason("n1", "why", guard=h.guard)
    ),
    "slurm.reboot": Run(lambda h, p, f: scontrol(p, f).reboot("n1", guard=h.guard)),
    "local.patch_node": Run(cordon),
    "local.evict": Run(lambda here, *_: here.cluster.evict(drain_pod(here), guard=here.guard)),
    "local.delete_pod": Run(
        lambda here, *_: here.cluster.delete_pod(drain_pod(here), grace=1, guard=here.guard)
    ),
}


def program_at(folder: Path) -> tuple[str, Path]:
    mark, path = folder / "mark", folder / "program"
    path.write_text(PROGRAM.format(mark=mark))
    path.chmod(0o755)
    return str(path), mark


def commands_of(program: str) -> Commands:
    return Commands(cordon=(program,), drain=(program,), release=(program,))


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("name", RUN)
async def test_a_program_does_not_begin_after_its_guards_wait(
    tmp_path: Path, name: str, reason: str
) -> None:
    program, mark = program_at(tmp_path)
    async with world(tmp_path, commands_of(program)) as here:
        here.at_check = lambda: here.change(reason)
        await outcome(asyncio.ensure_future(RUN[name].act(here, program, tmp_path)))
        assert here.checks == 1
        assert not mark.exists()


@pytest.mark.parametrize("reason", ["place", "stop"])
@pytest.mark.parametrize("name", RUN)
async def test_a_program_ends_with_its_children_at_a_lost_place_or_a_stop(
    tmp_path: Path, name: str, reason: str
) -> None:
    program, mark = program_at(tmp_path)
    async with world(tmp_path, commands_of(program)) as here:
        acting = asyncio.ensure_future(RUN[name].act(here, program, tmp_path))
        await until(lambda: mark.exists() and len(mark.read_text().split()) == 2)
        await here.change(reason)
        async with asyncio.timeout(20):  # less than any program's own limit
            assert not await outcome(acting), "it may have acted"
        await until(lambda: all(is_over(pid) for pid in mark.read_text().split()))


def is_over(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# -- acts whose only wait is the guard's --------------------------------------------------------


class Stream:
    """The stream of an agent; it is its own `OrderLines`."""

    repair_verbs = ("reboot",)
    test_profiles: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.ordered: list[object] = []
        self.requested: list[str] = []

    def line_of(self, node: str) -> Any:
        return self

    def order_repair(self, order: object) -> None:
        self.ordered.append(order)

    def request_gpu_use(self, request: str, *, pods: bool) -> None:
        self.requested.append(request)


async def by_agent(here: World) -> bool:
    """Whether the order was sent."""
    orders, stream = AgentOrders(), Stream()
    orders.connect(stream)
    with contextlib.suppress(GuardRefused):
        await AgentRepairer(orders).order(ORDER, here.guard)
    return bool(stream.ordered)


async def after_gpu_use(here: World) -> bool:
    """Whether the order was sent: the agent's answer is a wait of its own."""
    orders, stream = AgentOrders(), Stream()
    orders.connect(stream)
    repairer = UnlessGpuInUse(AgentRepairer(orders), orders.gpu_use)
    acting = asyncio.ensure_future(repairer.order(ORDER, here.guard))
    await until(lambda: bool(stream.requested))
    assert here.checks == 0
    orders.gpu_use.on_answer("n1", stream.requested[0], GpuUse())
    with contextlib.suppress(GuardRefused):
        await acting
    return bool(stream.ordered)


async def local_record(here: World) -> bool:
    before = await here.cluster.read_record()
    await outcome(
        asyncio.ensure_future(here.cluster.write_record("{}", before.version, guard=here.guard))
    )
    return (await here.cluster.read_record()).text != before.text


async def local_quarantine(here: World) -> bool:
    made = here.cluster.create_quarantine("n2", SPEC, guard=here.guard)
    await outcome(asyncio.ensure_future(made))
    return await here.cluster.read_quarantine("n2") is not None


async def local_drop(here: World) -> bool:
    made = await here.cluster.create_quarantine("n2", SPEC, guard=UNGUARDED)
    await outcome(asyncio.ensure_future(here.cluster.drop_quarantine(made, guard=here.guard)))
    return await here.cluster.read_quarantine("n2") is None


async def slurm_record(here: World) -> bool:
    cluster = SlurmCluster(here.folder / "slurm.sqlite", client=SlurmPrograms(), wall=time.time)
    await cluster.start()
    try:
        written = cluster.record("n1", FOREIGN, guard=here.guard)
        await outcome(asyncio.ensure_future(written))
        return await cluster.recorded("n1") is not None
    finally:
        await cluster.close()


AT_ONCE: Mapping[str, Callable[[World], Awaitable[bool]]] = {
    "AgentRepairer": by_agent,
    "UnlessGpuInUse": after_gpu_use,
    "local.write_record": local_record,
    "local.create_quarantine": local_quarantine,
    "local.drop_quarantine": local_drop,
    "slurm.record": slurm_record,
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("name", AT_ONCE)
async def test_an_act_without_another_wait(tmp_path: Path, name: str, reason: str) -> None:
    async with world(tmp_path) as here:
        here.at_check = lambda: here.change(reason)
        assert not await AT_ONCE[name](here)
        assert here.checks == 1
