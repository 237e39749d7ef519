"""The NVLink cliques that the node's GPUs are of: the part of a rack that its NVLinks join.

Known from NVML (cluster UUID and clique id), and kept for the next agent: the aggregator must know
which nodes share a fabric before the first NVLink error arrives, also after a boot.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

from nodeagent.sources.gpu_sample import Fabric, GpuSample

_COMPLETED = 3
#: More cliques than these are not named. Those of a node differ only while a rack is divided anew.
_MOST = 4
_NO_CLUSTER = "0" * 32


class FabricMembership:
    """``cliques``: "CLUSTER-UUID.CLIQUE", several with a comma between, or empty.

    ``cliques`` at the start are an earlier agent's.
    """

    def __init__(self, cliques: str = "") -> None:
        self.cliques = cliques
        self._changed: Callable[[], None] = lambda: None
        self._sample: GpuSample | None = None

    def on_change(self, changed: Callable[[], None]) -> None:
        """``changed`` is called each time that the cliques have changed."""
        self._changed = changed

    def learn(self, sample: GpuSample) -> None:
        """Take the cliques of a sample. A GPU that has not joined its fabric yet shows none."""
        if sample is self._sample:
            return
        self._sample = sample
        found = [gpu.fabric for gpu in sample.gpus if gpu.fabric is not None]
        joined = [one for one in found if one.state == _COMPLETED and one.status == 0]
        if sample.trouble is not None or not joined:
            return
        cliques = _named(joined)
        if cliques != self.cliques:
            self.cliques = cliques
            self._changed()


def _named(fabrics: Iterable[Fabric]) -> str:
    """A GPU whose fabric ends in its own machine has no cluster: its UUID is zero."""
    found = {f"{_uuid(one.cluster)}.{one.clique}" for one in fabrics if one.cluster != _NO_CLUSTER}
    return ",".join(sorted(found)[:_MOST])


def _uuid(digits: str) -> str:
    cuts = (0, 8, 12, 16, 20, 32)
    return "-".join(digits[a:b] for a, b in pairwise(cuts))
