"""Generated files that are checked in equal the output of their source now."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"


@pytest.mark.slow
def test_the_generated_contract_is_fresh(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    sources = sorted(path.relative_to(PROTO) for path in PROTO.glob("sickbay/v1/*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I.",
            f"--plugin=protoc-gen-mypy={programs / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={programs / 'protoc-gen-mypy_grpc'}",
            *(f"--{kind}={tmp_path}" for kind in _KINDS),
            *map(str, sources),
        ],
        cwd=PROTO,
        check=True,
        capture_output=True,
    )
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*"))
    assert len(made) == 4 * len(sources)
    for name in made:
        assert (PROTO / name).read_text() == (tmp_path / name).read_text(), f"{name}: make proto"


_KINDS = ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")


def test_the_locked_requirements_name_every_dependency_and_no_host() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = document["project"]["optional-dependencies"]
    assert set(extras) == {"agent", "aggregator", "apprise", "cli"}
    extras["aggregator"].remove("sickbay[cli]")
    extras["aggregator"] += extras["cli"]
    groups = document["dependency-groups"]
    for extra, asked in {**extras, **groups}.items():
        holder = "dev" if extra == "apprise" else extra  # no image and no package has it
        text = (ROOT / "requirements" / f"{holder}.txt").read_text()
        locked = set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE))
        names = {re.split(r"[\[<>=~ ]", one)[0].lower().replace("_", "-") for one in asked}
        assert names <= locked, f"make lock: {names - locked} is not in requirements/{holder}.txt"
        assert "--hash=sha256:" in text
        assert "://" not in text
