"""The section ``cluster.slurm``: where Slurm is reached, and by which proof."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from aggregator.cluster.slurm.hostlist import expand
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


class SlurmNames(Section):
    """Agents' names, and the nodes in the same order."""

    agents: Annotated[str, Field(min_length=1)]
    """The names of agents, such as ``gpu-[001-100]``."""
    nodes: Annotated[str, Field(min_length=1)]
    """The NodeNames, as many, such as ``n[1-100]``."""


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
    node_names: Literal["name", "hostname", "address"] = "name"
    """The field of a Slurm node that is its agent's name: NodeName, NodeHostname or NodeAddr
    (docs/slurm.md#names).
    """
    names: Annotated[tuple[SlurmNames, ...], Field(strict=False, max_length=100)] = ()
    """Agents' names that no field has, as pairs of host lists of one length."""

    @property
    def pairs(self) -> dict[str, str]:
        """Agents' names by NodeName."""
        return {
            node: agent
            for one in self.names
            for node, agent in zip(expand(one.nodes), expand(one.agents), strict=True)
        }


def cross_field_errors(slurm: SlurmConfig) -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together."""
    yield from _wrong_names(slurm)
    rest = slurm.rest
    if rest is None:
        return
    parts = urlsplit(rest.url)
    if parts.scheme == "http" and not is_loopback(f"{parts.hostname}:0"):
        text = f'"{rest.url}" sends the token in plaintext; expected https, or loopback'
        yield ("rest", "url"), text


def _wrong_names(slurm: SlurmConfig) -> Iterator[tuple[Key, str]]:
    seen: dict[str, set[str]] = {"agents": set(), "nodes": set()}
    for number, one in enumerate(slurm.names):
        key: Key = ("names", number)
        lists: dict[str, list[str]] = {}
        for name, known in seen.items():
            text = getattr(one, name)
            try:
                lists[name] = expand(text)
            except ValueError as error:
                yield (*key, name), f"{error}; expected one such as n[1-4,7]"
                continue
            twice = [each for each, count in Counter(lists[name]).items() if count > 1]
            twice += sorted(known & set(lists[name]))
            if twice:
                yield (*key, name), f'"{twice[0]}" is named twice; expected each name once'
            known.update(lists[name])
        if len(lists) == 2 and len(lists["agents"]) != len(lists["nodes"]):
            counts = f"{len(lists['agents'])} agents and {len(lists['nodes'])} nodes"
            yield key, f"{counts}; expected as many of both"
