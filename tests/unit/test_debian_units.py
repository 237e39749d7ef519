"""The systemd units of the Debian packages: sound, and as closed as docs/debian.md says."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from release import debian_packages, tree
from tests.support.present import present

UNITS = {
    "agent": tree.ROOT / "deploy/debian/agent/sickbay-agent.service",
    "aggregator": tree.ROOT / "deploy/debian/aggregator/sickbay-aggregator.service",
}
DOCUMENTED = (tree.ROOT / "docs" / "debian.md").read_text("utf-8")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@needs_systemd
@pytest.mark.parametrize("program", UNITS)
def test_the_score_of_systemd_analyze_is_the_documented_one(program: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", str(UNITS[program])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    documented = present(re.search(rf"\| `sickbay-{program}` \| ([\d.]+) \|", DOCUMENTED))
    # Other versions of systemd ask other questions.
    assert float(found[1]) == pytest.approx(float(documented[1]), abs=0.5)


@needs_systemd
@pytest.mark.parametrize("program", UNITS)
def test_systemd_finds_no_mistake_in_a_unit(program: str, tmp_path: Path) -> None:
    text = UNITS[program].read_text("utf-8")
    # The program is not installed here, and any that is there will do.
    unit = tmp_path / UNITS[program].name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert unit.name not in done.stderr, done.stderr


def test_every_file_that_a_package_takes_from_the_tree_exists() -> None:
    for package in debian_packages.PACKAGES:
        for pattern in package.files:
            assert list(tree.ROOT.glob(pattern)), pattern
        folder = tree.ROOT / "deploy" / "debian" / package.extra
        assert "Package: " + package.name in (folder / "control").read_text("utf-8")
        if (folder / "conffiles").exists():
            listed = set((folder / "conffiles").read_text("utf-8").split())
            targets = {f"/{target}" for target in package.files.values()}
            assert listed == {target for target in targets if target.startswith("/etc/")}


def test_the_installed_aggregator_only_observes_and_listens_on_loopback() -> None:
    text = (tree.ROOT / "deploy/debian/aggregator/aggregator.yaml").read_text("utf-8")
    assert re.search(r"^mode: observe$", text, re.MULTILINE)
    assert re.findall(r'"([\d.]+):\d+"', text) == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
@pytest.mark.parametrize("program", UNITS)
def test_the_scripts_of_a_package_are_sound_shell(program: str, script: str) -> None:
    path = UNITS[program].with_name(script)
    done = subprocess.run(["sh", "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_text("utf-8").startswith("#!/bin/sh\nset -e\n")
