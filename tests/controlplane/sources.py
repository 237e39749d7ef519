"""Files of Go modules that tests read and do not build: a download takes seconds.

`python -m tests.controlplane.sources` downloads all of them, for tests that run without a network.
"""

import json
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.controlplane.binaries import cache_folder, to_stderr
from tests.controlplane.toolchain import NoControlPlane, find_go, go_environment
from tests.controlplane.versions import GO_MODULE, VERSIONS_FILE, programs


@dataclass(frozen=True, slots=True)
class Definitions:
    """The module of one family of workloads: its folder, and its CustomResourceDefinitions."""

    folder: Path
    files: tuple[Path, ...]


def kubernetes_openapi(which: str) -> dict[str, Any]:
    """The OpenAPI document of the "newest" or the "oldest" Kubernetes. Raises NoControlPlane."""
    apiserver = programs({"SICKBAY_KUBERNETES": which})["kube-apiserver"]
    source = _source(f"k8s.io/kubernetes@{apiserver.version}", apiserver.lock or GO_MODULE)
    text = (source / "api" / "openapi-spec" / "swagger.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def operator_definitions() -> list[Path]:
    """The definitions of PodMonitor, PrometheusRule and ServiceMonitor. Raises NoControlPlane."""
    module = tomllib.loads(VERSIONS_FILE.read_text("utf-8"))["sources"]["prometheus-operator"]
    folder = _source(module, GO_MODULE) / "example" / "prometheus-operator-crd"
    names = ("podmonitors", "prometheusrules", "servicemonitors")
    return [folder / f"monitoring.coreos.com_{name}.yaml" for name in names]


def workload_definitions() -> dict[str, Definitions]:
    """The modules of versions.toml with workloads' objects, by name. Raises NoControlPlane."""
    tables = tomllib.loads(VERSIONS_FILE.read_text("utf-8"))["definitions"]
    found = {}
    for name, table in tables.items():
        folder = _source(table["module"], GO_MODULE, table["sum"])
        found[name] = Definitions(folder, tuple(folder / file for file in table["files"]))
    return found


def _source(module: str, lock: Path, expected: str = "") -> Path:
    """The folder with the module's files. Its hash is checked where ``lock`` has a go.sum of it, or
    against ``expected``.
    """
    done = subprocess.run(
        [find_go(cache_folder(), to_stderr), "mod", "download", "-json", module],
        cwd=lock,
        env=go_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NoControlPlane(f"{module} can't be downloaded: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    if expected and found["Sum"] != expected:
        raise NoControlPlane(f"{module} has the hash {found['Sum']}; expected {expected}")
    return Path(found["Dir"])


if __name__ == "__main__":
    for _which in ("newest", "oldest"):
        kubernetes_openapi(_which)
    operator_definitions()
    workload_definitions()
