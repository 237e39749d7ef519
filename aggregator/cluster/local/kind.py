"""A cluster without Kubernetes or Slurm, as a kind of cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.kind import ClusterKind, OpenOptions
from aggregator.cluster.local.settings import Commands
from aggregator.configfile.section import Section
from aggregator.configfile.values import Duration, OrdinaryPath
from aggregator.configfile.yaml_source import Key


class LocalConfig(Section):
    """The cluster without Kubernetes."""

    database: OrdinaryPath = Path("/var/lib/sickbay-aggregator/cluster.db")
    """The local cluster's state."""
    commands: Commands = Commands()
    command_timeout: Annotated[Duration, Field(ge=1)] = 30.0
    """A command that takes longer has failed, and is tried again."""


def _open(settings: LocalConfig, options: OpenOptions) -> OpenedCluster:
    from aggregator.cluster.local.cluster import LocalCluster

    return LocalCluster(
        options.store or settings.database,
        commands=settings.commands,
        command_timeout=settings.command_timeout,
        wall=options.wall,
    )


def _commands(settings: LocalConfig) -> Iterator[tuple[Key, Sequence[str]]]:
    for name in ("cordon", "drain", "release"):
        yield ("local", "commands", name), getattr(settings.commands, name)


LOCAL = ClusterKind(
    "local",
    _open,
    section=LocalConfig,
    has_labels=False,
    keeps_state=True,
    commands=_commands,
)
