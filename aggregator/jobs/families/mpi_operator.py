"""MPI operator: the launcher's mpirun ends when a worker is lost. Pure.

https://github.com/kubeflow/mpi-operator/blob/master/pkg/apis/kubeflow/v2beta1/constants.go
"""

from aggregator.jobs.families.kubeflow import JOB_NAME
from aggregator.jobs.family import Family, Loss

MPI_OPERATOR = Family(
    name="mpi-operator",
    kind="MPIJob",
    loss=Loss.GANG,
    job_keys=(JOB_NAME,),
    owner_kinds=("MPIJob",),
    only_with="training.kubeflow.org/operator-name",
    only_value="mpi-operator",
)
