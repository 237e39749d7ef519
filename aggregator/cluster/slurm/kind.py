"""Slurm as a kind of cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.kind import ClusterKind, OpenOptions
from aggregator.cluster.slurm.settings import SlurmConfig, cross_field_errors
from aggregator.configfile.yaml_source import Key


def _open(settings: SlurmConfig, options: OpenOptions) -> OpenedCluster:
    from aggregator.cluster.slurm.client import SlurmClient, SlurmPrograms
    from aggregator.cluster.slurm.cluster import SlurmCluster
    from aggregator.cluster.slurm.names import MappedSlurm, NameRules
    from aggregator.cluster.slurm.rest import SlurmRest

    programs = SlurmPrograms(
        str(settings.programs or ""), str(settings.conf or ""), settings.command_timeout
    )
    client: SlurmClient = programs
    if (rest := settings.rest) is not None:
        client = SlurmRest(
            rest.url,
            rest.token_file,
            programs,
            name=rest.user,
            ca_file=rest.ca_file,
            limit=settings.command_timeout,
        )
    rules = NameRules(settings.node_names, settings.pairs)
    if rules != NameRules():
        client = MappedSlurm(client, rules)
    place = options.store or settings.database
    return SlurmCluster(place, client=client, poll=settings.poll, wall=options.wall)


def _contradictions(cluster: Any) -> Iterator[tuple[Key, str]]:
    for key, text in cross_field_errors(cluster.slurm):
        yield ("slurm", *key), text


def _commands(settings: SlurmConfig) -> Iterator[tuple[Key, Sequence[str]]]:
    if settings.rest is None:
        yield ("slurm", "programs"), (str((settings.programs or Path()) / "scontrol"),)


SLURM = ClusterKind(
    "slurm",
    _open,
    section=SlurmConfig,
    keeps_state=True,
    reboots_nodes=True,
    contradictions=_contradictions,
    commands=_commands,
)
