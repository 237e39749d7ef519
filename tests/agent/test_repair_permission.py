"""The permission to begin an act: the act follows a grant in time, and no other answer."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from nodeagent.clock import Clock
from nodeagent.repair.operation import Operation, Verb
from nodeagent.repair.permission import BeginPermission, NotPermitted, PermissionReply
from nodeagent.repair.pod_resources import SOCKET
from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.repair_node import (
    REBOOT,
    RESET,
    TEST,
    TWO,
    Aggregator,
    RepairNode,
    aggregator,
    attached,
    boot,
    use_gpus,
)
from tests.support.fake_aggregator import Attended
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

YES = PermissionReply(granted=True)
OPERATION = Operation("op-1", Verb.REBOOT, "q-1", "boot-1", 0.0, 0.0)


# -- the time of one permission -------------------------------------------------------------------


@dataclass
class LoopClock(Clock):
    """The loop's time; ``suspended`` seconds are added, as by a machine that slept."""

    suspended: float = 0.0

    def boottime(self) -> float:
        return asyncio.get_running_loop().time() + self.suspended


@dataclass
class Line:
    """A stream that sends what is due at once, while it is ``up``."""

    up: bool = True
    clock: LoopClock = field(default_factory=LoopClock)
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.permission = BeginPermission(self.clock, self.send)

    def send(self) -> None:
        if self.up:
            self.sent += [each.operation_id for each in self.permission.due()]

    def connect(self) -> None:
        self.up = True
        self.send()

    def reply(self, seconds: float, reply: PermissionReply, operation: str = "op-1") -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self.permission.take_reply, operation, reply)

    async def request(self) -> str:
        """Why it is not permitted; empty: it is."""
        try:
            await self.permission.request(OPERATION)
        except NotPermitted as error:
            return str(error)
        return ""


async def test_a_permission_counts_for_ten_seconds_from_the_request() -> None:
    line = Line()
    line.reply(4, YES)
    assert await line.request() == ""
    assert line.sent == ["op-1"]
    await asyncio.sleep(5.9)
    line.permission.check()
    await asyncio.sleep(0.2)
    with pytest.raises(NotPermitted, match=r"10\.1 s ago and counts 10 s"):
        line.permission.check()


async def test_a_suspended_machine_ages_a_permission() -> None:
    line = Line()
    line.reply(1, YES)
    assert await line.request() == ""
    line.clock.suspended = 60
    with pytest.raises(NotPermitted):
        line.permission.check()


async def test_an_answer_during_a_suspension_is_too_old() -> None:
    line = Line()
    asyncio.get_running_loop().call_later(2, setattr, line.clock, "suspended", 60)
    line.reply(3, YES)
    assert "63.0 s ago" in await line.request()


@pytest.mark.parametrize(
    ("prepare", "why", "seconds"),
    [
        (lambda line: None, "the aggregator has not answered for 10 s", 10),
        (lambda line: line.reply(10.5, YES), "the aggregator has not answered for 10 s", 10),
        (lambda line: line.reply(1, YES, "op-2"), "the aggregator has not answered for 10 s", 10),
        (
            lambda line: line.reply(1, PermissionReply(granted=False, reason="released")),
            "released",
            1,
        ),
        (
            lambda line: line.reply(1, PermissionReply(granted=False)),
            "the aggregator names no reason",
            1,
        ),
        (lambda line: setattr(line, "up", False), "no stream to the aggregator took", 10),
        (
            lambda line: asyncio.get_running_loop().call_later(2, line.permission.stream_ended),
            "the stream to the aggregator ended",
            2,
        ),
    ],
)
async def test_without_a_permission_in_time_nothing_begins(
    prepare: Callable[[Line], object], why: str, seconds: float
) -> None:
    line = Line()
    prepare(line)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await line.request()).startswith(why)
    assert loop.time() - began == pytest.approx(seconds)


async def test_a_permission_that_nobody_requested_permits_nothing() -> None:
    line = Line(up=False)
    line.permission.take_reply("op-1", YES)
    line.reply(1, YES)  # it is requested, and no stream has sent that
    assert "no stream" in await line.request()
    with pytest.raises(NotPermitted):
        line.permission.check()


async def test_the_end_of_an_earlier_stream_does_not_end_a_request_that_waits() -> None:
    line = Line(up=False)
    loop = asyncio.get_running_loop()
    loop.call_later(1, line.permission.stream_ended)
    loop.call_later(3, line.connect)
    line.reply(4, YES)
    assert await line.request() == ""


# -- a real agent ---------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_each_kind_of_order_begins_after_its_permission_and_never_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aggregator() as server:
        node = RepairNode(tmp_path, server.address, settings='reboot_limit = "1s"')
        _alone(node)
        use_gpus(node, monkeypatch)
        node.tools.tool("dcgmi")
        node.tools.tool("fio")
        with closing(node):
            await node.start().up()
            await attached(server, node)
            await _refuses(server, node)
            await _loses_the_stream(server, node)
            await _grants(server, node)


def _alone(node: RepairNode) -> None:
    proc = node.folder / "proc"
    boot(proc, "boot-1")
    node.top = f'proc = "{proc}"\n{node.top}'


async def _refuses(server: Aggregator, node: RepairNode) -> None:
    """More often than the caps of the node allow: a refused order takes no place in them."""
    server.on_permission_request = lambda stream, request: stream.permit(
        request.operation_id, "the quarantine is gone"
    )
    for verb in (RESET, RESET, RESET, RESET, REBOOT, REBOOT, TEST):
        result = await server.ordered(node, node.order(verb, server.latest))
        assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "not-permitted"), result
        assert result.message == "it was not permitted to begin: the quarantine is gone"
    assert _acts(node) == (0, 0, 0)


async def _loses_the_stream(server: Aggregator, node: RepairNode) -> None:
    streams = len(server.streams)

    def end(stream: Attended, request: pb.PermissionRequest) -> None:
        stream.end()

    server.on_permission_request = end
    order = node.order(RESET, server.latest)
    server.latest.send(repair_order=order)
    await server.stream(streams + 1)
    result = await server.final(order.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "not-permitted")
    assert "the stream to the aggregator ended" in result.message
    server.latest.permit(order.operation_id)  # late, and on another stream
    assert _acts(node) == (0, 0, 0)


async def _grants(server: Aggregator, node: RepairNode) -> None:
    states: list[str] = []
    requests: list[pb.PermissionRequest] = []

    def grant(stream: Attended, request: pb.PermissionRequest) -> None:
        requests.append(request)
        states.extend(server.states(request.operation_id))
        assert _acts(node) == (0, 0, 0)
        stream.permit(request.operation_id)

    server.on_permission_request = grant
    order = node.order(RESET, server.latest, quarantine_uid="q-7")
    assert (await server.ordered(node, order)).state == pb.REPAIR_STATE_SUCCEEDED
    assert requests == [
        pb.PermissionRequest(operation_id=order.operation_id, verb=RESET, quarantine_uid="q-7")
    ]
    assert states == ["accepted"]
    assert _acts(node) == (1, 0, 0)
    server.on_permission_request = None
    for verb in (REBOOT, TEST):
        result = await server.ordered(node, node.order(verb, server.latest))
        assert result.state != pb.REPAIR_STATE_REFUSED, result
    assert _acts(node) == (1, 1, 1)


def _acts(node: RepairNode) -> tuple[int, int, int]:
    """Resets, reboots and tests that a program of the node was started for."""
    count = node.tools.count
    return count("--gpu-reset"), count("reboot-now"), count("dcgmi")


@pytest.mark.asyncio
async def test_a_silent_aggregator_begins_nothing_and_its_late_answer_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aggregator() as server:
        node = RepairNode(tmp_path, server.address)
        _alone(node)
        use_gpus(node, monkeypatch)
        asked: list[Attended] = []
        server.on_permission_request = lambda stream, _request: asked.append(stream)
        with closing(node):
            await node.start().up()
            await attached(server, node)
            order = node.order(RESET, server.latest)
            result = await server.ordered(node, order)
            assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "not-permitted")
            assert "the aggregator has not answered for 10 s" in result.message
            asked[0].permit(order.operation_id)
            told = len(server.results(order.operation_id))
            asked[0].send(repair_order=order)  # the answer has been read when this is answered
            await until(lambda: len(server.results(order.operation_id)) > told, within=30)
            assert set(server.states(order.operation_id)) == {"accepted", "refused"}
            assert _acts(node) == (0, 0, 0)


# -- before another party's act -------------------------------------------------------------------


def _process(proc: Path, pid: int, name: str, *, killed: bool = False) -> None:
    """A process with a GPU open."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/3").symlink_to("/dev/nvidia0")
    (folder / "stat").write_text(f"{pid} ({name}) D 1 {' '.join(['0'] * 17)} 7 0\n")
    mask = f"{1 << 8 if killed else 0:016x}"
    (folder / "status").write_text(f"Name:\t{name}\nSigPnd:\t{mask}\nShdPnd:\t{'0' * 16}\n")


@pytest.mark.asyncio
async def test_an_agent_that_obeys_no_order_reports_who_uses_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aggregator() as server:
        node = RepairNode(tmp_path, server.address, allow=())
        _alone(node)
        use_gpus(node, monkeypatch)
        proc = node.folder / "proc"
        (node.folder / "host/etc").mkdir(parents=True)
        node.top = f'host_root = "{node.folder}/host"\n{node.top}'

        async def gpu_use(request: str, *, pods: bool = False) -> pb.GpuUse:
            asked = pb.GpuUseRequest(request_id=request, pods=pods)
            server.latest.send(gpu_use_request=asked)
            await until(
                lambda: any(found.request_id == request for found in _gpu_uses(server)),
                what=node.log,
            )
            return _gpu_uses(server)[-1]

        with closing(node):
            await node.start().up()
            await attached(server, node)
            assert await gpu_use("1") == pb.GpuUse(request_id="1")
            _process(proc, 70, "dcgm-exporter")
            _process(proc, 71, "nvidia-device-p")
            _process(proc, 72, "train", killed=True)
            assert await gpu_use("2") == pb.GpuUse(request_id="2")
            _process(proc, 73, "slurmstepd")
            used = ["slurmstepd (pid 73) has /dev/nvidia0 open"]
            assert await gpu_use("3") == pb.GpuUse(request_id="3", users=used)
            # Which pod uses which GPU comes on request alone.
            (proc / "73/cgroup").write_text("0::/kubepods/burstable/pod0a1b-2c3d/x\n")
            node.gpus.write([replace(TWO[0], pids=(73,)), TWO[1]])
            # A driver that takes long is no error: the next answer has the processes.
            numbers = itertools.count(4)

            async def answered() -> pb.GpuUse:
                return await gpu_use(str(next(numbers)), pods=True)

            answer = await answered()
            for _ in range(100):
                answer = answer if answer.pods else await answered()
            assert answer.pods_unknown == f"there is no socket {SOCKET}"
            assert list(answer.pods) == [
                pb.PodGpu(pod_uid="0a1b-2c3d", gpu=TWO[0].uuid, processes=1)
            ]


def _gpu_uses(server: Aggregator) -> list[pb.GpuUse]:
    sent = [message for stream in server.streams for _, message in stream.messages]
    return [message.gpu_use for message in sent if message.HasField("gpu_use")]
