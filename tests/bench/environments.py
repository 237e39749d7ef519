"""Environments as they are installed: the wheel, hashed requirements, compiled bytecode.

The agent's and the aggregator's are copies of their own (no hard links), because two processes that
share a library's pages would lower each other's proportional set size by 5 MiB. Their libraries are
out of the page cache, as after a boot: since Linux 6.18 one fault maps a whole folio, and a file
that was written in large pieces has large ones. gRPC's library (16 MiB) had 9.8 MiB mapped after
writes of 4 KiB, and 15.1 MiB after writes of 1 MiB.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.bench.small import SMALL

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "bench"


def _uv() -> str:
    own = ROOT / "build" / "uv" / "bin" / "uv"
    return shutil.which("uv") or str(own)


def _wheel() -> Path:
    folder = FOLDER / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return next(folder.glob("*.whl"))


def optimized(programs: Path) -> dict[str, str]:
    """The variables under which programs of this folder run as in the agent's image.

    There the bytecode of Python's own library is beside it; here it is in a folder of its own.
    """
    if SMALL:  # to compile the library takes seconds
        return os.environ | {"PYTHONOPTIMIZE": ""}
    cache = FOLDER / "pycache"
    variables = os.environ | {"PYTHONOPTIMIZE": "2", "PYTHONPYCACHEPREFIX": str(cache)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    folders = (sysconfig.get_path("stdlib"), programs.parent / "lib")
    subprocess.run(
        [programs / "python", "-m", "compileall", "-q", "-o", "2", *folders],
        check=False,  # some of the library's test data is no Python
        env=variables,
        stdout=subprocess.DEVNULL,
    )
    return variables


def install(extra: str, name: str = "") -> Path:
    """Install sickbay with one extra ("agent" or "aggregator"); returns the folder of programs.

    ``name``: of the environment, where one extra has several.
    """
    env = FOLDER / f"{name or extra}-env"
    shutil.rmtree(env, ignore_errors=True)
    python = str(env / "bin" / "python")
    quiet = ["--quiet", "--python", python, "--link-mode", "copy", "--compile-bytecode"]
    requirements = str(ROOT / "requirements" / f"{extra}.txt")
    for command in (
        [_uv(), "venv", "--quiet", "--python", sys.executable, str(env)],
        [_uv(), "pip", "sync", *quiet, "--require-hashes", requirements],
        [_uv(), "pip", "install", *quiet, "--no-deps", str(_wheel())],
    ):
        subprocess.run(command, check=True, cwd=ROOT)
    for library in env.rglob("*.so*"):
        evict(library)
    return env / "bin"


def evict(file: Path) -> None:
    """Take the file's pages out of the page cache; those that a process has mapped stay."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
