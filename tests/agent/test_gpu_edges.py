"""The GPU checks over samples in which one thing at a time is wrong: each word and threshold.

The samples are as the worker hands them over; the answers of NVML itself are in the tests beside
this.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import (
    gpu_common,
    gpu_ecc,
    gpu_pages,
    gpu_recovery,
    gpu_rows,
)
from nodeagent.checks.base import Off
from nodeagent.checks.gpu_common import PerGpu, Verdict
from nodeagent.model import ClearedBy, Clearing, Status
from nodeagent.sources.gpu_sample import (
    Code,
    EccCounts,
    Gpu,
    GpuSample,
    NvmlTrouble,
    RemappedRows,
    RetiredPages,
    RowReserve,
    TroubleKind,
)
from tests.agent.gpu_node import GPUS, TWO, Node, failing
from tests.nvml.gpu_bench import Seen, next_run, run_check


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


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
    new = per_gpu.report({"GPU-0": WELL, "GPU-3": WELL, "": ILL})
    assert rows_of(new) == {"": ("ill", "not fine"), "GPU-3": ("", "fine")}
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
    status, reason, text = gpu_pages.evaluate(replace(GPUS[0], pages=pages))
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
    status, reason, text = gpu_rows.evaluate(replace(GPUS[0], rows=rows, reserve=reserve))
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
    assert (await next_run(node, check)).clearings == [Clearing("GPU-1", "gpu-reset")], (
        "another load"
    )


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
    if resets and new:
        first_two = ["Clearing", "FaultSighting"]
        assert seen.kinds[:2] == first_two, "or it would be cleared with the rest"
    assert [fault.details for fault in seen.faults] == [
        {"new": str(new), "pci": GPUS[0].pci} for _ in range(bool(new))
    ]
    for fault in seen.faults:
        assert (fault.code, fault.component) == ("ecc-uncorrectable", "GPU-0")
        assert (fault.at, fault.source_seq) == (5061.0, 5_061_000)
        assert fault.cleared_by is ClearedBy.GPU_RESET
        assert fault.source == "nvml-ecc:GPU-0"
        assert fault.message == f"{new} new uncorrectable memory errors"


@pytest.mark.parametrize(
    "waiting",
    [{"rows": RemappedRows(0, 1, pending=True, failure=False)}, {"recovery_action": 1}],
)
async def test_counts_that_a_person_has_cleared_are_no_reset(
    node: Node, waiting: Mapping[str, Any]
) -> None:
    """As by ``nvidia-smi -p 0``: the GPU still waits for its reset."""
    check = node.build(gpu_ecc.SPEC)
    gpu = replace(GPUS[0], ecc=ECC, **waiting)
    node.set_gpus(gpu)
    await run_check(check)
    node.later()
    node.set_gpus(replace(gpu, ecc=replace(ECC, corrected=0, uncorrected=0)))
    assert (await run_check(check)).clearings == []


async def test_a_count_that_could_not_be_read_is_compared_when_it_next_can(node: Node) -> None:
    check = node.build(gpu_ecc.SPEC)
    counts = (
        ECC,
        None,
        replace(ECC, uncorrected=None, corrected=None),
        replace(ECC, uncorrected=None),
        replace(ECC, uncorrected=4),
    )
    faults = []
    for count in counts:
        node.set_gpus(replace(GPUS[0], ecc=count))
        faults.append([fault.details["new"] for fault in (await run_check(check)).faults])
        node.later()
    assert faults == [[], [], [], [], ["2"]]


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
    status, reason, text = gpu_ecc.evaluate(replace(GPUS[0], ecc=ecc))
    assert (status.name, reason, text) == verdict
    worn = replace(GPUS[0], ecc=ecc, sram_threshold_exceeded=True)
    assert gpu_ecc.evaluate(worn)[:2] == (Status.FAILED, "sram-threshold")
    assert gpu_ecc.evaluate(replace(worn, sram_threshold_exceeded=False))[1] == reason
