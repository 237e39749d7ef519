"""`make test-changed`: the tests that depend on a changed file, by any of the ways to use one."""

import subprocess
from pathlib import Path

import pytest

from tests import changed
from tests.side_by_side import Group

TREE = {
    "aggregator/__init__.py": "",
    "aggregator/rules.py": "from . import limits\nFILE = 'deploy/crd.yaml'\n",
    "aggregator/limits.py": '"""Says nodeagent.cli in its docstring."""\n',
    "aggregator/daemon_cli/main.py": "def main():\n    import aggregator.rules\n",
    "nodeagent/cli.py": "",
    "proto/sickbay/v1/limits.py": "",
    "deploy/crd.yaml": "",
    "tests/conftest.py": "",
    "tests/kube/conftest.py": "",
    "tests/kube/test_rules.py": "from aggregator.rules import FILE\n",
    "tests/e2e/test_process.py": "PROGRAM = 'bin/sickbay-aggregator'\n",
    "tests/agent/test_start.py": "LINE = ['-m', 'nodeagent.cli', 'run']\n",
    "tests/unit/test_contract.py": "from sickbay.v1.limits import MOST\n",
}
RULES = ["tests/e2e/test_process.py", "tests/kube/test_rules.py"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("aggregator/rules.py", RULES),
        ("aggregator/limits.py", RULES),
        ("aggregator/daemon_cli/main.py", ["tests/e2e/test_process.py"]),
        ("nodeagent/cli.py", ["tests/agent/test_start.py"]),
        ("proto/sickbay/v1/limits.py", ["tests/unit/test_contract.py"]),
        ("deploy/crd.yaml", RULES),
        ("tests/kube/conftest.py", ["tests/kube/test_rules.py"]),
        ("tests/agent/test_start.py", ["tests/agent/test_start.py"]),
        ("tests/agent/test_deleted.py", []),
        ("pyproject.toml", sorted(name for name in TREE if "/test_" in name)),
    ],
)
def test_a_change_touches_the_tests_that_depend_on_it(
    root: Path, file: str, chosen: list[str]
) -> None:
    assert changed.chosen_tests(root, [file]) == chosen


def test_changed_is_what_differs_from_the_fork_committed_or_not(root: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.test")
        subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "-m", "All")
    git("checkout", "--quiet", "-b", "work")
    (root / "nodeagent/cli.py").write_text("A = 1\n")
    git("commit", "--quiet", "-a", "-m", "Change one")
    (root / "aggregator/rules.py").write_text("B = 1\n")
    (root / "tests/unit/test_new.py").write_text("")
    names = ["aggregator/rules.py", "nodeagent/cli.py", "tests/unit/test_new.py"]
    assert changed.changed_files(root, "main") == names
    with pytest.raises(SystemExit, match="no-such-commit"):
        changed.changed_files(root, "no-such-commit")


def test_each_file_stays_in_its_group_and_no_run_is_without_a_file() -> None:
    groups = {"rest": Group(2, ()), "machine": Group(1, ()), "cluster": Group(4, ())}
    files = ["tests/agent/test_kmsg_device.py", "tests/kube/test_b.py", "tests/e2e/test_c.py"]
    assert changed.groups_of(files, groups) == {
        "machine": Group(1, files[:1]),
        "cluster": Group(2, files[1:]),
    }
