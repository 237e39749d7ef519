"""The words of the cluster that an answer is about. Pure."""

from collections.abc import Mapping
from typing import Any

from aggregator.cluster.words import KUBERNETES, WORDS, ClusterWords


def words_of(quarantine: Mapping[str, Any]) -> ClusterWords:
    """Those of the cluster of a quarantine, as the API or the cluster's own object has it."""
    return WORDS.get(quarantine.get("cluster", ""), KUBERNETES)


def phase_of(quarantine: Mapping[str, Any]) -> str:
    """The name of its phase for people."""
    return words_of(quarantine).phase(quarantine["phase"])
