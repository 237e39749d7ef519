"""Finds the control plane's programs, and builds the missing ones once.

Where they are looked for, in this order:
1. `KUBEBUILDER_ASSETS`, the folder that envtest uses: taken as it is, whatever its version.
2. the cache, `$XDG_CACHE_HOME/sickbay/controlplane/RELEASE/bin` (default ~/.cache).
3. PATH, if the program there is of the version that versions.toml means.
4. else it is built into the cache, once. Two runs at the same time build once: a file lock.

`SICKBAY_CONTROLPLANE_BUILD=0` forbids the fourth.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.toolchain import NoControlPlane, Progress, find_go, go_environment
from tests.controlplane.versions import GO_MODULE, Program, programs, tools

__all__ = ["NoControlPlane", "cache_folder", "ensure", "find", "program", "to_stderr"]

# A line every so often shows that a build of minutes is alive.
_PROGRESS_EVERY_S = 20.0
_KUBE_VERSION = "k8s.io/component-base/version"


def to_stderr(line: str) -> None:
    """The default way to tell progress."""
    print(f"controlplane: {line}", file=sys.stderr, flush=True)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where built programs live."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sickbay" / "controlplane"


def program(name: str, progress: Progress = to_stderr) -> Path:
    """The path of one program, built if need be. Raises NoControlPlane."""
    return ensure([name], progress)[name]


def ensure(names: Iterable[str] | None = None, progress: Progress = to_stderr) -> dict[str, Path]:
    """The paths of these programs (default: all of a control plane), built if need be.

    Raises NoControlPlane with the reason where a program is missing and can't be built.
    """
    known = programs() | tools()
    wanted = list(programs()) if names is None else list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise NoControlPlane(f"no program {', '.join(unknown)}; there are {', '.join(known)}")
    found = {name: find(known[name]) for name in wanted}
    missing = [known[name] for name, path in found.items() if path is None]
    if missing:
        _build_all(missing, progress)
        found |= {p.name: find(p) for p in missing}
    return {name: path for name, path in found.items() if path is not None}


def find(wanted: Program, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The program's path where it exists already; builds nothing."""
    assets = environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / wanted.name).exists():
        return Path(assets) / wanted.name
    cached = _cached(wanted, cache_folder(environ))
    if cached.exists():
        return cached
    on_path = shutil.which(wanted.name, path=environ.get("PATH"))
    if on_path is not None and _is_version(Path(on_path), wanted):
        return Path(on_path)
    return None


def _cached(wanted: Program, cache: Path) -> Path:
    return cache / wanted.release / "bin" / wanted.name


def _is_version(path: Path, wanted: Program) -> bool:
    try:
        said = subprocess.run(
            [path, *wanted.asks], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(wanted.answers, said.stdout, re.MULTILINE) is not None


def _build_all(missing: list[Program], progress: Progress) -> None:
    names = ", ".join(p.name for p in missing)
    if os.environ.get("SICKBAY_CONTROLPLANE_BUILD") == "0":
        raise NoControlPlane(
            f"{names} not found, and SICKBAY_CONTROLPLANE_BUILD=0 forbids to build; "
            "run `python -m tests.controlplane build` once"
        )
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with _build_lock(cache, progress):
        # The previous holder of the lock may have built them.
        still = [p for p in missing if not _cached(p, cache).exists()]
        if not still:
            return
        go = find_go(cache, progress)
        minutes = sum(p.minutes for p in still)
        progress(
            f"building {', '.join(p.name for p in still)}, once, into {cache} "
            f"(about {max(1, round(minutes))} min on two cores)"
        )
        for wanted in still:
            _build(go, wanted, cache, progress)


@contextmanager
def _build_lock(cache: Path, progress: Progress) -> Iterator[None]:
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another run is building; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(go: Path, wanted: Program, cache: Path, progress: Progress) -> None:
    target = _cached(wanted, cache)
    target.parent.mkdir(parents=True, exist_ok=True)
    log = cache / f"build-{wanted.name}.log"
    began = time.monotonic()
    progress(f"building {wanted.name} {wanted.version} (log: {log})")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / wanted.package.rpartition("/")[2]  # as `go install` names it
        code = _run_logged(go, wanted, built, log, progress)
        if code != 0 or not built.exists():
            tail = log.read_text(encoding="utf-8", errors="replace")[-1500:].strip()
            raise NoControlPlane(f"{wanted.name} can't be built (`go` exited {code}): {tail}")
        megabytes = built.stat().st_size / 1e6
        # The rename publishes it: a reader sees a whole program or none.
        built.replace(target)
    progress(f"built {wanted.name} in {time.monotonic() - began:.0f} s, {megabytes:.0f} MB")


def _command(go: Path, wanted: Program, built: Path) -> list[str | Path]:
    if wanted.lock is None:
        return [go, "install", "-trimpath", "-ldflags=-s -w", f"{wanted.package}@{wanted.version}"]
    link = "-s -w"
    if wanted.release.startswith("kubernetes-"):
        # Without these the server says that it is v0.0.0, and clients that compare are confused.
        major, minor, _ = wanted.version.removeprefix("v").split(".", 2)
        stamps = {"gitVersion": wanted.version, "gitMajor": major, "gitMinor": minor}
        link += "".join(f" -X {_KUBE_VERSION}.{key}={value}" for key, value in stamps.items())
    return [
        go,
        "build",
        "-mod=readonly",
        "-trimpath",
        f"-ldflags={link}",
        "-o",
        built,
        wanted.package,
    ]


def _run_logged(go: Path, wanted: Program, built: Path, log: Path, progress: Progress) -> int:
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(go, wanted, built),
            cwd=wanted.lock or GO_MODULE,
            env=go_environment() | {"GOBIN": str(built.parent)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while True:
                try:
                    return process.wait(_PROGRESS_EVERY_S)
                except subprocess.TimeoutExpired:
                    progress(f"still building {wanted.name}: {time.monotonic() - began:.0f} s")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
