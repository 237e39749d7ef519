"""Builds the Debian packages: sickbay-agent, sickbay-aggregator and sickbay-cli.

    python -m release.debian_packages [--output FOLDER] [--python /usr/bin/python3]

Each has its own virtual environment in /usr/lib/sickbay, made of the hashed requirements, for the
Python of this machine's release: build on the release that you install on. Two builds of one commit
give the same bytes. Maintainer: DEBFULLNAME and DEBEMAIL.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from release.tree import ROOT, TreeError, commit_time, version

OK, FAILED = 0, 1
_SOURCES = ROOT / "deploy" / "debian"
_SCRIPTS = ("postinst", "prerm", "postrm")


@dataclass(frozen=True, slots=True)
class Package:
    """One package: the extra whose libraries it has, and the packages of the wheel that it lacks.

    ``files`` maps a path of the tree (globs too) to a folder of the root, or to a file where the
    path names one. ``plugins`` are further names of the program.
    """

    extra: str
    program: str
    without: tuple[str, ...]
    files: Mapping[str, str]
    plugins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"sickbay-{self.extra}"

    @property
    def home(self) -> str:
        """The virtual environment, from the root."""
        return f"usr/lib/sickbay/{self.extra}"


_DOC = "usr/share/doc"
PACKAGES = (
    Package(
        "agent",
        "sickbay-agent",
        ("aggregator",),
        {
            "deploy/agent.toml": "etc/sickbay/agent.toml",
            "deploy/debian/agent/sickbay-agent.service": "lib/systemd/system/sickbay-agent.service",
            "docs/agent.md": f"{_DOC}/sickbay-agent/agent.md",
            "docs/reference/checks.md": f"{_DOC}/sickbay-agent/checks.md",
            "docs/own-checks.md": f"{_DOC}/sickbay-agent/own-checks.md",
            "deploy/examples/slurm/*": f"{_DOC}/sickbay-agent/examples/slurm/",
        },
    ),
    Package(
        "aggregator",
        "sickbay-aggregator",
        ("nodeagent", "aggregator/demo"),
        {
            "deploy/debian/aggregator/aggregator.yaml": "etc/sickbay/aggregator.yaml",
            "deploy/debian/aggregator/sickbay-aggregator.service": (
                "lib/systemd/system/sickbay-aggregator.service"
            ),
            "deploy/aggregator.yaml": f"{_DOC}/sickbay-aggregator/examples/aggregator.yaml",
            "docs/*.md": f"{_DOC}/sickbay-aggregator/",
            "docs/reference/aggregator-configuration.md": (
                f"{_DOC}/sickbay-aggregator/aggregator-configuration.md"
            ),
        },
    ),
    Package(
        "cli",
        "sickbay",
        ("nodeagent", "aggregator/demo"),
        {"docs/cli.md": f"{_DOC}/sickbay-cli/cli.md"},
        ("kubectl-sickbay", "kubectl_complete-sickbay"),
    ),
)


class PackageError(Exception):
    """A command failed; the text says which, with the end of what it said."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds packages with this Python. ``epoch`` in seconds since 1970."""

    python: str
    epoch: int
    maintainer: str
    work: Path

    def tools(self) -> Path:
        """The environment with pip and the build backend; returns its pip."""
        tools = self.work / "tools"
        self.run(self.python, "-m", "venv", tools)
        pip = tools / "bin" / "pip"
        requirements = ROOT / "requirements" / "build.txt"
        self.run(pip, "install", "--only-binary=:all:", "--require-hashes", "-r", requirements)
        return pip

    def wheel(self, pip: Path) -> Path:
        folder = self.work / "dist"
        self.run(pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ".")
        [wheel] = folder.glob("sickbay-*.whl")
        return wheel

    def package(self, package: Package, pip: Path, wheel: Path, output: Path) -> Path:
        """Build one; returns the file."""
        root = self.work / package.name
        home = root / package.home
        self.run(self.python, "-m", "venv", "--without-pip", home)
        install = (pip, "--python", home / "bin" / "python", "install", "--no-compile")
        requirements = ROOT / "requirements" / f"{package.extra}.txt"
        report = self.work / f"{package.extra}.json"
        self.run(
            *(*install, "--only-binary=:all:", "--require-hashes", "--report", report),
            *("-r", requirements),
        )
        self.run(*install, "--no-deps", wheel)
        self._move_in(package, root)
        self._compile(package, root)
        self._files(package, root)
        bill = self.run(
            *(sys.executable, "-m", "release.sbom", package.program, requirements, report)
        )
        (root / _DOC / package.name / "sbom.cdx.json").write_text(bill + "\n", "utf-8")
        return self._archive(package, root, output)

    def _move_in(self, package: Package, root: Path) -> None:
        """Make the environment one that lies in /usr/lib, with its own programs alone."""
        home = root / package.home
        [site] = (home / "lib").glob("python*/site-packages")
        for name in package.without:
            shutil.rmtree(site / name)
        _forget_build_folder(site)
        scripts = home / "bin"
        programs = (package.program, *package.plugins)
        for path in scripts.iterdir():
            if path.name not in programs and not path.name.startswith("python"):
                path.unlink()
        for path in (home / "pyvenv.cfg", *(scripts / name for name in programs)):
            text = path.read_text("utf-8").replace(str(root), "")
            path.write_text(text, "utf-8")
        (home / "lib64").unlink(missing_ok=True)
        (root / "usr" / "bin").mkdir(parents=True)
        for name in programs:
            (root / "usr" / "bin" / name).symlink_to(f"/{package.home}/bin/{name}")

    def _compile(self, package: Package, root: Path) -> None:
        """All bytecode, with the paths that the files have once they are installed.

        One process with one hash seed, as bytecode depends on both.
        """
        flags = ["-q", "-f", "-j", "1", "--invalidation-mode", "unchecked-hash"]
        places = ["-s", str(root), "-p", "/"]
        command = ["env", "PYTHONHASHSEED=0", self.python, "-m", "compileall", *flags, *places]
        self.run(*command, root / package.home / "lib")

    def _files(self, package: Package, root: Path) -> None:
        for pattern, target in package.files.items():
            sources = sorted(ROOT.glob(pattern))
            assert sources, pattern
            for source in sources:
                place = root / target / source.name if target.endswith("/") else root / target
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
        doc = root / _DOC / package.name
        doc.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "LICENSE", doc / "copyright")

    def _archive(self, package: Package, root: Path, output: Path) -> Path:
        control = root / "DEBIAN"
        control.mkdir()
        sources = _SOURCES / package.extra
        architecture = self.run("dpkg", "--print-architecture")
        values = {
            "VERSION": debian_version(),
            "ARCHITECTURE": architecture,
            "PYTHON": self._python_package(),
            "MAINTAINER": self.maintainer,
            "SIZE": str(_size_kib(root)),
        }
        (control / "control").write_text(fill(_text(sources / "control"), values), "utf-8")
        for name in (*_SCRIPTS, "conffiles"):
            if (sources / name).exists():
                shutil.copyfile(sources / name, control / name)
                (control / name).chmod(0o755 if name in _SCRIPTS else 0o644)
        _set_modes(root)
        output.mkdir(parents=True, exist_ok=True)
        file = output / f"{package.name}_{debian_version()}_{architecture}.deb"
        # It writes SOURCE_DATE_EPOCH for each time that is later.
        epoch = ["env", f"SOURCE_DATE_EPOCH={self.epoch}"]
        self.run(*epoch, "dpkg-deb", "--root-owner-group", "-Zzstd", "--build", root, file)
        return file

    def _python_package(self) -> str:
        """The package of this very Python: libraries with C code fit no other minor version."""
        program = "import sys; print('python%d.%d' % sys.version_info[:2])"
        return self.run(self.python, "-c", program)

    def run(self, *command: str | Path) -> str:
        """Run a command in the tree; its output. Raises PackageError."""
        environ = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        # Bytecode belongs beside its module in a package.
        environ.pop("PYTHONPYCACHEPREFIX", None)
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words, cwd=ROOT, env=environ, check=False, capture_output=True, text=True
            )
        except OSError as error:
            raise PackageError(f"{words[0]} can't be run: {error.strerror}") from error
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-3000:]
            raise PackageError(f"{' '.join(words)} ended with {done.returncode}:\n{said}")
        return done.stdout.strip()


def _forget_build_folder(site: Path) -> None:
    """Remove what names the folder of this build: the wheel's place, and hashes of scripts, whose
    first line had the interpreter's path there.
    """
    for file in site.glob("*.dist-info/direct_url.json"):
        file.unlink()
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text("utf-8").splitlines(keepends=True)
        kept = [one for one in lines if "direct_url.json" not in one and "/bin/" not in one]
        record.write_text("".join(kept), "utf-8")


def fill(template: str, values: Mapping[str, str]) -> str:
    """The text with each @NAME@ replaced."""
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    return template


def debian_version() -> str:
    """The version of the packages: the project's, with the revision of the packaging."""
    return f"{version()}-1"


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def _size_kib(root: Path) -> int:
    return sum(-(-path.lstat().st_size // 1024) for path in root.rglob("*"))


def _set_modes(root: Path) -> None:
    """As a umask of 022 gives them, whatever this one is."""
    for path in root.rglob("*"):
        if not path.is_symlink():
            run = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if run else 0o644)
    root.chmod(0o755)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Build the packages; returns the exit code."""
    options = _parser().parse_args(arguments)
    name = environ.get("DEBFULLNAME") or "sickbay"
    mail = environ.get("DEBEMAIL") or "root@localhost"
    sizes = {}
    try:
        epoch = commit_time(environ)
        with tempfile.TemporaryDirectory(prefix="sickbay-packages-") as folder:
            # The file itself: /usr/bin/python3 belongs to another package than the interpreter.
            builder = Builder(
                os.path.realpath(options.python), epoch, f"{name} <{mail}>", Path(folder)
            )
            pip = builder.tools()
            wheel = builder.wheel(pip)
            chosen = [one for one in PACKAGES if options.only in {"", one.extra}]
            for package in chosen:
                file = builder.package(package, pip, wheel, options.output)
                sizes[file.name] = file.stat().st_size
                print(f"{file}  {file.stat().st_size / 2**20:.1f} MiB", flush=True)
    except (PackageError, TreeError) as error:
        print(f"debian_packages: {error}", file=sys.stderr)
        return FAILED
    (options.output / "sizes.json").write_text(json.dumps(sizes, indent=2) + "\n", "utf-8")
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release.debian_packages", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "debian")
    parser.add_argument("--only", default="", choices=[one.extra for one in PACKAGES])
    parser.add_argument(
        "--python", default="/usr/bin/python3", help="the release's own; default: /usr/bin/python3"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
