"""The Dockerfiles' build stages, without an engine. `make test-packages` runs this file.

The image's Python is played by this one, and its root by a temporary folder; the rest is what the
Dockerfile says, on what a clone would hold.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy import dockerfile
from tests.deploy.dockerfile import PROGRAMS, dockerfile_of
from tests.deploy.manifests import ROOT, find
from tests.support.pki import Authority

pytestmark = pytest.mark.timeout(600)  # packages are downloaded


@pytest.fixture(scope="module")
def builders() -> dockerfile.Builders:
    """Both images begin with the same steps, which one of them runs."""
    return {}


def _build(program: str, factory: pytest.TempPathFactory, builders: dockerfile.Builders) -> Path:
    root = factory.mktemp("image") / program
    return dockerfile.run_build_stage(
        dockerfile_of(program), tree=ROOT, root=root, builders=builders
    )


@pytest.fixture(scope="module")
def agent_image(tmp_path_factory: pytest.TempPathFactory, builders: dockerfile.Builders) -> Path:
    """The environment that the agent's image gets."""
    return _build("agent", tmp_path_factory, builders)


@pytest.fixture(scope="module")
def aggregator_image(
    tmp_path_factory: pytest.TempPathFactory, builders: dockerfile.Builders
) -> Path:
    """The environment that the aggregator's image gets."""
    return _build("aggregator", tmp_path_factory, builders)


@pytest.fixture(params=PROGRAMS)
def built(request: pytest.FixtureRequest) -> Path:
    """Each of the two."""
    image: Path = request.getfixturevalue(f"{request.param}_image")
    return image


def program_of(built: Path) -> str:
    return built.parents[1].name


def run(built: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """A command of the image, in an environment without this tree."""
    program, *arguments = command
    return subprocess.run(
        [built / "bin" / program, *arguments],
        cwd="/",
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def imports(built: Path, module: str) -> bool:
    return run(built, "python", "-c", f"import {module}").returncode == 0


def test_its_program_runs_from_the_wheel_alone(built: Path) -> None:
    program = program_of(built)
    version = run(built, f"sickbay-{program}", "--version")
    assert version.returncode == 0, version.stderr
    assert version.stdout.startswith(f"sickbay-{program} 0.")


def test_it_holds_neither_pip_nor_the_other_program(built: Path) -> None:
    assert not imports(built, "pip")
    assert not imports(built, "hatchling")
    program = program_of(built)
    assert imports(built, {"agent": "nodeagent", "aggregator": "aggregator"}[program])
    assert not imports(built, {"agent": "aggregator", "aggregator": "nodeagent"}[program])
    scripts = {path.name for path in (built / "bin").glob("sickbay*")}
    assert (
        scripts
        == {"agent": {"sickbay-agent"}, "aggregator": {"sickbay-aggregator", "sickbay"}}[program]
    )


def test_every_module_has_its_bytecode(built: Path) -> None:
    packages = next((built / "lib").glob("python*/site-packages"))
    modules = [path for path in packages.rglob("*.py") if "/templates/" not in str(path)]
    assert len(modules) > 50
    tag = sys.implementation.cache_tag
    level = ".opt-2" if imports(built, "nodeagent") else ""  # as PYTHONOPTIMIZE of the image asks
    for module in modules:
        cached = module.parent / "__pycache__" / f"{module.stem}.{tag}{level}.pyc"
        assert cached.is_file(), module
        # Flags 1: a hash that is not checked against the source (PEP 552).
        assert cached.read_bytes()[4:8] == b"\1\0\0\0", module


def test_the_agent_lists_its_checks_and_refuses_a_bad_file(
    agent_image: Path, tmp_path: Path
) -> None:
    built = agent_image
    listed = run(built, "sickbay-agent", "checks", "-o", "json")
    assert listed.returncode == 0, listed.stderr
    assert '"xid"' in listed.stdout
    # The NVML library's Python, which the worker alone imports.
    assert imports(built, "pynvml")
    assert imports(built, "psutil")
    wrong = tmp_path / "agent.toml"
    wrong.write_text("hosst_root = 1\n")
    refused = run(built, "sickbay-agent", "run", "--config", str(wrong))
    assert (refused.returncode, "hosst_root" in refused.stderr) == (2, True)


def test_the_aggregator_brings_its_policy_and_its_page(
    aggregator_image: Path, tmp_path: Path
) -> None:
    built = aggregator_image
    # config check reads the shipped rules and the catalogue, which are files of the package.
    sound = tmp_path / "aggregator.yaml"
    text = find("ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"]
    authority = Authority.create(tmp_path / "pki")
    pair = authority.server("aggregator", ["localhost"])
    sources = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    for name, source in sources.items():
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "token").write_text("x")
    text = re.sub("/etc/sickbay-(tls|ca)", str(tmp_path), text)
    sound.write_text(text.replace("replicas:\n", f"replicas:\n  token_file: {tmp_path}/token\n"))
    checked = run(built, "sickbay-aggregator", "config", "check", str(sound))
    assert checked.returncode == 0, checked.stderr
