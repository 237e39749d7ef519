"""The cost of one attached node in Python's objects, from its stream to its state."""

import asyncio
import gc
import random
import tracemalloc

import pytest

from nodeagent.sources.measurements import Measured
from nodeagent.uplink.measurements import MeasurementEncoder
from sickbay.v1 import sickbay_pb2 as pb
from tests.support.agent_calls import BelievedStreams
from tests.support.memory_cluster import World
from tests.support.present import present
from tests.support.replica import Replica, Turned
from tests.support.waiting import until

#: Measured: 9.1 to 9.4 KB, of which 1 KB is the call below; one event, queue or deque more is 0.8.
BOUND = 9.5 * 1024
#: And with the measurements of 104 parts: 1.5 KB more, since the names of GPUs are shared.
BOUND_MEASURED = BOUND + 1.75 * 1024
GPUS, PER_GPU = 8, ("gpu-inventory", "gpu-ecc", "gpu-rows", "gpu-recovery")
OF_GPUS = ("gpu-clock", "gpu-temperature", "pcie-replays", "nvlink-errors")
ALIKE = (
    *(("disk-space", mount) for mount in ("/", "/scratch", "/var")),
    *(("disk-readonly", mount) for mount in ("/", "/scratch", "/var")),
    ("nic-link", "eth0"),
    ("reach", "gateway"),
)


class Call:
    """A call whose agent sends a few messages, and then no more."""

    __slots__ = ("_says", "peer_address", "written")

    def __init__(self, number: int, *says: pb.AgentMessage) -> None:
        self.peer_address = f"ipv4:10.0.{number // 250}.{number % 250 + 1}:4711"
        self.written = 0
        self._says = [message.SerializeToString() for message in reversed(says)]

    async def read(self) -> object:
        if self._says:
            return pb.AgentMessage.FromString(self._says.pop())
        return await asyncio.get_running_loop().create_future()

    async def write(self, message: pb.AggregatorMessage) -> None:
        self.written += 1

    def peer(self) -> str:
        return self.peer_address


def machine(node: str, rng: random.Random) -> tuple[pb.AgentMessage, pb.AgentMessage]:
    """The first words of a node with eight GPUs, of which all is well."""
    hello = pb.Hello(
        node=node,
        boot_id=f"{rng.getrandbits(128):032x}",
        spool_epoch=f"{rng.getrandbits(64):016x}",
        instance=f"{rng.getrandbits(64):016x}",
        agent_version="0.1.0",
        contract_version=1,
        checks=[pb.CheckInfo(name=check, interval_ms=30_000) for check in PER_GPU],
        traits={"kernel": "6.8.0", "arch": "x86_64", "driver": "580.82.07"},
    )
    gpus = [f"GPU-{rng.getrandbits(128):032x}" for _ in range(GPUS)]
    age = rng.randrange(1_000_000)
    states = [
        pb.ComponentState(
            check=check,
            component=name,
            status=pb.STATUS_OK,
            message="well",
            age_ms=age,
            recent=[pb.Transition(age_ms=age, status=pb.STATUS_OK)],
        )
        for check, name in [*((check, gpu) for gpu in gpus for check in PER_GPU), *ALIKE]
    ]
    return pb.AgentMessage(hello=hello), pb.AgentMessage(
        snapshot=pb.Snapshot(seq=1, components=states)
    )


def measured(snapshot: pb.AgentMessage) -> pb.AgentMessage:
    """The first measurements of the node, as many as a node of eight GPUs and eight ports has."""
    gpus = sorted({c.component for c in snapshot.snapshot.components if c.component[:3] == "GPU"})
    parts = [
        *((name, gpu, "NVIDIA H200") for name in OF_GPUS for gpu in gpus),
        *(("ib-errors", f"mlx5_{port}/1", "400 Gbit/s") for port in range(8)),
        *(("disk-latency", mount, "") for mount in ("/", "/scratch", "/var", "/data")),
        *(("check-duration", f"check-{number}", "8 NVIDIA H200") for number in range(60)),
    ]
    return present(MeasurementEncoder().message([Measured(*part, 12) for part in parts]))


@pytest.mark.parametrize(("series", "bound"), [(0, BOUND), (104, BOUND_MEASURED)])
async def test_an_attached_node_that_is_well_costs_few_kilobytes(series: int, bound: float) -> None:
    clock, rng = Turned(), random.Random(3)
    replica = Replica(World(), clock=clock)
    streams = BelievedStreams(replica.controller, clock)
    stats, tasks = streams.stats, streams.tasks

    async def attach(count: int) -> int:
        """Attach so many more; returns Python's bytes since tracing began, when all have spoken."""
        for number in range(len(tasks), len(tasks) + count):
            node = f"node-{number:05d}"
            says = list(machine(node, rng))
            if series:
                says.append(measured(says[-1]))
            streams.serve(Call(number, *says))
        await until(lambda: stats.acks == len(tasks))
        known = replica.fleet.measurements
        await until(lambda: all(known.size(f"node-{n:05d}") == series for n in range(len(tasks))))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = await attach(60)
        more = await attach(120)
    finally:
        tracemalloc.stop()
    assert stats.attached == len(tasks) == 180
    assert all(replica.fleet.node_summaries[f"node-{n:05d}"].state() == "ok" for n in range(180))
    assert (more - few) / 120 < bound
    await streams.close()
