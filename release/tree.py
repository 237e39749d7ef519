"""What the tree says of itself: version, commit and time."""

import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


class TreeError(Exception):
    """The tree cannot answer; the text says what is missing."""


def version() -> str:
    """The version of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def git(*arguments: str) -> str:
    """A git command's output. Raises TreeError."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        text = f"git {arguments[0]} failed; expected a clone, or SOURCE_DATE_EPOCH and a revision"
        raise TreeError(text) from error
    return done.stdout.strip()


def commit_time(environ: Mapping[str, str]) -> int:
    """SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/), else the time
    of the commit; seconds since 1970. Raises TreeError.
    """
    given = environ.get("SOURCE_DATE_EPOCH", "")
    if not given:
        return int(git("log", "-1", "--format=%ct"))
    if not given.isdecimal():
        raise TreeError(f"SOURCE_DATE_EPOCH is {given!r}; expected seconds since 1970")
    return int(given)


def revision() -> str:
    """The commit, with "-dirty" where tracked files differ from it."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
