"""A GPU's index and PCI address, from the inventory of this agent and of older ones."""

from collections.abc import Iterator

import pytest

from aggregator.health.model import Snapshot, Status
from aggregator.health.node import NodeHealth, gpu_name, hide_gpus, name_gpus
from aggregator.quarantine.state.fleet import FleetState, NodeSummary
from aggregator.web.node_view import ViewMoment
from nodeagent.checks.gpu_inventory import evaluate
from nodeagent.sources.gpu_sample import Gpu
from tests.support.fleet_views import view_fleet
from tests.web.support import (
    GPU,
    LOST,
    Hands,
    component,
    fault,
    hello,
    incident_of,
    quarantine_of,
    serving,
    well,
)

HANDS = Hands()


def health_of(message: str, name: str = GPU, status: Status = Status.OK) -> NodeHealth:
    health = NodeHealth(hello("node-1"))
    health.snapshot(Snapshot((component(HANDS.now, "gpu-inventory", name, status, message),), ()))
    return health


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("GPU 3 at 0000:1b:00: NVIDIA H100", "GPU 3 at 0000:1b:00"),
        ("GPU 12 at 00000000:1B:00: NVIDIA H100", "GPU 12 at 00000000:1b:00"),
        (LOST, "GPU 3 at 0000:1b:00"),
        ("NVIDIA H100 at 0000:1b:00", "GPU 0000:1b:00"),  # of an older agent
        ("the GPU at 0000:1b:00 is no longer on the PCI bus", "GPU 0000:1b:00"),
        ("well (simulated)", ""),
        ("", ""),
        ("GPU 3 at 0000:1b:0012: no address", ""),
        ("GPU <script> at <b>", ""),
    ],
)
def test_the_inventory_names_index_and_address(message: str, expected: str) -> None:
    assert gpu_name(health_of(message), GPU) == expected


def test_the_agents_own_words_are_understood() -> None:
    gpu = Gpu(index=7, uuid=GPU, pci="0000:c3:00", name="NVIDIA H200", errors={})
    status, _, message = evaluate(gpu)
    assert status.name == "OK"
    assert gpu_name(health_of(message), GPU) == "GPU 7 at 0000:c3:00"


def test_without_an_inventory_the_drivers_line_has_the_address() -> None:
    health = NodeHealth(hello("node-1"))
    assert gpu_name(health, GPU, {"pci": "0000:3B:00"}) == "GPU 0000:3b:00"
    assert gpu_name(health, "pci:0000:3b:00") == "GPU 0000:3b:00"
    assert gpu_name(health, GPU, {"pci": "<script>"}) == ""
    assert gpu_name(health, "/var", {"pci": "0000:3b:00"}) == ""
    assert gpu_name(health, "", {"pci": "0000:3b:00"}) == ""
    assert gpu_name(None, GPU) == ""


def test_texts_for_people_name_gpus_by_slot_and_hidden_ones_are_equal() -> None:
    health = health_of("GPU 3 at 0000:1b:00: NVIDIA H100")
    other = GPU.replace("GPU-5", "GPU-6")
    assert name_gpus(f"xid:79 on {GPU}, and 1 more", health) == (
        "xid:79 on GPU 3 at 0000:1b:00, and 1 more"
    )
    assert name_gpus(f"xid:79 on {other}", health) == f"xid:79 on {other}"
    latched = fault(HANDS.now, component=other, details={"pci": "0000:3b:00"})
    health.snapshot(Snapshot((), (latched,)))
    assert name_gpus(f"{other} and {GPU}", health) == f"GPU 0000:3b:00 and {GPU}"
    assert name_gpus(GPU, None) == GPU
    for name in (GPU, "GPU 3 at 0000:1b:00", "GPU 0000:1b:00", "GPU at 0000:1b:00"):
        assert hide_gpus(f"xid:79 on {name}: lost") == "xid:79 on a GPU: lost"


def test_evidence_of_incident_and_fault_has_the_device() -> None:
    fleet = FleetState(mode="drain")
    node_summary = well(fleet, "node-1", HANDS.now)
    assert node_summary.agent.health is not None
    node_summary.agent.health.snapshot(
        Snapshot((), (fault(HANDS.now, details={"pci": "0000:1b:00"}),))
    )
    incident_of(node_summary, HANDS.now)
    found = view_fleet(fleet, ViewMoment(HANDS.now, HANDS.wall)).incidents
    assert [item.device for item in found[0].evidence] == ["GPU 0000:1b:00"]


def lost_gpus(fleet: FleetState) -> Iterator[tuple[int, str, NodeSummary]]:
    """Three nodes, each with the UUID of its lost GPU."""
    for number in (1, 2, 3):
        uuid = f"GPU-0000000{number}-7f43-4b6e-9a20-1f2e3d4c5b6a"
        node_summary = well(fleet, f"node-{number}", HANDS.now)
        assert node_summary.agent.health is not None
        node_summary.agent.health.snapshot(
            Snapshot((component(HANDS.now, "gpu-inventory", uuid, Status.FAILED, LOST),), ())
        )
        yield number, uuid, node_summary


async def test_a_title_names_the_gpu_and_a_group_of_them_no_gpu() -> None:
    fleet = FleetState(mode="drain")
    for number, uuid, node_summary in lost_gpus(fleet):
        incident_of(
            node_summary,
            HANDS.now,
            action="drain" if number < 3 else "cordon",
            component=uuid,
            summary=f"xid:48 (GPU ECC DBE) on {uuid}",
        )
    async with serving(fleet, HANDS.clocks()) as served:
        text = await served.text("/")
        assert text.count("xid:48 (GPU ECC DBE) on a GPU") == 1
        assert text.count("xid:48 (GPU ECC DBE) on GPU 3 at 0000:1b:00") == 1
        assert "like it" not in text
        text = await served.text("/nodes/node-1")
        assert ">xid:48 (GPU ECC DBE) on GPU 3 at 0000:1b:00</a></b>" in text


async def test_equal_quarantines_of_different_gpus_are_one_row() -> None:
    fleet = FleetState(mode="drain")
    for number, uuid, node_summary in lost_gpus(fleet):
        code = 79 if number < 3 else 95
        reason = f"xid:{code} (a fault) on {uuid}"
        quarantine_of(node_summary, HANDS.wall, reason=reason, component=uuid)
    async with serving(fleet, HANDS.clocks()) as served:
        text = await served.text("/")
        assert text.count("xid:79 (a fault) on a GPU") == 1
        assert text.count("xid:95 (a fault) on GPU 3 at 0000:1b:00") == 1
        rows = await served.json("/api/v1/nodes")
        assert [one["why"] for one in rows["items"]] == [
            "Draining: xid:79 (a fault) on GPU 3 at 0000:1b:00",
            "Draining: xid:79 (a fault) on GPU 3 at 0000:1b:00",
            "Draining: xid:95 (a fault) on GPU 3 at 0000:1b:00",
        ]
        text = await served.text("/nodes/node-3")
        assert "<p>xid:95 (a fault) on GPU 3 at 0000:1b:00</p>" in text


async def test_page_and_api_show_the_device_and_the_page_has_the_uuid_too() -> None:
    fleet = FleetState(mode="drain")
    node_summary = well(fleet, "node-1", HANDS.now)
    assert node_summary.agent.health is not None
    part = component(HANDS.now, "gpu-inventory", GPU, Status.FAILED, LOST)
    node_summary.agent.health.snapshot(Snapshot((part,), (fault(HANDS.now),)))
    incident_of(node_summary, HANDS.now)
    async with serving(fleet, HANDS.clocks()) as served:
        for path in ("/", "/nodes/node-1"):
            text = await served.text(path)
            assert ">GPU 3 at 0000:1b:00</summary>" in text
            assert f"<code>{GPU}</code></details>" in text
        told = await served.json("/api/v1/nodes/node-1")
        assert {one["device"] for one in told["faults"]} == {"GPU 3 at 0000:1b:00"}
        assert {one["device"] for one in told["components"]} == {"GPU 3 at 0000:1b:00"}
