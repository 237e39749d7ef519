"""The GPU operator's pods that hold GPUs, and the node labels that stop them.

A GPU reset is refused while a process has a GPU open, and the operator's device plugin, DCGM and
feature discovery do. Each runs where its label is "true"; the operator honours another value
(NVIDIA/gpu-operator controllers/state_manager.go, addGPUStateLabels), as mig-parted and the driver
manager use it with values that begin with "paused-for-". Ours names us, so that the node itself
shows which labels we have changed.
"""

from collections.abc import Iterable
from typing import Final

from aggregator.cluster.port import Node, Pod
from aggregator.quarantine.decide.drain_plan import FINISHED

DEPLOY: Final = "nvidia.com/gpu.deploy."
PAUSED: Final = "paused-for-sickbay"
_PAUSED_BY_ONE: Final = "paused-for-"
_RUNS: Final = "true"
#: The operands that open GPUs; the last two are those of DRA.
_OPERANDS: Final = (
    "device-plugin",
    "dcgm",
    "dcgm-exporter",
    "gpu-feature-discovery",
    "dcgm-dra",
    "dcgm-exporter-dra",
)
#: How the names of their DaemonSets begin (NVIDIA/mig-parted waits for the same pods).
_DAEMON_SETS: Final = ("nvidia-device-plugin", "nvidia-dcgm", "gpu-feature-discovery")


def pause_change(node: Node) -> dict[str, str | None]:
    """The labels that stop the operands which run on the node."""
    keys = (f"{DEPLOY}{name}" for name in _OPERANDS)
    return {key: PAUSED for key in keys if node.labels.get(key) == _RUNS}


def resume_change(node: Node) -> dict[str, str | None]:
    """The labels that start again the operands that we have stopped, and no others."""
    return {key: _RUNS for key, value in _deployed(node) if value == PAUSED}


def paused_by_another(node: Node) -> str:
    """A label by which another party has stopped an operand for work of its own; empty: none."""
    found = [key for key, value in _deployed(node) if value.startswith(_PAUSED_BY_ONE)]
    return min((key for key in found if node.labels[key] != PAUSED), default="")


def _deployed(node: Node) -> list[tuple[str, str]]:
    return [(key, value) for key, value in node.labels.items() if key.startswith(DEPLOY)]


def operand_pods(pods: Iterable[Pod]) -> list[str]:
    """The operands' pods that are still there, by namespace and name."""
    running = (one for one in pods if one.phase not in FINISHED and one.owner_kind == "DaemonSet")
    return sorted(one.key for one in running if one.owner_name.startswith(_DAEMON_SETS))
