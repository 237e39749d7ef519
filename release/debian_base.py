"""A base image of Debian's packages alone, for a machine that can reach no registry.

Two images: one with Python, and one that has the venv module too, for the build stage. They hold
Debian's essential packages without documentation and translations, as Debian's slim images do.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

Run = Callable[[Sequence[str]], str]

NAME = "localhost/sickbay-base"
#: Debian 13, whose Python is 3.13.
SUITE = "trixie"
#: libstdc++6 is for grpcio, whose wheel brings no C++ library.
PACKAGES = ("python3", "python-is-python3", "libstdc++6", "ca-certificates", "tzdata")
BUILDER_PACKAGES = (*PACKAGES, "python3-venv")
#: The processor that qemu-user is to emulate for an architecture: one without pointer
#: authentication, which Debian's programs for ARM use in each function. With it Python takes eleven
#: times as long (measured).
_EMULATED = {"arm64": "cortex-a76"}
_LEFT_OUT = ("doc", "info", "locale", "man", "lintian", "linda")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make(run: Run, epoch: int, suite: str, architecture: str = "") -> tuple[str, str]:
    """Make both; their names with digests: for the images, and for the build stage.

    ``architecture`` is Debian's name of it (amd64, arm64); empty: this machine's.
    """
    tag = f"{suite}-{architecture}" if architecture else suite
    return (
        _make(run, f"{NAME}:{tag}", PACKAGES, epoch, suite, architecture),
        _make(run, f"{NAME}-builder:{tag}", BUILDER_PACKAGES, epoch, suite, architecture),
    )


def emulation(architecture: str) -> tuple[str, ...]:
    """Variables (NAME=VALUE) for an emulator of the architecture, without effect elsewhere."""
    processor = _EMULATED.get(architecture)
    return () if processor is None else (f"QEMU_CPU={processor}",)


def bootstrap_command(
    packages: Sequence[str], suite: str, target: Path, architecture: str = ""
) -> list[str]:
    """Mmdebstrap's command line. It takes SOURCE_DATE_EPOCH from its environment."""
    excludes = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=essential",
        *((f"--architectures={architecture}",) if architecture else ()),
        f"--include={','.join(packages)}",
        *excludes,
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        # As in Debian's own images: a root that is only packed needs no file synchronised.
        "--dpkgopt=force-unsafe-io",
        # Logs and caches of the installation differ from one to the next.
        '--customize-hook=rm -rf "$1"/var/log/* "$1"/var/cache/ldconfig/aux-cache',
        suite,
        str(target),
    ]


def _make(
    run: Run, image: str, packages: Sequence[str], epoch: int, suite: str, architecture: str
) -> str:
    with tempfile.TemporaryDirectory(prefix="sickbay-base-") as folder:
        root = Path(folder) / "root.tar"
        command = bootstrap_command(packages, suite, root, architecture)
        run(["env", f"SOURCE_DATE_EPOCH={epoch}", *emulation(architecture), *command])
        platform = (f"--platform=linux/{architecture}",) if architecture else ()
        container = run(["buildah", "from", *platform, "scratch"])
        try:
            run(["buildah", "add", "--quiet", container, str(root), "/"])
            run(["buildah", "config", f"--env=PATH={_PATH}", container])
            run(["buildah", "commit", "--quiet", f"--timestamp={epoch}", container, image])
        finally:
            run(["buildah", "rm", container])
    digest = run(["buildah", "inspect", "--type=image", "--format={{.FromImageDigest}}", image])
    return f"{image.rpartition(':')[0]}@{digest}"
