"""`make demo` and `make test` on a Debian with python3 and make alone: they set themselves up.

`make test-packages` runs this file, and `make test` does not: it takes minutes.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane import binaries
from tests.deploy.manifests import ROOT
from tests.packages import minimal_debian
from tests.packages.minimal_debian import MinimalDebian

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(minimal_debian.missing()), reason=minimal_debian.missing() or "-"),
    pytest.mark.timeout(1800),  # packages are downloaded
]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinimalDebian]:
    """The tests of this file change it, in their order. It is large, so it goes with them."""
    root = tmp_path_factory.mktemp("debian") / "root"
    yield MinimalDebian(root)
    shutil.rmtree(root)


def test_a_user_who_is_not_root_is_told_the_missing_package_first(debian: MinimalDebian) -> None:
    done = debian.run("make env", user="nobody")
    assert done.returncode != 0
    first = done.stderr.splitlines()[0]
    assert re.fullmatch(r"install-uv: python3\.\d+-venv is missing: .*", first), done.stderr
    assert "Traceback" not in done.stderr


def test_root_gets_everything_that_the_demo_needs(debian: MinimalDebian) -> None:
    done = debian.run("make env")
    assert done.returncode == 0, done.stdout + done.stderr
    told = debian.run(".venv/bin/sickbay demo --once")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "sim-0001: drained" in told.stdout


def test_root_gets_everything_that_the_tests_need(
    debian: MinimalDebian, control_plane_programs: Mapping[str, Path]
) -> None:
    # The programs that this machine has built stand for a build of minutes.
    cache = binaries.cache_folder()
    if not all(path.is_relative_to(cache) for path in control_plane_programs.values()):
        pytest.skip("the control plane's programs are not in the cache (KUBEBUILDER_ASSETS, PATH)")
    done = debian.run("make test-setup", programs=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    script = (ROOT / "tests" / "setup-debian.sh").read_text("utf-8")
    listed = re.findall(r"^  ([a-z0-9-]+) +#", script, re.MULTILINE)
    assert "chromium-headless-shell" in listed
    assert set(listed) - debian.installed() == set()
    assert done.stdout.count("/cache/sickbay/controlplane/") == len(control_plane_programs)
