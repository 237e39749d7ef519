"""The table of words: each kind's own, and nothing of Kubernetes in the others."""

import re
import string
from dataclasses import fields

import pytest

from aggregator.cluster.port import Phase
from aggregator.cluster.words import KUBERNETES, LOCAL, SLURM, WORDS, ClusterWords

KINDS = pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
OF_KUBERNETES = r"\b(pods?|kubectl|(un)?cordon(ed)?|evict\w*|taint\w*|DaemonSet|ConfigMap)\b"


def texts(words: ClusterWords) -> list[str]:
    found: list[str] = []
    for one in fields(words):
        value = getattr(words, one.name)
        found += [value] if isinstance(value, str) else value.values()
    return found


@pytest.mark.parametrize("words", [SLURM, LOCAL], ids=lambda one: one.kind)
def test_another_cluster_has_no_word_of_kubernetes(words: ClusterWords) -> None:
    for text in texts(words):
        without = text.replace("command cordon", "")  # a key of the configuration
        assert not re.search(OF_KUBERNETES, without, re.IGNORECASE), text


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
