"""The places where the library is looked for, and the handling of pynvml around it."""

import os
import shutil
import subprocess
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from nodeagent.sources.nvml_library import SONAME, candidates
from nodeagent.sources.nvml_process import worker_command
from nodeagent.sources.nvml_sampler import Sampler
from tests.nvml import FakeGpus, gpu, library, pci_of
from tests.support.present import present

TRIPLET = f"usr/lib/{os.uname().machine}-linux-gnu"


def put(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SONAME).write_text("")
    return str(folder / SONAME)


def test_no_library_anywhere_is_an_empty_list(tmp_path: Path) -> None:
    assert candidates(tmp_path, {}) == []


def test_the_driver_container_comes_before_the_host_s_own(tmp_path: Path) -> None:
    own = put(tmp_path / TRIPLET)
    red_hat = put(tmp_path / "usr/lib64")
    container = put(tmp_path / "run/nvidia/driver" / TRIPLET)
    assert candidates(tmp_path, {}) == [container, own, red_hat]


def test_the_loader_s_path_comes_first(tmp_path: Path) -> None:
    own = put(tmp_path / "usr/lib64")
    named = put(tmp_path / "elsewhere")
    path = f"{tmp_path / 'nothing'}::{tmp_path / 'elsewhere'}"
    assert candidates(tmp_path, {"LD_LIBRARY_PATH": path}) == [named, own]


def test_an_absolute_link_is_followed_within_the_root(tmp_path: Path) -> None:
    """Debian's alternatives, followed in the agent's pod, would lead into the pod."""
    target = put(tmp_path / TRIPLET / "nvidia/current")
    alternatives = tmp_path / "etc/alternatives"
    alternatives.mkdir(parents=True)
    (alternatives / "nvml").symlink_to(f"/{TRIPLET}/nvidia/current/{SONAME}")
    (tmp_path / TRIPLET / SONAME).symlink_to("/etc/alternatives/nvml")
    assert candidates(tmp_path, {}) == [target]


def test_a_versioned_file_behind_a_relative_link_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.580.65.06").write_text("")
    (folder / SONAME).symlink_to("libnvidia-ml.so.580.65.06")
    assert candidates(tmp_path, {}) == [str(folder / "libnvidia-ml.so.580.65.06")]


@pytest.mark.parametrize("target", [SONAME, "/gone", "gone"])
def test_a_link_to_itself_or_to_nothing_is_no_library(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / SONAME).symlink_to(target)
    assert candidates(tmp_path, {}) == []


def test_pynvml_that_was_never_compiled_does_not_cost_its_compilation(tmp_path: Path) -> None:
    """Compiling leaves 13 MB behind: the worker starts over from the bytecode that it made."""
    command = present(worker_command([str(library())]))
    shutil.copy(str(pynvml.__file__), tmp_path / "pynvml.py")
    command[command.index(str(Path(str(pynvml.__file__)).parent))] = str(tmp_path)
    gpus = FakeGpus(tmp_path / "gpus", [gpu(0)])
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **gpus.env},
    ) as worker:
        assert worker.stdout is not None
        assert b'"ready"' in worker.stdout.readline()
        pss = psutil.Process(worker.pid).memory_full_info().pss
        worker.kill()
    assert Path(cache_from_source(str(tmp_path / "pynvml.py"))).exists()
    assert pss < 13 * 2**20


@pytest.mark.parametrize("is_drained", [True, False])
def test_a_gpu_that_an_administrator_drained_is_taken_out_on_purpose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_drained: bool
) -> None:
    """NVML offers it to no new process; the driver keeps its folder."""
    gpus = FakeGpus(tmp_path, [gpu(0)])
    if is_drained:
        gpus.drain(pci_of(1))
    folder = tmp_path / "gpus"
    for name in (f"{pci_of(0)}.0", f"{pci_of(1)}.0", "hostile", "zz:zz:zz.0"):
        (folder / name).mkdir(parents=True)
    sent: list[dict[str, Any]] = []
    _load(monkeypatch, gpus)
    sampler = Sampler(pynvml, lambda _text: None, lambda: 0.0)
    sampler.gpus = str(folder)
    sampler.start()
    sampler.sample(sent.append, 0.0)
    assert sent[-1]["excluded"] == [pci_of(1)] * is_drained


def test_without_the_driver_s_folder_no_gpu_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    _load(monkeypatch, FakeGpus(tmp_path, [gpu(0)]))
    sampler = Sampler(pynvml, lambda _text: None, lambda: 0.0)
    sampler.gpus = str(tmp_path / "nothing")
    sampler.start()
    sampler.sample(sent.append, 0.0)
    assert sent[-1]["excluded"] == []


def _load(monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus) -> None:
    """Let pynvml in this process have the tests' library."""
    for name, value in gpus.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", lambda _name: pynvml.cdll.LoadLibrary(str(library())))


def test_what_pynvml_calls_a_mismatch_is_a_function_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVMLLibraryMismatchError is no NVMLError, and would end a worker that did not know it."""
    _load(monkeypatch, FakeGpus(tmp_path, [gpu(0)]))
    sampler = Sampler(pynvml, lambda _text: None, lambda: 0.0)
    assert sampler.start() == "580.65.06"
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLLibraryMismatchError):
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
    errors: dict[str, int] = {}
    function = pynvml.nvmlDeviceGetMPSComputeRunningProcesses
    assert sampler._call(errors, "rows", "0 ", function, handle) is None
    assert errors == {"rows": 13}
