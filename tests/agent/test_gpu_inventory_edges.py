"""Which GPUs are there, at the edges: what NVML, the bus and the driver answer, and who left."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.checks import (
    gpu_clocks,
    gpu_common,
    gpu_events,
    gpu_inforom,
    gpu_inventory,
)
from nodeagent.checks.base import Check, CheckSpec
from nodeagent.model import ClearedBy, Clearing
from nodeagent.sources.gpu_sample import (
    Gpu,
    TroubleKind,
    XidEvent,
)
from nodeagent.sources.gpus import GpuMap
from tests.agent.gpu_node import ADDRESSES, GPUS, TWO, Node, failing, said
from tests.agent.kernel_log import pci_device
from tests.nvml.gpu_bench import Seen, first_run, run_check


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- gpu-inventory --------------------------------------------------------------------------------


async def inventory(node: Node, check: Check | None = None) -> Seen:
    return await run_check(check or node.build(gpu_inventory.SPEC))


@pytest.mark.parametrize(
    ("before", "is_exchanged"),
    [
        ({"0000:99:00": "GPU-8", "0000:9a:00": "GPU-9"}, True),  # a cloud's other hardware
        ({ADDRESSES[0]: "GPU-0", "0000:99:00": "GPU-8"}, True),  # a new card in another slot
        ({ADDRESSES[0]: "GPU-0", ADDRESSES[1]: "GPU-1", "0000:99:00": "GPU-8"}, False),
        ({"0000:99:00": "GPU-8"}, False),  # one more came, and this one did not
        ({"0000:98:00": "GPU-0", "0000:99:00": "GPU-8"}, True),  # one of two was moved
    ],
)
async def test_gpus_that_were_exchanged_while_no_agent_ran_are_not_missing(
    node: Node,
    before: dict[str, str],
    is_exchanged: bool,  # noqa: FBT001
) -> None:
    node.sources = replace(node.sources, gpus=GpuMap(node.sources.machine, before))
    seen = await inventory(node)
    assert ("GPU-8" in seen.by_component) is not is_exchanged
    assert (Clearing("GPU-8", how="replaced") in seen.clearings) is is_exchanged
    if not is_exchanged:
        assert seen.status("GPU-8") == ("FAILED", "missing")


@pytest.mark.parametrize("before", [{"0000:99:00": "GPU-8"}, {}])
async def test_a_gpu_lost_after_others_came_is_missing(node: Node, before: dict[str, str]) -> None:
    before = {ADDRESSES[1]: "GPU-1"} | before  # GPU-0 is new
    node.sources = replace(node.sources, gpus=GpuMap(node.sources.machine, before))
    check = node.build(gpu_inventory.SPEC)
    await inventory(node, check)
    node.set_gpus(GPUS[0])
    node.take_off_the_bus(1)
    assert (await inventory(node, check)).status("GPU-1") == ("FAILED", "missing")


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ({"ecc": 15, "name": 16}, ("FAILED", "lost", "NVML reports that {} is lost (error 15)")),
        (
            {"name": 14, "rows": 16},
            ("FAILED", "reset-required", "NVML reports that {} needs a reset (error 16)"),
        ),
        (
            {"name": 14, "handle": 4},
            ("DEGRADED", "corrupted-inforom", "{} has a corrupted InfoROM (error 14)"),
        ),
        (
            {"pci": 5, "uuid": 4},
            ("UNKNOWN", "no-permission", "nvmlDeviceGetUUID gave error 4"),
        ),
        ({"pci": 5}, ("UNKNOWN", "nvml-error-5", "nvmlDeviceGetPciInfo gave error 5")),
        ({"rows": 5}, ("OK", "", "{}: NVIDIA H100")),
    ],
)
def test_the_worst_that_a_gpu_s_calls_say(
    codes: Mapping[str, int], verdict: tuple[str, str, str]
) -> None:
    status, reason, text = gpu_inventory.evaluate(failing(GPUS[0], **codes))
    expected = verdict[2].format(f"GPU 0 at {ADDRESSES[0]}")
    assert (status.name, reason, text) == (*verdict[:2], expected)
    status, reason, text = gpu_inventory.evaluate(replace(failing(GPUS[0], **codes), pci=""))
    if "{}" in verdict[2]:
        assert text == verdict[2].format("GPU 0")


async def test_the_node_s_words(tmp_path: Path) -> None:
    node = Node(tmp_path, expected=2)
    assert said(await inventory(node), "") == ("OK", "", "2 GPUs, driver 580.65.06")
    alone = Node(tmp_path / "alone", on_bus=1)
    alone.set_gpus(GPUS[0])
    assert said(await inventory(alone), "") == ("OK", "", "1 GPU, driver 580.65.06")
    node.set_gpus(*TWO, driver="", stuck="pid 7 in nvidia_ioctl")
    assert said(await inventory(node), "") == (
        "DEGRADED",
        "stuck-worker",
        "2 GPUs, driver of unknown version; a process is stuck: pid 7 in nvidia_ioctl",
    )
    node.set_gpus(GPUS[0], failing(GPUS[1], handle=999), stuck="")
    assert said(await inventory(node), "") == (
        "FAILED",
        "missing",
        "NVML has 1 of 2 expected GPUs",
    )
    node.set_gpus(GPUS[0], failing(GPUS[1], rows=15))
    assert (await inventory(node)).status("") == ("FAILED", "missing")
    node.set_gpus(GPUS[0], replace(failing(GPUS[1], rows=3), name=""))
    seen = await inventory(node)
    assert seen.status("") == ("OK", "")
    assert seen.by_component["GPU-1"].message == f"GPU 1 at {ADDRESSES[1]}: without a name"


@pytest.mark.parametrize("kind", list(TroubleKind))
async def test_a_driver_that_does_not_answer_is_starting_for_a_while(
    node: Node, kind: TroubleKind
) -> None:
    like_starting = kind.value in {
        *("no-library", "driver-not-loaded", "library-mismatch", "nvml-failed")
    }

    async def reason(check: Check) -> str:
        return (await run_check(check)).status("")[1]

    node.fail(kind, "words")
    check = node.build(gpu_inventory.SPEC, boot_grace=600.0)
    assert await reason(check) == kind.value
    node.clock.now = 599.0
    young = "starting" if like_starting else kind.value
    assert await reason(check) == young
    node.clock.now = 600.0
    assert await reason(check) == kind.value
    node.nvml.back_for = 599.0
    assert await reason(check) == young
    node.nvml.back_for = 600.0
    node.clock.now = 50_000.0
    node.sources.driver_log.loaded(50_000.0)
    node.clock.now += 599.0
    assert await reason(check) == young
    node.heal(*TWO)
    assert await reason(check) == ""
    node.fail(kind, "words")
    assert await reason(check) == kind.value, "it had come up"
    node.sources.driver_log.loaded(node.clock.now)
    assert await reason(check) == young, "until it was loaded anew"


async def test_after_a_quiesce_the_driver_may_start_again(node: Node) -> None:
    check = node.build(gpu_inventory.SPEC, boot_grace=600.0)
    assert (await run_check(check)).status("") == ("OK", "")
    node.nvml.back_for = 10.0
    node.fail(TroubleKind.NO_LIBRARY)
    assert (await run_check(check)).status("") == ("UNKNOWN", "no-library"), "nobody stood aside"
    node.fail(TroubleKind.QUIESCED)
    assert (await run_check(check)).status("") == ("UNKNOWN", "quiesced")
    node.fail(TroubleKind.NO_LIBRARY)
    assert (await run_check(check)).status("") == ("UNKNOWN", "starting")


@pytest.mark.parametrize(
    ("back_for", "verdict"),
    [
        (
            299.0,
            (
                "UNKNOWN",
                "after-quiesce",
                "missing: NVML has 1 of 2 expected GPUs; the agent had released it until 299 s ago",
            ),
        ),
        (300.0, ("FAILED", "missing", "NVML has 1 of 2 expected GPUs")),
    ],
)
async def test_a_fault_seen_just_after_a_quiesce_is_none_yet(
    tmp_path: Path, back_for: float, verdict: tuple[str, str, str]
) -> None:
    node = Node(tmp_path, expected=2)
    node.nvml.back_for = back_for
    node.set_gpus(GPUS[0])
    assert said(await inventory(node), "") == verdict


@pytest.mark.parametrize(
    ("loaded", "expected", "remembers", "verdict"),
    [
        (
            True,
            2,
            True,
            (
                "UNKNOWN",
                "driver-unreachable",
                "gone; sysfs shows it loaded: may the agent open /dev/nvidiactl?",
            ),
        ),
        (False, 2, False, ("FAILED", "driver-not-loaded", "gone")),
        (False, None, True, ("FAILED", "driver-not-loaded", "gone")),
        (False, None, False, ("UNKNOWN", "driver-not-loaded", "gone")),
    ],
)
async def test_a_driver_that_is_not_loaded_fails_a_node_that_has_had_gpus(
    tmp_path: Path,
    *,
    loaded: bool,
    expected: int | None,
    remembers: bool,
    verdict: tuple[str, str, str],
) -> None:
    node = Node(tmp_path, expected=expected)
    if loaded:
        (node.sys / "module/nvidia").mkdir(parents=True)
    if remembers:
        node.sources.gpus.learn(GPUS[0].pci, GPUS[0].uuid)
    node.fail(TroubleKind.DRIVER_NOT_LOADED, "gone")
    assert said(await inventory(node), "") == verdict


@pytest.mark.parametrize("kind", [TroubleKind.HUNG, TroubleKind.QUIESCED])
async def test_gpus_that_left_the_bus_are_missed_whatever_nvml_says(
    tmp_path: Path, kind: TroubleKind
) -> None:
    node = Node(tmp_path, expected=2)
    check = await first_run(node, gpu_inventory.SPEC)
    node.fail(kind, "words")
    assert said(await run_check(check), "") == ("UNKNOWN", kind.value, "words")
    node.take_off_the_bus(1)
    seen = await run_check(check)
    assert seen.status("GPU-0") == ("UNKNOWN", kind.value)
    if kind is TroubleKind.QUIESCED:
        assert seen.status("") == ("UNKNOWN", "quiesced")
        assert seen.status("GPU-1") == ("UNKNOWN", "quiesced")
    else:
        text = "1 of 2 expected GPUs are on the PCI bus; words"
        assert said(seen, "") == ("FAILED", "missing", text)
        gone = f"the GPU at {ADDRESSES[1]} is no longer on the PCI bus"
        assert said(seen, "GPU-1") == ("FAILED", "missing", gone)


async def test_without_a_view_of_the_bus_nothing_is_missed_from_it(tmp_path: Path) -> None:
    node = Node(tmp_path, expected=1)
    check = node.build(gpu_inventory.SPEC)
    node.set_gpus(GPUS[0])
    node.take_off_the_bus(1)
    await run_check(check)
    node.fail(TroubleKind.HUNG, "words")
    node.take_off_the_bus(0)
    seen = await run_check(check)
    assert seen.status("") == ("UNKNOWN", "hung")
    assert seen.status("GPU-0") == ("UNKNOWN", "hung")


async def test_a_gpu_that_was_known_is_missed_even_where_another_driver_has_it(
    node: Node,
) -> None:
    check = await first_run(node, gpu_inventory.SPEC)
    drivers = node.sys / "bus/pci/drivers"
    for name in ("vfio-pci", "nvidia"):
        (drivers / name).mkdir(parents=True)
    for number, name in ((0, "nvidia"), (1, "vfio-pci")):
        device = node.sys / f"bus/pci/devices/{ADDRESSES[number]}.0"
        (device / "driver").symlink_to(drivers / name)
    node.set_gpus()
    node.nvml.answer = replace(node.nvml.answer, gpus=())
    missed = await run_check(check)
    offered = "the GPU at {} is on the PCI bus and NVML does not offer it"
    for number in (0, 1):
        text = offered.format(ADDRESSES[number])
        assert said(missed, f"GPU-{number}") == ("FAILED", "missing", text)
    fresh = Node(node.sys.parent / "other")
    fresh.set_gpus(GPUS[0])
    for number, name in ((0, "nvidia"), (1, "vfio-pci")):
        device = fresh.sys / f"bus/pci/devices/{ADDRESSES[number]}.0"
        (device / "driver").symlink_to(drivers / name)
    assert set((await inventory(fresh)).by_component) == {"", "GPU-0"}


async def test_a_gpu_without_a_name_tells_why_another_is_missing(node: Node) -> None:
    node.set_gpus(GPUS[0], Gpu(1, errors={"uuid": 5, "pci": 999}))
    seen = await inventory(node)
    text = f"the GPU at {ADDRESSES[1]} is on the PCI bus and NVML does not offer it"
    why = " (error 5, 999 for a GPU without a name)"
    assert said(seen, f"pci:{ADDRESSES[1]}") == ("UNKNOWN", "nvml-error-5", text + why)
    node.set_gpus(GPUS[0], Gpu(1, errors={"handle": 999}))
    assert (await inventory(node)).status(f"pci:{ADDRESSES[1]}") == ("FAILED", "missing")
    node.set_gpus(GPUS[0], Gpu(1, errors={"uuid": 15}))
    assert (await inventory(node)).status(f"pci:{ADDRESSES[1]}") == ("FAILED", "lost")


@pytest.mark.parametrize(
    ("on_bus", "nameless", "verdict"),
    [
        (3, [{"uuid": 999}], ("FAILED", "missing")),
        (3, [{"uuid": 999}, {"uuid": 4}], ("UNKNOWN", "no-permission")),
        (2, [{"pci": 999, "rows": 3}], ("UNKNOWN", "nvml-error-999")),
        (2, [{"rows": 3}], ("FAILED", "missing")),
    ],
)
async def test_a_nameless_gpu_excuses_one_address_and_gives_its_own_reason(
    tmp_path: Path, on_bus: int, nameless: list[dict[str, int]], verdict: tuple[str, str]
) -> None:
    node = Node(tmp_path, on_bus=on_bus)
    node.set_gpus(GPUS[0], *(Gpu(n, errors=each) for n, each in enumerate(nameless, 1)))
    seen = await inventory(node)
    assert {seen.status(f"pci:{each}") for each in ADDRESSES[1:on_bus]} == {verdict}


async def test_a_gpu_of_another_driver_is_no_absent_one(tmp_path: Path) -> None:
    node = Node(tmp_path, on_bus=3)
    (node.sys / "bus/pci/drivers/ast").mkdir(parents=True)
    device = node.sys / f"bus/pci/devices/{ADDRESSES[2]}.0"
    (device / "driver").symlink_to(node.sys / "bus/pci/drivers/ast")
    node.set_gpus(GPUS[0], Gpu(1, errors={"uuid": 999}))
    seen = await inventory(node)
    assert seen.status(f"pci:{ADDRESSES[1]}") == ("UNKNOWN", "nvml-error-999")


async def test_a_gpu_in_another_s_slot_replaces_it_and_one_that_is_lost_does_not(
    node: Node,
) -> None:
    check = await first_run(node, gpu_inventory.SPEC)
    node.set_gpus(GPUS[0], failing(replace(GPUS[1], uuid="GPU-new"), rows=15))
    assert (await run_check(check)).clearings == []
    node.set_gpus(GPUS[0], replace(GPUS[1], uuid="GPU-new"))
    seen = await run_check(check)
    assert seen.clearings == [Clearing("GPU-1", "replaced")]
    assert "GPU-1" not in seen.by_component


async def test_a_gpu_taken_out_on_purpose_is_gone(tmp_path: Path) -> None:
    node = Node(tmp_path, expected=1)
    check = await first_run(node, gpu_inventory.SPEC)
    node.take_off_the_bus(1)
    node.set_gpus(GPUS[0])
    assert "GPU-1" not in (await run_check(check)).by_component
    node.set_gpus(failing(GPUS[0], handle=999))
    assert (await run_check(check)).status("GPU-1") == ("FAILED", "missing"), "fewer than expected"
    unexpecting = Node(tmp_path / "other")
    check = unexpecting.build(gpu_inventory.SPEC)
    await run_check(check)
    unexpecting.take_off_the_bus(1)
    unexpecting.set_gpus(GPUS[0])
    assert (await run_check(check)).status("GPU-1") == ("FAILED", "missing"), "nobody said a number"


async def test_a_gpu_without_a_name_is_the_named_one_from_then_on(tmp_path: Path) -> None:
    """It failed to start, and a reboot or a reset helped: its address is not missed for ever."""
    node = Node(tmp_path)
    check = node.build(gpu_inventory.SPEC)
    node.set_gpus(GPUS[0])
    seen = await run_check(check)
    assert seen.status(f"pci:{ADDRESSES[1]}") == ("FAILED", "missing")
    assert seen.clearings == [Clearing(f"pci:{ADDRESSES[0]}", "named")]
    node.later()
    node.set_gpus(*TWO)
    seen = await run_check(check)
    assert seen.clearings == [Clearing(f"pci:{ADDRESSES[1]}", "named")]
    assert seen.status("GPU-1") == ("OK", "")
    assert (await run_check(check)).clearings == []


async def test_a_gpu_that_comes_back_at_another_address_is_well(node: Node) -> None:
    check = await first_run(node, gpu_inventory.SPEC)
    node.take_off_the_bus(1)
    node.set_gpus(GPUS[0])
    assert (await run_check(check)).status("GPU-1") == ("FAILED", "missing")
    pci_device(node.sys, f"{ADDRESSES[3]}.0", "0x030200")
    node.later()
    node.set_gpus(GPUS[0], replace(GPUS[1], pci=ADDRESSES[3]))
    seen = await run_check(check)
    assert {name: seen.status(name)[0] for name in seen.by_component} == {
        "": "OK",
        "GPU-0": "OK",
        "GPU-1": "OK",
    }


async def test_a_gpu_that_went_to_a_virtual_machine_after_nvml_s_start_is_not_lost(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, expected=2)
    check = await first_run(node, gpu_inventory.SPEC)
    device = node.sys / f"bus/pci/devices/{ADDRESSES[1]}.0"
    (node.sys / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (device / "driver").symlink_to(node.sys / "bus/pci/drivers/vfio-pci")
    node.later()
    node.set_gpus(GPUS[0], failing(GPUS[1], uuid=15))
    seen = await run_check(check)
    assert {name: seen.status(name)[0] for name in seen.by_component} == {"": "OK", "GPU-0": "OK"}
    (device / "driver").unlink()
    node.later()
    node.set_gpus(*TWO)
    seen = await run_check(check)
    assert seen.status("GPU-1") == ("OK", ""), "it is back"


# -- gpu-events -----------------------------------------------------------------------------------


async def test_an_event_is_told_one_look_later_where_the_log_has_not(node: Node) -> None:
    check = node.build(gpu_events.SPEC)
    assert said(await run_check(check), "") == ("OK", "", "NVML's events are listened to")
    events = [XidEvent("GPU-0", ADDRESSES[0], code, 4990.0, 5000.5) for code in (48, 79, 31)]
    node.nvml.xids, node.nvml.xids_received = events, 3
    for code, stamp in ((48, 4979.9), (79, 4980.0), (31, 4981.0)):
        node.sources.driver_log.xid(ADDRESSES[0], code, stamp)
    assert (await run_check(check)).faults == []
    [fault] = (await run_check(check)).faults
    assert (fault.code, fault.component, fault.at) == ("xid:48", "GPU-0", 5000.5)
    assert (fault.source, fault.source_seq) == ("nvml-event:GPU-0", 5_000_500)
    assert fault.details == {"pci": ADDRESSES[0], "reported_by": "nvml"}
    assert fault.cleared_by is ClearedBy.GPU_RESET
    assert not node.sources.driver_log.has_reset(ADDRESSES[0], -1.0)
    assert (await run_check(check)).faults == []


async def test_more_events_than_are_kept_are_those_that_are_there(node: Node) -> None:
    check = node.build(gpu_events.SPEC)
    old, new = (XidEvent("GPU-0", ADDRESSES[0], code, 1.0, 2.0) for code in (31, 79))
    node.nvml.xids, node.nvml.xids_received = [old], 1
    await run_check(check)
    node.nvml.xids, node.nvml.xids_received = [old, new], 2
    assert [fault.code for fault in (await run_check(check)).faults] == ["xid:31"]
    assert [fault.code for fault in (await run_check(check)).faults] == ["xid:79"]
    assert (await run_check(check)).faults == []


async def test_gpus_of_which_no_events_come_are_named(node: Node) -> None:
    check = node.build(gpu_events.SPEC)
    node.set_gpus(*(failing(gpu, events=3) for gpu in TWO))
    assert await check.run_check() == gpu_common.NOT_SUPPORTED
    node.set_gpus(failing(GPUS[0], events=4), GPUS[1], failing(GPUS[2], events=3))
    assert said(await run_check(check), "") == (
        "UNKNOWN",
        "no-events",
        "NVML gives no events of GPU 0, GPU 2",
    )
    node.fail(TroubleKind.HUNG, "late")
    assert said(await run_check(check), "") == ("UNKNOWN", "hung", "late")


@pytest.mark.parametrize("spec", [gpu_clocks.SPEC, gpu_inforom.SPEC])
async def test_a_check_of_one_call_is_off_where_no_gpu_has_it(node: Node, spec: CheckSpec) -> None:
    call = {"gpu-clocks": "clocks", "gpu-inforom": "inforom"}[spec.name]
    node.set_gpus(*(failing(gpu, **{call: 3}) for gpu in TWO))
    assert await node.build(spec).run_check() == gpu_common.NOT_SUPPORTED
    node.set_gpus(failing(GPUS[0], **{call: 3}), failing(GPUS[1], **{call: 4}))
    seen = await run_check(node.build(spec))
    assert seen.status("GPU-1") == ("UNKNOWN", "no-permission")
