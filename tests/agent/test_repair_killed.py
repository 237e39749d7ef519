"""kill -9 of a real agent at every step of an order: nothing twice, and the truth afterwards."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
from tests.nvml import uuid_of
from tests.support.present import present
from tests.support.waiting import until

#: The agent is the only one whose pid is in this file.
KILL = "kill -9 $(cat {folder}/agent.pid)\nsleep 600\n"


@pytest.fixture
async def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Aggregator, RepairNode]]:
    async with aggregator() as server:
        proc = tmp_path / "proc"
        boot(proc, "boot-1")
        node = RepairNode(tmp_path, server.address, settings='reboot_limit = "1s"\n')
        node.top = f'proc = "{proc}"\n{node.top}'
        use_gpus(node, monkeypatch)
        await up(server, node)
        yield server, node
        node.close()


async def up(server: Aggregator, node: RepairNode) -> None:
    before = len(server.streams)
    await node.start().up()
    assert node.process is not None
    (node.folder / "agent.pid").write_text(f"{node.process.pid}\n")
    await until(lambda: len(server.streams) > before, within=30)
    await attached(server, node)


async def killed(node: RepairNode) -> None:
    process = present(node.process)
    await until(lambda: process.poll() is not None, within=30, what=node.log)


async def test_killed_before_it_began_an_order_is_refused_and_nothing_was_done(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    query = node.tools.folder / "query.hook"
    smi = node.tools.smi.read_text()
    node.tools.smi.write_text(smi.replace("[ -e ", f". {query}; [ -e ", 1))
    query.write_text(KILL.format(folder=node.folder))
    order = node.order(RESET, server.latest)
    server.latest.send(repair_order=order)
    await killed(node)
    assert server.states(order.operation_id) == ["accepted"]
    query.write_text("")
    await up(server, node)
    result = await server.final(order.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "agent-restarted")
    again = node.order(RESET, server.latest)
    again.operation_id = order.operation_id
    await server.ordered(node, again)
    assert node.tools.count("--gpu-reset") == 0, "its id is spent"
    result = await server.ordered(node, node.order(RESET, server.latest))
    assert result.state == pb.REPAIR_STATE_SUCCEEDED, "and the driver is not let go of for ever"


@pytest.mark.parametrize("where", ["reset", "verify"])
async def test_killed_in_the_act_its_end_is_unknown_and_it_is_not_repeated(
    site: tuple[Aggregator, RepairNode], where: str
) -> None:
    server, node = site
    kill = KILL.format(folder=node.folder)
    if where == "reset":
        node.tools.hook("reset", kill)
    else:
        smi = node.tools.smi.read_text()
        query = node.tools.folder / "query.hook"
        query.touch()
        node.tools.smi.write_text(smi.replace("[ -e ", f". {query}; [ -e ", 1))
        (node.tools.folder / "kill").write_text(kill)
        node.tools.hook("reset", f"cp {node.tools.folder}/kill {query}\n")
    order = node.order(RESET, server.latest)
    server.latest.send(repair_order=order)
    await killed(node)
    node.tools.hook("reset", "")
    (node.tools.folder / "query.hook").write_text("")
    await up(server, node)
    result = await server.final(order.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_UNKNOWN, "interrupted")
    for _ in range(2):
        again = node.order(RESET, server.latest)
        again.operation_id = order.operation_id
        await server.ordered(node, again)
    assert node.tools.count("--gpu-reset") == 1


async def test_stopped_in_a_reset_it_restores_persistence_mode(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.tools.rows(TWO, persistence="Enabled")
    node.tools.hook("reset", "sleep 600\n")
    done = node.folder / "restored"
    smi = node.tools.smi.read_text()
    restore = f'*"-pm 1"*) sleep 0.5; touch {done} ;;'
    node.tools.smi.write_text(smi.replace("*-pm*) exit 0 ;;", f"{restore}\n  *-pm*) exit 0 ;;"))
    server.latest.send(repair_order=node.order(RESET, server.latest))
    await until(lambda: node.tools.count("--gpu-reset") == 1, what=node.log)
    assert await node.terminate() == 0
    assert done.exists()


async def test_a_reboot_is_unknown_until_the_boot_id_proves_it(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.tools.hook("reboot-now", KILL.format(folder=node.folder))
    order = node.order(REBOOT, server.latest)
    server.latest.send(repair_order=order)
    await killed(node)
    assert server.states(order.operation_id) == ["accepted", "running"]
    assert server.results(order.operation_id)[-1].evidence, "it is away before the network is"
    await up(server, node)
    result = await server.final(order.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_UNKNOWN, "interrupted")
    server.latest.send(repair_result_taken=pb.RepairResultTaken(operation_id=order.operation_id))
    journal = node.state_dir / "repair/operations.json"
    await until(lambda: '"acknowledged":true' in journal.read_text(), within=30)
    node.kill()
    boot(node.folder / "proc", "boot-2")
    await up(server, node)
    await until(lambda: server.states(order.operation_id)[-1] == "succeeded", within=30)
    result = server.results(order.operation_id)[-1]
    assert (result.ordered_boot_id, result.boot_id) == ("boot-1", "boot-2")
    assert node.tools.count("reboot-now") == 1
    late = node.order(REBOOT, server.latest, boot_id="boot-1")
    assert (await server.ordered(node, late)).reason == "other-boot"


async def test_a_reboot_that_does_nothing_is_unknown_and_one_that_is_refused_has_failed(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    result = await server.ordered(node, node.order(REBOOT, server.latest))
    assert (result.state, result.reason) == (pb.REPAIR_STATE_UNKNOWN, "same-boot")
    node.tools.set_answer("reboot-now", "no permission", code=1)
    result = await server.ordered(node, node.order(REBOOT, server.latest))
    assert (result.state, result.reason) == (pb.REPAIR_STATE_FAILED, "exit-code")
    result = await server.ordered(node, node.order(REBOOT, server.latest))
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "capped")


async def test_killed_in_a_test_its_programs_end_and_it_is_unknown(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.tools.tool("dcgmi")
    pid_file = node.folder / "dcgmi.pid"
    node.tools.hook("dcgmi", f"echo $$ > {pid_file}\nsleep 600\n")
    order = node.order(TEST, server.latest)
    server.latest.send(repair_order=order)
    await until(lambda: pid_file.exists() and pid_file.read_text().strip(), within=30)
    node.kill()
    pid = int(pid_file.read_text())
    await until(lambda: not Path(f"/proc/{pid}").exists(), within=30, what="dcgmi is ended")
    await up(server, node)
    result = await server.final(order.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_UNKNOWN, "interrupted")
    assert node.tools.count("dcgmi") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_at_random_moments_nothing_is_done_twice_or_told_wrongly(
    site: tuple[Aggregator, RepairNode],
) -> None:
    """The aggregator sends the same order again until it has an end, as it would."""
    server, node = site
    node.more = node.more.replace("[repair]", "[repair]\nmax_gpu_resets = 100")
    draw = random.Random(21)
    for number in itertools.count(1):
        uid = f"random-{number}"
        order = node.order(RESET, server.latest, operation_id=uid)
        server.latest.send(repair_order=order)
        await asyncio.sleep(draw.uniform(0.0, 0.6))
        node.kill()
        await up(server, node)
        again = node.order(RESET, server.latest, operation_id=uid)
        result = await server.ordered(node, again)
        lines = (node.tools.folder / "resets").read_text() if result_done(node) else ""
        done = lines.count(uuid_of(1)) - node.folder_done
        node.folder_done += done
        assert done <= 1, (uid, server.states(uid))
        if result.state == pb.REPAIR_STATE_SUCCEEDED:
            assert done == 1
        elif result.state == pb.REPAIR_STATE_REFUSED:
            assert done == 0, server.states(uid)
        else:
            assert result.state == pb.REPAIR_STATE_UNKNOWN
        finals = {state for state in server.states(uid) if state not in ("accepted", "running")}
        assert len(finals) == 1, "an end is never told otherwise"
        if number >= 8:
            break


def result_done(node: RepairNode) -> bool:
    return (node.tools.folder / "resets").exists()
