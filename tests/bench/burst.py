"""The agent's cost of a burst: 40,000 Xid lines in a minute, and then a fault that matters.

A real agent, its kernel log a FIFO that is written as the kernel would, its stream to a real gRPC
server that stamps each message.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.kernel_log import raw
from tests.bench.processes import cost
from tests.bench.small import small_or
from tests.nvml import FakeGpus, gpu, link_the_rest, pci_of, uuid_of
from tests.support.fake_aggregator import Attended, FakeAggregator
from tests.support.waiting import until

LINES = small_or(40, 40_000)
SECONDS = small_or(0.2, 60.0)
#: Lines come in handfuls, as printk's do.
EVERY_S = 0.01
#: An application's faults, contained ones and fatal ones, over four GPUs.
CODES = (13, 31, 43, 45, 48, 63, 94, 95)
GPUS = 4
#: As the aggregator's default.
HEARTBEAT_MS = 15_000
#: The one that follows: another code on another GPU.
NEXT = 79


def _config(folder: Path, gpus: FakeGpus, address: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(
        f"""
node = "burst"
sys = "{gpus.sys}"
run_dir = "{folder / "run"}"
state_dir = "{folder / "state"}"
[aggregator]
address = "{address}"
[kernel_log]
path = "{folder / "kmsg"}"
[checks.disk-write]
paths = ["{folder}"]
"""
    )
    return path


def _start(
    folder: Path, programs: Path, gpus: FakeGpus, address: str
) -> tuple["subprocess.Popen[bytes]", int]:
    """The agent, and the descriptor through which its kernel log is written."""
    os.mkfifo(folder / "kmsg")
    kmsg = os.open(folder / "kmsg", os.O_RDWR)
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [programs / "sickbay-agent", "run", "--config", _config(folder, gpus, address)],
            stdout=log,
            stderr=log,
            env=os.environ | dict(gpus.env),
        )
    return agent, kmsg


def _line(seq: int) -> bytes:
    code, pci = CODES[seq % len(CODES)], pci_of(seq // len(CODES) % GPUS)
    text = f"NVRM: Xid (PCI:{pci}): {code}, pid={seq}, name=python{seq % 97}, Ch {seq:08x}"
    return raw(seq, text, at=time.clock_gettime(time.CLOCK_BOOTTIME))


def _pour(kmsg: int) -> None:
    """All lines, evenly over the time. A full FIFO holds us up, which the result would show."""
    begun, sent = time.monotonic(), 0
    while sent < LINES:
        due = min(LINES, int(LINES * (time.monotonic() - begun) / SECONDS) + 1)
        for seq in range(sent + 1, due + 1):
            os.write(kmsg, _line(seq))
        sent = due
        time.sleep(EVERY_S)


def _has_stream(aggregator: FakeAggregator, has: Callable[[Attended], bool]) -> Callable[[], bool]:
    return lambda: bool(aggregator.streams) and has(aggregator.latest)


async def measure(folder: Path, programs: Path) -> dict[str, float | int | str]:
    """``burst_cpu_s``, ``burst_messages``, ``burst_next_fault_ms`` and how long the burst was."""
    gpus = FakeGpus(folder / "gpus", [gpu(index) for index in range(8)])
    link_the_rest(gpus.sys)
    aggregator = FakeAggregator()
    aggregator.welcome = pb.Welcome(aggregator="fake", heartbeat_interval_ms=HEARTBEAT_MS)
    await aggregator.start()
    agent, kmsg = _start(folder, programs, gpus, aggregator.address)
    try:
        settled = _has_stream(
            aggregator, lambda told: ("gpu-recovery", uuid_of(7)) in told.components
        )
        await until(settled, within=60, what="the first look at all GPUs")
        messages, spent = len(aggregator.latest.messages), cost(agent.pid).cpu_s
        begun = time.monotonic()
        await asyncio.to_thread(_pour, kmsg)
        written = time.monotonic()
        text = f"NVRM: Xid (PCI:{pci_of(7)}): {NEXT}, GPU has fallen off the bus."
        os.write(kmsg, raw(LINES + 1, text, at=time.clock_gettime(time.CLOCK_BOOTTIME)))
        key = (f"xid:{NEXT}", uuid_of(7))
        await until(
            _has_stream(aggregator, lambda told: key in told.faults),
            within=60,
            what="the next fault",
        )
        seen = _when(aggregator.latest, key)
        await until(
            _has_stream(aggregator, lambda told: _lines(told) == LINES),
            within=30,
            what="every line's count",
        )
        return {
            "burst_cpu_s": round(cost(agent.pid).cpu_s - spent, 2),
            "burst_messages": len(aggregator.latest.messages) - messages,
            "burst_next_fault_ms": round(1000 * (seen - written), 1),
            "burst_lines": LINES,
            "burst_seconds": round(written - begun, 1),
        }
    finally:
        agent.terminate()
        await asyncio.to_thread(agent.wait, 20)
        os.close(kmsg)
        await aggregator.stop()


def _lines(told: Attended) -> int:
    """The lines that the aggregator has been told of."""
    return sum(fault.count for (code, _), fault in told.faults.items() if code != f"xid:{NEXT}")


def _when(told: Attended, key: tuple[str, str]) -> float:
    """The moment of the first message that has the fault."""
    for at, message in told.messages:
        for fault in (*message.delta.faults, *message.snapshot.faults):
            if (fault.code, fault.component) == key:
                return at
    raise AssertionError(f"{key} was never told")
