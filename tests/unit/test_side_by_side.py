"""Several runs of pytest beside each other are one: each test runs once, a failure counts."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import side_by_side
from tests.side_by_side import Group
from tests.support.pytest_program import COLLECTED

pytestmark = pytest.mark.slow

#: Runs pytest with these options.
Claiming = Callable[..., "subprocess.CompletedProcess[str]"]

OPTIONS = ("-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def _without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs need none that is installed, and importing those is half of a run of one test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


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
def test_none_may_fail_and_one_may_have_nothing_to_do(codes: list[int], verdict: int) -> None:
    assert side_by_side.verdict(codes) == verdict


@pytest.fixture
def results(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("results")
    monkeypatch.setattr(side_by_side, "RESULTS", folder)
    monkeypatch.setattr(side_by_side, "COMMANDS", {"lint": ["echo", "all clean"]})
    # As in `make test`: otherwise no fork is what a run is.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    for name, value in side_by_side.environment().items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.mark.slow
async def test_what_fails_in_the_second_run_is_named_at_the_end(
    tmp_path: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "test_a.py").write_text("def test_well(): pass\n")
    (tmp_path / "test_b.py").write_text("def test_ill(): assert not 'a reason'\n")
    groups = {name: Group(1, [str(tmp_path / f"test_{name}.py")]) for name in ("a", "b")}
    assert await side_by_side.main(OPTIONS, groups) == 1
    out = capfd.readouterr().out
    assert out.index("===== a =====") < out.index("===== b =====")
    [failed, lint, a, b] = out.partition("===== all =====\n")[2].strip().splitlines()
    assert failed.startswith("FAILED ")
    assert "test_ill" in failed
    assert lint.startswith("lint: all clean")
    assert a.startswith("a: 1 passed")
    assert b.startswith("b: 1 failed")
    assert (results / "b.xml").exists()


@pytest.mark.slow
async def test_two_processes_run_each_test_once_and_a_file_in_one_of_them(
    tmp_path: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = (
        "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_it(n, tmp_path): pass\n"
    )
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(text)
    groups, temporary = {"a": Group(2, [str(tmp_path)])}, tmp_path / "temporary"
    temporary.mkdir()
    assert await side_by_side.main(OPTIONS, groups, temporary) == 0
    assert {folder.name for folder in temporary.iterdir()} == {"1", "2"}
    files = [files_of(results / f"a-{number}.xml") for number in (1, 2)]
    assert not files[0].keys() & files[1].keys()
    assert sorted((files[0] + files[1]).values()) == [3] * 8
    assert len(files[0] + files[1]) == 8


@pytest.mark.slow
async def test_a_run_whose_group_has_ended_helps_with_another_groups_files(
    tmp_path: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first file waits for the third; a run claims the next file when it begins the last test
    of one.
    """
    done = tmp_path / "done"
    texts = (
        f"while not pathlib.Path({str(done)!r}).exists(): time.sleep(0.01)",
        "pass",
        f"pathlib.Path({str(done)!r}).touch()",
    )
    (tmp_path / "a").mkdir()
    for number, text in enumerate(texts):
        code = f"import pathlib, time\ndef test_it():\n    {text}\n"
        (tmp_path / "a" / f"test_a{number}.py").write_text(code)
    (tmp_path / "test_b.py").write_text("def test_it(): pass\n")
    groups = {
        "a": Group(1, [str(tmp_path / "a")]),
        "b": Group(1, [str(tmp_path / "test_b.py")], then="a"),
    }
    monkeypatch.setattr(side_by_side, "FEW_LEFT", 0)
    assert await side_by_side.main(OPTIONS, groups) == 0
    [_, a, b, more] = capfd.readouterr().out.partition("===== all =====\n")[2].strip().splitlines()
    assert (a[:12], b[:12], more[:14]) == ("a: 2 passed ", "b: 1 passed ", "a-2: 1 passed ")
    for name, value in (("FEW_LEFT", 3), ("PER_PROCESSOR", 0)):
        with monkeypatch.context() as patched:
            patched.setattr(side_by_side, name, value)
            assert await side_by_side.main(OPTIONS, groups) == 0
        assert "a-2" not in capfd.readouterr().out.partition("===== all =====\n")[2], name


async def test_a_run_has_the_niceness_of_its_group(tmp_path: Path, results: Path) -> None:
    (tmp_path / "test_nice.py").write_text(
        "import os\nfrom tests.support.waiting import patiently\n"
        "def test_it():\n"
        "    assert any(os.getpriority(os.PRIO_PROCESS, 0) == 12 for _ in patiently())\n"
    )
    group = Group(1, [str(tmp_path)], niceness=12)
    assert await side_by_side.main(OPTIONS, {"a": group}) == 0


@pytest.mark.slow
async def test_a_file_is_imported_by_the_one_process_that_runs_it(
    tmp_path: Path, results: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "import os, pathlib\n{log}.open('a').write({line})\ndef test_it(): pass\n"
    log, line = f"pathlib.Path({str(tmp_path / 'imports')!r})", "f'{__name__} {os.getpid()}\\n'"
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(text.format(log=log, line=line))
    assert await side_by_side.main(OPTIONS, {"a": Group(3, [str(tmp_path)])}) == 0
    imported = (tmp_path / "imports").read_text().splitlines()
    assert sorted(one.split()[0] for one in imported) == [f"test_{number}" for number in range(8)]


@pytest.mark.slow
async def test_what_all_runs_import_is_imported_before_they_are_forked(
    tmp_path: Path, results: Path
) -> None:
    log = tmp_path / "log"
    collected = {Path(file).stem for file in COLLECTED}
    code = f"""
import os, pathlib, sys
loaded = {collected} <= {{name.rpartition(".")[2] for name in sys.modules}}
with pathlib.Path({str(log)!r}).open("a") as log:
    log.write(f"{{os.getppid()}} {{loaded}}\\n")
def test_it(): pass
"""
    names = ("a", "b")
    for name in names:
        (tmp_path / f"test_{name}.py").write_text(code)
    groups = {name: Group(1, [str(tmp_path / f"test_{name}.py")]) for name in names}
    assert await side_by_side.main(OPTIONS, groups) == 0
    [(parent, loaded), other] = (line.split() for line in log.read_text().splitlines())
    assert (parent, loaded) == tuple(other)
    assert (int(parent) != os.getpid(), loaded) == (True, "True")


@pytest.fixture
def claiming(tmp_path: Path) -> Claiming:
    """Run pytest over the files of a folder with claims in another one."""
    (tmp_path / "claims").mkdir()

    def run(*options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "pytest", *OPTIONS, f"--rootdir={tmp_path}", str(tmp_path)]
        shared = ["-p", "tests.claims", f"--claims={tmp_path / 'claims'}", *options]
        return subprocess.run(
            [*command, *shared], cwd=side_by_side.ROOT, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.slow
def test_a_file_that_another_run_has_claimed_is_not_even_imported(
    tmp_path: Path, claiming: Claiming
) -> None:
    (tmp_path / "test_a.py").write_text("import no_such_module\n")
    (tmp_path / "test_b.py").write_text("def test_well(): pass\n")
    (tmp_path / "claims" / "test_a.py.claim").touch()
    done = claiming()
    assert "1 passed" in done.stdout, done.stdout
    assert done.returncode == 0


@pytest.mark.slow
def test_a_warning_at_the_import_of_a_claimed_file_is_an_error_as_without_claims(
    tmp_path: Path, claiming: Claiming
) -> None:
    old = "import warnings\nwarnings.warn('of old', RuntimeWarning)\n"
    (tmp_path / "test_a.py").write_text(old)
    (tmp_path / "test_b.py").write_text("def test_well(): pass\n")
    done = claiming("-W", "error::RuntimeWarning")
    assert "RuntimeWarning: of old" in done.stdout, done.stdout
    assert "1 passed, 1 error" in done.stdout, "the other file is tested"
    assert done.returncode == 1


@pytest.mark.slow
def test_options_choose_tests_of_claimed_files(tmp_path: Path, claiming: Claiming) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (tmp_path / "test_b.py").write_text("def test_two(): pass\ndef test_three(): assert False\n")
    done = claiming("-k", "two")
    assert "2 passed, 2 deselected" in done.stdout, done.stdout
    assert done.returncode == 0


@pytest.mark.slow
def test_a_fixture_of_a_folder_is_made_once_for_all_files_that_a_process_claims(
    tmp_path: Path, claiming: Claiming
) -> None:
    (tmp_path / "folder").mkdir()
    fixture = "@pytest.fixture(scope='session')\ndef made(): print('made', end=' '); yield\n"
    (tmp_path / "folder" / "conftest.py").write_text(f"import pytest\n{fixture}")
    for name in ("a", "b"):
        (tmp_path / "folder" / f"test_{name}.py").write_text("def test_it(made): pass\n")
    done = claiming("-s")
    assert "2 passed" in done.stdout, done.stdout
    assert done.stdout.count("made") == 1, done.stdout


def test_the_files_of_a_group_are_counted_as_pytest_finds_them() -> None:
    rest, machine = side_by_side.GROUPS["rest"], side_by_side.GROUPS["machine"]
    assert machine.count_files() == len(side_by_side.MACHINE_FILES) > 10
    files = {
        str(file.relative_to(side_by_side.ROOT))
        for file in (side_by_side.ROOT / "tests").rglob("test_*.py")
    }
    assert rest.count_files() == sum(
        side_by_side.group_of(file) == "rest" and not file.startswith(side_by_side.APART)
        for file in files
    )


@pytest.mark.slow
async def test_a_file_that_cannot_be_collected_fails_the_run(
    tmp_path: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "test_a.py").write_text("def test_well(): pass\n")
    (tmp_path / "test_b.py").write_text("import no_such_module\n")
    assert await side_by_side.main(OPTIONS, {"a": Group(2, [str(tmp_path)])}) != 0
    assert "no_such_module" in capfd.readouterr().out


@pytest.mark.slow
async def test_lint_that_fails_is_a_failure_beside_tests_that_pass(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text("def test_well(): pass\n")
    monkeypatch.setattr(side_by_side, "COMMANDS", {"lint": ["false"]})
    assert await side_by_side.main(OPTIONS, {"a": Group(1, [str(tmp_path)])}) == 1


@pytest.mark.slow
async def test_a_control_plane_that_cannot_be_built_is_a_failure_even_if_its_tests_skip(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text("import pytest\ndef test_it(): pytest.skip('none')\n")
    group = Group(1, [str(tmp_path)])
    monkeypatch.setattr(side_by_side, "COMMANDS", {"controlplane": ["false"]})
    assert await side_by_side.main(OPTIONS, {"cluster": group}) == 1
    assert await side_by_side.main(OPTIONS, {"rest": group}) == 0


@pytest.mark.parametrize(
    ("enough", "given", "found"), [(1, "", 1), (1, "/given", 0), (1 << 60, "", 0)]
)
def test_temporary_files_are_in_memory_where_it_has_room_and_go_with_the_runs(
    enough: int, given: str, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if given:
        monkeypatch.setenv("TMPDIR", given)
    with side_by_side.temporary_files_in_memory(tmp_path, enough) as folder:
        assert [str(made) for made in tmp_path.iterdir()] == [str(folder)] * found
        assert os.environ.get("TMPDIR", "") == (str(folder) if found else given)
    assert not list(tmp_path.iterdir())
    assert os.environ.get("TMPDIR", "") == given


def files_of(report: Path) -> Counter[str]:
    """How many tests of each module the report has."""
    cases = ET.parse(report).getroot().iter("testcase")
    return Counter(case.attrib["classname"] for case in cases)
