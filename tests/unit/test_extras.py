"""Each program with the libraries of its extra alone, and without any: one line, exit code 2."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest

from sickbay.extras import explain_missing

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "sickbay": "from aggregator.cli.main import main",
    "sickbay-agent": "from nodeagent.cli import main",
    "sickbay-aggregator": "from aggregator.daemon_cli.entry import main",
}

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    target = folder / "site"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(target)
    return target


def libraries(requirements: str, folder: Path) -> Path:
    """A folder with the locked packages of one extra that apply here, and no other."""
    folder.mkdir()
    text = (ROOT / "requirements" / requirements).read_text("utf-8")
    for name in re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE):
        try:
            package = distribution(name)
        except LookupError:  # for another Python or system
            continue
        for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            entry = folder / top
            if not entry.exists():
                entry.symlink_to(str(package.locate_file(top)))
    return folder


@pytest.fixture
def run(wheel: Path, tmp_path: Path) -> Run:
    """Runs a program of the wheel; ``extra`` is the extra whose libraries it has."""

    def run(program: str, *arguments: str, extra: str = "") -> "subprocess.CompletedProcess[str]":
        path = [str(wheel)]
        if extra:
            path.append(str(libraries(f"{extra}.txt", tmp_path / "libraries")))
        # -I -S: neither this environment nor this tree can give it a library.
        code = f"import sys; sys.path += {path!r}; {PROGRAMS[program]}; main({list(arguments)!r})"
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def kubeconfig(folder: Path) -> str:
    """One that leads to a port of this machine at which no program listens."""
    path = folder / "kubeconfig"
    path.write_text(
        """
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
    )
    return str(path)


def test_the_wheel_has_three_packages_and_the_scripts_of_three_programs(wheel: Path) -> None:
    names = {path.name for path in wheel.iterdir()}
    assert {name for name in names if "." not in name} == {"aggregator", "nodeagent", "sickbay"}
    [scripts] = wheel.glob("*.dist-info/entry_points.txt")
    assert re.findall(r"^(\S+) =", scripts.read_text("utf-8"), re.MULTILINE) == sorted(
        [*PROGRAMS, "kubectl-sickbay", "kubectl_complete-sickbay"]
    )


def test_the_wheel_has_every_file_of_its_packages(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "aggregator", "nodeagent"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    tracked = listed.stdout.splitlines()
    assert {"aggregator/policy/rules.yaml", "aggregator/policy/catalogue.yaml"} <= set(tracked)
    assert [name for name in tracked if not (wheel / name).is_file()] == []


@pytest.mark.parametrize(
    ("program", "arguments", "extra"),
    [
        ("sickbay", ("stop", "--reason", "x", "--kubeconfig", "kubeconfig"), "cli"),
        ("sickbay", ("stop", "--reason", "x", "--local", "cluster.db"), "cli"),
        ("sickbay", ("nodes", "-o", "jsonpath={.total}"), "cli"),
        ("sickbay", ("alert", "test", "room", "--config", "agent.toml"), "aggregator"),
        ("sickbay-agent", ("run", "--config", "agent.toml"), "agent"),
        ("sickbay-agent", ("check",), "agent"),
        ("sickbay-aggregator", ("run",), "aggregator"),
        ("sickbay-aggregator", ("--version",), "aggregator"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else None,
)
def test_a_program_without_its_extra_names_it_in_one_line_and_exits_2(
    run: Run, tmp_path: Path, program: str, arguments: tuple[str, ...], extra: str
) -> None:
    kubeconfig(tmp_path)
    (tmp_path / "cluster.db").touch()
    (tmp_path / "agent.toml").write_text('run_dir = "run"\nstate_dir = "state"\n')
    done = run(program, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    assert re.match(rf"{program}: the library [a-z_]+ is not installed; ", line)
    assert line.endswith(f"pip install 'sickbay[{extra}]'")


def test_a_prolog_without_the_agents_extra_drains_no_node(run: Run) -> None:
    done = run("sickbay-agent", "check", "--slurm")
    assert done.returncode == 0, done.stderr
    assert "not checked" in done.stdout
    assert "pip install 'sickbay[agent]'" in done.stdout


def test_the_extra_cli_is_enough_to_act_on_kubernetes(run: Run, tmp_path: Path) -> None:
    arguments = ("stop", "--reason", "x", "--kubeconfig", kubeconfig(tmp_path))
    done = run("sickbay", *arguments, extra="cli")
    assert done.returncode == 1, done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_the_extra_agent_is_enough_to_check_this_node(run: Run) -> None:
    done = run("sickbay-agent", "check", "-o", "json", extra="agent")
    assert done.returncode in {0, 1}, done.stderr
    assert '"checks"' in done.stdout


def test_the_extra_aggregator_is_enough_for_policy_and_configuration(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "aggregator.yaml"
    file.write_text(
        'cluster: {kind: local}\nlisten: {grpc: "127.0.0.1:1", web: "127.0.0.1:2"}\n'
        "identity: {kind: insecure-trust-hello}\n"
    )
    done = run("sickbay-aggregator", "config", "check", str(file), extra="aggregator")
    assert done.returncode == 0, done.stderr


def test_a_command_that_only_reads_needs_no_extra(run: Run) -> None:
    done = run("sickbay", "status", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "can't be reached" in done.stderr


def test_the_demo_without_one_of_the_programs_names_what_is_missing(run: Run) -> None:
    done = run("sickbay", "demo", extra="aggregator")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "psutil of the extra 'agent' is not installed" in line
    assert line.endswith("pip install 'sickbay[agent,aggregator]'")


@pytest.mark.parametrize("module", ["aggregator.gone", "nodeagent", "sqlite3", ""])
def test_a_missing_module_of_python_or_of_ours_is_a_defect_and_no_extra(module: str) -> None:
    error = ModuleNotFoundError(name=module)
    assert explain_missing(error, program="sickbay", extra="cli") is None
