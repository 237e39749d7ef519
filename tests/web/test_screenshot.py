"""The picture of the page in README.md: made from the demo, and small enough for a README."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo.screenshot import SIZE, TABLE, TARGET
from tests.support.chromium import CHROMIUM

ROOT = Path(__file__).parents[2]
_MOST = 200 * 1024

pytestmark = pytest.mark.browser


def size_of(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG, in pixels."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_the_picture_in_the_readme_is_one_that_the_script_makes() -> None:
    assert f"({TARGET.relative_to(ROOT)})" in (ROOT / "README.md").read_text("utf-8")
    assert size_of(TARGET) == SIZE
    table = TARGET.with_name(TABLE)
    assert f"(figures/{TABLE})" in (ROOT / "docs" / "status-page.md").read_text("utf-8")
    assert max(TARGET.stat().st_size, table.stat().st_size) <= _MOST


def test_the_demo_of_a_small_fleet_ends_well_and_gives_a_picture(
    tmp_path: Path,
) -> None:
    if shutil.which(CHROMIUM) is None:
        reason = f"there is no {CHROMIUM}: tests/setup-debian.sh installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    picture = tmp_path / "page.png"
    command = [sys.executable, "-m", "tests.demo.screenshot", str(picture), "10"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 nodes are attached" in done.stdout
    assert "the alert: common cause:" in done.stdout
    assert size_of(picture) == SIZE
    assert 20 * 1024 < picture.stat().st_size <= _MOST
