"""The unit tests on every other Python that is supported and found here: `make test-pythons`.

Supported are those of pyproject.toml's classifiers. Each is looked for on the path and among the
versions of pyenv; one that is not found is named and left out.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: A program that prints the version of the Python that runs it.
_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:2])))"


def supported(pyproject: str) -> list[str]:
    """The versions that the classifiers name: "3.11" and so on, in order."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)


def candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where a Python of this version may be, the likeliest first."""
    for folder in environ.get("PATH", "").split(os.pathsep):
        yield Path(folder) / f"python{version}"
    root = environ.get("PYENV_ROOT", "") or Path(environ.get("HOME", "/root")) / ".pyenv"
    yield from sorted(Path(root).glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def find(version: str, environ: Mapping[str, str]) -> Path | None:
    """A Python of this version that runs. Those of pyenv's path run only where it has chosen it."""
    for path in candidates(version, environ):
        if path.is_file() and _version_of(path) == version:
            return path
    return None


def _version_of(path: Path) -> str:
    command = [str(path), "-c", _VERSION]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def main(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command with ``PYTHON=...`` for each; 1 if one fails, 2 if there is none."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    others = [one for one in supported((ROOT / "pyproject.toml").read_text()) if one != own]
    found = {version: find(version, environ) for version in others}
    clean = {key: text for key, text in environ.items() if not key.startswith("MAKE")}
    failed = []
    for version, path in found.items():
        if path is None:
            print(f"test-pythons: no Python {version} is found here: left out", flush=True)
            continue
        print(f"test-pythons: {path}", flush=True)
        done = subprocess.run([*command, f"PYTHON={path}"], cwd=ROOT, env=clean, check=False)
        failed += [version] if done.returncode else []
    if not any(found.values()):
        print(f"test-pythons: none of {', '.join(others)} is found", file=sys.stderr)
        return 2
    if failed:
        print(f"test-pythons: failed on {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(("make", "--no-print-directory", "test-fast"), os.environ))
