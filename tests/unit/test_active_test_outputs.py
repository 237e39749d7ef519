"""The output of the programs of active tests, and the verdict about it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.active_tests import outputs
from nodeagent.active_tests.evaluate import evaluate
from nodeagent.active_tests.model import Step, Verdict, overall
from nodeagent.active_tests.profile import StepSpec, Threshold, read_profile, shipped
from nodeagent.active_tests.runner import is_peer
from nodeagent.sources.command import CommandStuck
from nodeagent.sources.command import Outcome as Ended

H100 = ["NVIDIA H100 80GB HBM3"] * 8


def dcgm(*found: tuple[str, int | None], key: str = "DCGM Diagnostic") -> str:
    """Output of ``dcgmi diag -j`` with one result for each (status, severity)."""
    results = [
        {
            "entity_group": "GPU",
            "entity_id": number,
            "status": status,
            "warnings": []
            if severity is None
            else [{"warning": f"w{severity}", "error_id": 1, "error_severity": severity}],
        }
        for number, (status, severity) in enumerate(found)
    ]
    tests = [{"name": "diagnostic", "results": results}]
    return json.dumps({key: {"test_categories": [{"category": "Stress", "tests": tests}]}})


@pytest.mark.parametrize(
    ("text", "code", "outcome", "reason"),
    [
        (dcgm(("Pass", None)), 0, "passed", ""),
        (dcgm(("Pass", None), ("Skip", None)), 0, "passed", ""),
        (dcgm(("Fail", 2)), 205, "failed", "isolate"),
        (dcgm(("Fail", 6)), 226, "failed", "reset"),
        (dcgm(("Fail", 4)), 226, "failed", "triage"),
        (dcgm(("Fail", 5)), 226, "inconclusive", "config"),
        (dcgm(("Fail", 1)), 226, "passed", "monitor"),
        (dcgm(("Warn", 1), ("Fail", 4)), 226, "failed", "triage"),
        (dcgm(("Fail", 4), ("Fail", 2)), 226, "failed", "isolate"),
        (dcgm(("Fail", 5), ("Fail", 6)), 226, "failed", "reset"),
        (dcgm(("Fail", 4)), 205, "failed", "isolate"),
        (dcgm(("Fail", None)), 226, "failed", "triage"),
        (dcgm(("Fail", None)), 0, "failed", "triage"),
        (dcgm(("Pass", None)), 217, "inconclusive", "other-diagnostic"),
        (dcgm(("Pass", None), key="DCGM GPU Diagnostic"), 0, "passed", ""),
        ("Error: unable to connect", 1, "inconclusive", "exit-code"),
    ],
)
def test_dcgm(text: str, code: int, outcome: str, reason: str) -> None:
    found = outputs.read("dcgm", code, text)
    assert found.outcome is not None
    assert (found.outcome.value, found.reason) == (outcome, reason)


NCCL = """# nThread 1 nGpus 8 minBytes 17179869184
#       size         count      type   redop    root     time   algbw   busbw #wrong
 17179869184    4294967296     float     sum      -1    62890  273.17  478.05      0
# Out of bounds values : {wrong} {word}
# Avg bus bandwidth    : {rate}
#
"""
NVBANDWIDTH = json.dumps(
    {
        "nvbandwidth": {
            "testcases": [
                {
                    "name": "host_to_device_memcpy_ce",
                    "status": "Passed",
                    "bandwidth_matrix": [["55.63", "31.20"]],
                },
                {
                    "name": "device_to_device_memcpy_read_ce",
                    "status": "Passed",
                    "bandwidth_matrix": [["N/A", "390.1"], ["388.2", "N/A"]],
                },
            ]
        }
    }
)
IB = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      7412200          0.00               388.63             0.741256
"""


@pytest.mark.parametrize(
    ("kind", "text", "measures"),
    [
        ("nccl-tests", NCCL.format(wrong=0, word="OK", rate=478.05), [478.05]),
        ("nvbandwidth", NVBANDWIDTH, [31.2, 388.2]),
        ("nvbandwidth", NVBANDWIDTH.replace("31.20", "0.00"), [0.0, 388.2]),
        ("ib-write-bw", IB, [388.63]),
        ("fio", "", []),
        ("nccl-tests", "# Avg bus bandwidth    : nan\n", []),
    ],
)
def test_measurements(kind: str, text: str, measures: list[float]) -> None:
    assert [each.value for each in outputs.read(kind, 0, text).measurements] == measures


def test_wrong_data_fails_at_full_speed() -> None:
    found = outputs.read("nccl-tests", 0, NCCL.format(wrong=3, word="FAILED", rate=478.0))
    assert (found.outcome, found.reason) == (Verdict.FAILED, "wrong-data")


def gemm(*digests: str, differ: bool = False) -> str:
    rows = [
        {"gpu": f"GPU-{n}", "digest": d, "tflops": 700.0, "repeats_differ": differ}
        for n, d in enumerate(digests)
    ]
    return f"a warning of a library\n{json.dumps({'gpus': rows})}\n"


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        (gemm("a", "a", "b"), "bits-differ", "GPU-2"),
        (gemm("a", "b"), "bits-differ", "no majority: GPU-0, GPU-1"),
        (gemm("a", "a", differ=True), "not-repeatable", "GPU-0"),
    ],
)
def test_gpus_that_give_other_bits(text: str, reason: str, words: str) -> None:
    found = outputs.read("gemm", 0, text)
    assert (found.outcome, found.reason) == (Verdict.FAILED, reason)
    assert words in found.message


def test_gpus_that_give_the_same_bits() -> None:
    assert outputs.read("gemm", 0, gemm("a", "a")).outcome is None


def spec(**fields: object) -> StepSpec:
    known: dict[str, object] = {
        "name": "s",
        "command": ("all_reduce_perf",),
        "limit": 9.0,
        "output": "nccl-tests",
    }
    return StepSpec(**{**known, **fields})  # type: ignore[arg-type]


FLOOR = Threshold("all-reduce-bus-bandwidth", "x", "H100", 460.0)


@pytest.mark.parametrize(
    ("ended", "outcome", "reason"),
    [
        (Ended(exit=0, out=NCCL.format(wrong=0, word="OK", rate=470)), "passed", ""),
        (Ended(exit=0, out=NCCL.format(wrong=0, word="OK", rate=450)), "failed", "threshold"),
        (Ended(exit=0, out="nothing"), "failed", "no-measurement"),
        (Ended(exit=1), "failed", "exit-code"),
        (Ended(signal=9), "inconclusive", "killed"),
        (Ended(late="S in futex"), "inconclusive", "timeout"),
        (Ended(late="D in nv", stuck="process 7: D in nv"), "failed", "timeout"),
        (Ended(flood=True), "inconclusive", "flood"),
        (Ended(errno=2), "skipped", "missing-tool"),
        (Ended(broken="x"), "inconclusive", "not-started"),
        (CommandStuck("D"), "inconclusive", "stuck"),
    ],
)
def test_verdicts(ended: Ended | CommandStuck, outcome: str, reason: str) -> None:
    found = evaluate(spec(thresholds=(FLOOR,)), ended, models=H100, seconds=1.0)
    assert (found.outcome.value, found.reason) == (outcome, reason)


def test_a_threshold_is_for_its_model_alone() -> None:
    ended = Ended(exit=0, out="nothing")
    found = evaluate(spec(thresholds=(FLOOR,)), ended, models=["NVIDIA L4"], seconds=1.0)
    assert found.outcome is Verdict.PASSED


@pytest.mark.slow
@given(st.sampled_from(outputs.KINDS), st.integers(0, 255), st.text() | st.binary().map(str))
def test_no_output_makes_a_reader_fail(kind: str, code: int, text: str) -> None:
    found = evaluate(
        spec(output=kind, command=("x",)), Ended(exit=code, out=text), models=[], seconds=0.0
    )
    assert found.outcome in Verdict
    if code == 0 and kind == "dcgm":
        assert found.outcome is not Verdict.PASSED, "without a result it has not passed"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda of: st.lists(of, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["DCGM Diagnostic", "test_categories", "tests", "results", "status", "warnings",
             "error_severity", "nvbandwidth", "testcases", "name", "bandwidth_matrix", "jobs",
             "read", "write", "bw_bytes", "error", "end", "sum_received", "gpus", "digest"]
        ),
        of,
        max_size=4,
    ),
)  # fmt: skip


@pytest.mark.slow
@given(st.sampled_from(outputs.KINDS), st.integers(0, 255), JSON)
def test_no_json_makes_a_reader_fail(kind: str, code: int, document: object) -> None:
    outputs.read(kind, code, json.dumps(document))


steps = st.builds(
    Step,
    st.sampled_from("abc"),
    st.sampled_from(Verdict),
    reason=st.just("r"),
    message=st.just("m"),
    required=st.booleans(),
)


@pytest.mark.slow
@given(st.lists(steps, max_size=5))
def test_a_test_passes_only_if_a_step_did_and_none_is_in_doubt(found: list[Step]) -> None:
    outcomes = {step.outcome for step in found}
    verdict = overall("p", found).outcome
    if Verdict.FAILED in outcomes:
        assert verdict is Verdict.FAILED
    elif verdict is Verdict.PASSED:
        assert Verdict.PASSED in outcomes
        assert Verdict.INCONCLUSIVE not in outcomes
        assert not any(s.required and s.outcome is Verdict.SKIPPED for s in found)
    else:
        assert verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("name", shipped())
def test_each_shipped_profile_can_be_read_and_every_threshold_has_a_source(name: str) -> None:
    profile = read_profile(name, None)
    assert profile.purpose
    for step in profile.steps:
        assert step.command
        for threshold in step.thresholds:
            assert threshold.source
            assert threshold.minimum


def test_a_name_of_a_profile_is_no_path(tmp_path: Path) -> None:
    (tmp_path.parent / "x.toml").touch()
    with pytest.raises(Exception, match="there is no test profile"):
        read_profile("../x", tmp_path)


@pytest.mark.parametrize("address", ["", "-x", "a b", "a;b", "a/b", "x" * 254, "$(x)", "a\n"])
def test_an_address_that_is_none(address: str) -> None:
    assert not is_peer(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "fe80::1%eth0", "node-1.example", "n:5201"])
def test_addresses(address: str) -> None:
    assert is_peer(address)
