"""The section ``cluster.slurm``: where Slurm is reached, and by which proof."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from aggregator.configfile.section import Section
from aggregator.configfile.values import Duration, MaybePath, OrdinaryPath, PageUrl, is_loopback
from aggregator.configfile.yaml_source import Key


class SlurmRestConfig(Section):
    """slurmrestd instead of Slurm's programs."""

    url: Annotated[PageUrl, Field(min_length=1)]
    """slurmrestd (docs/slurm.md#slurmrestd) instead of the programs: ``https://HOST:PORT``, or http
    on loopback.
    """
    token_file: OrdinaryPath
    """The output of ``scontrol token``, read for each request."""
    user: str = ""
    """The token's user, where the token does not name it."""
    ca_file: MaybePath = None
    """The CA of slurmrestd's certificate. Not set: those of the system."""


class SlurmConfig(Section):
    """A Slurm cluster, through its own programs; the rest is in a file, as without one."""

    database: OrdinaryPath = Path("/var/lib/sickbay-aggregator/cluster.db")
    """The file with the quarantines of a Slurm cluster (docs/slurm.md), and with our record of each
    drain.
    """
    programs: MaybePath = None
    """The folder of ``scontrol``, ``sinfo`` and ``squeue``. Not set: they are on the path."""
    conf: MaybePath = None
    """``SLURM_CONF`` for them. Not set: Slurm's own default."""
    command_timeout: Annotated[Duration, Field(ge=1)] = 30.0
    """A program that takes longer has failed, and is tried again."""
    poll: Annotated[Duration, Field(ge=1)] = 5.0
    """How often the nodes that sickbay has drained are read, for changes by people."""
    rest: SlurmRestConfig | None = None
    """slurmrestd instead of the programs."""


def cross_field_errors(slurm: SlurmConfig) -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together."""
    rest = slurm.rest
    if rest is None:
        return
    parts = urlsplit(rest.url)
    if parts.scheme == "http" and not is_loopback(f"{parts.hostname}:0"):
        text = f'"{rest.url}" sends the token in plaintext; expected https, or loopback'
        yield ("rest", "url"), text


def files(slurm: SlurmConfig) -> Iterator[tuple[Key, Path | None]]:
    """Every file that must exist before the start."""
    if slurm.rest is not None:
        yield ("rest", "token_file"), slurm.rest.token_file
        yield ("rest", "ca_file"), slurm.rest.ca_file
