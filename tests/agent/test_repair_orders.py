"""Orders to a real agent: what it does, what it refuses, and what it says of both."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.repair_node import (
    REBOOT,
    RESET,
    TEST,
    Aggregator,
    RepairNode,
    aggregator,
    attached,
    use_gpus,
)
from tests.nvml import FakeGpu, gpu, pci_of, uuid_of
from tests.support.waiting import until


@pytest.fixture
async def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Aggregator, RepairNode]]:
    async with aggregator() as server:
        node = RepairNode(tmp_path, server.address)
        use_gpus(node, monkeypatch)
        await node.start().up()
        await attached(server, node)
        yield server, node
        node.close()


async def test_a_reset_is_accepted_told_with_evidence_done_once_and_proved(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    order = node.order(RESET, server.latest)
    result = await server.ordered(node, order)
    assert server.states(order.operation_id) == ["accepted", "running", "succeeded"], result
    assert result.message == f"reset, and they answer: {uuid_of(1)}"
    assert result.quarantine_uid == "q-1"
    assert result.boot_id == result.ordered_boot_id == order.boot_id
    evidence = json.loads(server.results(order.operation_id)[1].evidence)
    assert evidence["gpus"][1]["serial"] == "165001"
    assert evidence["node"] == "node-a"
    resets = (node.tools.folder / "resets").read_text().splitlines()
    assert resets == [f"--gpu-reset -i {uuid_of(1)}"]
    server.latest.send(repair_order=order)
    await server.ordered(node, node.order(RESET, server.latest, gpu_uuids=["GPU-1"]))
    assert node.tools.count("--gpu-reset") == 1, "the same id again is answered, not done"
    assert server.states(order.operation_id)[3:] == ["succeeded"]


_WRONG: list[tuple[dict[str, object], str]] = [
    ({"boot_id": "another"}, "other-boot"),
    ({"deadline_ms": 1}, "deadline"),
    ({"gpu_uuids": [uuid_of(7)]}, "unknown-gpu"),
    ({"gpu_uuids": ["GPU-1; reboot"]}, "invalid"),
    ({"gpu_uuids": []}, "invalid"),
    ({"quarantine_uid": ""}, "invalid"),
    ({"verb": TEST, "gpu_uuids": [], "test_profile": "../quick"}, "unknown-profile"),
    ({"verb": TEST, "gpu_uuids": [], "test_profile": "network"}, "unmet"),
    ({"verb": TEST, "gpu_uuids": [], "test_profile": "quick", "test_peer": "-x"}, "invalid"),
    ({"verb": REBOOT}, "invalid"),
    ({"verb": 77, "gpu_uuids": []}, "invalid"),
    ({"operation_id": ""}, "invalid"),
]


async def test_an_order_whose_bindings_do_not_hold_is_refused_and_nothing_is_done(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    for fields, reason in _WRONG:
        order = node.order(RESET, server.latest)
        for name, value in fields.items():
            order.ClearField(name)  # type: ignore[arg-type]
            if isinstance(value, list):
                getattr(order, name).extend(value)
            else:
                setattr(order, name, value)
        server.latest.send(repair_order=order)
        if order.operation_id:
            result = await server.final(order.operation_id)
        else:
            await until(lambda: not server.results()[-1].operation_id, within=30)
            result = server.results()[-1]
        assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, reason), result
    assert node.tools.count("--gpu-reset") == node.tools.count("reboot-now") == 0


async def test_a_reset_that_the_driver_refuses_has_failed(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    for out, code, reason in (
        ("GPU 0000:1B:00.0 is currently in use by another client.\n", 255, "in-use"),
        ("Unable to reset: Unknown Error\n", 3, "unknown-error"),
        ("no\n", 9, "exit-code"),
    ):
        node.tools.set_answer("reset", out, code=code)
        result = await server.ordered(node, node.order(RESET, server.latest))
        assert (result.state, result.reason) == (pb.REPAIR_STATE_FAILED, reason)


async def test_exit_0_without_the_gpu_is_no_success(site: tuple[Aggregator, RepairNode]) -> None:
    server, node = site
    node.tools.hook("reset", f"sed -i /{uuid_of(1)}/d {node.tools.folder}/query.out\n")
    result = await server.ordered(node, node.order(RESET, server.latest))
    assert (result.state, result.reason) == (pb.REPAIR_STATE_FAILED, "not-back")


async def test_persistence_mode_is_dropped_where_nvidia_smi_cannot_reach_the_daemon(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.tools.rows(node_gpus(), persistence="Enabled")
    await server.ordered(node, node.order(RESET, server.latest))
    calls = [call for call in node.tools.calls if "--query" not in call]
    assert calls == [
        f"nvidia-smi -pm 0 -i {uuid_of(1)}",
        f"nvidia-smi --gpu-reset -i {uuid_of(1)}",
        f"nvidia-smi -pm 1 -i {uuid_of(1)}",
    ]


async def test_a_reset_ends_the_faults_that_a_reset_ends(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.line(f"NVRM: Xid (PCI:{pci_of(1)}): 48, pid=1, name=python3, and so on")
    await until(lambda: server.latest.faults, within=30, what="the fault")
    [fault] = server.latest.faults.values()
    await server.ordered(node, node.order(RESET, server.latest, gpu_uuids=[fault.component]))
    await until(lambda: not server.latest.faults, within=30, what="the fault is cleared")
    assert ("xid:48", "gpu-reset") in {(each.code, each.how) for each in server.latest.cleared}


async def test_an_order_that_is_cancelled_in_the_same_breath_is_not_begun(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    order = node.order(RESET, server.latest)
    server.latest.send(repair_order=order)
    server.latest.send(cancel_repair=pb.CancelRepair(operation_id=order.operation_id))
    result = await server.final(order.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "cancelled")
    assert node.tools.count("--gpu-reset") == 0


async def test_a_second_copy_of_a_refused_order_is_refused_although_it_would_hold_now(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    order = node.order(RESET, server.latest, boot_id="another-boot")
    result = await server.ordered(node, order)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "other-boot")
    again = node.order(RESET, server.latest, operation_id=order.operation_id)
    count = len(server.results(order.operation_id))
    server.latest.send(repair_order=again)
    await until(lambda: len(server.results(order.operation_id)) > count, within=30)
    assert set(server.states(order.operation_id)) == {"refused"}
    assert node.tools.count("--gpu-reset") == 0


async def test_the_nodes_own_cap_holds_over_restarts_and_a_restart_brings_results_again(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    first = node.order(RESET, server.latest)
    await server.ordered(node, first)
    for _ in range(3):
        await server.ordered(node, node.order(RESET, server.latest))
    node.kill()
    await node.start().up()
    await attached(server, node)
    await until(
        lambda: first.operation_id in {each.operation_id for each in results_of(server)},
        "a result that no aggregator has acknowledged comes again",
        within=30,
    )
    result = await server.ordered(node, node.order(RESET, server.latest))
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "capped")
    assert node.tools.count("--gpu-reset") == 4


async def test_an_acknowledged_result_does_not_come_again(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    one, two = (node.order(RESET, server.latest) for _ in range(2))
    for order in (one, two):
        await server.ordered(node, order)
    server.latest.send(repair_result_taken=pb.RepairResultTaken(operation_id=one.operation_id))
    journal = node.state_dir / "repair/operations.json"
    await until(lambda: '"acknowledged":true' in journal.read_text(), within=30)
    told = len(results_of(server))
    server.latest.send(resync=pb.Resync(reason="another aggregator"))
    await until(lambda: len(results_of(server)) > told, within=30)
    assert {each.operation_id for each in results_of(server)[told:]} == {two.operation_id}
    node.kill()
    await node.start().up()
    await attached(server, node)
    await until(lambda: results_of(server), within=30)
    assert {each.operation_id for each in results_of(server)} == {two.operation_id}


async def test_one_order_at_a_time_and_a_test_can_be_cancelled(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.tools.tool("dcgmi")
    began = node.folder / "began"
    node.tools.hook("dcgmi", f"touch {began}\nsleep 600\n")
    test = node.order(TEST, server.latest)
    server.latest.send(repair_order=test)
    await until(began.exists, within=30, what=node.log)
    result = await server.ordered(node, node.order(RESET, server.latest))
    assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "busy")
    server.latest.send(cancel_repair=pb.CancelRepair(operation_id=test.operation_id))
    result = await server.final(test.operation_id)
    assert (result.state, result.reason) == (pb.REPAIR_STATE_INCONCLUSIVE, "cancelled")
    result = await server.ordered(node, node.order(RESET, server.latest))
    assert result.state == pb.REPAIR_STATE_SUCCEEDED


async def test_a_test_gives_steps_and_measurements(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.tools.tool("dcgmi", "", 205)
    node.tools.tool("fio")
    result = await server.ordered(node, node.order(TEST, server.latest))
    assert (result.state, result.reason) == (pb.REPAIR_STATE_FAILED, "isolate")
    assert (result.steps[0].name, result.steps[0].outcome) == ("dcgm-1", pb.TEST_OUTCOME_FAILED)
    assert result.test_profile == "quick"


async def test_without_repair_allow_an_order_is_refused_and_no_record_is_made(
    tmp_path: Path,
) -> None:
    async with aggregator() as server:
        node = RepairNode(tmp_path, server.address, allow=())
        with closing(node):
            await node.start().up()
            stream = await server.stream()
            assert not stream.hello.repair_verbs
            result = await server.ordered(node, node.order(REBOOT, stream))
            assert (result.state, result.reason) == (pb.REPAIR_STATE_REFUSED, "not-allowed")
            assert not (node.state_dir / "repair").exists()


def test_an_agent_that_obeys_no_order_does_not_load_the_modules() -> None:
    look = (
        "import sys, nodeagent.agent, nodeagent.uplink.uplink, nodeagent.local.routes\n"
        "print([m for m in sys.modules if m.startswith(('nodeagent.repair', 'nodeagent.active'))])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def node_gpus() -> list[FakeGpu]:
    return [gpu(0), gpu(1)]


def results_of(server: Aggregator) -> list[pb.RepairResult]:
    """Those of the latest agent's streams."""
    latest = server.latest.hello.instance
    return [
        message.repair_result
        for stream in server.streams
        if stream.hello.instance == latest
        for _, message in stream.messages
        if message.HasField("repair_result")
    ]
