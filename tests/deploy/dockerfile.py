"""Enough of a Dockerfile to hold it to the tree, and to run its build stage without an engine."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.manifests import DEPLOY

PROGRAMS = ("agent", "aggregator")


def dockerfile_of(program: str) -> Path:
    return DEPLOY / f"Dockerfile.{program}"


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction; ``stage`` counts from 0."""

    stage: int
    instruction: str
    text: str


def read(path: Path) -> list[Step]:
    """The steps of a Dockerfile without line continuations."""
    steps: list[Step] = []
    stage = -1
    for line in path.read_text("utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        assert not line.endswith("\\"), "one instruction, one line: this reader knows no more"
        instruction, _, text = line.partition(" ")
        stage += instruction == "FROM"
        steps.append(Step(stage, instruction, text.strip()))
    return steps


def copied(steps: list[Step]) -> list[tuple[str, str]]:
    """(source in the tree, destination) of every COPY that is from no other stage."""
    pairs = []
    for step in steps:
        if step.instruction == "COPY" and not step.text.startswith("--from"):
            *sources, destination = step.text.split()
            pairs += [(source, destination) for source in sources]
    return pairs


def is_sent(path: str, ignore: Path) -> bool:
    """Whether the .dockerignore file lets ``path`` into the build: the last line that fits says."""
    sent = True
    for line in ignore.read_text("utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        below = [path, *map(str, Path(path).parents)]
        if any(fnmatch.fnmatchcase(each, pattern.lstrip("!")) for each in below):
            sent = pattern.startswith("!")
    return sent


#: The environments that build others, by the steps that have made them.
Builders = dict[tuple[Step, ...], Path]


def run_build_stage(dockerfile: Path, *, tree: Path, root: Path, builders: Builders) -> Path:
    """Do what the first stage does, with / moved to ``root`` and this Python for the image's.

    Only what git doesn't ignore is copied, as from a clean clone. Returns the environment that the
    final stage copies, still at the place where it was made. Steps that made /opt/build for another
    image are not run again, as an engine takes their layer from its cache.
    """
    builder = root / "opt/build"
    done: list[Step] = []
    source = root / "src"
    source.mkdir(parents=True)
    for step in read(dockerfile):
        if step.stage != 0:
            continue
        done.append(step)
        if made := builders.get(tuple(done)):
            builder.parent.mkdir()
            builder.symlink_to(made)
            continue
        absent = not builder.exists()
        if step.instruction == "COPY":
            for what, where in copied([step]):
                _copy_from_clone(tree, what, source / where)
        elif step.instruction == "RUN":
            command = re.sub(r"(?<![\w.*])/(opt|src)\b", rf"{root}/\1", step.text)
            command = re.sub(r"\bpython (?=-m)", f"{sys.executable} ", command)
            command = command.replace("--no-cache-dir ", "")  # a second run need not download
            _run(command, source)
        if absent and builder.exists():
            builders[tuple(done)] = builder
    return root / "opt/sickbay"


def _copy_from_clone(tree: Path, what: str, where: Path) -> None:
    kept = ["--cached", "--others", "--exclude-standard"]
    command = ["git", "-C", str(tree), "ls-files", "-z", *kept, "--", what]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    files = [Path(each) for each in listed.split("\0") if each and (tree / each).is_file()]
    assert files, f"a clone has no {what}"
    for file in files:
        inside = file.relative_to(what) if (tree / what).is_dir() else Path(file.name)
        one_file = not (tree / what).is_dir() and where.suffix != "" and where.name == file.name
        target = where if one_file else where / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / file, target)


def _run(command: str, folder: Path) -> None:
    # An image has its bytecode beside its modules, and not where `make test` keeps it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPYCACHEPREFIX"}
    done = subprocess.run(
        ["sh", "-euc", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
