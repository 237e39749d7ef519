"""The GPU checks over samples in which one thing at a time is wrong: each word and threshold.

The samples are as the worker hands them over; the answers of NVML itself are in the tests beside
this.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from nodeagent.checks import (
    gpu_clocks,
    gpu_common,
    gpu_ecc,
    gpu_events,
    gpu_fabric,
    gpu_inforom,
    gpu_inventory,
    gpu_nvlink,
    gpu_pages,
    gpu_pcie,
    gpu_recovery,
    gpu_rows,
)
from nodeagent.checks.base import Check, CheckSpec, Off
from nodeagent.checks.gpu_common import PerGpu, Verdict
from nodeagent.model import ClearedBy, Clearing, Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import (
    Code,
    EccCounts,
    Fabric,
    Gpu,
    GpuSample,
    NvLinks,
    NvmlTrouble,
    RemappedRows,
    RetiredPages,
    RowReserve,
    TroubleKind,
    XidEvent,
)
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.nvml import Nvml
from nodeagent.sources.pcie_link import PcieLink
from tests.agent.kernel_log import HandClock, pci_device
from tests.agent.machines import options, sources
from tests.nvml.gpu_bench import Seen, run_check

ADDRESSES = [f"0000:{bus}:00" for bus in ("1b", "3b", "5b", "9b")]
GPUS = tuple(
    Gpu(n, uuid=f"GPU-{n}", pci=address, name="NVIDIA H100") for n, address in enumerate(ADDRESSES)
)
ONE, TWO = GPUS[:1], GPUS[:2]


class PlayedNvml:
    """NVML as the checks ask it: its answers are set by hand."""

    def __init__(self) -> None:
        self.answer = GpuSample(at=5000.0, driver="580.65.06", gpus=TWO)
        self.library = True
        self.back_for = 1e9
        self.quiesced_for = 0.0
        self.xids: list[XidEvent] = []
        self.xids_heard = 0

    async def sample(self) -> GpuSample:
        return self.answer

    def has_library(self) -> bool:
        return self.library


class Node:
    """A node of made-up files, long after its boot, and what a check says of it."""

    def __init__(self, folder: Path, *, on_bus: int = 2, expected: int | None = None) -> None:
        self.sys = folder / "sys"
        self.clock = HandClock(100_000.0)
        machine = HostRoots(clock=self.clock, root=folder, sys=self.sys)
        for address in ADDRESSES[:on_bus]:
            pci_device(self.sys, f"{address}.0", "0x030200")
        self.nvml = PlayedNvml()
        self.sources: Sources = replace(
            sources(machine),
            nvml=cast("Nvml", self.nvml),
            gpus=GpuMap(machine),
            expected_gpus=expected,
        )

    def build(self, spec: CheckSpec, **settings: Any) -> Check:
        return cast("Check", spec.build(self.sources, options(spec, **settings)))

    def set_gpus(self, *gpus: Gpu, **sample: Any) -> None:
        self.nvml.answer = replace(self.nvml.answer, gpus=gpus, **sample)

    def fail(self, kind: TroubleKind, message: str = "no answer") -> None:
        self.set_gpus(trouble=NvmlTrouble(kind, message))

    def heal(self, *gpus: Gpu) -> None:
        self.set_gpus(*gpus, trouble=None)

    def later(self, seconds: float = 61.0) -> None:
        self.clock.now += seconds
        self.nvml.answer = replace(self.nvml.answer, at=self.nvml.answer.at + seconds)

    def take_off_the_bus(self, number: int) -> None:
        folder = self.sys / f"bus/pci/devices/{ADDRESSES[number]}.0"
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        self.later()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def failing(gpu: Gpu, **errors: int) -> Gpu:
    return replace(gpu, errors=errors)


def said(seen: Seen, component: str) -> tuple[str, str, str]:
    return (*seen.status(component), seen.by_component[component].message)


# -- what the GPU checks share --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ({"ecc": 3}, ("unsupported", "nvmlDeviceGetTotalEccErrors gave error 3")),
        ({"ecc": 13}, ("unsupported", "nvmlDeviceGetTotalEccErrors gave error 13")),
        ({"ecc": 4}, ("no-permission", "nvmlDeviceGetTotalEccErrors gave error 4")),
        ({"ecc": 16}, ("reset-required", "nvmlDeviceGetTotalEccErrors gave error 16")),
        ({"ecc": 42}, ("nvml-error-42", "nvmlDeviceGetTotalEccErrors gave error 42")),
        ({}, ("nvml-error-999", "nvmlDeviceGetTotalEccErrors gave error 999")),
        ({"handle": 4}, ("no-permission", "nvmlDeviceGetHandleByIndex gave error 4")),
        ({"ecc": 42, "rows": 15}, ("lost", "nvmlDeviceGetRemappedRows gave error 15")),
        ({"rows": 42, "ecc": 3}, ("unsupported", "nvmlDeviceGetTotalEccErrors gave error 3")),
    ],
)
def test_a_value_that_cannot_be_read_is_unknown_with_the_call_that_says_why(
    errors: Mapping[str, int], verdict: tuple[str, str]
) -> None:
    found = gpu_common.unreadable(failing(GPUS[0], **errors), "ecc")
    assert found == (Status.UNKNOWN, *verdict)


@pytest.mark.parametrize(
    ("codes", "nobody"),
    [
        ([3, 13], True),
        ([3, 4], False),
        ([3, None], False),
        ([], False),
    ],
)
async def test_a_check_is_off_only_where_no_gpu_has_what_it_looks_at(
    node: Node, codes: list[int | None], *, nobody: bool
) -> None:
    gpus = [
        failing(gpu, **({"rows": code} if code is not None else {}))
        for gpu, code in zip(GPUS, codes, strict=False)
    ]
    node.set_gpus(*gpus)
    check = node.build(gpu_rows.SPEC)
    assert (await check.run_check() == gpu_common.NOT_SUPPORTED) is nobody
    node.set_gpus(*gpus, trouble=NvmlTrouble(TroubleKind.HUNG, "late"))
    assert await check.run_check() != gpu_common.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("library", "expected", "on_bus", "trouble", "off"),
    [
        (False, None, 0, None, True),
        (False, 0, 0, None, True),
        (True, None, 0, None, True),
        (True, None, 0, TroubleKind.NO_LIBRARY, True),
        (True, None, 0, TroubleKind.DRIVER_NOT_LOADED, True),
        (True, None, 0, TroubleKind.HUNG, False),
        (True, None, 0, TroubleKind.FAILED, False),
        (False, 2, 0, TroubleKind.NO_LIBRARY, False),
        (False, None, 1, TroubleKind.NO_LIBRARY, False),
    ],
)
async def test_a_machine_is_without_a_gpu_where_nothing_says_that_it_has_one(
    tmp_path: Path,
    *,
    library: bool,
    expected: int | None,
    on_bus: int,
    trouble: TroubleKind | None,
    off: bool,
) -> None:
    node = Node(tmp_path, on_bus=on_bus, expected=expected)
    node.nvml.library = library
    node.set_gpus(trouble=None if trouble is None else NvmlTrouble(trouble, "no"))
    found = await gpu_common.take_sample(node.sources)
    assert (found == Off("no GPU")) is off
    if off and library:
        node.set_gpus(Gpu(0))
        assert await gpu_common.take_sample(node.sources) == node.nvml.answer, "it lists one"


WELL: Verdict = (Status.OK, "", "fine")
ILL: Verdict = (Status.DEGRADED, "ill", "not fine")


def rows_of(evidence: Any) -> dict[str, tuple[str, str]]:
    seen = Seen(evidence)
    return {name: (one.reason, one.message) for name, one in seen.by_component.items()}


@pytest.mark.parametrize(
    ("verdicts", "message"),
    [
        ([WELL], "fine"),
        ([WELL, WELL], "2 of 2 GPUs are healthy: fine"),
        ([WELL, ILL], "1 of 2 GPUs is healthy: fine"),
        ([WELL, (Status.OK, "", "too")], "2 of 2 GPUs are healthy"),
    ],
)
def test_the_shared_row_counts_gpus_where_there_are_several(
    node: Node, verdicts: list[Verdict], message: str
) -> None:
    per_gpu = PerGpu("own", node.sources, brief=True)
    named = {f"GPU-{number}": verdict for number, verdict in enumerate(verdicts)}
    assert rows_of(per_gpu.report(named))[""] == ("", message)


def test_a_single_run_says_each_gpu_once(node: Node) -> None:
    per_gpu = PerGpu("own", replace(node.sources, single_run=True), brief=True)
    rows = rows_of(per_gpu.report({"GPU-0": WELL, "GPU-1": ILL}))
    assert rows == {"GPU-0": ("", "fine"), "GPU-1": ("ill", "not fine")}
    troubled = PerGpu("own", replace(node.sources, single_run=True), brief=True)
    assert rows_of(troubled.report({"": ILL})) == {"": ("ill", "not fine")}


def test_gpus_that_are_well_share_a_row_after_their_first_look(node: Node) -> None:
    per_gpu = PerGpu("own", node.sources, brief=True)
    first = per_gpu.report({"GPU-0": WELL, "GPU-1": WELL, "GPU-2": ILL})
    assert rows_of(first) == {
        "": ("", "2 of 3 GPUs are healthy: fine"),
        "GPU-0": ("", "fine"),
        "GPU-1": ("", "fine"),
        "GPU-2": ("ill", "not fine"),
    }
    then = per_gpu.report({"GPU-0": WELL, "GPU-1": (Status.OK, "", "too"), "GPU-2": WELL})
    assert rows_of(then) == {"": ("", "3 of 3 GPUs are healthy"), "GPU-2": ("", "fine")}
    assert Seen(then).gone == ["GPU-0", "GPU-1"]
    new = per_gpu.report({"GPU-0": WELL, "GPU-3": WELL, "": ILL})
    assert rows_of(new) == {"": ("ill", "not fine"), "GPU-3": ("", "fine")}
    assert Seen(new).gone == ["GPU-2"]
    none = per_gpu.report({"GPU-0": ILL, "GPU-3": ILL})
    assert set(rows_of(none)) == {"GPU-0", "GPU-3"}, "no row says that none is well"


def test_a_trouble_of_the_node_is_one_row_and_those_of_gpus_that_were_ill(node: Node) -> None:
    per_gpu = PerGpu("own", node.sources, brief=True)
    for gpu in TWO:
        node.sources.gpus.learn(gpu.pci, gpu.uuid)
    verdicts = {"GPU-0": WELL, "GPU-1": ILL}
    per_gpu.observe(node.nvml.answer, lambda gpu: verdicts[gpu.uuid])
    silent = GpuSample(at=1.0, trouble=NvmlTrouble(TroubleKind.HUNG, "late"))
    found = per_gpu.observe(silent, lambda gpu: verdicts[gpu.uuid])
    assert rows_of(found) == {"": ("hung", "late"), "GPU-1": ("hung", "late")}
    each = PerGpu("own", node.sources)
    assert rows_of(each.observe(silent, lambda _: WELL)) == {
        "GPU-0": ("hung", "late"),
        "GPU-1": ("hung", "late"),
    }


def test_a_gpu_that_nvml_does_not_list_or_name_is_unknown(node: Node) -> None:
    node.sources.gpus.learn(GPUS[0].pci, "GPU-0")
    each = PerGpu("own", node.sources)
    listed = GpuSample(at=1.0, gpus=(replace(GPUS[1], uuid=""), Gpu(7)))
    assert rows_of(each.observe(listed, lambda _: WELL)) == {
        f"pci:{GPUS[1].pci}": ("", "fine"),
        "GPU-0": ("missing", "NVML does not list this GPU"),
    }


# -- one GPU's verdicts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "verdict"),
    [
        (RetiredPages(62, 0, 0, False), ("OK", "")),
        (RetiredPages(63, 0, 0, True), ("FAILED", "too-many")),
        (RetiredPages(0, 63, 0, False), ("FAILED", "too-many")),
        (RetiredPages(31, 32, 0, False), ("FAILED", "too-many")),
        (RetiredPages(0, 16, 2, True), ("FAILED", "too-many")),
        (RetiredPages(0, 15, 2, True), ("DEGRADED", "pending")),
        (RetiredPages(0, 16, 1, False), ("OK", "")),
    ],
)
def test_retired_pages(pages: RetiredPages, verdict: tuple[str, str]) -> None:
    status, reason, text = gpu_pages.judge(replace(GPUS[0], pages=pages))
    assert (status.name, reason) == verdict
    counts = (
        f"pages retired: {pages.double_bit} for double-bit errors ({pages.double_bit_lately} "
        f"within a week), {pages.single_bit} for single-bit errors"
    )
    more = {"too-many": ": replace the GPU", "pending": "; another waits for a reset of the GPU"}
    assert text == counts + more.get(reason, "")


ROWS = RemappedRows(corrected=1, uncorrected=2, pending=False, failure=False)
COUNTS = "rows remapped: 2 uncorrectable, 1 corrected"


@pytest.mark.parametrize(
    ("rows", "spent", "verdict"),
    [
        (ROWS, None, ("OK", "", COUNTS)),
        (ROWS, 0, ("OK", "", COUNTS)),
        (
            ROWS,
            1,
            ("DEGRADED", "no-reserve", f"{COUNTS}; 1 memory banks have no spare row left"),
        ),
        (
            replace(ROWS, pending=True),
            1,
            (
                "DEGRADED",
                "pending",
                (
                    f"a remapping waits for a GPU reset; {COUNTS}; 1 memory banks have no spare "
                    "row left"
                ),
            ),
        ),
        (
            replace(ROWS, pending=True, failure=True),
            0,
            ("FAILED", "failure", f"a row could not be remapped: replace the GPU; {COUNTS}"),
        ),
    ],
)
def test_remapped_rows(
    rows: RemappedRows, spent: int | None, verdict: tuple[str, str, str]
) -> None:
    reserve = None if spent is None else RowReserve(600, 0, 0, 0, spent)
    status, reason, text = gpu_rows.judge(replace(GPUS[0], rows=rows, reserve=reserve))
    assert (status.name, reason, text) == verdict


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (0, ("OK", "")),
        (1, ("FAILED", "reset")),
        (2, ("FAILED", "reboot")),
        (3, ("DEGRADED", "drain-p2p")),
        (4, ("FAILED", "drain-and-reset")),
        (5, ("DEGRADED", "recover-imex")),
        (6, ("FAILED", "bus-reset")),
        (7, ("FAILED", "system-reboot")),
        (8, ("UNKNOWN", "unknown-action")),
    ],
)
async def test_the_end_of_an_action_is_a_reset_where_the_action_asked_for_one(
    node: Node, action: int, verdict: tuple[str, str]
) -> None:
    check = node.build(gpu_recovery.SPEC)
    asked, fine = (replace(GPUS[0], recovery_action=number) for number in (action, 0))
    node.set_gpus(asked)
    for _ in range(2):
        seen = await run_check(check)
        assert (seen.status("GPU-0"), seen.clearings) == (verdict, [])
    node.set_gpus(fine)
    resets = [Clearing("GPU-0", "gpu-reset")] if action in (1, 2, 4, 6, 7) else []
    assert (await run_check(check)).clearings == resets
    assert (await run_check(check)).clearings == []


@pytest.mark.parametrize(
    ("errors", "action"),
    [
        ({"handle": 999}, None),
        ({"ecc": int(Code.GPU_IS_LOST)}, 0),
        ({"ecc": int(Code.RESET_REQUIRED)}, 0),
        ({}, 1),
    ],
)
async def test_a_load_of_the_driver_is_a_reset_once_a_gpu_is_well(
    node: Node, errors: Mapping[str, int], action: int | None
) -> None:
    check = node.build(gpu_recovery.SPEC)
    node.sources.driver_log.loaded(node.nvml.answer.at)
    well = replace(GPUS[0], recovery_action=0)
    node.set_gpus(well)
    assert (await run_check(check)).clearings == [], "the sample is not later than the load"
    node.later()
    node.set_gpus(replace(well, errors=errors, recovery_action=action))
    assert (await run_check(check)).clearings == []
    node.set_gpus(replace(well, errors={"rows": 3}))
    assert (await run_check(check)).clearings == [Clearing("GPU-0", "gpu-reset")]
    assert (await run_check(check)).clearings == []
    node.set_gpus(replace(well, uuid=""), replace(GPUS[1], recovery_action=0))
    assert (await run_check(check)).clearings == [Clearing("GPU-1", "gpu-reset")]
    node.sources.driver_log.loaded(node.nvml.answer.at + 1)
    node.later()
    assert (await run_check(check)).clearings == [Clearing("GPU-1", "gpu-reset")], "another load"


ECC = EccCounts(corrected=5, uncorrected=2, corrected_in_life=9, uncorrected_in_life=None)


@pytest.mark.parametrize(
    ("now", "signs"),
    [
        (ECC, (0, 0)),
        (replace(ECC, uncorrected=3), (0, 1)),
        (replace(ECC, uncorrected=7), (0, 5)),
        (replace(ECC, corrected=6), (0, 0)),
        (replace(ECC, corrected=4), (1, 2)),  # reset, and two new ones since
        (replace(ECC, uncorrected=1), (1, 1)),
        (replace(ECC, uncorrected=0, corrected=0), (1, 0)),
        (replace(ECC, corrected=None), (0, 0)),
    ],
)
async def test_what_a_count_of_memory_errors_says_beside_the_one_before(
    node: Node, now: EccCounts, signs: tuple[int, int]
) -> None:
    check = node.build(gpu_ecc.SPEC)
    node.set_gpus(replace(GPUS[0], ecc=ECC), Gpu(9, ecc=ECC))
    first = await run_check(check)
    assert (first.clearings, first.faults) == ([], []), "nobody knows when those were"
    node.later()
    node.set_gpus(replace(GPUS[0], ecc=now), Gpu(9, ecc=replace(ECC, uncorrected=50)))
    seen = await run_check(check)
    resets, new = signs
    assert seen.clearings == [Clearing("GPU-0", "gpu-reset")] * resets
    assert [fault.details for fault in seen.faults] == [
        {"new": str(new), "pci": GPUS[0].pci} for _ in range(bool(new))
    ]
    for fault in seen.faults:
        assert (fault.code, fault.component) == ("ecc-uncorrectable", "GPU-0")
        assert (fault.at, fault.source_seq) == (5061.0, 5_061_000)
        assert fault.cleared_by is ClearedBy.GPU_RESET
        assert fault.source == "nvml-ecc:GPU-0"
        assert fault.message == f"{new} new uncorrectable memory errors"


async def test_a_count_that_could_not_be_read_is_compared_when_it_next_can(node: Node) -> None:
    check = node.build(gpu_ecc.SPEC)
    counts = (
        ECC,
        None,
        replace(ECC, uncorrected=None, corrected=None),
        replace(ECC, uncorrected=4),
    )
    faults = []
    for count in counts:
        node.set_gpus(replace(GPUS[0], ecc=count))
        faults.append([fault.details["new"] for fault in (await run_check(check)).faults])
        node.later()
    assert faults == [[], [], [], ["2"]]


@pytest.mark.parametrize(
    ("ecc", "verdict"),
    [
        (
            replace(ECC, uncorrected=0),
            ("OK", "", "0 uncorrectable, 5 corrected since the last reset (in its life ? and 9)"),
        ),
        (
            replace(ECC, uncorrected=1, corrected=None, corrected_in_life=0),
            (
                "DEGRADED",
                "uncorrectable",
                "1 uncorrectable, ? corrected since the last reset (in its life ? and 0)",
            ),
        ),
        (
            replace(ECC, uncorrected=None),
            ("UNKNOWN", "nvml-error-999", "nvmlDeviceGetTotalEccErrors gave error 999"),
        ),
    ],
)
def test_memory_errors(ecc: EccCounts, verdict: tuple[str, str, str]) -> None:
    status, reason, text = gpu_ecc.judge(replace(GPUS[0], ecc=ecc))
    assert (status.name, reason, text) == verdict
    worn = replace(GPUS[0], ecc=ecc, sram_threshold_exceeded=True)
    assert gpu_ecc.judge(worn)[:2] == (Status.FAILED, "sram-threshold")
    assert gpu_ecc.judge(replace(worn, sram_threshold_exceeded=False))[1] == reason


# -- gpu-fabric -----------------------------------------------------------------------------------

#: Two bits for each trouble, "false" (2) in all; no configuration error; the manager is connected.
HEALTHY = 0b01_00_00_0001_10_10_10_10
JOINED = Fabric(state=3, status=0, health=HEALTHY, summary=1, cluster="c0ffee", clique=7)
WHERE = "; clique 7 of cluster c0ffee"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, ("OK", "", "registered" + WHERE)),
        ({"health": 0}, ("OK", "", "registered" + WHERE)),
        ({"state": 4}, ("UNKNOWN", "unknown-state", "fabric state 4 is not known")),
        (
            {"status": 1},
            (
                "FAILED",
                "registration-failed",
                "the fabric manager refused this GPU (error 1)" + WHERE,
            ),
        ),
        (
            {"health": 0b01_10_10_10},
            (
                "DEGRADED",
                "recovering",
                "an access to the fabric has timed out and is recovered" + WHERE,
            ),
        ),
        (
            {"health": 0b01_10_01_10},
            (
                "DEGRADED",
                "recovering",
                "a route through the fabric is being recovered" + WHERE,
            ),
        ),
        (
            {"health": 0b01_10_01_01},
            ("DEGRADED", "degraded-bandwidth", "the fabric gives it less bandwidth" + WHERE),
        ),
        (
            {"health": 0b01_01_01_01},
            (
                "FAILED",
                "route-unhealthy",
                "a route through the fabric is unhealthy" + WHERE,
            ),
        ),
        ({"health": 0b11_11_11_11}, ("OK", "", "registered" + WHERE)),
        (
            {"health": 2 << 14},
            (
                "DEGRADED",
                "manager-disconnected",
                "the fabric manager is not connected" + WHERE,
            ),
        ),
        ({"health": 1 << 14}, ("OK", "", "registered" + WHERE)),
        ({"health": 3 << 14}, ("OK", "", "registered" + WHERE)),
        ({"health": 1 << 16}, ("OK", "", "registered" + WHERE)),
        (
            {"summary": 2},
            ("FAILED", "unhealthy", f"the fabric calls it unhealthy ({HEALTHY:#x})" + WHERE),
        ),
        (
            {"summary": 3},
            (
                "DEGRADED",
                "limited-capacity",
                f"the fabric has limited capacity ({HEALTHY:#x})" + WHERE,
            ),
        ),
        ({"summary": 4}, ("OK", "", "registered" + WHERE)),
    ],
)
def test_a_fabric(change: Mapping[str, Any], verdict: tuple[str, str, str]) -> None:
    for is_young in (True, False):
        status, reason, text = gpu_fabric.judge(replace(JOINED, **change), is_young=is_young)
        assert (status.name, reason, text) == verdict


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (2, "a wrong system GUID"),
        (3, "a wrong chassis serial number"),
        (8, "an invalid GPU state"),
        (9, "error 9"),
        (15, "error 15"),
    ],
)
def test_a_fabric_that_is_misconfigured(number: int, what: str) -> None:
    wrong = replace(JOINED, health=HEALTHY & ~(0xF << 8) | number << 8, summary=2)
    assert gpu_fabric.judge(wrong, is_young=False) == (
        Status.FAILED,
        "misconfigured",
        f"the fabric's configuration is wrong: {what}{WHERE}",
    )
    for fine in (0, 1):
        right = replace(JOINED, health=HEALTHY & ~(0xF << 8) | fine << 8)
        assert gpu_fabric.judge(right, is_young=False)[1] == ""


@pytest.mark.parametrize(("state", "late"), [(1, "not-started"), (2, "not-registered")])
async def test_a_gpu_may_take_its_time_to_join_after_each_new_beginning(
    node: Node, state: int, late: str
) -> None:
    def waiting() -> Gpu:
        return replace(GPUS[0], fabric=replace(JOINED, state=state))

    async def reason() -> str:
        node.set_gpus(waiting(), trouble=None)
        return (await run_check(check)).status("GPU-0")[1]

    check = node.build(gpu_fabric.SPEC, boot_grace=600.0)
    assert await reason() == late, "the boot was long ago"
    node.clock.now = 599.0
    assert await reason() == "starting"
    node.clock.now = 600.0
    assert await reason() == late
    node.nvml.back_for = 599.0
    assert await reason() == "starting"
    node.nvml.back_for = 600.0
    assert await reason() == late
    node.clock.now = node.nvml.answer.at
    node.fail(TroubleKind.FAILED)
    await check.run_check()
    node.clock.now += 599.0
    assert await reason() == "starting"
    node.clock.now += 1.0
    assert await reason() == late
    node.sources.driver_log.loaded(node.clock.now)
    node.clock.now += 599.0
    assert await reason() == "starting"
    node.set_gpus(replace(GPUS[0], fabric=JOINED))
    assert (await run_check(check)).status("GPU-0") == ("OK", "")
    assert await reason() == late, "it had joined, so it is not starting any more"
    node.sources.driver_log.loaded(node.clock.now)
    assert await reason() == "starting", "a driver that was loaded anew registers anew"
    node.set_gpus(replace(GPUS[0], fabric=JOINED))
    await check.run_check()
    node.nvml.answer = replace(node.nvml.answer, at=node.clock.now)
    node.fail(TroubleKind.FAILED)
    await check.run_check()
    assert await reason() == "starting", "and so does one that was in trouble"


async def test_the_fabric_is_off_only_where_no_gpu_is_part_of_one(node: Node) -> None:
    none = replace(JOINED, state=0)
    check = node.build(gpu_fabric.SPEC)
    node.set_gpus(*(replace(gpu, fabric=none) for gpu in TWO))
    assert await check.run_check() == gpu_common.NOT_SUPPORTED
    node.set_gpus(*(failing(gpu, fabric=13) for gpu in TWO))
    assert await check.run_check() == gpu_common.NOT_SUPPORTED
    node.set_gpus(replace(GPUS[0], fabric=none), replace(GPUS[1], fabric=JOINED))
    seen = await run_check(check)
    assert said(seen, "GPU-0") == ("UNKNOWN", "unsupported", "this GPU is part of no fabric")
    node.set_gpus(failing(GPUS[0], fabric=999), replace(GPUS[1], fabric=none))
    seen = await run_check(check)
    assert said(seen, "GPU-0") == (
        "UNKNOWN",
        "nvml-error-999",
        "nvmlDeviceGetGpuFabricInfoV gave error 999",
    )
    node.set_gpus(replace(GPUS[0], fabric=none), trouble=NvmlTrouble(TroubleKind.HUNG, "late"))
    assert said(await run_check(check), "")[:2] == ("UNKNOWN", "hung")


# -- gpu-nvlink and gpu-pcie ----------------------------------------------------------------------


def linked(gpu: Gpu, up: int, errors: Mapping[str, Mapping[int, int]] | None = None) -> Gpu:
    states = tuple(link < up for link in range(6))
    return replace(gpu, links=NvLinks(states, errors if errors is not None else {}))


@pytest.mark.parametrize(
    ("rises", "verdict"),
    [
        ({}, ("OK", "", "6 NVLinks are up")),
        ({"crc 0": 100, "recovery 1": 0}, ("OK", "", "6 NVLinks are up")),
        (
            {"crc 0": 101, "replay 3": 500, "crc 2": 1},
            (
                "DEGRADED",
                "errors",
                "6 NVLinks are up; within an hour: 500 replay on link 3, 101 crc on link 0",
            ),
        ),
        (
            {"recovery 5": 1, "crc 0": 500},
            ("DEGRADED", "recovery", "6 NVLinks are up; within an hour: 1 recovery on link 5"),
        ),
        (
            {"recovery-failed 5": 2, "recovery 5": 1},
            (
                "DEGRADED",
                "recovery",
                (
                    "6 NVLinks are up; within an hour: 2 recovery-failed on link 5, 1 recovery on "
                    "link 5"
                ),
            ),
        ),
        ({"link-recovery 5": 100}, ("OK", "", "6 NVLinks are up")),
    ],
)
def test_what_nvlinks_count(rises: Mapping[str, int], verdict: tuple[str, str, str]) -> None:
    six = set(range(6))
    status, reason, text = gpu_nvlink.judge(linked(GPUS[0], 6), six, six, 6, rises, 100)
    assert (status.name, reason, text) == verdict


def test_of_many_links_the_eight_worst_are_named() -> None:
    rises = {f"crc {link}": 200 + link for link in range(12)}
    text = gpu_nvlink.judge(linked(GPUS[0], 6), {0}, {0}, 0, rises, 100)[2]
    worst = ", ".join(f"{200 + link} crc on link {link}" for link in range(11, 3, -1))
    assert text.endswith(f"within an hour: {worst}")


def test_links_that_are_down_come_first_and_few_links_last() -> None:
    gpu = linked(GPUS[0], 4)
    found = gpu_nvlink.judge(gpu, {0, 1}, {0, 1, 4, 3}, 6, {"recovery 0": 1}, 100)
    assert found == (Status.FAILED, "link-down", "NVLink 3, 4 was up and is not")
    found = gpu_nvlink.judge(gpu, {0, 1}, {0, 1}, 3, {"crc 0": 100}, 100)
    assert found == (
        Status.DEGRADED,
        "fewer-links",
        "2 NVLinks are up, and 3 of most GPUs of this node",
    )
    assert gpu_nvlink.judge(gpu, {0, 1}, {0, 1}, 2, {}, 100)[1] == ""
    assert gpu_nvlink.judge(gpu, set(), set(), 6, {}, 100)[1] == "", "no link is a choice"


def test_errors_that_cannot_be_read_are_said() -> None:
    for errors, code in (({"linkerr": 4}, 4), ({}, 0)):
        gpu = replace(failing(GPUS[0], **errors), links=NvLinks((True,), None))
        status, _, text = gpu_nvlink.judge(gpu, {0}, {0}, 1, {}, 100)
        assert status is Status.OK
        assert text == f"1 NVLinks are up; their errors can't be read (error {code})"


@pytest.mark.parametrize(
    ("up", "usual"),
    [([6, 6], 0), ([6, 6, 4], 6), ([6, 4, 4], 4), ([6, 6, 4, 4], 4), ([6, 6, 6, 4], 6), ([6], 0)],
)
def test_the_usual_number_of_links_and_lanes_is_that_of_more_than_half(
    up: list[int], usual: int
) -> None:
    gpus = [linked(gpu, count) for gpu, count in zip(GPUS, up, strict=False)]
    assert gpu_nvlink._usual(GpuSample(at=1.0, gpus=(*gpus, Gpu(9)))) == usual
    links = [PcieLink(width=count) for count in up]
    assert gpu_pcie._usual(links) == usual
    assert gpu_pcie._usual([PcieLink()] * 3) == 0


@pytest.mark.parametrize(
    ("link", "rises", "verdict"),
    [
        (PcieLink(16, 16, "16 GT/s"), {"replays": 80}, ("OK", "", "16 lanes at 16 GT/s")),
        (
            PcieLink(16, 16, "16 GT/s"),
            {"replays": 81},
            ("DEGRADED", "replays", "16 lanes at 16 GT/s; 81 replays in 10 minutes"),
        ),
        (
            PcieLink(16),
            {"replays": 81, "non-fatal": 1, "fatal": 0},
            ("DEGRADED", "errors", "16 lanes; PCIe errors within an hour: 1 non-fatal"),
        ),
        (
            PcieLink(16),
            {"fatal": 2, "non-fatal": 1},
            ("DEGRADED", "errors", "16 lanes; PCIe errors within an hour: 2 fatal, 1 non-fatal"),
        ),
        (PcieLink(8), {}, ("OK", "", "8 lanes")),
        (
            PcieLink(7),
            {"fatal": 1},
            ("DEGRADED", "narrow", "7 lanes, and it had, or other GPUs have, 8"),
        ),
        (PcieLink(4), {}, ("DEGRADED", "narrow", "4 lanes, and it had, or other GPUs have, 8")),
        (PcieLink(3), {}, ("FAILED", "narrow", "3 lanes, and the configuration says 4")),
        (PcieLink(), {}, ("UNKNOWN", "no-sysfs", "the width of the link can't be read")),
        (
            PcieLink(),
            {"fatal": 1},
            (
                "DEGRADED",
                "errors",
                "the width of the link can't be read; PCIe errors within an hour: 1 fatal",
            ),
        ),
    ],
)
def test_a_pcie_link(
    link: PcieLink, rises: Mapping[str, int], verdict: tuple[str, str, str]
) -> None:
    status, reason, text = gpu_pcie.judge(link, rises, wanted=4, seen=8, most_replays=80)
    assert (status.name, reason, text) == verdict


async def test_links_are_remembered_and_their_errors_counted_for_each_gpu(node: Node) -> None:
    def gpus(up: int, crc: int, *, other: int = 6) -> tuple[Gpu, Gpu]:
        errors = {"crc": {0: crc, 1: 0}}
        return linked(GPUS[0], up, errors), linked(GPUS[1], other, errors)

    check = node.build(gpu_nvlink.SPEC, errors_per_hour=10)
    node.set_gpus(*gpus(5, 1_000, other=6))
    await run_check(check)
    node.later()
    node.set_gpus(*gpus(6, 1_010))
    assert (await run_check(check)).is_well("GPU-0")
    node.later()
    node.set_gpus(*gpus(6, 1_011))
    crc = "6 NVLinks are up; within an hour: 11 crc on link 0"
    for name in ("GPU-0", "GPU-1"):
        assert said(await run_check(check), name) == ("DEGRADED", "errors", crc)
    node.later(3539.0)  # an hour after ten of them
    assert (await run_check(check)).is_well("GPU-0")
    node.set_gpus(*gpus(4, 1_011))
    down = "NVLink 4, 5 was up and is not"
    assert said(await run_check(check), "GPU-0") == ("FAILED", "link-down", down)
    node.nvml.quiesced_for = 5.0
    assert (await run_check(check)).status("GPU-0") == ("OK", "")
    node.nvml.quiesced_for = 0.0
    assert (await run_check(check)).status("GPU-0") == ("OK", "")
    node.set_gpus(failing(GPUS[0], links=999), gpus(4, 1_011)[1])
    assert (await run_check(check)).status("GPU-0") == ("UNKNOWN", "nvml-error-999")
    node.set_gpus(*(failing(gpu, links=3) for gpu in TWO))
    assert await check.run_check() == gpu_common.NOT_SUPPORTED


def pcie(node: Node, number: int, **files: object) -> None:
    device = node.sys / f"bus/pci/devices/{ADDRESSES[number]}.0"
    values = {"current_link_width": 16, "max_link_width": 16, "current_link_speed": "32 GT/s"}
    for name, value in (values | files).items():
        (device / name).write_text(f"{value}\n")


def replayed(gpu: Gpu, count: int | None) -> Gpu:
    return replace(gpu, replays=count)


async def test_replays_are_nvml_s_where_it_counts_them_and_else_the_bus_s(node: Node) -> None:
    def aer(timeouts: int) -> str:
        return f"Rollover 0\nTimeout {timeouts}\nTOTAL_ERR_COR {timeouts}"

    check = node.build(gpu_pcie.SPEC)
    name = f"pci:{ADDRESSES[0]}"
    for number in (0, 1):
        pcie(node, number, aer_dev_correctable=aer(5))
    node.set_gpus(*(replayed(gpu, 1_000) for gpu in TWO))
    seen = await run_check(check)
    assert said(seen, name) == ("OK", "", "16 lanes at 32 GT/s")
    node.later()
    node.set_gpus(*(replayed(gpu, None) for gpu in TWO))
    assert (await run_check(check)).is_well(name)
    node.set_gpus(replayed(GPUS[0], 1_081), replayed(GPUS[1], 1_080))
    words = "16 lanes at 32 GT/s; 81 replays in 10 minutes"
    seen = await run_check(check)
    assert said(seen, name) == ("DEGRADED", "replays", words)
    assert seen.is_well(f"pci:{ADDRESSES[1]}")
    node.later(600.0)
    assert (await run_check(check)).status(name) == ("OK", "")
    node.set_gpus(*(replayed(gpu, None) for gpu in TWO))
    await run_check(check)
    pcie(node, 0, aer_dev_correctable=aer(86))
    node.later()
    assert (await run_check(check)).status(name) == ("DEGRADED", "replays")


async def test_a_width_is_compared_with_the_widest_of_before_and_with_the_others(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, on_bus=4)
    name = f"pci:{ADDRESSES[3]}"
    for number in range(4):
        pcie(node, number, current_link_width=8)
    pcie(node, 3, current_link_width=4, max_link_width=4)
    check = node.build(gpu_pcie.SPEC)
    assert (await run_check(check)).status(name) == ("OK", ""), "its card takes no more"
    pcie(node, 3, current_link_width=4, max_link_width=8)
    narrow = "4 lanes at 32 GT/s, and it had, or other GPUs have, 8"
    assert said(await run_check(check), name) == ("DEGRADED", "narrow", narrow)
    (node.sys / f"bus/pci/devices/{ADDRESSES[3]}.0/max_link_width").unlink()
    assert (await run_check(check)).status(name) == ("DEGRADED", "narrow")
    pcie(node, 3, current_link_width=16)
    assert (await run_check(check)).status(name) == ("OK", "")
    pcie(node, 3, current_link_width=8)
    assert (await run_check(check)).by_component[name].message.endswith("other GPUs have, 16")
    unwatched = node.build(gpu_pcie.SPEC, width=9)
    assert (await run_check(unwatched)).status(name) == ("FAILED", "narrow")


async def test_without_a_bus_or_a_word_of_any_link(tmp_path: Path) -> None:
    node = Node(tmp_path, on_bus=1)
    check = node.build(gpu_pcie.SPEC)
    node.set_gpus(*ONE)
    assert await check.run_check() == Off("neither sysfs nor NVML reports GPU link faults")
    node.set_gpus(replayed(GPUS[0], 7))
    unread = "the width of the link can't be read"
    assert said(await run_check(check), f"pci:{ADDRESSES[0]}") == ("UNKNOWN", "no-sysfs", unread)
    node.set_gpus(replayed(replace(GPUS[0], pci=""), 7))
    assert await check.run_check() == Off("neither sysfs nor NVML reports GPU link faults")
    node.take_off_the_bus(0)
    assert said(await run_check(check), "") == ("UNKNOWN", "no-sysfs", "no GPU on the PCI bus")


# -- gpu-inventory --------------------------------------------------------------------------------


async def inventory(node: Node, check: Check | None = None) -> Seen:
    return await run_check(check or node.build(gpu_inventory.SPEC))


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ({"ecc": 15, "name": 16}, ("FAILED", "lost", "NVML says that {} is lost (error 15)")),
        (
            {"name": 14, "rows": 16},
            ("FAILED", "reset-required", "NVML says that {} needs a reset (error 16)"),
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
    status, reason, text = gpu_inventory.judge(failing(GPUS[0], **codes))
    expected = verdict[2].format(f"GPU 0 at {ADDRESSES[0]}")
    assert (status.name, reason, text) == (*verdict[:2], expected)
    status, reason, text = gpu_inventory.judge(replace(failing(GPUS[0], **codes), pci=""))
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
                "missing: NVML has 1 of 2 expected GPUs; the agent stood aside until 299 s ago",
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
    check = node.build(gpu_inventory.SPEC)
    await run_check(check)
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
    check = node.build(gpu_inventory.SPEC)
    await run_check(check)
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
    assert said(seen, f"pci:{ADDRESSES[1]}") == ("FAILED", "missing", text + why)
    node.set_gpus(GPUS[0], Gpu(1, errors={"uuid": 15}))
    assert (await inventory(node)).status(f"pci:{ADDRESSES[1]}") == ("FAILED", "lost")


async def test_a_gpu_in_another_s_slot_replaces_it_and_one_that_is_lost_does_not(
    node: Node,
) -> None:
    check = node.build(gpu_inventory.SPEC)
    await run_check(check)
    node.set_gpus(GPUS[0], failing(replace(GPUS[1], uuid="GPU-new"), rows=15))
    assert (await run_check(check)).clearings == []
    node.set_gpus(GPUS[0], replace(GPUS[1], uuid="GPU-new"))
    seen = await run_check(check)
    assert seen.clearings == [Clearing("GPU-1", "replaced")]
    assert seen.gone == ["GPU-1"]


async def test_a_gpu_taken_out_on_purpose_is_gone(tmp_path: Path) -> None:
    node = Node(tmp_path, expected=1)
    check = node.build(gpu_inventory.SPEC)
    await run_check(check)
    node.take_off_the_bus(1)
    node.set_gpus(GPUS[0])
    assert (await run_check(check)).gone == ["GPU-1"]
    node.set_gpus(failing(GPUS[0], handle=999))
    assert (await run_check(check)).status("GPU-1") == ("FAILED", "missing"), "fewer than expected"
    unexpecting = Node(tmp_path / "other")
    check = unexpecting.build(gpu_inventory.SPEC)
    await run_check(check)
    unexpecting.take_off_the_bus(1)
    unexpecting.set_gpus(GPUS[0])
    assert (await run_check(check)).status("GPU-1") == ("FAILED", "missing"), "nobody said a number"


# -- gpu-events -----------------------------------------------------------------------------------


async def test_an_event_is_told_one_look_later_where_the_log_has_not(node: Node) -> None:
    check = node.build(gpu_events.SPEC)
    assert said(await run_check(check), "") == ("OK", "", "NVML's events are listened to")
    events = [XidEvent("GPU-0", ADDRESSES[0], code, 4990.0, 5000.5) for code in (48, 79, 31)]
    node.nvml.xids, node.nvml.xids_heard = events, 3
    for code, stamp in ((48, 4979.9), (79, 4980.0), (31, 4981.0)):
        node.sources.driver_log.xid(ADDRESSES[0], code, stamp)
    assert (await run_check(check)).faults == []
    [fault] = (await run_check(check)).faults
    assert (fault.code, fault.component, fault.at) == ("xid:48", "GPU-0", 5000.5)
    assert (fault.source, fault.source_seq) == ("nvml-event:GPU-0", 5_000_500)
    assert fault.details == {"pci": ADDRESSES[0], "told_by": "nvml"}
    assert fault.cleared_by is ClearedBy.GPU_RESET
    assert not node.sources.driver_log.has_reset(ADDRESSES[0], -1.0)
    assert (await run_check(check)).faults == []


async def test_more_events_than_are_kept_are_those_that_are_there(node: Node) -> None:
    check = node.build(gpu_events.SPEC)
    old, new = (XidEvent("GPU-0", ADDRESSES[0], code, 1.0, 2.0) for code in (31, 79))
    node.nvml.xids, node.nvml.xids_heard = [old], 1
    await run_check(check)
    node.nvml.xids, node.nvml.xids_heard = [old, new], 2
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
