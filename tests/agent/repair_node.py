"""A real agent with two GPUs that obeys orders, and a real gRPC server that gives them."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.fake_tools import FakeTools
from tests.nvml import FakeGpus, gpu, uuid_of
from tests.support.fake_aggregator import Attended, FakeAggregator
from tests.support.present import present
from tests.support.waiting import until

RESET, REBOOT, TEST = (
    pb.REPAIR_VERB_GPU_RESET,
    pb.REPAIR_VERB_REBOOT,
    pb.REPAIR_VERB_TEST,
)

TWO = [gpu(0), gpu(1)]
FINAL = {
    pb.REPAIR_STATE_REFUSED,
    pb.REPAIR_STATE_SUCCEEDED,
    pb.REPAIR_STATE_FAILED,
    pb.REPAIR_STATE_UNKNOWN,
    pb.REPAIR_STATE_INCONCLUSIVE,
}


class RepairNode(AgentProcess):
    """``allow`` are the verbs of its configuration; ``settings`` more lines of ``[repair]``."""

    def __init__(
        self,
        folder: Path,
        aggregator: str,
        *,
        allow: Sequence[str] = ("gpu-reset", "reboot", "test"),
        settings: str = "",
    ) -> None:
        self.tools = FakeTools(folder / "tools", TWO)
        words = ", ".join(f'"{verb}"' for verb in allow)
        repair = (
            f"[repair]\nallow = [{words}]\n"
            f'nvidia_smi = "{self.tools.smi}"\n'
            f'reboot_command = ["{self.tools.folder}/reboot-now"]\n'
            f'tool_path = ["{self.tools.folder}", "/usr/bin", "/bin"]\n'
            # The tests may run in a container whose processes are all that there is.
            f"insecure_own_pid_namespace = true\ninsecure_loopback = true\n{settings}\n"
        )
        super().__init__(
            folder, aggregator=aggregator, more=f"{repair}{QUIET}", top="[expect]\ngpus = 2\n"
        )
        self.gpus = FakeGpus(folder, TWO)
        self._ids = itertools.count(1)
        #: Resets that a test has counted so far.
        self.folder_done = 0

    def order(self, verb: int, stream: Attended, **fields: Any) -> pb.RepairOrder:
        """An order that holds for a minute from the stream's Hello on, with an id of its own
        unless the fields have one.
        """
        operation_id = fields.pop("operation_id", None) or f"op-{next(self._ids)}"
        return order_of(verb, stream, operation_id, **fields)


def boot(proc: Path, boot_id: str) -> None:
    """A machine in this boot, without other processes: tests beside this one open GPUs."""
    path = proc / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{boot_id}\n")


def order_of(verb: int, stream: Attended, operation_id: str, **fields: Any) -> pb.RepairOrder:
    """An order that holds for a minute from the stream's Hello on."""
    if verb == pb.REPAIR_VERB_GPU_RESET:
        fields.setdefault("gpu_uuids", [uuid_of(1)])
    if verb == pb.REPAIR_VERB_TEST:
        fields.setdefault("test_profile", "quick")
    return pb.RepairOrder(
        **{
            "operation_id": operation_id,
            "verb": verb,
            "quarantine_uid": "q-1",
            "boot_id": stream.hello.boot_id,
            "deadline_ms": stream.hello.boottime_ms + 60_000,
            **fields,
        }
    )


class HasLog(Protocol):
    """An agent whose log explains why something did not happen."""

    def log(self) -> str: ...


class Aggregator(FakeAggregator):
    """Remembers results by operation, over all streams."""

    def results(self, operation_id: str = "") -> list[pb.RepairResult]:
        return [
            message.repair_result
            for stream in self.streams
            for _, message in stream.messages
            if message.HasField("repair_result")
            and operation_id in ("", message.repair_result.operation_id)
        ]

    def states(self, operation_id: str = "") -> list[str]:
        return [_name(result.state) for result in self.results(operation_id)]

    async def stream(self, number: int = 1) -> Attended:
        """The stream that comes ``number``-th, once its Snapshot is there."""
        await until(
            lambda: len(self.streams) >= number and "snapshot" in self.streams[number - 1].kinds(),
            within=30,
            what=f"stream {number}",
        )
        return self.streams[number - 1]

    async def final(self, operation_id: str, within: float = 30) -> pb.RepairResult:
        """The first final result of the operation."""

        def found() -> pb.RepairResult | None:
            results = [each for each in self.results(operation_id) if each.state in FINAL]
            return results[0] if results else None

        await until(lambda: found() is not None, within=within, what=f"the end of {operation_id}")
        return present(found())

    async def ordered(self, node: HasLog, order: pb.RepairOrder) -> pb.RepairResult:
        """Give the order on the latest stream; its end."""
        self.latest.send(repair_order=order)
        try:
            return await self.final(order.operation_id)
        except AssertionError as error:
            raise AssertionError(node.log()[-6000:]) from error


def _name(state: "pb.RepairState.ValueType") -> str:
    return pb.RepairState.Name(state).removeprefix("REPAIR_STATE_").lower()


@asynccontextmanager
async def aggregator() -> AsyncIterator[Aggregator]:
    server = Aggregator()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def use_gpus(node: RepairNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the agent's NVML worker load the library of the tests."""
    for name, value in node.gpus.env.items():
        monkeypatch.setenv(name, value)


async def attached(server: Aggregator, node: HasLog) -> Attended:
    """The stream of an agent whose NVML has named the GPUs: it greets anew with their clique."""
    await until(
        lambda: (
            server.streams
            and "fabric_clique" in server.latest.hello.traits
            and "snapshot" in server.latest.kinds()
            and not server.latest.ended
        ),
        within=30,
        what=node.log,
    )
    return server.latest
