"""``GET /v1/explain`` and ``sickbay-agent explain``: why the agent says what it says."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodeagent.local.explain import table
from nodeagent.sources import process_state
from nodeagent.sources.process_state import stuck
from tests.agent import real_disks
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.cli import agent as cli
from tests.nvml import FakeGpus, gpu
from tests.support.text_files import text_file
from tests.support.waiting import patiently, until

GPU = "pci:0000:3b:00"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    made: list[AgentProcess] = []

    def start(**how: Any) -> AgentProcess:
        made.append(AgentProcess(tmp_path / "node", **how))
        return made[-1].start()

    yield start
    for each in made:
        each.close()


@pytest.fixture
async def agent(start: Callable[..., AgentProcess]) -> AgentProcess:
    return await start().up()


async def explained(agent: AgentProcess) -> dict[str, Any]:
    status, body = await agent.ask("/v1/explain")
    assert status == 200
    return dict(json.loads(body))


def of(answer: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [check for check in answer["checks"] if check["name"] == name]
    return dict(found)


async def until_hung(agent: AgentProcess, wchan: str) -> None:
    """Wait until the late check's own message says where its probe waits."""
    for _ in patiently():
        [result, *_] = of(await explained(agent), "disk-write")["results"] or [{"message": ""}]
        if wchan in result["message"]:
            assert result["status"] in ("unknown", "degraded")
            return
        await asyncio.sleep(0.025)
    raise AssertionError(agent.log())


async def until_faults(agent: AgentProcess, name: str, count: int) -> dict[str, Any]:
    for _ in patiently():
        check = of(await explained(agent), name)
        if sum(fault["count"] for fault in check["faults"]) >= count:
            return check
        await asyncio.sleep(0.025)
    raise AssertionError(agent.log())


async def test_a_fault_comes_with_the_line_that_it_was_read_from(agent: AgentProcess) -> None:
    agent.xid(31, pid=1)
    seq = agent.xid(31, pid=2)
    agent.line("NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.")
    agent.line("usb 1-1: new high-speed USB device")
    agent.xid(31, pid=3)
    check = await until_faults(agent, "xid", 3)
    [fault] = check["faults"]
    assert (fault["code"], fault["component"], fault["count"]) == ("xid:31", GPU, 3)
    assert len(fault["occurrence_ages"]) == 2, "the first and the last of a burst"
    assert [line["seq"] for line in check["lines"]] == [seq - 1, seq, seq + 3]
    assert check["lines"][1]["text"].startswith("NVRM: Xid (PCI:0000:3b:00): 31, pid=2")
    assert check["refused_lines"] == {"foreign": 1, "packets": 0}


async def test_a_check_comes_with_its_latest_report_word_for_word(
    start: Callable[..., AgentProcess],
) -> None:
    agent = start(more=QUIET.replace("[checks.memory]\non = false", ""))
    await agent.up()
    for _ in patiently():
        check = of(await explained(agent), "memory")
        if check["run"]["runs"]:
            break
        await asyncio.sleep(0.025)
    [said] = check["run"]["report"]
    assert (said["kind"], said["check"]) == ("Observation", "memory")
    assert said["status"] == check["results"][0]["status"]
    assert check["run"]["deadline_seconds"] == 5


async def test_the_command_shows_it_to_people_and_as_json(agent: AgentProcess) -> None:
    agent.xid(79)
    await until_faults(agent, "xid", 1)
    shown = await asyncio.to_thread(cli, "explain", "xid", "--config", agent.config)
    assert (shown.code, shown.err) == (0, "")
    assert "xid:79" in shown.out
    assert "NVRM: Xid (PCI:0000:3b:00): 79" in shown.out
    assert "sxid" not in shown.out
    told = await asyncio.to_thread(cli, "explain", "xid", "--config", agent.config, "-o", "json")
    assert [check["name"] for check in told.json["checks"]] == ["xid"]
    wrong = await asyncio.to_thread(cli, "explain", "nope", "--config", agent.config)
    assert wrong.code == 2
    assert "no check 'nope'" in wrong.err


async def test_without_an_agent_it_says_so(tmp_path: Path) -> None:
    config = text_file(tmp_path / "agent.toml", f'run_dir = "{tmp_path}"\n')
    shown = await asyncio.to_thread(cli, "explain", "--config", config)
    assert shown.code == 1
    assert f"no agent is running (there is no {tmp_path}/agent.sock)" in shown.err
    assert "sickbay-agent check" in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.root
@pytest.mark.skipif(bool(real_disks.why_not()), reason=real_disks.why_not() or "-")
async def test_what_hangs_in_the_kernel_is_told_first_with_where_it_waits(
    start: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    point = tmp_path / "disk"
    on = f'[checks.disk-write]\npaths = ["{point}"]\ninterval = "1s"\ndeadline = "2s"'
    more = QUIET.replace("[checks.disk-write]\non = false", on)
    with real_disks.ext4(point), real_disks.frozen(point):
        agent = await start(more=more).up()
        answer: dict[str, Any] = {}
        for _ in patiently():
            answer = await explained(agent)
            # A slow disk may hold the copy of the state for a moment too.
            probes = [each for each in answer["stuck"] if "disk_child" in each["command"]]
            if probes:
                break
            await asyncio.sleep(0.025)
        assert next(iter(answer)) == "stuck", "before all else"
        [waiting] = probes
        assert waiting["waits_in"], "a kernel function"
        assert table(answer).startswith("STUCK: ")
        told = [line for line in table(answer).splitlines() if "disk_child" in line]
        assert waiting["waits_in"] in told[0]
        await until_hung(agent, waiting["waits_in"])
        # The agent lives, answers and sees.
        assert (await agent.ask("/healthz"))[0] == 200
        agent.xid(79)
        assert (await until_faults(agent, "xid", 1))["faults"]
        assert agent.process is not None
        assert agent.process.poll() is None
    # Its child is kept where the disk answered before the probe's deadline.
    thread = Path(f"/proc/{waiting['pid']}/task/{waiting['thread']}")
    await until(lambda: not thread.exists(), within=20)


async def test_liveness_depends_on_neither_the_driver_nor_the_aggregator(
    start: Callable[..., AgentProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML hangs in its first call, and no server listens where the aggregator should be."""
    gpus = FakeGpus(tmp_path / "gpus", [gpu(0)])
    gpus.fail("nvmlInitWithFlags", hang=True)
    for name, value in gpus.env.items():
        monkeypatch.setenv(name, value)
    agent = start(aggregator="127.0.0.1:9", more=QUIET + '[nvml]\ndeadline = "1s"\n')
    await agent.up()
    try:
        for _ in patiently():
            results = of(await explained(agent), "gpu-inventory")["results"]
            if results and "nvmlInit has taken" in results[0]["message"]:
                break
            assert (await agent.ask("/healthz"))[0] == 200
            await asyncio.sleep(0.025)
        told = {(result["status"], result["reason"]) for result in results}
        assert told == {("unknown", "starting")}, results
        assert (await agent.ask("/healthz"))[0] == 200
        agent.xid(79)
        assert (await until_faults(agent, "xid", 1))["faults"]
    finally:
        gpus.heal()


def test_a_process_that_only_sleeps_is_not_stuck() -> None:
    assert stuck() == []


def test_a_tree_that_may_not_be_read_is_this_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the rights of root, ``hidepid=1`` refuses the stat of other users' processes."""

    def refuse(_process: psutil.Process, *, recursive: bool) -> list[psutil.Process]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "children", refuse)
    assert stuck() == []


def test_a_command_may_hold_any_bytes() -> None:
    script = "print(flush=True); input()"
    line: list[str | bytes] = [sys.executable, "-c", script, b"\xff"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        shown = process_state._command(psutil.Process(child.pid))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_state._command(psutil.Process(child.pid)) == "", "a zombie has none"
    assert shown == f"{sys.executable} -c {script} \\xff"
