"""Slurm's jobs in pods (slurm-bridge), and its nodes in pods (slurm-operator). Pure.

A pod of slurmd carries jobs that Slurm alone can name: with the pod they all end.
https://slinky.schedmd.com/
"""

from aggregator.jobs.family import Family, Loss

_JOB_ID = "scheduler.slinky.slurm.net/slurm-jobid"

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
