"""Slurm's own jobs, its jobs in pods (slurm-bridge), and its nodes in pods (slurm-operator). Pure.

A pod of slurmd carries jobs that Slurm alone can name: with the pod they all end.
https://slinky.schedmd.com/
"""

from aggregator.jobs.family import Family, Loss

#: A job of a Slurm cluster: the kind of owner whose name is its id, and what its cluster adds.
JOB = "SlurmJob"
ACCOUNT = "slurm.schedmd.com/account"
PARTITION = "slurm.schedmd.com/partition"

_JOB_ID = "scheduler.slinky.slurm.net/slurm-jobid"

SLURM_JOB = Family(
    name="slurm",
    kind="Slurm job",
    loss=Loss.GANG,
    owner_kinds=(JOB,),
    queue_keys=(ACCOUNT, PARTITION),
)

SLURM_BRIDGE = Family(
    name="slurm-bridge",
    kind="Slurm job",
    loss=Loss.GANG,
    job_keys=(_JOB_ID,),
    gang_keys=(_JOB_ID,),
    queue_keys=("slurmjob.slinky.slurm.net/account", "slurmjob.slinky.slurm.net/partition"),
)

SLURM_NODE = Family(
    name="slurm-node",
    kind="Slurm node",
    loss=Loss.REPLICA,
    job_keys=("nodeset.slinky.slurm.net/pod-name",),
    owner_kinds=("NodeSet",),
)
