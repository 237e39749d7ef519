"""The layout and the names that docs/architecture.md and CONTRIBUTING.md promise."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUARANTINE = sorted(
    path.parent.name for path in (ROOT / "aggregator" / "quarantine").glob("*/__init__.py")
)
#: A longer module of tests has more than one subject.
MOST_LINES = 850
#: A model of the page's API has the name of the thing that it shows.
SHOWN = {ROOT / "aggregator" / "web" / "models.py"}
#: Nouns and adjectives of their field, and no names of actors.
NOUNS = {
    "ack_pacing.py",
    "gc_tuning.py",
    "interning.py",
    "lease_timing.py",
    "missing_nodes.py",
}


def texts(*packages: str) -> Iterator[tuple[Path, str]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, path.read_text()


@pytest.mark.parametrize("package", ["aggregator", "nodeagent"])
def test_no_public_class_name_stands_for_two_things(package: str) -> None:
    found: dict[str, set[Path]] = defaultdict(set)
    for path, text in texts(package):
        for name in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE):
            found[name].add(path)
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if len(paths - SHOWN) > 1} == {}
    assert len(twice) <= 15


def test_a_module_of_tests_can_be_read_in_one_sitting() -> None:
    sizes = {path.relative_to(ROOT): text.count("\n") for path, text in texts("tests")}
    long = {str(path): lines for path, lines in sizes.items() if lines > MOST_LINES}
    assert {path: lines for path, lines in long.items() if "/test_" in path} == {}


def test_no_module_has_a_gerund_for_an_actor() -> None:
    names = {path.name for path, _ in texts("aggregator", "nodeagent")}
    assert {name for name in names if re.search(r"ing(_|\.)", name)} - NOUNS == set()


@pytest.mark.slow
def test_functions_have_a_verb_and_an_object() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts("aggregator", "nodeagent", "tests")
        for name in re.findall(r"\bdef (_?(?:look|told|heard|say))\(", text)
    }
    assert found == set()


def test_no_lambda_only_forwards_its_argument() -> None:
    mark = "noqa: " + "PLW0108"
    found = texts("aggregator", "nodeagent", "tests")
    assert [path for path, text in found if mark in text] == []


def test_no_generated_repr_shows_a_token_or_a_key() -> None:
    found = [
        (path, re.findall(r"^@define\b.*", text, re.MULTILINE))
        for path, text in texts("aggregator")
    ]
    assert sum(len(lines) for _, lines in found) > 60
    assert [path for path, lines in found if any("repr=False" not in one for one in lines)] == []


def test_the_walk_from_the_kernel_log_to_the_taint_is_short_and_names_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk = page.partition("## From a kernel log line to a taint")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `([^`]+)` \|", walk, re.MULTILINE)
    assert 20 < len(files) <= 30
    assert [file for file in files if not (ROOT / file).is_file()] == []


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize(
    ("package", "heading"),
    [("nodeagent", "## The agent"), ("aggregator", "## The aggregator")],
)
def test_the_architecture_has_a_row_for_each_entry_of_a_package(package: str, heading: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition(heading)[2].partition("\n## ")[0]
    first_cells = " ".join(re.findall(r"^\| ([^|]*)\|", section, re.MULTILINE))
    entries = {f"{name}.py" for name in modules(ROOT / package)}
    entries |= {f"{path.parent.name}/" for path in (ROOT / package).glob("*/__init__.py")}
    assert entries - set(re.findall(r"`([^`]+)`", first_cells)) == set()


@pytest.mark.parametrize(
    "folder",
    ["policy", *(f"quarantine/{path}" for path in QUARANTINE)],
)
def test_the_architecture_names_each_module_of_the_decisions(folder: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z0-9_]+)`", page.partition("### Policy")[2]))
    assert modules(ROOT / "aggregator" / folder) - named == set()


def test_each_entry_of_quarantine_is_in_one_of_few_layers() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [layers] = [
        contract["layers"]
        for contract in config["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["aggregator.quarantine"]
    ]
    entries = {
        path.stem
        for path in (ROOT / "aggregator" / "quarantine").iterdir()
        if path.is_dir() or path.suffix == ".py"
    } - {"__init__", "__pycache__"}
    assert {name for layer in layers for name in layer.split(" | ")} == entries
    assert len(layers) <= 8
    assert len(entries) <= 11
