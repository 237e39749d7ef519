"""Counts the seams of the acting core and refuses growth: a ratchet.

    python -m tests.seams    the counts; exit code 1 where one is above its limit in MOST

A change that lowers a count lowers its limit. The aims: a plan's view has at most 15 fields, a
constructor of the core at most 8 arguments, the class `Controller` at most 100 lines, the core at
most 25 `Callable[`. That no code tests which class a cluster has: tests/unit/test_cluster_seam.py.
"""

import ast
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = "aggregator/quarantine"
#: The count's name and its limit: what the tree has now, lines and callables rounded up.
MOST = {
    "steps of the largest plan": 10,
    "fields of the largest view": 15,
    "lines of the longest module of acts": 320,
    "arguments of the longest constructor in the core": 8,
    "lines of the class Controller": 60,
    "Callable[ in the core": 18,
}


def sources(under: str) -> Iterator[tuple[pathlib.Path, ast.Module]]:
    """Each module below the folder."""
    for path in sorted((ROOT / under).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def class_named(module: str, name: str) -> ast.ClassDef:
    """The class, which has to be in the module."""
    for node in ast.parse((ROOT / module).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise SystemExit(f"{module} has no class {name}: correct tests/seams.py")


def constructor_arguments(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The name of each class with a constructor, its own or by attrs, and the number of its
    arguments after self.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        if any(ast.unparse(one).startswith("define(") for one in node.decorator_list):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            yield node.name, sum("init=False" not in ast.unparse(one) for one in fields)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                given = method.args
                yield node.name, len(given.posonlyargs + given.args + given.kwonlyargs) - 1


def members(trees: Iterable[ast.Module], ending: str, kind: type[ast.stmt]) -> Iterator[int]:
    """The number of such statements in each class whose name ends so."""
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(ending):
                yield sum(isinstance(one, kind) for one in node.body)


def callables(tree: ast.Module) -> int:
    """The number of `Callable[...]` in it."""
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Callable"
        for node in ast.walk(tree)
    )


def counts() -> Mapping[str, int]:
    """The counts of the tree, by the names of MOST."""
    core = [tree for _, tree in sources(CORE)]
    arguments = (count for tree in core for _, count in constructor_arguments(tree))
    controller = class_named(f"{CORE}/controller.py", "Controller")
    plans = [tree for _, tree in sources(f"{CORE}/decide")]
    acts = (len(path.read_text().splitlines()) for path, _ in sources(f"{CORE}/actions"))
    return {
        "steps of the largest plan": max(members(plans, "Step", ast.Assign)),
        "fields of the largest view": max(members(plans, "View", ast.AnnAssign)),
        "lines of the longest module of acts": max(acts),
        "arguments of the longest constructor in the core": max(arguments),
        "lines of the class Controller": (controller.end_lineno or 0) - controller.lineno + 1,
        "Callable[ in the core": sum(callables(tree) for tree in core),
    }


def main() -> int:
    """Print the counts. Returns the exit code."""
    grown = 0
    for name, count in counts().items():
        grown += count > MOST[name]
        print(f"{count} {name} (most: {MOST[name]})")
    if grown:
        print("the acting core has grown: put the feature next to it, in a folder of its own")
    return int(grown > 0)


if __name__ == "__main__":
    sys.exit(main())
