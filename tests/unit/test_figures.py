"""Measured figures come into the documents from one file, and into no other place."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.bench import jobs, repair
from tests.bench.documents import (
    MEASURED,
    OTHERS,
    ROOT,
    NotMeasured,
    filled,
    main,
    numbers,
    pages,
    without_figures,
    written,
)
from tests.targets.table import BENCHMARKS

PAGES = ("README.md", "docs/benchmarks.md", "docs/scaling.md", "docs/comparison.md")
OTHER = json.loads((ROOT / OTHERS).read_text())
SOURCE = {"date": "2026-11-28", "commit": "abc", "machine": "2 cores"}
TAINT: dict[str, Any] = {"taint": {"taint_p50_ms": 19.6, "trials": 1000, **SOURCE}}
PAGE = """\
The taint comes after <!-- =taint.taint_p50_ms -->20 ms<!-- / -->,
by <!-- =taint.source --><!-- / -->.

## To the taint: `make bench-taint`
| | measured | aim |
|---|---|---|
| to the taint (`taint_p50_ms`) | 1 ms | 20 ms |
| two keys (`taint_p50_ms`) and (`trials`) | by hand | |
| unknown (`another`) | by hand | |

## Another page
| to the taint (`taint_p50_ms`) | 1 ms | 20 ms |
"""


def test_a_row_with_a_key_and_a_marked_place_get_the_figure_and_nothing_else_does() -> None:
    expected = (
        PAGE.replace("20 ms<", "19.6 ms<")
        .replace("--><!-- / -->.", "-->2026-11-28, commit abc, 2 cores<!-- / -->.")
        .replace("| 1 ms |", "| 19.6 ms |", 1)
    )
    assert filled(PAGE, TAINT) == expected
    assert filled(expected, TAINT) == expected


def test_a_marked_figure_that_no_benchmark_has_written_is_an_error() -> None:
    with pytest.raises(NotMeasured, match=r"taint\.another: not in"):
        filled("<!-- =taint.another --><!-- / -->", TAINT)
    with pytest.raises(NotMeasured, match="nothing: no such benchmark"):
        filled("<!-- =nothing.p50_ms --><!-- / -->", TAINT)
    with pytest.raises(NotMeasured, match="expected one of"):
        filled("<!-- measured: nothing -->\n<!-- /measured -->", TAINT)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("taint_p50_ms", 19.6, "19.6 ms"),
        ("wall_s", 1234.5, "1,234.5 s"),
        ("rss_mib", 1053, "1,053 MiB"),
        ("cpu_percent", 0.142, "0.142 %"),
        ("idle_bytes_per_minute", 502, "502 bytes"),
        ("rss_mib_per_replica", 630, "630 MiB"),
        ("quarantines_per_s", 202, "202"),
        ("kills", 200, "200"),
        ("held_by", "mode 3", "mode 3"),
    ],
)
def test_the_end_of_a_key_is_its_unit(key: str, value: float | str, text: str) -> None:
    assert written(key, value) == text


def test_each_benchmark_has_a_section_and_each_of_its_aims_a_row() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    sections = set(re.findall(r"^##+ .*`make (bench-[a-z-]+)`$", page, re.MULTILINE))
    assert set(BENCHMARKS) - sections == set()
    for aims in (jobs._WANTED, repair._WANTED):
        assert [key for key in aims if f"(`{key}`) |" not in page] == []


def tree(folder: Path, page: str = PAGE) -> Path:
    (folder / MEASURED).parent.mkdir(parents=True)
    (folder / MEASURED).write_text(json.dumps(TAINT))
    (folder / "README.md").write_text(page)
    (folder / "docs" / "benchmarks.md").write_text("")
    return folder


def test_the_figures_of_the_last_run_are_taken_over_and_kept(tmp_path: Path) -> None:
    root, bench = tree(tmp_path / "tree"), tmp_path / "bench"
    bench.mkdir()
    newer = {**TAINT["taint"], "taint_p50_ms": 18.5}
    (bench / "taint.json").write_text(json.dumps(newer))
    (bench / "old.json").write_text('{"without_a_source": 1}')
    assert main([], root, bench) == 0
    assert json.loads((root / MEASURED).read_text()) == {"taint": newer}
    assert (root / "README.md").read_text() == filled(PAGE, {"taint": newer})
    assert main(["--check"], root, bench) == 0


def test_a_stale_page_fails_the_check_and_is_left_alone(tmp_path: Path) -> None:
    root = tree(tmp_path)
    assert main(["--check"], root, tmp_path) == 1
    assert (root / "README.md").read_text() == PAGE


def test_an_unknown_figure_of_a_page_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path, "<!-- =taint.another --><!-- / -->")
    assert main(["--check"], root, tmp_path) == 2
    assert "README.md: taint.another: not in" in capsys.readouterr().err


def test_every_kept_figure_has_its_source() -> None:
    measured = json.loads((ROOT / MEASURED).read_text())
    lacking = [name for name, one in measured.items() if not SOURCE.keys() <= one.keys()]
    assert lacking == []


def test_every_page_has_the_figures_that_are_kept() -> None:
    assert main(["--check"]) == 0, "run make figures"


@pytest.mark.parametrize("page", PAGES)
def test_a_number_in_prose_is_a_kept_figure_or_listed_with_its_kind(page: str) -> None:
    listed = {one for kind in OTHER[page].values() for one in kind}
    found = set(numbers((ROOT / page).read_text()))
    assert found - listed == set(), f"mark it ({MEASURED}), or list it with its kind ({OTHERS})"
    assert listed - found == set(), f"remove it from {OTHERS}"


def test_a_figure_in_prose_is_found_and_a_marked_one_is_not() -> None:
    assert numbers("It takes 12.5 ms, or 3 % of `limit: 5 s`.") == ["12.5 ms", "3 %"]
    assert numbers("It takes <!-- =taint.taint_p50_ms -->19.6 ms<!-- / -->.") == []


def test_prose_is_what_people_have_written() -> None:
    assert "19.6" not in without_figures(filled(PAGE, TAINT))
    assert "by hand" in without_figures(PAGE)
    assert without_figures("a\n```\n30 ms\n```\nb") == "a\nb"
    assert pages(ROOT)[0].name == "README.md"
