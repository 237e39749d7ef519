"""A minimal Debian in a folder, made by mmdebstrap, with a copy of this tree in /src.

The Debian is kept as an archive in ~/.cache/sickbay/debian for a week.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from tests.controlplane.binaries import cache_folder
from tests.deploy.manifests import ROOT

#: README.md asks its reader for these; TLS needs the certificates.
PACKAGES = ("python3", "make", "ca-certificates")
#: The root's own settings of dpkg, as images of Debian have them: no documentation, and no wait for
#: a disk, because the root is deleted after the tests.
_DPKG = (
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
#: mmdebstrap takes 18 s of a processor. A root of last week is a Debian that its user has not
#: upgraded since.
_KEPT_S = 7 * 24 * 3600
_OWN_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
#: How this machine reaches package indexes and mirrors; a root made on it reaches them so too.
_NETWORK_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file")
_INDEX_PREFIXES = ("PIP_", "UV_")


def missing() -> str:
    """Why no root can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "needs root (mmdebstrap, mounts)"
    absent = [name for name in ("mmdebstrap", "unshare", "chroot") if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed: tests/setup-debian.sh" if absent else ""


class MinimalDebian:
    """A root folder; commands in it see this tree's files in /src and the machine's network."""

    def __init__(self, root: Path) -> None:
        self.root = root
        _make_root(root)
        for name in ("resolv.conf", "hosts"):
            shutil.copy(Path("/etc") / name, root / "etc" / name)
        self._trust_what_this_machine_trusts()
        _copy_tree(root / "src")
        subprocess.run(["chown", "-R", "nobody", root / "src"], check=True)

    def run(
        self, command: str, *, user: str = "root", programs: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """A shell command in /src. ``programs`` is the control plane's cache, shown read-only."""
        inside = [
            *(
                "chroot",
                f"--userspec={user}",
                str(self.root),
                "/usr/bin/env",
                "--ignore-environment",
            ),
            *(f"{key}={value}" for key, value in _environment().items()),
            *("bash", "-c", f"cd /src && {command}"),
        ]
        mounts = [f"mount -t proc proc {self.root}/proc", f"mount --rbind /dev {self.root}/dev"]
        if programs is not None:
            target = self.root / "cache" / "sickbay" / "controlplane"
            target.mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --bind -o ro {shlex.quote(str(programs))} {target}")
        script = " && ".join([*mounts, f"exec {shlex.join(inside)}"])
        # The mounts are in a namespace of their own, so they end with the command.
        return subprocess.run(
            ["unshare", "--mount", "bash", "-c", script],
            capture_output=True,
            text=True,
            check=False,
        )

    def installed(self) -> set[str]:
        """The names of the Debian packages in it."""
        done = self.run("dpkg-query --show --showformat='${Package}\\n'")
        return set(done.stdout.split())

    def _trust_what_this_machine_trusts(self) -> None:
        if not _OWN_CERTIFICATES.is_dir():
            return
        target = self.root / _OWN_CERTIFICATES.relative_to("/")
        shutil.copytree(_OWN_CERTIFICATES, target, dirs_exist_ok=True)
        subprocess.run(["chroot", self.root, "update-ca-certificates"], check=True)


def _make_root(root: Path) -> None:
    root.mkdir()
    command = ["tar", "--extract", "--preserve-permissions", "--numeric-owner"]
    subprocess.run([*command, f"--directory={root}", f"--file={_kept_root()}"], check=True)


def _kept_root() -> Path:
    """An archive of the root, which mmdebstrap makes where there is none of the last days."""
    suite = _suite()
    named = hashlib.sha256(" ".join((suite, *PACKAGES, *_DPKG)).encode()).hexdigest()[:12]
    archive = cache_folder().parent / "debian" / f"{suite}-{named}.tar"
    if not archive.exists() or time.time() - archive.stat().st_mtime > _KEPT_S:
        archive.parent.mkdir(parents=True, exist_ok=True)
        made = archive.with_name(f"{archive.stem}-{os.getpid()}.tar")
        options = [f"--include={','.join(PACKAGES)}", *(f"--dpkgopt={one}" for one in _DPKG)]
        command = ["mmdebstrap", "--quiet", "--variant=minbase", *options, suite, str(made)]
        try:
            subprocess.run(command, check=True)
            made.replace(archive)
        finally:
            made.unlink(missing_ok=True)
    return archive


def _suite() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line)
    return release["VERSION_CODENAME"].strip('"')


def _copy_tree(target: Path) -> None:
    """Copy the files that a clone would hold, as the working tree has them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


def _environment() -> dict[str, str]:
    passed = {
        key: value
        for key, value in os.environ.items()
        if key.lower() in _NETWORK_VARIABLES or key.startswith(_INDEX_PREFIXES)
    }
    return {"PATH": _PATH, "HOME": "/root", "XDG_CACHE_HOME": "/cache", **passed}
