"""The kinds of cluster. A new one is a folder next to this file, and a line here."""

from aggregator.cluster.kind import ClusterKind
from aggregator.cluster.kubernetes.kind import KUBERNETES
from aggregator.cluster.local.kind import LOCAL
from aggregator.cluster.slurm.kind import SLURM

#: The first is the default.
ALL: tuple[ClusterKind, ...] = (KUBERNETES, LOCAL, SLURM)
