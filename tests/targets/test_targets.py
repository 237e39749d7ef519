"""Every target of the Makefile works: in a small form here, or by the tests that the table names.

The benchmarks on a control plane are in tests/e2e/test_benchmarks.py and test_bench_scale.py.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.chromium import CHROMIUM
from tests.targets.table import BENCHMARKS, OTHERS, ROOT, TARGETS, Elsewhere, SmallForm, make

SMALL = {name: form for name, form in TARGETS.items() if isinstance(form, SmallForm)}


def listed() -> list[str]:
    """The Makefile's targets, as `make help` lists them."""
    return re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_target_has_a_small_form_or_a_test_elsewhere() -> None:
    assert sorted(listed()) == sorted(TARGETS)


def test_every_test_elsewhere_exists_and_has_a_reason() -> None:
    others = {name: form for name, form in OTHERS.items() if isinstance(form, Elsewhere)}
    missing = [
        test for form in others.values() for test in form.tests if not (ROOT / test).exists()
    ]
    assert missing == []
    assert [name for name, form in others.items() if not form.reason] == []


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_recipe_of_every_target_can_be_expanded(target: str) -> None:
    done = make(target, None, "--dry-run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "target", [name for name in OTHERS if name in SMALL and name not in {"clean", "test-fast"}]
)
def test_a_target_runs_in_its_small_form(target: str) -> None:
    form = SMALL[target]
    done = make(target, form.variables)
    assert done.returncode == form.code, done.stdout + done.stderr
    assert form.says in done.stdout + done.stderr


def test_clean_removes_the_outputs_of_its_folder(tmp_path: Path) -> None:
    for name in ("build/bench", ".venv", ".mypy_cache", "kept"):
        (tmp_path / name).mkdir(parents=True)
    # With `make test PYTHON=...` the environment is another folder than that of this test.
    others = {key: value for key, value in os.environ.items() if key not in {"PYTHON", "MAKEFLAGS"}}
    command = ["make", "-f", str(ROOT / "Makefile"), "clean"]
    subprocess.run(command, cwd=tmp_path, env=others, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_quick_tests_run_by_themselves() -> None:
    # pytest's own variables (its plugins, its options) are those of the outer run.
    form = SMALL["test-fast"]
    done = make("test-fast", form.variables, PYTEST_ADDOPTS="-p no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert form.says in done.stdout


def test_a_machine_without_a_gpu_is_refused_before_any_work() -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    done = make("gpu-check", {"WHEELS": "none"})
    assert done.returncode == 2
    assert "no NVIDIA driver is loaded here" in done.stderr


def test_images_name_a_program_that_is_missing() -> None:
    if shutil.which("buildah"):
        pytest.skip("buildah is here: make test-images builds the images")
    done = make("images")
    assert done.returncode == 2
    assert "buildah is not installed" in done.stderr


@pytest.mark.parametrize("name", [name for name, form in BENCHMARKS.items() if not form.planes])
def test_a_benchmark_writes_its_keys(name: str, tmp_path: Path) -> None:
    if name == "bench-page" and shutil.which(CHROMIUM) is None:
        pytest.skip(f"there is no {CHROMIUM}: tests/setup-debian.sh installs it")
    done = make(name, BENCH_SMALL="1", BENCH_FOLDER=str(tmp_path))
    if done.returncode and "exit" not in done.stderr and "skipped: a network" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / f"{name.removeprefix('bench-')}.json").read_text())
    assert BENCHMARKS[name].keys - set(written) == set()
    assert {"date", "commit", "machine"} <= set(written)
