"""KubeRay: a worker is started again, and a lost head loses the cluster. Pure.

https://github.com/ray-project/kuberay/blob/master/ray-operator/controllers/ray/utils/constant.go
"""

from aggregator.cluster.port import Pod
from aggregator.jobs.family import Family, Loss

_CLUSTER = "ray.io/cluster"
_ROLE = "ray.io/node-type"


def _loss(pod: Pod) -> Loss:
    return Loss.GANG if pod.labels.get(_ROLE) == "head" else Loss.REPLICA


KUBERAY = Family(
    name="kuberay",
    kind="RayCluster",
    loss=Loss.REPLICA,
    job_keys=(_CLUSTER,),
    gang_keys=(_CLUSTER,),
    owner_kinds=("RayCluster",),
    loss_of=_loss,
)
