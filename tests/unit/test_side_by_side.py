"""Two runs of pytest beside each other are one: a failure in either is named and fails both."""

from pathlib import Path

import pytest

from tests import side_by_side


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ([0, 0], 0),
        ([1, 0], 1),
        ([0, 2], 2),
        ([0, 5], 0),
        ([5, 5], 5),
        ([5, 1], 1),
        ([0, -9], -9),
    ],
)
def test_neither_may_fail_and_one_may_have_nothing_to_do(codes: list[int], verdict: int) -> None:
    assert side_by_side.verdict(codes) == verdict


async def test_what_fails_in_the_second_run_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_a.py").write_text("def test_well(): pass\n")
    (tmp_path / "test_b.py").write_text("def test_ill(): assert not 'a reason'\n")
    runs = {name: [str(tmp_path / f"test_{name}.py")] for name in ("a", "b")}
    monkeypatch.setattr(side_by_side, "RUNS", runs)
    monkeypatch.setattr(side_by_side, "RESULTS", tmp_path / "results")
    assert await side_by_side.main(["-p", "no:cacheprovider"]) == 1
    out = capfd.readouterr().out
    assert out.index("===== a =====") < out.index("===== b =====")
    [failed, a, b] = out.partition("===== both =====\n")[2].strip().splitlines()
    assert failed.startswith("FAILED ")
    assert "test_ill" in failed
    assert a.startswith("a: 1 passed")
    assert b.startswith("b: 1 failed")
    assert (tmp_path / "results" / "b.xml").exists()
