"""Orders to a real agent: what it does, what it refuses, and what it says of both."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sickbay.v1 import sickbay_pb2 as pb
from tests.agent.repair_node import Aggregator, RepairNode, aggregator, attached, use_gpus
from tests.nvml import uuid_of

RESET, REBOOT, TEST = (
    pb.REPAIR_VERB_GPU_RESET,
    pb.REPAIR_VERB_REBOOT,
    pb.REPAIR_VERB_TEST,
)


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


async def test_hello_names_what_the_configuration_allows(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, _ = site
    hello = server.latest.hello
    assert list(hello.repair_verbs) == [RESET, REBOOT, TEST]
    assert "standard" in hello.test_profiles
    assert hello.boottime_ms > 0


async def test_a_reset_is_accepted_told_with_evidence_done_once_and_proved(
    site: tuple[Aggregator, RepairNode],
) -> None:
    server, node = site
    node.xid(48)
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
