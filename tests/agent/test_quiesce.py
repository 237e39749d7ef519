"""Quiesce and cleared: the driver is let go of, and faults end because a person says so."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nodeagent.checks import gpu_inventory
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.cli import Done, agent
from tests.agent.kernel_log import raw
from tests.nvml import FakeGpus, fake_pci, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run
from tests.support.text_files import text_file
from tests.support.waiting import PATIENCE

TWO = [gpu(0), gpu(1)]


# -- what the inventory makes of it ----------------------------------------------------------------


async def test_a_gpu_that_is_gone_after_quiesce_is_marked_for_a_grace_and_then_a_fault(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        assert bench.nvml.back_for == float("inf")
        check = await first_run(bench, gpu_inventory.SPEC)
        await bench.nvml.quiesce(600)
        bench.gpus.write([gpu(0)])
        seen = await next_run(bench, check, 610)
        assert seen.status(uuid_of(1)) == ("UNKNOWN", "after-quiesce")
        assert seen.status("") == ("UNKNOWN", "after-quiesce")
        assert seen.status(uuid_of(0)) == ("OK", "")
        message = seen.by_component[uuid_of(1)].message
        assert message.startswith("missing: the GPU at")
        assert "the agent had released it until 10 s ago" in message
        seen = await next_run(bench, check, 300)
        assert seen.status(uuid_of(1)) == ("FAILED", "missing")
        assert seen.status("") == ("FAILED", "missing")


async def test_a_quiesce_that_is_ended_early_starts_the_grace_then(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = await first_run(bench, gpu_inventory.SPEC)
        await bench.nvml.quiesce(86400)
        bench.later(100)
        bench.nvml.resume()
        bench.gpus.write([gpu(0)])
        assert (await next_run(bench, check, 200)).status(uuid_of(1)) == (
            "UNKNOWN",
            "after-quiesce",
        )
        assert (await next_run(bench, check, 101)).status(uuid_of(1)) == ("FAILED", "missing")


# -- the commands, on a real agent whose GPUs are those of tests/nvml ------------------------------


class Node(AgentProcess):
    """An agent with two GPUs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, more=QUIET, top="[expect]\ngpus = 2\n")
        self.gpus = FakeGpus(folder, TWO)

    async def order(self, *arguments: str) -> Done:
        return await asyncio.to_thread(agent, *arguments, "--config", self.config)

    async def statuses(self) -> dict[str, tuple[str, str]]:
        """The inventory's results, by component."""
        _, body = await self.ask("/v1/results")
        return {
            each["component"]: (each["status"], each["reason"])
            for each in json.loads(body)["results"]
            if each["check"] == "gpu-inventory"
        }

    async def faults(self) -> set[tuple[str, str]]:
        _, body = await self.ask("/v1/results")
        return {(each["code"], each["component"]) for each in json.loads(body)["faults"]}

    async def sees(self, reason: str) -> None:
        """Wait until the whole inventory has this reason."""
        async with asyncio.timeout(PATIENCE):
            while {r for _, r in (await self.statuses() or {"": ("", "-")}).values()} != {reason}:
                await self.ask("/v1/run-checks", "POST", '{"checks": ["gpu-inventory"]}')

    @property
    def workers(self) -> list[int]:
        """The agent's NVML workers, by their parent."""
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "nvml_worker" in " ".join(child.cmdline()):
                    found.append(child.pid)
        return found


def is_there(pid: int) -> bool:
    return psutil.pid_exists(pid)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path)
    for name, value in made.gpus.env.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


async def test_quiesce_lets_go_of_the_driver_says_so_and_takes_it_up_again(node: Node) -> None:
    await node.start().up()
    await node.sees("")
    [worker] = node.workers
    done = await node.order("quiesce", "--for", "30m")
    assert (done.code, done.out) == (0, "NVML is released for 1800 s\n")
    assert not is_there(worker), "an open driver would make a reset fail"
    assert {reason for _, reason in (await node.statuses()).values()} == {"quiesced"}, "at once"
    assert "the GPU driver is released" in node.log()
    await node.ask("/v1/run-checks", "POST")
    assert node.workers == []
    done = await node.order("quiesce", "--end")
    assert (done.code, done.out) == (0, "NVML is used again\n")
    await node.sees("")
    assert len(node.workers) == 1


async def test_quiesce_expires(node: Node) -> None:
    await node.start().up()
    await node.sees("")
    assert (await node.order("quiesce", "--for", "2s")).code == 0
    assert node.workers == []
    await node.sees("")
    assert len(node.workers) == 1


async def test_an_agent_that_is_started_in_a_quiesce_keeps_to_it(node: Node) -> None:
    await node.start().up()
    await node.sees("")
    await node.order("quiesce", "--for", "30m")
    node.kill()
    await node.start().up()
    await node.sees("quiesced")
    assert node.workers == []
    assert (await node.order("quiesce", "--end")).code == 0
    node.kill()
    await node.start().up()
    await node.sees("")


async def test_a_gpu_that_a_reset_takes_away_for_a_moment_accuses_nobody(node: Node) -> None:
    await node.start().up()
    await node.sees("")
    await node.order("quiesce", "--for", "30m")
    fake_pci(node.gpus.sys, [pci_of(0)])
    await node.sees("quiesced")
    node.gpus.write([gpu(0)])
    await node.order("quiesce", "--end")
    async with asyncio.timeout(PATIENCE):
        while (await node.statuses())[uuid_of(1)][1] != "after-quiesce":
            await node.ask("/v1/run-checks", "POST", '{"checks": ["gpu-inventory"]}')
    assert (await node.statuses())[uuid_of(1)] == ("unknown", "after-quiesce")


async def test_cleared_ends_the_faults_of_one_gpu_and_no_others(node: Node) -> None:
    await node.start().up()
    await node.sees("")
    for at, (index, code) in enumerate([(0, 48), (0, 95), (1, 48)], start=1):
        os.write(node._kmsg, raw(at, f"NVRM: Xid (PCI:{pci_of(index)}): {code}, pid=1, name=a, b"))
    async with asyncio.timeout(PATIENCE):
        while len(await node.faults()) < 3:
            pass
    done = await node.order("cleared", "--gpu", uuid_of(0), "--code", "xid:95")
    assert (done.code, done.out) == (0, f"{uuid_of(0)}: cleared 1 of xid:95\n")
    assert await node.faults() == {("xid:48", uuid_of(0)), ("xid:48", uuid_of(1))}
    done = await node.order("cleared", "--gpu", uuid_of(0), "--code", "xid:84")
    assert done.out == f"{uuid_of(0)}: no fault of xid:84 was latched; latched: xid:48\n"
    done = await node.order("cleared", "--code", "xid48")
    assert done.out == "no latched fault matched; latched: xid:48\n"
    done = await node.order("cleared", "--gpu", f"{pci_of(0)}.0")
    assert (done.code, done.out) == (0, f"{pci_of(0)}.0: cleared 1\n")
    assert await node.faults() == {("xid:48", uuid_of(1))}
    done = await node.order("cleared", "--gpu", uuid_of(0))
    assert (done.code, done.out) == (0, f"{uuid_of(0)}: no fault was latched\n")
    done = await node.order("cleared", "--code", "xid:48")
    assert (done.code, done.out) == (0, "cleared 1\n")
    node.kill()
    await node.start().up()
    assert await node.faults() == set(), "a restart brings nothing back"


async def test_a_fault_from_before_nvml_named_the_gpu_is_cleared_by_its_uuid(node: Node) -> None:
    node.gpus.fail("nvmlInitWithFlags", code=9)
    await node.start().up()
    os.write(node._kmsg, raw(1, f"NVRM: Xid (PCI:{pci_of(1)}): 79, pid=1, name=a, b"))
    async with asyncio.timeout(PATIENCE):
        while await node.faults() != {("xid:79", f"pci:{pci_of(1)}")}:
            pass
    node.gpus.heal()
    await node.order("quiesce", "--end")
    await node.sees("")
    done = await node.order("cleared", "--gpu", uuid_of(1))
    assert (done.code, done.out) == (0, f"{uuid_of(1)}: cleared 1\n")


async def test_a_gpu_that_the_node_does_not_have_is_refused(node: Node) -> None:
    await node.start().up()
    await node.sees("")
    done = await node.order("cleared", "--gpu", "GPU-mistyped")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"sickbay-agent: this node has no GPU GPU-mistyped; it has {uuid_of(0)}, {uuid_of(1)}\n"
    )


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/quiesce", "", "expected"),
        ("/v1/quiesce", "[]", "expected"),
        ("/v1/quiesce", '{"seconds": "30m"}', "expected"),
        ("/v1/quiesce", '{"seconds": true}', "expected"),
        ("/v1/quiesce", '{"seconds": NaN}', "expected 0 to"),
        ("/v1/quiesce", '{"seconds": -1}', "expected 0 to"),
        ("/v1/quiesce", '{"seconds": 1e9}', "expected 0 to"),
        ("/v1/cleared", "{}", "name a component, a code, or both"),
        ("/v1/cleared", '{"gpu": 1}', "expected"),
        ("/v1/cleared", "7", "expected"),
    ],
)
async def test_orders_that_make_no_sense_are_refused(
    node: Node, path: str, body: str, words: str
) -> None:
    await node.start().up()
    code, answer = await node.ask(path, "POST", body)
    assert code == 400
    assert words in json.loads(answer)["error"]


def test_without_an_agent_it_is_said_what_that_means(tmp_path: Path) -> None:
    config = text_file(tmp_path / "agent.toml", f'run_dir = "{tmp_path}"\n')
    for arguments, words in {
        ("cleared", "--gpu", "GPU-1"): "start it, then clear",
        ("quiesce", "--for", "30m"): "no process of sickbay holds the GPU driver now",
    }.items():
        done = agent(*arguments, "--config", config)
        assert (done.code, done.out) == (1, "")
        start = f"sickbay-agent: no agent is running (there is no {tmp_path}/agent.sock); "
        assert done.err.startswith(start)
        assert words in done.err


def test_an_agent_that_hangs_is_said_to(tmp_path: Path) -> None:
    config = text_file(tmp_path / "agent.toml", f'run_dir = "{tmp_path}"\n')
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "agent.sock"))
        silent.listen()
        done = agent("quiesce", "--end", "--timeout", "1s", "--config", config)
    assert done.code == 1
    assert "took the question and gave no answer in 1 s" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cleared",), "one of the arguments --gpu --code is required"),
        (("cleared", "--gpu", "", "--code", "xid:48"), "argument --gpu: it is empty"),
        (("cleared", "--gpu", "GPU-1", "--code", ""), "argument --code: it is empty"),
        (("quiesce",), "one of the arguments --for --end is required"),
        (("quiesce", "--for", "30"), 'has no unit; expected a duration such as "20s"'),
        (("quiesce", "--for", "30m", "--end"), "not allowed with argument"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], words: str) -> None:
    done = agent(*arguments)
    assert done.code == 2
    assert words in done.err
