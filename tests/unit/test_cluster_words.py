"""The table of words: each kind's own, and nothing of Kubernetes in the others."""

import ast
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from aggregator.cluster.port import Phase
from aggregator.cluster.words import KUBERNETES, LOCAL, SLURM, WORDS, ClusterWords
from aggregator.web.metric_families import declared
from tests.support.words_of_kubernetes import found_in

ROOT = Path(__file__).parents[2]
KINDS = pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
#: Of modules that are about Kubernetes alone, by their paths' beginnings.
ABOUT_KUBERNETES = (
    *("cluster/kubernetes/", "cluster/quarantine_conditions", "workloads/", "repairers/", "demo/"),
    *("ingest/", "access/", "jobs/gpu_report", "config/", "configfile/"),
    *("cli/kube_", "cli/cluster_", "cli/tunnel", "cli/bundle", "quarantine/repair/node_test"),
    *("quarantine/repair/operand_pause", "quarantine/reconcile/node_events"),
    "composition/controller_parts",
    *("quarantine/decide/new_nodes", "quarantine/decide/idle_nodes", "policy/label_selector"),
    *("quarantine/decide/node_tests", "quarantine/decide/node_marks"),
    *("quarantine/decide/returned_pods", "cluster/users", "cluster/local/"),
)
#: How many texts of each other part are about Kubernetes: its options, pods, objects and labels.
TEXTS = {
    "advice.py": 4,
    "alerts": 1,
    "cli": 24,
    "cluster": 1,
    "daemon_cli": 5,
    "jobs": 1,
    "quarantine": 14,
    "web": 9,
}


def texts(words: ClusterWords) -> list[str]:
    found: list[str] = []
    for one in fields(words):
        value = getattr(words, one.name)
        found += [value] if isinstance(value, str) else value.values()
    return found


@pytest.mark.parametrize("words", [SLURM, LOCAL], ids=lambda one: one.kind)
def test_another_cluster_has_no_word_of_kubernetes(words: ClusterWords) -> None:
    for text in texts(words):
        assert found_in(text, cordons=words is LOCAL) == [], text


def literals(module: Path) -> Iterator[str]:
    """The texts in a module with a word of Kubernetes, without its docstrings and single words."""
    tree = ast.parse(module.read_text())
    skipped = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    in_sentence = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            is_sentence = " " in node.value.strip() or id(node) in in_sentence
            if is_sentence and found_in(node.value):
                yield node.value


def test_a_new_text_has_no_word_of_kubernetes_unless_it_is_about_kubernetes() -> None:
    folder = ROOT / "aggregator"
    counts = Counter[str]()
    listed = []
    for module in sorted(folder.rglob("*.py")):
        name = module.relative_to(folder).as_posix()
        if not name.startswith(ABOUT_KUBERNETES):
            found = [f"{name}: {text[:80]}" for text in literals(module)]
            counts[name.partition("/")[0]] += len(found)
            listed += found
    found = [
        f"{name}: {of['help'][:80]}" for name, of in declared().items() if found_in(of["help"])
    ]
    counts["web"] += len(found)
    assert +counts == TEXTS, "\n".join([*listed, *found])


@KINDS
def test_each_kind_has_the_same_fields_and_phases_in_its_texts(words: ClusterWords) -> None:
    assert words.phases.keys() == {phase.value for phase in Phase}
    assert words.modes.keys() == {"cordon", "drain"}
    for one in fields(ClusterWords):
        mine, shipped = getattr(words, one.name), getattr(KUBERNETES, one.name)
        if isinstance(mine, str):
            assert _fields(mine) <= _fields(shipped), one.name


def _fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize(
    ("words", "number", "text"),
    [(KUBERNETES, 1, "1 pod"), (SLURM, 0, "0 jobs"), (LOCAL, 2, "2 drain commands")],
)
def test_work_is_counted_in_its_own_words(words: ClusterWords, number: int, text: str) -> None:
    assert words.count(number) == text
