"""The wheel and the sdist: they render on an index, agree, and carry the demo. `make test-packages`
runs this file.
"""

import os
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from release.tree import ROOT
from tests.packages import environment

pytestmark = pytest.mark.timeout(1200)

SOURCE = "https://source.example.test/sickbay"


def build(folder: Path, *, tree: Path = ROOT, environ: dict[str, str] | None = None) -> Path:
    """A folder with the wheel and the sdist of ``tree``."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    given = {**os.environ, **(environ or {})}
    subprocess.run(command, cwd=tree, env=given, check=True, capture_output=True)
    return folder


def metadata(folder: Path) -> Message:
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.mark.parametrize("files", ["", f"{SOURCE}/files/"])
def test_the_readme_renders_on_an_index(tmp_path: Path, files: str) -> None:
    build(tmp_path, environ={"SICKBAY_FILES_URL": files})
    done = environment.run("-m", "twine", "check", "--strict", *sorted(tmp_path.iterdir()))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wheel_that_is_built_from_the_sdist_is_the_same(tmp_path: Path) -> None:
    given = {"SICKBAY_SOURCE_URL": SOURCE, "SICKBAY_FILES_URL": f"{SOURCE}/files/"}
    first = build(tmp_path / "first", environ=given)
    [sdist] = first.glob("*.tar.gz")
    (tmp_path / "tree").mkdir()
    subprocess.run(["tar", "--extract", "--file", sdist], cwd=tmp_path / "tree", check=True)
    [tree] = (tmp_path / "tree").iterdir()
    second = build(tmp_path / "second", tree=tree)
    assert f"Source, {SOURCE}" in metadata(second).get_all("Project-URL", [])
    assert metadata(first).as_string() == metadata(second).as_string()
    [one], [two] = first.glob("*.whl"), second.glob("*.whl")
    assert one.read_bytes() == two.read_bytes()


def test_the_demo_runs_from_an_installed_wheel(tmp_path: Path) -> None:
    [wheel] = build(tmp_path / "dist").glob("*.whl")
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip: list[str | Path] = [home / "bin" / "pip", "install", "--quiet", "--only-binary=:all:"]
    for extra in ("agent", "aggregator"):
        locked = ROOT / "requirements" / f"{extra}.txt"
        subprocess.run([*pip, "--require-hashes", "-r", locked], check=True)
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [home / "bin" / "sickbay", "demo", "--once", "--nodes", "20"],
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sim-0001: drained" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
