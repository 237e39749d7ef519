"""Builds both images with buildah, so that two builds of one commit give one digest.

    python -m release.images [--base NAME@sha256:DIGEST] [--platform linux/arm64] ...

The base is named by its digest: a tag is another image tomorrow. Without --base it is made here
from Debian's packages, for sites that cannot pull one (docs/images.md). Times are those of the
commit, or of SOURCE_DATE_EPOCH. Buildah's own variables apply (STORAGE_DRIVER, BUILDAH_ISOLATION,
CONTAINERS_STORAGE_CONF).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release import debian_base
from release.tree import ROOT, TreeError, commit_time, revision, version

OK, FAILED, USAGE = 0, 1, 2
PROGRAMS = ("agent", "aggregator")
#: What is published: x86-64, and ARM for Grace. The kernel's names of their machines.
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
#: ``e_machine`` of a program's ELF header.
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
#: Run in an image with folders: the machines of the programs and libraries below, each with a file.
ELF_SCAN = """
import os, sys
found = {}
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    head = file.read(20)
                if head[:4] == b"\\x7fELF":
                    found.setdefault(int.from_bytes(head[18:20], "little"), path)
for machine, path in found.items():
    print(machine, path)
"""
PLATFORMS = tuple(_MACHINES)
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
#: The bill of materials in each image.
BILL = "/opt/sickbay/share/sickbay/sbom.cdx.json"
_BY_DIGEST = re.compile(r"[a-z0-9][\w./:-]*@sha256:[0-9a-f]{64}")
#: Documented keys: https://github.com/opencontainers/image-spec/blob/main/annotations.md
_LABEL = "org.opencontainers.image"


@dataclass(frozen=True, slots=True)
class Plan:
    """What both images are built from. ``epoch`` in seconds since 1970; ``base`` and ``builder``
    are NAME@sha256:DIGEST. ``platform`` is linux/ARCHITECTURE; empty: this machine's. ``options``
    are buildah's own, such as --volume=/etc/pip.conf:...
    """

    repository: str
    version: str
    revision: str
    epoch: int
    base: str
    builder: str
    source: str = ""
    platform: str = ""
    options: tuple[str, ...] = ()

    def image(self, program: str) -> str:
        """The name and tag of a program's image; the tag of one platform names it."""
        architecture = _architecture(self.platform)
        suffix = f"-{architecture}" if architecture else ""
        return f"{self.repository}sickbay-{program}:{self.version}{suffix}"

    def labels(self) -> Mapping[str, str]:
        """The labels that only a build knows."""
        name, _, digest = self.base.partition("@")
        known = {
            "version": self.version,
            "revision": self.revision,
            "base.name": name,
            "base.digest": digest,
            "source": self.source,
        }
        return {f"{_LABEL}.{key}": value for key, value in known.items() if value}

    def build(self, program: str) -> list[str]:
        """The command that builds a program's image, run from the root of the tree."""
        return [
            "buildah",
            "build",
            "--quiet",
            # One layer over the base; what the build stages leave in a cache must not matter.
            "--layers=false",
            f"--timestamp={self.epoch}",
            f"--build-arg=PYTHON={self.base}",
            f"--build-arg=BUILDER={self.builder}",
            *((f"--platform={self.platform}",) if self.platform else ()),
            # On a machine of the platform too, since all builds of a commit give one digest.
            *(f"--build-arg={one}" for one in debian_base.emulation(_architecture(self.platform))),
            *(f"--label={key}={value}" for key, value in self.labels().items()),
            *self.options,
            f"--ignorefile=deploy/Dockerfile.{program}.dockerignore",
            f"--file=deploy/Dockerfile.{program}",
            f"--tag={self.image(program)}",
            ".",
        ]


@dataclass(frozen=True, slots=True)
class Built:
    """One image in the store. Sizes in bytes: unpacked, and as a registry keeps it (gzip)."""

    name: str
    digest: str
    unpacked: int
    packed: int


class ImageError(Exception):
    """A command failed, or an argument cannot be used; the text says which and why."""


def by_digest(text: str) -> str:
    """A base's name with its digest."""
    if _BY_DIGEST.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no image by digest; expected NAME@sha256: and 64 hexadecimal digits"
        )
    return text


def platform_of(text: str) -> str:
    """A platform that images are published for."""
    if text and text not in PLATFORMS:
        expected = " or ".join(PLATFORMS)
        raise argparse.ArgumentTypeError(f"{text!r} is not supported; expected {expected}")
    return text


def _architecture(platform: str) -> str:
    """That of "linux/arm64" is arm64; empty: this machine's."""
    return platform.partition("/")[2]


def check_emulation(platform: str, *, binfmt: Path = _BINFMT) -> None:
    """Raise ImageError where this machine can't run the programs of the platform."""
    machine = _MACHINES.get(platform, "")
    if not machine or machine == os.uname().machine:
        return
    if not (binfmt / f"qemu-{machine}").exists():
        raise ImageError(
            f"{platform}: this machine has no emulation of {machine}: install qemu-user-static, "
            "binfmt-support and arch-test (Debian), or build on such a machine"
        )


def run(command: Sequence[str]) -> str:
    """Run a command in the tree; its output. Raises ImageError with the end of what it said."""
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    except OSError as error:
        text = f"{command[0]} can't be run: {error.strerror} (Debian: apt-get install {command[0]})"
        raise ImageError(text) from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-3000:]
        raise ImageError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout.strip()


def _check_programs(names: Sequence[str]) -> None:
    """Raise ImageError for one that is missing, before minutes of work."""
    for name in names:
        if shutil.which(name) is None:
            raise ImageError(f"{name} is not installed (Debian: apt-get install {name})")


def measure(image: str) -> Built:
    """Digest and sizes, by writing the image as a registry would get it."""
    with tempfile.TemporaryDirectory(prefix="sickbay-images-") as folder:
        layout = Path(folder) / "layout"
        run(["buildah", "push", "--quiet", "--format=oci", image, f"oci:{layout}:image"])
        index = json.loads((layout / "index.json").read_text("utf-8"))
        digest = index["manifests"][0]["digest"]
        packed = sum(blob.stat().st_size for blob in (layout / "blobs" / "sha256").iterdir())
    [size] = json.loads(run(["buildah", "images", "--json", image]))
    return Built(image, digest, _bytes(size["size"]), packed)


def bill(image: str) -> str:
    """The bill of materials that is in the image."""
    return _run_in(image, "cat", BILL) + "\n"


def check_machine(image: str, platform: str) -> None:
    """Raise ImageError where a program in the image is of another machine than the platform's: a
    base that is named by the digest of one architecture has that one, whatever is asked for.
    """
    wanted = ELF_MACHINES[_MACHINES.get(platform, os.uname().machine)]
    variables = debian_base.emulation(_architecture(platform))
    scan = _run_in(image, "env", *variables, "python", "-c", ELF_SCAN, "/usr", "/opt")
    lines = scan.splitlines()
    found = {int(line.split()[0]): line.split(maxsplit=1)[1] for line in lines}
    if wrong := [path for machine, path in found.items() if machine != wanted]:
        raise ImageError(
            f"{image}: {wrong[0]} is no program of {platform or 'this machine'}; expected a base "
            "whose digest is of that platform, or of a list of platforms"
        )
    if not found:
        raise ImageError(f"{image}: no program was found in /usr or /opt")


def _run_in(image: str, *command: str) -> str:
    """The output of a command in the image, as root."""
    container = run(["buildah", "from", "--pull-never", image])
    try:
        return run(["buildah", "run", "--user=0", container, "--", *command])
    finally:
        run(["buildah", "rm", container])


def _bytes(text: str) -> int:
    """Buildah's "225 MB"."""
    number, unit = text.split()
    return int(float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit.upper()])


def write_figures(path: Path, built: Mapping[str, Built]) -> None:
    """The sizes in MiB, for docs and benchmarks."""
    figures = {}
    for program, image in built.items():
        figures[f"image_{program}_mib"] = round(image.unpacked / 2**20, 1)
        figures[f"image_{program}_packed_mib"] = round(image.packed / 2**20, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Build both images; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _check_programs(["buildah"] if options.base else ["buildah", "mmdebstrap"])
        epoch = commit_time(environ)
        check_emulation(options.platform)
        base, builder = options.base, options.builder or options.base
        if base is None:
            print("images: making a base from Debian's packages (mmdebstrap)", flush=True)
            architecture = _architecture(options.platform)
            base, builder = debian_base.make(run, epoch, options.suite, architecture)
        plan = Plan(
            repository=options.repository,
            version=version(),
            revision=revision(),
            epoch=epoch,
            base=base,
            builder=builder,
            source=options.source,
            platform=options.platform,
            options=tuple(options.option),
        )
        built = {}
        for program in PROGRAMS:
            print(f"images: building {plan.image(program)} on {base}", flush=True)
            run(plan.build(program))
            check_machine(plan.image(program), plan.platform)
            image = built[program] = measure(plan.image(program))
            unpacked, packed = image.unpacked / 2**20, image.packed / 2**20
            if options.bills is not None:
                options.bills.mkdir(parents=True, exist_ok=True)
                suffix = _architecture(options.platform)
                named = f"sickbay-{program}-{suffix}" if suffix else f"sickbay-{program}"
                file = options.bills / f"{named}.cdx.json"
                file.write_text(bill(plan.image(program)), "utf-8")
            print(f"  {image.digest}  {unpacked:.0f} MiB, {packed:.0f} MiB packed", flush=True)
    except (ImageError, TreeError) as error:
        print(f"images: {error}", file=sys.stderr)
        return FAILED
    if options.figures is not None:
        write_figures(options.figures, built)
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release.images", description=__doc__)
    parser.add_argument(
        "--base",
        type=by_digest,
        metavar="NAME@sha256:DIGEST",
        help="an image with Python 3.11 or later as `python`; default: made from Debian's packages",
    )
    parser.add_argument(
        "--builder",
        type=by_digest,
        metavar="NAME@sha256:DIGEST",
        help="the build stage's own base, where --base has no venv module",
    )
    parser.add_argument(
        "--suite",
        default=debian_base.SUITE,
        help=f"Debian's release for the base; default: {debian_base.SUITE}",
    )
    parser.add_argument(
        "--platform",
        type=platform_of,
        default="",
        metavar="linux/ARCHITECTURE",
        help="linux/amd64 or linux/arm64; another one than this machine's needs qemu-user-static",
    )
    parser.add_argument(
        "--repository", default="", metavar="PREFIX", help="before the images' names; ends with /"
    )
    parser.add_argument("--source", default="", metavar="URL", help="where the source is published")
    parser.add_argument(
        "--option", action="append", default=[], help="one more option of `buildah build`"
    )
    parser.add_argument(
        "--bills", type=Path, metavar="FOLDER", help="write the bills of materials there"
    )
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the sizes there")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
