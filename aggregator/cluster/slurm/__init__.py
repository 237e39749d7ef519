"""A Slurm cluster behind the `Cluster` protocol: a quarantine is a DRAIN with a reason of ours."""
