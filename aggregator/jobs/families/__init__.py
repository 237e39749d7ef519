"""The families of jobs, one file each, and their two orders. Pure."""

from aggregator.jobs.families.argo import ARGO
from aggregator.jobs.families.batch_job import BATCH_JOB
from aggregator.jobs.families.daemons import DAEMONS
from aggregator.jobs.families.deployment import DEPLOYMENT
from aggregator.jobs.families.grove import GROVE
from aggregator.jobs.families.jobset import JOBSET
from aggregator.jobs.families.kai import KAI
from aggregator.jobs.families.koordinator import KOORDINATOR
from aggregator.jobs.families.kubeflow import TRAINING_OPERATOR
from aggregator.jobs.families.kuberay import KUBERAY
from aggregator.jobs.families.kueue import KUEUE
from aggregator.jobs.families.leaderworkerset import LEADERWORKERSET
from aggregator.jobs.families.mpi_operator import MPI_OPERATOR
from aggregator.jobs.families.scheduler_plugins import COSCHEDULING
from aggregator.jobs.families.slurm import SLURM_BRIDGE, SLURM_JOB, SLURM_NODE
from aggregator.jobs.families.statefulset import STATEFULSET
from aggregator.jobs.families.trainer import TRAINER
from aggregator.jobs.families.volcano import VOLCANO
from aggregator.jobs.family import Family

#: The first that knows a pod names its job: controllers of jobs before the objects that they make,
#: a Workflow after the jobs of its steps, groups of a scheduler after every owner.
FAMILIES: tuple[Family, ...] = (
    TRAINER,
    JOBSET,
    LEADERWORKERSET,
    MPI_OPERATOR,
    TRAINING_OPERATOR,
    VOLCANO,
    KUBERAY,
    GROVE,
    SLURM_NODE,
    SLURM_JOB,
    BATCH_JOB,
    ARGO,
    STATEFULSET,
    DEPLOYMENT,
    DAEMONS,
    KUEUE,
    KOORDINATOR,
    COSCHEDULING,
    KAI,
    SLURM_BRIDGE,
)

#: The narrowest first: a LeaderWorkerSet's pods may carry Kueue's label of the same group too.
GANG_FAMILIES: tuple[Family, ...] = (
    COSCHEDULING,
    KOORDINATOR,
    LEADERWORKERSET,
    GROVE,
    KUEUE,
    JOBSET,
    TRAINING_OPERATOR,
    VOLCANO,
    KAI,
    KUBERAY,
    SLURM_BRIDGE,
    SLURM_JOB,
)
