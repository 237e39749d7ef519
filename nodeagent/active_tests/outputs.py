"""The programs' output and exit codes, read into measurements and a verdict. Pure.

Each reader takes the exit code and the output, and raises no exception, whatever they are. Output
that cannot be read gives no measurement; a threshold then fails the step (``evaluate``).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nodeagent.active_tests.model import TestMeasurement, Verdict
from nodeagent.configfile.units import counted
from nodeagent.dataclass import dataclass
from sickbay.json_text import read_json

__all__ = ["KINDS", "MEASURES", "Reading", "read"]

_WORDS = 300


@dataclass(frozen=True, slots=True)
class Reading:
    """``outcome`` None: the output alone decides nothing, and the exit code does."""

    outcome: Verdict | None
    reason: str = ""
    message: str = ""
    measurements: Sequence[TestMeasurement] = ()


# -- DCGM ------------------------------------------------------------------------------------------

#: dcgmErrorSeverity_t (dcgm_errors.h of DCGM 4).
_SEVERITIES = {
    0: "none",
    1: "monitor",
    2: "isolate",
    3: "unknown",
    4: "triage",
    5: "config",
    6: "reset",
}
#: The gravest first. ``config`` (persistence mode off, another diagnostic) is no evidence about the
#: hardware, and a finding to ``monitor`` lets the node work.
_GRAVE = ("isolate", "reset", "triage", "unknown")
#: dcgmi ends with its return code modulo 256 (dcgm_structs.h): what each means for the node.
_DCGMI_EXITS: Mapping[int, tuple[Verdict, str, str]] = {
    205: (Verdict.FAILED, "isolate", "the diagnostic requires: isolate the GPU (-51)"),
    226: (Verdict.FAILED, "triage", "the diagnostic ran and reported an error (-30)"),
    217: (Verdict.INCONCLUSIVE, "other-diagnostic", "another diagnostic is running (-39)"),
    203: (Verdict.INCONCLUSIVE, "killed", "the diagnostic was killed (-53)"),
    202: (Verdict.INCONCLUSIVE, "paused", "DCGM is paused (-54)"),
}


def _dcgm(code: int, text: str) -> Reading:
    """By severity, not by pass or fail. The exit code counts where the output has no severity."""
    document = _json(text)
    results = list(_dcgm_results(document))
    failed = [each for each in results if str(each.get("status", "")).lower() in ("fail", "warn")]
    warnings = [warning for each in failed for warning in _dicts(each.get("warnings"))]
    by_severity: dict[str, list[str]] = {}
    for warning in warnings:
        severity = _SEVERITIES.get(_integer(warning.get("error_severity")), "")
        by_severity.setdefault(severity, []).append(str(warning.get("warning", ""))[:_WORDS])
    known = _DCGMI_EXITS.get(code)
    for severity in _GRAVE:
        if severity in by_severity:
            if known is not None and known[1] == "isolate":
                severity = "isolate"  # noqa: PLW2901  # the exit code knows more than the list
            texts_found = next(iter(by_severity.values()))
            return Reading(Verdict.FAILED, severity, texts_found[0])
    if known is not None and (known[1] == "isolate" or known[0] is Verdict.INCONCLUSIVE):
        return Reading(*known)
    if by_severity and "" not in by_severity:
        severity = "config" if "config" in by_severity else "monitor"
        texts_found = (
            by_severity[severity] if severity in by_severity else next(iter(by_severity.values()))
        )
        outcome = Verdict.INCONCLUSIVE if severity == "config" else Verdict.PASSED
        return Reading(outcome, severity, texts_found[0])
    if known is not None:
        texts_found = [words for texts in by_severity.values() for words in texts if words]
        return Reading(known[0], known[1], texts_found[0] if texts_found else known[2])
    if 128 < code <= 192:
        return Reading(Verdict.INCONCLUSIVE, "killed", f"dcgmi ended by signal {code - 128}")
    if code == 0 and not results:
        return Reading(
            Verdict.INCONCLUSIVE, "no-results", "dcgmi ended with 0 and printed no results"
        )
    if code == 0 and any(each.get("status", "").lower() == "fail" for each in failed):
        return Reading(Verdict.FAILED, "triage", "a test of the diagnostic has the status Fail")
    if code != 0:
        return Reading(
            Verdict.INCONCLUSIVE, "exit-code", f"dcgmi ended with {code}: {_first_words(text)}"
        )
    return Reading(Verdict.PASSED, "", counted(len(results), "result"))


def _dcgm_results(document: Any) -> Iterator[dict[str, Any]]:
    """All results: of DCGM 4 ("DCGM Diagnostic") and 3 ("DCGM GPU Diagnostic")."""
    if not isinstance(document, dict):
        return
    for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic"):
        top = document.get(key)
        if isinstance(top, dict):
            for category in _dicts(top.get("test_categories")):
                for test in _dicts(category.get("tests")):
                    yield from (
                        {**each, "status": str(each.get("status", ""))}
                        for each in _dicts(test.get("results"))
                    )


# -- bandwidth -------------------------------------------------------------------------------------

_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([0-9.eE+-]+)", re.MULTILINE)
_WRONG = re.compile(r"^# Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)", re.MULTILINE)


def _nccl(code: int, text: str) -> Reading:
    """nccl-tests: the average bus bandwidth, and the check of the data."""
    found = [
        TestMeasurement("all-reduce-bus-bandwidth", value, "GB/s")
        for value in map(_number, _AVERAGE.findall(text)[-1:])
        if value is not None
    ]
    wrong = _WRONG.findall(text)
    if wrong and (wrong[-1][1] == "FAILED" or int(wrong[-1][0])):
        message = f"wrong values in the result: {wrong[-1][0]}"
        return Reading(Verdict.FAILED, "wrong-data", message, found)
    return Reading(None, "", f"nccl-tests ended with {code}", found)


def _nvbandwidth(code: int, text: str) -> Reading:
    """The least bandwidth of each case: one slow GPU must not hide in a sum."""
    del code
    top = _json(text)
    top = top.get("nvbandwidth") if isinstance(top, dict) else None
    found, bad = [], []
    for case in _dicts(top.get("testcases")) if isinstance(top, dict) else ():
        name = str(case.get("name", ""))[:100]
        if str(case.get("status", "")).lower() in ("failed", "error"):
            bad.append(name)
        measure = _NVBANDWIDTH.get(name)
        numbers = map(_number, _cells(case.get("bandwidth_matrix")))
        cells = [value for value in numbers if value is not None]
        if measure and cells:
            found.append(TestMeasurement(measure, min(cells), "GB/s"))
    if bad:
        return Reading(Verdict.FAILED, "case-failed", f"failed: {', '.join(bad)}", found)
    return Reading(None, "", "", found)


_NVBANDWIDTH = {
    "host_to_device_memcpy_ce": "pcie-to-device-bandwidth",
    "device_to_host_memcpy_ce": "pcie-to-host-bandwidth",
    "device_to_device_memcpy_read_ce": "peer-read-bandwidth",
}


def _fio(code: int, text: str) -> Reading:
    """The jobs' bandwidth, and an error of any of them."""
    del code
    document = _json(text[text.find("{") :] if "{" in text else "")
    jobs = list(_dicts(document.get("jobs") if isinstance(document, dict) else None))
    found = []
    for kind in ("read", "write"):
        sides = [job[kind] for job in jobs if isinstance(job.get(kind), dict)]
        rates = [rate for rate in (_number(side.get("bw_bytes")) for side in sides) if rate]
        if rates:
            found.append(
                TestMeasurement(f"disk-{kind}-bandwidth", round(sum(rates) / 1e6, 3), "MB/s")
            )
    errors = [number for number in (_integer(job.get("error")) for job in jobs) if number > 0]
    if errors:
        return Reading(Verdict.FAILED, "io-error", f"fio reports error {errors[0]}", found)
    return Reading(None, "", "", found)


def _iperf3(code: int, text: str) -> Reading:
    """The receiver's result. Without a connection there is no verdict about this node."""
    document = _json(text)
    if not isinstance(document, dict):
        return Reading(None)
    if document.get("error"):
        return Reading(Verdict.INCONCLUSIVE, "no-connection", str(document["error"])[:_WORDS])
    end = document.get("end")
    received = end.get("sum_received") if isinstance(end, dict) else None
    rate = _number(received.get("bits_per_second")) if isinstance(received, dict) else None
    if rate is None:
        return Reading(None)
    return Reading(None, "", f"iperf3 ended with {code}", [_gigabits("network-bandwidth", rate)])


def _gigabits(measure: str, bits: float) -> TestMeasurement:
    return TestMeasurement(measure, round(bits / 1e9, 6), "Gb/s")


def _ib_write_bw(code: int, text: str) -> Reading:
    """The average of the last line of figures, with ``--report_gbits``."""
    del code
    rates = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0].isdigit() and words[1].isdigit():
            rates.append(_number(words[3]))
    if not rates or rates[-1] is None:
        return Reading(None)
    return Reading(None, "", "", [TestMeasurement("rdma-write-bandwidth", rates[-1], "Gb/s")])


# -- arithmetic ------------------------------------------------------------------------------------


def _gemm(code: int, text: str) -> Reading:
    """``gemm_child``: the same product on every GPU, whose bits must be the same."""
    document = _json(text.strip().splitlines()[-1] if text.strip() else "")
    rows = list(_dicts(document.get("gpus") if isinstance(document, dict) else None))
    digests: dict[str, list[str]] = {}
    found = []
    for row in rows:
        name = str(row.get("gpu", ""))[:100]
        digests.setdefault(str(row.get("digest", "")), []).append(name)
        rate = _number(row.get("tflops"))
        if rate is not None:
            found.append(TestMeasurement("gemm-rate", rate, "TFLOP/s", name))
        if row.get("repeats_differ"):
            message = f"{name} gives different bits for the same product"
            return Reading(Verdict.FAILED, "not-repeatable", message, found)
    if len(digests) > 1:
        most = max(len(names) for names in digests.values())
        odd = sorted(name for names in digests.values() if len(names) < most for name in names)
        who = (
            ", ".join(odd)
            if odd
            else "no majority: " + ", ".join(sorted(str(row.get("gpu", "")) for row in rows))
        )
        return Reading(Verdict.FAILED, "bits-differ", f"other bits than the rest: {who}", found)
    if code == 0 and not rows:
        return Reading(Verdict.INCONCLUSIVE, "no-results", "the program printed no results")
    return Reading(None, "", f"{counted(len(rows), 'GPU')} with the same bits", found)


def _exit(code: int, text: str) -> Reading:
    del code
    return Reading(None, "", _first_words(text))


_READERS: Mapping[str, Callable[[int, str], Reading]] = {
    "exit": _exit,
    "dcgm": _dcgm,
    "nccl-tests": _nccl,
    "nvbandwidth": _nvbandwidth,
    "fio": _fio,
    "iperf3": _iperf3,
    "ib-write-bw": _ib_write_bw,
    "gemm": _gemm,
}
KINDS = tuple(_READERS)
#: The measures that each kind of output can have.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "exit": (),
    "dcgm": (),
    "nccl-tests": ("all-reduce-bus-bandwidth",),
    "nvbandwidth": tuple(_NVBANDWIDTH.values()),
    "fio": ("disk-read-bandwidth", "disk-write-bandwidth"),
    "iperf3": ("network-bandwidth",),
    "ib-write-bw": ("rdma-write-bandwidth",),
    "gemm": ("gemm-rate",),
}


def read(kind: str, code: int, text: str) -> Reading:
    """The reading of a program's end."""
    return _READERS[kind](code, text)


# -- small things ----------------------------------------------------------------------------------


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _cells(matrix: Any) -> Iterator[Any]:
    for row in matrix if isinstance(matrix, list) else ():
        yield from row if isinstance(row, list) else ()


def _number(value: Any) -> float | None:
    """A finite number from 0, or None for anything else, "N/A" among it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _integer(value: Any) -> int:
    """-1 for anything that is none; fio and DCGM write some numbers as texts."""
    number = _number(value)
    return int(number) if number is not None else -1


def _first_words(text: str) -> str:
    return " ".join(text.split())[:_WORDS]
