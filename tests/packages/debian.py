"""A clean Debian in a folder, in which packages are installed, upgraded and purged."""

import shlex
import shutil
import subprocess
from pathlib import Path

from tests.packages.image import output

#: dpkg's own bookkeeping, logs, and the backups that useradd leaves of the files it changes.
_BOOKKEEPING = ("var/lib/dpkg/", "var/log/", "var/cache/", "run/", "tmp/", "proc/", "dev/")
_BACKUPS = {"etc/passwd-", "etc/shadow-", "etc/group-", "etc/gshadow-", "etc/.pwd.lock"}


class CleanDebian:
    """The root of this machine's release, with the Python that the packages depend on."""

    def __init__(self, root: Path, python: str) -> None:
        self.root = root
        lines = Path("/etc/os-release").read_text().splitlines()
        release = dict(line.split("=", 1) for line in lines if "=" in line)
        suite = release["VERSION_CODENAME"].strip('"')
        how = ("--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io", f"--include={python}")
        output("mmdebstrap", *how, suite, str(root))

    def run(self, command: str, *, user: str = "root") -> "subprocess.CompletedProcess[str]":
        """A shell command in it, with /proc, /dev and a loopback of its own."""
        inside = [
            *("chroot", f"--userspec={user}", str(self.root)),
            *("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"),
            *("sh", "-c", command),
        ]
        script = (
            f"mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev && "
            f"ip link set lo up && exec {shlex.join(inside)}"
        )
        # The mounts are in a namespace of their own, so they end with the command.
        return subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def must(self, command: str, *, user: str = "root") -> str:
        """The same; its output, or an assertion with what it said."""
        done = self.run(command, user=user)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def install(self, *packages: Path) -> str:
        """dpkg's output. An edited configuration file is kept without a question."""
        place = self.root / "tmp" / "packages"
        place.mkdir(exist_ok=True)
        for package in packages:
            shutil.copy(package, place)
        names = " ".join(f"/tmp/packages/{package.name}" for package in packages)
        said = self.must(f"dpkg --force-confdef --force-confold --install {names}")
        shutil.rmtree(place)
        return said

    def files(self) -> set[str]:
        """Each file, folder and link, except bookkeeping."""
        found = {str(path.relative_to(self.root)) for path in self.root.rglob("*")}
        return {name for name in found if not name.startswith(_BOOKKEEPING)} - _BACKUPS

    def text(self, path: str) -> str:
        return (self.root / path).read_text("utf-8")


def next_version(package: Path, folder: Path, version: str, changes: dict[str, str]) -> Path:
    """A package like this one with a later version; ``changes`` add a line to files of it."""
    tree = folder / f"{package.stem}-next"
    output("dpkg-deb", "--raw-extract", package, tree)
    control = tree / "DEBIAN" / "control"
    lines = control.read_text("utf-8").splitlines()
    lines = [f"Version: {version}" if line.startswith("Version:") else line for line in lines]
    control.write_text("\n".join(lines) + "\n", "utf-8")
    for name, line in changes.items():
        with (tree / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    target = folder / f"{package.stem}-next.deb"
    output("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, target)
    return target
