"""Where the driver's NVML library may lie on a host."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

#: The name that the driver gives it everywhere.
SONAME = "libnvidia-ml.so.1"

_MAX_LINKS = 16


def candidates(root: Path, environ: Mapping[str, str]) -> list[str]:
    """Paths of NVML libraries that exist, the likeliest first.

    First the libraries that the loader would find by ``LD_LIBRARY_PATH``, then the host's usual
    folders under ``root``, a driver container's (``/run/nvidia/driver``) before the host's own:
    where both are, the container's is the one whose kernel module is loaded.
    """
    named = [Path(each) / SONAME for each in environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    found = [path for path in named if path.is_file()]
    for folder in _usual_folders(os.uname().machine):
        target = _within(root, folder / SONAME)
        if target is not None and target not in found:
            found.append(target)
    return [str(path) for path in found]


def _usual_folders(machine: str) -> Iterable[Path]:
    triplet = Path(f"usr/lib/{machine}-linux-gnu")
    system = (triplet, triplet / "nvidia/current", Path("usr/lib64"), Path("usr/lib"))
    yield from (Path("run/nvidia/driver") / folder for folder in system)
    yield from system
    yield Path("usr/local/nvidia/lib64")  # where GKE's installer mounts it
    yield Path("home/kubernetes/bin/nvidia/lib64")  # where it puts it on the host
    yield Path("run/opengl-driver/lib")  # NixOS
    yield Path("usr/lib/wsl/lib")


def _within(root: Path, path: Path) -> Path | None:
    """``root / path`` with a last link that is absolute followed inside ``root``.

    Debian's alternatives are such links: seen from a container they point into the container.
    """
    for _ in range(_MAX_LINKS):
        full = root / path
        try:
            target = full.readlink()
        except OSError:  # no link, or no file there
            return full if full.is_file() else None
        path = Path(*target.parts[1:]) if target.is_absolute() else path.parent / target
    return None
