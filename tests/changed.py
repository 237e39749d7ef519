"""The tests that a change touches: `make test-changed`.

    python -m tests.changed [options of pytest]

Changed is each file that differs from the commit where this branch left `main` (CHANGED_SINCE=REV:
from that commit), committed or not. A test is chosen if it is changed itself or depends on a
changed file. Dependencies are read from the source text, without running it:

- an import, also one inside a function;
- the name of a module or of an installed program ("sickbay-aggregator") in a string, because tests
  start programs by these names;
- the name of another file ("crd.yaml") in a string;
- `conftest.py`, for the tests of its folder.

A dependency that a test finds at run time, such as each file of a folder, is not seen: `make test`
before a push runs all. Files that every test depends on (ALL) choose every test.
"""

import ast
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from tests import side_by_side
from tests.side_by_side import GROUPS, ROOT, Group

PACKAGES = ("nodeagent", "aggregator", "tests")
#: The generated contract is imported as `sickbay`.
SOURCES: Mapping[str, str] = {**{name: name for name in PACKAGES}, "proto/sickbay": "sickbay"}
PROGRAMS = {
    "sickbay-agent": "nodeagent.cli",
    "sickbay-aggregator": "aggregator.daemon_cli.main",
}
ALL = ("pyproject.toml", "requirements/dev.txt", "tests/conftest.py")


def dependents(changed: Iterable[str], uses: Mapping[str, set[str]]) -> set[str]:
    """The changed files, and every file that uses one of them, directly or not."""
    users: dict[str, set[str]] = {}
    for file, used in uses.items():
        for one in used:
            users.setdefault(one, set()).add(file)
    found: set[str] = set()
    waiting = list(changed)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting.extend(users.get(file, ()))
    return found


def uses_of_files(root: Path, others: Iterable[str] = ()) -> dict[str, set[str]]:
    """The files used by each Python file, relative to ``root``; ``others`` are not Python."""
    modules = dict(_modules(root))
    named = {Path(other).name: other for other in others}
    uses = {}
    for module, file in modules.items():
        tree = ast.parse((root / file).read_text("utf-8"))
        package = module if file.endswith("/__init__.py") else module.rpartition(".")[0]
        words = set(_words(tree, package))
        uses[file] = {
            modules[name] for word in words for name in _prefixes(word) if name in modules
        }
        uses[file] |= {other for name, other in named.items() if name in words}
        if "/test_" in file:
            folders = [str(folder) for folder in Path(file).parents]
            uses[file] |= {f"{folder}/conftest.py" for folder in folders}
    return uses


def _modules(root: Path) -> Iterator[tuple[str, str]]:
    """Each module's name and file."""
    for source, package in SOURCES.items():
        for path in (root / source).rglob("*.py"):
            inside = path.relative_to(root / source).with_suffix("").parts
            name = ".".join((package, *(part for part in inside if part != "__init__")))
            yield name, str(path.relative_to(root))


def _words(tree: ast.AST, package: str) -> Iterator[str]:
    """Names of modules and of files in this text; a relative import is resolved in ``package``."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in prose:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for word in node.value.replace('"', " ").replace("'", " ").split():
                yield PROGRAMS.get(word.rpartition("/")[2], word)
                yield f"{word}.__main__"  # python -m
                yield word.rpartition("/")[2]


def _prefixes(dotted: str) -> Iterator[str]:
    """a, a.b and a.b.c of a.b.c: the import of a module runs the packages that it is in."""
    parts = dotted.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def changed_files(root: Path, since: str) -> list[str]:
    """Files that differ from the commit where this branch left ``since``, new ones too."""
    base = _git(root, "merge-base", "HEAD", since).strip()
    tracked = _git(root, "diff", "--name-only", base)
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({*tracked.splitlines(), *new.splitlines()})


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"make test-changed: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def chosen_tests(root: Path, changed: Sequence[str]) -> list[str]:
    """The files of tests that a change of these files touches."""
    uses = uses_of_files(root, [file for file in changed if not file.endswith(".py")])
    if any(fnmatch(file, pattern) for file in changed for pattern in ALL):
        chosen = set(uses)
    else:
        chosen = dependents(changed, uses)
    return sorted(f for f in chosen if Path(f).name.startswith("test_") and (root / f).exists())


def groups_of(files: Iterable[str], groups: Mapping[str, Group] = GROUPS) -> dict[str, Group]:
    """These files in the groups of `make test`; a group without one is left out."""
    parts: dict[str, list[str]] = {name: [] for name in groups}
    for file in files:
        parts[side_by_side.group_of(file)].append(file)
    return {
        name: Group(min(groups[name].runs, len(part)), part) for name, part in parts.items() if part
    }


def main(options: Sequence[str], environment: Mapping[str, str]) -> int:
    changed = changed_files(ROOT, environment.get("CHANGED_SINCE", "main"))
    files = chosen_tests(ROOT, changed)
    print(f"{len(changed)} changed files touch {len(files)} files of tests", flush=True)
    for file in files:
        print(f"  {file}", flush=True)
    return asyncio.run(side_by_side.main(options, groups_of(files))) if files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
