"""The Debian packages in a clean root: installed, upgraded, removed, purged. `make test-packages`
runs this file, and `make test` does not: it takes minutes.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from release import debian_packages, tree
from tests.packages import environment
from tests.packages.debian import CleanDebian, next_version

NAMES = tuple(package.name for package in debian_packages.PACKAGES)

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a root filesystem"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("dpkg-deb", "mmdebstrap", "unshare")),
        reason="dpkg-deb, mmdebstrap or unshare is not installed (tests/setup-debian.sh)",
    ),
]


def build(folder: Path, *arguments: str) -> dict[str, Path]:
    """The packages, by name."""
    assert debian_packages.main(["--output", str(folder), *arguments], os.environ) == 0
    return {file.name.partition("_")[0]: file for file in folder.glob("*.deb")}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def clean(
    tmp_path_factory: pytest.TempPathFactory, packages: dict[str, Path]
) -> Iterator[CleanDebian]:
    """A root without the packages. It is large, so it goes with the tests."""
    depends = subprocess.run(
        ["dpkg-deb", "--field", packages["sickbay-agent"], "Depends"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    root = tmp_path_factory.mktemp("debian") / "root"
    yield CleanDebian(root, depends.partition(",")[0])
    shutil.rmtree(root)


@dataclass(frozen=True, slots=True)
class Before:
    """The root before its first package."""

    files: set[str]
    users: str


@pytest.fixture(scope="module")
def before(clean: CleanDebian) -> Before:
    return Before(clean.files(), clean.text("etc/passwd"))


@pytest.fixture(scope="module")
def debian(clean: CleanDebian, before: Before, packages: dict[str, Path]) -> CleanDebian:
    """The root with the packages installed. The tests of this file change it, in their order; the
    last ones upgrade, remove and purge.
    """
    clean.install(*packages.values())
    return clean


def test_two_builds_of_one_commit_give_the_same_bytes(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    again = build(tmp_path, "--only", "agent")
    assert again["sickbay-agent"].read_bytes() == packages["sickbay-agent"].read_bytes()


def test_installed_programs_run_and_services_are_enabled(debian: CleanDebian) -> None:
    version = tree.version()
    assert debian.must("sickbay-agent --version") == f"sickbay-agent {version}"
    assert debian.must("sickbay-aggregator --version") == f"sickbay-aggregator {version}"
    assert debian.must("sickbay --version") == f"sickbay {version}"
    for program in ("agent", "aggregator"):
        wants = "etc/systemd/system/multi-user.target.wants"
        assert (debian.root / wants / f"sickbay-{program}.service").is_symlink()


def test_the_agent_checks_this_machine_with_the_installed_configuration(
    debian: CleanDebian,
) -> None:
    done = debian.run("sickbay-agent check --config /etc/sickbay/agent.toml -o json")
    assert done.returncode in {0, 1}, done.stderr
    assert json.loads(done.stdout)["source"] == "probe"


def test_the_aggregator_serves_the_page_as_its_own_user(debian: CleanDebian) -> None:
    debian.must("sickbay-aggregator config check /etc/sickbay/aggregator.yaml")
    # The unit makes it before the start: StateDirectory.
    debian.must("install -d -o sickbay -g sickbay -m 0750 /var/lib/sickbay-aggregator")
    ask = (
        "import urllib.request as u, time\n"
        "for _ in range(200):\n"
        "    try: print(u.urlopen('http://127.0.0.1:8080/', timeout=5).status); break\n"
        "    except OSError: time.sleep(0.3)\n"
    )
    python = "/usr/lib/sickbay/aggregator/bin/python"
    said = debian.must(
        "sickbay-aggregator run --config /etc/sickbay/aggregator.yaml >/tmp/log 2>&1 & "
        f"{python} -c {shlex.quote(ask)}; kill $!; wait $!",
        user="sickbay:sickbay",
    )
    assert said == "200", (debian.root / "tmp/log").read_text()
    assert (debian.root / "var/lib/sickbay-aggregator/cluster.db").exists()


def test_a_program_writes_no_bytecode_beside_the_packages_own(debian: CleanDebian) -> None:
    before = debian.files()
    debian.must("sickbay-agent checks && sickbay --help")
    assert {name for name in debian.files() - before if name.startswith("usr/")} == set()


def test_the_units_rights_are_enough_for_every_check_of_the_agent(debian: CleanDebian) -> None:
    unit = debian.text("lib/systemd/system/sickbay-agent.service")
    [line] = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.MULTILINE)
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in line.split())
    check = "sickbay-agent check --config /etc/sickbay/agent.toml -o json"
    limited = f"setpriv --no-new-privs --bounding-set=-all,{kept} {check}"

    def off(command: str) -> dict[str, str]:
        checks = json.loads(debian.run(command).stdout)["checks"]
        return {one["name"]: one["off"] for one in checks if one.get("off")}

    assert off(limited) == off(check)


def test_an_upgrade_keeps_an_edited_configuration_and_replaces_an_untouched_one(
    debian: CleanDebian, packages: dict[str, Path], tmp_path: Path
) -> None:
    agent, aggregator = "etc/sickbay/agent.toml", "etc/sickbay/aggregator.yaml"
    edited = debian.text(agent) + "# a site's own line\n"
    (debian.root / agent).write_text(edited, "utf-8")
    line = "# a line of the next version"
    later = [
        next_version(packages["sickbay-agent"], tmp_path, "9.0-1", {agent: line}),
        next_version(packages["sickbay-aggregator"], tmp_path, "9.0-1", {aggregator: line}),
    ]
    debian.install(*later)
    assert debian.must("dpkg-query -W -f '${Version}' sickbay-agent") == "9.0-1"
    assert debian.text(agent) == edited
    assert line in debian.text(f"{agent}.dpkg-dist")
    assert line in debian.text(aggregator)
    debian.must("sickbay-agent --version")


def test_a_service_that_a_person_disabled_stays_disabled_after_an_upgrade(
    debian: CleanDebian, packages: dict[str, Path], tmp_path: Path
) -> None:
    link = debian.root / "etc/systemd/system/multi-user.target.wants/sickbay-agent.service"
    link.unlink()
    debian.install(next_version(packages["sickbay-agent"], tmp_path, "9.1-1", {}))
    assert not link.is_symlink()


def test_removal_keeps_configuration_and_state_and_purge_leaves_nothing(
    debian: CleanDebian, before: Before
) -> None:
    (debian.root / "var/lib/sickbay").mkdir(exist_ok=True)
    state = debian.root / "var/lib/sickbay-aggregator"
    assert (state / "cluster.db").exists()
    debian.must(f"dpkg --remove {' '.join(NAMES)}")
    assert (state / "cluster.db").exists()
    assert (debian.root / "etc/sickbay/agent.toml").exists()
    assert not (debian.root / "usr/lib/sickbay").exists()
    debian.must(f"dpkg --purge {' '.join(NAMES)}")
    assert debian.files() - before.files == set()
    assert before.files - debian.files() == set()
    assert debian.text("etc/passwd") == before.users


def test_one_package_alone_can_be_installed_and_purged(
    clean: CleanDebian, packages: dict[str, Path]
) -> None:
    for name in ("sickbay-cli", "sickbay-agent"):
        clean.install(packages[name])
        clean.must(f"dpkg --purge {name}")


@pytest.mark.parametrize("name", NAMES)
def test_the_bill_of_materials_is_valid_and_comes_with_the_package(
    packages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    subprocess.run(["dpkg-deb", "--extract", packages[name], tmp_path], check=True)
    environment.validate_bill(tmp_path / f"usr/share/doc/{name}/sbom.cdx.json")
